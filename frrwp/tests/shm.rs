//! Transfers between two engines over shared memory, in one process and between two, and what is refused.
//!
//! ```text
//! cargo test --release -p frrwp --test shm
//! ```
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "buffers are lent to engines by address")]

use frrwp::engine::{Engine, Event};
use frrwp::fabric::shm::{
    NotOffered, Sharing, ShmAddress, ShmArena, ShmBuffer, ShmDomain, ShmEndpoint, ShmError, ShmListener, ShmOptions,
    connect,
};
use frrwp::fabric::{Completion, Domain, Endpoint, Local};
use frrwp::handshake::{Limits, Process, RECEIVES, Side, Tag};
use frrwp::wire::MESSAGE;
use mrrc::invalidation::Explicit;
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, Cache, PageRange};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);
const TARGET: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn domain() -> ShmDomain {
    ShmDomain::new(ShmOptions::default()).expect("a domain")
}

fn cache(domain: &ShmDomain, pages: u64) -> Cache<ShmDomain> {
    let builder = Cache::builder(domain.clone()).ignore_environment().monitor(Explicit).background(false);
    builder.capacity_pages(pages).build().expect("a cache")
}

fn fresh() -> ShmAddress {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, SeqCst);
    format!("shm:@frrwp-test-{}-{next}", std::process::id()).parse().expect("an address")
}

/// A directory that goes with the test.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("frrwp-shm-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn socket(&self) -> ShmAddress {
        ShmAddress::of_path(&self.0.join("s")).expect("an address")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pair(one: &ShmDomain, other: &ShmDomain) -> (ShmEndpoint, ShmEndpoint) {
    let listener = ShmListener::bind(one, &fresh()).expect("a listener");
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(other, listener.address(), RECEIVES, WITHIN));
        let accepted = listener.accept(RECEIVES, WITHIN).expect("accepted");
        (accepted, connecting.join().expect("no panic").expect("connected"))
    })
}

#[test]
fn private_arenas_reach_only_peers_they_are_passed_to() {
    let (one, others) = (domain(), [domain(), domain()]);
    let before = one.private_arena(8192, Sharing::Writable).expect("an arena");
    let mut ends: Vec<_> = others.iter().map(|other| pair(&one, other)).collect();
    let after = one.private_arena(8192, Sharing::Writable).expect("an arena");
    let source = others.each_ref().map(|other| other.arena(4096, Sharing::Readable).expect("an arena"));
    for arena in [&before, &after] {
        for _ in 0..2 {
            ends[0].0.pass(arena).expect("passed, and once only");
        }
        let range = PageRange::of_bytes(arena.as_ptr() as u64, 8192).expect("pages");
        let registration = one.register(range, Access::REMOTE_READ | Access::REMOTE_WRITE).expect("a key");
        let to = one.remote(&registration, arena.as_ptr().wrapping_add(4000), 200);
        for (at, is_written) in [(0, true), (1, false)] {
            source[at].write_at(0, &[7; 200]).expect("inside");
            let own = PageRange::of_bytes(source[at].as_ptr() as u64, 4096).expect("pages");
            let key = others[at].register(own, Access::LOCAL_READ).expect("a key");
            let from = [Local { address: source[at].as_ptr(), length: 200, registration: &key }];
            // SAFETY: the arena outlives the write, which has ended when this returns.
            let posted = unsafe { ends[at].1.write(3, &from, to, None) };
            let done = ends[at].1.poll(&mut [0; MESSAGE]);
            let written = posted.is_ok() && done == Some(Completion::Done { id: 3, succeeded: true });
            assert_eq!(written, is_written, "peer {at}: {done:?}");
        }
        let mut found = [0; 200];
        arena.read_at(4000, &mut found).expect("inside");
        assert_eq!(found, [7; 200]);
        arena.clear(0..4096).expect("whole pages");
        arena.read_at(4000, &mut found).expect("inside");
        assert!(found[..96] == [0; 96] && found[96..] == [7; 104], "one page is cleared");
        assert!(arena.clear(0..100).is_err() && arena.clear(4096..12288).is_err());
        one.deregister(&mut vec![Registered { range, access: Access::REMOTE_READ, registration }]).expect("no user");
    }
}

