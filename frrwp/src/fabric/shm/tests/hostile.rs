//! Peers that cheat: by hand at the socket, with descriptors that are not what they are said to be, and by scribbling over
//! everything that they can write while transfers run.

use super::super::connect::raw_socket;
use super::super::endpoint::ShmEndpoint;
use super::super::link::{OUTBOX, RECEIVES as RECEIVES_WORD, RING, ROOM, TAKEN, WRITTEN};
use super::super::memory::{Mapping, Writers};
use super::super::packets::{self, NoPacket, Packet};
use super::super::ring::{Record, Rings};
use super::super::{Sharing, ShmArena, ShmDomain, ShmError, ShmListener, connect};
use super::{Registration, WITHIN, domain, fresh};
use crate::fabric::traits::{Completion, Endpoint, Local};
use crate::handshake::RECEIVES;
use crate::wire::MESSAGE;
use mrrc::Access;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

const ALL: Access =
    Access::LOCAL_READ.union(Access::LOCAL_WRITE).union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
pub(super) const TABLE: u64 = 128 * 64;

fn a_pipe() -> OwnedFd {
    std::io::pipe().expect("a pipe").0.into()
}

fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("made by hand", MemfdFlags::ALLOW_SEALING).expect("a memory file");
    rustix::fs::ftruncate(&file, bytes).expect("a size");
    rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
    file
}

pub(super) fn sealed(bytes: u64) -> OwnedFd {
    memory(bytes, SealFlags::SHRINK | SealFlags::GROW)
}

/// Returns a socket that is connected to the listener, and what the listener makes of what is done with it.
fn by_hand(domain: &ShmDomain, act: impl FnOnce(&OwnedFd) + Send) -> (Result<ShmEndpoint, ShmError>, OwnedFd) {
    let (accepted, socket, _) = heard_by_hand(domain, WITHIN, act);
    (accepted, socket)
}

type Received = (Packet, Vec<OwnedFd>);

/// The same, with the hello that came. It is answered as it should be.
fn heard_by_hand(
    domain: &ShmDomain,
    patience: std::time::Duration,
    act: impl FnOnce(&OwnedFd) + Send,
) -> (Result<ShmEndpoint, ShmError>, OwnedFd, Option<Received>) {
    let listener = ShmListener::bind(domain, &fresh()).expect("a listener");
    let socket = raw_socket(listener.address());
    act(&socket);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            while !done.load(Relaxed) {
                if let Ok((packet, files)) = packets::receive(&socket) {
                    if let Packet::Hello { number, .. } = packet {
                        packets::send(&socket, Packet::Proof { number }, &[]).expect("sent");
                    }
                    return Some((packet, files));
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            None
        });
        let accepted = listener.accept(RECEIVES, patience);
        done.store(true, Relaxed);
        let heard = answering.join().expect("no panic");
        (accepted, socket.try_clone().expect("a descriptor"), heard)
    })
}

pub(super) fn hello(socket: &OwnedFd, table: u64, files: [&OwnedFd; 2]) {
    let hello = Packet::Hello { table, outbox: OUTBOX as u64, number: 7 };
    packets::send(socket, hello, &files.map(|file| file.as_fd())).expect("sent");
}

fn next(endpoint: &mut ShmEndpoint) -> Completion {
    let mut message = Box::new([0; MESSAGE]);
    let until = Instant::now() + WITHIN;
    loop {
        assert!(Instant::now() < until, "nothing comes");
        match endpoint.poll(&mut message) {
            Some(completion) => return completion,
            None => endpoint.wait(Some(endpoint.now() + 1_000_000)),
        }
    }
}

