//! Widened misses, in real memory: neighbours are registered where that has paid, and nothing fails or goes stale by it.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "mappings are made by hand, and leases are acquired for no transfer")]

mod common;

use common::{Device, acquire_at, begin_at, builder, device};
use mrrc::cache::{Budget, Builder};
use mrrc::invalidation::{Explicit, Userfaultfd};
use mrrc::registrar::Limits;
use mrrc::testing::{Event, Fault};
use mrrc::{Access, AcquireError, Cache, Lease, PAGE, PageRange};
use std::sync::{Arc, Mutex};

const CAPACITY: u64 = 4096;
const RW: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Pages of a test's own at a multiple of 2 MiB, none of which may be accessed at first.
struct Room(u64);

impl Room {
    /// Pages of the room.
    const PAGES: u64 = 512;

    fn new() -> Self {
        // A room has another behind it.
        let bytes = (3 * Self::PAGES * PAGE) as usize;
        // SAFETY: a fresh mapping touches nothing that exists. It stays to the end of the process.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, ANONYMOUS, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        Self((memory as u64 / PAGE).next_multiple_of(Self::PAGES))
    }

    /// Returns a room of which these pages are one mapping, all in memory.
    fn filled(start: u64, end: u64) -> Self {
        let room = Self::new();
        room.map(start, end, RW, ANONYMOUS);
        room.fill(start, end);
        room
    }

    fn at(&self, page: u64) -> *mut u8 {
        ((self.0 + page) * PAGE) as *mut u8
    }

    fn range(&self, start: u64, end: u64) -> PageRange {
        PageRange::between(self.0 + start, self.0 + end)
    }

    fn map(&self, start: u64, end: u64, rights: libc::c_int, flags: libc::c_int) {
        let bytes = ((end - start) * PAGE) as usize;
        // SAFETY: the pages are this room's, which no other code uses.
        let mapped = unsafe { libc::mmap(self.at(start).cast(), bytes, rights, flags | libc::MAP_FIXED, -1, 0) };
        assert_eq!(mapped, self.at(start).cast());
        self.advise(start, end, libc::MADV_NOHUGEPAGE);
    }

    fn fill(&self, start: u64, end: u64) {
        // SAFETY: the pages are mapped, writable, and this room's.
        (start..end).for_each(|page| unsafe { self.at(page).write_volatile(1) });
    }