/// Bytes that follow from the seed; quickly made where nothing is optimised.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let word = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let mut buffer: Vec<u8> = (0..bytes.div_ceil(8)).map(word).flat_map(u64::to_le_bytes).collect();
    buffer.truncate(bytes);
    buffer
}

/// Returns the opener's header: the seed of its bytes, or of those it wants.
fn header(seed: u64, length: usize) -> [u8; 16] {
    let mut header = [0; 16];
    header[..8].copy_from_slice(&seed.to_le_bytes());
    header[8..].copy_from_slice(&(length as u64).to_le_bytes());
    header
}

fn parse(header: &[u8]) -> (u64, usize) {
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    (word(0), word(8) as usize)
}

struct Running {
    buffer: ShmBuffer,
    /// The expected bytes, where bytes come.
    expected: Option<Vec<u8>>,
}

impl Running {
    fn check(&self, bytes: u64) {
        let Some(expected) = &self.expected else { return };
        assert_eq!(bytes, expected.len() as u64);
        let mut came = vec![0; expected.len()];
        self.buffer.read_at(0, &mut came).expect("inside");
        assert!(came == *expected, "the bytes differ");
    }
}

fn filled(arena: &ShmArena, bytes: &[u8]) -> ShmBuffer {
    let buffer = arena.buffer(bytes.len().max(1)).expect("a buffer");
    buffer.write_at(0, bytes).expect("inside");
    buffer
}

/// Opens so many transfers, a few at a time, answers those of the peer, and goes when both are through. The peer knows
/// from the headers what it has to get and give.
fn side(engine: &mut Engine<'_, ShmEndpoint>, arena: &ShmArena, seed: u64, transfers: usize, longest: usize) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut running: HashMap<Tag, Running> = HashMap::new();
    let (mut opened, mut ended, mut answered) = (0, 0, 0);
    loop {
        while opened < transfers && running.len() < 6 {
            let of = rng.random();
            let length = if rng.random_ratio(1, 20) { 0 } else { rng.random_range(1..=longest) };
            let bytes = noise(of, length);
            let read = rng.random();
            let start = if read { arena.buffer(length.max(1)).expect("a buffer") } else { filled(arena, &bytes) };
            // SAFETY: the buffer is kept until the transfer has ended.
            let tag = unsafe {
                if read {
                    engine.open_read(start.as_ptr(), length, &header(of, length))
                } else {
                    engine.open_write(start.as_ptr(), length, &header(of, length))
                }
            };
            let expected = read.then_some(bytes);
            running.insert(tag.expect("opened"), Running { buffer: start, expected });
            opened += 1;
        }
        if ended == transfers && answered == transfers {
            return ended;
        }
        match engine.run() {
            Some(Event::Requested { tag, read, length }) => {
                let (of, said) = parse(engine.header(tag).expect("a header"));
                assert_eq!(said as u64, length);
                let bytes = noise(of, said);
                let buffer = if read { filled(arena, &bytes) } else { arena.buffer(said.max(1)).expect("a buffer") };
                // SAFETY: the buffers outlive the engine and have no other user.
                unsafe {
                    if read {
                        engine.accept_read(tag, buffer.as_ptr(), said).expect("supplied");
                    } else {
                        engine.accept_write(tag, buffer.as_ptr(), said).expect("accepted");
                    }
                }
                running.insert(tag, Running { buffer, expected: (!read).then_some(bytes) });
            }
            Some(Event::KeysCame { tag }) => engine.submit(tag).expect("submitted"),
            Some(Event::Completed { tag, result }) => {
                let mine = running.remove(&tag).expect("a transfer of ours");
                mine.check(result.expect("it ended well"));
                // Tags of the connecting side are odd.
                let own = tag.0 % 2 == seed % 2;
                if own { ended += 1 } else { answered += 1 }
            }
            Some(other) => panic!("{other:?}, after {ended} and {answered}"),
            None => panic!("closed"),
        }
    }
}

