//! What the two applications say to each other, as futures.

use super::{Inner, Transfers};
use crate::fabric::Endpoint;
use crate::handshake::Unsaid;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

impl<'cache, E: Endpoint> Transfers<'cache, E> {
    /// Says something to the peer's application, as soon as there is room: see [`Engine::say`](crate::engine::Engine::say).
    /// Two that are under way are said in any order.
    pub fn say<'a>(&'a self, bytes: &'a [u8]) -> impl Future<Output = Result<(), Unsaid>> + use<'a, 'cache, E> {
        self.talk(move |inner: &mut Inner<'cache, E>| match inner.engine.say(bytes) {
            Err(Unsaid::Full) => None,
            said => Some(said),
        })
    }

    /// What the peer's application says next; `None` once the connection has come to its end and all was taken.
    pub fn hear<'a>(&'a self) -> impl Future<Output = Option<Vec<u8>>> + use<'a, 'cache, E> {
        self.talk(|inner: &mut Inner<'cache, E>| {
            let mut said = Vec::new();
            if inner.engine.heard(&mut said) { Some(Some(said)) } else { inner.closed.then_some(None) }
        })
    }

    fn talk<F>(&self, attempt: F) -> Talking<'_, 'cache, E, F> {
        let name = &mut self.0.borrow_mut().next_asking;
        *name += 1;
        Talking { transfers: self, name: *name, attempt }
    }
}

/// Waits for what an attempt gives, which is made again whenever something was said, or there may be room to.
struct Talking<'a, 'cache, E: Endpoint, F> {
    transfers: &'a Transfers<'cache, E>,
    name: u64,
    attempt: F,
}

impl<'cache, E: Endpoint, T, F: FnMut(&mut Inner<'cache, E>) -> Option<T> + Unpin> Future
    for Talking<'_, 'cache, E, F>
{
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        this.transfers.progress();
        let waker = context.waker().clone();
        let mut inner = this.transfers.0.borrow_mut();
        if let Some(outcome) = (this.attempt)(&mut inner) {
            return Poll::Ready(outcome);
        }
        let before = inner.talking.insert(this.name, waker);
        drop(inner);
        drop(before);
        Poll::Pending
    }
}

impl<E: Endpoint, F> Drop for Talking<'_, '_, E, F> {
    fn drop(&mut self) {
        let waker = self.transfers.0.borrow_mut().talking.remove(&self.name);
        drop(waker);
    }
}
