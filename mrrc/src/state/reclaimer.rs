//! The regions that have left the cache and are still registered.
//!
//! ```text
//! push ──► pending ──► take_batch ──► in progress ──► finish_batch ──► gone
//!             ▲                                            │
//!             └───────────── retry ◄── refused ◄───────────┘
//! ```
//!
//! Memory of arenas that are gone waits here too, until nothing of it is registered.

use super::pace::Pace;
use crate::footprint::Footprint;
use crate::hit::notifier::Notifier;
use crate::memory::Memory;
use crate::range::PageRange;
use crate::registrar::Registered;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

/// Regions that are to be deregistered. Owns the registrations from when they leave the core until the registrar has taken
/// them back, the size of batches, the ranges to be unwatched, and memory that is to be unmapped after them.
pub(crate) struct Reclaimer<T> {
    /// First out, first deregistered.
    pending: VecDeque<Registered<T>>,
    /// The regions that the registrar refused to deregister.
    refused: Vec<Registered<T>>,
    /// The registrar's last refusal.
    refusal: Cow<'static, str>,
    in_progress: Footprint,
    /// The batches in progress: their numbers, and the threads.
    batches: Vec<(u64, u32)>,
    next_batch: u64,
    ended_batches: u64,
    pace: Pace,
    to_unwatch: Vec<PageRange>,
    /// Memory of arenas that are gone. Nothing is cached there until it is unmapped.
    unmaps: Vec<PendingUnmap>,
    /// Memory that no lease has any more, to be unmapped after the pending regions were deregistered.
    unheld_unmaps: Vec<PendingUnmap>,
    looked: Looked,
    /// An empty vector for the next batch.
    spare: Vec<Registered<T>>,
    /// The background sleeps until it is told.
    resting: bool,
    /// Something has left since the background was last there.
    stirred: bool,
}

/// Memory whose arena is gone.
pub(crate) struct PendingUnmap {
    memory: Memory,
    /// The number of the change that its end is.
    change: u64,
    /// No batch from this number on has any of it, as far as was seen when last looked.
    free_from: Option<u64>,
}

impl PendingUnmap {
    pub(crate) fn new(memory: Memory, change: u64) -> Self {
        Self { memory, change, free_from: None }
    }
}

/// The part of the memory that was looked at. Nothing comes to have such memory any more, and what has it leaves in a
/// batch: so memory that was found to be in use is looked at again when a batch has ended.
#[derive(Default)]
struct Looked {
    /// The first so many.
    unmaps: usize,
    /// After so many batches.
    batches: u64,
}

/// Regions that are being deregistered, and what goes with them.
pub(crate) struct Batch<T> {
    number: u64,
    /// The regions that the registrar has not taken yet.
    pub(crate) regions: Vec<Registered<T>>,
    /// The amounts at the beginning.
    pub(crate) amount: Footprint,
    /// Ranges to be unwatched before.
    pub(crate) unwatch: Vec<PageRange>,
    /// Memory to be unmapped after.
    unmaps: Vec<PendingUnmap>,
    /// The changes that ended because memory was unmapped.
    unmapped: Vec<u64>,
    /// Whether the pace wants to know how long it takes.
    pub(crate) timed: bool,
    /// How long the registrar took, if it was timed.
    pub(crate) took: Option<Duration>,
    /// Why the registrar did not take all, if it did not.
    pub(crate) refusal: Option<Cow<'static, str>>,
}

/// Returns the footprint of registrations.
pub(crate) fn of_batch<'a, T: 'a>(batch: impl IntoIterator<Item = &'a Registered<T>>) -> Footprint {
    Footprint::of(batch.into_iter().map(|registered| registered.range))
}

impl<T> Batch<T> {
    /// Unmaps the memory of which nothing is left in the batch. Not before the regions were deregistered.
    pub(crate) fn unmap(&mut self) {
        let still = |unmap: &PendingUnmap| self.regions.iter().any(|left| left.range.overlaps(unmap.memory.pages()));
        let (kept, gone): (Vec<_>, Vec<_>) = self.unmaps.drain(..).partition(still);
        self.unmaps = kept;
        self.unmapped = gone.into_iter().map(|PendingUnmap { change, .. }| change).collect();
    }

    /// Leaks what is left: nothing may deregister it any more.
    pub(crate) fn forget(&mut self) {
        self.unmaps.drain(..).for_each(std::mem::forget);
        self.regions.drain(..).for_each(std::mem::forget);
    }
}

impl<T> Reclaimer<T> {
    pub(super) fn new() -> Self {
        Self {
            pending: VecDeque::new(),
            refused: Vec::new(),
            refusal: Cow::Borrowed(""),
            in_progress: Footprint::default(),
            batches: Vec::new(),
            next_batch: 0,
            ended_batches: 0,
            pace: Pace::new(),
            to_unwatch: Vec::new(),
            unmaps: Vec::new(),
            unheld_unmaps: Vec::new(),
            looked: Looked::default(),
            spare: Vec::new(),
            resting: false,
            stirred: false,
        }
    }

    /// Adds a region that left the core.
    pub(crate) fn push(&mut self, registered: Registered<T>, watched: bool) {
        if watched {
            self.to_unwatch.push(registered.range);
        }
        self.pending.push_back(registered);
    }