fn both_sides(limits: Limits, transfers: usize, longest: usize, capacity: u64) {
    let domains = [domain(), domain()];
    let arenas = [0, 1].map(|at: usize| domains[at].arena(8 << 20, Sharing::Writable).expect("an arena"));
    let caches = [0, 1].map(|at: usize| cache(&domains[at], capacity));
    let (accepted, connected) = pair(&domains[0], &domains[1]);
    std::thread::scope(|scope| {
        let (caches, arenas) = (&caches, &arenas);
        let other = scope.spawn(move || {
            let mut engine = Engine::new(&caches[1], connected, Side::Connecting, limits);
            side(&mut engine, &arenas[1], 1, transfers, longest);
            // The first one through waits until the other has heard.
            engine.disconnect();
            while engine.run().is_some() {}
        });
        let mut engine = Engine::new(&caches[0], accepted, Side::Accepting, limits);
        side(&mut engine, &arenas[0], 2, transfers, longest);
        while engine.run().is_some() {}
        other.join().expect("no panic");
    });
    for (cache, domain) in caches.iter().zip(&domains) {
        cache.flush().expect("flushed");
        assert_eq!((cache.usage().regions, domain.keys(), domain.connections()), (0, 0, 0), "nothing is held");
    }
}

#[test]
fn bytes_arrive_in_both_directions_by_both_processes() {
    for process in [Process::Frrwp, Process::Traditional] {
        for immediate in [false, true] {
            both_sides(Limits { process, immediate, ..Limits::default() }, 60, 100_001, 4_000);
        }
    }
}

#[test]
fn bytes_arrive_where_the_cache_has_room_for_few() {
    both_sides(Limits::default(), 200, 200_000, 700);
}

#[test]
fn a_megabyte_goes_in_pieces() {
    both_sides(Limits::default(), 4, 1 << 20, 4_000);
}

// ---- Two processes ----------------------------------------------------------------------------------

const ADDRESS: &str = "FRRWP_SHM_ADDRESS";

/// A child that runs one test of this binary.
struct Peer(Child);

