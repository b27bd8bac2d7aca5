//! The messages of the two applications to each other, as futures.

use super::times::Times;
use super::waits::Turn;
use super::{Connection, Inner, Loose, TWICE};
use crate::engine::Engine;
use crate::fabric::Endpoint;
use crate::handshake::{Expired, Operation, Phase, SendError};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A message on its way. Dropped before it was sent, it never is.
#[must_use = "a message is said when this is polled"]
pub struct SendMessage<'a, 'cache, E: Endpoint> {
    connection: &'a Connection<'cache, E>,
    /// None has it before the first poll, which is what the order goes by.
    name: u64,
    bytes: &'a [u8],
    step: Step,
    since: u64,
    /// When its time is over, where it was given one before it was polled.
    over: Option<u64>,
}

#[derive(Clone, Copy)]
enum Step {
    New,
    Waits,
    Told,
}

/// Messages that wait, and what became of those that waited, by the names of their futures. These are not polled for room.
#[derive(Default)]
pub(super) struct Outgoing {
    /// For room: the first is said first.
    for_room: BTreeMap<u64, ForRoom>,
    /// The engine has them, which has few.
    kept: Vec<Kept>,
    /// Until their futures look.
    ended: FxHashMap<u64, Result<(), SendError>>,
}

struct ForRoom {
    bytes: Box<[u8]>,
    since: u64,
    over: Option<u64>,
    waker: Waker,
}

struct Kept {
    name: u64,
    /// The engine's.
    number: u64,
    length: usize,
    waker: Waker,
}

impl Outgoing {
    fn end(&mut self, name: u64, result: Result<(), SendError>, waker: Waker, loose: &mut Loose) {
        self.ended.insert(name, result);
        loose.woken.push(waker);
    }

    /// A message that the engine has is given up by it.
    pub(super) fn expired(&mut self, number: u64, expired: Expired, loose: &mut Loose) {
        if let Some(at) = self.kept.iter().position(|kept| kept.number == number) {
            let Kept { name, waker, .. } = self.kept.swap_remove(at);
            self.end(name, Err(SendError::Expired(expired)), waker, loose);
        }
    }

    fn set_over<E: Endpoint>(&mut self, name: u64, over: u64, engine: &mut Engine<'_, E>, times: &mut Times) {
        if let Some(waits) = self.for_room.get_mut(&name) {
            times.remove(waits.over.replace(over), name);
            times.insert(over, name);
        } else if let Some(kept) = self.kept.iter().find(|kept| kept.name == name) {
            engine.set_message_deadline(kept.number, over);
        }
    }

    fn poll(&mut self, name: u64, waker: Waker, loose: &mut Loose) -> Poll<Result<(), SendError>> {
        if let Some(result) = self.ended.remove(&name) {
            return Poll::Ready(result);
        }
        let before = match self.for_room.get_mut(&name) {
            Some(waits) => Some(&mut waits.waker),
            None => self.kept.iter_mut().find(|kept| kept.name == name).map(|kept| &mut kept.waker),
        };
        loose.wakers.extend(before.map(|before| std::mem::replace(before, waker)));
        Poll::Pending
    }

