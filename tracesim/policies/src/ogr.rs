//! OGR, optimistic group registration (Wu et al. 2003b): noncontiguous buffers of one request are
//! registered as one spanning region when that is cheaper.
//!
//! Which ranges form a group is decided in [`Core::request_list`](mrrc_core::Core::request_list). Requests
//! of one range are those of a pin-down cache, and so are victims.

use mrrc_core::policy::{Deregistration, Scheme, parts::Lru};

/// Region LRU, one at a time, with groups.
pub fn policy() -> Lru {
    Lru::new(Scheme { groups: true, deregistration: Deregistration::Single, ..Scheme::default() })
}
