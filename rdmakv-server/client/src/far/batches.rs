//! The batches of a lane at one server: which accesses wait for more of their kind, and which are under way.
//!
//! Pure: the lane sends what [`Batches::take`] returns. A server answers batches in the order of sending.

use rdmakv_proto::far::batch::{DATA_MAX, HEAD, OPERATION, REPLY};
use std::collections::VecDeque;

/// The bytes of a batch that is being filled: its operations, and their replies.
#[derive(Clone, Copy, Default, Debug)]
struct Filled {
    out: usize,
    back: usize,
}

impl Filled {
    fn with(self, length: usize, writes: bool) -> Self {
        let (out, back) = if writes { (length, 0) } else { (0, length) };
        Self { out: self.out + OPERATION + out, back: self.back + REPLY + back }
    }
}

/// See the module. `P` is a part of an access.
#[derive(Clone, Debug)]
pub(super) struct Batches<P> {
    /// Operations of a batch at most.
    operations: usize,
    /// Batches under way at most.
    depth: usize,
    open: Vec<P>,
    filled: Filled,
    sent: VecDeque<(u32, Vec<P>)>,
    sequence: u32,
}

impl<P> Batches<P> {
    /// Returns batches of so many operations, of which `depth` are under way.
    pub(super) fn new(operations: usize, depth: usize) -> Self {
        let (operations, depth) = (operations.max(1), depth.max(1));
        Self { operations, depth, open: Vec::new(), filled: Filled::default(), sent: VecDeque::new(), sequence: 0 }
    }

    /// Returns whether the open batch takes an operation of so many bytes. An empty one takes any.
    pub(super) fn takes(&self, length: usize, writes: bool) -> bool {
        let Filled { out, back } = self.filled.with(length, writes);
        self.open.is_empty() || (self.open.len() < self.operations && out.max(back) <= DATA_MAX)
    }

    /// Adds an operation to the open batch, which takes it. Returns whether the batch is full by it.
    pub(super) fn add(&mut self, part: P, length: usize, writes: bool) -> bool {
        debug_assert!(self.takes(length, writes), "the caller sends a full batch first");
        self.filled = self.filled.with(length, writes);
        self.open.push(part);
        self.open.len() >= self.operations
    }

    /// Returns whether another batch may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.sent.len() < self.depth
    }

    /// Takes the open batch to be sent, which counts as under way from now on: its number, its operations, and its bytes at most. None
    /// if it is empty.
    pub(super) fn take(&mut self) -> Option<(u32, &[P], usize)> {
        if self.open.is_empty() {
            return None;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = HEAD + std::mem::take(&mut self.filled).out;
        self.sent.push_back((self.sequence, std::mem::take(&mut self.open)));
        self.sent.back().map(|(sequence, parts)| (*sequence, &parts[..], bytes))
    }

    /// Notes that the replies of a batch came. Returns its operations. None if another one was to be answered.
    pub(super) fn end(&mut self, sequence: u32) -> Option<Vec<P>> {
        self.sent.front().filter(|(sent, _)| *sent == sequence)?;
        self.sent.pop_front().map(|(_, parts)| parts)
    }

    /// Returns whether the open batch has such an operation.
    pub(super) fn is_open(&self, is_meant: impl Fn(&P) -> bool) -> bool {
        self.open.iter().any(is_meant)
    }

    /// Returns whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns the operations that have not ended. They never do, because the connection is gone.
    pub(super) fn give_up(&mut self) -> Vec<P> {
        self.filled = Filled::default();
        let sent = self.sent.drain(..).flat_map(|(_, parts)| parts);
        sent.chain(self.open.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against plain counts: each operation ends once, in the order of adding, and no bound is passed.
        #[test]
        fn operations_end_once_and_in_order(
            operations in 1..20_usize, depth in 1..5_usize,
            steps in prop::collection::vec((0..4_u8, 0..9000_usize, any::<bool>()), 1..300),
        ) {
            let mut batches = Batches::new(operations, depth);
            let (mut next, mut ended, mut sequences) = (0, Vec::new(), VecDeque::new());
            for (step, length, writes) in steps {
                if step < 2 && batches.takes(length, writes) {
                    let is_full = batches.add(next, length, writes);
                    prop_assert_eq!(is_full, batches.open.len() == operations);
                    next += 1;
                } else if step == 2 && batches.has_room() {
                    if let Some((sequence, parts, bytes)) = batches.take() {
                        prop_assert!(parts.len() <= operations && bytes <= HEAD + DATA_MAX);
                        sequences.push_back(sequence);
                    }
                } else if let Some(sequence) = sequences.pop_front() {
                    prop_assert_eq!(batches.end(sequence + 1), None, "another is answered first");
                    ended.extend(batches.end(sequence).unwrap());
                }
                prop_assert!(sequences.len() <= depth && batches.is_idle() == sequences.is_empty());
            }
            ended.extend(batches.give_up());
            prop_assert_eq!(ended, (0..next).collect::<Vec<_>>());
            prop_assert!(batches.is_idle() && batches.take().is_none());
        }
    }

    #[test]
    fn long_operations_fill_a_batch_early() {
        let mut batches = Batches::new(100, 1);
        assert!(batches.takes(DATA_MAX, false), "an empty one takes any");
        assert!(!batches.add(0, DATA_MAX - REPLY - 20, false));
        assert!(!batches.takes(20, false), "its replies would be too long");
        assert!(batches.takes(4096, true), "a write adds few bytes to the replies");
        assert!(!batches.add(1, 4096, true));
        assert!(batches.is_open(|&part| part == 1) && !batches.is_open(|&part| part == 2));
    }
}
