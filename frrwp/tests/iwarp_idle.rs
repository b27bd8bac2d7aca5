//! Connections that have nothing to do take nothing: no wake-ups, and one descriptor each.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

#[path = "common/process.rs"]
mod process;

use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::MESSAGE;
use process::{descriptors, sleeps};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

/// One at a time: both look at the whole process.
static ALONE: Mutex<()> = Mutex::new(());

const CONNECTIONS: usize = 100;
const SOON: Duration = Duration::from_secs(30);
/// How long an end waits before it speaks again.
const IDLE: Duration = Duration::from_secs(8);

/// Returns the cost of a second in which nothing happens. Something may go on in one second, and in the next.
fn quietest_second() -> u64 {
    let second = || {
        let before = sleeps();
        std::thread::sleep(Duration::from_secs(1));
        // This thread's own.
        (sleeps() - before).saturating_sub(1)
    };
    let mut least = second();
    for _ in 0..5 {
        if least <= 5 {
            break;
        }
        least = least.min(second());
    }
    least
}

/// Returns the next message's length; `None` at the end of the connection, or at this time.
fn next_message(endpoint: &mut IwarpEndpoint, until: Option<u64>) -> Option<usize> {
    let mut message = [0; MESSAGE];
    loop {
        match endpoint.poll(&mut message) {
            Some(Completion::Message { length }) => return Some(length),
            Some(Completion::Flushed) => return None,
            Some(_) => {}
            None if until.is_some_and(|until| until <= endpoint.now()) => return None,
            None => endpoint.wait(until),
        }
    }
}

/// Connections with a thread each that waits at either end, after a message each way.
fn idle(passive: bool) {
    let _alone = ALONE.lock();
    let options = IwarpOptions { passive, set_up: SOON, ..IwarpOptions::default() };
    let [near, far] = [(); 2].map(|()| IwarpDomain::new(options).unwrap());
    let mut listener = IwarpListener::bind(&far, "iwarp:127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", listener.address().unwrap());
    let before = descriptors();
    let ready = Arc::new(Barrier::new(2 * CONNECTIONS + 1));
    let mut threads = Vec::new();
    for _ in 0..CONNECTIONS {
        let (near, address) = (near.clone(), address.clone());
        let connecting = std::thread::spawn(move || iwarp::connect(&near, &address, 8).unwrap());
        let accepted = listener.accept(8, Some(SOON)).unwrap();
        for (mut endpoint, speaks) in [(connecting.join().unwrap(), true), (accepted, false)] {
            let ready = Arc::clone(&ready);
            threads.push(std::thread::spawn(move || {
                if speaks {
                    endpoint.send(b"hello").unwrap();
                    assert_eq!(next_message(&mut endpoint, None), Some(5));
                } else {
                    assert_eq!(next_message(&mut endpoint, None), Some(5));
                    endpoint.send(b"there").unwrap();
                }
                ready.wait();
                if speaks {
                    let until = endpoint.now() + IDLE.as_nanos() as u64;
                    assert_eq!(next_message(&mut endpoint, Some(until)), None);
                    endpoint.send(b"bye").unwrap();
                }
                assert_eq!(next_message(&mut endpoint, None), Some(3), "it slept for long, and hears all the same");
                let _ = endpoint.send(b"bye");
            }));
        }
    }
    ready.wait();
    let woken = quietest_second();
    println!("{woken} wake-ups in a second by {CONNECTIONS} connections, with both ends in this process");
    let held = descriptors() - before;
    println!("{held} descriptors for {} ends", 2 * CONNECTIONS);
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(woken <= 5, "{woken}");
    // The domains' threads have a buffer each.
    assert!(held <= 2 * CONNECTIONS + 4, "{held}");
}

#[test]
fn idle_connections_wake_nothing() {
    idle(false);
}

#[test]
fn idle_passive_connections_wake_nothing() {
    idle(true);
}