    /// Returns the pages in memory of the mapping that begins with the room.
    fn resident(&self) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let first = format!("{:x}-", self.0 * PAGE);
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&first));
        let line = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kilobytes * 1024 / PAGE
    }

    fn advise(&self, start: u64, end: u64, advice: libc::c_int) {
        // SAFETY: the pages are this room's, of which nothing is in use.
        let result = unsafe { libc::madvise(self.at(start).cast(), ((end - start) * PAGE) as usize, advice) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    fn unmap(&self, start: u64, end: u64) {
        // SAFETY: the pages are this room's, of which nothing is in use.
        assert_eq!(unsafe { libc::munmap(self.at(start).cast(), ((end - start) * PAGE) as usize) }, 0);
    }

    fn acquire(&self, cache: &Cache<Device>, page: u64, pages: u64) -> Result<Lease<Device>, AcquireError> {
        acquire_at(cache, self.at(page), (pages * PAGE) as usize, Access::LOCAL)
    }

    /// Acquires pages, and returns what was registered for them, counted from the room's first page.
    #[track_caller]
    fn registered(&self, cache: &Cache<Device>, seen: &Seen, page: u64, pages: u64) -> Vec<(u64, u64)> {
        seen.take();
        drop(self.acquire(cache, page, pages).unwrap());
        seen.take().into_iter().map(|range| (range.start() - self.0, range.end() - self.0)).collect()
    }
}

/// The registrations that were tried.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<PageRange>>>);

impl Seen {
    fn of(device: &Device) -> Self {
        let seen = Self::default();
        let calls = seen.clone();
        device.on_call(move |event| {
            if let Event::Registering { range, .. } = event {
                calls.0.lock().unwrap().push(*range);
            }
        });
        seen
    }

    fn take(&self) -> Vec<PageRange> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Asks for pages one after the other that are not in memory: each of them is a miss, and registered as it is.
#[track_caller]
fn teach(cache: &Cache<Device>) {
    let room = Room::new();
    room.map(0, Room::PAGES, RW, ANONYMOUS);
    (0..Room::PAGES).for_each(|page| drop(room.acquire(cache, page, 1).unwrap()));
    let counters = cache.counters();
    assert_eq!((counters.attempts, counters.widened, counters.widened_failed), (Room::PAGES, 0, 0));
    cache.invalidate(room.at(0), (Room::PAGES * PAGE) as usize).unwrap();
    cache.reap().unwrap();
}

/// Returns a cache that widens, and has learned that it pays.
fn taught(builder: Builder<Device>) -> Cache<Device> {
    let cache = builder.widen(true).build().unwrap();
    teach(&cache);
    cache
}

#[test]
fn neighbours_of_a_miss_become_hits() {
    let (device, room) = (device(), Room::filled(0, 512));
    let cache = taught(builder(&device, CAPACITY));
    let before = cache.counters();
    let leases: Vec<_> = (0..512).map(|page| room.acquire(&cache, page, 1).unwrap()).collect();
    for (lease, page) in leases.iter().zip(0..) {
        let [segment] = &lease.segments().collect::<Vec<_>>()[..] else { panic!("one page takes one region") };
        assert_eq!((segment.address(), segment.len()), (room.at(page).cast_const(), PAGE as usize));
        assert!(segment.registration().range.contains(room.range(page, page + 1)));
    }
    let counters = cache.counters();
    let attempts = counters.attempts - before.attempts;
    assert!(attempts < 128 && counters.widened >= 7 && counters.widened_failed == 0, "{counters}");
    assert_eq!(counters.decisions.reg_pages - before.decisions.reg_pages, 512);
    assert_eq!(counters.decisions.hits() + attempts, 512);
    assert_eq!(counters.widened_pages + attempts, 512);
    // Without lessons it learns by the way.
    let cache = builder(&device, CAPACITY).widen(true).build().unwrap();
    (0..512).for_each(|page| drop(room.acquire(&cache, page, 1).unwrap()));
    assert!(cache.counters().attempts < 256, "{}", cache.counters());
    // Where it is off, each is registered as it is.
    let exact = builder(&device, CAPACITY).build().unwrap();
    (0..512).for_each(|page| drop(room.acquire(&exact, page, 1).unwrap()));
    assert_eq!((exact.counters().attempts, exact.counters().widened), (512, 0));
}

/// Returns what is registered for some pages of a room by a cache that has just learned.
#[track_caller]
fn registered(room: &Room, page: u64, pages: u64) -> Vec<(u64, u64)> {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let registered = room.registered(&cache, &seen, page, pages);
    assert_eq!(cache.counters().widened_failed, 0);
    registered
}

#[test]
fn blocks_end_with_the_mapping() {
    // Reserved address space on both sides, then an unmapped page, then mappings of other kinds, all in memory.
    let room = Room::filled(70, 120);
    assert_eq!(registered(&room, 100, 1), [(70, 120)]);
    let room = Room::filled(64, 128);
    room.unmap(90, 91);
    assert_eq!(registered(&room, 100, 1), [(91, 128)]);
    for (rights, flags) in [(RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS), (libc::PROT_READ, ANONYMOUS)] {
        let room = Room::filled(64, 128);
        room.map(80, 90, rights, flags);
        assert_eq!(registered(&room, 100, 2), [(90, 128)], "{rights} {flags}");
        assert_eq!(registered(&room, 70, 2), [(64, 80)], "{rights} {flags}");
    }
    // A child does not get pages that a program keeps from it, and they are a mapping of their own.
    let room = Room::filled(64, 128);
    room.advise(80, 90, libc::MADV_DONTFORK);
    assert_eq!(registered(&room, 100, 1), [(90, 128)]);
}

#[test]
fn pages_that_are_not_in_memory_stay_out() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::new();
    room.map(0, 512, RW, ANONYMOUS);
    room.fill(95, 105);
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(95, 105)]);
    // The request itself is registered whatever it is.
    assert_eq!(room.registered(&cache, &seen, 200, 1), [(200, 201)]);
    let mut resident = [0_u8; 512];
    // SAFETY: it writes a byte for each page.
    unsafe { libc::mincore(room.at(0).cast(), (512 * PAGE) as usize, resident.as_mut_ptr()) };
    assert_eq!(resident.iter().filter(|&&byte| byte & 1 == 1).count(), 10, "nothing was populated");
}

