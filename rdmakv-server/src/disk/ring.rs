//! Transfers on an io_uring of the caller's: begun, submitted together, and taken when they have ended.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};
use mrrc::Lease;
use mrrc::registrar::io_uring::IoUringBuffers;
use rdmakv_flash::DeviceError;

use super::fixed::{Fixed, Registered};
use super::transfer::{Done, Transfer};

/// Counts of transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads and writes in registered memory.
    pub fixed: u64,
    /// All others.
    pub plain: u64,
}

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel has no io_uring for this process.
    #[error("set up io_uring: {0}: allow it (kernel.io_uring_disabled, seccomp) or start without flash")]
    Ring(io::Error),
    /// The system refuses a thread or a descriptor.
    #[error("start thread of flash: {0}: raise the limits on threads and open files")]
    Thread(io::Error),
}

/// A transfer in progress.
struct Running {
    transfer: Transfer,
    begun: Instant,
    /// Keeps the memory registered.
    lease: Option<Lease<IoUringBuffers>>,
}

struct Slots {
    all: Vec<Option<Running>>,
    free: Vec<usize>,
}

impl Slots {
    fn running(&self) -> usize {
        self.all.len() - self.free.len()
    }
}

impl Drop for Slots {
    /// Memory that the kernel may still write to is never freed.
    fn drop(&mut self) {
        for running in self.all.iter_mut().filter_map(Option::take) {
            std::mem::forget(running);
        }
    }
}

/// The name of the poll of a descriptor.
const POLL: u64 = u64::MAX;
/// The name of the poll that a transfer waits for, in tests of silent devices.
const GATE: u64 = u64::MAX - 1;

/// Returns the pipe that the tests' environment names. While it is empty, no transfer begins. Release builds have no such pipe.
fn gate() -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = std::env::var_os("RDMAKV_TEST_DEVICE").filter(|_| cfg!(debug_assertions))?;
    // For writing, too: without a writer it would always be readable.
    File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
}

