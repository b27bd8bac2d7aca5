//! `bound`: what any cache could do.

use super::failure::Failure;
use super::form::Form;
use super::heading::heading;
use super::interrupt;
use super::progress::Progress;
use super::source::Source;
use super::table::{Side, ms, or_dash, table};
use crate::bound;
use crate::simulate::Watch;
use crate::sizes::Capacity;
use mrrc_core::cost::Linear;
use rayon::prelude::*;
use serde::Serialize;
use std::path::PathBuf;

/// Show what no cache can do better than, and what one that knows the future does
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bound {
    /// The trace
    trace: PathBuf,
    /// Pages that may be registered at once in each process's cache: 8192p, 32MiB (or 32M; 32MB is 32,000,000 bytes), or 5%
    /// of the footprint; several with commas
    #[arg(short, long, value_name = "SIZE", value_delimiter = ',', default_value = "1%,2%,5%,10%,20%,30%,40%,50%")]
    capacity: Vec<Capacity>,
    /// Cost of registrations: paper, fmr, io-uring, or a,b,a',b' in microseconds
    #[arg(long, value_name = "MODEL", default_value = "paper", value_parser = super::choices::cost)]
    cost: Linear,
    /// Leave out the upper side, which takes a replay of every policy and a few more for each capacity
    #[arg(long)]
    lower_only: bool,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    form: Form,
}

const EXAMPLES: &str = "\
Examples:
  tracesim bound requests.csv
  tracesim bound -c 32MiB --json requests.csv
  tracesim bound --lower-only --cost io-uring requests.csv

No cache that registers only what is asked for pays less than the lower bound. The upper one is
what a cache pays that knows the future and keeps to the limit, or the best policy, if that pays
less; the cheapest possible lies between them. Bypassing, any request may be registered for
itself alone beside a full cache, as those that do not fit are; what would leave for it stays.";

/// One of the upper sides, or none if stopped.
type Upper = fn(&traces::Trace, &[u64], &Linear, &Watch<'_>) -> Result<Option<Vec<f64>>, mrrc_core::ConfigError>;

/// The bounds at one capacity, of all processes together.
#[derive(Serialize)]
struct Row<'a> {
    trace: &'a str,
    capacity_pages: u64,
    requests: u64,
    pages: u64,
    lower_bound_us: f64,
    upper_bound_us: Option<f64>,
    upper_bypassing_us: Option<f64>,
}

impl Bound {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut out = self.form.open(std::slice::from_ref(&self.trace))?;
        let (trace, footprint) = self.source.load(&self.trace)?;
        let capacities: Vec<u64> =
            self.capacity.iter().map(|size| size.pages(footprint.largest_process_pages)).collect();
        let lower = bound::lower(&trace, &capacities, &self.cost);
        let steps: usize = trace.processes.iter().map(|process| process.steps.len()).sum();
        let (within, bypassing) = if self.lower_only { (0, 0) } else { bound::upper_replays() };
        let progress = Progress::of(&trace.name, (within + bypassing) * (steps * capacities.len()) as u64);
        let watch = Watch { stop: &interrupt::STOP, replayed: &|steps| progress.step(steps) };
        let row = |(&capacity_pages, &lower_bound_us): (&u64, &f64)| {
            let upper = |upper: Upper| {
                if self.lower_only {
                    return Ok(None);
                }
                let us = upper(&trace, &[capacity_pages], &self.cost, &watch).map_err(Failure::work)?;
                Ok::<_, Failure>(us.and_then(|us| us.first().copied()))
            };
            let row = Row {
                trace: &trace.name,
                capacity_pages,
                requests: footprint.requests,
                pages: footprint.requested_pages,
                lower_bound_us,
                upper_bound_us: upper(bound::upper_until)?,
                upper_bypassing_us: upper(bound::upper_bypassing_until)?,
            };
            // Half a row is none.
            if interrupt::came() {
                return Ok(None);
            }
            // From here on there is something to print.
            interrupt::only_ask();
            Ok(Some(row))
        };
        let rows: Vec<Option<Row<'_>>> =
            capacities.par_iter().zip(&lower).with_max_len(1).map(row).collect::<Result<_, Failure>>()?;
        drop(progress);
        let rows: Vec<Row<'_>> = rows.into_iter().flatten().collect();
        if interrupt::came() {
            out = out.given_up();
        }
        self.form.write(&mut out, &rows, || {
            format!(
                "{}{}\n\n{}",
                heading(&trace, &footprint),
                self.cost,
                results(&rows, footprint.largest_process_pages)
            )
        })?;
        out.finish()?;
        if interrupt::came() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

fn results(rows: &[Row<'_>], footprint_pages: u64) -> String {
    let header = ["pages", "of footprint", "lower ms", "upper ms", "upper/lower", "bypassing ms"];
    let line = |row: &Row<'_>| {
        // Nothing over nothing is no gap.
        let gap = |upper: f64| if upper == row.lower_bound_us { 1.0 } else { upper / row.lower_bound_us };
        vec![
            row.capacity_pages.to_string(),
            super::table::percent(row.capacity_pages as f64 / footprint_pages as f64),
            ms(row.lower_bound_us),
            or_dash(row.upper_bound_us.map(ms)),
            or_dash(row.upper_bound_us.map(|upper| format!("{:.3}", gap(upper)))),
            or_dash(row.upper_bypassing_us.map(ms)),
        ]
    };
    table(&[Side::Right], &header, rows.iter().map(line))
}
