//! Files that a program maps into its memory.

#![expect(unsafe_code)]

use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// Maps a file, shared, and returns its bytes. Writes some before if so asked, and syncs them.
pub(crate) fn mapped(file: &File, length: usize, write: Option<(usize, &[u8])>) -> io::Result<Vec<u8>> {
    let rights = if write.is_some() { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: the kernel chooses the place, so the mapping covers nothing that is in use.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, rights, MapFlags::SHARED, file, 0) }?;
    if let Some((offset, bytes)) = write {
        assert!(offset + bytes.len() <= length);
        // SAFETY: the bytes are within the mapping, which is writable, and the caller has the file for itself.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast::<u8>().add(offset), bytes.len()) };
        // SAFETY: `msync` asks for mapped pages only, and the range is the mapping made above.
        let synced = unsafe { rustix::mm::msync(at, length, MsyncFlags::SYNC) };
        if let Err(errno) = synced {
            // SAFETY: the range is the mapping, and no reference to it is left.
            unsafe { rustix::mm::munmap(at, length) }?;
            return Err(errno.into());
        }
    }
    // SAFETY: the mapping has so many readable bytes, and nothing changes them meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), length) }.to_vec();
    // SAFETY: the range is the mapping, and no reference to it is left.
    unsafe { rustix::mm::munmap(at, length) }?;
    Ok(bytes)
}
