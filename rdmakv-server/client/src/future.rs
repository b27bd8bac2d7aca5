//! Operations as futures, without a runtime and without a thread.
//!
//! A poll of one future moves all of them on, and the others are woken as their ends come. Something has to poll when the network has
//! news: [`AsyncClient::block_on`] sleeps until then. Under a runtime give the client a thread of its own that blocks, or call
//! [`AsyncClient::progress`] as often as news may wait, and at [`AsyncClient::next_deadline`]. A dropped future gives up its outcome:
//! the operation is done all the same.
//!
//! ```no_run
//! use rdmakv_client::{Client, future::AsyncClient};
//!
//! let client = AsyncClient::new(Client::new(["shm:@rdmakv-11211,127.0.0.1:11211"])?);
//! let (a, b) = client.block_on(async {
//!     let stored = client.set("a", vec![1, 2, 3], ()).await?;
//!     assert!(stored.is_stored());
//!     // Both are on their way before either is waited for.
//!     let (a, b) = (client.get("a"), client.get("b"));
//!     Ok::<_, rdmakv_client::Error>((a.await?, b.await?))
//! })?;
//! assert!(a.is_some() && b.is_none());
//! # Ok::<(), rdmakv_client::Error>(())
//! ```

use super::command::{Arguments, Expire, Terms};
use super::error::{Error, Operation};
use super::ticket::{Outcome, Ticket};
use super::{Client, Data, Stored, Value, until};
use frrwp::engine::future::block_on;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A client with futures for operations.
///
/// A waker is woken, and dropped, while nothing is borrowed: the task that goes with it may ask at once.
pub struct AsyncClient(RefCell<Client>);

impl AsyncClient {
    /// This client's operations as futures.
    pub fn new(client: Client) -> Self {
        Self(RefCell::new(client))
    }

    /// Returns the client again. Operations with unfinished futures go on there.
    pub fn into_inner(self) -> Client {
        self.0.into_inner()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Reply<'_, Option<Value>> {
        self.begin((Operation::Get, key.as_ref()), Arguments::default(), Data::None)
    }

    /// Stores a value, whatever was there.
    pub fn set(&self, key: impl AsRef<[u8]>, data: impl Into<Data>, terms: impl Into<Terms>) -> Reply<'_, Stored> {
        self.store(Operation::Set, key.as_ref(), data.into(), terms.into(), 0)
    }

    /// Stores a value where there is none.
    pub fn add(&self, key: impl AsRef<[u8]>, data: impl Into<Data>, terms: impl Into<Terms>) -> Reply<'_, Stored> {
        self.store(Operation::Add, key.as_ref(), data.into(), terms.into(), 0)
    }

    /// Stores a value where there is one.
    pub fn replace(&self, key: impl AsRef<[u8]>, data: impl Into<Data>, terms: impl Into<Terms>) -> Reply<'_, Stored> {
        self.store(Operation::Replace, key.as_ref(), data.into(), terms.into(), 0)
    }

    /// Stores a value if the one that is there still has this version.
    pub fn cas(
        &self,
        key: impl AsRef<[u8]>,
        data: impl Into<Data>,
        version: u64,
        terms: impl Into<Terms>,
    ) -> Reply<'_, Stored> {
        self.store(Operation::Cas, key.as_ref(), data.into(), terms.into(), version)
    }

    /// Takes a value away. Whether there was one.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Reply<'_, bool> {
        self.begin((Operation::Delete, key.as_ref()), Arguments::default(), Data::None)
    }

    /// Changes when a value ends. Whether there was one.
    pub fn touch(&self, key: impl AsRef<[u8]>, expire: impl Into<Expire>) -> Reply<'_, bool> {
        self.begin((Operation::Touch, key.as_ref()), until(expire), Data::None)
    }

    /// Returns the value of a key, and changes its end.
    pub fn gat(&self, key: impl AsRef<[u8]>, expire: impl Into<Expire>) -> Reply<'_, Option<Value>> {
        self.begin((Operation::Gat, key.as_ref()), until(expire), Data::None)
    }

    /// Adds to a decimal number.
    pub fn incr(&self, key: impl AsRef<[u8]>, by: u64) -> Reply<'_, Option<u64>> {
        self.begin((Operation::Incr, key.as_ref()), Arguments { number: by, ..Arguments::default() }, Data::None)
    }

    /// Takes from a decimal number.
    pub fn decr(&self, key: impl AsRef<[u8]>, by: u64) -> Reply<'_, Option<u64>> {
        self.begin((Operation::Decr, key.as_ref()), Arguments { number: by, ..Arguments::default() }, Data::None)
    }

    fn store(&self, operation: Operation, key: &[u8], data: Data, terms: Terms, version: u64) -> Reply<'_, Stored> {
        self.begin((operation, key), Arguments { terms, version, ..Arguments::default() }, data)
    }

    fn begin<T: Outcome>(&self, what: (Operation, &[u8]), arguments: Arguments, data: Data) -> Reply<'_, T> {
        let begun = self.0.borrow_mut().ticket(what, arguments, data);
        self.wake();
        Reply { client: self, begun: Some(begun) }
    }

    /// Does all that can be done now, and wakes the tasks that it concerns.
    pub fn progress(&self) {
        self.0.borrow_mut().move_on();
        self.wake();
    }

    fn wake(&self) {
        let woken = self.0.borrow_mut().common.ops.woken();
        // A waker may poll at once.
        woken.into_iter().for_each(Waker::wake);
    }

    /// When [`AsyncClient::progress`] has something to do though nothing comes.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.0.borrow_mut().next_deadline()
    }

    /// Runs a future, sleeping until there is news where it waits. Its event has to come by this client.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(future, || {
            self.0.borrow_mut().wait_for_news(Duration::from_secs(1));
            self.progress();
        })
    }
}

impl fmt::Debug for AsyncClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncClient").finish_non_exhaustive()
    }
}

/// An operation on its way.
#[must_use = "its outcome is nobody's if it is dropped"]
pub struct Reply<'a, T> {
    client: &'a AsyncClient,
    begun: Option<Result<Ticket<T>, Error>>,
}

impl<T> fmt::Debug for Reply<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("is_begun", &matches!(self.begun, Some(Ok(_)))).finish_non_exhaustive()
    }
}

impl<T> Unpin for Reply<'_, T> {}

impl<T: Outcome> Future for Reply<'_, T> {
    type Output = Result<T, Error>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = match self.begun.take().expect("a future is not polled after it was ready") {
            Ok(ticket) => ticket,
            Err(error) => return Poll::Ready(Err(error)),
        };
        self.client.progress();
        let waker = context.waker().clone();
        let mut client = self.client.0.borrow_mut();
        match client.common.ops.unanswered(ticket.name) {
            None => Poll::Ready(client.wait(ticket)),
            Some(op) => {
                let before = op.waker.replace(waker);
                drop(client);
                drop(before);
                self.begun = Some(Ok(ticket));
                Poll::Pending
            }
        }
    }
}
