//! A small cache without memory, on which a stance is tried: what would it have cost?
//!
//! A rehearsal sees a sample of the ranges, chosen by their names, and has the same share of the capacity, so its
//! costs are to the sample what the cache's would be to all, had it taken this stance. It runs the same worth, the same
//! clock and the same memory of the evicted as [`Probation`](super::probation::Probation) itself, but each
//! of its regions is a row in a hash map and an entry in a heap.

use super::probation::Stance;
use super::remembered::Remembered;
use crate::cost::Linear;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Costs count half after about 1,400 requests of the sample: some turnovers of the rehearsal, and enough of them
/// that chance does not choose.
const FADING: f64 = 1.0 - 1.0 / 2000.0;

/// One stance at work on a sample.
pub(super) struct Rehearsal {
    stance: Stance,
    capacity: u64,
    used: u64,
    clock: f64,
    requests: u64,
    full: bool,
    regions: FxHashMap<u64, Row>,
    /// As in `ordered.rs`: no entry is above its region, and one that is below it is brought up to date when it
    /// comes up. One entry a region.
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
    remembered: Remembered,
    cost: f64,
}

struct Row {
    uses: u32,
    pages: u64,
    worth: f64,
    last: u64,
}

impl Rehearsal {
    pub(super) fn new(stance: Stance, capacity: u64) -> Self {
        Self {
            stance,
            capacity,
            used: 0,
            clock: 0.0,
            requests: 0,
            full: false,
            regions: FxHashMap::default(),
            heap: BinaryHeap::new(),
            remembered: Remembered::new(),
            cost: 0.0,
        }
    }

    /// A region of the sample that the cache has, as it is: the play begins in the middle.
    pub(super) fn open_with(&mut self, name: u64, pages: u64, uses: u32, costs: &Linear) {
        if self.used + pages > self.capacity || self.regions.contains_key(&name) {
            return;
        }
        let worth = self.stance.worth_while_room(uses, costs.reload(pages) / pages as f64);
        self.requests += 1;
        self.enter(name, Row { uses, pages, worth, last: self.requests });
    }

    fn enter(&mut self, name: u64, row: Row) {
        self.used += row.pages;
        self.heap.push(Reverse((row.worth.to_bits(), row.last, name)));
        self.regions.insert(name, row);
    }

    /// A range of the sample was asked for.
    pub(super) fn ask(&mut self, name: u64, pages: u64, costs: &Linear) {
        self.requests += 1;
        self.cost *= FADING;
        let density = costs.reload(pages) / pages as f64;
        if let Some(row) = self.regions.get_mut(&name) {
            row.uses = row.uses.saturating_add(1);
            row.worth = row.worth.max(self.clock + self.stance.worth(row.uses, density, name));
            row.last = self.requests;
            return;
        }
        self.cost += costs.reload(pages);
        if pages > self.capacity {
            return;
        }
        let had_room = !self.full;
        let left = self.make_room(pages);
        let uses = 1 + self.remembered.get(name) / 2;
        let worth = if had_room {
            self.stance.worth_while_room(uses, density)
        } else {
            self.stance.worth(uses, density, name ^ self.requests)
        };
        self.clock = self.clock.max(left.min(self.clock + worth));
        self.enter(name, Row { uses, pages, worth: self.clock + worth, last: self.requests });
    }

    /// What fits no more leaves; the most that one of them was worth.
    fn make_room(&mut self, pages: u64) -> f64 {
        let mut left = 0.0_f64;
        while self.used + pages > self.capacity {
            let Some(mut top) = self.heap.peek_mut() else { break };
            let (worth, last, name) = top.0;
            let row = &self.regions[&name];
            if row.last != last {
                top.0 = (row.worth.to_bits(), row.last, name);
                continue;
            }
            PeekMut::pop(top);
            self.full = true;
            left = left.max(f64::from_bits(worth));
            self.used -= row.pages;
            if row.uses > 1 {
                self.remembered.insert(name, row.uses);
            }
            self.regions.remove(&name);
        }
        left
    }

    /// What it cost lately.
    pub(super) fn cost(&self) -> f64 {
        self.cost
    }

    /// What an earlier rehearsal of the same stance cost still counts.
    pub(super) fn carry_over(&mut self, cost: f64) {
        self.cost = cost;
    }

    /// Bytes allocated.
    pub(super) fn memory(&self) -> usize {
        self.regions.capacity() * (size_of::<(u64, Row)>() + 1)
            + self.heap.capacity() * size_of::<Reverse<(u64, u64, u64)>>()
            + self.remembered.memory()
    }
}
