//! FMRD (Wu et al. 2003a): a pin-down cache that deregisters in batches.
//!
//! Each time the cache is full it takes from the least recent end until the batch holds a fraction of
//! the capacity ([`PolicyParams::evict`]). The fast registration of its name is a cost model,
//! [`Linear::FMR`](crate::cost::Linear::FMR), chosen apart.

use super::Scheme;
use super::parts::Lru;
use crate::policy::PolicyParams;

/// Region LRU, in batches.
pub fn policy(params: &PolicyParams) -> Lru {
    Lru::new(Scheme::default()).in_batches_of(params.pages_of(params.evict).max(1))
}
