//! An attempt to connect: its deadline, and how it is stopped.
//!
//! All that setting a connection up waits for, it waits for here: sockets, time, calls of the system that cannot be interrupted. So one
//! deadline covers all of it, and one flag stops it.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A deadline that is as good as none: the system counts no further on every machine.
const FAR: Duration = Duration::from_secs(86_400 * 365);

/// Returns the time that is so far away.
pub(super) fn deadline(within: Duration) -> Instant {
    Instant::now() + within.min(FAR)
}

/// Something that happens once. Its descriptor can be read from then on.
#[derive(Debug)]
pub(super) struct Flag(OwnedFd);

impl Flag {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn raise(&self) {
        // It cannot be full: it is raised a few times.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits for as long as it takes.
    pub(super) fn wait(&self) {
        while !poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None).is_ok_and(|ready| ready > 0) {}
    }

    fn is_raised(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Flag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waited {
    /// One of the descriptors has an event.
    Ready,
    /// The time of this wait is over.
    Paused,
    /// The attempt is over: its deadline has come, or it was stopped.
    Over,
}

/// The bound on all waits of one attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    within: Duration,
    until: Instant,
    stop: Option<Arc<Flag>>,
}

impl Attempt {
    /// One that begins now, and is not stopped before its time.
    pub(super) fn new(within: Duration) -> Self {
        Self { within, until: deadline(within), stop: None }
    }

    /// One that this flag stops.
    pub(super) fn stopped_by(within: Duration, stop: Arc<Flag>) -> Self {
        Self { stop: Some(stop), ..Self::new(within) }
    }

    /// The same attempt with an equal share of the time that is left, for the first of so many tries.
    #[cfg_attr(
        not(any(test, all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))),
        expect(dead_code, reason = "what is tried one after the other is of devices")
    )]
    pub(super) fn share(&self, tries: usize) -> Self {
        let share = self.left() / u32::try_from(tries).unwrap_or(u32::MAX).max(1);
        Self { until: self.until.min(deadline(share)), ..self.clone() }
    }

    /// Returns how long it may take in all, for errors.
    pub(super) fn within(&self) -> Duration {
        self.within
    }

    /// Returns the time that is left: none if it was stopped.
    pub(super) fn left(&self) -> Duration {
        if self.stop.as_ref().is_some_and(|stop| stop.is_raised()) {
            return Duration::ZERO;
        }
        self.until.saturating_duration_since(Instant::now())
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Sleeps until one of the descriptors has an event that is asked for, at most for a time.
    pub(super) fn wait_for(&self, files: &[(BorrowedFd<'_>, PollFlags)], time: Option<Duration>) -> Waited {
        let paused = time.map(deadline);
        let mut watched: Vec<_> = files.iter().map(|&(file, events)| PollFd::from_borrowed_fd(file, events)).collect();
        watched.extend(self.stop.as_ref().map(|stop| PollFd::new(&**stop, PollFlags::IN)));
        loop {
            if self.is_over() {
                return Waited::Over;
            }
            let now = Instant::now();
            let until = paused.map_or(self.until, |paused| paused.min(self.until));
            let left = until.saturating_duration_since(now);
            let left =
                Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
            let ready = poll(&mut watched, Some(&left)).unwrap_or(0);
            if ready > 0 && watched[..files.len()].iter().any(|file| !file.revents().is_empty()) {
                return Waited::Ready;
            }
            if paused.is_some_and(|paused| paused <= Instant::now()) && !self.is_over() {
                return Waited::Paused;
            }
        }
    }

    /// Sleeps until a descriptor has such an event. Returns false if the attempt is over first.
    pub(super) fn wait(&self, file: impl AsFd, events: PollFlags) -> bool {
        self.wait_for(&[(file.as_fd(), events)], None) == Waited::Ready
    }

    /// Sleeps for a time. Returns false if the attempt is over first.
    pub(super) fn pause(&self, time: Duration) -> bool {
        self.wait_for(&[], Some(time)) == Waited::Paused
    }

    /// Does something on another thread that cannot be interrupted. Returns None if the attempt is over first: then the thread
    /// drops the result when there is one.
    ///
    /// # Errors
    /// There is no thread or no descriptor for it.
    #[cfg_attr(
        not(any(test, all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))),
        expect(dead_code, reason = "what cannot be interrupted is of devices")
    )]
    pub(super) fn outlast<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (done, slot) = (Arc::new(Flag::new()?), Arc::new(Mutex::new(None)));
        let (theirs, into) = (Arc::clone(&done), Arc::downgrade(&slot));
        mrrc::spawn_own_thread(name, move || {
            let result = work();
            match into.upgrade() {
                Some(slot) => *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result),
                None => drop(result),
            }
            theirs.raise();
        })?;
        self.wait(&*done, PollFlags::IN);
        let result = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_wait_ends_by_event_time_deadline_or_stop() {
        let (one, other) = UnixStream::pair().unwrap();
        let flag = Arc::new(Flag::new().unwrap());
        let attempt = Attempt::stopped_by(HOUR, Arc::clone(&flag));
        assert!(attempt.wait(&one, PollFlags::OUT) && attempt.pause(Duration::from_millis(1)));
        let short = Attempt::new(Duration::from_millis(1));
        assert!(!short.wait(&one, PollFlags::IN) && short.is_over() && !short.pause(HOUR));
        std::thread::scope(|scope| {
            scope.spawn(|| flag.raise());
            assert!(!attempt.wait(&one, PollFlags::IN), "it was stopped");
        });
        assert!(attempt.is_over() && attempt.share(1).is_over() && !attempt.pause(HOUR));
        drop(other);
    }

    #[test]
    fn deadlines_that_are_too_far_are_no_panic() {
        let attempt = Attempt::new(Duration::MAX);
        assert!(!attempt.is_over() && attempt.share(0).left() > HOUR && attempt.share(4).left() < FAR);
        assert_eq!(attempt.within(), Duration::MAX);
    }

    #[test]
    fn work_that_hangs_is_left_to_its_thread() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        struct Told(std::sync::mpsc::Sender<()>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let attempt = Attempt::new(Duration::from_millis(10));
        let hangs = attempt.outlast("hangs", move || {
            let _ = wait.recv();
            Told(tell)
        });
        assert!(hangs.unwrap().is_none());
        go.send(()).unwrap();
        told.recv_timeout(HOUR).expect("the result is dropped by the thread");
        let attempt = Attempt::new(HOUR);
        assert_eq!(attempt.outlast("ends", || 7).unwrap(), Some(7));
    }
}
