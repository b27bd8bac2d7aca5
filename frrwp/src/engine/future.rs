//! Operations as futures that own their buffers.
//!
//! [`Connection`] takes a [`Buffer`] with each call, which is any memory that can be registered, and hands it back with the
//! result. In between it belongs to the engine. A future that is dropped cancels its operation. Its buffer stays until the
//! peer can no longer write to it. So nothing that safe code does to a future frees memory under a peer.
//!
//! There is a future for each operation: transfers ([`open_write`](Connection::open_write), [`open_read`](Connection::open_read),
//! [`accept_write`](Connection::accept_write), [`accept_read`](Connection::accept_read)), one-sided reads ([`read_remote`](Connection::read_remote)), messages
//! ([`send_message`](Connection::send_message), [`recv_message`](Connection::recv_message)), and what the peer opens ([`requested`](Connection::requested)). They are `Send` where
//! the endpoint is, and any executor polls them. A poll of one moves all of the connection on, and the others are woken as their
//! ends come.
//!
//! # How futures hear of the network
//!
//! * [`Connection::block_on`]: the thread that waits for one connection, or several threads for the same.
//! * [`Driver`]: one thread, or one task, for many connections, which end when it is dropped. It has one descriptor, for any event loop: under tokio an
//!   `AsyncFd` around the driver, and a task that loops over `readable`, `clear_ready` and [`Driver::turn`].
//!
//! # Deadlines
//!
//! Each operation has the time that the [limits](crate::handshake::Limits) say. `within` gives it another one:
//! [`Transfer::within`], [`RemoteRead::within`], [`SendMessage::within`]. An operation that is out of time is ready at
//! once. If the fabric may still use its buffer, the engine keeps that, and drops it when it is free.
//!
//! ```
//! use frrwp::engine::Engine;
//! use frrwp::engine::future::Connection;
//! use frrwp::fabric::sim::{Costs, Faults, Network};
//! use frrwp::handshake::{Limits, RECEIVES, Side};
//! use mrrc::Cache;
//! use mrrc::invalidation::Explicit;
//!
//! let network = Network::new(1, Costs::default(), Faults::default());
//! let nodes = [network.node(), network.node()];
//! let cache = |node: usize| Cache::builder(nodes[node].domain()).monitor(Explicit).build();
//! let caches = [cache(0)?, cache(1)?];
//! let [one, other] = network.connect(&nodes[0], &nodes[1], RECEIVES);
//! // The buffers are not given back to the system while the caches live.
//! let client = Engine::new(&caches[0], one, Side::Connecting, Limits::default());
//! let server = Engine::new(&caches[1], other, Side::Accepting, Limits::default());
//! let (client, server) = unsafe { (Connection::new(client), Connection::new(server)) };
//!
//! // Here one thread plays both sides: the client's write is on its way from the call on.
//! let written = client.open_write(vec![7; 1000], b"a key")?;
//! let (stored, written) = client.block_on(async {
//!     let asked = server.requested().await.expect("the connection stands");
//!     assert_eq!((asked.length, &asked.header[..]), (1000, &b"a key"[..]));
//!     let stored = server.accept_write(asked.tag, vec![0; 1000]).expect("it is open");
//!     // The client first: it is polled while the server's future is not.
//!     let written = written.await;
//!     (stored.await, written)
//! });
//! assert_eq!(written.result?, 1000);
//! assert_eq!((stored.result?, stored.buffer), (1000, written.buffer));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![expect(unsafe_code, reason = "hands buffers that it owns to the engine, by address")]

mod block_on;
mod buffer;
mod driver;
mod messages;
mod remote_reads;
mod table;
mod times;
mod waits;

pub use block_on::block_on;
pub use buffer::Buffer;
pub use driver::Driver;
pub use messages::SendMessage;
pub use remote_reads::{ReadError, RemoteRead};

use super::{Engine, Event, OpenError, TransferError};
use crate::fabric::Endpoint;
use crate::fabric::poller::{Bell, Poller};
use crate::handshake::{Expired, Failure, Operation, Refusal, Tag};
use crate::wire::Segment;
use block_on::Sleepers;
use messages::{Outgoing, ReceiveMessage};
use remote_reads::Reads;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use table::Table;
use times::Times;
use waits::{Turn, Waits};

/// The operations of one connection, as futures.
///
/// A waker or a buffer is dropped, and a waker woken, without the lock: the task that goes with it may hold transfers itself.
pub struct Connection<'cache, E: Endpoint> {
    inner: Mutex<Inner<'cache, E>>,
    sleepers: Arc<Sleepers>,
}

