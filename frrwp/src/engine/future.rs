//! Transfers as futures that own their buffers.
//!
//! [`Transfers`] takes a buffer with each call and hands it back with the result. In between it belongs to the engine: a
//! future that is dropped cancels its transfer, and its buffer stays until the peer can no longer write to it. So nothing
//! that safe code does to a future frees memory under a peer.
//!
//! There is no runtime and no thread: whoever polls one future moves all of them on, and the others are woken as their ends
//! come. Something has to poll when the network has news: [`Transfers::block_on`] sleeps in the endpoint. No provider shows a
//! descriptor to wait for yet: under a runtime give the connection a thread of its own that blocks, or call
//! [`Transfers::progress`] as often as news may wait, and at [`Transfers::next_deadline`].
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
mod talking;

pub use block_on::block_on;

use super::{Engine, Event, OpenError, TransferError};
use crate::fabric::Endpoint;
use crate::handshake::{Refusal, Tag};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The transfers of one connection, as futures.
///
/// A waker is dropped, and woken, while nothing is borrowed: the task that goes with it may hold transfers itself.
pub struct Transfers<'cache, E: Endpoint>(RefCell<Inner<'cache, E>>);

struct Inner<'cache, E: Endpoint> {
    /// Dropped first: the buffers outlive its connection.
    engine: Engine<'cache, E>,
    open: FxHashMap<Tag, Open>,
    asked: VecDeque<Asked>,
    /// Futures that wait to be asked, by name.
    asking: FxHashMap<u64, Waker>,
    next_asking: u64,
    /// Those that wait to hear something, or for room to say it.
    talking: FxHashMap<u64, Waker>,
    closed: bool,
}

struct Open {
    buffer: Vec<u8>,
    result: Option<Result<u64, TransferError>>,
    waker: Option<Waker>,
    /// Its future was dropped: nobody wants the buffer back.
    abandoned: bool,
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
pub struct Unopened<T> {
    /// Why.
    #[source]
    pub error: T,
    /// As it was.
    pub buffer: Vec<u8>,
}

/// How a transfer ended.
#[derive(Debug)]
pub struct Finished {
    /// The caller's again. Of a read or an accepted write that failed, its bytes are undefined, though they are bytes. Empty
    /// after [`TransferError::Quarantined`].
    pub buffer: Vec<u8>,
    /// Bytes moved.
    pub result: Result<u64, TransferError>,
}

impl<'cache, E: Endpoint> Transfers<'cache, E> {
    /// # Safety
    /// Buffers that are handed over, and later freed by whoever gets them back, come from the global allocator. As long as
    /// the engine's cache is used, its [monitor](mrrc::invalidation) hears of the memory that the allocator gives back to
    /// the system, or it gives none back: the second half of the contract of [`mrrc::Cache::acquire`]. The first half is
    /// kept here.
    pub unsafe fn new(engine: Engine<'cache, E>) -> Self {
        let (open, asked) = (FxHashMap::default(), VecDeque::new());
        let (asking, talking) = (FxHashMap::default(), FxHashMap::default());
        Self(RefCell::new(Inner { engine, open, asked, asking, next_asking: 0, talking, closed: false }))
    }

    /// Writes the buffer to the peer.
    ///
    /// # Errors
    /// As [`Engine::write`].
    pub fn write(&self, buffer: Vec<u8>, header: &[u8]) -> Result<Transfer<'_, 'cache, E>, Unopened<OpenError>> {
        // SAFETY: the buffer is in the table, untouched, until its end is told.
        self.lend(buffer, |engine, at, length| unsafe { engine.write(at, length, header) })
    }

    /// Reads as many bytes as the buffer is long, at most.
    ///
    /// # Errors
    /// As [`Engine::read`].
    pub fn read(&self, buffer: Vec<u8>, header: &[u8]) -> Result<Transfer<'_, 'cache, E>, Unopened<OpenError>> {
        // SAFETY: as for a write.
        self.lend(buffer, |engine, at, length| unsafe { engine.read(at, length, header) })
    }

