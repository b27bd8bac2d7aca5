//! A protection domain: registers memory of its arenas for peers, and waits until they are not at it any more.
#![expect(unsafe_code, reason = "a registrar and a domain promise what callers' safety rests on")]

use super::arena::ShmArena;
use super::error::{NotOffered, ShmError};
use super::failpoints::failpoint;
use super::link::Link;
use super::pool::{Memory, Sharing};
use super::registry::{Quarantine, Registry, ShmOptions};
use super::table::{OFFSET, Table};
use crate::fabric::fork_mark::ForkMark;
use crate::fabric::traits::Domain;
use crate::wire::Segment;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

/// Registers memory for the connections of one protection domain. Clones are the same domain.
///
/// Any memory of this process can be registered with local rights only: this process's own CPU is what reads and writes it.
/// With rights for peers, only memory of the domain's [arenas](ShmDomain::arena) can.
#[derive(Clone)]
pub struct ShmDomain(Registry);

/// A registration.
pub struct ShmKey {
    /// 0 without rights for peers.
    key: u32,
    /// The process that registered: its children have copies.
    mark: ForkMark,
    start: usize,
    bytes: usize,
    access: Access,
    /// The address of the first byte, as the fabric counts.
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
    /// Returns whether these bytes are registered, with this right.
    #[inline]
    pub(super) fn covers(&self, address: usize, length: usize, right: Access) -> bool {
        let within = address.checked_sub(self.start);
        within.and_then(|within| within.checked_add(length)).is_some_and(|end| end <= self.bytes)
            && (right == Access::LOCAL_READ || self.access.contains(right))
    }
}

impl ShmDomain {
    /// Makes a domain without memory and connections.
    ///
    /// # Errors
    /// [`ShmError::System`].
    pub fn new(options: ShmOptions) -> Result<Self, ShmError> {
        Ok(Self(Registry::new(options)?))
    }

    /// Makes memory that peers can be let at; see [`ShmArena`] for what that means.
    ///
    /// # Errors
    /// [`ShmError::Size`], [`ShmError::Full`], [`ShmError::System`].
    pub fn arena(&self, bytes: usize, sharing: Sharing) -> Result<ShmArena, ShmError> {
        let memory = self.0.books().add_arena(self.0.options(), bytes, sharing, false)?;
        Ok(ShmArena::new(memory, self.0.clone()))
    }

    /// Makes memory as [`arena`](Self::arena) does, which no peer gets at before it is [passed](super::ShmEndpoint::pass) to that one.
    ///
    /// # Errors
    /// As [`arena`](Self::arena).
    pub fn private_arena(&self, bytes: usize, sharing: Sharing) -> Result<ShmArena, ShmError> {
        let memory = self.0.books().add_arena(self.0.options(), bytes, sharing, true)?;
        Ok(ShmArena::new(memory, self.0.clone()))
    }

    /// Returns the registrations held because stalled peers may use them.
    pub fn quarantine(&self) -> Quarantine {
        self.0.books().quarantine()
    }

    /// Returns how many connections a peer may be at memory through.
    pub fn connections(&self) -> usize {
        let mut books = self.0.books();
        books.reap();
        books.links().len()
    }

    /// Returns how many registrations have rights for peers.
    pub fn keys(&self) -> usize {
        self.0.books().keys()
    }

    pub(super) fn options(&self) -> &ShmOptions {
        self.0.options()
    }

    /// Writes a word of the tag table, as only a cheat does.
    #[cfg(test)]
    pub(super) fn scribble(&self, at: usize, word: u64) {
        self.0.books().scribble(at, word);
    }

    /// Shows the descriptor that a peer gets first.
    ///
    /// # Errors
    /// A child of a fork has no memory for a table of its own.
    pub(super) fn with_table<T>(&self, see: impl FnOnce(&rustix::fd::OwnedFd, u64) -> T) -> Result<T, ShmError> {
        let mut books = self.0.books();
        let (table, _) = books.table(self.0.options())?;
        Ok(see(&table.file, table.bytes()))
    }

    /// Adds a connection: from now on the peer gets the arenas, and deregistrations wait for it.
    pub(super) fn join(&self, link: &Arc<Link>) -> Result<(), ShmError> {
        let mut memories = Vec::new();
        self.0.books().join(self.0.options(), link, &mut memories)
    }

