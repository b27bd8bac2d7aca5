//! How often ranges were asked for lately, exactly: what a count-min sketch estimates in less memory.
//!
//! Everything is halved now and then, which lets what was popular once be forgotten. Counts that fall to nothing are
//! dropped, so there are at most as many entries as references between two halvings, and half as many after one.

use mrrc_core::PageRange;
use rustc_hash::FxHashMap;

/// The most that is counted: four bits.
const MOST: u8 = 15;

/// References by range, up to 15.
#[derive(Debug, Default)]
pub(crate) struct References {
    counts: FxHashMap<PageRange, u8>,
}

impl References {
    /// Counts one reference.
    pub(crate) fn add(&mut self, range: PageRange) {
        let count = self.counts.entry(range).or_default();
        *count = (*count + 1).min(MOST);
    }

    /// Returns the references counted.
    pub(crate) fn count(&self, range: PageRange) -> u8 {
        self.counts.get(&range).copied().unwrap_or(0)
    }

    /// Halves every count.
    pub(crate) fn halve(&mut self) {
        self.counts.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
    }

    /// Bytes allocated.
    pub(crate) fn memory(&self) -> usize {
        self.counts.capacity() * (size_of::<(PageRange, u8)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stop_at_most_and_halve_to_nothing() {
        let range = PageRange::new(7, 2).unwrap();
        let mut references = References::default();
        (0..100).for_each(|_| references.add(range));
        assert_eq!(references.count(range), MOST);
        references.halve();
        assert_eq!(references.count(range), 7);
        (0..3).for_each(|_| references.halve());
        assert_eq!((references.count(range), references.counts.len()), (0, 0));
    }
}
