//! Records by number, and by the chunk that they are bound to.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Client;
use crate::store::Extent;

/// A number in the table of records.
pub(super) type Number = usize;

/// The record that the tags of one chunk share.
#[derive(Debug)]
pub(super) struct Record<R> {
    pub(super) record: R,
    /// The chunk, and the item in it, that the record is bound to, or was last.
    pub(super) extent: Extent,
    pub(super) bound: u64,
    pub(super) clients: Vec<Client>,
    /// Reads that were passed on.
    pub(super) reads: u64,
}

/// The table.
#[derive(Debug)]
pub(super) struct Records<R> {
    records: Vec<Option<Record<R>>>,
    vacant: Vec<Number>,
    /// The last record that was bound to each chunk.
    by_chunk: HashMap<u64, Number, FixedState>,
    /// The place of the walk.
    cursor: Number,
}

impl<R> Default for Records<R> {
    fn default() -> Self {
        Self { records: Vec::new(), vacant: Vec::new(), by_chunk: HashMap::default(), cursor: 0 }
    }
}

impl<R> Records<R> {
    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.records.len() - self.vacant.len()
    }
    /// Returns how many numbers were given out.
    pub(super) fn numbers(&self) -> usize {
        self.records.len()
    }
    pub(super) fn get(&self, number: Number) -> Option<&Record<R>> {
        self.records[number].as_ref()
    }
    pub(super) fn get_mut(&mut self, number: Number) -> Option<&mut Record<R>> {
        self.records[number].as_mut()
    }
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Record<R>> {
        self.records.iter().flatten()
    }

    /// Returns the record that was bound last to the chunk at this address.
    pub(super) fn at(&self, chunk: u64) -> Option<Number> {
        self.by_chunk.get(&chunk).copied()
    }
    /// Returns the record for exactly this item.
    pub(super) fn of(&self, extent: Extent) -> Option<Number> {
        self.at(extent.address)
            .filter(|&number| self.get(number).is_some_and(|record| record.extent.version == extent.version))
    }
    /// Returns the address of the record's chunk, unless another record is bound to that one since.
    pub(super) fn chunk_of(&self, number: Number) -> Option<u64> {
        self.get(number).map(|record| record.extent.address).filter(|&chunk| self.at(chunk) == Some(number))
    }

    /// Adds a record for this item.
    pub(super) fn enter(&mut self, record: R, extent: Extent, bound: u64) -> Number {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.records.push(None);
            self.records.len() - 1
        });
        self.records[number] = Some(Record { record, extent, bound, clients: Vec::new(), reads: 0 });
        self.by_chunk.insert(extent.address, number);
        number
    }

    /// Notes that a record is bound to another chunk.
    pub(super) fn move_to(&mut self, number: Number, extent: Extent) {
        let Some(record) = &mut self.records[number] else { return };
        self.by_chunk.remove(&record.extent.address);
        record.extent = extent;
        self.by_chunk.insert(extent.address, number);
    }

    /// Takes a record out.
    pub(super) fn remove(&mut self, number: Number) -> Option<R> {
        if let Some(chunk) = self.chunk_of(number) {
            self.by_chunk.remove(&chunk);
        }
        let record = self.records[number].take()?;
        self.vacant.push(number);
        Some(record.record)
    }

    /// Goes on to the next number, and returns its record if there is one. There is a number at least.
    pub(super) fn step(&mut self) -> Option<&mut Record<R>> {
        self.cursor = (self.cursor + 1) % self.records.len();
        self.records[self.cursor].as_mut()
    }
}
