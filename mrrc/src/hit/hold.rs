//! A hold: one lease's claim on one region.
#![expect(unsafe_code, reason = "holds point to slots, and to the tables that they keep alive")]

use super::HitTables;
use super::slots::Slot;
use crate::regions::RegionId;
use std::num::NonZero;
use std::ptr::NonNull;

/// A claim on one region, by a slot, which names the region as long as it is held. Or the region counts it, and this is no
/// address but the region's name, with [`COUNTED`] in the bits below.
#[repr(transparent)]
pub(crate) struct HoldRef(NonNull<Slot>);

// SAFETY: a slot is made of atomics and never freed, and any thread may empty it; a name is a number.
unsafe impl Send for HoldRef {}

const COUNTED: NonZero<usize> = NonZero::<usize>::MIN;
const TAG_BITS: u32 = 2;
const _: () = assert!(align_of::<Slot>() > HoldRef::TAGS);

impl HoldRef {
    /// Bits that are 0 in the address of a slot.
    pub(crate) const TAGS: usize = 0b11;

    /// By a slot, which names the region.
    #[inline(always)]
    pub(super) fn by(slot: &'static Slot) -> Self {
        Self(NonNull::from(slot))
    }

    /// By the count of the region.
    pub(super) fn counted(id: RegionId) -> Self {
        Self(NonNull::dangling().map_addr(|_| COUNTED | (id.raw() as usize) << TAG_BITS))
    }

    /// Returns the word that [`HoldRef::from_pointer`] makes the hold of again.
    #[inline(always)]
    pub(crate) fn pointer(self) -> NonNull<Slot> {
        self.0
    }

    pub(crate) fn from_pointer(pointer: NonNull<Slot>) -> Self {
        Self(pointer)
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn slot(&self) -> Option<&'static Slot> {
        if self.is_counted() {
            return None;
        }
        // SAFETY: `as_ref` wants a slot that lives: what is not counted points to one, and slots are never freed.
        Some(unsafe { self.0.as_ref() })
    }

    fn is_counted(&self) -> bool {
        self.0.addr().get() & Self::TAGS == COUNTED.get()
    }

    /// Returns the region. Asked for while it is held.
    pub(crate) fn id(&self) -> RegionId {
        let name = if self.is_counted() {
            (self.0.addr().get() >> TAG_BITS) as u32
        } else {
            // SAFETY: `as_ref` wants a slot that lives: what is not counted points to one, and slots are never freed.
            unsafe { self.0.as_ref() }.name()
        };
        let Some(id) = RegionId::from_raw(name) else { unreachable!("a hold names its region until it ends") };
        id
    }

    /// Ends the hold.
    ///
    /// # Safety
    /// It is called once, and nothing of the shared state is touched on this hold's account afterwards.
    pub(crate) unsafe fn end<T>(&self, tables: NonNull<HitTables<T>>) {
        if self.is_counted() {
            let id = self.id();
            // SAFETY: the caller ends the hold here once; until the count below is less by one, the cache keeps its tables.
            let tables = unsafe { tables.as_ref() };
            if tables.gate.is_forked() {
                // The count is that of the parent's state, which is never used here.
                return;
            }
            super::release_counted(&tables.records[id], id.raw(), tables.notifier());
        } else {
            // SAFETY: `as_ref` wants a slot that lives: what is not counted points to one, and slots are never freed.
            unsafe { self.0.as_ref() }.release();
        }
    }
}