    /// Takes the next batch, which is in progress from now on: what left first, no more than the pace allows.
    pub(crate) fn take_batch(&mut self, thread: u32) -> Batch<T> {
        let mut regions = std::mem::take(&mut self.spare);
        // One alone needs no choice.
        let count = match self.pending.len() {
            few @ ..=1 => few,
            _ => self.pace.choose(self.pending.iter().map(|registered| registered.range.pages())),
        };
        if count == 1 {
            regions.extend(self.pending.pop_front());
        } else {
            regions.extend(self.pending.drain(..count));
        }
        // There are no more of these than pending regions, so none is left when those are gone.
        let unwatch = if self.to_unwatch.len() <= count {
            std::mem::take(&mut self.to_unwatch)
        } else {
            self.to_unwatch.split_off(self.to_unwatch.len() - count)
        };
        let number = self.next_batch;
        self.next_batch += 1;
        let amount = of_batch(&regions);
        self.in_progress = self.in_progress.plus(amount);
        self.batches.push((number, thread));
        let (unmaps, timed) = (std::mem::take(&mut self.unheld_unmaps), self.pace.wants_time(amount));
        let refusal = Some(Cow::Borrowed("it panicked"));
        Batch { number, regions, amount, unwatch, unmaps, unmapped: Vec::new(), timed, took: None, refusal }
    }

    /// Ends a batch: what is left of it was refused. Returns the changes that ended with it.
    pub(super) fn finish_batch(&mut self, batch: Batch<T>, background: &Notifier) -> Vec<u64> {
        let Batch { number, mut regions, amount, unmaps, unmapped, took, refusal, .. } = batch;
        if amount != Footprint::default() {
            self.pace.learn(amount, took);
        }
        self.in_progress = self.in_progress.minus(amount);
        self.ended_batches += 1;
        if let Some(place) = self.batches.iter().position(|&(other, _)| other == number) {
            self.batches.swap_remove(place);
        }
        if !regions.is_empty() {
            self.refusal = refusal.unwrap_or(Cow::Borrowed("it said that all went well, and left them"));
            self.refused.append(&mut regions);
        }
        self.spare = regions;
        self.unmaps.extend(unmaps);
        if !self.refused.is_empty() || !self.unmaps.is_empty() {
            self.stir(background);
        }
        unmapped
    }

    /// Makes what was refused pending again.
    pub(crate) fn retry(&mut self) {
        self.pending.extend(self.refused.drain(..));
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Returns whether another thread is deregistering regions now.
    pub(crate) fn is_in_progress(&self) -> bool {
        self.in_progress.regions > 0
    }

    /// Returns whether there is anything to deregister or to unmap.
    pub(crate) fn has_work(&self) -> bool {
        self.has_pending() || !self.unheld_unmaps.is_empty()
    }

    pub(crate) fn pending_regions(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn pending_amount(&self) -> Footprint {
        of_batch(&self.pending)
    }

    pub(crate) fn in_progress_amount(&self) -> Footprint {
        self.in_progress
    }

    /// Returns what was refused, and what the registrar said when it last refused.
    pub(crate) fn refused(&self) -> (Footprint, &str) {
        (of_batch(&self.refused), &self.refusal)
    }

    /// Returns the number of the next batch: those in progress have smaller ones.
    pub(crate) fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Returns whether other threads are deregistering batches with numbers below this one.
    pub(crate) fn others_in_progress(&self, before: u64, thread: u32) -> bool {
        self.batches.iter().any(|&(number, by)| number < before && by != thread)
    }

    /// Adds memory whose arena is gone.
    pub(crate) fn add_unmap(&mut self, unmap: PendingUnmap) {
        self.unmaps.push(unmap);
    }

    pub(crate) fn has_unmaps(&self) -> bool {
        !self.unmaps.is_empty()
    }

    /// Finds the memory that no lease has any more. A lease's region of dead memory is retired and held: it was
    /// invalidated when the arena went.
    pub(super) fn find_unheld(&mut self, held: impl Iterator<Item = PageRange>) {
        let Self { unmaps, unheld_unmaps, pending, refused, batches, next_batch, looked, ended_batches, .. } = self;
        let first = if looked.batches == *ended_batches { looked.unmaps.min(unmaps.len()) } else { 0 };
        if first == unmaps.len() {
            return;
        }
        // No two are of the same memory.
        let mut places: Vec<_> = unmaps[first..].iter().map(|unmap| (unmap.memory.pages(), false)).collect();
        places.sort_unstable();
        for range in held.chain(pending.iter().chain(&*refused).map(|registered| registered.range)) {
            let first = places.partition_point(|(pages, _)| pages.end() <= range.start());
            let overlapping = places[first..].iter_mut().take_while(|(pages, _)| pages.start() < range.end());
            overlapping.for_each(|(_, is_used)| *is_used = true);
        }
        let unheld = |unmap: &mut PendingUnmap| {
            let pages = unmap.memory.pages();
            if places.binary_search_by_key(&pages, |&(pages, _)| pages).is_ok_and(|at| places[at].1) {
                unmap.free_from = None;
                return false;
            }
            // Batches in progress may have some of it. Batches that come later have none, and are not waited for.
            let free_from = *unmap.free_from.get_or_insert(*next_batch);
            batches.iter().all(|&(batch, _)| batch >= free_from)
        };
        unheld_unmaps.extend(unmaps.extract_if(first.., unheld));
        *looked = Looked { unmaps: unmaps.len(), batches: *ended_batches };
    }

    /// Has the background look after what left, soon. To wake it each time would be more than the work, so it is woken only
    /// out of a long rest.
    pub(crate) fn stir(&mut self, background: &Notifier) {
        self.stirred = true;
        if std::mem::take(&mut self.resting) {
            background.notify_one();
        }
    }

    /// Notes that the background has nothing to do. Returns whether nothing has left for a while, so that it may sleep until
    /// it is told. Under a checker always: time does not pass.
    pub(crate) fn rest(&mut self) -> bool {
        let stirred = std::mem::take(&mut self.stirred);
        self.resting = !stirred || cfg!(any(loom, shuttle));
        self.resting
    }
}
