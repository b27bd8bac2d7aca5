//! The cache that applications use: the core's decisions, real registrations, any number of threads.
//!
//! [`Cache`] is used through a shared reference. [`Cache::acquire`] gives a [`Lease`]: memory that is registered for as
//! long as the lease lives. Most requests are *hits* and touch no lock and no line that another thread writes. The
//! others plan with the core under a lock, and register and deregister without it.
//!
//! # The modules
//!
//! Each imports only those below it.
//!
//! | | |
//! | --- | --- |
//! | `cache/` | [`Cache`], its builder, announced changes, counters |
//! | `arena.rs`, `scope.rs`, `list.rs`, `warm.rs`, `explain.rs` | the safe ways in; several buffers at once; large ranges by several threads; why a request would hit or miss |
//! | `lease/` | [`Lease`]; the entry of every request; `pending.rs`, the driver of misses: the lock, the monitor, the registrar, waits |
//! | `miss/` | a request that is no hit, as a state machine: no clock, no lock, no registrar |
//! | `reclaim/` | deregistration in batches; the background; the end of a cache |
//! | `state/` | what the lock protects, in parts that own their fields, and how it is taken (`shared.rs`) |
//! | `hit/` | the path of a hit, why it never gets what is leaving, and its tables: slots, records, gate |
//! | `registrar/`, `invalidation/` | what registers; where changes of memory are reported |
//! | `settings.rs`, `effective.rs`, `budget/` | settings, by name; those of a cache; a limit that several caches keep to |
//! | `error.rs`, `footprint.rs`, `memory.rs`, `fork.rs`, … | errors; pages and regions; mappings of arenas; a word that is wiped on fork; primitives, or those of a checker |
//!
//! # Ways in
//!
//! | | memory | rights | |
//! | --- | --- | --- | --- |
//! | [`Cache::arena`], [`Arena::acquire`] | the cache's own | all | safe, and exact under every monitor |
//! | [`Cache::with_slice`], [`Cache::with_slice_mut`] | any slice | local | safe; as long as a closure runs |
//! | [`Cache::acquire`], [`Cache::begin`] | any | all | unsafe: the contract of registering by hand |
//! | [`Cache::acquire_list`] | several buffers | all | unsafe; neighbours may share a registration |
//! | [`Cache::acquire_kind`] | dma-bufs, GPUs | all | unsafe; buffers are told apart by their [identity](crate::kinds) |
//!
//! # Warm and pin
//!
//! [`Cache::warm`] registers memory ahead of its use, and [`Cache::warm_with`] large ranges by several threads. To *pin* it, so that it is not evicted before it is used, keep a
//! [`Lease`] of it: what a lease has is never evicted. There is no other pin. A region that stays without an owner of
//! the memory could be neither evicted nor trusted, and an owner can hold a lease.

use crate::access::Access;
use crate::range::PageRange;
use crate::registrar::Registrar;
use crate::units::Count;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;

mod builder;
mod change_guard;
mod counters;

pub use crate::arena::{Arena, ArenaError};
pub use crate::budget::Budget;
pub use crate::error::{AcquireError, BlocksError, BuildError, ChangeError, NoKey, Obstacle, OutsideArena, Unusable};
pub use crate::explain::{Explanation, Finding};
pub use crate::hit::barrier::Barrier;
pub use crate::lease::{Lease, PendingLease, Segment, Segments};
pub use crate::times::Latencies;
pub use crate::warm::{Warm, WarmError};
pub use builder::Builder;
pub use change_guard::ChangeGuard;
pub use counters::{CacheCounters, Usage};

#[cfg(doc)]
use crate::invalidation::SharedMemory;
use crate::invalidation::VouchError;
use crate::kinds::{Buffers, KindError, MemoryKind};
use crate::memory::Kind;
use crate::miss::AcquireRequest;
use crate::state::shared::Shared;
use crate::{explain, lease, list, reclaim, scope, warm};

