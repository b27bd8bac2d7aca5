//! The steps of a process with real pins: through the cache, and without one.

use super::layout::Memory;
use super::timed::{Spent, Timed};
use super::{Counted, RealError};
use crate::policies::PolicyEntry;
use crate::replayer::rights_of;
use crate::simulate::{ReplayError, Watch};
use io_uring::IoUring;
use mrrc::cache::{AcquireError, Cache, Lease};
use mrrc::invalidation::Explicit;
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc_core::{Access, Config, PAGE, PageRange};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use traces::{Kind, Step};

/// Slots of the table: all that the kernel takes.
const SLOTS: u32 = 1 << 14;
/// Steps between two looks at the watch.
const GLANCE: usize = 1 << 12;

/// A ring and its table of buffers.
pub(crate) struct Ring {
    table: Timed<IoUringBuffers>,
    /// The table has its own descriptor of it.
    _ring: IoUring,
}

impl Ring {
    pub(crate) fn new() -> Result<Self, RealError> {
        let ring = IoUring::new(4).map_err(RealError::Ring)?;
        let table = Timed { inner: IoUringBuffers::new(&ring, SLOTS)?, clock: Arc::default() };
        Ok(Self { table, _ring: ring })
    }

    pub(crate) fn limits(&self) -> Limits {
        self.table.limits()
    }
}

type Ranges = SmallVec<[PageRange; 1]>;

/// The handling of each event of a process.
trait Take {
    fn request(&mut self, ranges: &[PageRange], access: Access) -> Result<(), RealError>;
    fn acquire(&mut self, ranges: Ranges, access: Access) -> Result<(), RealError>;
    fn release(&mut self, ranges: &Ranges) -> Result<(), RealError>;
    fn change(&mut self, range: PageRange, memory: &mut Memory) -> Result<(), RealError>;
}

fn go(steps: &[Step], memory: &mut Memory, watch: &Watch<'_>, take: &mut impl Take) -> Result<(), RealError> {
    let mut at = 0;
    let mut told = 0;
    while let Some(first) = steps.get(at) {
        let len = (steps[at..].iter().take_while(|step| step.goes_on()).count() + 1).min(steps.len() - at);
        let ranges: Ranges = steps[at..at + len].iter().map(|step| step.range()).collect();
        match first.kind() {
            Kind::Request => take.request(&ranges, first.access())?,
            Kind::Acquire => take.acquire(ranges, first.access())?,
            Kind::Release => take.release(&ranges)?,
            Kind::Invalidate => ranges.iter().try_for_each(|&range| take.change(range, memory))?,
        }
        at += len;
        if at - told >= GLANCE {
            (watch.replayed)((at - told) as u64);
            told = at;
            if watch.stop.load(Ordering::Relaxed) {
                return Err(ReplayError::Interrupted.into());
            }
        }
    }
    Ok(())
}

fn failed_to_map(range: PageRange) -> impl FnOnce(io::Error) -> RealError {
    move |source| RealError::Map { pages: range.pages(), source }
}

/// Through the cache: what it did, what that took, and the most that was pinned, in KiB.
pub(crate) fn cached(
    ring: Ring,
    policy: &PolicyEntry,
    config: &Config,
    steps: &[Step],
    memory: &mut Memory,
    watch: &Watch<'_>,
) -> Result<(Counted, Spent, u64), RealError> {
    let Ring { table, _ring } = ring;
    let clock = Arc::clone(&table.clock);
    let widens = policy.widens(config);
    let cache = Cache::builder(table)
        .capacity_pages(config.capacity)
        .config(config.clone())
        // Changes are bracketed below.
        .widen(widens)
        .policy_from({
            let policy = policy.clone();
            move |params| policy.build(params)
        })
        .monitor(Explicit)
        .background(false)
        .ignore_environment()
        .build()?;
    // As the simulation: only a cache that widens has to tell requests for peers from others.
    let tells_rights = widens && steps.iter().any(|step| step.access().is_remote());
    let mut through = Cached { cache, tells_rights, open: FxHashMap::default(), refused: 0, refused_pages: 0 };
    go(steps, memory, watch, &mut through)?;
    // A cache has only put off the deregistration of what it keeps.
    through.cache.flush().map_err(AcquireError::from)?;
    let spent = clock.spent();
    let Cached { refused, refused_pages, .. } = through;
    let counted =
        Counted { refused, registrations: spent.registrations - refused, pages: spent.reg_pages - refused_pages };
    Ok((counted, spent, clock.pinned_kib()))
}

type Table = Timed<IoUringBuffers>;

/// The lease that serves an event.
enum Held {
    Leases {
        _leases: Vec<Lease<Table>>,
    },
    /// The cache would not have it, and it was registered for itself.
    Alone(Buffers),
}

struct Cached {
    cache: Cache<Table>,
    /// Whether requests for peers are made with their rights. The registrations are local all the same.
    tells_rights: bool,
    /// The leases in use, the last of each last.
    open: FxHashMap<Ranges, Vec<Held>>,
    /// Requests that found everything in use, and their pages.
    refused: u64,
    refused_pages: u64,
}

