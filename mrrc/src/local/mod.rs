//! The cache of one thread: the core's decisions and real registrations, without locks, atomics or threads.
//!
//! [`LocalCache`] is [`Cache`](crate::Cache) for a program that drives its device from one thread, such as a reactor.
//! It has the same rules, limits and errors, but each hit tells the core at once, so that the order of
//! recency is exact: what it counts is what the simulator counts for the same requests. Caches of several threads know
//! nothing of each other, and share what their registrars share.
//!
//! # Changes of memory
//!
//! It hears of them by [`LocalCache::invalidate`] alone. A monitor such as userfaultfd stops whoever unmaps memory until
//! its event is read, and the one thread that there is cannot read it meanwhile; and a thread that reads it would
//! need the locks that this cache is without. So whoever changes a mapping under the cache says so first.
//!
//! # The files
//!
//! `books.rs` has the way of a miss and the way out of the cache, `lease.rs` what the caller gets.

mod books;
mod lease;

pub use lease::{LocalLease, LocalSegments};

use crate::access::Access;
use crate::cache::{AcquireError, Builder, CacheCounters, ChangeError, Gate, Reaped, Records, Terms, Unusable, Usage};
use crate::core::Core;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Registrar;
use books::{Books, Stop, Wish};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::rc::Rc;

/// A cache of the registrations of one registrar, for one thread.
///
/// ```
/// use mrrc::registrar::model::Dummy;
/// use mrrc::{Access, LocalCache};
///
/// let cache = LocalCache::builder(Dummy::default()).capacity_bytes(64 << 20).build_local()?;
/// let buffer = vec![0_u8; 100_000];
/// for _ in 0..10 {
///     // SAFETY: the buffer outlives the lease, and nobody else uses it meanwhile.
///     let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL) }?;
///     for segment in lease.segments() {
///         println!("{:p} {} {:?}", segment.address(), segment.len(), segment.registration());
///     }
/// }
/// cache.invalidate(buffer.as_ptr(), buffer.len())?; // before the memory is given back to the system
/// assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (1, 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It stays on its thread:
///
/// ```compile_fail,E0277
/// use mrrc::LocalCache;
/// use mrrc::registrar::model::Dummy;
/// let cache = LocalCache::builder(Dummy::default()).build_local().unwrap();
/// std::thread::spawn(move || cache.counters());
/// ```
pub struct LocalCache<R: Registrar> {
    state: Rc<State<R>>,
}

/// What a cache and its leases share.
struct State<R: Registrar> {
    /// Says that this is a forked child, and nothing else: there is no monitor.
    gate: Gate,
    /// Borrowed by every call for as long as it lasts, calls of the registrar included.
    books: RefCell<Books<R::Registration>>,
    /// Whether the registrar is being called.
    calling: Cell<bool>,
    /// What happened while the books were borrowed.
    later: RefCell<Later>,
    /// The registrations. Filled and emptied by who has borrowed the books; leases look at those that they hold.
    records: Records<R::Registration>,
    registrar: R,
    terms: Terms,
}

/// What a registrar does to the cache that is calling it; dealt with as soon as it has returned and its caller is done.
#[derive(Default)]
struct Later {
    ended: Vec<RegionId>,
    changed: Vec<PageRange>,
}

impl<R: Registrar> LocalCache<R> {
    /// A cache of what this registrar registers, made by [`Builder::build_local`].
    pub fn builder(registrar: R) -> Builder<R> {
        Builder::new(registrar)
    }

    pub(crate) fn new(registrar: R, mut core: Core, terms: Terms) -> io::Result<Self> {
        core.limit_hard();
        if terms.max_segments == 1 {
            core.use_one_key();
        }
        let state = State {
            gate: Gate::new()?,
            books: RefCell::new(Books::new(core)),
            calling: Cell::new(false),
            later: RefCell::default(),
            records: Records::new(terms.capacity.regions as usize)?,
            registrar,
            terms,
        };
        Ok(Self { state: Rc::new(state) })
    }

    /// Memory that is registered, with these rights at least, until the lease is dropped.
    ///
    /// On a miss this registers the pages that no region covers, after the eviction and deregistration of others
    /// where there is no room.
    ///
    /// # Errors
    /// [`AcquireError`], one variant for each thing that can go wrong. Nothing is leased then; parts that were
    /// registered before the failure stay cached. Where everything is in use that is said at once: nobody else could end a lease.
    ///
    /// # Panics
    /// If the registrar does. The cache stays usable, with what was registered before.
    ///
    /// # Safety
    /// That of [`Cache::acquire`](crate::Cache::acquire).
    #[inline]
    #[expect(unsafe_code, reason = "the contract of registering memory by hand, stated with Cache::acquire")]
    pub unsafe fn acquire(
        &self,
        address: *const u8,
        length: usize,
        access: Access,
    ) -> Result<LocalLease<R>, AcquireError> {
        self.acquire_plain(address as usize, length, access)
    }

