//! The records of a server's clients: 104 bytes each, and 6 to 11 bytes in the table of ids.

use crate::fabric::traits::Peer;
use hashbrown::HashTable;

/// No record.
const NONE: u32 = u32::MAX;
/// Records of a block: memory grows by 6.5 KiB.
const BLOCK: usize = 64;

/// The server's knowledge of a client.
///
/// Bit i of a set is about request `floor + i`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) peer: Peer,
    /// The oldest request whose reply the client may still want.
    pub(super) floor: u64,
    /// Mutations that were executed.
    pub(super) done: u64,
    /// Requests that are being executed.
    pub(super) executing: u64,
    /// Requests of which some parts have come.
    pub(super) partial: u64,
    /// Requests whose reply is kept.
    pub(super) kept: u64,
    /// When it was last heard, or when it left.
    pub(super) heard: u64,
    /// A word of the driver's.
    pub(super) note: u64,
    /// Bytes of its requests that are not whole.
    pub(super) buffered: u32,
    pub(super) left: bool,
    /// Whether it still takes the place of a client, though it left.
    pub(super) has_place: bool,
    /// Requests that are being executed, those included that the floor has passed.
    pub(super) running: u8,
    /// Neighbours in the list by when clients were heard.
    older: u32,
    newer: u32,
}

const _: () = assert!(size_of::<Option<Record>>() <= 104);

/// Requests that the floor has passed, with the sets that they were in.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Passed {
    pub(super) first: u64,
    pub(super) partial: u64,
    pub(super) kept: u64,
}

impl Record {
    fn new(id: u64, peer: Peer, now: u64) -> Self {
        Self {
            id,
            peer,
            floor: 1,
            done: 0,
            executing: 0,
            partial: 0,
            kept: 0,
            heard: now,
            note: 0,
            buffered: 0,
            left: false,
            has_place: true,
            running: 0,
            older: NONE,
            newer: NONE,
        }
    }

    /// Returns the bit of a request, unless it is below the floor or too far above it.
    pub(super) fn bit(&self, request: u64) -> Option<u64> {
        let above = request.checked_sub(self.floor)?;
        (above < 64).then(|| 1 << above)
    }

    /// Raises the floor; it never falls.
    pub(super) fn raise(&mut self, floor: u64) -> Passed {
        let Some(by) = floor.checked_sub(self.floor).filter(|by| *by > 0) else { return Passed::default() };
        let low = 1_u64.checked_shl(by.min(64) as u32).map_or(u64::MAX, |bit| bit - 1);
        let passed = Passed { first: self.floor, partial: self.partial & low, kept: self.kept & low };
        for set in [&mut self.done, &mut self.executing, &mut self.partial, &mut self.kept] {
            *set = set.checked_shr(by.min(64) as u32).unwrap_or(0);
        }
        self.floor = floor;
        passed
    }

    /// Forgets what was executed from this request on: a fault for tests.
    #[cfg(any(test, rdmakv_fault_injection))]
    pub(super) fn lower(&mut self, floor: u64) {
        let by = (self.floor.saturating_sub(floor)).min(63) as u32;
        for set in [&mut self.done, &mut self.executing, &mut self.partial, &mut self.kept] {
            *set <<= by;
        }
        self.floor -= u64::from(by);
    }
}

/// Returns the numbers of the bits of a set.
pub(super) fn bits(mut set: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| u64::from(set.trailing_zeros()))?;
        set &= set - 1;
        Some(bit)
    })
}

/// Returns a hash of an id: its lowest and its highest bits are random. All of an id is, but for the lowest byte, which names a thread.
fn hash(id: u64) -> u64 {
    (id >> 8) ^ (id << 16)
}

fn id_of(blocks: &[Box<[Option<Record>]>], slot: u32) -> Option<u64> {
    Some(blocks.get(slot as usize / BLOCK)?[slot as usize % BLOCK].as_ref()?.id)
}

/// The records, by id and by when their clients were heard.
#[derive(Clone, Debug)]
pub(super) struct Records {
    blocks: Vec<Box<[Option<Record>]>>,
    free: Vec<u32>,
    /// The slot of each id. The ids are in the records.
    places: HashTable<u32>,
    oldest: u32,
    newest: u32,
}

