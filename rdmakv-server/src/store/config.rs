//! How a store is made.

use std::time::Duration;

/// How a store is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes for items.
    pub memory: usize,
    /// Bytes beyond that for the first pages of classes that have none when all is used, as memcached has it: a page
    /// for each.
    pub extra: usize,
    /// Bytes that it may grow to later ([`Store::set_limit`](super::Store::set_limit)); address space, not memory. Where
    /// it is on huge pages it does not grow: these are taken from the system at once.
    pub memory_max: usize,
    /// Bytes of an item at most, with its header and key.
    pub item_max: usize,
    /// How much larger each class is than the one before.
    pub factor: f64,
    /// Room for key and value in the smallest class.
    pub least: usize,
    /// Whether old items make room for new ones.
    pub evict: bool,
    /// Whether to use huge pages where the system has them.
    pub huge: bool,
    /// The hash table starts with two to this power of buckets.
    pub hashpower: u32,
    /// The hash's secret.
    pub seed: u64,
    /// How long a client may rely on a lease: D. At most [`LONGEST`](super::LONGEST).
    pub lease: Duration,
    /// Which incarnation of the server this is; every header carries it.
    pub incarnation: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            extra: 40 << 20,
            memory_max: 0,
            item_max: 1 << 20,
            factor: 1.25,
            least: 48,
            evict: true,
            huge: true,
            hashpower: 0,
            seed: 0,
            lease: Duration::from_secs(1),
            incarnation: 1,
        }
    }
}
