//! Transfers of a card, and a peer's page as the other end, whose bytes are seen without the cache.

use crate::loopback::{self, By, Loopback, Memory, RIGHTS, Transfer};
use crate::stamps::{LANE, LANES};
use mrrc::Access;
use mrrc::registrar::verbs::{Domain, MemoryRegion, Transport, Verbs};

/// The name of memory in transfers.
pub(crate) type Key = MemoryRegion;
/// The registrar.
pub(crate) type Table = Verbs;
/// The rights that transfers need.
pub(crate) const ACCESS: Access = RIGHTS;

/// The connection, for one batch at a time.
pub(crate) struct Ring {
    pair: Loopback,
    domain: Domain,
}

impl Ring {
    /// The largest batch.
    pub(crate) const BATCH: usize = LANES;

    /// Returns a connection, or why there is none.
    pub(crate) fn new() -> Result<Self, String> {
        let (domain, pair) = loopback::pair().ok_or("no device")?;
        Ok(Self { pair, domain })
    }

    pub(crate) fn table(&self) -> Result<Table, String> {
        Verbs::new(&self.domain).map_err(|error| error.to_string())
    }

    /// Runs the transfers to their ends, and answers how many bytes each moved, or less than none.
    ///
    /// # Safety
    /// Regions that the transfers name stay registered until this returns.
    pub(crate) unsafe fn run(&self, transfers: impl Iterator<Item = Transfer>) -> [i32; Self::BATCH] {
        let transfers: Vec<Transfer> = transfers.collect();
        // SAFETY: the caller promises that regions and memory stay until this returns; the processor accesses stamps
        // only while no transfer is in flight.
        let said = unsafe { self.pair.run(&transfers) };
        let mut results = [i32::MIN; Self::BATCH];
        for (result, said) in results.iter_mut().zip(said) {
            *result = if said == 0 { LANE as i32 } else { -(said.min(1000) as i32) };
        }
        results
    }
}

/// The peer's page: what was sent, or is to be received.
pub(crate) struct Page {
    memory: Memory,
    table: Verbs,
    region: Option<MemoryRegion>,
    /// On iWARP a write is done when it is sent, and only a read when its bytes are there.
    reads_alone: bool,
}

impl Page {
    pub(crate) fn new(ring: &Ring) -> Self {
        let (memory, table) = (Memory::new(1), Verbs::new(&ring.domain).unwrap());
        let region = Some(loopback::register(&table, memory.range()));
        Self { memory, table, region, reads_alone: ring.domain.attributes().transport == Transport::Iwarp }
    }

    /// Returns the address of a lane.
    pub(crate) fn lane(&self, lane: usize) -> usize {
        self.memory.address as usize + lane * LANE
    }

    /// From this page into memory: read by this side with the one key, or written by the peer to the other.
    pub(crate) fn receive(&self, lane: usize, address: usize, key: &MemoryRegion) -> Transfer {
        self.transfer(
            if self.reads_alone || lane.is_multiple_of(2) { (By::Us, true) } else { (By::Peer, false) },
            lane,
            address,
            key,
        )
    }

    /// From memory into this page: written by this side, or read by the peer.
    pub(crate) fn send(&self, lane: usize, address: usize, key: &MemoryRegion) -> Transfer {
        self.transfer(
            if self.reads_alone || lane.is_multiple_of(2) { (By::Peer, true) } else { (By::Us, false) },
            lane,
            address,
            key,
        )
    }

    fn transfer(&self, (by, reads): (By, bool), lane: usize, address: usize, key: &MemoryRegion) -> Transfer {
        let Some(own) = &self.region else { unreachable!("it goes with the page") };
        let (page, address) = (self.lane(lane) as u64, address as u64);
        let (local, remote) = match by {
            By::Us => ((address, key.lkey()), (page, own.rkey())),
            By::Peer => ((page, own.lkey()), (address, key.rkey())),
        };
        Transfer { by, reads, local, remote, length: LANE as u32 }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        loopback::deregister(&self.table, self.region.take().into_iter().collect());
    }
}
