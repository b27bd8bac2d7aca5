//! An application that waits passively is woken by what is told to it, and by nothing that its peer does to its memory.
#![allow(unsafe_code, reason = "memory is opened by address")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

use frrwp::fabric::iwarp::{self, Exact, IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::{Completion, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::Registrar;
use mrrc::{Access, PageRange};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const BYTES: usize = 1000;
/// Messages that tell the application how it is to wait.
const ATTEND: &[u8] = b"attend";
const LEAVE: &[u8] = b"leave";

/// How often a thread has gone to sleep.
fn sleeps(thread: &Path) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(thread).join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns whether it sleeps now.
fn is_asleep(thread: &Path) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(thread).join("stat")).unwrap().contains(") S ")
}

/// The memory that one side holds open to the other for reading.
struct Server {
    domain: IwarpDomain,
    listener: IwarpListener,
    memory: Box<[u8]>,
}

impl Server {
    fn new(passive: bool) -> Self {
        let domain = IwarpDomain::new(IwarpOptions { passive, ..IwarpOptions::default() }).unwrap();
        let listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
        Self { domain, listener, memory: vec![7_u8; BYTES].into() }
    }

    fn open(&mut self) -> Exact {
        // SAFETY: the memory outlives what is open.
        unsafe { self.domain.open(self.memory.as_mut_ptr(), BYTES, Access::REMOTE_READ) }.unwrap()
    }

    fn accept(&mut self, client: &IwarpDomain) -> [IwarpEndpoint; 2] {
        let address = format!("iwarp:{}", self.listener.address().unwrap());
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| iwarp::connect(client, &address, 16).unwrap());
            let served = self.listener.accept(16, Some(SOON)).unwrap();
            [connecting.join().unwrap(), served]
        })
    }
}

/// So many reads of the peer's memory, one after another.
fn read(client: &IwarpDomain, endpoint: &mut IwarpEndpoint, from: Segment, times: u64) {
    let mut sink = vec![0_u8; 2 * 4096];
    let start = sink.as_ptr().align_offset(4096);
    let at = sink[start..].as_mut_ptr();
    let range = PageRange::of_bytes(at as u64, BYTES as u64).unwrap();
    let registration = client.register(range, Access::LOCAL_WRITE).unwrap();
    let mut message = [0; MESSAGE];
    for id in 0..times {
        let local = Local { address: at, length: BYTES, registration: &registration };
        // SAFETY: the sink is read when the read is done.
        unsafe { endpoint.read(id, &[local], from) }.unwrap();
        loop {
            match endpoint.poll(&mut message) {
                Some(completion) => break assert_eq!(completion, Completion::Done { id, succeeded: true }),
                None => endpoint.wait(None),
            }
        }
        // SAFETY: the read has ended, so the provider no longer writes the memory.
        assert_eq!(unsafe { at.add(BYTES - 1).read() }, 7);
    }
}

/// How often a server's application, which waits, goes to sleep while its peer reads so often; and that it is woken when it
/// is told something. It is told first to attend to its connection, or not to any more.
fn sleeps_while_read(passive: bool, connections: usize, times: u64, told_first: &[&[u8]]) -> u64 {
    let client = IwarpDomain::new(IwarpOptions::default()).unwrap();
    let mut server = Server::new(passive);
    let offer = server.open();
    let mut others: Vec<_> = (1..connections).map(|_| server.accept(&client)).collect();
    let [mut connected, mut served] = server.accept(&client);
    let (tell, told) = mpsc::channel();
    let waiting = std::thread::spawn(move || {
        tell.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        let mut message = [0; MESSAGE];
        loop {
            match served.poll(&mut message) {
                Some(Completion::Message { length }) => {
                    match &message[..length] {
                        ATTEND => served.set_passive(false),
                        LEAVE => served.set_passive(true),
                        _ => {}
                    }
                    served.receive(1).unwrap();
                    served.send(&message[..length]).unwrap();
                }
                Some(Completion::Flushed) => return,
                Some(_) => {}
                None => served.wait(None),
            }
        }
    });
    let thread: PathBuf = told.recv().unwrap();
    let mut message = [0; MESSAGE];
    let mut ask = |connected: &mut IwarpEndpoint, text: &[u8]| {
        connected.send(text).unwrap();
        connected.receive(1).unwrap();
        while connected.poll(&mut message).is_none() {
            connected.wait(None);
        }
        assert_eq!(&message[..text.len()], text);
    };
    ask(&mut connected, b"before");
    told_first.iter().for_each(|text| ask(&mut connected, text));
    while !is_asleep(&thread) {
        std::thread::yield_now();
    }
    // The traces of having answered.
    read(&client, &mut connected, offer.segment(), 100);
    let before = sleeps(&thread);
    read(&client, &mut connected, offer.segment(), times);
    let after = sleeps(&thread);
    assert!(is_asleep(&thread) || !passive || told_first.ends_with(&[ATTEND]));
    ask(&mut connected, b"after");
    // Another connection of its domain is no other's business either.
    if let Some([other, _]) = others.first_mut() {
        read(&client, other, offer.segment(), 10);
    }
    drop(connected);
    waiting.join().unwrap();
    drop(offer);
    assert_eq!(server.domain.registrations(), 0);
    after - before
}

