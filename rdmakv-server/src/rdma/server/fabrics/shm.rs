//! Shared memory: the stores' arenas are the domain's, passed to clients of this user for reading.
//!
//! A key opens one chunk. It goes a while after the chunk's leases have ended, so that a late reader finds bytes that he does not
//! believe instead of losing his connection; what it takes is a slot in the domain's table. The memory itself is let go
//! at once.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use frrwp::fabric::Domain;
use frrwp::fabric::shm::{ShmDomain, ShmEndpoint, ShmError, ShmKey, ShmListener};
use frrwp::wire::Segment;
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, Cache, PageRange};

use crate::rdma::server::fabrics::{Door, Fabric, Leased};
use crate::rdma::server::pinned::Pinned;
use crate::rdma::server::tags::{Granted, TagKind};
use crate::server::clock;

/// Leases' times that a key outlives its lease.
const AFTERLIFE: u32 = 8;

/// The fabric.
pub(crate) struct Shm {
    domain: ShmDomain,
    /// How long a key outlives its lease, in nanoseconds.
    afterlife: u64,
    /// Keys whose leases have ended, and when they go.
    over: Mutex<VecDeque<(u64, Registered<ShmKey>)>>,
    /// How many of these there may be.
    most: usize,
    /// Arenas: their first address as clients know it, as this process does, and their bytes.
    places: Vec<(u64, u64, u64)>,
}

/// A chunk that clients may read: leased from the cache, and opened by a key of its own.
pub(crate) struct Open {
    /// Before the lease: whoever has neither is not at the memory.
    key: Registered<ShmKey>,
    _leased: Leased<Shm>,
}

impl Shm {
    /// A fabric of this domain, whose arenas begin at these addresses and are so long.
    ///
    /// # Errors
    ///
    /// The domain has no room for a key.
    pub(crate) fn new(domain: ShmDomain, arenas: &[(u64, u64)], lease: Duration, most: usize) -> io::Result<Self> {
        let places = arenas.iter().map(|&(base, bytes)| {
            let range = PageRange::of_bytes(base, 1).map_err(io::Error::other)?;
            let registration = domain.register(range, Access::REMOTE_READ)?;
            let told = domain.remote(&registration, base as *const u8, 1).address;
            domain.deregister(&mut vec![Registered { range, access: Access::REMOTE_READ, registration }])?;
            Ok((told, base, bytes))
        });
        let places = places.collect::<io::Result<_>>()?;
        let afterlife = (lease * AFTERLIFE).as_nanos() as u64;
        Ok(Self { domain, afterlife, over: Mutex::default(), most, places })
    }

    fn close(&self, keys: Vec<Registered<ShmKey>>) {
        if keys.is_empty() {
            return;
        }
        let mut keys = keys;
        // A peer that stopped in the middle of a read keeps its key: that one is tried again.
        if self.domain.deregister(&mut keys).is_err() {
            let again = clock::nanos() + self.afterlife;
            let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
            over.extend(keys.into_iter().map(|key| (again, key)));
        }
    }
}

impl TagKind for Shm {
    type Registration = Open;
    type Record = ();
    type Tag = ();
    const REBINDS: bool = false;

    fn bind((): &(), _: Option<u64>) {}
}

impl Fabric for Shm {
    const NAME: &'static str = "shm";
    const RIGHTS: Access = Access::LOCAL;
    type Provider = ShmDomain;
    type Endpoint = ShmEndpoint;
    type Own = ();

    fn provider(&self) -> ShmDomain {
        self.domain.clone()
    }

    fn own(_: &ShmEndpoint) {}

    fn registration(&self, leased: Leased<Self>) -> io::Result<Open> {
        let range = PageRange::of_bytes(leased.address() as u64, leased.len() as u64).map_err(io::Error::other)?;
        let access = Access::REMOTE_READ;
        let registration = self.domain.register(range, access)?;
        Ok(Open { key: Registered { range, access, registration }, _leased: leased })
    }

    fn record(&self) {}

    fn tag(&self, (): &(), (): &(), _: &Open, _: u64, _: u64) -> Option<()> {
        Some(())
    }

    fn segment(&self, _: &Cache<Pinned<ShmDomain>>, granted: &Granted<'_, Self>, address: u64) -> Segment {
        self.domain.remote(&granted.registration.key.registration, address as *const u8, granted.bound as usize)
    }

    fn address(&self, told: u64) -> Option<u64> {
        let place = |&(start, base, bytes): &(u64, u64, u64)| {
            told.checked_sub(start).filter(|&at| at < bytes).map(|at| base + at)
        };
        self.places.iter().find_map(place)
    }

    fn over(&self, Open { key, _leased }: Open) {
        drop(_leased);
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.push_back((clock::nanos() + self.afterlife, key));
        let too_many = over.len().saturating_sub(self.most);
        let early: Vec<_> = over.drain(..too_many).map(|(_, key)| key).collect();
        drop(over);
        self.close(early);
    }

    fn bury(&self) -> bool {
        let now = clock::nanos();
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let due = over.iter().take_while(|(at, _)| *at <= now).count();
        let due: Vec<_> = over.drain(..due).map(|(_, key)| key).collect();
        drop(over);
        self.close(due);
        self.over.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Door<Shm> for ShmListener {
    fn accept(&mut self, receives: u16, within: Duration) -> Result<Option<ShmEndpoint>, String> {
        match ShmListener::accept(self, receives, within) {
            Ok(endpoint) => Ok(Some(endpoint)),
            Err(ShmError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}
