//! Operations as futures that own their buffers.
//!
//! [`Transfers`] takes a [`Buffer`] with each call, which is any memory that can be registered, and hands it back with the
//! result. In between it belongs to the engine: a future that is dropped cancels its operation, and its buffer stays until the
//! peer can no longer write to it. So nothing that safe code does to a future frees memory under a peer.
//!
//! There is a future for each operation: transfers ([`write`](Transfers::write), [`read`](Transfers::read),
//! [`accept`](Transfers::accept), [`supply`](Transfers::supply)), one-sided reads ([`fetch`](Transfers::fetch)), messages
//! ([`say`](Transfers::say), [`hear`](Transfers::hear)), and what the peer opens ([`asked`](Transfers::asked)). They are `Send` where
//! the endpoint is, and any executor polls them. A poll of one moves all of the connection on, and the others are woken as their
//! ends come.
//!
//! # Who hears of the network
//!
//! * [`Transfers::block_on`]: the thread that waits for one connection, or several threads for the same.
//! * [`Driver`]: one thread, or one task, for many connections, which end when it is dropped. It has one descriptor, for any event loop: under tokio an
//!   `AsyncFd` around the driver, and a task that loops over `readable`, `clear_ready` and [`Driver::turn`].
//!
//! # Deadlines
//!
//! Each operation has the time that the [limits](crate::handshake::Limits) say. `within` gives it another one:
//! [`Transfer::within`], [`Fetch::within`], [`Say::within`]. An operation whose time is over is ready at once, without its buffer if
//! the fabric may still be at it: the engine keeps that, and drops it when it is free.
//!
//! ```
//! use frrwp::engine::Engine;
//! use frrwp::engine::future::Transfers;
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
//! let (client, server) = unsafe { (Transfers::new(client), Transfers::new(server)) };
//!
//! // Here one thread plays both sides: the client's write is on its way from the call on.
//! let written = client.write(vec![7; 1000], b"a key")?;
//! let (stored, written) = client.block_on(async {
//!     let asked = server.asked().await.expect("the connection stands");
//!     assert_eq!((asked.length, &asked.header[..]), (1000, &b"a key"[..]));
//!     let stored = server.accept(asked.tag, vec![0; 1000]).expect("it is open");
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
mod fetching;
mod table;
mod talking;
mod waits;

pub use block_on::block_on;
pub use buffer::Buffer;
pub use driver::Driver;
pub use fetching::{Fetch, FetchError};
pub use talking::Say;

use super::{Engine, Event, OpenError, TransferError};
use crate::fabric::Endpoint;
use crate::fabric::poller::{Bell, Poller};
use crate::handshake::{Expired, Failure, Operation, Refusal, Tag};
use block_on::Sleepers;
use fetching::FetchQueue;
use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
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
use talking::Saying;
use waits::{Turn, Waits};

/// The operations of one connection, as futures.
///
/// A waker or a buffer is dropped, and a waker woken, without the lock: the task that goes with it may hold transfers itself.
pub struct Transfers<'cache, E: Endpoint> {
    inner: Mutex<Inner<'cache, E>>,
    sleepers: Arc<Sleepers>,
}

struct Inner<'cache, E: Endpoint> {
    /// Dropped first: the buffers outlive its connection.
    engine: Engine<'cache, E>,
    open: Table<Tag, TransferError>,
    reads: Table<u64, FetchError>,
    /// Reads and messages that wait.
    fetching: FetchQueue,
    saying: Saying,
    asked: VecDeque<Asked>,
    /// Futures that wait to be asked, and those that wait to hear something.
    asking: Waits,
    hearing: Waits,
    next_name: u64,
    /// When the time of reads and messages is over that wait for room.
    times: BTreeSet<(u64, u64)>,
    closed: bool,
    /// What rings for this connection, and where this side sleeps for it alone.
    bell: Option<Bell>,
    poller: Option<Arc<Poller>>,
}

/// A buffer of any type, which does not move while it is lent.
type Held = Box<dyn Any + Send>;

/// How often a connection is looked at that nothing rings for.
const LOOK: Duration = Duration::from_millis(1);

const TWICE: &str = "a future is not polled after it was ready";

/// What is woken or dropped when the lock is not held any more.
#[derive(Default)]
struct Loose {
    woken: Vec<Waker>,
    wakers: Vec<Waker>,
    buffers: Vec<Held>,
}

/// The peer opens a transfer; answer with [`Transfers::accept`], [`Transfers::supply`] or [`Transfers::refuse`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The transfer.
    pub tag: Tag,
    /// Whether the peer wants bytes.
    pub read: bool,
    /// What it writes, or the most that it accepts.
    pub length: u64,
    /// What its application said.
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
    /// The caller's again. Of a read or an accepted write that failed, its bytes are undefined, though they are bytes. None where
    /// the fabric, or the peer, may still be at it: after an operation whose time was over, the engine drops it when it is free;
    /// after [`TransferError::Quarantined`] nothing does.
    pub buffer: Option<B>,
    /// Bytes moved.
    pub result: Result<u64, X>,
}