impl Cached {
    fn ask(&mut self, ranges: &[PageRange], access: Access) -> Result<Held, RealError> {
        let rights = if self.tells_rights { rights_of(access) } else { Access::LOCAL };
        let asked = |range: &PageRange| ((range.start() * PAGE) as *const u8, (range.pages() * PAGE) as usize);
        #[expect(unsafe_code, reason = "memory is registered")]
        // SAFETY: the memory is mapped for longer than the cache lives; no transfer is made, so nothing uses a key. Changes are
        // told below.
        let leases = unsafe {
            match ranges {
                [one] => {
                    let (address, bytes) = asked(one);
                    self.cache.acquire(address, bytes, rights).map(|lease| vec![lease])
                }
                several => {
                    let buffers: Vec<_> = several.iter().map(asked).collect();
                    self.cache.acquire_list(&buffers, rights)
                }
            }
        };
        match leases {
            Ok(_leases) => Ok(Held::Leases { _leases }),
            Err(AcquireError::AllInUse { .. }) => {
                self.refused += ranges.len() as u64;
                self.refused_pages += ranges.iter().map(|range| range.pages()).sum::<u64>();
                register(self.cache.registrar(), ranges).map(Held::Alone)
            }
            Err(AcquireError::TooLarge { .. }) => register(self.cache.registrar(), ranges).map(Held::Alone),
            Err(error) => Err(error.into()),
        }
    }

    fn end(&self, held: Held) -> Result<(), RealError> {
        match held {
            Held::Leases { .. } => Ok(()),
            Held::Alone(buffers) => deregister(self.cache.registrar(), buffers),
        }
    }
}

impl Take for Cached {
    fn request(&mut self, ranges: &[PageRange], access: Access) -> Result<(), RealError> {
        let held = self.ask(ranges, access)?;
        self.end(held)
    }

    fn acquire(&mut self, ranges: Ranges, access: Access) -> Result<(), RealError> {
        let held = self.ask(&ranges, access)?;
        self.open.entry(ranges).or_default().push(held);
        Ok(())
    }

    fn release(&mut self, ranges: &Ranges) -> Result<(), RealError> {
        last(&mut self.open, ranges).map_or(Ok(()), |held| self.end(held))
    }

    fn change(&mut self, range: PageRange, memory: &mut Memory) -> Result<(), RealError> {
        let (address, bytes) = ((range.start() * PAGE) as *const u8, (range.pages() * PAGE) as usize);
        let change = self.cache.begin_change(address, bytes)?;
        memory.replace(range).map_err(failed_to_map(range))?;
        drop(change);
        Ok(())
    }
}

/// Without a cache; none if not all that is in use at once may be pinned at once.
pub(crate) fn without(steps: &[Step], memory: &mut Memory, watch: &Watch<'_>) -> Result<Option<Spent>, RealError> {
    let Ring { table, _ring } = Ring::new()?;
    let clock = Arc::clone(&table.clock);
    let mut alone = Alone { table, open: FxHashMap::default() };
    match go(steps, memory, watch, &mut alone) {
        Ok(()) => Ok(Some(clock.spent())),
        Err(RealError::Register { source, .. }) if is_exhausted(&source) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN))
}

type Buffers = Vec<Registered<<IoUringBuffers as Registrar>::Registration>>;

/// Takes the last that is in use of these ranges.
fn last<T>(open: &mut FxHashMap<Ranges, Vec<T>>, ranges: &Ranges) -> Option<T> {
    let all = open.get_mut(ranges)?;
    let last = all.pop();
    if all.is_empty() {
        open.remove(ranges);
    }
    last
}

fn register(table: &Table, ranges: &[PageRange]) -> Result<Buffers, RealError> {
    let one = |&range: &PageRange| {
        let failed = |source| RealError::Register { pages: range.pages(), source };
        let registration = table.register(range, Access::LOCAL).map_err(failed)?;
        Ok(Registered { range, access: Access::LOCAL, registration })
    };
    ranges.iter().map(one).collect()
}

fn deregister(table: &Table, mut buffers: Buffers) -> Result<(), RealError> {
    let pages = buffers.iter().map(|one| one.range.pages()).sum();
    table.deregister(&mut buffers).map_err(|source| RealError::Register { pages, source })
}

struct Alone {
    table: Table,
    open: FxHashMap<Ranges, Vec<Buffers>>,
}

impl Take for Alone {
    fn request(&mut self, ranges: &[PageRange], _: Access) -> Result<(), RealError> {
        deregister(&self.table, register(&self.table, ranges)?)
    }

    fn acquire(&mut self, ranges: Ranges, _: Access) -> Result<(), RealError> {
        let buffers = register(&self.table, &ranges)?;
        self.open.entry(ranges).or_default().push(buffers);
        Ok(())
    }

    fn release(&mut self, ranges: &Ranges) -> Result<(), RealError> {
        last(&mut self.open, ranges).map_or(Ok(()), |buffers| deregister(&self.table, buffers))
    }

    fn change(&mut self, range: PageRange, memory: &mut Memory) -> Result<(), RealError> {
        memory.replace(range).map_err(failed_to_map(range))
    }
}
