//! The receive queue, and the memory of the messages that come.

#![expect(unsafe_code, reason = "posting lets the device write memory")]

use super::super::pair::Pair;
use super::super::slots::Slots;
use super::super::{VerbsDomain, ib};
use crate::wire::MESSAGE;
use std::io;

/// The receives that are posted, or have a message that was not taken yet.
pub(super) struct Receives {
    slots: Slots,
    used: usize,
    /// The number of receives that the queue has room for.
    room: usize,
}

impl Receives {
    pub(super) fn new(domain: &VerbsDomain, room: u32) -> Self {
        Self { slots: Slots::new(domain), used: 0, room: room as usize }
    }

    /// Posts so many more. `WouldBlock` if the queue has no room for them.
    pub(super) fn post(&mut self, pair: Option<&Pair>, more: u16) -> io::Result<()> {
        if self.used + usize::from(more) > self.room {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for _ in 0..more {
            let slot = self.slots.take()?;
            let (Some((at, key)), Some(pair)) = (self.slots.at(slot), pair) else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            let into = ib::ibv_sge { addr: at as u64, length: MESSAGE as u32, lkey: key };
            // SAFETY: `Slots::take` lends the slot to this receive alone, until `release`; the endpoint drops its pair first.
            unsafe { pair.post_receive(slot.into(), into) }?;
            self.used += 1;
        }
        Ok(())
    }

    /// Copies a message out of its slot, and takes the slot back.
    pub(super) fn take(&mut self, slot: u32, length: usize, message: &mut [u8; MESSAGE]) {
        if let Some((at, _)) = self.slots.at(slot) {
            // SAFETY: the receive of this slot has completed with `length` bytes, at most [`MESSAGE`]; the device is done with it.
            unsafe { std::ptr::copy_nonoverlapping(at, message.as_mut_ptr(), length) };
        }
        self.release(slot);
    }

    /// Takes the slot of a receive back that has completed.
    pub(super) fn release(&mut self, slot: u32) {
        self.slots.give(slot);
        self.used -= 1;
    }
}