struct Inner<'cache, E: Endpoint> {
    /// Dropped first: the buffers outlive its connection.
    engine: Engine<'cache, E>,
    open: Table<Tag, TransferError>,
    reads: Reads,
    outgoing: Outgoing,
    requests: VecDeque<Requested>,
    /// Futures that wait to be asked, and those that wait to hear something.
    asking: Waits,
    receiving: Waits,
    next_name: u64,
    /// When the time of reads and messages is over that wait for room.
    times: Times,
    closed: bool,
    /// The bell of this connection, where this side sleeps for it alone.
    bell: Option<Bell>,
    poller: Option<Arc<Poller>>,
}

/// A buffer of any type, which does not move while it is lent.
type Held = Box<dyn Any + Send>;

/// How often a connection is looked at that nothing rings for.
const LOOK: Duration = Duration::from_millis(1);

const TWICE: &str = "a future is not polled after it was ready";

/// The wakers and buffers to wake or drop when the lock is not held any more.
#[derive(Default)]
struct Loose {
    woken: Vec<Waker>,
    wakers: Vec<Waker>,
    buffers: Vec<Held>,
}

/// The peer opens a transfer; answer with [`Connection::accept_write`], [`Connection::accept_read`] or [`Connection::refuse`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requested {
    /// The transfer.
    pub tag: Tag,
    /// Whether the peer wants bytes.
    pub read: bool,
    /// The length that it writes, or the most that it accepts.
    pub length: u64,
    /// Its application's header.
    pub header: Vec<u8>,
}

/// A call that came to nothing, and its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unopened<T, B = Vec<u8>> {
    /// Why.
    #[source]
    pub error: T,
    /// As it was.
    pub buffer: B,
}

/// How an operation ended.
#[derive(Debug)]
pub struct Finished<B = Vec<u8>, X = TransferError> {
    /// The caller's again. The bytes of a failed read or accepted write are undefined, though they are bytes. None if the
    /// fabric, or the peer, may still use it. After an operation out of time, the engine drops it when it is free. After
    /// [`TransferError::Quarantined`] nothing does.
    pub buffer: Option<B>,
    /// Bytes moved.
    pub result: Result<u64, X>,
}

