//! Several devices behind one cache: each region has a key for each of them.
//!
//! A machine with two cards can send a large message over both. A cache for each card would look every request up twice, and each
//! would choose its own victims. [`Rails`] is one [`Registrar`] over up to [`MOST`] others: one index, one policy, and one
//! decision that takes a region from all of them.
//!
//! ```
//! use mrrc::invalidation::Explicit;
//! use mrrc::registrar::rails::{RailSet, Rails};
//! use mrrc::testing::NoopRegistrar;
//! use mrrc::{Access, Cache};
//!
//! // Two cards. Requests register on the first at once, on the second when its key is asked for.
//! let rails = Rails::new(vec![NoopRegistrar::new(), NoopRegistrar::new()])?.at_once(RailSet::of(&[0]));
//! let cache = Cache::builder(rails).capacity_bytes(64 << 20).monitor(Explicit).build()?;
//! let message = vec![7_u8; 100_000];
//! cache.with_slice(&message, |lease| {
//!     for segment in lease.segments() {
//!         let keys = segment.registration();
//!         let (_first, _second) = (keys.key(0)?, keys.key(1)?);
//!     }
//!     Ok::<(), mrrc::registrar::rails::RailError>(())
//! })??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is counted
//!
//! The kernel counts the pins of each rail. The cache counts a region's pages once. So the limit that
//! [`Rails`] states is the smallest of the rails', divided by their number: what is cached can be registered on all. That is the
//! default capacity, and no other is larger. With a smaller one, pins are up to that many bytes for each rail.
//!
//! # A rail that goes
//!
//! A device may go while the program runs. Its registrar says so ([`Registrar::is_gone`]), or the program does ([`Rails::lose`]).
//! From then on its keys are refused ([`RailError::Gone`]), nothing is registered there, and what was is given up when its region
//! leaves the cache. Regions and leases stay, with the keys of the other rails.

use super::windows::PeerWindows;
use super::{Limits, Registered, Registrar};
use crate::access::Access;
use crate::own_thread;
use crate::range::PageRange;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, io};

/// The most rails of one cache.
pub const MOST: usize = 16;

/// Pages from which rails register at the same time. Below that, a thread costs more than it saves: registering a page takes a
/// tenth of a microsecond and more, starting a thread some tens.
const WORTH_A_THREAD: u64 = 512;

/// Registrations that rails may keep though no region stands for them. Beyond that nothing is registered until one is taken back.
const MOST_LEFT: usize = 64;

/// Some of the rails of a cache, by their numbers from 0.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct RailSet(u16);

impl RailSet {
    /// Every rail.
    pub const ALL: Self = Self(u16::MAX);
    /// None of them.
    pub const EMPTY: Self = Self(0);

    /// These rails. Numbers that no cache can have ([`MOST`]) are left out.
    pub fn of(rails: &[usize]) -> Self {
        Self(rails.iter().filter(|&&rail| rail < MOST).fold(0, |set, &rail| set | 1 << rail))
    }

    /// Whether the rail is one of them.
    pub fn contains(self, rail: usize) -> bool {
        rail < MOST && self.0 >> rail & 1 == 1
    }

    /// How many they are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether they are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Their numbers, the smallest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MOST).filter(move |&rail| self.contains(rail))
    }

    fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

