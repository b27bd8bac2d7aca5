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
    sizes: Vec<Size>,
    by_pages: FxHashMap<(u64, u64), usize>,
    entries: usize,
}

#[derive(Debug)]
struct Size {
    /// Room over worth, of a region of this size.
    room_for_worth: f64,
    heap: BinaryHeap<(u32, RegionId)>,
}

impl Clairvoyant {
    /// Evicts at least `batch_pages` at a time. The driver of the core calls [`Future::begin`] before each request and
    /// [`Future::advance`] after it.
    pub fn new(future: Rc<Future>, foresight: Foresight, costs: &Linear, batch_pages: u64) -> Self {
        let (sizes, by_pages) = Default::default();
        Self { future, foresight, costs: *costs, batch_pages, list: None, len: 0, sizes, by_pages, entries: 0 }
    }

    fn next_use(&self, regions: &Regions, id: RegionId) -> u32 {
        match self.foresight {
            Foresight::Requests => self.future.next_use(),
            Foresight::Pages => self.future.next_of(regions.get(id).range()).0,
        }
    }

    /// Sizes are told apart exactly up to 32 pages, and by an eighth of a doubling above.
    fn size_of(pages: u64) -> u64 {
        let dropped = if pages <= 32 { 0 } else { pages.ilog2() - 3 };
        pages >> dropped << dropped
    }

    fn push(&mut self, regions: &Regions, id: RegionId) {
        let region = regions.get(id);
        let used = match self.foresight {
            Foresight::Requests => region.pages(),
            Foresight::Pages => self.future.next_of(region.range()).1.max(1),
        };
        let (pages, used) = (Self::size_of(region.pages()), Self::size_of(used));
        let size = *self.by_pages.entry((pages, used)).or_insert_with(|| {
            let room_for_worth = pages as f64 / self.costs.reload(used).max(f64::MIN_POSITIVE);
            self.sizes.push(Size { room_for_worth, heap: BinaryHeap::new() });
            self.sizes.len() - 1
        });
        self.sizes[size].heap.push((region.order.get() as u32, id));
        self.entries += 1;
        if self.entries > 2 * self.len + 1024 {
            self.rebuild(regions);
        }
    }

    #[cold]
    fn rebuild(&mut self, regions: &Regions) {
        let list = self.list;
        self.entries = 0;
        for size in &mut self.sizes {
            size.heap.retain(|&(next, id)| regions.list(id) == list && regions.get(id).order.get() == u64::from(next));
            self.entries += size.heap.len();
        }
    }

    fn enlist(&mut self, regions: &mut Regions, id: RegionId) {
        let list = *self.list.get_or_insert_with(|| regions.new_list());
        regions.push_back(list, id);
        self.len += 1;
        self.push(regions, id);
    }

    /// Returns the size whose top is the least worth keeping.
    fn worst(&mut self, regions: &Regions) -> Option<usize> {
        let now = self.future.now.get();
        let mut worst: Option<(f64, usize)> = None;
        for (at, size) in self.sizes.iter_mut().enumerate() {
            while let Some(&(next, id)) = size.heap.peek() {
                if regions.list(id) == self.list && regions.get(id).order.get() == u64::from(next) {
                    let wait = if next == NEVER { f64::INFINITY } else { f64::from(next.saturating_sub(now)) };
                    let score = wait * size.room_for_worth;
                    if worst.is_none_or(|(most, _)| score > most) {
                        worst = Some((score, at));
                    }
                    break;
                }
                size.heap.pop();
                self.entries -= 1;
            }
        }
        worst.map(|(_, at)| at)
    }
}

impl Policy for Clairvoyant {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        regions.get(id).order.set(self.next_use(regions, id).into());
        self.enlist(regions, id);
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        regions.get(id).order.set(self.next_use(regions, id).into());
        self.push(regions, id);
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        regions.unlink(id);
        self.len -= 1;
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            let worst = self.worst(regions)?;
            let (_, id) = self.sizes[worst].heap.pop()?;
            self.entries -= 1;
            self.remove(regions, id);
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.enlist(regions, id);
    }

    fn batch_size(&self, need: Need) -> Need {
        Need { pages: need.pages.max(self.batch_pages), ..need }
    }

    fn memory(&self) -> usize {
        self.sizes.iter().map(|size| size.heap.capacity() * size_of::<(u32, RegionId)>()).sum()
    }
}
