//! Firehose (Bell and Bonachea 2003): buckets of fixed size, each registered whole.
//!
//! A request is rounded out to buckets of [`PolicyParams::bucket_pages`]; each missing bucket is one
//! registration, and can hold pages without a request. Victims are first in, first out among the
//! unused buckets: a bucket joins that queue when its last user leaves it, and a request takes it out
//! again. (So without leases that last, the order is that of the last use.)

use mrrc_core::policy::{Deregistration, Granule, PolicyParams, Scheme, parts::Lru};

/// Bucket FIFO by release, one at a time.
pub fn policy(params: &PolicyParams) -> Lru {
    Lru::new(Scheme {
        granule: Granule::Bucket(params.bucket_pages),
        deregistration: Deregistration::Single,
        ..Scheme::default()
    })
    .by_release()
}
