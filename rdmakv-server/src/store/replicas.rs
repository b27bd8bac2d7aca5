//! Pieces of values that a cluster keeps on several servers: chunks that no lookup finds.
//!
//! A piece is an unpublished chunk, so it is never evicted, moved or read by a tag. It counts against the memory for items like any other.

use std::collections::HashMap;

use super::{ChunkWriter, Refused, Store};

/// The pieces in the chunks of one store, by number.
#[derive(Debug, Default)]
pub struct Pieces {
    kept: HashMap<u64, ChunkWriter>,
    /// Bytes of the kept pieces.
    bytes: u64,
    last: u64,
}

impl Pieces {
    /// Keeps a chunk that was filled. Returns its number, which no other piece of this store ever has.
    pub fn keep(&mut self, mut writer: ChunkWriter, flags: u32, expiry: u64) -> u64 {
        writer.chunk().set_flags(flags);
        writer.chunk().set_expiry(expiry);
        self.bytes += writer.value().len() as u64;
        self.last += 1;
        self.kept.insert(self.last, writer);
        self.last
    }

    /// Copies bytes into a chunk, and keeps that.
    ///
    /// # Errors
    ///
    /// There is no room in the store.
    pub fn add(
        &mut self,
        store: &mut Store,
        key: &[u8],
        parts: [&[u8]; 2],
        (flags, expiry): (u32, u64),
        now: u64,
    ) -> Result<u64, Refused> {
        let mut writer = store.reserve(key, parts[0].len() + parts[1].len(), flags, expiry, now)?;
        let (first, second) = writer.value().split_at_mut(parts[0].len());
        first.copy_from_slice(parts[0]);
        second.copy_from_slice(parts[1]);
        Ok(self.keep(writer, flags, expiry))
    }

    /// Returns a piece: its bytes, the client's flags, and when it ends in Unix seconds, 0 for never.
    pub fn get(&self, number: u64) -> Option<(&[u8], u32, u64)> {
        let chunk = self.kept.get(&number)?.chunk();
        Some((chunk.value(), chunk.flags(), chunk.expiry()))
    }

    /// Gives a piece back to its store. One that was given back before is no error.
    pub fn free(&mut self, store: &mut Store, number: u64) {
        if let Some(mut writer) = self.kept.remove(&number) {
            self.bytes -= writer.value().len() as u64;
            store.abandon(writer);
        }
    }

    /// Gives all pieces back to their store.
    pub fn clear(&mut self, store: &mut Store) {
        self.kept.drain().for_each(|(_, writer)| store.abandon(writer));
        self.bytes = 0;
    }

    /// Returns how many pieces there are, and the bytes of their values.
    pub fn size(&self) -> (usize, u64) {
        (self.kept.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Store, Terms};
    use super::*;

    #[test]
    fn pieces_are_no_items_and_are_never_evicted() {
        let config = Config { memory: 4 << 20, item_max: 1 << 20, ..Config::default() };
        let mut store = Store::new(&config).unwrap();
        let mut pieces = Pieces::default();
        let number = pieces.add(&mut store, b"key", [b"one", b"two"], (7, 9), 1).unwrap();
        assert_eq!(pieces.get(number), Some((&b"onetwo"[..], 7, 9)));
        assert!(store.get(b"key", true, 1).is_none());
        assert_eq!(pieces.size(), (1, 6));

        let filling = [b'x'; 1000];
        for item in 0..20_000 {
            let mut writer = store.reserve(format!("item-{item}").as_bytes(), filling.len(), 0, 0, 1).unwrap();
            writer.value().copy_from_slice(&filling);
            store.publish(writer, Terms::default(), 1);
        }
        assert_eq!(pieces.get(number).unwrap().0, b"onetwo");
        pieces.free(&mut store, number);
        pieces.free(&mut store, number);
        assert_eq!((pieces.get(number), pieces.size()), (None, (0, 0)));
    }

    #[test]
    fn memory_ends_with_an_error_and_comes_back() {
        let config = Config { memory: 4 << 20, item_max: 1 << 20, ..Config::default() };
        let (mut store, mut pieces) = (Store::new(&config).unwrap(), Pieces::default());
        let value = vec![1; 200 << 10];
        let fill = |store: &mut Store, pieces: &mut Pieces| {
            (0..1000).take_while(|_| pieces.add(store, b"key", [&value, b""], (0, 0), 1).is_ok()).count()
        };
        let fit = fill(&mut store, &mut pieces);
        assert!((4..1000).contains(&fit), "{fit}");
        pieces.clear(&mut store);
        assert_eq!(fill(&mut store, &mut pieces), fit);
    }
}
