//! In which form results are written.

use super::failure::Failure;
use super::output::Output;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// In which form, and where to.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Form {
    /// One JSON object a line
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Comma-separated values with a header
    #[arg(long)]
    pub(crate) csv: bool,
    /// Write there instead of to standard output; the file appears when it is whole
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

impl Form {
    /// Returns whether results are a table for people.
    pub(crate) fn is_table(&self) -> bool {
        !self.json && !self.csv
    }

    /// Opens the destination of results, which is none of the inputs.
    pub(crate) fn open(&self, inputs: &[PathBuf]) -> Result<Output, Failure> {
        Output::open(self.output.as_deref(), inputs)
    }

    /// Writes rows as they were asked for; `table` makes the form for people.
    pub(crate) fn write<R: Serialize>(
        &self,
        out: &mut Output,
        rows: &[R],
        table: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        out.write(|out| {
            if self.json {
                json(out, rows)
            } else if self.csv {
                csv_rows(out, rows)
            } else {
                out.write_all(table().as_bytes())
            }
        })
    }
}

fn json(out: &mut dyn Write, rows: &[impl Serialize]) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, row)?;
        writeln!(out)?;
    }
    Ok(())
}

fn csv_rows(out: &mut dyn Write, rows: &[impl Serialize]) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    for row in rows {
        writer.serialize(row).map_err(io::Error::from)?;
    }
    writer.flush()
}
