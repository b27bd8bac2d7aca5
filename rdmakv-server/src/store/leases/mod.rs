//! Leases: until when clients may read a chunk without asking.
//!
//! A lease is on a chunk and lasts D and an eighth of D from its grant, in nanoseconds of the clock that gives the store
//! its whole seconds. A client counts D from the first sending of the request that the grant answers. That is before the
//! grant, so the reply may take any time: the lease need not be kept open until it is sent. A grant makes a lease longer,
//! never shorter.
//!
//! A leased chunk has one holder more, so whatever passes over chunks that are held passes over it, and its item's end
//! makes it *dead, not free*. [`Leases::expire`] frees what is dead when its leases have ended: once a second, at each
//! grant, and when memory is short. A store that knows whole seconds only takes a lease as ended when these are past
//! it.
//!
//! If a fabric reports that a peer may still be at a chunk whose leases are over ([`Exposure::is_open`]), it stays leased a little
//! longer.
//!
//! A key with a leased chunk that died twice within one D gets no lease until it has been still for a D. Its chunks
//! would only pile up.

mod churn;
mod exposure;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use foldhash::fast::FixedState;
use rdmakv_proto::lease::{LONGEST, lasting};

use super::chunk::{Id, LEASED};
use super::slabs::Slabs;
use churn::Churn;
use exposure::Exposures;

pub use exposure::{Exposure, Replacement};

/// Leases that may end at a grant, when memory is short, and at a tick.
pub(super) const AT_A_GRANT: usize = 8;
pub(super) const WHEN_SHORT: usize = 256;
pub(super) const AT_A_TICK: usize = 1 << 13;

/// The part of a lease for which a chunk stays leased where a peer may still read it.
const A_LITTLE: u64 = 32;

/// The chunks of a class that may wait dead before eviction makes more of them so.
const WAITING: u32 = 64;

/// Returns the nanoseconds of so many seconds.
pub(super) fn nanos(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000_000_000)
}

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// The item is gone, or another is in its place.
    Gone,
    /// Its key changes too often.
    Churn,
    /// The chunk has too many holders, or the server ends.
    Closed,
}

/// The leases of a chunk.
#[derive(Clone, Copy, Debug)]
struct Lease {
    /// The end of the last one.
    until: u64,
    /// Whether the chunk was retired.
    dead: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct OfClass {
    living: u32,
    dead: u32,
}

/// All leases, and the fabrics that are told of them.
#[derive(Debug)]
pub(super) struct Leases {
    /// D and its eighth, and D.
    lasting: u64,
    duration: u64,
    chunks: HashMap<Id, Lease, FixedState>,
    /// One entry for each leased chunk; where its lease was made longer, the entry still has an earlier end.
    ends: BinaryHeap<Reverse<(u64, Id)>>,
    classes: Vec<OfClass>,
    dead_bytes: u64,
    churn: Churn,
    /// The latest moment known.
    latest: u64,
    closed: bool,
    exposures: Exposures,
}

impl Leases {
    pub(super) fn new(classes: usize, duration: Duration) -> Self {
        let duration = duration.min(LONGEST);
        Self {
            lasting: lasting(duration).as_nanos() as u64,
            duration: duration.as_nanos() as u64,
            chunks: HashMap::default(),
            ends: BinaryHeap::new(),
            classes: vec![OfClass::default(); classes],
            dead_bytes: 0,
            churn: Churn::default(),
            latest: 0,
            closed: false,
            exposures: Exposures::default(),
        }
    }

    /// Tells this fabric of chunks from now on.
    pub(super) fn attach(&mut self, exposure: Box<dyn Exposure>) {
        self.exposures.attach(exposure);
    }

    /// Reports memory that was given back to the system.
    pub(super) fn discarded(&mut self, address: u64, bytes: u64) {
        self.exposures.discarded(address, bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
    /// Returns how many chunks are leased.
    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }
    /// Returns how many chunks of the class are leased and alive.
    pub(super) fn living(&self, class: usize) -> u32 {
        self.classes[class].living
    }
    /// Returns how many leased chunks are dead.
    pub(super) fn dead(&self) -> u64 {
        self.classes.iter().map(|class| u64::from(class.dead)).sum()
    }
    /// Returns the bytes that their items used.
    pub(super) fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }
    /// Returns all chunks that are leased.
    pub(super) fn chunks(&self) -> Vec<Id> {
        self.chunks.keys().copied().collect()
    }
    pub(super) fn is_leased(&self, id: Id) -> bool {
        self.chunks.contains_key(&id)
    }

    /// Notes the time of a request for a lease, whether it is granted or not: what dies after it died no earlier.
    pub(super) fn learn_time(&mut self, now: u64) {
        self.latest = self.latest.max(now);
    }

    /// Leases an item that is alive and whose key has this hash, from now on; returns until when.
    pub(super) fn grant(
        &mut self,
        slabs: &mut Slabs,
        id: Id,
        hash: impl FnOnce(&Slabs) -> u64,
        now: u64,
    ) -> Result<u64, NoLease> {
        if self.closed {
            return Err(NoLease::Closed);
        }
        let version = slabs.chunk(id).version();
        if !self.churn.is_empty() && self.churn.refuses(hash(slabs), version, now, self.duration) {
            return Err(NoLease::Churn);
        }
        let until = now.saturating_add(self.lasting);
        if self.lease_until(slabs, id, until) { Ok(until) } else { Err(NoLease::Closed) }
    }

