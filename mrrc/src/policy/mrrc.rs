//! MRRC with MRE (Ou, He and Han 2009): the paper's own policy.
//!
//! ```text
//!            top ┌────────────────────┐ ◄── every region that is asked for
//!                │  frequent section  │     in recency order
//!                ├────────────────────┤ ◄── slides down when the cache is full,
//!                │ resorting section  │     and gets its eviction factor r + 1/pages
//!                │ ·················· │     ordered by (factor, entry)
//!                │  eviction segment  │ ──► deregistered in one batch
//!         bottom └────────────────────┘
//! ```
//!
//! A large region gets a small factor: it leaves before small ones that are as old, because it frees
//! more pages and costs less per page to register again. `r` rises to the smallest factor each time
//! the cache is full, so a region that stays behind grows cold in comparison.
//!
//! Since `r` never falls, regions of equal size leave the resorting section in the order in which
//! they entered it. So the section is a list per size and a heap of the lists' heads: entering costs a
//! push, leaving costs a heap operation over the *sizes*, and a hit that takes a region back to the
//! top unlinks it.

use super::recency::Recency;
use super::{Need, Policy};
use crate::config::Config;
use crate::regions::{ListId, RegionId, Regions};
use rustc_hash::FxHashMap;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::collections::hash_map;

/// The paper's three-section stack.
pub struct Mrrc {
    frequent: Recency,
    resorting: Resorting,
    /// The system recency value.
    recency: f64,
    /// Pages that the resorting section is filled up to.
    resort_pages: u64,
    /// Pages that a batch holds at least.
    evict_pages: u64,
}

impl Mrrc {
    /// With the capacity and the two fractions of the configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            frequent: Recency::default(),
            resorting: Resorting::default(),
            recency: 0.0,
            resort_pages: config.pages_of(config.resort).max(1),
            evict_pages: config.pages_of(config.evict).max(1),
        }
    }
}

impl Policy for Mrrc {
    fn insert(&mut self, _: &mut Regions, id: RegionId) {
        self.frequent.insert(id);
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        if !self.frequent.raise(regions, id) {
            self.resorting.remove(regions, id);
            self.frequent.insert(id);
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        if !self.frequent.remove(regions, id) {
            self.resorting.remove(regions, id);
        }
    }

    fn prepare(&mut self, regions: &mut Regions) {
        if let Some(smallest) = self.resorting.smallest(regions) {
            self.recency = smallest;
        }
        while self.resorting.pages < self.resort_pages {
            let Some(id) = self.frequent.take_oldest(regions) else { break };
            let region = regions.get(id);
            self.resorting.enter(regions, id, self.recency + 1.0 / region.pages() as f64);
        }
    }

    fn goal(&self, need: Need) -> Need {
        Need { pages: need.pages.max(self.evict_pages), regions: need.regions }
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.resorting.take_smallest(regions)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        // A factor is never 0 in the resorting section, and always 0 above it.
        if regions.get(id).weight.get() == 0.0 {
            self.frequent.put_back(regions, id);
        } else {
            self.resorting.put_back(regions, id);
        }
    }

    fn memory(&self) -> usize {
        self.frequent.memory() + self.resorting.memory()
    }
}

/// The resorting section. Uses [`Region::weight`](crate::Region::weight) for the eviction factor and
/// [`Region::order`](crate::Region::order) for the entry number.
#[derive(Default)]
struct Resorting {
    pages: u64,
    entries: u64,
    /// The regions of each size, oldest entry first.
    sizes: FxHashMap<u64, ListId>,
    /// The head of each size's list when it became the head; those that no longer are, are skipped.
    heads: BinaryHeap<Reverse<Head>>,
}

/// The first region of a size, as the heap knows it.
#[derive(PartialEq, Eq)]
struct Head {
    /// The factor's bits (positive floats sort as their bits do), then the entry number, in one word:
    /// it compares without a branch to guess wrong.
    key: u128,
    list: ListId,
}

impl Head {
    fn of(regions: &Regions, list: ListId) -> Option<Reverse<Self>> {
        let region = regions.get(regions.front(list)?);
        let key = u128::from(region.weight.get().to_bits()) << 64 | u128::from(region.order.get());
        Some(Reverse(Self { key, list }))
    }

