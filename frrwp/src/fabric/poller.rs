//! One descriptor for many connections.
//!
//! A [`Poller`] returns the connections that may have news, one after the other, and sleeps while there are none. Its work depends on how many
//! are ready, not on how many there are. Each connection has a [`Bell`], which its provider rings:
//! [`Endpoint::attach`](super::Endpoint::attach) gives it to the provider, and [`Endpoint::arm`](super::Endpoint::arm) asks for the next ring.
//!
//! ```text
//! provider ── ring, or a file that becomes readable ─► Poller ── next ─► poll until there is nothing ── arm ─► …
//! ```
//!
//! Its descriptor is an epoll. It is readable while there is something to wait no longer for, also a time that has come. So
//! any other loop that watches descriptors can have it. Take [`Poller::next`] until it returns none before you watch it,
//! and call [`Poller::wait`] with a time of zero when it is readable.
//!
//! Applications use the queues over it, [`CompletionQueue`](crate::engine::queue::CompletionQueue) for engines.

use rustc_hash::FxHashMap;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Names among the events of the epoll; those of bells come after them.
const ALARM: u64 = 0;
const TIMER: u64 = 1;
/// Events that one call takes.
const AT_ONCE: usize = 64;

/// Returns the connections that may have news, and sleeps while there are none.
pub struct Poller(Arc<Shared>);

/// The bell that a provider rings when a connection may have news. Clones are the same bell.
#[derive(Clone)]
pub struct Bell(Arc<Place>);

/// A bell's place in its poller.
struct Place {
    poller: Arc<Shared>,
    name: u64,
}

struct Shared {
    epoll: OwnedFd,
    /// Readable when a bell was rung after the last connection was taken.
    alarm: OwnedFd,
    timer: OwnedFd,
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: FxHashMap<u64, Member>,
    last: u64,
    ready: VecDeque<u64>,
    /// Times of members, the earliest first.
    times: BTreeSet<(u64, u64)>,
    /// The time of the timer.
    set: Option<u64>,
    /// Nothing is left to be taken: the next ring makes the descriptor readable.
    drained: bool,
    counters: PollerCounters,
}

#[derive(Default)]
struct Member {
    is_ready: bool,
    time: Option<u64>,
    /// The network that moves on when this side waits.
    simulated: Option<Arc<dyn Simulated>>,
}

/// The counters of a poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PollerCounters {
    /// Connections that were taken by [`Poller::next`].
    pub taken: u64,
    /// Waits, of whatever length: one system call each, and one more for each 64 connections.
    pub waits: u64,
    /// System calls that made the descriptor readable, or that set or read the timer.
    pub signals: u64,
}

/// A network with a time that passes when an end waits.
pub(super) trait Simulated: Send + Sync {
    /// Lets the next thing happen, no later than this. False if there is none.
    fn step(&self, until: u64) -> bool;
    /// Sets the member's clock to this time.
    fn sleep_until(&self, time: u64);
}

impl Poller {
    /// Makes one: an epoll, an eventfd and a timer.
    ///
    /// # Errors
    /// The system's: no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &alarm, EventData::new_u64(ALARM), EventFlags::IN)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        let state = Mutex::new(State { last: TIMER, drained: true, ..State::default() });
        Ok(Self(Arc::new(Shared { epoll, alarm, timer, start: Instant::now(), state })))
    }

    /// Makes a bell for one more connection. It is a member until the last clone is dropped.
    pub fn bell(&self) -> Bell {
        let mut state = self.0.lock();
        state.last += 1;
        let name = state.last;
        state.members.insert(name, Member::default());
        Bell(Arc::new(Place { poller: Arc::clone(&self.0), name }))
    }

    /// Takes the next connection that may have news: the name of its bell. Poll it until it has nothing, and
    /// [arm](super::Endpoint::arm) it. None where [`Poller::wait`] is next.
    pub fn next(&self) -> Option<u64> {
        let mut state = self.0.lock();
        while let Some(name) = state.ready.pop_front() {
            // A member that is gone has no news.
            if let Some(member) = state.members.get_mut(&name) {
                member.is_ready = false;
                state.counters.taken += 1;
                return Some(name);
            }
        }
        state.drained = true;
        None
    }

    /// Sleeps until [`Poller::next`] has something, for ever, or so long at most. Over [`sim`](super::sim) the network moves on by one
    /// thing instead, at whichever end, or the clock leaps to the first time. A time that is not zero is as good as none.
    pub fn wait(&self, within: Option<Duration>) {
        let mut state = self.0.lock();
        if !state.ready.is_empty() {
            return;
        }
        // Also where the last connection was taken and no caller has asked for more.
        state.drained = true;
        drop(state);
        if within != Some(Duration::ZERO) && self.0.simulate() {
            return;
        }
        self.0.collect(within);
    }

    /// Makes the descriptor readable where [`Poller::next`] has more, for callers that take no more now.
    pub fn leave(&self) {
        self.0.signal(&mut self.0.lock(), true);
    }

    /// Returns what it has done.
    pub fn counters(&self) -> PollerCounters {
        self.0.lock().counters
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.epoll.as_fd()
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("Poller").field("members", &state.members.len()).field("ready", &state.ready.len()).finish()
    }
}

