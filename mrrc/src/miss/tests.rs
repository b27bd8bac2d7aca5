//! Several misses on one state, in random orders, with a registrar and a monitor that fail.

use super::{AcquireRequest, Context, Event, Miss, Step};
use crate::cache::Cache;
use crate::footprint::Footprint;
use crate::hit::HoldRef;
use crate::invalidation::{Explicit, Unwatched, Watch};
use crate::range::{PAGE, PageRange};
use crate::registrar::{Limits, Registered, Registrar};
use crate::state::Batch;
use crate::{Access, AcquireError};
use proptest::prelude::*;
use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::time::Duration;

const CAPACITY: u64 = 24;
/// The same where misses are widened, to four pages at most.
const WIDE: u64 = 40;
const REGIONS: u64 = 6;
const MORE: Access = Access::LOCAL.union(Access::REMOTE_READ);

/// Not used: the test plays the registrar.
struct Idle;

#[expect(unsafe_code, reason = "there is nothing behind it")]
// SAFETY: nothing is ever registered with it, so nothing is promised.
unsafe impl Registrar for Idle {
    type Registration = u64;

    fn register(&self, _: PageRange, _: Access) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn deregister(&self, batch: &mut Vec<Registered<u64>>) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "idle"
    }
}

/// An act of one participant.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The effect of the step that this request is at, which fails or not.
    Effect(usize, Fault),
    /// The lock is taken for this request, which goes on.
    Advance(usize),
    /// The lease of this request ends, and it makes the next.
    Release(usize),
    Invalidate(u64, u64),
    /// A change begins, or ends.
    Change(u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    OutOfMemory,
    BadAddress,
    Unwatched,
    Unsure,
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    start: u64,
    pages: u64,
    access: Access,
    begins: bool,
}

/// A thread with its requests.
struct Task {
    thread: u32,
    asks: Vec<Ask>,
    miss: Option<Miss<u64>>,
    next: Next,
    /// The lease.
    holds: Vec<HoldRef>,
}

enum Next {
    Effect(Step),
    /// A batch is deregistered.
    Batch(Batch<u64>),
    Event(Event, Option<Batch<u64>>),
    /// Leased, or failed.
    Nothing,
}

struct World {
    cache: Cache<Idle>,
    /// The registrations, by their keys.
    live: HashMap<u64, (PageRange, Access)>,
    next_key: u64,
    change: Option<u64>,
    tasks: Vec<Task>,
    granted: u32,
}