impl<'cache, E: Endpoint> Connection<'cache, E> {
    /// # Safety
    /// As long as the engine's cache is used, no memory of dropped buffers is given back to the system unless its
    /// [monitor](mrrc::invalidation) hears of it. That is the second half of the contract of [`mrrc::Cache::acquire`]. Of
    /// buffers from the global allocator that is what the allocator gives back. The first half is kept here.
    ///
    /// A key may open memory that is registered for longer than its transfer. Then the peer is
    /// [trusted](crate#peers-that-are-not-trusted) with that memory: the bytes beside a buffer, and later content in its
    /// place.
    pub unsafe fn new(engine: Engine<'cache, E>) -> Self {
        let inner = Inner {
            engine,
            open: Table::default(),
            reads: Reads::default(),
            outgoing: Outgoing::default(),
            requests: VecDeque::new(),
            asking: Waits::default(),
            receiving: Waits::default(),
            next_name: 0,
            times: Times::default(),
            closed: false,
            bell: None,
            poller: None,
        };
        Self { inner: Mutex::new(inner), sleepers: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<'cache, E>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something under the lock. Wakers and buffers that it leaves are woken and dropped afterwards.
    fn with<T>(&self, act: impl FnOnce(&mut Inner<'cache, E>, &mut Loose) -> T) -> T {
        let mut loose = Loose::default();
        let mut inner = self.lock();
        let result = act(&mut inner, &mut loose);
        let next = inner.times.first();
        inner.engine.arm_until(next);
        drop(inner);
        wake(loose.woken);
        result
    }

    /// Writes the buffer to the peer.
    ///
    /// # Errors
    /// As [`Engine::open_write`].
    pub fn open_write<B: Buffer>(
        &self,
        buffer: B,
        header: &[u8],
    ) -> Result<Transfer<'_, 'cache, E, B>, Unopened<OpenError, B>> {
        // SAFETY: the buffer is in the table, where it does not move, until its end is told; and of its type, what `Buffer` has.
        self.lend(buffer, |engine, at, length| unsafe { engine.open_write(at, length, header) })
    }

    /// Reads as many bytes as the buffer is long, at most.
    ///
    /// # Errors
    /// As [`Engine::open_read`].
    pub fn open_read<B: Buffer>(
        &self,
        buffer: B,
        header: &[u8],
    ) -> Result<Transfer<'_, 'cache, E, B>, Unopened<OpenError, B>> {
        // SAFETY: as for a write, the buffer is in the table until its end is told.
        self.lend(buffer, |engine, at, length| unsafe { engine.open_read(at, length, header) })
    }

    /// Takes what the peer writes into the buffer.
    ///
    /// # Errors
    /// As [`Engine::accept_write`].
    pub fn accept_write<B: Buffer>(
        &self,
        tag: Tag,
        buffer: B,
    ) -> Result<Transfer<'_, 'cache, E, B>, Unopened<Refusal, B>> {
        // SAFETY: as for a write, the buffer is in the table until its end is told.
        self.lend(buffer, |engine, at, length| unsafe { engine.accept_write(tag, at, length) }.map(|()| tag))
    }

    /// Gives the peer the bytes of the buffer.
    ///
    /// # Errors
    /// As [`Engine::accept_read`].
    pub fn accept_read<B: Buffer>(
        &self,
        tag: Tag,
        buffer: B,
    ) -> Result<Transfer<'_, 'cache, E, B>, Unopened<Refusal, B>> {
        // SAFETY: as for a write, the buffer is in the table until its end is told.
        self.lend(buffer, |engine, at, length| unsafe { engine.accept_read(tag, at, length) }.map(|()| tag))
    }

    /// Does not want what the peer asks for.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn refuse(&self, tag: Tag) -> Result<(), Refusal> {
        self.with(|inner, _| inner.engine.refuse(tag))
    }

    fn lend<T, B: Buffer>(
        &self,
        buffer: B,
        call: impl FnOnce(&mut Engine<'cache, E>, *mut u8, usize) -> Result<Tag, T>,
    ) -> Result<Transfer<'_, 'cache, E, B>, Unopened<T, B>> {
        // Where it is from now on: an address may be good no longer than its owner stays in its place.
        let mut buffer = Box::new(buffer);
        let (at, length) = (buffer.start(), buffer.len());
        self.with(|inner, _| match call(&mut inner.engine, at, length) {
            Ok(tag) => {
                inner.open.insert(tag, buffer, None);
                Ok(Transfer { connection: self, tag, buffer: PhantomData })
            }
            Err(error) => Err(Unopened { error, buffer: *buffer }),
        })
    }

    /// Reads memory of the peer's into the buffer, as many bytes as the segment has: see
    /// [`Engine::read_remote`](crate::engine::Engine::read_remote). Where the fabric is busy it waits for room; reads that wait are posted in the
    /// order in which they came.
    pub fn read_remote<B: Buffer>(&self, buffer: B, from: Segment) -> RemoteRead<'_, 'cache, E, B> {
        RemoteRead::new(self, buffer, from)
    }

    /// Says something to the peer's application, as soon as there is room: see [`Engine::send_message`](crate::engine::Engine::send_message). It is
    /// ready when it was handed to the fabric. Those that wait for room are said in the order in which they were first polled.
    pub fn send_message<'a>(&'a self, bytes: &'a [u8]) -> SendMessage<'a, 'cache, E> {
        let since = self.lock().engine.endpoint().now();
        SendMessage::new(self, bytes, since)
    }

    /// Returns the peer application's next message; `None` once the connection has come to its end and all was taken. If
    /// several wait, one is woken.
    pub fn recv_message<'a>(&'a self) -> impl Future<Output = Option<Vec<u8>>> + use<'a, 'cache, E> {
        ReceiveMessage::new(self)
    }

    /// Returns the next transfer that the peer opens; `None` once the connection has come to its end. If several wait, one
    /// is woken.
    pub fn requested(&self) -> impl Future<Output = Option<Requested>> {
        NextRequest { connection: self, turn: Turn::default() }
    }

    /// Does all that can be done now, and wakes the tasks that it concerns.
    pub fn progress(&self) {
        self.with(|inner, loose| {
            inner.engine.progress();
            while let Some(event) = inner.engine.next_event() {
                inner.happened(event, loose);
            }
            inner.look_at_messages(loose);
            inner.expire(loose);
        });
    }

    /// When [`Connection::progress`] has something to do though nothing comes.
    pub fn next_deadline(&self) -> Option<u64> {
        let inner = self.lock();
        let first = inner.times.first();
        inner.engine.next_deadline().into_iter().chain(first).min()
    }

    /// Ends the connection.
    pub fn disconnect(&self) {
        self.with(|inner, _| inner.engine.disconnect());
    }

    /// Returns whether the connection has come to its end.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Returns the number of operations with buffers here: open ones, and reads that wait for room. Those that have ended
    /// and were not polled since count, and dropped or overdue ones that still wait for the peer.
    pub fn held(&self) -> usize {
        let inner = self.lock();
        inner.open.len() + inner.reads.held()
    }

    /// Runs a future, and sleeps where it waits: for this connection, and for whatever wakes the future. Several threads may do so
    /// at a time. Where a [`Driver`] has the connection, it sleeps until that wakes it.
    ///
    /// It needs three descriptors. While there are none it looks at the connection every millisecond.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            match self.bell() {
                Ok((bell, poller)) => {
                    return self.sleepers.run(future, &bell, poller.as_deref(), || self.progress());
                }
                // An endpoint that can only be waited for alone.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    return block_on(future, || self.wait_alone(None));
                }
                // No descriptors are left.
                Err(_) => {
                    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        return output;
                    }
                    // Others need the lock.
                    std::thread::sleep(LOOK);
                    self.wait_alone(Some(LOOK));
                }
            }
        }
    }

    /// Waits under the lock, for so long at most.
    fn wait_alone(&self, longest: Option<Duration>) {
        let mut inner = self.lock();
        let times = inner.times.first().into_iter();
        let until = times.chain(longest.map(|longest| inner.after(longest))).min();
        inner.engine.wait_until(until);
        drop(inner);
        self.progress();
    }

    /// Returns the bell of this connection; and the poller, if nothing else waits for it.
    fn bell(&self) -> io::Result<(Bell, Option<Arc<Poller>>)> {
        let mut inner = self.lock();
        if inner.bell.is_none() {
            let poller = Arc::new(Poller::new()?);
            inner.attach(&poller)?;
            inner.poller = Some(poller);
        }
        let bell = inner.bell.clone().ok_or(io::ErrorKind::Unsupported)?;
        Ok((bell, inner.poller.clone()))
    }

    /// Joins a driver. The name of its bell.
    fn join(&self, poller: &Poller) -> io::Result<u64> {
        let mut inner = self.lock();
        if inner.bell.is_some() {
            let text = "these transfers are waited for already: add them to one driver, before block_on";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        inner.attach(poller)
    }
}

