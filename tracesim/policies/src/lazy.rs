//! The lazy cache of Rangarajan and Iftode 2004: an LRU list with a table of fixed size, keyed by exact
//! (start, length).
//!
//! A request is served by a region that equals it, and by no other: regions that overlap are registered
//! beside each other and pay for their pages each. The table holds [`PolicyParams::table_entries`] entries
//! (collisions are chained, so only the number counts). When it or the capacity is full, the least
//! recently used leaves, just enough of them, one at a time.

use mrrc_core::policy::{Deregistration, Matching, PolicyParams, Scheme, parts::Lru};

/// LRU by exact range, a bounded table.
pub fn policy(params: &PolicyParams) -> Lru {
    Lru::new(Scheme {
        matching: Matching::Exact,
        deregistration: Deregistration::Single,
        max_regions: Some(params.table_entries),
        ..Scheme::default()
    })
}
