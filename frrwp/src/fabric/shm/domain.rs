//! A protection domain: arenas, tags, connections, and what waits for the death of peers that stalled.
//!
//! One lock guards the books; it is held across no wait. Transfers do not take it.
#![expect(unsafe_code, reason = "a registrar and a domain promise what callers' safety rests on")]

use super::arena::{Memory, Sharing, ShmArena};
use super::error::{NotOffered, ShmError, system};
use super::link::Link;
use super::packets::{self, Packet};
use super::steps::step;
use super::table::{Held, OFFSET, Table};
use crate::fabric::Domain;
use crate::fabric::fork_mark::ForkMark;
use crate::wire::Segment;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use rustix::fd::AsFd;
use std::fmt;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Every bound of a domain, with its default.
///
/// Fields may be added in a minor release: name those that you set, and write `..Default::default()` for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShmOptions {
    /// Registrations with rights for peers: 8,192. Rounded up to a power of two.
    pub keys: usize,
    /// Arenas: 64.
    pub arenas: usize,
    /// Connections, those with peers that stalled included: 1,024.
    pub connections: usize,
    /// Bytes of registrations that peers which stalled may be at, before nothing more is registered for peers: 64 MiB.
    pub quarantine: u64,
    /// How long a peer that is at memory is waited for before it counts as stalled, and its connection is ended: 1 s.
    pub stall: Duration,
    /// How long an end looks for news before it sleeps: 5 µs.
    pub spin: Duration,
}

impl Default for ShmOptions {
    fn default() -> Self {
        Self {
            keys: 8192,
            arenas: 64,
            connections: 1024,
            quarantine: 64 << 20,
            stall: Duration::from_secs(1),
            spin: Duration::from_micros(5),
        }
    }
}

/// What is held though its connection is gone, because the peer may still be at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quarantine {
    /// Peers that stalled in the middle of a transfer, and live.
    pub peers: usize,
    /// Bytes of the registrations that they are at.
    pub bytes: u64,
}

/// Registers memory for the connections of one protection domain. Clones are the same domain.
///
/// Any memory of this process can be registered with local rights only: this process's own CPU is what reads and writes it.
/// With rights for peers, only memory of the domain's [arenas](ShmDomain::arena) can.
#[derive(Clone)]
pub struct ShmDomain(Arc<Inner>);

struct Inner {
    options: ShmOptions,
    books: Mutex<Books>,
}

struct Books {
    /// The process whose these are: a child of a fork begins with none.
    mark: ForkMark,
    /// Made when it is needed first.
    table: Option<Table>,
    arenas: Vec<Listed>,
    next_arena: u64,
    /// All that a peer may be at memory through.
    links: Vec<Arc<Link>>,
}

struct Listed {
    start: usize,
    bytes: usize,
    number: u64,
    memory: Weak<Memory>,
}

/// A registration.
pub struct ShmKey {
    /// 0 without rights for peers.
    key: u32,
    /// The process that registered: its children have copies.
    mark: ForkMark,
    start: usize,
    bytes: usize,
    access: Access,
    /// Of the first byte, as the fabric counts.
    address: u64,
    /// Keeps the memory mapped.
    _memory: Option<Arc<Memory>>,
}

impl fmt::Debug for ShmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmKey({:#010x}, {:#x}, {} bytes, {})", self.key, self.start, self.bytes, self.access)
    }
}

impl ShmKey {
    /// Whether these bytes are registered, with this right.
    #[inline]
    pub(super) fn covers(&self, address: usize, length: usize, right: Access) -> bool {
        let within = address.checked_sub(self.start);
        within.and_then(|within| within.checked_add(length)).is_some_and(|end| end <= self.bytes)
            && (right == Access::LOCAL_READ || self.access.contains(right))
    }
}

impl ShmDomain {
    /// A domain without memory and connections.
    ///
    /// # Errors
    /// [`ShmError::System`].
    pub fn new(options: ShmOptions) -> Result<Self, ShmError> {
        let table = Some(Table::new(options.keys)?);
        let mark = ForkMark::here().map_err(system("make a domain", "see why the system has no random numbers"))?;
        let books = Mutex::new(Books { mark, table, arenas: Vec::new(), next_arena: 0, links: Vec::new() });
        Ok(Self(Arc::new(Inner { options, books })))
    }

