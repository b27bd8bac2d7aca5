//! How often ranges were asked for lately, about: a count-min sketch (Cormode and Muthukrishnan 2005).
//!
//! Four rows of counters, one of each for a range; the smallest is the estimate, and only counters that
//! equal it are raised (conservative update), so that ranges which share one disturb each other little.
//! Everything is halved now and then, which lets what was popular once be forgotten.

use crate::range::PageRange;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

const ROWS: usize = 4;

/// Columns per region that the cache can hold: it sees several times as many between two halvings.
const COLUMNS: u64 = 4;

/// Enough that small caches hardly ever confuse two ranges: 16 KiB.
const NARROWEST: u64 = 1 << 12;

/// Enough for a million regions at a time: 16 MiB, of which the system gives what is used.
const WIDEST: u64 = 1 << 22;

/// An estimate of frequencies up to 255.
#[derive(Debug)]
pub(crate) struct Sketch {
    counters: Vec<u8>,
    mask: u64,
}

impl Sketch {
    /// For a cache of that many regions.
    pub(crate) fn new(regions: u64) -> Self {
        let width = regions.saturating_mul(COLUMNS).clamp(NARROWEST, WIDEST).next_power_of_two();
        Self { counters: vec![0; ROWS * width as usize], mask: width - 1 }
    }

    fn places(&self, range: PageRange) -> [usize; ROWS] {
        let mut hasher = FxHasher::default();
        range.hash(&mut hasher);
        // The finisher of MurmurHash3: one pass for the start, another for the stride.
        let mix = |h: u64| {
            let h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
            let h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            h ^ h >> 33
        };
        let start = mix(hasher.finish());
        let stride = mix(start) | 1;
        std::array::from_fn(|row| {
            let column = start.wrapping_add(stride.wrapping_mul(row as u64)) >> 7 & self.mask;
            row * (self.mask as usize + 1) + column as usize
        })
    }

    /// Counts one reference.
    pub(crate) fn add(&mut self, range: PageRange) {
        let places = self.places(range);
        let least = places.iter().map(|&place| self.counters[place]).min().unwrap_or(0);
        for place in places {
            if self.counters[place] == least {
                self.counters[place] = least.saturating_add(1);
            }
        }
    }

    /// The references counted, if not more.
    pub(crate) fn estimate(&self, range: PageRange) -> u8 {
        self.places(range).iter().map(|&place| self.counters[place]).min().unwrap_or(0)
    }

    /// Halves every count.
    pub(crate) fn halve(&mut self) {
        for counter in &mut self.counters {
            *counter >>= 1;
        }
    }

    /// Bytes allocated.
    pub(crate) fn memory(&self) -> usize {
        self.counters.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_sketch_is_nearly_exact_and_never_too_low() {
        let mut sketch = Sketch::new(4096);
        let range = |i: u64| PageRange::new(i * 10, 1 + i % 7).unwrap();
        for i in 0..4096 {
            (0..=i % 5).for_each(|_| sketch.add(range(i)));
        }
        let errors = (0..4096).filter(|&i| {
            let estimate = u64::from(sketch.estimate(range(i)));
            assert!(estimate > i % 5);
            estimate != 1 + i % 5
        });
        assert!(errors.count() < 4096 / 20);
        sketch.halve();
        assert_eq!(sketch.estimate(range(4)), 2);
        (0..1000).for_each(|_| sketch.add(range(4)));
        assert_eq!(sketch.estimate(range(4)), u8::MAX);
    }
}
