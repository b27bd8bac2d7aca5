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
        /// The memory changed: without a lease its pins are [dead](super::dead_pins).
        is_dead: bool,
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

/// Why a region is never to be found again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// Its memory changed.
    Memory,
    /// The cache is emptied.
    Cache,
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

/// An entry in two bytes: its kind, and above it either what is said of a registered region or the place of a ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Packed(u16);

impl Packed {
    const KIND: u16 = 0b11;
    const ABSENT: Self = Self(0);
    /// The kinds. A bit turns a cached region into a retired one.
    const REGISTERING: u16 = 1;
    const CACHED: u16 = 2;
    const RETIRED: u16 = 3;
    const WATCHED: u16 = 1 << 2;
    const FINAL: u16 = 1 << 3;
    const DEAD: u16 = 1 << 4;
    const PLACE_SHIFT: u32 = 2;

    fn registering(place: u16) -> Self {
        Self(place << Self::PLACE_SHIFT | Self::REGISTERING)
    }

    fn cached(watched: bool) -> Self {
        Self(if watched { Self::CACHED | Self::WATCHED } else { Self::CACHED })
    }

    /// Retired for good, because the memory changed or it is for one lease.
    fn retired(watched: bool, is_dead: bool) -> Self {
        let watched = if watched { Self::WATCHED } else { 0 };
        Self(Self::RETIRED | Self::FINAL | watched | if is_dead { Self::DEAD } else { 0 })
    }

    /// Returns the place of its ticket, if it is being registered.
    fn place(self) -> Option<u16> {
        (self.0 & Self::KIND == Self::REGISTERING).then_some(self.0 >> Self::PLACE_SHIFT)
    }
}

/// The place of tickets that no array has a place for: see [`InFlight::more`]. The crate's own tests come so far.
const NO_PLACE: u16 = if cfg!(test) { 100 } else { u16::MAX >> Packed::PLACE_SHIFT };

/// The facts of [`Entry::Registering`].
#[derive(Clone, Copy)]
struct Ticket {
    number: u64,
    owner: u32,
    changed: Option<Gone>,
}

/// Registrations in progress. Owns an entry for each region, the tickets, the groups of threads that wait, and
/// the threads that began a request and do something else before they finish it.
#[derive(Default)]
pub(crate) struct InFlight {
    /// Two bytes for each region: few of them are being registered at a time.
    entries: Vec<Packed>,
    tickets: Vec<Ticket>,
    /// The places in `tickets` that are free.
    free: Vec<u16>,
    /// The tickets beyond those that have a place.
    more: FxHashMap<RegionId, Ticket>,
    next: u64,
    waiting: Wakes,
    /// The groups of tickets that ended since threads were last woken.
    ended: Wakes,
    /// How many requests each has begun.
    beginners: FxHashMap<u32, u32>,
}

impl InFlight {
    #[inline]
    pub(crate) fn entry(&self, id: RegionId) -> Entry {
        self.unpacked(id, self.packed(id))
    }

    /// Returns the regions from this index on that look-ups find and that are registered, by their index.
    pub(super) fn cached_from(&self, first: usize) -> impl Iterator<Item = RegionId> {
        let entries = self.entries.iter().enumerate().skip(first);
        let cached = entries.filter(|&(_, &Packed(word))| word & Packed::KIND == Packed::CACHED);
        cached.map(|(index, _)| RegionId::of_index(index))
    }

    #[inline]
    fn packed(&self, id: RegionId) -> Packed {
        self.entries.get(id.index()).copied().unwrap_or(Packed::ABSENT)
    }

