//! Noise: no bytes make a parser panic.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{binary, text, udp};

/// How many times as much noise as usual is wanted: `NOISE=1000`.
pub(crate) fn times() -> u64 {
    std::env::var("NOISE").map_or(1, |times| times.parse().expect("NOISE is a number"))
}

/// Lines that are nearly right.
fn lines() -> Vec<Vec<u8>> {
    [
        "get a bb ccc",
        "gats 10 a",
        "set key 1 2 3 noreply",
        "cas key 1 2 3 4",
        "mg key v t c Oopaque N30",
        "ms key 10 T30 F2 MS I C5",
        "ma YWI= b N0 J5 D3 MD v",
        "md a q I T3",
        "me a b",
        "incr a 10",
        "delete a 0",
        "touch a -1",
        "flush_all 10 noreply",
        "stats items",
        "slabs reassign -1 5",
        "lru tune 1 2 3 4",
        "verbosity 1",
    ]
    .iter()
    .map(|line| line.as_bytes().to_vec())
    .collect()
}

#[test]
fn no_line_however_bent_makes_the_text_parser_panic() {
    let mut random = StdRng::seed_from_u64(9);
    let (lines, mut good) = (lines(), 0_u64);
    for _ in 0..60_000 * times() {
        let mut line = lines[random.random_range(0..lines.len())].clone();
        for _ in 0..random.random_range(0..4) {
            let at = random.random_range(0..=line.len());
            match random.random_range(0..5) {
                0 => line.insert(at, random.random()),
                1 if at < line.len() => drop(line.remove(at)),
                2 if at < line.len() => line[at] ^= 1 << random.random_range(0..8),
                3 => line.truncate(at),
                _ => line.splice(at..at, [b' ', b'9'].repeat(random.random_range(0..20))).for_each(drop),
            }
        }
        good += u64::from(text::parse(&line).is_ok());
    }
    assert!(good > 1000 * times(), "mutations that are still requests: {good}");
}

#[test]
fn no_bytes_make_the_binary_and_datagram_parsers_panic() {
    let mut random = StdRng::seed_from_u64(10);
    for _ in 0..60_000 * times() {
        let mut bytes: [u8; binary::HEADER] = random.random();
        if random.random() {
            bytes[0] = binary::REQUEST;
            bytes[8] = 0;
        }
        if let Ok(header) = binary::parse(&bytes) {
            let _ = header.is_well_formed();
            header.answer(&mut Vec::new(), 1, (4, 0, 0), 0);
        }
        let _ = udp::parse(&bytes[..random.random_range(0..=bytes.len())]);
    }
}
