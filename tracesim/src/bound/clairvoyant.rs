//! The policy that knows the future: what leaves is what is not needed for longest, weighed by the room that it takes
//! and by what it costs to register again.
//!
//! Among regions of one size that is Belady's rule. Between sizes, a region is worth keeping by
//! `(a + a')·p + b` over the room times the time that it would take, `p · (next use − now)`. The least worth leaves, and
//! a region that is never used again before all others.
//!
//! When a region is used next, and by how much, is known in two ways ([`Foresight`]). Where requests overlap, the second is
//! the better one in most cases.

use crate::last_use::LastUse;
use mrrc_core::cost::Linear;
use mrrc_core::policy::{Need, Policy};
use mrrc_core::{ListId, PageRange, RegionId, Regions};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::BinaryHeap;
use std::rc::Rc;
use traces::{Kind, Process};

/// No next use.
const NEVER: u32 = u32::MAX;

/// The knowledge of the next use of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foresight {
    /// It is used next when any page of the request that last used it is, and as a whole.
    Requests,
    /// It is used next when any of its own pages is, and worth what registering the pages that are used then costs.
    Pages,
}

/// When each request of a process has its pages used again, and which one is being served.
#[derive(Debug)]
pub struct Future {
    /// By request, counted as `now` is.
    next: Vec<u32>,
    /// By request, where its runs end in `runs`.
    ends: Vec<u32>,
    /// Pages that are used next together: how many, and when.
    runs: Vec<(u32, u32)>,
    now: Cell<u32>,
    /// When each page is used next, of those that were used so far.
    uses: RefCell<LastUse<u32>>,
}

impl Future {
    /// Reads a process from its end.
    pub fn of(process: &Process) -> Rc<Self> {
        let mut uses: LastUse<u32> = LastUse::default();
        let asks = process.steps.iter().filter(|step| matches!(step.kind(), Kind::Request | Kind::Acquire)).count();
        let mut next = vec![NEVER; asks];
        let mut ends = vec![0; asks];
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut at = asks;
        for step in process.steps.iter().rev() {
            match step.kind() {
                Kind::Request | Kind::Acquire => {
                    at -= 1;
                    let mut soonest = NEVER;
                    let this = u32::try_from(at).unwrap_or(NEVER - 1);
                    let first = runs.len();
                    uses.put(step.range(), this, |pages, use_at| {
                        let use_at = use_at.unwrap_or(NEVER);
                        soonest = soonest.min(use_at);
                        runs.push((u32::try_from(pages).unwrap_or(u32::MAX), use_at));
                    });
                    // All is turned round at the end.
                    runs[first..].reverse();
                    next[at] = soonest;
                    ends[at] = runs.len() as u32;
                }
                Kind::Invalidate => uses.take(step.range(), |_, _| {}),
                Kind::Release => {}
            }
        }
        runs.reverse();
        // From where they ended, backwards, to where they end, forwards.
        let all = runs.len() as u32;
        let ends = (0..asks).map(|at| all - ends.get(at + 1).copied().unwrap_or(0)).collect();
        Rc::new(Self { next, ends, runs, now: Cell::new(0), uses: RefCell::default() })
    }

    /// The request that was served is over.
    pub fn advance(&self) {
        self.now.set(self.now.get().saturating_add(1));
    }

    /// Back to the first request, for another replay.
    pub fn rewind(&self) {
        self.now.set(0);
        self.uses.replace(LastUse::default());
    }

    /// The request that is served now is for this range.
    pub fn begin(&self, range: PageRange) {
        let now = self.now.get() as usize;
        let first = now.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0) as usize;
        let end = self.ends.get(now).copied().unwrap_or(0) as usize;
        let mut uses = self.uses.borrow_mut();
        let mut start = range.start();
        for &(pages, next) in self.runs.get(first..end).unwrap_or_default() {
            let Ok(run) = PageRange::new(start, u64::from(pages)) else { break };
            uses.put(run, next, |_, _| {});
            start = run.end();
        }
    }

    /// The pages were unmapped.
    pub fn invalidate(&self, range: PageRange) {
        self.uses.borrow_mut().take(range, |_, _| {});
    }

    /// When pages of this range are used next, and how many of them then.
    fn next_of(&self, range: PageRange) -> (u32, u64) {
        let (mut soonest, mut used) = (NEVER, 0);
        self.uses.borrow().visit(range, |pages, next| {
            if next < soonest {
                (soonest, used) = (next, 0);
            }
            used += if next == soonest { pages } else { 0 };
        });
        (soonest, used)
    }

    /// Requests until pages of this one are used again, if ever.
    pub fn wait(&self) -> Option<u64> {
        let next = self.next_use();
        (next != NEVER).then(|| u64::from(next.saturating_sub(self.now.get())))
    }

    fn next_use(&self) -> u32 {
        self.next.get(self.now.get() as usize).copied().unwrap_or(NEVER)
    }
}

/// Farthest next use, by room over worth. Uses [`Region::order`](mrrc_core::Region::order) for the next use.
#[derive(Debug)]
pub struct Clairvoyant {
    future: Rc<Future>,
    foresight: Foresight,
    costs: Linear,
    batch_pages: u64,
    /// All regions, in no useful order. Made on first use.
    list: Option<ListId>,
    len: usize,
    /// Regions of about one size, of which about as many pages are used next, the farthest next use on top. Entries whose region was used since, or left, are skipped.
    sizes: Vec<BinaryHeap<(u32, RegionId)>>,
    /// The tops of these heaps, which all victims are chosen among.
    tops: Vec<Top>,
    by_pages: FxHashMap<(u64, u64), usize>,
    entries: usize,
}

