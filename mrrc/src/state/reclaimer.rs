//! The regions that have left the cache and are still registered.
//!
//! ```text
//! push ──► pending ──► take_batch ──► in progress ──► finish_batch ──► gone
//!             ▲                                            │
//!             └───────────── retry ◄── refused ◄───────────┘
//! ```
//!
//! Memory of arenas that are gone waits here too, until nothing of it is registered.

use super::dead_pins::{DeadPins, NAP};
use super::pace::Pace;
use crate::footprint::Footprint;
use crate::hit::notifier::Notifier;
use crate::memory::Memory;
use crate::range::PageRange;
use crate::registrar::Registered;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The longest sleep of the background after something left that does not wake it.
pub(crate) const IDLE: Duration = Duration::from_millis(500);

/// Regions that are to be deregistered. Owns the registrations from when they leave the core until the registrar has taken
/// them back, the size of batches, the ranges to be unwatched, and memory that is to be unmapped after them.
pub(crate) struct Reclaimer<T> {
    /// First out, first deregistered.
    pending: VecDeque<Leaver<T>>,
    /// The regions that the registrar refused to deregister.
    refused: Vec<Leaver<T>>,
    dead: DeadPins,
    /// Regions that are pending or refused, and whose memory did not change.
    live: usize,
    /// The registrar's last refusal.
    refusal: Cow<'static, str>,
    in_progress: Footprint,
    batches: Vec<InProgress>,
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
    /// The kinds of leavers that wake the background.
    woken_by: WokenBy,
    /// The leavers since the background was last there.
    left: Option<Left>,
}

/// A region that has left the core.
struct Leaver<T> {
    registered: Registered<T>,
    /// Since when its pins are dead, if they are.
    dead_since: Option<Instant>,
}

/// A batch in progress.
struct InProgress {
    number: u64,
    thread: u32,
    /// The oldest of its dead pins.
    dead_since: Option<Instant>,
}

/// A kind of leavers. A later one is rarer, and is looked after sooner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Left {
    Regions,
    DeadPins,
    ManyDeadPins,
}

/// The leavers that wake the background before its time. They are fewer, the shorter it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WokenBy {
    /// It is awake, or was woken.
    Nothing,
    /// This, and what comes after it.
    From(Left),
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
    /// The regions with dead pins, and since when they are dead.
    dead: Vec<(PageRange, Instant)>,
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

