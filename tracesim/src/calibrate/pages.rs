//! Memory to register: anonymous, resident, in pages of 4 KiB.

use memmap2::MmapMut;
use mrrc_core::{PAGE, PageRange, RangeError};
use std::io;

/// Resident memory.
#[derive(Debug)]
pub struct Pages(MmapMut);

impl Pages {
    /// So many pages, written to once.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(pages: u64) -> io::Result<Self> {
        let bytes = usize::try_from(pages.saturating_mul(PAGE)).map_err(io::Error::other)?;
        let mut memory = MmapMut::map_anon(bytes)?;
        // A huge page is pinned at once, which is another cost. Kernels without huge pages need not be told.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::NoHugePage);
        memory.fill(1);
        Ok(Self(memory))
    }

    /// Returns the range.
    ///
    /// # Errors
    /// No memory has none of them.
    pub fn range(&self) -> Result<PageRange, RangeError> {
        PageRange::of_bytes(self.0.as_ptr() as u64, self.0.len() as u64)
    }

    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