impl Records {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::new(), free: Vec::new(), places: HashTable::new(), oldest: NONE, newest: NONE }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn find(&self, id: u64) -> Option<u32> {
        self.places.find(hash(id), |slot| self.get(*slot).is_some_and(|record| record.id == id)).copied()
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Record> {
        self.blocks.get(slot as usize / BLOCK)?[slot as usize % BLOCK].as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Record> {
        self.blocks.get_mut(slot as usize / BLOCK)?[slot as usize % BLOCK].as_mut()
    }

    pub(super) fn insert(&mut self, id: u64, peer: Peer, now: u64) -> u32 {
        if self.free.is_empty() {
            let first = (self.blocks.len() * BLOCK) as u32;
            self.blocks.push((0..BLOCK).map(|_| None).collect());
            self.free.extend((first..first + BLOCK as u32).rev());
        }
        let slot = self.free.pop().unwrap_or(0);
        self.blocks[slot as usize / BLOCK][slot as usize % BLOCK] = Some(Record::new(id, peer, now));
        let blocks = &self.blocks;
        self.places.insert_unique(hash(id), slot, |slot| id_of(blocks, *slot).map_or(0, hash));
        self.append(slot);
        slot
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        if let Some(record) = self.blocks[slot as usize / BLOCK][slot as usize % BLOCK].take() {
            if let Ok(place) = self.places.find_entry(hash(record.id), |of| *of == slot) {
                place.remove();
            }
            self.free.push(slot);
        }
    }

    /// Returns the client that was silent for the longest.
    pub(super) fn oldest(&self) -> Option<(u32, &Record)> {
        Some((self.oldest, self.get(self.oldest)?))
    }

    /// The client was heard now.
    pub(super) fn touch(&mut self, slot: u32, now: u64) {
        if let Some(record) = self.get_mut(slot) {
            record.heard = record.heard.max(now);
        }
        if self.newest != slot {
            self.unlink(slot);
            self.append(slot);
        }
    }

    fn append(&mut self, slot: u32) {
        let newest = self.newest;
        match self.get_mut(newest) {
            Some(record) => record.newer = slot,
            None => self.oldest = slot,
        }
        if let Some(record) = self.get_mut(slot) {
            (record.older, record.newer) = (newest, NONE);
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let Some((older, newer)) = self.get(slot).map(|record| (record.older, record.newer)) else { return };
        match self.get_mut(older) {
            Some(record) => record.newer = newer,
            None => self.oldest = newer,
        }
        match self.get_mut(newer) {
            Some(record) => record.older = older,
            None => self.newest = older,
        }
    }
}

impl std::hash::Hash for Records {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.blocks.iter().flatten().flatten().for_each(|record| record.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn peer(port: u16) -> Peer {
        Peer::from(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    #[test]
    fn oldest_is_the_one_silent_for_longest() {
        let mut records = Records::new();
        let slots: Vec<u32> = (0..200).map(|id| records.insert(id, peer(1), id)).collect();
        for slot in &slots[..100] {
            records.touch(*slot, 1000);
        }
        let order: Vec<u64> = std::iter::from_fn(|| {
            let (slot, record) = records.oldest()?;
            let id = record.id;
            records.remove(slot);
            Some(id)
        })
        .collect();
        assert_eq!(order, (100..200).chain(0..100).collect::<Vec<_>>());
        assert_eq!((records.len(), records.insert(7, peer(1), 0) < 200), (0, true));
    }

    #[test]
    fn ids_are_found_until_they_are_removed() {
        let mut records = Records::new();
        // As of one thread, and some of which all bits that choose a place are the same.
        let ids: Vec<u64> = (0..3000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) << 8 | 3).collect();
        let alike = (0..50).map(|number| number << 56 | 7 << 8);
        let all: Vec<u64> = ids.into_iter().chain(alike).collect();
        let slots: Vec<u32> = all.iter().map(|id| records.insert(*id, peer(1), 0)).collect();
        slots.iter().step_by(2).for_each(|slot| records.remove(*slot));
        for (at, (id, slot)) in all.iter().zip(&slots).enumerate() {
            assert_eq!(records.find(*id), (at % 2 == 1).then_some(*slot));
        }
        assert_eq!((records.len(), records.find(1)), (all.len() / 2, None));
    }

    #[test]
    fn floors_rise_and_never_fall() {
        let mut record = Record::new(1, peer(1), 0);
        record.done = 0b1011;
        record.kept = 0b0011;
        let passed = record.raise(3);
        assert_eq!((passed.first, passed.kept, record.floor, record.done, record.kept), (1, 0b11, 3, 0b10, 0));
        record.raise(1);
        assert_eq!((record.floor, record.done), (3, 0b10));
        assert_eq!(
            (record.bit(2), record.bit(3), record.bit(66), record.bit(67)),
            (None, Some(1), Some(1 << 63), None)
        );
        record.raise(u64::MAX);
        assert_eq!((record.floor, record.done, record.bit(u64::MAX)), (u64::MAX, 0, Some(1)));
    }
}
