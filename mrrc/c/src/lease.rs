//! Leases: acquire, segments, release.
//!
//! A lease lies in memory of C's, with a seal before it: the address where it lies, mixed with a constant. A released lease
//! has no seal, memory without a lease has none, and a copy has that of another place. So all these are told apart from a
//! lease that is held, by one comparison, and a hit allocates nothing.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::access::{mrrc_access_t, rights};
use crate::cache::mrrc_cache_t;
use crate::edge::Edge;
use crate::gate::{Failure, given, guarded, null, quietly};
use crate::status::mrrc_status_t::{MRRC_ERROR_HELD, MRRC_ERROR_LEASE};
use crate::status::{mrrc_error_t, mrrc_status_t};
use libc::iovec;
use mrrc::cache::{NoKey, Warm};
use mrrc::{Access, Lease};
use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;
use std::ptr;

/// Memory that stays registered until it is released. Its content is the library's.
///
/// It is valid in the place where it was acquired: a copy of it is refused like a lease that was released
/// (MRRC_ERROR_LEASE). Move it by mrrc_lease_move. Begin it as `{ { 0 } }`. Other bytes work too, because a seal
/// marks a lease that is held. But checkers of memory report that they were looked at. An acquire that fails leaves
/// it empty, so releasing it then is harmless. Only one that is held already is refused (MRRC_ERROR_HELD) and stays
/// as it is.
#[repr(C)]
pub struct mrrc_lease_t {
    /// Not for you.
    pub opaque: [usize; 6],
}

/// A part of a lease: memory that one registration covers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mrrc_segment_t {
    /// The address.
    pub address: *mut c_void,
    /// Its bytes, at least one.
    pub length: usize,
    /// The registration's handle: verbs: the struct ibv_mr *; io_uring: NULL.
    pub handle: *mut c_void,
    /// The key for transfers of this side. Verbs: lkey; io_uring: the index of the fixed buffer.
    pub lkey: u64,
    /// The key for peers. Verbs: rkey; io_uring: 0.
    pub rkey: u64,
}

/// The content of an `mrrc_lease_t`.
#[repr(C)]
struct Sealed {
    seal: usize,
    lease: Lease<Edge>,
}

const _: () = assert!(
    size_of::<Sealed>() <= size_of::<mrrc_lease_t>() && align_of::<Sealed>() == align_of::<mrrc_lease_t>(),
    "it fits"
);

/// The seal of a lease that lies there: never 0, which is that of an empty one.
#[inline]
fn seal(place: *const mrrc_lease_t) -> usize {
    place.addr() ^ (0x6d72_7263_6c65_6173_u64 as usize | 1)
}

/// Makes the place that a lease is to have empty. A lease that is held there is not overwritten: it would be held for ever.
///
/// # Safety
/// It is null, or can be read and written to.
#[inline]
pub(crate) unsafe fn emptied(lease: *mut mrrc_lease_t) -> Result<*mut mrrc_lease_t, Box<Failure>> {
    if lease.is_null() {
        return Err(null("lease"));
    }
    // SAFETY: the caller's contract: a place that is not null can be read and written to.
    unsafe {
        if is_held(lease) {
            return Err(held("lease"));
        }
        lease.cast::<usize>().write(0);
    }
    Ok(lease)
}

/// Puts a lease there.
///
/// # Safety
/// It can be written to, and no lease is held there.
#[inline]
pub(crate) unsafe fn put(place: *mut mrrc_lease_t, lease: Lease<Edge>) {
    // SAFETY: the caller promises that `place` can be written; the assertion above shows that a `Sealed` fits there.
    unsafe { place.cast::<Sealed>().write(Sealed { seal: seal(place), lease }) }
}

/// Whether a lease is held there.
///
/// # Safety
/// It is null, or can be read.
#[inline]
unsafe fn is_held(place: *const mrrc_lease_t) -> bool {
    // SAFETY: the caller promises that `place` is null or readable; its first word is the seal.
    !place.is_null() && unsafe { place.cast::<usize>().read() } == seal(place)
}

/// Takes the lease that is held there, and leaves nothing.
///
/// # Safety
/// It is null, or can be read and written, and no other thread uses it meanwhile.
#[inline]
unsafe fn take(place: *mut mrrc_lease_t) -> Option<Lease<Edge>> {
    // SAFETY: the caller promises that `place` is null, or readable and writable. `put` wrote a value with its seal
    // whole, and it was not taken since.
    unsafe {
        if !is_held(place) {
            return None;
        }
        place.cast::<usize>().write(0);
        Some((&raw const (*place.cast::<Sealed>()).lease).read())
    }
}

