//! Memory that futures own.
#![expect(unsafe_code, reason = "the contract about memory is an unsafe trait")]

use crate::fabric::FabricMemory;

/// Memory that is handed over with a transfer, and comes back with its end.
///
/// # Safety
/// From when it is handed over until it is given back, or dropped:
///
/// * `start` and `len` name the same bytes, wherever the value itself is moved to;
/// * those bytes are allocated, may be read and written, and nothing but the holder of the value uses them: no other value names
///   them too;
/// * they stay allocated if the value is forgotten.
///
/// [`Connection::new`](super::Connection::new) describes the memory's state after the value is dropped.
pub unsafe trait Buffer: Send + 'static {
    /// Returns the address of the first byte.
    fn start(&mut self) -> *mut u8;

    /// Returns how many bytes there are.
    fn len(&self) -> usize;

    /// Returns whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// SAFETY: a vector's bytes lie on the heap, and are its own.
unsafe impl Buffer for Vec<u8> {
    fn start(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn len(&self) -> usize {
        Vec::len(self)
    }
}

// SAFETY: a box's bytes lie on the heap, and are its own.
unsafe impl Buffer for Box<[u8]> {
    fn start(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the value keeps its memory, no other value names the same bytes, and it makes no references to them.
unsafe impl Buffer for FabricMemory {
    fn start(&mut self) -> *mut u8 {
        FabricMemory::start(self)
    }

    fn len(&self) -> usize {
        FabricMemory::len(self)
    }
}
