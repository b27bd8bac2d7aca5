//! The completions of a connection: messages, the ends of posts, and the end of the connection.

use std::collections::VecDeque;

/// A completion for the application.
#[derive(Debug)]
pub(in super::super) enum Arrival {
    Message(Vec<u8>),
    Done { id: u64, succeeded: bool },
    Lost,
    Flushed,
}

/// A post that is completed in the order of posting.
struct Pending {
    id: u64,
    /// Parts that have not ended.
    left: u32,
}

/// The posts that have not ended, and the completions that the application has not taken.
#[derive(Default)]
pub(in super::super) struct Completions {
    arrivals: VecDeque<Arrival>,
    pending: VecDeque<Pending>,
    /// The sequence number of the first post that is pending.
    first: u64,
}

impl Completions {
    /// Returns whether the application has taken all completions.
    pub(in super::super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Returns the next completion, if one is queued.
    pub(in super::super) fn next(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    /// Returns the number of posts that have not ended.
    pub(in super::super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Adds a post of `parts` parts, and returns its sequence number.
    pub(super) fn begin(&mut self, id: u64, parts: u32) -> u64 {
        self.pending.push_back(Pending { id, left: parts });
        self.first + self.pending.len() as u64 - 1
    }

    /// Ends one part of a post. Each post without parts left is completed if all before it are.
    pub(super) fn end_part(&mut self, sequence: u64) {
        let at = sequence.wrapping_sub(self.first) as usize;
        if let Some(pending) = self.pending.get_mut(at) {
            pending.left -= 1;
        }
        while let Some(&Pending { id, left: 0 }) = self.pending.front() {
            self.pending.pop_front();
            self.first += 1;
            self.arrivals.push_back(Arrival::Done { id, succeeded: true });
        }
    }

    /// Delivers a message.
    pub(super) fn deliver(&mut self, message: Vec<u8>) {
        self.arrivals.push_back(Arrival::Message(message));
    }

    /// Tells of the connection's end: all pending posts fail.
    pub(super) fn end(&mut self) {
        self.arrivals.push_back(Arrival::Lost);
        for Pending { id, .. } in self.pending.drain(..) {
            self.arrivals.push_back(Arrival::Done { id, succeeded: false });
        }
        self.arrivals.push_back(Arrival::Flushed);
    }
}