    /// Memory that peers can be let at; see [`ShmArena`] for what that means.
    ///
    /// # Errors
    /// [`ShmError::Size`], [`ShmError::Full`], [`ShmError::System`].
    pub fn arena(&self, bytes: usize, sharing: Sharing) -> Result<ShmArena, ShmError> {
        let mut books = self.books();
        // Fails in a child that cannot begin anew.
        let mark = books.table(&self.0.options)?.1;
        books.sweep();
        let most = self.0.options.arenas;
        if books.arenas.len() >= most {
            let remedy = "make fewer and larger ones, or raise ShmOptions::arenas";
            return Err(ShmError::Full { doing: "make an arena", most, remedy });
        }
        let number = books.next_arena;
        let memory = Arc::new(Memory::new(number, bytes, sharing, mark)?);
        books.next_arena += 1;
        let listed =
            Listed { start: memory.base(), bytes: memory.mapping.len(), number, memory: Arc::downgrade(&memory) };
        books.arenas.push(listed);
        step();
        for link in books.links.iter().filter(|link| !link.is_closed_here()) {
            // A peer that does not take what it is sent is given up.
            if pass(link, &memory).is_err() {
                link.close();
            }
        }
        drop(books);
        Ok(ShmArena::new(memory, self.clone()))
    }

    /// What is held because peers that stalled may be at it.
    pub fn quarantine(&self) -> Quarantine {
        self.books().quarantine()
    }

    /// Connections that a peer may be at memory through.
    pub fn connections(&self) -> usize {
        let mut books = self.books();
        books.reap();
        books.links.len()
    }

    /// Registrations with rights for peers.
    pub fn keys(&self) -> usize {
        self.books().table.as_ref().map_or(0, Table::live)
    }

    pub(super) fn options(&self) -> &ShmOptions {
        &self.0.options
    }

    pub(super) fn quarantined(&self) -> Vec<PageRange> {
        let mut books = self.books();
        books.reap();
        let held = books.links.iter().filter(|link| link.is_closed_here());
        held.filter_map(|link| Some(books.held(link.peer_at()?)?.range)).collect()
    }

    /// A registration of such pages by which peers may still begin something.
    pub(super) fn living_in(&self, pages: PageRange) -> Option<PageRange> {
        self.books().table.iter().flat_map(Table::living).map(|held| held.range).find(|range| range.overlaps(pages))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        let mut books = self.0.books.lock().unwrap_or_else(PoisonError::into_inner);
        if !books.mark.is_here() {
            books.begin_anew();
        }
        books
    }

    /// Writes a word of the tag table, as only a cheat does.
    #[cfg(test)]
    pub(super) fn scribble(&self, at: usize, word: u64) {
        let books = self.books();
        let shared = books.table.as_ref().expect("a table").shared();
        shared.word(at * 8 % shared.len()).store(word, std::sync::atomic::Ordering::Relaxed);
    }

    /// What a peer gets first.
    ///
    /// # Errors
    /// A child of a fork has no memory for a table of its own.
    pub(super) fn with_table<T>(&self, see: impl FnOnce(&rustix::fd::OwnedFd, u64) -> T) -> Result<T, ShmError> {
        let mut books = self.books();
        let (table, _) = books.table(&self.0.options)?;
        Ok(see(&table.file, table.bytes()))
    }

    /// From now on the peer gets the arenas, and is waited for by those who deregister.
    pub(super) fn join(&self, link: &Arc<Link>) -> Result<(), ShmError> {
        let mut books = self.books();
        books.reap();
        books.sweep();
        let most = self.0.options.connections;
        if books.links.len() >= most {
            let remedy = "close some, or raise ShmOptions::connections";
            return Err(ShmError::Full { doing: "connect", most, remedy });
        }
        let memories: Vec<_> = books.arenas.iter().filter_map(|arena| arena.memory.upgrade()).collect();
        let passed = memories.iter().try_for_each(|memory| pass(link, memory));
        if passed.is_ok() {
            books.links.push(link.clone());
        }
        drop(books);
        passed.map_err(system("pass arenas to a peer", "see whether it still runs, and ulimit -n"))
    }

    /// Takes links out that no peer is at memory through.
    pub(super) fn reap(&self) {
        self.books().reap();
    }