impl<'cache, E: Endpoint> Transfers<'cache, E> {
    /// # Safety
    /// As long as the engine's cache is used, its [monitor](mrrc::invalidation) hears of memory of buffers that is given back to the
    /// system after they were dropped, or none is given back: the second half of the contract of [`mrrc::Cache::acquire`]. Of buffers
    /// from the global allocator that is what the allocator gives back. The first half is kept here.
    ///
    /// And where a key opens memory that is registered for longer than its transfer, the peer is
    /// [trusted](crate#peers-that-are-not-trusted) with that memory: with what is beside a buffer, and with what comes to be in its
    /// place when its owner has dropped it.
    pub unsafe fn new(engine: Engine<'cache, E>) -> Self {
        let inner = Inner {
            engine,
            open: Table::default(),
            reads: Table::default(),
            fetching: FetchQueue::default(),
            saying: Saying::default(),
            asked: VecDeque::new(),
            asking: Waits::default(),
            hearing: Waits::default(),
            next_name: 0,
            times: BTreeSet::new(),
            closed: false,
            bell: None,
            poller: None,
        };
        Self { inner: Mutex::new(inner), sleepers: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<'cache, E>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something under the lock. What it leaves to be woken or dropped is so afterwards.
    fn with<T>(&self, act: impl FnOnce(&mut Inner<'cache, E>, &mut Loose) -> T) -> T {
        let mut loose = Loose::default();
        let mut inner = self.lock();
        let result = act(&mut inner, &mut loose);
        let next = inner.times.first().map(|&(time, _)| time);
        inner.engine.arm_until(next);
        drop(inner);
        wake(loose.woken);
        result
    }

    /// Writes the buffer to the peer.
    ///
    /// # Errors
    /// As [`Engine::write`].
    pub fn write<B: Buffer>(
        &self,
        buffer: B,
        header: &[u8],
    ) -> Result<Transfer<'_, 'cache, E, B>, Unopened<OpenError, B>> {
        // SAFETY: the buffer is in the table, where it does not move, until its end is told; and of its type, what `Buffer` has.
        self.lend(buffer, |engine, at, length| unsafe { engine.write(at, length, header) })
    }

    /// Reads as many bytes as the buffer is long, at most.
    ///
    /// # Errors
    /// As [`Engine::read`].
    pub fn read<B: Buffer>(
        &self,
        buffer: B,
        header: &[u8],
    ) -> Result<Transfer<'_, 'cache, E, B>, Unopened<OpenError, B>> {
        // SAFETY: as for a write, the buffer is in the table until its end is told.
        self.lend(buffer, |engine, at, length| unsafe { engine.read(at, length, header) })
    }

    /// Takes what the peer writes into the buffer.
    ///
    /// # Errors
    /// As [`Engine::accept`].
    pub fn accept<B: Buffer>(&self, tag: Tag, buffer: B) -> Result<Transfer<'_, 'cache, E, B>, Unopened<Refusal, B>> {
        // SAFETY: as for a write, the buffer is in the table until its end is told.
        self.lend(buffer, |engine, at, length| unsafe { engine.accept(tag, at, length) }.map(|()| tag))
    }

    /// Gives the peer the bytes of the buffer.
    ///
    /// # Errors
    /// As [`Engine::supply`].
    pub fn supply<B: Buffer>(&self, tag: Tag, buffer: B) -> Result<Transfer<'_, 'cache, E, B>, Unopened<Refusal, B>> {
        // SAFETY: as for a write, the buffer is in the table until its end is told.
        self.lend(buffer, |engine, at, length| unsafe { engine.supply(tag, at, length) }.map(|()| tag))
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
                Ok(Transfer { transfers: self, tag, buffer: PhantomData })
            }
            Err(error) => Err(Unopened { error, buffer: *buffer }),
        })
    }

    /// The next transfer that the peer opens; `None` once the connection has come to its end. Of several that wait, one is woken.
    pub fn asked(&self) -> impl Future<Output = Option<Asked>> {
        Asking { transfers: self, turn: Turn::default() }
    }

    /// Does what can be done now, and wakes whom that concerns.
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

    /// When [`Transfers::progress`] has something to do though nothing comes.
    pub fn next_deadline(&self) -> Option<u64> {
        let inner = self.lock();
        let first = inner.times.first().map(|&(time, _)| time);
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

    /// Operations whose buffers are here: open ones, reads that wait for room, those that have ended and were not polled since, and those that were
    /// dropped, or whose time was over, and that still wait for the peer.
    pub fn held(&self) -> usize {
        let inner = self.lock();
        inner.open.len() + inner.reads.len() + inner.fetching.held()
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
        let times = inner.times.first().map(|&(time, _)| time).into_iter();
        let until = times.chain(longest.map(|longest| inner.after(longest))).min();
        inner.engine.wait_until(until);
        drop(inner);
        self.progress();
    }

    /// What rings for this connection; and the poller, if nothing else waits for that.
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

impl<E: Endpoint> fmt::Debug for Transfers<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Transfers");
        // Whoever prints may have been called with it in use.
        if let Ok(inner) = self.inner.try_lock() {
            shown.field("engine", &inner.engine).field("held", &inner.open.len());
        }
        shown.finish_non_exhaustive()
    }
}