impl fmt::Debug for RailSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Why there is no key of a rail, or no such [`Rails`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RailError {
    /// A number that no rail has.
    #[error("there is no rail {rail}: they are numbered from 0, and there are {rails}")]
    NoSuchRail {
        /// The number.
        rail: usize,
        /// How many rails there are.
        rails: usize,
    },
    /// Its device went.
    #[error("rail {rail}: its device is gone: use the keys of the other rails")]
    Gone {
        /// Its number.
        rail: usize,
    },
    /// It did not register the range.
    #[error("rail {rail} did not register {range}")]
    Refused {
        /// Its number.
        rail: usize,
        /// The range.
        range: PageRange,
        /// The error of its registrar.
        source: io::Error,
    },
    /// The keys are of the process that this one was forked from, and the rail had none yet.
    #[error("rail {rail} registers nothing in a forked process: make a cache here")]
    Forked {
        /// Its number.
        rail: usize,
    },
    /// There are no rails, or too many.
    #[error("{rails} rails: one cache has from 1 to {MOST} of them")]
    Count {
        /// How many were given.
        rails: usize,
    },
}

/// Several registrars as one. See the [module](self).
///
/// A handle: a clone is the same rails, so a program keeps one to [lose](Rails::lose) a rail by, and gives one to the cache.
pub struct Rails<R: Registrar> {
    shared: Arc<Shared<R>>,
    at_once: RailSet,
}

struct Shared<R: Registrar> {
    rails: Box<[R]>,
    process: u32,
    lost: AtomicU16,
    /// Registrations of rails that did not take them back when another rail had refused the range. Tried again at each
    /// deregistration.
    left: Mutex<Vec<(usize, Registered<R::Registration>)>>,
}

impl<R: Registrar> Clone for Rails<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), at_once: self.at_once }
    }
}

impl<R: Registrar> fmt::Debug for Rails<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.shared;
        f.debug_struct("Rails")
            .field("rails", &shared.rails.len())
            .field("lost", &shared.lost())
            .finish_non_exhaustive()
    }
}

impl<R: Registrar> Rails<R> {
    /// These rails, numbered in this order. A request registers on all of them at once.
    ///
    /// # Errors
    /// There are none, or more than [`MOST`].
    pub fn new(rails: Vec<R>) -> Result<Self, RailError> {
        if rails.is_empty() || rails.len() > MOST {
            return Err(RailError::Count { rails: rails.len() });
        }
        let shared = Shared {
            rails: rails.into(),
            process: std::process::id(),
            lost: AtomicU16::new(0),
            left: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), at_once: RailSet::ALL })
    }

    /// A request registers on these rails at once, and on the others when a key of theirs is asked for.
    pub fn at_once(mut self, rails: RailSet) -> Self {
        self.at_once = rails;
        self
    }

    /// How many there are, with those that are lost.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.shared.rails.len()
    }

    /// The registrar of a rail.
    pub fn rail(&self, rail: usize) -> Option<&R> {
        self.shared.rails.get(rail)
    }

    /// Those that are lost.
    pub fn lost(&self) -> RailSet {
        self.shared.lost()
    }

    /// The device of this rail is gone: its keys are refused from now on. Not undone: a device that comes back has other keys,
    /// and is a rail of another cache.
    pub fn lose(&self, rail: usize) {
        self.shared.lose(rail);
    }
}

impl<R: Registrar> Shared<R> {
    fn all(&self) -> RailSet {
        RailSet(u16::MAX >> (MOST - self.rails.len()))
    }

    fn lost(&self) -> RailSet {
        RailSet(self.lost.load(Ordering::Acquire))
    }

    fn lose(&self, rail: usize) {
        if rail < self.rails.len() {
            self.lost.fetch_or(1 << rail, Ordering::AcqRel);
        }
    }

    /// The rails among these that there are, and that have a device.
    fn usable(&self, rails: RailSet) -> RailSet {
        RailSet(self.all().0 & rails.0).without(self.lost())
    }

    /// Registers on one rail. A device that is found to be gone is lost.
    fn register(&self, rail: usize, range: PageRange, access: Access) -> Result<R::Registration, RailError> {
        self.rails[rail].register(range, access).map_err(|source| {
            if !self.rails[rail].is_gone() {
                return RailError::Refused { rail, range, source };
            }
            self.lose(rail);
            RailError::Gone { rail }
        })
    }

