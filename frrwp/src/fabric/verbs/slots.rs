//! Registered memory for messages: each slot holds the longest.
#![expect(unsafe_code, reason = "memory that the device reads and writes by itself")]

use super::VerbsDomain;
use crate::wire::MESSAGE;
use mrrc::registrar::verbs::MemoryRegion;
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

/// Slots of a slab, which is registered as a whole.
const SLAB: usize = 16;
/// Bytes of a slot: no two share a line of the cache, and no short message lies on two pages ([`siw`](crate::fabric::siw)).
const SLOT: usize = MESSAGE.next_multiple_of(64);
const _: () = assert!((PAGE as usize).is_multiple_of(64) && 64 >= crate::fabric::siw::COPIED);

/// Slots, as many as are used at a time. Goes after the queue pair that may be at them.
pub(super) struct Slots {
    domain: VerbsDomain,
    slabs: Vec<Slab>,
    free: Vec<u32>,
}

struct Slab {
    memory: NonNull<u8>,
    registered: Option<Registered<MemoryRegion>>,
}

// SAFETY: a slab owns its memory alone, and memory belongs to no thread.
unsafe impl Send for Slab {}

fn layout() -> io::Result<Layout> {
    let bytes = (SLAB * SLOT).next_multiple_of(PAGE as usize);
    Layout::from_size_align(bytes, PAGE as usize).map_err(io::Error::other)
}

impl Slots {
    pub(super) fn new(domain: &VerbsDomain) -> Self {
        Self { domain: domain.clone(), slabs: Vec::new(), free: Vec::new() }
    }

    /// Returns an unused slot.
    pub(super) fn take(&mut self) -> io::Result<u32> {
        if self.free.is_empty() {
            self.grow()?;
        }
        self.free.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    fn grow(&mut self) -> io::Result<()> {
        let layout = layout()?;
        // SAFETY: `alloc_zeroed` requires a layout with bytes, which `layout` returns.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        // Freed with it, should the rest fail.
        let mut slab = Slab { memory, registered: None };
        let range = PageRange::of_bytes(memory.as_ptr() as u64, layout.size() as u64).map_err(io::Error::other)?;
        let access = Access::LOCAL;
        let registration = self.domain.register(range, access)?;
        slab.registered = Some(Registered { range, access, registration });
        let first = (self.slabs.len() * SLAB) as u32;
        self.slabs.push(slab);
        self.free.extend((first..first + SLAB as u32).rev());
        Ok(())
    }

    /// Returns the place of a slot, and the key by which the device may access it.
    pub(super) fn at(&self, slot: u32) -> Option<(*mut u8, u32)> {
        let slab = self.slabs.get(slot as usize / SLAB)?;
        let key = slab.registered.as_ref()?.registration.lkey();
        Some((slab.memory.as_ptr().wrapping_add(slot as usize % SLAB * SLOT), key))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // In a child of the process that registered them they are refused, and that is right.
        let mut batch: Vec<_> = self.slabs.iter_mut().filter_map(|slab| slab.registered.take()).collect();
        let _ = self.domain.deregister(&mut batch);
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Ok(layout) = layout() {
            // SAFETY: it came from the same allocator with this layout. The queue pair is gone, so no device is at it, even
            // where it could not be deregistered; peers were given no key.
            unsafe { dealloc(self.memory.as_ptr(), layout) };
        }
    }
}