#[test]
fn wrong_descriptors_are_refused_at_set_up() {
    let file = || OwnedFd::from(std::fs::File::open(std::env::current_exe().expect("this binary")).expect("a file"));
    let huge = || rustix::fs::memfd_create("huge", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB).ok();
    let bad: Vec<(&str, OwnedFd)> = [
        ("a pipe", Some(a_pipe())),
        ("a file", Some(file())),
        ("unsealed", Some(memory(TABLE, SealFlags::empty()))),
        ("half sealed", Some(memory(TABLE, SealFlags::GROW))),
        ("half sealed", Some(memory(TABLE, SealFlags::SHRINK))),
        ("too small", Some(sealed(4096))),
        ("too large", Some(sealed(1 << 20))),
        ("empty", Some(sealed(0))),
        ("huge pages", huge()),
    ]
    .into_iter()
    .filter_map(|(what, file)| Some((what, file?)))
    .collect();
    let domain = domain();
    for (what, bad) in &bad {
        for at in 0..2 {
            let good = [sealed(TABLE), sealed(OUTBOX as u64)];
            let files = if at == 0 { [bad, &good[1]] } else { [&good[0], bad] };
            let (accepted, _socket) = by_hand(&domain, |socket| hello(socket, TABLE, files));
            let error = accepted.expect_err(what);
            assert!(matches!(error, ShmError::Foreign { .. }), "{what}: {error}");
        }
    }
    let good = [sealed(TABLE), sealed(OUTBOX as u64)];
    let (accepted, _socket) = by_hand(&domain, |socket| hello(socket, TABLE, [&good[0], &good[1]]));
    assert!(accepted.is_ok(), "what is sealed and as large as is said is admitted");
    for table in [0, 100, 64 * 3, 1 << 40, u64::MAX] {
        let (accepted, _socket) = by_hand(&domain, |socket| hello(socket, table, [&good[0], &good[1]]));
        assert!(accepted.is_err(), "a table of {table} bytes");
    }
}

#[test]
fn garbage_at_the_socket_is_told_as_another_protocol() {
    let mut rng = StdRng::seed_from_u64(1);
    let domain = domain();
    for round in 0..300 {
        let length = if round % 3 == 0 { packets::BYTES } else { rng.random_range(1..200) };
        let bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
        let (accepted, _socket) = by_hand(&domain, |socket| {
            rustix::net::send(socket, &bytes, rustix::net::SendFlags::empty()).expect("sent");
        });
        assert!(matches!(accepted.expect_err("garbage"), ShmError::OtherProtocol { .. }));
    }
    let (accepted, _socket, _) = heard_by_hand(&domain, std::time::Duration::from_millis(200), |_| {});
    assert!(matches!(accepted.expect_err("silence"), ShmError::TimedOut { .. }));
    let (accepted, _socket) = by_hand(&domain, |socket| {
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).expect("shut");
    });
    assert!(matches!(accepted.expect_err("gone"), ShmError::ClosedEarly { .. }));
    assert_eq!(domain.connections(), 0);
}

#[test]
fn later_packets_are_checked_against_bounds() {
    let pipe = a_pipe();
    let arena = |bytes, writable| Packet::Arena { number: 1, bytes, writable };
    let read_only = memory(4096, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE);
    let cases: [(&str, Packet, Vec<OwnedFd>); 6] = [
        ("a pipe for an arena", arena(4096, false), vec![pipe]),
        ("an unsealed arena", arena(4096, true), vec![memory(4096, SealFlags::empty())]),
        ("a smaller arena", arena(8192, true), vec![sealed(4096)]),
        ("an arena without a size", arena(0, true), vec![sealed(4096)]),
        ("an arena that cannot be written", arena(4096, true), vec![read_only]),
        ("hello again", Packet::Hello { table: 0, outbox: 0, number: 0 }, vec![sealed(4096), sealed(4096)]),
    ];
    for (what, packet, files) in cases {
        let good = [sealed(TABLE), sealed(OUTBOX as u64)];
        let (accepted, socket) = by_hand(&domain(), |socket| hello(socket, TABLE, [&good[0], &good[1]]));
        let mut endpoint = accepted.expect("accepted");
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        packets::send(&socket, packet, &files).expect("sent");
        assert_eq!([next(&mut endpoint), next(&mut endpoint)], [Completion::Lost, Completion::Flushed], "{what}");
        assert!(endpoint.fault().is_some(), "{what}");
    }
    // More arenas than any program needs.
    let good = [sealed(TABLE), sealed(OUTBOX as u64)];
    let (accepted, socket) = by_hand(&domain(), |socket| hello(socket, TABLE, [&good[0], &good[1]]));
    let mut endpoint = accepted.expect("accepted");
    let file = sealed(4096);
    let mut sent = 0;
    while endpoint.fault().is_none() && sent < 5_000 {
        if packets::send(&socket, arena(4096, true), &[file.as_fd()]).is_ok() {
            sent += 1;
        }
        let mut message = Box::new([0; MESSAGE]);
        let _ = endpoint.poll(&mut message);
    }
    assert!(endpoint.fault().is_some() && sent < 1_300, "{sent}");
}