#[test]
fn scanned_sparse_memory_stays_sparse() {
    let room = Room::new();
    room.map(0, 512, RW, ANONYMOUS);
    room.fill(100, 101);
    // SAFETY: the pages are mapped, and this room's.
    (0..512).for_each(|page| _ = unsafe { room.at(page).read_volatile() });
    assert_eq!(registered(&room, 100, 1), [(100, 101)]);
    assert_eq!(registered(&room, 200, 1), [(200, 201)]);
}

/// Says that the system refuses what a test needs. Any other error is a defect.
fn not_run(what: &str, error: &std::io::Error) {
    let refused = [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::ENOENT];
    assert!(error.raw_os_error().is_some_and(|code| refused.contains(&code)), "{what}: {error}");
    println!("not run: {what}: {error}");
}

#[cfg(feature = "io-uring")]
#[test]
fn sparse_memory_stays_sparse_under_real_pins() {
    use mrrc::registrar::io_uring::{IoUringBuffers, IoUringError};
    let ring = match ::io_uring::IoUring::new(8) {
        Ok(ring) => ring,
        Err(error) => return not_run("io_uring", &error),
    };
    let table = match IoUringBuffers::new(&ring, 1024) {
        Ok(table) => table,
        Err(IoUringError::Refused { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
            return println!("not run: this kernel has no sparse tables of buffers (Linux 5.19)");
        }
        Err(error) => panic!("{error}"),
    };
    let ask = |cache: &Cache<_>, room: &Room, page: u64| {
        drop(acquire_at(cache, room.at(page), PAGE as usize, Access::LOCAL).unwrap());
    };
    let builder = Cache::builder(table).monitor(Explicit).ignore_environment().background(false);
    let cache = builder.capacity_pages(1024).widen(true).build().unwrap();
    let (lesson, room) = (Room::filled(0, 512), Room::new());
    room.map(0, 512, RW, ANONYMOUS);
    room.fill(100, 101);
    // SAFETY: the pages are mapped, and this room's.
    (0..512).for_each(|page| _ = unsafe { room.at(page).read_volatile() });
    (0..512).for_each(|page| ask(&cache, &lesson, page));
    assert!(cache.counters().widened > 0, "{}", cache.counters());
    assert_eq!(room.resident(), 1);
    (0..512).step_by(50).for_each(|page| ask(&cache, &room, page));
    // Those that were asked for, and no others.
    assert_eq!(room.resident(), 11);
}

#[test]
fn files_are_not_widened() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::new();
    // SAFETY: the call makes a file; a hole is in it, and the mapping is this room's.
    unsafe {
        let file = libc::memfd_create(c"widening".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(file, (128 * PAGE) as libc::off_t), 0);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let mapped = libc::mmap(room.at(0).cast(), (128 * PAGE) as usize, RW, flags, file, 0);
        assert_eq!(mapped, room.at(0).cast());
        libc::close(file);
    }
    room.fill(64, 128);
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(100, 101)]);
}

