//! Firehose (Bell and Bonachea 2003): buckets of fixed size, each registered whole.
//!
//! A request is rounded out to buckets of [`Config::bucket_pages`]; each missing bucket is one
//! registration, and can hold pages that nobody asked for. Victims are first in, first out among the
//! buckets that nobody uses: a bucket joins that queue when its last user leaves it, and a request takes
//! it out again. (So without leases that last, the order is that of the last use.)

use super::lru::Lru;
use super::{Deregistration, Granule, Scheme};
use crate::config::Config;

/// Bucket FIFO by release, one at a time.
pub fn policy(config: &Config) -> Lru {
    Lru::new(Scheme {
        granule: Granule::Bucket(config.bucket_pages),
        deregistration: Deregistration::Single,
        ..Scheme::default()
    })
    .by_release()
}
