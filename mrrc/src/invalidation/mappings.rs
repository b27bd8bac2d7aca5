//! The kernel's description of a mapping: its bounds, and whether its changes can be heard.
//!
//! Asked on a miss only. Linux 6.11 answers for one address by an ioctl (`PROCMAP_QUERY`); before it the text of
//! `/proc/self/maps` is searched. Text that is longer than one read is not a picture of one moment: a mapping
//! that changes meanwhile can appear twice, or not at all. But each *line* is one mapping at one moment, and
//! more than one line is never relied upon. A missed mapping is taken for a hole and not cached this time, and
//! bounds that have become wrong are found by asking again, after the registration (see
//! [`userfaultfd`](super::userfaultfd)).

use super::Unwatched;
use super::seals::FileId;
use crate::own_file::OwnFile;
use crate::range::{PAGE, PageRange};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mapping of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) pages: PageRange,
    pub(crate) kind: Kind,
    /// Whether it may be read or written.
    has_access: bool,
}

impl Mapping {
    /// Why it is not watched, if so: whatever shared memory is trusted.
    pub(crate) fn refusal(&self) -> Option<Unwatched> {
        if self.has_access { self.kind.refusal() } else { Some(Unwatched::NoAccess) }
    }
}

/// The backing of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Private memory that has no name elsewhere, of huge pages or not.
    Anonymous,
    /// The same, shared with children.
    SharedAnonymous,
    File,
    /// A memfd that is mapped to be shared.
    Memfd(FileId),
    /// A file in memory, with a name in a file system, that is mapped to be shared.
    MemoryFile,
    /// Other shared memory, and private mappings of such.
    SharedMemory,
    Special,
}

impl Kind {
    /// Why changes to such a mapping cannot all be heard, if that is so for all of its kind.
    pub(crate) fn refusal(self) -> Option<Unwatched> {
        match self {
            Self::Anonymous | Self::SharedAnonymous | Self::Memfd(_) | Self::MemoryFile => None,
            Self::File => Some(Unwatched::File),
            Self::SharedMemory => Some(Unwatched::SharedMemory),
            Self::Special => Some(Unwatched::Special),
        }
    }

    /// From what the kernel shows of a mapping. `major` is that of the device which holds the file.
    fn of(shared: bool, [major, minor]: [u32; 2], inode: u64, name: &[u8]) -> Self {
        match name {
            // Only private memory is nameless; a driver's mapping shows the driver's file.
            b"" if shared => Self::Special,
            b"" | b"[heap]" => Self::Anonymous,
            _ if name.starts_with(b"[anon_shmem") => Self::SharedAnonymous,
            _ if name.starts_with(b"[stack") || name.starts_with(b"[anon") => Self::Anonymous,
            // Shared anonymous memory is a nameless file of the kernel's own file system; anonymous huge pages,
            // private ones too, are one of another. A private mapping of the zero device is plain memory.
            b"/dev/zero (deleted)" if shared && major == 0 => Self::SharedAnonymous,
            b"/anon_hugepage (deleted)" if shared && major == 0 => Self::SharedAnonymous,
            b"/anon_hugepage (deleted)" if major == 0 => Self::Anonymous,
            b"/dev/zero" if !shared => Self::Anonymous,
            _ if shared && name.starts_with(b"/memfd:") => {
                Self::Memfd(FileId { device: libc::makedev(major, minor), inode })
            }
            _ if shared && [&b"/dev/shm/"[..], b"/dev/hugepages/"].iter().any(|mark| name.starts_with(mark)) => {
                Self::MemoryFile
            }
            _ if [&b"/memfd:"[..], b"/dev/shm/", b"/SYSV"].iter().any(|mark| name.starts_with(mark)) => {
                Self::SharedMemory
            }
            _ if name.starts_with(b"/dev/hugepages/") => Self::File,
            _ if name.starts_with(b"/dev/") => Self::Special,
            [b'/', ..] => Self::File,
            // [vdso], [vvar], anon_inode:[io_uring], socket:[1234]
            _ => Self::Special,
        }
    }
}