impl Peer {
    fn of(test: &str, address: &ShmAddress) -> Self {
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args([test, "--exact", "--nocapture", "--ignored"])
            .env(ADDRESS, address.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn();
        Self(child.expect("a child"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the other process of a test"]
fn child_that_transfers() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let domain = domain();
    let arena = domain.arena(8 << 20, Sharing::Writable).expect("an arena");
    let cache = cache(&domain, 1_000);
    let endpoint = connect(&domain, &address.parse().expect("an address"), RECEIVES, WITHIN).expect("connected");
    let mut engine = Engine::new(&cache, endpoint, Side::Connecting, Limits::default());
    side(&mut engine, &arena, 1, 300, 150_000);
    engine.disconnect();
    while engine.run().is_some() {}
}

#[test]
fn bytes_arrive_between_two_processes() {
    let directory = Directory::new();
    let domain = domain();
    let arena = domain.arena(8 << 20, Sharing::Writable).expect("an arena");
    let cache = cache(&domain, 1_000);
    let listener = ShmListener::bind(&domain, &directory.socket()).expect("a listener");
    let mut peer = Peer::of("child_that_transfers", listener.address());
    let endpoint = listener.accept(RECEIVES, WITHIN).expect("accepted");
    let mut engine = Engine::new(&cache, endpoint, Side::Accepting, Limits::default());
    assert_eq!(side(&mut engine, &arena, 2, 300, 150_000), 300);
    while engine.run().is_some() {}
    drop(engine);
    assert!(peer.0.wait().expect("its end").success());
    cache.flush().expect("flushed");
    assert_eq!((domain.keys(), domain.connections()), (0, 0), "nothing is held");
}

// ---- One-sided operations and rights ----------------------------------------------------------------

struct Registration<'a>(&'a ShmDomain, Vec<Registered<frrwp::fabric::shm::ShmKey>>);

impl<'a> Registration<'a> {
    fn new(domain: &'a ShmDomain, buffer: &ShmBuffer, access: Access) -> Self {
        let range = PageRange::of_bytes(buffer.as_ptr() as u64, buffer.len() as u64).expect("a range");
        let registration = domain.register(range, access).expect("registered");
        Self(domain, vec![Registered { range, access, registration }])
    }

    fn key(&self) -> &frrwp::fabric::shm::ShmKey {
        &self.1[0].registration
    }

    fn offer(&self, buffer: &ShmBuffer) -> frrwp::wire::Segment {
        self.0.remote(self.key(), buffer.as_ptr(), buffer.len())
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.0.deregister(&mut self.1).expect("deregistered");
    }
}

fn done(endpoint: &mut ShmEndpoint) -> bool {
    let mut message = Box::new([0; MESSAGE]);
    loop {
        match endpoint.poll(&mut message) {
            Some(Completion::Done { succeeded, .. }) => return succeeded,
            Some(other) => panic!("{other:?}"),
            None => endpoint.wait(None),
        }
    }
}

#[test]
fn access_is_limited_to_the_offer() {
    // The operation, and whether it is possible.
    type Case = (&'static str, Access, Sharing, bool, bool, fn(&mut frrwp::wire::Segment));
    let cases: [Case; 10] = [
        ("a read", Access::REMOTE_READ, Sharing::Readable, true, true, |_| {}),
        ("a write", TARGET, Sharing::Writable, false, true, |_| {}),
        ("a read of what is for writing", TARGET, Sharing::Writable, true, false, |_| {}),
        ("a write of what is for reading", Access::REMOTE_READ, Sharing::Readable, false, false, |_| {}),
        ("a byte too far", TARGET, Sharing::Writable, false, false, |to| to.address += 4097),
        ("before the first byte", TARGET, Sharing::Writable, false, false, |to| to.address -= 1),
        ("another key", TARGET, Sharing::Writable, false, false, |to| to.key ^= 1 << 20),
        ("no key", TARGET, Sharing::Writable, false, false, |to| to.key = 0),
        ("another arena", TARGET, Sharing::Writable, false, false, |to| to.address += 1 << 40),
        ("the end of numbers", TARGET, Sharing::Writable, false, false, |to| to.address = u64::MAX - 3),
    ];
    for (what, access, sharing, read, succeeds, bend) in cases {
        let [owner, other] = [domain(), domain()];
        let (_accepted, mut connected) = pair(&owner, &other);
        // After the connection: the memory is passed when it is made.
        let arena = owner.arena(1 << 20, sharing).expect("an arena");
        let _before = arena.buffer(4096).expect("a buffer");
        let far = filled(&arena, &noise(1, 4096));
        let registered = Registration::new(&owner, &far, access);
        let mut near = noise(2, 4096);
        let range = PageRange::of_bytes(near.as_ptr() as u64, 4096).expect("a range");
        let local = other.register(range, Access::LOCAL).expect("any memory can be local");
        let mut segment = registered.offer(&far);
        bend(&mut segment);
        let piece = [Local { address: near.as_mut_ptr(), length: 4096, registration: &local }];
        // SAFETY: what is posted has ended when the call returns.
        unsafe {
            if read { connected.read(7, &piece, segment) } else { connected.write(7, &piece, segment, None) }
                .expect("posted");
        }
        assert_eq!(done(&mut connected), succeeds, "{what}");
        let mut after = vec![0; 4096];
        far.read_at(0, &mut after).expect("inside");
        let expected = [(2, 1), (2, 2), (1, 1)][usize::from(succeeds) + usize::from(succeeds && read)];
        assert!((&near, &after) == (&noise(expected.0, 4096), &noise(expected.1, 4096)), "{what}");
        if !succeeds {
            let mut message = Box::new([0; MESSAGE]);
            assert_eq!(connected.poll(&mut message), Some(Completion::Lost), "{what} costs the connection");
            assert_eq!(connected.poll(&mut message), Some(Completion::Flushed));
        }
    }
}

#[test]
fn a_dead_tag_is_of_no_use() {
    let [owner, other] = [domain(), domain()];
    let (_accepted, mut connected) = pair(&owner, &other);
    let arena = owner.arena(1 << 20, Sharing::Readable).expect("an arena");
    let buffer = filled(&arena, &noise(1, 4096));
    let registered = Registration::new(&owner, &buffer, Access::REMOTE_READ);
    let segment = registered.offer(&buffer);
    drop(registered);
    let mut near = vec![0; 4096];
    let range = PageRange::of_bytes(near.as_ptr() as u64, 4096).expect("a range");
    let local = other.register(range, Access::LOCAL).expect("registered");
    let piece = [Local { address: near.as_mut_ptr(), length: 4096, registration: &local }];
    // SAFETY: the piece's memory outlives the endpoint and has no other user.
    unsafe { connected.read(7, &piece, segment) }.expect("posted");
    assert!(!done(&mut connected));
    assert!(near.iter().all(|&byte| byte == 0));
}

#[test]
fn child_deregistration_leaves_parent_tags() {
    let (one, other) = (domain(), domain());
    let (mut initiator, _owner) = pair(&one, &other);
    let (arena, far) = (one.arena(4096, Sharing::Writable), other.arena(4096, Sharing::Writable));
    let (arena, far) = (arena.expect("an arena"), far.expect("an arena"));
    let (near, target) = (arena.buffer(4096).expect("room"), far.buffer(4096).expect("room"));
    let local = Registration::new(&one, &near, Access::LOCAL);
    let remote = Registration::new(&other, &target, TARGET);
    // SAFETY: the child drops what it has a copy of, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a child that hangs is ended by the signal.
        unsafe { libc::alarm(60) };
        drop(remote);
        // SAFETY: `_exit` ends this child without destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local integer that the call may write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended by itself");
    let piece = Local { address: near.as_ptr(), length: 4096, registration: local.key() };
    // SAFETY: the piece's memory outlives the endpoint and has no other user.
    unsafe { initiator.write(1, &[piece], remote.offer(&target), None) }.expect("posted");
    assert!(done(&mut initiator));
}

#[test]
fn memory_outside_arenas_is_not_offered() {
    let domain = domain();
    let heap = noise(1, 1 << 16);
    let range = PageRange::of_bytes(heap.as_ptr() as u64, 1 << 16).expect("a range");
    let error = domain.register(range, TARGET).expect_err("not shared");
    let cause = error.get_ref().and_then(|error| error.downcast_ref::<NotOffered>());
    assert_eq!(cause, Some(&NotOffered::NotShared { range }));
    assert!(error.to_string().contains("ShmDomain::arena"), "{error}");
    assert!(domain.probe(range, TARGET).is_err() && domain.probe(range, Access::LOCAL).is_ok());
    let arena = domain.arena(4096, Sharing::Readable).expect("an arena");
    let range = PageRange::of_bytes(arena.as_ptr() as u64, 4096).expect("a range");
    let error = domain.register(range, TARGET).expect_err("for reading");
    assert!(error.to_string().contains("Sharing::Writable"), "{error}");
    // A page past the end.
    let range = PageRange::of_bytes(arena.as_ptr() as u64, 4097).expect("a range");
    assert!(domain.register(range, Access::REMOTE_READ).is_err());
}

#[test]
fn arenas_come_and_go_while_connections_stand() {
    let [owner, other] = [domain(), domain()];
    let (_accepted, mut connected) = pair(&owner, &other);
    for round in 0..300 {
        let arena = owner.arena(8192, Sharing::Readable).expect("an arena");
        let bytes = noise(round, 8192);
        let buffer = filled(&arena, &bytes);
        let registered = Registration::new(&owner, &buffer, Access::REMOTE_READ);
        let mut near = vec![0; 8192];
        let range = PageRange::of_bytes(near.as_ptr() as u64, 8192).expect("a range");
        let local = other.register(range, Access::LOCAL).expect("registered");
        let piece = [Local { address: near.as_mut_ptr(), length: 8192, registration: &local }];
        // SAFETY: the piece's memory outlives the endpoint and has no other user.
        unsafe { connected.read(7, &piece, registered.offer(&buffer)) }.expect("posted");
        assert!(done(&mut connected) && near == bytes, "round {round}");
    }
}

#[test]
fn messages_wrap_in_order_within_room() {
    let (mut one, mut other) = pair(&domain(), &domain());
    let mut rng = StdRng::seed_from_u64(5);
    let mut message = Box::new([0; MESSAGE]);
    let (mut sent, mut came) = (0_u64, 0_u64);
    let mut blocked = 0;
    for _ in 0..20_000 {
        if rng.random() {
            let length = if rng.random_ratio(1, 4) { rng.random_range(0..=MESSAGE) } else { rng.random_range(0..100) };
            match one.send(&noise(sent, length)) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    blocked += 1;
                }
            }
        } else if let Some(completion) = other.poll(&mut message) {
            let Completion::Message { length } = completion else { panic!("{completion:?}") };
            assert!(message[..length] == noise(came, length));
            came += 1;
            other.receive(if rng.random_ratio(1, 100) { 0 } else { 1 }).expect("posted");
            if rng.random_ratio(1, 50) {
                other.receive(2).expect("posted");
            }
        }
    }
    println!("{came} of {sent} messages came, {blocked} were blocked");
    assert!(blocked > 10 && came > 1_000);
}

#[test]
fn message_before_end_arrives_first() {
    let (mut one, mut other) = pair(&domain(), &domain());
    one.send(b"last words").expect("sent");
    drop(one);
    let mut message = Box::new([0; MESSAGE]);
    other.wait(None);
    assert_eq!(other.poll(&mut message), Some(Completion::Message { length: 10 }));
    let mut next = || {
        loop {
            if let Some(completion) = other.poll(&mut message) {
                return completion;
            }
            other.wait(None);
        }
    };
    assert_eq!([next(), next()], [Completion::Lost, Completion::Flushed]);
}

#[test]
fn who_sleeps_is_woken() {
    let (mut one, mut other) = pair(&domain(), &domain());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = Box::new([0; MESSAGE]);
            for _ in 0..2_000 {
                while other.poll(&mut message).is_none() {
                    other.wait(None);
                }
                other.receive(1).expect("posted");
                while other.send(b"pong").is_err() {
                    other.wait(None);
                }
            }
        });
        let mut message = Box::new([0; MESSAGE]);
        for _ in 0..2_000 {
            one.send(b"ping").expect("sent");
            while one.poll(&mut message).is_none() {
                one.wait(None);
            }
            one.receive(1).expect("posted");
        }
    });
}

