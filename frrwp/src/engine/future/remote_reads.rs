//! One-sided reads as futures.
#![expect(unsafe_code, reason = "hands buffers that it owns to the engine, by address")]

use super::buffer::Buffer;
use super::table::Table;
use super::times::Times;
use super::{Connection, Finished, Held, Inner, Loose, TWICE};
use crate::engine::{Engine, OpenError};
use crate::fabric::Endpoint;
use crate::handshake::Expired;
use crate::wire::Segment;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Why a one-sided read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It was not posted.
    #[error(transparent)]
    Unopened(OpenError),
    /// Its time was over.
    #[error(transparent)]
    Expired(Expired),
    /// The application gave it up.
    #[error("read: cancelled by this side")]
    Cancelled,
    /// The connection ended first.
    #[error(
        "read {id}: the connection ended before its bytes came: see whether the peer offers them, and connect again"
    )]
    Failed {
        /// The read.
        id: u64,
    },
}

/// A one-sided read on its way. Dropped before its end, it is cancelled.
#[must_use = "a read that is dropped is cancelled"]
pub struct RemoteRead<'a, 'cache, E: Endpoint, B: Buffer> {
    connection: &'a Connection<'cache, E>,
    name: u64,
    from: Segment,
    step: Step<B>,
    is_cancelled: bool,
}

enum Step<B> {
    /// For room: in the queue, or taken from it since.
    Waits,
    Posted(u64),
    Refused(Box<B>, ReadError),
    Told,
}

/// Reads that wait for room, by the names of their futures: the first is posted first. Their futures are not polled for that.
#[derive(Default)]
pub(super) struct Reads {
    open: Table<u64, ReadError>,
    waiting: BTreeMap<u64, Waiting>,
    /// Those that have left it, until their futures look.
    left: FxHashMap<u64, Left>,
}

struct Waiting {
    buffer: Held,
    place: fn(&mut Held) -> (*mut u8, usize),
    from: Segment,
    over: Option<u64>,
    waker: Option<Waker>,
}

enum Left {
    Posted(u64),
    Refused(Held, ReadError),
}

fn place<B: Buffer>(buffer: &mut Held) -> (*mut u8, usize) {
    let buffer = buffer.downcast_mut::<B>().expect("the type that was handed over");
    (buffer.start(), buffer.len())
}

fn owned<B: Buffer>(buffer: Held) -> Box<B> {
    buffer.downcast().expect("the type that was handed over")
}

impl Reads {
    /// Buffers that are here.
    pub(super) fn held(&self) -> usize {
        self.open.len()
            + self.waiting.len()
            + self.left.values().filter(|left| matches!(left, Left::Refused(..))).count()
    }

    /// Returns the step of a read that waited.
    fn step<B: Buffer>(&mut self, name: u64) -> Step<B> {
        match self.left.remove(&name) {
            None => Step::Waits,
            Some(Left::Posted(id)) => Step::Posted(id),
            Some(Left::Refused(buffer, error)) => Step::Refused(owned(buffer), error),
        }
    }

    fn set_over(&mut self, name: u64, over: u64, times: &mut Times) {
        if let Some(waiting) = self.waiting.get_mut(&name) {
            times.remove(waiting.over.replace(over), name);
            times.insert(over, name);
        }
    }

    /// It waits no more. Its buffer and waker.
    fn remove(&mut self, name: u64, times: &mut Times) -> Option<(Held, Option<Waker>)> {
        let Waiting { buffer, over, waker, .. } = self.waiting.remove(&name)?;
        times.remove(over, name);
        Some((buffer, waker))
    }

    /// Ends a read that was posted.
    pub(super) fn ended(&mut self, id: u64, succeeded: bool, loose: &mut Loose) {
        // Its future knows how many bytes those are.
        let result = if succeeded { Ok(0) } else { Err(ReadError::Failed { id }) };
        self.open.ended(id, result, false, loose);
    }

    /// Notes that the time of a read that was posted is over.
    pub(super) fn is_over(&mut self, id: u64, expired: Expired, loose: &mut Loose) {
        self.open.is_over(id, ReadError::Expired(expired), loose);
    }

    fn refuse(&mut self, name: u64, waiting: Waiting, error: OpenError, loose: &mut Loose) {
        self.left.insert(name, Left::Refused(waiting.buffer, ReadError::Unopened(error)));
        loose.woken.extend(waiting.waker);
    }

    fn begin<E: Endpoint, B: Buffer>(
        &mut self,
        name: u64,
        mut buffer: Box<B>,
        from: Segment,
        engine: &mut Engine<'_, E>,
    ) -> Step<B> {
        // Those that wait come first.
        if self.waiting.is_empty() {
            // SAFETY: `Engine::read_remote` requires that the memory stays allocated and is used by nothing else until the read's end is
            // told. `Buffer` promises that of memory whose owner is kept, and the table keeps the owner until then.
            match unsafe { engine.read_remote(buffer.start(), buffer.len(), from) } {
                Ok(id) => {
                    self.open.insert(id, buffer, None);
                    return Step::Posted(id);
                }
                Err(OpenError::Busy { .. }) => {}
                Err(error) => return Step::Refused(buffer, ReadError::Unopened(error)),
            }
        }
        let waiting = Waiting { buffer, place: place::<B>, from, over: None, waker: None };
        self.waiting.insert(name, waiting);
        Step::Waits
    }