/// The mappings of this process.
#[derive(Debug)]
pub(crate) struct Mappings {
    maps: OwnFile,
    /// Whether the kernel answers for one address.
    query: AtomicBool,
}

const MAPS: &str = "/proc/self/maps";

#[cfg(test)]
thread_local! {
    /// How often this thread has read the text.
    pub(crate) static TEXTS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Mappings {
    /// # Errors
    /// Fails if `/proc` is not mounted.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { maps: OwnFile::open(MAPS)?, query: AtomicBool::new(true) })
    }

    /// Returns whether the kernel answers for one address, as far as is known: otherwise the text is read.
    pub(crate) fn is_quick(&self) -> bool {
        self.query.load(Ordering::Relaxed)
    }

    /// Returns those that are read from the text.
    #[cfg(test)]
    pub(crate) fn of_text() -> io::Result<Self> {
        Ok(Self { query: AtomicBool::new(false), ..Self::open()? })
    }

    /// Returns the mapping that holds a page.
    pub(crate) fn at(&self, page: u64) -> io::Result<Option<Mapping>> {
        Ok(self.at_or_after(page)?.filter(|mapping| mapping.pages.start() <= page))
    }

    /// Returns the mapping that holds a page, or else the next one.
    pub(crate) fn at_or_after(&self, page: u64) -> io::Result<Option<Mapping>> {
        if self.query.load(Ordering::Relaxed) {
            match self.ask(page) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ESRCH | libc::ENOMEM)) => {
                    return Err(error);
                }
                // An older kernel, or a filter of system calls: from now on the text.
                Err(_) => self.query.store(false, Ordering::Relaxed),
                found => return found,
            }
        }
        #[cfg(test)]
        TEXTS.with(|texts| texts.set(texts.get() + 1));
        let mut found = None;
        scan(File::open(MAPS)?, |mapping| {
            found = Some(mapping).filter(|mapping| mapping.pages.end() > page);
            found.is_none()
        })?;
        Ok(found)
    }

    fn ask(&self, page: u64) -> io::Result<Option<Mapping>> {
        let mut name = [0_u8; libc::PATH_MAX as usize];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            ask: OR_NEXT,
            address: page.saturating_mul(PAGE),
            name_size: name.len() as u32,
            name: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        let asked = ioctl_query(&self.maps, &mut query);
        match asked.as_ref().map_err(|error| error.raw_os_error()) {
            Ok(()) => {}
            Err(Some(libc::ENOENT)) => return Ok(None),
            // A path longer than any buffer, of a file therefore; the bounds were not answered.
            Err(Some(libc::ENAMETOOLONG)) => {
                return Ok(Some(Mapping {
                    pages: PageRange::between(page, page + 1),
                    kind: Kind::File,
                    has_access: true,
                }));
            }
            Err(_) => return asked.map(|()| None),
        }
        let name = &name[..(query.name_size as usize).min(name.len())];
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let Some(pages) = pages(query.start, query.end) else {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        };
        let kind = Kind::of(query.flags & SHARED != 0, [query.dev_major, query.dev_minor], query.inode, name);
        Ok(Some(Mapping { pages, kind, has_access: query.flags & ACCESS != 0 }))
    }
}

