//! Buffers of programs: where neighbours are asked for together, and where they are not.
//!
//! Eight patterns, each of one address space:
//!
//! * `halo`: a stencil on a cube of doubles, in two arrays. Each step sends two faces that are contiguous, two of strided rows,
//!   and two that are packed into a staging buffer.
//! * `views`: uniformly placed views of one mapping, of 4 KiB to 1 MiB (uniform logarithm).
//! * `log`: a ring. Three in five requests append a record of 512 bytes to 64 KiB. The others read an earlier
//!   record, whose age is geometric with a mean of 1,000 records.
//! * `merge`: 64 sorted runs, each read from its start in blocks of 4 to 32 KiB. The run of the next block is random. At the end
//!   of all runs a pass begins anew.
//! * `graph`: adjacency lists of 8 bytes an edge, with Pareto degrees (shape 1.5, at least 16). Half of the requests
//!   follow an edge to one of the 64 vertices around, the others go to a vertex of Zipf popularity (0.8) anywhere.
//! * `slabs`: chunks of 512 bytes to 128 KiB in slabs of 1 MiB of one size each. Items have Zipf popularity (0.99) and lie anywhere.
//! * `slide`: a window of 256 KiB over the memory, of which each request is 64 KiB further on. At the end it begins anew.
//! * `rights-in-turn`: buffers of 256 KiB. A buffer is asked for 64 times: whole, to be read, and then a part of it, to be written, in
//!   turn. Then it is another's turn.
//!
//! No figure is published for these. They are stated here, and nothing is tuned to them.

use super::options::{spelled, value, within, wrong};
use super::{Checks, Generator, Unit};
use crate::{Event, Reader, Span, Summary, TraceError};
use mrrc_core::{Access, PAGE};
use rand::{RngExt, SeedableRng};
use rand_distr::Distribution;
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// The order in which a program asks for its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Pattern {
    /// A stencil's faces.
    #[default]
    Halo,
    /// Views of one mapping.
    Views,
    /// Appends to a ring, and reads of what was appended.
    Log,
    /// Sorted runs, merged.
    Merge,
    /// Adjacency lists.
    Graph,
    /// Items in slabs.
    Slabs,
    /// A window that slides over the memory.
    Slide,
    /// Whole buffers to read, and parts of them to write, in turn.
    RightsInTurn,
}

impl Pattern {
    /// All of them.
    pub const ALL: &[Self] =
        &[Self::Halo, Self::Views, Self::Log, Self::Merge, Self::Graph, Self::Slabs, Self::Slide, Self::RightsInTurn];

    /// Returns the name that [`FromStr`] reads.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Halo => "halo",
            Self::Views => "views",
            Self::Log => "log",
            Self::Merge => "merge",
            Self::Graph => "graph",
            Self::Slabs => "slabs",
            Self::Slide => "slide",
            Self::RightsInTurn => "rights-in-turn",
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Pattern {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let known = Self::ALL.iter().copied().find(|pattern| pattern.name() == text);
        known.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|pattern| pattern.name()).collect();
            wrong(format!("`{text}` is no pattern"), format!("give one of {}", names.join(", ")))
        })
    }
}

/// The workload to generate. Fields may be added: write `..Options::default()` for the rest.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The order of the requests.
    pub pattern: Pattern,
    /// Pages of the memory in which the buffers lie.
    pub pages: u32,
    /// Requests.
    pub requests: u64,
    /// Another seed is another trace.
    pub seed: u64,
}

/// A stencil over 64 MiB, 200,000 requests.
impl Default for Options {
    fn default() -> Self {
        Self { pattern: Pattern::Halo, pages: 16_384, requests: 200_000, seed: 1 }
    }
}

fn pattern(_: &str, text: &str) -> Result<Pattern, TraceError> {
    text.parse()
}

spelled! {
    Options:
    "pattern" pattern pattern,
    "pages" pages value,
    "requests" requests value,
    "seed" seed value,
}

/// The first byte: no buffer lies at the null address.
const BASE: u64 = 1 << 32;

