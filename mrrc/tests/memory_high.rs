//! A cache that shrinks (`MRRC_PRESSURE=on`) in a real control group, over the real pins of an io_uring.
//!
//! The group is above its `memory.high` because pinned pages cannot be reclaimed. It takes control groups of version 2, the right
//! to make one, and swap. A system without these says so in a line and passes; the lab's guest (`mrrc-pressure`) has them, and
//! sets `MRRC_PRESSURE_MUST`.

#![cfg(all(feature = "io-uring", target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is mapped by address, and acquired for no transfer")]

use ::io_uring::IoUring;
use mrrc::invalidation::Explicit;
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::{Access, Cache, PAGE};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[path = "common/pins.rs"]
mod pins;

/// Pages of a buffer, and buffers: 96 MiB.
const PAGES: u64 = 1024;
const BUFFERS: u64 = 24;
/// The `memory.high` of the group.
const HIGH: u64 = 64 << 20;

/// A control group that this process is in until it is dropped.
struct Group {
    before: PathBuf,
    folder: PathBuf,
}

impl Group {
    /// # Errors
    /// Why there can be none here.
    fn new() -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("no control groups of version 2")?;
        let before = Path::new("/sys/fs/cgroup").join(own);
        let folder = before.join(format!("mrrc-test-{}", std::process::id()));
        fs::write(before.join("cgroup.subtree_control"), "+memory").map_err(|error| format!("+memory: {error}"))?;
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self { before, folder };
        fs::write(group.folder.join("cgroup.procs"), "0").map_err(|error| format!("cgroup.procs: {error}"))?;
        Ok(group)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Bytes that the group has.
    fn current(&self) -> u64 {
        self.read("memory.current").trim().parse().unwrap()
    }

    /// How often it was above its limit.
    fn was_high(&self) -> u64 {
        let events = self.read("memory.events");
        events.lines().find_map(|line| line.strip_prefix("high ")).unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        _ = fs::write(self.before.join("cgroup.procs"), "0");
        _ = fs::remove_dir(&self.folder);
    }
}

/// Maps pages, small ones, and leaks them.
fn map(pages: u64) -> *mut u8 {
    let bytes = (pages * PAGE) as usize;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: `mmap` without a place makes a mapping that touches no other memory.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    // SAFETY: advice on the mapping just made, which may be refused.
    unsafe { libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE) };
    mapped.cast()
}

fn unmap(memory: *mut u8, pages: u64) {
    // SAFETY: it is a mapping of `map`, and its address is not used any longer.
    unsafe { libc::munmap(memory.cast(), (pages * PAGE) as usize) };
}

/// Takes some memory and gives it back, as programs do all the time.
fn work() {
    let memory = map(64);
    // SAFETY: the pages are this function's, and mapped for writing.
    (0..64).for_each(|page| unsafe { memory.add((page * PAGE) as usize).write_volatile(1) });
    unmap(memory, 64);
}

/// A cache with 96 MiB of pins, in a group without a limit so far.
fn filled(group: &Group, shrinks: bool) -> (IoUring, Cache<IoUringBuffers>, *mut u8) {
    group.write("memory.high", "max");
    let ring = IoUring::new(8).unwrap();
    let table = IoUringBuffers::new(&ring, 64).unwrap();
    let builder = Cache::builder(table).monitor(Explicit).ignore_environment().background(true);
    let cache = builder.capacity_pages(2 * PAGES * BUFFERS).pressure(shrinks).build().unwrap();
    let memory = map(PAGES * BUFFERS);
    for buffer in 0..BUFFERS {
        // SAFETY: within the mapping, and no transfer is made.
        let lease = unsafe {
            cache.acquire(memory.add((buffer * PAGES * PAGE) as usize), (PAGES * PAGE) as usize, Access::LOCAL)
        };
        drop(lease.unwrap());
    }
    pins::comes_to(PAGES * BUFFERS);
    group.write("memory.high", &HIGH.to_string());
    (ring, cache, memory)
}

#[test]
fn shrinking_cache_keeps_the_group_to_its_limit() {
    let must = std::env::var_os("MRRC_PRESSURE_MUST").is_some();
    let has_swap = fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1);
    let group = if has_swap { Group::new() } else { Err("there is no swap".to_owned()) };
    let group = match group {
        Ok(group) => group,
        Err(why) => {
            assert!(!must, "{why}");
            println!("not run: {why}");
            return;
        }
    };
    // Without: what is pinned stays, and so the group is above its limit for good.
    let (ring, cache, memory) = filled(&group, false);
    let before = group.was_high();
    while group.was_high() < before + 8 {
        work();
    }
    assert_eq!((pins::pinned(), cache.usage().pages), (PAGES * BUFFERS, PAGES * BUFFERS));
    assert!(group.current() > HIGH, "{} bytes: the pins do not count against the limit", group.current());
    drop((cache, ring));
    unmap(memory, PAGES * BUFFERS);

    // With it: what is not in use leaves until the rest fits.
    let (ring, cache, memory) = filled(&group, true);
    let (begun, patience) = (Instant::now(), Duration::from_secs(120));
    while group.current() > HIGH {
        assert!(begun.elapsed() < patience, "still {} bytes, {} pages pinned", group.current(), pins::pinned());
        work();
    }
    let taken = begun.elapsed();
    println!(
        "{} of {} pages pinned, and the group below its limit, after {taken:.1?}",
        pins::pinned(),
        PAGES * BUFFERS
    );
    assert!(pins::pinned() * PAGE <= HIGH, "{} pages", pins::pinned());
    assert!(cache.counters().decisions.requests == BUFFERS && cache.usage().capacity_pages == 2 * PAGES * BUFFERS);
    // Requests are served as before.
    // SAFETY: within the mapping, and no transfer is made.
    drop(unsafe { cache.acquire(memory, PAGE as usize, Access::LOCAL) }.unwrap());
    drop((cache, ring));
    unmap(memory, PAGES * BUFFERS);
}