#[test]
fn passive_wait_is_not_woken_by_reads() {
    for connections in [1, 3] {
        assert_eq!(sleeps_while_read(true, connections, 10_000, &[]), 0, "{connections} connections");
    }
}

#[test]
fn who_does_not_is() {
    // So that the other test would see it.
    let sleeps = sleeps_while_read(false, 1, 1_000, &[]);
    assert!(sleeps > 100, "{sleeps}");
}

#[test]
fn a_connection_is_attended_to_and_left() {
    for connections in [1, 3] {
        let attended = sleeps_while_read(true, connections, 1_000, &[ATTEND]);
        assert!(attended > 100, "{attended} of {connections} connections");
        let left = sleeps_while_read(true, connections, 10_000, &[ATTEND, LEAVE]);
        assert_eq!(left, 0, "{connections} connections");
    }
}

#[test]
#[ignore = "a minute: a million reads"]
fn passive_wait_sleeps_through_a_million_reads() {
    for connections in [1, 3] {
        let begun = std::time::Instant::now();
        assert_eq!(sleeps_while_read(true, connections, 1_000_000, &[]), 0, "{connections} connections");
        let micros = begun.elapsed().as_secs_f64();
        println!("{connections} connections: 1,000,000 reads, {micros:.2} µs each, and the application slept on");
    }
}

#[test]
fn passive_wait_reports_end_and_deadline() {
    let client = IwarpDomain::new(IwarpOptions::default()).unwrap();
    let mut server = Server::new(true);
    let [connected, mut served] = server.accept(&client);
    let mut message = [0; MESSAGE];
    let until = served.now() + 5_000_000;
    served.wait(Some(until));
    assert!(served.now() >= until && served.poll(&mut message).is_none());
    let waiting = std::thread::spawn(move || {
        served.wait(None);
        [served.poll(&mut message), served.poll(&mut message)]
    });
    drop(connected);
    assert_eq!(waiting.join().unwrap(), [Some(Completion::Lost), Some(Completion::Flushed)]);
}

#[test]
fn passive_side_completes_its_own_posts() {
    // Much of it, so that the socket is full in between.
    const MUCH: usize = 20 << 20;
    let client = IwarpDomain::new(IwarpOptions::default()).unwrap();
    let mut server = Server::new(true);
    let [_connected, mut served] = server.accept(&client);
    let (mut near, mut far) = (vec![1_u8; MUCH], vec![2_u8; MUCH]);
    // SAFETY: the memory lives until all has completed.
    let open = unsafe { client.open(far.as_mut_ptr(), MUCH, Access::REMOTE_READ | Access::REMOTE_WRITE) }.unwrap();
    let range = PageRange::of_bytes(near.as_mut_ptr() as u64, MUCH as u64).unwrap();
    let registration = server.domain.register(range, Access::LOCAL_WRITE).unwrap();
    let mut message = [0; MESSAGE];
    for id in 0..4 {
        let local = Local { address: near.as_mut_ptr(), length: MUCH, registration: &registration };
        // SAFETY: the local memory outlives the endpoint and has no other user.
        unsafe {
            if id % 2 == 0 {
                served.write(id, &[local], open.segment(), None).unwrap();
            } else {
                served.read(id, &[local], open.segment()).unwrap();
            }
        }
        loop {
            match served.poll(&mut message) {
                Some(completion) => break assert_eq!(completion, Completion::Done { id, succeeded: true }),
                None => served.wait(None),
            }
        }
    }
    drop(open);
    assert!(near == far);
}
