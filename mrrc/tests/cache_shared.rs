//! Named shared memory, over real pins: sealed memfds are cached, and a transfer has the bytes that the address has. What could lose
//! pages unnoticed is registered each time, and the explanation says why. A test that the system cannot run says so in a line and passes.

#![cfg(all(feature = "io-uring", target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is mapped by address, and lent to the kernel")]

use ::io_uring::{IoUring, opcode, types};
use mrrc::cache::Finding;
use mrrc::invalidation::{SharedMemory, Unwatched, Userfaultfd};
use mrrc::registrar::Registrar;
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::{Access, Cache, PAGE};
use std::fs::File;
use std::io::{self, Read, pipe};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "common/pins.rs"]
mod pins;

use pins::{comes_to, pinned};

const PAGES: u64 = 4;
const BYTES: usize = (PAGES * PAGE) as usize;
const HUGE: usize = 2 << 20;

/// `VmPin` is of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a ring and a cache over its table that keeps this shared memory, or a line that says why not.
fn cache(shared: SharedMemory) -> Option<(IoUring, Cache<IoUringBuffers>)> {
    let made = IoUring::new(8).map_err(|error| error.to_string()).and_then(|ring| {
        let table = IoUringBuffers::new(&ring, 64).map_err(|error| error.to_string())?;
        if table.limits().pages.is_some_and(|limit| limit < 1024) {
            return Err("the process may lock too little".into());
        }
        let monitor = Userfaultfd::of_process().map_err(|error| error.to_string())?;
        let builder = Cache::builder(table).ignore_environment().monitor(monitor).shared_memory(shared);
        Ok((ring, builder.max_segments(1).build().unwrap()))
    });
    made.map_err(|error| println!("not run: {error}")).ok()
}

fn memfd(flags: libc::c_uint, bytes: usize) -> io::Result<File> {
    // SAFETY: `memfd_create` reads a C string, which the literal is, and makes a descriptor.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and owned by the file.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// As a program seals memory that it has mapped: no other can write it any more, nor take pages of it.
fn seal(file: &File) {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;
    // SAFETY: `fcntl` with F_ADD_SEALS takes numbers.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
}

/// A mapping to be shared, which the test may put another one over.
struct Mapped(*mut u8, usize);

impl Mapped {
    fn new(file: &File, bytes: usize) -> io::Result<Self> {
        Self::at(std::ptr::null_mut(), file, bytes, 0)
    }

    fn at(place: *mut u8, file: &File, bytes: usize, fixed: libc::c_int) -> io::Result<Self> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | fixed);
        // SAFETY: it is mapped where nothing is, or over a mapping of the caller.
        let at = unsafe { libc::mmap(place.cast(), bytes, rights, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(at.cast(), bytes)) }
    }

    fn filled(file: &File, bytes: usize, byte: u8) -> io::Result<Self> {
        let mapped = Self::new(file, bytes)?;
        // SAFETY: the mapping is the test's own, and has so many bytes.
        unsafe { mapped.0.write_bytes(byte, bytes) };
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is the test's own, and nothing refers to it.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Has the kernel read the first pages by their registration. Returns the bytes, and whether that was made for it.
fn sent(ring: &mut IoUring, cache: &Cache<IoUringBuffers>, memory: &Mapped) -> (Vec<u8>, bool) {
    let before = cache.counters().attempts;
    // SAFETY: the memory stays mapped, and is not written, until the transfer is complete.
    let lease = unsafe { cache.acquire(memory.0, BYTES, Access::LOCAL) }.unwrap();
    let buffer = lease.segments().next().unwrap();
    let (mut reader, writer) = pipe().unwrap();
    let (fd, index) = (types::Fd(writer.as_raw_fd()), buffer.registration().index());
    let request = opcode::WriteFixed::new(fd, buffer.address(), BYTES as u32, index).build();
    // SAFETY: the lease and the pipe outlive the transfer, which is waited for.
    unsafe { ring.submission().push(&request).unwrap() };
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().unwrap().result(), BYTES as i32);
    drop((lease, writer));
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    (bytes, cache.counters().attempts > before)
}

