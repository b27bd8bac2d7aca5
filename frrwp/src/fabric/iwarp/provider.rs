//! The provider's thread: it serves what peers do to the memory of this process, and nobody's application is woken for it.
//!
//! It sleeps on all connections of a domain. A connection whose application waits is *claimed*: the application's thread
//! reads the socket itself, so that an answer costs one wake-up and not two, and the provider's thread keeps away. The claim
//! is kept from one wait to the next, because to give it back and take it again would cost two system calls an operation; the
//! provider looks every millisecond whether the application has come back, and takes claims back that rest.

use super::IwarpOptions;
use super::connection::{Connection, Core};
use super::guesses::Guesses;
use super::tags::Table;
use polling::{Event, Events, PollMode, Poller};
use rustc_hash::FxHashMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a claim rests before it is taken back.
const REST: Duration = Duration::from_millis(1);
/// How often connections are looked through for peers that stand still.
const ROUND: Duration = Duration::from_millis(250);

/// What the threads of a domain share.
pub(super) struct Shared {
    pub(super) tags: Table,
    pub(super) options: IwarpOptions,
    pub(super) guesses: Guesses,
    poller: Poller,
    connections: Mutex<FxHashMap<usize, Arc<Connection>>>,
    claims: Mutex<Vec<Arc<Connection>>>,
    numbers: AtomicU64,
    stop: AtomicBool,
}

/// Ends the thread when the last user has gone.
pub(super) struct Provider {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Provider {
    pub(super) fn new(options: IwarpOptions) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            tags: Table::new(),
            options,
            guesses: Guesses::default(),
            poller: Poller::new()?,
            connections: Mutex::default(),
            claims: Mutex::default(),
            numbers: AtomicU64::new(1),
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("iwarp".to_owned()).spawn(move || theirs.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.poller.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Connections that are served.
    pub(super) fn connections(&self) -> usize {
        lock(&self.connections).len()
    }

    /// Begins to serve a connection.
    #[expect(unsafe_code, reason = "epoll keeps a descriptor that has to be taken out before it is closed")]
    pub(super) fn add(&self, connection: &Arc<Connection>) -> io::Result<()> {
        let key = connection.number as usize;
        lock(&self.connections).insert(key, Arc::clone(connection));
        let mut core = connection.lock();
        core.armed = (true, false);
        // SAFETY: it is taken out by `remove` before the last holder of the connection, this map, lets it go.
        let added = unsafe { self.poller.add_with_mode(&connection.socket, Event::readable(key), PollMode::Level) };
        drop(core);
        if added.is_err() {
            lock(&self.connections).remove(&key);
        }
        added
    }

    /// Ends serving a connection.
    fn remove(&self, connection: &Connection) {
        let _ = self.poller.delete(&connection.socket);
        lock(&self.connections).remove(&(connection.number as usize));
    }

    /// The application has let a connection go: it is served until its last words are heard.
    pub(super) fn forget(&self, connection: &Connection) {
        let closed = connection.lock().is_closed();
        if closed {
            self.remove(connection);
        }
    }

    /// Has the poller watch what is to be watched now.
    pub(super) fn arm(&self, connection: &Connection, core: &mut Core) {
        let wanted = if core.claim.held { (false, false) } else { core.interest() };
        if wanted != core.armed {
            core.armed = wanted;
            let event = Event::new(connection.number as usize, wanted.0, wanted.1);
            let _ = self.poller.modify_with_mode(&connection.socket, event, PollMode::Level);
        }
    }

    /// The application begins to serve its connection itself.
    pub(super) fn claim(&self, connection: &Arc<Connection>, core: &mut Core) {
        core.claim.held = true;
        core.claim.parked = false;
        self.arm(connection, core);
        let mut claims = lock(&self.claims);
        let is_first = claims.is_empty();
        claims.push(Arc::clone(connection));
        if is_first {
            let _ = self.poller.notify();
        }
    }

    /// The application is not coming back to it.
    pub(super) fn release(&self, connection: &Connection, core: &mut Core) {
        core.claim.held = false;
        self.arm(connection, core);
    }

    fn run(&self) {
        let mut events = Events::with_capacity(NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN));
        let mut looked = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            events.clear();
            let resting = !lock(&self.claims).is_empty();
            if self.poller.wait(&mut events, Some(if resting { REST } else { ROUND })).is_err() {
                // Nothing but a broken system makes epoll fail; without it nothing can be served.
                std::thread::sleep(REST);
                continue;
            }
            for event in events.iter() {
                let connection = lock(&self.connections).get(&event.key).cloned();
                if let Some(connection) = connection {
                    self.serve(&connection);
                }
            }
            if resting {
                self.look_at_claims();
            }
            if looked.elapsed() >= ROUND {
                looked = Instant::now();
                self.look_around();
            }
        }
        // Whoever still sleeps on a connection of the domain holds the domain: there is none.
        let connections: Vec<_> = lock(&self.connections).values().cloned().collect();
        connections.iter().for_each(|connection| self.remove(connection));
        lock(&self.claims).clear();
    }

    fn serve(&self, connection: &Connection) {
        let mut core = connection.lock();
        if core.claim.held {
            return;
        }
        core.serve(connection);
        self.arm(connection, &mut core);
        let closed = core.is_closed();
        drop(core);
        if closed {
            self.remove(connection);
        }
    }

    /// Takes back claims that rest.
    fn look_at_claims(&self) {
        let claims = std::mem::take(&mut *lock(&self.claims));
        let kept = claims.into_iter().filter(|connection| {
            let mut core = connection.lock();
            if !core.claim.held {
                return false;
            }
            if core.claim.waiting {
                core.claim.parked = true;
                return false;
            }
            if std::mem::take(&mut core.claim.active) {
                return true;
            }
            self.release(connection, &mut core);
            false
        });
        let kept: Vec<_> = kept.collect();
        lock(&self.claims).extend(kept);
    }

    /// Ends connections whose peers stand still, and forgets those that have ended.
    fn look_around(&self) {
        let connections: Vec<_> = lock(&self.connections).values().cloned().collect();
        for connection in connections {
            let mut core = connection.lock();
            if !core.claim.held {
                core.expire(&connection);
            }
            if core.is_closed() {
                drop(core);
                self.remove(&connection);
            }
        }
    }
}
