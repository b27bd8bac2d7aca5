//! The few system calls: opening, registering, reading, waiting. None of them allocates unless it fails to open.

#![expect(unsafe_code, reason = "system calls")]

use super::changes;
use super::copies::Listed;
use crate::own_file::{Identity, identity, mark};
use crate::range::{PAGE, PageRange};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::time::Duration;

const API: u64 = 0xaa;
const USER_MODE_ONLY: libc::c_int = 1;
const MODE_WP: u64 = 2;

const PAGEFAULT_FLAG_WP: u64 = 1;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const NEEDED: u64 = PAGEFAULT_FLAG_WP | EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Span {
    start: u64,
    length: u64,
}

#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    span: Span,
    mode: u64,
}

const UFFDIO: u32 = 0xaa;
const UFFDIO_API: libc::Ioctl = libc::_IOWR::<Api>(UFFDIO, 0x3f);
const UFFDIO_REGISTER: libc::Ioctl = libc::_IOWR::<Register>(UFFDIO, 0);
const UFFDIO_UNREGISTER: libc::Ioctl = libc::_IOR::<Span>(UFFDIO, 1);
const UFFDIO_WAKE: libc::Ioctl = libc::_IOR::<Span>(UFFDIO, 2);
const UFFDIO_WRITEPROTECT: libc::Ioctl = libc::_IOWR::<WriteProtect>(UFFDIO, 6);

impl Span {
    /// None if the range does not fit an address space in bytes.
    fn of(range: PageRange) -> Option<Self> {
        Some(Self { start: range.start().checked_mul(PAGE)?, length: range.pages().checked_mul(PAGE)? })
    }
}

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

/// A message, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    Gone(PageRange),
    Moved {
        from: PageRange,
        to: PageRange,
    },
    Discarding(PageRange),
    /// A thread waits because of a write-protected page at this address.
    Fault(u64),
    /// It is of no kind that we know, or of no pages.
    Nothing,
}

impl Message {
    pub(super) const EMPTY: Self = Self { event: 0, reserved: [0; 7], arguments: [0; 3] };

    pub(super) fn event(&self) -> Event {
        let [a, b, c] = self.arguments;
        let moved = || {
            let (from, to) = (changes::pages(a, a.saturating_add(c))?, changes::pages(b, b.saturating_add(c))?);
            Some(Event::Moved { from, to })
        };
        match self.event {
            0x12 => Some(Event::Fault(b)),
            0x14 => moved(),
            0x15 => changes::pages(a, b).map(Event::Discarding),
            0x16 => changes::pages(a, b).map(Event::Gone),
            _ => None,
        }
        .unwrap_or(Event::Nothing)
    }
}

/// A file descriptor that the program may close, as programs do that close all their files. Its number can be another file's then.
#[derive(Debug)]
struct Number {
    fd: ManuallyDrop<OwnedFd>,
    identity: Mutex<Identity>,
    /// Set if forked children close their copies.
    listed: Option<Listed>,
}

impl Number {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        mark(fd.as_raw_fd());
        let identity = Mutex::new(identity(fd.as_raw_fd())?);
        Ok(Self { fd: ManuallyDrop::new(fd), identity, listed: None })
    }

    /// Returns one of which forked children close their copies.
    fn listed(fd: OwnedFd) -> io::Result<Self> {
        mark(fd.as_raw_fd());
        let identity = identity(fd.as_raw_fd())?;
        let listed = Some(Listed::new(fd.as_raw_fd(), identity));
        Ok(Self { fd: ManuallyDrop::new(fd), identity: Mutex::new(identity), listed })
    }

    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether it still leads to the file that it was made for. The lock is held for an instant; a child may find it held for ever.
    fn is_own(&self) -> bool {
        self.listed.as_ref().is_none_or(Listed::is_here)
            && self.identity.try_lock().is_ok_and(|own| identity(self.fd()).is_ok_and(|now| now == *own))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: `fd` is not used after this, because its owner is being dropped.
            unsafe { ManuallyDrop::drop(&mut self.fd) }
        }
    }
}

/// The userfaultfd.
#[derive(Debug)]
pub(super) struct Descriptor(Number);

impl Descriptor {
    /// With the features that monitoring needs, and shared memory where the kernel can watch it.
    pub(super) fn open() -> Result<Self, Refusal> {
        match Self::with(NEEDED | WP_HUGETLBFS_SHMEM) {
            Err(Refusal { operation: Operation::Handshake, .. }) => Self::with(NEEDED),
            opened => opened,
        }
    }

