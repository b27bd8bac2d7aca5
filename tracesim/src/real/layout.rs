//! The pages of a recorded process at addresses of this one: what was near stays near, what overlapped overlaps.
//!
//! Ranges that lie within 2 MiB of each other stay at their distances, also within their 2 MiB. Larger gaps become one of 2 MiB at
//! least. Only the pages that are asked for are filled; for a cache that widens, whole blocks around them, as the simulation
//! has it.

use super::RealError;
use super::status::available_pages;
use memmap2::{MmapMut, MmapOptions};
use mrrc_core::{PAGE, PageRange};
use std::io;
use traces::{Kind, Process, Step};

/// Pages of 2 MiB: gaps that are kept, and what addresses are aligned by.
const NEAR: u64 = 512;
/// Share of the available memory that may be filled: three quarters.
const FILLED: (u64, u64) = (3, 4);

/// Memory in the place of a process's buffers.
#[derive(Debug)]
pub(crate) struct Memory {
    mapping: MmapMut,
    /// The ranges to fill, in order and disjoint: pages of this process.
    filled: Vec<(u64, u64)>,
}

/// Ranges in order, joined where they are at most `gap` apart.
fn joined(mut ranges: Vec<(u64, u64)>, gap: u64) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some((_, last)) if start <= last.saturating_add(gap) => *last = end.max(*last),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Returns the pages that are asked for, in order and apart.
fn asked_for(process: &Process) -> Vec<(u64, u64)> {
    /// So that memory does not grow with the steps.
    const BATCH: usize = 1 << 20;
    let mut all = Vec::new();
    let asks = |step: &Step| matches!(step.kind(), Kind::Request | Kind::Acquire);
    for step in process.steps.iter().filter(asks) {
        let range = step.range();
        all.push((range.start(), range.end()));
        if all.len() == all.capacity() && all.len() >= BATCH {
            all = joined(all, 0);
        }
    }
    joined(all, 0)
}

/// From the pages of the trace to those of this process.
struct Places {
    /// Start and end in the trace, start here.
    pieces: Vec<(u64, u64, u64)>,
}

impl Places {
    /// Lays pieces out one behind the other, each at its place within 2 MiB; and how many pages that takes.
    fn of(asked: &[(u64, u64)]) -> (Self, u64) {
        let mut next = NEAR;
        let mut pieces = Vec::new();
        for (start, end) in joined(asked.to_vec(), NEAR) {
            let here = next + start % NEAR;
            pieces.push((start, end, here));
            next = (here + (end - start)).next_multiple_of(NEAR) + NEAR;
        }
        (Self { pieces }, next)
    }

    /// Returns the part of a range that lies in a piece, here.
    fn part(&self, range: PageRange, piece: usize) -> Option<PageRange> {
        let (start, end, here) = *self.pieces.get(piece)?;
        let (from, to) = (range.start().max(start), range.end().min(end));
        PageRange::new(here + from.checked_sub(start)?, to.checked_sub(from)?).ok()
    }

    /// Returns the first piece that ends after this page.
    fn first(&self, page: u64) -> usize {
        self.pieces.partition_point(|&(_, end, _)| end <= page)
    }

    /// Converts a step to this place; one that changes memory in several pieces becomes several.
    fn steps(&self, step: Step, base: u64, out: &mut Vec<Step>) {
        let range = step.range();
        let place = |range: PageRange, goes_on| {
            let moved = PageRange::new(base + range.start(), range.pages()).ok()?;
            Some(Step::new(step.kind(), moved, step.access(), goes_on))
        };
        let first = self.first(range.start());
        if step.kind() == Kind::Invalidate {
            let touched = (first..self.pieces.len())
                .map_while(|piece| (self.pieces[piece].0 < range.end()).then(|| self.part(range, piece)).flatten());
            out.extend(touched.filter_map(|part| place(part, false)));
            return;
        }
        // A release of what was never asked for has no place: nor does it do anything.
        let whole = self.part(range, first).filter(|part| part.pages() == range.pages());
        out.extend(whole.and_then(|part| place(part, step.goes_on())));
    }
}

impl Memory {
    /// Maps and fills memory for a process, and the steps as they are there. What is filled is rounded out to blocks of so many
    /// pages, at most 512.
    pub(crate) fn of(process: &Process, block: u64) -> Result<(Self, Vec<Step>), RealError> {
        let rounded = |(start, end): (u64, u64)| (start / block * block, end.next_multiple_of(block));
        let asked = joined(asked_for(process).into_iter().map(rounded).collect(), 0);
        let pages: u64 = asked.iter().map(|(start, end)| end - start).sum();
        let left = available_pages().map(|pages| pages / FILLED.1 * FILLED.0);
        if let Some(left) = left.filter(|&left| pages > left) {
            return Err(RealError::Memory { pages, left });
        }
        let (places, whole) = Places::of(&asked);
        let failed = |source| RealError::Map { pages: whole, source };
        let bytes = usize::try_from(whole.saturating_mul(PAGE)).map_err(|error| failed(io::Error::other(error)))?;
        let mapping = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(failed)?;
        // A huge page is pinned whole, and fills room that was not asked for.
        let _ = mapping.advise(memmap2::Advice::NoHugePage);
        // Its pages within 2 MiB are to be those of the trace.
        let base = (mapping.as_ptr() as u64 / PAGE).next_multiple_of(NEAR);
        let mut steps = Vec::new();
        process.steps.iter().for_each(|step| places.steps(step, base - NEAR, &mut steps));
        let here = |&(start, end): &(u64, u64)| {
            let range = PageRange::new(start, end - start).ok()?;
            let place = places.part(range, places.first(start))?;
            Some((base - NEAR + place.start(), base - NEAR + place.end()))
        };
        let filled: Vec<(u64, u64)> = asked.iter().filter_map(here).collect();
        let mut memory = Self { mapping, filled };
        for at in 0..memory.filled.len() {
            let (start, end) = memory.filled[at];
            memory.fill(start, end);
        }
        Ok((memory, steps))
    }

