//! SHARDS (Waldspurger et al., *Efficient MRC construction with SHARDS*, FAST 2015): look at a share of what is used,
//! chosen by a hash, so that every use of what is chosen is seen. A distance among the chosen, over the share, is
//! about the distance among all.
//!
//! With a fixed rate the share is given. With a fixed size, it falls as the trace goes on, so that no more than so many
//! things are ever followed: what has the largest hash is given up. A use counts for one over the share at its
//! time, and what the counts lack of the true number of uses is added to the shortest distance (the paper's adjustment).

use super::Sampling;
use mrrc_core::PageRange;
use rustc_hash::FxHashSet;
use std::collections::BinaryHeap;

/// The choice of followed objects.
pub(super) struct Sampler {
    /// Objects with a smaller hash are followed; all, if there is no threshold.
    threshold: Option<u64>,
    /// The most that is followed.
    most: usize,
    by_hash: BinaryHeap<(u64, PageRange)>,
    followed: FxHashSet<PageRange>,
}

impl Sampler {
    pub(super) fn new(sampling: Sampling) -> Self {
        let (threshold, most) = match sampling {
            Sampling::Exact => (None, usize::MAX),
            Sampling::Rate(rate) => (Some((rate.clamp(0.0, 1.0) * u64::MAX as f64) as u64), usize::MAX),
            Sampling::Size(most) => (Some(u64::MAX), most.max(1)),
        };
        Self { threshold, most, by_hash: BinaryHeap::new(), followed: FxHashSet::default() }
    }

    pub(super) fn takes_all(&self) -> bool {
        self.threshold.is_none()
    }

    /// Returns the share that is followed now.
    #[inline]
    pub(super) fn share(&self) -> f64 {
        self.threshold.map_or(1.0, |threshold| threshold as f64 / u64::MAX as f64)
    }

    /// Returns whether uses of this are looked at.
    #[inline]
    pub(super) fn follows(&self, what: PageRange) -> bool {
        self.threshold.is_none_or(|threshold| hash(what) < threshold)
    }

    /// This was used and is followed. Returns the object that has to be given up for it, if any.
    pub(super) fn add(&mut self, what: PageRange, mut give_up: impl FnMut(PageRange)) {
        if self.most == usize::MAX || !self.followed.insert(what) {
            return;
        }
        self.by_hash.push((hash(what), what));
        while self.followed.len() > self.most {
            let Some((largest, gone)) = self.by_hash.pop() else { return };
            self.followed.remove(&gone);
            self.threshold = Some(largest);
            give_up(gone);
            // Others of the same hash are past the threshold too.
            while let Some(&(same, gone)) = self.by_hash.peek()
                && same == largest
            {
                self.by_hash.pop();
                self.followed.remove(&gone);
                give_up(gone);
            }
        }
    }
}

/// Spreads starts and lengths evenly: the finalizer of splitmix64.
fn hash(what: PageRange) -> u64 {
    let mut bits = what.start() ^ what.pages().rotate_left(40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
