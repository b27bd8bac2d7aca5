//! The writer of the table that the program finds items by: bounded, lossy, and never stale.
//!
//! The owner of an item enters its place once the item is alive, and removes it before the place is used again. A full
//! bucket displaces an entry; the server answers for that key until the key is entered again. Two shards may write to one bucket
//! at once, so each slot is changed by compare-exchange from the value that was seen.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::layout::{Bucket, Hasher, SLOTS, slot};

/// The buckets, and the hash that they are found by.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    buckets: &'a [Bucket],
    hasher: Hasher,
}

/// The result of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It took an empty slot.
    Added,
    /// It took the slot of another.
    Displaced,
}

/// Most hits that a slot counts.
const HITS: u8 = 3;

impl<'a> Table<'a> {
    /// Returns the writer of these buckets, a power of two of them.
    ///
    /// # Panics
    ///
    /// If they are not a power of two.
    pub fn new(buckets: &'a [Bucket], hasher: Hasher) -> Self {
        assert!(buckets.len().is_power_of_two(), "{} buckets", buckets.len());
        Self { buckets, hasher }
    }

    fn bucket(&self, hash: u64) -> &'a Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    /// Enters an item that is alive. No place may be in the table twice.
    pub fn enter(&self, key: &[u8], place: u64) -> Entered {
        let hash = self.hasher.hash(key);
        let (bucket, entry) = (self.bucket(hash), slot(hash, place));
        loop {
            for (at, slot) in bucket.slots.iter().enumerate() {
                if slot.load(Relaxed) == 0 && slot.compare_exchange(0, entry, AcqRel, Relaxed).is_ok() {
                    bucket.hits[at].store(0, Relaxed);
                    return Entered::Added;
                }
            }
            // Slots take turns by the hash. One without hits goes; where all have some, each loses one, so that a second
            // round finds one.
            let first = (hash >> 24) as usize % SLOTS;
            for at in (first..first + SLOTS * usize::from(HITS + 1)).map(|at| at % SLOTS) {
                let hits = bucket.hits[at].load(Relaxed);
                if hits > 0 {
                    bucket.hits[at].store(hits - 1, Relaxed);
                    continue;
                }
                let seen = bucket.slots[at].load(Acquire);
                if bucket.slots[at].compare_exchange(seen, entry, AcqRel, Relaxed).is_ok() {
                    bucket.hits[at].store(0, Relaxed);
                    return if seen == 0 { Entered::Added } else { Entered::Displaced };
                }
            }
        }
    }

    /// Removes an entry, if it is there; returns the hits that the program saw. After this no reader begins with that place.
    pub fn remove(&self, key: &[u8], place: u64) -> Option<u8> {
        let hash = self.hasher.hash(key);
        let (bucket, entry) = (self.bucket(hash), slot(hash, place));
        let mut hits = None;
        for (at, slot) in bucket.slots.iter().enumerate() {
            if slot.load(Relaxed) == entry && slot.compare_exchange(entry, 0, AcqRel, Relaxed).is_ok() {
                hits = Some(bucket.hits[at].swap(0, Relaxed).min(HITS));
            }
        }
        hits
    }

    /// Changes an entry to another place of the same key, in one step; returns whether the old one was there.
    pub fn replace(&self, key: &[u8], old: u64, new: u64) -> bool {
        let hash = self.hasher.hash(key);
        let (old, new) = (slot(hash, old), slot(hash, new));
        self.bucket(hash).slots.iter().any(|slot| slot.compare_exchange(old, new, AcqRel, Relaxed).is_ok())
    }

    /// Returns the hits that the program saw at this place since the last time, and counts from none again.
    pub fn take_hits(&self, key: &[u8], place: u64) -> u8 {
        let hash = self.hasher.hash(key);
        let (bucket, entry) = (self.bucket(hash), slot(hash, place));
        let at = bucket.slots.iter().position(|slot| slot.load(Relaxed) == entry);
        at.map_or(0, |at| bucket.hits[at].swap(0, Relaxed).min(HITS))
    }

    /// Returns whether the place is in the table.
    pub fn has(&self, key: &[u8], place: u64) -> bool {
        let hash = self.hasher.hash(key);
        let entry = slot(hash, place);
        self.bucket(hash).slots.iter().any(|slot| slot.load(Relaxed) == entry)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn buckets(count: usize) -> Vec<Bucket> {
        (0..count).map(|_| Bucket::default()).collect()
    }

    fn entries(buckets: &[Bucket]) -> Vec<u64> {
        let slots = buckets.iter().flat_map(|bucket| &bucket.slots).map(|slot| slot.load(Relaxed));
        slots.filter(|&slot| slot != 0).collect()
    }

    #[test]
    fn full_bucket_displaces_an_entry_without_hits() {
        let buckets = buckets(1);
        let table = Table::new(&buckets, Hasher::new([1, 2]));
        let key = |number: u64| format!("key{number}").into_bytes();
        for number in 0..7 {
            assert_eq!(table.enter(&key(number), number * 64), Entered::Added);
        }
        for at in (0..SLOTS).filter(|&at| at != 4) {
            buckets[0].hits[at].store(2, Relaxed);
        }
        assert_eq!(table.enter(&key(7), 7 * 64), Entered::Displaced);
        assert!(!table.has(&key(4), 4 * 64) && table.has(&key(7), 7 * 64));
        assert_eq!(entries(&buckets).len(), SLOTS);
    }

    #[test]
    fn bucket_full_of_hits_ages() {
        let buckets = buckets(1);
        let table = Table::new(&buckets, Hasher::new([1, 2]));
        for number in 0..7_u64 {
            table.enter(&number.to_le_bytes(), number * 64);
        }
        buckets[0].hits.iter().for_each(|hits| hits.store(HITS, Relaxed));
        assert_eq!(table.enter(b"another", 7 * 64), Entered::Displaced);
        assert!(table.has(b"another", 7 * 64));
    }

    proptest! {
        /// Whatever is entered and removed: an entry is of an item that is there, and no place has two.
        #[test]
        fn entries_are_of_items_that_are_there(steps in prop::collection::vec((0..12_u8, 0..3_u8), 1..200)) {
            let buckets = buckets(1);
            let table = Table::new(&buckets, Hasher::new([7, 9]));
            let (mut items, mut next) = (HashMap::new(), 0);
            for (key, step) in steps {
                let name = [key, key + 1];
                match (step, items.get(&key).copied()) {
                    (0, None) => {
                        table.enter(&name, next);
                        items.insert(key, next);
                        next += 64;
                    }
                    (1, Some(place)) => {
                        table.remove(&name, place);
                        items.remove(&key);
                    }
                    (2, Some(place)) => {
                        let was = table.has(&name, place);
                        prop_assert_eq!(table.replace(&name, place, next), was);
                        items.insert(key, next);
                        next += 64;
                    }
                    _ => {}
                }
                let mut listed = entries(&buckets);
                let (all, places) = (listed.len(), items.values().map(|place| place / 8).collect::<Vec<u64>>());
                prop_assert!(listed.iter().all(|slot| places.contains(&(slot & 0xffff_ffff))));
                listed.sort_unstable();
                listed.dedup();
                prop_assert_eq!(listed.len(), all);
            }
        }
    }
}
