//! Section 8: what the fast read and write process saves.
//!
//! The paper computes it from costs of its testbed. Here both processes run, on the simulated clocks of
//! [`handshake`](super::handshake), under the same costs: two peers, their caches and a network in this process.

use super::claim::Claim;
use super::handshake::{LATENCIES, PAGES, Row, Warmth, study};
use crate::report::percent;

/// Transfers by both processes, or what kept them from being run.
pub type Latencies = Result<Vec<Row>, String>;

/// Runs all of them: some seconds where nothing is optimised, some milliseconds elsewhere.
pub fn run() -> Latencies {
    study(false, &PAGES, &LATENCIES).map_err(|error| error.to_string())
}

/// Returns the transfer of so many pages over a network of that latency.
pub fn find(rows: &[Row], pages: usize, latency: u64, warmth: Warmth) -> Option<&Row> {
    rows.iter().find(|row| (row.pages, row.latency, row.warmth) == (pages, latency, warmth))
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Returns the claims.
pub fn claims(latencies: &Latencies) -> Vec<Claim> {
    const PLACE: &str = "Section 8";
    const CALLS: &str = "saved by conditional writes";
    const BOTH: &str = "saved in all, the least";
    const SHARE: &str = "saved of the latency";
    let rows = match latencies {
        Ok(rows) => rows,
        Err(why) => {
            return vec![
                Claim::open(PLACE, CALLS, "8 µs", why),
                Claim::open(PLACE, BOTH, "15 µs", why),
                Claim::open(PLACE, SHARE, "68 %", why),
            ];
        }
    };
    let mut claims = Vec::new();
    for pages in [1, 256] {
        let (Some(cold), Some(warm)) = (find(rows, pages, 0, Warmth::Cold), find(rows, pages, 0, Warmth::Warm)) else {
            continue;
        };
        let overlap = us(cold.saved()) - us(warm.saved());
        let asked = 0.77 * pages as f64 + 7.42;
        let claim = format!("saved by registering at once, {pages} {}", if pages == 1 { "page" } else { "pages" });
        let here = format!("{overlap:.2} µs");
        let holds = (overlap - asked).abs() <= 0.01 * asked;
        claims.push(Claim::measured(PLACE, claim, &format!("{asked:.2} µs"), "within 1 %", here, holds));
    }
    if let (Some(one), Some(warm)) = (find(rows, 1, 0, Warmth::Cold), find(rows, 1, 0, Warmth::Warm)) {
        let crossing = us(warm.saved());
        let holds = (crossing - 8.0).abs() <= 0.08;
        claims.push(Claim::measured(PLACE, CALLS, "8 µs", "within 1 %", format!("{crossing:.2} µs"), holds));
        let least = us(one.saved());
        claims.push(Claim::measured(PLACE, BOTH, "15 µs", "15 µs or more", format!("{least:.2} µs"), least >= 15.0));
        let share = |pages, latency| find(rows, pages, latency, Warmth::Cold).map_or(0.0, Row::share);
        let note = format!(
            "one page, no latency in the network; the paper's own sums give 67.5 % for no page at all, {} here for 256; over \
             a network of 5 µs one page saves {}, with both sides registered before {}",
            percent(share(256, 0)),
            percent(share(1, 5_000)),
            percent(find(rows, 1, 5_000, Warmth::Warm).map_or(0.0, Row::share))
        );
        let here = percent(one.share());
        claims.push(
            Claim::measured(PLACE, SHARE, "68 %", "67 to 69 %", here, (0.67..=0.69).contains(&one.share()))
                .with_note(note),
        );
    }
    claims
}