    /// Posts as many of the reads that wait as there is room for.
    pub(super) fn post_waiting<E: Endpoint>(
        &mut self,
        engine: &mut Engine<'_, E>,
        times: &mut Times,
        loose: &mut Loose,
    ) {
        while let Some(mut first) = self.waiting.first_entry() {
            let waiting = first.get_mut();
            let (start, length) = (waiting.place)(&mut waiting.buffer);
            // SAFETY: `Engine::read_remote` requires that the memory stays allocated and is used by nothing else until the read's end is
            // told. `Buffer` promises that of memory whose owner is kept, and the table keeps the owner until then.
            let posted = unsafe { engine.read_remote(start, length, waiting.from) };
            if matches!(posted, Err(OpenError::Busy { .. })) {
                return;
            }
            let (name, waiting) = first.remove_entry();
            times.remove(waiting.over, name);
            match posted {
                Ok(id) => {
                    waiting.over.map(|over| engine.set_read_deadline(id, over));
                    self.open.insert(id, waiting.buffer, waiting.waker);
                    self.left.insert(name, Left::Posted(id));
                }
                Err(error) => self.refuse(name, waiting, error, loose),
            }
        }
    }

    /// The time of a read that waits is over, if it is one.
    pub(super) fn expire<E: Endpoint>(&mut self, name: u64, engine: &Engine<'_, E>, loose: &mut Loose) {
        if let Some(waiting) = self.waiting.remove(&name) {
            let error = OpenError::Busy { under_way: engine.open_reads() };
            self.refuse(name, waiting, error, loose);
        }
    }
}

impl<'a, 'cache, E: Endpoint, B: Buffer> RemoteRead<'a, 'cache, E, B> {
    pub(super) fn new(connection: &'a Connection<'cache, E>, buffer: B, from: Segment) -> Self {
        let buffer = Box::new(buffer);
        connection.with(|inner, _| {
            let name = inner.name();
            let step = inner.reads.begin(name, buffer, from, &mut inner.engine);
            RemoteRead { connection, name, from, step, is_cancelled: false }
        })
    }

    /// Gives it so much time from now on, in the place of what the [limits](crate::handshake::Limits::read_time) say. After that
    /// it is ready; its buffer comes with it if nothing can be at that.
    pub fn within(mut self, time: Duration) -> Self {
        let connection = self.connection;
        connection.with(|inner, _| {
            let over = inner.after(time);
            match self.look_at_queue(inner) {
                Step::Posted(id) => drop(inner.engine.set_read_deadline(*id, over)),
                Step::Waits => inner.reads.set_over(self.name, over, &mut inner.times),
                Step::Refused(..) | Step::Told => {}
            }
        });
        self
    }

    /// Gives it up. It is ready when its buffer is free.
    pub fn cancel(&mut self) {
        self.is_cancelled = true;
        let connection = self.connection;
        connection.with(|inner, loose| match self.look_at_queue(inner) {
            Step::Posted(id) => drop(inner.engine.cancel_read(*id)),
            Step::Waits => {
                if let Some((buffer, waker)) = inner.reads.remove(self.name, &mut inner.times) {
                    self.step = Step::Refused(owned(buffer), ReadError::Cancelled);
                    loose.woken.extend(waker);
                }
            }
            Step::Refused(..) | Step::Told => {}
        });
    }

    /// Returns its present state.
    fn look_at_queue(&mut self, inner: &mut Inner<'_, E>) -> &Step<B> {
        if matches!(self.step, Step::Waits) {
            self.step = inner.reads.step(self.name);
        }
        &self.step
    }

    fn look(&mut self, waker: Waker, inner: &mut Inner<'_, E>, loose: &mut Loose) -> Poll<Finished<B, ReadError>> {
        self.look_at_queue(inner);
        match std::mem::replace(&mut self.step, Step::Told) {
            Step::Waits => {
                self.step = Step::Waits;
                let waiting = inner.reads.waiting.get_mut(&self.name);
                loose.wakers.extend(waiting.and_then(|waiting| waiting.waker.replace(waker)));
                Poll::Pending
            }
            Step::Refused(buffer, error) => Poll::Ready(Finished { buffer: Some(*buffer), result: Err(error) }),
            Step::Posted(id) => {
                let Poll::Ready(Finished { buffer, result }) = inner.reads.open.poll(id, waker, loose) else {
                    self.step = Step::Posted(id);
                    return Poll::Pending;
                };
                let result = match result {
                    Ok(_) => Ok(self.from.length),
                    Err(ReadError::Failed { .. }) if self.is_cancelled => Err(ReadError::Cancelled),
                    Err(error) => Err(error),
                };
                Poll::Ready(Finished { buffer, result })
            }
            Step::Told => panic!("{TWICE}"),
        }
    }
}

impl<E: Endpoint, B: Buffer> Future for RemoteRead<'_, '_, E, B> {
    type Output = Finished<B, ReadError>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.connection.progress();
        let waker = context.waker().clone();
        let connection = this.connection;
        connection.with(|inner, loose| this.look(waker, inner, loose))
    }
}

impl<E: Endpoint, B: Buffer> Drop for RemoteRead<'_, '_, E, B> {
    fn drop(&mut self) {
        let connection = self.connection;
        connection.with(|inner, loose| match self.look_at_queue(inner) {
            Step::Posted(id) => {
                if inner.reads.open.abandon(*id, loose) {
                    inner.engine.cancel_read(*id);
                }
            }
            Step::Waits => {
                let (buffer, waker) = inner.reads.remove(self.name, &mut inner.times).unzip();
                loose.buffers.extend(buffer);
                loose.wakers.extend(waker.flatten());
            }
            Step::Refused(..) | Step::Told => {}
        });
    }
}

impl<E: Endpoint, B: Buffer> fmt::Debug for RemoteRead<'_, '_, E, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRead").field("from", &self.from).finish_non_exhaustive()
    }
}
