//! Which request comes next.

use std::ops::Range;
use std::sync::Arc;

use rand::{Rng, RngExt};

use crate::bursts::Clients;
use crate::keys::Chooser;
use crate::protocol::{Ask, Op, Part};
use crate::recording::Recording;
use crate::sizes::mix;
use crate::traffic::Mix;

/// The requests of a thread.
#[derive(Debug)]
pub(crate) enum Work {
    /// Each of these keys is written once.
    Load(Range<u64>),
    /// Requests at random, without end.
    Mix(Drawn),
    /// Blocks and pauses.
    Bursts(Clients),
    /// A recording: this thread's keys, in order.
    Replay { steps: std::vec::IntoIter<Ask> },
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Ask(Ask),
    /// Nothing for this connection, for now.
    Wait,
    /// Nothing ever.
    End,
}

impl Work {
    /// Returns the next step on this connection.
    #[inline]
    pub(crate) fn next(&mut self, conn: usize, random: &mut impl Rng) -> Next {
        match self {
            Self::Load(keys) => keys.next().map_or(Next::End, |key| Next::Ask(Ask::new(Op::Set, key))),
            Self::Mix(drawn) => Next::Ask(drawn.next(random)),
            Self::Bursts(clients) => clients.chunk(conn).map_or(Next::Wait, Next::Ask),
            Self::Replay { steps } => steps.next().map_or(Next::End, Next::Ask),
        }
    }

    /// The request was answered, or is not made after all: if it is for a new key, that is there now, or will never be.
    #[inline]
    pub(crate) fn settle(&self, ask: &Ask) {
        if let (Self::Mix(drawn), Part::Insert) = (self, ask.part) {
            drawn.chooser.newest().settle(ask.key);
        }
    }

    /// Returns whether what was begun is gone on with when time is up.
    pub(crate) fn ends_what_it_began(&self) -> bool {
        matches!(self, Self::Bursts(_))
    }

    /// Returns whether requests for one key have to use one connection.
    pub(crate) fn keeps_order(&self) -> bool {
        matches!(self, Self::Replay { .. })
    }
}

/// Draws from a mix.
#[derive(Debug)]
pub(crate) struct Drawn {
    chooser: Chooser,
    /// Up to where in one each kind reaches.
    until: [f64; 5],
    scan_most: u16,
    read: Part,
}

impl Drawn {
    pub(crate) fn new(mix: &Mix, chooser: Chooser, latest: bool) -> Self {
        let mut shares = mix.shares();
        if latest {
            // There, a SET is of a new key.
            shares[2] += std::mem::take(&mut shares[1]);
        }
        let whole: f64 = shares.iter().sum();
        let mut sum = 0.0;
        let until = shares.map(|share| {
            sum += share / whole;
            sum
        });
        let read = if mix.fill { Part::Fill } else { Part::Whole };
        Self { chooser, until, scan_most: mix.scan_most.max(1), read }
    }

    #[inline]
    fn next(&mut self, random: &mut impl Rng) -> Ask {
        // Where there is but one kind, no number need be drawn.
        let at = if self.until[0] >= 1.0 { 0.0 } else { random.random::<f64>() };
        if at < self.until[0] {
            let key = self.chooser.draw(random);
            return Ask { part: self.read, ..Ask::new(Op::Get, key) };
        }
        if at < self.until[1] {
            return Ask::new(Op::Set, self.chooser.draw(random));
        }
        if at < self.until[2] {
            return Ask { part: Part::Insert, ..Ask::new(Op::Set, self.chooser.make()) };
        }
        if at < self.until[3] {
            let key = self.chooser.draw(random);
            let there = self.chooser.newest().there().saturating_sub(key).clamp(1, u64::from(self.scan_most));
            let keys = random.random_range(1..=self.scan_most).min(there as u16);
            return Ask { keys, ..Ask::new(Op::Scan, key) };
        }
        let key = self.chooser.draw(random);
        Ask { part: Part::Modify, ..Ask::new(Op::Get, key) }
    }
}

/// Returns the steps of one thread of several: all of a key's, so that their order is kept; with their times.
pub(crate) fn share_of(recording: &Arc<Recording>, fill: bool, thread: usize, threads: usize) -> (Vec<Ask>, Vec<u64>) {
    let mine = recording.steps.iter().filter(|step| mix(u64::from(step.key)) % threads as u64 == thread as u64);
    mine.map(|step| {
        let op = if step.write { Op::Set } else { Op::Get };
        let part = if fill && !step.write { Part::Fill } else { Part::Whole };
        (Ask { part, ..Ask::new(op, step.key.into()) }, step.time)
    })
    .unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Choice, Newest};
    use crate::theory::fits;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;

    fn drawn(mix: &Mix, choice: Choice) -> Drawn {
        let chooser = Chooser::new(choice, 1000, Arc::new(Newest::of(1000)));
        Drawn::new(mix, chooser, matches!(choice, Choice::Latest { .. }))
    }

    fn kind(ask: &Ask) -> usize {
        match (ask.op, ask.part) {
            (Op::Get, Part::Whole | Part::Fill) => 0,
            (Op::Set, Part::Whole) => 1,
            (Op::Set, Part::Insert) => 2,
            (Op::Scan, _) => 3,
            (Op::Get, Part::Modify) => 4,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_kind_comes_as_often_as_the_workload_says() {
        let mut random = Pcg64::seed_from_u64(7);
        for (letter, shares) in [
            ('a', [0.5, 0.5, 0.0, 0.0, 0.0]),
            ('b', [0.95, 0.05, 0.0, 0.0, 0.0]),
            ('d', [0.95, 0.0, 0.05, 0.0, 0.0]),
            ('e', [0.0, 0.0, 0.05, 0.95, 0.0]),
            ('f', [0.5, 0.0, 0.0, 0.0, 0.5]),
        ] {
            let mut work = drawn(&Mix::ycsb(letter).unwrap(), Choice::Uniform);
            let mut seen = [0; 5];
            (0..100_000).for_each(|_| seen[kind(&work.next(&mut random))] += 1);
            fits(&seen, &shares);
            assert!(seen.iter().zip(shares).all(|(&seen, share)| (seen > 0) == (share > 0.0)), "{letter}: {seen:?}");
        }
    }

    #[test]
    fn scan_lengths_are_uniform_within_keys() {
        let mut random = Pcg64::seed_from_u64(7);
        let mut work = drawn(&Mix { scans: 1.0, scan_most: 20, ..Mix::default() }, Choice::Uniform);
        let mut seen = [0; 21];
        for _ in 0..100_000 {
            let ask = work.next(&mut random);
            assert!(ask.key + u64::from(ask.keys) <= 1000);
            if ask.key < 980 {
                seen[usize::from(ask.keys)] += 1;
            }
        }
        fits(&seen[1..], &[0.05; 20]);
    }

    #[test]
    fn threads_partition_a_recording_by_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.objects");
        let lines: String = (0..300).map(|at| format!("{at} {} 10\n", at * at % 37)).collect();
        std::fs::write(&path, lines).unwrap();
        let recording = Arc::new(Recording::open(&path, &traces::ReadOptions::default(), None, None).unwrap());
        let shares: Vec<_> = (0..3).map(|thread| share_of(&recording, true, thread, 3).0).collect();
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 300);
        for (at, share) in shares.iter().enumerate() {
            for other in &shares[at + 1..] {
                assert!(share.iter().all(|ask| other.iter().all(|theirs| theirs.key != ask.key)));
            }
        }
    }
}