/// Wakes them, also where one panics: that is passed on when all are. A waker may poll at once.
fn wake(woken: Vec<Waker>) {
    let mut panicked = None;
    for waker in woken {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            panicked.get_or_insert(panic);
        }
    }
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}

impl<E: Endpoint> fmt::Debug for Connection<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Connection");
        // The printing thread may have been called with it in use.
        if let Ok(inner) = self.inner.try_lock() {
            shown.field("engine", &inner.engine).field("held", &inner.open.len());
        }
        shown.finish_non_exhaustive()
    }
}

/// Waits to be asked.
struct NextRequest<'a, 'cache, E: Endpoint> {
    connection: &'a Connection<'cache, E>,
    turn: Turn,
}

impl<E: Endpoint> Future for NextRequest<'_, '_, E> {
    type Output = Option<Requested>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Requested>> {
        self.connection.progress();
        let waker = context.waker().clone();
        self.connection.with(|inner, loose| {
            inner.asking.look(std::mem::take(&mut self.turn), loose);
            if let Some(asked) = inner.requests.pop_front() {
                return Poll::Ready(Some(asked));
            }
            if inner.closed {
                return Poll::Ready(None);
            }
            self.turn = inner.asking.wait(waker);
            Poll::Pending
        })
    }
}

impl<E: Endpoint> Drop for NextRequest<'_, '_, E> {
    fn drop(&mut self) {
        self.connection.with(|inner, loose| inner.asking.leave(self.turn, loose));
    }
}

