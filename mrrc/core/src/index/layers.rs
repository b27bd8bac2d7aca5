//! The address index of a cache whose regions may overlap: four indices, and the regions of one of them never do.
//!
//! A region stands in the first layer where nothing overlaps it. So at most four regions have a page, a look-up asks four
//! times at most, and readers on other threads find candidates in each layer as they do in an index alone. Mostly the
//! first layer has the answer, and the others are empty.

use super::{Index, IndexReader};
use crate::range::PageRange;
use crate::regions::{RegionId, Regions};

/// The most regions that have one page.
pub(crate) const DEPTH: usize = 4;

pub(crate) struct Layers {
    layers: [Index; DEPTH],
    /// The layer of each region, by [`RegionId::index`]. Its answer for a region that is in no layer means nothing.
    of: Vec<u8>,
}

impl Layers {
    pub(crate) fn new() -> Self {
        Self { layers: [(); DEPTH].map(|()| Index::new()), of: Vec::new() }
    }

    /// Readers of each layer, for other threads.
    pub(crate) fn share(&mut self) -> [IndexReader; DEPTH] {
        self.layers.each_mut().map(Index::share)
    }

    /// Bytes allocated.
    pub(crate) fn memory(&self) -> usize {
        self.layers.iter().map(Index::memory).sum::<usize>() + self.of.capacity()
    }

    /// Returns a region that contains the whole range, and of which this is true.
    #[inline]
    pub(crate) fn find(
        &self,
        range: PageRange,
        regions: &Regions,
        mut serves: impl FnMut(RegionId) -> bool,
    ) -> Option<RegionId> {
        self.layers.iter().find_map(|layer| layer.find(range, regions).filter(|&id| serves(id)))
    }

    /// Returns whether a region overlaps the range.
    #[inline]
    pub(crate) fn has_overlap(&self, range: PageRange, regions: &Regions) -> bool {
        self.layers.iter().any(|layer| layer.has_overlap(range, regions))
    }

    /// Shows the regions that overlap the range, in no order and some of them several times. Allocates nothing.
    pub(crate) fn for_each_overlap(&self, range: PageRange, regions: &Regions, mut found: impl FnMut(RegionId)) {
        self.layers.iter().for_each(|layer| layer.for_each_overlap(range, regions, &mut found));
    }

    /// Appends the regions that overlap the range, in the order of their addresses.
    pub(crate) fn overlaps(&self, range: PageRange, regions: &Regions, found: &mut Vec<RegionId>) {
        let first = found.len();
        for layer in &self.layers {
            layer.overlaps(range, regions, found);
        }
        found[first..].sort_unstable_by_key(|&id| (regions.get(id).range(), id));
    }

    /// Appends the regions that have to leave before a layer has room for the range, besides those of which `leaves` is
    /// true: none where a layer is free, else those of the layer where they have the fewest pages.
    pub(crate) fn crowded_out(
        &self,
        range: PageRange,
        regions: &Regions,
        leaves: impl Fn(RegionId) -> bool,
        found: &mut Vec<RegionId>,
    ) {
        let begun = found.len();
        let mut least = u64::MAX;
        for layer in &self.layers {
            let first = found.len();
            layer.overlaps(range, regions, found);
            let mut kept = first;
            for at in first..found.len() {
                found.swap(kept, at);
                kept += usize::from(!leaves(found[kept]));
            }
            found.truncate(kept);
            let pages = found[first..].iter().map(|&id| regions.pages(id)).sum();
            if pages < least {
                least = pages;
                found.drain(begun..first);
            } else {
                found.truncate(first);
            }
            if least == 0 {
                return;
            }
        }
    }

    /// Returns whether a layer has room for the range.
    pub(crate) fn has_room(&self, range: PageRange, regions: &Regions) -> bool {
        self.free_layer(range, regions).is_some()
    }

    fn free_layer(&self, range: PageRange, regions: &Regions) -> Option<usize> {
        self.layers.iter().position(|layer| !layer.has_overlap(range, regions))
    }

    /// Adds a region, for which there [is room](Layers::has_room).
    pub(crate) fn insert(&mut self, id: RegionId, regions: &Regions) {
        let Some(layer) = self.free_layer(regions.get(id).range(), regions) else {
            unreachable!("room was made for {id:?}")
        };
        if self.of.len() <= id.index() {
            self.of.resize(id.index() + 1, 0);
        }
        self.of[id.index()] = layer as u8;
        self.layers[layer].insert(id, regions);
    }

    /// Adds a region that was removed, where it was if there is still room: so all that were removed together come back,
    /// in whatever order. There [is room](Layers::has_room).
    pub(crate) fn insert_again(&mut self, id: RegionId, regions: &Regions) {
        let layer = &mut self.layers[usize::from(self.of[id.index()])];
        if layer.has_overlap(regions.get(id).range(), regions) {
            self.insert(id, regions);
        } else {
            layer.insert(id, regions);
        }
    }

    /// Removes a region that was added.
    pub(crate) fn remove(&mut self, id: RegionId, regions: &Regions) {
        self.layers[usize::from(self.of[id.index()])].remove(id, regions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::between(start, end)
    }

    #[test]
    fn regions_overlap_as_deep_as_there_are_layers() {
        let mut regions = Regions::new();
        let mut layers = Layers::new();
        let ids: Vec<_> = (0..DEPTH as u64).map(|nth| regions.insert(pages(10 * nth, 100 + 10 * nth))).collect();
        for &id in &ids {
            assert!(layers.has_room(regions.get(id).range(), &regions));
            layers.insert(id, &regions);
        }
        assert!(!layers.has_room(pages(99, 101), &regions) && !layers.has_room(pages(95, 131), &regions));
        assert!(layers.has_room(pages(100, 200), &regions), "page 100 and the next have fewer");
        for (nth, &id) in ids.iter().enumerate() {
            let only = pages(10 * nth as u64, 100 + 10 * nth as u64);
            assert_eq!(layers.find(only, &regions, |_| true), Some(id));
        }
        let mut found = Vec::new();
        layers.overlaps(pages(50, 51), &regions, &mut found);
        assert_eq!(found, ids, "by address");
        assert_eq!(layers.find(pages(50, 51), &regions, |id| id == ids[2]), Some(ids[2]));
        layers.remove(ids[1], &regions);
        assert!(layers.has_room(pages(0, 200), &regions));
        assert_eq!(layers.find(pages(10, 110), &regions, |_| true), None);
    }

    #[test]
    fn the_fewest_pages_are_crowded_out() {
        let mut regions = Regions::new();
        let mut layers = Layers::new();
        let mut add = |start, end| {
            let id = regions.insert(pages(start, end));
            layers.insert(id, &regions);
            id
        };
        let large = add(0, 100);
        let (one, other) = (add(40, 50), add(60, 70));
        let small = [add(42, 57), add(44, 59)];
        let crowded_out = |leaves: &[RegionId]| {
            let mut found = vec![large];
            layers.crowded_out(pages(45, 62), &regions, |id| leaves.contains(&id), &mut found);
            found.split_off(1)
        };
        assert_eq!(crowded_out(&[]), [small[0]], "15 pages: the first of two such layers");
        assert_eq!(crowded_out(&[one]), [other], "the rest of its layer");
        assert_eq!(crowded_out(&[one, other]), []);
        assert_eq!(crowded_out(&[small[1]]), []);
    }
}