/// Waits to be asked.
struct Asking<'a, 'cache, E: Endpoint> {
    transfers: &'a Transfers<'cache, E>,
    turn: Turn,
}

impl<E: Endpoint> Future for Asking<'_, '_, E> {
    type Output = Option<Asked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Asked>> {
        self.transfers.progress();
        let waker = context.waker().clone();
        self.transfers.with(|inner, loose| {
            inner.asking.look(std::mem::take(&mut self.turn), loose);
            if let Some(asked) = inner.asked.pop_front() {
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

impl<E: Endpoint> Drop for Asking<'_, '_, E> {
    fn drop(&mut self) {
        self.transfers.with(|inner, loose| inner.asking.leave(self.turn, loose));
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

    /// A time from now, on the clock of the endpoint.
    fn after(&self, time: Duration) -> u64 {
        self.engine.endpoint().now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    fn happened(&mut self, event: Event, loose: &mut Loose) {
        match event {
            Event::Asked { tag, read, length } => {
                // One that has ended meanwhile is not asked any more.
                if let Some(header) = self.engine.header(tag) {
                    self.asked.push_back(Asked { tag, read, length, header: header.to_vec() });
                    self.asking.came(loose);
                }
            }
            // The application of the traditional process; where it has ended meanwhile, its end comes.
            Event::KeysCame { tag } => drop(self.engine.submit(tag)),
            Event::Ended { tag, result } => {
                self.asked.retain(|asked| asked.tag != tag);
                let held = matches!(result, Err(TransferError::Quarantined { .. }));
                self.open.ended(tag, result, held, loose);
            }
            Event::Fetched { id, succeeded } => {
                // Its future knows how many bytes those are.
                let result = if succeeded { Ok(0) } else { Err(FetchError::Failed { id }) };
                self.reads.ended(id, result, false, loose);
                self.post_waiting(loose);
            }
            Event::Expired(expired) => self.expired(expired, loose),
            Event::Said => self.hearing.came(loose),
            Event::Room | Event::Deaf { .. } => {
                self.post_waiting(loose);
                self.say_waiting(loose);
            }
            Event::Closed { .. } => {
                self.closed = true;
                // A driver lets go of it then, also where another thread has heard of the end first.
                self.bell.iter().for_each(Bell::ring);
                self.post_waiting(loose);
                self.say_no_more(loose);
                self.asking.end(loose);
                self.hearing.end(loose);
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
            Operation::Fetch(id) => self.reads.is_over(id, FetchError::Expired(expired), loose),
            Operation::Message(number) => {
                self.saying.expired(number, expired, loose);
                self.say_waiting(loose);
            }
        }
    }

    /// Gives those up whose time is over before there was room for them.
    fn expire(&mut self, loose: &mut Loose) {
        if self.times.is_empty() {
            return;
        }
        let now = self.engine.endpoint().now();
        while self.times.first().is_some_and(|&(time, _)| time <= now) {
            let Some((_, name)) = self.times.pop_first() else { return };
            self.expire_fetch(name, loose);
            self.expire_say(name, loose);
        }
    }
}

/// A transfer on its way. Dropped before its end, it is cancelled.
#[must_use = "a transfer that is dropped is cancelled"]
pub struct Transfer<'a, 'cache, E: Endpoint, B: Buffer = Vec<u8>> {
    transfers: &'a Transfers<'cache, E>,
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
        self.transfers.with(|inner, _| inner.engine.set_transfer_deadline(self.tag, inner.after(time)));
        self
    }

    /// Gives it up. It is ready when its buffer is free, or has ended well until then.
    pub fn cancel(&self) {
        // Refused where it has ended already: its end is told next.
        let _ = self.transfers.with(|inner, _| inner.engine.cancel(self.tag));
    }
}

impl<E: Endpoint, B: Buffer> Future for Transfer<'_, '_, E, B> {
    type Output = Finished<B>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished<B>> {
        self.transfers.progress();
        let waker = context.waker().clone();
        self.transfers.with(|inner, loose| inner.open.poll(self.tag, waker, loose))
    }
}

impl<E: Endpoint, B: Buffer> Drop for Transfer<'_, '_, E, B> {
    fn drop(&mut self) {
        self.transfers.with(|inner, loose| {
            if inner.open.abandon(self.tag, loose) {
                // Refused where it has ended already: its end is told next.
                let _ = inner.engine.cancel(self.tag);
            }
        });
    }
}
