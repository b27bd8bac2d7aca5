//! The books of a domain: its arenas, tags and connections.
//!
//! One lock guards them; it is held across no wait. Transfers do not take it.

use super::error::{ShmError, system};
use super::failpoints::failpoint;
use super::link::Link;
use super::packets::{self, Packet};
use super::pool::{Memory, Sharing};
use super::table::{Held, Table};
use crate::fabric::fork_mark::ForkMark;
use mrrc::{PAGE, PageRange};
use rustix::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

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

/// The registrations held though their connections are gone, because the peers may still use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quarantine {
    /// Peers that stalled in the middle of a transfer, and live.
    pub peers: usize,
    /// Bytes of the registrations that they are at.
    pub bytes: u64,
}

/// The options of a domain, and its books. Clones are the same.
#[derive(Clone)]
pub(super) struct Registry(Arc<Inner>);

struct Inner {
    options: ShmOptions,
    books: Mutex<Books>,
}

/// The registry's state, behind its lock.
pub(super) struct Books {
    /// The process that owns these: a child of a fork begins with none.
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
    /// The peers that it was passed to; None where all are.
    passed: Option<Vec<Weak<Link>>>,
}

impl Registry {
    /// # Errors
    /// [`ShmError::System`].
    pub(super) fn new(options: ShmOptions) -> Result<Self, ShmError> {
        let table = Some(Table::new(options.keys)?);
        let mark = ForkMark::here().map_err(system("make a domain", "see why the system has no random numbers"))?;
        let books = Mutex::new(Books { mark, table, arenas: Vec::new(), next_arena: 0, links: Vec::new() });
        Ok(Self(Arc::new(Inner { options, books })))
    }

    pub(super) fn options(&self) -> &ShmOptions {
        &self.0.options
    }

    /// Locks the books. A child of a fork begins with empty ones.
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        let mut books = self.0.books.lock().unwrap_or_else(PoisonError::into_inner);
        if !books.mark.is_here() {
            books.begin_anew();
        }
        books
    }

    /// Returns the registrations that stalled peers may be at.
    pub(super) fn quarantined(&self) -> Vec<PageRange> {
        let mut books = self.books();
        books.reap();
        let held = books.links.iter().filter(|link| link.is_closed_here());
        held.filter_map(|link| Some(books.held(link.peer_at()?)?.range)).collect()
    }

    /// Returns a registration of such pages by which peers may still begin something.
    pub(super) fn living_in(&self, pages: PageRange) -> Option<PageRange> {
        self.books().table.iter().flat_map(Table::living).map(|held| held.range).find(|range| range.overlaps(pages))
    }
}

fn pass(link: &Link, memory: &Memory) -> rustix::io::Result<()> {
    let writable = memory.sharing == Sharing::Writable;
    let packet = Packet::Arena { number: memory.number, bytes: memory.mapping.len() as u64, writable };
    packets::send(&link.socket, packet, &[memory.file.as_fd()])
}

impl Books {
    /// Adds an arena. All peers are passed it, or `none` at first.
    pub(super) fn add_arena(
        &mut self,
        options: &ShmOptions,
        bytes: usize,
        sharing: Sharing,
        none: bool,
    ) -> Result<Arc<Memory>, ShmError> {
        // Fails in a child that cannot begin anew.
        let mark = self.table(options)?.1;
        self.sweep();
        let most = options.arenas;
        if self.arenas.len() >= most {
            let remedy = "make fewer and larger ones, or raise ShmOptions::arenas";
            return Err(ShmError::Full { doing: "make an arena", most, remedy });
        }
        let number = self.next_arena;
        let memory = Arc::new(Memory::new(number, bytes, sharing, mark)?);
        self.next_arena += 1;
        let passed = none.then(Vec::new);
        let listed = Listed {
            start: memory.base(),
            bytes: memory.mapping.len(),
            number,
            memory: Arc::downgrade(&memory),
            passed,
        };
        self.arenas.push(listed);
        failpoint();
        if none {
            return Ok(memory);
        }
        for link in self.links.iter().filter(|link| !link.is_closed_here()) {
            // A peer that does not take what it is sent is given up.
            if pass(link, &memory).is_err() {
                link.close();
            }
        }
        Ok(memory)
    }

