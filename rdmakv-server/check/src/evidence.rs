//! From journals to histories: what all threads did, put together key by key, with what befell every key (a restart, a
//! flush); and the verdict on each.

use std::io;
use std::ops::Range;

use crate::history::{NEVER, Operation, Step};
use crate::journal::Journal;
use crate::judge::{Verdict, judge};
use crate::keys::{EVERY, Keys};
use crate::lifetimes::outlived;
use crate::place::Place;
use crate::record::{Answer, Record, Transport};
use crate::values::MOST_THREADS;
use crate::violation::{Kind, Violation};

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// None of its values may be seen any more.
    Killed,
    /// In order: its values may be there again.
    Stopped,
    /// It was killed while it stopped, or the next one was while it started: its values may be there again.
    Interrupted,
}

/// A server that was ended, and the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Just before it was killed, or asked to stop.
    pub begin: u64,
    /// When it was certainly dead.
    pub dead: u64,
    /// When the one after it had answered a question about a key.
    pub answered: u64,
    /// How it ended.
    pub ending: Ending,
}

/// A line of a key's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// An operation of a thread.
    Did {
        /// The thread.
        thread: usize,
        /// The line of its journal.
        line: usize,
        /// The line's record.
        record: Record,
    },
    /// All values of before are gone.
    Restarted(Restart),
}

/// A violation at a key, with the lines in question.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The key.
    pub key: u32,
    /// In what way, and why.
    pub violation: Violation,
    /// The lines that the reason calls A, B, and so on.
    pub lines: Vec<Line>,
}

/// All verdicts.
#[derive(Debug, Default)]
pub struct Findings {
    /// The violations: for each key one torn value, one that outlived its time and one fault of order at most.
    pub wrong: Vec<Finding>,
    /// Keys with more under way than the checker looks through.
    pub undecided: Vec<u32>,
    /// Keys that were judged.
    pub keys: u32,
}

/// All journals of a run.
#[derive(Debug)]
pub struct Evidence {
    journals: Vec<(usize, Journal)>,
    restarts: Vec<Restart>,
    keys: Keys,
    /// The places of each key's lines in `order`; the last is that of [`EVERY`].
    starts: Vec<usize>,
    /// Journal and line.
    order: Vec<(u32, u32)>,
}

impl Evidence {
    /// Opens the journals of these threads and sorts their lines by key.
    ///
    /// # Errors
    ///
    /// A journal cannot be read.
    pub fn gather(place: &Place, threads: Range<usize>, keys: Keys, restarts: Vec<Restart>) -> io::Result<Self> {
        let mut journals = Vec::new();
        for thread in threads.start..threads.end.min(MOST_THREADS) {
            journals.extend(place.journal(thread)?.map(|journal| (thread, journal)));
        }
        let slot = |key: u32| if key == EVERY { keys.count() as usize } else { key as usize };
        let mut starts = vec![0; keys.count() as usize + 2];
        for (_, journal) in &journals {
            (0..journal.lines()).for_each(|line| starts[slot(journal.key(line)) + 1] += 1);
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![(0, 0); starts[starts.len() - 1]];
        for (number, (_, journal)) in journals.iter().enumerate() {
            for line in 0..journal.lines() {
                let at = &mut next[slot(journal.key(line))];
                order[*at] = (number as u32, line as u32);
                *at += 1;
            }
        }
        Ok(Self { journals, restarts, keys, starts, order })
    }

    /// Every line, in no order.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.journals.iter().flat_map(|(_, journal)| (0..journal.lines()).map(|line| journal.record(line)))
    }

    /// How many answers made no sense.
    pub fn nonsense(&self) -> u64 {
        self.journals.iter().map(|(_, journal)| journal.nonsense()).sum()
    }

    /// Returns a thread's line, to find the origin of a value.
    pub fn line(&self, thread: usize, line: usize) -> Option<Record> {
        let (_, journal) = self.journals.iter().find(|(number, _)| *number == thread)?;
        (line < journal.lines()).then(|| journal.record(line))
    }

    fn did(&self, slot: usize) -> impl Iterator<Item = Line> {
        self.order[self.starts[slot]..self.starts[slot + 1]].iter().map(|&(journal, line)| {
            let (thread, journal) = &self.journals[journal as usize];
            let mut record = journal.record(line as usize);
            if record.answer == Answer::Unknown && record.transport == Transport::Tcp {
                // A server's requests over a connection of its own die with it.
                let last = self.restarts.iter().find(|restart| restart.dead >= record.begin);
                record.end = last.map_or(NEVER, |restart| restart.dead);
            }
            Line::Did { thread: *thread, line: line as usize, record }
        })
    }

    /// Returns a key's history.
    pub fn history(&self, key: u32) -> Vec<Line> {
        let every = self.did(self.keys.count() as usize);
        let kills = self.restarts.iter().copied().filter(|restart| restart.ending == Ending::Killed);
        self.did(key as usize).chain(every).chain(kills.map(Line::Restarted)).collect()
    }

    /// Judges every key.
    pub fn judge(&self, mut progress: impl FnMut(u32)) -> Findings {
        let mut findings = Findings::default();
        for key in 0..self.keys.count() {
            progress(key);
            let lines = self.history(key);
            let found = |violation: Violation| {
                let lines = violation.operations.iter().map(|&place| lines[place]).collect();
                Finding { key, violation, lines }
            };
            findings.wrong.extend(torn(&lines).map(found));
            let (places, operations): (Vec<usize>, Vec<Operation>) =
                lines.iter().enumerate().filter_map(|(place, line)| Some((place, line.operation()?))).unzip();
            let at_home = |mut violation: Violation| {
                violation.operations.iter_mut().for_each(|place| *place = places[*place]);
                found(violation)
            };
            match judge(&operations) {
                Verdict::Linearizable => {}
                Verdict::Violated(violation) => findings.wrong.push(at_home(violation)),
                Verdict::Undecided => findings.undecided.push(key),
            }
            let expiry = |place: usize| match &lines[places[place]] {
                Line::Did { record, .. } => record.given_expiry(),
                Line::Restarted(_) => None,
            };
            findings.wrong.extend(outlived(&operations, expiry).map(at_home));
            findings.keys += 1;
        }
        findings
    }
}

impl Line {
    fn operation(&self) -> Option<Operation> {
        match self {
            Self::Did { record, .. } => record.operation(),
            Self::Restarted(restart) => {
                Some(Operation { begin: restart.begin, end: restart.answered, certain: true, step: Step::Gone })
            }
        }
    }
}

fn torn(lines: &[Line]) -> Option<Violation> {
    let is_torn = |line: &Line| matches!(line, Line::Did { record: Record { answer: Answer::Torn(..), .. }, .. });
    let place = lines.iter().position(is_torn)?;
    let why = "A found a value whose words are of two versions, or which is not as long as its version is";
    Some(Violation::new(Kind::Torn, [place], why))
}
