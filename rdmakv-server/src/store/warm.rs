//! Items in memory as bytes, for the server's next run: written at an orderly stop, read at the next start.
//!
//! An image has the items queue by queue, the oldest first, so that the next run evicts in the same order. Chunks are made anew there:
//! they carry the next run's incarnation, and what clients were told of the old ones is not believed.
//!
//! | at | bytes | what                                             |
//! |---:|------:|--------------------------------------------------|
//! |  0 |     8 | version                                          |
//! |  8 |     8 | expiry, in Unix seconds; 0 is never              |
//! | 16 |     4 | length of the value                              |
//! | 20 |     4 | the client's flags                               |
//! | 24 |     4 | CRC32C of the item                               |
//! | 28 |     4 | last access, in Unix seconds                     |
//! | 32 |     1 | marks: the second byte of the header's first word |
//! | 33 |     1 | length of the key                                |
//! | 34 |     1 | queue                                            |
//! | 35 |     1 | frequency                                        |
//! | 36 |       | key, value                                       |

use super::Store;
use super::chunk::{BINARY, CHOSEN, CLEAN, FETCHED, Id, STALE, WON};
use super::eviction::{MAIN, MOST_FREQUENT, SMALL};
use super::slabs::Place;

const HEAD: usize = 36;
/// Leases and entries of the GET table end with a run.
const KEPT: u64 = FETCHED | STALE | WON | BINARY | CHOSEN | CLEAN;

/// The place of an image that is being written.
#[derive(Clone, Copy, Debug)]
pub struct ImagePlace {
    class: usize,
    queue: u32,
    last: Option<Id>,
}

impl Default for ImagePlace {
    fn default() -> Self {
        Self { class: 0, queue: MAIN, last: None }
    }
}

/// The numbers that go on in the next run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continuation {
    /// The version of what was stored last.
    pub latest: u64,
    /// Items up to this version are gone.
    pub flushed: u64,
    /// The time of the next flush, in Unix seconds.
    pub flush_at: Option<u64>,
    /// Whether a client chose a version since the last flush.
    pub chosen: bool,
}

/// The bytes are not those of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its items are damaged")]
pub struct DamagedImage;

/// An item of an image.
struct Image<'a> {
    version: u64,
    expiry: u64,
    flags: u32,
    crc: u32,
    accessed: u32,
    marks: u64,
    queue: u32,
    frequency: u32,
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> Image<'a> {
    /// Takes the first item off these bytes.
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let head = bytes.split_off(..HEAD)?;
        let half = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let key = bytes.split_off(..usize::from(head[33]))?;
        let value = bytes.split_off(..half(16) as usize)?;
        let (queue, frequency) = (u32::from(head[34]), u32::from(head[35]));
        let is_known = !key.is_empty() && [SMALL, MAIN].contains(&queue) && frequency <= MOST_FREQUENT;
        is_known.then_some(Self {
            version: word(0),
            expiry: word(8),
            flags: half(20),
            crc: half(24),
            accessed: half(28),
            marks: u64::from(head[32]) << 8 & KEPT,
            queue,
            frequency,
            key,
            value,
        })
    }
}

impl Store {
    /// Takes out all items that are over, and their records on flash. Before an image is written.
    pub fn end_over(&mut self, now: u64) {
        self.flush_if_due(now);
        self.end_all(now, |store, id| store.is_over(id, now));
    }

    fn end_all(&mut self, now: u64, is_to_end: impl Fn(&Self, Id) -> bool) {
        let mut place = Place::default();
        while let Some(id) = self.slabs.next_chunk(&mut place, None) {
            if self.is_alive(id) && is_to_end(self, id) {
                self.reclaim(id, now);
            }
        }
    }

    /// Appends items until there are so many bytes; returns how many items. At the end it appends nothing. The store does not change
    /// meanwhile.
    pub fn image_on(&self, place: &mut ImagePlace, bytes: usize, out: &mut Vec<u8>) -> u64 {
        let mut items = 0;
        while out.len() < bytes && place.class < self.slabs.sizes().len() {
            let next = match place.last {
                None => self.eviction.oldest_of(place.class, place.queue),
                // A queue's newest has nothing before it.
                Some(last) => self.slabs.chunk(last).prev().some(),
            };
            place.last = next;
            match next {
                Some(id) => {
                    self.append(id, out);
                    items += 1;
                }
                None if place.queue == MAIN => place.queue = SMALL,
                None => *place = ImagePlace { class: place.class + 1, ..ImagePlace::default() },
            }
        }
        items
    }