/// The top of a heap.
#[derive(Clone, Copy, Debug)]
struct Top {
    /// Its next use; infinite for [`NEVER`], and negative if the heap is empty.
    next: f64,
    /// Room over worth, of a region of this size.
    room_for_worth: f64,
}

impl Top {
    const NONE: f64 = -1.0;

    fn set(&mut self, heap: &BinaryHeap<(u32, RegionId)>) {
        self.next = match heap.peek() {
            Some(&(NEVER, _)) => f64::INFINITY,
            Some(&(next, _)) => f64::from(next),
            None => Self::NONE,
        };
    }
}

impl Clairvoyant {
    /// Evicts at least `batch_pages` at a time. The driver of the core calls [`Future::begin`] before each request and
    /// [`Future::advance`] after it.
    pub fn new(future: Rc<Future>, foresight: Foresight, costs: &Linear, batch_pages: u64) -> Self {
        let (sizes, tops, by_pages) = Default::default();
        Self { future, foresight, costs: *costs, batch_pages, list: None, len: 0, sizes, tops, by_pages, entries: 0 }
    }

    /// Returns when the region is used next, if it is used now, and how many of its pages then.
    fn foresee(&self, regions: &Regions, id: RegionId) -> (u32, u64) {
        let region = regions.get(id);
        match self.foresight {
            Foresight::Requests => (self.future.next_use(), region.pages()),
            Foresight::Pages => self.future.next_of(region.range()),
        }
    }

    /// Sizes are told apart exactly up to 32 pages, and by an eighth of a doubling above.
    fn size_of(pages: u64) -> u64 {
        let dropped = if pages <= 32 { 0 } else { pages.ilog2() - 3 };
        pages >> dropped << dropped
    }

    /// Enters a region of which so many pages are used next.
    fn push(&mut self, regions: &Regions, id: RegionId, used: u64) {
        let region = regions.get(id);
        let (pages, used) = (Self::size_of(region.pages()), Self::size_of(used.max(1)));
        let size = *self.by_pages.entry((pages, used)).or_insert_with(|| {
            let room_for_worth = pages as f64 / self.costs.reload(used).max(f64::MIN_POSITIVE);
            self.sizes.push(BinaryHeap::new());
            self.tops.push(Top { next: Top::NONE, room_for_worth });
            self.sizes.len() - 1
        });
        self.sizes[size].push((region.order.get() as u32, id));
        self.tops[size].set(&self.sizes[size]);
        self.entries += 1;
        if self.entries > 2 * self.len + 1024 {
            self.rebuild(regions);
        }
    }

    #[cold]
    fn rebuild(&mut self, regions: &Regions) {
        let list = self.list;
        self.entries = 0;
        for (heap, top) in self.sizes.iter_mut().zip(&mut self.tops) {
            heap.retain(|&entry| is_current(regions, list, entry));
            top.set(heap);
            self.entries += heap.len();
        }
    }

    fn enlist(&mut self, regions: &mut Regions, id: RegionId, used: u64) {
        let list = *self.list.get_or_insert_with(|| regions.new_list());
        regions.push_back(list, id);
        self.len += 1;
        self.push(regions, id, used);
    }

    /// Returns the size whose top is the least worth keeping.
    ///
    /// A top that is skipped hides entries with an earlier next use. So no current one is worth less than the least of all tops: if
    /// that is current, it is the one.
    fn worst(&mut self, regions: &Regions) -> Option<usize> {
        let now = f64::from(self.future.now.get());
        loop {
            let mut worst: Option<(f64, usize)> = None;
            for (at, top) in self.tops.iter().enumerate().filter(|(_, top)| top.next >= 0.0) {
                let score = (top.next - now).max(0.0) * top.room_for_worth;
                if worst.is_none_or(|(most, _)| score > most) {
                    worst = Some((score, at));
                }
            }
            let (_, at) = worst?;
            if !self.skip(regions, at) {
                return Some(at);
            }
        }
    }

    /// Takes entries that are not current from the top. Returns whether there were any.
    fn skip(&mut self, regions: &Regions, size: usize) -> bool {
        let before = self.entries;
        while self.sizes[size].peek().is_some_and(|&entry| !is_current(regions, self.list, entry)) {
            self.pop(size);
        }
        self.entries < before
    }

    fn pop(&mut self, size: usize) -> Option<RegionId> {
        let (_, id) = self.sizes[size].pop()?;
        self.entries -= 1;
        self.tops[size].set(&self.sizes[size]);
        Some(id)
    }
}

/// Returns whether the region is there, and was not used since this was entered.
fn is_current(regions: &Regions, list: Option<ListId>, (next, id): (u32, RegionId)) -> bool {
    regions.list(id) == list && regions.get(id).order.get() == u64::from(next)
}

impl Policy for Clairvoyant {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let (next, used) = self.foresee(regions, id);
        regions.get(id).order.set(next.into());
        self.enlist(regions, id, used);
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        let (next, used) = self.foresee(regions, id);
        regions.get(id).order.set(next.into());
        self.push(regions, id, used);
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        regions.unlink(id);
        self.len -= 1;
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            let worst = self.worst(regions)?;
            let id = self.pop(worst)?;
            self.remove(regions, id);
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        // As it was entered: when it is used next does not change meanwhile.
        let (_, used) = self.foresee(regions, id);
        self.enlist(regions, id, used);
    }

    fn batch_size(&self, need: Need) -> Need {
        Need { pages: need.pages.max(self.batch_pages), ..need }
    }

    fn memory(&self) -> usize {
        self.sizes.iter().map(|heap| heap.capacity() * size_of::<(u32, RegionId)>()).sum()
    }
}
