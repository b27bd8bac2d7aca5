//! A connection that is being made on a thread of its own.

use super::attempt::{Attempt, Flag};
use rustix::fd::{AsFd, BorrowedFd};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A connection that is being made, on a thread of its own: it ends by its deadline, whatever the peer does.
///
/// [`wait`](Self::wait) for it, poll its descriptor, which can be read once it has ended, or await it. Dropping it cancels it: the
/// thread closes what it has and ends.
#[must_use = "dropping it cancels the connection"]
pub struct Connecting<T, X> {
    shared: Arc<Shared<T, X>>,
    stop: Arc<Flag>,
    /// The process that owns it: a forked child has a copy, and the flag of its parent.
    process: u32,
}

struct Shared<T, X> {
    done: Flag,
    state: Mutex<State<T, X>>,
}

struct State<T, X> {
    /// Until it is taken. A panic of the thread is passed on.
    result: Option<Result<Result<T, X>, Box<dyn Any + Send>>>,
    waker: Option<Waker>,
    has_ended: bool,
}

impl<T, X> Shared<T, X> {
    fn state(&self) -> MutexGuard<'_, State<T, X>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static, X: Send + 'static> Connecting<T, X> {
    /// Begins, with a deadline.
    ///
    /// # Errors
    /// There are no descriptors or no thread for it.
    pub(super) fn begin(
        within: Duration,
        connect: impl FnOnce(&Attempt) -> Result<T, X> + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(Flag::new()?);
        let state = State { result: None, waker: None, has_ended: false };
        let shared = Arc::new(Shared { done: Flag::new()?, state: Mutex::new(state) });
        let attempt = Attempt::stopped_by(within, Arc::clone(&stop));
        let theirs = Arc::downgrade(&shared);
        mrrc::spawn_own_thread("connect", move || {
            let result = catch_unwind(AssertUnwindSafe(|| connect(&attempt)));
            let Some(shared) = theirs.upgrade() else { return };
            let mut state = shared.state();
            (state.result, state.has_ended) = (Some(result), true);
            let waker = state.waker.take();
            drop(state);
            shared.done.raise();
            waker.into_iter().for_each(Waker::wake);
        })?;
        Ok(Self { shared, stop, process: std::process::id() })
    }
}

impl<T, X> Connecting<T, X> {
    /// Waits for the connection, until its deadline at most. Returns it, or why it failed.
    ///
    /// # Errors
    /// The provider's.
    pub fn wait(self) -> Result<T, X> {
        self.shared.done.wait();
        let result = self.shared.state().result.take();
        taken(result)
    }

    /// Returns whether it has ended, so that [`wait`](Self::wait) returns at once.
    pub fn has_ended(&self) -> bool {
        self.shared.state().has_ended
    }
}

#[expect(clippy::panic, reason = "as every future that is polled after its end")]
fn taken<T, X>(result: Option<Result<Result<T, X>, Box<dyn Any + Send>>>) -> Result<T, X> {
    match result {
        Some(Ok(result)) => result,
        Some(Err(panic)) => resume_unwind(panic),
        None => panic!("polled after it had ended"),
    }
}

impl<T, X> Future for Connecting<T, X> {
    type Output = Result<T, X>;

    /// # Panics
    /// It has returned its result before.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, X>> {
        let mut state = self.shared.state();
        if state.has_ended {
            let result = state.result.take();
            drop(state);
            return Poll::Ready(taken(result));
        }
        let before = state.waker.replace(context.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<T, X> AsFd for Connecting<T, X> {
    /// Can be read once it has ended. Read nothing from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.done.as_fd()
    }
}

impl<T, X> Drop for Connecting<T, X> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.stop.raise();
        }
    }
}

impl<T, X> fmt::Debug for Connecting<T, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("has_ended", &self.has_ended()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_last_waker_is_woken_once() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mut connecting = Connecting::begin(Duration::from_secs(3600), move |_| {
            let _ = wait.recv();
            Err::<(), _>("no")
        })
        .unwrap();
        let wakers = [0, 1].map(|_| Arc::new(Woken::default()));
        for waker in &wakers {
            let waker = Waker::from(Arc::clone(waker));
            assert!(Pin::new(&mut connecting).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(!connecting.has_ended());
        go.send(()).unwrap();
        connecting.shared.done.wait();
        while wakers[1].0.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(wakers[0].0.load(Ordering::SeqCst), 0);
        assert!(connecting.has_ended());
        let waker = Waker::from(Arc::clone(&wakers[0]));
        assert_eq!(Pin::new(&mut connecting).poll(&mut Context::from_waker(&waker)), Poll::Ready(Err("no")));
    }

    #[test]
    #[should_panic(expected = "the provider's mistake")]
    fn a_panic_is_passed_on() {
        let connecting = Connecting::<(), ()>::begin(Duration::ZERO, |_| panic!("the provider's mistake")).unwrap();
        let _ = connecting.wait();
    }

    #[test]
    fn a_drop_stops_the_attempt() {
        let (tell, told) = std::sync::mpsc::channel();
        let connecting = Connecting::begin(Duration::from_secs(3600), move |attempt| {
            let stopped = !attempt.pause(Duration::from_secs(3600));
            let _ = tell.send(stopped);
            Err::<(), _>(())
        })
        .unwrap();
        drop(connecting);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    #[test]
    #[expect(unsafe_code, reason = "forks")]
    fn a_child_that_was_forked_stops_nothing() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let connecting = Connecting::begin(Duration::from_secs(3600), move |_| {
            let _ = wait.recv();
            Err::<(), _>(())
        })
        .unwrap();
        // SAFETY: the child drops its copy, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs is ended by the signal.
            unsafe { libc::alarm(60) };
            drop(connecting);
            // SAFETY: `_exit` ends this child without destructors.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local integer that the call may write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child ended by itself");
        assert!(!Attempt::stopped_by(Duration::from_secs(3600), Arc::clone(&connecting.stop)).is_over());
        go.send(()).unwrap();
        assert_eq!(connecting.wait(), Err(()));
    }
}
