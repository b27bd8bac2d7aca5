//! How the background thread of a cache is woken, and how it hears of leases that end.
//!
//! A notification is remembered until the thread takes it, so none is lost, and the thread needs no period. To notify takes no
//! lock that a fork could leave taken in the child.
//!
//! The end of a lease is a store into its slot, and after that store the cache may be gone. So the state that a release
//! may touch afterwards is never freed: a notifier without a cache goes to a [pool](Pool) and serves the next one. A
//! late notification then wakes that cache for nothing.

use crate::pool::Pool;
use crate::shim::sync::Mutex;
use crate::shim::sync::atomic::{AtomicBool, Ordering};
use event::Event;
use std::sync::TryLockError;
use std::time::Duration;

/// See the [module](self).
pub(crate) struct Notifier {
    number: usize,
    event: Event,
    /// Names of regions of which a lease ended.
    ended: Mutex<Vec<u32>>,
    /// There were more, which were not noted.
    overlooked: AtomicBool,
}

static POOL: Pool<Notifier> = Pool::new();

/// The most names that are noted: while nothing is awaited, no thread takes names that came too early.
const MOST_ENDED: usize = 1 << 16;

impl Notifier {
    /// One that no other cache has.
    pub(crate) fn claim() -> &'static Self {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = || NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let notifier = POOL.take().unwrap_or_else(|| {
            let (event, ended) = (Event::new(), Mutex::new(Vec::new()));
            Box::leak(Box::new(Self { number: number(), event, ended, overlooked: AtomicBool::new(false) }))
        });
        // Of the last cache that had it. Where another thread is at it now, this one is told too much.
        if let Ok(mut ended) = notifier.ended.try_lock() {
            ended.clear();
        }
        notifier
    }

    /// The cache is gone.
    pub(crate) fn give_up(&'static self) {
        POOL.put([self]);
    }

    /// Returns a small number, different from those of all other caches that there are now.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// There is something to do.
    pub(crate) fn notify_one(&self) {
        self.event.set();
    }

    /// A lease of the region ended. Never waits: the lock may have been held at a fork.
    pub(crate) fn lease_ended(&self, name: u32) {
        match self.ended.try_lock() {
            Ok(mut ended) if ended.len() < MOST_ENDED => ended.push(name),
            // Release, with the acquire of the looking thread: the slot is seen empty.
            Ok(_) | Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {
                self.overlooked.store(true, Ordering::Release);
            }
        }
        self.notify_one();
    }

    /// Appends the names of regions of which a lease ended since the last time. True: there were others too.
    pub(crate) fn take_ended(&self, names: &mut Vec<u32>) -> bool {
        if let Ok(mut ended) = self.ended.lock() {
            names.append(&mut ended);
        }
        self.overlooked.load(Ordering::Relaxed) && self.overlooked.swap(false, Ordering::Acquire)
    }

    /// Sleeps until a notification, at most so long; not at all if there was one since the last time. For one thread.
    pub(crate) fn wait(&self, longest: Option<Duration>) {
        self.event.wait(longest);
    }
}

#[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
mod event {
    #![expect(unsafe_code, reason = "one system call")]

    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    const UNSET: u32 = 0;
    const SET: u32 = 1;
    /// Not set, and a thread sleeps until it is.
    const AWAITED: u32 = 2;

    /// Set by any thread, awaited by one.
    pub(crate) struct Event(AtomicU32);

    impl Event {
        pub(crate) fn new() -> Self {
            Self(AtomicU32::new(UNSET))
        }

        pub(crate) fn set(&self) {
            // Release, with the acquire of the waiting thread: it sees what was done before.
            if self.0.swap(SET, Ordering::AcqRel) == AWAITED {
                futex(&self.0, libc::FUTEX_WAKE, 1, std::ptr::null());
            }
        }

        pub(crate) fn wait(&self, longest: Option<Duration>) {
            if self.0.compare_exchange(UNSET, AWAITED, Ordering::Acquire, Ordering::Acquire).is_ok() {
                let time = longest.map(|longest| libc::timespec {
                    tv_sec: longest.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                    tv_nsec: longest.subsec_nanos().into(),
                });
                let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                futex(&self.0, libc::FUTEX_WAIT, AWAITED, time);
            }
            self.0.swap(UNSET, Ordering::AcqRel);
        }
    }

    /// Its answer is not needed: the waiting thread looks at the word afterwards, and waits again another time.
    fn futex(word: &AtomicU32, operation: libc::c_int, value: u32, time: *const libc::timespec) {
        // SAFETY: the word and the time live as long as the call, which reads them and writes nothing.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, time) };
    }
}

#[cfg(not(all(target_os = "linux", not(any(loom, shuttle, miri)))))]
mod event {
    use crate::shim::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// Set by any thread, awaited by one.
    pub(crate) struct Event {
        is_set: Mutex<bool>,
        set: Condvar,
    }

    impl Event {
        pub(crate) fn new() -> Self {
            Self { is_set: Mutex::new(false), set: Condvar::new() }
        }

        pub(crate) fn set(&self) {
            if let Ok(mut is_set) = self.is_set.lock() {
                *is_set = true;
            }
            self.set.notify_one();
        }

        pub(crate) fn wait(&self, longest: Option<Duration>) {
            let Ok(is_set) = self.is_set.lock() else { return };
            if *is_set {
                drop(is_set);
            } else if let Some(longest) = longest {
                _ = crate::shim::wait(&self.set, is_set, longest);
            } else {
                drop(self.set.wait(is_set));
            }
            if let Ok(mut is_set) = self.is_set.lock() {
                *is_set = false;
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_notification_is_remembered() {
        let notifier = Notifier::claim();
        notifier.notify_one();
        notifier.notify_one();
        // Would hang.
        notifier.wait(None);
        notifier.wait(Some(Duration::from_micros(1)));
        std::thread::scope(|threads| {
            let sleeper = threads.spawn(|| notifier.wait(None));
            notifier.notify_one();
            sleeper.join().unwrap();
        });
        notifier.give_up();
    }

    #[test]
    fn what_nobody_could_note_is_said_to_be_missing() {
        let notifier = Notifier::claim();
        notifier.lease_ended(3);
        let held = notifier.ended.lock().unwrap();
        notifier.lease_ended(4);
        drop(held);
        let mut names = Vec::new();
        assert!(notifier.take_ended(&mut names));
        assert_eq!(names, [3]);
        assert!(!notifier.take_ended(&mut names));
        notifier.give_up();
    }

    #[test]
    fn as_many_names_are_noted_as_there_is_room_for() {
        let notifier = Notifier::claim();
        (0..=MOST_ENDED as u32).for_each(|name| notifier.lease_ended(name));
        let mut names = Vec::new();
        assert!(notifier.take_ended(&mut names), "there was one more");
        assert_eq!(names.len(), MOST_ENDED);
        notifier.give_up();
    }

    #[test]
    fn caches_that_there_are_have_different_numbers() {
        let [one, other] = [Notifier::claim(), Notifier::claim()];
        assert_ne!(one.number(), other.number());
        one.give_up();
        other.give_up();
    }
}
