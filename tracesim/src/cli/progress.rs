//! How far long work is, on standard error when that is a terminal; nothing otherwise.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A line that is gone when it is dropped.
pub(crate) struct Progress(ProgressBar);

/// How often the line is drawn anew while nothing is reported.
const TICK: Duration = Duration::from_millis(200);

impl Progress {
    /// Work of that many steps.
    pub(crate) fn of(what: &str, steps: u64) -> Self {
        let bar = ProgressBar::new(steps).with_message(what.to_owned());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3}%, {eta} left");
        Self::started(bar, style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// Shows progress of work of unknown length.
    pub(crate) fn unknown(what: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        let style = ProgressStyle::with_template("{spinner} {msg}: {human_pos} events, {elapsed}");
        Self::started(bar, style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
    }

    fn started(bar: ProgressBar, style: ProgressStyle) -> Self {
        bar.set_style(style);
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        Self(bar)
    }

    /// So many steps more.
    pub(crate) fn step(&self, steps: u64) {
        self.0.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