    #[inline(always)]
    fn acquire_plain(&self, address: usize, length: usize, access: Access) -> Result<LocalLease<R>, AcquireError> {
        let access = access.with_read();
        if let Some(range) = PageRange::of_bytes_quickly(address as u64, length as u64)
            // Where the device's pages are larger, a hit is counted in those.
            && let range = if self.state.terms.unit > 1 { range.rounded_out(self.state.terms.unit) } else { range }
            && let Some(id) = self.state.hit(range, access)
        {
            return Ok(LocalLease::one(&self.state, address, length, id));
        }
        self.acquire_slowly(address, length, access)
    }

    #[inline(never)]
    fn acquire_slowly(&self, address: usize, length: usize, access: Access) -> Result<LocalLease<R>, AcquireError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?.rounded_out(self.state.terms.unit);
        let wish = Wish { range, access };
        let regions = settle(self.state.with_books(|books| self.state.acquire(books, wish))?)?;
        Ok(LocalLease::of(&self.state, address, length, regions))
    }

    /// Registers memory ahead of its use. It can be evicted again like any other; [`LocalCache::acquire`] a lease and
    /// keep it to pin it down.
    ///
    /// # Errors
    /// As [`LocalCache::acquire`].
    ///
    /// # Panics
    /// As [`LocalCache::acquire`].
    ///
    /// # Safety
    /// As [`LocalCache::acquire`], for the leases that find the region later.
    #[expect(unsafe_code, reason = "what it registers serves others")]
    pub unsafe fn warm(&self, address: *const u8, length: usize, access: Access) -> Result<(), AcquireError> {
        self.acquire_plain(address as usize, length, access).map(drop)
    }

    /// The memory at these addresses is about to change or has changed: no request that begins after this
    /// call returned is served by a registration of what was there. Leases keep what they have. Nothing is
    /// deregistered yet; the next miss does that, or [`LocalCache::reap`].
    ///
    /// This is the only way in which such a cache hears of changes. A registrar may call it too, while it is called.
    ///
    /// # Errors
    /// [`Unusable`] where the cache is of no use any more.
    pub fn invalidate(&self, address: *const u8, length: usize) -> Result<(), ChangeError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?;
        let state = &*self.state;
        match state.with_books(|books| books.invalidate(&state.records, range)) {
            Err(Unusable::Reentered) => state.later.borrow_mut().change(range),
            done => done?,
        }
        Ok(())
    }

    /// Deregisters all that has left the cache, and nothing else: what was evicted, invalidated and is in no lease any
    /// more. For idle time.
    ///
    /// # Errors
    /// [`Unusable`] where the cache is of no use any more.
    ///
    /// # Panics
    /// As [`LocalCache::acquire`].
    pub fn reap(&self) -> Result<Reaped, Unusable> {
        settle(self.state.with_books(|books| self.state.reap(books))?)
    }

    /// Deregisters everything that no lease has.
    ///
    /// # Errors
    /// [`Unusable`] where the cache is of no use any more.
    ///
    /// # Panics
    /// As [`LocalCache::acquire`].
    pub fn flush(&self) -> Result<Reaped, Unusable> {
        settle(self.state.with_books(|books| self.state.flush(books))?)
    }

    /// What was counted so far: exact, and nothing where the cache is of no use any more. What only threads and
    /// monitors can do to a cache stays 0.
    pub fn counters(&self) -> CacheCounters {
        self.state.with_books(|books| books.counters()).unwrap_or_default()
    }

    /// What is registered now. Leases are known exactly, so nothing counts as [lent](Usage::lent).
    pub fn usage(&self) -> Usage {
        let limit = self.state.terms.capacity;
        self.state.with_books(|books| books.usage(limit)).unwrap_or_default()
    }

    /// The registrar.
    pub fn registrar(&self) -> &R {
        &self.state.registrar
    }
}

/// What a call that needed the registrar came to. A panic of the registrar goes on, now that the books are closed.
fn settle<A, E>(answer: Result<A, Stop<E>>) -> Result<A, E> {
    answer.map_err(|stop| match stop {
        Stop::Failed(error) => error,
        Stop::Panicked(panic) => std::panic::resume_unwind(panic),
    })
}

