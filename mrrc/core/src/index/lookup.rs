//! The look-up itself: the only region that can hold a page, for the owner and for readers beside it.

use super::blocks::entry_in;
use super::fork::{FORK_BITS, Fork};
use super::published::{Arrays, Editions};
use super::{BLOCK_BITS, LAST_PAGE, TOP};
use crate::regions::RegionId;
use std::fmt;
use std::sync::Arc;

/// Finds candidates while the owner changes the index.
pub struct IndexReader(Arc<Editions>);

impl fmt::Debug for IndexReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexReader").finish_non_exhaustive()
    }
}

impl IndexReader {
    /// Returns a reader of these arrays.
    pub(super) fn new(editions: Arc<Editions>) -> Self {
        Self(editions)
    }

    /// Returns a region that may hold the page: the only one that can, unless the index is just
    /// changing or the region is a giant.
    #[inline(always)]
    pub fn candidate(&self, page: u64) -> Option<RegionId> {
        RegionId::from_raw(self.guess(page))
    }

    /// The same as a name, which may be 0 or no region's.
    #[inline(always)]
    pub fn guess(&self, page: u64) -> u32 {
        guess(&*self.0, page)
    }
}

/// Returns the only region short of a giant that can cover the page, as a name, which may be 0 or no region's.
///
/// Every hit runs through here, so the levels are written out: shifts by constants, and one way to each end. An entry may
/// be changing: a number beyond the lines is no line.
#[inline(always)]
pub(super) fn guess(arrays: &impl Arrays, page: u64) -> u32 {
    let entry = entry_in(arrays.places(), page >> BLOCK_BITS);
    match arrays.leaf(entry.leaf_number()) {
        Some(leaf) => leaf.guess(page & LAST_PAGE),
        None => match arrays.fork(entry.fork_number()) {
            Some(fork) => guess_below(arrays, fork, page),
            // A number of a leaf or fork beyond the lines is no region's.
            None => entry.raw(),
        },
    }
}

/// The same in a block that has a fork: called rather than written into every hit, where most blocks have none.
#[cold]
#[inline(never)]
fn guess_below(arrays: &impl Arrays, fork: &Fork, page: u64) -> u32 {
    let mut entry = fork.entry(page >> TOP.bits);
    if let Some(fork) = arrays.fork(entry.fork_number()) {
        entry = fork.entry(page >> (TOP.bits - FORK_BITS));
    }
    arrays.leaf(entry.leaf_number()).map_or(entry.raw(), |leaf| leaf.guess(page & LAST_PAGE))
}
