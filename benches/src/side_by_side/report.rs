//! Figures on the way out: a table for people, JSON lines for programs. Neither claims a ratio where the rounds of ours and of the
//! peer overlap.

use super::figure::Figure;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// The meaning of a number, and which way is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unit {
    /// Nanoseconds: lower is better.
    #[serde(rename = "ns")]
    Nanos,
    /// Times: higher is better.
    #[serde(rename = "x")]
    Times,
    /// Millions a second: higher is better.
    #[serde(rename = "M/s")]
    Millions,
    /// Thousand million bytes a second: higher is better.
    #[serde(rename = "GB/s")]
    Gigabytes,
    /// Million bytes a second: higher is better.
    #[serde(rename = "MB/s")]
    Megabytes,
    /// Memory in units of 2²⁰ bytes: lower is better.
    #[serde(rename = "MiB")]
    Mebibytes,
    /// A part of one: higher is better, and a ratio of two says nothing.
    #[serde(rename = "part")]
    Part,
    /// A part of one: lower is better.
    #[serde(rename = "share")]
    Share,
    /// A count: lower is better.
    #[serde(rename = "count")]
    Count,
    /// System calls of a request: lower is better.
    #[serde(rename = "calls")]
    Calls,
    /// Bytes: lower is better.
    #[serde(rename = "B")]
    Bytes,
    /// Things that are kept: higher is better.
    #[serde(rename = "items")]
    Items,
}

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Stable: `hit/stride/1000/1-thread`.
    pub name: String,
    /// Ours, or the machine's own.
    pub ours: Figure,
    /// The peer's, if it is there and does such a thing.
    pub peer: Option<Figure>,
    /// Of both.
    pub unit: Unit,
    /// For people.
    pub note: String,
    /// Whether ours and the peer's could be told apart by more than their rounds.
    told_apart: bool,
    /// Ours is held to a limit, and not to the peer.
    #[serde(default)]
    limit: Option<Limit>,
}

/// A limit of ours, and what it is by medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Limit {
    /// `at most 3.5 x`.
    text: String,
    value: f64,
    is_met: bool,
}

/// How ours stands to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Ours is better, in every round that counts.
    Ahead,
    /// Both are the same; what was counted once, as far as it is printed.
    Even,
    /// The peer is.
    Behind,
    /// Rounds of one lie among those of the other.
    Overlap,
}

impl Unit {
    /// Returns whether more of it is better.
    fn rises(self) -> bool {
        matches!(self, Self::Times | Self::Millions | Self::Gigabytes | Self::Megabytes | Self::Part | Self::Items)
    }

    /// Behind a number.
    fn name(self) -> &'static str {
        match self {
            Self::Nanos => "ns",
            Self::Times => "x",
            Self::Millions => "M/s",
            Self::Gigabytes => "GB/s",
            Self::Megabytes => "MB/s",
            Self::Mebibytes => "MiB",
            Self::Part => "part",
            Self::Share => "share",
            Self::Count => "",
            Self::Calls => "calls",
            Self::Bytes => "B",
            Self::Items => "items",
        }
    }
}

impl Row {
    /// Returns a row without a note.
    pub fn new(name: impl Into<String>, ours: Figure, peer: Option<Figure>, unit: Unit) -> Self {
        Self { name: name.into(), ours, peer, unit, note: String::new(), told_apart: true, limit: None }
    }