impl World {
    fn new(max_segments: usize, widens: bool, tasks: Vec<(u32, Vec<Ask>)>) -> Self {
        let builder = Cache::builder(Idle).monitor(Explicit).ignore_environment().max_segments(max_segments);
        let builder = builder.widen(widens);
        let capacity = if widens { WIDE } else { CAPACITY };
        let cache = builder.capacity_pages(capacity).max_regions(REGIONS).build().unwrap();
        if widens {
            // Pages one after the other, which are asked for no more.
            let mut state = cache.shared.lock().unwrap();
            (1000..2000).for_each(|page| state.core.observe(PageRange::new(page, 1).unwrap()));
        }
        let task = |(thread, asks)| Task { thread, asks, miss: None, next: Next::Nothing, holds: Vec::new() };
        let tasks = tasks.into_iter().map(task).collect();
        Self { cache, live: HashMap::new(), next_key: 1, change: None, tasks, granted: 0 }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Effect(task, fault) => self.effect(task % self.tasks.len(), fault),
            Act::Advance(task) => self.advance(task % self.tasks.len()),
            Act::Release(task) => self.release(task % self.tasks.len()),
            Act::Invalidate(start, pages) => {
                let shared = &self.cache.shared;
                shared.lock().unwrap().invalidate(&shared.tables, PageRange::new(start, pages).unwrap());
            }
            Act::Change(start, pages) => {
                let shared = &self.cache.shared;
                let mut state = shared.lock().unwrap();
                match self.change.take() {
                    Some(change) => state.changes.end(change),
                    None => {
                        let range = PageRange::new(start, pages).unwrap();
                        self.change = Some(state.begin_change(&shared.tables, range));
                    }
                }
            }
        }
        self.check();
    }

    /// Whether the thread makes progress: an effect, or its next request.
    fn effect(&mut self, nth: usize, fault: Fault) {
        let Self { cache, live, next_key, tasks, .. } = self;
        let Task { asks, miss, next, holds, .. } = &mut tasks[nth];
        let event = match std::mem::replace(next, Next::Nothing) {
            Next::Nothing if !holds.is_empty() => return,
            Next::Nothing => {
                let Some(Ask { start, pages, access, begins }) = asks.pop() else { return };
                let settings = &cache.shared.settings;
                let (address, length) = ((start * PAGE) as usize, (pages * PAGE) as usize);
                let request = AcquireRequest::new(settings, address, length, access).unwrap();
                *miss = Some(Miss::new(request, settings.max_segments, begins));
                Event::Start
            }
            Next::Event(event, batch) => {
                *next = Next::Event(event, batch);
                return;
            }
            Next::Batch(mut batch) => {
                let refuses = fault == Fault::OutOfMemory;
                batch.regions.retain(|registered| refuses || live.remove(&registered.registration).is_none());
                batch.refusal = refuses.then(|| "told to".into());
                *next = Next::Event(Event::Deregistered(Duration::from_millis(1)), Some(batch));
                return;
            }
            Next::Effect(step) => match step {
                Step::Look(reach, _) => {
                    let range = miss.as_ref().unwrap().request().range;
                    Event::Looked(match fault {
                        Fault::None => reach,
                        Fault::Unwatched => range,
                        _ => PageRange::between(range.start(), reach.end()),
                    })
                }
                Step::Probe(_) if fault == Fault::BadAddress => Event::Probed(Err(error(libc::EFAULT))),
                Step::Probe(_) => Event::Probed(Ok(())),
                Step::Register => register(miss.as_mut().unwrap(), live, next_key, fault),
                Step::Deregister => unreachable!("its batch was taken"),
                Step::Wait(longest) => Event::Waited(longest.min(Duration::from_millis(400))),
                Step::Relock => Event::Locked,
                // It was begun, and is finished now.
                Step::Done => {
                    let miss = miss.as_mut().unwrap();
                    if miss.register_at_once() { register(miss, live, next_key, fault) } else { Event::Resume }
                }
            },
        };
        *next = Next::Event(event, None);
    }

    fn advance(&mut self, nth: usize) {
        let shared = &self.cache.shared;
        let Task { thread, miss, next, holds, .. } = &mut self.tasks[nth];
        if !matches!(next, Next::Event(..)) {
            return;
        }
        let Next::Event(event, batch) = std::mem::replace(next, Next::Nothing) else { return };
        let mut state = shared.lock().unwrap();
        if let Some(batch) = batch {
            state.finish_batch(&shared.tables, batch);
        }
        let settings = &shared.settings;
        let context = Context { tables: &shared.tables, settings, registrar: "idle", thread: *thread, members: &[] };
        let current = miss.as_mut().unwrap();
        match current.advance(&mut state, &context, event) {
            Ok(Step::Deregister) => *next = Next::Batch(current.take_batch(&mut state, &context)),
            // It was begun.
            Ok(Step::Done) if current.is_pending() || !current.is_complete() => *next = Next::Effect(Step::Done),
            Ok(Step::Done) => {
                self.granted += 1;
                *holds = current.take_holds().into_vec();
                assert!(!holds.is_empty());
            }
            Ok(step) => *next = Next::Effect(step),
            Err(
                error @ (AcquireError::AllInUse { .. }
                | AcquireError::DeregistrationFailed { .. }
                | AcquireError::Register { .. }
                | AcquireError::TimedOut { .. }),
            ) => {
                if let AcquireError::Register { range, .. } = error
                    && settings.max_segments == usize::MAX
                {
                    assert!(current.request().range.contains(range), "a bad neighbour fails no request");
                }
                current.abandon(&mut state, &shared.tables);
                assert!(!current.is_pending());
                drop(state);
                self.release(nth);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends a lease, or what is left of a request that failed.
    #[expect(unsafe_code, reason = "it ends holds")]
    fn release(&mut self, nth: usize) {
        let tables = NonNull::from(&self.cache.shared.tables);
        let Task { miss, next, holds, .. } = &mut self.tasks[nth];
        if matches!(next, Next::Nothing)
            && let Some(mut miss) = miss.take()
        {
            for hold in holds.drain(..).chain(miss.take_holds()).chain(miss.take_past()) {
                // SAFETY: `end` wants to be called once; the holds were taken out, and the tables live on.
                unsafe { hold.end(tables) };
            }
        }
    }

    /// Checks the invariants of the state.
    #[expect(unsafe_code, reason = "it looks at registrations")]
    fn check(&self) {
        let pages: u64 = self.live.values().map(|(range, _)| range.pages()).sum();
        assert!(pages <= self.cache.usage().capacity_pages && self.live.len() as u64 <= REGIONS, "{:?}", self.live);
        let tables = &self.cache.shared.tables;
        for Task { miss, holds, .. } in &self.tasks {
            let Some(miss) = miss else { continue };
            let held = holds.iter().chain(miss.holds()).map(|hold| {
                let record = &tables.records[hold.id()];
                // SAFETY: `registration` wants a record that is filled and held: it is held here.
                let key = unsafe { record.registration() };
                let region = (record.range(), record.access());
                assert_eq!(self.live.get(key), Some(&region), "what a lease has is registered");
                region
            });
            let held: Vec<_> = held.collect();
            let request = miss.request();
            assert!(held.iter().all(|(_, access)| access.contains(request.access)));
            if !holds.is_empty() {
                let covered = |page| held.iter().any(|(range, _)| range.contains(PageRange::between(page, page + 1)));
                assert!((request.range.start()..request.range.end()).all(covered), "{held:?}: {}", request.range);
            }
        }
    }

    /// Lets every miss end in turn, and checks that nothing is left.
    fn finish(mut self) -> u32 {
        if let Some(change) = self.change.take() {
            self.cache.shared.lock().unwrap().changes.end(change);
        }
        let is_busy = |task: &Task| !task.asks.is_empty() || task.miss.is_some();
        for round in 0.. {
            assert!(round < 2000, "a request waits for ever");
            if !self.tasks.iter().any(is_busy) {
                break;
            }
            for nth in 0..self.tasks.len() {
                self.act(Act::Release(nth));
                self.act(Act::Effect(nth, Fault::None));
                self.act(Act::Advance(nth));
            }
        }
        let shared = &self.cache.shared;
        let mut state = shared.lock().unwrap();
        state.invalidate(&shared.tables, PageRange::EVERYTHING);
        state.sweep_all(&shared.tables);
        state.reclaimer.retry();
        while state.reclaimer.has_work() {
            let mut batch = state.reclaimer.take_batch(0);
            batch.regions.retain(|registered| self.live.remove(&registered.registration).is_none());
            batch.refusal = None;
            state.finish_batch(&shared.tables, batch);
        }
        assert!(self.live.is_empty() && state.lease_holds.is_empty(), "{:?}", self.live);
        assert_eq!((state.occupancy.used(), state.core.used_pages()), (Footprint::default(), 0));
        self.granted
    }
}

/// Plays the driver: asks the monitor, and registers the gaps until one fails.
fn register(
    miss: &mut Miss<u64>,
    live: &mut HashMap<u64, (PageRange, Access)>,
    next_key: &mut u64,
    fault: Fault,
) -> Event {
    for gap in miss.unasked() {
        gap.watch = Some(if fault == Fault::Unwatched { Watch::Unwatched(Unwatched::File) } else { Watch::Watched });
    }
    if miss.has_unwatched() {
        return Event::Unwatched;
    }
    let mut failed = None;
    while let Some(gap) = miss.next_gap() {
        match fault {
            Fault::OutOfMemory => failed = Some(error(libc::ENOMEM)),
            Fault::BadAddress => failed = Some(error(libc::EFAULT)),
            _ => {
                live.insert(*next_key, (gap.range, gap.access));
                gap.made = Some(*next_key);
                *next_key += 1;
                continue;
            }
        }
        break;
    }
    Event::Registered { failed, sure: fault != Fault::Unsure }
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let access = prop_oneof![3 => Just(Access::LOCAL), 1 => Just(Access::LOCAL_READ), 1 => Just(MORE)];
    let ask = (0..24_u64, 1..9_u64, access, prop::bool::weighted(0.3)).prop_map(|(start, pages, access, begins)| Ask {
        start: start + 16,
        pages,
        access,
        begins,
    });
    prop::collection::vec(ask, 1..6)
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let fault = prop_oneof![
        12 => Just(Fault::None),
        1 => Just(Fault::OutOfMemory),
        1 => Just(Fault::BadAddress),
        1 => Just(Fault::Unwatched),
        1 => Just(Fault::Unsure),
    ];
    let act = prop_oneof![
        8 => (0..6_usize, fault).prop_map(|(task, fault)| Act::Effect(task, fault)),
        8 => (0..6_usize).prop_map(Act::Advance),
        3 => (0..6_usize).prop_map(Act::Release),
        1 => (0..24_u64, 1..9_u64).prop_map(|(start, pages)| Act::Invalidate(start + 16, pages)),
        1 => (0..24_u64, 1..9_u64).prop_map(|(start, pages)| Act::Change(start + 16, pages)),
    ];
    prop::collection::vec(act, 1..120)
}

fn run(max_segments: usize, widens: bool, tasks: Vec<Vec<Ask>>, acts: Vec<Act>) -> u32 {
    let tasks = tasks.into_iter().zip(1..).map(|(asks, thread)| (thread, asks)).collect();
    let mut world = World::new(max_segments, widens, tasks);
    acts.into_iter().for_each(|act| world.act(act));
    world.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 400 }))]

    #[test]
    fn two_misses_agree_in_any_order(
        tasks in prop::collection::vec(asks(), 2),
        acts in acts(),
        max_segments in prop_oneof![Just(usize::MAX), Just(2), Just(1)],
        widens in any::<bool>(),
    ) {
        run(max_segments, widens, tasks, acts);
    }

    #[test]
    fn three_misses_agree_in_any_order(
        tasks in prop::collection::vec(asks(), 3),
        acts in acts(),
        max_segments in prop_oneof![Just(usize::MAX), Just(2), Just(1)],
        widens in any::<bool>(),
    ) {
        run(max_segments, widens, tasks, acts);
    }
}