    #[inline]
    fn unpacked(&self, id: RegionId, packed: Packed) -> Entry {
        let Packed(word) = packed;
        let (watched, is_final, is_dead) =
            (word & Packed::WATCHED != 0, word & Packed::FINAL != 0, word & Packed::DEAD != 0);
        match word & Packed::KIND {
            Packed::CACHED => Entry::Cached { watched },
            Packed::RETIRED => Entry::Retired { watched, is_final, is_dead },
            _ => match packed.place() {
                None => Entry::Absent,
                Some(place) => {
                    let ticket = if place == NO_PLACE { &self.more[&id] } else { &self.tickets[usize::from(place)] };
                    let &Ticket { number, owner, changed } = ticket;
                    Entry::Registering { ticket: number, owner, changed: changed.is_some() }
                }
            },
        }
    }

    /// Returns the ticket of a region that is being registered.
    #[inline]
    fn ticket(&mut self, id: RegionId, packed: Packed) -> Option<&mut Ticket> {
        let place = packed.place()?;
        if place == NO_PLACE { self.more.get_mut(&id) } else { self.tickets.get_mut(usize::from(place)) }
    }

    /// Returns how many regions there can be an entry of.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Gives a ticket a place.
    #[inline]
    fn place(&mut self, id: RegionId, ticket: Ticket) -> Packed {
        if let Some(place) = self.free.pop() {
            self.tickets[usize::from(place)] = ticket;
            return Packed::registering(place);
        }
        let place = self.tickets.len().min(usize::from(NO_PLACE)) as u16;
        if place == NO_PLACE {
            self.more.insert(id, ticket);
        } else {
            self.tickets.push(ticket);
        }
        Packed::registering(place)
    }

    /// Gives the place of a ticket back, if it was one's.
    #[inline]
    fn free(&mut self, id: RegionId, entry: Packed) {
        match entry.place() {
            None => {}
            Some(NO_PLACE) => _ = self.more.remove(&id),
            Some(place) => self.free.push(place),
        }
    }

    /// Removes the entry of a region, and returns it.
    pub(super) fn remove(&mut self, id: RegionId) -> Entry {
        let Some(entry) = self.entries.get_mut(id.index()) else { return Entry::Absent };
        let packed = std::mem::replace(entry, Packed::ABSENT);
        let before = self.unpacked(id, packed);
        if let Entry::Registering { .. } = before {
            self.ended.add(Wakes::of(id));
            self.free(id, packed);
        }
        before
    }

    /// Issues a ticket for a region that this thread registers.
    pub(crate) fn begin(&mut self, id: RegionId, owner: u32) {
        self.next += 1;
        let ticket = Ticket { number: self.next, owner, changed: None };
        if self.entries.len() <= id.index() {
            self.make_room(id.index() + 1);
        }
        if let Some(old) = self.ticket(id, self.entries[id.index()]) {
            *old = ticket;
            return;
        }
        self.entries[id.index()] = self.place(id, ticket);
    }

    /// Makes entries for so many regions. The array grows by an eighth.
    #[cold]
    fn make_room(&mut self, regions: usize) {
        let len = self.entries.len();
        if self.entries.capacity() < regions {
            self.entries.reserve_exact((len / 8 + 64).max(regions - len));
        }
        self.entries.resize(regions, Packed::ABSENT);
    }

    /// Issues a ticket in the place of the one before: threads that wait for that find that it is gone.
    pub(crate) fn begin_anew(&mut self, id: RegionId, owner: u32) {
        self.ended.add(Wakes::of(id));
        self.begin(id, owner);
    }

    /// Notes that a region is registered: for look-ups, or for one lease.
    pub(super) fn set_registered(&mut self, id: RegionId, is_cached: bool, watched: bool) {
        self.ended.add(Wakes::of(id));
        let before = self.entries[id.index()];
        let mut is_dead = || self.ticket(id, before).is_some_and(|ticket| ticket.changed == Some(Gone::Memory));
        let entry = if is_cached { Packed::cached(watched) } else { Packed::retired(watched, is_dead()) };
        self.entries[id.index()] = entry;
        self.free(id, before);
    }