    /// Takes what the peer writes into the buffer.
    ///
    /// # Errors
    /// As [`Engine::accept`].
    pub fn accept(&self, tag: Tag, buffer: Vec<u8>) -> Result<Transfer<'_, 'cache, E>, Unopened<Refusal>> {
        // SAFETY: as for a write.
        self.lend(buffer, |engine, at, length| unsafe { engine.accept(tag, at, length) }.map(|()| tag))
    }

    /// Gives the peer the bytes of the buffer.
    ///
    /// # Errors
    /// As [`Engine::supply`].
    pub fn supply(&self, tag: Tag, buffer: Vec<u8>) -> Result<Transfer<'_, 'cache, E>, Unopened<Refusal>> {
        // SAFETY: as for a write.
        self.lend(buffer, |engine, at, length| unsafe { engine.supply(tag, at, length) }.map(|()| tag))
    }

    /// Does not want what the peer asks for.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn refuse(&self, tag: Tag) -> Result<(), Refusal> {
        self.0.borrow_mut().engine.refuse(tag)
    }

    fn lend<T>(
        &self,
        mut buffer: Vec<u8>,
        call: impl FnOnce(&mut Engine<'cache, E>, *mut u8, usize) -> Result<Tag, T>,
    ) -> Result<Transfer<'_, 'cache, E>, Unopened<T>> {
        let mut inner = self.0.borrow_mut();
        match call(&mut inner.engine, buffer.as_mut_ptr(), buffer.len()) {
            Ok(tag) => {
                inner.open.insert(tag, Open { buffer, result: None, waker: None, abandoned: false });
                Ok(Transfer { transfers: self, tag })
            }
            Err(error) => Err(Unopened { error, buffer }),
        }
    }

    /// The next transfer that the peer opens; `None` once the connection has come to its end.
    pub fn asked(&self) -> impl Future<Output = Option<Asked>> {
        let name = &mut self.0.borrow_mut().next_asking;
        *name += 1;
        Asking { transfers: self, name: *name }
    }

    /// Does what can be done now, and wakes whom that concerns.
    pub fn progress(&self) {
        let mut woken = Vec::new();
        let mut inner = self.0.borrow_mut();
        inner.engine.progress();
        while let Some(event) = inner.engine.next_event() {
            inner.happened(event, &mut woken);
        }
        drop(inner);
        // A waker may poll at once.
        woken.into_iter().for_each(Waker::wake);
    }

    /// When [`Transfers::progress`] has something to do though nothing comes.
    pub fn next_deadline(&self) -> Option<u64> {
        self.0.borrow().engine.next_deadline()
    }

    /// Ends the connection.
    pub fn disconnect(&self) {
        self.0.borrow_mut().engine.disconnect();
    }

    /// Transfers whose buffers are here: open ones, those that have ended and were not polled since, and those that were
    /// dropped and still wait for the peer.
    pub fn held(&self) -> usize {
        self.0.borrow().open.len()
    }

    /// Runs a future, sleeping in the endpoint where it waits. What it waits for has to come by this connection.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(future, || {
            self.0.borrow_mut().engine.wait();
            self.progress();
        })
    }
}

impl<E: Endpoint> fmt::Debug for Transfers<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Transfers");
        // Whoever prints may have been called with it in use.
        if let Ok(inner) = self.0.try_borrow() {
            shown.field("engine", &inner.engine).field("held", &inner.open.len());
        }
        shown.finish_non_exhaustive()
    }
}

/// Waits to be asked.
struct Asking<'a, 'cache, E: Endpoint> {
    transfers: &'a Transfers<'cache, E>,
    name: u64,
}

