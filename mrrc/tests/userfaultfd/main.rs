//! The monitor by userfaultfd, on this kernel: it hears of every change to watched memory, refuses memory that
//! cannot be heard of, and blocks no thread for good. Where userfaultfd is refused, each test says so and passes.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "mappings are made, changed and torn down by hand")]

#[path = "../common/by_hand.rs"]
mod by_hand;
mod child;
mod kinds;
mod room;
mod told;

use by_hand::ByHand;
use child::{Child, in_child, threads};
use mrrc::invalidation::{Change, ChangeKind, Unwatched, Userfaultfd, Watch};
use mrrc::{PAGE, PageRange};
use room::{ANONYMOUS, Room, in_a_child_unmap, memfd, registered, unmap_after_a_move};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use std::{ptr, thread};
use told::{Mark, monitor, monitor_here};

const BYTES: usize = PAGE as usize;

#[test]
fn every_page_loss_is_reported_before_return() {
    let Some((monitor, told)) = monitor() else { return };
    type Way = (&'static str, fn(&Room), Option<ChangeKind>);
    let every: [Way; 12] = [
        ("munmap", |room| room.unmap(0, 16), Some(ChangeKind::Gone)),
        ("munmap of the middle", |room| room.unmap(7, 2), Some(ChangeKind::Gone)),
        ("mmap over all", |room| room.map(0, 16, ANONYMOUS), Some(ChangeKind::Gone)),
        ("mmap over the middle", |room| room.map(7, 2, ANONYMOUS), Some(ChangeKind::Gone)),
        ("mremap to less", |room| room.remap(16, 7, 0, ptr::null_mut()), Some(ChangeKind::Gone)),
        ("mremap to elsewhere", |room| room.move_to(&Room::new()), Some(ChangeKind::Gone)),
        ("MADV_DONTNEED", |room| room.advise(7, 2, libc::MADV_DONTNEED), Some(ChangeKind::Discarding)),
        ("MADV_FREE", |room| room.advise(7, 2, libc::MADV_FREE), Some(ChangeKind::Discarding)),
        ("mprotect, which loses nothing", |room| room.protect(libc::PROT_NONE), None),
        ("MADV_COLD, which loses nothing", |room| room.advise(7, 2, libc::MADV_COLD), None),
        ("a child's munmap, which is none of ours", in_a_child_unmap, None),
        ("munmap after a move", unmap_after_a_move, Some(ChangeKind::Gone)),
    ];
    for (name, change, kind) in every {
        let room = Room::new();
        assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched, "{name}");
        told.expect(name, room.range(7, 2), kind, || change(&room));
        monitor.unwatch(room.range(0, 16));
    }
}

