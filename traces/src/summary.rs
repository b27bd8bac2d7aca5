//! How a source was understood, for a person to see a wrong guess at once.

use crate::Event;
use std::fmt;

/// Events and lines of each reason that are kept to be shown.
const SHOWN: usize = 3;

/// A reader's summary of its source.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// One sentence: the format and what was assumed, such as `arc: blocks of 512 bytes`.
    pub understood: String,
    /// Events read.
    pub events: u64,
    /// Lines or records that are no events and are not meant to be: headers, comments, marks.
    pub other: u64,
    /// The parts that were not understood, by reason, in the order in which the reasons came up.
    pub skipped: Vec<Skipped>,
    /// The parts that were understood and are of a kind that is not read (a web server's errors, a disk's completions),
    /// by reason.
    pub left_out: Vec<Skipped>,
    /// Events whose time could not be read: each has the time of the event before it.
    pub untimed: u64,
    /// The first events.
    pub first: Vec<Event>,
    /// Whether its objects have no addresses. They were laid out in the order of their first request then. So the place behind an
    /// object tells what is requested next.
    pub is_laid_out: bool,
}

/// Lines or records that were passed over for one reason.
#[derive(Clone, Debug)]
pub struct Skipped {
    /// Why.
    pub reason: &'static str,
    /// How many.
    pub count: u64,
    /// Line or record number and text of the first few.
    pub first: Vec<(u64, String)>,
}

impl Skipped {
    /// Returns whether these were requests, for no bytes, blocks or sectors.
    pub fn asks_for_nothing(&self) -> bool {
        self.reason.starts_with("the request is for no ")
    }
}

impl Summary {
    /// Returns a summary that says how the source is read.
    pub fn new(understood: impl Into<String>) -> Self {
        Self { understood: understood.into(), ..Self::default() }
    }

    /// Counts an event.
    pub fn read(&mut self, event: &Event) {
        self.events += 1;
        if self.first.len() < SHOWN {
            self.first.push(event.clone());
        }
    }

    /// Returns whether no more events are kept to be shown: those that follow need only be counted.
    pub(crate) fn has_first(&self) -> bool {
        self.first.len() >= SHOWN
    }

    /// Counts a line or record, numbered from 1, that was not understood.
    pub fn skip(&mut self, reason: &'static str, number: u64, text: &str) {
        self.skip_with(reason, number, || text.into());
    }

    /// Counts so many for one reason, none of which can be shown.
    pub(crate) fn skip_many(&mut self, reason: &'static str, count: u64) {
        self.skipped.push(Skipped { reason, count, first: Vec::new() });
    }

    /// Counts a line or record that was understood and is of a kind that is not read.
    pub fn leave_out(&mut self, reason: &'static str, number: u64, text: &str) {
        self.leave_out_with(reason, number, || text.into());
    }

    /// As [`Summary::skip`], where the text costs something.
    pub(crate) fn skip_with(&mut self, reason: &'static str, number: u64, text: impl FnOnce() -> String) {
        pass_over(&mut self.skipped, reason, number, text);
    }

    /// As [`Summary::leave_out`], where the text costs something.
    pub(crate) fn leave_out_with(&mut self, reason: &'static str, number: u64, text: impl FnOnce() -> String) {
        pass_over(&mut self.left_out, reason, number, text);
    }

    /// Takes over what another summary says of lines that are no events.
    pub(crate) fn add_passed_over(&mut self, of: &Self) {
        self.other += of.other;
        self.untimed += of.untimed;
        let into = [(&mut self.skipped, &of.skipped), (&mut self.left_out, &of.left_out)];
        for (mine, theirs) in into {
            for one in theirs {
                match mine.iter_mut().find(|known| known.reason == one.reason) {
                    Some(known) => {
                        known.count += one.count;
                        let room = SHOWN.saturating_sub(known.first.len());
                        known.first.extend(one.first.iter().take(room).cloned());
                    }
                    None => mine.push(one.clone()),
                }
            }
        }
    }

    /// Everything that was not understood.
    pub fn skipped(&self) -> u64 {
        self.skipped.iter().map(|skipped| skipped.count).sum()
    }

    /// Everything that was understood and is of a kind that is not read.
    pub fn left_out(&self) -> u64 {
        self.left_out.iter().map(|left_out| left_out.count).sum()
    }

    /// Returns whether less was understood than not: such a file is not of this format.
    pub fn is_mostly_unreadable(&self) -> bool {
        self.skipped() > self.events + self.left_out()
    }
}

fn pass_over(reasons: &mut Vec<Skipped>, reason: &'static str, number: u64, text: impl FnOnce() -> String) {
    let known = reasons.iter().position(|skipped| skipped.reason == reason);
    let at = known.unwrap_or_else(|| {
        reasons.push(Skipped { reason, count: 0, first: Vec::new() });
        reasons.len() - 1
    });
    let skipped = &mut reasons[at];
    skipped.count += 1;
    if skipped.first.len() < SHOWN {
        skipped.first.push((number, text().chars().take(120).collect()));
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} events, {} skipped", self.understood, self.events, self.skipped())?;
        if self.untimed > 0 {
            writeln!(f, "  {} times could not be read", self.untimed)?;
        }
        for (what, reasons) in [("skipped", &self.skipped), ("left out", &self.left_out)] {
            for Skipped { reason, count, first } in reasons {
                writeln!(f, "  {what} {count}: {reason}")?;
                for (number, text) in first {
                    writeln!(f, "    {number}: {text}")?;
                }
            }
        }
        for event in &self.first {
            writeln!(f, "  {event:?}")?;
        }
        Ok(())
    }
}
