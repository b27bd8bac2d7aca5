//! The machine's own speed: work that shares nothing, with one thread and with more.
//!
//! Two CPUs may be one core, or be lent to others meanwhile. A cache cannot scale better than these loops do.

use super::Options;
use super::names::{threads_name, timed};
use super::race::{CHUNK, Contestant, Stint, race};
use crate::side_by_side::report::{Row, Unit};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Above the table.
pub const TITLE: &str = "The machine: a step of work that shares nothing (but `shared-line`), all threads together";

/// The work of the loops, in the order of their laps.
const LOOPS: [&str; 3] = ["arithmetic", "locked-add/own-line", "locked-add/shared-line"];

/// Returns the names of its rows with these numbers of threads.
pub fn rows(threads: &[usize]) -> Vec<String> {
    LOOPS.iter().flat_map(|name| timed(&format!("machine/{name}"), &[""], threads)).collect()
}

/// A cache line of its own, and its neighbour that prefetchers fetch with it.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Measures the floor.
///
/// # Errors
/// Those of [`race`].
pub fn measure(options: &Options) -> Result<Vec<Row>, String> {
    let most = options.threads.iter().copied().max().unwrap_or(1);
    let lines: Vec<Line> = (0..most).map(|_| Line::default()).collect();
    let shared = Line::default();
    let wide = |stint: Stint| {
        // Six chains side by side: enough to keep a core's units busy, so that two hyperthreads get in each
        // other's way.
        let mut sums = [stint.thread as u64 | 1; 6];
        for _ in 0..stint.chunks * CHUNK {
            for sum in &mut sums {
                *sum = sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (*sum >> 7);
            }
        }
        black_box(sums);
        0
    };
    let add = |line: &AtomicU64, stint: Stint| {
        for _ in 0..stint.chunks * CHUNK {
            line.fetch_add(1, Ordering::Relaxed);
        }
        0
    };
    let own = |stint: Stint| add(&lines[stint.thread].0, stint);
    let same = |stint: Stint| add(&shared.0, stint);
    let none = &|| 0;
    let contestants = [
        Contestant { run: &wide, attempts: none },
        Contestant { run: &own, attempts: none },
        Contestant { run: &same, attempts: none },
    ];
    let laps = race(&contestants, &options.threads, &options.places.cpus, options.length)?;
    let mut rows = Vec::new();
    for (name, laps) in LOOPS.iter().zip(&laps) {
        for (&threads, laps) in options.threads.iter().zip(laps) {
            let threads = threads_name(threads);
            rows.push(Row::new(format!("machine/{name}/{threads}"), laps.nanos(), None, Unit::Nanos));
        }
    }
    for (name, laps) in LOOPS.iter().zip(&laps) {
        for (&threads, team) in options.threads.iter().zip(laps).skip(1) {
            let speedup = team.nanos().speedup(laps[0].nanos());
            let name = format!("speedup/machine/{name}/{}", threads_name(threads));
            rows.push(Row::new(name, speedup, None, Unit::Times));
        }
    }
    Ok(rows)
}
