//! Items in a program's memory, written in the order that the store keeps.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use rdmakv_bpf::layout::{ANSWERING, Hasher, PAGE_LEFT};
use rdmakv_bpf::load::Maps;
use rdmakv_bpf::table::Table;

pub(crate) const INCARNATION: u32 = 0x1234_5678;
pub(crate) const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
pub(crate) const CLASS: u8 = 9;

const MAGIC: u64 = 0x6b76;
const UNPUBLISHED: u64 = 1;
const ALIVE: u64 = 2;
const DEAD: u64 = 3;

/// An item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) expiry: u64,
    pub(crate) version: u64,
}

impl<'a> Item<'a> {
    pub(crate) fn new(key: &'a str, value: &'a [u8]) -> Self {
        Self { key: key.as_bytes(), value, flags: 0, expiry: 0, version: 1 }
    }

    /// Returns the text that answers a `get` or a `gets`.
    pub(crate) fn text(&self, with_cas: bool) -> Vec<u8> {
        let key = std::str::from_utf8(self.key).unwrap();
        let cas = if with_cas { format!(" {}", self.version) } else { String::new() };
        let line = format!("VALUE {key} {} {}{cas}\r\n", self.flags, self.value.len());
        [line.as_bytes(), self.value, b"\r\nEND\r\n"].concat()
    }

    /// Returns the bytes of the item, alive, in the chunk's life of this number.
    pub(crate) fn image(&self, life: u16) -> Vec<u8> {
        let mut words = vec![first(ALIVE), self.expiry, self.version];
        words.push(self.value.len() as u64 | u64::from(self.flags) << 32);
        words.push(shape(self.key.len(), life));
        let mut image: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        image.resize(56, 0);
        [&image[..], self.key, self.value].concat()
    }
}

fn first(state: u64) -> u64 {
    state | MAGIC << 16 | u64::from(INCARNATION) << 32
}

/// The word with sum, length of the key, class and life.
fn shape(key: usize, life: u16) -> u64 {
    (key as u64 | u64::from(CLASS) << 8 | u64::from(life) << 16) << 32
}

/// A writer of items, as a shard is one.
#[derive(Clone, Debug)]
pub(crate) struct Writer(pub(crate) Arc<Maps>);

impl Writer {
    fn word(&self, place: u64) -> &AtomicU64 {
        &self.0.items()[(place / 8) as usize]
    }

    pub(crate) fn table(&self) -> Table<'_> {
        Table::new(self.0.buckets(), Hasher::new(SECRET))
    }

    pub(crate) fn answer(&self, yes: bool) {
        self.0.head()[1].store(u64::from(INCARNATION), Relaxed);
        let epoch = &self.0.head()[0];
        let now = epoch.load(Relaxed) & !ANSWERING;
        epoch.store(now | u64::from(yes), Release);
    }

    /// Sets up to which version items are gone, and when a flush is due.
    pub(crate) fn flush(&self, shard: usize, flushed: u64, at: u64) {
        self.0.head()[8 + 2 * shard].store(flushed, Release);
        self.0.head()[9 + 2 * shard].store(at, Release);
    }

    fn bytes(&self, place: u64, bytes: &[u8]) {
        for (at, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(place + at as u64 * 8).store(u64::from_le_bytes(word), Relaxed);
        }
    }

    /// Starts the chunk's next life, and fills all but the state.
    pub(crate) fn begin(&self, place: u64, item: &Item<'_>) {
        self.word(place).store(first(UNPUBLISHED), Release);
        // The state first: a reader that sees anything of what follows must not find the life before alive.
        fence(Release);
        let life = (self.word(place + 32).load(Relaxed) >> 48) as u16;
        self.word(place + 32).store(shape(item.key.len(), life.wrapping_add(1)), Relaxed);
        self.word(place + 8).store(item.expiry, Relaxed);
        self.word(place + 24).store(item.value.len() as u64 | u64::from(item.flags) << 32, Relaxed);
        self.bytes(place + 56, &[item.key, item.value].concat());
        self.word(place + 16).store(item.version, Relaxed);
    }

    pub(crate) fn publish(&self, place: u64) {
        self.word(place).store(first(ALIVE), Release);
    }

    pub(crate) fn set_state_and_marks(&self, place: u64, state: u64, marks: u64) {
        self.word(place).store(first(state) | marks << 8, Release);
    }

    pub(crate) fn die(&self, place: u64) {
        self.word(place).store(first(DEAD), Release);
    }

    /// Stores an item in a chunk that nothing is in, and enters it.
    pub(crate) fn put(&self, place: u64, item: &Item<'_>) {
        self.begin(place, item);
        self.publish(place);
        self.table().enter(item.key, place);
    }

    /// Replaces the item at a place by one at another, in the order that readers rely on.
    pub(crate) fn replace(&self, old: u64, new: u64, item: &Item<'_>) {
        self.begin(new, item);
        self.die(old);
        if !self.table().replace(item.key, old, new) {
            self.table().enter(item.key, new);
        }
        self.publish(new);
    }

    pub(crate) fn remove(&self, place: u64, key: &[u8]) {
        self.die(place);
        self.table().remove(key, place);
    }

    /// Lets a page's chunks become something else: their entries are gone already.
    pub(crate) fn page_leaves(&self) {
        let epoch = &self.0.head()[0];
        epoch.store(epoch.load(Relaxed) + PAGE_LEFT, Release);
        fence(Release);
    }

    /// Writes bytes that are no item of the store's.
    pub(crate) fn scribble(&self, place: u64, bytes: &[u8]) {
        self.bytes(place, bytes);
    }
}
