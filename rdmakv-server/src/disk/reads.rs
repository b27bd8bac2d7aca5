//! The reads of a thread that serves clients, on a ring of its own.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use rdmakv_flash::DeviceError;
use rdmakv_flash::record::Summed;
use rustix::event::{EventfdFlags, eventfd};

use super::buffers::Buffers;
use super::ring::{Ring, StartError};
use super::transfer::{Done, Memory, Transfer};
use crate::metrics::Transferred;
use crate::session::Shared;
use crate::store::{Load, Waiter};

/// Reads in progress at most. Others wait.
const DEPTH: u32 = 128;
/// Ends that are taken at a time, where few wait and requests are few. Each puts an item into memory and answers requests. Between two
/// times, those for items in memory have their turn.
const ENDS: usize = 2;
/// The part of the ends that is taken in any case.
const PART: usize = 8;

/// The reads of a thread. When some have ended, its eventfd is signalled, and is never read: to be polled for edges.
#[derive(Debug)]
pub(crate) struct WorkerReads {
    /// Dropped before the buffers, in which it has registrations.
    ring: Ring,
    event: OwnedFd,
    waiting: VecDeque<(usize, Load)>,
    /// Whether the kernel has taken all that was queued.
    is_taken: bool,
    running: HashMap<u64, (usize, Load)>,
    next: u64,
    buffers: Buffers,
    ended: VecDeque<Done>,
}

impl WorkerReads {
    /// Makes a ring for these files. At most `kept` bytes of memory are kept for later reads.
    ///
    /// # Errors
    ///
    /// The kernel allows no ring, or no descriptor is left.
    pub(crate) fn new(files: Vec<File>, kept: usize) -> Result<Self, StartError> {
        let (buffers, fixed) = Buffers::in_a_range(kept);
        let ring = Ring::new(files, DEPTH, fixed)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| StartError::Thread(error.into()))?;
        ring.notify(event.as_fd()).map_err(StartError::Ring)?;
        let (waiting, running) = (VecDeque::new(), HashMap::new());
        Ok(Self { ring, event, is_taken: true, waiting, running, next: 0, buffers, ended: VecDeque::new() })
    }

    /// Returns the eventfd.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Adds reads for the next [`submit`](Self::submit).
    pub(crate) fn add(&mut self, loads: Vec<(usize, Load)>) {
        self.waiting.extend(loads);
    }

    /// Returns whether some have ended that were not [taken](Self::take).
    pub(crate) fn has_ended(&mut self) -> bool {
        !self.ended.is_empty() || self.ring.has_ended()
    }

    /// Gives the kernel the reads that were added, as many as may be in progress.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() && self.is_taken {
            return Ok(());
        }
        // Those that have ended have their memory until they are taken.
        while self.ring.has_room()
            && self.running.len() < DEPTH as usize
            && let Some((shard, load)) = self.waiting.pop_front()
        {
            let (token, area) = (self.next, load.area);
            self.next += 1;
            self.running.insert(token, (shard, load));
            let into = Box::new(self.buffers.take(area.len as usize));
            self.ring.begin(Transfer::Read { token, area, into }, &mut |done| self.ended.push_back(done));
        }
        self.is_taken = self.ring.submit()?;
        Ok(())
    }

    /// Ends all reads, of which none is done any more; returns the requests that go on now.
    pub(crate) fn end(self, shared: &Shared) -> Vec<Waiter> {
        let all = self.running.values().chain(&self.waiting);
        all.flat_map(|&(shard, load)| shared.shards.at(shard).cancel_load(load.id)).collect()
    }

    /// Reports reads that [have ended](Self::has_ended) to their stores: a few, but not fewer than the `requests` that the thread answered
    /// since the last time. Returns the requests that go on now.
    pub(crate) fn take(&mut self, shared: &Shared, requests: usize, now: u64) -> Vec<Waiter> {
        let Self { ring, running, buffers, ended, .. } = self;
        ring.take_ended(&mut |done| ended.push_back(done));
        let mut waiters = Vec::new();
        let taken = share(ended.len(), requests);
        for Done { token, result, memory, took, is_fixed } in ended.drain(..taken) {
            let Some((shard, load)) = running.remove(&token) else { continue };
            shared.transfers.record_transfer(Transferred::Read, took);
            shared.fixed_reads.fetch_add(u64::from(is_fixed), Relaxed);
            let buffer = memory.and_then(Memory::into_owned);
            #[cfg(rdmakv_fault_injection)]
            super::transfer::linger();
            #[cfg(rdmakv_fault_injection)]
            let buffer = buffer.map(|mut buffer| {
                buffer.damage();
                buffer
            });
            let bytes = match (&buffer, result) {
                (Some(buffer), Ok(())) => Ok(Summed::new(&buffer.bytes()[..load.area.len as usize])),
                (None, Ok(())) => Err(DeviceError::Short),
                (_, Err(error)) => Err(error),
            };
            waiters.extend(shared.shards.at(shard).loaded(load.id, bytes, now));
            if let Some(buffer) = buffer {
                buffers.give_back(buffer);
            }
        }
        waiters
    }
}

/// Returns how many of the ends are taken now.
fn share(ended: usize, requests: usize) -> usize {
    ended.min(ENDS.max(requests).max(ended / PART))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_get_a_share_of_each_round() {
        assert_eq!([share(0, 9), share(1, 0), share(5, 0)], [0, 1, 2]);
        // As many as requests for items in memory, however they came.
        assert_eq!([share(100, 64), share(30, 64)], [64, 30]);
        // Many that wait are gone after few rounds without other requests.
        let mut left = DEPTH as usize;
        let rounds = (0..).take_while(|_| (left > 0).then(|| left -= share(left, 0)).is_some()).count();
        assert!(rounds < 32, "{rounds}");
    }
}
