//! Memory that one-sided reads go to, in slots that become [values](super::Value).
//!
//! Slots are of powers of two and stay what they were made as. The client takes them; a value can be dropped in any thread, and puts
//! its slot on a list that the client empties when it has run out. Only this process ever writes here, so that bytes of a slot can
//! be lent as what they are.
#![expect(unsafe_code, reason = "lends parts of one mapping")]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Bytes of the smallest slot.
const UNIT: usize = 512;
/// Classes of slots: 512 bytes to 512 MiB.
const CLASSES: usize = 21;
const NONE: u32 = u32::MAX;

/// The slots of a client.
pub(super) struct Slots {
    shared: Arc<Shared>,
    free: [Vec<u32>; CLASSES],
    /// The start of the part that was never a slot, in units.
    fresh: u32,
}

struct Shared {
    base: NonNull<u8>,
    bytes: usize,
    /// The slot that was given back last; through `next` those before it.
    returned: AtomicU32,
    next: Box<[AtomicU32]>,
    /// Classes by first unit; written by the client before a slot is given out for the first time.
    classes: Box<[AtomicU32]>,
}

// SAFETY: the mapping belongs to no thread. Its bytes are reached through slots only, each of which has its own.
unsafe impl Send for Shared {}
// SAFETY: slots are handed out under a lock, one owner at a time, and each owner accesses its slot alone.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no slot is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Memory for one read.
pub(super) struct Slot {
    shared: Arc<Shared>,
    unit: u32,
    /// Bytes that are lent.
    len: u32,
}

impl Slots {
    /// So many bytes, of which the system gives those that are used.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags};
        let bytes = bytes.clamp(1 << 16, (NONE as usize - 1) * UNIT).next_multiple_of(1 << 16);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let units = bytes / UNIT;
        let numbers = || (0..units).map(|_| AtomicU32::new(0)).collect();
        let shared = Shared { base, bytes, returned: AtomicU32::new(NONE), next: numbers(), classes: numbers() };
        Ok(Self { shared: Arc::new(shared), free: std::array::from_fn(|_| Vec::new()), fresh: 0 })
    }

    /// Memory for so many bytes; none where too many values are kept.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Option<Slot> {
        let class = len.div_ceil(UNIT).next_power_of_two().trailing_zeros() as usize;
        if class >= CLASSES {
            return None;
        }
        let unit = match self.free[class].pop() {
            Some(unit) => unit,
            None => self.take_more(class)?,
        };
        Some(Slot { shared: self.shared.clone(), unit, len: len as u32 })
    }

    fn take_more(&mut self, class: usize) -> Option<u32> {
        let mut unit = self.shared.returned.swap(NONE, Acquire);
        while unit != NONE {
            let at = unit as usize;
            unit = self.shared.next[at].load(Relaxed);
            self.free[self.shared.classes[at].load(Relaxed) as usize].push(at as u32);
        }
        if let Some(unit) = self.free[class].pop() {
            return Some(unit);
        }
        let units = 1_u32 << class;
        // A slot begins at a multiple of its size, or of a page.
        let first = self.fresh.next_multiple_of(units.min((mrrc::PAGE as usize / UNIT) as u32));
        let end = first.checked_add(units)?;
        if end as usize > self.shared.bytes / UNIT {
            return None;
        }
        self.fresh = end;
        self.shared.classes[first as usize].store(class as u32, Relaxed);
        Some(first)
    }
}

impl Slot {
    #[inline]
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.shared.base.as_ptr().wrapping_add(self.unit as usize * UNIT)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the bytes read. Not while a read is in flight: its poster keeps the slot to itself.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping and this slot's own; it was zeroed, or has been written; it is not written while a value lends
        // it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The same, to be written.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the slot is in the mapping that `shared` keeps, and `&mut self` shows that it is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }
}

impl Drop for Slot {
    #[inline]
    fn drop(&mut self) {
        let Shared { returned, next, .. } = &*self.shared;
        let mut before = returned.load(Relaxed);
        loop {
            next[self.unit as usize].store(before, Relaxed);
            // The slot's bytes were read before its next user writes it. The client takes all of the list at once, so that no
            // unit can leave it and come back in between.
            match returned.compare_exchange_weak(before, self.unit, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_never_overlap_and_come_back_from_any_thread() {
        let mut slots = Slots::new(1 << 20).unwrap();
        for turn in 0..40_usize {
            let mut taken = Vec::new();
            for at in 0.. {
                let Some(mut slot) = slots.take(1 + (at * 700 + turn) % 20_000) else { break };
                slot.bytes_mut().fill(at as u8);
                taken.push((at as u8, slot));
            }
            assert!(taken.len() > 10, "{turn}");
            assert!(taken.iter().all(|(at, slot)| slot.bytes().iter().all(|byte| byte == at)));
            std::thread::scope(|scope| {
                while let Some(slot) = taken.pop() {
                    let other = taken.pop();
                    scope.spawn(move || drop(slot));
                    drop(other);
                    if taken.len() % 8 == 0 {
                        break;
                    }
                }
            });
        }
    }

    #[test]
    fn what_is_too_large_is_not_to_be_had() {
        let mut slots = Slots::new(1 << 16).unwrap();
        assert!(slots.take(1 << 17).is_none() && slots.take(usize::MAX / 2).is_none());
        let all = slots.take(1 << 16).unwrap();
        assert!(slots.take(1).is_none());
        drop(all);
        // It stays what it was made as.
        assert!(slots.take(1).is_none() && slots.take(1 << 16).is_some());
    }
}