/// Without faults no request fails where there is room for all.
#[test]
fn misses_of_one_range_register_it_once() {
    let ask = Ask { start: 4, pages: 4, access: Access::LOCAL, begins: false };
    let mut world = World::new(usize::MAX, false, vec![(1, vec![ask]), (2, vec![ask])]);
    for nth in [0, 1] {
        world.act(Act::Effect(nth, Fault::None));
        world.act(Act::Advance(nth));
    }
    assert!(matches!(world.tasks[0].next, Next::Effect(Step::Register)));
    assert!(matches!(world.tasks[1].next, Next::Effect(Step::Wait(_))));
    world.act(Act::Effect(0, Fault::None));
    world.act(Act::Advance(0));
    world.act(Act::Effect(1, Fault::None));
    world.act(Act::Advance(1));
    assert_eq!((world.live.len(), world.granted), (1, 2));
    world.finish();
}

/// A widened registration that fails is followed by one of the request, and by no widened one.
#[test]
fn failed_widening_is_followed_by_the_request() {
    let ask = |start| Ask { start, pages: 1, access: Access::LOCAL, begins: false };
    let mut world = World::new(usize::MAX, true, vec![(1, vec![ask(21), ask(17)])]);
    let mut faults = [Fault::None, Fault::None, Fault::BadAddress].into_iter();
    while world.granted < 2 {
        world.act(Act::Effect(0, faults.next().unwrap_or(Fault::None)));
        world.act(Act::Advance(0));
        if world.granted == 1 {
            assert_eq!(world.live.values().map(|(range, _)| (range.start(), range.pages())).next(), Some((17, 1)));
            world.act(Act::Release(0));
        }
    }
    let counters = world.cache.counters();
    assert_eq!((counters.attempts, counters.widened, counters.widened_failed), (3, 0, 1));
    assert_eq!((counters.decisions.requests, counters.decisions.failed, world.live.len()), (2, 1, 2));
    world.finish();
}