#[test]
fn bad_neighbours_fail_no_request() {
    for errno in [libc::EFAULT, libc::ENOMEM, libc::EINVAL, libc::EPERM] {
        let device = device();
        let seen = Seen::of(&device);
        let cache = taught(builder(&device, CAPACITY));
        let room = Room::filled(64, 512);
        device.fail_register(Fault::within(room.range(120, 121), errno));
        let before = cache.counters();
        assert_eq!(room.registered(&cache, &seen, 100, 1), [(64, 128), (100, 101)]);
        let after = cache.counters();
        assert_eq!((after.attempts - before.attempts, after.widened_failed, after.retries), (2, 1, 0));
        assert_eq!(after.decisions.requests - before.decisions.requests, 1);
        // The surroundings stay exact for a while, and it is a hit.
        assert_eq!(room.registered(&cache, &seen, 100, 1), []);
        assert_eq!(room.registered(&cache, &seen, 80, 1), [(80, 81)]);
        assert_eq!(cache.counters().widened_failed, 1);
    }
}

#[test]
fn failures_are_not_for_ever() {
    // A large cache, which a small program never fills.
    for (capacity, errno, misses) in
        [(CAPACITY, libc::EFAULT, 64), (1 << 22, libc::EFAULT, 64), (1 << 22, libc::EAGAIN, 16)]
    {
        let device = device();
        let seen = Seen::of(&device);
        let cache = taught(builder(&device, capacity));
        let (room, other) = (Room::filled(0, 512), Room::filled(0, 512));
        device.fail_register(Fault::within(room.range(120, 121), errno));
        assert_eq!(room.registered(&cache, &seen, 100, 1), [(64, 128), (100, 101)]);
        device.heal();
        (128..128 + misses - 1).for_each(|page| drop(room.acquire(&cache, page, 1).unwrap()));
        assert_eq!(room.registered(&cache, &seen, 300, 1), [(300, 301)], "{capacity} {errno}");
        assert!(matches!(other.registered(&cache, &seen, 100, 1)[..], [(..=98, 101..)]));
        let [(448, end @ 452..)] = room.registered(&cache, &seen, 449, 1)[..] else {
            panic!("{capacity} {errno}: {}", cache.counters())
        };
        assert!(end <= 512);
    }
}

#[test]
fn want_of_room_is_soon_over() {
    let device = device();
    let seen = Seen::of(&device);
    let budget = Budget::new(600);
    let [other, cache] =
        [&device, &device].map(|device| builder(device, 600).budget(&budget).widen(true).build().unwrap());
    teach(&cache);
    let (much, room) = (Room::filled(0, 512), Room::filled(0, 512));
    assert_eq!(room.registered(&cache, &seen, 400, 1), [(384, 448)]);
    cache.invalidate(room.at(384), (64 * PAGE) as usize).unwrap();
    cache.reap().unwrap();
    let held = much.acquire(&other, 0, 500).unwrap();
    let lease = room.acquire(&cache, 0, 64).unwrap();
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(100, 101)]);
    drop((held, lease));
    other.invalidate(much.at(0), (512 * PAGE) as usize).unwrap();
    other.reap().unwrap();
    // A few misses later.
    let exact = (200..300).take_while(|&page| room.registered(&cache, &seen, page, 1) == [(page, page + 1)]).count();
    assert!((1..=17).contains(&exact), "{exact}: {}", cache.counters());
}

#[test]
fn failures_count_where_the_gap_is() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    // Two contexts of 512 pages; the request begins in the first, and its gap lies in the second.
    let room = Room::filled(0, 1024);
    assert_eq!(room.registered(&cache, &seen, 448, 64), [(448, 512)]);
    device.fail_register(Fault::within(room.range(540, 541), libc::EFAULT));
    assert_eq!(room.registered(&cache, &seen, 500, 20), [(512, 576), (512, 520)]);
    assert_eq!(room.registered(&cache, &seen, 700, 1), [(700, 701)]);
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(64, 128)]);
}