impl State {
    fn is_ready(&mut self, name: u64) {
        if let Some(member) = self.members.get_mut(&name)
            && !std::mem::replace(&mut member.is_ready, true)
        {
            self.ready.push_back(name);
        }
    }

    /// Takes the member's time away.
    fn forget_time(&mut self, name: u64) {
        if let Some(time) = self.members.get_mut(&name).and_then(|member| member.time.take()) {
            self.times.remove(&(time, name));
        }
    }

    /// Marks those ready that are due.
    fn expire(&mut self, now: u64) {
        while let Some(&(time, name)) = self.times.first()
            && time <= now
        {
            self.forget_time(name);
            self.is_ready(name);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn ring(&self, name: u64) {
        let mut state = self.lock();
        state.is_ready(name);
        let is_drained = state.drained;
        self.signal(&mut state, is_drained);
    }

    /// Makes the descriptor readable if connections are ready and no thread takes them.
    fn signal(&self, state: &mut State, is_waited_for: bool) {
        if !state.ready.is_empty() && is_waited_for {
            state.drained = false;
            state.counters.signals += 1;
            // Full is as good as readable.
            let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
        }
    }

    /// Sets the timer, if it is not set to this time or an earlier one. One that comes too early is set anew then.
    fn set_timer(&self, state: &mut State) {
        let Some(&(time, _)) = state.times.first() else { return };
        if state.set.is_some_and(|set| set <= time) {
            return;
        }
        state.set = Some(time);
        state.counters.signals += 1;
        // Zero would stop it.
        let left = time.saturating_sub(self.now()).max(1);
        let it_value = timespec(Duration::from_nanos(left));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It takes any time that is normalized.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value });
    }

