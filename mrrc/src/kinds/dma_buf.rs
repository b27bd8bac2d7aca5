//! dma-bufs: buffers of devices that processes pass to each other as file descriptors.

use super::{Identity, MemoryKind};
use crate::own_file::OwnFile;
use crate::range::{PageRange, RangeError};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// The number of the file system that dma-bufs have (`DMA_BUF_MAGIC`, Linux 5.3).
const MAGIC: u64 = 0x444d_4142;

/// A dma-buf at an address: its identity is the inode of its file descriptor.
///
/// Make one for each request, of the descriptor that the program has then. A descriptor that was closed and is another buffer's now has another
/// inode. A duplicate of it keeps the buffer, and so the inode, as long as the cache knows it. It may be of a part of the buffer. One that is
/// mapped at the same address with another offset is not told apart: give it up first
/// ([`Cache::forget_kind`](crate::Cache::forget_kind)).
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf<'fd> {
    fd: BorrowedFd<'fd>,
    range: PageRange,
}

impl<'fd> DmaBuf<'fd> {
    /// Returns the dma-buf that is mapped, or known to the registrar, at these addresses.
    ///
    /// # Errors
    /// There are no bytes, or they are no range of memory.
    pub fn new(fd: BorrowedFd<'fd>, address: *const u8, length: usize) -> Result<Self, RangeError> {
        Ok(Self { fd, range: PageRange::of_bytes(address as u64, length as u64)? })
    }

    fn identity(&self, file: &File) -> io::Result<Identity> {
        let data = file.metadata()?;
        Ok(Identity { buffer: data.ino(), generation: data.dev(), range: self.range })
    }

    /// Returns a duplicate of the file, to be kept.
    fn duplicate(&self, identity: &Identity) -> io::Result<OwnFile> {
        let file = File::from(self.fd.try_clone_to_owned()?);
        if self.identity(&file)? != *identity {
            return Err(io::Error::other("another buffer took the file descriptor meanwhile: try again"));
        }
        OwnFile::unmarked(file)
    }
}

impl MemoryKind for DmaBuf<'_> {
    fn name(&self) -> &'static str {
        "dma-buf"
    }

    fn identify(&self, _: *const u8) -> io::Result<Identity> {
        #[expect(unsafe_code, reason = "system calls")]
        // SAFETY: `fstat` writes the structure that it is given, of which all zeroes are a value.
        let data = unsafe {
            let mut data: libc::stat = std::mem::zeroed();
            if libc::fstat(self.fd.as_raw_fd(), &raw mut data) != 0 {
                return Err(io::Error::last_os_error());
            }
            data
        };
        Ok(Identity { buffer: data.st_ino, generation: data.st_dev, range: self.range })
    }

    /// A program may name the part of a buffer that it is about to use.
    fn tells_parts(&self) -> bool {
        true
    }

    fn keep(&self, identity: &Identity) -> io::Result<Box<dyn Send>> {
        let file = self.duplicate(identity)?;
        if magic(file.get()?.as_fd())? != MAGIC {
            let message = format!("file descriptor {} is no dma-buf", self.fd.as_raw_fd());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Box::new(file))
    }
}

/// Returns the number of the file system that a file is on.
fn magic(fd: BorrowedFd<'_>) -> io::Result<u64> {
    #[expect(unsafe_code, reason = "system calls")]
    // SAFETY: `fstatfs` writes the structure that it is given, of which all zeroes are a value.
    let data = unsafe {
        let mut data: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(fd.as_raw_fd(), &raw mut data) != 0 {
            return Err(io::Error::last_os_error());
        }
        data
    };
    Ok(data.f_type as u64)
}

#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests {
    use super::*;
    use crate::own_file::tests::{close, replace};
    use crate::range::PAGE;

    #[test]
    fn number_of_another_file_stays_open() {
        let (file, other) = (File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap());
        let buffer = DmaBuf::new(file.as_fd(), std::ptr::without_provenance(PAGE as usize), 1).unwrap();
        let kept = buffer.duplicate(&buffer.identity(&file).unwrap()).unwrap();
        let number = kept.number();
        replace(number, &other);
        drop(kept);
        close(number);
    }
}
