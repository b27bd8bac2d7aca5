//! A trace in memory: read once, replayed many times.
//!
//! Eight bytes a range. Times and clients are not kept, as no replay asks for them.

use crate::step::{Kind, Step};
use crate::step_list::StepList;
use crate::{Action, Event, Reader, Summary, TraceError};
use mrrc_core::PageRange;
use smallvec::SmallVec;

/// The steps of one address space, with one cache.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// In the order of time.
    pub steps: StepList,
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

/// Events that are read one by one before steps are asked for again.
const RUN: u32 = 64;

impl Trace {
    /// Returns the steps of a process.
    fn steps_of(&mut self, process: u32) -> &mut StepList {
        let process = process as usize;
        if self.processes.len() <= process {
            self.processes.resize_with(process + 1, Process::default);
        }
        &mut self.processes[process].steps
    }

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
        let mut some = Vec::new();
        let mut is_over = false;
        while !is_over {
            if !share {
                some.clear();
                while let Some(process) = reader.read_steps(&mut some) {
                    trace.steps_of(process).extend(some.drain(..));
                }
            }
            for _ in 0..RUN {
                let Some(event) = reader.next() else {
                    is_over = true;
                    break;
                };
                let event = event?;
                if !share {
                    add_steps(&event, trace.steps_of(event.process));
                    continue;
                }
                if processes.last() != Some(&event.process)
                    && !processes.contains(&event.process)
                    && processes.len() < 2
                {
                    processes.push(event.process);
                }
                add_steps(&event, &mut some);
                by_time.extend(some.drain(..).map(|step| (event.time, step)));
            }
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

/// Adds the steps of an event.
fn add_steps(event: &Event, steps: &mut impl Extend<Step>) {
    let (kind, spans) = match &event.action {
        Action::Request(spans) => (Kind::Request, &spans[..]),
        Action::Acquire(spans) => (Kind::Acquire, &spans[..]),
        Action::Release(spans) => (Kind::Release, &spans[..]),
        Action::Invalidate(span) => (Kind::Invalidate, std::slice::from_ref(span)),
    };
    if let [span] = spans {
        steps.extend(span.pages().ok().map(|range| Step::new(kind, range, event.access, false)));
        return;
    }
    // Readers skip what has no pages.
    let ranges: SmallVec<[PageRange; 2]> = spans.iter().filter_map(|&span| span.pages().ok()).collect();
    let last = ranges.len().saturating_sub(1);
    let step = |(at, range)| Step::new(kind, range, event.access, at < last);
    steps.extend(ranges.into_iter().enumerate().map(step));
}
