//! The memory of regions: a memory file for each TAKE, which over shared memory its owner alone is passed.
//!
//! A file is never lent twice. So a former owner never writes to another's memory, and a region begins with zeros.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use frrwp::fabric::shm::{Sharing, ShmArena, ShmDomain, ShmError};
use mrrc::volatile_copy;
use rdmakv_proto::far::batch::Status;

use super::page_sums::PageSums;

/// Makes memory for regions.
#[derive(Debug)]
pub(super) struct Arena {
    domain: ShmDomain,
    region_bytes: u64,
}

/// The memory of one region.
#[derive(Clone, Debug)]
pub(in crate::fabric) struct Part {
    file: Arc<ShmArena>,
    at: usize,
    bytes: usize,
}

impl Arena {
    /// Returns a maker of memory for regions of so many bytes, in this domain.
    pub(super) fn new(domain: ShmDomain, region_bytes: u64) -> Self {
        Self { domain, region_bytes }
    }

    /// Returns zeroed memory for so many regions, in one file.
    ///
    /// # Errors
    ///
    /// The system has no memory file, or no addresses, for it.
    pub(super) fn allocate(&self, regions: u32) -> Result<Vec<Part>, ShmError> {
        let whole = self.region_bytes.saturating_mul(regions.into());
        let size = |bytes| usize::try_from(bytes).map_err(|_| ShmError::Size { bytes: usize::MAX });
        let (whole, bytes) = (size(whole)?, size(self.region_bytes)?);
        let file = Arc::new(self.domain.private_arena(whole, Sharing::Writable)?);
        Ok((0..regions as usize).map(|region| Part { file: file.clone(), at: region * bytes, bytes }).collect())
    }
}

impl Part {
    /// Returns the file that it is in.
    pub(in crate::fabric) fn file(&self) -> &ShmArena {
        &self.file
    }

    /// Returns the first byte. Make no reference of it: its owner writes there.
    pub(in crate::fabric) fn address(&self) -> *mut u8 {
        self.file.as_ptr().wrapping_add(self.at)
    }

    /// Returns the place of so many bytes in the region.
    ///
    /// # Errors
    ///
    /// They go beyond its end.
    pub(super) fn at(&self, offset: u64, length: usize) -> Result<*mut u8, Status> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset <= self.bytes);
        let offset = offset.filter(|offset| length <= self.bytes - offset).ok_or(Status::OutOfRange)?;
        Ok(self.address().wrapping_add(offset))
    }

    /// Returns the bytes of a region.
    pub(in crate::fabric) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sums the pages of these ranges.
    #[expect(unsafe_code, reason = "its owner may write there")]
    pub(super) fn sum_pages(&self, ranges: impl IntoIterator<Item = Range<u64>>, sums: &mut PageSums) {
        sums.sum(ranges, |at, into| {
            if let Ok(from) = self.at(at, into.len()) {
                // SAFETY: `volatile_copy` requires that both ranges are accessible and that no reference to the region is used. `at` found that
                // it has so many bytes there, and this process makes no reference to a region's bytes. `into` is as long.
                unsafe { volatile_copy(from, into.as_mut_ptr(), into.len()) };
            }
        });
    }

    fn range(&self) -> Range<usize> {
        self.at..self.at + self.bytes
    }

    /// Gives the memory back to the system. No tag of it is left.
    ///
    /// # Errors
    ///
    /// The system's: the memory is kept until the other regions of its file end.
    pub(super) fn free(self) -> io::Result<()> {
        // The last one takes the file along.
        if Arc::strong_count(&self.file) > 1 { self.file.clear(self.range()).map_err(io::Error::other) } else { Ok(()) }
    }
}
