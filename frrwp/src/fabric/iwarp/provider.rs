//! The provider's thread: it serves the peers' accesses to this process's memory, without waking the application.
//!
//! It sleeps on all connections of a domain. A connection with an application that waits, or has posted a read, is
//! *claimed*. The application's thread reads the socket itself, so that an answer costs one wake-up and not two; the
//! provider's thread keeps away. The claim is kept from one wait to the next: to return it and take it again would cost two
//! system calls an operation. The provider looks every millisecond whether the application has come back, and takes claims
//! back that rest.
//!
//! If a domain has one connection, and its peer asks again and again while the application is elsewhere, the thread *stays*
//! at it. It sleeps in the receiving call itself, which saves every second wake-up call. Nothing interrupts that call but
//! bytes and its time-out of a few milliseconds. So an application that wants to wait meanwhile is woken by the provider,
//! which then leaves. A second connection ends the staying, at the latest when the time is over.
//!
//! It attends to connections only as long as they need it. Those expect something of their peers, part, or are held back
//! for guessed tags. Without such connections it sleeps until something comes. So idle connections wake nothing.
//!
//! An application that waits *passively*, or for a [bell](crate::fabric::poller::Bell), claims nothing: the provider's thread reads the socket whatever comes, stays there too,
//! and wakes the application when there is something to be told to it.

use super::IwarpOptions;
use super::common::Common;
use super::connection::{Connection, Core, NAP};
#[cfg(target_os = "linux")]
use crate::fabric::fork_mark::ForkMark;
use rustc_hash::FxHashMap;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a claim rests before it is taken back.
const REST: Duration = Duration::from_millis(1);
/// How often connections are looked through for peers that stand still.
const ROUND: Duration = Duration::from_millis(250);
/// And how often for those that are held back: a token comes in this time.
const HELD: Duration = Duration::from_millis(16);

/// Events of one connection in a row after which the thread stays at it.
const ROW: u32 = 16;
/// How long it sleeps there.
const STAY: Duration = Duration::from_millis(4);

/// The alarm's name among events; connections are counted from 1.
const ALARM: u64 = 0;

/// The state that the threads of a domain share.
pub(super) struct Shared {
    pub(super) common: Arc<Common>,
    poller: OwnedFd,
    /// Wakes the thread.
    alarm: OwnedFd,
    connections: Mutex<FxHashMap<usize, Arc<Connection>>>,
    claims: Mutex<Vec<Arc<Connection>>>,
    /// Connections to be looked after, in the order in which they began to need it.
    attended: Mutex<Attended>,
    /// Times that the thread woke up.
    wakes: AtomicU64,
    numbers: AtomicU64,
    stop: AtomicBool,
}

/// Connections that need to be looked after.
#[derive(Default)]
struct Attended {
    connections: Vec<Arc<Connection>>,
    /// Whether one is held back, so that they are looked at more often.
    held: bool,
}

/// Ends the thread when the last user has gone.
pub(super) struct Provider {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    #[cfg(target_os = "linux")]
    mark: ForkMark,
    #[cfg(not(target_os = "linux"))]
    process: u32,
}