    /// Takes links out that no peer is at memory through.
    pub(super) fn reap(&self) {
        self.0.books().reap();
    }
}

/// Returns whether the peer has left the memory of a tag. Waits until then.
fn is_left(links: &[Arc<Link>], key: u32, until: Instant) -> bool {
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

// SAFETY:
// * A registration with rights for peers keeps the arena's memory, which no other can unmap. One without is used by this
//   process alone, under the contract of `Endpoint::write` and `read`, by which the memory can be read or written.
// * Keys are unique in the table until they are removed from it.
// * A registration leaves the batch when its tag is dead and no link's peer is at it; the order is argued in the module's
//   documentation.
// * The table has the rights that were asked for and no others. The reach of a peer that breaks the rules is described there
//   too.
unsafe impl Registrar for ShmDomain {
    type Registration = ShmKey;

    fn register(&self, range: PageRange, access: Access) -> io::Result<ShmKey> {
        let start = usize::try_from(range.start() * PAGE).map_err(io::Error::other)?;
        let bytes = usize::try_from(range.pages() * PAGE).map_err(io::Error::other)?;
        let mut books = self.0.books();
        let mark = ForkMark::here()?;
        let found = books.find(range);
        if !access.is_remote() {
            return Ok(ShmKey { key: 0, mark, start, bytes, access, address: 0, _memory: found });
        }
        let memory = found.ok_or(NotOffered::NotShared { range })?;
        let write = access.contains(Access::REMOTE_WRITE);
        let quarantine = books.quarantine();
        let most = self.0.options().quarantine;
        let address = memory.number << OFFSET | (start - memory.base()) as u64;
        let refused = if access.contains(Access::REMOTE_ATOMIC) {
            Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
        } else if quarantine.bytes > 0 && quarantine.bytes >= most {
            Err(NotOffered::Quarantine { bytes: quarantine.bytes, peers: quarantine.peers, most }.into())
        } else {
            memory.offer(range, write).map_err(io::Error::from)
        };
        let inserted = refused.and_then(|()| {
            let (table, _) = books.table(self.0.options()).map_err(io::Error::other)?;
            table.insert(address, range, access).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
        });
        // Not under the lock, should it be the last one.
        drop(books);
        failpoint();
        Ok(ShmKey { key: inserted?, mark, start, bytes, access, address, _memory: Some(memory) })
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        // Not under the lock, should it be dropped as the last one.
        let found = self.0.books().find(range);
        if access.is_remote() && found.is_none() {
            return Err(NotOffered::NotShared { range }.into());
        }
        Ok(())
    }

    fn deregister(&self, batch: &mut Vec<Registered<ShmKey>>) -> io::Result<()> {
        // A child that was forked has copies of registrations: the tags are its parent's.
        batch.retain(|registered| registered.registration.mark.is_here());
        let mut books = self.0.books();
        let keys = |registered: &Registered<ShmKey>| registered.registration.key;
        batch.iter().map(keys).filter(|&key| key != 0).for_each(|key| books.kill(key));
        let links = books.links().to_vec();
        drop(books);
        failpoint();
        // The tags are dead before their users are looked for.
        fence(SeqCst);
        let until = Instant::now() + self.0.options().stall;
        let is_left = |registered: &mut Registered<ShmKey>| {
            let key = registered.registration.key;
            key == 0 || is_left(&links, key, until)
        };
        let gone: Vec<_> = batch.extract_if(.., is_left).collect();
        failpoint();
        let mut books = self.0.books();
        gone.iter().for_each(|registered| books.remove(registered.registration.key));
        drop(books);
        drop(gone);
        self.0.books().sweep();
        if batch.is_empty() {
            return Ok(());
        }
        let what = format!("{} registrations are held: peers stalled in the middle of a transfer", batch.len());
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }

    fn limits(&self) -> Limits {
        let page_size = rustix::param::page_size().max(PAGE as usize) as u64;
        Limits { regions: Some(Table::most_of(self.0.options().keys) as u64), page_size, ..Limits::NONE }
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
        let mut books = self.0.books();
        books.reap();
        registration.key != 0
            && books.links().iter().any(|link| link.is_closed_here() && link.peer_is_at(registration.key))
    }
}

impl fmt::Debug for ShmDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmDomain").field("options", self.0.options()).finish_non_exhaustive()
    }
}
