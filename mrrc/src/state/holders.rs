//! The leases and hits of all threads, as the core asks for them.

use super::in_flight::InFlight;
use super::lease_holds::LeaseHolds;
use super::stats::Stats;
use super::unheld::Looks;
use crate::core::Holders;
use crate::hit::HitTables;
use crate::regions::RegionId;

/// The leases of all threads, which hold regions without the core's knowledge.
pub(crate) struct Leases<'a, T> {
    pub(super) tables: &'a HitTables<T>,
    pub(super) in_flight: &'a mut InFlight,
    pub(super) lease_holds: &'a mut LeaseHolds,
    /// It is told of marks that the core takes.
    pub(super) unheld: &'a mut Looks,
    /// The group with the next marks to hand over.
    pub(super) next_group: &'a mut usize,
    pub(super) stats: &'a mut Stats,
}

impl<T> Holders for Leases<'_, T> {
    fn unpublish(&mut self, leaving: &[RegionId], held: &mut Vec<RegionId>) {
        let mut any = false;
        for &id in leaving {
            // A region being registered is held by its registering thread, and the core knows.
            if self.in_flight.retire(id) {
                self.tables.records[id].hide();
                any = true;
            }
        }
        if !any {
            return;
        }
        self.tables.barrier.heavy();
        self.stats.barriers += 1;
        self.lease_holds.names().read(self.tables, leaving.len());
        for &id in leaving {
            if self.in_flight.entry(id).is_registered() && self.lease_holds.names().have(self.tables, id) {
                self.stats.recalled += 1;
                // The core has its hold of it since an earlier look.
                if self.lease_holds.add(id) {
                    held.push(id);
                }
            }
        }
    }

    fn republish(&mut self, regions: &[RegionId]) {
        for &id in regions {
            if self.in_flight.keep(id) {
                self.tables.records[id].show();
            }
        }
    }

    fn touches(&mut self, region: RegionId) -> u32 {
        let touches = self.tables.records[region].take_touched();
        if touches > 0 {
            self.unheld.note_hit(region);
        }
        touches
    }

    /// In the order of their names: the next time goes on where this one ended, and begins anew when it has come to the end.
    fn touched(&mut self, most: usize, touched: &mut Vec<RegionId>) {
        let before = touched.len();
        self.tables.take_touched(self.in_flight.len(), self.next_group, most, touched);
        touched[before..].iter().for_each(|&id| self.unheld.note_hit(id));
    }
}
