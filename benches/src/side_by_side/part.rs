//! A measurement that knows its rows before it is made: those of [`cache`](super::cache), [`fabric`](super::fabric),
//! [`handshake`](super::handshake), [`kv`](super::kv) and [`resilience`](super::resilience).

use super::report::Row;
use std::time::Duration;

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The CPU of this process.
    pub near: usize,
    /// The CPU of the process at the other end, where there is one.
    pub far: usize,
    /// Turns of each contestant, at least.
    pub rounds: usize,
    /// The whole of a race, at least.
    pub whole: Duration,
    /// As short as can be.
    pub quick: bool,
}

/// Measures one thing.
type Measure = Box<dyn Fn(&Setting) -> Result<Vec<Row>, String>>;

/// One measurement.
pub struct Part {
    /// The name shown as progress.
    pub name: String,
    /// Above its table, which it shares with its neighbours of the same title.
    pub title: &'static str,
    /// The names of its rows.
    pub rows: Vec<String>,
    measure: Measure,
}

impl Part {
    /// Returns a measurement whose rows are called its name and these.
    pub fn new(
        name: impl Into<String>,
        title: &'static str,
        rows: &[impl AsRef<str>],
        measure: impl Fn(&Setting) -> Result<Vec<Row>, String> + 'static,
    ) -> Self {
        let name = name.into();
        let rows = rows.iter().map(|row| format!("{name}/{}", row.as_ref())).collect();
        Self::named(name, title, rows, measure)
    }

    /// Returns a measurement whose rows have these names.
    pub fn named(
        name: impl Into<String>,
        title: &'static str,
        rows: Vec<String>,
        measure: impl Fn(&Setting) -> Result<Vec<Row>, String> + 'static,
    ) -> Self {
        Self { name: name.into(), title, rows, measure: Box::new(measure) }
    }

    /// Returns whether a name means this one: its own, or some whole parts of it from the left.
    pub fn is_named(&self, name: &str) -> bool {
        self.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Measures it.
    ///
    /// # Errors
    /// The reason why it was not measured.
    pub fn measure(&self, setting: &Setting) -> Result<Vec<Row>, String> {
        (self.measure)(setting).map_err(|error| format!("{}: {error}", self.name))
    }
}
