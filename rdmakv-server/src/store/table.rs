//! The store's side of the [GET table](rdmakv_proto::gets): which items are listed there. A server has either that, or the table of the
//! kernel's program (`kernel_list.rs`), which lists all that it may answer.
//!
//! An item is listed when a client that reads the table asks for it ([`Store::list`](super::Store::list)). Its key's next values are listed as they come, until
//! one goes and none follows. A table that is never read that way costs nothing.
//!
//! Several stores share a table. Each changes its own entries under its own lock; where two meet in a bucket, each slot is changed by
//! compare-exchange. A full bucket displaces one of its entries: the displaced one is listed again at its next request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use super::arena::{Arena, Memory};
use super::chunk::{CHOSEN, Id, LISTED};
use super::kernel_list::KernelList;
use super::slabs::Slabs;
use rdmakv_proto::gets::{BUCKET, Entry, HEAD, Hasher, SLOTS, bucket};

/// Buckets of a page of memory.
const PAGE: u64 = 4096 / BUCKET;

/// The table, in memory that clients read.
#[derive(Debug)]
pub struct GetTable {
    memory: Arena,
    buckets: u64,
    hasher: Hasher,
    /// A bit for each page of it in which anything was ever listed: a look at the others would make the system allocate
    /// them.
    written: Box<[AtomicU64]>,
}

impl GetTable {
    /// Bytes of a table with so many buckets.
    pub fn bytes(buckets: u64) -> u64 {
        HEAD + buckets * BUCKET
    }

    /// Returns an empty table of so many buckets, a power of two.
    ///
    /// # Errors
    ///
    /// The memory is too short.
    pub fn new(memory: Memory, buckets: u64, hasher: Hasher) -> io::Result<Self> {
        let memory = Arena::given(memory, Self::bytes(buckets) as usize)?;
        Ok(Self::of(memory, buckets, hasher))
    }

    /// Returns an empty table in memory of its own.
    #[cfg(test)]
    pub(crate) fn anonymous(buckets: u64) -> io::Result<Arc<Self>> {
        let memory = Arena::new(Self::bytes(buckets) as usize)?;
        Ok(Arc::new(Self::of(memory, buckets, Hasher::new([1, 2]))))
    }

    fn of(memory: Arena, buckets: u64, hasher: Hasher) -> Self {
        let written = (0..buckets.div_ceil(PAGE * 64)).map(|_| AtomicU64::new(0)).collect();
        Self { memory, buckets, hasher, written }
    }

    /// How many buckets it has.
    pub fn buckets(&self) -> u64 {
        self.buckets
    }

    /// Returns the hash function of keys.
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// The table holds until then, in nanoseconds of the machine's boot clock.
    pub fn hold_until(&self, until: u64) {
        self.memory.word64(0).store(until, Release);
    }

    /// Items expire by a clock that is so far beyond the machine's boot clock, in nanoseconds.
    pub fn expire_by(&self, beyond_boot: u64) {
        self.memory.word64(8).store(beyond_boot, Release);
    }

    fn slots(&self, hash: u64) -> [&AtomicU64; SLOTS] {
        let at = HEAD + bucket(hash, self.buckets) * BUCKET;
        std::array::from_fn(|slot| self.memory.word64(at as usize + slot * 8))
    }

    fn has(&self, hash: u64, entry: Entry) -> bool {
        self.slots(hash).iter().any(|slot| slot.load(Relaxed) == entry.word())
    }

    fn add(&self, hash: u64, entry: Entry) {
        let page = bucket(hash, self.buckets) / PAGE;
        let (written, bit) = (&self.written[page as usize / 64], 1 << (page % 64));
        // No bit is ever taken back: the store finds its own when it clears the table.
        if written.load(Relaxed) & bit == 0 {
            written.fetch_or(bit, Relaxed);
        }
        let slots = self.slots(hash);
        for slot in slots {
            if slot.load(Relaxed) == 0 && slot.compare_exchange(0, entry.word(), Release, Relaxed).is_ok() {
                return;
            }
        }
        slots[entry.place() as usize / 64 % SLOTS].store(entry.word(), Release);
    }

    /// When this returns, a reader of what is written afterwards where the item was does not find the entry any more.
    fn remove(&self, hash: u64, entry: Entry) {
        for slot in self.slots(hash) {
            if slot.load(Relaxed) == entry.word() {
                // Another store may just displace it.
                let _ = slot.compare_exchange(entry.word(), 0, Release, Relaxed);
            }
        }
        fence(Release);
    }