    /// Gives a batch back to one rail, but for what that keeps. What a lost rail keeps is forgotten: its device has no table any
    /// more.
    fn give_back(&self, rail: usize, batch: &mut Vec<Registered<R::Registration>>) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let result = self.rails[rail].deregister(batch);
        if result.is_err() && self.rails[rail].is_gone() {
            self.lose(rail);
        }
        if !self.lost().contains(rail) {
            return result;
        }
        batch.clear();
        Ok(())
    }

    fn left(&self) -> MutexGuard<'_, Vec<(usize, Registered<R::Registration>)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries once more what no region stands for.
    ///
    /// # Errors
    /// Too much is left all the same. Room is what helps, so the cache makes some, and asks again.
    fn retry(&self) -> io::Result<()> {
        let left = std::mem::take(&mut *self.left());
        for (rail, registered) in left {
            let mut batch = vec![registered];
            // It stays in the list, which is the report: the next deregistration tries it again.
            let _ = self.give_back(rail, &mut batch);
            self.left().extend(batch.pop().map(|registered| (rail, registered)));
        }
        match self.left().len() {
            0..MOST_LEFT => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        }
    }
}

/// The keys of a region, one for each rail. What a lease shows as its registration.
pub struct RailKeys<R: Registrar> {
    shared: Arc<Shared<R>>,
    range: PageRange,
    access: Access,
    slots: Box<[Slot<R::Registration>]>,
}

struct Slot<T> {
    key: OnceLock<T>,
    /// Held while the rail registers, so that it does so once. Taken in the order of the rails.
    filling: Mutex<()>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { key: OnceLock::new(), filling: Mutex::default() }
    }
}

impl<R: Registrar> fmt::Debug for RailKeys<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RailKeys").field("range", &self.range).field("filled", &self.filled()).finish_non_exhaustive()
    }
}

impl<R: Registrar> RailKeys<R> {
    fn new(shared: &Arc<Shared<R>>, range: PageRange, access: Access) -> Self {
        let slots = shared.rails.iter().map(|_| Slot::default()).collect();
        Self { shared: Arc::clone(shared), range, access, slots }
    }

    /// The key of a rail. The first that asks for it waits until the rail has registered the region.
    ///
    /// # Errors
    /// There is no such rail, its device is gone, or it refused the range. Asking again tries again.
    #[inline]
    pub fn key(&self, rail: usize) -> Result<&R::Registration, RailError> {
        match self.slots.get(rail).and_then(|slot| slot.key.get()) {
            Some(key) if !self.shared.lost().contains(rail) => Ok(key),
            _ => self.fill_one(rail),
        }
    }

    #[cold]
    fn fill_one(&self, rail: usize) -> Result<&R::Registration, RailError> {
        let slot = self.slots.get(rail).ok_or(RailError::NoSuchRail { rail, rails: self.slots.len() })?;
        if self.shared.lost().contains(rail) {
            return Err(RailError::Gone { rail });
        }
        // Another thread may have held the slot when the process forked, and is not here to let go.
        if self.shared.process != std::process::id() {
            return Err(RailError::Forked { rail });
        }
        self.fill(RailSet::of(&[rail]))?;
        slot.key.get().ok_or(RailError::Gone { rail })
    }

    /// The rails that have registered the region. A key of a lost one is refused all the same.
    pub fn filled(&self) -> RailSet {
        RailSet::of(&(0..self.slots.len()).filter(|&rail| self.slots[rail].key.get().is_some()).collect::<Vec<_>>())
    }

