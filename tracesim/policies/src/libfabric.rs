//! libfabric's registration cache (`ofi_mr_cache`): as UCX's, with a limit on the number of entries
//! beside the one on bytes ([`PolicyParams::cache_entries`]; the capacity).

use mrrc_core::policy::{Policy, PolicyParams, Scheme, parts::Lru};

/// Region LRU that merges, bounded in entries.
pub fn policy(params: &PolicyParams) -> Lru {
    Lru::new(Scheme { max_regions: Some(params.cache_entries), ..crate::ucx::policy().scheme() })
}
