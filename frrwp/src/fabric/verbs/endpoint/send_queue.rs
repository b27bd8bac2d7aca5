//! The entries of the send queue, in order, and the memory of its messages.

#![expect(unsafe_code, reason = "copies messages into registered memory")]

use super::super::slots::Slots;
use super::super::{VerbsDomain, ib};
use crate::wire::Segment;
use ib::ibv_wc_status as status;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// Bytes a second below which a transfer counts as stalled.
const LOWEST_RATE: u64 = 10_000_000;

/// An entry of the send queue.
pub(super) enum Posted {
    /// A message, with its slot if it is not inline.
    Message(Option<u32>),
    /// A write or read, or a part of one.
    Part {
        id: u64,
        is_last: bool,
        reads: bool,
        to: Segment,
    },
    Probe,
    /// A window is bound.
    Bind,
    /// The key of the window with this number is taken back.
    Invalidate(usize),
}

/// An entry and its status, if it has one. Over siw an entry behind a read may end before the read.
struct Entry {
    what: Posted,
    ended: Option<status::Type>,
}

/// The send queue of a connection, and the memory of its messages.
pub(super) struct SendQueue {
    entries: VecDeque<Entry>,
    /// The number of the first entry, and since when it is the first.
    first: u64,
    first_since: Instant,
    /// The number of entries that the queue has room for.
    depth: usize,
    /// The memory of messages that are not inline.
    slots: Slots,
}

/// A message in registered memory.
pub(super) struct Staged {
    pub(super) slot: u32,
    pub(super) address: *const u8,
    pub(super) key: u32,
}

impl Posted {
    /// Returns the operation's name, for errors.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Message(_) => "message",
            Self::Part { reads: true, .. } => "read",
            Self::Part { .. } | Self::Probe => "write",
            Self::Bind | Self::Invalidate(_) => "window",
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Part { to, .. } => to.length,
            _ => 0,
        }
    }
}

impl SendQueue {
    pub(super) fn new(domain: &VerbsDomain, depth: u32) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            first_since: Instant::now(),
            depth: depth as usize,
            slots: Slots::new(domain),
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn has_room(&self, entries: usize) -> bool {
        self.entries.len() + entries <= self.depth
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of the next entry.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Adds an entry that was posted.
    pub(super) fn push(&mut self, what: Posted) {
        if self.entries.is_empty() {
            self.first_since = Instant::now();
        }
        self.entries.push_back(Entry { what, ended: None });
    }

    /// Notes the status of an entry.
    pub(super) fn complete(&mut self, number: u64, status: status::Type) {
        let at = usize::try_from(number.wrapping_sub(self.first)).ok();
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) {
            entry.ended = Some(status);
        }
    }

    /// Removes the first entry, if it has a status.
    pub(super) fn pop_completed(&mut self, now: Instant) -> Option<(Posted, status::Type)> {
        let status = self.entries.front()?.ended?;
        let Entry { what, .. } = self.entries.pop_front()?;
        self.first += 1;
        self.first_since = now;
        Some((what, status))
    }

    /// Removes the first entry, whatever its status.
    pub(super) fn pop(&mut self) -> Option<Posted> {
        self.entries.pop_front().map(|entry| entry.what)
    }

    /// Returns when the first entry counts as stalled.
    pub(super) fn stalls_at(&self, stall: Duration) -> Option<Instant> {
        let first = self.entries.front()?;
        let time = Duration::from_nanos((first.what.bytes() / (LOWEST_RATE / 1_000_000)).saturating_mul(1_000));
        Some(self.first_since + stall + time)
    }

    /// Returns the name of the first entry, and how long it has been the first.
    pub(super) fn first(&self, now: Instant) -> (&'static str, Duration) {
        let operation = self.entries.front().map_or("write", |entry| entry.what.name());
        (operation, now.saturating_duration_since(self.first_since))
    }

    /// Copies a message to registered memory. Returns None if other messages hold all of it.
    pub(super) fn stage(&mut self, message: &[u8]) -> io::Result<Option<Staged>> {
        let slot = match self.slots.take() {
            Ok(slot) => slot,
            // Memory is free again when others have left.
            Err(_) if self.has_staged() => return Ok(None),
            Err(error) => return Err(error),
        };
        let (at, key) = self.slots.at(slot).ok_or(io::ErrorKind::NotConnected)?;
        // SAFETY: `Slots::take` lends the slot to this message alone; a slot holds the longest message.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), at, message.len()) };
        Ok(Some(Staged { slot, address: at.cast_const(), key }))
    }

    fn has_staged(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.what, Posted::Message(Some(_))))
    }

    /// Takes the slot of a message back that is not on the queue any more.
    pub(super) fn release(&mut self, slot: Option<u32>) {
        slot.into_iter().for_each(|slot| self.slots.give(slot));
    }
}
