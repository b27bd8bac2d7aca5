//! Memory windows: rights of peers to exactly the bytes of a lease, which end with it.
//!
//! A region that has rights for peers keeps them until it is deregistered, and a cache deregisters late. A peer that kept a key reads or
//! writes those pages after the lease. With [`Remote::Windows`] regions have local rights only. A lease with rights for peers binds a
//! window over its bytes, with its rights; peers are sent the key of that ([`Segment::window`](crate::Segment::window)). The window is
//! unbound with the lease, and its key opens nothing any more. So rights end as without a cache, only pins stay.
//!
//! [`PeerWindows`] is what a registrar has for that. [`DomainWindows`] are those of a protection domain of libibverbs, for registrars over
//! it. They bind windows of type 1, which belong to a domain and to no connection, by a looped-back pair of queue pairs of their own.
//!
//! **Not every device's windows hold.** Some have none. Debian's `rxe` ignores their bounds. So [`try_windows`] reads and writes by windows,
//! in bounds and out of bounds, by keys that have ended, and from another domain. It compares what binding costs with what registering
//! costs. A device that fails is not used so.

#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod abi;
#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod domain;
#[cfg(target_os = "linux")]
mod looped;
mod of_cache;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
mod steps;
#[cfg(target_os = "linux")]
mod trial;

#[cfg(target_os = "linux")]
pub use calls::Calls;
#[cfg(target_os = "linux")]
pub use domain::DomainWindows;
#[cfg(target_os = "linux")]
pub use trial::{Verdict, try_windows};

pub(crate) use of_cache::CacheWindows;

use crate::access::Access;
use std::io;

/// How a cache gives peers their rights: [`Builder::remote`](crate::cache::Builder::remote).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Remote {
    /// Regions have the rights, and keep them until they are deregistered: for peers that are trusted with all that is ever acquired for
    /// them. [`Builder::max_unheld`](crate::cache::Builder::max_unheld) bounds for how long.
    #[default]
    Trusted,
    /// Regions have local rights. Each lease has [windows](self) over exactly its bytes, which end with it.
    Windows,
}

/// The memory windows of a registrar. The cache calls them from any thread, holds no lock meanwhile, and calls none in a forked child.
///
/// A window is bound for each segment of a lease for peers, and unbound once. Its registration is deregistered after that alone. Windows of
/// several leases may overlap, and each has a key of its own.
///
/// # Safety
/// Callers build the safety of their memory on these promises:
///
/// * A window opens exactly the given bytes to peers, for exactly the given rights.
/// * Once [`PeerWindows::unbind`] has returned `Ok`, its key opens nothing any more. It may open other bytes later only where so many others
///   came between that no peer has it still.
#[expect(unsafe_code, reason = "the edge: what it promises is what the safety of callers' memory rests on")]
pub unsafe trait PeerWindows<T>: Send + Sync {
    /// Returns the rights that windows can give peers. Asked once, when the cache is made. Requests for others are refused.
    fn rights(&self) -> Access;

    /// Lets peers at exactly these bytes of a registration, and returns the key for them. No other window has it as long as this is bound.
    ///
    /// The bytes begin at this address of the process and lie in the registration, one at least, and need not be whole pages. The rights are some
    /// of [`PeerWindows::rights`], for peers alone. Where peers may write, the registration has [`Access::LOCAL_WRITE`].
    ///
    /// # Errors
    /// The error of the system. Nothing is bound then, and the request is [`AcquireError::Window`](crate::AcquireError::Window).
    fn bind(&self, registration: &T, address: usize, length: usize, rights: Access) -> io::Result<u32>;

    /// Returns when the key opens nothing any more. The registration is there until then.
    ///
    /// # Errors
    /// The device did not end the window, and peers may still use its key. It can be tried again: [`Lease::end_windows`](crate::Lease::end_windows)
    /// does when it is called again. Where the end of a lease fails so, its memory stays registered for good.
    fn unbind(&self, key: u32) -> io::Result<()>;

    /// Returns why no window can be bound any more, if that is so, for [`Cache::explain`](crate::Cache::explain).
    fn trouble(&self) -> Option<String> {
        None
    }
}
