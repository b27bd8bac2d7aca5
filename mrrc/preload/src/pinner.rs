//! The registrar of the caches: libibverbs' own functions, in a protection domain of the program's.
#![expect(unsafe_code, reason = "the calls of libibverbs")]

use crate::abi::{DeviceAttr, Mr, Pd};
use crate::eligibility::Class;
use crate::real::Real;
use crate::reentrancy::{self, Inside};
use crate::settings::Settings;
use crate::stats::Stats;
use mrrc::registrar::windows::{DomainWindows, PeerWindows};
use mrrc::registrar::{Limits, Registered, Registrar, mapped, memlock_limit, pinnable_pages};
use mrrc::{Access, PAGE, PageRange};
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

thread_local! {
    static PINNED: Cell<bool> = const { Cell::new(false) };
}

/// From now on it is seen whether this thread registers.
pub(crate) fn begin() {
    PINNED.set(false);
}

/// Returns whether it has.
pub(crate) fn has_pinned() -> bool {
    PINNED.get()
}

/// The registrar of one class in one protection domain.
pub(crate) struct Pinner {
    real: &'static Real,
    pd: NonNull<Pd>,
    class: Class,
    limits: Limits,
    stats: &'static Stats,
    /// The windows that are bound to its regions.
    windows: Option<Arc<DomainWindows>>,
    /// The program has closed the device: the kernel has taken back what was registered with it.
    closed: Arc<AtomicBool>,
}

/// A registration of libibverbs'.
pub(crate) struct Pinned {
    mr: NonNull<Mr>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

// SAFETY: libibverbs' regions and domains belong to no thread.
unsafe impl Send for Pinned {}
// SAFETY: nothing is changed by a shared reference.
unsafe impl Sync for Pinned {}
// SAFETY: libibverbs' domains belong to no thread, and the rest is shared state behind atomics.
unsafe impl Send for Pinner {}
// SAFETY: libibverbs allows calls on a domain from several threads, and nothing is changed by a shared reference.
unsafe impl Sync for Pinner {}

impl Pinner {
    /// # Safety
    /// The domain is open until `closed` says otherwise.
    pub(crate) unsafe fn new(
        real: &'static Real,
        pd: NonNull<Pd>,
        class: Class,
        settings: &Settings,
        stats: &'static Stats,
        windows: Option<Arc<DomainWindows>>,
        closed: Arc<AtomicBool>,
    ) -> Self {
        let reserve = memlock_limit().map_or(0, |limit| settings.reserve(limit));
        // SAFETY: the caller promises that the domain is open, as `limits` requires.
        let limits = unsafe { limits(real, pd, reserve) };
        Self { real, pd, class, limits, stats, windows, closed }
    }
}

/// Half of what the device can, because others use it as well, and what this process may pin. The reserve is bytes of that
/// which are left to others.
///
/// # Safety
/// The domain is open.
unsafe fn limits(real: &Real, pd: NonNull<Pd>, reserve: u64) -> Limits {
    // SAFETY: all zero is a value of `DeviceAttr`, which holds plain numbers.
    let mut device: DeviceAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the domain is open, hence its context; the structure has room for what is written.
    let failed = real.query_device.is_none_or(|query| unsafe { query((*pd.as_ptr()).context, &mut device) != 0 });
    let positive = |number: u64| (!failed && number > 0).then_some(number);
    Limits {
        regions: positive(device.max_mr.max(0) as u64 / 2),
        pages: pinnable_pages(reserve),
        region_pages: positive(device.max_mr_size / PAGE),
        // SAFETY: `sysconf` takes a number and returns one.
        page_size: u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE).max(PAGE),
    }
}

// SAFETY: a memory region holds its pages, whatever becomes of the mapping, until `ibv_dereg_mr`: classes leave on-demand
// paging out. Keys are unique in a domain as long as they are valid, by the rules of verbs. When `ibv_dereg_mr` returns, the
// card has forgotten the keys. Flags for peers are those of the class, which are those that every request of its cache asks.
unsafe impl Registrar for Pinner {
    type Registration = Pinned;

    fn register(&self, range: PageRange, access: Access) -> io::Result<Pinned> {
        let (Some(address), Some(bytes)) = (range.start().checked_mul(PAGE), range.pages().checked_mul(PAGE)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (memory, bytes, flags) = (address as *mut c_void, bytes as usize, self.class.flags(access));
        if self.closed.load(Ordering::Acquire) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        PINNED.set(true);
        let inside = Inside::again();
        let begun = Instant::now();
        // SAFETY: the domain is open. Memory that the range names is pinned, not touched: any address may be there.
        let mr = unsafe {
            match self.real.reg_mr_iova2 {
                Some(register) => register(self.pd.as_ptr(), memory, bytes, address, flags),
                None => (self.real.reg_mr)(self.pd.as_ptr(), memory, bytes, flags as i32),
            }
        };
        let took = begun.elapsed();
        let error = reentrancy::errno();
        drop(inside);
        let Some(mr) = NonNull::new(mr) else {
            return Err(io::Error::from_raw_os_error(if error == 0 { libc::EIO } else { error }));
        };
        self.stats.registered(range.pages(), took);
        // SAFETY: libibverbs has just returned it.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        Ok(Pinned { mr, lkey, rkey })
    }

    fn deregister(&self, batch: &mut Vec<Registered<Pinned>>) -> io::Result<()> {
        let mut first = None;
        batch.retain(|Registered { registration, range, .. }| {
            if self.closed.load(Ordering::Acquire) {
                return false;
            }
            let inside = Inside::again();
            if let Some(windows) = &self.windows {
                windows.region_ends(registration.mr.cast());
            }
            let begun = Instant::now();
            // SAFETY: it was registered here, the domain is open, and the cache gives each away once.
            let failed = unsafe { (self.real.dereg_mr)(registration.mr.as_ptr()) };
            let took = begun.elapsed();
            inside.keep_errno();
            if failed == 0 {
                self.stats.deregistered(range.pages(), took);
                return false;
            }
            first = first.take().or(Some(io::Error::from_raw_os_error(failed.abs())));
            true
        });
        first.map_or(Ok(()), Err)
    }

    fn probe(&self, range: PageRange, _: Access) -> io::Result<()> {
        mapped(range)
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    /// Those of the domain, of which the device was tried.
    fn ready_windows(&mut self) -> io::Result<Arc<dyn PeerWindows<Pinned>>> {
        let windows = self.windows.clone().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Arc::new(Counted { windows, stats: self.stats }))
    }

    fn name(&self) -> &'static str {
        "verbs"
    }
}

/// The windows of a domain, counted for the process.
struct Counted {
    windows: Arc<DomainWindows>,
    stats: &'static Stats,
}

// SAFETY: `DomainWindows` keeps these promises on devices that passed the trial.
unsafe impl PeerWindows<Pinned> for Counted {
    fn rights(&self) -> Access {
        self.windows.rights()
    }

    fn bind(&self, pinned: &Pinned, address: usize, length: usize, rights: Access) -> io::Result<u32> {
        // SAFETY: the region is of the class of the domain whose windows these are, and `deregister` tells them before it ends.
        let key = unsafe { self.windows.bind(pinned.mr.cast(), address, length, rights) };
        if key.is_ok() {
            self.stats.bound()
        } else {
            self.stats.window_failed()
        }
        key
    }

    fn unbind(&self, key: u32) -> io::Result<()> {
        self.windows.unbind(key).inspect_err(|_| self.stats.window_failed())
    }

    fn trouble(&self) -> Option<String> {
        self.windows.trouble()
    }
}