#[test]
fn shared_anonymous_removal_is_reported() {
    let Some((monitor, told)) = monitor() else { return };
    let room = Room::new();
    room.map(0, 16, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    match monitor.watch(room.range(0, 16)) {
        Watch::Watched => {}
        refused => return println!("shared anonymous memory is not watched here: {refused:?}"),
    }
    let remove = || room.advise(7, 2, libc::MADV_REMOVE);
    told.expect("MADV_REMOVE", room.range(7, 2), Some(ChangeKind::Discarding), remove);
    told.expect("munmap", room.range(7, 2), Some(ChangeKind::Gone), || room.unmap(0, 16));
}

#[test]
fn allocator_changes_are_reported() {
    let Some((monitor, told)) = monitor() else { return };
    for grow in [false, true] {
        // So large that the allocator asks for a mapping of its own.
        let mut buffer = vec![0_u8; 40 << 20];
        let range = PageRange::of_bytes(buffer.as_ptr() as u64, buffer.len() as u64).unwrap();
        assert_eq!(monitor.watch(range), Watch::Watched);
        // All but the first page, which the allocator's header may share with a neighbour, is surely affected.
        let inside = PageRange::new(range.start() + 8, 2).unwrap();
        let mark = told.mark();
        if grow {
            buffer.reserve_exact(80 << 20);
            if PageRange::of_bytes(buffer.as_ptr() as u64, 1).unwrap().start() == range.start() {
                continue; // it grew where it was
            }
        } else {
            drop(std::mem::take(&mut buffer));
        }
        told.assert_since(mark, "the allocator", inside, Some(ChangeKind::Gone));
    }
}

#[test]
fn a_shrinking_heap_is_heard() {
    let Some((monitor, told)) = monitor() else { return };
    // In a child of its own, so that no other thread moves the break meanwhile; fork leaves only this thread.
    drop((monitor, told));
    in_child(|| {
        let Some((monitor, told)) = monitor_here() else { return 0 };
        // SAFETY: grows the heap; nothing else in this process runs.
        let top = unsafe { libc::sbrk(0) } as usize;
        let start = top.next_multiple_of(BYTES);
        let grown = start - top + 64 * BYTES;
        // SAFETY: `sbrk` moves the break of this child, in which no other thread allocates.
        if unsafe { libc::sbrk(grown as isize) } as isize == -1 {
            return 2;
        }
        let range = PageRange::of_bytes(start as u64, 64 * PAGE).unwrap();
        if monitor.watch(range) != Watch::Watched {
            return 3;
        }
        // SAFETY: gives back what was grown above, if the allocator took none of it.
        unsafe {
            if libc::sbrk(0) as usize == top + grown {
                libc::sbrk(-(grown as isize));
                told.assert_since(Mark(0), "brk", range, Some(ChangeKind::Gone));
            }
        }
        0
    });
}

#[test]
fn what_cannot_be_heard_is_refused_and_says_why() {
    let Some((monitor, _told)) = monitor() else { return };
    let refused = |range, why| assert_eq!(monitor.watch(range), Watch::Unwatched(why));
    let room = Room::new();

    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for sharing in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
        room.map_file(sharing, libc::PROT_READ, &file);
        refused(room.range(0, 1), Unwatched::File);
    }
    room.map(0, 16, ANONYMOUS);
    room.map_file(libc::MAP_PRIVATE, libc::PROT_READ, &file);
    refused(room.range(0, 16), Unwatched::File); // though the rest is plain memory

    let memory = memfd();
    room.map_file(libc::MAP_SHARED, libc::PROT_READ | libc::PROT_WRITE, &memory);
    refused(room.range(0, 1), Unwatched::Unsealed);
    room.map_file(libc::MAP_PRIVATE, libc::PROT_READ | libc::PROT_WRITE, &memory);
    refused(room.range(0, 1), Unwatched::SharedMemory);

    // SAFETY: a private segment, attached where the kernel likes and removed with its last detachment.
    unsafe {
        let segment = libc::shmget(libc::IPC_PRIVATE, BYTES, 0o600 | libc::IPC_CREAT);
        let at = libc::shmat(segment, ptr::null(), 0);
        libc::shmctl(segment, libc::IPC_RMID, ptr::null_mut());
        refused(PageRange::of_bytes(at as u64, PAGE).unwrap(), Unwatched::SharedMemory);
        libc::shmdt(at);
    }

    room.map(0, 16, ANONYMOUS);
    room.unmap(7, 1);
    refused(room.range(0, 16), Unwatched::Unmapped);
    refused(room.range(7, 1), Unwatched::Unmapped);

    // SAFETY: `getauxval` takes a number and returns one.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if vdso != 0 {
        refused(PageRange::of_bytes(vdso, PAGE).unwrap(), Unwatched::Special);
    }

    let (other, _told) = monitor_here().unwrap();
    let theirs = Room::new();
    assert_eq!(other.watch(theirs.range(0, 16)), Watch::Watched);
    refused(theirs.range(0, 16), Unwatched::Taken);
    drop(other);
    assert_eq!(monitor.watch(theirs.range(0, 16)), Watch::Watched);
}

#[test]
fn private_memory_is_watched_whatever_its_name() {
    let Some((monitor, told)) = monitor() else { return };
    let room = Room::new();
    let zero = std::fs::OpenOptions::new().read(true).write(true).open("/dev/zero").unwrap();
    room.map_file(libc::MAP_PRIVATE, libc::PROT_READ | libc::PROT_WRITE, &zero);
    assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
    told.expect("munmap of /dev/zero", room.range(0, 1), Some(ChangeKind::Gone), || room.unmap(0, 1));

    let on_the_stack = [0_u8; 3 * BYTES];
    let range = PageRange::of_bytes(ptr::from_ref(&on_the_stack) as u64, 3 * PAGE).unwrap();
    assert!(matches!(monitor.watch(range), Watch::Watched | Watch::Unwatched(Unwatched::Taken)));
}

