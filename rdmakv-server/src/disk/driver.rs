//! The driver of the tiers: carries out their reads and writes on one [`Disk`], and reports the ends.
//!
//! Threads that serve clients begin reads. A worker has a ring of its own for them. Those of others end on the disk's thread: the item is
//! put into memory, and the requests that wait for it go on. All else is done by the driver's own thread, for which nothing waits.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdmakv_flash::WRITE_ERRORS;
use rdmakv_flash::record::Summed;
use rdmakv_flash::{Action, DeviceError, Flash, ManifestError, Settings, Ticket};
use rdmakv_proto::clock;

use super::buffers::Buffers;
use super::ring::{Counts, Ring, StartError};
use super::thread::Disk;
use super::transfer::{Done, Owned, Transfer};
use crate::log;
use crate::metrics::Transferred;
use crate::session::{Reads, Shared};
use crate::store::{Kept, Load};

/// Between two looks for reads that take too long.
const LOOK: Duration = Duration::from_secs(1);

/// Looks at a tier between two breaks, and how long these are. A thread that takes a lock again at once leaves it to no other.
const ROUNDS: u32 = 8;
const BREAK: Duration = Duration::from_micros(20);
/// How long an end waits for transfers.
const END: Duration = Duration::from_secs(5);

/// A transfer in progress.
#[derive(Clone, Copy, Debug)]
enum Running {
    Load { shard: usize, load: Load },
    Read { shard: usize, ticket: Ticket, len: usize },
    Write { shard: usize, ticket: Ticket },
}

impl Running {
    fn kind(&self) -> Transferred {
        match self {
            Self::Load { .. } => Transferred::Read,
            Self::Read { .. } => Transferred::Reclaim,
            Self::Write { .. } => Transferred::Write,
        }
    }
}

/// An event for the driver's thread.
#[derive(Debug)]
enum Event {
    /// A transfer of a tier's own has ended.
    Ended(Running, Result<(), DeviceError>, Option<Owned>),
    /// A tier has something to do.
    Work,
    /// A transfer for which the disk had no place.
    Later(Transfer),
    End,
}

