//! A registrar that the program brings: a table of its functions.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::access::{mrrc_access_t, rights};
use crate::gate::{Failure, null, said, text};
use mrrc::registrar::{self, Limits, Registered};
use mrrc::{Access, PAGE, PageRange};
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The result of a registration: the keys by which transfers name the memory. A registrar of one's own fills in what it
/// has, and finds it again in each mrrc_segment_t, and when the memory is to be deregistered. The cache itself looks at
/// none of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mrrc_registration_t {
    /// The network library's object: struct ibv_mr *, struct fid_mr *, ...
    pub handle: *mut c_void,
    /// The key for transfers of this side (verbs: lkey; libfabric: the descriptor; io_uring: the index of the buffer).
    pub lkey: u64,
    /// The key for peers. Unique among the valid ones.
    pub rkey: u64,
}

/// A registration that is to be deregistered.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mrrc_registered_t {
    /// The registered range.
    pub address: *mut c_void,
    /// Its bytes.
    pub length: usize,
    /// With these rights.
    pub access: mrrc_access_t,
    /// For the callback to set: 0, as it comes, if it is deregistered; else an errno, and it is tried again later.
    pub error: i32,
    /// The result of the registration.
    pub registration: mrrc_registration_t,
}

/// A registrar of the program's own, for any network library: two functions and what they are told.
///
/// Set all to zero, then `size` to sizeof(mrrc_registrar_t), then the rest. The table is copied. Callbacks are called
/// from any thread that uses the cache, from a thread of the cache's own, and from several at once. No lock of the
/// cache is held. They call no function of the same cache. Other threads' transfers and keys rest on these promises.
/// A registration means the pages that lay in the range when it was made, until it is deregistered, whatever is
/// mapped there meanwhile. Its keys are of no other valid one. Once it is deregistered the device does not touch its
/// pages. No right is granted that was not asked for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mrrc_registrar_t {
    /// sizeof(mrrc_registrar_t) of the header that the program was compiled with.
    pub size: usize,
    /// Its name in messages; NULL is "callbacks".
    pub name: *const c_char,
    /// The first argument of the callbacks.
    pub user: *mut c_void,
    /// Registers memory: whole pages of 4096 bytes or of page_size. Returns 0, having filled in the registration, or an errno.
    /// ENOMEM, EAGAIN and ENOSPC say that something is full: the cache makes room and calls again, some times. All others
    /// are final, and the request's error.
    pub register_range: Option<
        unsafe extern "C-unwind" fn(
            user: *mut c_void,
            address: *mut c_void,
            length: usize,
            access: mrrc_access_t,
            registration: *mut mrrc_registration_t,
        ) -> c_int,
    >,
    /// Deregisters a batch. A failed one is marked with its `error`.
    pub deregister_batch:
        Option<unsafe extern "C-unwind" fn(user: *mut c_void, batch: *mut mrrc_registered_t, count: usize)>,
    /// Whether a range could be registered, as far as that is cheap to tell: 0, or the errno that it would end with. Asked before
    /// others are evicted for it. NULL: not asked. For memory of this process: mrrc_probe_mapped.
    pub probe_range: Option<
        unsafe extern "C-unwind" fn(
            user: *mut c_void,
            address: *const c_void,
            length: usize,
            access: mrrc_access_t,
        ) -> c_int,
    >,
    /// The registrar is needed no more: all was deregistered, and no callback is called after this. Called once, from any thread,
    /// by mrrc_cache_free or later: when the last lease ended, or when what deregister_batch had refused was taken. That is tried
    /// again for about two seconds; what is refused to the last stays registered, and `done` is never called. Not called if
    /// no cache was made. May be NULL.
    pub done: Option<unsafe extern "C-unwind" fn(user: *mut c_void)>,
    /// The most bytes that may be registered at once; 0 is no limit, and the capacity is then 1 GiB unless it is set.
    pub max_bytes: u64,
    /// The most registrations at once; 0 is no limit.
    pub max_regions: u64,
    /// The most bytes of one registration; 0 is no limit.
    pub max_region_bytes: u64,
    /// Bytes in a page of the device, a power of two, 4096 or more: ranges are rounded out to it. 0 is 4096.
    pub page_size: u64,
    /// The rights that it can grant; 0 is all.
    pub rights: mrrc_access_t,
}

