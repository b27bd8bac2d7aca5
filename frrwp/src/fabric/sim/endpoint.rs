//! One end of a simulated connection.
#![expect(unsafe_code, reason = "posting lets the simulated card at memory")]

use super::domain::{SimDomain, SimKey};
use super::world::{Arrival, Placing, Shared};
use crate::fabric::poller::{Bell, Simulated};
use crate::fabric::traits::{Armed, Capabilities, Completion, Endpoint, Local};
use crate::wire::{MESSAGE, Segment};
use mrrc::Access;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

/// One end of a simulated connection. It stays in the thread that connected it: see [`sim`](super).
pub struct SimEndpoint {
    world: Shared,
    link: usize,
    end: usize,
    stays: PhantomData<*const ()>,
}

impl fmt::Debug for SimEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimEndpoint").field("link", &self.link).field("end", &self.end).finish_non_exhaustive()
    }
}

impl SimEndpoint {
    pub(super) fn new(world: Shared, link: usize, end: usize) -> Self {
        Self { world, link, end, stays: PhantomData }
    }

    /// Returns whether there is something to poll.
    pub fn has_news(&self) -> bool {
        self.world.lock().has_news(self.link, self.end)
    }

    fn post(&self, posted: bool) -> io::Result<()> {
        if posted { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
    }
}

fn pieces(local: &[Local<'_, SimKey>]) -> Vec<(usize, usize, u32)> {
    local.iter().map(|local| (local.address as usize, local.length, local.registration.number())).collect()
}

// SAFETY: `Done` is scheduled when its copy was made, or will not be. Once a connection is lost nothing is posted on it, and
// `Flushed` is scheduled behind the last of what was posted before.
unsafe impl Endpoint for SimEndpoint {
    type Domain = SimDomain;

    fn capabilities(&self) -> Capabilities {
        Capabilities { gather: 4, immediate: self.world.lock().immediate(), sink: Access::LOCAL_WRITE }
    }

    fn now(&self) -> u64 {
        self.world.lock().clock(self.link, self.end)
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.post(self.world.lock().send(self.link, self.end, message))
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        self.world.lock().receive(self.link, self.end, more);
        Ok(())
    }

    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, SimKey>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        let posted = self.world.lock().place(
            self.link,
            self.end,
            Placing { id, gather: pieces(from), to, read: false, immediate },
        );
        self.post(posted)
    }

    unsafe fn read(&mut self, id: u64, into: &[Local<'_, SimKey>], from: Segment) -> io::Result<()> {
        let posted = self.world.lock().place(
            self.link,
            self.end,
            Placing { id, gather: pieces(into), to: from, read: true, immediate: None },
        );
        self.post(posted)
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        Some(match self.world.lock().poll(self.link, self.end)? {
            Arrival::Message(bytes) => {
                let length = bytes.len().min(MESSAGE);
                message[..length].copy_from_slice(&bytes[..length]);
                Completion::Message { length }
            }
            Arrival::Immediate(immediate) => Completion::Immediate(immediate),
            Arrival::Done { id, succeeded } => Completion::Done { id, succeeded },
            Arrival::Lost => Completion::Lost,
            Arrival::Flushed => Completion::Flushed,
        })
    }

    /// Lets the network go on by one thing, or the clock to that time.
    fn wait(&mut self, until: Option<u64>) {
        let stepped = self.world.lock().step(until.unwrap_or(u64::MAX));
        if !stepped && let Some(until) = until {
            self.world.lock().sleep(self.link, self.end, until);
        }
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        bell.simulates(Arc::new(Clock { world: self.world.clone(), link: self.link, end: self.end }));
        self.world.lock().attach(self.link, self.end, Some(bell.clone()));
        Ok(())
    }

    fn arm(&mut self) -> Armed {
        if self.has_news() { Armed::News } else { Armed::Quiet { until: None } }
    }

    fn disconnect(&mut self) {
        self.world.lock().lose(self.link);
    }
}

impl Drop for SimEndpoint {
    /// Its bell knows the network, and the network the bell.
    fn drop(&mut self) {
        let bell = self.world.lock().attach(self.link, self.end, None);
        drop(bell);
    }
}

/// The clock of an end's node.
struct Clock {
    world: Shared,
    link: usize,
    end: usize,
}

impl Simulated for Clock {
    fn step(&self, until: u64) -> bool {
        self.world.lock().step(until)
    }

    fn sleep_until(&self, time: u64) {
        self.world.lock().sleep(self.link, self.end, time);
    }
}
