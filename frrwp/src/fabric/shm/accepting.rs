//! Accepting connections: set-ups run in parallel, and half-open connections are bounded.
//!
//! Any number of threads may wait for a connection. One at a time watches the sockets, and the others wait for its place: it has
//! the lock while it looks at connections, and not while it sleeps.

use super::address::ShmAddress;
use super::domain::ShmDomain;
use super::endpoint::ShmEndpoint;
use super::error::{ShmError, system};
use super::packets;
use super::set_up::{End, SetUp};
use crate::fabric::accept::{self, HalfOpen, Limits, Number, Shortage};
use crate::fabric::attempt::deadline;
use crate::fabric::fork_mark::ForkMark;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a connection may be half open.
const SETTING_UP: Duration = Duration::from_secs(5);
/// Descriptors that a set-up takes at a time: those that come with a HELLO, the peer's process, and this side's outbox.
const DESCRIPTORS: usize = 4;

/// The state by which a listener accepts.
pub(super) struct Accepting {
    state: Mutex<State>,
    /// The place at the sockets is free.
    free: Condvar,
}

struct State {
    /// The process that owns these connections: a child of a fork begins with none.
    mark: ForkMark,
    /// By the process that connected.
    half_open: HalfOpen<i32, SetUp>,
    shortage: Shortage,
    evicted: u64,
    timed_out: u64,
    /// Connections that were not set up, and of which no error told.
    refused: u64,
    /// Why the last of all these was not set up.
    last_refused: Option<String>,
    /// A thread watches the sockets.
    is_watched: bool,
}

impl State {
    fn new() -> Result<Self, ShmError> {
        let remedy = "see why the system has no page of memory, or no random numbers";
        Ok(Self {
            mark: ForkMark::here().map_err(system("listen", remedy))?,
            half_open: HalfOpen::new(Limits::of_process()),
            shortage: Shortage::default(),
            evicted: 0,
            timed_out: 0,
            refused: 0,
            last_refused: None,
            is_watched: false,
        })
    }
}

/// The origin and purpose of connections.
pub(super) struct Place<'a> {
    pub(super) domain: &'a ShmDomain,
    pub(super) address: &'a ShmAddress,
    pub(super) socket: &'a OwnedFd,
    pub(super) receives: u16,
}

impl Accepting {
    pub(super) fn new() -> Result<Self, ShmError> {
        Ok(Self { state: Mutex::new(State::new()?), free: Condvar::new() })
    }

    /// Connections that were evicted, and all that were not set up without an error that told of each.
    pub(super) fn given_up(&self) -> (u64, u64) {
        self.state().map_or((0, 0), |state| (state.evicted, state.evicted + state.timed_out + state.refused))
    }

    /// Why the last of those was not set up.
    pub(super) fn last_refused(&self) -> Option<String> {
        self.state().ok()?.last_refused.clone()
    }

    /// Counts a connection that was not set up, of which no error tells.
    pub(super) fn refuse(&self, error: &ShmError) {
        if let Ok(mut state) = self.state() {
            state.refused += 1;
            state.last_refused = Some(error.to_string());
        }
    }

    pub(super) fn shortages(&self) -> Result<u64, ShmError> {
        self.state().map(|state| state.shortage.episodes())
    }

    /// Waits for the next connection that stands, or that comes to nothing.
    ///
    /// # Errors
    /// Those of the listener. The fault of a peer that comes is inside.
    pub(super) fn next(&self, place: &Place<'_>, within: Duration) -> Result<Result<ShmEndpoint, ShmError>, ShmError> {
        let until = deadline(within);
        let address = || place.address.to_string();
        let timed_out = || ShmError::TimedOut { doing: "accept a connection", address: address(), waited: within };
        let mut state = self.state()?;
        loop {
            if state.is_watched {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(timed_out());
                }
                state = self.free.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let looked = state.look(place);
            let over = Instant::now() >= until;
            let outcome = match looked {
                Ok((Some(outcome), _)) => Some(Ok(outcome)),
                Err(error) => Some(Err(error)),
                Ok(_) if state.shortage.report() => Some(Err(ShmError::Descriptors { address: address() })),
                Ok(_) if over => Some(Err(timed_out())),
                Ok((None, true)) => continue,
                Ok((None, false)) => None,
            };
            if let Some(outcome) = outcome {
                drop(state);
                self.free.notify_one();
                return outcome;
            }
            state.is_watched = true;
            let (sockets, wake) = state.watched(until);
            drop(state);
            sleep(place.socket, sockets, wake);
            state = self.state()?;
            state.is_watched = false;
        }
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, ShmError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.mark.is_here() {
            *state = State::new()?;
        }
        Ok(state)
    }
}

