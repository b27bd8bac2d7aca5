//! UCX's registration cache (`ucs_rcache`): overlapping regions are merged into their union, and the
//! least recently used leave, one at a time.

use mrrc_core::policy::{Deregistration, Overlap, Scheme, parts::Lru};

/// Region LRU that merges.
pub fn policy() -> Lru {
    Lru::new(Scheme { overlap: Overlap::Merge, deregistration: Deregistration::Single, ..Scheme::default() })
}
