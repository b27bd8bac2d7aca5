//! A client's call under way: its parts, those of its reply, and its time-outs.

use super::down::{Down, OVERTAKEN, is_before};
use super::limits::{MILLISECOND, SECOND, UNASKED};
use super::order::Call;
use super::parts::{Bits, parts};
use super::window::Patience;

/// The wait before a refused request is sent again, or more room is asked for; it doubles up to a second.
const BUSY_TIME: u64 = 2 * MILLISECOND;

/// A call under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Open {
    pub(super) call: Call,
    pub(super) number: u64,
    pub(super) parts: u16,
    /// Parts that are there, or on their way.
    pub(super) sent: Bits,
    pub(super) acked: Bits,
    pub(super) granted: u16,
    /// The server's number of its assembly.
    pub(super) assembly: Option<u32>,
    /// All parts are there, and the reply is to come.
    pub(super) is_waiting: bool,
    /// Whether anything was sent.
    pub(super) is_touched: bool,
    pub(super) down: Option<Down>,
    /// When what is on its way is given up.
    pub(super) due: u64,
    /// When a tail loss probe is due, and whether one was sent since something last came.
    pub(super) probe_due: u64,
    pub(super) is_probed: bool,
    /// The clock of the last probe, and the part of the request that it sent again.
    pub(super) probe: Option<(u32, u16)>,
    /// The clock when something was last sent again.
    pub(super) resent: Option<u32>,
    /// The clock when lost parts were last sent again.
    pub(super) recovery: Option<u32>,
    /// It is not sent before.
    pub(super) not_before: u64,
    pub(super) refusals: u32,
    /// The floor that went with its first datagram.
    pub(super) told: u64,
}

impl Open {
    pub(super) fn new(call: Call, number: u64, fragment: usize) -> Self {
        let parts = parts(call.message.len(), fragment);
        Self {
            call,
            number,
            parts,
            sent: Bits::new(parts),
            acked: Bits::new(parts),
            granted: parts.min(UNASKED),
            assembly: None,
            is_waiting: false,
            is_touched: false,
            down: None,
            due: u64::MAX,
            probe_due: u64::MAX,
            is_probed: false,
            probe: None,
            resent: None,
            recovery: None,
            not_before: 0,
            refusals: 0,
            told: 0,
        }
    }

    /// Returns how many datagrams are on their way, in both directions.
    pub(super) fn flight(&self) -> u16 {
        match &self.down {
            Some(down) => down.flight(),
            None => (self.sent.count() - self.acked.count()).max(u16::from(self.is_waiting)),
        }
    }

    /// Returns whether the server has all parts that it has granted.
    pub(super) fn has_granted(&self) -> bool {
        self.acked.count() >= self.granted
    }

    /// It is not sent before a time that doubles with each refusal.
    pub(super) fn hold_back(&mut self, now: u64) {
        self.not_before = now + (BUSY_TIME << self.refusals.min(9)).min(SECOND);
        self.refusals += 1;
    }

    /// All that is on its way counts as lost.
    pub(super) fn give_up_flight(&mut self) {
        self.sent = self.acked.clone();
        self.is_waiting = false;
        (self.due, self.probe_due, self.probe) = (u64::MAX, u64::MAX, None);
        if let Some(down) = &mut self.down {
            down.give_up_flight();
        }
    }

    /// Waits from now on for what is on its way.
    pub(super) fn expect(&mut self, now: u64, patience: Patience) {
        let is_waiting = self.flight() > 0;
        self.due = if is_waiting { now + patience.timeout } else { u64::MAX };
        let probe = patience.probe.filter(|_| is_waiting && !self.is_probed);
        self.probe_due = probe.map_or(u64::MAX, |probe| now + probe);
    }

    /// The last datagram on its way is to be sent again: the answer tells which of the others were lost.
    pub(super) fn probe_tail(&mut self, clock: u32) {
        (self.is_probed, self.probe_due) = (true, u64::MAX);
        if let Some(down) = &mut self.down {
            down.give_up_flight();
        } else if self.is_waiting {
            self.is_waiting = false;
        } else if let Some(last) = (0..self.parts).rev().find(|part| self.sent.has(*part) && !self.acked.has(*part)) {
            self.sent.remove(last);
            self.probe = Some((clock, last));
        }
    }

    /// Counts the parts that a HAVE shows as lost, and has them sent again. Three later ones have overtaken them, or the HAVE answers a probe
    /// that was sent after them.
    pub(super) fn find_lost(&mut self, highest: u16, echo: u32) -> u16 {
        let mut end = highest.saturating_sub(OVERTAKEN - 1);
        if let Some((_, last)) = self.probe.take_if(|(clock, _)| !is_before(echo, *clock)) {
            end = end.max(last);
        }
        let mut lost = 0;
        for part in self.acked.first_missing()..end {
            if self.sent.has(part) && !self.acked.has(part) {
                self.sent.remove(part);
                lost += 1;
            }
        }
        lost
    }
}
