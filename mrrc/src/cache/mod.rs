//! The cache that applications use: the core's decisions, real registrations, any number of threads.
//!
//! [`Cache`] is used through a shared reference. [`Cache::acquire`] gives a [`Lease`]: memory that is registered for as
//! long as the lease lives. Most requests are *hits* and touch no lock and no line that another thread writes;
//! the others plan with the core under a lock, and register and deregister without it.
//!
//! # The files
//!
//! | | |
//! | --- | --- |
//! | `hit.rs` | the path of a hit, and why it never gets what is going |
//! | `slots.rs`, `records.rs`, `barrier.rs`, `gate.rs` | what that path is made of |
//! | `miss.rs` | the locked path: placeholders, waiting, failing |
//! | `leave.rs` | deregistration, the background, the end of a cache |
//! | `books.rs`, `shared.rs` | what the lock protects, and how it is taken |
//! | `lease.rs` | what the caller gets |
//! | `explain.rs` | why a request would hit or miss |
//! | `builder.rs`, `environment.rs`, `error.rs`, `stats.rs`, `times.rs` | settings, errors, counters, latencies |

use crate::access::Access;
use crate::range::PageRange;
use crate::registrar::Registrar;
use std::sync::Arc;
use std::time::Instant;

mod barrier;
mod books;
mod builder;
mod environment;
mod error;
mod explain;
mod gate;
mod hit;
mod lease;
mod leave;
mod miss;
#[cfg(all(test, loom))]
mod orders;
mod records;
mod shared;
mod slots;
mod stats;
mod times;

pub use barrier::Barrier;
pub use builder::{BuildError, Builder};
pub use error::{AcquireError, Unusable};
pub use explain::{Explanation, Finding};
pub use lease::{Lease, Segment, Segments};
pub use miss::Acquiring;
pub use stats::{CacheCounters, Usage};
pub use times::Latencies;

pub(crate) use books::{Amount, Tally};
pub(crate) use gate::Gate;
pub(crate) use records::Records;
pub(crate) use shared::Terms;

use lease::Hold;
use miss::Wish;
use shared::Shared;

/// A cache of the registrations of one registrar.
///
/// ```
/// use mrrc::invalidation::Explicit;
/// use mrrc::registrar::model::Dummy;
/// use mrrc::{Access, Cache};
///
/// let cache = Cache::builder(Dummy::default()).monitor(Explicit).build()?;
/// let buffer = vec![0_u8; 100_000];
/// for _ in 0..10 {
///     // SAFETY: the buffer outlives the lease, and nobody else uses it meanwhile.
///     let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL) }?;
///     for segment in lease.segments() {
///         println!("{:p} {} {:?}", segment.address(), segment.len(), segment.registration());
///     }
/// }
/// assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (1, 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cache<R: Registrar> {
    shared: Arc<Shared<R>>,
    background: Option<crate::shim::thread::JoinHandle<()>>,
}

/// How much left a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reaped {
    /// Regions deregistered.
    pub regions: u64,
    /// Their pages.
    pub pages: u64,
}

impl<R: Registrar> Cache<R> {
    /// A cache of what this registrar registers.
    pub fn builder(registrar: R) -> Builder<R> {
        Builder::new(registrar)
    }

    /// Memory that is registered, with these rights at least, until the lease is dropped.
    ///
    /// On a hit this takes no lock and makes no system call. On a miss it registers the pages that no region
    /// covers, after the eviction and deregistration of others where there is no room; other threads' hits and
    /// misses go on meanwhile.
    ///
    /// # Errors
    /// [`AcquireError`], one variant for each thing that can go wrong; nothing is then registered on the request's
    /// account.
    ///
    /// # Safety
    /// The contract is that of registering memory by hand (`ibv_reg_mr`). As long as any transfer that uses the
    /// lease's keys may be under way:
    ///
    /// * the memory stays allocated for its user, and
    /// * nobody in this process holds a reference to it that such a transfer contradicts: no `&` while a device or
    ///   a peer may write, no `&mut` while one may read or write.
    ///
    /// A lease that is dropped ends the caller's claim to the registration, not the registration: the cache keeps it. A
    /// peer that was given a key with remote rights can use it until the region has left the cache: give such keys to
    /// peers that you trust with the memory, or [invalidate](Cache::invalidate) the range before it is used for
    /// something else.
    #[inline]
    #[expect(unsafe_code, reason = "the contract of registering memory by hand, stated once")]
    pub unsafe fn acquire(&self, address: *const u8, length: usize, access: Access) -> Result<Lease<R>, AcquireError> {
        if self.shared.times.is_some() {
            return self.acquire_timed(address as usize, length, access);
        }
        self.acquire_plain(address as usize, length, access)
    }

    #[inline(always)]
    fn acquire_plain(&self, address: usize, length: usize, access: Access) -> Result<Lease<R>, AcquireError> {
        let access = access.with_read();
        if let Some(range) = PageRange::of_bytes_quickly(address as u64, length as u64)
            && let Some((id, grip)) = self.shared.hit(range, access)
        {
            return Ok(Lease::one(&self.shared, address, length, Hold::new(id, grip)));
        }
        // Boxed and unboxed, so that the usual answer is not built in memory that the slow path may write to.
        self.acquire_slowly(address, length, access).map_err(|error| *error)
    }