/// A part that another request failed to register is planned again as it is: its surroundings were looked at long ago.
#[test]
fn part_planned_again_is_not_widened() {
    let ask = |start, pages, begins| Ask { start, pages, access: Access::LOCAL, begins };
    let mut world = World::new(usize::MAX, true, vec![(1, vec![ask(18, 1, true)]), (2, vec![ask(17, 2, false)])]);
    let step = |world: &mut World, nth, fault| {
        world.act(Act::Effect(nth, fault));
        world.act(Act::Advance(nth));
    };
    let ranges = |world: &World| {
        let mut ranges: Vec<_> = world.live.values().map(|(range, _)| (range.start(), range.pages())).collect();
        ranges.sort_unstable();
        ranges
    };
    // What is begun is not widened. The other request waits for it, and widens what it registers itself.
    step(&mut world, 0, Fault::None);
    while !matches!(world.tasks[1].next, Next::Effect(Step::Wait(_))) {
        step(&mut world, 1, Fault::None);
    }
    assert_eq!(ranges(&world), [(16, 2)]);
    step(&mut world, 0, Fault::BadAddress);
    while world.granted == 0 {
        step(&mut world, 1, Fault::None);
    }
    assert_eq!(ranges(&world), [(16, 2), (18, 1)]);
    assert_eq!(world.cache.counters().widened, 1);
    world.finish();
}