#[cold]
fn none(what: &str) -> Box<Failure> {
    Failure::new(
        MRRC_ERROR_LEASE,
        format!(
            "{what} is no lease: it was released already, or never acquired, or it is a copy of one (mrrc_lease_move moves a lease)"
        ),
    )
}

#[cold]
fn held(place: &str) -> Box<Failure> {
    Failure::new(
        MRRC_ERROR_HELD,
        format!("{place}: a lease is held there, and stays: release it first (mrrc_release), or give another place"),
    )
}

/// Registers memory, with these rights at least, until the lease is released.
///
/// On a hit this takes no lock and makes no system call. On a miss it registers what no region covers, after others were evicted
/// where there is no room; other threads go on meanwhile. It waits for what another thread is registering, and for leases to end
/// only if capacity_timeout is set: else MRRC_ERROR_ALL_IN_USE is said at once. After a failure nothing is leased and *lease is empty. If a
/// lease is held in *lease, this is MRRC_ERROR_HELD: nothing is acquired, and that lease stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_acquire(
    cache: *const mrrc_cache_t,
    address: *const c_void,
    length: usize,
    access: mrrc_access_t,
    lease: *mut mrrc_lease_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let acquire = || {
        // SAFETY: as the header asks: the places are the caller's, the cache was not freed, and the memory's contract is that
        // of `Cache::acquire`.
        unsafe {
            let place = emptied(lease)?;
            let cache = given(cache, "cache")?;
            put(place, cache.cache.acquire(address.cast(), length, rights(access, "access")?)?);
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, acquire) }
}

/// As mrrc_acquire, for a buffer of blocks of so many bytes, which follow each other from `address` on: no block has two keys. A buffer that
/// is longer than one registration may be (the setting slice) is cut between blocks. MRRC_ERROR_ARGUMENT where it cannot be: no end of a
/// block is one of a page there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_acquire_blocks(
    cache: *const mrrc_cache_t,
    address: *const c_void,
    length: usize,
    block: usize,
    access: mrrc_access_t,
    lease: *mut mrrc_lease_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let acquire = || {
        // SAFETY: the header requires what `mrrc_acquire` does: places of the caller's, a cache that is not freed, and memory as
        // `Cache::acquire_blocks` needs it.
        unsafe {
            let place = emptied(lease)?;
            let cache = given(cache, "cache")?;
            put(place, cache.cache.acquire_blocks(address.cast(), length, block, rights(access, "access")?)?);
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, acquire) }
}

/// As mrrc_acquire, for several buffers: a lease for each, in their order, or none at all; `leases` has room for `count`.
///
/// Buffers that lie close together may be registered by one call, for local rights. No more than 2^20 buffers; none is done at once.
/// If a lease is held in any of the places, this is MRRC_ERROR_HELD and changes none of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_acquire_list(
    cache: *const mrrc_cache_t,
    buffers: *const iovec,
    count: usize,
    access: mrrc_access_t,
    leases: *mut mrrc_lease_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    const MOST: usize = 1 << 20;
    let acquire = || {
        if count > MOST {
            return Err(Failure::argument(format!("count is {count}: no more than {MOST} buffers at once")));
        }
        // SAFETY: as the header asks: the arrays have so many, and else as for `mrrc_acquire`.
        unsafe {
            if count > 0 && leases.is_null() {
                return Err(null("leases"));
            }
            if let Some(nth) = (0..count).find(|&nth| is_held(leases.add(nth))) {
                return Err(held(&format!("leases[{nth}]")));
            }
            (0..count).try_for_each(|nth| emptied(leases.add(nth)).map(drop))?;
            let cache = given(cache, "cache")?;
            let access = rights(access, "access")?;
            if count == 0 {
                return Ok(());
            }
            given(buffers, "buffers")?;
            let buffers = std::slice::from_raw_parts(buffers, count);
            let buffers: Vec<_> =
                buffers.iter().map(|each| (each.iov_base.cast_const().cast(), each.iov_len)).collect();
            for (nth, lease) in cache.cache.acquire_list(&buffers, access)?.into_iter().enumerate() {
                put(leases.add(nth), lease);
            }
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, acquire) }
}

/// Ends a lease, when the transfers that use it are complete. One store, and no system call: the memory stays registered.
///
/// MRRC_ERROR_LEASE, and nothing is done, if it is none: NULL, empty, released already, a copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_release(lease: *mut mrrc_lease_t) -> mrrc_status_t {
    // SAFETY: the header requires places that can be read and written; only the status is returned.
    unsafe {
        guarded(ptr::null_mut(), || match take(lease) {
            Some(held) => {
                drop(held);
                Ok(())
            }
            None => Err(none("lease")),
        })
    }
}

