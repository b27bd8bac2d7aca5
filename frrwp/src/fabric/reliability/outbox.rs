//! Datagrams to send, one after another in one buffer.

use super::wire::Datagram;
use crate::fabric::traits::Peer;

/// Datagrams to send. The driver takes them after each call.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    ends: Vec<(Peer, usize)>,
}

impl Outbox {
    pub(super) fn push(&mut self, to: Peer, datagram: &Datagram<'_>, more: &[u8], check: bool) {
        datagram.encode(more, check, &mut self.bytes);
        self.ends.push((to, self.bytes.len()));
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