/// `struct procmap_query`.
#[repr(C)]
#[derive(Debug, Default)]
struct Query {
    size: u64,
    ask: u64,
    address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `PROCMAP_QUERY`.
const QUERY: libc::Ioctl = libc::_IOWR::<Query>(b'f' as u32, 17);
/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`.
const OR_NEXT: u64 = 0x10;
/// `PROCMAP_QUERY_VMA_READABLE` and `PROCMAP_QUERY_VMA_WRITABLE`.
const ACCESS: u64 = 1 | 2;
/// `PROCMAP_QUERY_VMA_SHARED`.
const SHARED: u64 = 8;

#[expect(unsafe_code, reason = "an ioctl")]
fn ioctl_query(maps: &OwnFile, query: &mut Query) -> io::Result<()> {
    let number = maps.get()?.as_raw_fd();
    // SAFETY: the ioctl reads and writes one `Query`, which is borrowed for the call, and writes at most
    // `name_size` bytes at `name`, which the only caller points to a buffer of that length.
    match unsafe { libc::ioctl(number, QUERY, std::ptr::from_mut(query)) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Shows each mapping of the text to `each`, until that has seen enough.
fn scan(mut text: impl Read, mut each: impl FnMut(Mapping) -> bool) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(2 << 14);
    loop {
        let read = text.by_ref().take(1 << 14).read_to_end(&mut buffer)?;
        let whole = match buffer.iter().rposition(|&byte| byte == b'\n') {
            Some(at) if read > 0 => at + 1,
            _ if read > 0 => continue,
            _ => buffer.len(),
        };
        for line in buffer[..whole].split(|&byte| byte == b'\n') {
            if parse(line).is_some_and(|mapping| !each(mapping)) {
                return Ok(());
            }
        }
        buffer.drain(..whole);
        if read == 0 {
            return Ok(());
        }
    }
}

/// Reads `start-end perms offset major:minor inode   name`; what does not read like that is no mapping.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        rest = tail.strip_prefix(b" ").unwrap_or(tail);
        std::str::from_utf8(word).ok().filter(|word| !word.is_empty())
    };
    let (start, end) = word()?.split_once('-')?;
    let rights = word()?.as_bytes();
    let (shared, has_access) =
        (rights.get(3) == Some(&b's'), rights.first() == Some(&b'r') || rights.get(1) == Some(&b'w'));
    let _offset = word()?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let pages = pages(number(start)?, number(end)?)?;
    let device = [u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?];
    let kind = Kind::of(shared, device, inode, rest.trim_ascii_start());
    Some(Mapping { pages, kind, has_access })
}

fn pages(start: u64, end: u64) -> Option<PageRange> {
    PageRange::new(start / PAGE, (end / PAGE).checked_sub(start / PAGE)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55892894e000-558928953000 r-xp 00002000 fe:00 247030                     /usr/bin/cat
558928956000-558928957000 rw-p 00009000 fe:00 247030                     /usr/bin/cat
558936d79000-558936d9a000 rw-p 00000000 00:00 0                          [heap]
7f61e2f4f000-7f61e2f71000 rw-p 00000000 00:00 0 
7f61e2f71000-7f61e2f72000 rw-p 00000000 00:00 0                          [anon:arena of a b]
7f61e2f72000-7f61e2f73000 rw-s 00000000 00:01 1037                       /dev/zero (deleted)
7f61e2f73000-7f61e2f74000 rw-s 00000000 00:01 1038                       [anon_shmem:ring]
7f61e2f74000-7f61e2f75000 rw-s 00000000 00:01 1026                       /memfd:a name with blanks (deleted)
7f61e2f75000-7f61e2f76000 rw-s 00000000 00:01 32768                      /SYSV00000000 (deleted)
7f61e2f76000-7f61e2f77000 rw-s 00000000 00:18 3                          /dev/shm/segment
7f61e3000000-7f61e3200000 rw-p 00000000 00:0f 1040                       /anon_hugepage (deleted)
7f61e3200000-7f61e3400000 rw-s 00000000 00:19 1040                       /dev/hugepages/one
7f61e3400000-7f61e3401000 rw-s 00000000 00:0e 1043                       anon_inode:[io_uring]
7f61e3401000-7f61e3402000 rw-s 00000000 00:05 90                         /dev/infiniband/uverbs0
7f61e3402000-7f61e3403000 r--s 00000000 fe:00 12                         /tmp/x y (deleted)
7f61e3403000-7f61e3404000 rw-p 00000000 00:05 5                          /dev/zero
7f61e31c1000-7f61e31c5000 r--p 00000000 00:00 0                          [vvar]
7f61e31c7000-7f61e31c9000 r-xp 00000000 00:00 0                          [vdso]
7ffdfb11e000-7ffdfb13f000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    fn kinds(text: &str) -> Vec<Kind> {
        let mut kinds = Vec::new();
        scan(text.as_bytes(), |mapping| {
            kinds.push(mapping.kind);
            true
        })
        .unwrap();
        kinds
    }

    #[test]
    fn what_lies_behind_a_mapping_is_told_by_its_line() {
        use Kind::{Anonymous as A, File as F, MemoryFile as N, SharedAnonymous as H, SharedMemory as M, Special as S};
        let memfd = Kind::Memfd(FileId { device: libc::makedev(0, 1), inode: 1026 });
        assert_eq!(kinds(TEXT), [F, F, A, A, A, H, H, memfd, M, N, A, N, S, S, F, A, S, S, A, S]);
        // Private mappings have pages of their own, and pages of the file where they were not written.
        let private = TEXT.replace("rw-s", "rw-p");
        assert_eq!(kinds(&private)[7..12], [M, M, M, A, F]);
    }

    #[test]
    fn bounds_are_parsed_up_to_the_last_page() {
        let first = parse(TEXT.lines().next().unwrap().as_bytes()).unwrap();
        assert_eq!(first.pages, PageRange::between(0x5_5892_894e, 0x5_5892_8953));
        let last = parse(TEXT.lines().last().unwrap().as_bytes()).unwrap();
        assert_eq!((last.pages.start(), last.pages.pages()), (0xf_ffff_ffff_f600, 1));
    }

    #[test]
    fn lines_that_are_no_mappings_are_passed_over() {
        for line in ["", " ", "7f00-", "zz-yy rw-p 0 0:0 0", "2000-1000 rw-p 0 00:00 0", "1000-1000 rw-p 0 00:00 0"] {
            assert_eq!(parse(line.as_bytes()), None, "{line:?}");
        }
        assert_eq!(parse(b"1000-2000 rw-p 0 00:00 0").map(|mapping| mapping.kind), Some(Kind::Anonymous));
    }

    #[test]
    fn a_mapping_without_access_is_refused() {
        for (rights, why) in [
            ("rw-p", None),
            ("r--p", None),
            ("-w-p", None),
            ("---p", Some(Unwatched::NoAccess)),
            ("--xp", Some(Unwatched::NoAccess)),
            ("r--s", Some(Unwatched::Special)),
            ("---s", Some(Unwatched::NoAccess)),
        ] {
            let mapping = parse(format!("1000-2000 {rights} 0 00:00 0").as_bytes()).unwrap();
            assert_eq!(mapping.refusal(), why, "{rights}");
        }
    }

    #[test]
    fn text_that_comes_in_small_pieces_reads_the_same() {
        struct Drops<'a>(&'a [u8]);
        impl Read for Drops<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = 7.min(buffer.len());
                self.0.read(&mut buffer[..length])
            }
        }
        let long = TEXT.repeat(100);
        let mut count = 0;
        scan(Drops(long.as_bytes()), |_| {
            count += 1;
            true
        })
        .unwrap();
        assert_eq!(count, 2000);
    }

    #[test]
    fn the_kernel_and_its_text_agree() {
        let mappings = Mappings::open().unwrap();
        let text = Mappings::of_text().unwrap();
        let here = std::ptr::from_ref(&mappings) as u64 / PAGE;
        let code = kinds as *const () as u64 / PAGE;
        for (page, kind) in [(here, Kind::Anonymous), (code, Kind::File)] {
            let found = mappings.at(page).unwrap().unwrap();
            assert_eq!((found.kind, Some(found)), (kind, text.at(page).unwrap()));
            let first = found.pages.start();
            assert_eq!(mappings.at_or_after(first - 1).unwrap().map(|near| near.pages.start() <= first), Some(true));
        }
        assert_eq!((mappings.at(1).unwrap(), text.at(1).unwrap()), (None, None));
        assert_eq!(mappings.at_or_after(1).unwrap(), text.at_or_after(1).unwrap());
        assert!(mappings.at_or_after(1).unwrap().is_some());
        println!("the kernel answers for one address: {}", mappings.query.load(Ordering::Relaxed));
    }
}