impl<E: Endpoint> Future for Asking<'_, '_, E> {
    type Output = Option<Asked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Asked>> {
        self.transfers.progress();
        let waker = context.waker().clone();
        let mut inner = self.transfers.0.borrow_mut();
        if let Some(asked) = inner.asked.pop_front() {
            return Poll::Ready(Some(asked));
        }
        if inner.closed {
            return Poll::Ready(None);
        }
        let before = inner.asking.insert(self.name, waker);
        drop(inner);
        drop(before);
        Poll::Pending
    }
}

impl<E: Endpoint> Drop for Asking<'_, '_, E> {
    fn drop(&mut self) {
        let waker = self.transfers.0.borrow_mut().asking.remove(&self.name);
        drop(waker);
    }
}

impl<E: Endpoint> Inner<'_, E> {
    fn happened(&mut self, event: Event, woken: &mut Vec<Waker>) {
        match event {
            Event::Asked { tag, read, length } => {
                // One that has ended meanwhile is not asked any more.
                if let Some(header) = self.engine.header(tag) {
                    self.asked.push_back(Asked { tag, read, length, header: header.to_vec() });
                    woken.extend(self.asking.drain().map(|(_, waker)| waker));
                }
            }
            // The application of the traditional process; where it has ended meanwhile, its end comes.
            Event::KeysCame { tag } => drop(self.engine.submit(tag)),
            Event::Ended { tag, result } => {
                self.asked.retain(|asked| asked.tag != tag);
                let Some(open) = self.open.get_mut(&tag) else { return };
                if matches!(result, Err(TransferError::Quarantined { .. })) {
                    // Nobody gets it back, nor does the allocator: the peer may write it.
                    std::mem::forget(std::mem::take(&mut open.buffer));
                }
                if open.abandoned {
                    self.open.remove(&tag);
                } else {
                    open.result = Some(result);
                    woken.extend(open.waker.take());
                }
            }
            Event::Said | Event::Room | Event::Deaf { .. } => {
                woken.extend(self.talking.drain().map(|(_, waker)| waker));
            }
            // None is begun here.
            Event::Fetched { .. } => {}
            Event::Closed { .. } => {
                self.closed = true;
                woken.extend(self.talking.drain().map(|(_, waker)| waker));
                woken.extend(self.asking.drain().map(|(_, waker)| waker));
            }
        }
    }
}

/// A transfer on its way. Dropped before its end, it is cancelled.
#[must_use = "a transfer that is dropped is cancelled"]
pub struct Transfer<'a, 'cache, E: Endpoint> {
    transfers: &'a Transfers<'cache, E>,
    tag: Tag,
}

impl<E: Endpoint> fmt::Debug for Transfer<'_, '_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transfer").field(&self.tag).finish()
    }
}

impl<E: Endpoint> Transfer<'_, '_, E> {
    /// Its name.
    pub fn tag(&self) -> Tag {
        self.tag
    }
}

impl<E: Endpoint> Future for Transfer<'_, '_, E> {
    type Output = Finished;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        self.transfers.progress();
        let waker = context.waker().clone();
        let mut inner = self.transfers.0.borrow_mut();
        let open = inner.open.get_mut(&self.tag).expect("a future is not polled after it was ready");
        let Some(result) = open.result.take() else {
            let before = open.waker.replace(waker);
            drop(inner);
            drop(before);
            return Poll::Pending;
        };
        let buffer = std::mem::take(&mut open.buffer);
        inner.open.remove(&self.tag);
        Poll::Ready(Finished { buffer, result })
    }
}

impl<E: Endpoint> Drop for Transfer<'_, '_, E> {
    fn drop(&mut self) {
        let mut inner = self.transfers.0.borrow_mut();
        let Some(open) = inner.open.get_mut(&self.tag) else { return };
        let waker = open.waker.take();
        if open.result.is_some() {
            inner.open.remove(&self.tag);
        } else {
            open.abandoned = true;
            // Refused where it has ended already: its end is told next.
            let _ = inner.engine.cancel(self.tag);
        }
        drop(inner);
        drop(waker);
    }
}
