//! The provider over RDMA devices: both ends of connections in one process, and a peer in another that is killed.
//!
//! Which device: see `common/device.rs`. The ignored tests are for the lab, where devices can be taken away.
#![cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is registered and posted by address")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/device.rs"]
mod device;

use device::Device;
use frrwp::fabric::verbs::{VerbsDomain, VerbsEnd, VerbsEndpoint, VerbsError, VerbsListener, VerbsOptions};
use frrwp::fabric::{Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::verbs::{MemoryRegion, Transport};
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::io::ErrorKind;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const RECEIVES: u16 = 16;
const WITHIN: Duration = Duration::from_secs(20);

/// What is counted is the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options() -> VerbsOptions {
    // A guest under emulation, on a busy machine, is slow.
    VerbsOptions { set_up: WITHIN, ..VerbsOptions::default() }
}

fn domain(device: &Device) -> VerbsDomain {
    VerbsDomain::reaching(&device.at(0), options()).unwrap()
}

fn is_iwarp(domain: &VerbsDomain) -> bool {
    domain.attributes().transport == Transport::Iwarp
}

fn listening(domain: &VerbsDomain, device: &Device) -> (VerbsListener, String) {
    let listener = domain.listen(&device.at(0)).unwrap();
    let address = format!("verbs:{}", listener.address().unwrap());
    (listener, address)
}

/// The end that connects and the one that was connected to.
fn pair(domain: &VerbsDomain, device: &Device) -> [VerbsEndpoint; 2] {
    let (mut listener, address) = listening(domain, device);
    connected(domain, &mut listener, &address)
}

fn connected(domain: &VerbsDomain, listener: &mut VerbsListener, address: &str) -> [VerbsEndpoint; 2] {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(RECEIVES, Some(WITHIN)).unwrap());
        [domain.connect(address, RECEIVES).unwrap(), accepting.join().unwrap()]
    })
}

/// Registered memory of whole pages.
struct Memory {
    domain: VerbsDomain,
    pages: Box<[u8]>,
    start: usize,
    length: usize,
    registered: Option<Registered<MemoryRegion>>,
}

impl Memory {
    fn new(domain: &VerbsDomain, length: usize) -> Self {
        let mut pages = vec![0; length + 2 * PAGE as usize].into_boxed_slice();
        let start = pages.as_ptr().align_offset(PAGE as usize);
        let range = PageRange::of_bytes(pages[start..].as_mut_ptr() as u64, length as u64).unwrap();
        let access = Access::LOCAL | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let registration = domain.register(range, access).unwrap();
        Self {
            domain: domain.clone(),
            pages,
            start,
            length,
            registered: Some(Registered { range, access, registration }),
        }
    }

    fn of(domain: &VerbsDomain, bytes: &[u8]) -> Self {
        let mut memory = Self::new(domain, bytes.len());
        memory.bytes().copy_from_slice(bytes);
        memory
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.pages[self.start..self.start + self.length]
    }

    fn local(&mut self, from: usize, length: usize) -> Local<'_, MemoryRegion> {
        let address = self.bytes()[from..from + length].as_mut_ptr();
        Local { address, length, registration: &self.registered.as_ref().unwrap().registration }
    }

    fn remote(&mut self, from: usize, length: usize) -> Segment {
        let address = self.bytes()[from..].as_ptr();
        self.domain.remote(&self.registered.as_ref().unwrap().registration, address, length)
    }

    fn deregister(&mut self) {
        let mut batch: Vec<_> = self.registered.take().into_iter().collect();
        self.domain.deregister(&mut batch).unwrap();
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.deregister();
    }
}

fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
}

/// What is next at this end, while the other is driven as well.
fn next(end: &mut VerbsEndpoint, other: &mut VerbsEndpoint) -> (Completion, Vec<u8>) {
    let mut message = Box::new([0; MESSAGE]);
    let until = Instant::now() + WITHIN;
    loop {
        if let Some(completion) = end.poll(&mut message) {
            let length = if let Completion::Message { length } = completion { length } else { 0 };
            return (completion, message[..length].to_vec());
        }
        assert!(Instant::now() < until, "nothing came: {end:?}, {other:?}");
        // Nudges are the other's as well.
        let soon = other.now() + 1_000_000;
        if other.why().is_none() {
            other.wait(Some(soon));
        }
        end.wait(Some(soon + 1_000_000));
    }
}