/// Everything that a peer is passed, received by hand.
fn passed(domain: &ShmDomain) -> (ShmEndpoint, Vec<Received>) {
    let good = [sealed(TABLE), sealed(OUTBOX as u64)];
    let (accepted, socket, heard) = heard_by_hand(domain, WITHIN, |socket| hello(socket, TABLE, [&good[0], &good[1]]));
    let mut all: Vec<_> = heard.into_iter().collect();
    loop {
        match packets::receive(&socket) {
            Ok(packet) => all.push(packet),
            Err(NoPacket::Nothing) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    (accepted.expect("accepted"), all)
}

#[test]
fn passed_memory_cannot_shrink_or_be_written() {
    let domain = domain();
    let readable = domain.arena(8192, Sharing::Readable).expect("an arena");
    let writable = domain.arena(8192, Sharing::Writable).expect("an arena");
    readable.write_at(0, b"mine").expect("inside");
    let (_endpoint, packets) = passed(&domain);
    let mut seen = (0, 0);
    for (packet, files) in &packets {
        let writes = matches!(packet, Packet::Arena { writable: true, .. });
        for file in files {
            let size = rustix::fs::fstat(file).expect("a size").st_size as u64;
            for other in [0, 1, size - 1, size + 4096, size * 2] {
                assert!(rustix::fs::ftruncate(file, other).is_err(), "{packet:?} to {other} bytes");
            }
            assert!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).is_err());
            // The descriptor, and what is opened anew through it.
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
            let again = std::fs::OpenOptions::new().read(true).write(true).open(path).map(OwnedFd::from);
            for file in [Some(file), again.as_ref().ok()].into_iter().flatten() {
                assert_eq!(Mapping::admit(file, size, true).is_ok(), writes, "{packet:?}");
                if !writes {
                    assert!(rustix::io::pwrite(file, b"theirs", 0).is_err(), "{packet:?}");
                    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                    assert!(rustix::fs::fallocate(file, punch, 0, 4096).is_err(), "{packet:?}");
                    let mapping = Mapping::admit(file, size, false).expect("for reading");
                    // SAFETY: the mapping is this test's own, and no reference leads there.
                    let widened = unsafe {
                        let rights = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
                        rustix::mm::mprotect(mapping.base().cast(), mapping.len(), rights)
                    };
                    assert!(widened.is_err(), "{packet:?}");
                }
            }
            seen = if writes { (seen.0 + 1, seen.1) } else { (seen.0, seen.1 + 1) };
        }
    }
    assert_eq!(seen, (1, 3), "tags, outbox and one arena for reading, one for writing");
    let mut bytes = [0; 4];
    readable.read_at(0, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"mine");
    drop(writable);
}