impl Provider {
    /// Returns whether this process, and not its parent, made the domain: a child that was forked has neither the thread
    /// nor any business with the connections.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.mark.is_here();
        #[cfg(not(target_os = "linux"))]
        return self.process == std::process::id();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Provider {
    pub(super) fn new(options: IwarpOptions) -> io::Result<Self> {
        let poller = epoll::create(CreateFlags::CLOEXEC)?;
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&poller, &alarm, EventData::new_u64(ALARM), EventFlags::IN)?;
        let shared = Arc::new(Shared {
            common: Arc::new(Common::new(options)),
            poller,
            alarm,
            connections: Mutex::default(),
            claims: Mutex::default(),
            attended: Mutex::default(),
            wakes: AtomicU64::new(0),
            numbers: AtomicU64::new(1),
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        #[cfg(target_os = "linux")]
        let mark = ForkMark::here()?;
        let thread = mrrc::spawn_own_thread("iwarp", move || theirs.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
            #[cfg(target_os = "linux")]
            mark,
            #[cfg(not(target_os = "linux"))]
            process: std::process::id(),
        })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
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

    /// Times that the thread woke up.
    pub(super) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // Full is as good as woken.
        let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
    }

    /// Begins to serve a connection.
    pub(super) fn add(&self, connection: &Arc<Connection>) -> io::Result<()> {
        let key = connection.number as usize;
        lock(&self.connections).insert(key, Arc::clone(connection));
        let mut core = connection.lock();
        core.watched = EventFlags::IN;
        let data = EventData::new_u64(connection.number);
        let added = epoll::add(&self.poller, &connection.socket, data, EventFlags::IN);
        // Bytes that came with the start frame may have been answered by more than there was room for.
        self.arm(connection, &mut core);
        drop(core);
        if added.is_err() {
            lock(&self.connections).remove(&key);
        }
        Ok(added?)
    }

    /// Ends serving a connection.
    fn remove(&self, connection: &Connection) {
        let _ = epoll::delete(&self.poller, &connection.socket);
        lock(&self.connections).remove(&(connection.number as usize));
    }

    /// The application has let a connection go: it is served until its last words are heard.
    pub(super) fn forget(&self, connection: &Connection) {
        let closed = connection.lock().is_closed();
        if closed {
            self.remove(connection);
        }
    }

    /// Has the poller watch what is to be watched now, and the thread look after the connection if it needs that.
    pub(super) fn arm(&self, connection: &Connection, core: &mut Core) {
        let wanted = if core.claim.held { EventFlags::empty() } else { core.interest() };
        if wanted != core.watched {
            core.watched = wanted;
            let data = EventData::new_u64(connection.number);
            let _ = epoll::modify(&self.poller, &connection.socket, data, wanted);
        }
        if core.needs_attention(self.common.options.stall) && (!core.attended || core.is_held()) {
            self.attend(connection, core);
        }
    }

    fn attend(&self, connection: &Connection, core: &mut Core) {
        let mut attended = lock(&self.attended);
        let is_news = attended.connections.is_empty() || (core.is_held() && !attended.held);
        if !core.attended {
            let Some(connection) = lock(&self.connections).get(&(connection.number as usize)).cloned() else { return };
            core.attended = true;
            attended.connections.push(connection);
        }
        attended.held |= core.is_held();
        drop(attended);
        if is_news {
            self.wake();
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
            self.wake();
        }
    }

    /// The application is not coming back to it.
    pub(super) fn release(&self, connection: &Connection, core: &mut Core) {
        core.claim.held = false;
        self.arm(connection, core);
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(256);
        // The clock is read only while connections are attended to.
        let mut looked = None;
        let mut row = 0;
        while !self.stop.load(Ordering::Acquire) {
            events.clear();
            let resting = !lock(&self.claims).is_empty();
            let (attends, holds) = {
                let attended = lock(&self.attended);
                (!attended.connections.is_empty(), attended.held)
            };
            let round = if holds { HELD } else { ROUND };
            let time = match (resting, attends) {
                (true, _) => Some(REST),
                (false, true) => Some(round),
                (false, false) => None,
            };
            looked = attends.then(|| looked.unwrap_or_else(Instant::now));
            let time = time.map(|time| Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
            let waited = epoll::wait(&self.poller, spare_capacity(&mut events), time.as_ref());
            self.wakes.fetch_add(1, Ordering::Relaxed);
            if waited.is_err_and(|error| error != rustix::io::Errno::INTR) {
                // Nothing but a broken system makes epoll fail; without it nothing can be served.
                std::thread::sleep(REST);
                continue;
            }
            row = if events.len() == 1 { row + 1 } else { 0 };
            for event in &events {
                if event.data.u64() == ALARM {
                    row = 0;
                    let _ = rustix::io::read(&self.alarm, &mut [0; 8]);
                    continue;
                }
                let connection = lock(&self.connections).get(&(event.data.u64() as usize)).cloned();
                if let Some(connection) = connection {
                    self.serve(&connection, event.flags);
                    if row >= ROW {
                        row = 0;
                        self.stay(&connection, looked.unwrap_or_else(Instant::now) + ROUND);
                    }
                }
            }
            if resting {
                self.look_at_claims();
            }
            if looked.is_some_and(|looked| looked.elapsed() >= round) {
                looked = Some(Instant::now());
                self.look_around();
            }
        }
        // A thread that still sleeps on a connection of the domain holds the domain: there is none.
        let connections: Vec<_> = lock(&self.connections).values().cloned().collect();
        connections.iter().for_each(|connection| self.remove(connection));
        lock(&self.claims).clear();
        lock(&self.attended).connections.clear();
    }

    fn serve(&self, connection: &Connection, flags: EventFlags) {
        let mut core = connection.lock();
        if core.claim.held {
            if core.is_closed() {
                // The poller would tell of its end again and again.
                drop(core);
                self.remove(connection);
            }
            return;
        }
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            core.hung_up(connection);
        }
        core.serve(connection);
        self.served(connection, core);
    }

    fn served(&self, connection: &Connection, mut core: MutexGuard<'_, Core>) {
        self.arm(connection, &mut core);
        connection.tell(&mut core);
        let closed = core.is_closed();
        drop(core);
        if closed {
            self.remove(connection);
        }
    }

    /// Sleeps in the receiving call of a connection that is the only one. It ends when nothing comes, the application is
    /// back, or the connections are to be looked through.
    fn stay(&self, connection: &Connection, until: Instant) {
        let may_stay = |core: &mut Core| {
            let is_elsewhere = !std::mem::take(&mut core.claim.active);
            is_elsewhere && !core.claim.held && core.may_sleep() && self.connections() == 1
        };
        let mut core = connection.lock();
        if !may_stay(&mut core) || connection.socket.set_read_timeout(Some(STAY)).is_err() {
            return;
        }
        core.claim.stayed = true;
        drop(core);
        loop {
            let (mut core, came) = connection.sleep();
            connection.tell(&mut core);
            if !came || !may_stay(&mut core) || Instant::now() >= until {
                core.claim.stayed = false;
                let _ = connection.socket.set_read_timeout(Some(NAP));
                connection.left.notify_all();
                return self.served(connection, core);
            }
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
            if std::mem::take(&mut core.claim.active) {
                return true;
            }
            if core.claim.waiting {
                core.claim.parked = true;
                return false;
            }
            self.release(connection, &mut core);
            false
        });
        let kept: Vec<_> = kept.collect();
        lock(&self.claims).extend(kept);
    }

    /// Ends connections with stalled peers, and goes on with those that are held back if it is time. Forgets those that
    /// have ended, or need nothing any more.
    fn look_around(&self) {
        let connections = std::mem::take(&mut *lock(&self.attended)).connections;
        for connection in connections {
            let mut core = connection.lock();
            core.attended = false;
            if !core.claim.held {
                if core.is_held() {
                    core.serve(&connection);
                }
                core.expire(&connection);
                core.send_probe(&connection);
                connection.tell(&mut core);
            }
            // Has it attended to again if it needs that.
            self.arm(&connection, &mut core);
            if core.is_closed() {
                drop(core);
                self.remove(&connection);
            }
        }
    }
}