/// Moves a lease to another place. The old place is empty afterwards.
///
/// MRRC_ERROR_HELD if another lease is held there, MRRC_ERROR_LEASE if there is none to be moved: nothing is changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_lease_move(from: *mut mrrc_lease_t, to: *mut mrrc_lease_t) -> mrrc_status_t {
    let moved = || {
        if to.is_null() {
            return Err(null("to"));
        }
        // SAFETY: as the header asks, both places can be read and written to. A lease that is moved to its own place
        // stays there.
        unsafe {
            if to != from && is_held(to) {
                return Err(held("to"));
            }
            put(to, take(from).ok_or_else(|| none("from"))?);
        }
        Ok(())
    };
    // SAFETY: the caller of mrrc_lease_move promises places that can be read and written; null is no place for an
    // error.
    unsafe { guarded(ptr::null_mut(), moved) }
}

/// Writes the parts of a lease, in the order of their addresses, as many as there is room for. Returns how many there
/// are: one, unless several regions cover the memory together. With room 0, `segments` may be NULL.
///
/// The keys are good until the lease is released. 0 if it is no lease, and in a child that was forked meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_segments(
    lease: *const mrrc_lease_t,
    segments: *mut mrrc_segment_t,
    room: usize,
) -> usize {
    quietly(0, || {
        // SAFETY: the header requires a readable place; a value with its seal was put there whole, and is not released
        // meanwhile.
        unsafe {
            if !is_held(lease) {
                return 0;
            }
            let held = &(*lease.cast::<Sealed>()).lease;
            show(held.segments(), held.len(), segments, room)
        }
    })
}

/// Writes the segment of some bytes of a lease, for a transfer that takes one key. The offset counts from the lease's first byte.
///
/// MRRC_ERROR_STRADDLES: several registrations have the bytes together. *segment is then the part from the offset on that the first has:
/// transfer that, and ask for the rest. MRRC_ERROR_OUTSIDE: no bytes, or not all of them are the lease's. MRRC_ERROR_LEASE: no lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_key_for(
    lease: *const mrrc_lease_t,
    offset: usize,
    length: usize,
    segment: *mut mrrc_segment_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let find = || {
        if segment.is_null() {
            return Err(null("segment"));
        }
        // SAFETY: as for `mrrc_segments`; the header requires that `segment` can be written.
        unsafe {
            if !is_held(lease) {
                return Err(none("lease"));
            }
            let held = &(*lease.cast::<Sealed>()).lease;
            let found = held.key_for(offset, length);
            let (length, failure) = match found {
                Err(NoKey::Straddles { at, .. }) => (at - offset, found.err()),
                Err(other) => return Err(other.into()),
                Ok(_) => (length, None),
            };
            let keys = held.key_for(offset, length)?.shown();
            segment.write(mrrc_segment_t {
                address: held.address().cast_mut().wrapping_add(offset).cast(),
                length,
                handle: keys.handle,
                lkey: keys.lkey,
                rkey: keys.rkey,
            });
            failure.map_or(Ok(()), |straddles| Err(straddles.into()))
        }
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, find) }
}

/// Returns the start of the leased memory, as it was acquired; NULL if it is no lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_lease_address(lease: *const mrrc_lease_t) -> *mut c_void {
    // SAFETY: the header requires that `lease` is NULL or readable, and not released by another thread meanwhile.
    let held = unsafe { is_held(lease).then(|| &(*lease.cast::<Sealed>()).lease) };
    held.map_or(ptr::null_mut(), |held| held.address().cast_mut().cast())
}

/// How many bytes were acquired; 0 if it is no lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_lease_length(lease: *const mrrc_lease_t) -> usize {
    // SAFETY: the header requires that `lease` is NULL or readable, and not released by another thread meanwhile.
    let held = unsafe { is_held(lease).then(|| &(*lease.cast::<Sealed>()).lease) };
    held.map_or(0, Lease::len)
}

/// Registers memory ahead of its use. It can be evicted again like any other; to keep it, keep a lease of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_warm(
    cache: *const mrrc_cache_t,
    address: *const c_void,
    length: usize,
    access: mrrc_access_t,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let warm = || {
        let access: Access = rights(access, "access")?;
        // SAFETY: the caller of mrrc_warm makes the promises of mrrc_acquire, which are those of `warm`.
        unsafe { given(cache, "cache")?.cache.warm(address.cast(), length, access)? };
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, warm) }
}