/// One end that behaves, for some time, against another that scribbles over its outbox, its tags and the writable arena.
fn scribbled(seed: u64) -> Option<&'static str> {
    let [domain, other] = [domain(), domain()];
    let listener = ShmListener::bind(&domain, &fresh()).expect("a listener");
    let (mut endpoint, mut cheat) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&other, listener.address(), RECEIVES, WITHIN));
        let accepted = listener.accept(RECEIVES, WITHIN).expect("accepted");
        (accepted, connecting.join().expect("no panic").expect("connected"))
    });
    let shared = domain.arena(64 << 10, Sharing::Writable).expect("an arena");
    let kept = domain.arena(64 << 10, Sharing::Readable).expect("an arena");
    kept.write_at(0, &[7; 64 << 10]).expect("inside");
    let theirs = other.arena(64 << 10, Sharing::Writable).expect("an arena");
    let offered = register(&other, &theirs, ALL);
    let segment = crate::fabric::Domain::remote(&other, offered.key(), theirs.as_ptr(), 4096);
    let done = AtomicBool::new(false);
    let fault = std::thread::scope(|scope| {
        let (done, cheat_link, other, shared) = (&done, cheat.link(), &other, &shared);
        scope.spawn(move || {
            let mut rng = StdRng::seed_from_u64(seed);
            while !done.load(Relaxed) {
                // Some cheat in one way only, so that what it leads to goes on for longer.
                let way = if seed.is_multiple_of(2) { rng.random_range(0..4) } else { seed / 2 % 4 };
                let (place, bytes) = match way {
                    // Control words, which are where something can be had, and the beginning of the ring.
                    0 => (&cheat_link.own, 384),
                    1 => (&cheat_link.own, OUTBOX),
                    2 => {
                        other.scribble(rng.random_range(0..1 << 10), rng.random());
                        continue;
                    }
                    _ => {
                        let _ = shared.write_at(rng.random_range(0..(64 << 10) - 8), &rng.random::<[u8; 8]>());
                        continue;
                    }
                };
                let at = rng.random_range(0..bytes) & !7;
                // Small numbers are those that are nearly right.
                let word = if rng.random() { rng.random() } else { rng.random_range(0..64) * 8 };
                // `closed` now and then only, or nothing else would ever be tried.
                if at != 0 || rng.random_ratio(1, 50) {
                    place.word(at).store(word, Relaxed);
                }
                if rng.random_ratio(1, 20) {
                    std::thread::yield_now();
                }
            }
        });
        let mut memory = vec![0_u8; 4096];
        let near = Registration::new(&domain, memory.as_ptr(), 4096, Access::LOCAL).expect("registered");
        let local = [Local { address: memory.as_mut_ptr(), length: 4096, registration: near.key() }];
        let mut message = Box::new([0; MESSAGE]);
        let until = Instant::now() + WITHIN;
        let mut turns = 0;
        loop {
            assert!(Instant::now() < until, "it never ends");
            turns += 1;
            if turns == 400 {
                endpoint.disconnect();
            }
            // SAFETY: registered, and without another user; what is posted has ended when the call returns.
            unsafe {
                let _ = endpoint.read(1, &local, segment);
                let _ = endpoint.write(2, &local, segment, None);
            }
            // More than the cheat has receives for: it has to say that it has more, and it does.
            let _ = endpoint.send(&[1; 100]);
            let _ = endpoint.receive(1);
            let mut own = register(&domain, shared, ALL);
            let _ = own.end();
            // The access that a stalled peer claims waits for the end of this.
            std::mem::forget(own);
            match endpoint.poll(&mut message) {
                Some(Completion::Flushed) => break,
                Some(_) => {}
                None => endpoint.wait(Some(endpoint.now() + 10_000)),
            }
        }
        done.store(true, Relaxed);
        endpoint.fault()
    });
    let mut bytes = vec![0; 64 << 10];
    kept.read_at(0, &mut bytes).expect("inside");
    assert!(bytes.iter().all(|&byte| byte == 7), "seed {seed}: what is for reading is as it was");
    cheat.disconnect();
    cheat.link().leave();
    assert_eq!((domain.quarantine(), domain.connections()), (Default::default(), 0), "seed {seed}");
    fault
}

fn register<'a>(domain: &'a ShmDomain, arena: &ShmArena, access: Access) -> Registration<'a> {
    Registration::new(domain, arena.as_ptr(), arena.len(), access).expect("registered")
}

#[test]
fn scribbling_ends_only_the_connection() {
    let rounds = std::env::var("ROUNDS").ok().map_or(60, |text| text.parse().expect("a number"));
    let mut faults = std::collections::BTreeMap::new();
    for seed in 0..rounds {
        *faults.entry(scribbled(seed)).or_insert(0) += 1;
    }
    println!("{faults:?}");
    // Which faults are met is up to the scheduler: a few rounds may see the most frequent one only.
    assert!(rounds < 600 || faults.len() > 1, "{faults:?}");
}

