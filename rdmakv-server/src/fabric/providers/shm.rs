//! Shared memory: the stores' arenas are the domain's, passed to clients of this user for reading.
//!
//! A key opens one chunk. It goes a while after the chunk's leases have ended, so that a late reader finds bytes that he does not
//! believe instead of losing his connection; what it takes is a slot in the domain's table. The memory itself is let go
//! at once.
//!
//! Clients that read the [GET table](rdmakv_proto::gets) need no such keys: one opens the table to them, and one each arena, for good.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use frrwp::fabric::Domain;
use frrwp::fabric::shm::{Sharing, ShmDomain, ShmEndpoint, ShmKey};
use frrwp::wire::Segment;
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, Cache, PageRange};
use rdmakv_proto::messages::RemoteSegment;

use crate::fabric::far::Part;
use crate::fabric::pinned::Pinned;
use crate::fabric::providers::{Fabric, FarOpened, Leased, Offer};
use crate::fabric::tags::{Granted, TagKind};
use crate::store::{GetTable, Memory};
use rdmakv_proto::clock;
use rdmakv_proto::gets::{self, Hasher};

/// Leases' times that a key outlives its lease.
const AFTERLIFE: u32 = 8;

/// The fabric.
pub(crate) struct Shm {
    domain: ShmDomain,
    /// How long a key outlives its lease, in nanoseconds.
    afterlife: u64,
    /// Keys whose leases have ended, and when they go.
    released: Mutex<VecDeque<(u64, Registered<ShmKey>)>>,
    /// How many of these there may be.
    most: usize,
    /// Arenas: their first address as clients know it, as this process does, and their bytes.
    places: Vec<(u64, u64, u64)>,
    table: Option<Table>,
}

/// The GET table, as it is shared.
pub(crate) struct Table {
    table: Arc<GetTable>,
    /// The table's, then the arenas'.
    segments: Vec<RemoteSegment>,
    _keys: Vec<Registered<ShmKey>>,
    /// D, in nanoseconds.
    lease: u64,
    /// Clients that read it.
    readers: AtomicU64,
}

impl Table {
    /// Returns a table for so much memory for items, and keys for it and for the arenas, which begin at these addresses and are so long.
    /// None where its places do not reach that far.
    ///
    /// # Errors
    ///
    /// There is no memory for it, or no key.
    pub(crate) fn new(
        domain: &ShmDomain,
        arenas: &[(u64, u64)],
        memory: u64,
        lease: Duration,
    ) -> io::Result<Option<Self>> {
        if arenas.iter().map(|&(_, bytes)| bytes).sum::<u64>() > gets::REACH {
            return Ok(None);
        }
        let buckets = gets::buckets(memory);
        let shared = domain.arena(GetTable::bytes(buckets) as usize, Sharing::Readable).map_err(io::Error::other)?;
        let (base, bytes) = (shared.as_ptr(), shared.len());
        let whole = std::iter::once((base as u64, bytes as u64)).chain(arenas.iter().copied());
        let open = |(start, bytes): (u64, u64)| {
            let range = PageRange::of_bytes(start, bytes).map_err(io::Error::other)?;
            let registration = domain.register(range, Access::REMOTE_READ)?;
            let Segment { address, length, key } = domain.remote(&registration, start as *const u8, bytes as usize);
            let segment = RemoteSegment { address, length, key };
            Ok((segment, Registered { range, access: Access::REMOTE_READ, registration }))
        };
        let opened = whole.map(open).collect::<io::Result<Vec<_>>>()?;
        let (segments, keys) = opened.into_iter().unzip();
        let base = NonNull::new(base).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        #[expect(unsafe_code, reason = "the arena is the table's from now on")]
        // SAFETY: the arena is new and all zeros, begins with a page, and is mapped as long as it is not dropped. Peers can read it
        // only, and no code of this process gets a buffer of it.
        let memory = unsafe { Memory::new(base, bytes, Box::new(shared)) };
        let table = Arc::new(GetTable::new(memory, buckets, Hasher::new(rand::random()))?);
        table.expire_by(clock::beyond_boot());
        let lease = lease.as_nanos() as u64;
        Ok(Some(Self { table, segments, _keys: keys, lease, readers: AtomicU64::new(0) }))
    }

    /// Returns the table that the stores list in.
    pub(crate) fn shared(&self) -> &Arc<GetTable> {
        &self.table
    }

