//! A hash table in the style of FASTER: an index in memory leads to records in a log, whose older pages are in a store.
//!
//! A record is a key, a value and the address of the one before in its chain, of 8 bytes each. The newest pages, the tail, are in memory, and
//! records there are changed in place. Pages are numbered from 1 on, so no record has address 0: that ends a chain.

use std::collections::VecDeque;
use std::error::Error;

/// Bytes of a record.
pub(crate) const RECORD: usize = 24;
/// Bytes of a page. What is left behind its records is not used, so no record crosses pages.
pub(crate) const PAGE: usize = 4096;
/// The first byte of a record's pointer to the one before.
pub(crate) const PREVIOUS: usize = 16;

/// The outcome of an operation of a store.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The place of pages that are not in memory.
pub(crate) trait Store {
    /// Stores a page. Its number is the one after that of the page before.
    fn append(&mut self, page: u64, bytes: &[u8; PAGE]) -> Outcome<()>;
    /// Reads a record.
    fn read(&mut self, at: u64) -> Outcome<[u8; RECORD]>;

    /// Returns the value of a key, in the chain that begins at a record.
    fn find(&mut self, at: u64, key: u64) -> Outcome<Option<u64>> {
        follow(self, at, key)
    }
}

/// Follows a chain from a record on by reads, and returns the value of a key.
pub(crate) fn follow<S: Store + ?Sized>(store: &mut S, mut at: u64, key: u64) -> Outcome<Option<u64>> {
    while at != 0 {
        let record = store.read(at)?;
        if number(&record, 0) == key {
            return Ok(Some(number(&record, 8)));
        }
        at = number(&record, PREVIOUS);
    }
    Ok(None)
}

/// See the module.
pub(crate) struct Log<'s> {
    store: &'s mut dyn Store,
    /// The newest record of each chain, or 0.
    index: Vec<u64>,
    tail: VecDeque<Box<[u8; PAGE]>>,
    /// The number of the tail's first page.
    first: u64,
    /// Pages of the tail at most.
    pages: usize,
    /// The place of the next record in the last page.
    next: usize,
}

/// Returns a number in a record.
pub(crate) fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

impl<'s> Log<'s> {
    /// Returns an empty table with so many chains, a power of two, and so many pages in memory, one at least.
    pub(crate) fn new(store: &'s mut dyn Store, chains: usize, pages: usize) -> Self {
        let tail = VecDeque::from([Box::new([0; PAGE])]);
        Self { store, index: vec![0; chains.next_power_of_two()], tail, first: 1, pages: pages.max(1), next: 0 }
    }

    fn chain(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.index.len() - 1)
    }

    /// Returns the place of a record in the tail, if it is there.
    fn in_tail(&self, at: u64) -> Option<(usize, usize)> {
        let page = (at / PAGE as u64).checked_sub(self.first)?;
        Some((page as usize, (at % PAGE as u64) as usize))
    }

    /// Returns the place of a key's record in the tail, or the address where its chain leaves the tail.
    fn look(&self, key: u64) -> Result<(usize, usize), u64> {
        let mut at = self.index[self.chain(key)];
        while let Some((page, from)) = self.in_tail(at) {
            let record = &self.tail[page][from..from + RECORD];
            if number(record, 0) == key {
                return Ok((page, from));
            }
            at = number(record, PREVIOUS);
        }
        Err(at)
    }

    /// Returns the value of a key.
    pub(crate) fn get(&mut self, key: u64) -> Outcome<Option<u64>> {
        match self.look(key) {
            Ok((page, from)) => Ok(Some(number(&self.tail[page][from..], 8))),
            Err(0) => Ok(None),
            Err(at) => self.store.find(at, key),
        }
    }

    /// Stores the value of a key.
    pub(crate) fn set(&mut self, key: u64, value: u64) -> Outcome<()> {
        if let Ok((page, from)) = self.look(key) {
            put(&mut self.tail[page][from..], 8, value);
            return Ok(());
        }
        if self.next + RECORD > PAGE {
            self.tail.push_back(Box::new([0; PAGE]));
            self.next = 0;
        }
        while self.tail.len() > self.pages
            && let Some(page) = self.tail.pop_front()
        {
            self.store.append(self.first, &page)?;
            self.first += 1;
        }
        let (chain, from) = (self.chain(key), self.next);
        let at = (self.first + self.tail.len() as u64 - 1) * PAGE as u64 + from as u64;
        if let Some(page) = self.tail.back_mut() {
            put(&mut page[from..], 0, key);
            put(&mut page[from..], 8, value);
            put(&mut page[from..], PREVIOUS, self.index[chain]);
        }
        self.index[chain] = at;
        self.next += RECORD;
        Ok(())
    }
}