/// The state that the threads share.
#[derive(Debug)]
struct Inner {
    disk: RwLock<Option<Disk>>,
    running: Mutex<HashMap<u64, Running>>,
    next: AtomicU64,
    events: Mutex<Sender<Event>>,
    /// Whether the thread was told that there is work, and has not looked since.
    is_told: AtomicBool,
    buffers: Mutex<Buffers>,
    shared: OnceLock<Weak<Shared>>,
    files: Vec<File>,
    /// The files' names, for messages.
    paths: Vec<PathBuf>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Has a transfer done; where the disk has no place for it, the driver's thread tries again.
    fn submit(&self, transfer: Transfer) {
        let disk = self.disk.read().unwrap_or_else(PoisonError::into_inner);
        let refused = match &*disk {
            Some(disk) => disk.submit(transfer).err(),
            None => None,
        };
        if let Some(transfer) = refused {
            // The thread is there as long as the disk.
            let _ = locked(&self.events).send(Event::Later(transfer));
        }
    }
    fn begin(&self, running: Running, transfer: impl FnOnce(u64) -> Transfer) {
        let token = self.next.fetch_add(1, Relaxed);
        locked(&self.running).insert(token, running);
        self.submit(transfer(token));
    }
    fn tell(&self) {
        if !self.is_told.swap(true, SeqCst) {
            // The thread is there as long as the server.
            let _ = locked(&self.events).send(Event::Work);
        }
    }
    fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.get().and_then(Weak::upgrade)
    }

    /// Takes the end of a transfer, on the disk's thread.
    fn end(&self, done: Done) {
        let Some(running) = locked(&self.running).remove(&done.token) else { return };
        if let Some(shared) = self.shared() {
            shared.transfers.record_transfer(running.kind(), done.took);
        }
        let buffer = done.memory.and_then(super::Memory::into_owned);
        #[cfg(rdmakv_fault_injection)]
        super::transfer::linger();
        #[cfg(rdmakv_fault_injection)]
        let buffer = buffer.map(|mut buffer| {
            buffer.damage();
            buffer
        });
        let Running::Load { shard, load } = running else {
            let event = Event::Ended(running, done.result, buffer);
            #[cfg(rdmakv_fault_injection)]
            let Some(event) = self.delay(event) else { return };
            let _ = locked(&self.events).send(event);
            return;
        };
        let Some(shared) = self.shared() else { return };
        let bytes = match (&buffer, done.result) {
            (Some(buffer), Ok(())) => Ok(Summed::new(&buffer.bytes()[..load.area.len as usize])),
            (None, Ok(())) => Err(DeviceError::Short),
            (_, Err(error)) => Err(error),
        };
        let waiters = shared.shards.at(shard).loaded(load.id, bytes, clock::now());
        shared.wake(waiters);
        if let Some(buffer) = buffer {
            locked(&self.buffers).give_back(buffer);
        }
    }

    /// With `flash-moves-the-dead`: reports the end of a read for reclaim later, so that items end while they are moved.
    #[cfg(rdmakv_fault_injection)]
    fn delay(&self, event: Event) -> Option<Event> {
        let is_read = matches!(event, Event::Ended(Running::Read { .. }, ..));
        if !is_read || !rdmakv_proto::faults::injected(rdmakv_proto::faults::Fault::FlashMovesTheDead) {
            return Some(event);
        }
        let events = locked(&self.events).clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let _ = events.send(event);
        });
        None
    }

    /// Does what the tier of a shard wants done.
    fn work(&self, shared: &Shared, shard: usize) {
        for round in 1_u32.. {
            if round.is_multiple_of(ROUNDS) {
                std::thread::sleep(BREAK);
            }
            let (mut actions, mut has_more) = (Vec::new(), false);
            if let Some(flash) = shared.shards.at(shard).flash() {
                has_more = flash.work(clock::now() as u32);
                actions.extend(std::iter::from_fn(|| flash.next_action()));
            }
            if actions.is_empty() && !has_more {
                return;
            }
            for action in actions {
                match action {
                    Action::Write { ticket, area, buffer } => {
                        self.begin(Running::Write { shard, ticket }, |token| Transfer::Write {
                            token,
                            area,
                            from: buffer,
                        });
                    }
                    Action::Read { ticket, area } => {
                        let len = area.len as usize;
                        let into = Box::new(Owned::new(len));
                        self.begin(Running::Read { shard, ticket, len }, |token| Transfer::Read { token, area, into });
                    }
                }
            }
        }
    }

    fn run(&self, shared: &Weak<Shared>, events: &Receiver<Event>) {
        let mut looked = clock::now();
        loop {
            let event = match events.recv_timeout(LOOK) {
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
            };
            let Some(shared) = shared.upgrade() else { return };
            match event {
                Some(Event::Ended(running, result, buffer)) => self.report(&shared, running, result, buffer),
                Some(Event::Later(transfer)) => {
                    std::thread::sleep(Duration::from_millis(1));
                    self.submit(transfer);
                }
                _ => {
                    // Before the look: what comes later is told anew.
                    self.is_told.store(false, SeqCst);
                    (0..shared.shards.count()).for_each(|shard| self.work(&shared, shard));
                }
            }
            let now = clock::now();
            if now != looked {
                looked = now;
                for shard in 0..shared.shards.count() {
                    let waiters = shared.shards.at(shard).give_up_loads(now);
                    shared.wake(waiters);
                    self.work(&shared, shard);
                }
            }
        }
    }

    /// Reports the end of a transfer of a tier's own, and goes on.
    fn report(&self, shared: &Shared, running: Running, result: Result<(), DeviceError>, buffer: Option<Owned>) {
        let shard = match running {
            Running::Load { .. } => return,
            Running::Read { shard, ticket, len } => {
                let bytes = match (&buffer, result) {
                    (Some(buffer), Ok(())) => Ok(Summed::new(&buffer.bytes()[..len])),
                    (None, Ok(())) => Err(DeviceError::Short),
                    (_, Err(error)) => Err(error),
                };
                if let Some(flash) = shared.shards.at(shard).flash() {
                    flash.read(ticket, bytes, clock::now() as u32);
                }
                shard
            }
            Running::Write { shard, ticket } => {
                let now = clock::now() as u32;
                let lost = shared.shards.at(shard).flash().and_then(|flash| flash.written(ticket, result, now));
                if let (Some(path), Err(error)) = (lost.and_then(|file| self.paths.get(usize::from(file))), result) {
                    log::print(given_up(path, error, (shard, shared.shards.count())));
                }
                shard
            }
        };
        self.work(shared, shard);
    }
}

impl Reads for Inner {
    fn files(&self) -> io::Result<Vec<File>> {
        self.files.iter().map(File::try_clone).collect()
    }
    fn kept(&self) -> usize {
        locked(&self.buffers).kept()
    }
    fn begin(&self, loads: &mut Vec<(usize, Load)>) {
        for (shard, load) in loads.drain(..) {
            let into = Box::new(locked(&self.buffers).take(load.area.len as usize));
            let area = load.area;
            Self::begin(self, Running::Load { shard, load }, |token| Transfer::Read { token, area, into });
        }
    }
}

