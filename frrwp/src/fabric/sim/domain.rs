//! Registering in a simulated network: keys in a table, and time on the node's clock.
#![expect(unsafe_code, reason = "the simulated card copies between addresses, as a real one does")]

use super::Node;
use crate::fabric::Domain;
use crate::wire::Segment;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PageRange};
use std::io;

/// Registers memory of one node.
#[derive(Debug, Clone)]
pub struct SimDomain {
    pub(super) node: Node,
}

/// A registration: its key.
#[derive(Debug)]
pub struct SimKey(pub(super) u32);

// SAFETY: a key is counted up and never used again, it lives in the table until it is deregistered, and what the network
// places is checked against the table at that moment, rights too.
unsafe impl Registrar for SimDomain {
    type Registration = SimKey;

    fn register(&self, range: PageRange, access: Access) -> io::Result<SimKey> {
        let key = self.node.network.world().register(self.node.at, range, access);
        key.map(SimKey).ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))
    }

    fn deregister(&self, batch: &mut Vec<Registered<SimKey>>) -> io::Result<()> {
        let gone = batch.drain(..).map(|registered| (registered.registration.0, registered.range.pages()));
        self.node.network.world().deregister(self.node.at, gone);
        Ok(())
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

/// What the card does when it places bytes.
pub(super) fn copy(from: usize, into: usize, length: usize) {
    // SAFETY: both ranges were posted under the contract of `Endpoint` and are registered at this moment, which their
    // owners' leases promised: they may be read and written, and nobody else uses them.
    unsafe { std::ptr::copy(from as *const u8, into as *mut u8, length) }
}