    fn with(features: u64) -> Result<Self, Refusal> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let opened = open(flags | USER_MODE_ONLY).or_else(|error| match error.raw_os_error() {
            // Before Linux 5.11 there was no such flag.
            Some(libc::EINVAL) => open(flags),
            _ => Err(error),
        });
        let opened = opened.and_then(Number::listed);
        let this = Self(opened.map_err(|source| Refusal { operation: Operation::Open, source })?);
        let mut api = Api { api: API, features, ioctls: 0 };
        let refusal = |source| Refusal { operation: Operation::Handshake, source };
        // SAFETY: UFFDIO_API reads and writes one `Api`, which is `api`.
        unsafe { this.ioctl(UFFDIO_API, &mut api) }.map_err(refusal)?;
        if api.features & NEEDED != NEEDED {
            return Err(refusal(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        Ok(this)
    }

    /// From now on changes to the mappings in the range make messages. Harmless if they did before; holes in
    /// the range are passed over.
    pub(super) fn register(&self, range: PageRange) -> io::Result<()> {
        let span = Span::of(range).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: reads and writes one `Register`. Without write-protected pages a registration alters nothing
        // that the memory's owner sees.
        unsafe { self.ioctl(UFFDIO_REGISTER, &mut Register { span, mode: MODE_WP, ioctls: 0 }) }
    }

    pub(super) fn unregister(&self, range: PageRange) -> io::Result<()> {
        let mut span = Span::of(range).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: UFFDIO_UNREGISTER reads one `Span`, which is `span`.
        unsafe { self.ioctl(UFFDIO_UNREGISTER, &mut span) }
    }

    /// Returns whether a thread is on its way from beginning a change of registered memory to having its message
    /// read. (Up to Linux 5.15 a change can hide another.)
    pub(super) fn changing(&self) -> bool {
        // The kernel looks at this before the arguments, and refuses these, which are for no pages.
        let mut nothing = WriteProtect { span: Span { start: 0, length: 0 }, mode: 0 };
        // SAFETY: UFFDIO_WRITEPROTECT reads one `WriteProtect`, which is `nothing`.
        let asked = unsafe { self.ioctl(UFFDIO_WRITEPROTECT, &mut nothing) };
        asked.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Lets a thread go on that waits because of a write-protected page: we protect none, so it should not have
    /// been.
    pub(super) fn resolve(&self, address: u64) {
        // SAFETY: `sysconf` takes a number and returns one.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE);
        let span = || Span { start: address - address % page, length: page };
        // SAFETY: reads one `WriteProtect`, and takes a protection away.
        let resolved = unsafe { self.ioctl(UFFDIO_WRITEPROTECT, &mut WriteProtect { span: span(), mode: 0 }) };
        if resolved.is_err() {
            // It tries again, and asks again if it must. SAFETY: UFFDIO_WAKE reads one `Span`, which the argument is.
            let _ = unsafe { self.ioctl(UFFDIO_WAKE, &mut span()) };
        }
    }

    /// Takes the messages that wait, as many as there is room for; none is no error.
    ///
    /// # Errors
    /// The system's, or that the program has closed the descriptor: nothing is read from a file of the program's.
    pub(super) fn read(&self, messages: &mut [Message]) -> io::Result<usize> {
        if !self.0.is_own() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: the buffer is borrowed for the call, and any bytes make a `Message`.
        let read = unsafe { libc::read(self.fd(), messages.as_mut_ptr().cast(), size_of_val(messages)) };
        match usize::try_from(read) {
            Ok(bytes) => Ok(bytes / size_of::<Message>()),
            Err(_) => match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Closes the descriptor but keeps its number, which leads to `other` from now on, so that a late call through
    /// it meets no stranger.
    pub(super) fn retire(&self, other: &Bell) {
        if !self.0.is_own() || !other.0.is_own() {
            return;
        }
        // SAFETY: both numbers are owned, and stay so.
        unsafe { libc::dup3(other.0.fd(), self.fd(), libc::O_CLOEXEC) };
        if let (Ok(mut own), Ok(now)) = (self.0.identity.try_lock(), identity(self.fd())) {
            *own = now;
        }
    }

    fn fd(&self) -> RawFd {
        self.0.fd()
    }

    /// # Safety
    /// `argument` is what the request reads and writes.
    unsafe fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: the caller's promise; the argument is borrowed for the call.
        match unsafe { libc::ioctl(self.fd(), request, std::ptr::from_mut(argument)) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn open(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the system call takes a number and makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    owned(RawFd::try_from(fd).unwrap_or(-1))
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller has just made the descriptor, and it is open, so this owns it alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Wakes the thread that waits for messages; once rung it stays rung.
#[derive(Debug)]
pub(super) struct Bell(Number);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: `eventfd` takes numbers and makes a descriptor.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).and_then(Number::new).map(Self)
    }

    pub(super) fn ring(&self) {
        if !self.0.is_own() {
            return;
        }
        let one = 1_u64;
        // SAFETY: reads the eight bytes of `one`. It cannot fail before 2^64 - 2 rings.
        unsafe { libc::write(self.0.fd(), std::ptr::from_ref(&one).cast(), size_of_val(&one)) };
    }
}

/// Waits for a message or the bell, or for the time to pass. An early return is no harm to any caller. Returns whether
/// there may be a message.
pub(super) fn wait(messages: &Descriptor, bell: Option<&Bell>, timeout: Option<Duration>) -> bool {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // Negative numbers are passed over.
    let mut entries = [entry(messages.fd()), entry(bell.map_or(-1, |bell| bell.0.fd()))];
    let timeout = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the entries and the time live across the call.
    let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout, std::ptr::null()) };
    ready < 0 || entries[0].revents != 0
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Open,
    Handshake,
}

/// Why there is no userfaultfd here.
#[derive(Debug)]
pub(super) struct Refusal {
    operation: Operation,
    source: io::Error,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (operation, remedy) = match (self.operation, self.source.raw_os_error()) {
            (Operation::Open, Some(libc::ENOSYS)) => {
                ("userfaultfd(2)", "the kernel is built without CONFIG_USERFAULTFD")
            }
            (Operation::Open, Some(libc::EPERM)) => (
                "userfaultfd(2)",
                "a container's filter of system calls forbids it: allow userfaultfd in its seccomp profile (before \
                 Linux 5.11: set the sysctl vm.unprivileged_userfaultfd to 1)",
            ),
            (Operation::Open, Some(libc::EMFILE | libc::ENFILE)) => {
                ("userfaultfd(2)", "too many files are open: raise RLIMIT_NOFILE")
            }
            (Operation::Open, _) => ("userfaultfd(2)", "no remedy is known"),
            (Operation::Handshake, _) => (
                "UFFDIO_API",
                "the kernel lacks events of unmapping or write-protect mode: Linux 5.7 on x86-64, 6.10 on arm64",
            ),
        };
        let source = &self.source;
        write!(f, "{operation}: {source}; {remedy}, or invalidate explicitly")
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.source.kind(), refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_are_the_kernels() {
        assert_eq!(UFFDIO_API as u32, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER as u32, 0xc020_aa00);
        assert_eq!(UFFDIO_UNREGISTER as u32, 0x8010_aa01);
        assert_eq!(UFFDIO_WAKE as u32, 0x8010_aa02);
        assert_eq!(UFFDIO_WRITEPROTECT as u32, 0xc018_aa06);
        assert_eq!(size_of::<Message>(), 32);
    }

    #[test]
    fn a_refusal_names_the_operation_and_the_remedy() {
        let said = |operation, errno| {
            io::Error::from(Refusal { operation, source: io::Error::from_raw_os_error(errno) }).to_string()
        };
        assert!(said(Operation::Open, libc::EPERM).contains("seccomp"));
        assert!(said(Operation::Open, libc::ENOSYS).contains("CONFIG_USERFAULTFD"));
        assert!(said(Operation::Handshake, libc::EINVAL).starts_with("UFFDIO_API"));
    }

    #[test]
    fn a_message_says_what_changed() {
        let message = |event, arguments| Message { event, arguments, ..Message::EMPTY };
        let range = |start, pages| PageRange::new(start, pages).unwrap();
        assert_eq!(message(0x16, [0x1000, 0x3000, 0]).event(), Event::Gone(range(1, 2)));
        assert_eq!(message(0x15, [0x1000, 0x3000, 0]).event(), Event::Discarding(range(1, 2)));
        let moved = Event::Moved { from: range(1, 2), to: range(9, 2) };
        assert_eq!(message(0x14, [0x1000, 0x9000, 0x2000]).event(), moved);
        assert_eq!(message(0x14, [0x1000, 0x9000, 0]).event(), Event::Nothing);
        assert_eq!(message(0x99, [0x1000, 0x9000, 0]).event(), Event::Nothing);
        assert_eq!(message(0x12, [0, 0x1000, 0]).event(), Event::Fault(0x1000));
    }
}