    /// Returns the slots in pages that were written.
    fn written(&self) -> impl Iterator<Item = usize> {
        let slots = PAGE.min(self.buckets) as usize * SLOTS;
        let pages = self.written.iter().enumerate().flat_map(|(at, written)| {
            let bits = written.load(Acquire);
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        });
        pages.flat_map(move |page| page * slots..(page + 1) * slots)
    }

    /// Nothing is listed when this returns.
    fn clear(&self) {
        for slot in self.written() {
            let slot = self.memory.word64(HEAD as usize + slot * 8);
            if slot.load(Relaxed) != 0 {
                slot.store(0, Release);
            }
        }
        fence(Release);
    }
}

/// A table, and the place of the store's memory among the memory that the table describes.
#[derive(Debug)]
struct Clients {
    table: Arc<GetTable>,
    base: u64,
}

/// The readers of a table.
#[derive(Debug, Default)]
enum Listing {
    #[default]
    None,
    /// Clients that share memory.
    Clients(Clients),
    /// The kernel's program.
    Kernel(KernelList),
}

/// The one writer of a store's entries in a table, if there is a table.
#[derive(Debug, Default)]
pub(super) struct TableWriter {
    listing: Listing,
    closed: bool,
}

impl TableWriter {
    /// Lists items in this table from now on. The store's memory begins at this place, in bytes.
    pub(super) fn attach(&mut self, table: Arc<GetTable>, base: u64) {
        self.listing = Listing::Clients(Clients { table, base });
    }

    /// Lists items for the kernel's program from now on.
    pub(super) fn attach_kernel(&mut self, kernel: KernelList) {
        self.listing = Listing::Kernel(kernel);
    }

    fn clients(&self) -> Option<&Clients> {
        if let Listing::Clients(clients) = &self.listing { Some(clients) } else { None }
    }

    /// Returns the kernel's part, if items are listed there.
    pub(super) fn kernel(&self) -> Option<&KernelList> {
        if let Listing::Kernel(kernel) = &self.listing { Some(kernel) } else { None }
    }

    /// Returns whether items are listed as soon as they are alive, and not when a client asks.
    #[inline]
    pub(super) fn lists_all(&self) -> bool {
        matches!(self.listing, Listing::Kernel(_))
    }

    fn entry(&self, slabs: &Slabs, id: Id) -> Option<(&GetTable, u64, Entry)> {
        let Clients { table, base } = self.clients()?;
        let chunk = slabs.chunk(id);
        let hash = table.hasher.hash(chunk.key());
        let entry = Entry::new(hash, base + id.at() as u64, chunk.size() as u64, chunk.version())?;
        Some((&**table, hash, entry))
    }

    /// Lists an item that is alive; returns whether it is listed now.
    pub(super) fn list(&self, slabs: &Slabs, id: Id) -> bool {
        if let Listing::Kernel(kernel) = &self.listing {
            return !self.closed && kernel.list(slabs, id);
        }
        // A version that a client chose may come again, and then an entry does not tell one item from another.
        if self.closed || slabs.chunk(id).marked(CHOSEN) {
            return false;
        }
        let Some((table, hash, entry)) = self.entry(slabs, id) else { return false };
        slabs.chunk(id).mark(LISTED);
        if !table.has(hash, entry) {
            table.add(hash, entry);
        }
        true
    }

    /// Takes out the entry of an item that is dead; returns hits of it that the store has not seen.
    #[inline]
    pub(super) fn unlist(&self, slabs: &Slabs, id: Id) -> u32 {
        if slabs.chunk(id).marked(LISTED) { self.remove(slabs, id) } else { 0 }
    }

    fn remove(&self, slabs: &Slabs, id: Id) -> u32 {
        if let Listing::Kernel(kernel) = &self.listing {
            return kernel.unlist(slabs, id);
        }
        if let Some((table, hash, entry)) = self.entry(slabs, id) {
            table.remove(hash, entry);
        }
        0
    }

    /// Returns hits of an item that the store has not seen.
    #[inline]
    pub(super) fn hits(&self, slabs: &Slabs, id: Id) -> u32 {
        self.kernel().filter(|_| slabs.chunk(id).marked(LISTED)).map_or(0, |kernel| kernel.hits(slabs, id))
    }

    /// Returns an item's hash and entry.
    #[cfg(rdmakv_fault_injection)]
    pub(super) fn listed(&self, slabs: &Slabs, id: Id) -> Option<(u64, Entry)> {
        self.entry(slabs, id).map(|(_, hash, entry)| (hash, entry))
    }

    /// Takes an entry out.
    #[cfg(rdmakv_fault_injection)]
    pub(super) fn take_out(&self, (hash, entry): (u64, Entry)) {
        if let Some(Clients { table, .. }) = self.clients() {
            table.remove(hash, entry);
        }
    }

