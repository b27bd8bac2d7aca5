//! Registrations in progress: their tickets, their owners, and the threads that wait for them.

use crate::regions::RegionId;
use rustc_hash::FxHashMap;

/// The state of a region: a [`RegionState`](crate::RegionState), with the facts that the core does not know. The states that
/// follow are the reclaimer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    Absent,
    Registering {
        ticket: u64,
        /// The thread that registers it: see `thread_id.rs`.
        owner: u32,
        /// Memory changed meanwhile, so it will not be cached.
        changed: bool,
    },
    Cached {
        watched: bool,
    },
    Retired {
        watched: bool,
        /// The memory changed, or it is for one lease: it is never cached again. If not, the core may keep it after all.
        is_final: bool,
    },
}

impl Entry {
    pub(crate) fn is_registered(self) -> bool {
        matches!(self, Self::Cached { .. } | Self::Retired { .. })
    }

    /// Returns whether look-ups must never find the region.
    pub(crate) fn is_changed(self) -> bool {
        matches!(self, Self::Registering { changed: true, .. } | Self::Retired { is_final: true, .. })
    }
}

/// Groups of threads that wait for tickets, by their regions; those that wait for anything are in the first. So the end of a
/// registration wakes those that wait for it, and few others. A power of two.
pub(super) const GROUPS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

/// Groups of threads to be woken, a bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use = "threads sleep until they are woken"]
pub(crate) struct Wakes(u64);

impl Wakes {
    /// The group of threads that wait for anything.
    const ANYTHING: Self = Self(1);

