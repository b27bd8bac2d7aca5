//! Registering in a simulated network: keys in a table, and time on the node's clock.
#![expect(unsafe_code, reason = "a registrar is one")]

use super::world::Shared;
use crate::fabric::traits::Domain;
use crate::wire::Segment;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PageRange};
use std::fmt;
use std::io;
use std::time::Duration;

/// Registers memory of one node.
#[derive(Clone)]
pub struct SimDomain {
    world: Shared,
    node: usize,
}

impl fmt::Debug for SimDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDomain").field("node", &self.node).finish_non_exhaustive()
    }
}

impl SimDomain {
    pub(super) fn new(world: Shared, node: usize) -> Self {
        Self { world, node }
    }
}

/// A registration: its key.
#[derive(Debug)]
pub struct SimKey(u32);

impl SimKey {
    pub(super) fn number(&self) -> u32 {
        self.0
    }
}

// SAFETY: a key is counted up and never used again, it lives in the table until it is deregistered, and what the network
// places is checked against the table at that moment, rights too.
unsafe impl Registrar for SimDomain {
    type Registration = SimKey;

    fn register(&self, range: PageRange, access: Access) -> io::Result<SimKey> {
        let key = self.world.lock().register(self.node, range, access);
        key.map(SimKey).ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))
    }

    fn deregister(&self, batch: &mut Vec<Registered<SimKey>>) -> io::Result<()> {
        let gone = batch.drain(..).map(|registered| (registered.registration.0, registered.range.pages()));
        self.world.lock().deregister(self.node, gone);
        Ok(())
    }

    fn clock(&self) -> Option<Duration> {
        Some(Duration::from_nanos(*self.world.lock().node_clock(self.node)))
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}

// SAFETY: the segment names the bytes and the key that the table checks.
unsafe impl Domain for SimDomain {
    fn remote(&self, registration: &SimKey, address: *const u8, length: usize) -> Segment {
        Segment { address: address as u64, length: length as u64, key: registration.0 }
    }
}
