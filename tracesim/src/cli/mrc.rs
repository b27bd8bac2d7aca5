//! `mrc`: the LRU curve.

use super::failure::Failure;
use super::form::Form;
use super::heading::heading;
use super::source::Source;
use super::table::{Side, bytes, percent, table};
use super::whole::whole;
use crate::mrc::{Sampling, Unit, curve};
use crate::sizes::Capacity;
use clap::ValueEnum;
use serde::Serialize;
use std::num::NonZeroU64;
use std::path::PathBuf;

/// Show the hit ratio of an LRU cache at many capacities, from one pass
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mrc {
    /// The trace
    trace: PathBuf,
    /// Unit that is cached: whole requests, by start and length, or single pages
    #[arg(long, value_name = "UNIT", default_value = "region")]
    by: By,
    /// So many capacities, evenly spaced up to the footprint of the largest process
    #[arg(long, value_name = "N", default_value = "20", conflicts_with = "capacity", value_parser = whole::<u64>(1..=100_000))]
    points: u64,
    /// These capacities instead: 8192p, 32MiB (or 32M; 32MB is 32,000,000 bytes), or 5% of the footprint; several with
    /// commas
    #[arg(short, long, value_name = "SIZE", value_delimiter = ',')]
    capacity: Vec<Capacity>,
    /// Look at this share of what is used only (SHARDS)
    #[arg(long, value_name = "0..1", value_parser = rate, conflicts_with = "sample")]
    rate: Option<f64>,
    /// Look at as much as keeps so many regions, or blocks of 64 pages, in memory (SHARDS of fixed size)
    #[arg(long, value_name = "N")]
    sample: Option<NonZeroU64>,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    form: Form,
}

const EXAMPLES: &str = "\
Examples:
  tracesim mrc requests.csv
  tracesim mrc --by page --points 100 --csv requests.csv
  tracesim mrc --rate 0.01 requests.csv
  tracesim mrc --sample 8192 -c 1%,5%,25% requests.csv

By region it is the pin-down cache with exact matching; by page, a request is a hit if all of its
pages are found. Exact for capacities that hold the largest request; leases are not looked at.";

#[derive(ValueEnum, Clone, Copy, Debug)]
enum By {
    /// Whole requests, by start and length
    Region,
    /// Single pages
    Page,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(rate),
        _ => Err("a share lies above 0 and at most at 1".into()),
    }
}

/// One capacity.
#[derive(Serialize)]
struct Row<'a> {
    trace: &'a str,
    by: &'static str,
    capacity_pages: u64,
    requests: u64,
    pages: u64,
    hit_ratio: f64,
    page_hit_ratio: f64,
    sampled_share: f64,
}

impl Mrc {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut out = self.form.open(std::slice::from_ref(&self.trace))?;
        let (trace, footprint) = self.source.load(&self.trace)?;
        let most = footprint.largest_process_pages;
        let points = self.points;
        let part = |at: u64| (u128::from(most) * u128::from(at)).div_ceil(u128::from(points)) as u64;
        let capacities: Vec<u64> = if self.capacity.is_empty() {
            (1..=points.min(most)).map(|at| if points > most { at } else { part(at) }).collect()
        } else {
            self.capacity.iter().map(|size| size.pages(most)).collect()
        };
        let (by, unit) = match self.by {
            By::Region => ("region", Unit::Region),
            By::Page => ("page", Unit::Page),
        };
        let size = |most: NonZeroU64| Sampling::Size(usize::try_from(most.get()).unwrap_or(usize::MAX));
        let sampling = self.rate.map(Sampling::Rate).or(self.sample.map(size)).unwrap_or_default();
        let curve = curve(&trace, &capacities, unit, sampling);
        let ratios = curve.hit_ratios().zip(curve.page_hit_ratios());
        let row = |((capacity_pages, hit_ratio), (_, page_hit_ratio))| Row {
            trace: &trace.name,
            by,
            capacity_pages,
            requests: curve.requests,
            pages: curve.pages,
            hit_ratio,
            page_hit_ratio,
            sampled_share: curve.share,
        };
        let rows: Vec<Row<'_>> = ratios.map(row).collect();
        self.form.write(&mut out, &rows, || {
            let share =
                if curve.share < 1.0 { format!(", from {} of it", percent(curve.share)) } else { String::new() };
            format!("{}LRU by {by}{share}\n\n{}", heading(&trace, &footprint), results(&rows, most))
        })?;
        out.finish()
    }
}

fn results(rows: &[Row<'_>], footprint_pages: u64) -> String {
    let line = |row: &Row<'_>| {
        vec![
            row.capacity_pages.to_string(),
            bytes(row.capacity_pages),
            percent(row.capacity_pages as f64 / footprint_pages as f64),
            percent(row.hit_ratio),
            percent(row.page_hit_ratio),
        ]
    };
    table(&[Side::Right], &["pages", "size", "of footprint", "hits", "page hits"], rows.iter().map(line))
}
