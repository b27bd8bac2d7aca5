//! One thread, or one task, that moves the transfers of many connections on.

use super::Connection;
use crate::fabric::Endpoint;
use crate::fabric::poller::Poller;
use rustc_hash::FxHashMap;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Looks at connections in one turn beside one for each.
const MORE: usize = 64;

/// Moves the transfers of many connections on as the network has news of them, and wakes their futures. It has references to them, or
/// shares them: `Driver<&Connection<…>>`, `Driver<Arc<Connection<…>>>`.
///
/// Its [descriptor](AsFd) is readable when there is something for [`Driver::turn`]; a thread without an event loop calls
/// [`Driver::run`].
///
/// A driver that is dropped ends its connections, and waits until they are flushed: nothing else moves them on. So their futures
/// end, with errors that say that the connection is lost. One that a child of a fork drops is a copy: it ends nothing.
pub struct Driver<T> {
    connections: FxHashMap<u64, T>,
    poller: Poller,
    /// Ends the connections.
    end: fn(&mut Self),
    /// Which made it: a child that was forked has a copy, and what it waits by is its parent's too.
    process: u32,
}

impl<'cache, E: Endpoint + 'cache, T: Deref<Target = Connection<'cache, E>>> Driver<T> {
    /// Makes one without connections. It holds three descriptors.
    ///
    /// # Errors
    /// The system's: no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let poller = Poller::new()?;
        Ok(Self { connections: FxHashMap::default(), poller, end: Self::end, process: std::process::id() })
    }

    /// Adds a connection, until it has come to its end.
    ///
    /// # Errors
    /// The system's; that the endpoint can only be waited for alone; and that something else waits for the connection already.
    pub fn add(&mut self, connection: T) -> io::Result<()> {
        let name = connection.join(&self.poller)?;
        self.connections.insert(name, connection);
        Ok(())
    }

    /// Moves those connections on that have news, and lets go of those that have come to their end. Does not sleep. True if some
    /// have news still: call it again, when others have had their turn; the descriptor stays readable.
    pub fn turn(&mut self) -> bool {
        self.poller.wait(Some(Duration::ZERO));
        for _ in 0..self.connections.len() + MORE {
            let Some(name) = self.poller.next() else { return false };
            let Some(connection) = self.connections.get(&name) else { continue };
            connection.progress();
            if connection.is_closed() {
                drop(self.connections.remove(&name));
            }
        }
        self.poller.leave();
        true
    }

    /// Sleeps until some connection has news, for ever, or so long at most.
    pub fn wait(&mut self, within: Option<Duration>) {
        self.poller.wait(within);
    }

    /// Moves connections on until all have come to their ends.
    pub fn run(&mut self) {
        while !self.connections.is_empty() {
            if !self.turn() && !self.connections.is_empty() {
                self.wait(None);
            }
        }
    }

    fn end(&mut self) {
        self.connections.values().for_each(|connection| connection.disconnect());
        self.run();
    }

    /// Returns how many connections it has.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            (self.end)(self);
        }
    }
}

impl<T> AsFd for Driver<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl<T> fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("connections", &self.connections.len()).finish_non_exhaustive()
    }
}
