//! libfabric's registration cache (`ofi_mr_cache`): as UCX's, with a limit on the number of entries
//! beside the one on bytes ([`Config::cache_entries`]; the capacity).

use super::lru::Lru;
use super::{Scheme, ucx};
use crate::config::Config;
use crate::policy::Policy;

/// Region LRU that merges, bounded in entries.
pub fn policy(config: &Config) -> Lru {
    Lru::new(Scheme { max_regions: Some(config.cache_entries), ..ucx::policy().scheme() })
}
