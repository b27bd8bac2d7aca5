//! Two ends of iWARP over the loopback: messages, writes and reads arrive, and ends are told.
#![allow(unsafe_code, reason = "memory is posted by address")]
#![allow(clippy::unwrap_used, reason = "tests")]

use frrwp::fabric::iwarp::{
    self, Exact, IwarpDomain, IwarpEnd, IwarpEndpoint, IwarpError, IwarpListener, IwarpOptions,
};
use frrwp::fabric::{Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PageRange};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn pair(options: [IwarpOptions; 2]) -> [(IwarpDomain, IwarpEndpoint); 2] {
    let [one, other] = options.map(|options| IwarpDomain::new(options).unwrap());
    let mut listener = IwarpListener::bind(&other, "iwarp:127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", listener.address().unwrap());
    let accepting = std::thread::spawn(move || listener.accept(64, Some(SOON)).unwrap());
    let connected = iwarp::connect(&one, &address, 64).unwrap();
    [(one, connected), (other, accepting.join().unwrap())]
}

fn both(options: IwarpOptions) -> [(IwarpDomain, IwarpEndpoint); 2] {
    pair([options, options])
}

/// Whole pages, so that a registration covers nothing else.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Memory {
    fn new(length: usize, seed: u8) -> Self {
        let bytes: Vec<u8> = (0..length + 8192).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, length }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    fn at(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    fn registered(
        &mut self,
        domain: &IwarpDomain,
        access: Access,
    ) -> Registered<<IwarpDomain as Registrar>::Registration> {
        let range = PageRange::of_bytes(self.at() as u64, self.length as u64).unwrap();
        Registered { range, access, registration: domain.register(range, access).unwrap() }
    }
}

fn next(endpoint: &mut IwarpEndpoint, message: &mut [u8; MESSAGE]) -> Completion {
    let until = endpoint.now() + SOON.as_nanos() as u64;
    loop {
        if let Some(completion) = endpoint.poll(message) {
            if completion == Completion::Lost {
                println!("lost: {:?}", endpoint.why());
            }
            return completion;
        }
        assert!(endpoint.now() < until, "nothing happened");
        endpoint.wait(Some(until));
    }
}

/// Until the end of a connection: what was told.
fn rest(endpoint: &mut IwarpEndpoint) -> Vec<Completion> {
    let mut told = Vec::new();
    let mut message = [0; MESSAGE];
    while told.last() != Some(&Completion::Flushed) {
        told.push(next(endpoint, &mut message));
    }
    told
}

fn variants() -> Vec<IwarpOptions> {
    let plain = IwarpOptions { checksums: false, ..IwarpOptions::default() };
    vec![IwarpOptions::default(), plain, IwarpOptions { inbound: 1, outbound: 1, ..plain }]
}

