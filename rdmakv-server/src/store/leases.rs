//! Leases: until when somebody may read a chunk without asking.
//!
//! A lease is on a chunk and lasts D and an eighth of D from its grant, in nanoseconds of the clock whose whole seconds
//! the store is told. A client counts D from the first sending of the request that the grant answers. That is before the
//! grant, so the reply may take any time: the lease need not be kept open until it is sent. A grant makes a lease longer,
//! never shorter.
//!
//! A leased chunk has one holder more, so whatever passes over chunks that are held passes over it, and its item's end
//! makes it *dead, not free*. [`Store::sweep`] frees what is dead when its leases have ended: once a second, at each
//! grant, and when memory is short. Who knows whole seconds only takes a lease as ended when these are past it.
//!
//! Where a fabric says that somebody may still be at a chunk whose leases are over ([`Exposure::is_open`]), it stays leased a little
//! longer.
//!
//! A key whose leased chunk died twice within one D gets no lease until it has been still for a D. Its chunks would only
//! pile up.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use foldhash::fast::FixedState;

use super::chunk::{Chunk, Id, LEASED, State};
#[cfg(doc)]
use super::exposure::Exposure;
use super::exposure::Extent;
use super::restless::Restless;
use super::{Handle, Held, Store};

/// The longest D.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Leases that may end at a grant, when memory is short, and at a tick.
const AT_A_GRANT: usize = 8;
pub(super) const WHEN_SHORT: usize = 256;
pub(super) const AT_A_TICK: usize = 1 << 13;

/// What part of a lease a chunk stays leased where somebody may still be at it.
const A_LITTLE: u64 = 32;

/// Of a class, chunks that may wait dead before eviction makes more of them so.
const WAITING: u32 = 64;

/// Nanoseconds of so many seconds.
pub(super) fn nanos(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000_000_000)
}

/// How long a lease of this D lasts on the side that grants it: an eighth longer.
pub fn lasting(duration: Duration) -> Duration {
    duration + duration / 8
}

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// The item is gone, or another is in its place.
    Gone,
    /// Its key changes too often.
    Restless,
    /// The chunk has too many holders, or the server ends.
    Closed,
}

/// What is leased.
#[derive(Debug)]
pub(super) struct Leases {
    /// D and its eighth, and D.
    lasting: u64,
    duration: u64,
    until: HashMap<Id, u64, FixedState>,
    /// One entry for each lease; where it was made longer, the entry still has an earlier end.
    ends: BinaryHeap<Reverse<(u64, Id)>>,
    classes: Vec<OfClass>,
    dead_bytes: u64,
    restless: Restless,
    /// The latest moment known.
    latest: u64,
    closed: bool,
    #[cfg(rdmakv_sabotage)]
    pub(super) planted: super::planted::Planted,
}

#[derive(Clone, Copy, Debug, Default)]
struct OfClass {
    living: u32,
    dead: u32,
}

impl Leases {
    pub(super) fn new(classes: usize, duration: Duration) -> Self {
        let duration = duration.min(LONGEST);
        Self {
            lasting: lasting(duration).as_nanos() as u64,
            duration: duration.as_nanos() as u64,
            until: HashMap::default(),
            ends: BinaryHeap::new(),
            classes: vec![OfClass::default(); classes],
            dead_bytes: 0,
            restless: Restless::default(),
            latest: 0,
            closed: false,
            #[cfg(rdmakv_sabotage)]
            planted: Default::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.until.is_empty()
    }
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }
    pub(super) fn living(&self, class: usize) -> u32 {
        self.classes[class].living
    }
    pub(super) fn dead(&self) -> u64 {
        self.classes.iter().map(|class| u64::from(class.dead)).sum()
    }
    pub(super) fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }
    pub(super) fn until(&self, id: Id) -> Option<u64> {
        self.until.get(&id).copied()
    }

    /// As if there had been no lease.
    #[cfg(rdmakv_sabotage)]
    pub(super) fn forget(&mut self, id: Id) -> Option<u64> {
        self.ends.retain(|&Reverse((_, other))| other != id);
        self.until.remove(&id)
    }

    /// A leased chunk has died.
    pub(super) fn died(&mut self, class: usize, bytes: usize) {
        self.classes[class].living -= 1;
        self.classes[class].dead += 1;
        self.dead_bytes += bytes as u64;
    }
}

impl Store {
    /// Leases an item just looked at, from now on; says until when. `now` is in nanoseconds.
    ///
    /// # Errors
    ///
    /// See [`NoLease`].
    pub fn lease(&mut self, handle: Handle, now: u64) -> Result<u64, NoLease> {
        let seconds = now / 1_000_000_000;
        self.flush_if_due(seconds);
        self.leases.latest = self.leases.latest.max(now);
        let id = handle.0;
        if !self.is_alive(id) || self.is_over(id, seconds) {
            return Err(NoLease::Gone);
        }
        if self.leases.closed {
            return Err(NoLease::Closed);
        }
        if !self.leases.restless.is_empty() {
            let (hash, version) = (self.hash(self.chunk(id).key()), self.chunk(id).version());
            if self.leases.restless.refuses(hash, version, now, self.leases.duration) {
                self.counters.leases_refused += 1;
                return Err(NoLease::Restless);
            }
        }
        let until = now.saturating_add(self.leases.lasting);
        if !self.lease_until(id, until) {
            return Err(NoLease::Closed);
        }
        self.counters.leases += 1;
        self.sweep(now, AT_A_GRANT);
        Ok(until)
    }

    /// As [`lease`](Self::lease), for a chunk that was held while its memory was registered and that may have died
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// See [`NoLease`].
    ///
    /// # Panics
    ///
    /// If another store lent it.
    pub fn expose(&mut self, held: &Held, now: u64) -> Result<u64, NoLease> {
        assert!(self.lent(held), "a chunk goes back to the store that lent it");
        self.lease(Handle(held.id), now)
    }

