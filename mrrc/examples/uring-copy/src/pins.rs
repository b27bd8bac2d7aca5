//! The buffers, and three ways to have them pinned: the part to copy from.

use crate::Result;
use crate::report::Counts;
use io_uring::IoUring;
use mrrc::invalidation::Explicit;
use mrrc::registrar::io_uring::{FixedBuffer, IoUringBuffers};
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, AcquireError, Cache, Lease, PAGE, PageRange};
use std::error::Error;
use std::io;

/// The way in which buffers are pinned for a transfer.
pub(crate) enum Pins {
    /// The kernel, in each transfer.
    Plain,
    /// This program, for each chunk.
    EachTime { table: IoUringBuffers, registered: u64 },
    /// This program, when the cache does not have it yet.
    Cached(Cache<IoUringBuffers>),
}

/// A buffer that stays pinned until it is given back, unless the kernel itself pins it.
pub(crate) enum Held {
    Plain,
    Registered(Registered<FixedBuffer>),
    /// Dropped when the transfer is over, and the cache may evict the buffer, sooner or later.
    Leased(Lease<IoUringBuffers>),
}

/// Why a buffer could not be pinned.
pub(crate) struct Refused {
    /// Too much is pinned: it may work when transfers have ended.
    pub(crate) short: bool,
    pub(crate) error: Box<dyn Error>,
}

impl Pins {
    pub(crate) fn each_time(ring: &IoUring) -> Result<Self> {
        Ok(Self::EachTime { table: IoUringBuffers::new(ring, IoUringBuffers::DEFAULT_SLOTS)?, registered: 0 })
    }

    pub(crate) fn cached(ring: &IoUring, capacity: u64) -> Result<Self> {
        let cache = Cache::builder(IoUringBuffers::new(ring, IoUringBuffers::DEFAULT_SLOTS)?)
            .capacity_bytes(capacity)
            // A transfer names one fixed buffer, so a lease has to be one segment.
            .max_segments(1)
            // The pool is never unmapped, so there is nothing to hear of. Leave this line out where buffers come
            // from an allocator: the cache then watches for pages that go, by userfaultfd.
            .monitor(Explicit)
            .build()?;
        Ok(Self::Cached(cache))
    }

    pub(crate) fn hold(&mut self, address: *mut u8, length: usize) -> Result<Held, Refused> {
        match self {
            Self::Plain => Ok(Held::Plain),
            Self::EachTime { table, registered } => {
                let range = PageRange::of_bytes(address as u64, length as u64).map_err(Refused::for_good)?;
                let access = Access::LOCAL;
                let registration = table.register(range, access).map_err(Refused::by_system)?;
                *registered += 1;
                Ok(Held::Registered(Registered { range, access, registration }))
            }
            Self::Cached(cache) => {
                #[expect(unsafe_code, reason = "leases memory to the kernel")]
                // SAFETY: the memory is the pool's, which is never freed and to which there are no references.
                let lease = unsafe { cache.acquire(address, length, Access::LOCAL) };
                lease.map(Held::Leased).map_err(Refused::by_cache)
            }
        }
    }

    pub(crate) fn give_back(&mut self, held: Held) -> Result<()> {
        match (self, held) {
            (Self::EachTime { table, .. }, Held::Registered(buffer)) => Ok(table.deregister(&mut vec![buffer])?),
            // A lease is dropped here, and that is all: one store.
            _ => Ok(()),
        }
    }

    /// Bytes that may be registered.
    pub(crate) fn limit(&self) -> u64 {
        let pages = match self {
            Self::Plain => None,
            Self::EachTime { table, .. } => table.limits().pages,
            Self::Cached(cache) => Some(cache.usage().capacity_pages),
        };
        pages.map_or(u64::MAX, |pages| pages.saturating_mul(PAGE))
    }

    pub(crate) fn counts(&self) -> Counts {
        match self {
            Self::Plain => Counts::default(),
            Self::EachTime { table, registered } => Counts {
                requests: *registered,
                hits: 0,
                registered: *registered,
                calls: registered + table.clearing_calls(),
            },
            Self::Cached(cache) => {
                let counters = cache.counters();
                Counts {
                    requests: counters.decisions.requests,
                    hits: counters.decisions.hits(),
                    registered: counters.attempts,
                    calls: counters.attempts + cache.registrar().clearing_calls(),
                }
            }
        }
    }
}

impl Held {
    /// Returns the number by which a transfer names the buffer.
    pub(crate) fn index(&self) -> Option<u16> {
        match self {
            Self::Plain => None,
            Self::Registered(buffer) => Some(buffer.registration.index()),
            Self::Leased(lease) => lease.segments().next().map(|segment| segment.registration().index()),
        }
    }
}

impl Refused {
    fn for_good(error: impl Error + 'static) -> Self {
        Self { short: false, error: error.into() }
    }

    fn by_system(error: io::Error) -> Self {
        let short = is_shortage(&error);
        let remedy = if short { ": raise RLIMIT_MEMLOCK (ulimit -l), or take a smaller --chunk" } else { "" };
        Self { short, error: format!("registering a buffer: {error}{remedy}").into() }
    }

    fn by_cache(error: AcquireError) -> Self {
        let short = match &error {
            AcquireError::AllInUse { .. } | AcquireError::DeregistrationFailed { .. } => true,
            // The cache has evicted and tried again, several times.
            AcquireError::Register { source, .. } => is_shortage(source),
            _ => false,
        };
        Self { short, error: error.into() }
    }
}

fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC))
}