#[test]
fn messages_arrive_whole_and_in_order() {
    for options in variants() {
        let [(_one, mut connecting), (_other, mut accepting)] = both(options);
        let mut message = [0; MESSAGE];
        for round in 0..3_usize {
            for length in [0, 1, 17, 1000, MESSAGE] {
                let sent: Vec<u8> = (0..length).map(|at| (at + round) as u8).collect();
                connecting.send(&sent).unwrap();
                assert_eq!(next(&mut accepting, &mut message), Completion::Message { length });
                assert_eq!(message[..length], sent);
                accepting.send(&sent).unwrap();
                assert_eq!(next(&mut connecting, &mut message), Completion::Message { length });
                assert_eq!(message[..length], sent);
            }
        }
        let error = connecting.send(&[0; MESSAGE + 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn writes_and_reads_move_any_length_in_pieces() {
    for options in variants() {
        let [(one, mut near), (other, mut far)] = both(options);
        for length in [1, 3, 1024, 4096, 65_472, 65_473, 300_001, 3_000_000] {
            let mut source = Memory::new(length, 1);
            let mut target = Memory::new(length, 2);
            let mut sink = Memory::new(length, 3);
            let from = source.registered(&one, Access::LOCAL_READ);
            let into = target.registered(&other, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ);
            let back = sink.registered(&one, Access::LOCAL_WRITE);
            let segment = other.remote(&into.registration, target.at(), length);
            let cut = length / 3;
            let pieces = |memory: &mut Memory, registration| {
                let at = memory.at();
                [(0, cut), (cut, length - cut)].map(|(from, length)| Local {
                    address: at.wrapping_add(from),
                    length,
                    registration,
                })
            };
            let gathered = pieces(&mut source, &from.registration);
            let scattered = pieces(&mut sink, &back.registration);
            let skip = usize::from(cut == 0);
            let mut message = [0; MESSAGE];
            // SAFETY: the memory lives until both have ended, and has no other user.
            unsafe {
                near.write(7, &gathered[skip..], segment, None).unwrap();
                near.read(8, &scattered[skip..], segment).unwrap();
            }
            assert_eq!(
                next(&mut near, &mut message),
                Completion::Done { id: 7, succeeded: true },
                "{length} bytes, {options:?}"
            );
            assert_eq!(next(&mut near, &mut message), Completion::Done { id: 8, succeeded: true });
            assert!(source.bytes() == target.bytes(), "{length} bytes, {options:?}");
            assert!(sink.bytes() == source.bytes(), "{length} bytes read, {options:?}");
            // The far application slept through it.
            assert_eq!(far.poll(&mut message), None);
            one.deregister(&mut vec![from, back]).unwrap();
            other.deregister(&mut vec![into]).unwrap();
        }
        assert_eq!((one.registrations(), other.registrations()), (0, 0));
    }
}

#[test]
fn reads_and_writes_of_nothing_end_in_their_turn() {
    for options in variants() {
        let [(one, mut connecting), (_other, _accepting)] = both(options);
        let mut memory = Memory::new(100, 1);
        let local = memory.registered(&one, Access::all() - Access::REMOTE_ATOMIC);
        let piece = Local { address: memory.at(), length: 100, registration: &local.registration };
        let nothing = Segment { address: 0, length: 0, key: 0 };
        let mut message = [0; MESSAGE];
        // SAFETY: posts of no bytes access no memory.
        unsafe {
            connecting.read(1, &[], nothing).unwrap();
            connecting.write(2, &[], nothing, None).unwrap();
            connecting.read(3, &[piece], nothing).unwrap();
        }
        for id in 1..=3 {
            assert_eq!(next(&mut connecting, &mut message), Completion::Done { id, succeeded: true });
        }
    }
}

#[test]
fn what_follows_a_write_comes_after_its_bytes() {
    for options in variants() {
        let [(one, mut near), (other, mut far)] = both(options);
        let length = 200_000;
        let mut source = Memory::new(length, 1);
        let mut target = Memory::new(length, 2);
        let from = source.registered(&one, Access::LOCAL_READ);
        let into = target.registered(&other, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let segment = other.remote(&into.registration, target.at(), length);
        let mut message = [0; MESSAGE];
        for round in 0..20 {
            source.bytes.fill(round);
            let local = Local { address: source.at(), length, registration: &from.registration };
            // SAFETY: the memory lives, and is changed only when the message has come, after the write.
            unsafe { near.write(1, &[local], segment, None) }.unwrap();
            near.send(b"done").unwrap();
            assert_eq!(next(&mut far, &mut message), Completion::Message { length: 4 });
            assert!(target.bytes().iter().all(|&byte| byte == round));
            assert_eq!(next(&mut near, &mut message), Completion::Done { id: 1, succeeded: true });
            far.receive(1).unwrap();
        }
    }
}

#[test]
fn concurrent_posts_complete_in_order() {
    for options in variants() {
        let mut ends = both(options);
        let length = 20_000;
        let mut memories = [0, 1].map(|_| [Memory::new(length, 1), Memory::new(length, 2)]);
        let access = Access::LOCAL | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let registered: Vec<[_; 2]> = (0..2)
            .map(|side| [0, 1].map(|which: usize| memories[side][which].registered(&ends[side].0, access)))
            .collect();
        // Each end's second memory is the other's to read and write.
        let segments = [0, 1]
            .map(|side: usize| ends[side].0.remote(&registered[side][1].registration, memories[side][1].at(), length));
        let mut message = [0; MESSAGE];
        let (mut posted, mut done) = ([0_u64; 2], [0_u64; 2]);
        while done != [500, 500] {
            for side in 0..2 {
                let at = memories[side][0].at();
                while posted[side] < 500 {
                    let id = posted[side];
                    let local = Local { address: at, length, registration: &registered[side][0].registration };
                    // SAFETY: the memory lives to the end; its bytes do not matter.
                    let result = unsafe {
                        if id % 3 == 0 {
                            ends[side].1.write(id, &[local], segments[1 - side], None)
                        } else {
                            ends[side].1.read(id, &[local], segments[1 - side])
                        }
                    };
                    match result {
                        Ok(()) => posted[side] += 1,
                        Err(error) => {
                            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                            break;
                        }
                    }
                }
                while let Some(completion) = ends[side].1.poll(&mut message) {
                    assert_eq!(completion, Completion::Done { id: done[side], succeeded: true }, "{options:?}");
                    done[side] += 1;
                }
            }
        }
    }
}

#[test]
fn peer_end_is_reported_and_nothing_placed_after() {
    for drops in [false, true] {
        let [(_one, mut near), (other, far)] = both(IwarpOptions::default());
        let mut sink = Memory::new(4096, 1);
        let back = sink.registered(&other, Access::LOCAL_WRITE);
        let mut far = Some(far);
        if drops {
            far = None;
        } else if let Some(far) = &mut far {
            far.disconnect();
            assert_eq!(rest(far), [Completion::Lost, Completion::Flushed]);
            assert_eq!(far.why(), Some(IwarpEnd::Disconnected));
            assert_eq!(far.send(b"x").unwrap_err().kind(), std::io::ErrorKind::NotConnected);
        }
        assert_eq!(rest(&mut near), [Completion::Lost, Completion::Flushed]);
        assert_eq!(near.why(), Some(IwarpEnd::Closed));
        drop((near, far));
        assert_eq!(other.connections(), 0);
        other.deregister(&mut vec![back]).unwrap();
    }
}

#[test]
fn stalled_peer_is_an_error() {
    let hasty = IwarpOptions { stall: Duration::from_millis(300), ..IwarpOptions::default() };
    let domain = IwarpDomain::new(hasty).unwrap();
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", listening.local_addr().unwrap());
    // A peer that answers the request, and then nothing.
    let peer = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut socket, _) = listening.accept().unwrap();
        let mut request = [0; 24];
        socket.read_exact(&mut request).unwrap();
        let mut reply = request;
        reply[..16].copy_from_slice(b"MPA ID Rep Frame");
        socket.write_all(&reply).unwrap();
        socket
    });
    let mut near = iwarp::connect(&domain, &address, 4).unwrap();
    let socket = peer.join().unwrap();
    let mut sink = Memory::new(4096, 1);
    let back = sink.registered(&domain, Access::LOCAL_WRITE);
    let local = Local { address: sink.at(), length: 4096, registration: &back.registration };
    // SAFETY: the memory lives until the flush.
    unsafe { near.read(3, &[local], Segment { address: 0, length: 4096, key: 5 }) }.unwrap();
    let told = rest(&mut near);
    assert_eq!(told, [Completion::Lost, Completion::Done { id: 3, succeeded: false }, Completion::Flushed]);
    assert_eq!(near.why(), Some(IwarpEnd::Stalled { after: hasty.stall }));
    drop(socket);
}

#[test]
fn send_with_invalidate_ends_a_tag() {
    let [(_one, mut near), (_other, mut far)] = both(IwarpOptions::default());
    let mut target = Memory::new(4096, 1);
    let own = far.own_domain();
    // SAFETY: the memory outlives the registration, and no reference is made to it while peers may write.
    let open = |target: &mut Memory| -> Exact { unsafe { own.open(target.at(), 100, Access::REMOTE_WRITE) }.unwrap() };
    let exact = open(&mut target);
    near.send_invalidating(b"over", exact.segment().key).unwrap();
    let mut message = [0; MESSAGE];
    assert_eq!(next(&mut far, &mut message), Completion::Message { length: 4 });
    assert_eq!(own.registrations(), 0);
    near.send_invalidating(b"again", exact.segment().key).unwrap();
    assert_eq!(rest(&mut far), [Completion::Lost, Completion::Flushed]);
    assert!(rest(&mut near).ends_with(&[Completion::Flushed]));
}

#[test]
fn child_drop_leaves_parent_connections() {
    let ends = both(IwarpOptions::default());
    // SAFETY: the child drops what it has a copy of, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a child that hangs is ended by the signal.
        unsafe { libc::alarm(5) };
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(ends)));
        // SAFETY: `_exit` ends this child without destructors.
        unsafe { libc::_exit(i32::from(dropped.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local integer that the call may write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended by itself");
    let [(_one, mut connecting), (_other, mut accepting)] = ends;
    let mut message = [0; MESSAGE];
    connecting.send(b"still here").unwrap();
    assert_eq!(next(&mut accepting, &mut message), Completion::Message { length: 10 });
}

#[test]
fn bad_addresses_and_peers_name_the_remedy() {
    // However slow the machine is, what others answer is heard.
    let patient = IwarpOptions { set_up: SOON, ..IwarpOptions::default() };
    let domain = IwarpDomain::new(patient).unwrap();
    for text in
        ["", "iwarp:", "iwarp:host", "iwarp::1", "iwarp:host:port", "iwarp:host:70000", "tcp:host:1", "iwarp:::1:5"]
    {
        let error = iwarp::connect(&domain, text, 1).err().unwrap();
        assert!(matches!(error, IwarpError::Address { .. }), "{text}: {error}");
        assert!(error.to_string().contains("write iwarp:HOST:PORT"));
        assert!(IwarpListener::bind(&domain, text).is_err());
    }
    let taken = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", taken.address().unwrap());
    assert!(matches!(IwarpListener::bind(&domain, &address), Err(IwarpError::PortInUse { .. })));
    drop(taken);
    assert!(matches!(iwarp::connect(&domain, &address, 1), Err(IwarpError::Refused { .. })));
    // Peers of other protocols, of both kinds.
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", listening.local_addr().unwrap());
    let hasty = IwarpDomain::new(IwarpOptions { set_up: Duration::from_millis(300), ..patient }).unwrap();
    assert!(matches!(iwarp::connect(&hasty, &address, 1), Err(IwarpError::TimedOut { .. })));
    let talks = std::thread::spawn(move || {
        use std::io::Write;
        let _silent = listening.accept().unwrap();
        listening.accept().unwrap().0.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        listening.accept().unwrap();
    });
    assert!(matches!(iwarp::connect(&domain, &address, 1), Err(IwarpError::Mpa { .. })));
    assert!(matches!(iwarp::connect(&domain, &address, 1), Err(IwarpError::Hung { .. })));
    talks.join().unwrap();
}

#[test]
fn a_listener_is_held_up_by_nobody() {
    use std::io::Write;
    let options = IwarpOptions { set_up: Duration::from_secs(2), ..IwarpOptions::default() };
    let [domain, patient] = [options, IwarpOptions { set_up: SOON, ..options }].map(|it| IwarpDomain::new(it).unwrap());
    let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let address = listener.address().unwrap();
    let silent = std::net::TcpStream::connect(address).unwrap();
    let mut foreign = std::net::TcpStream::connect(address).unwrap();
    foreign.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut slow = std::net::TcpStream::connect(address).unwrap();
    slow.write_all(b"MPA ID Req").unwrap();
    let connecting = std::thread::spawn(move || iwarp::connect(&patient, &format!("iwarp:{address}"), 4).map(drop));
    let _accepted = listener.accept(4, Some(SOON)).unwrap();
    connecting.join().unwrap().unwrap();
    while listener.refused() < 3 {
        assert!(matches!(listener.accept(4, Some(Duration::from_millis(20))), Err(IwarpError::TimedOut { .. })));
    }
    assert_eq!(listener.refused(), 3);
    drop((silent, foreign, slow));
}

/// Raises the number of descriptors that this process may have, as far as it may.
fn descriptors() -> u64 {
    // SAFETY: the structure is plain numbers, and the calls read and write it.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        limit.rlim_cur
    }
}

#[test]
fn thousand_connections_fit_in_64_mebibytes() {
    // Both ends of each lie in this process, so that it holds twice as many.
    let mut count = 1000;
    let most = usize::try_from(descriptors().saturating_sub(100) / 2).unwrap();
    if most < count {
        eprintln!("only {most} connections: a thousand with both ends take 2,100 descriptors (`ulimit -Hn`)");
        count = most;
    }
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let domain = IwarpDomain::new(IwarpOptions::default()).unwrap();
    let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", listener.address().unwrap());
    let before = resident();
    let (theirs, ours) = std::thread::scope(|scope| {
        let accepting =
            scope.spawn(|| (0..count).map(|_| listener.accept(64, Some(SOON)).unwrap()).collect::<Vec<_>>());
        let ours: Vec<_> = (0..count).map(|_| iwarp::connect(&domain, &address, 64).unwrap()).collect();
        (accepting.join().unwrap(), ours)
    });
    assert_eq!(domain.connections(), 2 * count);
    let mut message = [0; MESSAGE];
    let mut pairs: Vec<_> = ours.into_iter().zip(theirs).collect();
    for (one, other) in &mut pairs {
        // Both directions, so that each end has sent and received.
        for _ in 0..2 {
            one.send(&[7; MESSAGE]).unwrap();
            assert_eq!(next(other, &mut message), Completion::Message { length: MESSAGE });
            std::mem::swap(one, other);
        }
    }
    let held = resident().saturating_sub(before);
    println!("{} ends in {held} bytes of resident memory, {} each", 2 * count, held / (2 * count));
    assert!(held / 2 < 64_000_000 * count / 1000, "{held}");
}

/// The provider's thread works while its application is elsewhere, and must not be in the way when it comes back.
#[test]
fn returning_application_finds_its_messages() {
    const MESSAGES: u16 = 40;
    for options in variants() {
        let [(one, mut near), (other, mut far)] = both(options);
        let [mut mine, mut theirs] = [1, 2].map(|seed| Memory::new(4096, seed));
        let local = mine.registered(&one, Access::LOCAL_WRITE);
        let remote = theirs.registered(&other, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let segment = other.remote(&remote.registration, theirs.at(), 1000);
        let mut message = [0; MESSAGE];
        for round in 0..20_u8 {
            // So often that the far provider expects nothing else.
            for _ in 0..40 {
                let into = Local { address: mine.at(), length: 1000, registration: &local.registration };
                // SAFETY: the memory lives until the read has ended, and has no other user.
                unsafe { near.read(0, &[into], segment).unwrap() };
                assert_eq!(next(&mut near, &mut message), Completion::Done { id: 0, succeeded: true });
            }
            far.receive(MESSAGES).unwrap();
            if round % 3 == 0 {
                near.send(&[round]).unwrap();
                assert_eq!(next(&mut far, &mut message), Completion::Message { length: 1 });
                continue;
            }
            // It comes back before there is anything for it, and waits.
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    let mut message = [0; MESSAGE];
                    if round % 3 == 1 {
                        far.send(&[round]).unwrap();
                    }
                    for number in 0..MESSAGES {
                        assert_eq!(next(&mut far, &mut message), Completion::Message { length: 1000 });
                        assert_eq!(message[..1000], [number as u8; 1000]);
                    }
                });
                if round % 3 == 1 {
                    assert_eq!(next(&mut near, &mut message), Completion::Message { length: 1 });
                }
                (0..MESSAGES).for_each(|number| near.send(&[number as u8; 1000]).unwrap());
                waiting.join().unwrap();
            });
        }
        drop(near);
        assert_eq!(rest(&mut far), [Completion::Lost, Completion::Flushed]);
        one.deregister(&mut vec![local]).unwrap();
        other.deregister(&mut vec![remote]).unwrap();
    }
}

