//! Acquiring in two steps, so that transfers of what is registered already overlap the registration of the rest.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::access::{mrrc_access_t, rights};
use crate::cache::mrrc_cache_t;
use crate::edge::Edge;
use crate::gate::{emptied, given, guarded, null, quietly};
use crate::lease::{self, mrrc_lease_t, mrrc_segment_t};
use crate::status::{mrrc_error_t, mrrc_status_t};
use mrrc::Cache;
use mrrc::cache::PendingLease;
use std::ffi::c_void;
use std::sync::Arc;

/// Memory that is being acquired. Used by one thread at a time.
pub struct mrrc_pending_t {
    /// Borrows from the cache, which is dropped after it.
    pending: PendingLease<'static, Edge>,
    _cache: Arc<Cache<Edge>>,
}

/// Begins to acquire memory: what is registered already can be used before mrrc_finish registers the rest. Freed by
/// mrrc_pending_free, whether it was finished or not.
///
/// Other threads that need what is begun wait for it, so finish soon. The content of *pending is not looked at: free it before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_begin(
    cache: *const mrrc_cache_t,
    address: *const c_void,
    length: usize,
    access: mrrc_access_t,
    pending: *mut *mut mrrc_pending_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let begin = || {
        // SAFETY: as the header asks. The cache that is borrowed from lives as long as the count beside, which is dropped last.
        unsafe {
            let place = emptied(pending, "pending")?;
            let cache = given(cache, "cache")?.cache.clone();
            let borrowed: &'static Cache<Edge> = &*Arc::as_ptr(&cache);
            let pending = borrowed.begin(address.cast(), length, rights(access, "access")?)?;
            place.write(Box::into_raw(Box::new(mrrc_pending_t { pending, _cache: cache })));
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, begin) }
}

/// Writes the segments that are registered already, as mrrc_segments does. Usable until the lease that mrrc_finish gives is released,
/// or, if it gives none, until mrrc_pending_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_ready(
    pending: *const mrrc_pending_t,
    segments: *mut mrrc_segment_t,
    room: usize,
) -> usize {
    quietly(0, || {
        // SAFETY: the header requires that `pending` is NULL or live, and that `segments` has room for `room`
        // segments.
        unsafe { pending.as_ref().map_or(0, |begun| lease::show(begun.pending.ready(), usize::MAX, segments, room)) }
    })
}

/// Registers what is missing. The lease has all of it, with what was ready. After a failure it can be tried again, also after
/// MRRC_ERROR_HELD, which is said if a lease is held in *lease. Once it gave a lease it is done (MRRC_ERROR_ARGUMENT).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_finish(
    pending: *mut mrrc_pending_t,
    lease: *mut mrrc_lease_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let finish = || {
        // SAFETY: the header requires that `arena` is live and `lease` can be read and written; `emptied` and `given`
        // refuse NULL.
        unsafe {
            let place = lease::emptied(lease)?;
            let begun = pending.as_mut().ok_or_else(|| null("pending"))?;
            lease::put(place, begun.pending.finish()?);
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, finish) }
}

/// Frees what was begun, and gives up what of it was not finished. A lease of it stays. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_pending_free(pending: *mut mrrc_pending_t) {
    if !pending.is_null() {
        // SAFETY: as the header asks, it came from `mrrc_begin`, and is freed once.
        quietly((), || drop(unsafe { Box::from_raw(pending) }));
    }
}
