//! Caches: over callbacks, a ring, a protection domain.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::callbacks::{Callbacks, mrrc_registrar_t};
use crate::edge::Edge;
use crate::gate::{Failure, emptied, guarded, quietly};
use crate::options::{builder, mrrc_options_t};
use crate::status::{mrrc_error_t, mrrc_status_t};
use mrrc::Cache;
use std::sync::Arc;

/// A cache of memory registrations. Used by any number of threads at once.
pub struct mrrc_cache_t {
    /// Counted, because what was begun, and an announced change, need it until they end.
    pub(crate) cache: Arc<Cache<Edge>>,
}

/// Of libibverbs.
pub enum ibv_pd {}

/// Makes a cache over a registrar of the program's own. `options` may be NULL. Freed by mrrc_cache_free.
///
/// The table is copied. `user` is needed until the table's `done` was called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_cache_new(
    options: *const mrrc_options_t,
    registrar: *const mrrc_registrar_t,
    cache: *mut *mut mrrc_cache_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let make = || {
        // SAFETY: the header requires that `cache` can be written, and that `registrar` and `options` are as it says;
        // NULL is refused.
        unsafe {
            let place = emptied(cache, "cache")?;
            let made = made(options, Edge::Callbacks(Callbacks::new(registrar)?))?;
            if let Edge::Callbacks(callbacks) = made.cache.registrar() {
                callbacks.begin();
            }
            place.write(Box::into_raw(made));
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, make) }
}

/// Makes a cache over the fixed buffers of an io_uring (Linux 5.19): real pins without an RDMA device. Transfers (READ_FIXED,
/// WRITE_FIXED, zero-copy sends) name memory by the index that a segment has as its lkey. `options` may be NULL.
///
/// `ring_fd` is the file of the ring (liburing: ring.ring_fd). It is opened once more, so the ring may be closed first. `slots` is
/// how many buffers it can have, 1 to 16384; 1024 is a good number. The ring must have no fixed buffers so far, must not be set up
/// with IORING_SETUP_SINGLE_ISSUER, and gives only local rights. The cache's own memory is pinned, and counts against
/// RLIMIT_MEMLOCK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_cache_new_io_uring(
    options: *const mrrc_options_t,
    ring_fd: i32,
    slots: u32,
    cache: *mut *mut mrrc_cache_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let make = || {
        // SAFETY: the header requires that `cache` can be written, and that `registrar` and `options` are as it says;
        // NULL is refused.
        unsafe {
            let place = emptied(cache, "cache")?;
            place.write(Box::into_raw(made(options, io_uring(ring_fd, slots)?)?));
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, make) }
}

/// Makes a cache over a protection domain of verbs: memory is registered there with ibv_reg_mr. `options` may be NULL.
///
/// The domain stays the caller's. It must stay open until the cache was freed and its last lease released; then ibv_dealloc_pd.
/// MRRC_ERROR_UNSUPPORTED if the library was built without verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_cache_new_verbs(
    options: *const mrrc_options_t,
    pd: *mut ibv_pd,
    cache: *mut *mut mrrc_cache_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let make = || {
        // SAFETY: the header requires that `cache` can be written, and that `registrar` and `options` are as it says;
        // NULL is refused.
        unsafe {
            let place = emptied(cache, "cache")?;
            place.write(Box::into_raw(made(options, verbs(pd)?)?));
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, make) }
}

/// Frees a cache: deregisters all that no lease has. Leased memory stays registered until it is released, and a thread of the
/// library's waits for that. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_cache_free(cache: *mut mrrc_cache_t) {
    if !cache.is_null() {
        // SAFETY: as the header asks, it came from one of the functions above, and is freed once.
        quietly((), || drop(unsafe { Box::from_raw(cache) }));
    }
}

/// # Safety
/// As [`builder`].
unsafe fn made(options: *const mrrc_options_t, edge: Edge) -> Result<Box<mrrc_cache_t>, Box<Failure>> {
    // SAFETY: the caller passes `options` from mrrc_options_new or null, as `builder` requires.
    let cache = unsafe { builder(options, edge) }?.build()?;
    Ok(Box::new(mrrc_cache_t { cache: Arc::new(cache) }))
}

#[cfg(target_os = "linux")]
fn io_uring(ring_fd: i32, slots: u32) -> Result<Edge, Box<Failure>> {
    use crate::status::mrrc_status_t::MRRC_ERROR_DEVICE;
    use mrrc::registrar::io_uring::{IoUringBuffers, IoUringError};
    use std::os::fd::BorrowedFd;
    if ring_fd < 0 {
        return Err(Failure::argument(format!("ring_fd is {ring_fd}: it is to be the file of an io_uring")));
    }
    // SAFETY: a number of a file, which is asked about; the system reports that it is no file; that it is another's
    // cannot be known.
    let ring = unsafe { BorrowedFd::borrow_raw(ring_fd) };
    IoUringBuffers::from_fd(ring, slots).map(Edge::IoUring).map_err(|error| match &error {
        IoUringError::Refused { source, .. } | IoUringError::NoRing(source) | IoUringError::File(source) => {
            Failure::by(MRRC_ERROR_DEVICE, source, error.to_string())
        }
        IoUringError::Slots { .. } => Failure::argument(error.to_string()),
        _ => Failure::new(MRRC_ERROR_DEVICE, error.to_string()),
    })
}

#[cfg(not(target_os = "linux"))]
fn io_uring(_: i32, _: u32) -> Result<Edge, Box<Failure>> {
    Err(Failure::new(mrrc_status_t::MRRC_ERROR_UNSUPPORTED, "this system has no io_uring: it is Linux's"))
}

/// # Safety
/// It is null, or a protection domain that stays open as long as the edge.
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
unsafe fn verbs(pd: *mut ibv_pd) -> Result<Edge, Box<Failure>> {
    use crate::gate::null;
    use crate::status::mrrc_status_t::MRRC_ERROR_DEVICE;
    use mrrc::registrar::verbs::{Domain, Verbs, VerbsError};
    let pd = std::ptr::NonNull::new(pd.cast()).ok_or_else(|| null("pd"))?;
    let failed = |error: VerbsError| match &error {
        VerbsError::Refused { source, .. } => Failure::by(MRRC_ERROR_DEVICE, source, error.to_string()),
        _ => Failure::new(MRRC_ERROR_DEVICE, error.to_string()),
    };
    // SAFETY: the caller promises an open protection domain that outlives the cache, as `borrow` requires.
    let domain = unsafe { Domain::borrow(pd) }.map_err(failed)?;
    Verbs::new(&domain).map(Edge::Verbs).map_err(failed)
}

#[cfg(not(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux")))]
unsafe fn verbs(_: *mut ibv_pd) -> Result<Edge, Box<Failure>> {
    let message = "this library was built without verbs: install it with `mrrc/c/install --features verbs`";
    Err(Failure::new(mrrc_status_t::MRRC_ERROR_UNSUPPORTED, message))
}
