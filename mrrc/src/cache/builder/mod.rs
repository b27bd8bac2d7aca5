//! How a cache is made: what the program says, what the environment says, and what is the default.
//!
//! A setting comes from the first of these that has it: an environment variable, for the user of the program; the
//! program's call; the default. Two that correctness rests on the environment can only strengthen (`strength.rs`).
//! Then the limits of the registrar apply: nothing can be set above them.

use crate::access::Access;
use crate::budget::Budget;
use crate::cache::Cache;
use crate::config::Config;
use crate::core::Core;
use crate::effective::{EffectiveSettings, Widening};
use crate::error::BuildError;
use crate::footprint::Footprint;
use crate::grid::Grid;
use crate::hit::barrier::Barrier;
use crate::invalidation::{Monitor, OwnMonitor, SharedMemory};
use crate::kinds::Buffers;
use crate::own_thread;
use crate::policy::{Keeps, Matching, Policy, PolicyKind, PolicyParams};
use crate::pressure::{Pressure, Shrinks};
use crate::range::{PAGE, PageRange};
use crate::reclaim;
use crate::regions::RegionId;
use crate::registrar::windows::{CacheWindows, Remote};
use crate::registrar::{Limits, Registrar};
use crate::settings::{PAGES, REGIONS, Settings, refuse_pressure, refuse_unheld};
use crate::state::listener;
use crate::state::shared::Shared;
use crate::times::Times;
use crate::unheld_limit::UnheldLimit;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use strength::{Given, Program};

mod strength;

/// Makes a [`Cache`]. From [`Cache::builder`].
///
/// Environment variables win over the program's calls, because the user of a program knows the machine. They never
/// weaken what a program's safety may rest on: see `MRRC_MONITOR` and `MRRC_DISCARD_GRACE`.
///
/// [`settings`](crate::settings) has the table of variables; [`Builder::ignore_environment`] reads none.
///
/// The library's own threads, for which threads of the program wait, run under the ordinary scheduling policy
/// (`SCHED_OTHER`, nice 0), with all signals blocked. The policy of the thread that makes a cache does not matter.
///
/// ```
/// use mrrc::invalidation::Explicit;
/// use mrrc::testing::NoopRegistrar;
/// use mrrc::{Cache, policy::PolicyKind};
/// let cache = Cache::builder(NoopRegistrar::default())
///     .capacity_bytes(64 << 20)
///     .policy(PolicyKind::Mrrc)
///     .monitor(Explicit)
///     .build()?;
/// assert_eq!(cache.usage().capacity_pages, 16_384);
/// # Ok::<(), mrrc::BuildError>(())
/// ```
#[must_use = "a builder makes a cache when `build` is called"]
pub struct Builder<R: Registrar> {
    registrar: R,
    settings: Settings,
    remote: Remote,
    monitor: Option<Given>,
    budget: Option<Budget>,
    /// The memory pressure to follow in the place of the process's.
    pressure: Option<Arc<Pressure>>,
    /// Makes a policy that has no name here.
    /// In a mutex that is never locked: it makes builders `Sync`.
    policy_from: Option<Mutex<Box<NewPolicy>>>,
    /// The variables that are read in place of the environment's, if any were given.
    variables: Option<Vec<(String, String)>>,
}

/// Makes a policy.
type NewPolicy = dyn FnOnce(&PolicyParams) -> Box<dyn Policy + Send> + Send;

impl<R: Registrar> fmt::Debug for Builder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .field("variables", &self.variables)
            .finish_non_exhaustive()
    }
}

/// The parts of a cache, with the settings, the environment and the registrar's limits in them.
struct Settled<R: Registrar> {
    registrar: R,
    windows: Option<Arc<CacheWindows<R::Registration>>>,
    /// The program's, and over them those of the environment.
    settings: Settings,
    /// The program's settings that the environment may only strengthen.
    program: Program,
    monitor: Option<Given>,
    budget: Option<Budget>,
    pressure: Option<Arc<Pressure>>,
    core: Core,
    effective: EffectiveSettings,
}