impl<R: Registrar> State<R> {
    /// Opens the books, unless they are open already or another process's.
    ///
    /// A panic in `work` leaves them open: what they say is in doubt then, and nobody uses them any more. Panics of the
    /// registrar do not come this far.
    #[inline(always)]
    fn with_books<A>(&self, work: impl FnOnce(&mut Books<R::Registration>) -> A) -> Result<A, Unusable> {
        if !self.gate.is_open() {
            return Err(Unusable::Forked);
        }
        let Ok(books) = self.books.try_borrow_mut() else { return Err(self.why_borrowed()) };
        let mut books = ManuallyDrop::new(books);
        let answer = work(&mut books);
        drop(ManuallyDrop::into_inner(books));
        Ok(answer)
    }

    #[cold]
    fn why_borrowed(&self) -> Unusable {
        if self.calling.get() { Unusable::Reentered } else { Unusable::Broken }
    }

    /// A region that serves the whole range, held for a lease.
    #[inline(always)]
    fn hit(&self, range: PageRange, access: Access) -> Option<RegionId> {
        let found = self.with_books(|books| {
            let id = books.core.hit_with(range, access)?;
            books.core.try_hold(id).then_some(id)
        });
        found.ok().flatten()
    }

    /// A lease ends its hold of a region.
    #[inline(always)]
    fn let_go(self: &Rc<Self>, id: RegionId) {
        if self.with_books(|books| books.core.release_cached(id)) != Ok(true) {
            self.let_go_slowly(id);
        }
    }

    #[cold]
    #[inline(never)]
    fn let_go_slowly(self: &Rc<Self>, id: RegionId) {
        match self.with_books(|books| books.release(&self.records, id)) {
            Ok(()) => {}
            Err(Unusable::Reentered) => self.later.borrow_mut().ended.push(id),
            // All that is here is the parent's, or nobody knows what is registered: it must stay as it is.
            Err(_) => mem::forget(self.clone()),
        }
    }

    /// A cache or a lease goes, and leaves everything behind if it is the last.
    #[inline(always)]
    fn leave(self: &Rc<Self>) {
        if Rc::strong_count(self) == 1 {
            self.end();
        }
    }

    #[cold]
    #[inline(never)]
    fn end(self: &Rc<Self>) {
        let answer = self.with_books(|books| self.deregister_everything(books));
        let panic = match answer {
            Ok(Ok(())) => return,
            Ok(Err(Stop::Panicked(panic))) => Some(panic),
            Ok(Err(Stop::Failed(()))) | Err(_) => None,
        };
        // The registrar will not take them (or this is a child, and they are its parent's): what a device knows must not
        // be freed under it.
        mem::forget(self.clone());
        if let Some(panic) = panic
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Later {
    fn change(&mut self, range: PageRange) {
        // A thread reports them by calls, and may allocate.
        self.changed.push(range);
    }
}

impl<R: Registrar> Drop for LocalCache<R> {
    /// Deregisters everything that no lease has. The rest stays registered until the last lease ends, which
    /// deregisters it. In a child that was forked meanwhile nothing happens.
    fn drop(&mut self) {
        if Rc::strong_count(&self.state) > 1 {
            // What the registrar does not take now is tried again at the end.
            if let Ok(Err(Stop::Panicked(panic))) = self.state.with_books(|books| self.state.flush::<()>(books))
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
        self.state.leave();
    }
}

impl<R: Registrar> fmt::Debug for LocalCache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { pages, regions, capacity_pages, .. } = self.usage();
        let registrar = self.state.registrar.name();
        write!(f, "LocalCache({registrar}, {pages} of {capacity_pages} pages in {regions} regions)")
    }
}

#[cfg(test)]
mod tests {
    use crate::invalidation::Explicit;
    use crate::regions::MOST_LEASES;
    use crate::registrar::model::Dummy;
    use crate::{Access, AcquireError, Cache, PAGE};

    #[test]
    fn a_region_with_too_many_leases_is_an_error() {
        let cache = Cache::builder(Dummy::default()).monitor(Explicit).ignore_environment().build_local().unwrap();
        let (address, length) = ((16 * PAGE) as *const u8, PAGE as usize);
        #[expect(unsafe_code, reason = "no transfer is made")]
        // SAFETY: no transfer is made.
        let ask = |pages: usize| unsafe { cache.acquire(address, pages * length, Access::LOCAL) };
        let mut leases: Vec<_> = (0..MOST_LEASES).map(|_| ask(1).unwrap()).collect();
        for pages in [1, 2] {
            let refused = ask(pages).map(drop).unwrap_err();
            assert!(matches!(refused, AcquireError::TooManyLeases { .. }), "{refused}");
        }
        leases.pop();
        leases.push(ask(1).unwrap());
        drop(leases);
        assert_eq!(cache.flush().unwrap().regions, 1, "nothing is left held, and no gap stands");
        assert_eq!(cache.usage().pages, 0);
    }
}
