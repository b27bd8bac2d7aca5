//! Runs a future on the thread that asks for it, where there is no runtime.

use crate::fabric::poller::{Bell, Poller};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Runs a future to its end. Without a wake-up, `wait` sleeps until there may be news and does all that can be done
/// then, which wakes the tasks that it concerns.
///
/// ```
/// use frrwp::engine::future::block_on;
/// use std::cell::Cell;
/// use std::future::poll_fn;
/// use std::task::{Poll, Waker};
///
/// let (waker, slept) = (Cell::new(None), Cell::new(0));
/// let future = poll_fn(|context| {
///     waker.set(Some(context.waker().clone()));
///     if slept.get() < 3 { Poll::Pending } else { Poll::Ready("done") }
/// });
/// let said = block_on(future, || {
///     slept.set(slept.get() + 1);
///     waker.take().map(Waker::wake);
/// });
/// assert_eq!((said, slept.get()), ("done", 3));
/// ```
pub fn block_on<F: Future>(future: F, mut wait: impl FnMut()) -> F::Output {
    let mut future = pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // One part of it may have been ended by another part's poll: nothing more need come for it.
        if !woken.0.swap(false, Ordering::AcqRel) {
            wait();
        }
    }
}

/// Whether the future is to be polled again at once.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Threads that wait for the same connection. One of them at a time sleeps for it, the leader; the others, and all of them where
/// a driver has the connection, until they are told.
#[derive(Default)]
pub(super) struct Sleepers {
    has_leader: Mutex<bool>,
    told: Condvar,
}

/// Tells a thread that its future is to be polled again.
struct Rouse {
    woken: AtomicBool,
    sleepers: Arc<Sleepers>,
    bell: Bell,
}

impl Wake for Rouse {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        let has_leader = self.sleepers.lock();
        self.sleepers.told.notify_all();
        // The leader's own may be this; the next leader looks first.
        if *has_leader {
            self.bell.ring();
        }
    }
}

impl Sleepers {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.has_leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a future to its end. `progress` moves the connection on, which the poller has, if nothing else does.
    pub(super) fn run<F: Future>(
        self: &Arc<Self>,
        future: F,
        bell: &Bell,
        poller: Option<&Poller>,
        progress: impl Fn(),
    ) -> F::Output {
        let mut future = pin!(future);
        let rouse = Rouse { woken: AtomicBool::new(false), sleepers: Arc::clone(self), bell: bell.clone() };
        let rouse = Arc::new(rouse);
        let waker = Waker::from(Arc::clone(&rouse));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            // After a sleep it is polled in any case: over a simulated network the other ends may be its own.
            if !rouse.woken.swap(false, Ordering::AcqRel) {
                match poller {
                    Some(poller) => self.sleep(poller, &rouse.woken, &progress),
                    None => self.follow(|_| !rouse.woken.load(Ordering::Acquire)),
                }
            }
        }
    }

    /// Sleeps until something has come for the connection, or a thread was told.
    fn sleep(&self, poller: &Poller, woken: &AtomicBool, progress: impl Fn()) {
        let mut has_leader = self.lock();
        if *has_leader {
            drop(has_leader);
            return self.follow(|has_leader| has_leader && !woken.load(Ordering::Acquire));
        }
        // Told since it looked, when there was another leader, or none.
        if woken.load(Ordering::Acquire) {
            return;
        }
        *has_leader = true;
        drop(has_leader);
        poller.wait(None);
        while poller.next().is_some() {}
        *self.lock() = false;
        self.told.notify_all();
        progress();
    }

    /// Sleeps while this holds of whether there is a leader.
    fn follow(&self, waits: impl Fn(bool) -> bool) {
        let mut has_leader = self.lock();
        while waits(*has_leader) {
            has_leader = self.told.wait(has_leader).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