fn of_leavers<'a, T: 'a>(leavers: impl IntoIterator<Item = &'a Leaver<T>>) -> Footprint {
    Footprint::of(leavers.into_iter().map(|leaver| leaver.registered.range))
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
            dead: DeadPins::default(),
            live: 0,
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
            woken_by: WokenBy::Nothing,
            left: None,
        }
    }

    /// Adds a region that left the core. Its pins may be dead since some moment.
    pub(crate) fn push(&mut self, registered: Registered<T>, watched: bool, dead_since: Option<Instant>) {
        if watched {
            self.to_unwatch.push(registered.range);
        }
        if dead_since.is_some() {
            self.dead.add(registered.range);
        } else {
            self.live += 1;
        }
        self.pending.push_back(Leaver { registered, dead_since });
    }

    /// Notes that memory changed: the pins of regions there that left before are dead from now on. Returns whether there are any.
    /// Allocates nothing. Looks at nothing where all that is pending is dead already, as in a storm of unmappings.
    pub(crate) fn note_change(&mut self, range: PageRange) -> bool {
        let before = self.live;
        if before > 0 {
            let now = Instant::now();
            for Leaver { registered, dead_since } in self.pending.iter_mut().chain(&mut self.refused) {
                if dead_since.is_none() && registered.range.overlaps(range) {
                    *dead_since = Some(now);
                    self.dead.add(registered.range);
                    self.live -= 1;
                }
            }
        }
        self.live < before
    }

    /// Takes the next batch, which is in progress from now on: what left first, no more than the pace allows.
    pub(crate) fn take_batch(&mut self, thread: u32) -> Batch<T> {
        let mut regions = std::mem::take(&mut self.spare);
        // One alone needs no choice.
        let count = match self.pending.len() {
            few @ ..=1 => few,
            _ => self.pace.choose(self.pending.iter().map(|leaver| leaver.registered.range.pages())),
        };
        let mut dead = Vec::new();
        let live = &mut self.live;
        let mut take = |Leaver { registered, dead_since }: Leaver<T>| {
            *live -= usize::from(dead_since.is_none());
            dead.extend(dead_since.map(|since| (registered.range, since)));
            regions.push(registered);
        };
        if count == 1 {
            self.pending.pop_front().into_iter().for_each(&mut take);
        } else {
            self.pending.drain(..count).for_each(&mut take);
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
        let dead_since = dead.iter().map(|&(_, since)| since).min();
        self.batches.push(InProgress { number, thread, dead_since });
        let (unmaps, timed) = (std::mem::take(&mut self.unheld_unmaps), self.pace.wants_time(amount));
        let refusal = Some(Cow::Borrowed("it panicked"));
        Batch { number, regions, amount, dead, unwatch, unmaps, unmapped: Vec::new(), timed, took: None, refusal }
    }

    /// Ends a batch: what is left of it was refused. Returns the changes that ended with it.
    pub(super) fn finish_batch(&mut self, batch: Batch<T>, background: &Notifier) -> Vec<u64> {
        let Batch { number, mut regions, amount, mut dead, unmaps, unmapped, took, refusal, .. } = batch;
        if amount != Footprint::default() {
            self.pace.learn(amount, took);
        }
        self.in_progress = self.in_progress.minus(amount);
        self.ended_batches += 1;
        if let Some(place) = self.batches.iter().position(|batch| batch.number == number) {
            self.batches.swap_remove(place);
        }
        if !regions.is_empty() {
            self.refusal = refusal.unwrap_or(Cow::Borrowed("it said that all went well, and left them"));
            for registered in regions.drain(..) {
                // Of two regions of the same range the pins of both are dead.
                let place = dead.iter().position(|&(range, _)| range == registered.range);
                let dead_since = place.map(|place| dead.swap_remove(place).1);
                self.live += usize::from(dead_since.is_none());
                self.refused.push(Leaver { registered, dead_since });
            }
        }
        if !dead.is_empty() {
            let now = Instant::now();
            dead.iter().for_each(|&(range, since)| self.dead.remove(range, since, now));
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
        of_leavers(&self.pending)
    }

    /// Returns the pages that are dead pins.
    pub(crate) fn dead_pages(&self) -> u64 {
        self.dead.pages()
    }

    /// Returns whether a miss need not deregister anything first, with a background or without one.
    #[inline]
    pub(crate) fn is_kept_up(&self, background: bool) -> bool {
        if background { !self.has_many_dead() } else { !self.has_work() }
    }

    /// Returns whether misses are to deregister dead pins, too: there are many.
    #[inline]
    pub(crate) fn has_many_dead(&self) -> bool {
        self.dead.are_many() && self.has_pending()
    }

    /// Returns the most pages that were dead pins at once, and the longest time for which one was dead.
    pub(crate) fn worst_dead(&self) -> (u64, Duration) {
        let leavers = self.pending.iter().chain(&self.refused).map(|leaver| leaver.dead_since);
        let oldest = leavers.chain(self.batches.iter().map(|batch| batch.dead_since)).flatten().min();
        (self.dead.peak(), self.dead.longest(oldest, Instant::now()))
    }

    pub(crate) fn in_progress_amount(&self) -> Footprint {
        self.in_progress
    }

    /// Returns what was refused, and what the registrar said when it last refused.
    pub(crate) fn refused(&self) -> (Footprint, &str) {
        (of_leavers(&self.refused), &self.refusal)
    }

    /// Returns the number of the next batch: those in progress have smaller ones.
    pub(crate) fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Returns whether other threads are deregistering batches with numbers below this one.
    pub(crate) fn others_in_progress(&self, before: u64, thread: u32) -> bool {
        self.batches.iter().any(|batch| batch.number < before && batch.thread != thread)
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
        for range in held.chain(pending.iter().chain(&*refused).map(|leaver| leaver.registered.range)) {
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
            batches.iter().all(|batch| batch.number >= free_from)
        };
        unheld_unmaps.extend(unmaps.extract_if(first.., unheld));
        *looked = Looked { unmaps: unmaps.len(), batches: *ended_batches };
    }

    /// Has the background look after what left, soon. To wake it each time would be more than the work, so it is woken only
    /// out of a long rest: for dead pins earlier than for others.
    pub(crate) fn stir(&mut self, background: &Notifier) {
        let left = match self.dead.pages() {
            0 => Left::Regions,
            _ if self.dead.are_many() => Left::ManyDeadPins,
            _ => Left::DeadPins,
        };
        self.left = self.left.max(Some(left));
        if matches!(self.woken_by, WokenBy::From(least) if least <= left) {
            self.woken_by = WokenBy::Nothing;
            background.notify_one();
        }
    }

    /// Notes that the background has nothing to do. Returns how long it may sleep if nothing wakes it. It is till it is told if
    /// nothing has left for a while; under a checker always, because time does not pass.
    pub(crate) fn rest(&mut self) -> Option<Duration> {
        let (nap, least) = match self.left.take().filter(|_| !cfg!(any(loom, shuttle))) {
            None => (None, Left::Regions),
            Some(Left::Regions) => (Some(IDLE), Left::DeadPins),
            Some(Left::DeadPins | Left::ManyDeadPins) => (Some(NAP), Left::ManyDeadPins),
        };
        self.woken_by = WokenBy::From(least);
        nap
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::dead_pins::MOST;
    use super::*;
    use crate::access::Access;

    /// Adds regions of so many pages each, dead since this moment if they are.
    fn leave(reclaimer: &mut Reclaimer<()>, pages: &[u64], dead_since: Option<Instant>, background: &Notifier) {
        for &pages in pages {
            let range =
                PageRange::new((reclaimer.next_batch << 32) + reclaimer.pending.len() as u64 * MOST, pages).unwrap();
            reclaimer.push(Registered { range, access: Access::LOCAL, registration: () }, false, dead_since);
        }
        reclaimer.stir(background);
    }

    #[test]
    fn sleep_of_the_background_follows_what_left() {
        let background = Notifier::claim();
        let mut reclaimer = Reclaimer::<()>::new();
        let now = Some(Instant::now());
        let mut wakes = |dead, pages| {
            leave(&mut reclaimer, &[pages], dead, background);
            let was_woken = reclaimer.woken_by == WokenBy::Nothing;
            let batch = reclaimer.take_batch(0);
            // Those that are not in the batch stay dead.
            let left = Batch { regions: Vec::new(), ..batch };
            reclaimer.finish_batch(left, background);
            (was_woken, reclaimer.rest())
        };
        assert_eq!(wakes(None, 1), (true, Some(IDLE)), "it works at the beginning");
        assert_eq!(wakes(None, 1), (false, Some(IDLE)), "it looks soon");
        assert_eq!(wakes(now, 1), (true, Some(NAP)), "dead pins are not to wait so long");
        assert_eq!(wakes(now, 1), (false, Some(NAP)), "it looks in time");
        assert_eq!(wakes(now, MOST + 1), (true, Some(NAP)), "there are too many");
        assert_eq!(wakes(None, 1), (false, Some(IDLE)));
        reclaimer.rest();
        assert_eq!(reclaimer.rest(), None, "nothing left for a while");
        leave(&mut reclaimer, &[1], None, background);
        assert_eq!(reclaimer.woken_by, WokenBy::Nothing, "it slept");
        background.give_up();
    }

    #[test]
    fn dead_pins_are_counted_until_they_are_taken() {
        let background = Notifier::claim();
        let mut reclaimer = Reclaimer::<()>::new();
        let long_ago = Instant::now() - Duration::from_secs(1000);
        leave(&mut reclaimer, &[3], None, background);
        leave(&mut reclaimer, &[5, 7], Some(long_ago), background);
        assert_eq!(reclaimer.dead_pages(), 12);
        let age = |reclaimer: &Reclaimer<()>| reclaimer.worst_dead().1 >= Duration::from_secs(1000);
        assert!(age(&reclaimer) && !reclaimer.has_many_dead());
        // One region at first, which is not dead.
        let first = reclaimer.take_batch(0);
        reclaimer.finish_batch(Batch { regions: Vec::new(), took: Some(Duration::ZERO), ..first }, background);
        assert_eq!(reclaimer.dead_pages(), 12);
        let second = reclaimer.take_batch(0);
        assert!(second.dead.len() == second.regions.len() && age(&reclaimer), "those in progress are dead");
        // The registrar refuses all of it.
        reclaimer.finish_batch(second, background);
        assert!(reclaimer.dead_pages() == 12 && age(&reclaimer));
        reclaimer.retry();
        while reclaimer.has_pending() {
            let batch = reclaimer.take_batch(0);
            reclaimer.finish_batch(Batch { regions: Vec::new(), ..batch }, background);
        }
        assert_eq!((reclaimer.dead_pages(), reclaimer.worst_dead().0), (0, 12));
        assert!(age(&reclaimer), "the longest time stays");
        background.give_up();
    }

    #[test]
    fn changes_of_evicted_memory_leave_dead_pins() {
        let background = Notifier::claim();
        let mut reclaimer = Reclaimer::<()>::new();
        let leaver = |start, pages| Registered {
            range: PageRange::new(start, pages).unwrap(),
            access: Access::LOCAL,
            registration: (),
        };
        let range = |start, pages| PageRange::new(start, pages).unwrap();
        for start in [100, 110, 200] {
            reclaimer.push(leaver(start, 10), true, None);
        }
        assert_eq!((reclaimer.dead_pages(), reclaimer.live), (0, 3));
        assert!(!reclaimer.note_change(range(120, 80)) && reclaimer.note_change(range(109, 2)));
        assert_eq!((reclaimer.dead_pages(), reclaimer.live), (20, 1));
        // Each counts once.
        assert!(!reclaimer.note_change(range(100, 20)));
        assert_eq!((reclaimer.dead_pages(), reclaimer.live), (20, 1));
        // What is refused is pinned on, and can die later.
        while reclaimer.has_pending() {
            let batch = reclaimer.take_batch(0);
            reclaimer.finish_batch(batch, background);
        }
        assert_eq!((reclaimer.dead_pages(), reclaimer.live), (20, 1));
        assert!(reclaimer.note_change(range(0, 1000)));
        assert_eq!((reclaimer.dead_pages(), reclaimer.live), (30, 0));
        background.give_up();
    }
}
