//! Hits that the core hears of later, as in the cache of many threads.
//!
//! There a hit leaves a mark with its region, a count that stops at what the policy can tell apart. Before room is made,
//! the marked regions move up, in the order of their slots. So the order of hits between two runs of *full* is lost, and
//! this shows what that costs.

use mrrc_core::core::Holders;
use mrrc_core::{Leaving, RegionId};

/// How often each region was asked for since marks were last folded into the order.
pub(crate) struct DeferredTouches {
    /// By slot.
    counts: Vec<u32>,
    /// Slots that were marked. One whose region has left meanwhile has a count of none, and may be here twice.
    marked: Vec<RegionId>,
    most: u32,
}

impl DeferredTouches {
    /// No marks; counts stop at `most`.
    pub(crate) fn new(most: u32) -> Self {
        Self { counts: Vec::new(), marked: Vec::new(), most }
    }

    /// A region was asked for.
    #[inline]
    pub(crate) fn mark(&mut self, id: RegionId) {
        if self.counts.len() <= id.index() {
            self.counts.resize(id.index() + 1, 0);
        }
        let count = &mut self.counts[id.index()];
        if *count == 0 {
            self.marked.push(id);
        }
        *count = self.most.min(*count + 1);
    }

    /// Regions have left: their names will be those of others.
    pub(crate) fn forget<'a>(&mut self, batches: impl Iterator<Item = &'a [Leaving]>) {
        for leaving in batches.flatten() {
            if let Some(count) = self.counts.get_mut(leaving.region.index()) {
                *count = 0;
            }
        }
    }

    /// Appends the marked regions in the order of their slots, each as often as it was marked, and takes the marks away.
    pub(crate) fn take(&mut self, touched: &mut Vec<RegionId>) {
        self.marked.sort_unstable();
        self.marked.dedup();
        for id in self.marked.drain(..) {
            let count = std::mem::take(&mut self.counts[id.index()]);
            touched.extend(std::iter::repeat_n(id, count as usize));
        }
    }
}

/// No region is held without the core's knowledge, but hits are told late.
impl Holders for DeferredTouches {
    fn unpublish(&mut self, _: &[RegionId], _: &mut Vec<RegionId>) {}

    fn republish(&mut self, _: &[RegionId]) {}

    fn touched(&mut self, _: usize, touched: &mut Vec<RegionId>) {
        self.take(touched);
    }
}