#[test]
fn few_looks_where_no_neighbour_is() {
    let device = device();
    let cache = taught(builder(&device, CAPACITY));
    let (bare, room) = (Room::new(), Room::filled(0, 512));
    bare.map(0, 512, RW, ANONYMOUS);
    // Each is a miss; its neighbours come into memory later.
    (0..40).for_each(|nth| drop(bare.acquire(&cache, 8 * nth, 1).unwrap()));
    bare.fill(400, 512);
    let seen = Seen::of(&device);
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(64, 128)], "it is learned for each context");
    let exact = (0..16).take_while(|nth| bare.registered(&cache, &seen, 500 - 2 * nth, 1).len() == 1).count();
    assert!((1..=16).contains(&exact));
    assert!(cache.counters().widened >= 2, "{}", cache.counters());
}

#[test]
fn a_bad_request_is_tried_once_as_it_is() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::filled(64, 512);
    device.fail_register(Fault::within(room.range(100, 101), libc::EFAULT));
    seen.take();
    let error = room.acquire(&cache, 100, 1).unwrap_err();
    assert!(matches!(error, AcquireError::Register { attempts: 1, .. }), "{error}");
    assert_eq!(seen.take(), [room.range(64, 128), room.range(100, 101)]);
    assert_eq!((cache.usage().regions, cache.counters().decisions.evicted), (0, 0));
}

#[test]
fn changed_neighbours_take_the_region_along() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::filled(0, 512);
    let lease = room.acquire(&cache, 100, 1).unwrap();
    cache.invalidate(room.at(127), PAGE as usize).unwrap();
    assert_eq!((cache.usage().regions, cache.usage().retired), (1, 1));
    assert_eq!(room.registered(&cache, &seen, 100, 1).len(), 1);
    drop(lease);
    cache.reap().unwrap();
    // Where one of two neighbours changes again and again, it is given up.
    for _ in 0..40 {
        drop(room.acquire(&cache, 300, 1).unwrap());
        drop(room.acquire(&cache, 301, 1).unwrap());
        cache.invalidate(room.at(301), PAGE as usize).unwrap();
    }
    assert_eq!(room.registered(&cache, &seen, 300, 1), []);
    assert_eq!(room.registered(&cache, &seen, 301, 1), [(301, 302)]);
}

#[test]
fn announced_changes_of_neighbours_keep_it_exact() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::filled(0, 512);
    let change = cache.begin_change(room.at(120), PAGE as usize).unwrap();
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(100, 101)]);
    drop(change);
    assert_eq!(room.registered(&cache, &seen, 100, 1), [], "it was cached");
    assert_eq!(cache.counters().discarded, 0);
}

#[test]
fn unmapping_a_neighbour_is_heard_of() {
    let monitor = match Userfaultfd::new() {
        Ok(monitor) => monitor,
        Err(error) => return not_run("userfaultfd", &error),
    };
    let device = device();
    let seen = Seen::of(&device);
    let cache = builder(&device, CAPACITY).monitor(monitor).background(false).widen(true).build().unwrap();
    teach(&cache);
    let room = Room::filled(0, 512);
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(64, 128)]);
    assert_eq!(room.registered(&cache, &seen, 90, 1), []);
    room.unmap(120, 121);
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(64, 120)]);
    assert_eq!(cache.counters().widened_failed, 0);
    // Pages that are discarded next to a request keep it from no caching.
    room.advise(200, 201, libc::MADV_DONTNEED);
    room.fill(200, 201);
    assert_eq!(room.registered(&cache, &seen, 210, 1), [(210, 211)]);
    assert_eq!(room.registered(&cache, &seen, 210, 1), []);
}

