//! How a cache is made: what the program says, what the environment says, and what is the default.
//!
//! A setting comes from the first of these that has it: an environment variable, which is for whoever runs
//! the program; the program's call; the default. Two that correctness rests on the environment can only strengthen
//! (`strength.rs`). Then the limits of the registrar apply: nothing can be set above them.

use super::barrier::Barrier;
use super::budget::Budget;
use super::shared::Shared;
use super::strength::{Given, Program};
use super::tally::Amount;
use super::terms::Terms;
use super::times::Times;
use super::{Cache, environment, leave};
use crate::LocalCache;
use crate::config::{Config, ConfigError};
use crate::core::Core;
use crate::cost::Linear;
use crate::invalidation::Monitor;
use crate::own_thread;
use crate::policy::{Keeps, Matching, PolicyKind};
use crate::range::{PAGE, PageRange};
use crate::regions::RegionId;
use crate::registrar::{Limits, Registrar};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Regions, unless the registrar has room for fewer or more are asked for. A region takes 24 bytes and what its
/// registration takes, rounded up to a multiple of 32, once it is used.
const REGIONS: u64 = 1 << 20;
/// Pages, where neither the registrar nor the machine says anything.
const PAGES: u64 = 1 << 18;

/// Makes a [`Cache`]. From [`Cache::builder`].
///
/// Environment variables win over what the program says, because who runs a program knows the machine. They never weaken
/// what a program's safety may rest on: see `MRRC_MONITOR` and `MRRC_DISCARD_BAR`.
///
/// | variable | |
/// | --- | --- |
/// | `MRRC_CAPACITY` | [bytes](crate::bytes()): `64M` is 64 · 1024² ([`Builder::capacity_bytes`]) |
/// | `MRRC_MAX_REGIONS` | a number ([`Builder::max_regions`]) |
/// | `MRRC_POLICY` | `mrrc`, `sieve`, … ([`Builder::policy`]) |
/// | `MRRC_RESORT`, `MRRC_EVICT` | fractions of the capacity ([`Config`]) |
/// | `MRRC_COST` | `paper`, `fmr`, `io-uring` or four numbers of microseconds, `0.77,7.42,0.22,1.1` ([`Linear`]) |
/// | `MRRC_MONITOR` | `userfaultfd`: for a program that chose [`Explicit`](crate::invalidation::Explicit). `explicit` weakens every other choice, the default too, and is ignored then, with a line on standard error ([`Builder::monitor`]) |
/// | `MRRC_WAIT_FOR_ROOM`, `MRRC_PATIENCE` | times: `500us`, `20ms`, `1s` |
/// | `MRRC_DISCARD_BAR` | a longer time than the program set (than 100 ms, if it set none); a shorter one is ignored, with a line on standard error ([`Builder::discard_bar`]) |
/// | `MRRC_HEADROOM` | a fraction of the capacity ([`Builder::headroom`]) |
/// | `MRRC_RETRIES`, `MRRC_MAX_SEGMENTS` | numbers |
/// | `MRRC_BACKGROUND`, `MRRC_HISTOGRAMS`, `MRRC_FENCE` | `on` or `off` |
/// | `MRRC_CPUS` | where the library's own threads run, those of all caches of the process: `all`, or numbers, `0-3,8`. Unless set: on the CPUs that the process had when the library was loaded |
///
/// The library's own threads, for which threads of the program wait, run under the ordinary scheduling policy (`SCHED_OTHER`, nice 0),
/// whatever that of the thread is that makes a cache, with all signals blocked.
///
/// Case does not matter in values. An empty variable counts as unset; other `MRRC_` variables are left to others, but a
/// name that looks like a slip of one of these (`MRRC_CAPACTIY`, `MRRC_CAP`, `MRRC_REGIONS`) is an error. [`Builder::ignore_environment`] reads none.
///
/// ```
/// use mrrc::invalidation::Explicit;
/// use mrrc::registrar::model::Dummy;
/// use mrrc::{Cache, policy::PolicyKind};
/// let cache = Cache::builder(Dummy::default())
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
    pub(super) settings: Settings,
    monitor: Option<Given>,
    budget: Option<Budget>,
    reads_environment: bool,
}