/// Nothing leaves for surroundings that the registrar refuses, nor for a request that it refuses.
#[test]
fn refused_surroundings_evict_nothing() {
    let ask = |start, pages| Ask { start, pages, access: Access::LOCAL, begins: false };
    for is_bad in [false, true] {
        let mut world = World::new(usize::MAX, true, vec![(1, vec![ask(17, 1), ask(100, WIDE)])]);
        let mut probed = Vec::new();
        for _ in 0..100 {
            let Task { next, asks, .. } = &world.tasks[0];
            if world.granted == 1 && asks.len() == 1 && matches!(next, Next::Nothing) {
                world.act(Act::Release(0));
            }
            let fault = match &world.tasks[0].next {
                Next::Effect(Step::Probe(range)) if range.contains(PageRange::new(17, 1).unwrap()) => {
                    probed.push((range.start(), range.pages()));
                    assert_eq!(world.live.len(), 1, "nothing has left");
                    if is_bad || range.pages() > 1 { Fault::BadAddress } else { Fault::None }
                }
                _ => Fault::None,
            };
            world.act(Act::Effect(0, fault));
            world.act(Act::Advance(0));
        }
        assert_eq!(probed, [(16, 4), (17, 1)]);
        let counters = world.cache.counters();
        let found = (world.granted, world.live.len(), counters.decisions.evicted, counters.widened_failed);
        assert_eq!(found, if is_bad { (1, 1, 0, 0) } else { (2, 1, 1, 0) });
        world.finish();
    }
}

/// Changes of memory between the look at the surroundings and the plan keep the request exact.
#[test]
fn changes_after_the_look_keep_it_exact() {
    let ask = |start| Ask { start, pages: 1, access: Access::LOCAL, begins: false };
    for changes in [false, true] {
        let mut world = World::new(usize::MAX, true, vec![(1, vec![ask(17)])]);
        world.act(Act::Effect(0, Fault::None));
        world.act(Act::Advance(0));
        assert!(matches!(world.tasks[0].next, Next::Effect(Step::Look(..))));
        if changes {
            world.act(Act::Change(19, 1));
            world.act(Act::Change(19, 1));
        }
        while world.granted < 1 {
            world.act(Act::Effect(0, Fault::None));
            world.act(Act::Advance(0));
        }
        let pages: Vec<_> = world.live.values().map(|(range, _)| range.pages()).collect();
        assert_eq!(pages, [if changes { 1 } else { 4 }]);
        world.finish();
    }
}

/// The usual miss takes the lock twice: once to plan, once to publish.
#[test]
fn lone_gap_takes_the_lock_twice() {
    let asks = [16, 24, 32].map(|start| Ask { start, pages: 8, access: Access::LOCAL, begins: false });
    let mut world = World::new(usize::MAX, false, vec![(1, asks.to_vec())]);
    for granted in 1..=3 {
        for _ in 0..2 {
            world.act(Act::Effect(0, Fault::None));
            world.act(Act::Advance(0));
        }
        assert_eq!(world.granted, granted);
        world.act(Act::Release(0));
    }
    world.finish();
}

/// With one batch in the way it is three times: the batch is taken with the plan, and room is reserved when it ended.
#[test]
fn batch_in_the_way_takes_one_lock_more() {
    let ask = |start| Ask { start, pages: 24, access: Access::LOCAL, begins: false };
    let mut world = World::new(usize::MAX, false, vec![(1, vec![ask(100), ask(16)])]);
    let mut locks = 0;
    while world.granted < 2 {
        world.act(Act::Effect(0, Fault::None));
        world.act(Act::Advance(0));
        locks += 1;
        if world.granted == 1 {
            world.act(Act::Release(0));
        }
    }
    // The probe, before others leave, takes one too.
    assert_eq!(locks, 2 + 3 + 1);
    world.finish();
}
