//! Registrations in progress: their tickets, their owners, and the threads that wait for them.

use crate::regions::RegionId;

/// The state's knowledge of a region besides the core's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    Absent,
    /// Being registered, under this ticket. Stale: memory changed meanwhile, so it will not be cached.
    Registering {
        ticket: u64,
        stale: bool,
        /// The thread that registers it: see `thread_id.rs`.
        owner: u32,
    },
    /// Registered. Stale: look-ups must not find it.
    Registered {
        stale: bool,
        watched: bool,
    },
}

impl Entry {
    /// Returns whether look-ups must not find the region.
    pub(super) fn is_stale(self) -> bool {
        matches!(self, Self::Registering { stale: true, .. } | Self::Registered { stale: true, .. })
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

    pub(super) fn set(&mut self, id: RegionId, entry: Entry) {
        if self.entries.len() <= id.index() {
            self.entries.resize(id.index() + 1, Entry::Absent);
        }
        self.entries[id.index()] = entry;
    }

    /// Removes the entry of a region, and returns it.
    pub(super) fn remove(&mut self, id: RegionId) -> Entry {
        self.entries.get_mut(id.index()).map_or(Entry::Absent, |entry| std::mem::replace(entry, Entry::Absent))
    }

    /// Issues a ticket for a region that this thread registers.
    pub(super) fn begin(&mut self, id: RegionId, owner: u32) {
        self.next += 1;
        self.set(id, Entry::Registering { ticket: self.next, stale: false, owner });
    }

    /// Replaces the ticket: threads that wait for the old one find that it is gone.
    pub(crate) fn renew(&mut self, id: RegionId) {
        self.next += 1;
        let next = self.next;
        match self.entries.get_mut(id.index()) {
            Some(Entry::Registering { ticket, .. }) => *ticket = next,
            _ => unreachable!("{id:?} is being registered"),
        }
    }

    /// Marks a region as changed. Returns what it was, if it was not marked before. Allocates nothing.
    pub(super) fn mark_stale(&mut self, id: RegionId) -> Option<Entry> {
        let entry = self.entries.get_mut(id.index())?;
        let before = *entry;
        match entry {
            Entry::Absent => return None,
            Entry::Registering { stale, .. } | Entry::Registered { stale, .. } => *stale = true,
        }
        (!before.is_stale()).then_some(before)
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
