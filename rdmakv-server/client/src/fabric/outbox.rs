//! Messages on their way to a server, in fragments: what finds no room waits.

use crate::end::End;
use frrwp::handshake::SendError;
use frrwp::wire::MAX_FRAME_PAYLOAD;
use rdmakv_proto::messages::{self, FRAGMENT, Kind};
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Fragment>,
    spare: Vec<Vec<u8>>,
}

struct Fragment {
    id: u32,
    first: bool,
    bytes: Vec<u8>,
}

impl Outbox {
    /// Queues a message.
    pub(super) fn push(&mut self, id: u32, kind: Kind, message: &[u8]) {
        const PART: usize = MAX_FRAME_PAYLOAD - FRAGMENT;
        let mut at = 0;
        loop {
            let end = message.len().min(at + PART);
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            messages::start(&mut bytes, id, kind, end < message.len());
            bytes.extend_from_slice(&message[at..end]);
            self.waiting.push_back(Fragment { id, first: at == 0, bytes });
            at = end;
            if at == message.len() {
                return;
            }
        }
    }

    /// Says what there is room for.
    pub(super) fn say(&mut self, end: &mut dyn End) -> Result<(), SendError> {
        while let Some(first) = self.waiting.front() {
            match end.say(&first.bytes) {
                Ok(()) => {
                    if let Some(fragment) = self.waiting.pop_front()
                        && self.spare.len() < 8
                    {
                        self.spare.push(fragment.bytes);
                    }
                }
                // Told when there is.
                Err(SendError::Full) => return Ok(()),
                Err(unsaid) => return Err(unsaid),
            }
        }
        Ok(())
    }

    /// Returns whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes a message of which no part has been said. Returns whether it was one.
    pub(super) fn remove(&mut self, id: u32) -> bool {
        let is_whole = self.has_all(id);
        if is_whole {
            self.waiting.retain(|fragment| fragment.id != id);
        }
        is_whole
    }

    /// Returns whether no part of a message has been said.
    pub(super) fn has_all(&self, id: u32) -> bool {
        self.waiting.iter().any(|fragment| fragment.id == id && fragment.first)
    }
}
