//! FMRD (Wu et al. 2003a): a pin-down cache that deregisters in batches.
//!
//! Each time the cache is full it takes from the least recent end until the batch holds a fraction of
//! the capacity ([`Config::evict`]). The fast registration of its name is a cost model,
//! [`Linear::FMR`](crate::cost::Linear::FMR), chosen apart.

use super::Scheme;
use super::lru::Lru;
use crate::config::Config;

/// Region LRU, in batches.
pub fn policy(config: &Config) -> Lru {
    Lru::new(Scheme::default()).in_batches_of(config.pages_of(config.evict).max(1))
}
