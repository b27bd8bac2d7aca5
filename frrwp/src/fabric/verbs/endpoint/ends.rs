//! How a connection ends, and what time has to do with it.
//!
//! Whatever the reason, the queue pair is destroyed, which waits until the device is at nothing that was posted to it, before
//! [`Completion::Flushed`] is told. A side that disconnects has its posts sent first, for a short time: the device forgets
//! those that it has not sent.

#![expect(unsafe_code, reason = "an empty write is posted")]

use super::super::error::VerbsEnd;
use super::super::manager::kind;
use super::super::pair::{Pair, Request};
use super::{Arrival, FIRST_PROBE, LOWEST_RATE, PROBES, Posted, State, VerbsEndpoint, opcode};
use crate::fabric::traits::{Completion, Endpoint};
use std::time::{Duration, Instant};

impl VerbsEndpoint {
    pub(super) fn gone(&self) -> Option<VerbsEnd> {
        self.domain.is_gone().then(|| VerbsEnd::DeviceGone { device: self.domain.device().to_owned() })
    }

    /// Takes what the connection manager says.
    pub(super) fn listen(&mut self) {
        while let Some(event) = self.pair.as_ref().and_then(Pair::next_event) {
            let end = match event.kind {
                kind::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                    self.domain.set_gone();
                    VerbsEnd::DeviceGone { device: self.domain.device().to_owned() }
                }
                kind::RDMA_CM_EVENT_DISCONNECTED
                | kind::RDMA_CM_EVENT_CONNECT_ERROR
                | kind::RDMA_CM_EVENT_UNREACHABLE
                | kind::RDMA_CM_EVENT_REJECTED => VerbsEnd::Closed,
                // That a port's address has changed, or that an old connection may be forgotten.
                _ => continue,
            };
            // Earlier messages are heard first.
            self.harvest();
            self.lose(end);
        }
    }

    /// The connection ends here.
    pub(super) fn lose(&mut self, why: VerbsEnd) {
        if self.state == State::Flushed {
            return;
        }
        // A flush says less than the event that came with it.
        let why = match why {
            VerbsEnd::Broken { .. } => self.told_by_events().unwrap_or(why),
            why => why,
        };
        self.why.get_or_insert(why);
        if self.state == State::Stands {
            self.arrivals.push_back(Arrival::Told(Completion::Lost));
            // Later events are not reported.
            self.state = State::Leaves(Instant::now());
        }
        self.end();
    }

    pub(super) fn told_by_events(&mut self) -> Option<VerbsEnd> {
        let event = self.pair.as_ref().and_then(Pair::next_event)?;
        match event.kind {
            kind::RDMA_CM_EVENT_DISCONNECTED => Some(VerbsEnd::Closed),
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                self.domain.set_gone();
                Some(VerbsEnd::DeviceGone { device: self.domain.device().to_owned() })
            }
            _ => None,
        }
    }

    /// Destroys the queue pair, and tells the ends of all that was posted.
    pub(super) fn end(&mut self) {
        if let Some(mut pair) = self.pair.take() {
            // First: some devices wait for windows that are bound when their queue pair goes.
            if let Some(windows) = &self.windows {
                windows.end();
            }
            pair.end();
            self.pair = Some(pair);
            self.state = State::Flushed;
            // The last completions; the end is known.
            self.harvest();
            self.failed = None;
            self.pair = None;
            if let Some(windows) = &self.windows {
                windows.release();
            }
        }
        self.state = State::Flushed;
        for posted in self.posted.drain(..) {
            match posted.what {
                Posted::Part { id, is_last: true, .. } => {
                    self.arrivals.push_back(Arrival::Told(Completion::Done { id, succeeded: false }));
                }
                Posted::Message(Some(slot)) => self.out.give(slot),
                _ => {}
            }
        }
        self.arrivals.push_back(Arrival::Told(Completion::Flushed));
    }

    /// Ends the connection of a side that leaves, once what it posted has left or its time is over.
    pub(super) fn leave(&mut self) {
        if let State::Leaves(until) = self.state
            && (self.posted.is_empty() || until <= Instant::now())
        {
            self.end();
        }
    }

    /// Leaves, and waits until that is done.
    pub(super) fn leave_now(&mut self) {
        self.disconnect();
        while self.state != State::Flushed {
            self.harvest();
            self.leave();
            if self.state != State::Flushed {
                self.wait(None);
            }
        }
    }

    /// When the next probe is due: this side has spoken, and nothing has ever come.
    pub(super) fn nudges_at(&self) -> Option<Instant> {
        let spoke = self.spoke.filter(|_| !self.heard && self.probes_sent < PROBES && self.state == State::Stands)?;
        Some(spoke + FIRST_PROBE * 4_u32.pow(self.probes_sent))
    }

    /// When what is first on the send queue counts as standing still.
    pub(super) fn stalls_at(&self) -> Option<Instant> {
        let first = self.posted.front()?;
        let time = Duration::from_nanos((first.what.bytes() / (LOWEST_RATE / 1_000_000)).saturating_mul(1_000));
        Some(self.first_since + self.domain.0.options.stall + time)
    }

    /// When time alone changes something.
    pub(super) fn acts_at(&self, now: Instant) -> Option<Instant> {
        let leaves = match self.state {
            State::Leaves(until) => Some(until),
            _ => None,
        };
        let listens = self.listens.filter(|&until| !self.heard && until > now);
        [self.nudges_at(), self.stalls_at(), leaves, listens].into_iter().flatten().min()
    }

    /// Does what time asks for.
    pub(super) fn tick(&mut self) {
        self.listen();
        let now = Instant::now();
        self.ticked = now;
        if self.nudges_at().is_some_and(|at| at <= now) {
            self.probes_sent += 1;
            self.spoke = Some(now);
            self.send_probe();
        }
        if self.stalls_at().is_some_and(|at| at <= now) {
            let operation = self.posted.front().map_or("write", |posted| posted.what.name());
            let after = now.saturating_duration_since(self.first_since);
            self.lose(self.gone().unwrap_or(VerbsEnd::Stalled { operation, after }));
        }
    }

    /// An empty write, which does nothing but arrive.
    pub(in super::super) fn send_probe(&mut self) {
        let request = Request {
            number: 0,
            opcode: opcode::IBV_WR_RDMA_WRITE,
            parts: &mut [],
            remote: (0, 0),
            immediate: 0,
            inline: false,
        };
        // SAFETY: a probe writes no bytes, so it uses no memory.
        let _ = unsafe { self.post(Posted::Probe, request) };
    }
}