    fn append(&self, id: Id, out: &mut Vec<u8>) {
        let chunk = self.slabs.chunk(id);
        let (key, value) = (chunk.key(), chunk.value());
        out.extend_from_slice(&chunk.version().to_le_bytes());
        out.extend_from_slice(&chunk.expiry().to_le_bytes());
        for half in [value.len() as u32, chunk.flags(), chunk.crc(), chunk.accessed()] {
            out.extend_from_slice(&half.to_le_bytes());
        }
        let marks = (chunk.marks(KEPT) >> 8) as u8;
        out.extend_from_slice(&[marks, key.len() as u8, chunk.queue() as u8, chunk.frequency() as u8]);
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }

    /// Returns the numbers that go on in the next run.
    pub fn continuation(&self) -> Continuation {
        self.versions.continuation()
    }

    /// Begins to bring items back into an empty store. Its numbers go on from these.
    pub fn begin_restore(&mut self, from: Continuation) {
        self.versions.resume(from);
        // Pages that were beyond the limit before come back as well.
        self.slabs.set_limit(usize::MAX);
    }

    /// Brings back the items of a part of an image, except those that are over; returns how many are back.
    ///
    /// # Errors
    ///
    /// [`DamagedImage`]: the store is to be [cleared](Self::clear).
    pub fn restore(&mut self, mut part: &[u8], now: u64) -> Result<u64, DamagedImage> {
        let mut items = 0;
        while !part.is_empty() {
            let image = Image::take(&mut part).ok_or(DamagedImage)?;
            let class = self.slabs.class_for(image.key.len(), image.value.len()).ok_or(DamagedImage)?;
            let hash = self.index.hash(image.key);
            if self.index.find(&self.slabs, hash, image.key).is_some() {
                return Err(DamagedImage);
            }
            let is_over = image.expiry != 0 && image.expiry <= now;
            let Some(id) = (!is_over).then(|| self.allocate(class, now)).flatten() else {
                // Its record may not know when it ends.
                if let Some(tier) = &mut self.tier {
                    tier.flash.remove(hash, image.key);
                }
                continue;
            };
            let chunk = self.slabs.begin(id, class, self.versions.incarnation(), image.key, image.value.len());
            chunk.value_mut().copy_from_slice(image.value);
            chunk.set_version(image.version);
            chunk.set_flags(image.flags);
            chunk.set_crc(image.crc);
            chunk.set_expiry(image.expiry);
            chunk.set_accessed(u64::from(image.accessed));
            chunk.mark(image.marks);
            chunk.set_frequency(image.frequency);
            self.index.insert(&self.slabs, hash, id);
            self.eviction.restore(&self.slabs, id, image.queue);
            self.slabs.publish(id);
            items += 1;
        }
        Ok(items)
    }

    /// Ends what [`begin_restore`](Self::begin_restore) began: the limit on memory holds again, from the next tick on.
    pub fn end_restore(&mut self) {
        self.set_limit(self.memory);
        self.slabs.count_extra();
    }

