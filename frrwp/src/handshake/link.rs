//! What all transfers of a connection share: what is to be done and said, credits, bounds and counts.

use super::credits::Credits;
use super::ends::{Counters, Disconnect};
use super::{Action, Limits, Tag};
use crate::wire::{Body, MESSAGE, Message, Reason};
use std::collections::VecDeque;

/// A connection without its transfers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Link {
    pub(super) limits: Limits,
    pub(super) credits: Credits,
    /// What is to be said, in order.
    pub(super) out: VecDeque<Out>,
    pub(super) actions: VecDeque<Action>,
    /// Bytes of segments that came before they could be used.
    pub(super) early_bytes: usize,
    /// Nothing that is open ends earlier than this.
    pub(super) earliest: u64,
    pub(super) state: Connection,
    pub(super) counters: Counters,
    /// SAYs that a peer of an older version may still answer with NAK; and, once it has, which version it speaks.
    pub(super) said: u32,
    pub(super) deaf: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Connection {
    Stands,
    /// A disconnect was asked for.
    Ends,
    Lost,
    Flushed,
}

/// Something to be said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Out {
    Sync(Tag),
    /// Whatever the target has to offer when it is sent.
    Stcrw(Tag),
    Done {
        tag: Tag,
        bytes: u64,
    },
    Nak {
        tag: Tag,
        reason: Reason,
    },
    Cancel(Tag),
}

impl Link {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            credits: Credits::new(limits.receives),
            out: VecDeque::new(),
            actions: VecDeque::new(),
            early_bytes: 0,
            earliest: u64::MAX,
            state: Connection::Stands,
            counters: Counters::default(),
            said: 0,
            deaf: None,
        }
    }

    pub(super) fn stands(&self) -> bool {
        self.state == Connection::Stands
    }

    /// Nothing is said that nobody hears.
    pub(super) fn say(&mut self, out: Out) {
        if self.stands() {
            self.out.push_back(out);
        }
    }

    /// Does not say it after all. What stands before it may wait for long, and more would pile up behind that.
    pub(super) fn take_back(&mut self, said: Out) {
        self.out.retain(|out| *out != said);
    }

    pub(super) fn disconnect(&mut self, why: Disconnect) {
        if self.stands() {
            self.state = Connection::Ends;
            self.earliest = u64::MAX;
            self.out.clear();
            self.actions.push_back(Action::Disconnect { why });
        }
    }

    /// A moment so much later; noted, so that it is not slept over.
    pub(super) fn deadline(&mut self, now: u64, time: u64) -> u64 {
        let deadline = now.saturating_add(time);
        if self.stands() {
            self.earliest = self.earliest.min(deadline);
        }
        deadline
    }

    /// How long bytes may take, once nothing but the network stands between.
    pub(super) fn time_for(&self, bytes: u64) -> u64 {
        let rate = u128::from(self.limits.lowest_rate.max(1));
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / rate;
        self.limits.write_time.saturating_add(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// One more message that makes no sense.
    pub(super) fn count_stranger(&mut self) {
        self.counters.strangers += 1;
        if self.counters.strangers >= self.limits.strangers {
            self.disconnect(Disconnect::Strangers { count: self.counters.strangers });
        }
    }

    /// A CREDIT, where the peer should hear of its receives and there is nothing else to say.
    pub(super) fn take_credits(&mut self, into: &mut [u8; MESSAGE]) -> Option<usize> {
        if !self.credits.should_announce() {
            return None;
        }
        let credits = self.credits.spend()?;
        self.counters.sent += 1;
        self.counters.credit_messages += 1;
        Some(Message { credits, tag: 0, body: Body::Credit }.encode(into))
    }
}