// ---- Addresses, sockets and other programs ----------------------------------------------------------

#[test]
fn unparsable_addresses_show_the_form() {
    for (text, remedy) in [
        ("tcp:1", "shm:PATH"),
        ("shm:", "shm:PATH"),
        ("shm:@", "shm:@NAME"),
        ("shm:/tmp/", "a directory"),
        ("shm:/a\0b", "zero byte"),
        (&*format!("shm:/{}", "x".repeat(107)), "107 bytes"),
    ] {
        let error = text.parse::<ShmAddress>().expect_err("no address").to_string();
        assert!(error.contains(remedy) && error.contains(&format!("{text:?}")), "{error}");
    }
    assert!(format!("shm:/{}", "x".repeat(106)).parse::<ShmAddress>().is_ok());
}

#[test]
#[ignore = "the other process of a test"]
fn child_that_listens() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let _listener = ShmListener::bind(&domain(), &address.parse().expect("an address")).expect("a listener");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn stale_socket_file_is_replaced() {
    let directory = Directory::new();
    let address = directory.socket();
    let mut peer = Peer::of("child_that_listens", &address);
    let one = domain();
    let connected = (0..1_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let reached = connect(&one, &address, RECEIVES, Duration::from_millis(1));
        matches!(reached, Err(ShmError::TimedOut { .. })).then_some(())
    });
    connected.expect("it listens, and does not accept");
    let error = ShmListener::bind(&one, &address).expect_err("in use");
    assert!(matches!(error, ShmError::InUse { .. }), "{error}");
    peer.0.kill().expect("killed");
    peer.0.wait().expect("its end");
    assert!(address.path().is_some_and(|path| path.exists()), "left behind");
    let error = connect(&one, &address, RECEIVES, WITHIN).expect_err("nobody");
    assert!(matches!(error, ShmError::NobodyListens { .. }), "{error}");
    let listener = ShmListener::bind(&one, &address).expect("replaced");
    assert!(matches!(ShmListener::bind(&one, &address), Err(ShmError::InUse { .. })));
    drop(listener);
    assert!(address.path().is_some_and(|path| !path.exists()), "taken away");
}

