//! A limit that several caches keep to together.
//!
//! A cache takes from the budget before it registers, and gives back when it deregisters. Where there is not enough, one
//! decision ([`shares`]) spans all caches: one of them makes room, and the thread that needs it does that.
//!
//! # Locks
//!
//! The budget's lock is held for the decision alone. It is never taken under the lock of a cache, nor the other way
//! round, and a thread that makes room in another cache holds none of its own.

mod shares;

use shares::{Shares, Standing, Turn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Times that caches made room for one request, at most, and others took it, before it fails.
const ROUNDS: u32 = 64;

/// A limit on what several caches have registered together.
///
/// Each of n caches is guaranteed the n-th part of half of it. Room for a miss is taken from the cache that is furthest
/// above that, first from those of which nothing is asked. So a cache that floods does not drive out what another uses, and
/// one that filled the limit once and does nothing more gives way. Leased regions stay.
///
/// ```
/// use mrrc::cache::Budget;
/// use mrrc::invalidation::Explicit;
/// use mrrc::testing::NoopRegistrar;
/// use mrrc::{Access, Cache};
///
/// let budget = Budget::new(8);
/// let cache = || Cache::builder(NoopRegistrar::default()).budget(&budget).monitor(Explicit).build();
/// let (first, second) = (cache()?, cache()?);
/// let memory = vec![0_u8; 64 << 10];
/// for page in 0..15 {
///     // SAFETY: the memory outlives the leases, and has no other user meanwhile.
///     unsafe { first.warm(memory.as_ptr().wrapping_add(page * 4096), 1, Access::LOCAL) }?;
///     // SAFETY: as before.
///     unsafe { second.warm(memory.as_ptr(), 1, Access::LOCAL) }?;
/// }
/// assert_eq!((budget.limit(), second.counters().attempts), (8, 1));
/// assert!(budget.pages() <= 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is of one process: a forked child makes its own.
#[derive(Clone, Debug)]
pub struct Budget {
    account: Arc<Account>,
}

#[derive(Debug)]
struct Account {
    process: u32,
    /// The given limit.
    most: u64,
    /// That, or the smallest capacity of the caches.
    limit: AtomicU64,
    pages: AtomicU64,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    shares: Shares,
    next: u64,
    all: Vec<Member>,
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Members").field("caches", &self.all.len()).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Member {
    name: u64,
    capacity: u64,
    own: Arc<Own>,
    tenant: Weak<dyn Tenant>,
}

/// The share of one cache in the budget.
#[derive(Debug, Default)]
struct Own {
    pages: AtomicU64,
    misses: AtomicU64,
}

/// A cache, as the budget knows it.
pub(crate) trait Tenant: Send + Sync {
    /// Hits so far.
    fn hits(&self) -> u64;

    /// Makes room of about so many pages, of what no lease has. Returns how many are deregistered now. It waits for no
    /// other.
    fn give(&self, pages: u64) -> u64;
}

impl Default for Budget {
    /// As much as the smallest capacity of its caches.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl Budget {
    /// So many pages (of 4 KiB); or the smallest capacity of its caches, if that is less.
    pub fn new(pages: u64) -> Self {
        let (limit, used) = (AtomicU64::new(pages), AtomicU64::new(0));
        let process = std::process::id();
        let account = Account { process, most: pages, limit, pages: used, members: Mutex::default() };
        Self { account: Arc::new(account) }
    }

    /// Returns the most pages that its caches may have registered together.
    pub fn limit(&self) -> u64 {
        self.account.limit.load(Relaxed)
    }

    /// Returns the limit that was asked for. That of the moment may be lower on account of a cache that goes before
    /// others.
    pub(crate) fn most(&self) -> u64 {
        self.account.most
    }

    /// Pages that they have registered, are registering or deregistering.
    pub fn pages(&self) -> u64 {
        self.account.pages.load(Relaxed)
    }

    /// # Errors
    /// It is that of the process that this one was forked from.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.account.process == std::process::id() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::Unsupported, "it is the parent process': make a budget here"))
    }

    /// A cache of this capacity joins.
    pub(crate) fn join(&self, capacity: u64, tenant: Weak<dyn Tenant>) -> Seat {
        let mut members = self.members();
        let name = members.next;
        members.next += 1;
        let own = Arc::<Own>::default();
        members.all.push(Member { name, capacity, own: own.clone(), tenant });
        self.set_limit(&members);
        drop(members);
        Seat { budget: self.clone(), name, own }
    }

    /// Caches have come or gone.
    fn set_limit(&self, members: &Members) {
        let smallest = members.all.iter().map(|member| member.capacity).min();
        self.account.limit.store(smallest.unwrap_or(u64::MAX).min(self.account.most), Relaxed);
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.account.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cache's place in a budget. Regions still registered when it is dropped stay counted.
#[derive(Debug)]
pub(crate) struct Seat {
    budget: Budget,
    name: u64,
    own: Arc<Own>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut members = self.budget.members();
        members.all.retain(|member| member.name != self.name);
        members.shares.forget(self.name);
        self.budget.set_limit(&members);
    }
}

impl Seat {
    fn take(&self, pages: u64) -> bool {
        let limit = self.budget.limit();
        let more = |used: u64| used.checked_add(pages).filter(|&after| after <= limit);
        let taken = self.budget.account.pages.fetch_update(Relaxed, Relaxed, more).is_ok();
        if taken {
            self.own.pages.fetch_add(pages, Relaxed);
        }
        taken
    }

    /// Takes pages of the budget: room is made in the caches that are to make it. With no lock held.
    ///
    /// # Errors
    /// Out of memory, in words: what is registered is in use, or guaranteed to other caches. A quota: it is more than the limit.
    pub(crate) fn claim(&self, pages: u64) -> io::Result<Claim<'_>> {
        self.own.misses.fetch_add(1, Relaxed);
        let limit = self.budget.limit();
        if pages > limit {
            // It is larger than the budget: no eviction makes room for it.
            let why = format!(
                "{pages} pages, and the caches of this budget have {limit} together: raise the limit (MRRC_CAPACITY)"
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        let (mut rounds, mut passed) = (0, Vec::new());
        while rounds < ROUNDS {
            if self.take(pages) {
                return Ok(Claim { seat: self, pages });
            }
            let Some((turn, tenant)) = self.choose(pages, &passed) else { break };
            // A fault of another cache's registrar is not this request's.
            let given = catch_unwind(AssertUnwindSafe(|| tenant.give(turn.pages))).unwrap_or(0);
            if given == 0 {
                // Each is passed over once.
                passed.push(turn.cache);
            } else {
                rounds += 1;
            }
        }
        if self.take(pages) { Ok(Claim { seat: self, pages }) } else { Err(refused(self)) }
    }

    /// Gives pages back that were deregistered.
    pub(crate) fn give_back(&self, pages: u64) {
        self.own.pages.fetch_sub(pages, Relaxed);
        self.budget.account.pages.fetch_sub(pages, Relaxed);
    }

    /// Returns the cache that makes room for so many pages, and how much.
    fn choose(&self, pages: u64, passed: &[u64]) -> Option<(Turn, Arc<dyn Tenant>)> {
        let all = self.budget.members().all.clone();
        // They may end here, which takes locks of their own.
        let tenants: Vec<_> = all.iter().map(|member| member.tenant.upgrade()).collect();
        let standing = |(member, tenant): (&Member, &Option<Arc<dyn Tenant>>)| {
            let hits = tenant.as_ref()?.hits();
            let requests = member.own.misses.load(Relaxed).wrapping_add(hits);
            Some(Standing { cache: member.name, pages: member.own.pages.load(Relaxed), requests })
        };
        let caches: Vec<_> = all.iter().zip(&tenants).filter_map(standing).collect();
        let turn = self.budget.members().shares.choose(self.budget.limit(), self.name, pages, &caches, passed)?;
        let tenant = all.iter().zip(tenants).find(|(member, _)| member.name == turn.cache)?.1?;
        Some((turn, tenant))
    }
}

/// Pages of the budget that are taken for a registration. Given back if nothing comes of it.
pub(crate) struct Claim<'a> {
    seat: &'a Seat,
    pages: u64,
}

impl Claim<'_> {
    /// It is registered: the pages are the registration's now.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.seat.give_back(self.pages);
    }
}

#[cold]
fn refused(seat: &Seat) -> io::Error {
    let (pages, limit) = (seat.budget.pages(), seat.budget.limit());
    let why = format!(
        "{pages} of {limit} pages are registered by the caches of this budget, and are in use or guaranteed to the others: \
         release leases, or raise the limit (MRRC_CAPACITY)"
    );
    io::Error::new(io::ErrorKind::OutOfMemory, why)
}
