//! Whether memory is there at all, asked before others are evicted for it.

use crate::range::{PAGE, PageRange};
use std::io;

/// Whether all of a range is mapped in this process: one system call for each 16 MiB, and no look beyond 256 MiB.
///
/// # Errors
/// `EFAULT` if some of it is not, as registering it would say.
pub(crate) fn mapped(range: PageRange) -> io::Result<()> {
    const PIECE: u64 = 4096;
    let mut resident = [0_u8; PIECE as usize];
    for piece in range.pieces(PIECE).take(16) {
        let (start, length) = (piece.start() * PAGE, piece.pages() * PAGE);
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: it writes a byte for each page of the piece, as many as there are; the range is only asked about.
        let result = unsafe { libc::mincore(start as *mut libc::c_void, length as usize, resident.as_mut_ptr()) };
        if result != 0 {
            let error = io::Error::last_os_error();
            // It says that what is not mapped is out of memory; who registers says that the address is bad.
            return match error.raw_os_error() {
                Some(libc::ENOMEM) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
                _ => Ok(()),
            };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_in_part_is_not_mapped() {
        let memory = vec![1_u8; 3 << 20];
        let inside = PageRange::of_bytes(memory.as_ptr() as u64, memory.len() as u64).unwrap();
        assert!(mapped(inside).is_ok());
        assert_eq!(mapped(PageRange::new(1, 1).unwrap()).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(mapped(PageRange::EVERYTHING).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }
}