#[test]
fn any_outbox_content_is_taken_or_refused() {
    let [domain, other] = [domain(), domain()];
    let listener = ShmListener::bind(&domain, &fresh()).expect("a listener");
    let (endpoint, cheat) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&other, listener.address(), RECEIVES, WITHIN));
        let accepted = listener.accept(RECEIVES, WITHIN).expect("accepted");
        (accepted, connecting.join().expect("no panic").expect("connected"))
    });
    let (link, theirs) = (endpoint.link(), &cheat.link().own);
    let mut rng = StdRng::seed_from_u64(9);
    let mut message = Box::new([0; MESSAGE]);
    let mut outcomes = [0; 6];
    for _ in 0..2_000 {
        let mut rings = Rings::new(&link.own, u16::MAX);
        link.own.word(TAKEN).store(0, Relaxed);
        (0..OUTBOX).step_by(8).take(64).for_each(|at| theirs.word(at).store(0, Relaxed));
        let mut written = 0_u64;
        for _ in 0..50 {
            // Nearly right: a record after the last, of nearly the right length, and now and then anything.
            let length = rng.random_range(0..MESSAGE as u64 + 100);
            let kinds = if rng.random_ratio(1, 20) { 0..4 } else { 1..3 };
            let kind = rng.random_range(kinds);
            let header = if rng.random_ratio(1, 50) { rng.random() } else { kind << 32 | length };
            theirs.word(RING + written as usize % ROOM).store(header, Relaxed);
            let bytes = if kind == 1 { 8 + length.next_multiple_of(8) } else { 8 };
            let said = match rng.random_range(0..40) {
                0 => rng.random(),
                1 => written.wrapping_sub(8),
                2 => written + bytes - 8,
                3 => written + bytes + 8 * rng.random_range(0..20_000),
                4 => written + bytes + 1,
                _ => written + bytes,
            };
            theirs.word(WRITTEN).store(said, Relaxed);
            let there = said.wrapping_sub(link.own.word(TAKEN).load(Relaxed));
            let taken = rings.take(link, &mut message);
            assert!(taken.is_err() || (there.is_multiple_of(8) && there <= ROOM as u64), "{there} bytes of a ring");
            outcomes[match taken {
                Ok(None) => 0,
                Ok(Some(Record::Message(length))) => {
                    assert!(length <= MESSAGE);
                    1
                }
                Ok(Some(Record::Immediate(_))) => 2,
                Err(_) => 3,
            }] += 1;
            if said != written + bytes {
                break;
            }
            written += bytes;
            let number = if rng.random() { rng.random() } else { rng.random_range(0..1 << 17) };
            theirs.word(if rng.random() { RECEIVES_WORD } else { TAKEN }).store(number, Relaxed);
            outcomes[4 + usize::from(rings.has_room(link, rng.random_range(0..MESSAGE)).is_err())] += 1;
        }
    }
    println!("{outcomes:?}");
    assert!(outcomes.iter().all(|&times| times > 10), "{outcomes:?}");
    // Tags.
    for round in 0..200_000_u64 {
        let words = [rng.random::<u32>().into(), rng.random(), rng.random(), rng.random()]
            .map(|word: u64| if round.is_multiple_of(2) { word } else { word & 0xffff });
        let key = words[0] as u32;
        let slot = (key as usize & 16_383) * 8;
        other.scribble(slot, 1 << 32 | u64::from(key));
        (1..4).for_each(|at| other.scribble(slot + at, words[at]));
        let [address, length] = [0; 2].map(|_| rng.random::<u64>() >> rng.random_range(0..64_u32));
        if let Some(tag) = link.tags.find(key, address, length, 3) {
            assert!(address >= words[1] && length <= words[2] && tag.offset < 1 << 40);
        }
    }
}

#[test]
fn a_peer_of_another_user_is_refused() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can start a process of another user");
        return;
    }
    let listener = ShmListener::bind(&domain(), &fresh()).expect("a listener");
    // A copy where that user can reach it.
    let copy = std::env::temp_dir().join(format!("frrwp-other-user-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().expect("this binary"), &copy).expect("copied");
    let child = std::process::Command::new(&copy)
        .args(["fabric::shm::tests::hostile::child_of_another_user", "--exact", "--ignored"])
        .env("FRRWP_SHM_ADDRESS", listener.address().to_string())
        .current_dir("/")
        .uid(65_534)
        .stdout(std::process::Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        let _ = std::fs::remove_file(&copy);
        println!("SKIPPED: that user cannot run this binary");
        return;
    };
    let accepted = listener.accept(RECEIVES, WITHIN);
    let status = child.wait().expect("its end");
    let _ = std::fs::remove_file(&copy);
    let error = accepted.expect_err("another user");
    assert!(matches!(error, ShmError::OtherUser { uid: 65_534, own: 0, .. }), "{error}");
    assert!(status.success(), "the other side refuses as well");
}

#[test]
#[ignore = "the other process of a test"]
fn child_of_another_user() {
    let Ok(address) = std::env::var("FRRWP_SHM_ADDRESS") else { return };
    let refused = connect(&domain(), &address.parse().expect("an address"), RECEIVES, WITHIN);
    assert!(matches!(refused.expect_err("another user"), ShmError::OtherUser { .. }));
}

#[test]
fn a_memory_file_is_made_with_its_seals() {
    for (writers, future) in [(Writers::Maker, true), (Writers::Anybody, false)] {
        let (file, mapping) = Mapping::create("test", 4096, writers).expect("made");
        let seals = rustix::fs::fcntl_get_seals(&file).expect("seals");
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
        assert_eq!(seals.contains(SealFlags::FUTURE_WRITE), future);
        mapping.word(0).store(1, Relaxed);
    }
}
