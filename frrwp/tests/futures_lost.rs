//! Futures with waits that end otherwise than by their events: each has the end that came, and no other waits longer for it.
#![allow(unsafe_code, reason = "lends memory to engines, and forks")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

#[path = "common/ends.rs"]
mod ends;
#[path = "common/place.rs"]
mod place;

use ends::Ends;
use frrwp::engine::Engine;
use frrwp::engine::future::{Connection, Driver, ReadError};
use frrwp::fabric::Connector;
use frrwp::handshake::{Limits, RECEIVES, SendError, Side};
use place::{Place, SECOND, Woken, poll_once};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

#[test]
fn a_message_that_was_never_sent_is_an_error() {
    let place = Place::new(SECOND);
    let [one, _other] = place.transfers(Limits::default());
    // All credits but the last go on what the peer does not answer: the engine keeps messages for want of one.
    let writes: Vec<_> = (0..16).map(|_| one.open_write(vec![1; 10], b"").unwrap()).collect();
    let mut kept: Vec<_> = (0..3).map(|_| one.send_message(b"kept")).collect();
    assert!(kept.iter_mut().all(|said| poll_once(said).is_pending()));
    one.disconnect();
    while !one.is_closed() {
        place.network.step(u64::MAX);
        one.progress();
    }
    for said in &mut kept {
        let said = poll_once(said);
        assert!(matches!(said, Poll::Ready(Err(SendError::Disconnected))), "{said:?}");
    }
    drop((kept, writes));
}

#[test]
fn messages_wait_in_the_order_of_first_polls() {
    let place = Place::new(1_000);
    let [one, other] = place.transfers(Limits::default());
    let hear = || match poll_once(&mut Box::pin(other.recv_message())) {
        Poll::Ready(text) => text,
        Poll::Pending => None,
    };
    let mut late = one.send_message(b"late");
    let mut early: Vec<_> = (0..20).map(|_| one.send_message(b"early")).collect();
    early.retain_mut(|said| poll_once(said).is_pending());
    assert!(!early.is_empty(), "the peer's application takes nothing");
    assert!(poll_once(&mut late).is_pending());
    let mut heard = Vec::new();
    while heard.len() < 21 {
        place.network.step(u64::MAX);
        one.progress();
        heard.extend(hear());
    }
    assert_eq!(heard.pop().unwrap(), b"late");
    assert!(heard.iter().all(|text| text == b"early"));
    assert!(matches!(poll_once(&mut late), Poll::Ready(Ok(()))));
    drop((early, late));
}

#[test]
fn a_cancelled_read_wakes_its_task() {
    let place = Place::new(SECOND);
    let [one, _other] = place.transfers(Limits { reads: 1, ..Limits::default() });
    let source = vec![7; 64];
    let from = place.key(&source);
    let first = one.read_remote(vec![0; 64], from);
    let mut waits = one.read_remote(vec![0; 64], from);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut waits).poll(&mut Context::from_waker(&waker)).is_pending());
    waits.cancel();
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "its task may not be the one that cancels");
    let Poll::Ready(ended) = poll_once(&mut waits) else { panic!("its buffer is free") };
    assert!(ended.buffer.is_some() && matches!(ended.result, Err(ReadError::Cancelled)));
    drop(first);
}

#[test]
fn a_dropped_hearer_wakes_another() {
    let place = Place::new(1_000);
    let [one, other] = place.transfers(Limits::default());
    let wakers = [(); 2].map(|()| Arc::new(Woken::default()));
    let woken = || wakers.each_ref().map(|woken| woken.0.load(Ordering::SeqCst));
    let [mut first, mut last] = [(); 2].map(|()| Box::pin(other.recv_message()));
    for (hears, woken) in [&mut first, &mut last].into_iter().zip(&wakers) {
        let waker = Waker::from(Arc::clone(woken));
        assert!(hears.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert!(matches!(poll_once(&mut one.send_message(b"news")), Poll::Ready(Ok(()))));
    while place.network.step(u64::MAX) {
        other.progress();
    }
    assert_eq!(woken(), [0, 1], "one is woken for one message");
    drop(last);
    assert_eq!(woken(), [1, 1]);
    assert!(matches!(poll_once(&mut first), Poll::Ready(Some(text)) if text == b"news"));
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the waker's mistake");
    }
}

#[test]
fn a_waker_that_panics_keeps_no_other_asleep() {
    let place = Place::new(1_000);
    let [one, _other] = place.transfers(Limits::default());
    let woken = Arc::new(Woken::default());
    let mut hears = [(); 3].map(|()| Box::pin(one.recv_message()));
    let wakers = [Arc::clone(&woken).into(), Arc::new(Panics).into(), Arc::clone(&woken).into()];
    for (hears, waker) in hears.iter_mut().zip(&wakers) {
        assert!(hears.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    one.disconnect();
    while place.network.step(u64::MAX) {}
    let panicked = catch_unwind(AssertUnwindSafe(|| one.progress())).unwrap_err();
    assert_eq!(panicked.downcast_ref(), Some(&"the waker's mistake"));
    assert_eq!(woken.0.load(Ordering::SeqCst), 2);
    assert!(hears.iter_mut().all(|hears| matches!(poll_once(hears), Poll::Ready(None))));
}

/// A child drops copies: the connection, and its bell, are its parent's.
#[test]
fn a_forked_child_ends_no_connection() {
    for address in ["iwarp:127.0.0.1:0".to_owned(), format!("shm:@frrwp-lost-forks-{}", std::process::id())] {
        let ends = Ends::new(&address);
        let mut listener = ends.listen(&address);
        let [near, far] = ends.pair(&mut listener, RECEIVES);
        let limits = Limits::default();
        // SAFETY: the caches hear of nothing, and the buffer's memory is used by no other before they are dropped.
        let [near, far] = unsafe {
            let near = Engine::new(&ends.caches[0], near, Side::Connecting, limits);
            let far = Engine::new(&ends.caches[1], far, Side::Accepting, limits);
            [near, far].map(|engine| Connection::new(engine))
        };
        let near = Arc::new(near);
        let mut driver = Driver::new().unwrap();
        driver.add(Arc::clone(&near)).unwrap();
        while driver.turn() {}
        // The engine has a buffer: where it is dropped, it waits until the connection is flushed.
        std::mem::forget(near.open_write(ends.domains[0].memory(100).unwrap(), b"").unwrap());
        // SAFETY: the child drops its copies, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs is ended by the signal.
            unsafe { libc::alarm(60) };
            drop((driver, near, far));
            // SAFETY: `_exit` ends this child without destructors.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local integer that the call may write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{address}: the child ended by itself");
        std::thread::scope(|scope| {
            scope.spawn(|| driver.run());
            let said = near.block_on(near.send_message(b"it stands"));
            let heard = far.block_on(far.recv_message());
            near.disconnect();
            assert!(said.is_ok() && heard.as_deref() == Some(b"it stands"), "{address}: {said:?}, {heard:?}");
        });
    }
}