#[test]
fn of_many_who_replace_a_dead_socket_one_wins() {
    let directory = Directory::new();
    let address = directory.socket();
    for _ in 0..20 {
        drop(std::os::unix::net::UnixListener::bind(address.path().expect("a path")).expect("bound"));
        let barrier = std::sync::Barrier::new(4);
        let winners: Vec<_> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let domain = domain();
                        barrier.wait();
                        ShmListener::bind(&domain, &address)
                    })
                })
                .collect();
            tries.into_iter().map(|tried| tried.join().expect("no panic")).collect()
        });
        assert_eq!(winners.iter().filter(|bound| bound.is_ok()).count(), 1);
        assert!(
            winners.iter().flat_map(|bound| bound.as_ref().err()).all(|error| matches!(error, ShmError::InUse { .. }))
        );
    }
}

#[test]
fn files_that_are_no_sockets_are_left_alone() {
    let directory = Directory::new();
    let address = directory.socket();
    std::fs::write(address.path().expect("a path"), b"data").expect("written");
    assert!(matches!(ShmListener::bind(&domain(), &address), Err(ShmError::NotASocket { .. })));
    assert_eq!(std::fs::read(address.path().expect("a path")).expect("there"), b"data");
    let nowhere = ShmAddress::of_path(&directory.0.join("none/s")).expect("an address");
    let error = ShmListener::bind(&domain(), &nowhere).expect_err("no directory");
    assert!(error.to_string().contains("choose another path"), "{error}");
}

