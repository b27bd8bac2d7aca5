//! Counters, progress, and the table at the end.

use mrrc::cache::CacheCounters;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When a run is over: at the first of the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) operations: u64,
    pub(crate) time: Duration,
}

/// One operation: acquire, a transfer, release.
#[derive(Default)]
pub(crate) struct Score {
    pub(crate) operations: AtomicU64,
    /// Bytes that were received and are not in memory.
    pub(crate) lost: AtomicU64,
    /// Bytes that were sent and are not those in memory.
    pub(crate) misplaced: AtomicU64,
    /// Operations in which there were such bytes.
    pub(crate) stale: AtomicU64,
    pub(crate) changes: AtomicU64,
    /// Times that a lease was kept across a change.
    pub(crate) kept: AtomicU64,
    /// Times that memory was acquired while the call that had freed its address was under way.
    pub(crate) raced: AtomicU64,
    /// Stale operations among those.
    pub(crate) stale_raced: AtomicU64,
    /// Requests for which there was no room.
    pub(crate) refused: AtomicU64,
    done: AtomicBool,
    samples: Mutex<Vec<String>>,
}

/// How many stale operations are told in full.
const SAMPLES: usize = 8;
/// Without one operation for so long, something waits for itself.
const STUCK: Duration = Duration::from_secs(60);

impl Score {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// One more stale operation, and what is known of it.
    pub(crate) fn sample(&self, text: impl FnOnce() -> String) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() < SAMPLES {
            samples.push(text());
        }
    }

    /// Returns whether something was done, and in a control found: on a busy machine that may take longer than the
    /// run's time.
    fn shows(&self, expects: Expects) -> bool {
        let some = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        some(&self.operations) && some(&self.changes) && (!matches!(expects, Expects::Some) || some(&self.stale))
    }

    /// Watches over a run from a thread of its own until the goal is reached, and tells how it goes if it is long.
    pub(crate) fn watch(&self, name: &str, goal: Goal, expects: Expects) {
        let tells = goal.time > Duration::from_secs(20) || std::io::stderr().is_terminal();
        let begun = Instant::now();
        let (mut seen, mut moved, mut told) = (0, begun, begun);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let (operations, spent) = (self.operations.load(Ordering::Relaxed), begun.elapsed());
            let is_late = spent >= goal.time && (self.shows(expects) || spent >= goal.time.saturating_add(STUCK));
            if operations >= goal.operations || is_late || self.is_done() {
                self.done.store(true, Ordering::Relaxed);
                return;
            }
            if operations != seen {
                (seen, moved) = (operations, Instant::now());
            } else if moved.elapsed() > STUCK {
                say(&format!("{name}: no operation for {STUCK:?}, after {operations}: a deadlock"));
                std::process::abort();
            }
            if tells && told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                let rate = operations as f64 / spent.as_secs_f64();
                let by_count = goal.operations.saturating_sub(operations) as f64 / rate.max(1.0);
                let left = by_count.min(goal.time.saturating_sub(spent).as_secs_f64());
                let stale = self.stale.load(Ordering::Relaxed);
                say(&format!(
                    "{name}: {} operations, {:.0} k/s, {stale} stale, {left:.0} s left",
                    grouped(operations),
                    rate / 1e3
                ));
            }
        }
    }

    /// Ends the run at once: a thread of it is going down.
    pub(crate) fn end(&self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Ends a run also when its thread panics.
pub(crate) struct EndsWith<'a>(pub(crate) &'a Score);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

fn say(line: &str) {
    // Not `eprintln`, which the harness keeps to itself.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The outcome of one run.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) expects: Expects,
    pub(crate) operations: u64,
    pub(crate) lost: u64,
    pub(crate) misplaced: u64,
    pub(crate) stale: u64,
    pub(crate) changes: u64,
    pub(crate) kept: u64,
    pub(crate) raced: u64,
    pub(crate) stale_raced: u64,
    pub(crate) refused: u64,
    pub(crate) samples: Vec<String>,
    pub(crate) counters: CacheCounters,
    pub(crate) time: Duration,
}

/// The expected result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expects {
    /// Not one stale byte.
    None,
    /// None but in races, where they are a number.
    Number,
    /// Some: it is a control.
    Some,
}

impl Row {
    pub(crate) fn new(
        name: &'static str,
        expects: Expects,
        score: Score,
        counters: CacheCounters,
        time: Duration,
    ) -> Self {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            name,
            expects,
            operations: number(&score.operations),
            lost: number(&score.lost),
            misplaced: number(&score.misplaced),
            stale: number(&score.stale),
            changes: number(&score.changes),
            kept: number(&score.kept),
            raced: number(&score.raced),
            stale_raced: number(&score.stale_raced),
            refused: number(&score.refused),
            samples: score.samples.into_inner().unwrap_or_else(PoisonError::into_inner),
            counters,
            time,
        }
    }

    /// Returns the contradiction to it, if any.
    pub(crate) fn fault(&self) -> Option<String> {
        let samples = || self.samples.join("\n  ");
        let wrong = match self.expects {
            Expects::None => self.stale,
            Expects::Number => self.stale - self.stale_raced,
            Expects::Some if self.stale == 0 => {
                return Some(format!(
                    "{}: a control found no stale hit in {} operations: it proves nothing",
                    self.name, self.operations
                ));
            }
            Expects::Some => 0,
        };
        if wrong > 0 {
            return Some(format!("{}: {wrong} stale operations:\n  {}", self.name, samples()));
        }
        if self.operations == 0 || self.changes == 0 {
            return Some(format!("{}: nothing was done", self.name));
        }
        // A cache that never hits is never stale.
        let hits = self.counters.decisions.hits();
        if hits < self.operations / 20 {
            return Some(format!("{}: {hits} hits in {} operations prove little", self.name, self.operations));
        }
        None
    }

    fn cells(&self) -> Vec<String> {
        let Self { counters, .. } = self;
        let seconds = self.time.as_secs_f64();
        let mut cells = vec![self.name.to_owned()];
        let numbers = [self.operations, self.stale, self.lost, self.misplaced, self.stale_raced, self.raced];
        cells.extend(numbers.map(grouped));
        cells.push(format!("{:.1} %", 100.0 * counters.decisions.hit_ratio()));
        let numbers = [
            self.changes,
            counters.changes,
            self.kept,
            counters.changed_in_flight,
            counters.discarded,
            counters.unwatched,
            counters.recalled,
            self.refused,
        ];
        cells.extend(numbers.map(grouped));
        cells.push(format!("{seconds:.1}"));
        cells.push(format!("{:.0}", self.operations as f64 / seconds / 1e3));
        cells
    }
}

const HEADS: [&str; 18] = [
    "run",
    "operations",
    "stale",
    "bytes lost",
    "misplaced",
    "stale in races",
    "races",
    "hits",
    "changes",
    "reported",
    "kept",
    "changed_in_flight",
    "discarded",
    "unwatched",
    "recalled",
    "no room",
    "s",
    "k/s",
];

/// The table, aligned.
pub(crate) fn print(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let mut lines = vec![HEADS.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(Row::cells));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate();
        let padded = cells.map(|(column, (cell, &width))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        println!("{}", padded.collect::<Vec<_>>().join("  "));
    }
    for row in rows.iter().filter(|row| row.expects != Expects::None) {
        for sample in row.samples.iter().take(2) {
            println!("{}, expected: {sample}", row.name);
        }
    }
}

/// `12,345,678`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
