//! Each operation has a time, and can be given up: with peers that answer nothing, that stop in the middle, or that send no
//! progress. A given-up operation keeps its memory until nothing can access it.
#![allow(unsafe_code, reason = "lends memory to engines")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod frames;

use frames::{SOON, greet, untagged, write};
use frrwp::engine::{Engine, Event, TransferError};
use frrwp::fabric::iwarp::ddp::Operation as Frame;
use frrwp::fabric::iwarp::{IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::sim::{Costs, Faults, Network, Node, SimDomain, SimEndpoint};
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::{Disconnect, Expired, Failure, Limits, Operation, Phase, RECEIVES, SendError, Side};
use frrwp::wire::{Reason, Segment};
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SECOND: u64 = 1_000_000_000;
const LENGTH: usize = 10_000;

/// A side that reads a peer with memory so far away.
struct Far {
    network: Network,
    nodes: [Node; 2],
    caches: [Cache<SimDomain>; 2],
    sink: Vec<u8>,
    source: Vec<u8>,
}

impl Far {
    fn new(latency: u64) -> Self {
        let network = Network::new(1, Costs { latency, ..Costs::default() }, Faults::default());
        let nodes = [network.node(), network.node()];
        let caches = [0, 1].map(|node: usize| {
            let builder = Cache::builder(nodes[node].domain()).ignore_environment().monitor(Explicit);
            builder.background(false).build().unwrap()
        });
        Self { network, nodes, caches, sink: vec![0; LENGTH], source: vec![7; LENGTH] }
    }

    fn engine(&self, limits: Limits) -> (Engine<'_, SimEndpoint>, SimEndpoint) {
        let [one, other] = self.network.connect(&self.nodes[0], &self.nodes[1], RECEIVES);
        (Engine::new(&self.caches[0], one, Side::Connecting, limits), other)
    }

    fn key(&self) -> Segment {
        // SAFETY: the source lives as long as this, and is not written.
        let lease = unsafe { self.caches[1].acquire(self.source.as_ptr(), LENGTH, Access::REMOTE_READ) }.unwrap();
        let part = lease.segments().next().unwrap();
        let key = self.caches[1].registrar().remote(part.registration(), self.source.as_ptr(), LENGTH);
        // It stays registered: the cache keeps it.
        drop(lease);
        key
    }

    /// Reads all of it.
    fn fetch(&self, engine: &mut Engine<'_, SimEndpoint>) -> u64 {
        // SAFETY: the sink lives longer than the engine, and no reference leads to it before the read has ended.
        unsafe { engine.read_remote(self.sink.as_ptr().cast_mut(), LENGTH, self.key()) }.unwrap()
    }

    /// Registrations that are left when the cache has let go of all that it may.
    fn held(&self) -> usize {
        self.caches[0].flush().unwrap();
        self.nodes[0].registrations()
    }
}

#[test]
fn a_read_without_an_answer_expires_and_is_revoked() {
    let far = Far::new(1_000 * SECOND);
    let (mut engine, _other) = far.engine(Limits::default());
    let id = far.fetch(&mut engine);
    let Some(Event::Expired(expired)) = engine.run() else { panic!("its time is over") };
    let bytes = LENGTH as u64 * 100;
    let waited = 30 * SECOND + bytes;
    assert_eq!(expired, Expired { operation: Operation::Read(id), phase: Phase::Reading, waited });
    assert!(expired.to_string().starts_with("read 0: waited 30.0 s for the bytes of the peer's memory: see whether"));
    assert_eq!((engine.quarantined_reads(), engine.open_reads(), far.held()), (1, 1, 1), "kept in quarantine");
    // The fabric does not finish it: five seconds later the connection goes, and with it all that could be at the memory.
    assert!(matches!(engine.run(), Some(Event::ReadCompleted { id: told, succeeded: false }) if told == id));
    assert!(matches!(engine.run(), Some(Event::Closed { why: Some(Disconnect::ReadFailed) })));
    assert_eq!((engine.quarantined_reads(), far.held()), (0, 0));
}

#[test]
fn a_read_has_time_for_its_bytes_and_those_before_it() {
    let far = Far::new(1_000 * SECOND);
    // A byte a second.
    let limits = Limits { lowest_rate: 1, ..Limits::default() };
    let (mut engine, _other) = far.engine(limits);
    let first = far.fetch(&mut engine);
    let second = far.fetch(&mut engine);
    for (id, bytes) in [(first, LENGTH as u64), (second, 2 * LENGTH as u64)] {
        match engine.run() {
            Some(Event::ReadCompleted { id: told, succeeded }) => assert!(succeeded && told == id, "in {bytes} s"),
            other => panic!("{other:?}"),
        }
    }
    // And no more than it was given.
    let third = far.fetch(&mut engine);
    let over = engine.endpoint().now() + 3 * SECOND;
    assert!(engine.set_read_deadline(third, over));
    let expected = Expired { operation: Operation::Read(third), phase: Phase::Reading, waited: 3 * SECOND };
    assert!(matches!(engine.run(), Some(Event::Expired(expired)) if expired == expected));
    assert!(!engine.set_read_deadline(third, over) && !engine.cancel_read(third), "it is given up");
}

#[test]
fn a_deadline_hides_no_earlier_one() {
    let mut far = Far::new(1_000 * SECOND);
    let (from, into) = (far.key(), far.sink.as_mut_ptr());
    let (mut engine, _other) = far.engine(Limits::default());
    // SAFETY: the sink lives longer than the engine, and nothing looks at it.
    let [_, last] =
        [0, 100].map(|at| unsafe { engine.read_remote(into.add(at), 100, Segment { length: 100, ..from }) }.unwrap());
    let now = engine.endpoint().now();
    assert!(engine.set_read_deadline(last, now + 500 * SECOND));
    engine.wait();
    engine.progress();
    let expired = engine.next_event();
    assert!(matches!(expired, Some(Event::Expired(Expired { operation: Operation::Read(0), .. }))), "{expired:?}");
    assert!(engine.endpoint().now() < now + 100 * SECOND, "it has the time of the limits");
}

#[test]
fn a_cancelled_read_keeps_its_memory_until_it_ends() {
    let far = Far::new(SECOND);
    let (mut engine, _other) = far.engine(Limits { reads: 2, ..Limits::default() });
    let (first, second) = (far.fetch(&mut engine), far.fetch(&mut engine));
    assert!(engine.cancel_read(first), "at once");
    assert!(!engine.cancel_read(first) && !engine.cancel_read(77));
    engine.progress();
    assert!(engine.next_event().is_none(), "its memory is not free");
    assert_eq!((engine.quarantined_reads(), engine.open_reads(), far.held()), (1, 2, 1));
    // SAFETY: the read is refused before it uses the memory.
    let refused = unsafe { engine.read_remote(far.sink.as_ptr().cast_mut(), LENGTH, far.key()) };
    assert!(refused.is_err(), "quarantine counts against the bound");
    assert!(matches!(engine.run(), Some(Event::ReadCompleted { id, succeeded: false }) if id == first));
    assert!(matches!(engine.run(), Some(Event::Writable)));
    assert!(matches!(engine.run(), Some(Event::ReadCompleted { id, succeeded: true }) if id == second), "others go on");
    assert_eq!((engine.quarantined_reads(), far.held()), (0, 0));
    assert!(far.sink == far.source);
}

#[test]
fn a_target_without_a_done_is_told_at_its_deadline() {
    let far = Far::new(SECOND / 10);
    let (mut engine, _other) = far.engine(Limits { write_time: 2 * SECOND, ..Limits::default() });
    // SAFETY: the sink lives longer than the engine.
    let tag = unsafe { engine.open_read(far.sink.as_ptr().cast_mut(), LENGTH, b"") }.unwrap();
    let waited = 2 * SECOND + LENGTH as u64 * 100;
    // Its keys travel with the SYNC, and are not used.
    let expected = Expired { operation: Operation::Transfer(tag), phase: Phase::Done, waited };
    let event = engine.run();
    assert!(matches!(event, Some(Event::Expired(expired)) if expired == expected), "{event:?}");
    assert_eq!((engine.open_transfers(), far.held()), (1, 1), "the peer has keys");
    assert!(matches!(engine.run(), Some(Event::Completed { result: Err(_), .. })));
    assert!(matches!(engine.run(), Some(Event::Closed { why: Some(Disconnect::Revocation) })));
    assert_eq!(far.held(), 0);
}

#[test]
fn a_message_that_waits_expires_or_is_taken_back() {
    let far = Far::new(SECOND / 10);
    let (mut engine, _other) = far.engine(Limits::default());
    // All credits but the last go on transfers that the peer does not hear of, so that messages wait.
    for _ in 0..16 {
        // SAFETY: the source lives longer than the engine.
        unsafe { engine.open_write(far.source.as_ptr(), LENGTH, b"") }.unwrap();
    }
    for _ in 0..8 {
        engine.send_message(b"hello").unwrap();
    }
    assert_eq!((engine.send_message(b"hello"), engine.messages()), (Err(SendError::Full), 8));
    assert!(engine.cancel_message(2) && !engine.cancel_message(2));
    let mut expired = Vec::new();
    while expired.len() < 7 {
        match engine.run() {
            Some(Event::Expired(Expired { operation, phase: Phase::Credit, waited })) => {
                assert_eq!(waited, 5 * SECOND);
                expired.push(operation);
            }
            Some(Event::Completed { .. } | Event::Writable) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(expired, [1, 3, 4, 5, 6, 7, 8].map(Operation::Message));
}

#[test]
fn a_transfer_is_given_up_before_its_sync() {
    for cancels in [false, true] {
        let far = Far::new(1_000 * SECOND);
        let (mut engine, _other) = far.engine(Limits::default());
        // All credits but the last go on others.
        // SAFETY: the source lives longer than the engine.
        let open = || unsafe { engine.open_write(far.source.as_ptr(), LENGTH, b"") }.unwrap();
        let last = std::iter::repeat_with(open).take(17).last().unwrap();
        let sent = engine.counters().sent;
        let expected = if cancels {
            engine.cancel(last).unwrap();
            Failure::Here(Reason::Cancelled)
        } else {
            let over = engine.endpoint().now() + SECOND;
            assert!(engine.set_transfer_deadline(last, over));
            Failure::TimedOut { phase: Phase::Answer, waited: SECOND }
        };
        let event = engine.run();
        let Some(Event::Completed { tag, result: Err(TransferError::Failed { failure, .. }) }) = event else {
            panic!("{event:?}")
        };
        assert_eq!((tag, failure, engine.open_transfers()), (last, expected, 16));
        assert_eq!(engine.counters().sent, sent, "the peer never hears of it");
        assert!(!engine.set_transfer_deadline(last, 0), "it has ended");
    }
}

#[test]
fn a_transfer_is_given_up_after_its_keys_are_out() {
    for cancels in [false, true] {
        let far = Far::new(1_000 * SECOND);
        let (mut engine, _other) = far.engine(Limits::default());
        // SAFETY: the sink lives longer than the engine.
        let tag = unsafe { engine.open_read(far.sink.as_ptr().cast_mut(), LENGTH, b"") }.unwrap();
        let begun = engine.endpoint().now();
        let failure = if cancels {
            engine.cancel(tag).unwrap();
            Failure::Here(Reason::Cancelled)
        } else {
            assert!(engine.set_transfer_deadline(tag, begun + SECOND));
            let expected = Expired { operation: Operation::Transfer(tag), phase: Phase::Done, waited: SECOND };
            let event = engine.run();
            assert!(matches!(event, Some(Event::Expired(expired)) if expired == expected), "{event:?}");
            Failure::TimedOut { phase: Phase::Done, waited: SECOND }
        };
        engine.progress();
        assert!(engine.next_event().is_none(), "the peer may write");
        assert_eq!((engine.open_transfers(), far.held()), (1, 1));
        // The peer has the time that it always has; then its right to write is taken back.
        let event = engine.run();
        assert!(
            matches!(&event, Some(Event::Completed { result: Err(TransferError::Failed { failure: told, .. }), .. }) if *told == failure),
            "{event:?}"
        );
        assert!(engine.endpoint().now() - begun >= 30 * SECOND);
        assert!(matches!(engine.run(), Some(Event::Closed { why: Some(Disconnect::Revocation) })));
        assert_eq!(far.held(), 0);
    }
}

#[test]
fn writes_under_way_outlive_a_deadline() {
    let mut far = Far::new(2 * SECOND);
    let [one, other] = far.network.connect(&far.nodes[0], &far.nodes[1], RECEIVES);
    let mut writer = Engine::new(&far.caches[0], one, Side::Connecting, Limits::default());
    let mut target = Engine::new(&far.caches[1], other, Side::Accepting, Limits::default());
    let (mut source, sink) = (vec![7_u8; 3_000_000], vec![0_u8; 3_000_000]);
    // SAFETY: both live longer than the engines.
    let tag = unsafe { writer.open_write(source.as_ptr(), source.len(), b"") }.unwrap();
    assert!(matches!(target.run(), Some(Event::Requested { .. })));
    // SAFETY: both live longer than the engines, and have no other user.
    unsafe { target.accept_write(tag, sink.as_ptr().cast_mut(), sink.len()) }.unwrap();
    // Its keys have come when the first pieces are posted.
    while !matches!(writer.counters().received, 1..) {
        writer.progress();
        far.network.step(u64::MAX);
    }
    writer.progress();
    let over = writer.endpoint().now() + SECOND;
    assert!(writer.set_transfer_deadline(tag, over));
    let Some(Event::Expired(expired)) = writer.run() else { panic!("its time is over") };
    assert_eq!((expired.operation, expired.phase), (Operation::Transfer(tag), Phase::Writes));
    assert_eq!(writer.open_transfers(), 1, "the fabric is at its memory");
    let event = writer.run();
    assert!(matches!(event, Some(Event::Completed { result: Err(_), .. })), "{event:?}");
    source.fill(8);
    assert!(matches!(target.run(), Some(Event::Completed { result: Err(_), .. })));
    // Nothing is wrong with the connection.
    writer.send_message(b"next").unwrap();
    assert!(matches!(target.run(), Some(Event::Message)));
    drop((writer, target));
    far.sink.clear();
    assert!(!sink.contains(&8), "nothing is written after the end was told");
}

#[test]
fn a_message_has_the_deadline_that_it_is_given() {
    let far = Far::new(1_000 * SECOND);
    let (mut engine, _other) = far.engine(Limits::default());
    for _ in 0..16 {
        // SAFETY: the source lives longer than the engine.
        unsafe { engine.open_write(far.source.as_ptr(), LENGTH, b"") }.unwrap();
    }
    engine.send_message(b"first").unwrap();
    engine.send_message(b"second").unwrap();
    let over = engine.endpoint().now() + SECOND;
    assert!(engine.set_message_deadline(2, over) && !engine.set_message_deadline(3, over));
    let expected = Expired { operation: Operation::Message(2), phase: Phase::Credit, waited: SECOND };
    let event = engine.run();
    assert!(matches!(event, Some(Event::Expired(expired)) if expired == expected), "{event:?}");
    let mut events = std::iter::from_fn(|| engine.run());
    let event = events.find(|event| !matches!(event, Event::Completed { .. }));
    let first = Operation::Message(1);
    assert!(matches!(event, Some(Event::Expired(Expired { operation, .. })) if operation == first), "{event:?}");
}

/// One that reads from, or transfers to and from, a peer of bytes.
fn by_hand(peer: impl Fn(&mut TcpStream, Instant) + Send + Sync) {
    for victim in [reads_in_vain, transfers_in_vain] {
        by_hand_to(&peer, victim);
    }
}

fn by_hand_to(peer: impl Fn(&mut TcpStream, Instant) + Send + Sync, victim: fn(Engine<'_, IwarpEndpoint>, &mut [u8])) {
    let domain = IwarpDomain::new(IwarpOptions::default()).unwrap();
    let cache = Cache::builder(domain.clone()).ignore_environment().monitor(Explicit).background(false);
    let cache = cache.build().unwrap();
    let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let mut sink = vec![0_u8; 100_000];
    let mut socket = greet(listener.address().unwrap());
    let endpoint = listener.accept(RECEIVES, Some(SOON)).unwrap();
    // The accepting side hears of the other first.
    socket.write_all(&write(0, 0, b"")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| peer(&mut socket, Instant::now() + SOON));
        victim(Engine::new(&cache, endpoint, Side::Accepting, limits()), &mut sink);
    });
    cache.flush().unwrap();
    assert_eq!(domain.registrations(), 0);
}

fn limits() -> Limits {
    Limits { read_time: SECOND / 2, sync_time: SECOND / 4, write_time: SECOND / 2, ..Limits::default() }
}

fn transfers_in_vain(mut engine: Engine<'_, IwarpEndpoint>, memory: &mut [u8]) {
    let (from, to) = memory.split_at_mut(50_000);
    // SAFETY: both live longer than the engine.
    let [write, read] = unsafe {
        let write = engine.open_write(from.as_ptr(), from.len(), b"").unwrap();
        [write, engine.open_read(to.as_mut_ptr(), to.len(), b"").unwrap()]
    };
    let over = engine.endpoint().now() + SECOND / 10;
    assert!(engine.set_transfer_deadline(write, over) && engine.set_transfer_deadline(read, over));
    // The one has announced its memory to no peer, and is free; the other has.
    let (mut ended, mut expired, mut is_closed) = (Vec::new(), Vec::new(), false);
    while !is_closed {
        match engine.run() {
            Some(Event::Completed { tag, result: Err(error) }) => {
                assert!(error.to_string().contains("0.1 s"), "{error}");
                ended.push(tag);
            }
            Some(Event::Expired(Expired { operation, phase, .. })) => expired.push((operation, phase)),
            Some(Event::Closed { why: Some(Disconnect::Revocation) }) => is_closed = true,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((ended, expired), (vec![write, read], vec![(Operation::Transfer(read), Phase::Done)]));
}

fn reads_in_vain(mut engine: Engine<'_, IwarpEndpoint>, sink: &mut [u8]) {
    let from = Segment { address: 4096, length: sink.len() as u64, key: 7 };
    // SAFETY: the sink lives longer than the engine.
    let id = unsafe { engine.read_remote(sink.as_mut_ptr(), sink.len(), from) }.unwrap();
    let Some(Event::Expired(expired)) = engine.run() else { panic!("its time is over") };
    assert_eq!((expired.operation, expired.phase), (Operation::Read(id), Phase::Reading));
    assert!(expired.waited >= SECOND / 2);
    assert!(matches!(engine.run(), Some(Event::ReadCompleted { succeeded: false, .. })));
    assert!(matches!(engine.run(), Some(Event::Closed { why: Some(Disconnect::ReadFailed) })));
}

/// Until the other side has closed, and for so long at most.
fn while_it_stands(socket: &mut TcpStream, until: Instant, mut act: impl FnMut(&mut TcpStream) -> std::io::Result<()>) {
    while act(socket).is_ok() {
        assert!(Instant::now() < until, "the read never ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn empty_writes_prolong_no_read() {
    by_hand(|socket, until| while_it_stands(socket, until, |socket| socket.write_all(&write(0, 0, b""))));
}

#[test]
fn half_a_frame_prolongs_no_read() {
    // A message, a byte at a time.
    let frame = untagged(Frame::Send, true, 1, 0, &[1; 6_000]);
    by_hand(|socket, until| {
        let mut bytes = frame.iter();
        while_it_stands(socket, until, |socket| socket.write_all(&[*bytes.next().unwrap()]));
    });
}

#[test]
fn silence_prolongs_no_read() {
    use std::io::Read;
    by_hand(|socket, until| {
        socket.set_read_timeout(Some(SOON)).unwrap();
        let mut bytes = Vec::new();
        // Its request is not answered, and then it is gone.
        let _ = socket.read_to_end(&mut bytes);
        assert!(Instant::now() < until, "the read never ended");
    });
}
