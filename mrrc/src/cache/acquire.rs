//! The entry of every request: a hit is served here, the rest goes the locked path (`miss.rs`).

use crate::access::Access;
use crate::core::Sharing;
use crate::error::AcquireError;
use crate::lease::Lease;
use crate::miss::AcquireRequest;
use crate::range::PageRange;
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use std::time::Instant;

impl<R: Registrar> Shared<R> {
    /// [`Cache::acquire`](crate::Cache::acquire), for memory whose changes the caller answers for or not.
    ///
    /// Only the plain hit is inlined in the place of the call. All that is seldom is behind one call, which looks
    /// once more. Its answer has a place of its own, so that the usual one stays in registers.
    #[inline(always)]
    pub(crate) fn acquire(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, AcquireError> {
        if let Some(range) = PageRange::of_bytes_quickly(address as u64, length as u64)
            && let Some(hold) = self.tables.hit_quickly(range, access.with_read())
        {
            return Ok(Lease::one(&self.tables, address, length, hold));
        }
        let result = match owned {
            None => self.acquire_slowly(address, length, access),
            Some(owned) => self.acquire_owned(address, length, access, owned),
        };
        result.map_err(|error| *error)
    }

    #[cold]
    #[inline(never)]
    fn acquire_slowly(&self, address: usize, length: usize, access: Access) -> Result<Lease<R>, Box<AcquireError>> {
        Ok(self.acquire_timed(address, length, access, None)?)
    }

    #[cold]
    #[inline(never)]
    fn acquire_owned(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: PageRange,
    ) -> Result<Lease<R>, Box<AcquireError>> {
        Ok(self.acquire_timed(address, length, access, Some(owned))?)
    }

    #[inline]
    fn acquire_timed(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, AcquireError> {
        let begun = self.times.as_ref().map(|_| Instant::now());
        let result = self.acquire_rounded(address, length, access, owned);
        // Not in a forked child: a histogram's lock may have been held at the fork.
        if let (Some(times), Some(begun)) = (&self.times, begun)
            && !self.tables.gate.is_forked()
        {
            let on_stack = 0_u8;
            times.acquired(std::ptr::from_ref(&on_stack).addr() >> 16, begun.elapsed());
        }
        result
    }

    /// Acquires a range rounded to the device's pages, which are larger than ours: a hit is counted in those, as a miss
    /// is.
    #[inline]
    fn acquire_rounded(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, AcquireError> {
        let request =
            AcquireRequest { owned, ..AcquireRequest::new(&self.settings, address, length, access.with_read())? };
        match self.tables.hit(request.range, request.access) {
            Some(hold) => Ok(Lease::one(&self.tables, address, length, hold)),
            None => self.grant(request),
        }
    }

    /// Memory that is registered by itself, for one lease.
    #[cold]
    pub(crate) fn acquire_aside(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: PageRange,
    ) -> Result<Lease<R>, AcquireError> {
        let request = AcquireRequest::new(&self.settings, address, length, access.with_read())?;
        self.grant(AcquireRequest { owned: Some(owned), sharing: Sharing::Nothing, counted: true, ..request })
    }
}
