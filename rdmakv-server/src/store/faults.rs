//! The store's part of the [injected faults](rdmakv_proto::faults). Only leased and listed chunks are concerned: with others no reader could
//! tell.

use super::chunk::{Id, LISTED};
use super::leases::Leases;
use super::{ChunkRef, Extent, Store};
use rdmakv_proto::faults::{Fault, injected};
use rdmakv_proto::gets::Entry;

/// With `index-before-dead`: operations of others for which both are there. One would do, but is seldom seen.
const OTHERS: u32 = 100;
/// With `reuse-early`: operations of others for which an entry names a chunk that is free, or another's.
const A_FEW: u32 = 5;

/// The steps that a fault has left undone.
#[derive(Debug, Default)]
pub(super) struct Undone {
    /// Chunks that should be dead, and after how many operations they will be; and what keeps those that are not leased.
    late: Vec<(Id, u32, Option<ChunkRef>)>,
    /// Chunks that were freed with a lease, and when their fabrics hear that it has ended.
    early: Vec<(Extent, u64)>,
    /// Entries of the GET table, by hash, that should have been taken out, and after how many operations they will be.
    entries: Vec<((u64, Entry), u32)>,
}

impl Undone {
    pub(super) fn is_late(&self, id: Id) -> bool {
        self.late.iter().any(|&(late, ..)| late == id)
    }

    /// Forgets what was leased and is not any more: it is dead now.
    pub(super) fn forget_freed(&mut self, leases: &Leases) {
        self.late.retain(|(id, _, held)| held.is_some() || leases.is_leased(*id));
    }
}

/// Returns whether so many operations end this wait.
fn is_due(left: &mut u32, operations: u32) -> bool {
    *left = left.saturating_sub(operations);
    *left == 0
}

impl Store {
    /// Notes that a chunk is to die later; returns whether it is. With `index-before-dead` others see what replaced it first, with
    /// `dead-after-reply` it is alive until the next tick.
    pub(super) fn dies_late(&mut self, id: Id, replaced: bool) -> bool {
        let after = if injected(Fault::DeadAfterReply) {
            u32::MAX
        } else if injected(Fault::IndexBeforeDead) && replaced {
            OTHERS
        } else {
            return false;
        };
        let (leased, listed) = (self.leases.is_leased(id), self.slabs.chunk(id).marked(LISTED));
        let late = (leased || listed) && self.is_alive(id);
        if late {
            // A leased one is not free before its lease has ended.
            let held = if leased { None } else { self.slabs.hold(id) };
            self.undone.late.push((id, after, held));
        }
        late
    }

    /// So many operations more have begun: what should have died long ago dies.
    pub(super) fn bury(&mut self, operations: u32) {
        let entries = self.undone.entries.extract_if(.., |(_, left)| is_due(left, operations));
        entries.for_each(|(entry, _)| self.table.take_out(entry));
        let late: Vec<_> = self.undone.late.extract_if(.., |(_, left, _)| is_due(left, operations)).collect();
        for (id, _, held) in late {
            self.slabs.kill(id);
            self.table.unlist(&self.slabs, id);
            held.into_iter().for_each(|held| self.slabs.release(held));
        }
    }

    /// With `reuse-early`: frees the chunk of an item that ended or moved, though it is leased. Fabrics hear of it when the lease ends.
    pub(super) fn reuse_early(&mut self, id: Id) {
        if injected(Fault::ReuseEarly) {
            self.undone.early.extend(self.leases.forget(&mut self.slabs, id));
        }
    }

    /// With `reuse-early`: a listed item dies, and its entry stays for a while though the chunk is free. Returns whether it is so.
    pub(super) fn stays_listed(&mut self, id: Id) -> bool {
        let stays = injected(Fault::ReuseEarly) && self.slabs.chunk(id).marked(LISTED) && !self.table.lists_all();
        if stays {
            self.slabs.kill(id);
            let entry = self.table.listed(&self.slabs, id);
            self.undone.entries.extend(entry.map(|entry| (entry, A_FEW)));
        }
        stays
    }

    /// With `reuse-early`: fabrics hear when leases should have ended.
    pub(super) fn tell_early(&mut self, now: u64) {
        for (extent, _) in self.undone.early.extract_if(.., |&mut (_, until)| until <= now) {
            self.leases.tell_ended(extent, now);
        }
    }
}