    /// Whether the peer has left the memory of a tag. Waits until then.
    fn is_left(&self, links: &[Arc<Link>], key: u32, until: Instant) -> bool {
        let mut left = true;
        for link in links {
            let mut turns = 0_u32;
            while link.peer_is_at(key) {
                if link.is_stalled() || Instant::now() >= until {
                    link.set_stalled();
                    link.close();
                    left = false;
                    break;
                }
                turns += 1;
                match turns {
                    0..100 => std::hint::spin_loop(),
                    100..200 => std::thread::yield_now(),
                    _ => std::thread::sleep(Duration::from_micros(50)),
                }
            }
        }
        left
    }
}

fn pass(link: &Link, memory: &Memory) -> rustix::io::Result<()> {
    let writable = memory.sharing == Sharing::Writable;
    let packet = Packet::Arena { number: memory.number, bytes: memory.mapping.len() as u64, writable };
    packets::send(&link.socket, packet, &[memory.file.as_fd()])
}

impl Books {
    /// Forgets what is the parent's. Its table, arenas and connections stay with it.
    fn begin_anew(&mut self) {
        self.table = None;
        self.arenas.clear();
        self.links.clear();
        self.next_arena = 0;
    }

    /// The tag table, and whose it is.
    fn table(&mut self, options: &ShmOptions) -> Result<(&mut Table, ForkMark), ShmError> {
        if !self.mark.is_here() {
            self.mark = ForkMark::here().map_err(system("begin anew", "see why the system has no random numbers"))?;
        }
        let table = match self.table.take() {
            Some(table) => table,
            None => Table::new(options.keys)?,
        };
        Ok((self.table.insert(table), self.mark))
    }

    fn kill(&mut self, key: u32) {
        self.table.iter_mut().for_each(|table| table.kill(key));
    }

    fn remove(&mut self, key: u32) {
        self.table.iter_mut().for_each(|table| table.remove(key));
    }

    fn held(&self, key: u32) -> Option<Held> {
        self.table.as_ref()?.get(key)
    }

    fn reap(&mut self) {
        let Self { links, table, .. } = self;
        let held = |key| table.as_ref().is_some_and(|table| table.get(key).is_some());
        links.retain(|link| {
            if !link.is_closed_here() {
                return true;
            }
            // Whoever closed it may not have come to his fence yet.
            fence(SeqCst);
            // A key that was never given is no reason to hold anything.
            link.peer_at().is_some_and(held) && !link.is_dead()
        });
    }

    /// Tells peers of arenas that are gone.
    fn sweep(&mut self) {
        let Self { arenas, links, .. } = self;
        arenas.retain(|arena| {
            let lives = arena.memory.strong_count() > 0;
            if !lives {
                for link in links.iter().filter(|link| !link.is_closed_here()) {
                    if packets::send(&link.socket, Packet::Gone { number: arena.number }, &[]).is_err() {
                        link.close();
                    }
                }
            }
            lives
        });
    }

    fn quarantine(&mut self) -> Quarantine {
        self.reap();
        let mut quarantine = Quarantine::default();
        let mut seen = Vec::new();
        for link in self.links.iter().filter(|link| link.is_closed_here()) {
            if let Some(held) = link.peer_at().and_then(|key| self.held(key)) {
                quarantine.peers += 1;
                if !seen.contains(&held.key) {
                    seen.push(held.key);
                    quarantine.bytes += held.bytes;
                }
            }
        }
        quarantine
    }

    fn find(&self, range: PageRange) -> Option<&Listed> {
        let start = usize::try_from(range.start() * PAGE).ok()?;
        let end = usize::try_from(range.end() * PAGE).ok()?;
        let within = |arena: &&Listed| arena.start <= start && end <= arena.start + arena.bytes;
        self.arenas.iter().filter(within).find(|arena| arena.memory.strong_count() > 0)
    }
}

// SAFETY:
// * A registration with rights for peers keeps the arena's memory, which nobody else can unmap. One without is used by this
//   process alone, under the contract of `Endpoint::write` and `read`, by which the memory can be read or written.
// * Keys are unique in the table until they are removed from it.
// * A registration leaves the batch when its tag is dead and no link's peer is at it; the order is argued in the module's
//   documentation.
// * The table has the rights that were asked for and no others. What a peer that breaks the rules can reach is said there too.
unsafe impl Registrar for ShmDomain {
    type Registration = ShmKey;