/// Writes segments for C: those that make up so many bytes, or all.
///
/// # Safety
/// There is room for so many; or none, and the place may be null.
#[inline]
pub(crate) unsafe fn show(
    parts: mrrc::cache::Segments<'_, Edge>,
    mut bytes: usize,
    place: *mut mrrc_segment_t,
    room: usize,
) -> usize {
    let room = if place.is_null() { 0 } else { room };
    let mut count = 0;
    for part in parts {
        if count < room {
            let keys = part.registration().shown();
            let shown = mrrc_segment_t {
                address: part.address().cast_mut().cast(),
                length: part.len(),
                handle: keys.handle,
                lkey: keys.lkey,
                rkey: keys.rkey,
            };
            // SAFETY: the caller promises room for `room` segments at `place`; `count` is less.
            unsafe { place.add(count).write(shown) };
        }
        count += 1;
        bytes -= part.len();
        // Mostly the first is all there is, and looking for another takes as long as it did.
        if bytes == 0 {
            break;
        }
    }
    count
}

/// How mrrc_warm_with registers a large range. Set all to zero, then `size` to sizeof(mrrc_warm_t), then the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mrrc_warm_t {
    /// sizeof(mrrc_warm_t) of the header that the program was compiled with.
    pub size: usize,
    /// Threads, 64 at most; 0: the CPUs of the process, at most 4.
    pub threads: usize,
    /// Bytes that are registered by one call; 0: 1 GiB. More where a lease has fewer segments.
    pub chunk: u64,
    /// 1: pages are not made present first.
    pub no_prefault: i32,
    /// 1: the system is given the hint to use huge pages there. The hint stays with the memory.
    pub huge: i32,
    /// Called by the calling thread after each step, with the bytes done and their sum. Anything but 0 stops the work. NULL: not called.
    /// Memory that is made present first is counted twice: then, and when it is registered.
    pub progress: Option<unsafe extern "C-unwind" fn(user: *mut c_void, done: u64, total: u64) -> c_int>,
    /// The first argument of `progress`.
    pub user: *mut c_void,
}

/// Registers a large range ahead of its use, by several threads of the library: pages are made present first, and then chunks are
/// registered. `how` may be NULL. The bytes that were registered are written to `registered`, which may be NULL: fewer than all where
/// progress stopped it, which is no error. What was registered before an error stays cached. MRRC_ERROR_SYSTEM: a page could not be made present.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mrrc_warm_with(
    cache: *const mrrc_cache_t,
    address: *const c_void,
    length: usize,
    access: mrrc_access_t,
    how: *const mrrc_warm_t,
    registered: *mut u64,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let warm = || {
        let access: Access = rights(access, "access")?;
        // SAFETY: the header requires that `how` is NULL or leads to a table that begins with its size.
        let how = unsafe { warm_of(how) }?;
        let progress = |done, total| match how.progress {
            // SAFETY: the header requires a function that takes `user` and two numbers.
            Some(progress) if unsafe { progress(how.user, done, total) } != 0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let chunk = if how.chunk == 0 { 1 << 30 } else { how.chunk };
        let options = Warm::new().threads(how.threads).chunk(chunk).prefault(how.no_prefault == 0).huge(how.huge != 0);
        // SAFETY: the caller makes the promises of mrrc_acquire, which are those of `warm_with`.
        let bytes =
            unsafe { given(cache, "cache")?.cache.warm_with(address.cast(), length, access, &options, progress)? };
        if !registered.is_null() {
            // SAFETY: the header requires that `registered` is NULL or can be written.
            unsafe { registered.write(bytes) };
        }
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, warm) }
}

/// Returns the table, or that of the defaults.
///
/// # Safety
/// It is null, or its first field can be read, and as many bytes as that says.
unsafe fn warm_of(how: *const mrrc_warm_t) -> Result<mrrc_warm_t, Box<Failure>> {
    const SIZE: usize = size_of::<mrrc_warm_t>();
    let none = mrrc_warm_t {
        size: SIZE,
        threads: 0,
        chunk: 0,
        no_prefault: 0,
        huge: 0,
        progress: None,
        user: ptr::null_mut(),
    };
    if how.is_null() {
        return Ok(none);
    }
    // SAFETY: the caller promises that the first field can be read.
    let size = unsafe { (&raw const (*how).size).read() };
    if size != SIZE {
        return Err(Failure::argument(format!("how.size is {size}: set it to sizeof(mrrc_warm_t), {SIZE}")));
    }
    // SAFETY: the caller promises that as many bytes as the size says can be read.
    Ok(unsafe { how.read() })
}
