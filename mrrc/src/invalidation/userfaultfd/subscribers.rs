//! The caches that one userfaultfd serves.
//!
//! The kernel lets one userfaultfd watch a mapping, so caches over the same memory share one. Each has a *subscription*, and
//! the monitor's thread tells all of them of every change. All flags are up before a message is read, and the flag of a
//! cache stays up until this cache has struck out the read changes. A cache whose lock is taken keeps its changes in
//! its subscription, and no other cache waits for it.
//!
//! The thread holds the lock of the list while it tells. So no holder of that lock allocates, frees or unmaps: new
//! elements are made before, and old ones dropped after. A cache that subscribes while flags are up finds its own up
//! too: otherwise a range that the table calls watched could change unnoticed before the next message.
//!
//! A cache that panics while it is told is struck out, and the others go on: it is not called again, and its flag, once
//! raised, stays up.

use super::super::{Change, Reports};
use super::changes::Pending;
use super::lock;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Caches that share one userfaultfd, at most.
pub(super) const MOST_SUBSCRIBERS: usize = 256;

pub(super) struct Subscribers(Mutex<State>);

struct State {
    /// Never grows beyond the room that it was made with.
    list: Vec<Subscriber>,
    next: u64,
    /// Whether messages are being read that the subscribers do not have yet.
    raised: bool,
}

struct Subscriber {
    number: u64,
    reports: Arc<dyn Reports>,
    raised: bool,
    /// Changes that were read and that it has not been told of.
    pending: Pending,
    /// It panicked, and is not called any more. Its flag is left up, so that nothing is served without its lock.
    broken: bool,
}

impl Subscribers {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { list: Vec::with_capacity(MOST_SUBSCRIBERS), next: 1, raised: false }))
    }

    /// From now on this cache is told. Returns the number of its subscription.
    pub(super) fn add(&self, reports: Arc<dyn Reports>) -> io::Result<u64> {
        let mut subscriber = Subscriber { number: 0, reports, raised: false, pending: Pending::new(), broken: false };
        let mut state = lock(&self.0);
        if state.list.len() == MOST_SUBSCRIBERS {
            drop(state);
            let why = format!("{MOST_SUBSCRIBERS} caches share it already; open another with `Userfaultfd::new`");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, format!("start of userfaultfd: {why}")));
        }
        subscriber.number = state.next;
        state.next += 1;
        let number = subscriber.number;
        if state.raised {
            subscriber.call(|reports| reports.raise());
            subscriber.raised = true;
        }
        state.list.push(subscriber);
        Ok(number)
    }

    /// This cache is told no more: no report is under way when this returns. A change being dealt with is waited for,
    /// but not longer than that.
    pub(super) fn remove(&self, number: u64, longest: Duration) {
        let asked = Instant::now();
        let left = loop {
            let mut state = lock(&self.0);
            let Some(place) = state.list.iter().position(|subscriber| subscriber.number == number) else { return };
            let subscriber = &state.list[place];
            if !subscriber.raised || subscriber.broken || asked.elapsed() > longest {
                break state.list.swap_remove(place);
            }
            drop(state);
            thread::sleep(Duration::from_micros(50));
        };
        // With the lock free again.
        drop(left);
    }

    /// Flags go up, where they are not.
    pub(super) fn raise(&self) {
        let mut state = lock(&self.0);
        state.raised = true;
        for subscriber in state.list.iter_mut().filter(|subscriber| !subscriber.raised) {
            subscriber.call(|reports| reports.raise());
            subscriber.raised = true;
        }
    }

    /// Tells every cache of these changes and of those that it was not told of before. The flag of a cache that was told
    /// goes down. False if some cache could not be told, because its lock is taken: call this again soon.
    pub(super) fn tell(&self, changes: &[Change]) -> bool {
        let mut state = lock(&self.0);
        state.raised = false;
        let mut all = true;
        for subscriber in state.list.iter_mut().filter(|subscriber| !subscriber.broken) {
            all &= subscriber.tell(changes);
        }
        all
    }

    /// Returns whether some cache has so much pending that another session may be too much for it.
    pub(super) fn is_full(&self) -> bool {
        lock(&self.0).list.iter().any(|subscriber| !subscriber.broken && subscriber.pending.is_full())
    }
}

impl Subscriber {
    /// Tells the cache of these changes and of what is pending, and lowers its flag. False if its lock is taken: then they
    /// are pending.
    fn tell(&mut self, changes: &[Change]) -> bool {
        let Self { reports, pending, broken, .. } = self;
        let mut apply = |changes: &[Change]| call(reports, broken, |reports| reports.apply(changes)) != Some(false);
        // Mostly nothing is pending.
        let is_told = pending.is_empty() && (changes.is_empty() || apply(changes));
        if !is_told {
            changes.iter().for_each(|&change| pending.push(change));
            if !pending.tell(apply) {
                return false;
            }
        }
        if self.raised && !self.broken {
            // Also if that panics: it is not tried twice.
            self.raised = false;
            self.call(|reports| reports.lower());
        }
        true
    }

