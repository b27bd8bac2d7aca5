//! Copies of memory that others write or read meanwhile: peers of shared memory, and owners of memory that tags are
//! bound to.
#![expect(unsafe_code, reason = "copies by address")]

/// Copies bytes that others may write or read meanwhile: each is the old or the new one.
///
/// # Safety
/// So many bytes can be read at `from` and written at `to`, and they do not overlap. No reference of this process to them
/// is used meanwhile.
#[inline(always)]
pub(in crate::fabric) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller promises that both ranges can be accessed. The instruction uses no stack and leaves the flags
    // alone; the direction flag is clear in Rust code.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for offset in 0..length {
        use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
        // SAFETY: the caller promises that both ranges can be accessed; `offset` is less than their length.
        unsafe {
            let byte = AtomicU8::from_ptr(from.cast_mut().add(offset)).load(Relaxed);
            AtomicU8::from_ptr(to.add(offset)).store(byte, Relaxed);
        }
    }
}
