//! Lets clients in: a thread that accepts, and a thread for each connection.
//!
//! A connection that ends by a fault of the server's own ends alone: its thread is given up, what it has of the stores goes back,
//! and the fault is counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use frrwp::fabric::Listener;

use super::connection::{Connection, RECEIVES};
use super::pinned::ROUND;
use super::providers::Fabric;
use super::state::FabricState;
use crate::log;
use crate::metrics::{add, count};
use crate::session::{is_accepting, is_stopping};

/// A connection's stack. Large values are elsewhere.
const STACK: usize = 256 << 10;
/// The pause if its listener fails again at once: it is broken, and no client comes by it.
const PAUSE: Duration = Duration::from_millis(50);

/// Places for connections, all fabrics together: each has room for its counts in what the sessions share.
#[derive(Debug)]
pub(super) struct Seats(Mutex<Vec<usize>>);

/// A place, until it is dropped.
#[derive(Debug)]
struct Seat {
    number: usize,
    of: Arc<Seats>,
}

impl Seats {
    /// So many, by numbers from there.
    pub(super) fn new(first: usize, count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((first..first + count).rev().collect())))
    }

    fn take(self: &Arc<Self>) -> Option<Seat> {
        let number = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Seat { number, of: self.clone() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.of.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// Counts a connection as long as it is there.
struct Counted<'f>(&'f AtomicU64);

impl<'f> Counted<'f> {
    fn new(connections: &'f AtomicU64) -> Self {
        connections.fetch_add(1, Relaxed);
        Self(connections)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Starts to let clients in. The thread ends when the server stops, after those of its connections.
///
/// # Errors
///
/// No thread.
pub(super) fn start<F: Fabric>(
    state: Arc<FabricState<F>>,
    listener: impl Listener<Endpoint = F::Endpoint>,
    seats: Arc<Seats>,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(format!("{}-accept", F::NAME)).spawn(move || listen(&state, listener, &seats))
}

fn listen<F: Fabric>(
    state: &Arc<FabricState<F>>,
    mut listener: impl Listener<Endpoint = F::Endpoint>,
    seats: &Arc<Seats>,
) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let (mut refused, mut has_failed) = (0, false);
    while is_accepting(&state.shared) {
        let next = listener.next(RECEIVES, Some(ROUND));
        let fails_again = std::mem::replace(&mut has_failed, next.is_err()) && has_failed;
        match next {
            Ok(Some(endpoint)) => {
                threads.retain(|thread| !thread.is_finished());
                match seats.take() {
                    Some(seat) => threads.extend(serve(state, endpoint, seat)),
                    None => {
                        count(&state.counts.rejected_connections);
                        state.shared.log.warn(format_args!("{}: more than --fabric-connections: refused", F::NAME));
                    }
                }
            }
            Ok(None) => {}
            Err(why) => {
                count(&state.counts.rejected_connections);
                state.shared.log.warn(format_args!("{}: accepting a connection: {why}", F::NAME));
                if fails_again {
                    std::thread::sleep(PAUSE);
                }
            }
        }
        while let Some(source) = state.fabric.throttled() {
            log::print(format_args!(
                "{}: {source} reads by a tag that its connection never had: its guesses are limited to 64 a second",
                F::NAME
            ));
        }
        let now = listener.unset();
        if now > refused {
            add(&state.counts.rejected_connections, now - refused);
            let why = listener.last_unset().unwrap_or_default();
            state.shared.log.warn(format_args!(
                "{}: {} connections were not set up; the last: {why}",
                F::NAME,
                now - refused
            ));
        }
        refused = now;
    }
    // Where the server stops at once, its address is free only after its clients have gone; where it finishes, new clients go elsewhere.
    let listener = Some(listener).filter(|_| is_stopping(&state.shared));
    for thread in threads {
        let _ = thread.join();
    }
    drop(listener);
}

fn serve<F: Fabric>(state: &Arc<FabricState<F>>, endpoint: F::Endpoint, seat: Seat) -> Option<JoinHandle<()>> {
    let own = state.clone();
    let work = move || {
        let (state, seat) = (&*own, seat);
        let _counted = Counted::new(&state.connections);
        state.shared.log.detail(|| format!("{}: connection {} comes", F::NAME, seat.number));
        let served = catch_unwind(AssertUnwindSafe(|| Connection::new(state, endpoint, seat.number).run()));
        if served.is_err() {
            count(&state.counts.faults);
            log::print(format_args!("{}: a fault of the server's ended a connection; please report it", F::NAME));
        }
        state.shared.log.detail(|| format!("{}: connection {} goes", F::NAME, seat.number));
    };
    match Builder::new().name(format!("{}-client", F::NAME)).stack_size(STACK).spawn(work) {
        Ok(thread) => {
            count(&state.counts.total_connections);
            Some(thread)
        }
        Err(error) => {
            count(&state.counts.rejected_connections);
            state.shared.log.warn(format_args!("{}: a thread for a connection: {error}; refused", F::NAME));
            None
        }
    }
}
