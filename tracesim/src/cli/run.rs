//! A sweep run with a bar of progress, and what has to be said of its results.

use super::failure::{Failure, note};
use super::interrupt;
use super::progress::Progress;
use super::table::pages;
use crate::footprint::Footprint;
use crate::row::Row;
use crate::simulate::Watch;
use crate::sweep::{Cell, Finished, Sweep};
use traces::Trace;

/// Returns the results of these cells, in their order; after an interruption, of those that are finished.
pub(crate) fn run(
    sweep: &Sweep,
    trace: &Trace,
    footprint: &Footprint,
    cells: &[Cell],
) -> Result<Vec<Option<Finished>>, Failure> {
    let steps: usize = trace.processes.iter().map(|process| process.steps.len()).sum();
    let progress = Progress::of(&trace.name, (steps * cells.len()) as u64);
    let watch = Watch { stop: &interrupt::STOP, replayed: &|steps| progress.step(steps) };
    interrupt::only_ask();
    let finished = sweep.run(trace, footprint, cells, &watch).map_err(Failure::work)?;
    drop(progress);
    tell(trace, finished.iter().flatten());
    Ok(finished)
}

/// Reports facts that a number in a table does not show.
fn tell<'a>(trace: &Trace, finished: impl Iterator<Item = &'a Finished> + Clone) {
    if let Some(line) = refusals(finished.clone().map(|of| &of.row)) {
        note(&format!("{}: {line}", trace.name));
    }
    let unmatched = finished.map(|of| of.unmatched_releases).max().unwrap_or(0);
    if unmatched > 0 {
        let (releases, were) = if unmatched == 1 { ("release", "was") } else { ("releases", "were") };
        note(&format!("{}: {unmatched} {releases} of what was not in use {were} passed over", trace.name));
    }
}

/// How much was refused, and what that means; none if nothing was.
fn refusals<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<String> {
    let (mut all, mut some, mut most) = (0, 0, None::<&Row>);
    for row in rows {
        all += 1;
        if row.refused.is_some_and(|refused| refused > 0) {
            some += 1;
            // The first of those that refused as many.
            most = most.filter(|most| most.refused >= row.refused).or(Some(row));
        }
    }
    let most = most?;
    let refused = most.refused.unwrap_or(0);
    let requests = if refused == 1 { "1 request".into() } else { format!("{refused} requests") };
    let charged =
        format!("{} is charged what it costs without a cache", if refused == 1 && some == 1 { "it" } else { "each" });
    let who = format!("{} at {}", most.policy, pages(most.capacity_pages));
    Some(match (all, some) {
        (1, _) => format!("{requests} found all in use: {charged}"),
        (_, 1) => format!("{requests} of {who} found all in use: {charged}"),
        _ => format!("in {some} of {all} results some requests found all in use, at most {refused} ({who}): {charged}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{DeregCost, Label};
    use crate::simulate::Replayed;

    fn row(policy: &str, capacity_pages: u64, refused: u64) -> Row {
        let label = Label { trace: "t", policy, capacity_pages, resort: 0.5, evict: 0.1 };
        let mut replayed = Replayed::default();
        replayed.counters.all_in_use = refused;
        Row::new(&label, &replayed, &mrrc_core::cost::Linear::PAPER, DeregCost::Batch)
    }

    #[test]
    fn refusals_are_one_line_whatever_their_number() {
        let none = row("sieve", 8, 0);
        let said = |rows: &[Row]| refusals(rows.iter());
        assert_eq!(said(&[none.clone(), none.clone()]), None);
        let one = said(&[row("mrrc", 8, 1)]).unwrap();
        assert_eq!(one, "1 request found all in use: it is charged what it costs without a cache");
        let beside = said(&[none.clone(), row("mrrc", 1, 2)]).unwrap();
        assert_eq!(
            beside,
            "2 requests of mrrc at 1 page (4 KiB) found all in use: each is charged what it costs without a cache"
        );
        let several = said(&[row("mrrc", 1, 2), none, row("lazy", 8, 5), row("fmrd", 8, 5)]).unwrap();
        assert_eq!(
            several,
            "in 3 of 4 results some requests found all in use, at most 5 (lazy at 8 pages (32 KiB)): each is charged what \
             it costs without a cache"
        );
    }
}