#[test]
fn second_connection_is_served_while_first_is_busy() {
    let [serving, asking] = [(); 2].map(|()| IwarpDomain::new(IwarpOptions::default()).unwrap());
    let mut listener = IwarpListener::bind(&serving, "iwarp:127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", listener.address().unwrap());
    let mut theirs = Memory::new(4096, 1);
    let remote = theirs.registered(&serving, Access::REMOTE_READ);
    let segment = serving.remote(&remote.registration, theirs.at(), 1000);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| [(); 4].map(|()| listener.accept(64, Some(SOON)).unwrap()));
        let mut connections = Vec::new();
        for seed in 0..4 {
            connections.push((iwarp::connect(&asking, &address, 64).unwrap(), Memory::new(4096, seed)));
            for _ in 0..100 {
                for (connection, mine) in &mut connections {
                    let local = mine.registered(&asking, Access::LOCAL_WRITE);
                    let into = Local { address: mine.at(), length: 1000, registration: &local.registration };
                    // SAFETY: the memory lives until the read has ended, and has no other user.
                    unsafe { connection.read(0, &[into], segment).unwrap() };
                    let done = next(connection, &mut [0; MESSAGE]);
                    assert_eq!(done, Completion::Done { id: 0, succeeded: true });
                    assert_eq!(mine.bytes()[..1000], theirs.bytes()[..1000]);
                    asking.deregister(&mut vec![local]).unwrap();
                }
            }
        }
        drop(accepting.join().unwrap());
    });
    serving.deregister(&mut vec![remote]).unwrap();
}
