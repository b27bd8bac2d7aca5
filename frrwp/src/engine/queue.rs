//! One completion queue for many connections.
//!
//! A [`CompletionQueue`] owns engines and returns their events, of whichever connection has some. One thread sleeps for all
//! of them, and wakes up for those that have news. Its work depends on the number of those, not on the number of
//! connections. Its descriptor can be watched by any other loop. Connections that are idle cost a descriptor each, or two
//! over `shm`, and nothing else.
//!
//! Over `iwarp` the domain's thread serves the sockets of its connections, and tells the queue when there is something for
//! the application. So a queue is not woken for reads and writes of its peers.
//!
//! ```
//! use frrwp::engine::queue::CompletionQueue;
//! use frrwp::engine::{Engine, Event};
//! use frrwp::fabric::{connect, listen};
//! use frrwp::handshake::{Limits, RECEIVES, Side};
//! use mrrc::Cache;
//! use std::time::Duration;
//!
//! let mut listener = listen("iwarp:127.0.0.1:0")?;
//! let served = Cache::builder(listener.domain().clone()).build()?;
//! let mut queue = CompletionQueue::new()?;
//! let clients = [1, 2, 3].map(|client: u8| {
//!     let address = listener.address();
//!     std::thread::spawn(move || {
//!         let (domain, endpoint) = connect(&address, RECEIVES, Duration::from_secs(5)).expect("the server listens");
//!         let cache = Cache::builder(domain).build().expect("a cache");
//!         let mut engine = Engine::new(&cache, endpoint, Side::Connecting, Limits::default());
//!         engine.send_message(&[client]).expect("there is room");
//!         while !matches!(engine.run(), Some(Event::Message) | None) {}
//!     })
//! });
//! for _ in &clients {
//!     let endpoint = listener.accept(RECEIVES, None)?;
//!     queue.add(Engine::new(&served, endpoint, Side::Accepting, Limits::default()))?;
//! }
//! let (mut sum, mut message) = (0, Vec::new());
//! while !queue.is_empty() {
//!     match queue.run() {
//!         Some((connection, Event::Message)) => {
//!             let engine = queue.engine(connection).expect("it is there");
//!             while engine.recv_message(&mut message) {
//!                 sum += u32::from(message[0]);
//!             }
//!             engine.send_message(b"thanks")?;
//!         }
//!         Some((connection, Event::Closed { .. })) => assert!(queue.remove(connection)),
//!         _ => {}
//!     }
//! }
//! assert_eq!(sum, 6);
//! # clients.into_iter().for_each(|client| client.join().unwrap());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{Engine, Event};
use crate::fabric::Endpoint;
use crate::fabric::poller::{Poller, PollerCounters};
use rustc_hash::FxHashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Looks at connections, beside one for each, before the caller has its turn though there was no event.
const MORE: usize = 64;

/// A connection of a queue. No two connections of a queue have the same name, one after the other neither.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnectionId(u64);

/// The events of many connections.
pub struct CompletionQueue<'cache, E: Endpoint> {
    /// Dropped before their poller.
    engines: FxHashMap<u64, Engine<'cache, E>>,
    /// The connection of the current events.
    current: Option<u64>,
    /// The one that the application has in its hands: it may have posted something.
    lent: Option<u64>,
    looks: u64,
    poller: Poller,
}

impl<'cache, E: Endpoint> CompletionQueue<'cache, E> {
    /// Makes an empty queue. It holds three descriptors.
    ///
    /// # Errors
    /// The system's: no descriptors are left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { engines: FxHashMap::default(), current: None, lent: None, looks: 0, poller: Poller::new()? })
    }

    /// Adds a connection.
    ///
    /// # Errors
    /// The system's, and that an endpoint can only be waited for alone ([`Endpoint::attach`]); the connection is dropped.
    pub fn add(&mut self, mut engine: Engine<'cache, E>) -> io::Result<ConnectionId> {
        let bell = self.poller.bell();
        engine.attach(&bell)?;
        self.engines.insert(bell.name(), engine);
        Ok(ConnectionId(bell.name()))
    }

    /// Takes a connection out and ends it, as dropping its engine does. False if it is not there.
    pub fn remove(&mut self, connection: ConnectionId) -> bool {
        self.current.take_if(|current| *current == connection.0);
        self.lent.take_if(|lent| *lent == connection.0);
        self.engines.remove(&connection.0).is_some()
    }

    /// Returns a connection's engine, to post and to answer with. Its events are told by the queue.
    pub fn engine(&mut self, connection: ConnectionId) -> Option<&mut Engine<'cache, E>> {
        self.give_back();
        let engine = self.engines.get_mut(&connection.0)?;
        self.lent = Some(connection.0);
        Some(engine)
    }

    /// Returns the next event, of whichever connection has one, or None if there are none now. It also returns None when
    /// connections that have news and no events have had their turns; then [`CompletionQueue::wait`] does not sleep.
    pub fn next_event(&mut self) -> Option<(ConnectionId, Event)> {
        self.give_back();
        let mut left = self.engines.len() + MORE;
        loop {
            if let Some(current) = self.current
                && let Some(engine) = self.engines.get_mut(&current)
            {
                if let Some(event) = engine.next_event() {
                    return Some((ConnectionId(current), event));
                }
                engine.arm();
            }
            if left == 0 {
                self.current = None;
                self.poller.leave();
                return None;
            }
            left -= 1;
            self.current = self.poller.next();
            self.looks += u64::from(self.current.is_some());
            let engine = self.engines.get_mut(&self.current?);
            engine.into_iter().for_each(Engine::progress);
        }
    }

    /// Sleeps until there may be an event, for ever or at most this long. A time of zero does not sleep: it is for when the
    /// descriptor is readable.
    pub fn wait(&mut self, within: Option<Duration>) {
        self.give_back();
        if self.current.is_none() {
            self.poller.wait(within);
        }
    }

    /// Waits for the next event. Returns None if there are no connections.
    pub fn run(&mut self) -> Option<(ConnectionId, Event)> {
        loop {
            if let Some(event) = self.next_event() {
                return Some(event);
            }
            if self.engines.is_empty() {
                return None;
            }
            self.poller.wait(None);
        }
    }

    /// The application's posts may have their ends already, and their times.
    fn give_back(&mut self) {
        if let Some(lent) = self.lent.take()
            && self.current != Some(lent)
            && let Some(engine) = self.engines.get_mut(&lent)
        {
            engine.arm();
        }
    }

    /// Returns whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.engines.is_empty()
    }

    /// Returns how many connections there are.
    pub fn len(&self) -> usize {
        self.engines.len()
    }

    /// Returns how often a connection was looked at because it had news, or might have some.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Returns what the poller has done.
    pub fn counters(&self) -> PollerCounters {
        self.poller.counters()
    }
}

impl<E: Endpoint> AsFd for CompletionQueue<'_, E> {
    /// Returns a descriptor that is readable when [`CompletionQueue::next_event`] may have something, after it
    /// returned none. Then call [`CompletionQueue::wait`] with a time of zero.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl<E: Endpoint> fmt::Debug for CompletionQueue<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("connections", &self.engines.len()).finish_non_exhaustive()
    }
}