impl<R: Registrar> fmt::Debug for Builder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .field("reads_environment", &self.reads_environment)
            .finish_non_exhaustive()
    }
}

/// What a cache is made of, with the settings, the environment and the registrar's limits in it.
struct Settled<R: Registrar> {
    registrar: R,
    /// The program's, and over them those of the environment.
    settings: Settings,
    /// What of the program's the environment may only strengthen.
    program: Program,
    monitor: Option<Given>,
    budget: Option<Budget>,
    core: Core,
    terms: Terms,
}

/// What can be set, by the program or by the environment.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) capacity_pages: Option<u64>,
    pub(super) max_regions: Option<u64>,
    pub(super) config: Option<Config>,
    pub(super) policy: Option<PolicyKind>,
    pub(super) resort: Option<f64>,
    pub(super) evict: Option<f64>,
    pub(super) costs: Option<Linear>,
    pub(super) monitor: Option<MonitorKind>,
    pub(super) room_wait: Option<Duration>,
    pub(super) patience: Option<Duration>,
    pub(super) retries: Option<u32>,
    pub(super) max_segments: Option<usize>,
    pub(super) bar: Option<Duration>,
    pub(super) background: Option<bool>,
    pub(super) headroom: Option<f64>,
    pub(super) histograms: Option<bool>,
    pub(super) fence: Option<bool>,
    #[cfg(target_os = "linux")]
    pub(super) cpus: Option<own_thread::Cpus>,
}

/// Monitors that have a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MonitorKind {
    Explicit,
    #[cfg(target_os = "linux")]
    Userfaultfd,
}