#[test]
fn range_over_several_mappings_is_watched() {
    let Some((monitor, told)) = monitor() else { return };
    let room = Room::new();
    room.protect_part(4, 4, libc::PROT_READ);
    room.protect_part(10, 1, libc::PROT_READ);
    assert_eq!(monitor.watch(room.range(2, 12)), Watch::Watched);
    for page in [2, 5, 9, 10, 13] {
        told.expect("munmap", room.range(page, 1), Some(ChangeKind::Gone), || room.unmap(page, 1));
    }
}

#[test]
fn remapped_address_is_watched_anew() {
    let Some((monitor, told)) = monitor() else { return };
    let room = Room::new();
    let slot = told.slot(0, room.range(3, 1));
    for turn in 0..10_000 {
        assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
        // Twice in a row: the second answer is from the table.
        assert_eq!(monitor.watch(room.range(2, 4)), Watch::Watched);
        slot.expect("each mapping", || room.renew(turn));
        monitor.unwatch(room.range(2, 4));
        monitor.unwatch(room.range(0, 16));
    }
}

#[test]
fn many_threads_renew_mappings_and_no_change_is_lost() {
    let Some((monitor, told)) = monitor() else { return };
    thread::scope(|scope| {
        for number in 0..6 {
            let (monitor, told) = (&monitor, &told);
            scope.spawn(move || {
                let room = Room::new();
                let slot = told.slot(number, room.range(3, 1));
                for turn in 0..1_500 {
                    assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
                    if turn % 2 == 0 {
                        slot.expect("a discard", || room.advise(3, 1, libc::MADV_DONTNEED));
                    }
                    slot.expect("a new mapping", || room.renew(turn));
                    monitor.unwatch(room.range(0, 16));
                }
            });
        }
    });
}

/// The neighbour's mapping is split and joined all the time: bounds that were looked up are wrong a moment later.
#[test]
fn splitting_mappings_are_still_watched() {
    let Some((monitor, told)) = monitor() else { return };
    let room = Room::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                // Pages 8 and 9 come and go, and are asked for as anyone may ask for his own memory.
                room.map(8, 2, ANONYMOUS);
                monitor.watch(room.range(8, 1));
                room.protect_part(9, 1, libc::PROT_READ);
                room.unmap(8, 2);
            }
        });
        let slot = told.slot(0, room.range(1, 1));
        let mut watched = 0;
        for turn in 0..3_000 {
            if monitor.watch(room.range(0, 4)) == Watch::Watched {
                watched += 1;
                slot.expect("beside a restless neighbour", || match turn % 3 {
                    0 => room.map(0, 4, ANONYMOUS),
                    1 => room.unmap(1, 1),
                    _ => room.advise(1, 1, libc::MADV_DONTNEED),
                });
                room.map(0, 4, ANONYMOUS);
            }
        }
        done.store(true, SeqCst);
        assert!(watched > 2_000, "only {watched} of 3000 were watched");
    });
}

/// While one thread has looked up the bounds of a mapping and not yet registered it, another replaces a part of
/// it, unheard, as nothing is registered yet: the new part must not pass for registered.
#[test]
fn replaced_mapping_is_not_taken_for_watched() {
    let Some((monitor, told)) = monitor() else { return };
    let room = Room::new();
    let slot = told.slot(0, room.range(8, 1));
    let (turn, done) = (AtomicU64::new(0), AtomicU64::new(0));
    const TURNS: u64 = 1_500;
    thread::scope(|scope| {
        scope.spawn(|| {
            for now in 1..=TURNS {
                for spins in 0.. {
                    match turn.load(SeqCst) < now {
                        true if spins > 10_000 => thread::yield_now(),
                        true => std::hint::spin_loop(),
                        false => break,
                    }
                }
                monitor.watch(room.range(0, 2));
                done.store(now, SeqCst);
            }
        });
        for now in 1..=TURNS {
            room.map(0, 16, ANONYMOUS);
            turn.store(now, SeqCst);
            (0..now % 64 * 16).for_each(|_| std::hint::spin_loop());
            room.unmap(8, 2);
            room.map(8, 2, ANONYMOUS);
            let watch = monitor.watch(room.range(8, 2));
            while done.load(SeqCst) < now {
                thread::yield_now();
            }
            // Once more, now that the other has entered into the table what it will.
            if watch == Watch::Watched && monitor.watch(room.range(8, 2)) == Watch::Watched {
                slot.expect("the new part", || room.map(8, 2, ANONYMOUS));
            }
        }
    });
}