    /// Nothing of a cache that has panicked, now or before.
    fn call<T>(&mut self, call: impl FnOnce(&dyn Reports) -> T) -> Option<T> {
        self::call(&self.reports, &mut self.broken, call)
    }
}

/// Nothing of a cache that is broken. One that panics is broken from now on.
fn call<T>(reports: &Arc<dyn Reports>, broken: &mut bool, call: impl FnOnce(&dyn Reports) -> T) -> Option<T> {
    if *broken {
        return None;
    }
    let answer = catch_unwind(AssertUnwindSafe(|| call(&**reports)));
    *broken = answer.is_err();
    // The panic's content is not freed: the monitor's thread does not free.
    answer.map_err(std::mem::forget).ok()
}

impl fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscribers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invalidation::ChangeKind;
    use crate::range::PageRange;
    use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};

    #[derive(Default)]
    struct Told {
        raised: AtomicI64,
        changes: AtomicU64,
        busy: AtomicBool,
        panics: AtomicBool,
    }

    impl Reports for Told {
        fn raise(&self) {
            self.raised.fetch_add(1, SeqCst);
        }

        fn apply(&self, changes: &[Change]) -> bool {
            assert!(!self.panics.load(SeqCst), "on purpose");
            let free = !self.busy.load(SeqCst);
            self.changes.fetch_add(if free { changes.len() as u64 } else { 0 }, SeqCst);
            free
        }

        fn lower(&self) {
            self.raised.fetch_sub(1, SeqCst);
        }
    }

    impl Told {
        fn counts(&self) -> (i64, u64) {
            (self.raised.load(SeqCst), self.changes.load(SeqCst))
        }
    }

    const CHANGE: [Change; 1] = [Change { range: PageRange::EVERYTHING, kind: ChangeKind::Gone }];

    fn two() -> (Subscribers, [Arc<Told>; 2], [u64; 2]) {
        let subscribers = Subscribers::new();
        let told = [Arc::<Told>::default(), Arc::default()];
        let numbers = [&told[0], &told[1]].map(|told| subscribers.add(told.clone()).unwrap());
        (subscribers, told, numbers)
    }

    #[test]
    fn a_busy_cache_is_told_later_and_no_other_waits() {
        let (subscribers, told, _) = two();
        told[1].busy.store(true, SeqCst);
        subscribers.raise();
        assert!(!subscribers.tell(&CHANGE));
        assert_eq!([told[0].counts(), told[1].counts()], [(0, 1), (1, 0)]);
        assert!(!subscribers.tell(&[]));
        assert_eq!([told[0].counts(), told[1].counts()], [(0, 1), (1, 0)]);
        told[1].busy.store(false, SeqCst);
        assert!(subscribers.tell(&[]));
        assert_eq!([told[0].counts(), told[1].counts()], [(0, 1), (0, 1)]);
    }

    #[test]
    fn who_comes_while_flags_are_up_has_his_own_up() {
        let (subscribers, ..) = two();
        subscribers.raise();
        let late = Arc::<Told>::default();
        subscribers.add(late.clone()).unwrap();
        assert_eq!(late.counts(), (1, 0));
        assert!(subscribers.tell(&CHANGE));
        assert_eq!(late.counts(), (0, 1));
    }

    #[test]
    fn each_cache_is_told_of_each_change_once() {
        let (subscribers, told, _) = two();
        let other = [Change { range: PageRange::between(1, 2), kind: ChangeKind::Discarding }];
        told[1].busy.store(true, SeqCst);
        subscribers.raise();
        assert!(!subscribers.tell(&CHANGE));
        subscribers.raise();
        assert_eq!([told[0].counts().0, told[1].counts().0], [1, 1]);
        told[1].busy.store(false, SeqCst);
        assert!(subscribers.tell(&other));
        assert_eq!([told[0].counts(), told[1].counts()], [(0, 2), (0, 2)]);
    }

    #[test]
    fn panicking_subscriber_stays_flagged() {
        let (subscribers, told, numbers) = two();
        told[0].panics.store(true, SeqCst);
        for round in 1..3 {
            subscribers.raise();
            assert!(subscribers.tell(&CHANGE), "no cache waits for it");
            assert_eq!([told[0].counts(), told[1].counts()], [(1, 0), (0, round)]);
            // He is not asked again.
            told[0].panics.store(false, SeqCst);
        }
        subscribers.remove(numbers[0], Duration::from_secs(60));
        assert_eq!(Arc::strong_count(&told[0]), 1);
    }

    #[test]
    fn departed_subscriber_hears_nothing() {
        let (subscribers, told, numbers) = two();
        subscribers.remove(numbers[0], Duration::ZERO);
        subscribers.remove(numbers[0], Duration::ZERO);
        subscribers.raise();
        assert_eq!([told[0].counts().0, told[1].counts().0], [0, 1]);
        // A flag that stays up too long is no reason to stay.
        subscribers.remove(numbers[1], Duration::from_millis(1));
        for _ in 0..MOST_SUBSCRIBERS {
            subscribers.add(told[0].clone()).unwrap();
        }
        let error = subscribers.add(told[0].clone()).unwrap_err().to_string();
        assert!(error.contains("Userfaultfd::new"), "{error}");
    }
}
