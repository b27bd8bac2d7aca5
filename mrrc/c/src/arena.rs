//! Memory of the cache's own, which changes only when it goes: exact under every monitor.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::access::{mrrc_access_t, rights};
use crate::cache::mrrc_cache_t;
use crate::edge::Edge;
use crate::gate::{emptied, given, guarded, quietly};
use crate::lease::{self, mrrc_lease_t};
use crate::status::{mrrc_error_t, mrrc_status_t};
use mrrc::Arena;
use std::ffi::c_void;
use std::ptr;

/// Memory that the cache owns: for buffers of transfers that no allocator gives back behind the cache's back. Used by any number of
/// threads at once.
pub struct mrrc_arena_t {
    arena: Arena<Edge>,
}

/// Maps so many bytes, rounded up to pages, zeroed. With `huge` not 0: in units of 2 MiB, with huge pages where the system has some;
/// they register faster. Freed by mrrc_arena_free; it may outlive the cache, but nothing more of it is acquired then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_arena_new(
    cache: *const mrrc_cache_t,
    bytes: usize,
    huge: i32,
    arena: *mut *mut mrrc_arena_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let map = || {
        // SAFETY: the header requires that `cache` is live and `arena` can be written; `given` and `emptied` refuse
        // NULL.
        unsafe {
            let place = emptied(arena, "arena")?;
            let cache = &given(cache, "cache")?.cache;
            let arena = if huge == 0 { cache.arena(bytes) } else { cache.huge_arena(bytes) }?;
            place.write(Box::into_raw(Box::new(mrrc_arena_t { arena })));
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, map) }
}

/// Its first byte; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_arena_address(arena: *const mrrc_arena_t) -> *mut c_void {
    // SAFETY: the header requires that `arena` is NULL or was returned by mrrc_arena_new and not freed yet.
    unsafe { arena.as_ref() }.map_or(ptr::null_mut(), |arena| arena.arena.as_ptr().cast())
}

/// Its bytes, rounded up as they were; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_arena_length(arena: *const mrrc_arena_t) -> usize {
    // SAFETY: the header requires that `arena` is NULL or was returned by mrrc_arena_new and not freed yet.
    unsafe { arena.as_ref() }.map_or(0, |arena| arena.arena.len())
}

/// As mrrc_acquire, for so many bytes of the arena from that offset on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_arena_acquire(
    arena: *const mrrc_arena_t,
    offset: usize,
    length: usize,
    access: mrrc_access_t,
    lease: *mut mrrc_lease_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let acquire = || {
        // SAFETY: the header requires that `arena` is live and `lease` can be read and written; `emptied` and `given`
        // refuse NULL.
        unsafe {
            let place = lease::emptied(lease)?;
            let arena = &given(arena, "arena")?.arena;
            let end = offset.saturating_add(length);
            lease::put(place, arena.acquire(offset..end, rights(access, "access")?)?);
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, acquire) }
}

/// Deregisters and unmaps it. Memory that leases still have is unmapped after the last of them was released. NULL is
/// none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_arena_free(arena: *mut mrrc_arena_t) {
    if !arena.is_null() {
        // SAFETY: as the header asks, it came from `mrrc_arena_new`, and is freed once.
        quietly((), || drop(unsafe { Box::from_raw(arena) }));
    }
}
