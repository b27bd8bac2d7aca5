//! Memory that peers reach, touched by this side: through the kernel, because it may be unmapped at any moment.
#![expect(unsafe_code, reason = "system calls that take addresses")]

use std::io;

/// Copies bytes to an address of this process.
///
/// # Errors
/// `EFAULT` where it is not mapped so that it can be written.
///
/// # Safety
/// Its owner lets the bytes be written.
pub(super) unsafe fn put(bytes: &[u8], to: *mut u8) -> io::Result<()> {
    let from = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let to = libc::iovec { iov_base: to.cast(), iov_len: bytes.len() };
    // SAFETY: the kernel checks both addresses; that the target may be written is the caller's promise.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) };
    all(copied, bytes.len())
}

/// Appends bytes from an address of this process.
///
/// # Errors
/// `EFAULT` where it is not mapped.
pub(super) fn get(from: *const u8, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
    into.reserve(length);
    let start = into.len();
    let room = into.spare_capacity_mut();
    let to = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: length };
    let from = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length };
    // SAFETY: the kernel checks the source; the target is the room that was reserved.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    all(copied, length)?;
    // SAFETY: all of it was written.
    unsafe { into.set_len(start + length) };
    Ok(())
}

fn all(copied: isize, length: usize) -> io::Result<()> {
    match usize::try_from(copied) {
        Ok(copied) if copied == length => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_is_an_error() {
        let mut bytes = [0; 3];
        // SAFETY: the array is this test's.
        unsafe { put(b"abc", bytes.as_mut_ptr()) }.unwrap();
        let mut copy = Vec::from(*b"-");
        get(bytes.as_ptr(), 3, &mut copy).unwrap();
        assert_eq!(copy, b"-abc");
        // SAFETY: nothing lies there.
        assert_eq!(unsafe { put(b"abc", 64 as *mut u8) }.unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(get(64 as *const u8, 3, &mut copy).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(copy, b"-abc");
    }
}