impl State {
    /// Looks at what has come: an endpoint, if a connection stands, or what is wrong with one; and whether there may be more at
    /// once.
    fn look(&mut self, place: &Place<'_>) -> Result<(Option<Result<ShmEndpoint, ShmError>>, bool), ShmError> {
        let more = match self.take_in(place)? {
            Ok(more) => more,
            Err(error) => return Ok((Some(Err(error)), true)),
        };
        for number in self.half_open.numbers() {
            let Some(set_up) = self.half_open.get_mut(number) else { continue };
            if !packets::is_ready(&[set_up.socket().as_fd()], PollFlags::IN) {
                continue;
            }
            if !self.make_room(place, number) {
                return Ok((None, false));
            }
            let Some(set_up) = self.half_open.get_mut(number) else { continue };
            match set_up.advance(place.domain, place.receives) {
                Ok(false) => {}
                Ok(true) => {
                    let Some(set_up) = self.half_open.remove(number) else { continue };
                    return Ok((Some(set_up.stand(place.domain)), more));
                }
                Err(error) => {
                    self.half_open.remove(number);
                    return Ok((Some(Err(error)), more));
                }
            }
        }
        while self.half_open.expire(Instant::now()).is_some() {
            self.timed_out += 1;
            let address = place.address.to_string();
            let error = ShmError::TimedOut { doing: "set a connection up", address, waited: SETTING_UP };
            self.last_refused = Some(error.to_string());
        }
        Ok((None, more))
    }

    /// Takes connections from the system, at most a batch. Returns whether there may be more, or what is wrong with one of them.
    fn take_in(&mut self, place: &Place<'_>) -> Result<Result<bool, ShmError>, ShmError> {
        if self.shortage.paused_until(Instant::now()).is_some() {
            return Ok(Ok(false));
        }
        for _ in 0..self.half_open.batch() {
            match rustix::net::accept_with(place.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if let Err(error) = self.admit(place, socket) {
                        return Ok(Err(error));
                    }
                }
                Err(Errno::AGAIN) => return Ok(Ok(false)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) if accept::is_shortage(&error.into()) => {
                    if !self.evict(place, None) {
                        return Ok(Ok(false));
                    }
                }
                Err(error) => {
                    let remedy = "see whether the socket file is as it was, or listen again";
                    return Err(system("accept a connection", remedy)(error));
                }
            }
        }
        Ok(Ok(true))
    }

    fn admit(&mut self, place: &Place<'_>, socket: OwnedFd) -> Result<(), ShmError> {
        let source = packets::other_end(&socket).unwrap_or_default();
        let set_up = SetUp::new(place.domain, place.address, socket, End::Accepting, place.receives)?;
        if self.half_open.admit(source, Instant::now() + SETTING_UP, set_up).is_some() {
            self.note_evicted(place);
        }
        Ok(())
    }

    /// Evicts others until there are descriptors for the next step of one. Returns false, and rests, if there are none.
    fn make_room(&mut self, place: &Place<'_>, number: Number) -> bool {
        while !accept::are_free(place.socket, DESCRIPTORS) {
            if !self.evict(place, Some(number)) {
                return false;
            }
        }
        true
    }

    /// Evicts a half-open connection for its descriptor. Returns false, and rests, if there is none.
    fn evict(&mut self, place: &Place<'_>, keep: Option<Number>) -> bool {
        let now = Instant::now();
        self.shortage.note(now);
        let is_one = self.half_open.evict(keep).is_some();
        if is_one {
            self.note_evicted(place);
        } else {
            self.shortage.pause(now);
        }
        is_one
    }

    fn note_evicted(&mut self, place: &Place<'_>) {
        self.evicted += 1;
        self.last_refused =
            Some(format!("accept at {}: it was half open, and evicted for a newer connection", place.address));
    }

    /// Returns the sockets to watch beside the listener's, if any is watched now, and until when.
    fn watched(&self, until: Instant) -> (Option<Vec<Arc<OwnedFd>>>, Instant) {
        if let Some(paused) = self.shortage.paused_until(Instant::now()) {
            return (None, until.min(paused));
        }
        let sockets = self.half_open.iter().map(|set_up| set_up.socket().clone()).collect();
        (Some(sockets), self.half_open.next_expiry().map_or(until, |expiry| until.min(expiry)))
    }
}

fn sleep(listener: &OwnedFd, sockets: Option<Vec<Arc<OwnedFd>>>, until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
    let watched =
        sockets.iter().flat_map(|sockets| std::iter::once(listener).chain(sockets.iter().map(|socket| &**socket)));
    let mut watched: Vec<_> = watched.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)).collect();
    // A signal is as good as news.
    let _ = rustix::event::poll(&mut watched, Some(&left));
}
