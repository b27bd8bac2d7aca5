//! The state of one transfer, and where transfers are kept.

use super::Tag;
use super::ends::{Failure, Phase};
use crate::wire::{Placed, Segment};
use std::collections::VecDeque;

/// A transfer that is open, or has ended and still holds its lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Transfer {
    pub(super) tag: Tag,
    /// Whether it was opened here.
    pub(super) ours: bool,
    /// Whether the application knows its end.
    pub(super) ended: bool,
    pub(super) role: Role,
    /// What its SYNC said.
    pub(super) length: u64,
    /// When the present wait began, and when it ends.
    pub(super) since: u64,
    pub(super) deadline: u64,
    /// The application's, from the SYNC.
    pub(super) header: Vec<u8>,
    /// Writer: segments of the peer's for which local bytes may still come. Target: segments to be sent.
    pub(super) pieces: Vec<Placed>,
    /// Writer: what is registered of the local buffer.
    pub(super) extents: Vec<Extent>,
    /// Counted against the bound on early segments.
    pub(super) early_bytes: usize,
}

/// Which end of the transfer this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Role {
    Writer(Writer),
    Target(Target),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Writer {
    /// Known from the CRW on.
    pub(super) length: Option<u64>,
    /// Bytes that the peer has offered, and whether that is all.
    pub(super) offered: u64,
    pub(super) all_offered: bool,
    /// Whether any STCRW came.
    pub(super) met: bool,
    /// Bytes registered here.
    pub(super) registered: u64,
    /// Bytes for which writes are submitted, and writes that have not completed.
    pub(super) submitted: u64,
    pub(super) in_flight: u32,
    /// Whether DONE, or what stands for it, has been submitted.
    pub(super) done: bool,
    /// Traditional: whether the application wants the writes.
    pub(super) may_submit: bool,
    /// It failed, and this is said to the peer when no write is in flight.
    pub(super) farewell: Option<Farewell>,
}

/// How a writer that gives up takes its leave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Farewell {
    /// What the peer is told, if anything.
    pub(super) nak: Option<crate::wire::Reason>,
    pub(super) failure: Failure,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Target {
    /// The length of the local buffer, once known.
    pub(super) length: Option<u64>,
    /// Bytes given to be offered, and those that the peer has been told of.
    pub(super) given: u64,
    pub(super) told: u64,
    /// Whether the last segments were given.
    pub(super) all_given: bool,
    /// Whether an STCRW is queued; whether one was sent.
    pub(super) queued: bool,
    pub(super) sent: bool,
    /// A CANCEL is out: why.
    pub(super) cancelled: Option<Failure>,
}

impl Role {
    pub(super) fn writer(length: Option<u64>) -> Self {
        Self::Writer(Writer { length, ..Writer::default() })
    }

    pub(super) fn target(length: Option<u64>) -> Self {
        Self::Target(Target { length, ..Target::default() })
    }
}

/// Bytes of the local buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// The part of a piece that lies in the extent.
pub(super) fn within(piece: Placed, extent: Extent) -> Option<Placed> {
    let Placed { offset, segment } = piece;
    let start = offset.max(extent.offset);
    let end = (offset + segment.length).min(extent.offset + extent.length);
    let length = end.checked_sub(start).filter(|&length| length > 0)?;
    let segment = Segment { address: segment.address + (start - offset), length, key: segment.key };
    Some(Placed { offset: start, segment })
}

impl Transfer {
    pub(super) fn new(tag: Tag, ours: bool, role: Role, length: u64, since: u64, deadline: u64) -> Self {
        Self {
            tag,
            ours,
            ended: false,
            role,
            length,
            since,
            deadline,
            header: Vec::new(),
            pieces: Vec::new(),
            extents: Vec::new(),
            early_bytes: 0,
        }
    }

    pub(super) fn as_writer(&mut self) -> Option<&mut Writer> {
        match &mut self.role {
            Role::Writer(writer) => Some(writer),
            Role::Target(_) => None,
        }
    }

    pub(super) fn as_target(&mut self) -> Option<&mut Target> {
        match &mut self.role {
            Role::Target(target) => Some(target),
            Role::Writer(_) => None,
        }
    }