    /// Removes every item, and all that is on flash.
    pub fn clear(&mut self, now: u64) {
        self.end_all(now, |_, _| true);
        self.flush(None, now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Config, Mode, Terms};
    use super::*;

    fn config(incarnation: u32) -> Config {
        Config { memory: 8 << 20, huge: false, seed: 7, incarnation, ..Config::default() }
    }

    fn set(store: &mut Store, key: &[u8], value: &[u8], (flags, expiry): (u32, u64), terms: Terms, now: u64) {
        let mut chunk = store.reserve(key, value.len(), flags, expiry, now).unwrap();
        chunk.value().copy_from_slice(value);
        store.publish(chunk, terms, now);
    }

    fn image(store: &Store, bytes: usize) -> Vec<Vec<u8>> {
        let mut place = ImagePlace::default();
        let mut parts = Vec::new();
        loop {
            let mut part = Vec::new();
            if store.image_on(&mut place, bytes, &mut part) == 0 {
                return parts;
            }
            parts.push(part);
        }
    }

    fn again(store: &Store, parts: &[Vec<u8>], now: u64) -> Store {
        let mut next = Store::new(&config(2)).unwrap();
        next.begin_restore(store.continuation());
        for part in parts {
            next.restore(part, now).unwrap();
        }
        next.end_restore();
        next.slabs.check().unwrap();
        next
    }

    fn order(store: &Store) -> Vec<(Vec<u8>, u32, u32)> {
        let mut place = ImagePlace::default();
        let mut part = Vec::new();
        store.image_on(&mut place, usize::MAX, &mut part);
        let mut rest = &part[..];
        std::iter::from_fn(|| {
            (!rest.is_empty()).then(|| {
                let item = Image::take(&mut rest).unwrap();
                (item.key.to_vec(), item.queue, item.frequency)
            })
        })
        .collect()
    }

    #[test]
    fn items_come_back_as_they_were() {
        let mut store = Store::new(&config(1)).unwrap();
        let value = |number: u32| vec![number as u8; (number as usize * 37) % 9000];
        for number in 0..2000_u32 {
            let expiry = if number % 5 == 0 { 1000 + u64::from(number % 7) * 10 } else { 0 };
            let terms = Terms { binary: number % 3 == 0, ..Terms::default() };
            set(&mut store, format!("k{number}").as_bytes(), &value(number), (number, expiry), terms, 900);
            if number % 4 == 0 {
                store.get(b"k1", true, 900 + u64::from(number % 3));
            }
        }
        store.end_over(1010);
        let parts = image(&store, 50_000);
        assert!(parts.len() > 20, "{}", parts.len());
        let mut next = again(&store, &parts, 1030);
        let mut found = 0;
        for number in 0..2000_u32 {
            let key = format!("k{number}");
            let before = store.get(key.as_bytes(), false, 1030).map(|view| {
                (view.value.to_vec(), view.flags, view.version, view.expiry, view.accessed, view.fetched, view.binary)
            });
            let after = next.get(key.as_bytes(), false, 1030).map(|view| {
                (view.value.to_vec(), view.flags, view.version, view.expiry, view.accessed, view.fetched, view.binary)
            });
            assert_eq!(before, after, "{key}");
            found += usize::from(before.is_some());
        }
        assert!(found > 800 && next.len() == found, "{found}");
        // Versions go on, and chunks are of the next run.
        let latest = store.continuation().latest;
        set(&mut next, b"new", b"x", (0, 0), Terms::default(), 1030);
        assert_eq!(next.get(b"new", false, 1030).unwrap().version, latest + 1);
        let mut bytes = Vec::new();
        let handle = next.get(b"k1", false, 1030).unwrap().handle();
        next.image(handle, &mut bytes);
        assert_eq!(bytes[4..8], 2_u32.to_le_bytes());
    }

    #[test]
    fn queues_keep_their_order() {
        let mut store = Store::new(&config(1)).unwrap();
        for number in 0..4000 {
            set(&mut store, format!("k{number}").as_bytes(), &[1; 3000], (0, 0), Terms::default(), 900);
            store.get(format!("k{}", number / 2).as_bytes(), true, 900);
        }
        let parts = image(&store, 1 << 20);
        assert_eq!(order(&again(&store, &parts, 900)), order(&store));
        assert!(order(&store).iter().any(|(_, queue, _)| *queue == MAIN));
    }

    #[test]
    fn flushes_go_on() {
        let mut store = Store::new(&config(1)).unwrap();
        set(&mut store, b"old", b"1", (0, 0), Terms::default(), 900);
        store.flush(None, 901);
        set(&mut store, b"new", b"2", (0, 0), Terms::default(), 902);
        let chosen = Terms { version: Some(1), mode: Mode::Set, ..Terms::default() };
        set(&mut store, b"chosen", b"3", (0, 0), chosen, 902);
        store.flush(Some(950), 903);
        store.end_over(904);
        let mut next = again(&store, &image(&store, 1 << 20), 904);
        assert!(next.get(b"old", false, 905).is_none() && next.get(b"chosen", false, 905).is_some());
        assert!(next.get(b"new", false, 905).is_some());
        for key in [&b"new"[..], b"chosen"] {
            assert!(next.get(key, false, 950).is_none());
        }
    }

    #[test]
    fn cleared_store_has_nothing() {
        let mut store = Store::new(&config(1)).unwrap();
        for number in 0..100 {
            set(&mut store, format!("k{number}").as_bytes(), b"x", (0, 0), Terms::default(), 900);
        }
        store.clear(900);
        assert!(store.is_empty());
        store.slabs.check().unwrap();
    }

    proptest! {
        #[test]
        fn damaged_items_do_no_harm(
            at in 0..4000_usize, byte: u8, cut in 0..4000_usize, noise in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut store = Store::new(&config(1)).unwrap();
            for number in 0..40_u8 {
                set(&mut store, &[b'k', number + 40], &[number; 60], (0, 0), Terms::default(), 900);
            }
            let mut part = image(&store, 1 << 20).concat();
            let at = at % part.len();
            part[at] = byte;
            let cut = cut % part.len();
            for bytes in [&part[..], &part[..cut], &noise[..]] {
                let mut next = Store::new(&config(2)).unwrap();
                next.begin_restore(store.continuation());
                let restored = next.restore(bytes, 900);
                next.end_restore();
                prop_assert!(next.slabs.check().is_ok());
                if restored.is_err() {
                    next.clear(900);
                    prop_assert!(next.is_empty());
                }
            }
        }
    }
}
