//! Buffers of operations under way, and what their futures are told.

use super::{Buffer, Finished, Held, Loose, TWICE};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::task::{Poll, Waker};

/// Operations by name, with the errors that they end in.
pub(super) struct Table<N, X>(FxHashMap<N, Open<X>>);

struct Open<X> {
    /// None where nothing ever frees it: the peer may write it.
    buffer: Option<Held>,
    state: State<X>,
}

enum State<X> {
    Running(Option<Waker>),
    /// Its time was over, which its future has not been told, and the fabric may be at the buffer.
    Over(X),
    Ended(Result<u64, X>),
    /// Its future is gone, or was told that its time was over.
    Abandoned,
}

impl<N, X> Default for Table<N, X> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<N: Hash + Eq, X> Table<N, X> {
    pub(super) fn insert(&mut self, name: N, buffer: Held, waker: Option<Waker>) {
        self.0.insert(name, Open { buffer: Some(buffer), state: State::Running(waker) });
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the future's result so far.
    ///
    /// # Panics
    /// If it was told all, or asks for a buffer of another type than it gave.
    pub(super) fn poll<B: Buffer>(&mut self, name: N, waker: Waker, loose: &mut Loose) -> Poll<Finished<B, X>> {
        let open = self.0.get_mut(&name).expect(TWICE);
        match std::mem::replace(&mut open.state, State::Abandoned) {
            State::Running(before) => {
                loose.wakers.extend(before);
                open.state = State::Running(Some(waker));
                Poll::Pending
            }
            State::Over(error) => Poll::Ready(Finished { buffer: None, result: Err(error) }),
            State::Ended(result) => {
                let buffer = self.0.remove(&name).and_then(|open| open.buffer);
                let buffer = buffer.map(|buffer| *buffer.downcast::<B>().expect("the type that was handed over"));
                Poll::Ready(Finished { buffer, result })
            }
            State::Abandoned => panic!("{TWICE}"),
        }
    }

    /// The operation has ended, and its buffer is free; or `held`, and never is.
    pub(super) fn ended(&mut self, name: N, result: Result<u64, X>, held: bool, loose: &mut Loose) {
        let Some(open) = self.0.get_mut(&name) else { return };
        if held {
            // Neither the caller gets it back nor the allocator.
            std::mem::forget(open.buffer.take());
        }
        match std::mem::replace(&mut open.state, State::Abandoned) {
            State::Running(waker) => {
                open.state = State::Ended(result);
                loose.woken.extend(waker);
            }
            State::Over(error) => open.state = State::Ended(Err(error)),
            State::Ended(first) => open.state = State::Ended(first),
            State::Abandoned => loose.buffers.extend(self.0.remove(&name).and_then(|open| open.buffer)),
        }
    }

    /// The operation's time is over, and its buffer is not free.
    pub(super) fn is_over(&mut self, name: N, error: X, loose: &mut Loose) {
        let Some(open) = self.0.get_mut(&name) else { return };
        if let State::Running(waker) = &mut open.state {
            loose.woken.extend(waker.take());
            open.state = State::Over(error);
        }
    }

    /// The operation's future is gone. Whether the operation is to be cancelled.
    pub(super) fn abandon(&mut self, name: N, loose: &mut Loose) -> bool {
        let Some(open) = self.0.get_mut(&name) else { return false };
        match std::mem::replace(&mut open.state, State::Abandoned) {
            State::Running(waker) => {
                loose.wakers.extend(waker);
                true
            }
            State::Over(_) | State::Abandoned => false,
            State::Ended(_) => {
                loose.buffers.extend(self.0.remove(&name).and_then(|open| open.buffer));
                false
            }
        }
    }
}
