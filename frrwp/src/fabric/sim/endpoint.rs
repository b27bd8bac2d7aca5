//! One end of a simulated connection.
#![expect(unsafe_code, reason = "posting lets the simulated card at memory")]

use super::world::{Arrival, Placing};
use super::{Network, SimDomain, SimKey};
use crate::fabric::poller::{Bell, Simulated};
use crate::fabric::{Abilities, Armed, Completion, Endpoint, Local};
use crate::wire::{MESSAGE, Segment};
use mrrc::Access;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

/// One end of a simulated connection. It stays in the thread that connected it: see [`sim`](super).
#[derive(Debug)]
pub struct SimEndpoint {
    pub(super) network: Network,
    pub(super) link: usize,
    pub(super) end: usize,
    pub(super) stays: PhantomData<*const ()>,
}

impl SimEndpoint {
    /// Whether there is something to poll.
    pub fn has_news(&self) -> bool {
        self.network.world().has_news(self.link, self.end)
    }

    fn post(&self, posted: bool) -> io::Result<()> {
        if posted { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
    }
}

fn pieces(local: &[Local<'_, SimKey>]) -> Vec<(usize, usize, u32)> {
    local.iter().map(|local| (local.address as usize, local.length, local.registration.0)).collect()
}

// SAFETY: `Done` is scheduled when its copy was made, or will not be. Once a connection is lost nothing is posted on it, and
// `Flushed` is scheduled behind the last of what was posted before.
unsafe impl Endpoint for SimEndpoint {
    type Domain = SimDomain;

    fn abilities(&self) -> Abilities {
        Abilities { gather: 4, immediate: self.network.world().abilities(), sink: Access::LOCAL_WRITE }
    }

    fn now(&self) -> u64 {
        self.network.world().clock(self.link, self.end)
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.post(self.network.world().send(self.link, self.end, message))
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        self.network.world().receive(self.link, self.end, more);
        Ok(())
    }

    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, SimKey>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        let posted = self.network.world().place(
            self.link,
            self.end,
            Placing { id, gather: pieces(from), to, read: false, immediate },
        );
        self.post(posted)
    }

    unsafe fn read(&mut self, id: u64, into: &[Local<'_, SimKey>], from: Segment) -> io::Result<()> {
        let posted = self.network.world().place(
            self.link,
            self.end,
            Placing { id, gather: pieces(into), to: from, read: true, immediate: None },
        );
        self.post(posted)
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        Some(match self.network.world().poll(self.link, self.end)? {
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
        if !self.network.step(until.unwrap_or(u64::MAX))
            && let Some(until) = until
        {
            self.network.sleep(self.link, self.end, until);
        }
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        bell.simulates(Arc::new(Clock { network: self.network.clone(), link: self.link, end: self.end }));
        self.network.world().attach(self.link, self.end, Some(bell.clone()));
        Ok(())
    }

    fn arm(&mut self) -> Armed {
        if self.has_news() { Armed::News } else { Armed::Quiet { until: None } }
    }

    fn disconnect(&mut self) {
        self.network.world().lose(self.link);
    }
}

impl Drop for SimEndpoint {
    /// Its bell knows the network, and the network the bell.
    fn drop(&mut self) {
        let bell = self.network.world().attach(self.link, self.end, None);
        drop(bell);
    }
}

/// The clock of an end's node.
struct Clock {
    network: Network,
    link: usize,
    end: usize,
}

impl Simulated for Clock {
    fn step(&self, until: u64) -> bool {
        self.network.step(until)
    }

    fn sleep_until(&self, time: u64) {
        self.network.sleep(self.link, self.end, time);
    }
}
