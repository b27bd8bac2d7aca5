//! The transfers of a connection, and the tags that both sides have used.

use super::link::Link;
use super::slots::{At, Slots};
use super::transfer::{Role, Transfer};
use super::trip::Trip;
use super::{Side, Tag};

/// Transfers that are open, or have ended and still hold a lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Transfers {
    side: Side,
    slots: Slots,
    /// The next tag of this side, and the highest that the peer has opened.
    next: u64,
    highest: u64,
    /// Transfers that each side has open: one's own, the peer's.
    open: [usize; 2],
}

/// The subject of a tag in a message.
pub(super) enum About {
    Open(At),
    /// It has ended.
    Late,
    /// It was not opened, or the peer cannot know of it yet.
    Never,
}

/// The tag of a SYNC of the peer's.
pub(super) enum Opening {
    /// A new one.
    New,
    /// It was opened before.
    Late,
    /// It ends in the same bits as one that is open.
    Ambiguous,
    /// A tag of this side's, or none.
    Wrong,
}

impl Transfers {
    pub(super) fn new(side: Side) -> Self {
        let next = if side == Side::Connecting { 1 } else { 2 };
        Self { side, slots: Slots::default(), next, highest: 0, open: [0; 2] }
    }

    /// Applies a rule to a transfer, and removes it if its lease may go.
    pub(super) fn apply<T>(&mut self, link: &mut Link, at: At, rule: impl FnOnce(&mut Transfer, &mut Link) -> T) -> T {
        let transfer = self.slots.at_mut(at);
        let result = rule(transfer, link);
        if transfer.trip.released {
            self.open[usize::from(!transfer.trip.ours)] -= 1;
            self.slots.remove(at);
        }
        result
    }

    /// Applies a rule to each transfer.
    pub(super) fn apply_to_all(&mut self, link: &mut Link, rule: impl Fn(&mut Transfer, &mut Link)) {
        for tag in self.slots.tags() {
            if let Some(at) = self.slots.find(tag) {
                self.apply(link, at, &rule);
            }
        }
    }

    pub(super) fn find(&self, tag: Tag) -> Option<At> {
        self.slots.find(tag)
    }

    /// Returns the place of a transfer that has not ended.
    pub(super) fn find_open(&self, tag: Tag) -> Option<At> {
        self.slots.find(tag).filter(|&at| !self.slots.at(at).trip.ended)
    }

    /// Returns the transfer with a tag that ends in these bits.
    pub(super) fn by_low_half(&self, low: u32) -> Option<At> {
        self.slots.by_low_half(low)
    }

    pub(super) fn get(&self, tag: Tag) -> Option<&Transfer> {
        self.slots.get(tag)
    }

    /// Returns the subject of a tag in a message of the peer's.
    pub(super) fn about(&self, tag: Tag) -> About {
        if let Some(at) = self.slots.find(tag) {
            match &self.slots.at(at).trip {
                trip if !trip.said => return About::Never,
                trip if !trip.ended => return About::Open(at),
                _ => {}
            }
        }
        let opened = if self.is_own(tag) { tag.0 < self.next } else { tag.0 <= self.highest };
        if opened && tag.0 > 0 { About::Late } else { About::Never }
    }

    /// Returns whether the peer may have opened a transfer of this tag before.
    pub(super) fn peer_has_opened(&self, tag: Tag) -> bool {
        !self.is_own(tag) && tag.0 > 0 && tag.0 <= self.highest
    }

    fn is_own(&self, tag: Tag) -> bool {
        (tag.0 & 1 == 1) == (self.side == Side::Connecting)
    }

    /// Returns how many transfers this side has open.
    pub(super) fn own_open(&self) -> usize {
        self.open[0]
    }

    /// Returns how many transfers the peer has open.
    pub(super) fn peer_open(&self) -> usize {
        self.open[1]
    }

    /// Opens a transfer of this side's, and returns its tag.
    pub(super) fn open(&mut self, role: Role, length: u64, header: &[u8], now: u64, deadline: u64) -> Tag {
        // The low half names a transfer where an immediate stands for DONE.
        while self.slots.by_low_half(self.next as u32).is_some() {
            self.next += 2;
        }
        let tag = Tag(self.next);
        self.next += 2;
        self.open[0] += 1;
        self.slots.insert(Transfer { trip: Trip::new(tag, true, length, now, deadline), role }, header);
        tag
    }

    /// Notes the tag of a SYNC of the peer's.
    pub(super) fn peer_opens(&mut self, tag: Tag) -> Opening {
        if self.is_own(tag) || tag.0 == 0 {
            return Opening::Wrong;
        }
        if tag.0 <= self.highest {
            return Opening::Late;
        }
        self.highest = tag.0;
        if self.slots.by_low_half(tag.0 as u32).is_some() { Opening::Ambiguous } else { Opening::New }
    }

    /// Enters a transfer that the peer has opened.
    pub(super) fn enter(&mut self, tag: Tag, role: Role, length: u64, header: &[u8], now: u64, deadline: u64) -> At {
        self.open[1] += 1;
        self.slots.insert(Transfer { trip: Trip::new(tag, false, length, now, deadline), role }, header)
    }

    /// Sets the time at which a transfer is given up.
    pub(super) fn set_limit(&mut self, at: At, over: u64) {
        self.slots.at_mut(at).trip.limit = over;
    }

    /// Returns the transfers that are due, and the earliest deadline of the others.
    pub(super) fn due(&self, now: u64) -> (Vec<Tag>, u64) {
        let mut due = Vec::new();
        let mut earliest = u64::MAX;
        for trip in self.slots.iter().map(|transfer| &transfer.trip).filter(|trip| !trip.ended) {
            if trip.next_deadline() <= now {
                due.push(trip.tag);
            } else {
                earliest = earliest.min(trip.next_deadline());
            }
        }
        (due, earliest)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the bytes that are allocated.
    pub(super) fn memory(&self) -> usize {
        self.slots.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Handshake, Limits};
    use super::*;

    #[test]
    fn a_tag_whose_low_half_is_open_is_passed_over() {
        let mut side = Handshake::new(Side::Accepting, Limits::default());
        assert_eq!(side.write(0, 10, b""), Ok(Tag(2)));
        // As after two billion more, with the first still open.
        side.transfers.next = (1 << 32) + 2;
        assert_eq!(side.write(0, 10, b""), Ok(Tag((1 << 32) + 4)));
    }
}