/// The generator.
pub struct Buffers {
    options: Options,
    rng: Pcg64Mcg,
    state: State,
    left: u64,
    /// One past the last byte asked for.
    end: u64,
    summary: Summary,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The place in the pattern. Spans are relative to the first byte.
enum State {
    /// Cells along an edge, the step, and the place in it.
    Halo {
        edge: u64,
        step: u64,
        at: u64,
    },
    Views,
    Log {
        next: u64,
        records: VecDeque<(u64, u64)>,
    },
    /// Of each run, the next byte.
    Merge {
        next: Vec<u64>,
    },
    /// The first byte of each list, and the end of the last.
    Graph {
        starts: Vec<u64>,
        last: usize,
        ranks: rand_distr::Zipf<f64>,
        order: Vec<u32>,
    },
    Slabs {
        chunks: Vec<(u64, u64)>,
        ranks: rand_distr::Zipf<f64>,
    },
    /// The next byte.
    Slide {
        next: u64,
    },
    /// The first byte of the buffer, and how often it is still asked for.
    RightsInTurn {
        buffer: u64,
        left: u32,
    },
}

/// Runs that are merged.
const RUNS: u64 = 64;
/// Records that can be read again.
const RECORDS: usize = 10_000;
/// The bytes of a sliding window, and of a buffer whose rights take turns.
const WINDOW: u64 = 256 << 10;
/// The bytes by which the window moves.
const SLIDE: u64 = 64 << 10;
/// Requests for one buffer whose rights take turns.
const TURNS: u32 = 64;

impl Buffers {
    /// Returns a generator at its start.
    ///
    /// # Errors
    /// [`TraceError::Option`] for an option out of its range.
    pub fn new(options: Options) -> Result<Self, TraceError> {
        let Options { pattern, pages, requests, seed } = options;
        within("pages", pages, 1024, 1 << 24)?;
        within("requests", requests, 0, u32::MAX.into())?;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let bytes = u64::from(pages) * PAGE;
        let zipf = |count: usize, exponent| {
            rand_distr::Zipf::new(count as f64, exponent)
                .map_err(|error| wrong(error.to_string(), "give other options"))
        };
        let state = match pattern {
            Pattern::Halo => {
                // Two arrays, and a face to pack into.
                let fits = |edge: &u64| 8 * edge * edge * (2 * edge + 1) <= bytes;
                State::Halo { edge: (1..).take_while(fits).last().unwrap_or(1), step: 0, at: 0 }
            }
            Pattern::Views => State::Views,
            Pattern::Log => State::Log { next: 0, records: VecDeque::with_capacity(RECORDS) },
            Pattern::Merge => State::Merge { next: vec![0; RUNS as usize] },
            Pattern::Graph => {
                let degrees = rand_distr::Pareto::new(16.0, 1.5)
                    .map_err(|error| wrong(error.to_string(), "give other options"))?;
                let mut starts = vec![0];
                let mut end = 0;
                loop {
                    let degree: f64 = degrees.sample(&mut rng);
                    end += 8 * (degree as u64).min(100_000);
                    if end > bytes {
                        break;
                    }
                    starts.push(end);
                }
                let order = shuffled(starts.len() - 1, &mut rng);
                State::Graph { last: 0, ranks: zipf(order.len(), 0.8)?, order, starts }
            }
            Pattern::Slabs => {
                let mut chunks = Vec::new();
                for slab in (0..bytes / (1 << 20)).map(|slab| slab << 20) {
                    let size = 512 << (2 * rng.random_range(0..5_u32));
                    chunks.extend((0..(1 << 20) / size).map(|chunk| (slab + chunk * size, size)));
                }
                let order = shuffled(chunks.len(), &mut rng);
                let chunks: Vec<_> = order.into_iter().map(|at| chunks[at as usize]).collect();
                State::Slabs { ranks: zipf(chunks.len(), 0.99)?, chunks }
            }
            Pattern::Slide => State::Slide { next: 0 },
            Pattern::RightsInTurn => State::RightsInTurn { buffer: 0, left: 0 },
        };
        let summary = Summary::new(format!("buffers, generated: {options}"));
        Ok(Self { options, rng, state, left: requests, end: 0, summary })
    }

