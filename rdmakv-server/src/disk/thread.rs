//! The thread of a disk: takes transfers from a queue, has a bounded number in progress, reports their ends.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, squeue, types};
use mrrc::Lease;
use mrrc::registrar::io_uring::IoUringBuffers;
use rdmakv_flash::{Area, Buffer, DeviceError};
use rustix::event::{EventfdFlags, eventfd};

use super::fixed::{Fixed, Registered};

/// Memory that a read lands in.
///
/// # Safety
///
/// [`place`](Self::place) returns the same memory each time. It stays valid until the value is dropped, the value may move meanwhile, and
/// nothing else reads or writes it until the read has ended.
#[expect(unsafe_code, reason = "the kernel writes there")]
pub unsafe trait Memory: Send {
    /// Returns the memory.
    fn place(&mut self) -> NonNull<[u8]>;

    /// Returns the memory, if it is [`Owned`].
    fn into_owned(self: Box<Self>) -> Option<Owned> {
        None
    }
}

/// Memory of its own, aligned to 4 KiB.
#[derive(Debug)]
pub struct Owned {
    bytes: Box<[u8]>,
    begin: usize,
    len: usize,
}

impl Owned {
    /// Makes memory of so many bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096].into_boxed_slice();
        let begin = bytes.as_ptr().align_offset(4096).min(4096);
        Self { bytes, begin, len }
    }
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.len]
    }
}

#[expect(unsafe_code, reason = "the kernel writes there")]
// SAFETY: the bytes are on the heap and owned, so they stay where they are while the box moves, until it is dropped.
unsafe impl Memory for Owned {
    fn place(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut self.bytes[self.begin..self.begin + self.len])
    }
    fn into_owned(self: Box<Self>) -> Option<Owned> {
        Some(*self)
    }
}

/// A transfer to be done.
pub enum Transfer {
    /// Reads an area into memory of at least its length.
    Read {
        /// Names the transfer at its end.
        token: u64,
        /// The bytes to be read.
        area: Area,
        /// The memory.
        into: Box<dyn Memory>,
    },
    /// Writes the first bytes of a buffer to an area.
    Write {
        /// Names the transfer at its end.
        token: u64,
        /// The bytes to be written.
        area: Area,
        /// The buffer.
        from: Arc<Buffer>,
    },
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, token, area) = match self {
            Self::Read { token, area, .. } => ("Read", token, area),
            Self::Write { token, area, .. } => ("Write", token, area),
        };
        f.debug_struct(kind).field("token", token).field("area", area).finish_non_exhaustive()
    }
}

/// The end of a transfer.
pub struct Done {
    /// The transfer's name.
    pub token: u64,
    /// Whether all of it was done.
    pub result: Result<(), DeviceError>,
    /// The memory of a read.
    pub memory: Option<Box<dyn Memory>>,
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").field("token", &self.token).field("result", &self.result).finish_non_exhaustive()
    }
}

/// Counts of transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads and writes in registered memory.
    pub fixed: u64,
    /// All others.
    pub plain: u64,
}

#[derive(Debug, Default)]
struct Shared {
    /// The thread waits in the kernel, or is about to, after a last look at the queue.
    is_asleep: AtomicBool,
    fixed: AtomicU64,
    plain: AtomicU64,
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

/// A thread that transfers.
#[derive(Debug)]
pub struct Disk {
    queue: Mutex<Option<SyncSender<Transfer>>>,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Starts the thread, which has at most `depth` transfers in progress and twice as many in its queue. It calls `done` at the end of
    /// each.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(
        files: Vec<File>,
        depth: u32,
        fixed: Option<Fixed>,
        done: impl FnMut(Done) + Send + 'static,
    ) -> Result<Self, StartError> {
        let depth = depth.clamp(1, 1024);
        let ring = IoUring::new((depth + 1).next_power_of_two()).map_err(StartError::Ring)?;
        let registered = fixed.and_then(|fixed| Registered::new(&ring, fixed));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| StartError::Thread(error.into()))?;
        let (wake, shared) = (Arc::new(wake), Arc::new(Shared::default()));
        let (queue, transfers) = sync_channel(depth as usize * 2);
        let worker = Worker {
            ring,
            registered,
            files,
            slots: Slots { all: (0..depth).map(|_| None).collect(), free: (0..depth as usize).collect() },
            transfers,
            is_open: true,
            is_armed: false,
            wake: Arc::clone(&wake),
            shared: Arc::clone(&shared),
            done,
        };
        let builder = std::thread::Builder::new().name("flash".into());
        let thread = builder.spawn(move || worker.run()).map_err(StartError::Thread)?;
        Ok(Self { queue: Mutex::new(Some(queue)), wake, shared, thread: Some(thread) })
    }

    /// Queues a transfer.
    ///
    /// # Errors
    ///
    /// The transfer, if the queue is full or the thread has ended.
    pub fn submit(&self, transfer: Transfer) -> Result<(), Transfer> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = &*queue else { return Err(transfer) };
        sender.try_send(transfer).map_err(|error| match error {
            TrySendError::Full(transfer) | TrySendError::Disconnected(transfer) => transfer,
        })?;
        drop(queue);
        // Sent before: the thread sees the transfer at its last look, or this sees that it is asleep.
        if self.shared.is_asleep.swap(false, SeqCst) {
            self.wake();
        }
        Ok(())
    }
    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { fixed: self.shared.fixed.load(Relaxed), plain: self.shared.plain.load(Relaxed) }
    }
    fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Disk {
    /// Waits until all transfers have ended.
    fn drop(&mut self) {
        *self.queue.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
    }
}