    /// Registers the region on these rails, at the same time where it is large: before a message goes over several. Rails that
    /// do not exist or are lost are left out.
    ///
    /// # Errors
    /// That of the first rail that refused it. The others keep what they registered.
    pub fn fill(&self, rails: RailSet) -> Result<(), RailError> {
        let rails = self.shared.usable(rails).without(self.filled());
        // In the order of the rails: two callers that fill some of the same never wait for each other.
        let held: Vec<_> = rails.iter().map(|rail| (rail, self.slots[rail].hold())).collect();
        let missing: Vec<_> =
            held.iter().map(|(rail, _)| *rail).filter(|&r| self.slots[r].key.get().is_none()).collect();
        let mut first = None;
        for (rail, outcome) in self.register_on(&missing) {
            match outcome {
                Ok(key) => self.slots[rail].put(key),
                // The others go on.
                Err(RailError::Gone { .. }) => {}
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn register_on(&self, rails: &[usize]) -> Vec<(usize, Result<R::Registration, RailError>)> {
        let (shared, range, access) = (&self.shared, self.range, self.access);
        if rails.len() < 2 || range.pages() < WORTH_A_THREAD {
            return rails.iter().map(|&rail| (rail, shared.register(rail, range, access))).collect();
        }
        let began: Vec<_> = rails[1..].iter().map(|&rail| (rail, begin(shared, rail, range, access))).collect();
        let own = (rails[0], shared.register(rails[0], range, access));
        let others = began.into_iter().map(|(rail, answer)| (rail, answer()));
        std::iter::once(own).chain(others).collect()
    }

    /// Gives back what was filled, after a rail had refused the region.
    fn undo(mut self) {
        for rail in 0..self.slots.len() {
            let Some(registration) = self.slots[rail].key.take() else { continue };
            let mut batch = vec![Registered { range: self.range, access: self.access, registration }];
            // What the rail keeps goes into the list of what is left, to be tried again.
            let _ = self.shared.give_back(rail, &mut batch);
            self.shared.left().extend(batch.pop().map(|registered| (rail, registered)));
        }
    }
}

impl<T> Slot<T> {
    fn hold(&self) -> MutexGuard<'_, ()> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller holds the slot and found it empty, so that the key is taken.
    fn put(&self, key: T) {
        assert!(self.key.set(key).is_ok(), "a slot is filled by the thread that holds it");
    }
}

type Outcome<T> = Result<T, RailError>;

/// Begins to register on a rail, on a thread of its own. If the system starts no thread, it registers here. What is returned waits
/// for the answer.
fn begin<R: Registrar>(
    shared: &Arc<Shared<R>>,
    rail: usize,
    range: PageRange,
    access: Access,
) -> Box<dyn FnOnce() -> Outcome<R::Registration>> {
    let (tell, told) = sync_channel(1);
    let on_thread = Arc::clone(shared);
    let spawned = own_thread::spawn("mrrc-rail", move || {
        // The caller waits for it. If the caller's thread ended by a panic, the registration is left to be tried again.
        if let Err(unheard) = tell.send(on_thread.register(rail, range, access)) {
            let registration = unheard.0.ok();
            on_thread.left().extend(registration.map(|of| (rail, Registered { range, access, registration: of })));
        }
    });
    match spawned {
        Ok(_) => Box::new(move || {
            let ended = || io::Error::other("the thread that registered it ended without an answer");
            told.recv().unwrap_or_else(|_| Err(RailError::Refused { rail, range, source: ended() }))
        }),
        Err(_) => {
            let here = shared.register(rail, range, access);
            Box::new(|| here)
        }
    }
}

// SAFETY: a region is registered as long as each rail's registration is, which each rail promises by the same contract: it
// means the pages of its time, and is quiescent when it was taken back. Keys are unique on the rail that gave them, and are
// told by rail. Each rail is given the access that was asked for, and no other.
#[expect(unsafe_code, reason = "the trait of the edge: what the rails promise is passed on")]
unsafe impl<R: Registrar> Registrar for Rails<R> {
    type Registration = RailKeys<R>;

    fn register(&self, range: PageRange, access: Access) -> io::Result<RailKeys<R>> {
        let keys = RailKeys::new(&self.shared, range, access);
        if self.shared.usable(RailSet::ALL).is_empty() {
            return Err(io::Error::other("the devices of all rails are gone: make a cache over others"));
        }
        self.shared.retry()?;
        match keys.fill(self.at_once) {
            Ok(()) => Ok(keys),
            Err(error) => {
                keys.undo();
                // The rail's own error: the cache tells by its number whether room helps.
                Err(match error {
                    RailError::Refused { source, .. } => source,
                    other => io::Error::other(other),
                })
            }
        }
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.shared.usable(self.at_once).iter().try_for_each(|rail| self.shared.rails[rail].probe(range, access))
    }

    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.shared.usable(self.at_once).iter().try_for_each(|rail| self.shared.rails[rail].examine(range, access))
    }

    /// A region leaves when all of its rails have taken theirs back.
    fn deregister(&self, batch: &mut Vec<Registered<RailKeys<R>>>) -> io::Result<()> {
        // What is left bounds new registrations, and no deregistration.
        let _ = self.shared.retry();
        let mut first = None;
        for rail in 0..self.shared.rails.len() {
            let mut of_rail: Vec<_> = batch.iter_mut().filter_map(|region| take(region, rail)).collect();
            first = first.or(self.shared.give_back(rail, &mut of_rail).err());
            put_back(batch, rail, of_rail);
        }
        batch.retain(|region| !region.registration.filled().is_empty());
        first.map_or(Ok(()), Err)
    }

    fn clock(&self) -> Option<Duration> {
        self.shared.rails[0].clock()
    }

    fn limits(&self) -> Limits {
        let limits = self.shared.rails.iter().map(R::limits);
        let rails = self.shared.rails.len() as u64;
        let all = limits.reduce(|one, other| Limits {
            regions: least(one.regions, other.regions),
            pages: least(one.pages, other.pages),
            region_pages: least(one.region_pages, other.region_pages),
            page_size: one.page_size.max(other.page_size),
        });
        let all = all.unwrap_or_default();
        Limits { pages: all.pages.map(|pages| (pages / rails).max(1)), ..all }
    }

    /// Those that every rail grants.
    fn rights(&self) -> Access {
        self.shared.rails.iter().fold(Access::all(), |rights, rail| rights & rail.rights())
    }

    fn name(&self) -> &'static str {
        "rails"
    }

    /// None: a window is of one device.
    fn ready_windows(&mut self) -> io::Result<Arc<dyn PeerWindows<Self::Registration>>> {
        Err(io::Error::other("it has no memory windows for several devices: make a cache for each"))
    }

    /// Whether all rails are.
    fn is_gone(&self) -> bool {
        self.shared.usable(RailSet::ALL).is_empty()
    }
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// Takes a rail's registration out of a region that no lease has.
fn take<R: Registrar>(region: &mut Registered<RailKeys<R>>, rail: usize) -> Option<Registered<R::Registration>> {
    let registration = region.registration.slots[rail].key.take()?;
    Some(Registered { range: region.range, access: region.access, registration })
}

/// Puts what a rail kept back into regions of the batch with the same pages and rights. They are alike: no lease has them.
fn put_back<R: Registrar>(batch: &[Registered<RailKeys<R>>], rail: usize, kept: Vec<Registered<R::Registration>>) {
    if kept.is_empty() {
        return;
    }
    let mut empty: FxHashMap<_, Vec<usize>> = FxHashMap::default();
    for (nth, region) in batch.iter().enumerate() {
        if region.registration.slots[rail].key.get().is_none() {
            empty.entry((region.range, region.access)).or_default().push(nth);
        }
    }
    for registered in kept {
        let place = empty.get_mut(&(registered.range, registered.access)).and_then(Vec::pop);
        match place {
            Some(nth) => batch[nth].registration.slots[rail].put(registered.registration),
            // It was taken from a region of this batch, so there is one. A rail that returns others breaks its contract.
            None => batch[0].registration.shared.left().push((rail, registered)),
        }
    }
}