fn done(end: &mut VerbsEndpoint, other: &mut VerbsEndpoint, id: u64) {
    assert_eq!(next(end, other).0, Completion::Done { id, succeeded: true }, "{:?}", end.why());
}

/// Everything to the end of the connection.
fn rest(end: &mut VerbsEndpoint) -> Vec<Completion> {
    let mut message = Box::new([0; MESSAGE]);
    let (mut all, until) = (Vec::new(), Instant::now() + WITHIN);
    while all.last() != Some(&Completion::Flushed) {
        match end.poll(&mut message) {
            Some(completion) => all.push(completion),
            None => {
                assert!(Instant::now() < until, "it has no end: {end:?}, {all:?}");
                end.wait(Some(end.now() + 50_000_000));
            }
        }
    }
    all
}

/// What this process holds: descriptors, pinned memory, and what the kernel counts of the device.
#[derive(PartialEq, Eq, Debug)]
struct Held {
    descriptors: usize,
    pinned: String,
    counted: String,
}

impl Held {
    fn now(domain: Option<&VerbsDomain>) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let pinned = status.lines().find(|line| line.starts_with("VmPin")).unwrap_or_default().to_owned();
        let name = domain.map_or("", |domain| domain.device());
        let said = Command::new("rdma").args(["resource", "show", name]).output();
        let counted = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
        Self { descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(), pinned, counted }
    }

    /// Nothing more is held than then. siw unpins a little later than it says.
    #[track_caller]
    fn comes_back(&self, domain: Option<&VerbsDomain>) {
        let until = Instant::now() + WITHIN;
        loop {
            let now = Self::now(domain);
            if *self == now {
                return;
            }
            assert!(Instant::now() < until, "held before: {self:?}, and now: {now:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn messages_writes_and_reads_of_every_size_arrive_and_complete_in_order() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let [mut one, mut other] = pair(&domain, &device);
    for bytes in [0, 1, 127, 128, 129, 4096, MESSAGE] {
        let message = noise(bytes);
        one.send(&message).unwrap();
        assert_eq!(next(&mut other, &mut one), (Completion::Message { length: bytes }, message.clone()));
        other.receive(1).unwrap();
        other.send(&message).unwrap();
        assert_eq!(next(&mut one, &mut other), (Completion::Message { length: bytes }, message));
        one.receive(1).unwrap();
    }
    let gather = one.abilities().gather;
    let bytes = 100_000 * gather;
    let (mut source, mut sink) = (Memory::of(&domain, &noise(bytes)), Memory::new(&domain, bytes));
    // From pieces in another order, and a byte more than the last of them has.
    let to = sink.remote(0, bytes);
    let pieces: Vec<_> = (0..gather).rev().map(|piece| (piece * 100_000, 100_000)).collect();
    let address = source.bytes().as_mut_ptr();
    let registration = &source.registered.as_ref().unwrap().registration;
    let locals: Vec<_> = pieces
        .iter()
        .map(|&(from, length)| Local { address: address.wrapping_add(from), length, registration })
        .collect();
    // SAFETY: the memory is this test's, and lives longer than the connection.
    unsafe { one.write(7, &locals, to, None) }.unwrap();
    // SAFETY: as above; empty ones move nothing.
    unsafe { one.write(8, &[], Segment { length: 0, ..to }, None) }.unwrap();
    one.send(b"written").unwrap();
    done(&mut one, &mut other, 7);
    done(&mut one, &mut other, 8);
    assert_eq!(next(&mut other, &mut one).1, b"written");
    let expected: Vec<u8> =
        pieces.iter().flat_map(|&(from, length)| noise(bytes)[from..from + length].to_vec()).collect();
    assert!(sink.bytes() == expected, "the message came before the bytes, or they are wrong");
    // A read into two pieces.
    let from = source.remote(10, 50_000);
    let address = sink.bytes().as_mut_ptr();
    let registration = &sink.registered.as_ref().unwrap().registration;
    let locals = [(60_000, 20_000), (0, 30_000)].map(|(at, length)| Local {
        address: address.wrapping_add(at),
        length,
        registration,
    });
    // SAFETY: as above.
    unsafe { other.read(9, &locals, from) }.unwrap();
    done(&mut other, &mut one, 9);
    assert!(sink.bytes()[60_000..80_000] == noise(bytes)[10..20_010]);
    assert!(sink.bytes()[..30_000] == noise(bytes)[20_010..50_010]);
    drop((one, other));
}

#[test]
fn a_write_can_carry_an_immediate_where_the_device_says_so() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let [mut one, mut other] = pair(&domain, &device);
    let (mut source, mut sink) = (Memory::of(&domain, &noise(5000)), Memory::new(&domain, 5000));
    let to = sink.remote(0, 5000);
    // SAFETY: the memory is this test's, and lives longer than the connection.
    let posted = unsafe { one.write(1, &[source.local(0, 5000)], to, Some(0xdead_beef)) };
    if is_iwarp(&domain) {
        assert!(!one.abilities().immediate && posted.is_err());
        return;
    }
    posted.unwrap();
    assert_eq!(next(&mut other, &mut one).0, Completion::Immediate(0xdead_beef));
    assert!(sink.bytes() == noise(5000));
    done(&mut one, &mut other, 1);
}

#[test]
fn a_full_queue_says_so_and_takes_more_later() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = VerbsDomain::reaching(&device.at(0), VerbsOptions { depth: 8, ..options() }).unwrap();
    let [mut one, mut other] = pair(&domain, &device);
    let (mut source, mut sink) = (Memory::of(&domain, &noise(100_000)), Memory::new(&domain, 100_000));
    let (mut posted, mut full, mut ended) = (0, 0, 0);
    while ended < 100 {
        let to = sink.remote(0, 100_000);
        // SAFETY: the memory is this test's, and lives longer than the connection.
        match unsafe { one.write(posted, &[source.local(0, 100_000)], to, None) } {
            Ok(()) => posted += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                full += 1;
                done(&mut one, &mut other, ended);
                ended += 1;
            }
        }
    }
    assert!(full > 50, "{full}");
    assert_eq!(other.receive(1000).unwrap_err().kind(), ErrorKind::WouldBlock, "there is no room for so many receives");
    assert!(other.why().is_none());
}

