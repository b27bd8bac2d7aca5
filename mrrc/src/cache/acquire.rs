//! The entry of every request: a hit is served here, the rest goes the locked path (`miss.rs`).

use super::error::AcquireError;
use super::lease::{Hold, Lease};
use super::miss::{Acquiring, Begun};
use super::shared::Shared;
use super::terms::Terms;
use crate::access::Access;
use crate::core::Sharing;
use crate::range::PageRange;
use crate::registrar::Registrar;
use std::time::Instant;

/// What a request is about.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) address: usize,
    pub(super) length: usize,
    /// The pages, rounded out to what the registrar registers.
    pub(super) range: PageRange,
    pub(super) access: Access,
    /// Memory whose changes the caller answers for, so that no monitor is needed there.
    pub(super) owned: Option<PageRange>,
    /// Whose regions may serve it.
    pub(super) sharing: Sharing,
    /// Whether it has been counted as a request already.
    pub(super) counted: bool,
}

impl Wish {
    /// The rights are complete; the pages are rounded out here.
    pub(super) fn new(terms: &Terms, address: usize, length: usize, access: Access) -> Result<Self, AcquireError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?.rounded_out(terms.unit);
        Ok(Self { address, length, range, access, owned: None, sharing: Sharing::All, counted: false })
    }

    /// Whether the caller answers for all of the range. A region can be larger than the request: its neighbours may
    /// be merged with it, and they may lie elsewhere.
    pub(super) fn answers_for(&self, range: PageRange) -> bool {
        self.owned.is_some_and(|owned| owned.contains(range))
    }
}

impl<R: Registrar> Shared<R> {
    /// [`Cache::acquire`](crate::Cache::acquire), for memory whose changes the caller answers for or not.
    ///
    /// What is put in the place of the call is the plain hit and nothing else. All that is seldom is behind one call,
    /// which looks once more; its answer has a place of its own, so that the usual one stays in registers.
    #[inline(always)]
    pub(super) fn acquire(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, AcquireError> {
        if let Some(range) = PageRange::of_bytes_quickly(address as u64, length as u64)
            && let Some(slot) = self.hit_quickly(range, access.with_read())
        {
            return Ok(Lease::one(self, address, length, Hold::by(slot)));
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
            && !self.gate.is_forked()
        {
            let on_stack = 0_u8;
            times.acquired(std::ptr::from_ref(&on_stack).addr() >> 16, begun.elapsed());
        }
        result
    }

    /// Where the device's pages are larger than ours a hit is counted in those, as a miss is.
    #[inline]
    fn acquire_rounded(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, AcquireError> {
        let wish = Wish { owned, ..Wish::new(&self.terms, address, length, access.with_read())? };
        match self.hit(wish.range, wish.access) {
            Some((id, grip)) => Ok(Lease::one(self, address, length, Hold::new(id, grip))),
            None => self.grant(wish),
        }
    }

    /// Memory that is registered by itself, for one lease.
    #[cold]
    pub(super) fn acquire_aside(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: PageRange,
    ) -> Result<Lease<R>, AcquireError> {
        let wish = Wish::new(&self.terms, address, length, access.with_read())?;
        self.grant(Wish { owned: Some(owned), sharing: Sharing::Nothing, counted: true, ..wish })
    }

    /// The locked path.
    pub(super) fn grant(&self, wish: Wish) -> Result<Lease<R>, AcquireError> {
        match Begun::new(self, &wish)? {
            Begun::Alone(alone) => alone.finish(),
            Begun::Planless(books) => {
                let mut acquiring = Acquiring::new(self, wish);
                acquiring.go_on(books)?;
                acquiring.complete()
            }
        }
    }
}
