//! Buffers of another kind: dma-bufs of the kernel, with a registrar that notes which buffer lies at the address that it registers.
//!
//! The kernel makes them by udmabuf or vgem. A system without both says so in a line and passes; the lab's guest (`mrrc-dma-bufs`)
//! has vgem, and sets `MRRC_DMA_BUF_MUST`.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "buffers are made and mapped by hand, and acquired for no transfer")]

use mrrc::invalidation::Explicit;
use mrrc::kinds::{DmaBuf, Identity, KindError, MemoryKind};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, Cache, PAGE, PageRange};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::Duration;

const PAGES: u64 = 4;
const BYTES: usize = (PAGES * PAGE) as usize;

/// Notes the inode that is mapped at the begin of each range: the pages that a device would have.
#[derive(Default)]
struct Noting;

// SAFETY: nothing is transferred: a registration is a note, and no key.
unsafe impl Registrar for Noting {
    type Registration = u64;

    fn register(&self, range: PageRange, _: Access) -> io::Result<u64> {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let begins = format!("{:08x}-", range.start() * PAGE);
        let line =
            maps.lines().find(|line| line.starts_with(&begins)).ok_or(io::Error::from_raw_os_error(libc::EFAULT))?;
        Ok(line.split_whitespace().nth(4).unwrap().parse().unwrap())
    }

    fn deregister(&self, batch: &mut Vec<Registered<u64>>) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "noting"
    }
}

fn ioctl<T>(file: &File, request: u64, argument: &mut T) -> io::Result<i32> {
    // SAFETY: each caller passes the structure that the request reads and writes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes a dma-buf of pages in memory.
fn of_udmabuf() -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    let device = File::options().read(true).write(true).open("/dev/udmabuf")?;
    // SAFETY: `memfd_create` takes a name that ends, and returns a descriptor that is this function's.
    let memory = unsafe {
        let fd = libc::memfd_create(c"pages".as_ptr(), libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    memory.set_len(BYTES as u64)?;
    // SAFETY: `fcntl` with F_ADD_SEALS takes a number.
    if unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut create = Create { memfd: memory.as_raw_fd() as u32, flags: 1, offset: 0, size: BYTES as u64 };
    let fd = ioctl(&device, 0x4018_7542, &mut create)?;
    // SAFETY: the descriptor is new, and this function's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a dma-buf of the kernel's virtual graphics device.
fn of_vgem() -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(Default)]
    struct Create {
        height: u32,
        width: u32,
        bits: u32,
        flags: u32,
        handle: u32,
        pitch: u32,
        size: u64,
    }
    #[repr(C)]
    struct Prime {
        handle: u32,
        flags: u32,
        fd: i32,
    }
    if !std::path::Path::new("/sys/module/vgem").exists() {
        return Err(io::Error::other("vgem is not loaded"));
    }
    // Kept open, so that the numbers of buffers are used again.
    static CARD: OnceLock<File> = OnceLock::new();
    let card = match CARD.get() {
        Some(card) => card,
        None => {
            let card = File::options().read(true).write(true).open("/dev/dri/card0")?;
            CARD.get_or_init(|| card)
        }
    };
    let mut create = Create { height: PAGES as u32, width: PAGE as u32 / 4, bits: 32, ..Create::default() };
    ioctl(card, 0xC020_64B2, &mut create)?;
    let mut prime = Prime { handle: create.handle, flags: (libc::O_CLOEXEC | libc::O_RDWR) as u32, fd: -1 };
    ioctl(card, 0xC00C_642D, &mut prime)?;
    // SAFETY: the descriptor is new, and this function's.
    Ok(unsafe { OwnedFd::from_raw_fd(prime.fd) })
}

/// Maps a buffer, in the place of what is at the address if there is one.
fn map(buffer: &OwnedFd, at: *mut u8) -> io::Result<*mut u8> {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | fixed);
    // SAFETY: the place is the system's choice, or a mapping of this test's own that no reference leads to.
    let mapped = unsafe { libc::mmap(at.cast(), BYTES, rights, flags, buffer.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped.cast()) }
}

fn inode(buffer: &OwnedFd) -> u64 {
    File::from(buffer.try_clone().unwrap()).metadata().unwrap().ino()
}

/// Returns how buffers are made here, or prints why there are none.
fn maker() -> Option<fn() -> io::Result<OwnedFd>> {
    for (name, make) in [("udmabuf", of_udmabuf as fn() -> _), ("vgem", of_vgem)] {
        match make().and_then(|buffer| map(&buffer, std::ptr::null_mut())) {
            Ok(_) => return Some(make),
            Err(error) => println!("no buffers of {name}: {error}"),
        }
    }
    assert!(std::env::var_os("MRRC_DMA_BUF_MUST").is_none(), "there are no dma-bufs");
    println!("not run: there are no dma-bufs");
    None
}

