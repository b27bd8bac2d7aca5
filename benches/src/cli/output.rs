//! The output of a part: its head, progress, tables or JSON lines, and the saved file.

use super::Stop;
use crate::side_by_side::host::Host;
use crate::side_by_side::report::{self, Row};
use crate::side_by_side::results::{Head, Line, Titled};
use clap::Args;
use std::fs::File;
use std::io::{self, StdoutLock, Write};
use std::path::PathBuf;

/// The options of all parts.
#[derive(Args)]
pub(super) struct Output {
    /// Print JSON lines: name, ours, peer, unit, ratio
    #[arg(long)]
    pub(super) json: bool,

    /// Also write all there is to say to this file, as JSON lines: the head, and rows with medians, rounds and notes
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

const QUICK: &str = "A quick run: it shows that everything runs, its figures mean little.";
const SLOW: &str = "A build without --release: what is ours is many times slower than it should be.";

/// Why the figures are not to be believed, if they are not.
pub(super) fn doubts(quick: bool) -> impl Iterator<Item = String> {
    let slow = cfg!(debug_assertions).then_some(SLOW);
    quick.then_some(QUICK).into_iter().chain(slow).map(str::to_owned)
}

/// Says it.
pub(super) struct Teller {
    json: bool,
    out: StdoutLock<'static>,
    save: Option<(PathBuf, File)>,
    /// Rows that wait for the others of their table.
    table: Vec<Row>,
    title: String,
}

impl Output {
    /// Begins a part with its head.
    pub(super) fn begin(&self, part: &str, about: &[String], quick: bool) -> Result<Teller, Stop> {
        let create = |path: &PathBuf| {
            let file = File::create(path).map_err(|error| Stop::Measuring(cannot_write(path, &error)))?;
            Ok::<_, Stop>((path.clone(), file))
        };
        let save = self.save.as_ref().map(create).transpose()?;
        let host = Host::look();
        let about: Vec<_> = about.iter().cloned().chain(doubts(quick)).collect();
        let mut teller =
            Teller { json: self.json, out: io::stdout().lock(), save, table: Vec::new(), title: String::new() };
        for line in host.lines().iter().chain(&about) {
            if self.json {
                eprintln!("{line}");
            } else {
                writeln!(teller.out, "{line}")?;
            }
        }
        if !self.json {
            writeln!(teller.out)?;
        }
        teller.out.flush()?;
        teller.keep(&Line::Head(Head { part: part.into(), command: super::asked(), host, about }))?;
        Ok(teller)
    }
}

impl Teller {
    /// Says rows. Those of one title that follow each other are one table.
    pub(super) fn rows(&mut self, title: &str, rows: Vec<Row>) -> Result<(), Stop> {
        if self.title != title {
            self.table()?;
            self.title = title.to_owned();
        }
        for row in &rows {
            self.keep(&Line::Row(Titled { title: title.to_owned(), row: row.clone() }))?;
        }
        if self.json {
            report::json(&mut self.out, &rows)?;
            self.out.flush()?;
        } else {
            self.table.extend(rows);
        }
        Ok(())
    }

    /// Says what is left.
    pub(super) fn end(mut self) -> Result<(), Stop> {
        self.table()
    }

    fn table(&mut self) -> Result<(), Stop> {
        report::table(&mut self.out, &self.title, &std::mem::take(&mut self.table))?;
        Ok(self.out.flush()?)
    }

    fn keep(&mut self, line: &Line) -> Result<(), Stop> {
        let Some((path, file)) = &mut self.save else { return Ok(()) };
        line.write(file).map_err(|error| Stop::Measuring(cannot_write(path, &error)))
    }
}

pub(super) fn cannot_write(path: &std::path::Path, error: &io::Error) -> String {
    format!("{} cannot be written: {error}", path.display())
}