impl<'cache, E: Endpoint> Inner<'cache, E> {
    fn name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }

    fn attach(&mut self, poller: &Poller) -> io::Result<u64> {
        let bell = poller.bell();
        self.engine.attach(&bell)?;
        let name = bell.name();
        self.bell = Some(bell);
        Ok(name)
    }

    /// Returns a time from now, on the clock of the endpoint.
    fn after(&self, time: Duration) -> u64 {
        self.engine.endpoint().now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Posts as many of the reads that wait as there is room for.
    fn post_waiting(&mut self, loose: &mut Loose) {
        self.reads.post_waiting(&mut self.engine, &mut self.times, loose);
    }

    /// Sends as many of the messages that wait as there is room for.
    fn send_waiting(&mut self, loose: &mut Loose) {
        self.outgoing.send_waiting(&mut self.engine, &mut self.times, loose);
    }

    /// Sees which messages have left the engine, which has room for others then.
    fn look_at_messages(&mut self, loose: &mut Loose) {
        self.outgoing.look(&mut self.engine, &mut self.times, self.closed, loose);
    }

    fn happened(&mut self, event: Event, loose: &mut Loose) {
        match event {
            Event::Requested { tag, read, length } => {
                // One that has ended meanwhile is not asked any more.
                if let Some(header) = self.engine.header(tag) {
                    self.requests.push_back(Requested { tag, read, length, header: header.to_vec() });
                    self.asking.came(loose);
                }
            }
            // The application of the traditional process; where it has ended meanwhile, its end comes.
            Event::KeysCame { tag } => drop(self.engine.submit(tag)),
            Event::Completed { tag, result } => {
                self.requests.retain(|asked| asked.tag != tag);
                let held = matches!(result, Err(TransferError::Quarantined { .. }));
                self.open.ended(tag, result, held, loose);
            }
            Event::ReadCompleted { id, succeeded } => {
                self.reads.ended(id, succeeded, loose);
                self.post_waiting(loose);
            }
            // Nothing here begins a one-sided write.
            Event::WriteCompleted { .. } => {}
            Event::Expired(expired) => self.expired(expired, loose),
            Event::Message => self.receiving.came(loose),
            Event::Writable | Event::PeerTooOld { .. } => {
                self.post_waiting(loose);
                self.send_waiting(loose);
            }
            Event::Closed { .. } => {
                self.closed = true;
                // A driver lets go of it then, also where another thread has heard of the end first.
                self.bell.iter().for_each(Bell::ring);
                self.post_waiting(loose);
                self.outgoing.end_all(&mut self.engine, &mut self.times, loose);
                self.asking.end(loose);
                self.receiving.end(loose);
            }
        }
    }

    /// The time of an operation is over. Its future is ready, and its buffer stays for as long as the fabric may be at it.
    fn expired(&mut self, expired: Expired, loose: &mut Loose) {
        let Expired { operation, phase, waited } = expired;
        match operation {
            Operation::Transfer(tag) => {
                let failure = Failure::TimedOut { phase, waited };
                self.open.is_over(tag, TransferError::Failed { tag, failure }, loose);
            }
            Operation::Read(id) => self.reads.is_over(id, expired, loose),
            Operation::Message(number) => {
                self.outgoing.expired(number, expired, loose);
                self.send_waiting(loose);
            }
        }
    }

    /// Gives up those that are overdue before there was room for them.
    fn expire(&mut self, loose: &mut Loose) {
        if self.times.first().is_none() {
            return;
        }
        let now = self.engine.endpoint().now();
        while let Some(name) = self.times.pop_due(now) {
            self.reads.expire(name, &self.engine, loose);
            self.outgoing.expire(name, &self.engine, loose);
        }
    }
}

/// A transfer on its way. Dropped before its end, it is cancelled.
#[must_use = "a transfer that is dropped is cancelled"]
pub struct Transfer<'a, 'cache, E: Endpoint, B: Buffer = Vec<u8>> {
    connection: &'a Connection<'cache, E>,
    tag: Tag,
    buffer: PhantomData<fn() -> B>,
}

impl<E: Endpoint, B: Buffer> fmt::Debug for Transfer<'_, '_, E, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transfer").field(&self.tag).finish()
    }
}

impl<E: Endpoint, B: Buffer> Transfer<'_, '_, E, B> {
    /// Its name.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Gives it so much time from now on. After that it is given up, and ready; its buffer comes with it if nothing can be at that.
    pub fn within(self, time: Duration) -> Self {
        self.connection.with(|inner, _| inner.engine.set_transfer_deadline(self.tag, inner.after(time)));
        self
    }

    /// Gives it up. It is ready when its buffer is free, or has ended well until then.
    pub fn cancel(&self) {
        // Refused where it has ended already: its end is told next.
        let _ = self.connection.with(|inner, _| inner.engine.cancel(self.tag));
    }
}

impl<E: Endpoint, B: Buffer> Future for Transfer<'_, '_, E, B> {
    type Output = Finished<B>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished<B>> {
        self.connection.progress();
        let waker = context.waker().clone();
        self.connection.with(|inner, loose| inner.open.poll(self.tag, waker, loose))
    }
}

impl<E: Endpoint, B: Buffer> Drop for Transfer<'_, '_, E, B> {
    fn drop(&mut self) {
        self.connection.with(|inner, loose| {
            if inner.open.abandon(self.tag, loose) {
                // Refused where it has ended already: its end is told next.
                let _ = inner.engine.cancel(self.tag);
            }
        });
    }
}