    /// Writes to each page. They lie in the mapping.
    fn fill(&mut self, start: u64, end: u64) {
        let first = self.mapping.as_ptr() as u64;
        for page in start..end {
            if let Some(byte) = self.mapping.get_mut((page * PAGE - first) as usize) {
                *byte = 1;
            }
        }
    }

    /// Unmaps pages, and maps others in their place.
    pub(crate) fn replace(&mut self, range: PageRange) -> io::Result<()> {
        let (at, bytes) = (range.start() * PAGE, (range.pages() * PAGE) as usize);
        let first = self.mapping.as_ptr() as u64;
        if at < first || at - first + bytes as u64 > self.mapping.len() as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        #[expect(unsafe_code, reason = "memory is mapped over other memory")]
        // SAFETY: the range lies in a mapping that this owns and that no reference leads into, as this borrows it.
        let mapped = unsafe {
            libc::mmap(
                at as *mut libc::c_void,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let touched = self.filled.partition_point(|&(_, end)| end <= range.start());
        let parts: Vec<(u64, u64)> = self.filled[touched..]
            .iter()
            .take_while(|(start, _)| *start < range.end())
            .map(|&(start, end)| (start.max(range.start()), end.min(range.end())))
            .collect();
        parts.into_iter().for_each(|(start, end)| self.fill(start, end));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc_core::Access;
    use proptest::prelude::*;

    fn process(ranges: &[(u64, u64)]) -> Process {
        let step = |&(start, pages): &(u64, u64)| {
            Step::new(Kind::Request, PageRange::new(start, pages).unwrap(), Access::LOCAL, false)
        };
        Process { steps: ranges.iter().map(step).collect() }
    }

    proptest! {
        #[test]
        fn near_ranges_keep_distance_others_stay_apart(
            ranges in prop::collection::vec((0_u64..1 << 40, 0_u64..2000, 1_u64..40), 1..20)
        ) {
            let ranges: Vec<(u64, u64)> = ranges.iter().map(|&(far, near, pages)| ((far >> 38 << 38) + near, pages)).collect();
            let (memory, steps) = Memory::of(&process(&ranges), 1).unwrap();
            prop_assert_eq!(steps.len(), ranges.len());
            for (nth, &(start, pages)) in ranges.iter().enumerate() {
                let here = steps[nth].range();
                prop_assert_eq!(here.pages(), pages);
                prop_assert_eq!(here.start() % NEAR, start % NEAR);
                for (other, &(other_start, other_pages)) in ranges.iter().enumerate() {
                    let there = steps[other].range();
                    let overlap = start < other_start + other_pages && other_start < start + pages;
                    prop_assert_eq!(here.start() < there.end() && there.start() < here.end(), overlap);
                    if overlap {
                        prop_assert_eq!(here.start() as i64 - there.start() as i64, start as i64 - other_start as i64);
                    }
                }
            }
            let first = memory.mapping.as_ptr() as u64 / PAGE;
            let end = first + memory.mapping.len() as u64 / PAGE;
            prop_assert!(steps.iter().all(|step| step.range().start() >= first && step.range().end() <= end));
        }
    }

    #[test]
    fn replaced_memory_is_refilled() {
        let (mut memory, steps) = Memory::of(&process(&[(10, 4), (20, 2)]), 1).unwrap();
        let filled =
            |memory: &Memory, page: u64| memory.mapping[(page * PAGE - memory.mapping.as_ptr() as u64) as usize];
        let start = steps[0].range().start();
        assert_eq!(
            (0..12).map(|page| filled(&memory, start + page)).collect::<Vec<_>>(),
            [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]
        );
        memory.fill(start + 5, start + 6);
        memory.replace(PageRange::new(start + 2, 6).unwrap()).unwrap();
        assert_eq!((0..6).map(|page| filled(&memory, start + page)).collect::<Vec<_>>(), [1, 1, 1, 1, 0, 0]);
        assert!(memory.replace(PageRange::new(start + (1 << 30), 6).unwrap()).is_err());
    }

    #[test]
    fn a_change_of_memory_is_one_wherever_there_is_any() {
        let mut process = process(&[(10, 4), (1 << 30, 2)]);
        let everything = PageRange::new(12, 1 << 31).unwrap();
        process.steps.push(Step::new(Kind::Invalidate, everything, Access::empty(), false));
        let nowhere = PageRange::new(1 << 20, 5).unwrap();
        process.steps.push(Step::new(Kind::Invalidate, nowhere, Access::empty(), false));
        process.steps.push(Step::new(Kind::Release, nowhere, Access::empty(), false));
        let (_, steps) = Memory::of(&process, 1).unwrap();
        let kinds: Vec<(Kind, u64)> = steps.iter().map(|step| (step.kind(), step.range().pages())).collect();
        assert_eq!(kinds, [(Kind::Request, 4), (Kind::Request, 2), (Kind::Invalidate, 2), (Kind::Invalidate, 2)]);
        assert_eq!(steps[2].range().start(), steps[0].range().start() + 2);
    }
}
