//! The thread of a disk: takes transfers from a queue, has a bounded number in progress, reports their ends.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::fixed::Fixed;
use super::ring::{Counts, Ring, StartError};
use super::transfer::{Done, Transfer};

#[derive(Debug, Default)]
struct Shared {
    /// The thread waits in the kernel, or is about to, after a last look at the queue.
    is_asleep: AtomicBool,
    fixed: AtomicU64,
    plain: AtomicU64,
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
        let ring = Ring::new(files, depth, fixed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| StartError::Thread(error.into()))?;
        let (wake, shared) = (Arc::new(wake), Arc::new(Shared::default()));
        let (queue, transfers) = sync_channel(depth as usize * 2);
        let worker = Worker {
            ring,
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

impl Disk {
    /// Waits until all transfers have ended, but not longer than this; returns whether they have. Others go on with memory of their own.
    pub(super) fn end(mut self, most: Duration) -> bool {
        *self.queue.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        self.wake();
        let until = Instant::now() + most;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Instant::now() >= until {
                self.thread = None;
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
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

struct Worker<F> {
    ring: Ring,
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
            // Before their ends are reported: those that learn of them may look.
            let counts = self.ring.counts();
            self.shared.fixed.store(counts.fixed, Relaxed);
            self.shared.plain.store(counts.plain, Relaxed);
            if !self.is_open && self.ring.running() == 0 {
                return;
            }
            if !self.is_armed {
                self.ring.poll(self.wake.as_fd());
                self.is_armed = true;
            }
            if let Err(error) = self.ring.wait() {
                panic!("io_uring_enter: {error}");
            }
            self.shared.is_asleep.store(false, SeqCst);
            if self.ring.take_ended(&mut self.done) {
                self.is_armed = false;
                // Sets the counter to zero; what was queued before is taken next.
                let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
            }
        }
    }

    /// Begins as many transfers as may be in progress.
    fn take(&mut self) {
        while self.ring.has_room() {
            match self.transfers.try_recv() {
                Ok(transfer) => self.ring.begin(transfer, &mut self.done),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_open = false;
                    return;
                }
            }
        }
    }
}
