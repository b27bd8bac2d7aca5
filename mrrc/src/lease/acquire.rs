//! The entry of every request: a hit is served here, the rest goes the locked path (`pending.rs`).

use super::{Lease, grant, windows};
use crate::access::Access;
use crate::core::Sharing;
use crate::error::AcquireError;
use crate::miss::AcquireRequest;
use crate::range::PageRange;
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use std::time::Instant;

/// [`Cache::acquire`](crate::Cache::acquire), for memory whose changes the caller answers for or not.
///
/// Only the plain hit is inlined in the place of the call. All that is seldom is behind one call, which looks
/// once more. Its answer has a place of its own, so that the usual one stays in registers.
#[inline(always)]
pub(crate) fn acquire<R: Registrar>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    access: Access,
    owned: Option<PageRange>,
) -> Result<Lease<R>, AcquireError> {
    if let Some(range) = PageRange::of_bytes_quickly(address as u64, length as u64)
        && let Some(hold) = shared.tables.hit_quickly(range, access.with_read())
    {
        return Ok(Lease::one(&shared.tables, address, length, hold));
    }
    let result = match owned {
        None => acquire_slowly(shared, address, length, access),
        Some(owned) => acquire_owned(shared, address, length, access, owned),
    };
    result.map_err(|error| *error)
}

/// Two functions, because the arguments of one would cost the plain hit an instruction.
#[cold]
#[inline(never)]
fn acquire_slowly<R: Registrar>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    access: Access,
) -> Result<Lease<R>, Box<AcquireError>> {
    acquire_timed(shared, address, length, access, None)
}

#[cold]
#[inline(never)]
fn acquire_owned<R: Registrar>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    access: Access,
    owned: PageRange,
) -> Result<Lease<R>, Box<AcquireError>> {
    acquire_timed(shared, address, length, access, Some(owned))
}

/// Acquires a range rounded to the device's pages, which are larger than ours: a hit is counted in those, as a miss
/// is. Records how long that took if it is to be known.
#[inline]
fn acquire_timed<R: Registrar>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    access: Access,
    owned: Option<PageRange>,
) -> Result<Lease<R>, Box<AcquireError>> {
    let begun = shared.times.as_ref().map(|_| Instant::now());
    let request = AcquireRequest::new(&shared.settings, address, length, access.with_read());
    let result = request.and_then(|request| match shared.tables.hit(request.range, request.access) {
        Some(hold) => windows::open(shared, &request, Lease::one(&shared.tables, address, length, hold)),
        None => grant(shared, AcquireRequest { owned, ..request }),
    });
    // Not in a forked child: a histogram's lock may have been held at the fork.
    if let (Some(times), Some(begun)) = (&shared.times, begun)
        && !shared.tables.gate.is_forked()
    {
        let on_stack = 0_u8;
        times.acquired(std::ptr::from_ref(&on_stack).addr() >> 16, begun.elapsed());
    }
    Ok(result?)
}

/// Memory that is registered by itself, for one lease.
#[cold]
pub(crate) fn acquire_aside<R: Registrar>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    access: Access,
    owned: PageRange,
) -> Result<Lease<R>, AcquireError> {
    let request = AcquireRequest::new(&shared.settings, address, length, access.with_read())?;
    grant(shared, AcquireRequest { owned: Some(owned), sharing: Sharing::Nothing, counted: true, ..request })
}

/// Memory in blocks, each of which one region has.
pub(crate) fn acquire_blocks<R: Registrar>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    block: usize,
    access: Access,
) -> Result<Lease<R>, AcquireError> {
    let request = AcquireRequest::in_blocks(&shared.settings, address, length, access.with_read(), block)?;
    match shared.tables.hit(request.range, request.access) {
        Some(hold) => windows::open(shared, &request, Lease::one(&shared.tables, address, length, hold)),
        None => grant(shared, request),
    }
}
