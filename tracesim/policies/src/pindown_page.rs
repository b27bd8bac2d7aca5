//! The pin-down cache by pages, the form that the paper compares with.
//!
//! Each page is an entry of its own. A run of missing pages is one registration, but each page leaves,
//! and is deregistered, alone. That is a bookkeeping of the simulator's: a real device deregisters what
//! was registered, so in production each page would have to be registered on its own too.

use mrrc_core::policy::{Deregistration, Granule, Scheme, parts::Lru};

/// Page LRU, one at a time.
pub fn policy() -> Lru {
    Lru::new(Scheme { granule: Granule::Page, deregistration: Deregistration::Single, ..Scheme::default() })
}
