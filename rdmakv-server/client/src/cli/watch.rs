//! The activity of servers, as a table that is drawn again and again.

use super::Failure;
use crate::{Client, Stats};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// A server's counts and their time.
struct Look {
    at: Instant,
    stats: Stats,
}

impl Look {
    fn number(&self, name: &str) -> u64 {
        self.stats.iter().find(|(named, _)| named == name).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    }

    /// Returns the sum over all fabrics.
    fn over_fabrics(&self, name: &str) -> u64 {
        ["shm", "iwarp", "verbs"].iter().map(|fabric| self.number(&format!("{fabric}_{name}"))).sum()
    }
}

const HEAD: [&str; 8] = ["server", "gets/s", "one-sided", "hit rate", "sets/s", "items", "registered", "leased"];

pub(super) fn watch(client: &mut Client, interval: Duration, count: Option<u64>) -> Result<(), Failure> {
    let mut before: Vec<Option<Look>> = Vec::new();
    let live = io::stdout().is_terminal();
    let mut left = count;
    // The first look is what others are compared with.
    loop {
        let (mut rows, mut silent) = (Vec::new(), 0);
        for (at, (server, stats)) in client.stats("").into_iter().enumerate() {
            let now = stats.map(|stats| Look { at: Instant::now(), stats });
            if before.len() <= at {
                before.push(None);
            }
            match now {
                Ok(now) => {
                    rows.push(match &before[at] {
                        Some(before) => row(server, before, &now),
                        None => blank(server, "…"),
                    });
                    before[at] = Some(now);
                }
                Err(error) => {
                    before[at] = None;
                    silent += 1;
                    rows.push(blank(server, &error.to_string()));
                }
            }
        }
        let mut text = table(&rows);
        if live {
            text.insert_str(0, "\x1b[H\x1b[J");
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        drop(out);
        if let Some(left) = &mut left {
            if *left == 0 {
                return match silent {
                    0 => Ok(()),
                    _ => Err(Failure::No(format!("{silent} of {} servers did not answer the last time", rows.len()))),
                };
            }
            *left -= 1;
        }
        std::thread::sleep(interval);
    }
}

fn blank(server: String, why: &str) -> [String; 8] {
    let mut row = [const { String::new() }; 8];
    row[0] = server;
    row[1] = why.to_owned();
    row
}

fn row(server: String, before: &Look, now: &Look) -> [String; 8] {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-6);
    let more = |name: &str| now.number(name).saturating_sub(before.number(name)) as f64;
    // Reads that the server had no part in are among the others.
    let (one_sided, gets, hits) = (more("get_one_sided"), more("cmd_get"), more("get_hits"));
    let share = |part: f64| if gets > 0.0 { format!("{:.1} %", 100.0 * part / gets) } else { "–".to_owned() };
    let megabytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    [
        server,
        grouped((gets / seconds) as u64),
        share(one_sided),
        share(hits),
        grouped((more("cmd_set") / seconds) as u64),
        grouped(now.number("curr_items")),
        megabytes(now.over_fabrics("registered_bytes")),
        megabytes(now.over_fabrics("leased_pages") * 4096),
    ]
}

/// 1,234,567
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn table(rows: &[[String; 8]]) -> String {
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).chain([HEAD[column].len()]).max().unwrap_or(0))
        // The text in the place of numbers is as wide as it is.
        .enumerate()
        .map(|(column, width)| if column == 0 { width } else { width.min(14) })
        .collect();
    let mut text = String::new();
    let head: [String; 8] = HEAD.map(str::to_owned);
    for row in [&head].into_iter().chain(rows) {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, numbers: &[(&str, u64)]) -> Look {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let at = *START.get_or_init(Instant::now) + Duration::from_secs(seconds);
        Look { at, stats: numbers.iter().map(|(name, number)| ((*name).to_owned(), number.to_string())).collect() }
    }

    #[test]
    fn a_row_says_what_happened_in_between() {
        let before = look(0, &[("cmd_get", 1100), ("get_hits", 1050), ("get_one_sided", 1000), ("cmd_set", 0)]);
        let now = look(
            2,
            &[
                ("cmd_get", 2_901_200),
                ("get_hits", 2_901_100),
                ("get_one_sided", 2_901_000),
                ("cmd_set", 40),
                ("curr_items", 12_345),
                ("shm_registered_bytes", 3 << 20),
                ("iwarp_registered_bytes", 1 << 19),
            ],
        );
        let row = row("here".to_owned(), &before, &now);
        assert_eq!(
            row,
            ["here", "1,450,050", "100.0 %", "100.0 %", "20", "12,345", "3.5 MiB", "0.0 MiB"].map(str::to_owned)
        );
        let table = table(&[row, blank("there".to_owned(), "no connection")]);
        assert_eq!(table.lines().count(), 3);
        assert!(table.starts_with("server         gets/s  one-sided"), "{table}");
    }
}