/// For mrrc_registrar_t.probe_range: whether all of the memory is mapped in this process, 0 or EFAULT. One system call, for
/// ranges up to 16 MiB.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mrrc_probe_mapped(
    _user: *mut c_void,
    address: *const c_void,
    length: usize,
    _access: mrrc_access_t,
) -> c_int {
    let mapped = || match PageRange::of_bytes(address as u64, length as u64) {
        Ok(range) => registrar::mapped(range).err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EFAULT)),
        Err(_) => libc::EINVAL,
    };
    crate::gate::quietly(libc::EFAULT, mapped)
}

/// The table, checked.
pub(crate) struct Callbacks {
    table: mrrc_registrar_t,
    name: &'static str,
    limits: Limits,
    rights: Access,
    /// Whether a cache came to be, and `done` is to be told of its end.
    in_use: AtomicBool,
}

// SAFETY: the header asks for callbacks that any thread can call, with `user`.
unsafe impl Send for Callbacks {}
// SAFETY: the header asks for callbacks that any thread can call at the same time, with `user`.
unsafe impl Sync for Callbacks {}

/// A callback's registration of a range.
pub(crate) struct Own(pub(crate) mrrc_registration_t);

// SAFETY: the cache only keeps it, and gives it back to callbacks that any thread can call.
unsafe impl Send for Own {}
// SAFETY: nothing in it changes; callbacks that use it can be called by any thread.
unsafe impl Sync for Own {}

