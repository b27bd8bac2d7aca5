//! The accesses that a connection may make: they wait if their source has guessed too much.
//!
//! An access that waits stops its connection. What the peer sent behind it is put aside, and nothing more is received. The
//! socket is watched for its end alone. When its time has come, the access is looked at as if it came only now.

use super::super::common::Common;
use super::super::inbound::{Denied, Event};
use super::super::since_start;
use super::super::tags::Standing;
use super::super::terminate::Terminate;
use super::super::throttle::{Leave, TagSource};
use rustc_hash::FxHashSet;
use std::time::Instant;

/// Tags that one connection is known to use rightly, at most.
const KNOWN: usize = 1024;

/// The accesses of one connection: those that it may make, and one that waits.
pub(super) struct Vetting {
    /// The connection's number.
    number: u64,
    /// The source that its guesses count for.
    source: TagSource,
    /// Its place in the queue of the source.
    ticket: Option<u64>,
    /// When the access that waits is looked at again, in nanoseconds.
    again: Option<u64>,
    /// The waiting event, if its frame is complete; else its header is the first that was put aside.
    event: Option<Event>,
    /// The bytes behind it.
    aside: Vec<u8>,
    /// Tags of the domain by which this connection reached memory since sources are limited.
    known: FxHashSet<u32>,
}

impl Vetting {
    pub(super) fn new(number: u64, source: TagSource) -> Self {
        Self { number, source, ticket: None, again: None, event: None, aside: Vec::new(), known: FxHashSet::default() }
    }

    /// Returns when the access that waits is looked at again.
    pub(super) fn again(&self) -> Option<u64> {
        self.again
    }

    /// Returns the event that waited, to be looked at now.
    pub(super) fn begin(&mut self) -> Option<Event> {
        self.again = None;
        self.event.take()
    }

    /// Keeps an event that waits.
    pub(super) fn hold(&mut self, event: Event) {
        self.event = Some(event);
    }

    /// Keeps bytes that came behind the access that waits.
    pub(super) fn put_aside(&mut self, bytes: &[u8]) {
        self.aside.extend_from_slice(bytes);
    }

    /// Returns the bytes that came behind the access that waited.
    pub(super) fn take_aside(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.aside)
    }

    /// Looks up the tag of a peer's access, unless the access has to wait first.
    pub(super) fn access<T>(
        &mut self,
        Common { throttle, tags, .. }: &Common,
        tag: u32,
        access: impl FnOnce() -> Result<T, Terminate>,
    ) -> Result<T, Denied> {
        let (mut is_sure, mut paid) = (false, false);
        let limited = throttle.is_active();
        if limited {
            is_sure = self.known.contains(&tag) || tags.is_own(tag, self.number);
            if !is_sure {
                match throttle.ask(self.source, &mut self.ticket, since_start(Instant::now())) {
                    Leave::Free => {}
                    Leave::Paid => paid = true,
                    Leave::Later(again) => {
                        self.again = Some(again);
                        return Err(Denied::Later);
                    }
                }
            }
        }
        let result = access();
        match &result {
            Ok(_) => {
                if limited && !is_sure && self.known.len() < KNOWN {
                    self.known.insert(tag);
                }
            }
            Err(terminate) if terminate.is_guess() => match tags.standing(tag, self.number) {
                // Misused, and no guess; but a token that found one is spent.
                Standing::Valid => paid = false,
                Standing::Ended => throttle.was_late(),
                Standing::Foreign => {
                    throttle.guessed(self.source, paid, since_start(Instant::now()));
                    paid = false;
                }
            },
            Err(_) => {}
        }
        if paid {
            throttle.refund(self.source);
        }
        result.map_err(Denied::Wrong)
    }

    /// Drops the access that waits, and leaves its place to others: the connection ends.
    pub(super) fn leave(&mut self, common: &Common) {
        self.again = None;
        self.event = None;
        self.aside = Vec::new();
        if let Some(ticket) = self.ticket.take() {
            common.throttle.leave(self.source, ticket);
        }
    }
}
