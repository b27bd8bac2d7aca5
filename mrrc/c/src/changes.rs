//! Memory that changes, and registrations that go.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::cache::mrrc_cache_t;
use crate::edge::Edge;
use crate::gate::{Failure, emptied, given, guarded, quietly};
use crate::status::mrrc_status_t::{MRRC_ERROR_ARGUMENT, MRRC_ERROR_UNSUPPORTED};
use crate::status::{mrrc_error_t, mrrc_status_t};
use mrrc::Cache;
use mrrc::cache::{ChangeGuard, Reaped};
use mrrc::invalidation::VouchError;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A change of memory that the program announced. Used by one thread at a time.
pub struct mrrc_change_t {
    /// Borrows from the cache, which is dropped after it.
    _guard: ChangeGuard<'static, Edge>,
    _cache: Arc<Cache<Edge>>,
}

/// The memory is about to change or has changed: no request that begins after this returned finds a registration of what was
/// there. Leases keep what they have. Call it before memory is unmapped.
///
/// It deregisters nothing. Pages stay pinned and keys that peers have go on to work until they are deregistered. The
/// background, a miss or mrrc_reap does that, after the last lease. An acquire of the range between this call and the
/// change registers the old pages again: where that can happen, use mrrc_change_begin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_invalidate(
    cache: *const mrrc_cache_t,
    address: *const c_void,
    length: usize,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, || Ok(given(cache, "cache")?.cache.invalidate(address.cast(), length)?)) }
}

/// Reads the seals of a memfd, so that shared mappings of it are cached after the file is closed too. It has to be sealed with
/// F_SEAL_SHRINK, and with F_SEAL_FUTURE_WRITE or F_SEAL_WRITE: then no process can take pages of it. While the file is open
/// the call is not needed, unless the memory was acquired before it was sealed. For huge pages a file has to stay open.
///
/// MRRC_ERROR_ARGUMENT if it is not sealed so; MRRC_ERROR_UNSUPPORTED if the cache's monitor reads no seals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_vouch(cache: *const mrrc_cache_t, fd: i32, error: *mut mrrc_error_t) -> mrrc_status_t {
    let vouch = || {
        // SAFETY: the header requires that `cache` is NULL or a cache, as `given` does.
        let cache = unsafe { given(cache, "cache") }?;
        if fd < 0 {
            return Err(Failure::argument(format!("fd is {fd}: it is to be an open memfd")));
        }
        // SAFETY: `borrow_raw` requires an open descriptor. It is only asked about, and the system refuses one that is not.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        cache.cache.vouch(fd).map_err(|error| match &error {
            VouchError::NoSeals { source, .. } => Failure::by(MRRC_ERROR_ARGUMENT, source, error.to_string()),
            VouchError::Monitor { .. } => Failure::new(MRRC_ERROR_UNSUPPORTED, error.to_string()),
            _ => Failure::argument(error.to_string()),
        })
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, vouch) }
}

/// As mrrc_invalidate, exact also against threads that acquire the memory meanwhile. Nothing of it is cached until
/// mrrc_change_end, which is to be called when the change is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_change_begin(
    cache: *const mrrc_cache_t,
    address: *const c_void,
    length: usize,
    change: *mut *mut mrrc_change_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let begin = || {
        // SAFETY: as the header asks. The cache that is borrowed from lives as long as the count beside, which is dropped last.
        unsafe {
            let place = emptied(change, "change")?;
            let cache = given(cache, "cache")?.cache.clone();
            let borrowed: &'static Cache<Edge> = &*Arc::as_ptr(&cache);
            let guard = borrowed.begin_change(address.cast(), length)?;
            place.write(Box::into_raw(Box::new(mrrc_change_t { _guard: guard, _cache: cache })));
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, begin) }
}

/// The change is done. Frees it. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_change_end(change: *mut mrrc_change_t) {
    if !change.is_null() {
        // SAFETY: as the header asks, it came from `mrrc_change_begin`, and is freed once.
        quietly((), || drop(unsafe { Box::from_raw(change) }));
    }
}

/// Deregisters all that has left the cache and that no lease has, and nothing else. Waits for what others are deregistering. When it
/// has returned, and mrrc_usage_t.refused is 0, keys of what was invalidated before, and is in no lease, work no more. `regions`, how
/// many this call deregistered, may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_reap(
    cache: *const mrrc_cache_t,
    regions: *mut u64,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, || count(given(cache, "cache")?.cache.reap()?, regions)) }
}

/// Deregisters everything that no lease has. As mrrc_reap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_flush(
    cache: *const mrrc_cache_t,
    regions: *mut u64,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, || count(given(cache, "cache")?.cache.flush()?, regions)) }
}

/// # Safety
/// It is null, or can be written to.
unsafe fn count(reaped: Reaped, regions: *mut u64) -> Result<(), Box<Failure>> {
    if !regions.is_null() {
        // SAFETY: the caller promises that `regions` is null or can be written; it is not null here.
        unsafe { regions.write(reaped.regions) };
    }
    Ok(())
}
