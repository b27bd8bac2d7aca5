//! The store's part of the [planted faults](crate::sabotage). Only leased and listed chunks are concerned: of others nobody could tell.

use super::Store;
use super::chunk::{Id, LISTED, State};
use super::exposure::Extent;
use crate::get_table::Entry;
use crate::sabotage::{Fault, planted};

/// With `index-before-dead`: operations of others for which both are there. One would do, but is seldom seen.
const OTHERS: u32 = 100;
/// With `reuse-early`: operations of others for which an entry names a chunk that is free, or another's.
const A_FEW: u32 = 5;

/// What a fault has left undone.
#[derive(Debug, Default)]
pub(super) struct Planted {
    /// Chunks that should be dead, and after how many operations they will be; and whether that holds them.
    late: Vec<(Id, u32, bool)>,
    /// Chunks that were freed with a lease, and when their fabrics hear that it has ended.
    early: Vec<(Extent, u64)>,
    /// Entries of the GET table, by hash, that should have been taken out, and after how many operations they will be.
    entries: Vec<((u64, Entry), u32)>,
}

impl Planted {
    pub(super) fn is_late(&self, id: Id) -> bool {
        self.late.iter().any(|&(late, ..)| late == id)
    }

    /// It is free, or about to be.
    pub(super) fn forget_late(&mut self, id: Id) {
        self.late.retain(|&(late, ..)| late != id);
    }
}

impl Store {
    /// Notes that a chunk is to die later; says whether it is. With `index-before-dead` others see what replaced it first, with
    /// `dead-after-reply` it is alive until the next tick.
    pub(super) fn dies_late(&mut self, id: Id, replaced: bool) -> bool {
        let after = if planted(Fault::DeadAfterReply) {
            u32::MAX
        } else if planted(Fault::IndexBeforeDead) && replaced {
            OTHERS
        } else {
            return false;
        };
        let (leased, listed) = (self.leases.until(id).is_some(), self.chunk(id).marked(LISTED));
        let late = (leased || listed) && self.is_alive(id);
        if late {
            // A leased one is not free before its lease has ended.
            if !leased {
                let chunk = self.chunk(id);
                chunk.set_holders(chunk.holders() + 1);
            }
            self.leases.planted.late.push((id, after, !leased));
        }
        late
    }

    /// So many operations more have begun: what should have died long ago dies.
    pub(super) fn bury(&mut self, operations: u32) {
        let mut entries = std::mem::take(&mut self.leases.planted.entries);
        for (entry, _) in entries.extract_if(.., |(_, left)| {
            *left = left.saturating_sub(operations);
            *left == 0
        }) {
            self.take_out(entry);
        }
        self.leases.planted.entries = entries;
        let mut late = std::mem::take(&mut self.leases.planted.late);
        let due: Vec<_> = late
            .extract_if(.., |(_, left, _)| {
                *left = left.saturating_sub(operations);
                *left == 0
            })
            .collect();
        self.leases.planted.late = late;
        for (id, _, held) in due {
            self.chunk(id).set_state(State::Dead);
            self.unlist(id);
            if held {
                let chunk = self.chunk(id);
                chunk.set_holders(chunk.holders() - 1);
                if chunk.holders() == 0 {
                    self.retire(id);
                }
            }
        }
    }

    /// With `reuse-early`: leases of the dead count for nothing, and nobody is told.
    pub(super) fn reuse_early(&mut self, id: Id) {
        if !planted(Fault::ReuseEarly) {
            return;
        }
        let extent = self.extent_of(id);
        if let Some(until) = self.leases.forget(id) {
            self.leases.planted.early.push((extent, until));
            self.unlease(id);
        }
    }

    /// With `reuse-early`: a listed item dies, and its entry stays for a while though the chunk is free. Says whether it is so.
    pub(super) fn stays_listed(&mut self, id: Id) -> bool {
        let stays = planted(Fault::ReuseEarly) && self.chunk(id).marked(LISTED);
        if stays {
            self.chunk(id).set_state(State::Dead);
            let entry = self.listed(id);
            self.leases.planted.entries.extend(entry.map(|entry| (entry, A_FEW)));
        }
        stays
    }

    /// With `reuse-early`: fabrics hear when leases should have ended.
    pub(super) fn tell_early(&mut self, now: u64) {
        let exposures = &mut self.exposures;
        self.leases.planted.early.retain(|&(extent, until)| {
            if until <= now {
                exposures.ended(extent, now);
            }
            until > now
        });
    }
}