#[test]
fn what_was_sent_before_a_side_disconnects_arrives_and_then_the_connection_is_told_to_be_gone() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    for connecting_leaves in [true, false] {
        let [one, other] = pair(&domain, &device);
        let (mut leaves, mut stays) = if connecting_leaves { (one, other) } else { (other, one) };
        let sent: Vec<_> = (0..RECEIVES as usize).map(|number| noise(100 * number + 1)).collect();
        sent.iter().for_each(|message| leaves.send(message).unwrap());
        drop(leaves);
        let mut message = Box::new([0; MESSAGE]);
        let mut came = Vec::new();
        while stays.why().is_none() || came.len() < sent.len() {
            match stays.poll(&mut message) {
                Some(Completion::Message { length }) => came.push(message[..length].to_vec()),
                Some(Completion::Lost) => break,
                Some(other) => panic!("{other:?}"),
                None => stays.wait(Some(stays.now() + 50_000_000)),
            }
        }
        assert!(came == sent, "{} of {} came: {:?}", came.len(), sent.len(), stays.why());
        assert_eq!(rest(&mut stays).last(), Some(&Completion::Flushed));
        assert!(stays.send(b"too late").is_err());
    }
}

#[test]
fn a_key_that_is_dead_ends_the_connection_and_says_which_it_was_and_another_connection_goes_on() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let (mut listener, address) = listening(&domain, &device);
    let mut ends = connected(&domain, &mut listener, &address);
    let mut source = Memory::of(&domain, &noise(100_000));
    let [one, other] = &mut ends;
    one.send(b"first").unwrap();
    assert_eq!(next(other, one).1, b"first");
    let held = Held::now(Some(&domain));
    for reads in [false, true, false, true] {
        let [one, other] = &mut ends;
        let mut sink = Memory::new(&domain, 100_000);
        let (good, mut dead) = (sink.remote(0, 100_000), Memory::new(&domain, 100_000));
        let gone = dead.remote(50_000, 10_000);
        dead.deregister();
        for id in 0..6 {
            let to = if id == 3 { gone } else { good };
            let local = [source.local(0, to.length as usize)];
            // SAFETY: the memory is this test's, and lives longer than the connection. What is read into is nobody's.
            let posted = unsafe { if reads { one.read(id, &local, to) } else { one.write(id, &local, to, None) } };
            // It may be over before all are posted.
            assert!(posted.is_ok() || (id > 3 && one.why().is_some()), "{id}: {posted:?}");
        }
        let ended = rest(one);
        let failed = ended.iter().any(|end| matches!(end, Completion::Done { succeeded: false, .. }));
        let why = one.why().unwrap().clone();
        if is_iwarp(&domain) {
            assert!(matches!(why, VerbsEnd::Broken { .. } | VerbsEnd::Closed), "{why:?}");
        } else {
            let Segment { address, length, key } = gone;
            let operation = if reads { "read" } else { "write" };
            assert_eq!(why, VerbsEnd::KeyRefused { operation, address, length, key });
            assert_eq!(ended.iter().filter(|end| matches!(end, Completion::Done { succeeded: true, .. })).count(), 3);
            assert!(failed);
        }
        assert_eq!(ended.iter().filter(|&&end| end == Completion::Lost).count(), 1, "{ended:?}");
        println!("said: {why}");
        let of_other = rest(other);
        println!("said at the other end: {}, {} things", other.why().unwrap(), of_other.len());
        // The connection is made again, and works.
        let again = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept(RECEIVES, Some(WITHIN)).unwrap());
            [one.connect_again().unwrap(), accepting.join().unwrap()]
        });
        assert!(matches!(other.connect_again(), Err(VerbsError::NotOurs { .. })));
        ends = again;
        let [one, other] = &mut ends;
        source.bytes().copy_from_slice(&noise(100_000));
        // SAFETY: as above.
        unsafe { one.write(9, &[source.local(0, 100_000)], good, None) }.unwrap();
        one.send(b"again").unwrap();
        done(one, other, 9);
        assert_eq!(next(other, one).1, b"again");
        assert!(sink.bytes() == noise(100_000));
    }
    held.comes_back(Some(&domain));
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let (mut listener, address) = listening(&domain, &device);
    drop(connected(&domain, &mut listener, &address));
    let held = Held::now(Some(&domain));
    let mut nudges = 0;
    for number in 0..20 {
        let [mut one, mut other] = connected(&domain, &mut listener, &address);
        one.send(b"here").unwrap();
        assert_eq!(next(&mut other, &mut one).1, b"here");
        other.send(b"there").unwrap();
        assert_eq!(next(&mut one, &mut other).1, b"there");
        nudges += one.nudges() + other.nudges();
        // Either may be the first to go.
        if number % 2 == 0 { drop((one, other)) } else { drop((other, one)) }
    }
    println!("{nudges} nudges");
    assert_eq!(domain.registrations(), 0);
    held.comes_back(Some(&domain));
}

