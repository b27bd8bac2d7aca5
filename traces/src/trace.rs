//! A trace in memory: read once, replayed many times.
//!
//! Sixteen bytes a range: a start has 52 bits as pages go, and what the step is fits above it. Times and clients are not
//! kept, as no replay asks for them.

use crate::{Action, Event, Reader, Summary, TraceError};
use mrrc_core::{Access, PageRange};
use smallvec::SmallVec;

/// The kind of a step. A request of several ranges is several steps; all but the last have [`Step::goes_on`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Asked for and released at once.
    Request,
    /// Asked for, in use until its release.
    Acquire,
    /// The end of the last acquire of the same ranges that is in use.
    Release,
    /// Unmapped, moved or discarded.
    Invalidate,
}

/// One range of one event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// Kind in 2 bits, whether the event goes on in 1, rights in 5, start in 52.
    start: u64,
    pages: u64,
}

const START_BITS: u32 = 52;
const GOES_ON: u64 = 1 << 57;
const KIND_SHIFT: u32 = 58;

impl Step {
    /// Returns a step over these pages; `goes_on` if the next step belongs to the same event.
    pub fn new(kind: Kind, range: PageRange, access: Access, goes_on: bool) -> Self {
        let tag = u64::from(access.bits()) << START_BITS | (kind as u64) << KIND_SHIFT;
        Self { start: range.start() | tag | if goes_on { GOES_ON } else { 0 }, pages: range.pages() }
    }

    /// Returns the pages.
    #[inline]
    pub fn range(self) -> PageRange {
        let start = self.start & ((1 << START_BITS) - 1);
        // It came from a range.
        PageRange::new(start, self.pages).unwrap_or(PageRange::EVERYTHING)
    }

    /// Returns the kind of the step.
    #[inline]
    pub fn kind(self) -> Kind {
        match self.start >> KIND_SHIFT {
            0 => Kind::Request,
            1 => Kind::Acquire,
            2 => Kind::Release,
            _ => Kind::Invalidate,
        }
    }

    /// Returns whether the next step belongs to the same event.
    #[inline]
    pub fn goes_on(self) -> bool {
        self.start & GOES_ON != 0
    }

    /// Returns whether this is all of a plain request.
    #[inline]
    pub fn is_single_request(self) -> bool {
        self.start >> (START_BITS + 5) == 0
    }

    /// Returns the rights asked for.
    #[inline]
    pub fn access(self) -> Access {
        Access::from_bits_truncate((self.start >> START_BITS) as u8 & 0x1f)
    }
}

/// The steps of one address space, with one cache.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// In the order of time.
    pub steps: Vec<Step>,
}

/// A trace in memory.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The name in tables: the file's name, or the generator's.
    pub name: String,
    /// A process is a cache of its own.
    pub processes: Vec<Process>,
    /// How the source was understood.
    pub summary: Summary,
}

impl Trace {
    /// Reads everything. With `share`, all processes use one cache and one address space, in the order of time.
    ///
    /// # Errors
    /// Errors of the reader.
    pub fn load(name: impl Into<String>, mut reader: impl Reader, share: bool) -> Result<Self, TraceError> {
        let mut trace = Self { name: name.into(), ..Self::default() };
        // One order for all processes, where they share a cache. The ranges of an event stay together: sorting is stable.
        let mut by_time: Vec<(u64, Step)> = Vec::new();
        // Of these only one or more than one matters.
        let mut processes: Vec<u32> = Vec::new();
        for event in reader.by_ref() {
            let event = event?;
            let steps = steps_of(&event);
            if share {
                if processes.last() != Some(&event.process)
                    && !processes.contains(&event.process)
                    && processes.len() < 2
                {
                    processes.push(event.process);
                }
                by_time.extend(steps.into_iter().map(|step| (event.time, step)));
                continue;
            }
            let process = event.process as usize;
            if trace.processes.len() <= process {
                trace.processes.resize_with(process + 1, Process::default);
            }
            trace.processes[process].steps.extend(steps);
        }
        trace.summary = reader.summary().clone();
        if share {
            if trace.summary.untimed > 0 && processes.len() > 1 {
                return Err(TraceError::Option {
                    option: "--share",
                    what: format!(
                        "{}: {} times could not be read, and several processes are put in the order of time",
                        trace.name, trace.summary.untimed
                    ),
                    remedy: "give --time-unit, or leave --share out".into(),
                });
            }
            by_time.sort_by_key(|&(time, _)| time);
            trace.processes = vec![Process { steps: by_time.into_iter().map(|(_, step)| step).collect() }];
        }
        Ok(trace)
    }
}

fn steps_of(event: &Event) -> SmallVec<[Step; 2]> {
    let (kind, spans) = match &event.action {
        Action::Request(spans) => (Kind::Request, &spans[..]),
        Action::Acquire(spans) => (Kind::Acquire, &spans[..]),
        Action::Release(spans) => (Kind::Release, &spans[..]),
        Action::Invalidate(span) => (Kind::Invalidate, std::slice::from_ref(span)),
    };
    // Readers skip what has no pages.
    let ranges: SmallVec<[PageRange; 2]> = spans.iter().filter_map(|&span| span.pages().ok()).collect();
    let last = ranges.len().saturating_sub(1);
    let step = |(at, range)| Step::new(kind, range, event.access, at < last);
    ranges.into_iter().enumerate().map(step).collect()
}