    fn next_request(&mut self) -> (Span, Access) {
        let rng = &mut self.rng;
        let bytes = u64::from(self.options.pages) * PAGE;
        let mut access = Access::LOCAL_READ;
        let (start, length) = match &mut self.state {
            State::Halo { edge, step, at } => face(*edge, step, at),
            State::Views => {
                let length = (f64::from(rng.random_range(12.0..20.0_f32))).exp2() as u64;
                (rng.random_range(0..=bytes - length), length)
            }
            State::Log { next, records } => {
                let age = rand_distr::Geometric::new(1e-3).map_or(0, |ages| ages.sample(rng)) as usize;
                let earlier = records.len().checked_sub(age + 1).and_then(|at| records.get(at).copied());
                match earlier.filter(|_| rng.random_range(0..5) >= 3) {
                    Some(record) => record,
                    None => {
                        let length = (f64::from(rng.random_range(9.0..16.0_f32))).exp2() as u64;
                        if *next + length > bytes {
                            *next = 0;
                        }
                        let record = (*next, length);
                        *next += length;
                        if records.len() == RECORDS {
                            records.pop_front();
                        }
                        records.push_back(record);
                        record
                    }
                }
            }
            State::Merge { next } => {
                let run_bytes = bytes / RUNS;
                let length = PAGE * rng.random_range(1..=8_u64);
                if next.iter().all(|next| *next >= run_bytes) {
                    next.fill(0);
                }
                let mut run = rng.random_range(0..next.len());
                while next[run] >= run_bytes {
                    run = (run + 1) % next.len();
                }
                let length = length.min(run_bytes - next[run]);
                let start = run as u64 * run_bytes + next[run];
                next[run] += length;
                (start, length)
            }
            State::Graph { starts, last, ranks, order } => {
                *last = if rng.random_bool(0.5) {
                    let near = (*last + rng.random_range(0..64_usize)).saturating_sub(32);
                    near.min(order.len() - 1)
                } else {
                    let rank = ranks.sample(rng) as usize;
                    order[rank.clamp(1, order.len()) - 1] as usize
                };
                (starts[*last], starts[*last + 1] - starts[*last])
            }
            State::Slabs { chunks, ranks } => {
                let rank = ranks.sample(rng) as usize;
                chunks[rank.clamp(1, chunks.len()) - 1]
            }
            State::Slide { next } => {
                let start = if *next + WINDOW > bytes { 0 } else { *next };
                *next = start + SLIDE;
                (start, WINDOW)
            }
            State::RightsInTurn { buffer, left } => {
                if *left == 0 {
                    (*buffer, *left) = (rng.random_range(0..bytes / WINDOW) * WINDOW, TURNS);
                }
                *left -= 1;
                if *left % 2 == 1 {
                    (*buffer, WINDOW)
                } else {
                    access = Access::LOCAL;
                    (*buffer + WINDOW / 4, WINDOW / 4)
                }
            }
        };
        self.end = self.end.max(start + length);
        (Span { address: BASE + start, length }, access)
    }
}

/// Returns the next message of a stencil: two planes, two times `edge` rows, and two packed planes.
fn face(edge: u64, step: &mut u64, at: &mut u64) -> (u64, u64) {
    let (row, plane) = (8 * edge, 8 * edge * edge);
    let cube = plane * edge;
    let array = *step % 2 * cube;
    let place = *at;
    *at += 1;
    if *at == 2 * edge + 4 {
        (*at, *step) = (0, *step + 1);
    }
    match place {
        0 => (array, plane),
        1 => (array + cube - plane, plane),
        _ if place < 2 + 2 * edge => {
            let (side, layer) = ((place - 2) / edge, (place - 2) % edge);
            (array + layer * plane + side * (plane - row), row)
        }
        _ => (2 * cube, plane),
    }
}

fn shuffled(count: usize, rng: &mut Pcg64Mcg) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    for at in (1..count).rev() {
        order.swap(at, rng.random_range(0..=at));
    }
    order
}

