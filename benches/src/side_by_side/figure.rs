//! A measured value: the best of its rounds, the median, and how far the rounds lie apart.

use serde::{Deserialize, Deserializer, Serialize};

/// From so many rounds on, a tenth of them at each end says nothing of where the rounds lie: on a machine that does other
/// things too, one of a thousand short laps is always far off.
const MANY: usize = 20;

/// A measured value.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// All rounds, or the part that they have in common. The figure that ratios use.
    #[serde(deserialize_with = "or_nan")]
    pub best: f64,
    /// All rounds, where there were rounds.
    pub median: Option<f64>,
    /// The spread of the rounds, from the lowest to the highest; of 20 and more, without a tenth at each end.
    pub rounds: Option<(f64, f64)>,
}

impl Figure {
    /// Returns a value that was not taken in rounds.
    pub fn once(value: f64) -> Self {
        Self { best: value, median: None, rounds: None }
    }

    /// Returns a value of all rounds together, which each round has too.
    pub fn whole(value: f64, rounds: Vec<f64>) -> Self {
        Self { best: value, median: None, ..Self::lowest(rounds) }
    }

    /// Of a value a round that is better the lower it is.
    pub fn lowest(rounds: Vec<f64>) -> Self {
        Self::of(rounds, |sorted| sorted.first())
    }

    /// Of a value a round that is better the higher it is.
    pub fn highest(rounds: Vec<f64>) -> Self {
        Self::of(rounds, |sorted| sorted.last())
    }

    fn of(mut rounds: Vec<f64>, best: fn(&[f64]) -> Option<&f64>) -> Self {
        rounds.sort_unstable_by(f64::total_cmp);
        let count = rounds.len();
        let aside = if count < MANY { 0 } else { count / 10 };
        let at = |index: usize| rounds.get(index).copied();
        let lie =
            at(aside).zip(at(count.wrapping_sub(1 + aside))).filter(|(low, high)| !(low.is_nan() || high.is_nan()));
        Self { best: best(&rounds).copied().unwrap_or(f64::NAN), median: at(count / 2), rounds: lie }
    }

    /// How many times the throughput of `one` this is: best against best, median against median, and rounds against rounds
    /// as far apart as they may be.
    pub fn speedup(self, one: Self) -> Self {
        let rounds = self.rounds.zip(one.rounds).map(|(own, one)| (one.0 / own.1, one.1 / own.0));
        Self { best: one.best / self.best, median: self.median.zip(one.median).map(|(own, one)| one / own), rounds }
    }

    /// So much divided by each value: a rate of a time.
    #[must_use]
    pub fn rate(self, work: f64) -> Self {
        let of = |value: f64| work / value;
        Self {
            best: of(self.best),
            median: self.median.map(of),
            rounds: self.rounds.map(|(low, high)| (of(high), of(low))),
        }
    }

    /// Returns whether rounds of one lie among those of the other, so that neither can be said to be better. Rounds that
    /// are all the same do not.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self.rounds, other.rounds) {
            (Some(own), Some(other)) => own.0 <= other.1 && other.0 <= own.1 && !(own == other && own.0 == own.1),
            _ => false,
        }
    }
}

/// JSON has null where there is no number.
fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_overlap_where_one_lies_among_the_others() {
        let overlap = |one: &[f64], other: &[f64]| Figure::lowest(one.into()).overlaps(&Figure::lowest(other.into()));
        assert!(!overlap(&[1.0, 2.0], &[3.0, 4.0]));
        assert!(overlap(&[1.0, 3.0], &[2.0, 4.0]));
        assert!(overlap(&[2.0, 2.0], &[1.0, 4.0]));
        assert!(overlap(&[1.0, 2.0], &[1.0, 2.0]));
        assert!(!overlap(&[3.0], &[3.0]), "a count that is the same is the same");
        assert!(!Figure::once(1.0).overlaps(&Figure::once(1.0)));
    }

    #[test]
    fn of_many_rounds_some_may_be_far_off() {
        let rounds = |far: usize| {
            let mut rounds = vec![10.0; 100];
            rounds[..far].fill(1000.0);
            Figure::lowest(rounds).rounds
        };
        assert_eq!(rounds(9), Some((10.0, 10.0)));
        assert_eq!(rounds(11), Some((10.0, 1000.0)));
        assert_eq!(Figure::lowest(vec![1.0, 1.0, 1.0, 90.0]).rounds, Some((1.0, 90.0)), "but not of few");
    }

    #[test]
    fn speedup_is_of_throughput() {
        let speedup = Figure::lowest(vec![5.0, 12.0]).speedup(Figure::lowest(vec![10.0, 12.0]));
        assert_eq!((speedup.best, speedup.median, speedup.rounds), (2.0, Some(1.0), Some((10.0 / 12.0, 12.0 / 5.0))));
    }

    #[test]
    fn a_rate_is_best_where_the_time_is() {
        let rate = Figure::lowest(vec![2.0, 4.0]).rate(8.0);
        assert_eq!((rate.best, rate.rounds), (4.0, Some((2.0, 4.0))));
    }

    #[test]
    fn what_is_no_number_comes_back_from_json_as_none() {
        let text = serde_json::to_string(&Figure::once(f64::NAN)).unwrap();
        assert!(serde_json::from_str::<Figure>(&text).unwrap().best.is_nan(), "{text}");
    }

    #[test]
    fn no_rounds_are_no_figure() {
        let none = Figure::highest(Vec::new());
        assert!(none.best.is_nan() && none.median.is_none() && none.rounds.is_none());
    }
}
