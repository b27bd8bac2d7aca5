//! The stores' writer of the table, and of the words that the programs compare.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use rdmakv_bpf::layout::{ANSWERING, Bucket, Hasher, PAGE_LEFT, TAIL};
use rdmakv_bpf::load::Maps;
use rdmakv_bpf::table::{Entered, Table};

use crate::store::KernelTable;

/// The words of the map `head`.
const EPOCH: usize = 0;
const INCARNATION: usize = 1;
const FLUSHED: usize = 8;
const FLUSH_AT: usize = 9;

/// The maps that are written.
pub(super) trait Tables: Debug + Send + Sync {
    fn buckets(&self) -> &[Bucket];
    fn head(&self) -> &[AtomicU64];
}

impl Tables for Arc<Maps> {
    fn buckets(&self) -> &[Bucket] {
        Maps::buckets(self)
    }
    fn head(&self) -> &[AtomicU64] {
        Maps::head(self)
    }
}

/// The writer.
#[derive(Debug)]
pub(super) struct Writer<T> {
    tables: T,
    hasher: Hasher,
    /// Bytes of a value of the map of items.
    value_size: u64,
    displaced: AtomicU64,
}

impl<T: Tables> Writer<T> {
    pub(super) fn new(tables: T, secret: [u64; 2], value_size: u64) -> Self {
        Self { tables, hasher: Hasher::new(secret), value_size, displaced: AtomicU64::new(0) }
    }

    fn table(&self) -> Table<'_> {
        Table::new(self.tables.buckets(), self.hasher)
    }

    /// Returns how many entries lost their slots to others.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced.load(Relaxed)
    }

    /// Has the programs answer from now on, with items of this incarnation.
    pub(super) fn begin(&self, incarnation: u32) {
        self.tables.head()[INCARNATION].store(u64::from(incarnation), Release);
    }
    pub(super) fn answer(&self) {
        self.tables.head()[EPOCH].fetch_or(ANSWERING, Release);
    }
    /// Has the programs answer nothing any more.
    pub(super) fn end(&self) {
        self.tables.head()[EPOCH].fetch_and(!ANSWERING, Release);
        fence(Release);
    }
}

impl<T: Tables> KernelTable for Writer<T> {
    fn enter(&self, key: &[u8], place: u64) {
        // The programs read nothing there.
        if place % self.value_size > self.value_size - TAIL {
            return;
        }
        if self.table().enter(key, place) == Entered::Displaced {
            self.displaced.fetch_add(1, Relaxed);
        }
    }
    fn has(&self, key: &[u8], place: u64) -> bool {
        self.table().has(key, place)
    }
    fn remove(&self, key: &[u8], place: u64) -> u32 {
        self.table().remove(key, place).map_or(0, u32::from)
    }
    fn take_hits(&self, key: &[u8], place: u64) -> u32 {
        u32::from(self.table().take_hits(key, place))
    }
    fn page_left(&self) {
        // Shards write this word together.
        self.tables.head()[EPOCH].fetch_add(PAGE_LEFT, Release);
        fence(Release);
    }
    fn flushed(&self, shard: usize, version: u64) {
        let head = self.tables.head();
        head[FLUSHED + 2 * shard].store(version, Release);
        // Only then: a program reads this one first.
        head[FLUSH_AT + 2 * shard].store(0, Release);
    }
    fn flush_at(&self, shard: usize, at: u64) {
        self.tables.head()[FLUSH_AT + 2 * shard].store(at, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Config, Store, Terms};
    use rdmakv_bpf::layout::HEAD;

    const NOW: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    #[derive(Debug)]
    struct Plain {
        buckets: Vec<Bucket>,
        head: Vec<AtomicU64>,
    }

    impl Tables for Arc<Plain> {
        fn buckets(&self) -> &[Bucket] {
            &self.buckets
        }
        fn head(&self) -> &[AtomicU64] {
            &self.head
        }
    }

    fn writer(buckets: usize) -> (Arc<Writer<Arc<Plain>>>, Arc<Plain>) {
        let plain = Arc::new(Plain {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            head: (0..HEAD / 8).map(|_| AtomicU64::new(0)).collect(),
        });
        (Arc::new(Writer::new(plain.clone(), [1, 2], MIB)), plain)
    }

    fn set(store: &mut Store, key: &[u8], value: &[u8]) {
        let mut chunk = store.reserve(key, value.len(), 0, 0, NOW).unwrap();
        chunk.value().copy_from_slice(value);
        store.publish(chunk, Terms::default(), NOW);
    }

    #[test]
    fn ends_of_values_are_left_out() {
        let (writer, _) = writer(64);
        for (place, entered) in [(0, true), (MIB - TAIL, true), (MIB - TAIL + 8, false), (2 * MIB - 8, false)] {
            writer.enter(b"key", place);
            assert_eq!(writer.has(b"key", place), entered, "{place}");
        }
    }

    #[test]
    fn stores_write_their_shards_words() {
        let (writer, plain) = writer(64);
        writer.begin(7);
        writer.answer();
        let mut stores = [0, 1].map(|shard: usize| {
            let mut store = Store::new(&Config { memory: 4 << 20, extra: 0, ..Config::default() }).unwrap();
            store.list_in_kernel(writer.clone(), shard as u64 * 4 * MIB, shard);
            store
        });
        stores.iter_mut().for_each(|store| set(store, b"key", b"value"));
        let entries = || plain.buckets.iter().flat_map(|bucket| &bucket.slots).filter(|slot| slot.load(Relaxed) != 0);
        assert_eq!(entries().count(), 2);
        stores[1].flush(Some(NOW + 5), NOW);
        let head = |at: usize| plain.head[at].load(Relaxed);
        assert_eq!((head(EPOCH), head(INCARNATION)), (1, 7));
        assert_eq!([8, 9, 10, 11].map(head), [0, 0, 0, NOW + 5]);
        stores[1].tick(NOW + 5);
        assert_eq!([8, 9, 10, 11].map(head), [0, 0, 1, 0]);
        stores[0].delete(b"key", None, NOW);
        assert_eq!(entries().count(), 1);
        writer.end();
        assert_eq!(head(EPOCH), 0);
    }

    #[test]
    fn displaced_keys_enter_again() {
        let (writer, _) = writer(1);
        let mut store = Store::new(&Config { memory: 4 << 20, extra: 0, ..Config::default() }).unwrap();
        store.list_in_kernel(writer.clone(), 0, 0);
        let keys: Vec<_> = (0..8_u8).map(|key| [key]).collect();
        keys.iter().for_each(|key| set(&mut store, key, b"value"));
        assert_eq!(writer.displaced(), 1);
        for key in &keys {
            store.list_again(key, NOW);
        }
        assert!((2..=8).contains(&writer.displaced()));
        keys.iter().for_each(|key| _ = store.delete(key, None, NOW));
        set(&mut store, b"another", b"value");
        assert!((0..8).all(|at| !writer.has(b"key", at * 8)));
    }
}
