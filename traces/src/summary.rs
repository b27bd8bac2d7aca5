//! How a source was understood, for a person to see a wrong guess at once.

use crate::Event;
use std::fmt;

/// Events and lines of each reason that are kept to be shown.
const SHOWN: usize = 3;

/// What a reader made of its source.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// One sentence: the format and what was assumed, such as `arc: blocks of 512 bytes`.
    pub understood: String,
    /// Events read.
    pub events: u64,
    /// Lines or records that are no events and are not meant to be: headers, comments, marks.
    pub other: u64,
    /// What was passed over, by reason, in the order in which the reasons came up.
    pub skipped: Vec<Skipped>,
    /// The first events.
    pub first: Vec<Event>,
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

impl Summary {
    /// A summary that says how the source is read.
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

    /// Counts a line or record, numbered from 1, that was passed over.
    pub fn skip(&mut self, reason: &'static str, number: u64, text: &str) {
        let known = self.skipped.iter().position(|skipped| skipped.reason == reason);
        let at = known.unwrap_or_else(|| {
            self.skipped.push(Skipped { reason, count: 0, first: Vec::new() });
            self.skipped.len() - 1
        });
        let skipped = &mut self.skipped[at];
        skipped.count += 1;
        if skipped.first.len() < SHOWN {
            skipped.first.push((number, text.chars().take(120).collect()));
        }
    }

    /// Everything that was passed over.
    pub fn skipped(&self) -> u64 {
        self.skipped.iter().map(|skipped| skipped.count).sum()
    }

    /// Whether less was understood than not: such a file is not of this format.
    pub fn is_mostly_unreadable(&self) -> bool {
        self.skipped() > self.events
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} events, {} skipped", self.understood, self.events, self.skipped())?;
        for Skipped { reason, count, first } in &self.skipped {
            writeln!(f, "  skipped {count}: {reason}")?;
            for (number, text) in first {
                writeln!(f, "    {number}: {text}")?;
            }
        }
        for event in &self.first {
            writeln!(f, "  {event:?}")?;
        }
        Ok(())
    }
}
