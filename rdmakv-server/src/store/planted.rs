//! The store's part of the [planted faults](crate::sabotage). Only leased chunks are concerned: of others nobody could tell.

use super::Store;
use super::chunk::{Id, State};
use super::exposure::Extent;
use crate::sabotage::{Fault, planted};

/// With `index-before-dead`: operations of others for which both are there. One would do, but is seldom seen.
const OTHERS: u32 = 100;

/// What a fault has left undone.
#[derive(Debug, Default)]
pub(super) struct Planted {
    /// Chunks that should be dead, and after how many operations they will be.
    late: Vec<(Id, u32)>,
    /// Chunks that were freed with a lease, and when their fabrics hear that it has ended.
    early: Vec<(Extent, u64)>,
}

impl Planted {
    pub(super) fn is_late(&self, id: Id) -> bool {
        self.late.iter().any(|&(late, _)| late == id)
    }

    /// It is free, or about to be.
    pub(super) fn forget_late(&mut self, id: Id) {
        self.late.retain(|&(late, _)| late != id);
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
        let late = self.leases.until(id).is_some() && self.is_alive(id);
        if late {
            self.leases.planted.late.push((id, after));
        }
        late
    }

    /// So many operations more have begun: what should have died long ago dies.
    pub(super) fn bury(&mut self, operations: u32) {
        let mut late = std::mem::take(&mut self.leases.planted.late);
        late.retain_mut(|(id, left)| {
            *left = left.saturating_sub(operations);
            if *left == 0 {
                self.chunk(*id).set_state(State::Dead);
            }
            *left > 0
        });
        self.leases.planted.late = late;
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