/// Acquires a buffer at an address. Returns the inode that the registration is of.
fn acquire(cache: &Cache<Noting>, buffer: &OwnedFd, at: *mut u8) -> Result<u64, KindError> {
    let kind = DmaBuf::new(buffer.as_fd(), at, BYTES)?;
    // SAFETY: no transfer is made with the lease.
    let lease = unsafe { cache.acquire_kind(&kind, at, BYTES, Access::LOCAL) }?;
    Ok(*lease.segments().next().unwrap().registration())
}

fn cache() -> Cache<Noting> {
    Cache::builder(Noting).monitor(Explicit).ignore_environment().capacity_pages(10_000).build().unwrap()
}

#[test]
fn reused_address_and_descriptor_are_no_hit() {
    let Some(make) = maker() else { return };
    let cache = cache();
    let first = make().unwrap();
    let at = map(&first, std::ptr::null_mut()).unwrap();
    let (of_first, number) = (inode(&first), first.as_raw_fd());
    for _ in 0..3 {
        assert_eq!(acquire(&cache, &first, at).unwrap(), of_first);
    }
    assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (1, 2));
    // Another buffer, by the same number and at the same address, each time.
    let (mut last, mut reused) = (first, 0);
    for round in 0..50 {
        drop(last);
        let next = make().unwrap();
        reused += u32::from(next.as_raw_fd() == number);
        assert_eq!(map(&next, at).unwrap(), at);
        for _ in 0..2 {
            assert_eq!(acquire(&cache, &next, at).unwrap(), inode(&next), "stale in round {round}");
        }
        last = next;
    }
    // The cache has a duplicate of each for a moment, so a number can be skipped.
    assert!(reused > 0, "the test is to use a number again");
    assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (51, 52));
    cache.forget_kind(at, 1).unwrap();
    cache.reap().unwrap();
    assert_eq!(cache.usage().pages, 0);
}

/// A kind without identities: it says that all is one buffer.
struct Careless;

impl MemoryKind for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }

    fn identify(&self, address: *const u8) -> io::Result<Identity> {
        let range = PageRange::of_bytes(address as u64, BYTES as u64).map_err(io::Error::other)?;
        Ok(Identity { buffer: 1, generation: 0, range })
    }
}

#[test]
fn without_identities_old_buffers_are_found() {
    let Some(make) = maker() else { return };
    let cache = cache();
    let first = make().unwrap();
    let at = map(&first, std::ptr::null_mut()).unwrap();
    let registered = || {
        // SAFETY: no transfer is made with the lease.
        let lease = unsafe { cache.acquire_kind(&Careless, at, BYTES, Access::LOCAL) }.unwrap();
        *lease.segments().next().unwrap().registration()
    };
    assert_eq!(registered(), inode(&first));
    let second = make().unwrap();
    map(&second, at).unwrap();
    assert_eq!(registered(), inode(&first), "the test does not see old buffers");
}

#[test]
fn kept_buffers_are_given_up_in_time() {
    let Some(make) = maker() else { return };
    let builder = Cache::builder(Noting).monitor(Explicit).ignore_environment().capacity_pages(10_000);
    let cache = builder.max_unheld(u64::MAX, Duration::from_millis(100)).build().unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    let first = make().unwrap();
    let at = map(&first, std::ptr::null_mut()).unwrap();
    acquire(&cache, &first, at).unwrap();
    drop(first);
    assert_eq!(descriptors(), before + 1, "the cache keeps the buffer");
    std::thread::sleep(Duration::from_millis(150));
    let second = make().unwrap();
    let elsewhere = map(&second, std::ptr::null_mut()).unwrap();
    acquire(&cache, &second, elsewhere).unwrap();
    assert_eq!(descriptors(), before + 2, "the second, and the cache's of it");
    drop(cache);
    assert_eq!(descriptors(), before + 1);
}

#[test]
fn other_descriptors_and_bounds_are_errors() {
    let cache = cache();
    let file: OwnedFd = File::open("/proc/self/maps").unwrap().into();
    let memory = vec![0_u8; 4 * BYTES];
    let at = memory.as_ptr().wrapping_add(memory.as_ptr().align_offset(PAGE as usize)).cast_mut();
    let error = acquire(&cache, &file, at).unwrap_err();
    assert!(matches!(error, KindError::Identify { .. }) && error.to_string().contains("is no dma-buf"), "{error}");
    // SAFETY: no transfer is made with the lease.
    let error = unsafe { cache.acquire_kind(&Careless, at, BYTES + 1, Access::LOCAL) }.unwrap_err();
    assert!(matches!(error, KindError::Outside { .. }), "{error}");
    // SAFETY: nothing is acquired, because there are no bytes.
    let error = unsafe { cache.acquire_kind(&Careless, at, 0, Access::LOCAL) }.unwrap_err();
    assert!(matches!(error, KindError::Acquire(_)), "{error}");
}