    /// Adds a connection, and passes the arenas to its peer. They are kept alive by `memories`, to be dropped without the lock.
    pub(super) fn join(
        &mut self,
        options: &ShmOptions,
        link: &Arc<Link>,
        memories: &mut Vec<Arc<Memory>>,
    ) -> Result<(), ShmError> {
        self.reap();
        self.sweep();
        let most = options.connections;
        if self.links.len() >= most {
            let remedy = "close some, or raise ShmOptions::connections";
            return Err(ShmError::Full { doing: "connect", most, remedy });
        }
        let of_all = self.arenas.iter().filter(|arena| arena.passed.is_none());
        memories.extend(of_all.filter_map(|arena| arena.memory.upgrade()));
        let passed = memories.iter().try_for_each(|memory| pass(link, memory));
        if passed.is_ok() {
            self.links.push(link.clone());
        }
        passed.map_err(system("pass arenas to a peer", "see whether it still runs, and ulimit -n"))
    }

    /// Passes an arena to a peer, unless that has it.
    pub(super) fn pass_to(&mut self, memory: &Memory, link: &Arc<Link>) -> Result<(), ShmError> {
        let listed = self.arenas.iter_mut().find(|arena| arena.number == memory.number);
        let Some(passed) = listed.and_then(|arena| arena.passed.as_mut()) else { return Ok(()) };
        passed.retain(|passed| passed.strong_count() > 0);
        if passed.iter().any(|passed| std::ptr::eq(passed.as_ptr(), Arc::as_ptr(link))) {
            return Ok(());
        }
        pass(link, memory).map_err(system("pass an arena to a peer", "see whether it still runs, and ulimit -n"))?;
        passed.push(Arc::downgrade(link));
        Ok(())
    }

    /// Returns the connections that a peer may be at memory through.
    pub(super) fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// Returns how many tags live.
    pub(super) fn keys(&self) -> usize {
        self.table.as_ref().map_or(0, Table::live)
    }

    #[cfg(test)]
    pub(super) fn scribble(&self, at: usize, word: u64) {
        let shared = self.table.as_ref().expect("a table").shared();
        shared.word(at * 8 % shared.len()).store(word, std::sync::atomic::Ordering::Relaxed);
    }

    /// Forgets what is the parent's. Its table, arenas and connections stay with it.
    fn begin_anew(&mut self) {
        self.table = None;
        self.arenas.clear();
        self.links.clear();
        self.next_arena = 0;
    }

    /// Returns the tag table, and its owner.
    pub(super) fn table(&mut self, options: &ShmOptions) -> Result<(&mut Table, ForkMark), ShmError> {
        if !self.mark.is_here() {
            self.mark = ForkMark::here().map_err(system("begin anew", "see why the system has no random numbers"))?;
        }
        let table = match self.table.take() {
            Some(table) => table,
            None => Table::new(options.keys)?,
        };
        Ok((self.table.insert(table), self.mark))
    }

    pub(super) fn kill(&mut self, key: u32) {
        self.table.iter_mut().for_each(|table| table.kill(key));
    }

    pub(super) fn remove(&mut self, key: u32) {
        self.table.iter_mut().for_each(|table| table.remove(key));
    }

    fn held(&self, key: u32) -> Option<Held> {
        self.table.as_ref()?.get(key)
    }

    pub(super) fn reap(&mut self) {
        let Self { links, table, .. } = self;
        let held = |key| table.as_ref().is_some_and(|table| table.get(key).is_some());
        links.retain(|link| {
            if !link.is_closed_here() {
                return true;
            }
            // The closing thread may not have come to its fence yet.
            fence(SeqCst);
            // A key that was never given is no reason to hold anything.
            link.peer_at().is_some_and(held) && !link.is_dead()
        });
    }

    /// Tells peers of arenas that are gone.
    pub(super) fn sweep(&mut self) {
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

    pub(super) fn quarantine(&mut self) -> Quarantine {
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

    /// Returns the memory of the arena that these pages are in.
    pub(super) fn find(&self, range: PageRange) -> Option<Arc<Memory>> {
        let start = usize::try_from(range.start() * PAGE).ok()?;
        let end = usize::try_from(range.end() * PAGE).ok()?;
        let within = |arena: &&Listed| arena.start <= start && end <= arena.start + arena.bytes;
        self.arenas.iter().filter(within).find_map(|arena| arena.memory.upgrade())
    }
}
