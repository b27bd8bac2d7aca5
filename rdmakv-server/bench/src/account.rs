//! What an answer counts for: latencies of its kind, what the miss would have cost, and what has to be asked next.

use rand::Rng;

use crate::penalty::Penalty;
use crate::speech::{Answer, Ask, Flying, Part};
use crate::tally::{Kind, Tally};
use crate::window::Window;
use crate::work::Work;

/// Where answers are counted, for as long as it takes to go through those that have come.
pub(crate) struct Account<'a, R> {
    pub(crate) tally: &'a mut Tally,
    pub(crate) window: Window,
    pub(crate) random: &'a mut R,
    pub(crate) penalty: Option<&'a Penalty>,
}

impl<R: Rng> Account<'_, R> {
    /// Counts an answer; none if its operation has ended with it, else the operation's next request.
    #[inline]
    pub(crate) fn answered(&mut self, asked: &Flying, answer: Answer, now: u64, work: &Work) -> Option<Ask> {
        let (tally, window) = (&mut *self.tally, self.window);
        let next = asked.next(answer);
        if window.counts(now) {
            tally.counts.answers += 1;
            tally.counts.operations += u64::from(next.is_none());
        } else if now < window.from {
            tally.counts.warm += u64::from(next.is_none());
        }
        if window.counts(asked.start) {
            let nanos = now.saturating_sub(asked.start);
            tally.count(&asked.ask, answer, nanos);
            if let (Some(penalty), Answer::Hit | Answer::Miss) = (self.penalty, answer) {
                let more = if answer == Answer::Miss { penalty.draw(self.random) } else { 0 };
                tally.counts.penalty += more;
                tally.latencies.record(Kind::WithPenalty, nanos.saturating_add(more));
            }
        }
        match asked.ask.part {
            Part::Modified if window.counts(asked.first) => {
                tally.latencies.record(Kind::Modify, now.saturating_sub(asked.first));
            }
            Part::Insert => {
                if let Work::Mix(drawn) = work {
                    drawn.settle(asked.ask.key);
                }
            }
            _ => {}
        }
        next
    }
}
