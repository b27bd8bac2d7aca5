//! Large blocks of memory go back to the system when they are freed.
//!
//! A replay's tables are as large as its cache, and one replay follows another. glibc takes blocks of up to 32 MiB from its heaps
//! once some of them were freed, one heap for each thread, and memory that is freed in the middle of a heap stays. A sweep held a
//! hundred unused megabytes. A fixed threshold turns that off; and a table that grows is then moved by the kernel, without a
//! copy.

/// To be called before the first thread is started.
pub(super) fn go_back_when_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "a setting of the allocator")]
    // SAFETY: no other thread is there yet, and the value is in the range that glibc takes; it does nothing where it is not.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}
