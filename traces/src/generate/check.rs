//! Measured against asked.

use std::fmt;

/// How a figure is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unit {
    /// A whole number.
    Count,
    /// Of one, shown in percent.
    Share,
    /// Bytes, shown in thousands.
    Kilobytes,
    /// A plain number.
    Number,
}

/// One figure of a workload.
#[derive(Clone, PartialEq, Debug)]
pub struct Check {
    /// The measured figure.
    pub figure: &'static str,
    /// As published, or as the options have it.
    pub asked: f64,
    /// On the events.
    pub measured: f64,
    /// How far off it may be, in the same unit.
    pub within: f64,
    /// How to show it.
    pub unit: Unit,
}

impl Check {
    /// Returns whether it is as near as it should be.
    pub fn holds(&self) -> bool {
        (self.measured - self.asked).abs() <= self.within
    }
}

/// The figures of a workload; shown as a table.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Checks(pub Vec<Check>);

impl Checks {
    /// Returns whether all hold.
    pub fn hold(&self) -> bool {
        self.0.iter().all(Check::holds)
    }

    pub(super) fn add(&mut self, figure: &'static str, unit: Unit, asked: f64, measured: f64, within: f64) {
        self.0.push(Check { figure, asked, measured, within, unit });
    }
}

impl fmt::Display for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|check| check.figure.chars().count()).max().unwrap_or(0);
        writeln!(f, "{:width$} {:>12} {:>12} {:>10}", "figure", "asked", "measured", "within")?;
        for check in &self.0 {
            let [asked, measured, within] =
                [check.asked, check.measured, check.within].map(|value| check.unit.show(value));
            let verdict = if check.holds() { "" } else { "  off" };
            writeln!(f, "{:width$} {asked:>12} {measured:>12} {within:>10}{verdict}", check.figure)?;
        }
        Ok(())
    }
}

impl Unit {
    /// Returns a value of it, in words.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Count => format!("{value:.0}"),
            Self::Share => format!("{:.1} %", value * 100.0),
            Self::Kilobytes => format!("{:.2} KB", value / 1000.0),
            Self::Number => format!("{value:.3}"),
        }
    }
}
