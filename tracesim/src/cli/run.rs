//! A study run with a bar of progress, and what has to be said of its results.

use super::failure::{Failure, note};
use super::interrupt;
use super::progress::Progress;
use crate::simulate::Watch;
use crate::study::{Cell, Finished, Study};
use crate::survey::Survey;
use traces::Trace;

/// The results of these cells, in their order; after an interruption, of those that are finished.
pub(crate) fn run(
    study: &Study,
    trace: &Trace,
    survey: &Survey,
    cells: &[Cell],
) -> Result<Vec<Option<Finished>>, Failure> {
    let steps: usize = trace.processes.iter().map(|process| process.steps.len()).sum();
    let progress = Progress::of(&trace.name, (steps * cells.len()) as u64);
    let watch = Watch { stop: &interrupt::STOP, replayed: &|steps| progress.step(steps) };
    let finished = study.run(trace, survey, cells, &watch).map_err(Failure::work)?;
    drop(progress);
    tell(trace, finished.iter().flatten());
    Ok(finished)
}

/// What a number in a table does not tell.
fn tell<'a>(trace: &Trace, finished: impl Iterator<Item = &'a Finished>) {
    let mut unmatched = 0;
    for Finished { row, refused, unmatched_releases, .. } in finished {
        unmatched = unmatched.max(*unmatched_releases);
        if *refused > 0 {
            note(&format!(
                "{}: {} at {} pages refused {refused} requests, as all was in use; they cost nothing here",
                trace.name, row.policy, row.capacity_pages
            ));
        }
    }
    if unmatched > 0 {
        note(&format!("{}: {unmatched} releases of what was not in use were passed over", trace.name));
    }
}