    fn register(&self, range: PageRange, access: Access) -> io::Result<ShmKey> {
        let start = usize::try_from(range.start() * PAGE).map_err(io::Error::other)?;
        let bytes = usize::try_from(range.pages() * PAGE).map_err(io::Error::other)?;
        let mut books = self.books();
        let mark = ForkMark::here()?;
        let found = books.find(range).and_then(|arena| arena.memory.upgrade());
        if !access.is_remote() {
            return Ok(ShmKey { key: 0, mark, start, bytes, access, address: 0, _memory: found });
        }
        let memory = found.ok_or(NotOffered::NotShared { range })?;
        let write = access.contains(Access::REMOTE_WRITE);
        let quarantine = books.quarantine();
        let most = self.0.options.quarantine;
        let address = memory.number << OFFSET | (start - memory.base()) as u64;
        let refused = if access.contains(Access::REMOTE_ATOMIC) {
            Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
        } else if quarantine.bytes > 0 && quarantine.bytes >= most {
            Err(NotOffered::Quarantine { bytes: quarantine.bytes, peers: quarantine.peers, most }.into())
        } else {
            memory.offer(range, write).map_err(io::Error::from)
        };
        let inserted = refused.and_then(|()| {
            let (table, _) = books.table(&self.0.options).map_err(io::Error::other)?;
            table.insert(address, range, access).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
        });
        // Not under the lock, should it be the last one.
        drop(books);
        step();
        Ok(ShmKey { key: inserted?, mark, start, bytes, access, address, _memory: Some(memory) })
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        if access.is_remote() && self.books().find(range).is_none() {
            return Err(NotOffered::NotShared { range }.into());
        }
        Ok(())
    }

    fn deregister(&self, batch: &mut Vec<Registered<ShmKey>>) -> io::Result<()> {
        // A child that was forked has copies of registrations: the tags are its parent's.
        batch.retain(|registered| registered.registration.mark.is_here());
        let mut books = self.books();
        let keys = |registered: &Registered<ShmKey>| registered.registration.key;
        batch.iter().map(keys).filter(|&key| key != 0).for_each(|key| books.kill(key));
        let links = books.links.clone();
        drop(books);
        step();
        // The tags are dead before it is asked who is at them.
        fence(SeqCst);
        let until = Instant::now() + self.0.options.stall;
        let is_left = |registered: &mut Registered<ShmKey>| {
            let key = registered.registration.key;
            key == 0 || self.is_left(&links, key, until)
        };
        let gone: Vec<_> = batch.extract_if(.., is_left).collect();
        step();
        let mut books = self.books();
        gone.iter().for_each(|registered| books.remove(registered.registration.key));
        drop(books);
        drop(gone);
        self.books().sweep();
        if batch.is_empty() {
            return Ok(());
        }
        let what = format!("{} registrations are held: peers stalled in the middle of a transfer", batch.len());
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }

    fn limits(&self) -> Limits {
        let page_size = rustix::param::page_size().max(PAGE as usize) as u64;
        Limits { regions: Some(Table::most_of(self.0.options.keys) as u64), page_size, ..Limits::NONE }
    }

    fn rights(&self) -> Access {
        Access::all().difference(Access::REMOTE_ATOMIC)
    }

    fn name(&self) -> &'static str {
        "shm"
    }
}

// SAFETY: the key opens the registration's bytes and no others; with key 0 it opens none.
unsafe impl Domain for ShmDomain {
    fn remote(&self, registration: &ShmKey, address: *const u8, length: usize) -> Segment {
        let within = (address as usize).wrapping_sub(registration.start) as u64;
        Segment { address: registration.address.wrapping_add(within), length: length as u64, key: registration.key }
    }

    fn is_held(&self, registration: &ShmKey) -> bool {
        let mut books = self.books();
        books.reap();
        registration.key != 0
            && books.links.iter().any(|link| link.is_closed_here() && link.peer_is_at(registration.key))
    }
}

impl fmt::Debug for ShmDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmDomain").field("options", &self.0.options).finish_non_exhaustive()
    }
}