    fn entry(&self) -> u64 {
        self.key as u64
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl Resorting {
    fn enter(&mut self, regions: &mut Regions, id: RegionId, factor: f64) {
        self.entries += 1;
        let region = regions.get(id);
        region.weight.set(factor);
        region.order.set(self.entries);
        let pages = region.pages();
        self.pages += pages;
        let list = *self.sizes.entry(pages).or_insert_with(|| regions.new_list());
        regions.push_back(list, id);
        if regions.front(list) == Some(id) {
            self.push_head(regions, list);
        }
    }

    fn push_head(&mut self, regions: &Regions, list: ListId) {
        self.heads.extend(Head::of(regions, list));
    }

    /// The list whose head has the smallest factor.
    fn smallest_list(&mut self, regions: &Regions) -> Option<ListId> {
        while let Some(Reverse(head)) = self.heads.peek() {
            if regions.front(head.list).is_some_and(|id| regions.get(id).order.get() == head.entry()) {
                return Some(head.list);
            }
            self.heads.pop();
        }
        None
    }

    fn smallest(&mut self, regions: &Regions) -> Option<f64> {
        let id = self.smallest_list(regions).and_then(|list| regions.front(list))?;
        Some(regions.get(id).weight.get())
    }

    /// Takes out the region with the smallest factor that is not in use; sets aside those that are.
    fn take_smallest(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            let list = self.smallest_list(regions)?;
            let id = regions.front(list)?;
            self.unlink(regions, id, list);
            // The next of its size takes the place of the head: one walk through the heap, not two.
            if let Some(mut top) = self.heads.peek_mut() {
                match Head::of(regions, list) {
                    Some(next) => *top = next,
                    None => _ = PeekMut::pop(top),
                }
            }
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
    }

    /// Takes out a region that a request asked for, and forgets its factor.
    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        regions.get(id).weight.set(0.0);
        if let Some(list) = regions.list(id) {
            let was_head = regions.front(list) == Some(id);
            self.unlink(regions, id, list);
            if was_head {
                self.push_head(regions, list);
            }
        }
    }

    fn unlink(&mut self, regions: &mut Regions, id: RegionId, list: ListId) {
        regions.unlink(id);
        let pages = regions.get(id).pages();
        self.pages -= pages;
        // Sizes that come and go keep their list until such lists outnumber the ones in use.
        if regions.front(list).is_none() && self.sizes.len() > 2 * regions.len() + 64 {
            self.drop_empty_sizes(regions);
        }
    }

    #[cold]
    fn drop_empty_sizes(&mut self, regions: &mut Regions) {
        self.sizes.retain(|_, list| {
            let keep = regions.front(*list).is_some();
            if !keep {
                regions.drop_list(*list);
            }
            keep
        });
    }

    /// Puts a region back among those of its size, by its entry number.
    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let region = regions.get(id);
        let (pages, entry) = (region.pages(), region.order.get());
        self.pages += pages;
        let list = match self.sizes.entry(pages) {
            hash_map::Entry::Occupied(list) => *list.get(),
            hash_map::Entry::Vacant(place) => *place.insert(regions.new_list()),
        };
        let mut older = None;
        let mut next = regions.front(list);
        while let Some(other) = next.filter(|&other| regions.get(other).order.get() < entry) {
            older = Some(other);
            next = regions.after(other);
        }
        match older {
            Some(older) => regions.insert_after(older, id),
            None => {
                regions.push_front(list, id);
                self.push_head(regions, list);
            }
        }
    }

    fn memory(&self) -> usize {
        self.sizes.capacity() * (size_of::<(u64, ListId)>() + 1) + self.heads.capacity() * size_of::<Reverse<Head>>()
    }
}
