//! The results of each state, and their rows.
//!
//! The transfers are divided into fifths. Each fifth shows what the whole shows, so every row is judged by the same rule:
//! where fifths of the two processes overlap, neither is better.

use super::State;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::report::{Row, Unit};
use std::ops::Range;

/// Below this share of a transfer, registrations are not told from noise.
const TOLD: f64 = 0.05;

/// Into so many rounds the transfers are divided to see whether the two processes can be told apart.
const ROUNDS: usize = 5;

/// The result of one state: of each process, ours first, for each transfer in the order in which they were made.
pub(super) struct Cell {
    pub(super) state: State,
    /// From the opener's call to its end, in nanoseconds.
    pub(super) times: [Vec<f64>; 2],
    /// The time that all ends spent registering.
    pub(super) registering: [Vec<f64>; 2],
}

impl Cell {
    /// With no transfer yet.
    pub(super) fn new(state: State) -> Self {
        Self { state, times: Default::default(), registering: Default::default() }
    }

    /// Returns a value of all transfers together, and of each fifth of them.
    fn figure(&self, value: impl Fn(Range<usize>) -> f64) -> Figure {
        let all = self.times[0].len();
        let one = all.div_ceil(ROUNDS).max(1);
        let rounds = (0..all).step_by(one).map(|start| value(start..all.min(start + one)));
        Figure::whole(value(0..all), rounds.collect())
    }

    /// So many hundredths of the times are below this.
    fn quantile(&self, process: usize, share: usize) -> Figure {
        self.figure(|range| quantile(&self.times[process][range], share))
    }

    /// By which part of what registering took a transfer was longer than one that has all registered, by medians of the
    /// transfers that were made at the same time. No number where registering takes next to nothing.
    fn longer(&self, warm: &Self, process: usize) -> Figure {
        let of = |cell: &Self, range: Range<usize>| quantile(&cell.times[process][range], 50);
        let registering = |range: Range<usize>| mean(&self.registering[process][range]);
        let all = 0..self.times[process].len();
        if registering(all.clone()) < TOLD * of(self, all) {
            return Figure::once(f64::NAN);
        }
        self.figure(|range| (of(self, range.clone()) - of(warm, range.clone())) / registering(range))
    }
}

fn quantile(times: &[f64], share: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() * share / 100).copied().unwrap_or(f64::NAN)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the part that did not make it longer. There is none where it was longer by more than registering took, nor
/// where it was shorter: then something else made the difference.
fn hidden(longer: Figure) -> Figure {
    if !(0.0..=1.0).contains(&longer.best) {
        return Figure::once(f64::NAN);
    }
    Figure { best: 1.0 - longer.best, median: None, rounds: longer.rounds.map(|(low, high)| (1.0 - high, 1.0 - low)) }
}

/// Returns the rows of all states, each called `name`, its state and what it says.
pub(super) fn rows(name: &str, cells: &[Cell], ends: &str) -> Vec<Row> {
    let warm = cells.iter().find(|cell| cell.state == State::Warm);
    let mut rows = Vec::new();
    for cell in cells {
        let row = |what: &str, value: &dyn Fn(usize) -> Figure, unit| {
            Row::new(format!("{name}/{}/{what}", cell.state.name()), value(0), Some(value(1)), unit)
        };
        rows.push(row("p50", &|process| cell.quantile(process, 50), Unit::Nanos));
        rows.push(row("p99", &|process| cell.quantile(process, 99), Unit::Nanos));
        let Some(warm) = warm.filter(|_| cell.state != State::Warm) else { continue };
        let longer = [0, 1].map(|process| cell.longer(warm, process));
        let mut note = format!("of {:.1} us of registering at {ends} ends", mean(&cell.registering[0]) / 1e3);
        // Cells without a figure are explained here.
        if longer.iter().any(|longer| longer.best.is_finite() && hidden(*longer).best.is_nan()) {
            let [ours, peers] = longer.map(|it| if it.best.is_nan() { "-".into() } else { format!("{:.2}", it.best) });
            note.push_str(&format!(", by {ours} and {peers} of which it was longer"));
        }
        rows.push(row("hidden", &|process| hidden(longer[process]), Unit::Part).note(note));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side_by_side::report::Standing;

    /// Ten transfers of each process that spend 100 ns registering, warm ones of 1,000 ns and others that are longer by these:
    /// the row that says what was hidden.
    fn row(longer: [[f64; 10]; 2]) -> Row {
        let cell = |state, times: [Vec<f64>; 2]| Cell { state, times, registering: [vec![100.0; 10], vec![100.0; 10]] };
        let times = longer.map(|longer| longer.map(|by| 1000.0 + by).to_vec());
        let cells = [cell(State::Warm, [vec![1000.0; 10], vec![1000.0; 10]]), cell(State::Cold, times)];
        rows("x", &cells, "both").pop().unwrap()
    }

    /// Two of these, two of those.
    fn fifths(of: [f64; 5]) -> [f64; 10] {
        std::array::from_fn(|nth| of[nth / 2])
    }

    #[test]
    fn hidden_share_is_judged_by_fifths() {
        let apart = row([fifths([50.0, 52.0, 54.0, 50.0, 51.0]), fifths([90.0, 95.0, 92.0, 94.0, 93.0])]);
        assert_eq!((apart.name.as_str(), apart.standing()), ("x/cold/hidden", Some(Standing::Ahead)));
        assert!((apart.ours.best - 0.49).abs() < 1e-9, "{apart:?}");
        assert_eq!(apart.ratio(), None, "of two parts it says nothing");
        let among = row([fifths([50.0, 52.0, 54.0, 50.0, 51.0]), fifths([48.0, 49.0, 49.0, 49.0, 53.0])]);
        assert_eq!(among.standing(), Some(Standing::Overlap), "{among:?}");
        assert_eq!(among.note, "of 0.1 us of registering at both ends");
    }

    #[test]
    fn hidden_share_out_of_range_is_not_shown() {
        for (by, said) in [([-40.0; 10], "-0.40"), ([103.0; 10], "1.03")] {
            let row = row([[50.0; 10], by]);
            assert!(row.peer.unwrap().best.is_nan() && row.standing().is_none(), "{row:?}");
            assert!(row.note.ends_with(&format!("both ends, by 0.50 and {said} of which it was longer")), "{row:?}");
        }
    }

    #[test]
    fn negligible_registrations_have_no_share() {
        let row = row([[1500.0; 10], [1500.0; 10]]);
        assert!(row.ours.best.is_nan() && row.standing().is_none() && row.note.ends_with("both ends"), "{row:?}");
    }
}
