//! The output of a session: bytes of its own, and values that stay in the store until they are sent.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::session::Shards;
use crate::store::ChunkRef;

#[derive(Debug)]
struct Lent {
    /// Bytes of our own that go before it.
    before: usize,
    shard: usize,
    held: ChunkRef,
}

/// The output. A dropped one with values in it loses their memory to the store: see [`clear`](Self::clear).
#[derive(Debug, Default)]
pub struct Out {
    /// Bytes of our own.
    pub bytes: Vec<u8>,
    lent: VecDeque<Lent>,
    /// Sent of `bytes`, and of the first value.
    sent: (usize, usize),
    lent_bytes: usize,
}

/// Slices that go with one system call.
pub const SLICES: usize = 64;

impl Out {
    /// Returns whether all was sent.
    pub fn is_empty(&self) -> bool {
        self.lent.is_empty() && self.sent.0 == self.bytes.len()
    }

    /// Bytes to send, the values' included.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.sent.0 + self.lent_bytes - self.sent.1
    }

    /// The value goes after what is there so far.
    pub fn lend(&mut self, shard: usize, held: ChunkRef) {
        self.lent_bytes += held.value().len();
        self.lent.push_back(Lent { before: self.bytes.len(), shard, held });
    }

    /// Fills in the next slices to write, and returns their number.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let (mut at, mut skip, mut count) = (self.sent.0, self.sent.1, 0);
        let mut push = |bytes: &'a [u8]| {
            if !bytes.is_empty() && count < SLICES {
                slices[count] = IoSlice::new(bytes);
                count += 1;
            }
        };
        for lent in self.lent.iter().take(SLICES / 2) {
            push(&self.bytes[at..lent.before]);
            push(&lent.held.value()[skip..]);
            (at, skip) = (lent.before, 0);
        }
        if self.lent.len() <= SLICES / 2 {
            push(&self.bytes[at..]);
        }
        count
    }

    /// Copies the next bytes, so many, of those that [wait](Self::waiting).
    pub(crate) fn copy(&self, mut bytes: usize, into: &mut Vec<u8>) {
        let (mut at, mut skip) = self.sent;
        let mut push = |part: &[u8]| {
            let part = &part[..part.len().min(bytes)];
            into.extend_from_slice(part);
            bytes -= part.len();
            bytes > 0
        };
        for lent in &self.lent {
            if !push(&self.bytes[at..lent.before]) || !push(&lent.held.value()[skip..]) {
                return;
            }
            (at, skip) = (lent.before, 0);
        }
        push(&self.bytes[at..]);
    }

    /// So many bytes were written; values that went entirely go back to the store.
    pub fn advance(&mut self, mut written: usize, shards: &Shards) {
        while let Some(first) = self.lent.front() {
            let own = (first.before - self.sent.0).min(written);
            self.sent.0 += own;
            written -= own;
            if self.sent.0 < first.before {
                return;
            }
            let value = first.held.value().len();
            let part = (value - self.sent.1).min(written);
            self.sent.1 += part;
            written -= part;
            if self.sent.1 < value {
                return;
            }
            self.sent.1 = 0;
            self.lent_bytes -= value;
            if let Some(Lent { shard, held, .. }) = self.lent.pop_front() {
                shards.at(shard).release(held);
            }
        }
        self.sent.0 += written;
        if self.sent.0 == self.bytes.len() {
            self.bytes.clear();
            self.sent.0 = 0;
        }
    }

    /// Forgets everything; values go back.
    pub fn clear(&mut self, shards: &Shards) {
        for Lent { shard, held, .. } in self.lent.drain(..) {
            shards.at(shard).release(held);
        }
        self.bytes.clear();
        self.sent = (0, 0);
        self.lent_bytes = 0;
    }

    /// Gives memory back that a large answer needed.
    pub fn shrink(&mut self, to: usize) {
        if self.bytes.is_empty() && self.bytes.capacity() > to {
            self.bytes = Vec::new();
        }
        if self.lent.is_empty() && self.lent.capacity() * size_of::<Lent>() > to {
            self.lent = VecDeque::new();
        }
    }
}