#[test]
fn sockets_of_other_programs_are_told_apart() {
    let directory = Directory::new();
    let address = directory.socket();
    let _stream = std::os::unix::net::UnixListener::bind(address.path().expect("a path")).expect("bound");
    let error = connect(&domain(), &address, RECEIVES, WITHIN).expect_err("another kind");
    assert!(matches!(error, ShmError::OtherProtocol { .. }), "{error}");
    assert!(matches!(ShmListener::bind(&domain(), &address), Err(ShmError::InUse { .. })));
}

#[test]
fn the_socket_file_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new();
    let listener = ShmListener::bind(&domain(), &directory.socket()).expect("a listener");
    let file = std::fs::metadata(listener.address().path().expect("a path")).expect("there");
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
}

#[test]
fn child_drop_leaves_parent_socket_file() {
    let directory = Directory::new();
    let listener = ShmListener::bind(&domain(), &directory.socket()).expect("a listener");
    // SAFETY: the child drops what it has a copy of, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a child that hangs is ended by the signal.
        unsafe { libc::alarm(60) };
        drop(listener);
        // SAFETY: `_exit` ends this child without destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local integer that the call may write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended by itself");
    assert!(listener.address().path().expect("a path").exists());
    drop(listener);
    assert!(!directory.0.join("s").exists(), "it goes with its maker's");
}

#[test]
fn nobody_comes_and_the_listener_says_so() {
    let listener = ShmListener::bind(&domain(), &fresh()).expect("a listener");
    let error = listener.accept(RECEIVES, Duration::from_millis(20)).expect_err("nobody");
    assert!(matches!(error, ShmError::TimedOut { .. }), "{error}");
}