impl<R: Registrar> Builder<R> {
    pub(crate) fn new(registrar: R) -> Self {
        let settings = Settings::default();
        Self {
            registrar,
            settings,
            remote: Remote::default(),
            monitor: None,
            budget: None,
            pressure: None,
            policy_from: None,
            variables: None,
        }
    }

    /// The most pages (of 4 KiB) that may be registered at once. Default: what the registrar says, which is
    /// mostly what the process may pin; never more than that.
    pub fn capacity_pages(mut self, pages: u64) -> Self {
        self.settings.capacity_pages = Some(pages);
        self
    }

    /// A limit that this cache keeps to together with others. Its own capacity is what it would be without, and no more than the
    /// budget. See [`Budget`].
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// As [`Builder::capacity_pages`], in bytes, rounded down: 4,096 are the least.
    pub fn capacity_bytes(self, bytes: u64) -> Self {
        self.capacity_pages(bytes / PAGE)
    }

    /// The most regions that may be registered at once. Default: what the registrar says, or 2^20. A region takes
    /// some 100 bytes of memory, and up to 200 where regions are large and far apart.
    pub fn max_regions(mut self, regions: u64) -> Self {
        self.settings.max_regions = Some(regions);
        self
    }

    /// Sets the eviction policy. Default: [`PolicyKind::Probation`].
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.settings.policy = Some(policy);
        self
    }

    /// Sets an eviction policy of another crate: of `tracesim-policies`, or your own. `MRRC_POLICY` in the environment wins over it.
    ///
    /// A policy whose scheme widens does so as the variable `MRRC_WIDEN` would: with [`Explicit`](crate::invalidation::Explicit) in arenas
    /// alone. Only [`Builder::widen`] promises that changes around what is acquired are reported.
    ///
    /// ```
    /// use mrrc::{Cache, policy::sieve::Sieve};
    /// # use mrrc::{invalidation::Explicit, testing::NoopRegistrar};
    /// # let registrar = NoopRegistrar::new();
    /// let builder = Cache::builder(registrar).policy_from(|_params| Box::new(Sieve::new()));
    /// # builder.monitor(Explicit).build()?;
    /// # Ok::<(), mrrc::BuildError>(())
    /// ```
    pub fn policy_from(mut self, new: impl FnOnce(&PolicyParams) -> Box<dyn Policy + Send> + Send + 'static) -> Self {
        self.settings.policy = None;
        self.policy_from = Some(Mutex::new(Box::new(new)));
        self
    }

    /// Everything that a [`Config`] says, but for the capacity.
    pub fn config(mut self, config: Config) -> Self {
        self.settings.config = Some(config);
        self
    }

    /// Sets the monitor that reports changes of memory. Default: userfaultfd, and the same one for all caches of the
    /// process ([`Userfaultfd::of_process`](crate::invalidation::Userfaultfd::of_process)), because the kernel lets only
    /// one watch a mapping. Caches over the same memory that are given monitors of their own are given clones of one.
    pub fn monitor(mut self, monitor: impl Monitor) -> Self {
        self.monitor = Some(Given::new(monitor));
        self
    }

    /// Sets which named shared memory stays registered: memfds, files in `/dev/shm`. Default: [`SharedMemory::Sealed`]. It matters to
    /// userfaultfd; with [`Explicit`](crate::invalidation::Explicit) all memory is cached.
    ///
    /// The variable `MRRC_SHARED` wins over it in both directions: with `trusted` the user of the program answers for all of it.
    pub fn shared_memory(mut self, shared: SharedMemory) -> Self {
        self.settings.shared = Some(shared);
        self
    }

    /// How long a request waits for leases to end when everything is in use. Default: not at all.
    pub fn capacity_timeout(mut self, longest: Duration) -> Self {
        self.settings.capacity_timeout = longest;
        self
    }

    /// How long a request waits for what another thread is registering or deregistering. Default: 10 s.
    pub fn wait_timeout(mut self, longest: Duration) -> Self {
        self.settings.wait_timeout = longest;
        self
    }

    /// How often a registration is tried again, with more room made each time, when the system is out of something.
    /// Default: 4.
    pub fn retries(mut self, retries: u32) -> Self {
        self.settings.retries = retries;
        self
    }

    /// The most segments that a lease may have: what the caller can gather in one transfer. Where there would be more,
    /// regions are merged into one. Default: no limit; 0 is none, and an error.
    ///
    /// With 1, each request is answered by one region, and regions may overlap: at most four have a page, and each counts
    /// against the capacity. A request that no region contains registers one region. It is the request itself, or its
    /// hull with regions of the same rights that it overlaps if that has at most twice its pages. So there are no
    /// more registrations than requests, and at most twice the pages, in any sequence. A region retires for another
    /// only if that covers it, with its rights at least. A buffer that is sent whole and received in part becomes two
    /// regions. This does not hold for policies that register other ranges than those asked for.
    pub fn max_segments(mut self, segments: usize) -> Self {
        self.settings.max_segments = segments;
        self
    }

    /// The most bytes in one region, rounded down to pages: no region crosses a multiple of so many bytes. Default: what the registrar takes,
    /// `max_mr_size` of a device, 1 GiB for an io_uring; then longer buffers are cut from their beginning.
    ///
    /// [`Lease::key_for`](crate::Lease::key_for) returns the key of a part, and [`Cache::acquire_blocks`] cuts between blocks. With one segment
    /// a lease ([`Builder::max_segments`]) nothing is cut: a longer buffer is [`AcquireError::TooLarge`](crate::AcquireError::TooLarge). It is an
    /// error with a policy that registers other ranges than those asked for.
    ///
    /// ```
    /// # use mrrc::{Access, Cache, invalidation::Explicit, testing::NoopRegistrar};
    /// let cache = Cache::builder(NoopRegistrar::new()).slice_bytes(64 << 10).monitor(Explicit).build()?;
    /// let arena = cache.arena(1 << 20)?;
    /// let lease = arena.acquire(.., Access::LOCAL)?;
    /// assert!(lease.segments().all(|segment| segment.len() <= 64 << 10 && segment.address().addr() % (64 << 10) + segment.len() <= 64 << 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice_bytes(mut self, bytes: u64) -> Self {
        self.settings.slice_pages = Some(bytes / PAGE);
        self
    }

    /// Sets whether a miss may register pages around the request as well, where that was seen to pay. Default: no, unless the
    /// policy or the [`Config`] says so.
    ///
    /// It is learned from misses: neighbours that are asked for soon after, or many small requests in one mapping. A miss
    /// then registers the aligned block of 2, 4, 16 or 64 pages around it, at most an eighth of the capacity. Where each lease has one
    /// segment ([`Builder::max_segments`]), misses close to each other double or triple what they register, up to 256 MiB. They take free room only. Both end at the
    /// end of the mapping, at pages that are not in memory, and at other regions. Where that fails, the request is
    /// registered as it is, and its surroundings stay so for a while. Only requests for local rights are widened (see [`Builder::widen_for_peers`]), and only in
    /// private anonymous memory. [`Cache::begin`] and the groups of [`Cache::acquire_list`] are not. A lease shows what was asked for.
    /// A request for a bad address is tried twice where there is room: with its surroundings, and alone. Regions are evicted for it only where
    /// the registrar finds nothing wrong with all of these.
    ///
    /// Pages that are shared with a child process until one of the two writes them are left out, as are those never written. Holes of one or
    /// two such pages are taken, at most one page for 32 others. It is an error
    /// with a policy that cannot widen, unless the environment chose one of the two: then requests stay exact.
    ///
    /// Pages that no request asked for are pinned then, and counted against the capacity. In a program that calls
    /// `ibv_fork_init`, a child may lack them (`MADV_DONTFORK`).
    ///
    /// **With [`Explicit`](crate::invalidation::Explicit)** the promise of [`Cache::acquire`] is larger with this. A change of *any*
    /// memory in the mappings of acquired buffers lies between [`Cache::begin_change`] and the end of its guard.
    /// [`Cache::invalidate`] before the change is not enough: a request for a neighbour may register the memory again before it
    /// changes. Neither variable `MRRC_WIDEN` nor a policy that widens by itself is that promise: there they widen arenas only, which
    /// are the cache's own.
    pub fn widen(mut self, on: bool) -> Self {
        self.settings.widen = Some(on);
        self
    }

    /// Sets whether requests that give rights to peers are widened as well, where others are. Default: no. Peers can read or write the
    /// neighbours of what was acquired for them then: for peers that are trusted with all memory of the program.
    pub fn widen_for_peers(mut self, on: bool) -> Self {
        self.settings.widen_for_peers = on;
        self
    }

    /// Sets how peers get the rights that requests ask for. Default: [`Remote::Trusted`], regions have them.
    ///
    /// With [`Remote::Windows`] a peer's rights end with the lease, and cover its bytes alone. Regions have local rights, so requests for
    /// peers and for local use share them, and both are widened alike. Each lease for peers binds a window for each of its segments, and
    /// unbinds it at its end. Both take some microseconds on cards. A device that does not answer is given up after two waits of 10 s.
    ///
    /// A peer that uses a key that has ended, or exceeds its bytes, loses its connection, as verbs demand of any refused access. Peers may write
    /// only where this side may, so requests with [`Access::REMOTE_WRITE`] or [`Access::REMOTE_ATOMIC`] have [`Access::LOCAL_WRITE`] too. Memory
    /// that is mapped read-only has no windows over verbs, and is registered for this side alone. Memory that is unmapped during a lease stays with
    /// its peers until the lease ends.
    ///
    /// [`Builder::build`] tries the registrar's device, and is an error if its windows do not hold. No variable of the environment
    /// sets this, because the program has to send [`Segment::window`](crate::Segment::window) to peers.
    ///
    /// ```no_run
    /// # #[cfg(feature = "verbs")] {
    /// use mrrc::registrar::verbs::{Domain, Verbs};
    /// use mrrc::registrar::windows::Remote;
    /// use mrrc::{Access, Cache};
    /// # let buffer = vec![0_u8; 8192];
    /// let domain = Domain::open("mlx5_0")?;
    /// let cache = Cache::builder(Verbs::new(&domain)?).remote(Remote::Windows).max_segments(1).build()?;
    /// // SAFETY: the buffer outlives the lease, and has no other user meanwhile.
    /// let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL | Access::REMOTE_READ) }?;
    /// let part = lease.segments().next().expect("a lease has a segment");
    /// let for_the_peer = part.window().expect("rights for peers were asked for");
    /// // … the peer reads; then its key opens nothing any more:
    /// drop(lease);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remote(mut self, remote: Remote) -> Self {
        self.remote = remote;
        self
    }

    /// How long nothing is cached where the program discards pages (`MADV_DONTNEED` and its like). The system reports
    /// the beginning of a discard and not its end. Default: 100 ms.
    ///
    /// **Correctness rests on it**: a region that is registered while a discard is under way has the old pages. A
    /// discard may take longer: a thread is stopped or starved in the middle of the call, or the range is very large.
    /// Then that region can be cached, and its hits lead to pages that the program has no more. So make it longer
    /// than any discard may take. Better, keep memory that is discarded often out of the cache's way, such as that of
    /// an allocator that purges. That also spares the misses during the grace period. An [arena](Cache::arena) is
    /// never discarded behind the cache's back. Less than the monitor's [floor](Monitor::least_grace), 10 ms for
    /// userfaultfd, is an error.
    pub fn discard_grace(mut self, longest: Duration) -> Self {
        self.settings.grace = Some(longest);
        self
    }

    /// The share of the capacity that the [background](Builder::background) keeps free, by evicting ahead of need, so that
    /// misses seldom wait for a deregistration. From 0 to 1; anything else is an error. Default: 0, which lets the cache be
    /// full.
    pub fn headroom(mut self, share: f64) -> Self {
        self.settings.headroom = share;
        self
    }

    /// Sets whether the cache keeps less while memory is short. Pinned pages cannot be reclaimed. Default: no.
    ///
    /// Memory is short if threads of the process's control group stall for it, or the group is above its `memory.high`. Without such a
    /// group the whole system counts. Then the [background](Builder::background) evicts an eighth of what was registered at the beginning,
    /// each half second at most, down to an eighth. A quiet time of 10 s gives a sixteenth back. The limits stay as they are: requests
    /// are served as before, and leased regions stay. A thread of the process looks at the counters twice a second.
    pub fn pressure(mut self, on: bool) -> Self {
        self.settings.pressure = on;
        self
    }

    /// Follows this memory pressure.
    #[cfg(test)]
    pub(crate) fn pressure_of(mut self, pressure: Arc<Pressure>) -> Self {
        self.pressure = Some(pressure);
        self
    }

    /// Limits what stays registered without a lease. Default: no limit.
    ///
    /// The deregistration of a region that no lease has begins at most `longest` after its last lease ended. At the soonest it
    /// begins after 7/8 of that. A time below 100 ms counts as 100 ms. When more than `bytes` (rounded down to pages) have no lease, those
    /// least worth keeping leave. The [background](Builder::background) does both, so it is an error to turn that off as well. While
    /// nothing is cached it sleeps.
    ///
    /// It looks at all regions 16 times in `longest`, and each second where `bytes` is less than `u64::MAX`. It looks earlier when
    /// an eighth beyond `bytes`, and an eighth of all regions, was registered since. So an eighth more of either can be there for a
    /// moment, besides all whose leases ended since the last look. Looks take a sixteenth of a thread at most. Where there are too
    /// many regions for that, such as a million for 100 ms, regions stay longer by the duration of a look.
    ///
    /// This bounds how long a peer can use a key that it was given, after the lease of it ended: until the deregistration is done. `MRRC_MAX_UNHELD` can
    /// make it stricter only.
    pub fn max_unheld(mut self, bytes: u64, longest: Duration) -> Self {
        self.settings.max_unheld = Some(UnheldLimit::new(bytes / PAGE, longest));
        self
    }

    /// Sets whether a thread of the cache deregisters what leaves. Default: yes if the monitor is
    /// not [`Explicit`](crate::invalidation::Explicit), or if [`Builder::max_unheld`] is set. Without it, the next miss does, or
    /// [`Cache::reap`].
    pub fn background(mut self, on: bool) -> Self {
        self.settings.background = Some(on);
        self
    }

    /// Sets whether latencies are recorded, for [`Cache::latencies`]. Costs about 50 ns an acquire. Default: no.
    pub fn histograms(mut self, on: bool) -> Self {
        self.settings.histograms = on;
        self
    }

    /// Sets whether hits use a full fence although the system offers `membarrier`. It costs 5 ns more a hit, and no
    /// other threads are interrupted when regions leave. Default: no.
    pub fn fence(mut self, on: bool) -> Self {
        self.settings.fence = on;
        self
    }

    /// Sets a setting by the name that its variable has after `MRRC_`, in any case, with the text that the variable
    /// might have. It is for settings that come from a file, a command line or another language. It counts as the
    /// program's, so the environment wins over it.
    ///
    /// # Errors
    /// [`BuildError::Setting`]: no such name, or no such value.
    ///
    /// ```
    /// # use mrrc::{Cache, invalidation::Explicit, testing::NoopRegistrar};
    /// let cache = Cache::builder(NoopRegistrar::new()).set("capacity", "64M")?.set("monitor", "explicit")?.build()?;
    /// assert_eq!(cache.usage().capacity_pages, 16_384);
    /// # Ok::<(), mrrc::BuildError>(())
    /// ```
    pub fn set(mut self, name: &str, value: &str) -> Result<Self, BuildError> {
        self.settings.set(name, value)?;
        Ok(self)
    }

    /// Takes these settings in the place of all that were set by calls or by name before. It keeps the monitor that
    /// [`Builder::monitor`] gave, unless they name one.
    pub fn settings(mut self, settings: &Settings) -> Self {
        self.settings = settings.clone();
        self
    }

    /// Environment variables are not read: for tests, and where only the program may decide.
    pub fn ignore_environment(self) -> Self {
        self.variables([])
    }

    /// Reads these variables, names and values, in place of those of the environment. They have the same effects: they win over the
    /// program's calls, and strengthen what safety rests on. It is for a program that changes its environment after it began.
    ///
    /// ```
    /// # use mrrc::{Cache, invalidation::Explicit, testing::NoopRegistrar};
    /// let at_start = [("MRRC_CAPACITY".to_owned(), "64M".to_owned())];
    /// let cache = Cache::builder(NoopRegistrar::new()).monitor(Explicit).variables(at_start).build()?;
    /// assert_eq!(cache.usage().capacity_pages, 16_384);
    /// # Ok::<(), mrrc::BuildError>(())
    /// ```
    pub fn variables(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.variables = Some(variables.into_iter().collect());
        self
    }

    /// Makes the cache.
    ///
    /// # Errors
    /// [`BuildError`]: a setting that makes no sense, or what the system refuses.
    pub fn build(self) -> Result<Cache<R>, BuildError> {
        let Settled { registrar, windows, settings, program, monitor, budget, pressure, core, mut effective } =
            self.settle()?;
        #[cfg(target_os = "linux")]
        if let Some(cpus) = &settings.cpus {
            own_thread::set_cpus(cpus).map_err(|source| BuildError::System {
                what: "run threads on the CPUs of MRRC_CPUS (cpus), at least one of which this process has to be allowed",
                source,
            })?;
        }
        let promises = program.widens();
        let (monitor, grace) = program.strengthen(monitor, &settings)?;
        effective.grace = grace;
        let floor = monitor.least_grace();
        if grace < floor {
            return Err(BuildError::DiscardGrace { grace, floor, monitor: monitor.name() });
        }
        let vouched = monitor.vouches();
        let follows = settings.pressure || pressure.is_some();
        let background = settings.background.unwrap_or(vouched || effective.max_unheld.is_some() || follows);
        if !background {
            refuse_unheld(effective.max_unheld)?;
            refuse_pressure(follows)?;
        }
        let system = |what| move |source| BuildError::System { what, source };
        if follows {
            let of_process =
                || Pressure::of_process().map_err(system("the counters of memory pressure (pressure, MRRC_PRESSURE)"));
            effective.pressure = Some(pressure.map_or_else(of_process, Ok)?);
        }
        effective.background = background;
        effective.vouched = vouched;
        if core.scheme().widens {
            effective.widening = strength::widening(promises, vouched);
        }
        monitor.set_shared_memory(settings.shared.unwrap_or_default());
        let barrier = if settings.fence { Barrier::Fence } else { Barrier::choose() };
        let times = settings.histograms.then(|| Box::new(Times::new()));
        let shared = Shared::new(registrar, windows, OwnMonitor::new(monitor), core, barrier, times, effective)
            .map_err(|source| BuildError::System {
                what: "memory for its tables (lower `max_regions`), a page that is wiped on fork",
                source,
            })?;
        let shared = Arc::new(shared);
        if let Some(budget) = &budget {
            budget.check().map_err(|source| BuildError::System { what: "the budget", source })?;
            reclaim::join(&shared, budget);
        }
        listener::begin_to_listen(&shared)
            .map_err(|source| BuildError::Monitor { monitor: shared.monitor.name(), source })?;
        if let Some(pressure) = &shared.settings.pressure {
            let follower: Arc<dyn Shrinks> = shared.clone();
            pressure.join(Arc::downgrade(&follower)).map_err(system("the thread that looks at memory pressure"))?;
        }
        let mut cache = Cache { shared, background: None, buffers: Buffers::default() };
        if background {
            let tended = cache.shared.clone();
            let spawned = own_thread::spawn("mrrc-background", move || reclaim::tend(&tended));
            cache.background =
                Some(spawned.map_err(|source| BuildError::System { what: "the background thread", source })?);
        }
        Ok(cache)
    }

    /// Returns everything that a cache is made of.
    fn settle(self) -> Result<Settled<R>, BuildError> {
        let Self { mut registrar, mut settings, remote, monitor, budget, pressure, policy_from, variables } = self;
        let program = Program::take(&mut settings);
        let own = (settings.policy.take(), settings.widen.take());
        match variables {
            Some(given) => settings.read(given)?,
            None => settings.read_environment()?,
        }
        // The program and the environment do not know of each other's choice.
        let has_two_sources = settings.policy.is_some() != settings.widen.is_some();
        (settings.policy, settings.widen) = (settings.policy.or(own.0), settings.widen.or(own.1));
        let limits = checked(&registrar)?;
        let mut config = settings.config()?;
        config.capacity = least([settings.capacity_pages, limits.pages]).unwrap_or(PAGES);
        config.capacity = config.capacity.min(PageRange::EVERYTHING.pages());
        config.capacity = budget.as_ref().map_or(config.capacity, |budget| config.capacity.min(budget.most()));
        let regions = least([config.max_regions, limits.regions]);
        config.max_regions = Some(regions.unwrap_or(REGIONS).min(config.capacity.max(1)).min(RegionId::MOST));
        let unit = limits.page_size / PAGE;
        // Pieces of a long range begin at pages of the device, as everything else.
        config.max_region_pages = least([config.max_region_pages, limits.region_pages])
            .map(|pages| if pages == 0 { 0 } else { (pages - pages % unit).max(unit) });
        config.slice_pages =
            config.slice_pages.map(|pages| if pages == 0 { 0 } else { (pages - pages % unit).max(unit) });
        let policy = match policy_from.filter(|_| settings.policy.is_none()) {
            Some(new) => new.into_inner().unwrap_or_else(PoisonError::into_inner)(&config.params()),
            // Hits do not come to the policy: it is told of them in batches.
            None => {
                config.check()?;
                config.policy.build_lean(&config.params())
            }
        };
        if has_two_sources && !config.can_widen(&*policy) {
            config.widen = None;
        }
        let can_slice = config.can_slice(&*policy);
        let core = Core::with_policy(&config, policy)?;
        let region_pages = least([config.slice_pages, config.max_region_pages]).unwrap_or(u64::MAX);

        // Last: the registrar's device is tried.
        let windows = match remote {
            Remote::Trusted => None,
            Remote::Windows => {
                let by = registrar.ready_windows();
                let by = by.map_err(|source| BuildError::Windows { registrar: registrar.name(), source })?;
                Some(Arc::new(CacheWindows::new(by)))
            }
        };
        let rights = registrar.rights().with_read();
        let effective = EffectiveSettings {
            capacity: Footprint { pages: core.capacity(), regions: config.max_regions.unwrap_or(REGIONS) },
            region_pages,
            // A lease of one segment has a region that is not cut.
            slices: config.slice_pages.filter(|_| settings.max_segments > 1).map(|_| Grid::every(region_pages)),
            can_slice,
            unit,
            rights: windows.as_ref().map_or(rights, |windows| rights & (Access::LOCAL | windows.rights())),
            windows: windows.is_some(),
            capacity_timeout: settings.capacity_timeout,
            wait_timeout: settings.wait_timeout,
            retries: settings.retries,
            max_segments: settings.max_segments,
            grace: Duration::ZERO,
            background: false,
            headroom: config.params().pages_of(settings.headroom),
            max_unheld: program.max_unheld(&settings),
            pressure: None,
            caches: core.scheme().keeps != Keeps::Nothing,
            vouched: false,
            widening: Widening::Off,
            // A region over several buffers serves none of them where matching is exact.
            groups: core.scheme().matching == Matching::Contain,
            group_extra: config.group_extra,
            costs: config.cost,
        };
        Ok(Settled { registrar, windows, settings, program, monitor, budget, pressure, core, effective })
    }
}

fn least(values: [Option<u64>; 2]) -> Option<u64> {
    values.into_iter().flatten().min()
}

fn checked<R: Registrar>(registrar: &R) -> Result<Limits, BuildError> {
    let limits = registrar.limits();
    let wrong = |what: String| BuildError::Registrar { registrar: registrar.name(), what };
    if !limits.page_size.is_power_of_two() || limits.page_size < PAGE {
        return Err(wrong(format!(
            "that its page has {} bytes, which has to be a power of two, {PAGE} or more",
            limits.page_size
        )));
    }
    for (what, limit) in [("regions", limits.regions), ("pages", limits.pages), ("pages a region", limits.region_pages)]
    {
        if limit == Some(0) {
            return Err(wrong(format!("that it has room for 0 {what}")));
        }
    }
    if limits.region_pages.is_some_and(|pages| pages < limits.page_size / PAGE) {
        return Err(wrong("that a region has no room for one of its pages".into()));
    }
    Ok(limits)
}
