//! Lines: classic commands and meta commands, with arguments that are right, at an edge or wrong.

use rand::seq::IndexedRandom;
use rand::{RngExt, rngs::StdRng};

use crate::pair::{NAME, VERSION};

fn one<'a>(of: &[&'a str], random: &mut StdRng) -> &'a str {
    of.choose(random).copied().unwrap_or_default()
}

fn key(random: &mut StdRng) -> String {
    match random.random_range(0..40) {
        0 => format!("{NAME}{}", "k".repeat(244)),
        1 => format!("{NAME}{}", "k".repeat(245)),
        2 => String::new(),
        3 => format!("{NAME}\u{7f}é"),
        4..15 => format!("{NAME}v"),
        15..22 => format!("{NAME}n"),
        at => format!("{NAME}{}", at % 4),
    }
}

fn flags(random: &mut StdRng) -> &'static str {
    one(&["0", "0", "0", "5", "4294967295", "4294967296", "-1", "x", "007", "1x", "18446744073709551616"], random)
}

fn exptime(random: &mut StdRng) -> &'static str {
    one(
        &["0", "0", "0", "0", "100", "2592000", "2592001", "-1", "-100", "x", "1x", "99999999999", "2147483647", ""],
        random,
    )
}

fn value(random: &mut StdRng) -> String {
    match random.random_range(0..8) {
        0 => String::new(),
        1 => random.random_range(0..1000).to_string(),
        2 => u64::MAX.to_string(),
        3 => "v".repeat(random.random_range(1..1500)),
        4 => "v".repeat(random.random_range(1000..1600)),
        5 => "12 ".into(),
        _ => "v".repeat(random.random_range(1..20)),
    }
}

/// Returns a length for this value: nearly always its own.
fn length(value: &str, random: &mut StdRng) -> String {
    match random.random_range(0..30) {
        0 => (value.len() + 1).to_string(),
        1 => value.len().saturating_sub(1).to_string(),
        2 => one(&["-1", "x", "2147483647", "4294967295", "", "1.5", "+3", "4294967299"], random).into(),
        _ => value.len().to_string(),
    }
}

fn noreply(random: &mut StdRng) -> &'static str {
    one(&["", "", "", "", "", " noreply", " noreply ", " noreplyx", " x", " x noreply", " NOREPLY"], random)
}

fn end(random: &mut StdRng) -> &'static str {
    one(&["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", " \r\n"], random)
}

/// Values of more than 2,048 bytes are only sent in order: what memcached makes of a long line depends on how much of it
/// has arrived.
pub(crate) fn large(random: &mut StdRng) -> Vec<u8> {
    let len = [8192, 9000, 30_000, 600_000, 1_048_577][random.random_range(0..5)];
    format!("set {NAME}l 0 0 {len}\r\n{}\r\n", "v".repeat(len)).into_bytes()
}

pub(crate) fn classic(random: &mut StdRng) -> Vec<u8> {
    let (mut key, noreply, end) = (key(random), noreply(random), end(random));
    let which = random.random_range(0..24);
    // A key that is too long makes memcached forget the answers before, to whatever was in the same read.
    if (8..13).contains(&which) && key.len() > 100 {
        key = format!("{NAME}l");
    }
    let line = match which {
        0..8 => {
            let name = one(&["set", "set", "set", "add", "replace", "append", "prepend", "cas", "cas"], random);
            let (value, flags, exptime) = (value(random), flags(random), exptime(random));
            let length = length(&value, random);
            let version = match name {
                "cas" => {
                    format!(" {}", one(&[VERSION, VERSION, "1", "0", "x", "-1", "18446744073709551615", ""], random))
                }
                _ => String::new(),
            };
            return format!("{name} {key} {flags} {exptime} {length}{version}{noreply}{end}{value}\r\n").into_bytes();
        }
        8..12 => {
            let name = one(&["get", "gets", "get", "GET", "bget"], random);
            let more = match random.random_range(0..6) {
                0 => format!(" {NAME}v {NAME}n"),
                1 => format!("  {NAME}1 {NAME}2 {NAME}3 {NAME}v {NAME}v {NAME}n {NAME}0 {NAME}1 {NAME}1"),
                _ => String::new(),
            };
            format!("{name} {key}{more}")
        }
        12 => format!("{} {} {key} {NAME}v", one(&["gat", "gats"], random), exptime(random)),
        13..16 => {
            let by = one(&["1", "0", "5", "18446744073709551615", "18446744073709551616", "-1", "x", "1x", ""], random);
            format!("{} {key} {by}{noreply}", one(&["incr", "decr"], random))
        }
        16 => {
            let digits = random.random_range(0..200).to_string();
            return format!("set {NAME}n 0 0 {}\r\n{digits}\r\n", digits.len()).into_bytes();
        }
        17 => format!("delete {key}{}{noreply}", one(&["", "", "", " 0", " 1"], random)),
        18 => format!("touch {key} {}{noreply}", exptime(random)),
        19 => {
            let rest = one(&["", " x", " noreply", " x noreply"], random);
            format!("{}{rest}", one(&["flush_all x", "verbosity 1", "version", "shutdown", "verbosity"], random))
        }
        20 => one(
            &[
                "lru",
                "lru tune",
                "lru mode x",
                "slabs",
                "slabs automove",
                "slabs automove 1",
                "slabs automove x",
                "slabs reassign 1 1",
                "slabs reassign x 1",
                "slabs reassign 0 900",
                "cache_memlimit",
                "cache_memlimit x",
                "cache_memlimit 1",
                "lru_crawler",
                "lru_crawler x",
                "lru_crawler sleep",
                "lru_crawler sleep x",
                "lru_crawler sleep 2000000",
                "lru_crawler tocrawl 5",
                "lru_crawler tocrawl x",
                "stats x",
                "stats detail",
                "stats detail x",
                "stats reset",
                "lru_crawler enable",
                "refresh_certs",
                "lru_crawler crawl x",
                "lru_crawler metadump",
                "stats cachedump",
                "stats cachedump x",
                "stats cachedump 1",
                "stats cachedump 0 0",
                "stats cachedump 64 1",
                "stats cachedump 0 x",
                "stats cachedump 4294967296 1",
                "lru temp_ttl x",
                "verbosity 1 2 3",
                "version x",
                "quit x",
            ],
            random,
        )
        .into(),
        21 => "mn".into(),
        _ => one(
            &[
                "",
                " ",
                "foo",
                "get",
                "set",
                "incr",
                "quitx",
                "gat",
                "gat 0",
                "delete",
                "touch",
                "gets ",
                "se t a 0 0 1",
                "\0",
                "cas",
            ],
            random,
        )
        .into(),
    };
    (line + end).into_bytes()
}