    /// Notes that a region is never to be found again: its memory changed, or the cache is emptied. Returns the entry before, if it
    /// was not [changed](Entry::is_changed). Allocates nothing.
    pub(super) fn set_changed(&mut self, id: RegionId, why: Gone) -> Option<Entry> {
        let packed = self.packed(id);
        let before = self.unpacked(id, packed);
        match before {
            Entry::Absent => return None,
            Entry::Registering { .. } => {
                if let Some(ticket) = self.ticket(id, packed) {
                    ticket.changed.get_or_insert(why);
                }
            }
            Entry::Cached { watched } | Entry::Retired { watched, .. } => {
                self.entries[id.index()] = Packed::retired(watched, why == Gone::Memory);
            }
        }
        (!before.is_changed()).then_some(before)
    }

    /// Retires a cached region. Returns whether it is registered.
    pub(super) fn retire(&mut self, id: RegionId) -> bool {
        let Some(Packed(entry)) = self.entries.get_mut(id.index()) else { return false };
        let kind = *entry & Packed::KIND;
        if kind == Packed::CACHED {
            // As watched as it was, and not final.
            *entry |= Packed::RETIRED;
        }
        kind == Packed::CACHED || kind == Packed::RETIRED
    }

    /// Makes a retired region cached again. Returns false if that is final, or it is not registered.
    pub(super) fn keep(&mut self, id: RegionId) -> bool {
        let entry = self.entry(id);
        if let Entry::Retired { watched, is_final: false, .. } = entry {
            self.entries[id.index()] = Packed::cached(watched);
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
    fn entries_read_as_they_were_written() {
        let mut in_flight = InFlight::default();
        let ids: Vec<_> = (0..200).map(RegionId::of_index).collect();
        ids.iter().rev().for_each(|&id| in_flight.begin(id, id.raw()));
        let registering = |id: RegionId, ticket, changed| Entry::Registering { ticket, owner: id.raw(), changed };
        assert_eq!(in_flight.set_changed(ids[3], Gone::Memory), Some(registering(ids[3], 197, false)));
        assert_eq!(
            (in_flight.entry(ids[3]), in_flight.set_changed(ids[3], Gone::Memory)),
            (registering(ids[3], 197, true), None)
        );
        in_flight.begin_anew(ids[3], ids[3].raw());
        assert_eq!(in_flight.entry(ids[3]), registering(ids[3], 201, false));
        for (watched, &id) in [false, true].into_iter().zip(&ids) {
            in_flight.set_registered(id, true, watched);
            assert!(in_flight.entry(id) == Entry::Cached { watched } && in_flight.retire(id));
            assert_eq!(in_flight.entry(id), Entry::Retired { watched, is_final: false, is_dead: false });
            assert!(in_flight.keep(id) && in_flight.entry(id) == Entry::Cached { watched });
            assert_eq!(in_flight.set_changed(id, Gone::Memory), Some(Entry::Cached { watched }));
            assert!(!in_flight.keep(id) && in_flight.set_changed(id, Gone::Memory).is_none());
            assert_eq!(in_flight.remove(id), Entry::Retired { watched, is_final: true, is_dead: true });
            assert_eq!((in_flight.entry(id), in_flight.set_changed(id, Gone::Memory)), (Entry::Absent, None));
        }
        assert_eq!(in_flight.remove(ids[5]), registering(ids[5], 195, false));
        assert_eq!(in_flight.remove(ids[150]), registering(ids[150], 50, false));
        assert_eq!((in_flight.tickets.len(), in_flight.free.len(), in_flight.more.len()), (100, 1, 97));
        in_flight.begin(ids[150], ids[150].raw());
        for &id in &ids[..3] {
            in_flight.begin(id, 7);
        }
        assert_eq!(
            (in_flight.tickets.len(), in_flight.free.len(), in_flight.more.len()),
            (100, 0, 99),
            "places are used again"
        );
        assert!(
            ids[6..]
                .iter()
                .all(|&id| matches!(in_flight.entry(id), Entry::Registering { owner, .. } if owner == id.raw()))
        );
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