    /// What it waits for.
    pub(super) fn phase(&self) -> Phase {
        match self.role {
            Role::Writer(writer) if writer.in_flight > 0 => Phase::Writes,
            Role::Writer(writer) if writer.length.is_none() => Phase::Application,
            Role::Writer(writer) if !writer.met => Phase::Answer,
            Role::Writer(_) => Phase::Pieces,
            Role::Target(target) if target.cancelled.is_some() => Phase::Cancelling,
            Role::Target(target) if !target.sent && target.given == 0 => Phase::Application,
            Role::Target(target) if !target.all_given => Phase::Pieces,
            Role::Target(_) => Phase::Done,
        }
    }
}

/// Transfers by tag. Tags of a side only rise, so each side's are a sorted queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Slots {
    /// Places; those of transfers that are gone keep their allocations for the next.
    places: Vec<Transfer>,
    free: Vec<u32>,
    /// By parity of the tag: tag and place.
    order: [VecDeque<(u64, u32)>; 2],
}

impl Slots {
    fn find(&self, tag: Tag) -> Option<(usize, usize, usize)> {
        let parity = (tag.0 & 1) as usize;
        let at = self.order[parity].binary_search_by_key(&tag.0, |&(tag, _)| tag).ok()?;
        Some((parity, at, self.order[parity][at].1 as usize))
    }

    /// The tag is above all of its parity.
    pub(super) fn insert(&mut self, transfer: Transfer, header: &[u8]) {
        let tag = transfer.tag;
        let place = match self.free.pop() {
            Some(place) => {
                let old = &mut self.places[place as usize];
                let (header, pieces, extents) = (
                    std::mem::take(&mut old.header),
                    std::mem::take(&mut old.pieces),
                    std::mem::take(&mut old.extents),
                );
                *old = Transfer { header, pieces, extents, ..transfer };
                place
            }
            None => {
                self.places.push(transfer);
                (self.places.len() - 1) as u32
            }
        };
        self.places[place as usize].header.extend_from_slice(header);
        self.order[(tag.0 & 1) as usize].push_back((tag.0, place));
    }

    pub(super) fn get(&self, tag: Tag) -> Option<&Transfer> {
        self.find(tag).map(|(_, _, place)| &self.places[place])
    }

    pub(super) fn get_mut(&mut self, tag: Tag) -> Option<&mut Transfer> {
        self.find(tag).map(|(_, _, place)| &mut self.places[place])
    }

    /// What it was, without its lists.
    pub(super) fn remove(&mut self, tag: Tag) -> Option<Transfer> {
        let (parity, at, place) = self.find(tag)?;
        self.order[parity].remove(at);
        self.free.push(place as u32);
        let gone = &mut self.places[place];
        gone.header.clear();
        gone.pieces.clear();
        gone.extents.clear();
        let (header, pieces, extents) =
            (std::mem::take(&mut gone.header), std::mem::take(&mut gone.pieces), std::mem::take(&mut gone.extents));
        let copy = gone.clone();
        (gone.header, gone.pieces, gone.extents) = (header, pieces, extents);
        Some(copy)
    }

    /// The open transfer whose tag ends in these bits.
    pub(super) fn by_low_half(&self, low: u32) -> Option<Tag> {
        let order = &self.order[(low & 1) as usize];
        let (first, last) = (order.front()?.0, order.back()?.0);
        if last - first > u64::from(u32::MAX) {
            // A peer that leaps: as many to look at as may be open.
            return order.iter().map(|&(tag, _)| Tag(tag)).find(|tag| tag.0 as u32 == low);
        }
        let after_first = u64::from(low.wrapping_sub(first as u32));
        let candidate = Tag(first.checked_add(after_first)?);
        self.find(candidate).map(|_| candidate)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Transfer> {
        self.order.iter().flatten().map(|&(_, place)| &self.places[place as usize])
    }

    pub(super) fn tags(&self) -> Vec<Tag> {
        self.iter().map(|transfer| transfer.tag).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.order.iter().map(VecDeque::len).sum()
    }

    pub(super) fn memory(&self) -> usize {
        let lists = |transfer: &Transfer| {
            transfer.header.capacity()
                + transfer.pieces.capacity() * size_of::<Placed>()
                + transfer.extents.capacity() * size_of::<Extent>()
        };
        self.places.capacity() * size_of::<Transfer>()
            + self.places.iter().map(lists).sum::<usize>()
            + self.free.capacity() * 4
            + self.order.iter().map(|order| order.capacity() * 16).sum::<usize>()
    }
}
