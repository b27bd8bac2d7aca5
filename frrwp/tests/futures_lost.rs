//! Futures whose waits end otherwise than by what they wait for: each has the end that came, and no other waits longer for it.
#![allow(unsafe_code, reason = "reads memory of a simulated peer")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/place.rs"]
mod place;

use frrwp::handshake::{Limits, Unsaid};
use place::{Place, SECOND, poll_once};
use std::task::Poll;

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
