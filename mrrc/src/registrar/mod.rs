//! The edge that pins: what registers memory, and what is asked of it.
//!
//! A [`Registrar`] stands for one protection domain: a table of registrations that a device consults. The
//! cache calls it from any thread, and never holds a lock while it does.

#[cfg_attr(
    not(all(any(feature = "io-uring", feature = "verbs", feature = "verbs-linked"), target_os = "linux")),
    allow(dead_code, reason = "asked by registrars that pin")
)]
pub(crate) mod budget;
#[cfg(all(feature = "io-uring", target_os = "linux"))]
pub mod io_uring;
pub mod rails;
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
pub mod verbs;

pub mod windows;

pub use crate::mapped::mapped;

/// Returns the pages of 4 KiB that this process may pin besides `locked` bytes which count as locked already. A
/// registrar states it as [`Limits::pages`] if its device has no such limit. `RLIMIT_MEMLOCK` bounds it where it is
/// felt, and half of the memory that the process can have. `None` if nothing is known to bound it.
pub fn pinnable_pages(locked: u64) -> Option<u64> {
    budget::pages(locked)
}

/// Returns `RLIMIT_MEMLOCK` in bytes, unless it is unlimited or this process is exempt from it. Other processes of the same user
/// may draw on it as well.
pub fn memlock_limit() -> Option<u64> {
    budget::memlock()
}

use crate::access::Access;
use crate::range::PageRange;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use windows::PeerWindows;

/// Rights of which verbs ask for [`Access::LOCAL_WRITE`] besides, of regions and of windows.
pub(crate) const WRITES_OF_PEERS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// Registers ranges of memory with a device, and takes them back.
///
/// # Safety
///
/// Callers of the cache build the safety of their transfers on what a registrar promises:
///
/// * A registration that was returned stays valid until it is deregistered. It means the pages that lay in the range
///   when it was made, whatever is unmapped or mapped there meanwhile.
/// * Keys are unique: as long as a registration is valid, no other has its keys.
/// * Deregistering is quiescent: once [`Registrar::deregister`] has taken a registration out of the batch,
///   the device touches its pages no more on that registration's account.
/// * An access right that was not asked for is not granted to peers.
#[expect(unsafe_code, reason = "the edge: what it promises is what callers' safety rests on")]
pub unsafe trait Registrar: Send + Sync + 'static {
    /// A lease's view of a registration: its keys. It is not `Clone`, so that it cannot outlive the
    /// lease; the cache alone owns it.
    type Registration: Send + Sync + 'static;

    /// Registers one range.
    ///
    /// # Errors
    /// The error of the system. `ENOMEM`, `EAGAIN` and `ENOSPC` say that a table or limit is full: the
    /// cache makes room and tries again, a stated number of times. All others are final for the range.
    fn register(&self, range: PageRange, access: Access) -> io::Result<Self::Registration>;

    /// Whether the range could be registered, as far as that is cheap to tell. Called before others are evicted for it,
    /// so that a bad address evicts no region. Default: it could; then a bad address in a full cache costs one attempt,
    /// and the batch that left for it. A registrar of this process's memory can ask [`mapped`], which costs a miss that
    /// evicts a system call. It is not the default, because ranges need not be addresses of this process.
    ///
    /// # Errors
    /// The error that registering it would end with.
    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        let _ = (range, access);
        Ok(())
    }

    /// As [`Registrar::probe`], and may take its time to tell more: asked by [`Cache::explain`](crate::Cache::explain) alone.
    /// The rights are those of the request, those that windows would give peers included. Default: what that says.
    ///
    /// # Errors
    /// As [`Registrar::probe`].
    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.probe(range, access)
    }

    /// Deregisters a batch, in one operation if the device can. The regions that it takes out of the vector are deregistered;
    /// those that it leaves there are still registered, and the error tells why. Deregistered regions make room when this
    /// returns, so the cache hands over as much as takes some milliseconds, and several threads call this at once.
    ///
    /// # Errors
    /// The error of the system. The cache keeps what was left, counts it, and tries it again later.
    fn deregister(&self, batch: &mut Vec<Registered<Self::Registration>>) -> io::Result<()>;

    /// Returns the time by which the cache measures deregistrations, to choose the sizes of batches; `None`, the default, is the
    /// system's. A simulated registrar has a clock of its own, so that decisions do not depend on the machine's load.
    fn clock(&self) -> Option<Duration> {
        None
    }

    /// How much can be registered.
    fn limits(&self) -> Limits;

    /// Returns the rights that it can grant: all, unless it says otherwise.
    fn rights(&self) -> Access {
        Access::all()
    }

    /// Readies memory windows, by which a cache of [`Remote::Windows`](windows::Remote::Windows) gives peers their rights. Called once, before
    /// anything is registered: from then on windows can be bound to what is registered, with local rights alone.
    ///
    /// # Errors
    /// Why it has no windows that hold; of the kind [`Unsupported`](io::ErrorKind::Unsupported) where another device may have them. Default: it has
    /// none.
    fn ready_windows(&mut self) -> io::Result<Arc<dyn PeerWindows<Self::Registration>>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "it has no memory windows"))
    }

    /// Whether its device is gone for good, and its registrations with it. Asked after an error. Default: it is not.
    fn is_gone(&self) -> bool {
        false
    }

    /// Its name in messages.
    fn name(&self) -> &'static str;
}

/// A registration and what was registered.
#[derive(Debug)]
pub struct Registered<T> {
    /// The pages, as they were asked for.
    pub range: PageRange,
    /// The rights, as they were asked for.
    pub access: Access,
    /// The registrar's value.
    pub registration: T,
}

impl<T> AsRef<T> for Registered<T> {
    fn as_ref(&self) -> &T {
        &self.registration
    }
}

/// How much a registrar can have registered at once. `None` is no limit of its own.
///
/// Fields may be added: name those that matter, and take the rest from [`Limits::NONE`], which is also the default.
///
/// ```
/// use mrrc::registrar::Limits;
/// let limits = Limits { regions: Some(1024), ..Limits::default() };
/// assert_eq!(limits.pages, None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Registrations.
    pub regions: Option<u64>,
    /// Pages, all registrations together.
    pub pages: Option<u64>,
    /// Pages of one registration.
    pub region_pages: Option<u64>,
    /// Bytes in a page of the device: ranges are rounded out to it. A power of two, at least [`PAGE`](crate::PAGE).
    pub page_size: u64,
}

impl Limits {
    /// No limits, pages of 4 KiB.
    pub const NONE: Self = Self { regions: None, pages: None, region_pages: None, page_size: crate::PAGE };
}

impl Default for Limits {
    /// [`Limits::NONE`].
    fn default() -> Self {
        Self::NONE
    }
}

/// The meaning of a failed registration for the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Something is full: making room can help.
    Exhausted,
    /// The range or the rights are refused: trying again cannot help.
    Refused,
}

impl Failure {
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC) => Self::Exhausted,
            Some(_) => Self::Refused,
            None if error.kind() == io::ErrorKind::OutOfMemory => Self::Exhausted,
            None => Self::Refused,
        }
    }
}
