//! What the two applications say to each other, as futures.

use super::{Inner, Loose, TWICE, Transfers, Turn};
use crate::fabric::Endpoint;
use crate::handshake::{Expired, Operation, Phase, Unsaid};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

impl<'cache, E: Endpoint> Transfers<'cache, E> {
    /// Says something to the peer's application, as soon as there is room: see [`Engine::say`](crate::engine::Engine::say). It is
    /// ready when it was handed to the fabric. Those that wait for room are said in the order in which they were first polled.
    pub fn say<'a>(&'a self, bytes: &'a [u8]) -> Say<'a, 'cache, E> {
        let since = self.lock().engine.endpoint().now();
        Say { transfers: self, name: 0, bytes, step: Step::New, since, over: None }
    }

    /// What the peer's application says next; `None` once the connection has come to its end and all was taken. Of several that
    /// wait, one is woken.
    pub fn hear<'a>(&'a self) -> impl Future<Output = Option<Vec<u8>>> + use<'a, 'cache, E> {
        Hearing { transfers: self, turn: Turn::default() }
    }
}

/// A message on its way. Dropped before it was sent, it never is.
#[must_use = "a message is said when this is polled"]
pub struct Say<'a, 'cache, E: Endpoint> {
    transfers: &'a Transfers<'cache, E>,
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
pub(super) struct Saying {
    /// For room: the first is said first.
    for_room: BTreeMap<u64, ForRoom>,
    /// The engine has them, which has few.
    kept: Vec<Kept>,
    /// Until their futures look.
    ended: FxHashMap<u64, Result<(), Unsaid>>,
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

impl Saying {
    fn end(&mut self, name: u64, result: Result<(), Unsaid>, waker: Waker, loose: &mut Loose) {
        self.ended.insert(name, result);
        loose.woken.push(waker);
    }

    /// A message that the engine has is given up by it.
    pub(super) fn expired(&mut self, number: u64, expired: Expired, loose: &mut Loose) {
        if let Some(at) = self.kept.iter().position(|kept| kept.number == number) {
            let Kept { name, waker, .. } = self.kept.swap_remove(at);
            self.end(name, Err(Unsaid::Expired(expired)), waker, loose);
        }
    }

