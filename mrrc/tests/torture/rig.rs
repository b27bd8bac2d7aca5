//! A cache over a ring (or what `ring` stands for), under one source of invalidation, and one batch of operations on it.

use crate::monitors::{Altered, Between, Off};
use crate::random::Random;
use crate::registrar::Tardy;
use crate::report::Score;
use crate::ring::{self, Key, Page, Ring};
use crate::stamps::{self, LANE, LANES, Stamp};
use mrrc::invalidation::{Explicit, Userfaultfd};
use mrrc::registrar::Registrar;
use mrrc::{AcquireError, Cache, Lease};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Few enough that an ordinary user may pin them, and fewer than the windows have: regions are evicted too.
const CAPACITY: u64 = 384;
/// The duration of deliberate slowness: some changes of other windows.
const DELAY: Duration = Duration::from_micros(40);

/// The cache's source of changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    pub(crate) monitor: Kind,
    pub(crate) calls: Calls,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Explicit,
    Userfaultfd,
    /// Userfaultfd, and time between reading and telling.
    Slow,
    /// The same, without the flag: a control.
    Unflagged,
    /// Says that it watches, and does not: a control.
    Off,
}

/// Calls of `Cache::invalidate`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Calls {
    None,
    Before,
    /// Before and after: others acquire meanwhile.
    Both,
    /// Before, or after, or both, or neither.
    Some,
}

impl Source {
    /// Returns whether others may acquire a range at any moment of its change.
    pub(crate) fn bears_intruders(self) -> bool {
        self.watches() || self.calls == Calls::Both
    }

    /// Returns whether changes are heard without a call.
    pub(crate) fn watches(self) -> bool {
        matches!(self.monitor, Kind::Userfaultfd | Kind::Slow | Kind::Unflagged)
    }
}

pub(crate) struct Rig {
    pub(crate) cache: Cache<Tardy>,
    /// The ring that makes the transfers. Gone after the cache.
    pub(crate) ring: Ring,
}

impl Rig {
    /// Or why there is none on this system.
    pub(crate) fn new(kind: Kind, tardy: bool, fence: bool) -> Result<Self, String> {
        let ring = Ring::new()?;
        let table = ring.table()?;
        if let Some(pages) = table.limits().pages.filter(|&pages| pages < 2 * CAPACITY) {
            return Err(format!("the process may lock {pages} pages, and {} are needed (ulimit -l)", 2 * CAPACITY));
        }
        let delay = if tardy { DELAY } else { Duration::ZERO };
        let builder = Cache::builder(Tardy::new(table, delay))
            .ignore_environment()
            .capacity_pages(CAPACITY)
            .capacity_timeout(Duration::from_secs(1))
            .fence(fence);
        let userfaultfd = || Userfaultfd::new().map_err(|error| error.to_string());
        let altered = |raises| {
            let between = Between { delay: DELAY, raises };
            userfaultfd().map(|monitor| Altered(monitor, between))
        };
        let builder = match kind {
            Kind::Explicit => builder.monitor(Explicit),
            Kind::Off => builder.monitor(Off),
            Kind::Userfaultfd => builder.monitor(userfaultfd()?),
            Kind::Slow => builder.monitor(altered(true)?),
            Kind::Unflagged => builder.monitor(altered(false)?),
        };
        Ok(Self { cache: builder.build().unwrap(), ring })
    }

    pub(crate) fn invalidate(&self, address: usize, bytes: usize) {
        self.cache.invalidate(address as *const u8, bytes).unwrap();
    }
}

/// One thread's side of the transfers.
pub(crate) struct Worker<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) score: &'a Score,
    pub(crate) thread: usize,
    pub(crate) random: Random,
    page: Page,
    stamps: u64,
}

/// An operation between its acquire and its release.
struct Operation {
    lease: Lease<Tardy>,
    address: usize,
    lane: usize,
    stamp: Stamp,
    receives: bool,
}

/// A lease that was taken before a change, and what its pages had.
pub(crate) struct Kept {
    lease: Lease<Tardy>,
    address: usize,
    stamp: Stamp,
}

/// The lane that kept leases have to themselves.
const KEPT: usize = LANES - 1;
/// The largest batch.
pub(crate) const BATCH: usize = LANES - 1;

impl<'a> Worker<'a> {
    pub(crate) fn new(rig: &'a Rig, score: &'a Score, thread: usize) -> Self {
        Self { rig, score, thread, random: Random::new(thread as u64 + 1), page: Page::new(&rig.ring), stamps: 0 }
    }

    fn stamp(&mut self) -> Stamp {
        self.stamps += 1;
        stamps::stamp(self.thread, self.stamps)
    }