    /// Takes what the system says, having slept for so long at most.
    fn collect(&self, within: Option<Duration>) {
        let mut time = within.map(timespec);
        let mut events = Vec::<epoll::Event>::with_capacity(AT_ONCE);
        // Connections with constant news do not delay the others: each has its turn, then the call returns.
        let calls = self.lock().members.len() / AT_ONCE + 2;
        for _ in 0..calls {
            events.clear();
            // A signal is as good as news.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), time.as_ref());
            let mut state = self.lock();
            state.counters.waits += 1;
            for event in &events {
                match event.data.u64() {
                    ALARM => {
                        state.counters.signals += 1;
                        let _ = rustix::io::read(&self.alarm, &mut [0; 8]);
                    }
                    TIMER => {
                        state.counters.signals += 2;
                        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                        state.set = None;
                        state.expire(self.now());
                        self.set_timer(&mut state);
                    }
                    name => state.is_ready(name),
                }
            }
            if !state.ready.is_empty() {
                state.drained = false;
            }
            if events.len() < AT_ONCE {
                return;
            }
            time = Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
    }

    /// Lets one thing happen in a simulated network, where there is one: its other ends may have to act on that. False if there is none.
    fn simulate(&self) -> bool {
        let state = self.lock();
        let Some(network) = state.members.values().find_map(|member| member.simulated.clone()) else { return false };
        let first = state.times.first().copied();
        let of = |name: u64| state.members.get(&name).and_then(|member| member.simulated.clone());
        let sleeper = first.and_then(|(_, name)| of(name));
        drop(state);
        // Rings, without the lock.
        let moved = network.step(first.map_or(u64::MAX, |(time, _)| time));
        if let (false, Some((time, _)), Some(sleeper)) = (moved, first, sleeper) {
            sleeper.sleep_until(time);
            self.lock().expire(time);
        }
        true
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

impl Bell {
    /// Returns its name, which no other bell of the poller has or will have.
    pub fn name(&self) -> u64 {
        self.0.name
    }

    /// The connection may have news. Any thread may ring; a connection that is ready already is not made so twice.
    pub fn ring(&self) {
        self.0.poller.ring(self.0.name);
    }

    /// Rings whenever this file becomes readable, or its other end goes: at each change, and not for as long as it is so.
    /// That ends when the file is closed.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.0.poller.epoll, file, EventData::new_u64(self.0.name), flags)?)
    }

    /// Rings at this time, in the place of the one that was asked for before; both by the endpoint's clock.
    pub fn ring_at(&self, time: Option<u64>, now: u64) {
        let Place { poller, name } = &*self.0;
        let mut state = poller.lock();
        let Some(member) = state.members.get(name) else { return };
        let at = match (time, &member.simulated) {
            (Some(time), None) => Some(poller.now().saturating_add(time.saturating_sub(now))),
            (time, _) => time,
        };
        let is_simulated = member.simulated.is_some();
        if member.time == at {
            return;
        }
        state.forget_time(*name);
        let Some(at) = at else { return };
        if let Some(member) = state.members.get_mut(name) {
            member.time = Some(at);
        }
        state.times.insert((at, *name));
        if !is_simulated {
            poller.set_timer(&mut state);
        }
    }

    /// The network moves on when this side waits.
    pub(super) fn simulates(&self, network: Arc<dyn Simulated>) {
        if let Some(member) = self.0.poller.lock().members.get_mut(&self.0.name) {
            member.simulated = Some(network);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.poller.lock();
        state.forget_time(self.name);
        let gone = state.members.remove(&self.name);
        drop(state);
        drop(gone);
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bell").field(&self.0.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Option<Duration> = Some(Duration::from_secs(20));

    fn is_readable(poller: &Poller) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut files = [PollFd::new(poller, PollFlags::IN)];
        poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn rings_are_taken_once_and_make_it_readable() {
        let poller = Poller::new().unwrap();
        let [one, other] = [poller.bell(), poller.bell()];
        assert!(poller.next().is_none() && !is_readable(&poller));
        one.ring();
        one.ring();
        other.ring();
        assert!(is_readable(&poller));
        poller.wait(Some(Duration::ZERO));
        assert_eq!([poller.next(), poller.next(), poller.next()], [Some(one.name()), Some(other.name()), None]);
        poller.wait(Some(Duration::ZERO));
        assert!(poller.next().is_none() && !is_readable(&poller));
        assert_eq!(poller.counters().taken, 2);
    }

    #[test]
    fn who_takes_no_more_is_told_of_the_rest() {
        let poller = Poller::new().unwrap();
        let [one, other] = [poller.bell(), poller.bell()];
        one.ring();
        poller.wait(SOON);
        assert_eq!(poller.next(), Some(one.name()));
        // It waits without having been told that there is nothing.
        poller.wait(Some(Duration::ZERO));
        other.ring();
        assert!(is_readable(&poller));
        poller.wait(Some(Duration::ZERO));
        one.ring();
        assert_eq!(poller.next(), Some(other.name()));
        poller.0.collect(Some(Duration::ZERO));
        assert!(!is_readable(&poller));
        poller.leave();
        assert!(is_readable(&poller));
        assert_eq!(poller.next(), Some(one.name()));
    }

    #[test]
    fn a_ring_from_another_thread_wakes() {
        let poller = Poller::new().unwrap();
        let bell = poller.bell();
        std::thread::scope(|scope| {
            scope.spawn(|| bell.ring());
            poller.wait(None);
        });
        assert_eq!(poller.next(), Some(bell.name()));
    }

    #[test]
    fn times_come_in_order_and_can_be_taken_back() {
        let poller = Poller::new().unwrap();
        let [late, early, never] = [poller.bell(), poller.bell(), poller.bell()];
        late.ring_at(Some(3_000_000), 0);
        early.ring_at(Some(1_000_000), 0);
        never.ring_at(Some(2_000_000), 0);
        never.ring_at(None, 0);
        let mut taken = Vec::new();
        while taken.len() < 2 {
            poller.wait(SOON);
            taken.extend(std::iter::from_fn(|| poller.next()));
        }
        assert_eq!(taken, [early.name(), late.name()]);
    }

    #[test]
    fn a_bell_that_is_gone_is_not_taken() {
        let poller = Poller::new().unwrap();
        let (gone, there) = (poller.bell(), poller.bell());
        gone.ring();
        there.ring();
        drop(gone);
        assert_eq!([poller.next(), poller.next()], [Some(there.name()), None]);
    }

    #[test]
    fn a_file_rings_at_each_change() {
        let poller = Poller::new().unwrap();
        let bell = poller.bell();
        let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        bell.watch(file.as_fd()).unwrap();
        for _ in 0..2 {
            rustix::io::write(&file, &1_u64.to_ne_bytes()).unwrap();
            poller.wait(SOON);
            assert_eq!([poller.next(), poller.next()], [Some(bell.name()), None]);
            // Still readable, and nothing new.
            poller.wait(Some(Duration::ZERO));
            assert_eq!(poller.next(), None);
        }
    }
}
