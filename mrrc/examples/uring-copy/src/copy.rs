//! The copy: up to as many chunks at a time as there are lanes, each read and then written.

use crate::Result;
use crate::files::Job;
use crate::pins::{Held, Pins};
use crate::pool::{Draw, Pool};
use crate::report::{Counts, Sample};
use io_uring::{IoUring, opcode, squeue, types};
use std::io;
use std::os::fd::AsRawFd;

/// One of the three, with a ring of its own.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    // Dropped before the ring.
    pub(crate) pins: Pins,
    ring: IoUring,
    lanes: Vec<Option<Lane>>,
    /// Times that a chunk waited because no more could be pinned.
    pub(crate) short: u64,
    /// Counts before the measured rounds.
    pub(crate) before: Counts,
    pub(crate) samples: Vec<Sample>,
}

/// A chunk under way. It has its buffer, and what keeps it pinned, until its last completion was seen.
pub(crate) struct Lane {
    buffer: usize,
    held: Held,
    offset: u64,
    writing: bool,
}

impl Way {
    pub(crate) fn new(name: &'static str, depth: u32, pins: impl FnOnce(&IoUring) -> Result<Pins>) -> Result<Self> {
        let ring = IoUring::new(depth).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::ENOSYS) => "this kernel has none",
                Some(libc::EPERM | libc::EACCES) => {
                    "it is forbidden here: see the sysctl kernel.io_uring_disabled and, in a container, its seccomp profile"
                }
                Some(libc::ENOMEM) => "raise RLIMIT_MEMLOCK (ulimit -l)",
                _ => "no ring, no copy",
            };
            format!("setting up an io_uring: {error}: {remedy}")
        })?;
        let pins = pins(&ring)?;
        let lanes = (0..depth).map(|_| None).collect();
        Ok(Self { name, pins, ring, lanes, short: 0, before: Counts::default(), samples: Vec::new() })
    }

    /// Copies the file. When this returns, no transfer is under way, unless the ring itself failed.
    pub(crate) fn copy(&mut self, job: &Job, pool: &mut Pool, draw: &mut Draw) -> Result<()> {
        let mut next = 0;
        let mut failure = None;
        let mut completions = Vec::with_capacity(self.lanes.len());
        loop {
            if failure.is_none() {
                failure = self.start(job, pool, draw, &mut next).err();
            }
            if self.lanes.iter().all(Option::is_none) {
                return failure.map_or_else(|| job.finish(), Err);
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(format!("submitting to the io_uring: {error}").into());
                }
                _ => {}
            }
            completions.extend(self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())));
            for (number, result) in completions.drain(..) {
                if let Err(error) = self.step(job, pool, number, result) {
                    failure.get_or_insert(error);
                }
            }
        }
    }

    /// Starts chunks while there are free lanes.
    fn start(&mut self, job: &Job, pool: &mut Pool, draw: &mut Draw, next: &mut u64) -> Result<()> {
        while let Some(number) = self.lanes.iter().position(Option::is_none)
            && *next < job.length
        {
            let buffer = pool.take(draw).ok_or("no free buffer")?;
            match self.pins.hold(pool.address(buffer), pool.chunk) {
                Ok(held) => {
                    let lane = Lane { buffer, held, offset: *next, writing: false };
                    *next += job.chunk;
                    self.submit(job, pool, number, lane)?;
                }
                Err(refused) => {
                    pool.give(buffer);
                    // The transfers under way will make room.
                    if refused.short && self.lanes.iter().any(Option::is_some) {
                        self.short += 1;
                        return Ok(());
                    }
                    return Err(refused.error);
                }
            }
        }
        Ok(())
    }

    /// Continues with a chunk whose read or write is complete.
    fn step(&mut self, job: &Job, pool: &mut Pool, number: usize, result: i32) -> Result<()> {
        let lane = self.lanes.get_mut(number).and_then(Option::take);
        let mut lane = lane.ok_or("the io_uring completed what was not submitted")?;
        let (verb, expected) = match lane.writing {
            false => ("read", job.chunk.min(job.length - lane.offset)),
            true => ("write", job.transfer_length(lane.offset)),
        };
        let outcome = match u64::try_from(result) {
            Err(_) => Err(io::Error::from_raw_os_error(-result).to_string()),
            Ok(bytes) if bytes < expected => Err(format!("only {bytes} of {expected} bytes")),
            Ok(_) => Ok(()),
        };
        if outcome.is_ok() && !lane.writing {
            lane.writing = true;
            return self.submit(job, pool, number, lane);
        }
        pool.give(lane.buffer);
        let offset = lane.offset;
        self.pins.give_back(lane.held)?;
        outcome.map_err(|why| format!("{}: {verb} at byte {offset}: {why}", self.name).into())
    }

    fn submit(&mut self, job: &Job, pool: &Pool, number: usize, lane: Lane) -> Result<()> {
        let (address, offset) = (pool.address(lane.buffer), lane.offset);
        let length = job.transfer_length(offset) as u32; // At most 64 MiB.
        let (from, to) = (types::Fd(job.from.transfers.as_raw_fd()), types::Fd(job.to.transfers.as_raw_fd()));
        let entry: squeue::Entry = match (lane.held.index(), lane.writing) {
            (None, false) => opcode::Read::new(from, address, length).offset(offset).build(),
            (None, true) => opcode::Write::new(to, address, length).offset(offset).build(),
            (Some(index), false) => opcode::ReadFixed::new(from, address, length, index).offset(offset).build(),
            (Some(index), true) => opcode::WriteFixed::new(to, address, length, index).offset(offset).build(),
        };
        #[expect(unsafe_code, reason = "hands memory to the kernel")]
        // SAFETY: the buffer is the pool's, which lives as long as the process; no reference to it exists, and this
        // lane alone uses it and keeps it pinned until its completion was seen. The files outlive the copy.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(number as u64)) };
        // One entry a lane, and as many entries as lanes: there is room.
        pushed.map_err(|_| "the io_uring's queue is full")?;
        self.lanes[number] = Some(lane);
        Ok(())
    }
}