#[test]
fn who_holds_the_caches_lock_may_unmap() {
    let Some((monitor, told)) = monitor() else { return };
    for turn in 0..50 {
        let room = Room::new();
        let slot = told.slot(0, room.range(3, 1));
        assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
        let before = slot.count();
        let held = told.lock();
        room.renew(turn);
        assert_eq!(slot.count(), before, "applied under another's lock");
        assert!(told.raised.load(SeqCst) > 0, "nothing tells those who wait for the lock");
        drop(held);
        slot.wait(before);
    }
}

#[test]
fn a_flood_of_changes_is_told_exactly() {
    const PIECES: usize = 700;
    let Some((monitor, told)) = monitor() else { return };
    let rooms: Vec<Room> = (0..PIECES).map(|_| Room::new()).collect();
    for room in &rooms {
        assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
    }
    let mark = told.mark();
    let held = told.lock();
    for (number, room) in rooms.iter().enumerate() {
        match number % 3 {
            0 => room.advise(2, 1, libc::MADV_DONTNEED),
            _ => room.map(2, 3, ANONYMOUS),
        }
    }
    drop(held);
    told.settle();
    let log = told.lock();
    let since = &log.changes[mark.0..];
    let pages: u64 = since.iter().map(|change| change.range.pages()).sum();
    assert_eq!(
        pages,
        (0..PIECES).map(|number| if number % 3 == 0 { 1 } else { 3 }).sum::<u64>(),
        "{} changes",
        since.len()
    );
    for (number, room) in rooms.iter().enumerate() {
        let strong = |change: &Change| number % 3 != 0 || change.kind == ChangeKind::Discarding;
        assert!(
            since.iter().any(|change| change.range.contains(room.range(2, 1)) && strong(change)),
            "{number} is lost"
        );
    }
    drop(log);
    // The table forgot at least as much.
    for room in &rooms {
        assert_eq!(monitor.watch(room.range(2, 3)), Watch::Watched);
        told.expect("after the flood", room.range(2, 3), Some(ChangeKind::Gone), || room.map(2, 3, ANONYMOUS));
    }
}

#[test]
fn idle_mappings_are_let_go_and_those_in_use_never() {
    let Some((monitor, told)) = monitor() else { return };
    let rooms: Vec<Room> = (0..200).map(|_| Room::new()).collect();
    for room in &rooms {
        assert_eq!(monitor.watch(room.range(0, 2)), Watch::Watched);
        assert_eq!(monitor.watch(room.range(1, 9)), Watch::Watched);
    }
    for room in &rooms {
        monitor.unwatch(room.range(0, 2));
    }
    assert_eq!(registered(&rooms), 200);
    for room in &rooms[1..] {
        monitor.unwatch(room.range(1, 9));
    }
    let left = registered(&rooms);
    assert!((1..=65).contains(&left), "{left} are registered");
    told.expect("the one in use", rooms[0].range(3, 1), Some(ChangeKind::Gone), || rooms[0].unmap(3, 1));
    assert_eq!(monitor.watch(rooms[1].range(0, 16)), Watch::Watched);
    told.expect("one that is back", rooms[1].range(3, 1), Some(ChangeKind::Gone), || rooms[1].unmap(3, 1));
}

