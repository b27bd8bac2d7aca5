//! Registrations in progress: their tickets, their owners, and the threads that wait for them.

use crate::regions::RegionId;

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

/// Registrations in progress. Owns an entry for each region, the numbers of tickets, the count of threads that wait, and
/// the list of threads that began a request and do something else before they finish it.
#[derive(Default)]
pub(crate) struct InFlight {
    entries: Vec<Entry>,
    next: u64,
    waiting: u32,
    /// One entry a request.
    beginners: Vec<u32>,
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
        self.entries.get_mut(id.index()).map_or(Entry::Absent, |entry| std::mem::replace(entry, Entry::Absent))
    }

    /// Issues a ticket for a region that this thread registers. It replaces the one before: threads that wait for that find that it
    /// is gone.
    pub(crate) fn begin(&mut self, id: RegionId, owner: u32) {
        self.next += 1;
        self.set(id, Entry::Registering { ticket: self.next, owner, changed: false });
    }

    /// Notes that a region is registered: for look-ups, or for one lease.
    pub(super) fn set_registered(&mut self, id: RegionId, is_cached: bool, watched: bool) {
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
        self.beginners.push(thread);
    }

    pub(crate) fn remove_beginner(&mut self, thread: u32) {
        if let Some(place) = self.beginners.iter().position(|&other| other == thread) {
            self.beginners.swap_remove(place);
        }
    }

    /// Returns whether the thread has begun a request that it does not finish yet: then it must wait for no other.
    pub(crate) fn is_beginner(&self, thread: u32) -> bool {
        self.beginners.contains(&thread)
    }

    /// Notes a thread that waits for progress.
    pub(super) fn add_waiter(&mut self) {
        self.waiting += 1;
    }

    /// Returns whether threads wait for progress. The caller wakes them all.
    pub(crate) fn take_waiters(&mut self) -> bool {
        std::mem::take(&mut self.waiting) > 0
    }
}
