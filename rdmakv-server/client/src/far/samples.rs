//! Samples: which configurations are measured, and the file of what was.
//!
//! Axes have powers of two. An axis ends after two steps that gain less than 2 % of throughput each: contention has begun there.
//! Larger values would take time to measure, and would not be chosen.

use super::configuration::{Configuration, Limits, powers};
use super::model::{Model, Operation, Point, Sample};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use thiserror::Error;

/// The gain below which a step does not count as one.
const GAIN: f64 = 1.02;
/// Steps without a gain that end an axis.
const DULL: u32 = 2;
/// The first line of a file.
const TITLE: &str = "# rdmakv far model 1";
const HEAD: &str = "fabric,operation,record,workers,lanes,batch,depth,throughput,mean_ns,p99_ns";
/// Samples of a file at most.
const MOST: usize = 1 << 20;
/// The highest number of a place on an axis.
const HIGHEST: u32 = 1 << 20;

/// Measures all configurations within the limits that are worth it, for one operation and length of record.
pub fn sample(
    limits: &Limits,
    operation: Operation,
    record: u32,
    mut measure: impl FnMut(&Configuration) -> Point,
) -> Vec<Sample> {
    let mut samples = Vec::new();
    axis(std::iter::once(0).chain(powers(limits.workers)), |workers| {
        axis(powers(limits.lanes).filter(|&lanes| lanes >= workers), |lanes| {
            axis(limits.batches(workers, record), |batch| {
                axis(limits.depths(), |depth| {
                    let configuration = Configuration { workers, lanes, batch, depth };
                    let point = measure(&configuration);
                    samples.push(Sample { operation, record, configuration, point });
                    point.throughput
                })
            })
        })
    });
    samples
}

/// Tries places until they gain no more, and returns the most that one had.
fn axis(places: impl Iterator<Item = u32>, mut most_at: impl FnMut(u32) -> f64) -> f64 {
    let (mut most, mut dull) = (0.0_f64, 0);
    for place in places {
        let here = most_at(place);
        dull = if here < most * GAIN { dull + 1 } else { 0 };
        most = most.max(here);
        if dull == DULL {
            break;
        }
    }
    most
}

/// Samples of the fabrics of one machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Samples {
    /// The name of the machine.
    pub machine: String,
    /// The versions of the programs that measured.
    pub versions: String,
    /// By fabric: `shm`, `iwarp`, `verbs`.
    pub fabrics: BTreeMap<String, Vec<Sample>>,
}

/// A file that is no model, or not one of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SamplesError {
    /// The first lines are others.
    #[error(
        "read far model: it does not begin with `{TITLE}`, machine, versions and columns: make one with `rdmakv far model`"
    )]
    Title,
    /// A line has no ten fields that make sense.
    #[error("read far model: line {line}: {field} is missing or makes no sense: make the model again")]
    Line {
        /// Its number, from 1 on.
        line: usize,
        /// The column.
        field: &'static str,
    },
    /// It has too many lines.
    #[error("read far model: more than {MOST} lines: make the model again")]
    Long,
    /// Another machine was measured.
    #[error("read far model: it was made on {0}: make one here, or take this one by --any-machine")]
    OtherMachine(String),
}

impl Samples {
    /// Returns the text of the file.
    pub fn to_text(&self) -> String {
        let mut text = format!("{TITLE}\n# machine {}\n# versions {}\n{HEAD}\n", self.machine, self.versions);
        for (fabric, samples) in &self.fabrics {
            for sample in samples {
                let operation = if sample.operation == Operation::Read { "read" } else { "write" };
                let Configuration { workers, lanes, batch, depth } = sample.configuration;
                let Point { throughput, mean, p99 } = sample.point;
                let _ = writeln!(
                    text,
                    "{fabric},{operation},{},{workers},{lanes},{batch},{depth},{throughput},{mean},{p99}",
                    sample.record
                );
            }
        }
        text
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// It is no such file, or a line of it makes no sense.
    pub fn from_text(text: &str) -> Result<Self, SamplesError> {
        let mut lines = text.lines();
        let mut head = |start: &str| lines.next().and_then(|line| line.strip_prefix(start)).map(str::to_owned);
        let (title, machine) = (head(TITLE), head("# machine "));
        let (versions, columns) = (head("# versions "), head(HEAD));
        let (Some(title), Some(machine), Some(versions), Some(columns)) = (title, machine, versions, columns) else {
            return Err(SamplesError::Title);
        };
        if !title.is_empty() || !columns.is_empty() {
            return Err(SamplesError::Title);
        }
        let mut samples = Self { machine, versions, fabrics: BTreeMap::new() };
        for (at, line) in lines.enumerate() {
            if at == MOST {
                return Err(SamplesError::Long);
            }
            let (fabric, sample) = parse(line).map_err(|field| SamplesError::Line { line: at + 5, field })?;
            samples.fabrics.entry(fabric.to_owned()).or_default().push(sample);
        }
        Ok(samples)
    }

    /// Returns the model of a fabric, for use on `machine`; None where that fabric was not measured.
    ///
    /// # Errors
    ///
    /// The samples are of another machine. No name takes those of any.
    pub fn model(&self, fabric: &str, machine: Option<&str>) -> Result<Option<Model>, SamplesError> {
        if machine.is_some_and(|machine| machine != self.machine) {
            return Err(SamplesError::OtherMachine(self.machine.clone()));
        }
        Ok(self.fabrics.get(fabric).map(Model::of))
    }
}

fn parse(line: &str) -> Result<(&str, Sample), &'static str> {
    let mut fields = line.split(',');
    let fabric = fields.next().filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let fabric = fabric.ok_or("fabric")?;
    let operation = match fields.next() {
        Some("read") => Operation::Read,
        Some("write") => Operation::Write,
        _ => return Err("operation"),
    };
    let mut place = |name, least| {
        let number = fields.next().and_then(|field| field.parse().ok());
        number.filter(|number| (least..=HIGHEST).contains(number)).ok_or(name)
    };
    let record = place("record", 1)?;
    let configuration = Configuration {
        workers: place("workers", 0)?,
        lanes: place("lanes", 1)?,
        batch: place("batch", 1)?,
        depth: place("depth", 1)?,
    };
    let mut measure = |name| {
        let number = fields.next().and_then(|field| field.parse::<f64>().ok());
        number.filter(|number| number.is_finite() && *number > 0.0).ok_or(name)
    };
    let point = Point { throughput: measure("throughput")?, mean: measure("mean_ns")?, p99: measure("p99_ns")? };
    match fields.next() {
        None => Ok((fabric, Sample { operation, record, configuration, point })),
        Some(_) => Err("the end of the line"),
    }
}
