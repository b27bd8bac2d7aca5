//! The resorting section of the paper's stack: regions in the order of (eviction factor, entry number).
//!
//! Factors are `r + 1/pages` with an `r` that never falls, so regions of equal size leave in the order in
//! which they entered. The section is therefore a list per size, and a heap of the heads of those lists:
//! what costs a walk through the heap is a *size* that changes its head, not every region. A head that
//! is no longer one (a request took it to the top) stays in the heap until it comes up, and is dropped.
//!
//! Regions that left and come back (they were held) stand in an ordered set of their own: many can come back at a time,
//! and the place of each in its list would be searched for.

use crate::regions::{ListId, RegionId, Regions};
use rustc_hash::FxHashMap;
use std::cmp::{Ordering, Reverse};
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap};

/// Uses [`Region::weight`](crate::Region::weight) for the eviction factor, which is 0 outside the
/// section and never inside, and [`Region::order`](crate::Region::order) for the entry number.
#[derive(Debug, Default)]
pub(super) struct Resorting {
    pages: u64,
    entries: u64,
    /// The members of each size, in the order of their entry.
    sizes: Sizes,
    heads: BinaryHeap<Reverse<Head>>,
    /// Members that left and came back, by (factor, entry number). They stand in no list.
    returned: BTreeMap<u128, RegionId>,
}

/// A list for each size: in an array up to [`SMALL`] pages, where most sizes are, in a hash map beyond.
#[derive(Debug, Default)]
struct Sizes {
    small: Vec<Option<ListId>>,
    large: FxHashMap<u64, ListId>,
    len: usize,
}

/// Sizes below this stand in the array: 4 MiB and less.
const SMALL: u64 = 1025;

impl Sizes {
    #[inline]
    fn get(&self, pages: u64) -> Option<ListId> {
        if pages < SMALL { self.small.get(pages as usize).copied().flatten() } else { self.large.get(&pages).copied() }
    }

    fn insert(&mut self, pages: u64, list: ListId) {
        self.len += 1;
        if pages >= SMALL {
            self.large.insert(pages, list);
            return;
        }
        if self.small.len() <= pages as usize {
            self.small.reserve_exact(pages as usize + 1 - self.small.len());
            self.small.resize(pages as usize + 1, None);
        }
        self.small[pages as usize] = Some(list);
    }

    fn retain(&mut self, mut keep: impl FnMut(ListId) -> bool) {
        self.large.retain(|_, &mut list| keep(list));
        let kept = self.small.iter_mut().filter_map(|size| {
            *size = size.filter(|&list| keep(list));
            *size
        });
        self.len = kept.count() + self.large.len();
    }

    fn memory(&self) -> usize {
        self.small.capacity() * size_of::<Option<ListId>>() + self.large.capacity() * (size_of::<(u64, ListId)>() + 1)
    }
}

/// The first region of a size, as the heap knows it.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    /// The factor's bits: positive floats sort as their bits do.
    factor: u64,
    entry: u64,
    list: ListId,
}

impl Head {
    fn of(regions: &Regions, list: ListId) -> Option<Reverse<Self>> {
        let region = regions.get(regions.front(list)?);
        Some(Reverse(Self { factor: region.weight.get().to_bits(), entry: region.order.get(), list }))
    }

    /// Both in one word: it compares without a branch to guess wrong.
    fn key(&self) -> u128 {
        key(self.factor, self.entry)
    }
}

fn key(factor: u64, entry: u64) -> u128 {
    u128::from(factor) << 64 | u128::from(entry)
}

