//! The tag table: which memory of this process peers may reach, by which 32 bits.
//!
//! A tag comes from a cryptographic generator, all 32 bits of it, and is unique among those that live (RFC 5042, section
//! 6.1.1). The generator can tell whether it has drawn a tag before ([`Generator`]). It names a range of bytes, rights, and a scope: every connection of the domain, or one. Every placement looks its
//! tag up again, and holds a [`Pin`] while the kernel copies: at most one system call that does not block. Deregistering
//! takes the tag out first, and then waits for the pins: after it nothing is placed or read by that tag.
//!
//! A *bound* tag has no memory of its own: what is read by it is whatever its [`Binding`] names when the read begins.
//!
//! The table is cut into shards, each with a lock of its own that guards the map alone; pins are counted outside of it.

use super::binding::Binding;
use super::terminate::Terminate;
use mrrc::Access;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = 16;
/// Registrations that live at a time: a guess hits one in a thousand at most.
pub(super) const MOST: usize = 1 << 22;

/// The connections that may use a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// All connections of the domain.
    Domain,
    /// The connection of this number.
    Connection(u64),
}

/// The memory that a tag opens.
#[derive(Debug)]
pub(super) struct Opening {
    start: u64,
    end: u64,
    access: Access,
    scope: Scope,
    /// The binding that is read by this tag: else its addresses are those of the memory.
    binding: Option<Arc<Binding>>,
    /// Its peer has ended it. Its number stays taken until its owner closes it, because the owner would else close
    /// another's.
    ended: bool,
}

/// Keeps the memory of a tag from being deregistered. Held for one system call.
pub(super) struct Pin {
    /// The first byte that was asked for; of a bound tag, its offset.
    pub(super) address: *mut u8,
    opening: Arc<Opening>,
}

impl Pin {
    /// Returns the tag's binding, if it has one.
    pub(super) fn binding(&self) -> Option<&Arc<Binding>> {
        self.opening.binding.as_ref()
    }
}

/// The access that a peer wants by a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// To have its bytes.
    Read,
    /// To put bytes there.
    Write,
}

/// The relation of a tag to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It opens something to it.
    Valid,
    /// It did. One of the last that the connection, or the domain, was given.
    Ended,
    /// It never did, as far as is known.
    Foreign,
}

/// Tags that are drawn from one seed.
const EPOCH: u32 = 4096;
/// Seeds that are remembered.
const EPOCHS: usize = 16;
/// The domain's place among the generators; connections are counted from 1.
const DOMAIN: u64 = 0;

/// Draws tags, and recognizes the last 61,440 or more of them without keeping them: it keeps the seeds, and draws again. So a
/// connection of any number of tags takes 512 bytes for that, and a random tag is recognized with a probability of at most
/// 2⁻¹⁶.
#[derive(Debug)]
struct Generator {
    seeds: VecDeque<[u8; 32]>,
    random: StdRng,
    /// Tags drawn from the last seed.
    drawn: u32,
}

impl Generator {
    fn new() -> Self {
        // Of no seed yet: the first tag draws one.
        Self { seeds: VecDeque::new(), random: StdRng::from_seed([0; 32]), drawn: EPOCH }
    }

    /// Draws a tag. It may be one that lives.
    fn draw(&mut self) -> u32 {
        if self.drawn == EPOCH {
            let mut seed = [0; 32];
            // A generator of the thread's own, seeded by the system: ChaCha, as that of the tags.
            rand::rng().fill_bytes(&mut seed);
            self.seeds.truncate(EPOCHS - 1);
            self.seeds.push_front(seed);
            self.random = StdRng::from_seed(seed);
            self.drawn = 0;
        }
        self.drawn += 1;
        self.random.next_u32()
    }

    /// Returns the seeds, and how many tags each has given.
    fn epochs(&self) -> Vec<([u8; 32], u32)> {
        let counts = std::iter::once(self.drawn).chain(std::iter::repeat(EPOCH));
        self.seeds.iter().copied().zip(counts).collect()
    }
}

/// Returns whether a tag is one of those that these seeds gave. Takes up to half a millisecond; for the answer to a
/// wrong tag.
fn drew(epochs: &[([u8; 32], u32)], tag: u32) -> bool {
    epochs.iter().any(|&(seed, count)| {
        let mut random = StdRng::from_seed(seed);
        (0..count).any(|_| random.next_u32() == tag)
    })
}

/// Tags and what they open.
#[derive(Debug)]
pub(super) struct Table {
    /// Tags of the domain, and of each live connection. One that never had a tag has none.
    generators: [Mutex<FxHashMap<u64, Option<Box<Generator>>>>; SHARDS],
    shards: [RwLock<FxHashMap<u32, Arc<Opening>>>; SHARDS],
    live: AtomicUsize,
}

