//! Two contestants that take turns, and what each turn took at both ends.

use crate::pin;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::Setting;
use crate::side_by_side::remote::{Far, Outcome};
use std::time::Instant;

/// The durations of an operation in one turn, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) time: f64,
    pub(super) near: f64,
    pub(super) far: f64,
}

/// The turns of one contestant.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Vec<Turn>);

impl Turns {
    /// Returns the lowest of a value, and its median.
    pub(super) fn figure(&self, value: impl Fn(&Turn) -> f64) -> Figure {
        Figure::lowest(self.0.iter().map(value).collect())
    }
}

/// Something to do, as often as it is told, whose far end may be another process.
pub(super) type Work<'a> = &'a mut dyn FnMut(usize) -> Outcome<()>;

/// Lets each work through so many operations in turns, after one turn of each that does not count.
pub(super) fn turns<const N: usize>(
    setting: &Setting,
    far: &mut Far,
    operations: usize,
    mut contestants: [Work<'_>; N],
) -> Outcome<[Turns; N]> {
    let mut turns = [(); N].map(|()| Turns::default());
    for contestant in &mut contestants {
        contestant(operations)?;
    }
    let begun = Instant::now();
    let mut round = 0;
    while round < setting.rounds || begun.elapsed() < setting.whole {
        for nth in 0..N {
            // There and back: no contestant always runs behind the same other.
            let nth = if round % 2 == 0 { nth } else { N - 1 - nth };
            let (far_before, near_before, start) = (far.cpu()?, pin::process_nanos(), Instant::now());
            contestants[nth](operations)?;
            let (time, near) = (start.elapsed(), pin::process_nanos() - near_before);
            let of = |nanos: u64| nanos as f64 / operations as f64;
            let far = of(far.cpu()?.saturating_sub(far_before));
            turns[nth].0.push(Turn { time: of(time.as_nanos() as u64), near: of(near), far });
        }
        round += 1;
    }
    Ok(turns)
}
