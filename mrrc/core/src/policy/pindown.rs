//! The pin-down cache of Tezuka et al. 1998: region LRU that evicts just enough, and deregisters one
//! region at a time.

use super::parts::Lru;
use super::{Deregistration, Scheme};

/// Region LRU, one at a time.
pub fn policy() -> Lru {
    Lru::new(Scheme { deregistration: Deregistration::Single, ..Scheme::default() })
}
