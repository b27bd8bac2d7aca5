//! The counting of an answer: latencies of its kind, the cost of a miss, and the next request.

use rand::Rng;

use crate::penalty::Penalty;
use crate::protocol::{Answer, Ask, InFlight, Part};
use crate::tally::{Kind, Tally};
use crate::window::Window;
use crate::work::Work;

/// The counters of answers, for as long as it takes to go through those that have come.
pub(crate) struct Account<'a, R> {
    pub(crate) tally: &'a mut Tally,
    pub(crate) window: Window,
    pub(crate) random: &'a mut R,
    pub(crate) penalty: Option<&'a Penalty>,
}

impl<R: Rng> Account<'_, R> {
    /// Counts an answer; none if its operation has ended with it, else the operation's next request.
    #[inline]
    pub(crate) fn answered(&mut self, asked: &InFlight, answer: Answer, now: u64, work: &Work) -> Option<Ask> {
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
        if asked.ask.part == Part::Modified && window.counts(asked.first) {
            tally.latencies.record(Kind::Modify, now.saturating_sub(asked.first));
        }
        work.settle(&asked.ask);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Choice, Chooser, Newest};
    use crate::protocol::Op;
    use crate::traffic::Mix;
    use crate::work::Drawn;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;
    use std::sync::Arc;

    #[test]
    fn new_key_is_readable_after_its_answer() {
        let newest = Arc::new(Newest::of(10));
        let mut chooser = Chooser::new(Choice::Latest { skew: 0.99 }, 10, Arc::clone(&newest));
        let key = chooser.make();
        let work = Work::Mix(Drawn::new(&Mix::ycsb('d').unwrap(), chooser, true));
        let (mut tally, mut random) = (Tally::default(), Pcg64::seed_from_u64(1));
        let window = Window { begin: std::time::Instant::now(), from: 100, to: 200 };
        let mut account = Account { tally: &mut tally, window, random: &mut random, penalty: None };
        let asked = |start, ask| InFlight { start, first: start, ask };
        assert_eq!(newest.there(), 10);
        let insert = Ask { part: Part::Insert, ..Ask::new(Op::Set, key) };
        assert_eq!(account.answered(&asked(90, insert), Answer::Stored, 110, &work), None);
        assert_eq!(newest.there(), 11);
        // Begun before, and ended after.
        account.answered(&asked(90, Ask::new(Op::Get, 1)), Answer::Hit, 95, &work);
        account.answered(&asked(150, Ask::new(Op::Get, 1)), Answer::Hit, 210, &work);
        assert_eq!((tally.counts.operations, tally.counts.warm, tally.counts.hits), (1, 1, 1));
        assert_eq!((tally.latencies.count(Kind::Set), tally.latencies.count(Kind::Get)), (0, 1));
    }

    #[test]
    fn a_pair_is_one_operation_whose_time_is_that_of_both() {
        let work = Work::Load(0..1);
        let (mut tally, mut random) = (Tally::default(), Pcg64::seed_from_u64(1));
        let window = Window { begin: std::time::Instant::now(), from: 0, to: 1000 };
        let mut account = Account { tally: &mut tally, window, random: &mut random, penalty: None };
        let read = InFlight { start: 10, first: 10, ask: Ask { part: Part::Modify, ..Ask::new(Op::Get, 3) } };
        let write = account.answered(&read, Answer::Miss, 50, &work).unwrap();
        assert_eq!((write.op, write.key), (Op::Set, 3));
        let write = InFlight { start: 60, first: 10, ask: write };
        assert_eq!(account.answered(&write, Answer::Stored, 100, &work), None);
        assert_eq!((tally.counts.operations, tally.counts.answers), (1, 2));
        let most = |kind| tally.latencies.of(kind).unwrap().max();
        assert_eq!((most(Kind::Get), most(Kind::Set), most(Kind::Modify)), (40, 40, 90));
    }
}