    /// Returns the group of threads that wait for a ticket of this region.
    fn of(id: RegionId) -> Self {
        // The last regions of requests that are cut alike follow each other by strides.
        let mixed = (id.index() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(1 << (mixed >> (64 - GROUPS.ilog2())))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the numbers of the groups.
    pub(super) fn groups(self) -> impl Iterator<Item = usize> {
        (0..GROUPS).filter(move |group| self.0 & 1 << group != 0)
    }

    fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Registrations in progress. Owns an entry for each region, the numbers of tickets, the groups of threads that wait, and
/// the threads that began a request and do something else before they finish it.
#[derive(Default)]
pub(crate) struct InFlight {
    entries: Vec<Entry>,
    next: u64,
    waiting: Wakes,
    /// The groups of tickets that ended since threads were last woken.
    ended: Wakes,
    /// How many requests each has begun.
    beginners: FxHashMap<u32, u32>,
}

impl InFlight {
    pub(crate) fn entry(&self, id: RegionId) -> Entry {
        self.entries.get(id.index()).copied().unwrap_or(Entry::Absent)
    }

    /// Returns how many regions there can be an entry of.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn set(&mut self, id: RegionId, entry: Entry) {
        if self.entries.len() <= id.index() {
            self.entries.resize(id.index() + 1, Entry::Absent);
        }
        self.entries[id.index()] = entry;
    }

    /// Removes the entry of a region, and returns it.
    pub(super) fn remove(&mut self, id: RegionId) -> Entry {
        let Some(entry) = self.entries.get_mut(id.index()) else { return Entry::Absent };
        let before = std::mem::replace(entry, Entry::Absent);
        if let Entry::Registering { .. } = before {
            self.ended.add(Wakes::of(id));
        }
        before
    }

    /// Issues a ticket for a region that this thread registers.
    pub(crate) fn begin(&mut self, id: RegionId, owner: u32) {
        self.next += 1;
        self.set(id, Entry::Registering { ticket: self.next, owner, changed: false });
    }

    /// Issues a ticket in the place of the one before: threads that wait for that find that it is gone.
    pub(crate) fn begin_anew(&mut self, id: RegionId, owner: u32) {
        self.ended.add(Wakes::of(id));
        self.begin(id, owner);
    }

    /// Notes that a region is registered: for look-ups, or for one lease.
    pub(super) fn set_registered(&mut self, id: RegionId, is_cached: bool, watched: bool) {
        self.ended.add(Wakes::of(id));
        self.set(id, if is_cached { Entry::Cached { watched } } else { Entry::Retired { watched, is_final: true } });
    }

    /// Notes that the memory of a region changed. Returns the entry before, if it was not [changed](Entry::is_changed). Allocates
    /// nothing.
    pub(super) fn set_changed(&mut self, id: RegionId) -> Option<Entry> {
        let entry = self.entries.get_mut(id.index())?;
        let before = *entry;
        *entry = match before {
            Entry::Absent => return None,
            Entry::Registering { ticket, owner, .. } => Entry::Registering { ticket, owner, changed: true },
            Entry::Cached { watched } | Entry::Retired { watched, .. } => Entry::Retired { watched, is_final: true },
        };
        (!before.is_changed()).then_some(before)
    }

    /// Retires a cached region. Returns whether it is registered.
    pub(super) fn retire(&mut self, id: RegionId) -> bool {
        let entry = self.entry(id);
        if let Entry::Cached { watched } = entry {
            self.entries[id.index()] = Entry::Retired { watched, is_final: false };
        }
        entry.is_registered()
    }

    /// Makes a retired region cached again. Returns false if that is final, or it is not registered.
    pub(super) fn keep(&mut self, id: RegionId) -> bool {
        let entry = self.entry(id);
        if let Entry::Retired { watched, is_final: false } = entry {
            self.entries[id.index()] = Entry::Cached { watched };
        }
        entry.is_registered() && !entry.is_changed()
    }

    /// Returns whether the registration of this ticket is still in progress.
    pub(crate) fn is_in_progress(&self, id: RegionId, number: u64) -> bool {
        matches!(self.entry(id), Entry::Registering { ticket, .. } if ticket == number)
    }

    /// Notes a request that a thread began and does not finish yet.
    pub(crate) fn add_beginner(&mut self, thread: u32) {
        *self.beginners.entry(thread).or_default() += 1;
    }

    pub(crate) fn remove_beginner(&mut self, thread: u32) {
        if let Some(begun) = self.beginners.get_mut(&thread) {
            *begun -= 1;
            if *begun == 0 {
                self.beginners.remove(&thread);
            }
        }
    }

    /// Returns whether the thread has begun a request that it does not finish yet: then it must wait for no other.
    pub(crate) fn is_beginner(&self, thread: u32) -> bool {
        self.beginners.contains_key(&thread)
    }

    /// Notes a thread that waits, for a ticket of this region or for anything. Returns its group.
    pub(super) fn add_waiter(&mut self, ticket_of: Option<RegionId>) -> usize {
        let group = ticket_of.map_or(Wakes::ANYTHING, Wakes::of);
        self.waiting.add(group);
        group.0.trailing_zeros() as usize
    }

    /// Returns the groups of threads that wait for anything, or for a ticket that ended. The caller wakes them.
    #[inline]
    pub(crate) fn take_waiters(&mut self) -> Wakes {
        let wakes = self.waiting.0 & (self.ended.0 | Wakes::ANYTHING.0);
        self.ended = Wakes::default();
        self.waiting.0 &= !wakes;
        Wakes(wakes)
    }

    /// Returns all groups of threads that wait. The caller wakes them.
    pub(crate) fn take_all_waiters(&mut self) -> Wakes {
        self.ended = Wakes::default();
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn ended_tickets_wake_those_that_wait_for_them() {
        let mut in_flight = InFlight::default();
        let [one, other] = [3, 4].map(RegionId::of_index);
        in_flight.begin(one, 0);
        in_flight.begin(other, 0);
        let _ = in_flight.take_waiters();
        let groups = [Some(one), Some(other), None].map(|ticket| in_flight.add_waiter(ticket));
        let woken = |wakes: Wakes| groups.map(|group| wakes.groups().any(|woken| woken == group));
        in_flight.set_registered(one, true, true);
        assert_eq!(woken(in_flight.take_waiters()), [true, false, true]);
        assert!(in_flight.take_waiters().is_empty(), "they were woken");
        in_flight.begin_anew(other, 1);
        assert_eq!(woken(in_flight.take_waiters()), [false, true, false], "the old ticket is gone");
        for ticket in [Some(one), None] {
            in_flight.add_waiter(ticket);
        }
        in_flight.begin(one, 0);
        in_flight.remove(one);
        assert_eq!(woken(in_flight.take_waiters()), [true, false, true]);
        in_flight.add_waiter(Some(other));
        assert_eq!(woken(in_flight.take_all_waiters()), [false, true, false]);
    }

    #[test]
    #[cfg(not(any(loom, shuttle)))]
    fn strides_of_regions_are_of_many_groups() {
        for stride in [1, 2, 16, 64, 1024] {
            let groups = (0..64).map(|nth| Wakes::of(RegionId::of_index(stride * nth)).0).fold(0, |all, one| all | one);
            assert!(groups.count_ones() > 16, "{stride}: {groups:b}");
        }
    }

    #[test]
    fn thread_is_a_beginner_until_all_is_finished() {
        let mut in_flight = InFlight::default();
        (0..2).for_each(|_| in_flight.add_beginner(7));
        in_flight.remove_beginner(7);
        assert!(in_flight.is_beginner(7) && !in_flight.is_beginner(8));
        in_flight.remove_beginner(7);
        assert!(!in_flight.is_beginner(7));
    }
}
