//! Transfers and the memory that they use.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rdmakv_flash::{Area, Buffer, DeviceError};

/// Memory of reads begins at a multiple of this, as direct reads need it.
const ALIGN: usize = 4096;

/// Memory that a read lands in.
///
/// # Safety
///
/// [`place`](Self::place) returns the same memory each time. It stays valid until the value is dropped, the value may move meanwhile, and
/// nothing else reads or writes it until the read has ended.
#[expect(unsafe_code, reason = "the kernel writes there")]
pub unsafe trait Memory: Send {
    /// Returns the memory.
    fn place(&mut self) -> NonNull<[u8]>;

    /// Returns the memory, if it is [`Owned`].
    fn into_owned(self: Box<Self>) -> Option<Owned> {
        None
    }
}

/// Memory of its own, aligned to 4 KiB.
#[derive(Debug)]
pub struct Owned {
    held: Held,
    begin: usize,
    len: usize,
}

#[derive(Debug)]
enum Held {
    Bytes(Box<[u8]>),
    Part(Part),
}

impl Owned {
    /// Makes memory of `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGN].into_boxed_slice();
        let begin = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { held: Held::Bytes(bytes), begin, len }
    }
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::Bytes(bytes) => &bytes[self.begin..self.begin + self.len],
            Held::Part(part) => part.bytes(),
        }
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.held {
            Held::Bytes(bytes) => &mut bytes[self.begin..self.begin + self.len],
            Held::Part(part) => part.bytes_mut(),
        }
    }
    /// Returns whether it is a part of a [`Region`].
    pub(super) fn is_part(&self) -> bool {
        matches!(self.held, Held::Part(_))
    }
}

/// Memory for reads, side by side, so that all of it can be registered. It is freed when all parts are dropped.
#[derive(Debug)]
pub(super) struct Region {
    bytes: NonNull<[u8]>,
    begin: usize,
}

/// A part of a region: the only one that has its bytes.
#[derive(Debug)]
struct Part {
    region: Arc<Region>,
    at: usize,
    len: usize,
}

impl Region {
    /// Makes a region, and divides it; returns also where it begins.
    pub(super) fn divided(parts: usize, len: usize) -> (NonNull<u8>, Vec<Owned>) {
        let bytes = Box::leak(vec![0; parts * len + ALIGN].into_boxed_slice());
        let begin = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        let place = NonNull::from(&mut bytes[begin..]).cast();
        let region = Arc::new(Self { bytes: NonNull::from(bytes), begin });
        let part = |number| {
            let part = Part { region: Arc::clone(&region), at: number * len, len };
            Owned { held: Held::Part(part), begin: 0, len }
        };
        (place, (0..parts).map(part).collect())
    }
}

#[expect(unsafe_code, reason = "parts are in the hands of several owners")]
// SAFETY: the bytes are plain memory, and are reached by parts only, each of which has its own.
unsafe impl Send for Region {}
#[expect(unsafe_code, reason = "parts are in the hands of several owners")]
// SAFETY: a region itself gives no access to its bytes.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "owns the memory")]
        // SAFETY: `Box::from_raw` requires the only pointer of a box. `divided` leaked that box, and all parts are dropped.
        drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
    }
}

impl Part {
    fn place(&self) -> NonNull<[u8]> {
        #[expect(unsafe_code, reason = "a place in the region")]
        // SAFETY: `add` requires that the place is within the allocation. `divided` made it large enough for all parts, behind its begin.
        let at = unsafe { self.region.bytes.cast::<u8>().add(self.region.begin + self.at) };
        NonNull::slice_from_raw_parts(at, self.len)
    }
    fn bytes(&self) -> &[u8] {
        #[expect(unsafe_code, reason = "a place in the region")]
        // SAFETY: `as_ref` requires initialised memory that nothing writes meanwhile. It was zeroed, and only this part has it.
        unsafe {
            self.place().as_ref()
        }
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        #[expect(unsafe_code, reason = "a place in the region")]
        // SAFETY: `as_mut` requires that nothing else reaches the memory meanwhile. Only this part has it, and it is borrowed.
        unsafe {
            self.place().as_mut()
        }
    }
}

/// With a fault that shows only if an item ends while it is read: reads take longer.
#[cfg(rdmakv_fault_injection)]
pub(super) fn linger() {
    if rdmakv_proto::faults::injected(rdmakv_proto::faults::Fault::FlashLoadNotOrphaned) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[cfg(rdmakv_fault_injection)]
impl Owned {
    /// With `flash-damage` and `flash-no-crc`: changes a byte of a value, once in 50 reads.
    pub(super) fn damage(&mut self) {
        use rdmakv_proto::faults::{Fault, injected};
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static READS: AtomicU32 = AtomicU32::new(0);
        if !injected(Fault::FlashDamage) && !injected(Fault::FlashNoCrc)
            || !READS.fetch_add(1, Relaxed).is_multiple_of(50)
        {
            return;
        }
        let Ok((record, ..)) = rdmakv_flash::record::parse(self.bytes()) else { return };
        if let Some(from_end) = record.value.as_ptr_range().end.addr().checked_sub(self.bytes().as_ptr().addr() + 1)
            && !record.value.is_empty()
        {
            self.bytes_mut()[from_end] ^= 0x10;
        }
    }
}

#[expect(unsafe_code, reason = "the kernel writes there")]
// SAFETY: the bytes are on the heap and owned, so they stay where they are while the value moves, until it is dropped.
unsafe impl Memory for Owned {
    fn place(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.bytes_mut())
    }
    fn into_owned(self: Box<Self>) -> Option<Owned> {
        Some(*self)
    }
}

/// A transfer to be done.
pub enum Transfer {
    /// Reads an area into memory of at least its length.
    Read {
        /// Names the transfer at its end.
        token: u64,
        /// The bytes to be read.
        area: Area,
        /// The memory.
        into: Box<dyn Memory>,
    },
    /// Writes the first bytes of a buffer to an area.
    Write {
        /// Names the transfer at its end.
        token: u64,
        /// The bytes to be written.
        area: Area,
        /// The buffer.
        from: Arc<Buffer>,
    },
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, token, area) = match self {
            Self::Read { token, area, .. } => ("Read", token, area),
            Self::Write { token, area, .. } => ("Write", token, area),
        };
        f.debug_struct(kind).field("token", token).field("area", area).finish_non_exhaustive()
    }
}

/// The end of a transfer.
pub struct Done {
    /// The transfer's name.
    pub token: u64,
    /// Whether all of it was done.
    pub result: Result<(), DeviceError>,
    /// The memory of a read.
    pub memory: Option<Box<dyn Memory>>,
    /// How long it took; nothing if it was not begun.
    pub took: std::time::Duration,
    /// Whether its memory was [registered](super::Fixed).
    pub is_fixed: bool,
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").field("token", &self.token).field("result", &self.result).finish_non_exhaustive()
    }
}
