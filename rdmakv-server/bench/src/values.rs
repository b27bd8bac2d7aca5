//! The content of a value: a piece of one random pattern, from a place that follows from the key.
//!
//! So no value has to be made, sending one needs no copy, and whether one is right is a comparison.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::sizes::{Sizes, mix};

/// Places in the pattern where a value may start.
const STARTS: usize = 1 << 14;

/// The values of all keys.
#[derive(Debug)]
pub struct Values {
    pattern: Vec<u8>,
    sizes: Sizes,
}

impl Values {
    /// Returns the values of these lengths.
    pub fn new(sizes: &Sizes) -> Self {
        let mut pattern = vec![0; STARTS + sizes.most()];
        // Always the same, so that another run of the program can verify what this one wrote.
        Pcg64::seed_from_u64(0x7261_6e64).fill_bytes(&mut pattern);
        Self { pattern, sizes: sizes.clone() }
    }

    /// Returns the place of this key's value in [`Values::pattern`].
    #[inline]
    pub fn place(&self, key: u64) -> std::ops::Range<usize> {
        let start = mix(key ^ 0x7661_6c75) as usize & (STARTS - 1);
        start..start + self.sizes.of(key)
    }

    /// All there is.
    #[inline]
    pub fn pattern(&self) -> &[u8] {
        &self.pattern
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_other_keys_are_other_values() {
        let values = Values::new(&"32".parse().unwrap());
        let mut seen: Vec<_> = (0..100).map(|key| &values.pattern()[values.place(key)]).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 100);
    }
}