    #[cold]
    #[inline(never)]
    fn acquire_timed(&self, address: usize, length: usize, access: Access) -> Result<Lease<R>, AcquireError> {
        let begun = Instant::now();
        let result = self.acquire_plain(address, length, access);
        // Not in a forked child: a histogram's lock may have been held at the fork.
        if let Some(times) = &self.shared.times
            && !self.shared.gate.is_forked()
        {
            let on_stack = 0_u8;
            times.acquired(std::ptr::from_ref(&on_stack).addr() >> 16, begun.elapsed());
        }
        result
    }

    #[cold]
    #[inline(never)]
    fn acquire_slowly(&self, address: usize, length: usize, access: Access) -> Result<Lease<R>, Box<AcquireError>> {
        Ok(self.wish(address, length, access)?.complete()?)
    }

    /// A request that is planned.
    fn wish(&self, address: usize, length: usize, access: Access) -> Result<Acquiring<'_, R>, AcquireError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?.rounded_out(self.shared.terms.unit);
        let wish = Wish { address, length, range, access: access.with_read(), owned: false };
        let mut acquiring = Acquiring::new(&self.shared, wish);
        acquiring.start()?;
        Ok(acquiring)
    }

    /// Begins to acquire memory: what is registered already can be [used](Acquiring::ready) before
    /// [`Acquiring::finish`] registers the rest. So a transfer of the first parts overlaps the registration of the
    /// others.
    ///
    /// # Errors
    /// As [`Cache::acquire`].
    ///
    /// # Safety
    /// As [`Cache::acquire`], for the segments that are ready and for the lease.
    #[expect(unsafe_code, reason = "the contract of registering memory by hand, stated once")]
    pub unsafe fn begin(
        &self,
        address: *const u8,
        length: usize,
        access: Access,
    ) -> Result<Acquiring<'_, R>, AcquireError> {
        self.wish(address as usize, length, access)
    }

    /// Registers memory ahead of its use. It can be evicted again like any other; [`Cache::acquire`] a lease and keep
    /// it to pin it down.
    ///
    /// # Errors
    /// As [`Cache::acquire`].
    pub fn warm(&self, address: *const u8, length: usize, access: Access) -> Result<(), AcquireError> {
        // No key leaves this call, so nothing can be transferred.
        self.acquire_plain(address as usize, length, access).map(drop)
    }

    /// The memory at these addresses is about to change or has changed: no request that begins after this
    /// call returned is served by a registration of what was there. Leases keep what they have.
    ///
    /// Call it *before* memory is unmapped, so that nobody acquires the old pages under the new mapping's address.
    /// Whoever acquires or [warms](Cache::warm) the range between this call and the change registers the old pages again:
    /// where that cannot be ruled out, call it once more when the change is done, before the address is used.
    ///
    /// # Errors
    /// [`Unusable`] where the cache is of no use any more.
    pub fn invalidate(&self, address: *const u8, length: usize) -> Result<(), AcquireError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?;
        let mut books = self.shared.lock()?;
        books.invalidate(self.shared.desk(), range);
        drop(books);
        self.shared.progress.notify_all();
        self.shared.work.notify_one();
        Ok(())
    }

    /// Deregisters all that has left the cache, and nothing else: what was evicted, invalidated and is in no lease any
    /// more. For who has idle time and no [background](Builder::background).
    ///
    /// # Errors
    /// [`Unusable`] where the cache is of no use any more.
    pub fn reap(&self) -> Result<Reaped, Unusable> {
        let amount = self.shared.reap()?;
        Ok(Reaped { regions: amount.regions, pages: amount.pages })
    }

    /// Deregisters everything that no lease has.
    ///
    /// # Errors
    /// [`Unusable`] where the cache is of no use any more.
    pub fn flush(&self) -> Result<Reaped, Unusable> {
        let amount = self.shared.flush()?;
        Ok(Reaped { regions: amount.regions, pages: amount.pages })
    }

    /// What was counted so far.
    pub fn counters(&self) -> CacheCounters {
        self.shared.counters()
    }

    /// What is registered now.
    pub fn usage(&self) -> Usage {
        self.shared.usage()
    }

    /// Latencies, if the cache was [built](Builder::histograms) to record them. None in a forked child.
    pub fn latencies(&self) -> Option<Latencies> {
        if self.shared.gate.is_forked() {
            return None;
        }
        self.shared.times.as_ref().map(|times| times.read())
    }

    /// How hits and retirements are kept in order: what a hit costs depends on it.
    pub fn barrier(&self) -> Barrier {
        self.shared.barrier
    }

    /// The registrar.
    pub fn registrar(&self) -> &R {
        &self.shared.registrar
    }

    /// The name of the monitor.
    pub fn monitor(&self) -> &'static str {
        self.shared.monitor.name()
    }
}

impl<R: Registrar> Drop for Cache<R> {
    /// Deregisters everything that no lease has, and leaves the rest to a thread that waits for the leases. In a child
    /// that was forked meanwhile nothing happens.
    fn drop(&mut self) {
        builder::end(self);
    }
}

impl<R: Registrar> std::fmt::Debug for Cache<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Usage { pages, regions, capacity_pages, .. } = self.usage();
        let registrar = self.shared.registrar.name();
        write!(f, "Cache({registrar}, {pages} of {capacity_pages} pages in {regions} regions)")
    }
}