fn why(cache: &Cache<IoUringBuffers>, memory: &Mapped) -> Option<Unwatched> {
    let explained = cache.explain(memory.0, BYTES, Access::LOCAL);
    explained.findings().iter().find_map(|finding| match finding {
        Finding::Unwatched { why, .. } => Some(*why),
        _ => None,
    })
}

#[test]
fn sealed_memfd_hits_and_is_never_stale() {
    let _alone = alone();
    let Some((mut ring, cache)) = cache(SharedMemory::Sealed) else { return };
    let before = pinned();
    let (first, second) = (memfd(0, BYTES).unwrap(), memfd(0, BYTES).unwrap());
    let mut memory = Mapped::filled(&first, BYTES, b'A').unwrap();
    // It is written while it is not sealed, and mapped below: another mapping cannot be made for writing later.
    let other = Mapped::filled(&second, BYTES, b'B').unwrap();
    seal(&first);
    seal(&second);
    if let Some(Unwatched::Refused(errno)) = why(&cache, &memory) {
        println!("not run: this kernel does not watch shared memory (errno {errno})");
        return;
    }
    let (mut registered, mut now, mut then) = (0, (memory.0, b'A'), (other.0, b'B'));
    for turn in 0..200 {
        if turn == 100 {
            // The other memfd takes the place: the address leads to other pages, without a gap in between.
            // SAFETY: both mappings are the test's own; moving one over the other unmaps that.
            let moved = unsafe {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                libc::mremap(then.0.cast(), BYTES, BYTES, flags, now.0)
            };
            assert_eq!(moved, now.0.cast());
            (now.1, then.1) = (then.1, now.1);
        }
        memory.0 = now.0;
        let (bytes, made) = sent(&mut ring, &cache, &memory);
        assert!(bytes.iter().all(|&byte| byte == now.1), "turn {turn}: stale bytes");
        registered += u64::from(made);
    }
    std::mem::forget(other);
    assert_eq!(registered, 2);
    assert_eq!(cache.counters().unwatched, 0);
    cache.reap().unwrap();
    assert_eq!(pinned(), before + PAGES);
    drop(memory);
    cache.flush().unwrap();
    comes_to(before);
}

#[test]
fn kernel_keeps_the_pages_of_a_sealed_memfd() {
    let _alone = alone();
    let file = memfd(0, BYTES).unwrap();
    let memory = Mapped::filled(&file, BYTES, b'A').unwrap();
    seal(&file);
    assert!(file.set_len(PAGE).is_err());
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: `fallocate` takes numbers. `madvise` is for the test's own mapping, whose bytes are not referred to.
    let kept = unsafe {
        [
            libc::fallocate(file.as_raw_fd(), punch, 0, PAGE as i64),
            libc::madvise(memory.0.cast(), BYTES, libc::MADV_REMOVE),
        ]
    };
    assert_eq!(kept, [-1, -1]);
    assert!(Mapped::new(&file, BYTES).is_err(), "a new mapping for writing");
}

#[test]
fn huge_memfd_is_cached_once_sealed() {
    let _alone = alone();
    let Some((mut ring, cache)) = cache(SharedMemory::Sealed) else { return };
    let made = memfd(libc::MFD_HUGETLB, HUGE).and_then(|file| {
        // Where there are no huge pages the mapping fails.
        let mapped = Mapped::filled(&file, HUGE, b'H')?;
        Ok((file, mapped))
    });
    let (file, memory) = match made {
        Ok(made) => made,
        Err(error) => return println!("not run: no huge pages here ({error})"),
    };
    assert_eq!(why(&cache, &memory), Some(Unwatched::Unsealed));
    seal(&file);
    cache.vouch(&file).unwrap();
    if let Some(Unwatched::Refused(errno)) = why(&cache, &memory) {
        return println!("not run: this kernel does not watch huge pages (errno {errno})");
    }
    for turn in 0..3 {
        let (bytes, made) = sent(&mut ring, &cache, &memory);
        assert!(bytes.iter().all(|&byte| byte == b'H'));
        assert_eq!(made, turn == 0);
    }
}