    /// Where the item just looked at lies.
    pub fn extent(&self, handle: Handle) -> Extent {
        self.extent_of(handle.0)
    }

    /// A lease that lasts at least until then; `false` if the chunk has as many holders as it can.
    fn lease_until(&mut self, id: Id, until: u64) -> bool {
        if let Some(before) = self.leases.until.get_mut(&id) {
            *before = until.max(*before);
            return true;
        }
        let chunk = Chunk::new(&self.arena, id);
        let holders = chunk.holders();
        if holders == 0xffff {
            return false;
        }
        chunk.set_holders(holders + 1);
        chunk.mark(LEASED);
        self.pages.leased(id, true);
        self.leases.classes[chunk.class()].living += 1;
        self.leases.until.insert(id, until);
        self.leases.ends.push(Reverse((until, id)));
        true
    }

    /// Ends the leases whose time is over, at most so many; says how many were. `now` is in nanoseconds.
    pub fn sweep(&mut self, now: u64, most: usize) -> usize {
        #[cfg(rdmakv_sabotage)]
        self.tell_early(now);
        let mut ended = 0;
        // One that was made longer is put back, which counts too: so the time is bounded.
        for _ in 0..most {
            let Some(&Reverse((end, id))) = self.leases.ends.peek() else { break };
            if end > now {
                break;
            }
            self.leases.ends.pop();
            let until = self.leases.until(id).unwrap_or(end);
            if until > now {
                self.leases.ends.push(Reverse((until, id)));
            } else if self.exposures.is_open(self.extent_of(id)) {
                let again = now + self.leases.lasting / A_LITTLE + 1;
                self.leases.until.insert(id, again);
                self.leases.ends.push(Reverse((again, id)));
            } else {
                self.leases.until.remove(&id);
                self.end_lease(id, now);
                ended += 1;
            }
        }
        ended
    }

    /// The last lease of a chunk has ended: nobody may read it without asking.
    fn end_lease(&mut self, id: Id, now: u64) {
        let extent = self.extent_of(id);
        self.exposures.ended(extent, now);
        self.unlease(id);
    }

    /// The chunk has a holder less, and is free if it was the last of a dead one.
    pub(super) fn unlease(&mut self, id: Id) {
        self.pages.leased(id, false);
        let dead = !self.is_alive(id);
        #[cfg(rdmakv_sabotage)]
        self.leases.planted.forget_late(id);
        let chunk = Chunk::new(&self.arena, id);
        chunk.unmark(LEASED);
        let class = &mut self.leases.classes[chunk.class()];
        if dead {
            class.dead -= 1;
            self.leases.dead_bytes -= chunk.size() as u64;
        } else {
            class.living -= 1;
        }
        let holders = chunk.holders() - 1;
        chunk.set_holders(holders);
        if dead {
            chunk.set_state(State::Dead);
            if holders == 0 {
                self.retire(id);
            }
        }
    }

    /// The key's leased chunk dies now; says whether that was too often.
    #[cold]
    pub(super) fn leased_dies(&mut self, hash: u64, now: u64) -> bool {
        let leases = &mut self.leases;
        leases.restless.died(hash, self.version, nanos(now).max(leases.latest), nanos(now + 1), leases.duration)
    }

    /// Between a leased chunk's death and the change of the index: tags go over to the new chunk where they can.
    #[cold]
    pub(super) fn hand_over(&mut self, old: Id, new: Id) {
        let Some(until) = self.leases.until(old) else { return };
        let (from, to) = (self.extent_of(old), self.extent_of(new));
        if self.exposures.replaced(&self.arena, from, to, &self.index) {
            // A chunk that is not published has no holders: there is room for this one.
            let leased = self.lease_until(new, until);
            debug_assert!(leased, "a new chunk can be leased");
        }
    }

    /// When nothing unleased is left in a class: the item leased longest ago is marked dead, so that nobody leases it
    /// again and its chunk comes free in the end.
    #[cold]
    pub(super) fn doom(&mut self, class: usize, now: u64) {
        use super::queues::{MAIN, SMALL};
        if self.leases.classes[class].living == 0 || self.leases.classes[class].dead >= WAITING {
            return;
        }
        let oldest = [MAIN, SMALL].into_iter().filter_map(|queue| self.queues[class].oldest(queue));
        let doomed = oldest.filter(|&id| !self.is_pinned(id)).filter_map(|id| Some((self.leases.until(id)?, id))).min();
        if let Some((_, id)) = doomed {
            self.counters.leases_doomed += 1;
            self.evict(id, now);
        }
    }

    /// Whether somebody holds the chunk who is no lease: then its item must stay in this very chunk or leave.
    pub(super) fn is_pinned(&self, id: Id) -> bool {
        let chunk = self.chunk(id);
        chunk.holders() > u32::from(chunk.marked(LEASED))
    }

    /// Items that are over and leased are dead when this returns, so that who is told that they are gone is right for
    /// all who read by themselves.
    pub(super) fn end_leased_items(&mut self, now: u64, over: impl Fn(&Self, Id) -> bool) {
        let ids: Vec<Id> = self.leases.until.keys().copied().collect();
        for id in ids {
            if self.is_alive(id) && over(self, id) {
                self.reclaim(id, now);
            }
        }
    }

    /// The end of one-sided reading: every item that is leased is dead when this returns, none is listed, and no other will be
    /// leased or listed.
    /// `now` is in seconds.
    pub fn close(&mut self, now: u64) {
        self.leases.closed = true;
        self.unlist_all();
        self.end_leased_items(now, |_, _| true);
    }
}
