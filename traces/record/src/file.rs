//! The file itself: made or joined, made longer, and mapped.
//!
//! Everything here is the edge: system calls, and what can go wrong with them. A lock on the file is held while it is made or
//! joined, for some microseconds and never while events are recorded. Making it longer needs none: what one process
//! has done another may do again.

use crate::layout::{HEAD, Head, NoHead, RECORD};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Why nothing is recorded.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused.
    System {
        /// The file.
        file: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// Its answer.
        error: io::Error,
    },
    /// It is there, and is something else.
    Unfit {
        /// The file.
        file: PathBuf,
        /// The kind of file.
        what: String,
    },
    /// No event has room.
    Limit {
        /// The limit in bytes.
        bytes: u64,
    },
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System { file, doing, error } => {
                let remedy = match error.raw_os_error() {
                    Some(libc::ENODEV | libc::EINVAL) if *doing == "map" => {
                        ": its file system has no shared mappings: name a file on a local one (/tmp, /dev/shm)"
                    }
                    Some(libc::ENOMEM) if *doing == "map" => ": lower MRRC_RECORD_LIMIT, or raise `ulimit -v`",
                    Some(libc::EWOULDBLOCK) => ": another process holds it (flock): name another file",
                    _ => "",
                };
                write!(f, "{}: {doing}: {error}{remedy}", file.display())
            }
            Self::Unfit { file, what } => {
                write!(f, "{}: it is there and is {what}: name another file, or remove it", file.display())
            }
            Self::Limit { bytes } => write!(
                f,
                "a recording of at most {bytes} bytes has no room for an event: raise MRRC_RECORD_LIMIT or `ulimit -f`"
            ),
        }
    }
}

impl std::error::Error for OpenError {}

/// Makes an empty recording of so many bytes at most, for processes to join that name it in `MRRC_RECORD`. An existing file of
/// that name is replaced; a process that still writes to it goes on with a file without a name.
///
/// # Errors
/// [`OpenError`]: a process that joins would find the same.
pub fn create(path: &Path, limit: u64) -> Result<(), OpenError> {
    let failed = |doing| move |error| OpenError::System { file: path.to_owned(), doing, error };
    match std::fs::metadata(path) {
        Ok(there) if there.is_file() => std::fs::remove_file(path).map_err(failed("replace"))?,
        _ => {}
    }
    let (recording, _) = Recording::open(path, limit)?;
    let tried = recording.map(HEAD).map_err(failed("map"))?;
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: the range was just mapped, and no other code knows of it.
    unsafe {
        libc::munmap(tried.cast(), HEAD);
    }
    Ok(())
}