impl Table {
    pub(super) fn new() -> Self {
        let table = Self {
            generators: std::array::from_fn(|_| Mutex::default()),
            shards: std::array::from_fn(|_| RwLock::default()),
            live: AtomicUsize::new(0),
        };
        table.enter(DOMAIN);
        table
    }

    fn generators(&self, of: u64) -> MutexGuard<'_, FxHashMap<u64, Option<Box<Generator>>>> {
        self.generators[of as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection is there: its tags are recognized until it [leaves](Self::leave).
    pub(super) fn enter(&self, connection: u64) {
        self.generators(connection).insert(connection, None);
    }

    /// A connection is not there any more.
    pub(super) fn leave(&self, connection: u64) {
        self.generators(connection).remove(&connection);
    }

    fn draw(&self, scope: Scope) -> u32 {
        let of = match scope {
            Scope::Domain => DOMAIN,
            Scope::Connection(number) => number,
        };
        match self.generators(of).get_mut(&of) {
            Some(generator) => generator.get_or_insert_with(|| Box::new(Generator::new())).draw(),
            // Made for a connection that has gone: no peer can use it.
            None => rand::rng().next_u32(),
        }
    }

    /// Returns whether a tag is this connection's own, and lives.
    pub(super) fn is_own(&self, tag: u32, connection: u64) -> bool {
        let tags = self.read(tag);
        tags.get(&tag).is_some_and(|opening| !opening.ended && opening.scope == Scope::Connection(connection))
    }

    /// Returns the relation of a tag to a connection, of those that do not open the wanted memory.
    pub(super) fn standing(&self, tag: u32, connection: u64) -> Standing {
        let scope = self.read(tag).get(&tag).filter(|opening| !opening.ended).map(|opening| opening.scope);
        let epochs = |of| self.generators(of).get(&of).and_then(Option::as_deref).map_or(Vec::new(), Generator::epochs);
        match scope {
            Some(Scope::Domain) => Standing::Valid,
            Some(Scope::Connection(owner)) if owner == connection => Standing::Valid,
            Some(_) => Standing::Foreign,
            None if drew(&epochs(connection), tag) || drew(&epochs(DOMAIN), tag) => Standing::Ended,
            None => Standing::Foreign,
        }
    }

    fn shard(&self, tag: u32) -> &RwLock<FxHashMap<u32, Arc<Opening>>> {
        &self.shards[tag as usize % SHARDS]
    }

    fn read(&self, tag: u32) -> RwLockReadGuard<'_, FxHashMap<u32, Arc<Opening>>> {
        self.shard(tag).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, tag: u32) -> RwLockWriteGuard<'_, FxHashMap<u32, Arc<Opening>>> {
        self.shard(tag).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a tag for these bytes; `None` where the table is full.
    pub(super) fn open(&self, start: u64, end: u64, access: Access, scope: Scope) -> Option<u32> {
        self.count_in()?;
        Some(self.insert(Opening { start, end, access, scope, binding: None, ended: false }))
    }

    /// Returns a tag by which peers read so many bytes of whatever is bound; `None` where the table is full.
    pub(super) fn open_bound(&self, binding: Arc<Binding>, length: u64, scope: Scope) -> Option<u32> {
        self.count_in()?;
        let (start, end, access) = (0, length, Access::REMOTE_READ);
        Some(self.insert(Opening { start, end, access, scope, binding: Some(binding), ended: false }))
    }

    fn count_in(&self) -> Option<()> {
        let is_full = self.live.fetch_add(1, Ordering::Relaxed) >= MOST;
        if is_full {
            self.live.fetch_sub(1, Ordering::Relaxed);
        }
        (!is_full).then_some(())
    }

    /// Returns a tag that opens nothing, and that no other is alike: it counts with its connection, not as one of
    /// these.
    pub(super) fn reserve(&self, connection: u64) -> u32 {
        let (access, scope) = (Access::empty(), Scope::Connection(connection));
        self.insert(Opening { start: 0, end: 0, access, scope, binding: None, ended: false })
    }

    /// Ends a tag that opened nothing.
    pub(super) fn release(&self, tag: u32) {
        self.write(tag).remove(&tag);
    }

    fn insert(&self, opening: Opening) -> u32 {
        let scope = opening.scope;
        let opening = Arc::new(opening);
        loop {
            let tag = self.draw(scope);
            // Zero is what a tag that was never set looks like.
            if tag == 0 {
                continue;
            }
            if let std::collections::hash_map::Entry::Vacant(free) = self.write(tag).entry(tag) {
                free.insert(opening);
                return tag;
            }
        }
    }