    /// Leases the chunk until then at least; `false` if it has as many holders as it can.
    fn lease_until(&mut self, slabs: &mut Slabs, id: Id, until: u64) -> bool {
        if let Some(lease) = self.chunks.get_mut(&id) {
            lease.until = until.max(lease.until);
            return true;
        }
        if !slabs.lease(id) {
            return false;
        }
        let chunk = slabs.chunk(id);
        chunk.mark(LEASED);
        self.classes[chunk.class()].living += 1;
        self.chunks.insert(id, Lease { until, dead: false });
        self.ends.push(Reverse((until, id)));
        true
    }

    /// Ends the leases after their time, at most so many; returns how many were.
    pub(super) fn expire(&mut self, slabs: &mut Slabs, now: u64, most: usize) -> usize {
        let mut ended = 0;
        // One that was made longer is put back, which counts too: so the time is bounded.
        for _ in 0..most {
            let Some(&Reverse((end, id))) = self.ends.peek() else { break };
            if end > now {
                break;
            }
            self.ends.pop();
            let Some(lease) = self.chunks.get_mut(&id) else { continue };
            if lease.until <= now && self.exposures.is_open(slabs.extent(id)) {
                lease.until = now + self.lasting / A_LITTLE + 1;
            }
            if lease.until > now {
                self.ends.push(Reverse((lease.until, id)));
            } else {
                self.exposures.ended(slabs.extent(id), now);
                self.end(slabs, id);
                ended += 1;
            }
        }
        ended
    }

    /// Ends the lease of a chunk: it is free if it is dead and has no other holder.
    fn end(&mut self, slabs: &mut Slabs, id: Id) {
        let Some(lease) = self.chunks.remove(&id) else { return };
        let chunk = slabs.chunk(id);
        chunk.unmark(LEASED);
        let class = &mut self.classes[chunk.class()];
        if lease.dead {
            class.dead -= 1;
            self.dead_bytes -= chunk.size() as u64;
            slabs.kill(id);
        } else {
            class.living -= 1;
        }
        slabs.unlease(id);
    }

    /// The one place where chunks of items end: freed when nothing holds them, else when the last holder lets go. A lease is a
    /// holder.
    pub(super) fn retire(&mut self, slabs: &mut Slabs, id: Id) {
        if slabs.retire(id) || !slabs.chunk(id).marked(LEASED) {
            return;
        }
        let chunk = slabs.chunk(id);
        let class = &mut self.classes[chunk.class()];
        class.living -= 1;
        class.dead += 1;
        self.dead_bytes += chunk.size() as u64;
        if let Some(lease) = self.chunks.get_mut(&id) {
            lease.dead = true;
        }
    }

    /// The key's leased chunk dies now, when the store has come to this version; returns whether that was too often.
    #[cold]
    pub(super) fn died(&mut self, hash: u64, version: u64, now: u64) -> bool {
        self.churn.died(hash, version, nanos(now).max(self.latest), nanos(now + 1), self.duration)
    }

    /// Between a leased chunk's death and the change of the index: tags go over to the new chunk where they can.
    #[cold]
    pub(super) fn hand_over(&mut self, slabs: &mut Slabs, old: Id, new: Id) {
        let Some(&Lease { until, .. }) = self.chunks.get(&old) else { return };
        let replacement = Replacement { slabs, old: slabs.extent(old), new: slabs.extent(new) };
        if self.exposures.replaced(&replacement) {
            // A chunk that is not published has no holders: there is room for this one.
            let leased = self.lease_until(slabs, new, until);
            debug_assert!(leased, "a new chunk can be leased");
        }
    }

    /// Returns which of these items, the oldest of a class, is to die though it is leased: the one whose lease ends first, unless
    /// enough wait dead already.
    #[cold]
    pub(super) fn to_revoke(&self, slabs: &Slabs, class: usize, oldest: [Option<Id>; 2]) -> Option<Id> {
        if self.classes[class].living == 0 || self.classes[class].dead >= WAITING {
            return None;
        }
        let leased = oldest.into_iter().flatten().filter(|&id| !slabs.is_pinned(id));
        leased.filter_map(|id| Some((self.chunks.get(&id)?.until, id))).min().map(|(_, id)| id)
    }

    /// Grants no lease any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// As if there had been no lease: says what it was on, and until when.
    #[cfg(rdmakv_fault_injection)]
    pub(super) fn forget(&mut self, slabs: &mut Slabs, id: Id) -> Option<(super::Extent, u64)> {
        let until = self.chunks.get(&id)?.until;
        let extent = slabs.extent(id);
        self.ends.retain(|&Reverse((_, other))| other != id);
        self.end(slabs, id);
        Some((extent, until))
    }

    /// Tells the fabrics that a lease has ended.
    #[cfg(rdmakv_fault_injection)]
    pub(super) fn tell_ended(&mut self, extent: super::Extent, now: u64) {
        self.exposures.ended(extent, now);
    }
}