fn flag(letter: char, random: &mut StdRng) -> String {
    let token = match letter {
        'C' => one(&[VERSION, VERSION, "1", "x", "", "18446744073709551616"], random),
        'F' | 'J' | 'D' => one(&["0", "5", "4294967295", "4294967296", "x", "", "18446744073709551616", "-1"], random),
        // Nothing that is over at once: what is left of it to live is told in more than one way.
        'T' | 'N' | 'R' => one(&["0", "30", "x", "", "100"], random),
        'O' => one(&["", "abc", "0", "12345678901234567890123456789012", "123456789012345678901234567890123"], random),
        'M' => one(&["E", "A", "P", "R", "S", "e", "a", "I", "D", "+", "-", "i", "d", "x", "", "EE", "append"], random),
        'S' => one(&["5", "x", ""], random),
        _ => one(&["", "", "", "", "", "", "x"], random),
    };
    format!(" {letter}{token}")
}

/// Returns whether a meta command has flags that mean something to later memcacheds only (`E`, `x`, and `s` of `ms`), or makes an
/// item by `mg` with a key in base64: 1.6.18 forgets that it was, and returns the key as it is, ends of lines included.
pub(crate) fn is_answered_otherwise(command: &[u8]) -> bool {
    let line = command.split(|&byte| byte == b'\n').next().unwrap_or(command);
    let words: Vec<_> = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
    let is = |name: &[u8]| words.first() == Some(&name);
    let has = |letters: &[u8]| words.iter().skip(2).any(|word| letters.contains(&word[0]));
    has(b"Ex") || is(b"ms") && has(b"s") || is(b"mg") && has(b"b") && has(b"N")
}

pub(crate) fn meta(random: &mut StdRng) -> Vec<u8> {
    let (name, known) =
        *[("mg", "vvvkfstchlquNRTOb"), ("ms", "kcbFFCITMOq"), ("md", "kbCITqO"), ("ma", "NJDTMqtcvvkbOC")]
            .choose(random)
            .unwrap_or(&("mn", ""));
    if random.random_bool(0.05) {
        return one(
            &[
                "mn\r\n", "mn x\r\n", "me\r\n", "mg\r\n", "ms\r\n", "md\r\n", "ma\r\n", "mx a\r\n", "ms a\r\n",
                "mg  \r\n",
            ],
            random,
        )
        .into();
    }
    let mut flags = String::new();
    for _ in 0..random.random_range(0..6) {
        let letters: Vec<char> = if random.random_bool(0.95) {
            known.chars()
        } else {
            // Without those that later versions gave a meaning: `E`, `x`, and `s` of `ms`.
            if name == "ms" {
                "abcdefghijklmnopqrtuvwyzABCDFGHIJKLMNOPQRSTUVWXYZ!0"
            } else {
                "abcdefghijklmnopqrstuvwyzABCDFGHIJKLMNOPQRSTUVWXYZ!0"
            }
            .chars()
        }
        .collect();
        flags += &flag(letters.choose(random).copied().unwrap_or('v'), random);
    }
    let key = match random.random_range(0..20) {
        // Six digits will stand there, so that it is base64 if it is asked for so.
        0 => format!("AA{NAME}"),
        1 => format!("AAAA{NAME}A="),
        _ => key(random),
    };
    let end = end(random);
    if name != "ms" {
        return format!("{name} {key}{flags}{end}").into_bytes();
    }
    let value = value(random);
    let length = match random.random_range(0..20) {
        0 => format!("S{}", value.len()),
        _ => length(&value, random),
    };
    format!("ms {key} {length}{flags}{end}{value}\r\n").into_bytes()
}
