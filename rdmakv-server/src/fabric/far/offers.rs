//! Offers: which client has which region of this server, in which state, until when.
//!
//! Pure: the driver passes the time, random secrets and the caller, and sends the answers. Each operation is idempotent, as its message
//! is: a request that is sent again has the outcome of the first one.
//!
//! A memory belongs to a login, and is open to one *owner* at a time: a process of a client, with any number of connections. Another
//! process opens it with the secret, once all connections of the former one are [detached](Offers::detach) and its procedures have ended.
//! Each connection was flushed, so nothing that the former owner sent can arrive later.
//!
//! A region moves from server A to server B like this. In brackets stands the state that [`Offers::list`] returns:
//!
//! ```text
//! A: live ── FREEZE ──► frozen ── DROP ──► moved ── some time ──► gone
//!      ▲                  │
//!      └────── THAW ──────┘   in a later epoch
//! B: copying ── last PULL, COMMIT ──► live [committed] ── MAP ──► live
//! ```
//!
//! A committed region is not believed by itself: until the map has come, its client may have gone back to A.

use super::places::Places;
use rdmakv_proto::far::messages::{ENTRIES_MAX, Entry, Refusal, Secret, State};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// Memories of a server at most. A login has half of what the others leave, as of regions.
const MEMORIES_MAX: usize = 4096;
/// Connections that are attached to a memory at most.
const CONNECTIONS_MAX: usize = 1024;

/// A server's far memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Settings {
    /// Regions.
    pub regions: u32,
    /// The longest time for which a memory is reserved.
    pub longest: Duration,
    /// How long a moved region is known.
    pub forward: Duration,
    /// How long a freed region is not used after access to it has ended.
    pub quarantine: Duration,
}

/// The sender of a request, and the time at which it came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller {
    /// The time.
    pub now: Duration,
    /// The login of the connection.
    pub login: u32,
    /// The connection. No two ever have the same number.
    pub connection: u64,
}

/// Regions that are to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Take<'a> {
    /// The memory.
    pub memory: u64,
    /// The first region.
    pub first: u32,
    /// How many.
    pub regions: u32,
    /// How many the memory has at all servers together; 0 if the client does not tell.
    pub total: u32,
    /// Their epoch.
    pub epoch: u32,
    /// For how long the memory is reserved.
    pub duration: Duration,
    /// The number that the client's process drew.
    pub owner: u64,
    /// The secret, or zeros for one that the server draws.
    pub secret: Secret,
    /// The name of the memory.
    pub name: &'a [u8],
    /// The server that they are copied from; None if they are new.
    pub source: Option<u64>,
}

/// The reason why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Refused {
    /// The reason.
    pub why: Refusal,
    /// Regions that there is room for, if that is the reason.
    pub room: u32,
}

impl From<Refusal> for Refused {
    fn from(why: Refusal) -> Self {
        Self { why, room: 0 }
    }
}

/// The regions of a memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct List {
    /// The memory.
    pub memory: u64,
    /// How much time is left.
    pub left: Duration,
    /// Its regions, in order, at most [`ENTRIES_MAX`].
    pub entries: Vec<Entry>,
    /// Whether there are more.
    pub more: bool,
    /// How many regions the memory has at all servers together; 0 if no client told.
    pub total: u32,
}

