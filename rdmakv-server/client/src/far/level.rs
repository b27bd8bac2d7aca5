//! A memory for a service level: the configurations are measured, or known by a model, and the cheapest that meets the level is taken.

use super::configuration::{Configuration, Limits, Prices};
use super::measure::{MeasureError, samples};
use super::memory::{DEPTH_MAX, Memory, Options};
use super::model::{Model, Operation};
use super::search::{Infeasible, Prediction, cheapest};
use super::slo::Slo;
use super::table::MemoryError;
use crate::Client;
use std::time::Duration;

/// How a level is met.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The model of the servers' fabric on this machine. Without one, the new memory is measured with records of the level.
    pub model: Option<&'a Model>,
    /// The largest configuration. Servers with fewer workers lower that number.
    pub limits: Limits,
    /// The costs of workers, lanes and memory.
    pub prices: Prices,
    /// How long a run of a measurement takes; each configuration has three.
    pub time: Duration,
}

impl Default for Terms<'_> {
    /// As many lanes and workers as processors, measured for 20 ms a run.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let limits = Limits { workers: processors, lanes: processors, depth: DEPTH_MAX };
        Self { model: None, limits, prices: Prices::default(), time: Duration::from_millis(20) }
    }
}

/// The reason why there is no memory for a level.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LevelError {
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// It could not be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// No configuration meets the level.
    #[error(transparent)]
    Infeasible(#[from] Box<Infeasible>),
}

/// Makes a memory as [`Memory::create`] does, with the cheapest configuration that meets a service level. Returns the prediction, too.
/// [`Memory::lane`] has that configuration. Take as many lanes as it has, each for a thread.
///
/// A measurement takes seconds to minutes, by the limits. It ends before this returns, and the memory is zeroed then.
///
/// # Errors
/// [`LevelError`]; nothing is left of the memory.
pub fn create_for(
    client: &Client,
    capacity: u64,
    slo: &Slo,
    terms: &Terms<'_>,
    options: &Options,
) -> Result<(Memory, Prediction), LevelError> {
    create_guarded(client, capacity, slo, terms, (options, |_: &Memory| ()))
}

/// As [`create_for`]. The guard that `watch` returns is kept until its memory is measured and deleted.
pub(crate) fn create_guarded<G>(
    client: &Client,
    capacity: u64,
    slo: &Slo,
    terms: &Terms<'_>,
    (options, watch): (&Options, impl FnOnce(&Memory) -> G),
) -> Result<(Memory, Prediction), LevelError> {
    let choose = |model: &Model, limits: &Limits| cheapest(model, slo, limits, &terms.prices);
    let create = |chosen: &Prediction| {
        let Configuration { workers, batch, depth, .. } = chosen.configuration;
        Memory::create(client, capacity, &Options { workers, batch, depth, ..options.clone() })
    };
    let chosen = match terms.model {
        Some(model) => {
            let limits = Limits { workers: terms.limits.workers.min(model.workers()), ..terms.limits };
            let chosen = choose(model, &limits)?;
            let memory = create(&chosen)?;
            if chosen.configuration.workers <= memory.workers() {
                return Ok((memory, chosen));
            }
            // The model is of servers with more workers.
            let limits = Limits { workers: memory.workers(), ..limits };
            memory.delete()?;
            choose(model, &limits)?
        }
        None => {
            // A memory of its own, so that the level's has only zeros.
            let memory = Memory::create(client, capacity, &Options { name: None, ..options.clone() })?;
            let limits = Limits { workers: terms.limits.workers.min(memory.workers()), ..terms.limits };
            let guard = watch(&memory);
            let measured = measured(&memory, slo, &limits, terms.time);
            // Also after a failure: else it would take its room until its time is over.
            let deleted = memory.delete();
            drop(guard);
            let model = measured?;
            deleted?;
            choose(&model, &limits)?
        }
    };
    Ok((create(&chosen)?, chosen))
}

/// Measures a memory with records of the level, and the operations of its mix.
fn measured(memory: &Memory, slo: &Slo, limits: &Limits, time: Duration) -> Result<Model, MeasureError> {
    let operations = [(Operation::Read, slo.reads() > 0.0), (Operation::Write, slo.reads() < 1.0)];
    let operations: Vec<_> = operations.into_iter().filter(|(_, is_used)| *is_used).map(|(of, _)| of).collect();
    Ok(Model::of(&samples(memory, limits, (&operations, &[slo.record()]), time, |_, _, _| {})?))
}