/// A cache of the registrations of one registrar.
///
/// ```
/// use mrrc::invalidation::Explicit;
/// use mrrc::testing::NoopRegistrar;
/// use mrrc::{Access, Cache};
///
/// let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build()?;
/// let buffer = vec![0_u8; 100_000];
/// for _ in 0..10 {
///     // SAFETY: the buffer outlives the lease, and has no other user meanwhile.
///     let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL) }?;
///     for segment in lease.segments() {
///         println!("{:p} {} {:?}", segment.address(), segment.len(), segment.registration());
///     }
/// }
/// assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (1, 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cache<R: Registrar> {
    pub(crate) shared: Arc<Shared<R>>,
    background: Option<crate::shim::thread::JoinHandle<()>>,
    buffers: Buffers,
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
    /// On a hit this takes no lock and makes no system call. On a miss it registers the pages that no region covers,
    /// after the eviction and deregistration of others where there is no room. Other threads' hits and misses go on
    /// meanwhile. A region that is replaced, by one with more rights or by a larger one, serves hits until that is
    /// published. It stays if that fails, if there is room for both. It counts against the limit so long.
    ///
    /// # Errors
    /// [`AcquireError`], one variant for each thing that can go wrong. Nothing is leased then; parts that were
    /// registered before the failure stay cached.
    ///
    /// # Safety
    /// The contract is that of registering memory by hand (`ibv_reg_mr`). As long as any transfer that uses the
    /// lease's keys may be under way:
    ///
    /// * the memory stays allocated for its user, and
    /// * this process holds no reference to it that such a transfer contradicts. There is no `&` while a device or a
    ///   peer may write, and no `&mut` while one may read or write.
    ///
    /// And as long as the cache is used: changes of the memory that its [monitor](Builder::monitor) does not hear of are
    /// told to it ([`Cache::begin_change`], [`Cache::invalidate`]). Under [`Explicit`](crate::invalidation::Explicit) these
    /// are all changes; what userfaultfd does not hear of, its documentation says.
    ///
    /// A lease that is dropped ends the caller's claim to the registration, not the registration: the cache keeps it. With
    /// [`Remote::Windows`](crate::registrar::windows::Remote::Windows) the rights of peers end all the same, with the lease's windows. Without, a
    /// peer that was given a key with remote rights can use it until the region is *deregistered*. Give such keys to
    /// peers that you trust with the memory, or take the rights back before the memory is used for something else. To
    /// do so end the leases of the range, [`Cache::invalidate`] it, and [`Cache::reap`]. When that has returned and
    /// [`Usage::refused`] is 0 (the registrar refused nothing), no key of the range works any more. Invalidating alone
    /// keeps *requests* from finding the region, and peers from nothing. [`Builder::max_unheld`] bounds the time for which a
    /// key works after the last lease.
    #[inline]
    #[expect(unsafe_code, reason = "the contract of registering memory by hand, stated once")]
    pub unsafe fn acquire(&self, address: *const u8, length: usize, access: Access) -> Result<Lease<R>, AcquireError> {
        lease::acquire(&self.shared, address as usize, length, access, None)
    }

    /// As [`Cache::acquire`], for a buffer of blocks: no block has two keys, so [`Lease::key_for`] has one for each.
    ///
    /// Blocks of `block` bytes follow each other from `address` on; the last may be shorter. Where the buffer is longer than a
    /// [region may be](Builder::slice_bytes), it is cut between blocks. Regions that are cached there and end within a block are replaced.
    ///
    /// ```
    /// use mrrc::{Access, Cache, invalidation::Explicit, testing::NoopRegistrar};
    ///
    /// let cache = Cache::builder(NoopRegistrar::new()).slice_bytes(64 << 10).monitor(Explicit).build()?;
    /// let buffer = vec![0_u8; 1 << 20];
    /// let block = 6 << 10;
    /// // SAFETY: the buffer outlives the lease, and no transfer is made.
    /// let lease = unsafe { cache.acquire_blocks(buffer.as_ptr(), buffer.len(), block, Access::LOCAL) };
    /// if let Ok(lease) = lease {
    ///     assert!((0..buffer.len() / block).all(|nth| lease.key_for(nth * block, block).is_ok()));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Cache::acquire`], and [`AcquireError::Blocks`]: no cut lies between blocks. It lies between pages as well.
    ///
    /// # Safety
    /// As [`Cache::acquire`].
    #[expect(unsafe_code, reason = "the contract of registering memory by hand, stated once")]
    pub unsafe fn acquire_blocks(
        &self,
        address: *const u8,
        length: usize,
        block: usize,
        access: Access,
    ) -> Result<Lease<R>, AcquireError> {
        lease::acquire_blocks(&self.shared, address as usize, length, block, access)
    }

    /// Begins to acquire memory: what is registered already can be [used](PendingLease::ready) before [`PendingLease::finish`]
    /// registers the rest. So a transfer of the first parts overlaps the registration of the others. Other threads that
    /// need what is begun wait for it, so finish soon. This thread waits for no other meanwhile. Pages that it has
    /// begun, or that another thread is registering, are registered a second time when it acquires them, for that
    /// lease only.
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
    ) -> Result<PendingLease<'_, R>, AcquireError> {
        let request = AcquireRequest::new(&self.shared.settings, address as usize, length, access.with_read())?;
        PendingLease::begin(&self.shared, request)
    }

    /// Registers memory ahead of its use. It can be evicted again like any other; [`Cache::acquire`] a lease and keep
    /// it to pin it down.
    ///
    /// # Errors
    /// As [`Cache::acquire`].
    ///
    /// # Safety
    /// As [`Cache::acquire`], for the leases that find the region later: safe code can come to have one of them.
    #[expect(unsafe_code, reason = "what it registers serves others")]
    pub unsafe fn warm(&self, address: *const u8, length: usize, access: Access) -> Result<(), AcquireError> {
        let (access, _) = self.shared.settings.divided(access);
        lease::acquire(&self.shared, address as usize, length, access, None).map(drop)
    }

    /// As [`Cache::acquire`], for memory of [another kind](crate::kinds): the regions of a buffer serve requests as long as the same buffer is at
    /// the address.
    ///
    /// The [identity](MemoryKind::identify) of the buffer is asked for each time, which takes a system call for dma-bufs, and compared under a
    /// lock. The monitor is not asked. The cache knows 1,024 buffers at most, and forgets one together with its regions. With
    /// [`Builder::max_unheld`] those that were not used for that time are forgotten when a new one comes.
    ///
    /// # Errors
    /// [`KindError`].
    ///
    /// # Safety
    /// As [`Cache::acquire`]; and the registrar registers such memory by its address. Changes that the identity does not show, such as
    /// other pages under the same buffer, are told to the cache by [`Cache::begin_change`].
    #[expect(unsafe_code, reason = "the contract of registering memory by hand, stated once")]
    pub unsafe fn acquire_kind(
        &self,
        kind: &dyn MemoryKind,
        address: *const u8,
        length: usize,
        access: Access,
    ) -> Result<Lease<R>, KindError> {
        self.buffers.acquire(&self.shared, kind, address as usize, length, access)
    }

    /// Forgets the buffers of [other kinds](crate::kinds) that have a part of this memory, with their regions. So the cache keeps no buffer that
    /// the program has given up. Leases keep what they have.
    ///
    /// # Errors
    /// As [`Cache::invalidate`].
    pub fn forget_kind(&self, address: *const u8, length: usize) -> Result<(), ChangeError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?;
        Ok(self.buffers.forget(&self.shared, range)?)
    }

    /// As [`Cache::warm`], for large ranges: their pages are made present, and registered in chunks, by several [threads](Warm) of the
    /// library. Returns the bytes that were registered.
    ///
    /// `progress` is called on this thread with the bytes that are done, and their total. Each byte counts when it is present, and again
    /// when it is registered. If it returns `Break`, what was not begun is left out.
    ///
    /// # Errors
    /// [`WarmError`]: the first thing that went wrong. Chunks that were registered stay cached.
    ///
    /// # Safety
    /// As [`Cache::warm`].
    ///
    /// ```
    /// use mrrc::cache::Warm;
    /// use mrrc::{Access, Cache, invalidation::Explicit, testing::NoopRegistrar};
    /// use std::ops::ControlFlow;
    ///
    /// let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build()?;
    /// let buffer = vec![0_u8; 8 << 20];
    /// let show = |done, total| {
    ///     println!("{done} of {total}");
    ///     ControlFlow::Continue(())
    /// };
    /// // SAFETY: the buffer outlives the cache, and no transfer is made.
    /// let bytes = unsafe { cache.warm_with(buffer.as_ptr(), buffer.len(), Access::LOCAL, &Warm::new(), show) }?;
    /// assert!(bytes >= 8 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(unsafe_code, reason = "what it registers serves others")]
    pub unsafe fn warm_with(
        &self,
        address: *const u8,
        length: usize,
        access: Access,
        how: &Warm,
        progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<u64, WarmError> {
        warm::warm(&self.shared, address as usize, length, access, how, progress)
    }

    /// As [`Cache::acquire`], for several buffers: a lease for each, in their order, or none at all.
    ///
    /// Buffers that lie close together may be registered by one call, with the pages between them. That is done if
    /// those pages are a small share of the group and cost less than the calls that are saved. The share is
    /// [`Config::group_extra`](crate::Config::group_extra), 25 % unless set; 0 joins only adjacent buffers. That is
    /// done only for local rights and within one mapping. If it fails for lack of room, or because memory between the
    /// buffers is not mapped, they are acquired one by one. A lease shows only what was asked for. The counters count
    /// each buffer as a request; registrations ([`Counters::regs`](crate::Counters::regs),
    /// [`CacheCounters::attempts`]) and pages are those of the span.
    ///
    /// Leases that the list has are held while it waits for the rest. Lists that need more than the cache has room
    /// for together can keep each other waiting until [`Builder::capacity_timeout`] is over.
    ///
    /// # Errors
    /// As [`Cache::acquire`], for the first buffer that cannot be had. Nothing stays leased then.
    ///
    /// # Safety
    /// As [`Cache::acquire`], for each buffer. Where the monitor is [`Explicit`](crate::invalidation::Explicit),
    /// its promise holds for the pages between them too: that they change is told to the cache.
    ///
    /// ```
    /// use mrrc::invalidation::Explicit;
    /// use mrrc::testing::NoopRegistrar;
    /// use mrrc::{Access, Cache};
    ///
    /// let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build()?;
    /// let memory = vec![0_u8; 64 * 4096];
    /// let rows: Vec<_> = memory.chunks(8 * 4096).map(|row| (row.as_ptr(), 7 * 4096)).collect();
    /// // SAFETY: the memory outlives the leases, and has no other user meanwhile.
    /// let leases = unsafe { cache.acquire_list(&rows, Access::LOCAL) }?;
    /// assert_eq!((leases.len(), leases[3].len()), (8, 7 * 4096));
    /// assert_eq!((cache.counters().decisions.requests, cache.counters().attempts), (8, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(unsafe_code, reason = "the contract of registering memory by hand, stated once")]
    pub unsafe fn acquire_list(
        &self,
        buffers: &[(*const u8, usize)],
        access: Access,
    ) -> Result<Vec<Lease<R>>, AcquireError> {
        list::acquire(&self.shared, buffers, access.with_read())
    }

    /// Registers a slice for sending from it, for as long as the closure runs.
    ///
    /// The lease that the closure gets ends when it returns or panics: have waited by then for all transfers that use it.
    /// The region stays cached if the monitor finds out when the memory changes. Under
    /// [`Explicit`](crate::invalidation::Explicit) it is registered for this call and deregistered after it, because safe
    /// code promised nothing ([`CacheCounters::unwatched`]). There is no safe lease that borrows: `scope.rs` says why.
    ///
    /// # Errors
    /// As [`Cache::acquire`]; the closure has not run then.
    ///
    /// ```
    /// use mrrc::Cache;
    /// use mrrc::invalidation::Explicit;
    /// use mrrc::testing::NoopRegistrar;
    ///
    /// let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build()?;
    /// let message = vec![7_u8; 10_000];
    /// let sent = cache.with_slice(&message, |lease| {
    ///     // … post a send of each segment, and wait until it is complete …
    ///     lease.segments().map(|segment| segment.len()).sum::<usize>()
    /// })?;
    /// assert_eq!(sent, message.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_slice<T>(&self, slice: &[u8], run: impl FnOnce(&Lease<R>) -> T) -> Result<T, AcquireError> {
        let address = slice.as_ptr().expose_provenance();
        scope::with_memory(&self.shared, address, slice.len(), Access::LOCAL_READ, run)
    }

    /// Registers a slice for receiving into it, for as long as the closure runs: see [`Cache::with_slice`].
    ///
    /// The rights follow from the borrow: [`Access::LOCAL_READ`] for a shared one, [`Access::LOCAL`] for this. Rights for
    /// peers are not to be had: a peer could use its key after the borrow ended. Use an [arena](Cache::arena).
    ///
    /// # Errors
    /// As [`Cache::acquire`]; the closure has not run then.
    pub fn with_slice_mut<T>(&self, slice: &mut [u8], run: impl FnOnce(&Lease<R>) -> T) -> Result<T, AcquireError> {
        let address = slice.as_mut_ptr().expose_provenance();
        scope::with_memory(&self.shared, address, slice.len(), Access::LOCAL, run)
    }

    /// Memory that the cache owns, which is acquired in safe code: so many bytes, rounded up to pages. See [`Arena`].
    ///
    /// # Errors
    /// [`ArenaError`]: the size is no size, or what the system refuses.
    pub fn arena(&self, bytes: usize) -> Result<Arena<R>, ArenaError> {
        Arena::new(&self.shared, bytes, Kind::Private)
    }

    /// As [`Cache::arena`], rounded up to and placed at multiples of 2 MiB, with the hint to the system to use huge pages.
    /// They make registrations faster, and are pinned whole.
    ///
    /// # Errors
    /// As [`Cache::arena`]. That the system has no huge pages is no error.
    pub fn huge_arena(&self, bytes: usize) -> Result<Arena<R>, ArenaError> {
        Arena::new(&self.shared, bytes, Kind::Huge)
    }

    /// As [`Cache::arena`], in shared memory: a memfd that is sealed, whose [descriptor](Arena::fd) other processes can map to read it.
    ///
    /// ```
    /// use mrrc::invalidation::Explicit;
    /// use mrrc::testing::NoopRegistrar;
    /// use mrrc::{Access, Cache};
    ///
    /// let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build()?;
    /// let arena = cache.shared_arena(1 << 20)?;
    /// arena.write_at(0, b"for all")?;
    /// let lease = arena.acquire(0..7, Access::LOCAL)?;
    /// // Its seals are as `Cache::vouch` asks for, in the other process as in this.
    /// assert!(arena.fd().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Cache::arena`]; the system may have no memfds that can be sealed so (Linux 5.1).
    #[cfg(target_os = "linux")]
    pub fn shared_arena(&self, bytes: usize) -> Result<Arena<R>, ArenaError> {
        Arena::new(&self.shared, bytes, Kind::Shared)
    }

    /// The memory at these addresses is about to change. As long as the answer lives nothing of it is cached, and
    /// earlier regions are not found any more. Leases keep what they have.
    ///
    /// Take it before the call that changes the mapping, and drop it when that has returned. Unlike
    /// [`Cache::invalidate`], this is exact also if another thread acquires the same memory at that moment. Memory
    /// that is registered in between is registered for its lease only.
    ///
    /// # Errors
    /// [`ChangeError::Range`] for no bytes, [`Unusable`] where the cache is of no use any more. In a child
    /// that was forked meanwhile nothing is cached, and the change need not be announced.
    ///
    /// ```
    /// # use mrrc::invalidation::Explicit;
    /// # use mrrc::testing::NoopRegistrar;
    /// # use mrrc::{Access, Cache};
    /// let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build()?;
    /// let buffer = vec![0_u8; 1 << 20];
    /// // SAFETY: its changes are announced below, and no transfer is made.
    /// unsafe { cache.warm(buffer.as_ptr(), buffer.len(), Access::LOCAL) }?;
    /// let change = cache.begin_change(buffer.as_ptr(), buffer.len())?;
    /// drop(buffer); // unmaps
    /// drop(change);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_change(&self, address: *const u8, length: usize) -> Result<ChangeGuard<'_, R>, ChangeError> {
        ChangeGuard::begin(&self.shared, address as usize, length)
    }

    /// The memory at these addresses is about to change or has changed. No request that begins after this call
    /// returned is served by a registration of the former pages. Leases keep what they have.
    ///
    /// It retires regions and deregisters nothing: their pages stay pinned, and keys that peers have go on to work.
    /// The [background](Builder::background), a miss that lacks room or [`Cache::reap`] deregisters them, after the
    /// last lease of each. To take rights back from peers: see [`Cache::acquire`].
    ///
    /// Call it *before* memory is unmapped, so that no request acquires the old pages under the new mapping's
    /// address. A request for the range between this call and the change registers the old pages again, and so does
    /// [`Cache::warm`]. Where that cannot be ruled out, use [`Cache::begin_change`], or call it once more when the
    /// change is done, before the address is used.
    ///
    /// # Errors
    /// [`ChangeError::Range`] for no bytes, [`Unusable`] where the cache is of no use any more.
    pub fn invalidate(&self, address: *const u8, length: usize) -> Result<(), ChangeError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?;
        let mut state = self.shared.lock()?;
        state.invalidate(&self.shared.tables, range);
        let wakes = state.in_flight.take_all_waiters();
        drop(state);
        self.shared.wake(wakes);
        self.shared.wake_background();
        Ok(())
    }

    /// Deregisters all that has left the cache, and nothing else: what was evicted, invalidated and is in no lease any
    /// more. For programs with idle time and no [background](Builder::background), and for those that need to know
    /// that an [invalidated](Cache::invalidate) range is deregistered. It waits for batches that other threads are
    /// deregistering, too, though no longer than [`Builder::wait_timeout`]. [`Usage::refused`]
    /// counts regions that the registrar refuses.
    ///
    /// # Errors
    /// [`Unusable`] where the cache is of no use any more.
    pub fn reap(&self) -> Result<Reaped, Unusable> {
        let amount = reclaim::reap(&self.shared)?;
        reclaim::await_others(&self.shared)?;
        Ok(Reaped { regions: amount.regions, pages: amount.pages })
    }

    /// Deregisters everything that no lease has, and waits as [`Cache::reap`] does.
    ///
    /// # Errors
    /// [`Unusable`] where the cache is of no use any more.
    pub fn flush(&self) -> Result<Reaped, Unusable> {
        let amount = reclaim::flush(&self.shared)?;
        reclaim::await_others(&self.shared)?;
        Ok(Reaped { regions: amount.regions, pages: amount.pages })
    }

    /// Why [`Cache::acquire`] of this memory would hit or miss right now. Decides and counts nothing.
    ///
    /// ```
    /// use mrrc::invalidation::Explicit;
    /// use mrrc::testing::NoopRegistrar;
    /// use mrrc::{Access, Cache};
    /// let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build()?;
    /// let why = cache.explain(0x1000 as *const u8, 100, Access::LOCAL);
    /// assert!(!why.is_hit());
    /// assert_eq!(why.to_string(), "0x1000..0x2000 (1 page) is not registered");
    /// # Ok::<(), mrrc::BuildError>(())
    /// ```
    pub fn explain(&self, address: *const u8, length: usize, access: Access) -> Explanation {
        explain::explain(&self.shared, address as usize, length, access.with_read())
    }

    /// Reads the seals of a memfd, so that shared mappings of it are cached after the descriptor is closed too.
    ///
    /// While the descriptor is open this is not needed: it is found on a miss. Nor is it found at once if the memory was asked for before it was
    /// sealed, and refused; after this call it is. For huge pages a descriptor has to stay open. See [`SharedMemory::Sealed`].
    ///
    /// # Errors
    /// [`VouchError`]: the memory is not sealed against loss of pages, or the monitor reads no seals.
    pub fn vouch(&self, fd: impl AsFd) -> Result<(), VouchError> {
        self.shared.monitor.vouch(fd.as_fd())
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> CacheCounters {
        counters::counters(&self.shared)
    }

    /// Returns the current registrations.
    pub fn usage(&self) -> Usage {
        counters::usage(&self.shared)
    }

    /// Returns the pages that are cached and that no lease has. It looks at every region, under the lock.
    pub fn unheld_pages(&self) -> u64 {
        counters::unheld_pages(&self.shared)
    }

    /// Latencies, if the cache was [built](Builder::histograms) to record them. None in a forked child.
    pub fn latencies(&self) -> Option<Latencies> {
        if self.shared.tables.gate.is_forked() {
            return None;
        }
        self.shared.times.as_ref().map(|times| times.read())
    }

    /// Returns whether a [thread of its own](Builder::background) deregisters what has left.
    pub fn has_background(&self) -> bool {
        self.background.is_some()
    }

    /// How hits and retirements are kept in order: what a hit costs depends on it.
    pub fn barrier(&self) -> Barrier {
        self.shared.tables.barrier
    }

    /// Returns the registrar.
    pub fn registrar(&self) -> &R {
        &self.shared.registrar
    }

    /// Returns the name of the monitor.
    pub fn monitor(&self) -> &'static str {
        self.shared.monitor.name()
    }
}

impl<R: Registrar> Drop for Cache<R> {
    /// Deregisters everything that no lease has, and leaves the rest to a thread that waits for the leases. In a child
    /// that was forked meanwhile nothing happens.
    fn drop(&mut self) {
        end(self);
    }
}

impl<R: Registrar> std::fmt::Debug for Cache<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Usage { pages, regions, capacity_pages, .. } = self.usage();
        let registrar = self.shared.registrar.name();
        write!(f, "Cache({registrar}, {pages} of {capacity_pages} pages in {})", Count(regions, "regions"))
    }
}

/// Ends the background thread and the rest. The background itself may drop the cache, in a registrar that it calls or
/// that it was the last to use. Then it ends when that has returned, and is not waited for.
fn end<R: Registrar>(cache: &mut Cache<R>) {
    let shared = cache.shared.clone();
    if let Some(thread) = cache.background.take() {
        if shared.tables.gate.is_forked() {
            // There is no such thread here.
            std::mem::forget(thread);
        } else {
            shared.stop();
            if thread.thread().id() != crate::shim::thread::current().id() {
                _ = thread.join();
            }
        }
    }
    reclaim::close(shared);
}