    /// Memory of a window that is owned; `None` if there is no room.
    fn acquire(&self, address: usize, bytes: usize) -> Option<Lease<Tardy>> {
        // SAFETY: the window is owned until all transfers on this lease have ended, and no references are made to
        // what is in it.
        match unsafe { self.rig.cache.acquire(address as *const u8, bytes, ring::ACCESS) } {
            Ok(lease) => Some(lease),
            Err(AcquireError::AllInUse { .. }) => {
                self.score.refused.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(error) => panic!("acquire of mapped memory: {error}"),
        }
    }

    /// Acquires parts of an owned window, transfers through each lease, and compares. Returns how many operations were
    /// stale. `of` says of which window and state.
    pub(crate) fn batch(&mut self, address: usize, pages: usize, count: usize, of: impl Fn() -> String) -> u64 {
        let mut operations: Vec<Operation> = Vec::with_capacity(count);
        for lane in 0..count.min(BATCH) {
            let whole = self.random.chance(2);
            let first = if whole { 0 } else { self.random.below(pages) };
            let length = if whole { pages } else { 1 + self.random.below(pages - first) };
            let Some(lease) = self.acquire(address + first * 4096, length * 4096) else { break };
            let address = address + (first + self.random.below(length)) * 4096 + lane * LANE;
            let (stamp, receives) = (self.stamp(), self.random.chance(2));
            // SAFETY: a lane of an owned window, or of this thread's page; nothing is under way there.
            unsafe { stamps::put(if receives { self.page.lane(lane) } else { address }, &stamp) };
            operations.push(Operation { lease, address, lane, stamp, receives });
        }
        let transfers = operations.iter().map(|operation| {
            let &Operation { ref lease, address, lane, receives, .. } = operation;
            let buffer = buffer(lease, address);
            if receives { self.page.receive(lane, address, buffer) } else { self.page.send(lane, address, buffer) }
        });
        // SAFETY: the leases live in `operations`, the page in `self`.
        let results = unsafe { self.rig.ring.run(transfers) };
        let mut stale = 0;
        for (operation, result) in operations.iter().zip(results) {
            let &Operation { ref lease, address, lane, ref stamp, receives } = operation;
            assert_eq!(result, LANE as i32, "a transfer of {LANE} bytes at {address:#x} ({lease:?}), {}", of());
            // SAFETY: `get` requires an address in a lane of this rig; the transfer has ended, so nothing else writes
            // there.
            let found = unsafe { stamps::get(if receives { address } else { self.page.lane(lane) }) };
            let different = stamps::difference(&found, stamp);
            if different > 0 {
                stale += 1;
                let wrong = if receives { &self.score.lost } else { &self.score.misplaced };
                wrong.fetch_add(different, Ordering::Relaxed);
                self.score.sample(|| {
                    let way = if receives { "received" } else { "sent" };
                    let buffer = buffer(lease, address);
                    format!("{way} at {address:#x} through {lease:?}, {buffer:?}, operation {lane}: {}", of())
                });
            }
        }
        self.score.stale.fetch_add(stale, Ordering::Relaxed);
        self.score.operations.fetch_add(operations.len() as u64, Ordering::Relaxed);
        stale
    }

    /// Returns a lease of one page of an owned window that is about to change.
    pub(crate) fn keep(&mut self, address: usize, pages: usize) -> Option<Kept> {
        let address = address + self.random.below(pages) * 4096;
        let lease = self.acquire(address, 4096)?;
        let (address, stamp) = (address + KEPT * LANE, self.stamp());
        // SAFETY: the window is owned, and no transfer is in this lane.
        unsafe { stamps::put(address, &stamp) };
        Some(Kept { lease, address, stamp })
    }

    /// Returns whether the lease still leads to the pages of its time, though the address does not; if not, it was
    /// stale when it was taken.
    pub(crate) fn check(&mut self, kept: &Kept, of: impl Fn() -> String) {
        let transfer = self.page.send(KEPT, kept.address, buffer(&kept.lease, kept.address));
        // SAFETY: the lease is borrowed, and the page is in `self`.
        let results = unsafe { self.rig.ring.run(std::iter::once(transfer)) };
        assert_eq!(results[0], LANE as i32, "a transfer through {:?}", kept.lease);
        // SAFETY: `get` requires an address of this rig; the page is this thread's alone.
        let sent = unsafe { stamps::get(self.page.lane(KEPT)) };
        let different = stamps::difference(&sent, &kept.stamp);
        if different > 0 {
            self.score.misplaced.fetch_add(different, Ordering::Relaxed);
            self.score.stale.fetch_add(1, Ordering::Relaxed);
            self.score.sample(|| format!("a lease that was kept, {:?}: {}", kept.lease, of()));
        }
        self.score.kept.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the buffer of a lease that has this lane.
fn buffer(lease: &Lease<Tardy>, address: usize) -> &Key {
    let part = lease.segments().find(|part| {
        let start = part.address() as usize;
        start <= address && address + LANE <= start + part.len()
    });
    part.unwrap_or_else(|| panic!("{lease:?} has no part with {address:#x}")).registration()
}
