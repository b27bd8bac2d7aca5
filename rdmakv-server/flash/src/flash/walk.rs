//! Walks over the stubs of items that are on flash only: to show them, and to take out those that are over.

use super::{Flash, is_over, view_marks};
use crate::layout;
use crate::stubs::{self, Id, Stub};

/// A place in a walk; the default is the begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(Id);

impl Default for Position {
    fn default() -> Self {
        Self(Id::NONE)
    }
}

/// The fields of an item on flash that its stub has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u32,
    /// Bytes of the record, rounded up.
    pub len: u32,
    /// Whether it was fetched since it was stored.
    pub fetched: bool,
    /// The store's two marks.
    pub marks: u8,
}

/// An item on flash only that the crawler looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crawled {
    /// Bytes of its record, rounded up.
    pub len: u32,
    /// Whether it was fetched since it was stored.
    pub fetched: bool,
    /// Whether it was over, and was taken out.
    pub over: bool,
}

impl Flash {
    /// Shows the items on flash only among the next `stubs` stubs; returns whether that was the end. An item that comes
    /// or moves meanwhile may be missed or seen twice.
    pub fn walk(&self, from: &mut Position, stubs: usize, now: u32, mut see: impl FnMut(Listed<'_>)) -> bool {
        for _ in 0..stubs {
            let Some(id) = self.stubs.after(from.0) else { return true };
            from.0 = id;
            let stub = self.stubs.get(id);
            if self.is_shown(stub, now) {
                see(self.listed(id, stub));
            }
        }
        false
    }
    /// Returns the key's item if it is on flash only. Nothing is changed.
    #[must_use]
    pub fn look(&self, hash: u64, key: &[u8], now: u32) -> Option<Listed<'_>> {
        let id = self.find(hash, key)?;
        let stub = self.stubs.get(id);
        self.is_shown(stub, now).then(|| self.listed(id, stub))
    }
    /// Notes that an item was asked for, as a [`get`](Self::get) would.
    pub fn note_asked(&mut self, hash: u64, key: &[u8]) {
        let Some(id) = self.find(hash, key) else { return };
        let mut stub = self.stubs.get(id);
        stub.marks = (stub.marks | stubs::FETCHED) + u8::from(stub.marks & stubs::FREQUENCY < 7);
        self.stubs.set(id, stub);
    }
    /// Takes out items that are over, among the next `stubs` stubs, and shows each that it looked at; returns whether that was the
    /// end. The next step goes on after them.
    pub fn crawl(&mut self, stubs: usize, now: u32, mut see: impl FnMut(Crawled)) -> bool {
        for _ in 0..stubs {
            let Some(id) = self.stubs.after(self.crawled) else {
                self.crawled = Id::NONE;
                return true;
            };
            self.crawled = id;
            let stub = self.stubs.get(id);
            // Of an item in RAM, the expiry there counts.
            if stub.marks & stubs::SHADOWED != 0 {
                continue;
            }
            let over = is_over(stub, now);
            see(Crawled { len: self.bytes_of(stub), fetched: stub.marks & stubs::FETCHED != 0, over });
            if over {
                let hash = self.hash(self.stubs.key(id));
                self.remove_id(hash, id);
            }
        }
        false
    }
    /// Returns the rounded lengths of records, and of how many items that are on flash only.
    pub fn lengths(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.stubs.lengths().map(|(code, _, away)| (layout::decode_len(code) * self.settings.layout.unit(), away))
    }
    /// Returns the bytes of all records that stubs name, rounded up.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let unit = u64::from(self.settings.layout.unit());
        self.stubs.lengths().map(|(code, all, _)| u64::from(layout::decode_len(code)) * unit * all).sum()
    }

    fn is_shown(&self, stub: Stub, now: u32) -> bool {
        stub.marks & stubs::SHADOWED == 0 && !is_over(stub, now) && self.segments.counts(self.segment_of(stub))
    }
    pub(super) fn bytes_of(&self, stub: Stub) -> u32 {
        layout::decode_len(stub.len) * self.settings.layout.unit()
    }
    fn listed(&self, id: Id, stub: Stub) -> Listed<'_> {
        let Stub { expiry, marks, .. } = stub;
        let fetched = marks & stubs::FETCHED != 0;
        Listed { key: self.stubs.key(id), expiry, len: self.bytes_of(stub), fetched, marks: view_marks(marks) }
    }
}