#[test]
fn a_budget_that_refuses_keeps_it_exact() {
    let (first, second) = (device(), device());
    let budget = Budget::new(600);
    let [other, cache] =
        [&first, &second].map(|device| builder(device, 600).budget(&budget).widen(true).build().unwrap());
    teach(&cache);
    let (much, room) = (Room::filled(0, 512), Room::filled(0, 512));
    let _held: Vec<_> = (0..9).map(|at| much.acquire(&other, 64 * at % 512, 64).unwrap()).collect();
    let held: Vec<_> = (0..10).map(|nth| room.acquire(&cache, 50 * nth, 1)).collect();
    assert!(held.iter().all(Result::is_ok), "{:?}", held.iter().find(|lease| lease.is_err()));
    assert!(budget.pages() <= 600);
}

#[test]
fn the_limit_on_locked_memory_keeps_it_exact() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    // The system has less than it said.
    device.limit_untold(Limits { pages: Some(60), ..Limits::NONE });
    let room = Room::filled(0, 512);
    let lease = room.acquire(&cache, 100, 40).unwrap();
    assert_eq!(lease.len(), 40 * PAGE as usize);
    assert_eq!((cache.usage().pages, cache.counters().widened_failed), (40, 1));
    assert_eq!((cache.counters().retries, cache.counters().decisions.evicted), (0, 0));
    drop(seen);
}

#[test]
fn held_room_keeps_it_exact() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, 1024));
    let (much, room) = (Room::filled(0, 512), Room::filled(0, 512));
    let _held = (room.acquire(&cache, 0, 500).unwrap(), much.acquire(&cache, 0, 500).unwrap());
    assert!(cache.usage().pages >= 1000);
    let other = Room::filled(0, 512);
    assert_eq!(other.registered(&cache, &seen, 300, 1), [(300, 301)]);
    assert_eq!(cache.counters().decisions.all_in_use, 0);
}

#[test]
fn one_key_grows_with_each_miss_nearby() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = builder(&device, 1 << 14).max_segments(1).widen(true).build().unwrap();
    let room = Room::filled(0, 1024);
    let pages: Vec<u64> = [500, 400, 700, 200, 900]
        .iter()
        .map(|&page| room.registered(&cache, &seen, page, 4).iter().map(|(start, end)| end - start).sum())
        .collect();
    assert_eq!(pages, [4, 8, 16, 32, 64]);
    (0..1000).for_each(|page| drop(room.acquire(&cache, page, 3).unwrap()));
    assert!(cache.counters().attempts <= 20, "{}", cache.counters());
    for page in 64..136 {
        assert_eq!(room.acquire(&cache, page, 1).unwrap().segments().count(), 1);
    }
}

#[test]
fn growth_leaves_sparse_memory_sparse() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = builder(&device, 1 << 14).max_segments(1).widen(true).build().unwrap();
    let room = Room::new();
    room.map(0, 1024, RW, ANONYMOUS);
    room.fill(300, 700);
    for page in [400, 500, 600, 310, 350, 650, 450] {
        let made = room.registered(&cache, &seen, page, 4);
        assert!(made.iter().all(|&(start, end)| start >= 300 && end <= 700), "{made:?}");
    }
    assert!(cache.counters().widened_pages > 100);
    // Pages that are not in memory are registered alone.
    assert_eq!(room.registered(&cache, &seen, 900, 4), [(900, 904)]);
    assert_eq!(room.resident(), 400);
}

#[test]
fn peers_reach_neighbours_only_where_that_is_set() {
    for is_set in [false, true] {
        let device = device();
        let seen = Seen::of(&device);
        let builder = builder(&device, 1 << 14).max_segments(1).widen(true).widen_for_peers(is_set);
        let cache = builder.build().unwrap();
        let room = Room::filled(0, 512);
        for page in [100, 200, 300, 400] {
            let access = Access::LOCAL | Access::REMOTE_WRITE;
            drop(acquire_at(&cache, room.at(page), 4 * PAGE as usize, access).unwrap());
        }
        let pages: Vec<u64> = seen.take().iter().map(|range| range.pages()).collect();
        assert_eq!(pages, if is_set { [4, 8, 16, 32] } else { [4; 4] });
    }
}

