//! `merge`: the shares of a study, joined.

use super::compared::report;
use super::failure::Failure;
use super::form::Form;
use crate::row::{Row, level};
use crate::shard::{self, Part, ShardError};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

/// Join what `compare --shard` wrote on several machines
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Merge {
    /// The shares, in any order
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print what is there, though shares are missing
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    form: Form,
}

const EXAMPLES: &str = "\
Examples:
  tracesim merge *.shard                        the tables that one machine would have printed
  tracesim merge --csv -o results.csv *.shard   for a spreadsheet
  tracesim merge --partial *.shard              what is finished so far

Shares that are missing are named. `tracesim compare --help` shows how to have them run by Slurm,
Kubernetes and GNU parallel.";

impl Merge {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut out = self.form.open(&self.files)?;
        let read = |path: &PathBuf| -> Result<Part, ShardError> {
            let file = File::open(path).map_err(|error| ShardError::Io { file: path.clone(), error })?;
            shard::read(path, BufReader::new(file))
        };
        let parts: Vec<Part> = self.files.iter().map(read).collect::<Result<_, _>>().map_err(Failure::work)?;
        let (study, numbered) = shard::merge(&parts, self.partial).map_err(Failure::work)?;
        let mut rows: Vec<Row> = numbered.iter().map(|(_, row)| row.clone()).collect();
        level(&mut rows);
        self.form.write(&mut out, &rows, || report(&study, &numbered))?;
        out.finish()
    }
}
