//! Reads of items that are in progress: joined by requests for the same item, orphaned when its stub goes or moves.

use crate::stubs::Id;

/// Names a load from its begin to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoadId {
    slot: u32,
    turn: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) stub: Id,
    pub(crate) hash: u64,
    pub(crate) place: u32,
    pub(crate) begun: u64,
    /// The stub is no longer that of the record that is read.
    pub(crate) orphaned: bool,
}

/// The loads of a shard.
#[derive(Debug)]
pub(crate) struct Loads {
    slots: Vec<(u32, Option<Load>)>,
    free: Vec<u32>,
    most: usize,
}

impl Loads {
    pub(crate) fn new(most: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), most }
    }
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.most
    }
    pub(crate) fn begin(&mut self, load: Load) -> LoadId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.1 = Some(load);
        LoadId { slot, turn: entry.0 }
    }
    /// Returns the load of this stub that is not orphaned.
    pub(crate) fn of(&self, stub: Id) -> Option<LoadId> {
        self.slots.iter().enumerate().find_map(|(slot, (turn, load))| {
            load.filter(|load| load.stub == stub && !load.orphaned).map(|_| LoadId { slot: slot as u32, turn: *turn })
        })
    }
    pub(crate) fn orphan(&mut self, stub: Id) {
        for load in self.slots.iter_mut().filter_map(|(_, load)| load.as_mut()).filter(|load| load.stub == stub) {
            load.orphaned = true;
        }
    }
    pub(crate) fn end(&mut self, id: LoadId) -> Option<Load> {
        let (turn, load) = self.slots.get_mut(id.slot as usize)?;
        if *turn != id.turn {
            return None;
        }
        let load = load.take()?;
        *turn = turn.wrapping_add(1);
        self.free.push(id.slot);
        Some(load)
    }
    /// Returns a load that is not orphaned and began before this moment.
    pub(crate) fn silent(&self, before: u64) -> Option<(LoadId, Load)> {
        self.slots.iter().enumerate().find_map(|(slot, (turn, load))| {
            let load = (*load).filter(|load| !load.orphaned && load.begun < before)?;
            Some((LoadId { slot: slot as u32, turn: *turn }, load))
        })
    }
}