    /// With a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        if !self.note.is_empty() {
            self.note.push_str("; ");
        }
        self.note.push_str(&note.into());
        self
    }

    /// Omits the ratio: it would be indistinguishable from noise.
    #[must_use]
    pub fn without_ratio(mut self) -> Self {
        self.told_apart = false;
        self
    }

    /// Holds ours to a limit, in place of the peer: it is a multiple of that by intent.
    #[must_use]
    pub fn at_most(mut self, unit: &str, value: f64, most: f64) -> Self {
        self.limit = Some(Limit { text: format!("at most {most} {unit}"), value, is_met: value <= most });
        self
    }

    /// Holds the medians of ours to so many times those of the peer, if there is a limit. Without one the row is no loss, either.
    #[must_use]
    pub fn at_most_times(self, most: Option<f64>) -> Self {
        let median = |figure: Figure| figure.median.unwrap_or(figure.best);
        let times = self.peer.map_or(f64::NAN, |peer| median(self.ours) / median(peer));
        match most {
            Some(most) => self.at_most("x", times, most),
            None => self.without_ratio().note(format!("{times:.2} x by medians")),
        }
    }

    /// Holds ours to a limit from below.
    #[must_use]
    pub fn at_least(mut self, unit: &str, value: f64, least: f64) -> Self {
        self.limit = Some(Limit { text: format!("at least {least} {unit}"), value, is_met: value >= least });
        self
    }

    /// Returns whether the limit is met, if there is one.
    pub(super) fn is_within_limit(&self) -> Option<bool> {
        self.limit.as_ref().map(|limit| limit.is_met)
    }

    /// Ours / peer, of the best rounds; none where the rounds overlap.
    pub fn ratio(&self) -> Option<f64> {
        self.peer
            .filter(|peer| self.unit != Unit::Part && self.told_apart && !self.ours.overlaps(peer))
            .map(|peer| self.ours.best / peer.best)
            .filter(|ratio| ratio.is_finite())
    }

    /// Returns [`ratio`](Self::ratio), or its inverse where more is better: below 1 ours is better.
    pub(super) fn times(&self) -> Option<f64> {
        self.ratio().map(|ratio| if self.unit.rises() { 1.0 / ratio } else { ratio }).filter(|times| times.is_finite())
    }

    /// How ours stands to the peer; none where there is no peer, or nothing to be told by.
    pub fn standing(&self) -> Option<Standing> {
        let peer = self.peer.filter(|_| self.told_apart && self.limit.is_none())?;
        if self.ours.overlaps(&peer) {
            return Some(Standing::Overlap);
        }
        let counted = self.ours.rounds.is_none() || peer.rounds.is_none();
        let alike = counted && number(self.ours.best, self.unit) == number(peer.best, self.unit);
        let ahead = if self.unit.rises() { self.ours.best > peer.best } else { self.ours.best < peer.best };
        match (self.ours.best - peer.best).abs() {
            difference if difference.is_nan() => None,
            0.0 => Some(Standing::Even),
            _ if alike => Some(Standing::Even),
            _ if ahead => Some(Standing::Ahead),
            _ => Some(Standing::Behind),
        }
    }

    /// Returns the row of a table: name, ours, its median, peer, its median, unit, ratio, note.
    pub(super) fn cells(&self) -> [String; 8] {
        let value = |figure: Option<Figure>| figure.map_or("-".into(), |figure| number(figure.best, self.unit));
        let median = |figure: Option<Figure>| match figure.and_then(|figure| figure.median) {
            Some(median) => format!("({})", number(median, self.unit)),
            None => String::new(),
        };
        let ratio = self.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let stands = match self.standing() {
            Some(Standing::Behind) => "a loss",
            Some(Standing::Overlap) => "the rounds overlap",
            _ => "",
        };
        let limit = self.limit.as_ref().map_or_else(String::new, |Limit { text, value, is_met }| {
            format!("limit {text}: {} with {value:.2}", if *is_met { "met" } else { "missed" })
        });
        let note =
            [stands, &limit, &self.note].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
        let ours = Some(self.ours);
        let unit = self.unit.name().into();
        [self.name.clone(), value(ours), median(ours), value(self.peer), median(self.peer), unit, ratio, note]
    }
}

/// The fields of a line of JSON, in their order.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    ours: f64,
    peer: Option<f64>,
    unit: Unit,
    ratio: Option<f64>,
}