impl Iterator for Buffers {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (span, access) = self.next_request();
        let event = Event::request(span, access);
        self.summary.read(&event);
        Some(Ok(event))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl Reader for Buffers {
    fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl Generator for Buffers {
    fn checks(&self) -> Checks {
        let mut checks = Checks::default();
        checks.add("requests", Unit::Count, self.options.requests as f64, self.summary.events as f64, 0.0);
        let bytes = u64::from(self.options.pages) * PAGE;
        checks.add("bytes past the memory", Unit::Count, 0.0, self.end.saturating_sub(bytes) as f64, 0.0);
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc_core::core::{Core, NoHolders, Request};
    use mrrc_core::{Config, PageRange, Part};
    use proptest::prelude::*;

    #[test]
    fn patterns_stay_in_memory_and_differ_by_seed() {
        for &pattern in Pattern::ALL {
            let spans = |seed| -> Vec<Span> {
                let options = Options { pattern, pages: 1024, requests: 5000, seed };
                let mut events = Buffers::new(options).unwrap();
                let spans = std::iter::from_fn(|| {
                    (events.left > 0).then(|| {
                        events.left -= 1;
                        events.next_request().0
                    })
                })
                .collect();
                assert!(events.end <= 1024 * PAGE, "{pattern}: {}", events.end);
                spans
            };
            let one = spans(1);
            assert!(one.iter().all(|span| span.length > 0), "{pattern}");
            assert_eq!(one, spans(1), "{pattern}");
            let is_certain = matches!(pattern, Pattern::Halo | Pattern::Slide);
            assert_eq!(one == spans(2), is_certain, "{pattern}: a stencil and a window have no chance in them");
        }
    }

    /// Returns the registrations that a cache makes for a trace where each request takes one key, and the regions at the end.
    fn registrations(options: Options) -> (u64, usize) {
        let mut core = Core::new(&Config::new(4 * u64::from(options.pages))).unwrap();
        core.use_one_key();
        for event in Buffers::new(options).unwrap() {
            let Event { access, action, .. } = event.unwrap();
            let [span] = *action.spans() else { panic!("one range") };
            let range = PageRange::of_bytes(span.address, span.length).unwrap();
            let outcome = core.request_with(&Request { access, ..Request::new(range) }, &mut NoHolders).unwrap();
            if let [Part::Gap { region: Some(id), .. }] = *outcome.parts() {
                core.publish(&[id], &mut NoHolders);
            }
        }
        (core.counters().regs, core.cached().count())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rights_in_turn_take_two_registrations(requests in 2..u64::from(TURNS), seed in any::<u64>()) {
            let options = Options { pattern: Pattern::RightsInTurn, pages: 1024, requests, seed };
            prop_assert_eq!(registrations(options), (2, 2));
        }

        #[test]
        fn buffers_in_turn_take_two_registrations_each(turns in 1..200_u64, seed in any::<u64>()) {
            let requests = turns * u64::from(TURNS);
            let (made, regions) = registrations(Options { pattern: Pattern::RightsInTurn, pages: 1024, requests, seed });
            prop_assert!(made as usize == regions && made <= 2 * 1024 * PAGE / WINDOW, "{} for 16 buffers", made);
        }
    }

    #[test]
    fn windows_slide_to_the_end_and_begin_anew() {
        let options = Options { pattern: Pattern::Slide, pages: 1024, requests: 62, seed: 1 };
        let mut events = Buffers::new(options).unwrap();
        let starts: Vec<_> = (0..62).map(|_| events.next_request().0.address - BASE).collect();
        assert_eq!((starts[..3].to_vec(), starts[60], starts[61]), (vec![0, SLIDE, 2 * SLIDE], 60 * SLIDE, 0));
    }

    #[test]
    fn stencil_rows_are_strided() {
        let (mut step, mut at) = (0, 0);
        let faces: Vec<_> = (0..12).map(|_| face(4, &mut step, &mut at)).collect();
        assert_eq!(faces[..4], [(0, 128), (384, 128), (0, 32), (128, 32)]);
        assert_eq!(faces[6..8], [(96, 32), (224, 32)]);
        assert_eq!((faces[10], faces[11], step, at), ((1024, 128), (1024, 128), 1, 0));
    }
}
