//! Whether memory is there at all, asked before others are evicted for it.

use crate::range::{PAGE, PageRange};
use std::io;

/// Whether all of a range is mapped in this process, for [`Registrar::probe`](super::Registrar::probe): one system call
/// for each 16 MiB, and no look beyond 256 MiB.
///
/// ```
/// use mrrc::PageRange;
/// use mrrc::registrar::mapped;
/// let buffer = vec![1_u8; 100_000];
/// assert!(mapped(PageRange::of_bytes(buffer.as_ptr() as u64, 100_000)?).is_ok());
/// assert_eq!(mapped(PageRange::new(1, 1)?).unwrap_err().raw_os_error(), Some(libc::EFAULT));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// `EFAULT` if some of it is not, as registering it would say.
pub fn mapped(range: PageRange) -> io::Result<()> {
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

/// What is wrong with memory that could not be pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The first address that is not mapped.
    Unmapped(u64),
    /// The first address that cannot be written.
    ReadOnly(u64),
    /// Nothing that shows in the list of mappings.
    Other,
}

/// Looks for the first thing that is wrong with a range, now. For messages: it reads the list of all mappings. `None` if
/// the system does not tell.
pub(crate) fn fault(range: PageRange) -> Option<Fault> {
    let text = std::fs::read_to_string("/proc/self/maps").ok()?;
    fault_in(&text, range)
}

fn fault_in(maps: &str, range: PageRange) -> Option<Fault> {
    let mut next = range.start().checked_mul(PAGE)?;
    let end = u128::from(range.end()) * u128::from(PAGE);
    let mut read_only = None;
    for line in maps.lines() {
        let (bounds, rest) = line.split_once(' ')?;
        let (first, last) = bounds.split_once('-')?;
        let [first, last] = [first, last].map(|digits| u64::from_str_radix(digits, 16).ok());
        let (first, last) = (first?, last?);
        if last <= next {
            continue;
        }
        if u128::from(next) >= end || first > next {
            break;
        }
        if !rest.get(..2)?.ends_with('w') {
            read_only.get_or_insert(Fault::ReadOnly(next));
        }
        next = last;
    }
    Some(if u128::from(next) < end { Fault::Unmapped(next) } else { read_only.unwrap_or(Fault::Other) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_is_found_and_a_hole_is_worse_than_a_missing_right() {
        let maps =
            "1000-3000 rw-p 0 0:0 0\n3000-4000 r--p 0 0:0 0 [x]\n4000-5000 rw-p 0 0:0 0\n6000-7000 r--p 0 0:0 0\n";
        let fault = |start, end| fault_in(maps, PageRange::between(start, end));
        assert_eq!([fault(1, 3), fault(2, 3), fault(4, 5)], [Some(Fault::Other); 3]);
        assert_eq!(fault(1, 5), Some(Fault::ReadOnly(0x3000)));
        assert_eq!(fault(3, 6), Some(Fault::Unmapped(0x5000)));
        assert_eq!(fault(5, 7), Some(Fault::Unmapped(0x5000)));
        assert_eq!(fault(6, 9), Some(Fault::Unmapped(0x7000)));
        assert_eq!(fault(9, 10), Some(Fault::Unmapped(0x9000)));
        assert_eq!(fault_in(maps, PageRange::EVERYTHING), Some(Fault::Unmapped(0)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_memory_to_write_and_text_to_read() {
        static TEXT: [u8; 8] = *b"constant";
        let of = |bytes: &[u8]| fault(PageRange::of_bytes(bytes.as_ptr() as u64, bytes.len() as u64).unwrap());
        assert_eq!(of(&vec![1_u8; 4096]), Some(Fault::Other));
        assert!(matches!(of(&TEXT), Some(Fault::ReadOnly(_))));
    }

    #[test]
    fn what_is_mapped_in_part_is_not_mapped() {
        let memory = vec![1_u8; 3 << 20];
        let inside = PageRange::of_bytes(memory.as_ptr() as u64, memory.len() as u64).unwrap();
        assert!(mapped(inside).is_ok());
        assert_eq!(mapped(PageRange::new(1, 1).unwrap()).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(mapped(PageRange::EVERYTHING).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }
}
