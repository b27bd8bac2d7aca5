//! The accesses of a lane at one server, in the order of posting: how many are under way, and when a write is acked.
//!
//! A fabric completes in that order. Over shared memory a completed write is acked. Over `iwarp` it has only left this side by then; a
//! read that was posted after the write, and has completed, acks it. Where no such read comes by itself, the lane posts one of 8 bytes.
//! It does so after at most half as many writes as may be under way, and when a write is waited for. `P` is a part of an access.

use std::collections::VecDeque;

/// An access, or a read that acks writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind<P> {
    /// Part of a read.
    Read(P),
    /// Part of a write.
    Write(P),
    /// A read that acks writes.
    Ack,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Order<P> {
    /// Whether the completion of a write acks it.
    acks_by_completion: bool,
    depth: usize,
    /// Posted and not completed.
    posted: VecDeque<(u64, Kind<P>)>,
    /// Writes that were completed and are not acked.
    written: VecDeque<P>,
    /// Writes that no read was posted after.
    unread: usize,
    /// Whether a read that acks writes is under way.
    is_acking: bool,
}

impl<P> Order<P> {
    /// Returns an order in which `depth` accesses may be under way.
    pub(super) fn new(depth: usize, acks_by_completion: bool) -> Self {
        Self {
            acks_by_completion,
            depth: depth.max(1),
            posted: VecDeque::new(),
            written: VecDeque::new(),
            unread: 0,
            is_acking: false,
        }
    }

    /// Returns whether another access may be posted.
    pub(super) fn has_room(&self) -> bool {
        self.posted.len() - usize::from(self.is_acking) + self.written.len() < self.depth
    }

    /// Notes what was posted by this name.
    pub(super) fn post(&mut self, id: u64, kind: Kind<P>) {
        match kind {
            Kind::Write(_) => self.unread += usize::from(!self.acks_by_completion),
            Kind::Read(_) => self.unread = 0,
            Kind::Ack => (self.unread, self.is_acking) = (0, true),
        }
        self.posted.push_back((id, kind));
    }

    /// Returns whether nothing is under way, and every write is acked.
    pub(super) fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.written.is_empty()
    }

    /// Returns whether a read that acks writes is to be posted now: enough of them have none, or one is waited for.
    pub(super) fn wants_ack(&self, is_waiting: bool) -> bool {
        let enough = if is_waiting { 1 } else { (self.depth / 2).max(1) };
        self.unread >= enough && !self.is_acking
    }

    /// Notes a completion. Adds the parts to `ended` that end by it. Returns false if it is of no part that was posted.
    pub(super) fn complete(&mut self, id: u64, ended: &mut Vec<P>) -> bool {
        if self.posted.front().is_none_or(|&(first, _)| first != id) {
            return false;
        }
        match self.posted.pop_front() {
            Some((_, Kind::Write(part))) if self.acks_by_completion => ended.push(part),
            Some((_, Kind::Write(part))) => self.written.push_back(part),
            Some((_, kind)) => {
                // All that was completed before it was posted before it.
                ended.extend(self.written.drain(..));
                match kind {
                    Kind::Read(part) => ended.push(part),
                    _ => self.is_acking = false,
                }
            }
            None => return false,
        }
        true
    }

    /// Returns the parts that have not ended. They never do, because the connection is gone.
    pub(super) fn give_up(&mut self) -> Vec<P> {
        let posted = self.posted.drain(..).filter_map(|(_, kind)| match kind {
            Kind::Read(part) | Kind::Write(part) => Some(part),
            Kind::Ack => None,
        });
        let ended = posted.chain(self.written.drain(..)).collect();
        (self.unread, self.is_acking) = (0, false);
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain list: a write is acked if a read that was posted after it has completed, and not before.
        #[test]
        fn writes_end_after_a_later_read(depth in 1..9_usize, steps in prop::collection::vec(0..4_u8, 1..200)) {
            let mut order = Order::new(depth, false);
            let (mut posted, mut next, mut acked) = (Vec::new(), 0, Vec::new());
            let mut completed = 0;
            for step in steps {
                if step < 2 && order.has_room() {
                    let kind = if step == 0 { Kind::Read(next) } else { Kind::Write(next) };
                    order.post(next, kind);
                    posted.push(kind);
                    next += 1;
                }
                if order.wants_ack(step == 3) {
                    order.post(next, Kind::Ack);
                    posted.push(Kind::Ack);
                    next += 1;
                }
                if step >= 2 && completed < next {
                    prop_assert!(!order.complete(completed + 1, &mut acked), "out of order");
                    prop_assert!(order.complete(completed, &mut acked));
                    completed += 1;
                }
                let last_read = posted[..completed as usize].iter().rposition(|kind| !matches!(kind, Kind::Write(_)));
                let expected: Vec<u64> = posted[..last_read.map_or(0, |at| at + 1)].iter().filter_map(|kind| match kind {
                    Kind::Read(op) | Kind::Write(op) => Some(*op),
                    Kind::Ack => None,
                }).collect();
                prop_assert_eq!(&acked, &expected);
                let is_access = |kind: &&Kind<u64>| **kind != Kind::Ack;
                prop_assert!(posted.iter().filter(is_access).count() - acked.len() <= depth);
            }
            // What is waited for ends.
            while acked.len() < posted.iter().filter(|kind| **kind != Kind::Ack).count() {
                if order.wants_ack(true) {
                    order.post(next, Kind::Ack);
                    posted.push(Kind::Ack);
                    next += 1;
                }
                prop_assert!(completed < next, "something is under way");
                order.complete(completed, &mut acked);
                completed += 1;
            }
        }
    }

    #[test]
    fn completed_writes_are_acked_over_shared_memory() {
        let (mut order, mut ended) = (Order::new(2, true), Vec::new());
        order.post(0, Kind::Write(7));
        order.post(1, Kind::Write(8));
        assert!(!order.has_room() && !order.wants_ack(true));
        assert!(order.complete(0, &mut ended));
        assert_eq!(ended, [7]);
        assert!(order.has_room());
        assert_eq!(order.give_up(), [8]);
    }

    #[test]
    fn lost_connections_give_up_unacked_writes() {
        let (mut order, mut ended) = (Order::new(4, false), Vec::new());
        for (id, kind) in [(0, Kind::Write(7)), (1, Kind::Write(8)), (2, Kind::Ack), (3, Kind::Read(9))] {
            order.post(id, kind);
        }
        assert!(order.complete(0, &mut ended));
        assert_eq!(order.give_up(), [8, 9, 7]);
        assert_eq!((ended.len(), order.has_room(), order.wants_ack(true)), (0, true, false));
    }
}
