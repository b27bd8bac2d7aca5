//! `stats detail`: what is done with keys, by what stands before a delimiter in them.
//!
//! It is off unless `stats detail on` or `-D` turns it on; off, it costs one load. The number of prefixes is bounded: what is done
//! under further ones is counted together.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prefixes at most.
const MOST: usize = 10_000;

/// The counts of one prefix.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

#[derive(Debug, Default)]
struct Table {
    by_prefix: BTreeMap<Vec<u8>, Done>,
    others: Option<Done>,
}

/// The counts. The lock is held for a count or a copy; it may be taken under a store's, and no other is taken under it.
#[derive(Debug)]
pub struct Prefixes {
    delimiter: u8,
    on: AtomicBool,
    table: Mutex<Table>,
}

impl Prefixes {
    /// Without any.
    pub fn new(delimiter: u8, on: bool) -> Self {
        Self { delimiter, on: AtomicBool::new(on), table: Mutex::default() }
    }

    /// Turns counting on or off. Counts stay.
    pub(super) fn turn(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    /// Returns whether it counts.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Returns the delimiter of a prefix.
    pub(super) fn delimiter(&self) -> char {
        char::from(self.delimiter)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.lock() = Table::default();
    }

    #[cold]
    fn count(&self, key: &[u8], count: impl FnOnce(&mut Done)) {
        // A key without a delimiter has no prefix, as in memcached.
        let Some(end) = memchr::memchr(self.delimiter, key) else { return };
        let mut table = self.lock();
        let Table { by_prefix, others } = &mut *table;
        if let Some(done) = by_prefix.get_mut(&key[..end]) {
            count(done);
        } else if by_prefix.len() < MOST {
            count(by_prefix.entry(key[..end].to_vec()).or_default());
        } else {
            count(others.get_or_insert_default());
        }
    }

    /// A key was looked up.
    #[inline]
    pub(super) fn got(&self, key: &[u8], hit: bool) {
        if self.is_on() {
            self.count(key, |done| {
                done.gets += 1;
                done.hits += u64::from(hit);
            });
        }
    }

    /// An item came to be stored.
    #[inline]
    pub(super) fn set(&self, key: &[u8]) {
        if self.is_on() {
            self.count(key, |done| done.sets += 1);
        }
    }

    /// A key came to be deleted.
    #[inline]
    pub(super) fn deleted(&self, key: &[u8]) {
        if self.is_on() {
            self.count(key, |done| done.deletes += 1);
        }
    }

    /// A line for each prefix, and one for those beyond the bound.
    pub(super) fn dump(&self, out: &mut Vec<u8>) {
        let table = self.lock();
        let others = table.others.iter().map(|done| (&b"(others)"[..], done));
        for (prefix, done) in table.by_prefix.iter().map(|(prefix, done)| (&prefix[..], done)).chain(others) {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            let Done { gets, hits, sets, deletes } = done;
            // Writing to memory does not fail.
            let _ = write!(out, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_bounded() {
        let prefixes = Prefixes::new(b'/', true);
        for at in 0..2 * MOST {
            prefixes.set(format!("{at}/x").as_bytes());
        }
        prefixes.got(b"0/y", true);
        prefixes.deleted(b"none");
        let mut text = Vec::new();
        prefixes.dump(&mut text);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().count(), MOST + 1);
        assert!(text.starts_with("PREFIX 0 get 1 hit 1 set 1 del 0\r\n"), "{}", &text[..100]);
        assert!(text.ends_with(&format!("PREFIX (others) get 0 hit 0 set {MOST} del 0\r\n")));
        prefixes.clear();
        prefixes.turn(false);
        prefixes.set(b"a/b");
        let mut empty = Vec::new();
        prefixes.dump(&mut empty);
        assert!(empty.is_empty());
    }
}
