//! Whether memory is there at all, asked before others are evicted for it.

use crate::range::{PAGE, PageRange};
use std::io;

/// Whether all of a range is mapped in this process, for [`Registrar::probe`](crate::registrar::Registrar::probe): one system call
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
            // It reports unmapped memory as out of memory; the registrar reports it as a bad address.
            return match error.raw_os_error() {
                Some(libc::ENOMEM) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
                _ => Ok(()),
            };
        }
    }
    Ok(())
}

/// The reason why memory could not be pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The first address that is not mapped.
    Unmapped(u64),
    /// The first address that cannot be written.
    ReadOnly(u64),
    /// The first address that is mapped without any access.
    NoAccess(u64),
    /// The first address beyond the end of the file that is mapped there.
    BeyondEnd(u64),
    /// The first address of a shared mapping of a file on a disk.
    SharedFile(u64),
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
    fault_with(maps, range, |name, inode| {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(name).ok()?;
        (file.is_file() && file.ino() == inode).then_some(file.len())
    })
}

/// `length` says how long a file is that has this name and inode.
fn fault_with(maps: &str, range: PageRange, length: impl Fn(&str, u64) -> Option<u64>) -> Option<Fault> {
    let mut next = range.start().checked_mul(PAGE)?;
    let to = u128::from(range.end()) * u128::from(PAGE);
    let mut fault = None;
    let mut shared_file = None;
    for line in maps.lines() {
        let (bounds, rest) = line.split_once(' ')?;
        let (first, last) = bounds.split_once('-')?;
        let [first, last] = [first, last].map(|digits| u64::from_str_radix(digits, 16).ok());
        let (first, last) = (first?, last?);
        if last <= next {
            continue;
        }
        if u128::from(next) >= to || first > next {
            break;
        }
        if let Some(end) = end_of_file(rest, first, &length)
            && end.max(next) < last.min(u64::try_from(to).unwrap_or(u64::MAX))
        {
            fault.get_or_insert(Fault::BeyondEnd(end.max(next)));
        }
        match rest.as_bytes() {
            [b'-', b'-', ..] => _ = fault.get_or_insert(Fault::NoAccess(next)),
            [_, b'-', ..] => _ = fault.get_or_insert(Fault::ReadOnly(next)),
            [_, _, _, b's', ..] if is_on_disk(rest) => _ = shared_file.get_or_insert(Fault::SharedFile(next)),
            _ => {}
        }
        next = last;
    }
    Some(if u128::from(next) < to { Fault::Unmapped(next) } else { fault.or(shared_file).unwrap_or(Fault::Other) })
}

/// Returns the fields of a line after its bounds: offset, inode and name of what is mapped.
fn file(rest: &str) -> Option<(u64, u64, &str)> {
    let mut fields = rest.splitn(5, ' ');
    let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some((offset, inode, fields.next()?.trim_start()))
}

/// Returns the address from which on a mapping that begins here has no pages of its file. None where that is not known.
fn end_of_file(rest: &str, first: u64, length: impl Fn(&str, u64) -> Option<u64>) -> Option<u64> {
    let (offset, inode, name) = file(rest)?;
    let pages = length(name, inode)?.next_multiple_of(PAGE);
    name.starts_with('/').then(|| first.saturating_add(pages.saturating_sub(offset)))
}

/// Returns whether it is a file that is neither memory nor a device.
fn is_on_disk(rest: &str) -> bool {
    let memory = ["/dev/", "/memfd:", "/SYSV", "/anon_hugepage"];
    file(rest).is_some_and(|(_, _, name)| name.starts_with('/') && !memory.iter().any(|mark| name.starts_with(mark)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fault_prefers_hole_over_missing_right() {
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
    fn fault_kinds_are_distinguished() {
        let maps = "1000-2000 ---p 0 0:0 0\n2000-6000 rw-s 1000 8:1 77   /data/a file\n6000-7000 rw-s 0 0:1 9 /memfd:x\n\
                    7000-8000 rw-p 0 8:1 77 /data/a file\n";
        let fault = |start, end, length: u64| {
            fault_with(maps, PageRange::between(start, end), |name, inode| {
                (name == "/data/a file" && inode == 77).then_some(length)
            })
        };
        assert_eq!(fault(1, 3, 1 << 20), Some(Fault::NoAccess(0x1000)));
        assert_eq!(fault(3, 5, 1 << 20), Some(Fault::SharedFile(0x3000)));
        assert_eq!([fault(6, 7, 1 << 20), fault(7, 8, 1 << 20)], [Some(Fault::Other); 2]);
        // Two pages and a byte, of which the mapping leaves out the first.
        assert_eq!(fault(2, 4, 8193), Some(Fault::SharedFile(0x2000)));
        assert_eq!([fault(2, 5, 8193), fault(5, 6, 8193)], [0x4000, 0x5000].map(|at| Some(Fault::BeyondEnd(at))));
        assert_eq!(fault(7, 8, 0), Some(Fault::BeyondEnd(0x7000)));
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