/// An io_uring with files and a bounded number of transfers in progress.
pub struct Ring {
    // Dropped before the slots are: then no request is in progress any more, or their memory is leaked.
    ring: IoUring,
    registered: Option<Registered>,
    files: Vec<File>,
    slots: Slots,
    gate: Option<File>,
    ended: Vec<(u64, i32)>,
    counts: Counts,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("running", &self.slots.running())
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// Makes a ring for at most `depth` transfers in progress.
    ///
    /// # Errors
    ///
    /// [`StartError::Ring`].
    pub fn new(files: Vec<File>, depth: u32, fixed: Option<Fixed>) -> Result<Self, StartError> {
        let depth = depth.clamp(1, 1024);
        let gate = gate();
        let entries = (if gate.is_some() { 2 * depth + 1 } else { depth + 1 }).next_power_of_two();
        // A thread that serves others need not be interrupted at each end; older kernels have no such choice.
        let ring = IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries));
        let ring = ring.map_err(StartError::Ring)?;
        let registered = fixed.and_then(|fixed| Registered::new(&ring, fixed));
        let slots = Slots { all: (0..depth).map(|_| None).collect(), free: (0..depth as usize).collect() };
        Ok(Self { ring, registered, files, slots, gate, ended: Vec::new(), counts: Counts::default() })
    }

    /// Has this eventfd signalled at each end of a transfer.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn notify(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_eventfd(eventfd.as_raw_fd())
    }
    /// Returns whether transfers have ended that were not [taken](Self::take_ended).
    pub(super) fn has_ended(&mut self) -> bool {
        !self.ended.is_empty() || !self.ring.completion().is_empty()
    }
    /// Returns how many transfers are in progress.
    #[must_use]
    pub fn running(&self) -> usize {
        self.slots.running()
    }
    /// Returns whether another transfer may begin.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.slots.free.is_empty()
    }
    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Queues a transfer for [`submit`](Self::submit). `done` is called at once if it cannot be done.
    ///
    /// # Panics
    ///
    /// If there is no [room](Self::has_room).
    pub fn begin(&mut self, mut transfer: Transfer, done: &mut impl FnMut(Done)) {
        let (area, is_write) = match &transfer {
            Transfer::Read { area, .. } => (*area, false),
            Transfer::Write { area, .. } => (*area, true),
        };
        let (at, room) = match &mut transfer {
            Transfer::Read { into, .. } => (into.place().cast::<u8>().as_ptr(), into.place().len()),
            Transfer::Write { from, .. } => (from.bytes().as_ptr().cast_mut(), from.bytes().len()),
        };
        let Some(file) = self.files.get(usize::from(area.file)).filter(|_| area.len as usize <= room && area.len > 0)
        else {
            finish(done, transfer, Err(DeviceError::Short), Duration::ZERO, false);
            return;
        };
        let lease = self.registered.as_mut().and_then(|registered| registered.lease(at as usize, area.len as usize));
        let (fd, len, offset) = (types::Fd(file.as_raw_fd()), area.len, area.offset);
        let counter = if lease.is_some() { &mut self.counts.fixed } else { &mut self.counts.plain };
        *counter += 1;
        let entry = match (&lease, is_write) {
            (Some((_, slot)), false) => opcode::ReadFixed::new(fd, at, len, *slot).offset(offset).build(),
            (Some((_, slot)), true) => opcode::WriteFixed::new(fd, at, len, *slot).offset(offset).build(),
            (None, false) => opcode::Read::new(fd, at, len).offset(offset).build(),
            (None, true) => opcode::Write::new(fd, at, len).offset(offset).build(),
        };
        let slot = self.slots.free.pop().expect("the caller looked for room");
        self.slots.all[slot] = Some(Running { transfer, begun: Instant::now(), lease: lease.map(|(lease, _)| lease) });
        if let Some(gate) = &self.gate {
            let open = opcode::PollAdd::new(types::Fd(gate.as_raw_fd()), libc::POLLIN as u32).build();
            self.push(open.user_data(GATE).flags(squeue::Flags::IO_LINK));
        }
        self.push(entry.user_data(slot as u64));
    }

    /// Has the next [wait](Self::wait) end when this descriptor is readable, and [`take_ended`](Self::take_ended) tell.
    pub(super) fn poll(&mut self, fd: BorrowedFd<'_>) {
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).build();
        self.push(entry.user_data(POLL));
    }

    fn push(&mut self, entry: squeue::Entry) {
        #[expect(unsafe_code, reason = "the kernel gets addresses")]
        // SAFETY: `push` requires valid memory until the completion. Slots keep a transfer's memory and lease until then and leak them
        // otherwise. The poll of a descriptor has no memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the queue has an entry for each slot and the poll");
    }

    /// Gives the kernel what was queued; returns whether it took all. The rest goes with the next call.
    ///
    /// # Errors
    ///
    /// Those of the system, but none that passes.
    pub fn submit(&mut self) -> io::Result<bool> {
        passing(self.ring.submit())?;
        Ok(self.ring.submission().is_empty())
    }
    /// The same, and waits until something has ended.
    pub(super) fn wait(&self) -> io::Result<()> {
        passing(self.ring.submit_and_wait(1))
    }

    /// Reports what has ended; returns whether the polled descriptor is readable.
    pub fn take_ended(&mut self, done: &mut impl FnMut(Done)) -> bool {
        let mut ended = std::mem::take(&mut self.ended);
        ended.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        let mut is_readable = false;
        for (name, result) in ended.drain(..) {
            if name == POLL {
                is_readable = true;
            } else if name != GATE {
                self.end(name as usize, result, done);
            }
        }
        self.ended = ended;
        is_readable
    }

    fn end(&mut self, slot: usize, result: i32, done: &mut impl FnMut(Done)) {
        let Some(running) = self.slots.all[slot].take() else { return };
        self.slots.free.push(slot);
        let (Transfer::Read { area, .. } | Transfer::Write { area, .. }) = &running.transfer;
        let result = match result {
            len if len >= 0 && len as u32 == area.len => Ok(()),
            0.. => Err(DeviceError::Short),
            error if -error == libc::ENOSPC || -error == libc::EDQUOT => Err(DeviceError::Full),
            error => Err(DeviceError::Failed(-error)),
        };
        let Running { transfer, begun, lease } = running;
        let is_fixed = lease.is_some();
        drop(lease);
        finish(done, transfer, result, begun.elapsed(), is_fixed);
    }
}

fn passing(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn finish(
    done: &mut impl FnMut(Done),
    transfer: Transfer,
    result: Result<(), DeviceError>,
    took: Duration,
    is_fixed: bool,
) {
    let (token, memory) = match transfer {
        Transfer::Read { token, into, .. } => (token, Some(into)),
        Transfer::Write { token, from, .. } => {
            // The tier uses a buffer again when no one else has it.
            drop(from);
            (token, None)
        }
    };
    done(Done { token, result, memory, took, is_fixed });
}