fn key_of(regions: &Regions, id: RegionId) -> u128 {
    let region = regions.get(id);
    key(region.weight.get().to_bits(), region.order.get())
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Resorting {
    /// Returns the pages of all members.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the smallest factor of a member.
    pub(super) fn smallest(&mut self, regions: &Regions) -> Option<f64> {
        let listed = self.smallest_list(regions).and_then(|list| regions.front(list));
        let returned = self.returned.first_key_value().map(|(_, &id)| id);
        let id = listed.into_iter().chain(returned).min_by_key(|&id| key_of(regions, id))?;
        Some(regions.get(id).weight.get())
    }

    /// Takes the first of those that came back out, if none in a list is before it.
    fn take_returned(&mut self, regions: &Regions) -> Option<RegionId> {
        if self.returned.is_empty() {
            return None;
        }
        let listed = self.smallest_list(regions).and_then(|list| regions.front(list));
        let first = self.returned.first_entry()?;
        if listed.is_some_and(|id| key_of(regions, id) < *first.key()) {
            return None;
        }
        let id = first.remove();
        self.pages -= regions.pages(id);
        Some(id)
    }

    /// Returns the list whose head has the smallest factor.
    fn smallest_list(&mut self, regions: &Regions) -> Option<ListId> {
        while let Some(Reverse(head)) = self.heads.peek() {
            if regions.front(head.list).is_some_and(|id| regions.get(id).order.get() == head.entry) {
                return Some(head.list);
            }
            self.heads.pop();
        }
        None
    }

    /// A region enters with this factor.
    pub(super) fn enter(&mut self, regions: &mut Regions, id: RegionId, factor: f64) {
        self.entries += 1;
        let region = regions.get(id);
        region.weight.set(factor);
        region.order.set(self.entries);
        let pages = region.pages();
        self.pages += pages;
        let list = self.list(regions, pages);
        regions.push_back(list, id);
        if regions.front(list) == Some(id) {
            self.announce(regions, list);
        }
    }

    /// A size has a new head.
    fn announce(&mut self, regions: &Regions, list: ListId) {
        let Some(head) = Head::of(regions, list) else { return };
        // Heads that no longer are one can stay below the top for long: they must not pile up.
        if self.heads.len() == self.heads.capacity() {
            self.drop_stale_heads(regions);
        }
        self.heads.push(head);
    }

    #[cold]
    fn drop_stale_heads(&mut self, regions: &Regions) {
        let is_head =
            |head: &Head| regions.front(head.list).is_some_and(|id| regions.get(id).order.get() == head.entry);
        self.heads.retain(|Reverse(head)| is_head(head));
        self.heads.reserve_exact(self.heads.len() / 8 + 16);
    }

    /// Takes out the member with the smallest factor that is not in use; sets aside those that are.
    pub(super) fn take_smallest(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            if let Some(id) = self.take_returned(regions) {
                if !regions.get(id).in_use() {
                    return Some(id);
                }
                regions.get(id).set_aside(true);
                continue;
            }
            let list = self.smallest_list(regions)?;
            let id = regions.front(list)?;
            regions.unlink(id);
            self.pages -= regions.pages(id);
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

    /// Takes out a member that a request asked for, and forgets its factor.
    pub(super) fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        let key = key_of(regions, id);
        regions.get(id).weight.set(0.0);
        let Some(list) = regions.list(id) else {
            if self.returned.remove(&key).is_some() {
                self.pages -= regions.pages(id);
            }
            return;
        };
        let was_head = regions.front(list) == Some(id);
        regions.unlink(id);
        self.pages -= regions.pages(id);
        if was_head {
            self.announce(regions, list);
        }
    }

    /// A region that left as a victim or was set aside takes its place again.
    pub(super) fn put_back(&mut self, regions: &Regions, id: RegionId) {
        self.pages += regions.pages(id);
        self.returned.insert(key_of(regions, id), id);
    }

    /// Returns the list of a size.
    fn list(&mut self, regions: &mut Regions, pages: u64) -> ListId {
        if let Some(list) = self.sizes.get(pages) {
            return list;
        }
        // Sizes without members keep their list until those outnumber the regions.
        if self.sizes.len > 2 * regions.len() + 64 {
            self.drop_empty_sizes(regions);
        }
        let list = regions.new_list();
        self.sizes.insert(pages, list);
        list
    }

    #[cold]
    fn drop_empty_sizes(&mut self, regions: &mut Regions) {
        self.sizes.retain(|list| {
            let keep = regions.front(list).is_some();
            if !keep {
                regions.drop_list(list);
            }
            keep
        });
    }

    pub(super) fn memory(&self) -> usize {
        self.sizes.memory()
            + self.heads.capacity() * size_of::<Reverse<Head>>()
            + self.returned.len() * size_of::<(u128, RegionId)>() * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;

    #[test]
    fn large_leave_first_and_equals_by_entry() {
        let mut regions = Regions::new();
        let mut section = Resorting::default();
        let ids: Vec<_> =
            [1, 4, 2, 4, 1].iter().map(|&n| regions.insert(PageRange::between(100 * n, 101 * n))).collect();
        for &id in &ids {
            let factor = 0.5 + 1.0 / regions.pages(id) as f64;
            section.enter(&mut regions, id, factor);
        }
        assert_eq!((section.pages(), section.smallest(&regions)), (12, Some(0.75)));
        section.remove(&mut regions, ids[1]);
        assert_eq!(section.take_smallest(&mut regions), Some(ids[3]));
        section.put_back(&regions, ids[3]);
        regions.get(ids[2]).set_holds(1);
        let order: Vec<_> = std::iter::from_fn(|| section.take_smallest(&mut regions)).collect();
        assert_eq!(order, [ids[3], ids[0], ids[4]]);
        assert!(regions.get(ids[2]).aside());
        assert_eq!(section.pages(), 0);
    }

    #[test]
    fn reinserted_heads_do_not_pile_up() {
        let mut regions = Regions::new();
        let mut section = Resorting::default();
        let ids: Vec<_> = (0..100).map(|i| regions.insert(PageRange::between(i, i + 1))).collect();
        for round in 0..1_000 {
            for &id in &ids {
                section.enter(&mut regions, id, 1.0 + f64::from(round));
            }
            for &id in &ids {
                section.remove(&mut regions, id);
            }
        }
        assert!(section.memory() < 20_000, "{}", section.memory());
    }

    #[test]
    fn sizes_that_come_and_go_do_not_pile_up() {
        let mut regions = Regions::new();
        let mut section = Resorting::default();
        for pages in 1..10_000 {
            let id = regions.insert(PageRange::between(0, pages));
            section.enter(&mut regions, id, 1.0 / pages as f64);
            assert_eq!(section.take_smallest(&mut regions), Some(id));
            regions.remove(id);
        }
        assert!(section.sizes.len < 100 && section.memory() < 20_000, "{} {}", section.sizes.len, section.memory());
    }
}