    /// Says it, or has it wait.
    fn begin<E: Endpoint>(
        &mut self,
        message: &SendMessage<'_, '_, E>,
        waker: Waker,
        engine: &mut Engine<'_, E>,
        times: &mut Times,
    ) -> Poll<Result<(), SendError>> {
        let &SendMessage { name, bytes, since, over, .. } = message;
        engine.may_ever_send(bytes.len())?;
        // Those that wait come first.
        if self.for_room.is_empty() {
            match engine.send_message(bytes) {
                Ok(()) => {
                    let Some(number) = kept_number(engine, over) else { return Poll::Ready(Ok(())) };
                    self.kept.push(Kept { name, number, length: bytes.len(), waker });
                    return Poll::Pending;
                }
                Err(SendError::Full) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if let Some(over) = over {
            if over <= engine.endpoint().now() {
                return Poll::Ready(Err(no_room(engine, since)));
            }
            times.insert(over, name);
        }
        self.for_room.insert(name, ForRoom { bytes: bytes.into(), since, over, waker });
        Poll::Pending
    }

    /// Says as many of the messages that wait as there is room for.
    pub(super) fn send_waiting<E: Endpoint>(
        &mut self,
        engine: &mut Engine<'_, E>,
        times: &mut Times,
        loose: &mut Loose,
    ) {
        while let Some(first) = self.for_room.first_entry() {
            let said = engine.send_message(&first.get().bytes);
            if matches!(said, Err(SendError::Full)) {
                return;
            }
            let (name, ForRoom { bytes, over, waker, .. }) = first.remove_entry();
            times.remove(over, name);
            match said.is_ok().then(|| kept_number(engine, over)).flatten() {
                Some(number) => self.kept.push(Kept { name, number, length: bytes.len(), waker }),
                None => self.end(name, said, waker, loose),
            }
        }
    }

    /// Sees which messages have left the engine, which has room for others then.
    pub(super) fn look<E: Endpoint>(
        &mut self,
        engine: &mut Engine<'_, E>,
        times: &mut Times,
        closed: bool,
        loose: &mut Loose,
    ) {
        let before = self.kept.len();
        let mut at = 0;
        while let Some(&Kept { number, length, .. }) = self.kept.get(at) {
            let result = match (engine.message_waits(number), closed) {
                (true, false) => {
                    at += 1;
                    continue;
                }
                (true, true) => Err(SendError::Disconnected),
                (false, _) => match engine.may_ever_send(length) {
                    Err(error @ SendError::PeerTooOld { .. }) => Err(error),
                    _ if engine.message_is_void(number) => Err(SendError::Disconnected),
                    _ => Ok(()),
                },
            };
            let Kept { name, waker, .. } = self.kept.remove(at);
            self.end(name, result, waker, loose);
        }
        if self.kept.len() < before {
            self.send_waiting(engine, times, loose);
        }
    }

    /// The time of a message that waits for room is over, if it is one.
    pub(super) fn expire<E: Endpoint>(&mut self, name: u64, engine: &Engine<'_, E>, loose: &mut Loose) {
        if let Some(ForRoom { since, waker, .. }) = self.for_room.remove(&name) {
            let error = no_room(engine, since);
            self.end(name, Err(error), waker, loose);
        }
    }

    /// The connection has come to its end.
    pub(super) fn end_all<E: Endpoint>(&mut self, engine: &mut Engine<'_, E>, times: &mut Times, loose: &mut Loose) {
        self.look(engine, times, true, loose);
        for (name, ForRoom { over, waker, .. }) in std::mem::take(&mut self.for_room) {
            times.remove(over, name);
            self.end(name, Err(SendError::Disconnected), waker, loose);
        }
    }

    /// No future waits for the message any more.
    fn take_back<E: Endpoint>(&mut self, name: u64, engine: &mut Engine<'_, E>, times: &mut Times, loose: &mut Loose) {
        if let Some(ForRoom { over, waker, .. }) = self.for_room.remove(&name) {
            times.remove(over, name);
            loose.wakers.push(waker);
        } else if let Some(at) = self.kept.iter().position(|kept| kept.name == name) {
            let Kept { number, waker, .. } = self.kept.swap_remove(at);
            engine.cancel_message(number);
            loose.wakers.push(waker);
            self.send_waiting(engine, times, loose);
        } else {
            self.ended.remove(&name);
        }
    }
}

/// Returns the number of the message that was just sent, if it waits to leave.
fn kept_number<E: Endpoint>(engine: &mut Engine<'_, E>, over: Option<u64>) -> Option<u64> {
    let number = engine.messages();
    let waits = engine.message_waits(number);
    over.filter(|_| waits).map(|over| engine.set_message_deadline(number, over));
    waits.then_some(number)
}

fn no_room<E: Endpoint>(engine: &Engine<'_, E>, since: u64) -> SendError {
    let operation = Operation::Message(engine.messages() + 1);
    let waited = engine.endpoint().now().saturating_sub(since);
    SendError::Expired(Expired { operation, phase: Phase::Credit, waited })
}

impl<'a, 'cache, E: Endpoint> SendMessage<'a, 'cache, E> {
    pub(super) fn new(connection: &'a Connection<'cache, E>, bytes: &'a [u8], since: u64) -> Self {
        SendMessage { connection, name: 0, bytes, step: Step::New, since, over: None }
    }

    /// Gives it so much time from now on until it is sent, in the place of what the [limits](crate::handshake::Limits::send_time) say.
    pub fn within(mut self, time: Duration) -> Self {
        let (connection, name) = (self.connection, self.name);
        self.over = Some(connection.with(|inner, _| {
            let over = inner.after(time);
            inner.outgoing.set_over(name, over, &mut inner.engine, &mut inner.times);
            over
        }));
        self
    }

    fn look(&mut self, waker: Waker, inner: &mut Inner<'_, E>, loose: &mut Loose) -> Poll<Result<(), SendError>> {
        let said = match self.step {
            Step::New => {
                self.name = inner.name();
                inner.outgoing.begin(self, waker, &mut inner.engine, &mut inner.times)
            }
            Step::Waits => inner.outgoing.poll(self.name, waker, loose),
            Step::Told => panic!("{TWICE}"),
        };
        self.step = if said.is_pending() { Step::Waits } else { Step::Told };
        said
    }
}

impl<E: Endpoint> Future for SendMessage<'_, '_, E> {
    type Output = Result<(), SendError>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let this = self.get_mut();
        this.connection.progress();
        let waker = context.waker().clone();
        let connection = this.connection;
        connection.with(|inner, loose| this.look(waker, inner, loose))
    }
}

impl<E: Endpoint> Drop for SendMessage<'_, '_, E> {
    fn drop(&mut self) {
        let connection = self.connection;
        connection.with(|inner, loose| {
            inner.outgoing.take_back(self.name, &mut inner.engine, &mut inner.times, loose);
        });
    }
}

impl<E: Endpoint> fmt::Debug for SendMessage<'_, '_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendMessage").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

/// Waits to hear something.
pub(super) struct ReceiveMessage<'a, 'cache, E: Endpoint> {
    connection: &'a Connection<'cache, E>,
    turn: Turn,
}

impl<'a, 'cache, E: Endpoint> ReceiveMessage<'a, 'cache, E> {
    pub(super) fn new(connection: &'a Connection<'cache, E>) -> Self {
        Self { connection, turn: Turn::default() }
    }
}

impl<E: Endpoint> Future for ReceiveMessage<'_, '_, E> {
    type Output = Option<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.connection.progress();
        let waker = context.waker().clone();
        self.connection.with(|inner, loose| {
            inner.receiving.look(std::mem::take(&mut self.turn), loose);
            let mut said = Vec::new();
            if inner.engine.recv_message(&mut said) {
                // A message of credits may have taken messages along.
                inner.look_at_messages(loose);
                return Poll::Ready(Some(said));
            }
            if inner.closed {
                return Poll::Ready(None);
            }
            self.turn = inner.receiving.wait(waker);
            Poll::Pending
        })
    }
}

impl<E: Endpoint> Drop for ReceiveMessage<'_, '_, E> {
    fn drop(&mut self) {
        self.connection.with(|inner, loose| inner.receiving.leave(self.turn, loose));
    }
}