    /// Takes a tag back. When this returns, nothing is placed or read by it any more.
    pub(super) fn close(&self, tag: u32) -> bool {
        let Some(opening) = self.write(tag).remove(&tag) else { return false };
        self.live.fetch_sub(usize::from(!opening.ended), Ordering::Relaxed);
        quiesce(opening);
        true
    }

    /// Ends a tag by a peer's send with invalidate: only a tag of its own connection, because others use those of the
    /// domain.
    pub(super) fn invalidate(&self, tag: u32, connection: u64) -> Result<(), Terminate> {
        let mut tags = self.write(tag);
        let opening = tags.get_mut(&tag).filter(|opening| !opening.ended).ok_or(Terminate::INVALID_TAG)?;
        match opening.scope {
            // The memory that this side reads into.
            _ if opening.access.is_empty() => Err(Terminate::CANNOT_INVALIDATE),
            Scope::Connection(owner) if owner == connection => {
                let (access, scope) = (Access::empty(), opening.scope);
                let ended = Opening { start: 0, end: 0, access, scope, binding: None, ended: true };
                let opening = std::mem::replace(opening, Arc::new(ended));
                drop(tags);
                self.live.fetch_sub(1, Ordering::Relaxed);
                quiesce(opening);
                Ok(())
            }
            Scope::Connection(_) => Err(Terminate::TAG_NOT_ASSOCIATED),
            Scope::Domain => Err(Terminate::CANNOT_INVALIDATE),
        }
    }

    /// Lets a peer at bytes of a tag, or returns the RFC's name for its mistake. A read's is of RDMAP (RFC 5040, section
    /// 4.8), a write's of DDP (RFC 5041, section 8).
    pub(super) fn pin(&self, tag: u32, at: u64, length: u64, wish: Wish, connection: u64) -> Result<Pin, Terminate> {
        let opening = self.read(tag).get(&tag).filter(|opening| !opening.ended).cloned();
        let by = |read, write| if wish == Wish::Read { read } else { write };
        let opening = opening.ok_or(by(Terminate::INVALID_TAG, Terminate::DDP_INVALID_TAG))?;
        if let Scope::Connection(owner) = opening.scope
            && owner != connection
        {
            return Err(by(Terminate::TAG_NOT_ASSOCIATED, Terminate::DDP_NOT_ASSOCIATED));
        }
        let Some(end) = at.checked_add(length) else {
            return Err(by(Terminate::OFFSET_WRAPS, Terminate::DDP_OFFSET_WRAPS));
        };
        if at < opening.start || end > opening.end {
            return Err(by(Terminate::BASE_OR_BOUNDS, Terminate::DDP_BOUNDS));
        }
        let right = if wish == Wish::Read { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        if !opening.access.contains(right) {
            return Err(Terminate::ACCESS);
        }
        Ok(Pin { address: at as *mut u8, opening })
    }

    /// Tags that live.
    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }
}

