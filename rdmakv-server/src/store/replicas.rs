//! Pieces of values that a cluster keeps on several servers: chunks that no lookup finds.
//!
//! A piece is an unpublished chunk, so it is never evicted or moved. It counts against the memory for items like any other. A key's primary
//! shows the current value to clients that ask over a fabric: they may hold, lease and read it. It covers the value when it may not answer
//! any more: a reader believes nothing of it from then on. A backup lets them read the fragments that it holds, which are parts of what
//! the primary shows. Such a piece ends as items do, after its last lease.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Bound, Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::chunk::LEASED;
use super::{ChunkWriter, Handle, Refused, Store};

/// Memory beside that for items, for pieces that must not be refused: those of writes that their primaries have ordered.
#[derive(Debug)]
pub struct Reserve {
    left: AtomicUsize,
}

impl Reserve {
    /// Returns a reserve of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { left: AtomicUsize::new(bytes) }
    }

    /// Returns zeros of this length; None if less is left.
    pub fn take(self: &Arc<Self>, length: usize) -> Option<Reserved> {
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(length));
        taken.ok().map(|_| Reserved { bytes: vec![0; length], from: self.clone() })
    }
}

/// Bytes of a [`Reserve`], until they are dropped.
#[derive(Debug)]
pub struct Reserved {
    bytes: Vec<u8>,
    from: Arc<Reserve>,
}

impl Deref for Reserved {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Reserved {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.from.left.fetch_add(self.bytes.len(), Relaxed);
    }
}

/// A piece that is kept.
#[derive(Debug)]
enum Kept {
    Chunk(ChunkWriter),
    /// Without a chunk: one of the reserve, or none, as of a tombstone.
    Apart {
        bytes: Option<Reserved>,
        flags: u32,
        expiry: u64,
    },
}

impl Kept {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Chunk(writer) => writer.bytes(),
            Self::Apart { bytes, .. } => bytes.as_deref().unwrap_or_default(),
        }
    }
}

/// The pieces that are chunks of files, and the memory that they take.
#[derive(Debug, Default)]
struct Files {
    /// Those that the backing directory does not have, with their memory.
    dirty: HashMap<u64, u64>,
    /// Those that it has. The first was made first.
    clean: BTreeMap<u64, u64>,
    dirty_bytes: u64,
    clean_bytes: u64,
}

impl Files {
    fn add(&mut self, number: u64, bytes: u64) {
        self.dirty.insert(number, bytes);
        self.dirty_bytes += bytes;
    }

    fn make_clean(&mut self, number: u64) {
        let Some(bytes) = self.dirty.remove(&number) else { return };
        self.dirty_bytes -= bytes;
        self.clean.insert(number, bytes);
        self.clean_bytes += bytes;
    }

    fn remove(&mut self, number: u64) {
        self.dirty_bytes -= self.dirty.remove(&number).unwrap_or(0);
        self.clean_bytes -= self.clean.remove(&number).unwrap_or(0);
    }
}

/// The pieces in the chunks of one store, by number.
#[derive(Debug, Default)]
pub struct Pieces {
    kept: HashMap<u64, Kept>,
    /// Those that are shown. Others may have been.
    shown: HashSet<u64>,
    /// Those that never change: chunks of frozen generations of files.
    finals: HashSet<u64>,
    files: Files,
    /// Bytes of the kept pieces.
    bytes: u64,
    last: u64,
}

impl Pieces {
    /// Keeps a chunk that was filled. Returns its number, which no other piece of this store ever has.
    pub fn keep(&mut self, writer: ChunkWriter, flags: u32, expiry: u64) -> u64 {
        writer.chunk().set_flags(flags);
        writer.chunk().set_expiry(expiry);
        self.insert(Kept::Chunk(writer))
    }

    /// Keeps a piece without a chunk: bytes of a reserve, or none. It is not shown.
    pub fn keep_apart(&mut self, bytes: Option<Reserved>, flags: u32, expiry: u64) -> u64 {
        self.insert(Kept::Apart { bytes, flags, expiry })
    }

    fn insert(&mut self, piece: Kept) -> u64 {
        self.bytes += piece.bytes().len() as u64;
        self.last += 1;
        self.kept.insert(self.last, piece);
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
        let piece = self.kept.get(&number)?;
        let (flags, expiry) = match piece {
            Kept::Chunk(writer) => (writer.chunk().flags(), writer.chunk().expiry()),
            Kept::Apart { flags, expiry, .. } => (*flags, *expiry),
        };
        Some((piece.bytes(), flags, expiry))
    }