    fn hold(&self) -> u64 {
        let now = clock::boot();
        self.table.hold_until(now + self.lease);
        now
    }
}

/// A chunk that clients may read: leased from the cache, and opened by a key of its own.
pub(crate) struct Open {
    /// Before the lease: a client with neither is not at the memory.
    key: Registered<ShmKey>,
    _leased: Leased<Shm>,
}

/// Opens a region of far memory.
pub(crate) struct FarTag {
    /// Closed before the lease ends.
    key: Registered<ShmKey>,
    leased: Leased<Shm>,
}

impl fmt::Debug for FarTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.key.registration, f)
    }
}

impl Shm {
    /// Returns a fabric of this domain, whose arenas begin at these addresses and are so long.
    ///
    /// # Errors
    ///
    /// The domain has no room for a key.
    pub(crate) fn new(
        domain: ShmDomain,
        arenas: &[(u64, u64)],
        lease: Duration,
        most: usize,
        table: Option<Table>,
    ) -> io::Result<Self> {
        let places = arenas.iter().map(|&(base, bytes)| {
            let range = PageRange::of_bytes(base, 1).map_err(io::Error::other)?;
            let registration = domain.register(range, Access::REMOTE_READ)?;
            let told = domain.remote(&registration, base as *const u8, 1).address;
            domain.deregister(&mut vec![Registered { range, access: Access::REMOTE_READ, registration }])?;
            Ok((told, base, bytes))
        });
        let places = places.collect::<io::Result<_>>()?;
        let afterlife = (lease * AFTERLIFE).as_nanos() as u64;
        Ok(Self { domain, afterlife, released: Mutex::default(), most, places, table })
    }

    fn close(&self, keys: Vec<Registered<ShmKey>>) {
        if keys.is_empty() {
            return;
        }
        let mut keys = keys;
        // A peer that stopped in the middle of a read keeps its key: that one is tried again.
        if self.domain.deregister(&mut keys).is_err() {
            let again = clock::nanos() + self.afterlife;
            let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
            released.extend(keys.into_iter().map(|key| (again, key)));
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

    fn release(&self, Open { key, _leased }: Open) {
        drop(_leased);
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        released.push_back((clock::nanos() + self.afterlife, key));
        let too_many = released.len().saturating_sub(self.most);
        let early: Vec<_> = released.drain(..too_many).map(|(_, key)| key).collect();
        drop(released);
        self.close(early);
    }

    const HAS_FAR: bool = true;
    type FarTag = FarTag;

    fn open_far(
        &self,
        endpoint: &ShmEndpoint,
        leased: Leased<Self>,
        part: &Part,
        access: Access,
    ) -> io::Result<FarOpened<FarTag>> {
        // The file is what keeps other clients out: they are not passed it.
        endpoint.pass(part.file()).map_err(io::Error::other)?;
        let range = PageRange::of_bytes(part.address() as u64, part.bytes() as u64).map_err(io::Error::other)?;
        let registration = self.domain.register(range, access)?;
        let segment = self.domain.remote(&registration, part.address(), part.bytes());
        Ok(FarOpened { tag: FarTag { key: Registered { range, access, registration }, leased }, segment })
    }

    fn close_far(&self, FarTag { key, leased }: FarTag) -> Option<FarTag> {
        let mut keys = vec![key];
        // A peer that stopped in the middle of an access keeps its key.
        let _ = self.domain.deregister(&mut keys);
        keys.pop().map(|key| FarTag { key, leased })
    }

    fn join_table(&self) -> Option<Offer<'_>> {
        let table = self.table.as_ref()?;
        table.readers.fetch_add(1, Relaxed);
        let now = table.hold();
        Some(Offer { now, secret: table.table.hasher().secret(), segments: &table.segments })
    }

    fn leave_table(&self) {
        if let Some(table) = &self.table {
            table.readers.fetch_sub(1, Relaxed);
        }
    }

    fn hold_table(&self) -> bool {
        let read = self.table.as_ref().filter(|table| table.readers.load(Relaxed) > 0);
        read.map(Table::hold).is_some()
    }

    fn bury(&self) -> bool {
        let now = clock::nanos();
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        let due = released.iter().take_while(|(at, _)| *at <= now).count();
        let due: Vec<_> = released.drain(..due).map(|(_, key)| key).collect();
        drop(released);
        self.close(due);
        self.released.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