/// Waits until there is no pin: each lasts one system call that does not block.
fn quiesce(mut opening: Arc<Opening>) {
    let mut spins = 0_u32;
    loop {
        match Arc::try_unwrap(opening) {
            Ok(_) => break,
            Err(shared) => opening = shared,
        }
        spins += 1;
        if spins < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bits_of_tags_are_random() {
        let table = Table::new();
        let mut bytes = [[0_u32; 256]; 4];
        let tags: Vec<u32> = (0..1 << 16).map(|_| table.open(0, 1, Access::all(), Scope::Domain).unwrap()).collect();
        for tag in &tags {
            for (counts, byte) in bytes.iter_mut().zip(tag.to_le_bytes()) {
                counts[usize::from(byte)] += 1;
            }
        }
        // Chi-square of each byte with 255 degrees of freedom: beyond 377 once in a million.
        for counts in bytes {
            let chi: f64 = counts.iter().map(|&count| (f64::from(count) - 256.0).powi(2) / 256.0).sum();
            assert!((150.0..377.0).contains(&chi), "{chi}");
        }
        // And neighbours have nothing to do with each other.
        let mut counts = [0_u32; 256];
        for pair in tags.windows(2) {
            counts[usize::from((pair[1].wrapping_sub(pair[0]) >> 24) as u8)] += 1;
        }
        let chi: f64 = counts.iter().map(|&count| (f64::from(count) - 256.0).powi(2) / 256.0).sum();
        assert!((150.0..377.0).contains(&chi), "{chi}");
        assert_eq!(table.live(), tags.len());
    }

    #[test]
    fn tags_of_long_ago_are_recognized() {
        let table = Table::new();
        table.enter(7);
        table.enter(8);
        let tags: Vec<u32> = (0..150_000).map(|_| table.reserve(7)).collect();
        tags.iter().for_each(|&tag| table.release(tag));
        let recognized =
            |of, tags: &[u32]| tags.iter().filter(|&&tag| table.standing(tag, of) == Standing::Ended).count();
        // Some here and there, as each look takes a while.
        let recent: Vec<u32> = tags[tags.len() - 61_440..].iter().step_by(3_001).copied().collect();
        let old: Vec<u32> = tags[..80_000].iter().step_by(4_001).copied().collect();
        assert_eq!(recognized(7, &recent), recent.len());
        assert_eq!(recognized(7, &old), 0);
        assert_eq!(recognized(8, &recent), 0, "those of another connection are guesses");
        let shared = table.open(0, 1, Access::all(), Scope::Domain).unwrap();
        assert_eq!(table.standing(shared, 8), Standing::Valid);
        assert!(table.close(shared));
        assert_eq!(table.standing(shared, 8), Standing::Ended);
        let foreign = table.open(0, 1, Access::all(), Scope::Connection(7)).unwrap();
        assert_eq!([7, 8].map(|of| table.standing(foreign, of)), [Standing::Valid, Standing::Foreign]);
        table.leave(7);
        assert_eq!(recognized(7, &recent), 0);
        assert!(table.reserve(7) != 0 && !table.generators(7).contains_key(&7));
    }

    #[test]
    fn tag_checks_bounds_rights_and_connection() {
        let table = Table::new();
        let tag = table.open(1000, 2000, Access::REMOTE_WRITE, Scope::Connection(7)).unwrap();
        let pin =
            |at, length, wish, connection| table.pin(tag, at, length, wish, connection).map(|pin| pin.address as u64);
        assert_eq!(pin(1000, 1000, Wish::Write, 7), Ok(1000));
        assert_eq!(pin(999, 1, Wish::Write, 7), Err(Terminate::DDP_BOUNDS));
        assert_eq!(pin(1999, 2, Wish::Write, 7), Err(Terminate::DDP_BOUNDS));
        assert_eq!(pin(u64::MAX, 2, Wish::Write, 7), Err(Terminate::DDP_OFFSET_WRAPS));
        assert_eq!(pin(1000, 1, Wish::Write, 8), Err(Terminate::DDP_NOT_ASSOCIATED));
        assert_eq!(pin(1000, 1, Wish::Read, 7), Err(Terminate::ACCESS));
        assert_eq!(pin(1000, 1, Wish::Read, 8), Err(Terminate::TAG_NOT_ASSOCIATED));
        assert_eq!(table.invalidate(tag, 8), Err(Terminate::TAG_NOT_ASSOCIATED));
        assert_eq!(table.invalidate(tag, 7), Ok(()));
        assert_eq!(pin(1000, 1, Wish::Write, 7), Err(Terminate::DDP_INVALID_TAG));
        assert_eq!(pin(1000, 1, Wish::Read, 7), Err(Terminate::INVALID_TAG));
        assert_eq!(table.invalidate(tag, 7), Err(Terminate::INVALID_TAG));
        // Its number is not used again before its owner has closed it too, so that the owner closes no other's.
        assert!(table.live() == 0 && table.read(tag).contains_key(&tag));
        assert!(table.close(tag) && !table.read(tag).contains_key(&tag));
        assert_eq!(table.live(), 0);
        let shared = table.open(0, 1, Access::all(), Scope::Domain).unwrap();
        assert_eq!(table.invalidate(shared, 7), Err(Terminate::CANNOT_INVALIDATE));
        assert!(table.close(shared) && !table.close(shared));
        assert_eq!(table.live(), 0);
    }

    #[test]
    fn closing_waits_for_those_who_are_at_it() {
        let table = Table::new();
        let tag = table.open(0, 10, Access::all(), Scope::Domain).unwrap();
        let pin = table.pin(tag, 0, 10, Wish::Write, 1).unwrap();
        let (closed, news) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                table.close(tag);
                closed.send(()).unwrap();
            });
            // Gone at once, closed only when the pin is.
            while table.pin(tag, 0, 1, Wish::Write, 1).is_ok() {
                std::thread::yield_now();
            }
            assert!(news.recv_timeout(std::time::Duration::from_millis(20)).is_err());
            drop(pin);
            news.recv().unwrap();
        });
    }
}
