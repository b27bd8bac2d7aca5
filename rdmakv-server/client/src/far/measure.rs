//! Measures the configurations of a memory that are worth it: the samples of a model.
//!
//! Each point is the median of some runs by throughput.

use super::bench::{Load, measure};
use super::configuration::{Configuration, Limits};
use super::lane::Lane;
use super::memory::Memory;
use super::model::{Operation, Point, Sample};
use super::samples::sample;
use super::table::{AccessError, MemoryError};
use std::time::Duration;

/// Lengths of records that are measured, in bytes.
pub const RECORDS: [u32; 4] = [8, 64, 512, 4096];
/// Runs of a point, of which the median counts.
const RUNS: usize = 3;
/// How often a time is doubled in which no access ended.
const DOUBLINGS: u32 = 12;

/// Why a measurement came to nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MeasureError {
    /// No lane.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// An access failed.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Measures these operations on records of these lengths in a memory, with configurations up to
/// `limits`. A run takes `time` and a tenth. `report` is called before each point.
///
/// # Errors
/// A lane or an access fails.
pub fn samples(
    memory: &Memory,
    limits: &Limits,
    (operations, records): (&[Operation], &[u32]),
    time: Duration,
    mut report: impl FnMut(Operation, u32, &Configuration),
) -> Result<Vec<Sample>, MeasureError> {
    let (mut samples, mut failure) = (Vec::new(), None);
    for &operation in operations {
        for &record in records {
            samples.extend(sample(limits, operation, record, |of| {
                if failure.is_some() {
                    return Point::default();
                }
                report(operation, record, of);
                let reads = if operation == Operation::Read { 1.0 } else { 0.0 };
                point(memory, of, &Load { record, reads, time }).unwrap_or_else(|error| {
                    failure = Some(error);
                    Point::default()
                })
            }));
        }
    }
    failure.map_or(Ok(samples), Err)
}

/// Measures one configuration.
fn point(memory: &Memory, of: &Configuration, load: &Load) -> Result<Point, MeasureError> {
    let mut lanes = (0..of.lanes).map(|_| memory.lane_of(of)).collect::<Result<Vec<_>, _>>()?;
    let mut runs = (0..RUNS).map(|_| run(&mut lanes, memory.capacity(), of, load)).collect::<Result<Vec<_>, _>>()?;
    runs.sort_by(|one, other| one.throughput.total_cmp(&other.throughput));
    Ok(runs[RUNS / 2])
}

/// Measures lanes. A time in which no access ended is doubled.
fn run(lanes: &mut [Lane], capacity: u64, of: &Configuration, load: &Load) -> Result<Point, AccessError> {
    let mut load = *load;
    for _ in 0..DOUBLINGS {
        let measured = measure(lanes, capacity, of, &load)?;
        if measured.accesses > 0 {
            return Ok(measured.point);
        }
        load.time *= 2;
    }
    Ok(measure(lanes, capacity, of, &load)?.point)
}
