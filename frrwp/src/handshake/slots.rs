//! The table of a connection's transfers, and its lookup.

use super::Tag;
use super::extents::Extent;
use super::transfer::Transfer;
use crate::wire::Placed;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// Transfers by tag. Tags of a side only rise, so each side's are a sorted queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    /// Places; those of transfers that are gone keep their allocations for the next.
    places: Vec<Transfer>,
    free: Vec<u32>,
    /// By parity of the tag: tag and place.
    order: [VecDeque<(u64, u32)>; 2],
}

/// The place of a transfer, until one is inserted or removed.
#[derive(Clone, Copy)]
pub(super) struct At {
    parity: usize,
    index: usize,
    place: usize,
}

/// Pieces, and extents, that a place keeps room for when its transfer is gone. Without a bound, a peer that fills one place
/// after the other would be given all of them.
const KEPT: usize = 64;

impl Slots {
    pub(super) fn find(&self, tag: Tag) -> Option<At> {
        let parity = (tag.0 & 1) as usize;
        let order = &self.order[parity];
        // Tags are two apart, or more: it cannot stand further back than this, and where none before it is gone it stands here.
        let steps = tag.0.checked_sub(order.front()?.0)? / 2;
        let last = usize::try_from(steps).unwrap_or(usize::MAX).min(order.len() - 1);
        let index = match order[last].0 == tag.0 {
            true => last,
            false => order.binary_search_by_key(&tag.0, |&(tag, _)| tag).ok()?,
        };
        Some(At { parity, index, place: order[index].1 as usize })
    }

    pub(super) fn at(&self, at: At) -> &Transfer {
        &self.places[at.place]
    }

    pub(super) fn at_mut(&mut self, at: At) -> &mut Transfer {
        &mut self.places[at.place]
    }

    pub(super) fn get(&self, tag: Tag) -> Option<&Transfer> {
        self.find(tag).map(|at| self.at(at))
    }

    /// The tag is above all of its parity.
    pub(super) fn insert(&mut self, mut transfer: Transfer, header: &[u8]) -> At {
        let tag = transfer.trip.tag;
        let place = match self.free.pop() {
            Some(place) => {
                transfer.trip.take_lists(&mut self.places[place as usize].trip);
                self.places[place as usize] = transfer;
                place
            }
            None => {
                self.places.push(transfer);
                (self.places.len() - 1) as u32
            }
        };
        self.places[place as usize].trip.header.extend_from_slice(header);
        let parity = (tag.0 & 1) as usize;
        self.order[parity].push_back((tag.0, place));
        At { parity, index: self.order[parity].len() - 1, place: place as usize }
    }

    pub(super) fn remove(&mut self, at: At) {
        self.order[at.parity].remove(at.index);
        self.free.push(at.place as u32);
        self.places[at.place].trip.empty_lists(KEPT);
    }

    /// Returns the transfer with a tag that ends in these bits.
    pub(super) fn by_low_half(&self, low: u32) -> Option<At> {
        let order = &self.order[(low & 1) as usize];
        let (first, last) = (order.front()?.0, order.back()?.0);
        let tag = match last - first > u64::from(u32::MAX) {
            // A peer that leaps: as many to look at as may be open.
            true => order.iter().map(|&(tag, _)| tag).find(|&tag| tag as u32 == low)?,
            false => first.checked_add(low.wrapping_sub(first as u32).into())?,
        };
        self.find(Tag(tag))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Transfer> {
        self.order.iter().flatten().map(|&(_, place)| &self.places[place as usize])
    }

    pub(super) fn tags(&self) -> Vec<Tag> {
        self.iter().map(|transfer| transfer.trip.tag).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.order.iter().map(VecDeque::len).sum()
    }

    pub(super) fn memory(&self) -> usize {
        let lists = |transfer: &Transfer| {
            transfer.trip.header.capacity()
                + transfer.trip.pieces.capacity() * size_of::<Placed>()
                + transfer.trip.extents.capacity() * size_of::<Extent>()
        };
        self.places.capacity() * size_of::<Transfer>()
            + self.places.iter().map(lists).sum::<usize>()
            + self.free.capacity() * size_of::<u32>()
            + self.order.iter().map(|order| order.capacity() * size_of::<(u64, u32)>()).sum::<usize>()
    }
}

/// Only what is open: what stood in a place before decides nothing.
impl PartialEq for Slots {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Slots {}

impl Hash for Slots {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.iter().for_each(|transfer| transfer.hash(state));
    }
}
