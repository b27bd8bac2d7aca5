//! NCCL's registration cache: whole pages, and nothing is ever evicted.
//!
//! A range without room is registered for its request alone. (The original keeps regions that
//! overlap beside each other; here, as everywhere, cached regions are disjoint, and gaps are
//! registered.)

use mrrc_core::policy::{Keeps, Scheme, parts::Lru};

/// Everything stays.
pub fn policy() -> Lru {
    Lru::new(Scheme { keeps: Keeps::Forever, ..Scheme::default() })
}
