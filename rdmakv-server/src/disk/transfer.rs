//! Transfers and the memory that they use.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rdmakv_flash::{Area, Buffer, DeviceError};

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
    bytes: Box<[u8]>,
    begin: usize,
    len: usize,
}

impl Owned {
    /// Makes memory of so many bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096].into_boxed_slice();
        let begin = bytes.as_ptr().align_offset(4096).min(4096);
        Self { bytes, begin, len }
    }
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.len]
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
        if let Some(from_end) = record.value.as_ptr_range().end.addr().checked_sub(self.bytes.as_ptr().addr() + 1)
            && !record.value.is_empty()
        {
            self.bytes[from_end] ^= 0x10;
        }
    }
}

#[expect(unsafe_code, reason = "the kernel writes there")]
// SAFETY: the bytes are on the heap and owned, so they stay where they are while the box moves, until it is dropped.
unsafe impl Memory for Owned {
    fn place(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut self.bytes[self.begin..self.begin + self.len])
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
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").field("token", &self.token).field("result", &self.result).finish_non_exhaustive()
    }
}
