//! What several rounds came to, and whether two contestants can be told apart by them.

use crate::side_by_side::race::Figure;
use crate::side_by_side::report::{Row, Unit};

/// A value of each round; better the lower it is.
#[derive(Clone, Debug)]
pub(super) struct Rounds(pub(super) Vec<f64>);

impl Rounds {
    fn lowest(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }
    fn highest(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
    fn figure(&self) -> Figure {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        Figure { best: self.lowest(), median: sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() > 1) }
    }

    /// A row, with a ratio only if no round of one lies among those of the other.
    pub(super) fn row(name: String, ours: &Self, peer: Option<&Self>, unit: Unit) -> Row {
        let row = Row::new(name, ours.figure(), peer.map(Self::figure), unit);
        let Some(peer) = peer else { return row };
        if ours.highest() < peer.lowest() || (ours.highest() == peer.highest() && ours.0 == peer.0) {
            row
        } else if ours.lowest() > peer.highest() {
            row.note("a loss")
        } else {
            row.without_ratio().note("the rounds overlap")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_claimed_only_where_the_rounds_do_not_overlap() {
        let row = |ours: &[f64], peer: &[f64]| {
            Rounds::row("x".into(), &Rounds(ours.into()), Some(&Rounds(peer.into())), Unit::Nanos)
        };
        assert_eq!(row(&[1.0, 2.0], &[3.0, 4.0]).ratio(), Some(1.0 / 3.0));
        assert_eq!(row(&[1.0, 3.0], &[2.0, 4.0]).ratio(), None);
        let loss = row(&[5.0, 9.0], &[2.0, 4.0]);
        assert_eq!((loss.ratio(), loss.note.as_str()), (Some(2.5), "a loss"));
    }
}
