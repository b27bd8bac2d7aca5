//! UCX's registration cache (`ucs_rcache`): overlapping regions are merged into their union, and the
//! least recently used leave, one at a time.

use super::lru::Lru;
use super::{Deregistration, Overlap, Scheme};

/// Region LRU that merges.
pub fn policy() -> Lru {
    Lru::new(Scheme { overlap: Overlap::Merge, deregistration: Deregistration::Single, ..Scheme::default() })
}
