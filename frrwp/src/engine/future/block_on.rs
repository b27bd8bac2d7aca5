//! Runs a future on the thread that asks for it, where there is no runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Runs a future to its end. Where nothing has woken it, `wait` sleeps until there may be news and does what can be done
/// then, which wakes whom it concerns.
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