impl MonitorKind {
    #[cfg(target_os = "linux")]
    pub(super) const DEFAULT: Self = Self::Userfaultfd;
    #[cfg(not(target_os = "linux"))]
    pub(super) const DEFAULT: Self = Self::Explicit;

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            #[cfg(target_os = "linux")]
            Self::Userfaultfd => "userfaultfd",
        }
    }

    pub(super) fn make(self) -> Result<Box<dyn Monitor>, BuildError> {
        match self {
            Self::Explicit => Ok(Box::new(crate::invalidation::Explicit)),
            #[cfg(target_os = "linux")]
            Self::Userfaultfd => match crate::invalidation::Userfaultfd::of_process() {
                Ok(monitor) => Ok(Box::new(monitor)),
                Err(source) => Err(BuildError::Monitor { monitor: self.name(), source }),
            },
        }
    }
}

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting makes no sense.
    #[error("build a cache: {0}")]
    Config(#[from] ConfigError),
    /// An environment variable makes no sense.
    #[error("environment variable {name}={value:?}: {expected}")]
    Variable {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// A setting by name makes no sense: see [`Builder::set`].
    #[error("setting {name}={value:?}: {expected}")]
    Setting {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// Nothing would be cached for too short a time after a discard: see [`Builder::discard_bar`].
    #[error(
        "build a cache: discard_bar (MRRC_DISCARD_BAR) is {bar:?}, and monitor {monitor} needs {floor:?} at least: it \
         hears when a discard of pages begins and not when it is done, and what is registered in between and found \
         after the bar means the old pages"
    )]
    DiscardBar {
        /// What was set.
        bar: Duration,
        /// The least that the monitor takes.
        floor: Duration,
        /// Its name.
        monitor: &'static str,
    },
    /// The registrar states limits that cannot be.
    #[error("build a cache: {registrar} says {what}: this is a fault of the registrar")]
    Registrar {
        /// Its name.
        registrar: &'static str,
        /// What is wrong.
        what: String,
    },
    /// The monitor does not start.
    #[error(
        "build a cache: monitor {monitor}: {source}: or choose another in the program (`Explicit`, if it tells of its changes)"
    )]
    Monitor {
        /// Its name.
        monitor: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("build a cache: {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl<R: Registrar> Builder<R> {
    pub(crate) fn new(registrar: R) -> Self {
        Self { registrar, settings: Settings::default(), monitor: None, budget: None, reads_environment: true }
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

    /// The most regions that may be registered at once. Default: what the registrar says, or 2^20; a region takes
    /// some 200 bytes of memory.
    pub fn max_regions(mut self, regions: u64) -> Self {
        self.settings.max_regions = Some(regions);
        self
    }

    /// Who leaves when the cache is full. Default: [`PolicyKind::Mrrc`].
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.settings.policy = Some(policy);
        self
    }

    /// Everything that a [`Config`] says, but for the capacity.
    pub fn config(mut self, config: Config) -> Self {
        self.settings.config = Some(config);
        self
    }

    /// Where the cache learns of changes of memory. Default: userfaultfd, and the same one for all caches of the process
    /// ([`Userfaultfd::of_process`](crate::invalidation::Userfaultfd::of_process)), because the kernel lets only one watch
    /// a mapping. Caches over the same memory that are given monitors of their own are given clones of one.
    pub fn monitor(mut self, monitor: impl Monitor) -> Self {
        self.monitor = Some(Given::new(monitor));
        self
    }

    /// How long a request waits for leases to end when everything is in use. Default: not at all.
    pub fn wait_for_room(mut self, longest: Duration) -> Self {
        self.settings.room_wait = Some(longest);
        self
    }

    /// How long a request waits for what another thread is registering or deregistering. Default: 10 s.
    pub fn patience(mut self, longest: Duration) -> Self {
        self.settings.patience = Some(longest);
        self
    }

    /// How often a registration is tried again, with more room made each time, when the system is out of something.
    /// Default: 4.
    pub fn retries(mut self, retries: u32) -> Self {
        self.settings.retries = Some(retries);
        self
    }

    /// The most segments that a lease may have: what the caller can gather in one transfer. Where there would be more,
    /// regions are merged into one. Default: no limit; 0 is none, and an error.
    ///
    /// With 1, each request is answered by one region, and regions may overlap: at most four have a page, and each counts
    /// against the capacity. A request that no region contains registers itself, or its hull with regions of the same
    /// rights that it overlaps if that has at most twice its pages. So there are no more registrations than requests, and
    /// at most twice the pages, in any sequence. A region retires for another only if that covers it, with its rights at
    /// least: a buffer that is sent whole and received in part becomes two regions. This does not hold for policies that
    /// register other ranges than those asked for (`ucx`, `libfabric`, `firehose`, `pindown-page`, `lazy`).
    pub fn max_segments(mut self, segments: usize) -> Self {
        self.settings.max_segments = Some(segments);
        self
    }

    /// How long nothing is cached where the program discards pages (`MADV_DONTNEED` and its like), because the system
    /// says when it begins to and not when it is done. Default: 100 ms.
    ///
    /// **Correctness rests on it**: a region that is registered while a discard is under way has the old pages. If the
    /// discard takes longer than the bar (a thread that is stopped or starved in the middle of the call, a very large
    /// range), that region can be cached, and its hits lead to pages that the program has no more. So make it longer than
    /// any discard may take, and rather keep memory that is discarded often out of the cache's way (an allocator that
    /// purges; an [arena](Cache::arena) is never discarded behind the cache's back), which also spares the misses under the
    /// bar. Less than the monitor's [floor](Monitor::least_bar), 10 ms for userfaultfd, is an error.
    pub fn discard_bar(mut self, longest: Duration) -> Self {
        self.settings.bar = Some(longest);
        self
    }

    /// The share of the capacity that the [background](Builder::background) keeps free, by evicting ahead of need, so that
    /// misses seldom wait for a deregistration. From 0 to 1; anything else is an error. Default: 0, which lets the cache be
    /// full.
    pub fn headroom(mut self, share: f64) -> Self {
        self.settings.headroom = Some(share);
        self
    }

    /// Whether a thread of the cache deregisters what leaves. Default: yes if the monitor is not
    /// [`Explicit`](crate::invalidation::Explicit). Without it, the next miss does, or [`Cache::reap`].
    pub fn background(mut self, on: bool) -> Self {
        self.settings.background = Some(on);
        self
    }

    /// Whether latencies are recorded, for [`Cache::latencies`]. Costs about 50 ns an acquire. Default: no.
    pub fn histograms(mut self, on: bool) -> Self {
        self.settings.histograms = Some(on);
        self
    }

    /// Whether hits use a full fence although the system offers `membarrier`: 5 ns more a hit, and no
    /// interruption of other threads when regions leave. Default: no.
    pub fn fence(mut self, on: bool) -> Self {
        self.settings.fence = Some(on);
        self
    }

    /// A setting by the name that its variable has after `MRRC_`, in any case, with the text that the variable might have:
    /// for settings that come from a file, a command line or another language. It counts as the program's, so the
    /// environment wins over it.
    ///
    /// # Errors
    /// [`BuildError::Setting`]: no such name, or no such value.
    ///
    /// ```
    /// # use mrrc::{Cache, invalidation::Explicit, registrar::model::Dummy};
    /// let cache = Cache::builder(Dummy::new()).set("capacity", "64M")?.set("monitor", "explicit")?.build()?;
    /// assert_eq!(cache.usage().capacity_pages, 16_384);
    /// # Ok::<(), mrrc::BuildError>(())
    /// ```
    pub fn set(mut self, name: &str, value: &str) -> Result<Self, BuildError> {
        environment::set(name, value, &mut self.settings)?;
        Ok(self)
    }

    /// Environment variables are not read: for tests, and where nobody but the program may decide.
    pub fn ignore_environment(mut self) -> Self {
        self.reads_environment = false;
        self
    }

    /// Makes the cache.
    ///
    /// # Errors
    /// [`BuildError`]: a setting that makes no sense, or what the system refuses.
    pub fn build(self) -> Result<Cache<R>, BuildError> {
        let Settled { registrar, settings, program, monitor, budget, core, mut terms } = self.settle()?;
        #[cfg(target_os = "linux")]
        if let Some(cpus) = &settings.cpus {
            own_thread::set_cpus(cpus).map_err(|source| BuildError::System {
                what: "run threads on the CPUs of MRRC_CPUS (cpus), at least one of which this process has to be allowed",
                source,
            })?;
        }
        let (monitor, bar) = program.strengthen(monitor, &settings)?;
        terms.bar = bar;
        let floor = monitor.least_bar();
        if bar < floor {
            return Err(BuildError::DiscardBar { bar, floor, monitor: monitor.name() });
        }
        let vouched = monitor.vouches();
        let background = settings.background.unwrap_or(vouched);
        terms.background = background;
        terms.vouched = vouched;
        let barrier = if settings.fence == Some(true) { Barrier::Fence } else { Barrier::choose() };
        let times = settings.histograms.unwrap_or(false).then(|| Box::new(Times::new()));
        let shared =
            Shared::new(registrar, monitor, core, barrier, times, terms).map_err(|source| BuildError::System {
                what: "memory for its tables (lower `max_regions`), a page that is wiped on fork",
                source,
            })?;
        let shared = Arc::new(shared);
        if let Some(budget) = &budget {
            budget.check().map_err(|source| BuildError::System { what: "the budget", source })?;
            shared.join(budget);
        }
        shared.begin_to_listen().map_err(|source| BuildError::Monitor { monitor: shared.monitor.name(), source })?;
        let mut cache = Cache { shared, background: None };
        if background {
            let tended = cache.shared.clone();
            let spawned = own_thread::spawn("mrrc-background", move || tended.tend());
            cache.background =
                Some(spawned.map_err(|source| BuildError::System { what: "the background thread", source })?);
        }
        Ok(cache)
    }

    /// Makes a cache for one thread: see [`LocalCache`].
    ///
    /// What is about other threads has no meaning there and is ignored: `MRRC_MONITOR`, [`Builder::patience`],
    /// [`Builder::discard_bar`], [`Builder::background`], [`Builder::histograms`], [`Builder::fence`], and
    /// [`Builder::wait_for_room`], because nobody ends a lease while its only thread waits.
    ///
    /// # Errors
    /// As [`Builder::build`]; and [`BuildError::Monitor`] for a [monitor](Builder::monitor) other than
    /// [`Explicit`](crate::invalidation::Explicit), [`BuildError::System`] for a [budget](Builder::budget).
    pub fn build_local(self) -> Result<LocalCache<R>, BuildError> {
        let Settled { registrar, monitor, budget, core, terms, .. } = self.settle()?;
        if budget.is_some() {
            let source = io::Error::new(io::ErrorKind::Unsupported, "a cache of one thread shares it with no other");
            return Err(BuildError::System { what: "the budget", source });
        }
        if let Some(monitor) = monitor
            && !monitor.is_explicit()
        {
            let source =
                io::Error::new(io::ErrorKind::Unsupported, "a cache of one thread is told of changes by calls");
            return Err(BuildError::Monitor { monitor: monitor.name(), source });
        }
        LocalCache::new(registrar, core, terms).map_err(|source| BuildError::System {
            what: "memory for its tables (lower `max_regions`), a page that is wiped on fork",
            source,
        })
    }

    /// Everything that both kinds of cache are made of.
    fn settle(self) -> Result<Settled<R>, BuildError> {
        let Self { registrar, mut settings, monitor, budget, reads_environment } = self;
        let program = Program::take(&mut settings);
        if reads_environment {
            environment::read(environment::of_process(), &mut settings)?;
        }
        let limits = checked(&registrar)?;
        let mut config = settings.config.clone().unwrap_or_else(|| Config::new(0));
        config.capacity = least([settings.capacity_pages, limits.pages]).unwrap_or(PAGES);
        config.capacity = config.capacity.min(PageRange::EVERYTHING.pages());
        config.capacity = budget.as_ref().map_or(config.capacity, |budget| config.capacity.min(budget.most()));
        let regions = least([settings.max_regions.or(config.max_regions), limits.regions]);
        config.max_regions = Some(regions.unwrap_or(REGIONS).min(config.capacity.max(1)).min(RegionId::MOST));
        let unit = limits.page_size / PAGE;
        // Pieces of a long range begin at pages of the device, as everything else.
        config.max_region_pages = least([config.max_region_pages, limits.region_pages])
            .map(|pages| if pages == 0 { 0 } else { (pages - pages % unit).max(unit) });
        config.policy = settings.policy.unwrap_or(config.policy);
        config.resort = settings.resort.unwrap_or(config.resort);
        config.evict = settings.evict.unwrap_or(config.evict);
        config.cost = settings.costs.unwrap_or(config.cost);
        let core = config.build()?;
        let headroom = settings.headroom.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&headroom) {
            return Err(ConfigError::Fraction { name: "headroom", value: headroom }.into());
        }
        if settings.max_segments == Some(0) {
            return Err(ConfigError::ZeroLimit { name: "max_segments" }.into());
        }

        let terms = Terms {
            capacity: Amount { pages: core.capacity(), regions: config.max_regions.unwrap_or(REGIONS) },
            region_pages: config.max_region_pages.unwrap_or(u64::MAX),
            unit,
            rights: registrar.rights().with_read(),
            room_wait: settings.room_wait.unwrap_or(Duration::ZERO),
            patience: settings.patience.unwrap_or(Duration::from_secs(10)),
            retries: settings.retries.unwrap_or(4),
            max_segments: settings.max_segments.unwrap_or(usize::MAX),
            bar: Duration::ZERO,
            background: false,
            headroom: config.pages_of(headroom),
            caches: core.scheme().keeps != Keeps::Nothing,
            vouched: false,
            // What spans several buffers serves none of them where matching is exact.
            groups: core.scheme().matching == Matching::Contain,
            group_extra: config.group_extra,
            costs: config.cost,
        };
        Ok(Settled { registrar, settings, program, monitor, budget, core, terms })
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

/// Ends the background thread and the rest. The background itself may be who drops the cache, in a registrar that it calls
/// or that it was the last to use: then it ends when that has returned, and nobody waits for it.
pub(super) fn end<R: Registrar>(cache: &mut Cache<R>) {
    let shared = cache.shared.clone();
    if let Some(thread) = cache.background.take() {
        if shared.gate.is_forked() {
            // There is no such thread here.
            std::mem::forget(thread);
        } else {
            shared.stopping.store(true, std::sync::atomic::Ordering::Release);
            shared.work.notify_one();
            if thread.thread().id() != crate::shim::thread::current().id() {
                _ = thread.join();
            }
        }
    }
    leave::close(shared);
}