impl Callbacks {
    /// # Safety
    /// It is null, or leads to a table as the header asks for.
    pub(crate) unsafe fn new(given: *const mrrc_registrar_t) -> Result<Self, Box<Failure>> {
        if given.is_null() {
            return Err(null("registrar"));
        }
        // SAFETY: the size comes first in all versions of the table.
        let size = unsafe { (&raw const (*given).size).read() };
        let (least, most) = (std::mem::offset_of!(mrrc_registrar_t, probe_range), 1 << 16);
        if size < least || size > most {
            return Err(Failure::argument(format!(
                "registrar.size is {size}: set it to sizeof(mrrc_registrar_t), which is {} here",
                size_of::<mrrc_registrar_t>()
            )));
        }
        // SAFETY: all zero is a table without callbacks. Fields that an older header lacks stay so; those that a newer
        // one adds are not known here. The caller promises `size` readable bytes.
        let table = unsafe {
            let mut table = std::mem::zeroed::<mrrc_registrar_t>();
            let known = size.min(size_of::<mrrc_registrar_t>());
            ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut table).cast::<u8>(), known);
            table
        };
        if table.register_range.is_none() || table.deregister_batch.is_none() {
            return Err(Failure::argument(
                "registrar.register_range and deregister_batch have to be functions, not NULL",
            ));
        }
        let name = if table.name.is_null() {
            "callbacks"
        } else {
            // SAFETY: the caller promises that `name` is a text that ends with 0.
            kept(unsafe { text(table.name, "registrar.name") }?)
        };
        let limit = |limit: u64| (limit > 0).then_some(limit);
        let pages = |what: &str, bytes: u64| match limit(bytes) {
            Some(bytes) if bytes < PAGE => Err(Failure::argument(format!(
                "registrar.{what} is {bytes}: it has to be {PAGE} or more, or 0 for no limit"
            ))),
            bytes => Ok(bytes.map(|bytes| bytes / PAGE)),
        };
        let limits = Limits {
            regions: limit(table.max_regions),
            pages: pages("max_bytes", table.max_bytes)?,
            region_pages: pages("max_region_bytes", table.max_region_bytes)?,
            page_size: limit(table.page_size).unwrap_or(PAGE),
        };
        let rights = if table.rights == 0 { Access::all() } else { rights(table.rights, "registrar.rights")? };
        Ok(Self { table, name, limits, rights, in_use: AtomicBool::new(false) })
    }

    /// There is a cache.
    pub(crate) fn begin(&self) {
        self.in_use.store(true, Ordering::Release);
    }

    pub(crate) fn register(&self, range: PageRange, access: Access) -> io::Result<Own> {
        let (address, length) = bytes_of(range)?;
        let mut made = mrrc_registration_t { handle: ptr::null_mut(), lkey: 0, rkey: 0 };
        let Some(register) = self.table.register_range else { return Err(missing()) };
        let code = called(|| {
            // SAFETY: the header asks for a function that any thread can call so.
            unsafe { register(self.table.user, address, length, access.bits().into(), &raw mut made) }
        })?;
        told(code).map(|()| Own(made))
    }

    pub(crate) fn deregister(&self, batch: &mut Vec<Registered<Own>>) -> io::Result<()> {
        let Some(deregister) = self.table.deregister_batch else { return Err(missing()) };
        let of_c = |registered: &Registered<Own>| -> io::Result<mrrc_registered_t> {
            let (address, length) = bytes_of(registered.range)?;
            let (access, registration) = (registered.access.bits().into(), registered.registration.0);
            Ok(mrrc_registered_t { address, length, access, error: 0, registration })
        };
        let mut table = batch.iter().map(of_c).collect::<io::Result<Vec<_>>>()?;
        // SAFETY: the header asks for a function that any thread can call so, for an array of so many.
        called(|| unsafe { deregister(self.table.user, table.as_mut_ptr(), table.len()) })?;
        let mut errors = table.iter().map(|of_c| told(of_c.error).err());
        let mut first = None;
        batch.retain(|_| match errors.next().flatten() {
            None => false,
            Some(error) => {
                first.get_or_insert(error);
                true
            }
        });
        first.map_or(Ok(()), Err)
    }

    pub(crate) fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        let Some(probe) = self.table.probe_range else { return Ok(()) };
        let (address, length) = bytes_of(range)?;
        // SAFETY: the header asks for a function that any thread can call so.
        told(called(|| unsafe { probe(self.table.user, address, length, access.bits().into()) })?)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn rights(&self) -> Access {
        self.rights
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

/// Not in a child that was forked meanwhile: what it has of a cache is forgotten there.
impl Drop for Callbacks {
    fn drop(&mut self) {
        let in_use = *self.in_use.get_mut();
        if let Some(done) = self.table.done.filter(|_| in_use) {
            // SAFETY: the header asks for callbacks that any thread can call, and `done` is the last call.
            _ = called(|| unsafe { done(self.table.user) });
        }
    }
}

/// Runs a callback and turns its panic into an error. (Code of Rust's may be behind it; what C++ throws ends the
/// process.)
fn called<T>(callback: impl FnOnce() -> T) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(callback)).map_err(|panic| {
        let error = io::Error::other(format!("the callback panicked: {}", said(&*panic)));
        std::mem::forget(panic);
        error
    })
}

/// An errno, of whichever sign.
fn told(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.checked_abs().unwrap_or(libc::EIO))),
    }
}

fn missing() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSYS)
}

fn bytes_of(range: PageRange) -> io::Result<(*mut c_void, usize)> {
    let of = |pages: u64| pages.checked_mul(PAGE).and_then(|bytes| usize::try_from(bytes).ok());
    match (of(range.start()), of(range.pages())) {
        (Some(start), Some(bytes)) => Ok((start as *mut c_void, bytes)),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// A name for good: messages have it by reference. There are as many as programs have registrars.
fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let new = &*Box::leak(name.to_owned().into_boxed_str());
    names.insert(new);
    new
}