#[test]
fn vouched_memfd_is_cached_after_its_close() {
    let _alone = alone();
    let Some((mut ring, cache)) = cache(SharedMemory::Sealed) else { return };
    let of = |vouch: bool| {
        let file = memfd(0, BYTES).unwrap();
        let memory = Mapped::filled(&file, BYTES, b'V').unwrap();
        seal(&file);
        if vouch {
            cache.vouch(&file).unwrap();
        }
        memory
    };
    let (vouched, closed) = (of(true), of(false));
    if let Some(Unwatched::Refused(errno)) = why(&cache, &vouched) {
        return println!("not run: this kernel does not watch shared memory (errno {errno})");
    }
    assert_eq!([why(&cache, &vouched), why(&cache, &closed)], [None, Some(Unwatched::NoDescriptor)]);
    let made = |ring: &mut IoUring, memory| [0, 1, 2].map(|_| sent(ring, &cache, memory).1);
    assert_eq!(made(&mut ring, &vouched), [true, false, false]);
    assert_eq!(made(&mut ring, &closed), [true; 3]);
    let said = cache.explain(closed.0, BYTES, Access::LOCAL).to_string();
    assert!(said.contains("Cache::vouch"), "{said}");
}

#[test]
fn shared_arena_is_seen_and_kept_by_others() {
    let _alone = alone();
    let Some((_ring, cache)) = cache(SharedMemory::Off) else { return };
    let before = pinned();
    let arena = cache.shared_arena(BYTES).unwrap();
    arena.write_at(5, b"seen").unwrap();
    let file = File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
    let mut seen = [0; 4];
    file.read_exact_at(&mut seen, 5).unwrap();
    assert_eq!(&seen, b"seen");
    // No other mapping or call writes it, or takes pages of it.
    assert!(
        file.write_all_at(b"theirs", 0).is_err()
            && file.set_len(PAGE).is_err()
            && file.set_len(2 * BYTES as u64).is_err()
    );
    assert!(Mapped::new(&file, BYTES).is_err());
    // No monitor is asked about an arena, and so no setting.
    for _ in 0..3 {
        drop(arena.acquire(.., Access::LOCAL).unwrap());
    }
    assert_eq!((cache.counters().attempts, pinned()), (1, before + PAGES));
    drop(arena);
    comes_to(before);
    file.read_exact_at(&mut seen, 5).unwrap();
    assert_eq!(&seen, b"seen");
    assert!(cache.arena(BYTES).unwrap().fd().is_none());
}

#[test]
fn each_cache_keeps_to_its_own_setting() {
    let _alone = alone();
    let caches = [SharedMemory::Trusted, SharedMemory::Sealed, SharedMemory::Off].map(cache);
    let [Some((mut ring, trusted)), Some((_, sealed)), Some((_, off))] = caches else { return };
    let file = memfd(0, BYTES).unwrap();
    let memory = Mapped::filled(&file, BYTES, b'T').unwrap();
    if let Some(Unwatched::Refused(errno)) = why(&trusted, &memory) {
        return println!("not run: this kernel does not watch shared memory (errno {errno})");
    }
    let made = [0, 1].map(|_| sent(&mut ring, &trusted, &memory).1);
    assert_eq!(made, [true, false]);
    // They share the watch, in which the mapping is by now, and not the trust.
    assert_eq!([why(&sealed, &memory), why(&off, &memory)], [Some(Unwatched::Unsealed), Some(Unwatched::SharedMemory)]);
    seal(&file);
    sealed.vouch(&file).unwrap();
    assert_eq!([why(&sealed, &memory), why(&off, &memory)], [None, Some(Unwatched::SharedMemory)]);
}
