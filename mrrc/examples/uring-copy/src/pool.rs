//! Buffers that change: which one the next chunk gets is drawn, and some are drawn more often.

use crate::Result;
use crate::report::human;
use mrrc::PAGE;

/// Buffers that live as long as the process, so that no transfer can outlive its memory, whatever goes wrong.
pub(crate) struct Pool {
    start: *mut u8,
    pub(crate) chunk: usize,
    busy: Vec<bool>,
}

impl Pool {
    pub(crate) fn new(buffers: u32, chunk: u64) -> Result<Self> {
        let (count, chunk) = (buffers as usize, usize::try_from(chunk)?);
        let bytes = count.checked_mul(chunk).ok_or("so many buffers do not fit into the address space")?;
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE as usize)?;
        #[expect(unsafe_code, reason = "page-aligned memory without references to it")]
        // SAFETY: the size is not zero: there is at least one buffer, of at least a page.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() {
            return Err(format!("no memory for {} of buffers", human(bytes as u64)).into());
        }
        #[expect(unsafe_code, reason = "faults the pages in, so that no way pays for that")]
        // SAFETY: exactly the allocated bytes, and no other code knows of them yet.
        unsafe {
            start.write_bytes(1, bytes);
        }
        Ok(Self { start, chunk, busy: vec![false; count] })
    }

    /// Returns a buffer that no transfer uses: the one drawn, or the next behind it.
    pub(crate) fn take(&mut self, draw: &mut Draw) -> Option<usize> {
        let (count, drawn) = (self.busy.len(), draw.below(self.busy.len()));
        let buffer = (drawn..drawn + count).map(|buffer| buffer % count).find(|&buffer| !self.busy[buffer])?;
        self.busy[buffer] = true;
        Some(buffer)
    }

    pub(crate) fn give(&mut self, buffer: usize) {
        self.busy[buffer] = false;
    }

    pub(crate) fn address(&self, buffer: usize) -> *mut u8 {
        self.start.wrapping_add(buffer * self.chunk)
    }
}

/// Pseudo-random numbers (xorshift), for choices that are the same in each run.
pub(crate) struct Draw(u64);

impl Draw {
    /// Other numbers for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Small numbers more often than large ones: half of them are in the first eighth.
    fn below(&mut self, count: usize) -> usize {
        let even = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (even.powi(3) * count as f64) as usize
    }
}