#[test]
fn a_peer_that_takes_nothing_is_given_up_in_time() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let stall = Duration::from_millis(1500);
    let domain = VerbsDomain::reaching(&device.at(0), VerbsOptions { stall, ..options() }).unwrap();
    let [mut one, other] = pair(&domain, &device);
    // More than the peer has receives for; a device may forgive what it never told of.
    let begun = Instant::now();
    (0..2 * RECEIVES).for_each(|_| drop(one.send(&noise(1000))));
    if is_iwarp(&domain) {
        // iWARP ends the connection at once, or takes it all in.
        drop((one, other));
        return;
    }
    rest(&mut one);
    let why = one.why().unwrap();
    assert!(
        matches!(why, VerbsEnd::Stalled { .. } | VerbsEnd::NotReceiving { .. } | VerbsEnd::Silent { .. }),
        "{why:?}"
    );
    println!("said after {:?}: {why}", begun.elapsed());
    drop(other);
}

#[test]
fn a_child_that_drops_what_its_parent_has_changes_nothing_there() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let (listener, _) = listening(&domain, &device);
    let ends = pair(&domain, &device);
    let memory = Memory::of(&domain, &noise(1000));
    // SAFETY: the child drops, allocates little, and ends without running anything else of the test's.
    match unsafe { libc::fork() } {
        0 => {
            drop((ends, listener, domain));
            // SAFETY: nothing else runs.
            unsafe { libc::_exit(0) };
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    let [mut one, mut other] = ends;
    one.send(b"still here").unwrap();
    assert_eq!(next(&mut other, &mut one).1, b"still here");
    drop((listener, memory));
}

fn refused<T>(result: Result<T, VerbsError>) -> VerbsError {
    let error = result.map(drop).unwrap_err();
    println!("said: {error}");
    error
}

#[test]
fn what_is_wrong_with_an_address_is_said_with_what_to_do() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let short = VerbsOptions { set_up: Duration::from_secs(2), ..options() };
    let domain = VerbsDomain::reaching(&device.at(0), short).unwrap();
    let held = Held::now(Some(&domain));
    for text in ["verbs", "verbs:", "verbs:host", "verbs::7", "verbs:fe80::1:7", "iwarp:host:7", "verbs:host:70000"] {
        assert!(matches!(refused(domain.connect(text, 16)), VerbsError::Address { .. }), "{text}");
        assert!(matches!(refused(domain.listen(text)), VerbsError::Address { .. }), "{text}");
        assert!(matches!(refused(VerbsDomain::reaching(text, short)), VerbsError::Address { .. }), "{text}");
    }
    let unknown = refused(VerbsDomain::open(Some("nobody"), short));
    assert!(unknown.to_string().contains(domain.device()), "it lists those that there are: {unknown}");
    let (left, address) = listening(&domain, &device);
    drop(left);
    let nobody = refused(domain.connect(&address, 16));
    assert!(matches!(nobody, VerbsError::Refused { .. }), "{nobody:?}");
    // An address that no interface of this machine has, and none of its devices leads to in time.
    let not_here = refused(domain.listen("verbs:192.0.2.1:0"));
    assert!(matches!(not_here, VerbsError::NotHere { .. } | VerbsError::NoWay { .. }), "{not_here:?}");
    // The loopback has no device.
    let no_way = refused(domain.listen("verbs:127.0.0.1:0"));
    assert!(
        matches!(no_way, VerbsError::NoWay { .. } | VerbsError::NotHere { .. } | VerbsError::System { .. }),
        "{no_way:?}"
    );
    let (listener, address) = listening(&domain, &device);
    let taken = refused(domain.listen(&address));
    assert!(matches!(taken, VerbsError::PortInUse { .. }), "{taken:?}");
    // A server that never looks.
    let begun = Instant::now();
    let silent = domain.connect(&address, 16);
    assert!(begun.elapsed() < WITHIN, "given up in time");
    assert!(matches!(refused(silent), VerbsError::TimedOut { .. } | VerbsError::Hung { .. }));
    drop(listener);
    held.comes_back(Some(&domain));
}