#[test]
fn rights_for_peers_stay_exact() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::filled(0, 512);
    seen.take();
    let access = Access::LOCAL | Access::REMOTE_WRITE;
    drop(acquire_at(&cache, room.at(100), PAGE as usize, access).unwrap());
    assert_eq!(seen.take(), [room.range(100, 101)]);
    // A request beside it is widened up to it.
    assert_eq!(room.registered(&cache, &seen, 110, 1), [(101, 128)]);
}

#[test]
fn requests_that_are_begun_stay_exact() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::filled(0, 512);
    seen.take();
    let mut begun = begin_at(&cache, room.at(100), PAGE as usize, Access::LOCAL).unwrap();
    // Another request is not in its way.
    let _beside = room.acquire(&cache, 110, 1).unwrap();
    drop(begun.finish().unwrap());
    assert_eq!(seen.take(), [room.range(101, 128), room.range(100, 101)]);
}

#[test]
fn begun_requests_over_regions_stay_exact() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::new();
    room.map(0, 512, RW, ANONYMOUS);
    room.fill(100, 101);
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(100, 101)]);
    room.fill(0, 512);
    // Nothing was found around it: the next miss is exact, too.
    assert_eq!(room.registered(&cache, &seen, 300, 1), [(300, 301)]);
    let mut begun = begin_at(&cache, room.at(100), 3 * PAGE as usize, Access::LOCAL).unwrap();
    drop(begun.finish().unwrap());
    assert_eq!(seen.take(), [room.range(101, 103)]);
}

#[test]
fn refused_deregistrations_keep_it_exact() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, 1024));
    let (much, room) = (Room::filled(0, 1024), Room::filled(0, 512));
    drop(much.acquire(&cache, 0, 1000).unwrap());
    // What cannot be deregistered takes the room.
    device.fail_deregister(Fault::always(libc::EBUSY));
    cache.invalidate(much.at(0), (1000 * PAGE) as usize).unwrap();
    let _ = cache.reap();
    assert_eq!(room.registered(&cache, &seen, 100, 1), [(100, 101)]);
    device.heal();
}

#[test]
fn groups_stay_exact_and_leases_show_what_was_listed() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY));
    let room = Room::filled(0, 512);
    seen.take();
    let rows = [200, 209, 218].map(|page| (room.at(page).cast_const(), 8 * PAGE as usize));
    // SAFETY: `acquire_list` restricts uses of the memory during transfers; this test makes none.
    let leases = unsafe { cache.acquire_list(&rows, Access::LOCAL) }.unwrap();
    assert_eq!(seen.take(), [room.range(200, 226)]);
    for (lease, (address, length)) in leases.iter().zip(rows) {
        assert_eq!((lease.address(), lease.len()), (address, length));
        assert_eq!(lease.segments().map(|segment| segment.len()).sum::<usize>(), length);
    }
}

#[test]
fn safe_code_is_widened_where_changes_are_heard_of() {
    let device = device();
    let seen = Seen::of(&device);
    let cache = taught(builder(&device, CAPACITY).monitor(Explicit));
    let room = Room::filled(0, 512);
    // SAFETY: the pages are mapped and this room's; nothing writes them.
    let slice = unsafe { std::slice::from_raw_parts(room.at(100), PAGE as usize) };
    seen.take();
    cache.with_slice(slice, |_| ()).unwrap();
    assert_eq!(seen.take(), [room.range(100, 101)]);
    let arena = cache.arena(512 * PAGE as usize).unwrap();
    arena.write_at(0, &vec![1; arena.len()]).unwrap();
    let page = PAGE as usize;
    drop(arena.acquire(100 * page..101 * page, Access::LOCAL).unwrap());
    let whole = PageRange::new(arena.as_ptr() as u64 / PAGE, 512).unwrap();
    let [range] = seen.take()[..] else { panic!("one registration") };
    assert!(range.pages() > 1 && whole.contains(range), "{range} in {whole}");
}