    fn poll(&mut self, name: u64, waker: Waker, loose: &mut Loose) -> Poll<Result<(), Unsaid>> {
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
}

impl<E: Endpoint> Inner<'_, E> {
    /// Says it, or has it wait.
    fn begin_say(&mut self, say: &Say<'_, '_, E>, waker: Waker) -> Poll<Result<(), Unsaid>> {
        let &Say { name, bytes, since, over, .. } = say;
        self.engine.may_ever_say(bytes.len())?;
        // Those that wait come first.
        if self.saying.for_room.is_empty() {
            match self.engine.say(bytes) {
                Ok(()) => {
                    let Some(number) = self.kept_number(over) else { return Poll::Ready(Ok(())) };
                    self.saying.kept.push(Kept { name, number, length: bytes.len(), waker });
                    return Poll::Pending;
                }
                Err(Unsaid::Full) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if let Some(over) = over {
            if over <= self.engine.endpoint().now() {
                return Poll::Ready(Err(self.no_room(since)));
            }
            self.times.insert((over, name));
        }
        self.saying.for_room.insert(name, ForRoom { bytes: bytes.into(), since, over, waker });
        Poll::Pending
    }

    /// The number of the message that was just said, if it waits to be sent.
    fn kept_number(&mut self, over: Option<u64>) -> Option<u64> {
        let number = self.engine.messages();
        let waits = self.engine.message_waits(number);
        over.filter(|_| waits).map(|over| self.engine.set_message_deadline(number, over));
        waits.then_some(number)
    }

    fn no_room(&self, since: u64) -> Unsaid {
        let operation = Operation::Message(self.engine.messages() + 1);
        let waited = self.engine.endpoint().now().saturating_sub(since);
        Unsaid::Expired(Expired { operation, phase: Phase::Credit, waited })
    }

    /// Says as many of the messages that wait as there is room for.
    pub(super) fn say_waiting(&mut self, loose: &mut Loose) {
        while let Some(first) = self.saying.for_room.first_entry() {
            let said = self.engine.say(&first.get().bytes);
            if matches!(said, Err(Unsaid::Full)) {
                return;
            }
            let (name, ForRoom { bytes, over, waker, .. }) = first.remove_entry();
            over.map(|over| self.times.remove(&(over, name)));
            match said.is_ok().then(|| self.kept_number(over)).flatten() {
                Some(number) => self.saying.kept.push(Kept { name, number, length: bytes.len(), waker }),
                None => self.saying.end(name, said, waker, loose),
            }
        }
    }

    /// Sees which messages have left the engine, which has room for others then.
    pub(super) fn look_at_messages(&mut self, loose: &mut Loose) {
        let before = self.saying.kept.len();
        let mut at = 0;
        while let Some(&Kept { number, length, .. }) = self.saying.kept.get(at) {
            let result = match (self.engine.message_waits(number), self.closed) {
                (true, false) => {
                    at += 1;
                    continue;
                }
                (true, true) => Err(Unsaid::Disconnected),
                (false, _) => match self.engine.may_ever_say(length) {
                    Err(deaf @ Unsaid::Deaf { .. }) => Err(deaf),
                    _ if self.engine.message_is_void(number) => Err(Unsaid::Disconnected),
                    _ => Ok(()),
                },
            };
            let Kept { name, waker, .. } = self.saying.kept.remove(at);
            self.saying.end(name, result, waker, loose);
        }
        if self.saying.kept.len() < before {
            self.say_waiting(loose);
        }
    }

    /// The time of a message that waits for room is over, if it is one.
    pub(super) fn expire_say(&mut self, name: u64, loose: &mut Loose) {
        if let Some(ForRoom { since, waker, .. }) = self.saying.for_room.remove(&name) {
            let error = self.no_room(since);
            self.saying.end(name, Err(error), waker, loose);
        }
    }

    /// The connection has come to its end.
    pub(super) fn say_no_more(&mut self, loose: &mut Loose) {
        self.look_at_messages(loose);
        for (name, ForRoom { over, waker, .. }) in std::mem::take(&mut self.saying.for_room) {
            over.map(|over| self.times.remove(&(over, name)));
            self.saying.end(name, Err(Unsaid::Disconnected), waker, loose);
        }
    }

    /// No future waits for the message any more.
    fn say_never(&mut self, name: u64, loose: &mut Loose) {
        if let Some(ForRoom { over, waker, .. }) = self.saying.for_room.remove(&name) {
            over.map(|over| self.times.remove(&(over, name)));
            loose.wakers.push(waker);
        } else if let Some(at) = self.saying.kept.iter().position(|kept| kept.name == name) {
            let Kept { number, waker, .. } = self.saying.kept.swap_remove(at);
            self.engine.cancel_message(number);
            loose.wakers.push(waker);
            self.say_waiting(loose);
        } else {
            self.saying.ended.remove(&name);
        }
    }
}

impl<E: Endpoint> Say<'_, '_, E> {
    /// Gives it so much time from now on until it is sent, in the place of what the [limits](crate::handshake::Limits::say_time) say.
    pub fn within(mut self, time: Duration) -> Self {
        let (transfers, name) = (self.transfers, self.name);
        self.over = Some(transfers.with(|inner, _| {
            let over = inner.after(time);
            if let Some(waits) = inner.saying.for_room.get_mut(&name) {
                waits.over.replace(over).map(|before| inner.times.remove(&(before, name)));
                inner.times.insert((over, name));
            } else if let Some(kept) = inner.saying.kept.iter().find(|kept| kept.name == name) {
                inner.engine.set_message_deadline(kept.number, over);
            }
            over
        }));
        self
    }

    fn look(&mut self, waker: Waker, inner: &mut Inner<'_, E>, loose: &mut Loose) -> Poll<Result<(), Unsaid>> {
        let said = match self.step {
            Step::New => {
                self.name = inner.name();
                inner.begin_say(self, waker)
            }
            Step::Waits => inner.saying.poll(self.name, waker, loose),
            Step::Told => panic!("{TWICE}"),
        };
        self.step = if said.is_pending() { Step::Waits } else { Step::Told };
        said
    }
}

impl<E: Endpoint> Future for Say<'_, '_, E> {
    type Output = Result<(), Unsaid>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Unsaid>> {
        let this = self.get_mut();
        this.transfers.progress();
        let waker = context.waker().clone();
        let transfers = this.transfers;
        transfers.with(|inner, loose| this.look(waker, inner, loose))
    }
}

impl<E: Endpoint> Drop for Say<'_, '_, E> {
    fn drop(&mut self) {
        let transfers = self.transfers;
        transfers.with(|inner, loose| inner.say_never(self.name, loose));
    }
}

impl<E: Endpoint> fmt::Debug for Say<'_, '_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Say").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

/// Waits to hear something.
struct Hearing<'a, 'cache, E: Endpoint> {
    transfers: &'a Transfers<'cache, E>,
    turn: Turn,
}

impl<E: Endpoint> Future for Hearing<'_, '_, E> {
    type Output = Option<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.transfers.progress();
        let waker = context.waker().clone();
        self.transfers.with(|inner, loose| {
            inner.hearing.look(std::mem::take(&mut self.turn), loose);
            let mut said = Vec::new();
            if inner.engine.heard(&mut said) {
                // What had to be announced may have taken messages along.
                inner.look_at_messages(loose);
                return Poll::Ready(Some(said));
            }
            if inner.closed {
                return Poll::Ready(None);
            }
            self.turn = inner.hearing.wait(waker);
            Poll::Pending
        })
    }
}

impl<E: Endpoint> Drop for Hearing<'_, '_, E> {
    fn drop(&mut self) {
        self.transfers.with(|inner, loose| inner.hearing.leave(self.turn, loose));
    }
}