#[test]
#[ignore = "for the lab: takes as long as the network does to know that nobody is there"]
fn a_host_that_is_not_there_is_given_up_in_time() {
    let Ok(address) = std::env::var("FRRWP_VERBS_NOBODY") else { return };
    let Some(device) = Device::get() else { return };
    let short = VerbsOptions { set_up: Duration::from_secs(6), ..options() };
    let domain = VerbsDomain::reaching(&device.at(0), short).unwrap();
    let begun = Instant::now();
    let nobody = refused(domain.connect(&address, 16));
    assert!(matches!(nobody, VerbsError::TimedOut { .. } | VerbsError::Unreachable { .. }), "{nobody:?}");
    assert!(begun.elapsed() < WITHIN);
}

/// `FRRWP_VERBS_EXPECT` is the name of the error, `FRRWP_VERBS_AS` the user to be.
#[test]
#[ignore = "for the lab: something is wrong with the system"]
fn opening_fails_as_expected() {
    let Ok(expected) = std::env::var("FRRWP_VERBS_EXPECT") else { return };
    if let Ok(user) = std::env::var("FRRWP_VERBS_AS") {
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::setuid(user.parse().unwrap()) }, 0);
    }
    let address = format!("verbs:{}:0", std::env::var("MRRC_VERBS_ADDRESS").unwrap());
    let opened = VerbsDomain::open(None, options()).and_then(|domain| domain.listen(&address).map(drop));
    let reached = VerbsDomain::reaching(&address, options()).and_then(|domain| domain.listen(&address).map(drop));
    for error in [refused(opened), refused(reached)] {
        assert!(format!("{error:?}").contains(&expected), "{error:?}");
    }
}