/// Returns the current head of a recording.
///
/// # Errors
/// The system's; `InvalidData` where it is none.
pub fn state(path: &Path) -> io::Result<Head> {
    let mut bytes = [0; HEAD];
    File::open(path)?.read_exact_at(&mut bytes, 0)?;
    Head::of_bytes(&bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no recording"))
}

/// Times that the lock on the file is tried, a hundredth of a second apart.
const TRIES: u32 = 200;

/// The file, open and known by its number, whatever else is opened under that descriptor later.
#[derive(Debug)]
pub(crate) struct Recording {
    path: PathBuf,
    file: File,
    device: u64,
    inode: u64,
    /// Bytes that this process may write, at most.
    longest: u64,
}

impl Recording {
    /// Makes the file, or joins the processes that write to it.
    pub(crate) fn open(path: &Path, limit: u64) -> Result<(Self, Head), OpenError> {
        let failed = |doing| move |error| OpenError::System { file: path.to_owned(), doing, error };
        let unfit = |what: &str| OpenError::Unfit { file: path.to_owned(), what: what.to_owned() };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
            .open(path)
            .map_err(failed("open"))?;
        let about = file.metadata().map_err(failed("open"))?;
        if !about.is_file() {
            return Err(unfit("no regular file"));
        }
        let longest = longest_file();
        let path_to_it = std::fs::canonicalize(path).map_err(failed("open"))?;
        let recording = Self { path: path_to_it, file, device: about.dev(), inode: about.ino(), longest };
        recording.lock().map_err(failed("lock"))?;
        let head = recording.head(path, limit.min(longest), boot());
        recording.unlock();
        Ok((recording, head?))
    }

    /// Writes the head, or reads the one that is there. The file is locked.
    fn head(&self, path: &Path, bytes: u64, boot: [u8; 16]) -> Result<Head, OpenError> {
        let failed = |doing| move |error| OpenError::System { file: path.to_owned(), doing, error };
        let unfit = |what: String| OpenError::Unfit { file: path.to_owned(), what };
        if self.file.metadata().map_err(failed("open"))?.len() == 0 {
            let limit = bytes.saturating_sub(HEAD as u64) / RECORD as u64;
            if limit == 0 {
                return Err(OpenError::Limit { bytes });
            }
            let head = Head { start: now(), boot, limit, ..Head::default() };
            self.file.write_all_at(&head.bytes(), 0).map_err(failed("write"))?;
            return Ok(head);
        }
        let mut bytes = [0; HEAD];
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => unfit("no recording".into()),
            _ => failed("read")(error),
        })?;
        let head = Head::of_bytes(&bytes).map_err(|why| match why {
            NoHead::Foreign => unfit("no recording".into()),
            NoHead::Version(version) => unfit(format!("a recording of version {version}")),
        })?;
        // A write past the end of a file ends the process by a signal.
        let there = self.file.metadata().map_err(failed("open"))?.len();
        if there < HEAD as u64 + head.ready.min(head.limit).saturating_mul(RECORD as u64) {
            return Err(unfit("a recording that was cut short".into()));
        }
        // A range beyond the address space is none of ours either.
        if head.boot != boot || head.limit > 1 << 40 {
            return Err(unfit("a recording of before the machine was started".into()));
        }
        Ok(head)
    }

    /// Sees to it that the file has so many bytes. Others may do the same at the same time.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<(), i32> {
        if bytes > self.longest {
            return Err(libc::EFBIG);
        }
        if self.is(&self.file) {
            return lengthen(&self.file, bytes);
        }
        // A program may close descriptors that it did not open, and open files of its own in their place.
        let again = OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(&self.path).map_err(number)?;
        if self.is(&again) { lengthen(&again, bytes) } else { Err(libc::ESTALE) }
    }

    /// Returns whether this is the file that was opened first.
    fn is(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|about| (about.dev(), about.ino()) == (self.device, self.inode))
    }

    /// Returns the address at which so many bytes of the file are mapped; those past its end may not be touched yet.
    pub(crate) fn map(&self, bytes: usize) -> io::Result<*mut u8> {
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: the kernel chooses an address where nothing is.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                self.file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
    }

    fn lock(&self) -> io::Result<()> {
        for tried in 1.. {
            #[expect(unsafe_code, reason = "a system call")]
            // SAFETY: `flock` takes an open descriptor, which `self.file` owns, and a number.
            let done = unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
            if done == 0 {
                break;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EWOULDBLOCK | libc::EINTR) if tried < TRIES => sleep(Duration::from_millis(10)),
                // A file system without locks: the first process writes the head, and two at once write the same but the
                // start.
                Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => break,
                _ => return Err(error),
            }
        }
        Ok(())
    }

    fn unlock(&self) {
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: no memory is passed. If it fails, the lock goes with the descriptor.
        unsafe {
            libc::flock(self.file.as_raw_fd(), libc::LOCK_UN);
        }
    }
}

/// Sees to it that there are blocks for so many bytes; where that cannot be had, that the file has that length.
fn lengthen(file: &File, bytes: u64) -> Result<(), i32> {
    for _ in 0..16 {
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: no memory is passed. Where blocks are there already nothing changes.
        let done = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) };
        if done == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            // The last byte of a record is always 0: this makes the file longer, and changes nothing where it is.
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                return file.write_all_at(&[0], bytes - 1).map_err(number);
            }
            Some(number) => return Err(number),
            None => return Err(libc::EIO),
        }
    }
    Err(libc::EINTR)
}

fn number(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Nanoseconds of the clock that all processes of a machine share.
#[inline]
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "the clock without a type around it, for what it costs")]
    // SAFETY: the pointer is to a structure of the kind that the call fills, and lives through it.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// `RLIMIT_FSIZE`: a longer write ends the process by a signal.
fn longest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: the pointer is to a structure of the kind that the call fills, and lives through it.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } != 0;
    if failed { u64::MAX } else { limit.rlim_cur }
}

/// Which boot of the machine this is; zeros where nothing tells.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}