/// Writes rows as JSON lines. A value that is no number is null.
///
/// # Errors
/// Those of the writer.
pub fn json(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    for row in rows {
        let rounded = |figure: Figure| (figure.best * 1e4).round() / 1e4;
        let line = Line {
            name: &row.name,
            ours: rounded(row.ours),
            peer: row.peer.map(rounded),
            unit: row.unit,
            ratio: row.ratio().map(|ratio| (ratio * 1e4).round() / 1e4),
        };
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Writes rows, if there are any, as a table. `title` says what was measured.
///
/// # Errors
/// Those of the writer.
pub fn table(out: &mut impl Write, title: &str, rows: &[Row]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut cells = vec![["", "ours", "(median)", "peer", "(median)", "", "ours/peer", ""].map(String::from)];
    cells.extend(rows.iter().map(Row::cells));
    let mut widths = [0; 8];
    for line in &cells {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    writeln!(out, "{title}")?;
    for line in &cells {
        let mut text = String::from(" ");
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            // Names, units and notes to the left, numbers to the right.
            let cell =
                if matches!(column, 0 | 5 | 7) { format!(" {cell:<width$}") } else { format!(" {cell:>width$}") };
            text.push_str(&cell);
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    writeln!(out)
}

/// Three digits or more, thousands apart.
fn number(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    match unit {
        Unit::Times | Unit::Millions | Unit::Gigabytes | Unit::Mebibytes | Unit::Calls => format!("{value:.2}"),
        Unit::Part => format!("{value:.2}"),
        Unit::Share => format!("{value:.4}"),
        Unit::Nanos | Unit::Bytes | Unit::Megabytes if value < 1000.0 => format!("{value:.1}"),
        // A count for each of many.
        Unit::Count if value < 100.0 && value.fract() != 0.0 => format!("{value:.2}"),
        Unit::Nanos | Unit::Count | Unit::Bytes | Unit::Megabytes | Unit::Items => {
            let digits = format!("{value:.0}");
            let first = digits.len() % 3;
            let mut grouped = digits[..first].to_owned();
            for group in digits.as_bytes()[first..].chunks(3) {
                if !grouped.is_empty() {
                    grouped.push(',');
                }
                grouped.extend(group.iter().map(|&digit| char::from(digit)));
            }
            grouped
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl Fn(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_line_has_five_fields() {
        let row =
            Row::new("hit", Figure { median: Some(6.0), ..Figure::once(5.0) }, Some(Figure::once(20.0)), Unit::Nanos);
        assert_eq!(
            text(|out| json(out, std::slice::from_ref(&row))),
            "{\"name\":\"hit\",\"ours\":5.0,\"peer\":20.0,\"unit\":\"ns\",\"ratio\":0.25}\n"
        );
    }

    #[test]
    fn missing_peer_is_null_in_json() {
        let alone = Row::new("speedup", Figure::once(1.5), None, Unit::Times);
        let none = Row::new("evictions", Figure::once(0.0), Some(Figure::once(0.0)), Unit::Count);
        let lines = text(|out| json(out, &[alone.clone(), none.clone()]));
        assert!(lines.contains("\"peer\":null,\"unit\":\"x\",\"ratio\":null"), "{lines}");
        assert!(lines.contains("\"peer\":0.0,\"unit\":\"count\",\"ratio\":null"), "{lines}");
    }

    #[test]
    fn columns_of_a_table_stand_below_each_other() {
        let rows = [
            Row::new("a", Figure { median: Some(6.0), ..Figure::once(5.0) }, Some(Figure::once(20.0)), Unit::Nanos),
            Row::new("longer", Figure::once(1_049_000.0), None, Unit::Nanos).note("why"),
        ];
        let table = text(|out| table(out, "title", &rows));
        let lines: Vec<_> = table.lines().collect();
        let end = |line: &str, of: &str| line.find(of).unwrap() + of.len();
        assert_eq!(end(lines[1], "ours"), end(lines[2], "5.0"));
        assert_eq!(end(lines[1], "ours"), end(lines[3], "1,049,000"));
        assert!(lines[3].ends_with("why"));
    }

    #[test]
    fn ratio_needs_disjoint_rounds() {
        let row = |ours: &[f64], peer: &[f64], unit| {
            Row::new("x", Figure::lowest(ours.into()), Some(Figure::lowest(peer.into())), unit)
        };
        let apart = row(&[1.0, 2.0], &[3.0, 4.0], Unit::Nanos);
        assert_eq!((apart.ratio(), apart.standing()), (Some(1.0 / 3.0), Some(Standing::Ahead)));
        let among = row(&[1.0, 3.0], &[2.0, 4.0], Unit::Nanos);
        assert_eq!((among.ratio(), among.standing()), (None, Some(Standing::Overlap)));
        assert!(among.cells()[7].contains("overlap"));
        let loss = row(&[5.0, 9.0], &[2.0, 4.0], Unit::Nanos);
        assert_eq!((loss.ratio(), loss.cells()[7].as_str()), (Some(2.5), "a loss"));
        // Where more is better, less is a loss.
        assert_eq!(row(&[1.0], &[3.0], Unit::Items).standing(), Some(Standing::Behind));
        assert_eq!(row(&[1.0], &[3.0], Unit::Nanos).without_ratio().standing(), None);
    }

    #[test]
    fn overlapping_rounds_show_no_ratio_or_loss() {
        for unit in [Unit::Nanos, Unit::Times, Unit::Items] {
            for (ours, peer) in [([1.0, 3.0], [2.0, 4.0]), ([2.0, 4.0], [1.0, 3.0]), ([1.0, 9.0], [4.0, 5.0])] {
                let row = Row::new("x", Figure::lowest(ours.into()), Some(Figure::lowest(peer.into())), unit);
                let cells = row.cells();
                assert_eq!((cells[6].as_str(), cells[7].as_str()), ("-", "the rounds overlap"), "{row:?}");
                let line = text(|out| json(out, std::slice::from_ref(&row)));
                assert!(line.contains("\"ratio\":null"), "{line}");
            }
        }
    }

    #[test]
    fn counts_equal_as_printed_are_even() {
        let standing = |ours, peer, unit| Row::new("x", Figure::once(ours), Some(Figure::once(peer)), unit).standing();
        assert_eq!(standing(1.0, 1.0, Unit::Count), Some(Standing::Even));
        assert_eq!(standing(0.514_204, 0.514_196, Unit::Share), Some(Standing::Even));
        assert_eq!(standing(0.5143, 0.5142, Unit::Share), Some(Standing::Behind));
        assert_eq!(standing(f64::NAN, f64::NAN, Unit::Share), None, "what is no number is like nothing");
        let rounds = |value| Figure::lowest(vec![value; 3]);
        let apart = Row::new("x", rounds(0.514_204), Some(rounds(0.514_196)), Unit::Share);
        assert_eq!(apart.standing(), Some(Standing::Behind), "but rounds tell what is not printed");
    }

    #[test]
    fn a_row_with_a_limit_is_no_loss() {
        let row = |ours: &[f64], peer: &[f64], most| {
            let (ours, peer) = (Figure::lowest(ours.into()), Figure::lowest(peer.into()));
            Row::new("x", ours, Some(peer), Unit::Nanos).at_most_times(most)
        };
        let [met, missed] = [3.0, 2.9].map(|most| row(&[9.0, 30.0, 40.0], &[9.0, 10.0, 20.0], Some(most)));
        assert_eq!((met.is_within_limit(), met.standing()), (Some(true), None));
        assert_eq!(met.cells()[7], "limit at most 3 x: met with 3.00");
        assert_eq!((missed.is_within_limit(), missed.standing()), (Some(false), None));
        assert_eq!(missed.cells()[7], "limit at most 2.9 x: missed with 3.00");
        let unlimited = row(&[6.0], &[2.0], None);
        assert_eq!((unlimited.is_within_limit(), unlimited.standing()), (None, None));
        assert_eq!(unlimited.cells()[7], "3.00 x by medians");
        let rate = Row::new("x", Figure::once(299.0), None, Unit::Megabytes).at_least("MB/s", 299.0, 300.0);
        assert_eq!(rate.is_within_limit(), Some(false));
        assert_eq!(row(&[6.0], &[], Some(3.0)).is_within_limit(), Some(false), "a peer without a figure meets nothing");
    }

    #[test]
    fn thousands_are_apart() {
        for (value, text) in [(0.0, "0"), (7.0, "7"), (999.0, "999"), (1001.0, "1,001"), (1_049_000.0, "1,049,000")] {
            assert_eq!(number(value, Unit::Count), text);
        }
        assert_eq!(number(f64::NAN, Unit::Nanos), "-");
    }
}
