//! Futures whose waits end otherwise than by what they wait for: each has the end that came, and no other waits longer for it.
#![allow(unsafe_code, reason = "reads memory of a simulated peer")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/place.rs"]
mod place;

use frrwp::engine::future::FetchError;
use frrwp::handshake::{Limits, Unsaid};
use place::{Place, SECOND, Woken, poll_once};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

#[test]
fn a_message_that_was_never_sent_is_an_error() {
    let place = Place::new(SECOND);
    let [one, _other] = place.transfers(Limits::default());
    // All credits but the last go on what the peer does not answer: the engine keeps messages for want of one.
    let writes: Vec<_> = (0..16).map(|_| one.write(vec![1; 10], b"").unwrap()).collect();
    let mut kept: Vec<_> = (0..3).map(|_| one.say(b"kept")).collect();
    assert!(kept.iter_mut().all(|said| poll_once(said).is_pending()));
    one.disconnect();
    while !one.is_closed() {
        place.network.step(u64::MAX);
        one.progress();
    }
    for said in &mut kept {
        let said = poll_once(said);
        assert!(matches!(said, Poll::Ready(Err(Unsaid::Disconnected))), "{said:?}");
    }
    drop((kept, writes));
}

#[test]
fn messages_wait_in_the_order_of_first_polls() {
    let place = Place::new(1_000);
    let [one, other] = place.transfers(Limits::default());
    let hear = || match poll_once(&mut Box::pin(other.hear())) {
        Poll::Ready(text) => text,
        Poll::Pending => None,
    };
    let mut late = one.say(b"late");
    let mut early: Vec<_> = (0..20).map(|_| one.say(b"early")).collect();
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
    let [one, _other] = place.transfers(Limits { fetches: 1, ..Limits::default() });
    let source = vec![7; 64];
    let from = place.key(&source);
    let first = one.fetch(vec![0; 64], from);
    let mut waits = one.fetch(vec![0; 64], from);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut waits).poll(&mut Context::from_waker(&waker)).is_pending());
    waits.cancel();
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "its task may not be the one that cancels");
    let Poll::Ready(ended) = poll_once(&mut waits) else { panic!("its buffer is free") };
    assert!(ended.buffer.is_some() && matches!(ended.result, Err(FetchError::Cancelled)));
    drop(first);
}