    /// Takes out all entries, those of other stores too.
    pub(super) fn clear(&self) {
        if let Some(clients) = self.clients() {
            clients.table.clear();
        }
    }

    /// Takes out all entries and lists nothing any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.clear();
    }

    /// Whether every entry of this store's memory names the item that is there, and that item is alive; returns which does not.
    pub(super) fn check(&self, slabs: &Slabs, is_alive: impl Fn(Id) -> bool) -> Result<(), String> {
        let Some(Clients { table, base }) = self.clients() else { return Ok(()) };
        let end = base + slabs.memory().1 as u64;
        for slot in 0..table.buckets as usize * SLOTS {
            let word = table.memory.word64(HEAD as usize + slot * 8).load(Acquire);
            let Some(entry) = Entry::of(word).filter(|entry| (*base..end).contains(&entry.place())) else { continue };
            let id = Id::of((entry.place() - base) as usize);
            if !is_alive(id) {
                return Err(format!("the table names {entry:?}, which is not alive"));
            }
            let of_bucket = |(table, hash, own): (&GetTable, u64, Entry)| {
                own == entry && bucket(hash, table.buckets) as usize == slot / SLOTS
            };
            if !self.entry(slabs, id).is_some_and(of_bucket) {
                return Err(format!("the table names {entry:?}, and another item is there"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::super::{Config, Mode, Outcome, Store, Terms};
    use super::*;

    const NOW: u64 = 1_000_000;

    fn table(buckets: u64) -> Arc<GetTable> {
        GetTable::anonymous(buckets).unwrap()
    }

    fn listed_in(table: &Arc<GetTable>, memory: usize, base: u64) -> Store {
        let mut store = Store::new(&Config { memory, extra: 0, huge: false, ..Config::default() }).unwrap();
        store.list_in(table.clone(), base);
        store
    }

    fn set(store: &mut Store, key: &[u8], value: &[u8], expiry: u64) -> bool {
        set_as(store, key, value, expiry, None)
    }

    fn set_as(store: &mut Store, key: &[u8], value: &[u8], expiry: u64, version: Option<u64>) -> bool {
        let Ok(mut writer) = store.reserve(key, value.len(), 0, expiry, NOW) else { return false };
        writer.value().copy_from_slice(value);
        matches!(store.publish(writer, Terms { version, ..Terms::default() }, NOW), Outcome::Stored(_))
    }

    fn list(store: &mut Store, key: &[u8]) -> bool {
        let handle = store.get(key, false, NOW).map(|view| view.handle());
        handle.is_some_and(|handle| store.list(handle, NOW))
    }

    /// Returns the table's places of the key's item: all entries.
    fn found(store: &Store, key: &[u8]) -> Vec<Entry> {
        let Clients { table, .. } = store.table.clients().unwrap();
        let hash = table.hasher.hash(key);
        let words = table.slots(hash).map(|slot| slot.load(Relaxed));
        words.into_iter().filter_map(Entry::of).filter(|entry| entry.may_be(hash)).collect()
    }

    fn version(store: &mut Store, key: &[u8]) -> u64 {
        store.get(key, false, NOW).unwrap().version
    }

    #[test]
    fn lists_items_on_request_and_their_next_values() {
        let mut store = listed_in(&table(64), 4 << 20, 0);
        assert!(set(&mut store, b"key", b"one", 0) && found(&store, b"key").is_empty());
        assert!(list(&mut store, b"key") && list(&mut store, b"key"));
        for value in [&b"two"[..], &[3; 5000]] {
            assert!(set(&mut store, b"key", value, 0));
            let version = version(&mut store, b"key");
            let entries = found(&store, b"key");
            assert!(entries.len() == 1 && entries[0].has_version(version), "{entries:?}");
        }
        store.check().unwrap();
        assert!(!list(&mut store, b"other"));
    }

    #[test]
    fn a_flush_looks_where_something_was_listed() {
        // 64 MiB of which the system gives a page for each key at most.
        let table = table(1 << 20);
        let mut store = listed_in(&table, 4 << 20, 0);
        let keys: Vec<_> = (0..5_u8).map(|key| [key; 3]).collect();
        for round in 0..3 {
            for key in &keys {
                assert!(set(&mut store, key, b"one", 0) && list(&mut store, key));
            }
            let pages = table.written().count() / (PAGE as usize * SLOTS);
            assert!((1..=keys.len()).contains(&pages), "{round}: {pages}");
            store.flush(None, NOW);
            assert!(keys.iter().all(|key| found(&store, key).is_empty()));
        }
    }

    #[test]
    fn an_item_whose_version_a_client_chose_is_not_listed() {
        let mut store = listed_in(&table(64), 4 << 20, 0);
        assert!(set(&mut store, b"key", b"one", 0) && list(&mut store, b"key"));
        assert!(set_as(&mut store, b"key", b"two", 0, Some(1)) && !list(&mut store, b"key"));
        assert!(found(&store, b"key").is_empty());
        assert!(set(&mut store, b"key", b"three", 0) && list(&mut store, b"key"));
        store.check().unwrap();
    }

    #[test]
    fn whatever_ends_an_item_takes_its_entry_out() {
        type End = fn(&mut Store);
        let ends: [(&str, End); 7] = [
            ("delete", |store| {
                store.delete(b"key", None, NOW);
            }),
            ("flush", |store| store.flush(None, NOW)),
            ("a flush that comes due", |store| {
                store.flush(Some(NOW + 1), NOW);
                assert_eq!(found(store, b"key").len(), 1);
                store.tick(NOW + 1);
            }),
            ("an end that has come", |store| {
                store.touch(b"key", NOW, NOW);
            }),
            ("expiry", |store| {
                store.touch(b"key", NOW + 5, NOW);
                assert!(store.get(b"key", false, NOW + 5).is_none());
            }),
            ("a value that is over at once", |store| assert!(set(store, b"key", b"two", NOW))),
            ("the server's end", |store| store.close(NOW)),
        ];
        for (name, end) in ends {
            let mut store = listed_in(&table(64), 4 << 20, 0);
            assert!(set(&mut store, b"key", b"one", 0) && list(&mut store, b"key"));
            end(&mut store);
            assert!(found(&store, b"key").is_empty(), "{name}");
            store.check().unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        }
    }

    #[test]
    fn after_the_end_nothing_is_listed() {
        let mut store = listed_in(&table(64), 4 << 20, 0);
        assert!(set(&mut store, b"key", b"one", 0) && list(&mut store, b"key"));
        store.close(NOW);
        assert!(!list(&mut store, b"key") && set(&mut store, b"key", b"two", 0) && found(&store, b"key").is_empty());
    }

    #[test]
    fn a_full_bucket_loses_an_entry_and_has_no_wrong_one() {
        let table = table(64);
        // Two stores that share it.
        let mut stores = [listed_in(&table, 4 << 20, 0), listed_in(&table, 4 << 20, 1 << 30)];
        let keys: Vec<String> = (0..4000).map(|key| format!("key-{key}")).collect();
        for (at, key) in keys.iter().enumerate() {
            let store = &mut stores[at % 2];
            assert!(set(store, key.as_bytes(), b"value", 0) && list(store, key.as_bytes()));
            assert!(!found(store, key.as_bytes()).is_empty(), "what was listed last is there");
        }
        for (at, key) in keys.iter().enumerate().filter(|(at, _)| at % 3 == 0) {
            stores[at % 2].delete(key.as_bytes(), None, NOW);
        }
        stores.iter().for_each(|store| store.check().unwrap());
        let full = (0..64 * SLOTS).filter(|slot| table.memory.word64(HEAD as usize + slot * 8).load(Relaxed) != 0);
        assert!(full.count() > 64 * SLOTS / 3, "the others are there still");
    }

    #[test]
    fn entries_are_exact_whatever_is_done() {
        // So little memory that items are evicted and pages change their class.
        let mut store = listed_in(&table(256), 8 << 20, 0);
        let mut random = StdRng::seed_from_u64(3);
        let mut listed = 0;
        for turn in 0..60_000_u64 {
            let key = random.random_range(0..5000_u32).to_le_bytes();
            let length =
                if turn / 10_000 % 2 == 0 { random.random_range(0..300) } else { random.random_range(500..4000) };
            match random.random_range(0..20) {
                0..8 => _ = set(&mut store, &key, &vec![7; length], 0),
                8..16 => listed += u64::from(list(&mut store, &key)),
                16 => _ = store.delete(&key, None, NOW),
                17 => {
                    if let Ok(writer) = store.reserve(&key, 0, 0, 0, NOW) {
                        store.publish(writer, Terms { mode: Mode::Append, ..Terms::default() }, NOW);
                    }
                }
                18 => _ = set_as(&mut store, &key, b"chosen", 0, Some(turn % 7)),
                _ => store.tick(NOW),
            }
            if turn % 15_000 == 7 {
                store.flush(None, NOW);
            }
            if turn % 500 == 0 {
                store.check().unwrap_or_else(|wrong| panic!("{turn}: {wrong}"));
            }
        }
        assert!(
            listed > 1000 && store.report(NOW).counters.slabs_moved > 0,
            "{listed} listed, {} pages moved",
            store.report(NOW).counters.slabs_moved
        );
    }
}
