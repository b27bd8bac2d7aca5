//! The accesses that a connection may make: they wait if their source has guessed too much.
//!
//! An access that waits stops its connection: what the peer sent behind it is put aside, nothing more is received, and the
//! socket is watched for its end alone. When its time has come, the access is looked at as if it came only now.

use super::super::inbound::{Denied, Event};
use super::super::since_start;
use super::super::tags::Standing;
use super::super::terminate::Terminate;
use super::super::throttle::Leave;
use super::Connection;
use rustc_hash::FxHashSet;
use std::time::Instant;

/// Tags that one connection is known to use rightly, at most.
const KNOWN: usize = 1024;

/// A connection's place in the queue of its source.
#[derive(Default)]
pub(super) struct Vetting {
    ticket: Option<u64>,
    /// When the access that waits is looked at again, in nanoseconds.
    again: Option<u64>,
    /// The waiting event, if its frame is complete; else its header is the first that was put aside.
    pub(super) event: Option<Event>,
    /// The bytes behind it.
    pub(super) aside: Vec<u8>,
    /// Tags of the domain by which this connection reached memory since sources are limited.
    known: FxHashSet<u32>,
}

impl Vetting {
    /// When the access that waits is looked at again.
    pub(super) fn again(&self) -> Option<u64> {
        self.again
    }

    /// The access is looked at now.
    pub(super) fn begin(&mut self) {
        self.again = None;
    }
}

impl Connection {
    /// Has a peer's access look up its tag, unless it has to wait first.
    pub(super) fn vet<T>(
        &self,
        vetting: &mut Vetting,
        tag: u32,
        access: impl FnOnce() -> Result<T, Terminate>,
    ) -> Result<T, Denied> {
        let (throttle, tags) = (&self.common.throttle, &self.common.tags);
        let (mut is_sure, mut paid) = (false, false);
        let limited = throttle.is_active();
        if limited {
            is_sure = vetting.known.contains(&tag) || tags.is_own(tag, self.number);
            if !is_sure {
                match throttle.ask(self.source, &mut vetting.ticket, since_start(Instant::now())) {
                    Leave::Free => {}
                    Leave::Paid => paid = true,
                    Leave::Later(again) => {
                        vetting.again = Some(again);
                        return Err(Denied::Later);
                    }
                }
            }
        }
        let result = access();
        match &result {
            Ok(_) => {
                if limited && !is_sure && vetting.known.len() < KNOWN {
                    vetting.known.insert(tag);
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

    /// The connection ends: it leaves its place to others.
    pub(super) fn leave_queue(&self, vetting: &mut Vetting) {
        vetting.again = None;
        vetting.event = None;
        vetting.aside = Vec::new();
        if let Some(ticket) = vetting.ticket.take() {
            self.common.throttle.leave(self.source, ticket);
        }
    }
}