    /// Marks a piece as one that never changes.
    pub fn make_final(&mut self, number: u64) {
        if self.kept.contains_key(&number) {
            self.finals.insert(number);
        }
    }

    /// Returns whether a piece never changes.
    pub fn is_final(&self, number: u64) -> bool {
        self.finals.contains(&number)
    }

    /// Counts a piece as a chunk of a file, which takes so many bytes of memory and which the backing directory does not have.
    pub fn count_file(&mut self, number: u64, bytes: u64) {
        if self.kept.contains_key(&number) {
            self.files.add(number, bytes);
        }
    }

    /// Marks a chunk of a file as one that the backing directory has.
    pub fn make_clean(&mut self, number: u64) {
        self.files.make_clean(number);
    }

    /// Returns whether a piece is a chunk of a file that the backing directory has.
    pub fn is_clean(&self, number: u64) -> bool {
        self.files.clean.contains_key(&number)
    }

    /// Returns the bytes of memory of the chunks of files: those that are dirty, and those that are clean.
    pub fn file_bytes(&self) -> (u64, u64) {
        (self.files.dirty_bytes, self.files.clean_bytes)
    }

    /// Returns the clean chunk of a file that was made first after this one.
    pub fn next_clean(&self, after: Option<u64>) -> Option<u64> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut clean = self.files.clean.range((from, Bound::Unbounded)).map(|(&number, _)| number);
        clean.find(|number| matches!(self.kept.get(number), Some(Kept::Chunk(_))))
    }

    /// Returns the key of a piece that has a chunk.
    pub fn key(&self, number: u64) -> Option<&[u8]> {
        match self.kept.get(&number)? {
            Kept::Chunk(writer) => Some(writer.key()),
            Kept::Apart { .. } => None,
        }
    }

    /// Returns whether clients may read a piece by a lease, so its memory stays until that ends.
    pub fn is_leased(&self, number: u64) -> bool {
        matches!(self.kept.get(&number), Some(Kept::Chunk(writer)) if writer.chunk().marked(LEASED))
    }

    /// Has a piece end so many seconds earlier, if it ends.
    pub fn end_early(&mut self, number: u64, seconds: u64) {
        // No expiry is 0, which stands for never.
        let earlier = |expiry: u64| if expiry == 0 { 0 } else { expiry.saturating_sub(seconds).max(1) };
        match self.kept.get_mut(&number) {
            Some(Kept::Chunk(writer)) => writer.chunk().set_expiry(earlier(writer.chunk().expiry())),
            Some(Kept::Apart { expiry, .. }) => *expiry = earlier(*expiry),
            None => {}
        }
    }

    /// Shows a piece of a value with this version and sum to clients that read it without asking. None if it has no chunk.
    pub fn show(&mut self, store: &mut Store, number: u64, (version, sum): (u64, u32)) -> Option<Handle> {
        let Kept::Chunk(piece) = self.kept.get(&number)? else { return None };
        if self.shown.insert(number) {
            store.show_piece(piece, version, sum);
        }
        Some(Handle(piece.id()))
    }

    /// Lets clients read a piece that is no answer here: a fragment of a value with this version and sum. None if it has no chunk.
    pub fn hold(&mut self, store: &mut Store, number: u64, (version, sum): (u64, u32)) -> Option<Handle> {
        let Kept::Chunk(piece) = self.kept.get(&number)? else { return None };
        store.hold_piece(piece, version, sum);
        Some(Handle(piece.id()))
    }

    /// Covers all pieces that are shown: this server may not answer with them any more.
    pub fn cover(&mut self, store: &mut Store) {
        for number in self.shown.drain() {
            if let Some(Kept::Chunk(piece)) = self.kept.get(&number) {
                store.cover_piece(piece);
            }
        }
    }

    /// Gives a piece back to its store. One that was given back before is no error. `now` is in Unix seconds.
    pub fn free(&mut self, store: &mut Store, number: u64, now: u64) {
        let Some(piece) = self.kept.remove(&number) else { return };
        self.shown.remove(&number);
        self.finals.remove(&number);
        self.files.remove(number);
        self.bytes -= piece.bytes().len() as u64;
        if let Kept::Chunk(piece) = piece {
            store.end_piece(piece, now);
        }
    }

    /// Gives all pieces back to their store.
    pub fn clear(&mut self, store: &mut Store, now: u64) {
        self.shown.clear();
        self.finals.clear();
        self.files = Files::default();
        for (_, piece) in self.kept.drain() {
            if let Kept::Chunk(piece) = piece {
                store.end_piece(piece, now);
            }
        }
        self.bytes = 0;
    }

    /// Returns how many pieces there are, and the bytes of their values.
    pub fn size(&self) -> (usize, u64) {
        (self.kept.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, NoLease, Store, Terms};
    use super::*;
    use rdmakv_proto::item::{State, check, check_head, value_sum};

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
        pieces.free(&mut store, number, 1);
        pieces.free(&mut store, number, 1);
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
        pieces.clear(&mut store, 1);
        assert_eq!(fill(&mut store, &mut pieces), fit);
    }

    #[test]
    fn each_clean_chunk_is_offered_again() {
        let config = Config { memory: 4 << 20, ..Config::default() };
        let (mut store, mut pieces) = (Store::new(&config).unwrap(), Pieces::default());
        let [first, dirty, last] = [b"c/5/1/0", b"c/5/1/1", b"c/5/1/2"].map(|key| {
            let number = pieces.add(&mut store, key, [b"value", b""], (0, 0), 1).unwrap();
            pieces.count_file(number, 100);
            number
        });
        [last, first].into_iter().for_each(|number| pieces.make_clean(number));
        for _ in 0..2 {
            assert_eq!(pieces.next_clean(None), Some(first));
            assert_eq!(pieces.next_clean(Some(first)), Some(last));
            assert_eq!(pieces.next_clean(Some(last)), None);
        }
        assert_eq!(pieces.key(last), Some(&b"c/5/1/2"[..]));
        pieces.free(&mut store, first, 1);
        assert_eq!((pieces.next_clean(None), pieces.key(first), pieces.file_bytes()), (Some(last), None, (100, 100)));
        assert!(!pieces.is_clean(dirty));
    }

    const SECOND: u64 = 1_000_000_000;

    fn read(store: &Store, handle: Handle) -> Result<(Vec<u8>, u64), rdmakv_proto::item::ItemError> {
        let mut image = Vec::new();
        store.image(handle, &mut image);
        check(&image, b"key", 1, 100).map(|item| (item.value.to_vec(), item.version))
    }

    #[test]
    fn shown_pieces_are_read_until_they_are_covered() {
        let config = Config { memory: 4 << 20, incarnation: 1, ..Config::default() };
        let (mut store, mut pieces) = (Store::new(&config).unwrap(), Pieces::default());
        let number = pieces.add(&mut store, b"key", [b"value", b""], (7, 0), 100).unwrap();
        assert!(pieces.show(&mut store, number + 1, (1, 0)).is_none());
        let about = (3 << 40 | 5, value_sum(b"value"));
        let handle = pieces.show(&mut store, number, about).unwrap();
        assert_eq!(read(&store, handle), Ok((b"value".to_vec(), 3 << 40 | 5)));
        assert!(store.lease(handle, 100 * SECOND).is_ok());
        store.check().unwrap();

        pieces.cover(&mut store);
        assert!(read(&store, handle).is_err());
        store.check().unwrap();
        let again = pieces.show(&mut store, number, about).unwrap();
        assert_eq!(read(&store, again), Ok((b"value".to_vec(), 3 << 40 | 5)));
        // No plain command and no walk meets it.
        assert!(store.get(b"key", true, 100).is_none());
        store.flush(None, 100);
        assert!(store.crawl(1000, 100) && store.is_empty());
        assert!(read(&store, again).is_ok());
        store.close(100);
        assert!(read(&store, again).is_err());
    }

    #[test]
    fn a_leased_piece_is_dead_before_it_is_free() {
        let config = Config { memory: 4 << 20, incarnation: 1, ..Config::default() };
        let (mut store, mut pieces) = (Store::new(&config).unwrap(), Pieces::default());
        let number = pieces.add(&mut store, b"key", [b"value", b""], (0, 0), 100).unwrap();
        let handle = pieces.show(&mut store, number, (1, value_sum(b"value"))).unwrap();
        let held = store.hold(handle).unwrap();
        store.lease(handle, 100 * SECOND).unwrap();
        let address = store.extent(handle).address;
        pieces.free(&mut store, number, 100);
        assert!(read(&store, handle).is_err());
        store.check().unwrap();
        let mut others = Vec::new();
        let mut place = |store: &mut Store, pieces: &mut Pieces| {
            let other = pieces.add(store, b"key", [b"other", b""], (0, 0), 100).unwrap();
            others.push(other);
            let handle = pieces.show(store, other, (2, value_sum(b"other"))).unwrap();
            store.extent(handle).address
        };
        assert_ne!(place(&mut store, &mut pieces), address);
        store.release(held);
        assert_ne!(place(&mut store, &mut pieces), address);
        assert_eq!(store.sweep(200 * SECOND, 10), 1);
        assert_eq!(place(&mut store, &mut pieces), address);
        store.check().unwrap();
        others.into_iter().for_each(|other| pieces.free(&mut store, other, 200));
        store.check().unwrap();
    }

    #[test]
    fn a_held_fragment_is_read_and_is_no_answer() {
        let config = Config { memory: 4 << 20, incarnation: 1, ..Config::default() };
        let (mut store, mut pieces) = (Store::new(&config).unwrap(), Pieces::default());
        let (version, whole_sum) = (3 << 40 | 5, value_sum(b"value, of which this is a part"));
        let number = pieces.add(&mut store, b"key", [b"value", b""], (7, 0), 100).unwrap();
        assert!(pieces.hold(&mut store, number + 1, (1, 0)).is_none());
        let handle = pieces.hold(&mut store, number, (version, whole_sum)).unwrap();
        let head = |store: &Store| {
            let mut image = Vec::new();
            store.image(handle, &mut image);
            check_head(&image, b"key", 1, version, (5, whole_sum)).map(|head| (head.state, head.flags))
        };
        assert_eq!(head(&store), Ok((State::Held, 7)));
        let held = store.hold(handle).unwrap();
        assert!(read(&store, handle).is_err() && store.expose(&held, 100 * SECOND).is_ok());
        store.release(held);
        // Another server has become the key's primary, and then no other one is.
        pieces.show(&mut store, number, (version, whole_sum)).unwrap();
        assert_eq!(head(&store), Ok((State::Primary, 7)));
        // Its bytes have not the sum of the value.
        assert!(read(&store, handle).is_err());
        pieces.hold(&mut store, number, (version, whole_sum)).unwrap();
        assert_eq!(head(&store), Ok((State::Primary, 7)));
        pieces.cover(&mut store);
        assert_eq!(head(&store), Ok((State::Held, 7)));
        store.check().unwrap();

        let address = store.extent(handle).address;
        pieces.free(&mut store, number, 100);
        assert_eq!(head(&store), Ok((State::Dead, 7)));
        let next = |store: &mut Store, pieces: &mut Pieces| {
            let number = pieces.add(store, b"key", [b"other", b""], (0, 0), 100).unwrap();
            let handle = pieces.hold(store, number, (version + 1, 0)).unwrap();
            store.extent(handle).address
        };
        assert_ne!(next(&mut store, &mut pieces), address);
        store.sweep(200 * SECOND, 10);
        assert_eq!(next(&mut store, &mut pieces), address);
        store.check().unwrap();
    }

    #[test]
    fn an_expired_piece_has_no_lease() {
        let mut store = Store::new(&Config { memory: 4 << 20, ..Config::default() }).unwrap();
        let mut pieces = Pieces::default();
        let number = pieces.add(&mut store, b"key", [b"value", b""], (0, 101), 100).unwrap();
        let handle = pieces.show(&mut store, number, (1, value_sum(b"value"))).unwrap();
        assert!(store.lease(handle, 100 * SECOND).is_ok());
        assert_eq!(store.lease(handle, 101 * SECOND), Err(NoLease::Gone));
    }

    #[test]
    fn a_reserve_is_what_was_not_dropped() {
        let (mut store, mut pieces) = (Store::new(&Config::default()).unwrap(), Pieces::default());
        let reserve = Arc::new(Reserve::new(100));
        let (mut one, other) = (reserve.take(60).unwrap(), reserve.take(40).unwrap());
        assert!(reserve.take(1).is_none());
        one.fill(7);
        let number = pieces.keep_apart(Some(one), 3, 9);
        assert_eq!((pieces.get(number), pieces.size()), (Some((&[7; 60][..], 3, 9)), (1, 60)));
        assert!(pieces.show(&mut store, number, (1, 0)).is_none());
        drop(other);
        assert!(reserve.take(41).is_none());
        pieces.free(&mut store, number, 1);
        assert!(reserve.take(100).is_some());
        let empty = pieces.keep_apart(None, 0, 0);
        assert_eq!(pieces.get(empty), Some((&b""[..], 0, 0)));
    }
}
