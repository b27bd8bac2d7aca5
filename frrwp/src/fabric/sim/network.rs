//! The network and its nodes, as applications see them.

use super::domain::SimDomain;
use super::endpoint::SimEndpoint;
use super::terms::{Costs, Faults, Violation};
use super::world::Shared;
use std::fmt;

/// A simulated network. Clones are the same network.
#[derive(Clone)]
pub struct Network(Shared);

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

/// A node of a network: a process with memory and a clock.
#[derive(Clone)]
pub struct Node {
    world: Shared,
    at: usize,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Network {
    /// Makes a network without nodes.
    pub fn new(seed: u64, costs: Costs, faults: Faults) -> Self {
        Self(Shared::new(seed, costs, faults))
    }

    /// Adds a node.
    pub fn node(&self) -> Node {
        Node { world: self.0.clone(), at: self.0.lock().add_node() }
    }

    /// Connects two nodes; each end has this many receives posted.
    pub fn connect(&self, one: &Node, other: &Node, receives: u16) -> [SimEndpoint; 2] {
        let link = self.0.lock().add_link([one.at, other.at], receives);
        [0, 1].map(|end| SimEndpoint::new(self.0.clone(), link, end))
    }

    /// Lets the next thing happen, no later than this. Returns false if there is none.
    pub fn step(&self, until: u64) -> bool {
        self.0.lock().step(until)
    }

    /// Returns when the next thing happens.
    pub fn next_time(&self) -> Option<u64> {
        self.0.lock().next_time()
    }

    /// Returns when the first byte of all was placed.
    pub fn first_placed(&self) -> Option<u64> {
        self.0.lock().first_placed()
    }

    /// Returns the uses of memory that were not allowed, so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.0.lock().violations().to_vec()
    }
}

impl Node {
    /// Returns its clock, in nanoseconds.
    pub fn now(&self) -> u64 {
        *self.world.lock().node_clock(self.at)
    }

    /// Works, or sleeps, for so long.
    pub fn spend(&self, time: u64) {
        *self.world.lock().node_clock(self.at) += time;
    }

    /// Sleeps until then, if that is not past.
    pub fn sleep_until(&self, time: u64) {
        let mut world = self.world.lock();
        let clock = world.node_clock(self.at);
        *clock = time.max(*clock);
    }

    /// Returns a registrar of its memory.
    pub fn domain(&self) -> SimDomain {
        SimDomain::new(self.world.clone(), self.at)
    }

    /// Returns how many registrations live.
    pub fn registrations(&self) -> usize {
        self.world.lock().registrations(self.at)
    }
}
