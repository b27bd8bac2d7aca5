//! The windows of a protection domain, by their keys.
#![expect(unsafe_code, reason = "they lie in a domain that the caller keeps open")]

use super::abi::{Pd, flag};
use super::calls::Calls;
use super::looped::{Handle, Looped};
use super::steps::{Bound, Bytes, Windows};
use crate::access::Access;
use crate::fork::ForkGuard;
use rustc_hash::FxHashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

/// The windows of one protection domain of libibverbs.
///
/// # Locks
/// The windows are behind a lock, which is held while one is bound or unbound. In a forked child nothing is bound, unbound or ended: all is
/// the parent's.
pub struct DomainWindows {
    table: Mutex<Table>,
    /// Whether windows give rights to atomic operations.
    atomics: bool,
    /// The domain has not been closed.
    open: AtomicBool,
    process: ForkGuard,
    /// Keeps the domain open, where that is needed.
    _domain: Box<dyn Send + Sync>,
}

struct Table {
    windows: Windows<Looped>,
    /// By their keys.
    bound: FxHashMap<u32, Bound<Handle>>,
}

impl fmt::Debug for DomainWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bound, idle) = self.counts();
        f.debug_struct("DomainWindows").field("bound", &bound).field("idle", &idle).finish_non_exhaustive()
    }
}

impl DomainWindows {
    /// Returns the windows of a domain whose device's windows hold, with atomic operations or without. What `domain` holds is dropped with it.
    ///
    /// # Errors
    /// As [`ForkGuard::new`].
    ///
    /// # Safety
    /// The domain is open as long as this is used, until it is dropped or [abandoned](DomainWindows::abandon); and so is what these
    /// functions call.
    pub unsafe fn new(
        calls: Calls,
        pd: NonNull<c_void>,
        atomics: bool,
        domain: Box<dyn Send + Sync>,
    ) -> io::Result<Self> {
        // SAFETY: the caller promises that the domain is open for as long as this is used.
        let windows = Windows::new(unsafe { Looped::new(calls, pd.cast::<Pd>()) });
        let table = Mutex::new(Table { windows, bound: FxHashMap::default() });
        let process = ForkGuard::new()?;
        Ok(Self { table, atomics, open: AtomicBool::new(true), process, _domain: domain })
    }

    /// Returns the rights that windows can give peers.
    pub fn rights(&self) -> Access {
        if self.atomics { Access::REMOTE } else { Access::REMOTE - Access::REMOTE_ATOMIC }
    }

    /// Lets peers at exactly these bytes of a region with exactly these rights, and returns the key. The region was registered so that windows
    /// can be bound to it.
    ///
    /// # Errors
    /// The device's or the system's. Nothing is bound then.
    ///
    /// # Safety
    /// The region is of this domain, and is deregistered after [`DomainWindows::unbind`] and [`DomainWindows::region_ends`] alone.
    pub unsafe fn bind(
        &self,
        region: NonNull<c_void>,
        address: usize,
        length: usize,
        rights: Access,
    ) -> io::Result<u32> {
        let bytes = Bytes {
            region: region.addr().get(),
            address: address as u64,
            length: length as u64,
            rights: flags(rights),
        };
        let mut table = self.open_table().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        let bound = table.windows.bind(&bytes).map_err(io::Error::from_raw_os_error)?;
        let key = bound.key;
        table.bound.insert(key, bound);
        Ok(key)
    }

    /// Returns when the key opens nothing any more.
    ///
    /// # Errors
    /// The device did not end the window. It can be tried again.
    pub fn unbind(&self, key: u32) -> io::Result<()> {
        let Some(mut table) = self.open_table() else { return Ok(()) };
        let Some(bound) = table.bound.remove(&key) else { return Ok(()) };
        table.windows.unbind(bound).map_err(|(bound, why)| {
            table.bound.insert(key, bound);
            io::Error::from_raw_os_error(why)
        })
    }

    /// Ends the idle windows that were bound to a region, before that is deregistered.
    pub fn region_ends(&self, region: NonNull<c_void>) {
        if let Some(mut table) = self.open_table() {
            table.windows.region_ends(region.addr().get());
        }
    }

    /// Ends the idle windows and, if no window is bound, the queue pairs.
    pub fn close(&self) {
        if let Some(mut table) = self.open_table() {
            table.windows.close();
        }
    }

    /// Forgets all: the domain is closed, and the kernel has taken back what was in it.
    pub fn abandon(&self) {
        let Some(mut table) = self.open_table() else { return };
        self.open.store(false, Ordering::Release);
        table.windows.abandon();
        table.bound.clear();
    }

    /// Returns how many windows are bound and how many are idle.
    pub fn counts(&self) -> (usize, usize) {
        self.open_table().map_or((0, 0), |table| table.windows.counts())
    }

    /// Why no window can be bound any more, if that is so.
    pub fn trouble(&self) -> Option<String> {
        match self.open_table() {
            Some(table) => table.windows.trouble(),
            None => Some("the protection domain is closed".into()),
        }
    }

    /// Whether the domain is open, and this process's.
    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) && !self.process.is_forked()
    }

    /// Returns what is in the domain, as long as that is open. Looks once more under the lock, because another thread may close it.
    fn open_table(&self) -> Option<MutexGuard<'_, Table>> {
        if !self.is_open() {
            return None;
        }
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_open().then_some(table)
    }
}

impl Drop for DomainWindows {
    fn drop(&mut self) {
        let is_open = self.is_open();
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        if is_open {
            table.windows.close();
        } else {
            table.windows.abandon();
        }
    }
}

/// Returns libibverbs' flags of rights for peers.
fn flags(rights: Access) -> u32 {
    let named = [
        (Access::REMOTE_WRITE, flag::REMOTE_WRITE),
        (Access::REMOTE_READ, flag::REMOTE_READ),
        (Access::REMOTE_ATOMIC, flag::REMOTE_ATOMIC),
    ];
    named.into_iter().filter(|(right, _)| rights.contains(*right)).fold(0, |all, (_, flag)| all | flag)
}