/// Whether a request is done, or has to wait for procedures and batches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Freeze {
    /// This server's CPU does not write to the region.
    Done,
    /// So many writes of procedures and batches are under way there. It is to be asked again when one has ended.
    Writing(u32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Live { is_mapped: bool, other: u64 },
    Copying { source: u64, is_whole: bool },
    Frozen { to: u64 },
    Moved { to: u64, until: Duration },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Region {
    epoch: u32,
    phase: Phase,
    /// None once it moved.
    place: Option<u32>,
    /// Procedures, and writes of batches, that write to it now.
    writers: u32,
    /// Procedures that read it now.
    readers: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Memory {
    login: u32,
    name: Box<[u8]>,
    secret: Secret,
    owner: u64,
    attached: BTreeSet<u64>,
    ends: Duration,
    /// How many regions it has at all servers together; 0 if no client told.
    total: u32,
    regions: BTreeMap<u32, Region>,
}

/// The regions of a server, and their owners.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Offers {
    settings: Settings,
    places: Places,
    memories: BTreeMap<u64, Memory>,
}

impl Region {
    fn entry(&self, region: u32) -> Entry {
        let (state, other) = match self.phase {
            Phase::Live { is_mapped: true, other } => (State::Live, other),
            Phase::Live { is_mapped: false, other } => (State::Committed, other),
            Phase::Copying { source, .. } => (State::Copying, source),
            Phase::Frozen { to } => (State::Frozen, to),
            Phase::Moved { to, .. } => (State::Moved, to),
        };
        Entry { region, epoch: self.epoch, state, other }
    }
}

impl Memory {
    fn has_secret(&self, secret: &Secret) -> bool {
        // All bytes are compared, so that the time tells nothing.
        self.secret.iter().zip(secret).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
    }

    fn attach(&mut self, caller: &Caller, owner: u64) -> Result<(), Refused> {
        let is_in_use = !self.attached.is_empty() || self.regions.values().any(|region| region.writers > 0);
        if self.owner != owner && is_in_use {
            return Err(Refusal::Taken.into());
        }
        if self.attached.len() >= CONNECTIONS_MAX && !self.attached.contains(&caller.connection) {
            return Err(Refusal::NoRoom.into());
        }
        self.owner = owner;
        self.attached.insert(caller.connection);
        Ok(())
    }

    fn held(&self) -> u32 {
        self.regions.values().filter(|region| region.place.is_some()).count() as u32
    }
}

impl Offers {
    /// Returns a server whose regions are all free.
    pub fn new(settings: Settings) -> Self {
        let places = Places::new(settings.regions, settings.quarantine);
        Self { settings, places, memories: BTreeMap::new() }
    }

    /// Returns how many regions this login can take now.
    ///
    /// A login has at most half of what other logins leave, so that there is always some for another one.
    pub fn room(&self, login: u32) -> u32 {
        let held = |is_own: bool| {
            let memories = self.memories.values().filter(|memory| (memory.login == login) == is_own);
            memories.map(Memory::held).sum::<u32>()
        };
        let most = self.places.total().saturating_sub(held(false)).div_ceil(2);
        most.saturating_sub(held(true)).min(self.places.free_count())
    }

    fn memories_of(&self, is_own: bool, login: u32) -> usize {
        self.memories.values().filter(|memory| (memory.login == login) == is_own).count()
    }

    /// Takes regions, all or none, and attaches the connection. Returns the secret; `fresh` is that of a new memory.
    ///
    /// # Errors
    ///
    /// There is no room, another owner is attached, the name is in use, or a region is here in another state or epoch.
    pub fn take(&mut self, caller: &Caller, take: &Take<'_>, fresh: Secret) -> Result<Secret, Refused> {
        let end = take.first.checked_add(take.regions).ok_or(Refusal::State)?;
        let room = self.room(caller.login);
        let mut needed = u64::from(take.regions);
        if let Some(memory) = self.memories.get(&take.memory) {
            let may = memory.login == caller.login
                && (memory.has_secret(&take.secret) || memory.attached.contains(&caller.connection));
            if !may {
                return Err(Refusal::Unknown.into());
            }
            for region in memory.regions.range(take.first..end).map(|(_, region)| region) {
                match region.phase {
                    _ if region.epoch > take.epoch => return Err(Refusal::Stale.into()),
                    Phase::Copying { source, .. } if region.epoch == take.epoch && take.source == Some(source) => {}
                    Phase::Live { .. } if region.epoch == take.epoch && take.source.is_none() => {}
                    Phase::Moved { .. } if region.epoch < take.epoch => continue,
                    _ => return Err(Refusal::State.into()),
                }
                needed -= 1;
            }
        } else {
            let is_named = |memory: &Memory| memory.login == caller.login && *memory.name == *take.name;
            if !take.name.is_empty() && self.memories.values().any(is_named) {
                return Err(Refusal::Taken.into());
            }
            if self.memories_of(true, caller.login)
                >= (MEMORIES_MAX - self.memories_of(false, caller.login)).div_ceil(2)
            {
                return Err(Refused { why: Refusal::NoRoom, room: 0 });
            }
        }
        if needed > u64::from(room) {
            return Err(Refused { why: Refusal::NoRoom, room });
        }
        let ends = caller.now.saturating_add(take.duration.min(self.settings.longest));
        let memory = self.memories.entry(take.memory).or_insert_with(|| Memory {
            login: caller.login,
            name: take.name.into(),
            secret: if take.secret == [0; 16] { fresh } else { take.secret },
            owner: take.owner,
            attached: BTreeSet::new(),
            ends,
            total: 0,
            regions: BTreeMap::new(),
        });
        memory.attach(caller, take.owner)?;
        memory.ends = memory.ends.max(ends);
        memory.total = memory.total.max(take.total);
        for number in take.first..end {
            if memory.regions.get(&number).is_some_and(|region| region.epoch == take.epoch) {
                continue;
            }
            let phase = match take.source {
                Some(source) => Phase::Copying { source, is_whole: false },
                None => Phase::Live { is_mapped: true, other: 0 },
            };
            let region = Region { epoch: take.epoch, phase, place: self.places.take(), writers: 0, readers: 0 };
            memory.regions.insert(number, region);
        }
        Ok(memory.secret)
    }

    /// Attaches the connection to a memory, by number or by name, and lists its regions from `first` on.
    ///
    /// # Errors
    ///
    /// There is no such memory, the secret is another, or another owner is attached.
    pub fn list(
        &mut self,
        caller: &Caller,
        memory: u64,
        name: &[u8],
        owner: u64,
        secret: &Secret,
        first: u32,
    ) -> Result<List, Refused> {
        let mut of_login = self.memories.iter_mut().filter(|(_, memory)| memory.login == caller.login);
        let found = of_login.find(
            |&(&number, ref found)| {
                if name.is_empty() { number == memory } else { *found.name == *name }
            },
        );
        let (&number, memory) = found.ok_or(Refusal::Unknown)?;
        if !memory.has_secret(secret) {
            return Err(Refusal::Unknown.into());
        }
        memory.attach(caller, owner)?;
        let mut regions = memory.regions.range(first..);
        let entries = regions.by_ref().take(ENTRIES_MAX).map(|(&number, region)| region.entry(number)).collect();
        let left = memory.ends.saturating_sub(caller.now);
        Ok(List { memory: number, left, entries, more: regions.next().is_some(), total: memory.total })
    }

    /// Reserves a memory for longer, and returns how much time is left.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory.
    pub fn renew(&mut self, caller: &Caller, memory: u64, duration: Duration) -> Result<Duration, Refused> {
        let longest = self.settings.longest;
        let memory = self.memory(caller, memory)?;
        memory.ends = memory.ends.max(caller.now.saturating_add(duration.min(longest)));
        Ok(memory.ends.saturating_sub(caller.now))
    }

    /// Ends writes to a live region, because `to` takes over. From now on no procedure begins to write to it.
    ///
    /// # Errors
    ///
    /// There is no such region, it is of another epoch, or it is not live.
    pub fn freeze(
        &mut self,
        caller: &Caller,
        memory: u64,
        region: u32,
        epoch: u32,
        to: u64,
    ) -> Result<Freeze, Refused> {
        let region = self.memory(caller, memory)?.regions.get_mut(&region).ok_or(Refusal::Unknown)?;
        if region.epoch != epoch {
            return Err(Refusal::Stale.into());
        }
        match region.phase {
            Phase::Live { is_mapped: true, .. } => region.phase = Phase::Frozen { to },
            Phase::Frozen { to: before } if before == to => {}
            _ => return Err(Refusal::State.into()),
        }
        Ok(if region.writers == 0 { Freeze::Done } else { Freeze::Writing(region.writers) })
    }

    /// Notes that a copy has all bytes of its source: the last pages were read again after writes had ended there.
    ///
    /// # Errors
    ///
    /// There is no such region, it is of another epoch, or it is no copy.
    pub fn copied(&mut self, caller: &Caller, memory: u64, region: u32, epoch: u32) -> Result<(), Refused> {
        let region = self.memory(caller, memory)?.regions.get_mut(&region).ok_or(Refusal::Unknown)?;
        match &mut region.phase {
            _ if region.epoch != epoch => Err(Refusal::Stale.into()),
            Phase::Copying { is_whole, .. } => {
                *is_whole = true;
                Ok(())
            }
            _ => Err(Refusal::State.into()),
        }
    }

    /// Makes a whole copy live.
    ///
    /// # Errors
    ///
    /// There is no such region, it is of another epoch, or the copy is not whole.
    pub fn commit(&mut self, caller: &Caller, memory: u64, region: u32, epoch: u32) -> Result<(), Refused> {
        let region = self.memory(caller, memory)?.regions.get_mut(&region).ok_or(Refusal::Unknown)?;
        match region.phase {
            _ if region.epoch != epoch => Err(Refusal::Stale.into()),
            Phase::Copying { source, is_whole: true } => {
                region.phase = Phase::Live { is_mapped: false, other: source };
                Ok(())
            }
            Phase::Live { .. } => Ok(()),
            _ => Err(Refusal::State.into()),
        }
    }

    /// Makes a frozen region live again, in a later epoch. It is believed by itself: its client wrote nowhere else meanwhile.
    ///
    /// # Errors
    ///
    /// There is no such region, it is of a later epoch, or it moved or is a copy.
    pub fn thaw(&mut self, caller: &Caller, memory: u64, region: u32, epoch: u32) -> Result<(), Refused> {
        let region = self.memory(caller, memory)?.regions.get_mut(&region).ok_or(Refusal::Unknown)?;
        match region.phase {
            _ if region.epoch > epoch => Err(Refusal::Stale.into()),
            Phase::Live { is_mapped: true, .. } | Phase::Frozen { .. } => {
                region.phase = Phase::Live { is_mapped: true, other: 0 };
                region.epoch = epoch;
                Ok(())
            }
            _ => Err(Refusal::State.into()),
        }
    }

    /// Forgets a region of this epoch or an earlier one, and frees its place. If `to` has it now, that is known for a while. Returns whether
    /// the region is lost: no other server has it, and it was no copy.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory, the region is of a later epoch, or procedures access it.
    pub fn drop_region(
        &mut self,
        caller: &Caller,
        memory: u64,
        number: u32,
        epoch: u32,
        to: u64,
    ) -> Result<bool, Refused> {
        let until = caller.now.saturating_add(self.settings.forward);
        let memory = self.memory(caller, memory)?;
        let Some(region) = memory.regions.get_mut(&number) else { return Ok(false) };
        if region.epoch > epoch {
            return Err(Refusal::Stale.into());
        }
        if region.writers > 0 || region.readers > 0 {
            return Err(Refusal::State.into());
        }
        let place = region.place.take();
        let is_copy = matches!(region.phase, Phase::Copying { .. });
        let is_lost = to == 0 && place.is_some() && !is_copy;
        // A copy that was given up has never been here, and may come again in the same epoch.
        if to == 0 || is_copy {
            memory.regions.remove(&number);
        } else if !matches!(region.phase, Phase::Moved { .. }) {
            region.phase = Phase::Moved { to, until };
        }
        place.into_iter().for_each(|place| self.places.free(place));
        Ok(is_lost)
    }

    /// Notes that the client's map has a region here, in this epoch. A region of another epoch is left as it is.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory.
    pub fn map(&mut self, caller: &Caller, memory: u64, regions: Range<u32>, epoch: u32) -> Result<(), Refused> {
        // By the regions that are here: a client may claim four billion.
        let regions = self.memory(caller, memory)?.regions.range_mut(regions.start..regions.end.max(regions.start));
        for (_, region) in regions.filter(|(_, region)| region.epoch == epoch) {
            if let Phase::Live { is_mapped, other } = &mut region.phase {
                (*is_mapped, *other) = (true, 0);
            }
        }
        Ok(())
    }

    /// Ends a memory and frees its regions.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory, or procedures write to one of its regions.
    pub fn end(&mut self, caller: &Caller, memory: u64) -> Result<(), Refused> {
        if self.memory(caller, memory)?.regions.values().any(|region| region.writers > 0) {
            return Err(Refusal::State.into());
        }
        self.remove(memory);
        Ok(())
    }

    /// Detaches a connection that has ended and was flushed: nothing that was sent over it arrives any more.
    pub fn detach(&mut self, connection: u64) {
        for memory in self.memories.values_mut() {
            memory.attached.remove(&connection);
        }
    }

    /// Begins a read of a procedure, and returns the place. [`Offers::end_read`] follows: until then the region is not dropped.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory, or the region is not live here. Once it is frozen, it may be newer elsewhere.
    pub fn begin_read(&mut self, caller: &Caller, memory: u64, region: u32) -> Result<u32, Refused> {
        let region = self.memory(caller, memory)?.regions.get_mut(&region).ok_or(Refusal::Unknown)?;
        match (&region.phase, region.place) {
            (Phase::Live { .. }, Some(place)) => {
                region.readers += 1;
                Ok(place)
            }
            _ => Err(Refusal::State.into()),
        }
    }

    /// Ends a read of a procedure.
    pub fn end_read(&mut self, memory: u64, region: u32) {
        if let Some(region) = self.memories.get_mut(&memory).and_then(|memory| memory.regions.get_mut(&region)) {
            region.readers = region.readers.saturating_sub(1);
        }
    }

    /// Begins a write of a procedure, and returns the place. [`Offers::end_write`] follows.
    ///
    /// # Errors
    ///
    /// The region is not here, or does not take writes of procedures: it is frozen, a copy, or its map has not come.
    pub fn begin_write(&mut self, memory: u64, region: u32) -> Result<u32, Refused> {
        let region = self.memories.get_mut(&memory).and_then(|memory| memory.regions.get_mut(&region));
        let region = region.ok_or(Refusal::Unknown)?;
        match (&region.phase, region.place) {
            (Phase::Live { is_mapped: true, .. }, Some(place)) => {
                region.writers += 1;
                Ok(place)
            }
            _ => Err(Refusal::State.into()),
        }
    }

    /// Ends a write of a procedure, or of a batch.
    pub fn end_write(&mut self, memory: u64, region: u32) {
        if let Some(region) = self.memories.get_mut(&memory).and_then(|memory| memory.regions.get_mut(&region)) {
            region.writers = region.writers.saturating_sub(1);
        }
    }

    /// Ends memories whose time is over, and forgets regions that moved long ago. Returns the memories that ended.
    ///
    /// A memory to which procedures write goes with the next call after they have ended.
    pub fn expire(&mut self, now: Duration) -> Vec<u64> {
        for memory in self.memories.values_mut() {
            memory.regions.retain(|_, region| !matches!(region.phase, Phase::Moved { until, .. } if until <= now));
        }
        let is_over = |memory: &Memory| memory.ends <= now && memory.regions.values().all(|region| region.writers == 0);
        let over: Vec<u64> =
            self.memories.iter().filter(|(_, memory)| is_over(memory)).map(|(&number, _)| number).collect();
        over.iter().for_each(|&number| self.remove(number));
        over
    }

    /// Returns the place of a region that the caller accesses.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory, or the region is not here, a copy, or of another epoch.
    pub fn reach(&mut self, caller: &Caller, memory: u64, region: u32, epoch: u32) -> Result<u32, Refused> {
        let region = self.memory(caller, memory)?.regions.get(&region).ok_or(Refusal::Unknown)?;
        if region.epoch != epoch {
            return Err(Refusal::Stale.into());
        }
        match region.phase {
            Phase::Copying { .. } => Err(Refusal::State.into()),
            _ => region.place.ok_or(Refusal::State.into()),
        }
    }

    /// Returns the place of a copy, into which the server reads.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory, or the region is no copy, or of another epoch.
    pub fn copying(&mut self, caller: &Caller, memory: u64, region: u32, epoch: u32) -> Result<u32, Refused> {
        let region = self.memory(caller, memory)?.regions.get(&region).ok_or(Refusal::Unknown)?;
        match region.phase {
            _ if region.epoch != epoch => Err(Refusal::Stale.into()),
            Phase::Copying { .. } => region.place.ok_or(Refusal::State.into()),
            _ => Err(Refusal::State.into()),
        }
    }

    /// Returns the place of a region that is frozen in this epoch, and that no procedure accesses.
    pub fn frozen(&self, memory: u64, region: u32, epoch: u32) -> Option<u32> {
        let region = self.memories.get(&memory)?.regions.get(&region)?;
        let is_frozen = region.epoch == epoch && matches!(region.phase, Phase::Frozen { .. });
        region.place.filter(|_| is_frozen && region.writers == 0 && region.readers == 0)
    }

    /// Returns whether a region is here in this epoch.
    pub fn has_epoch(&self, memory: u64, region: u32, epoch: u32) -> bool {
        let region = self.memories.get(&memory).and_then(|memory| memory.regions.get(&region));
        region.is_some_and(|region| region.epoch == epoch && region.place.is_some())
    }

    /// Returns the places of regions that the caller accesses in a batch, each with whether it is written. A region has none where it is
    /// not live here, or is frozen and to be written.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory.
    pub fn places_of(
        &mut self,
        caller: &Caller,
        memory: u64,
        accesses: impl Iterator<Item = (u32, bool)>,
    ) -> Result<Vec<Result<u32, Refusal>>, Refused> {
        let regions = &self.memory(caller, memory)?.regions;
        let place = |(region, writes): (u32, bool)| {
            let region = regions.get(&region).ok_or(Refusal::Unknown)?;
            match region.phase {
                Phase::Live { .. } => {}
                Phase::Frozen { .. } if !writes => {}
                Phase::Frozen { .. } => return Err(Refusal::State),
                Phase::Copying { .. } | Phase::Moved { .. } => return Err(Refusal::Unknown),
            }
            region.place.ok_or(Refusal::Unknown)
        };
        Ok(accesses.map(place).collect())
    }

    /// Begins the accesses of a batch, and returns the places as [`Offers::places_of`] does. Each write that has a place is under way:
    /// [`Offers::end_write`] follows for each of them.
    ///
    /// # Errors
    ///
    /// The connection is not attached to such a memory.
    pub fn begin_batch(
        &mut self,
        caller: &Caller,
        memory: u64,
        accesses: &[(u32, bool)],
    ) -> Result<Vec<Result<u32, Refusal>>, Refused> {
        let places = self.places_of(caller, memory, accesses.iter().copied())?;
        let regions = &mut self.memory(caller, memory)?.regions;
        for (&(region, writes), place) in accesses.iter().zip(&places) {
            if writes
                && place.is_ok()
                && let Some(region) = regions.get_mut(&region)
            {
                region.writers += 1;
            }
        }
        Ok(places)
    }

    /// Returns whether there is such a memory.
    pub fn has(&self, memory: u64) -> bool {
        self.memories.contains_key(&memory)
    }

    /// Returns how many memories there are.
    pub fn memories(&self) -> usize {
        self.memories.len()
    }

    /// Returns how many regions memories have here.
    pub fn held(&self) -> u32 {
        self.memories.values().map(Memory::held).sum()
    }

    /// Returns the places of the arena.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Returns the places of the arena, for the driver, which revokes and zeroes those that were freed.
    pub fn places_mut(&mut self) -> &mut Places {
        &mut self.places
    }

    /// Returns the place of a region.
    pub fn place(&self, memory: u64, region: u32) -> Option<u32> {
        self.memories.get(&memory)?.regions.get(&region)?.place
    }

    fn memory(&mut self, caller: &Caller, memory: u64) -> Result<&mut Memory, Refused> {
        let memory = self.memories.get_mut(&memory);
        memory.filter(|memory| memory.attached.contains(&caller.connection)).ok_or(Refusal::Unknown.into())
    }

    fn remove(&mut self, memory: u64) {
        let memory = self.memories.remove(&memory);
        let regions = memory.into_iter().flat_map(|memory| memory.regions.into_values());
        regions.filter_map(|region| region.place).for_each(|place| self.places.free(place));
    }
}

#[cfg(test)]
mod tests;
