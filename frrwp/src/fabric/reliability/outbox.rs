//! Datagrams to send, one after another in one buffer.
//!
//! A driver that takes many datagrams before it sends could fill memory. So a full outbox loses datagrams, as a network does.

use super::wire::Datagram;
use crate::fabric::traits::Peer;

/// Bytes from which on an outbox takes no datagram. A window of the longest ones fits.
const FULL: usize = 4 << 20;

/// Datagrams to send. The driver takes them after each call.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    ends: Vec<(Peer, usize)>,
    lost: u64,
}

impl Outbox {
    pub(super) fn push(&mut self, to: Peer, datagram: &Datagram<'_>, more: &[u8], check: bool) {
        if self.bytes.len() >= FULL {
            self.lost += 1;
            return;
        }
        datagram.encode(more, check, &mut self.bytes);
        self.ends.push((to, self.bytes.len()));
    }

    /// Returns how many datagrams were lost because it was full.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the datagrams, each with its receiver.
    pub fn iter(&self) -> impl Iterator<Item = (Peer, &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |&(to, end)| (to, &self.bytes[std::mem::replace(&mut start, end)..end]))
    }

    /// Returns whether the outbox is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets the datagrams: they were sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}