/// The tiers' driver. They end with it: what was not written is lost.
#[derive(Debug)]
pub struct Driver {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

/// Returns the line that says why a shard uses a file no more.
fn given_up(path: &Path, error: DeviceError, (shard, shards): (usize, usize)) -> String {
    let cause = match error {
        DeviceError::Full => "no space left on the device".to_owned(),
        DeviceError::Short => "fewer bytes were written than asked for".to_owned(),
        DeviceError::Silent => "no answer".to_owned(),
        DeviceError::Failed(number) => io::Error::from_raw_os_error(number).to_string(),
    };
    let whose = if shards > 1 { format!(" of shard {shard}") } else { String::new() };
    format!(
        "--flash {}: {WRITE_ERRORS} writes in a row failed: {cause}: its items{whose} are lost, and it gets no others{whose}: \
         replace the device and restart",
        path.display()
    )
}

/// Returns how many transfers may be in progress.
fn depth(settings: &[Settings]) -> u32 {
    let transfers: usize = settings.iter().map(|each| each.loads + each.buffers + 8).sum();
    transfers.min(256) as u32
}

impl Driver {
    /// Makes a ring as [`start`](Self::start) does, and drops it: what would be refused there is refused here.
    ///
    /// # Errors
    ///
    /// [`StartError::Ring`].
    pub fn try_ring(settings: &[Settings]) -> Result<(), StartError> {
        Ring::new(Vec::new(), depth(settings), None).map(drop)
    }

    /// Gives each shard a tier, with what is `kept` for it or empty, and starts. `settings` has one for each shard. Returns also why
    /// what is kept was not used.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start<'a>(
        files: Vec<(PathBuf, File)>,
        settings: Vec<Settings>,
        kept: impl Fn(usize) -> Option<Kept<'a>>,
        shared: &Arc<Shared>,
    ) -> Result<(Self, Option<ManifestError>), StartError> {
        let (sender, events) = channel();
        let (paths, files): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        let inner = Arc::new(Inner {
            disk: RwLock::new(None),
            running: Mutex::default(),
            next: AtomicU64::new(0),
            events: Mutex::new(sender),
            is_told: AtomicBool::new(false),
            buffers: Mutex::default(),
            shared: OnceLock::new(),
            files: files.iter().map(File::try_clone).collect::<io::Result<_>>().map_err(StartError::Thread)?,
            paths,
        });
        let _ = inner.shared.set(Arc::downgrade(shared));
        let depth = depth(&settings);
        let ended = Arc::downgrade(&inner);
        let disk = Disk::start(files, depth, None, move |done| {
            if let Some(inner) = ended.upgrade() {
                inner.end(done);
            }
        })?;
        *inner.disk.write().unwrap_or_else(PoisonError::into_inner) = Some(disk);
        let mut unused = None;
        for (shard, each) in settings.into_iter().enumerate() {
            let bell = Arc::downgrade(&inner);
            let ring = move || {
                if let Some(inner) = bell.upgrade() {
                    inner.tell();
                }
            };
            let attached = shared.shards.at(shard).attach_flash(each, kept(shard), Some(Arc::new(ring)));
            unused = unused.or(attached.err());
        }
        let mut memory = 0;
        shared.shards.each(|store| memory += store.read_memory());
        // One share for each worker, and one here for all connections over fabrics.
        let sharers = shared.settings.threads + usize::from(shared.settings.seats > 0);
        *locked(&inner.buffers) = Buffers::keeping(memory / sharers.max(1));
        // There is one driver for each server.
        let _ = shared.reads.set(inner.clone());
        let (driven, weak) = (inner.clone(), Arc::downgrade(shared));
        let builder = std::thread::Builder::new().name("flash-log".into());
        let thread = builder.spawn(move || driven.run(&weak, &events)).map_err(StartError::Thread)?;
        Ok((Self { inner, thread: Some(thread) }, unused))
    }

    /// Has everything written that is on its way to flash, and nothing after it; returns whether that came to an end in time.
    #[must_use]
    pub fn stop(&self, shared: &Shared, wait: Duration) -> bool {
        shared.shards.each(|store| {
            if let Some(flash) = store.flash() {
                flash.stop();
            }
        });
        let until = Instant::now() + wait;
        loop {
            self.inner.tell();
            let mut is_stopped = true;
            shared.shards.each(|store| is_stopped &= store.flash_tier().is_none_or(Flash::is_stopped));
            if is_stopped || Instant::now() >= until {
                return is_stopped;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the counts of transfers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let disk = self.inner.disk.read().unwrap_or_else(PoisonError::into_inner);
        disk.as_ref().map(Disk::counts).unwrap_or_default()
    }
}

impl Drop for Driver {
    /// Waits until all transfers have ended, if the device answers.
    fn drop(&mut self) {
        let _ = locked(&self.inner.events).send(Event::End);
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
        let disk = self.inner.disk.write().unwrap_or_else(PoisonError::into_inner).take();
        if disk.is_some_and(|disk| !disk.end(END)) {
            log::print(format_args!(
                "--flash: the device has not answered for {END:?}: its last transfers are not waited for"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_lost_file_names_all() {
        let line = given_up(Path::new("/flash/a"), DeviceError::Failed(libc::EIO), (0, 1));
        assert!(line.starts_with("--flash /flash/a: 8 writes in a row failed: Input/output error"), "{line}");
        assert!(line.contains("its items are lost") && line.ends_with("restart"), "{line}");
        let line = given_up(Path::new("/flash/a"), DeviceError::Full, (3, 4));
        assert!(line.contains("no space left") && line.contains("its items of shard 3"), "{line}");
    }
}