/// A transfer in progress.
struct Running {
    transfer: Transfer,
    /// Keeps the memory registered.
    _lease: Option<Lease<IoUringBuffers>>,
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

/// The name of the poll of the eventfd.
const WAKE: u64 = u64::MAX;

struct Worker<F> {
    // Dropped before the slots are: then no request is in progress any more, or their memory is leaked.
    ring: IoUring,
    registered: Option<Registered>,
    files: Vec<File>,
    slots: Slots,
    transfers: Receiver<Transfer>,
    is_open: bool,
    is_armed: bool,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    done: F,
}

impl<F: FnMut(Done)> Worker<F> {
    fn run(mut self) {
        loop {
            self.shared.is_asleep.store(true, SeqCst);
            self.take();
            if !self.is_open && self.slots.running() == 0 {
                return;
            }
            if !self.is_armed {
                self.arm();
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
                Err(error) => panic!("io_uring_enter: {error}"),
            }
            self.shared.is_asleep.store(false, SeqCst);
            let ended: Vec<_> = self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (name, result) in ended {
                if name == WAKE {
                    self.is_armed = false;
                    // Sets the counter to zero; what was queued before is taken next.
                    let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                } else {
                    self.end(name as usize, result);
                }
            }
        }
    }

    /// Begins as many transfers as may be in progress.
    fn take(&mut self) {
        while self.slots.running() < self.slots.all.len() {
            match self.transfers.try_recv() {
                Ok(transfer) => self.begin(transfer),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_open = false;
                    return;
                }
            }
        }
    }

    fn begin(&mut self, mut transfer: Transfer) {
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
            finish(&mut self.done, transfer, Err(DeviceError::Short));
            return;
        };
        let lease = self.registered.as_mut().and_then(|registered| registered.lease(at as usize, area.len as usize));
        let (fd, len, offset) = (types::Fd(file.as_raw_fd()), area.len, area.offset);
        let counter = if lease.is_some() { &self.shared.fixed } else { &self.shared.plain };
        counter.fetch_add(1, Relaxed);
        let entry = match (&lease, is_write) {
            (Some((_, slot)), false) => opcode::ReadFixed::new(fd, at, len, *slot).offset(offset).build(),
            (Some((_, slot)), true) => opcode::WriteFixed::new(fd, at, len, *slot).offset(offset).build(),
            (None, false) => opcode::Read::new(fd, at, len).offset(offset).build(),
            (None, true) => opcode::Write::new(fd, at, len).offset(offset).build(),
        };
        let Some(slot) = self.slots.free.pop() else { unreachable!("`take` looked") };
        self.slots.all[slot] = Some(Running { transfer, _lease: lease.map(|(lease, _)| lease) });
        self.push(entry.user_data(slot as u64));
    }

    fn arm(&mut self) {
        let entry = opcode::PollAdd::new(types::Fd(self.wake.as_raw_fd()), libc::POLLIN as u32).build();
        self.push(entry.user_data(WAKE));
        self.is_armed = true;
    }

    fn push(&mut self, entry: squeue::Entry) {
        #[expect(unsafe_code, reason = "the kernel gets addresses")]
        // SAFETY: `push` requires valid memory until the completion. Slots keep a transfer's memory and lease until then and leak them
        // otherwise. The poll of the eventfd has no memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the queue has an entry for each slot and the eventfd");
    }

    fn end(&mut self, slot: usize, result: i32) {
        let Some(running) = self.slots.all[slot].take() else { return };
        self.slots.free.push(slot);
        let (Transfer::Read { area, .. } | Transfer::Write { area, .. }) = &running.transfer;
        let result = match result {
            len if len >= 0 && len as u32 == area.len => Ok(()),
            0.. => Err(DeviceError::Short),
            error if -error == libc::ENOSPC || -error == libc::EDQUOT => Err(DeviceError::Full),
            error => Err(DeviceError::Failed(-error)),
        };
        let Running { transfer, _lease: lease } = running;
        drop(lease);
        finish(&mut self.done, transfer, result);
    }
}

fn finish(done: &mut impl FnMut(Done), transfer: Transfer, result: Result<(), DeviceError>) {
    match transfer {
        Transfer::Read { token, into, .. } => done(Done { token, result, memory: Some(into) }),
        Transfer::Write { token, from, .. } => {
            // The tier uses a buffer again when no one else has it.
            drop(from);
            done(Done { token, result, memory: None });
        }
    }
}
