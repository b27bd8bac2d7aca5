//! The parameters of a policy.

use crate::cost::Linear;

/// The sizes and choices that policies are built with: [`Config::params`](crate::Config::params) has them.
///
/// Fields may be added: name those that matter, and take the rest from [`PolicyParams::new`].
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyParams {
    /// `C`: the most pages that may be registered at once.
    pub capacity: u64,
    /// The share of the capacity that the resorting section is filled up to: 0.5.
    pub resort: f64,
    /// The share of the capacity that a batch of victims holds at least: 0.1.
    pub evict: f64,
    /// The costs that cost-aware policies weigh: the paper's.
    pub cost: Linear,
    /// Pages in a bucket of `firehose`: 16 (64 KiB).
    pub bucket_pages: u64,
    /// Entries in the table of `lazy`: 4,096.
    pub table_entries: u64,
    /// Entries that `libfabric` caches at most: 1,024.
    pub cache_entries: u64,
    /// References back that `lru-k` looks: 2.
    pub lru_k: u32,
}

impl PolicyParams {
    /// Returns the defaults for a cache of `capacity` pages.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            resort: 0.5,
            evict: 0.1,
            cost: Linear::PAPER,
            bucket_pages: 16,
            table_entries: 4096,
            cache_entries: 1024,
            lru_k: 2,
        }
    }

    /// Returns a fraction of the capacity in pages: an IEEE product, rounded down.
    pub fn pages_of(&self, fraction: f64) -> u64 {
        (fraction * self.capacity as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_products_rounded_down() {
        assert_eq!(PolicyParams::new(100).pages_of(0.29), 28); // 0.29 · 100 is 28.999999999999996
        assert_eq!(PolicyParams::new(97).pages_of(0.33), 32);
        assert_eq!(PolicyParams::new(7).pages_of(0.0), 0);
        assert_eq!(PolicyParams::new(50).pages_of(1.0), 50);
    }
}