#[test]
fn after_a_stop_memory_is_unmapped_without_anybody() {
    let Some((monitor, told)) = monitor() else { return };
    let rooms: [Room; 5] = std::array::from_fn(|_| Room::new());
    for room in &rooms {
        assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
    }
    rooms[1].move_to(&rooms[2]);
    let and_stay = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    rooms[3].remap(16, 16, and_stay, rooms[4].at(0));
    // A child holds a copy of the userfaultfd, so that closing ours does not end it.
    let child = Child::fork(|| {
        thread::sleep(Duration::from_secs(60));
        0
    });
    assert!(threads("mrrc-monitor").contains(&monitor.id()));
    monitor.stop();
    monitor.stop();
    assert_eq!(monitor.watch(rooms[0].range(0, 16)), Watch::Unwatched(Unwatched::Refused(libc::ESRCH)));
    let late = Instant::now() + Duration::from_secs(20);
    while threads("mrrc-monitor").contains(&monitor.id()) {
        assert!(Instant::now() < late, "the thread is still there");
        thread::yield_now();
    }
    let mark = told.mark();
    for room in &rooms {
        room.map(0, 16, ANONYMOUS);
    }
    assert_eq!(told.mark(), mark, "reported after the stop");
    assert_eq!(Arc::strong_count(&told), 1, "somebody still holds the reports");
    drop(child);
}

#[test]
fn a_monitor_is_started_once() {
    let Some((monitor, told)) = monitor() else { return };
    let again = monitor.start(told.clone()).unwrap_err().to_string();
    assert!(again.contains("started before"), "{again}");
    let idle = Userfaultfd::new().unwrap();
    assert_eq!(idle.watch(Room::new().range(0, 1)), Watch::Unwatched(Unwatched::Refused(libc::ESRCH)));
    idle.unwatch(Room::new().range(0, 1));
    idle.stop();
    assert!(idle.start(told).is_ok());
}

#[test]
fn a_panic_in_the_cache_makes_nobody_wait() {
    let Some((monitor, told)) = monitor() else { return };
    let rooms = [Room::new(), Room::new()];
    for room in &rooms {
        assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
    }
    let child = Child::fork(|| {
        thread::sleep(Duration::from_secs(60));
        0
    });
    told.panic.store(true, SeqCst);
    rooms[0].unmap(0, 16);
    // Messages are read as before, and other users of it are told.
    for room in &rooms {
        room.map(0, 16, ANONYMOUS);
        assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
        room.unmap(0, 16);
    }
    monitor.stop();
    drop(child);
}

#[test]
fn a_forked_child_touches_nothing_of_its_parents() {
    let Some((monitor, told)) = monitor() else { return };
    let room = Room::new();
    let new = Room::new();
    assert_eq!(monitor.watch(room.range(0, 16)), Watch::Watched);
    for leave in [|monitor: Userfaultfd| drop(monitor), |monitor: Userfaultfd| monitor.stop()] {
        in_child(|| {
            let refused = Watch::Unwatched(Unwatched::Refused(libc::ESRCH));
            // SAFETY: the child's copy, which is used in place of the parent's in this process only.
            let copy = unsafe { ptr::read(&*monitor.0) };
            if copy.watch(room.range(0, 16)) != refused || copy.watch(new.range(0, 16)) != refused {
                return 2;
            }
            copy.unwatch(room.range(0, 16));
            if copy.start(told.clone()).is_ok() {
                return 3;
            }
            leave(copy);
            room.unmap(0, 16);
            // It can have a monitor of its own.
            let Some((own, told)) = monitor_here() else { return 4 };
            if own.watch(new.range(0, 16)) != Watch::Watched {
                return 5;
            }
            told.expect("in the child", new.range(0, 1), Some(ChangeKind::Gone), || new.unmap(0, 1));
            0
        });
    }
    assert_eq!(registered(std::slice::from_ref(&new)), 0);
    told.expect("in the parent", room.range(0, 1), Some(ChangeKind::Gone), || room.unmap(0, 1));
}

#[test]
fn without_privilege_it_is_the_same() {
    use std::os::unix::process::CommandExt;
    // SAFETY: the calls take and return numbers.
    if unsafe { libc::geteuid() } != 0 {
        return println!("already without privilege");
    }
    // Where the program lies may be closed to others.
    let copy = std::env::temp_dir().join(format!("mrrc-userfaultfd-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let run = std::process::Command::new(&copy)
        .args(["every_page_loss", "cannot_be_heard", "remapped_address", "after_a_stop", "--nocapture"])
        .uid(65534)
        .gid(65534)
        .current_dir("/")
        .output();
    std::fs::remove_file(&copy).unwrap();
    match run {
        Ok(run) => {
            let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
            println!("{said}");
            assert!(run.status.success() && said.contains("4 passed"), "as nobody:\n{said}");
        }
        Err(error) => println!("nobody may not run {}: {error}", copy.display()),
    }
}