/// The peer in a process of its own: writes that it is asked for, for as long as it lives.
#[test]
#[ignore = "is the other process of a test"]
fn the_peer() {
    let Ok(address) = std::env::var("FRRWP_VERBS_PEER") else { return };
    let domain = VerbsDomain::reaching(&address, options()).unwrap();
    let mut memory = Memory::of(&domain, &noise(1 << 20));
    let mut end = domain.connect(&address, RECEIVES).unwrap();
    let segment = memory.remote(0, 1 << 20);
    end.send(&[segment.address.to_le_bytes(), u64::from(segment.key).to_le_bytes()].concat()).unwrap();
    loop {
        rest(&mut end);
    }
}

struct Peer(Child);

impl Peer {
    fn start(address: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_peer", "--ignored", "--nocapture"]).env("FRRWP_VERBS_PEER", address);
        Self(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_peer_that_is_killed_in_the_middle_is_noticed_and_another_takes_its_place() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let (mut listener, address) = listening(&domain, &device);
    drop(connected(&domain, &mut listener, &address));
    let held = Held::now(Some(&domain));
    for reads in [false, true] {
        let peer = Peer::start(&address);
        let mut end = listener.accept(RECEIVES, Some(WITHIN)).unwrap();
        let mut message = Box::new([0; MESSAGE]);
        while end.poll(&mut message) != Some(Completion::Message { length: 16 }) {
            end.wait(None);
        }
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        let to = Segment { address: word(0), length: 1 << 20, key: word(8) as u32 };
        let mut memory = Memory::new(&domain, 1 << 20);
        let (mut id, mut ended, mut peer) = (0, 0, Some(peer));
        let mut killed = None;
        let all = loop {
            let local = [memory.local(0, 1 << 20)];
            // SAFETY: the memory is this test's, and lives longer than the connection; what comes into it is looked at by nobody.
            let posted = unsafe { if reads { end.read(id, &local, to) } else { end.write(id, &local, to, None) } };
            match posted {
                Ok(()) if id < 1_000_000 => id += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => break rest(&mut end),
            }
            match end.poll(&mut message) {
                Some(Completion::Done { succeeded: true, .. }) => ended += 1,
                Some(Completion::Done { succeeded: false, .. } | Completion::Lost) => break rest(&mut end),
                Some(other) => panic!("{other:?}"),
                None => end.wait(Some(end.now() + 10_000_000)),
            }
            if ended == 8 && peer.is_some() {
                peer = None;
                killed = Some(Instant::now());
            }
        };
        let (took, why) = (killed.unwrap().elapsed(), end.why().unwrap());
        println!("{id} posted, {ended} ended, {} things to the end; after {took:?}: {why}", all.len());
        assert!(
            matches!(
                why,
                VerbsEnd::Closed | VerbsEnd::Silent { .. } | VerbsEnd::Broken { .. } | VerbsEnd::KeyRefused { .. }
            ),
            "{why:?}"
        );
        assert!(took < WITHIN, "{took:?}");
        drop((end, memory));
        assert_eq!(domain.registrations(), 0);
    }
    held.comes_back(Some(&domain));
    // And another connection goes on.
    let [mut one, mut other] = connected(&domain, &mut listener, &address);
    one.send(b"another").unwrap();
    assert_eq!(next(&mut other, &mut one).1, b"another");
}

/// `FRRWP_VERBS_DELETE` and `FRRWP_VERBS_ADD` are the commands that take the device away and bring it back.
#[test]
#[ignore = "for the lab: the device goes away, and comes back"]
fn a_device_that_goes_away_in_the_middle_is_said_so_and_let_go_and_the_next_one_serves() {
    let (Ok(delete), Ok(add)) = (std::env::var("FRRWP_VERBS_DELETE"), std::env::var("FRRWP_VERBS_ADD")) else { return };
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let begin = Held::now(None);
    for round in 0..2 {
        let domain = domain(&device);
        let (mut listener, address) = listening(&domain, &device);
        // Who listens everywhere hears of no device from the kernel.
        let mut everywhere = domain.listen("verbs:0.0.0.0:0").unwrap();
        let waiting = std::thread::spawn(move || refused(everywhere.accept(RECEIVES, None)).to_string());
        let [mut one, mut other] = connected(&domain, &mut listener, &address);
        let (mut source, mut sink) = (Memory::new(&domain, 1 << 20), Memory::new(&domain, 1 << 20));
        let mut message = Box::new([0; MESSAGE]);
        let (mut ended, mut going, mut since, mut id) = (0, None, Instant::now(), 0);
        let of_one = loop {
            let to = sink.remote(0, 1 << 20);
            // SAFETY: the memory is this test's, and lives longer than the connection; nobody looks at what is in it.
            match unsafe { one.write(id, &[source.local(0, 1 << 20)], to, None) } {
                Ok(()) => id += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break rest(&mut one),
            }
            match one.poll(&mut message) {
                Some(Completion::Done { succeeded: true, .. }) => ended += 1,
                Some(Completion::Done { succeeded: false, .. } | Completion::Lost) => break rest(&mut one),
                Some(other) => panic!("{other:?}"),
                None => one.wait(Some(one.now() + 10_000_000)),
            }
            assert!(since.elapsed() < 2 * WITHIN, "it is not noticed");
            if ended == 8 && going.is_none() {
                since = Instant::now();
                going = Some(Command::new("sh").args(["-c", &delete]).spawn().unwrap());
            }
        };
        let noticed = since.elapsed();
        // Both ends are of the device. Over iWARP this one may be told that the other is gone before it is told why.
        let may_hear_of_the_peer = !one.abilities().immediate;
        assert!(
            match one.why() {
                Some(VerbsEnd::DeviceGone { .. }) => true,
                Some(VerbsEnd::Broken { .. } | VerbsEnd::Closed) => may_hear_of_the_peer,
                _ => false,
            },
            "{:?}",
            one.why()
        );
        println!(
            "round {round}: {ended} ended, {} things to the end; after {noticed:?}: {}",
            of_one.len(),
            one.why().unwrap()
        );
        rest(&mut other);
        let until = Instant::now() + WITHIN;
        while !domain.is_gone() {
            assert!(Instant::now() < until, "the domain does not hear of it");
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = waiting.join().unwrap();
        assert!(told.contains("gone"), "{told}");
        let gone = refused(listener.accept(RECEIVES, Some(Duration::from_millis(100))));
        assert!(gone.to_string().contains("gone"), "{gone:?}");
        assert!(domain.connect(&address, RECEIVES).is_err());
        assert!(one.connect_again().is_err());
        drop((one, other, listener, source, sink));
        assert_eq!(domain.registrations(), 0);
        drop(domain);
        // The driver waits for all who have the device open: this process.
        let until = Instant::now() + WITHIN;
        let mut going = going.unwrap();
        let status = loop {
            match going.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "the device is still held"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success());
        assert!(matches!(refused(VerbsDomain::open(None, options())), VerbsError::Device(_)));
        assert!(Command::new("sh").args(["-c", &add]).status().unwrap().success());
    }
    let domain = domain(&device);
    let [mut one, mut other] = pair(&domain, &device);
    one.send(b"back").unwrap();
    assert_eq!(next(&mut other, &mut one).1, b"back");
    drop((one, other, domain));
    let pinned = Held::now(None).pinned;
    assert_eq!(pinned, begin.pinned);
}
