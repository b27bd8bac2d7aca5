//! The first messages of an iWARP connection: which side may send, and probes of a silent peer.
//!
//! The side that accepted sends once it has received something (RFC 5044, section 7.1.1). A peer of siw's that has not read the reply
//! yet takes bytes right behind it for a breach, and gives up. Writes come without a completion. So after some time this side sends
//! all the same. And siw overlooks what comes while it accepts: an empty write follows.

use std::time::{Duration, Instant};

/// Probes, and the time before the first; each next one takes four times as long.
pub(super) const PROBES: u32 = 4;
const FIRST_PROBE: Duration = Duration::from_millis(4);
/// The time for which the accepting side waits for the first message. Under emulation a peer was seen to take a fifth of a second
/// to look at a reply.
const LISTENS: Duration = Duration::from_millis(500);

/// The state of a connection whose peer may not have sent anything yet.
pub(super) struct Opening {
    is_iwarp: bool,
    /// Something came.
    received: bool,
    /// Over iWARP: when this side sent first, or probed last.
    sent: Option<Instant>,
    /// Over iWARP, of the side that accepted: until when it waits for the first message.
    listens: Option<Instant>,
    probes: u32,
}

impl Opening {
    pub(super) fn new(is_iwarp: bool) -> Self {
        Self { is_iwarp, received: false, sent: None, listens: None, probes: 0 }
    }

    /// Notes that this side has accepted, and waits for the first message.
    pub(super) fn listen_first(&mut self) {
        if self.is_iwarp {
            self.listens = Some(Instant::now() + LISTENS);
        }
    }

    /// Returns whether this side may send.
    pub(super) fn may_send(&mut self) -> bool {
        let may = self.received || self.listens.is_none_or(|until| until <= Instant::now());
        if may {
            self.listens = None;
        }
        may
    }

    /// Returns whether this side waits for the first message.
    pub(super) fn is_listening(&self) -> bool {
        self.listens.is_some()
    }

    /// Returns when this side may send although nothing came.
    pub(super) fn listens_until(&self, now: Instant) -> Option<Instant> {
        self.listens.filter(|&until| !self.received && until > now)
    }

    /// Notes that this side has sent something.
    pub(super) fn sent(&mut self) {
        if self.sent.is_none() && self.is_iwarp {
            self.sent = Some(Instant::now());
        }
    }

    /// Notes that something came.
    pub(super) fn received(&mut self) {
        self.received = true;
    }

    pub(super) fn has_received(&self) -> bool {
        self.received
    }

    /// Returns when the next probe is due: this side has sent something, and nothing ever came.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        let sent = self.sent.filter(|_| !self.received && self.probes < PROBES)?;
        Some(sent + FIRST_PROBE * 4_u32.pow(self.probes))
    }

    /// Notes that a probe is sent.
    pub(super) fn probed(&mut self, now: Instant) {
        self.probes += 1;
        self.sent = Some(now);
    }

    pub(super) fn probes(&self) -> u32 {
        self.probes
    }
}
