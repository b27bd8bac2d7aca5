//! Engines under pressure: peers that flood them with messages, and futures that end while others are polled.
#![allow(unsafe_code, reason = "an endpoint between the engine and the simulated one; buffers are lent by address")]

#[path = "common/around.rs"]
mod around;

use around::{Around, Between};
use frrwp::engine::future::Connection;
use frrwp::engine::{Engine, Event};
use frrwp::fabric::sim::{Costs, Faults, Network, Node, SimDomain, SimEndpoint};
use frrwp::fabric::{Completion, Domain, Endpoint};
use frrwp::handshake::{Limits, RECEIVES, Side, Tag};
use frrwp::wire::{Body, MESSAGE, Message, Offer, Placed, Reason, Segment, Segments};
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Counts the sleeps of a simulated endpoint, with a peer that may be a flood and a queue that may be full.
struct Pressed {
    sleeps: Rc<Cell<u32>>,
    flood: Option<Flood>,
    /// Chooses when.
    full: Option<StdRng>,
}

impl Pressed {
    fn takes_more(&mut self) -> io::Result<()> {
        let is_full = self.full.as_mut().is_some_and(|rng| rng.random_ratio(1, 3));
        if is_full { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }
}

/// Opens transfers and takes them back, as fast as the engine adds receives.
struct Flood {
    credits: u32,
    tag: u64,
    rounds_left: u32,
    came: VecDeque<Vec<u8>>,
}

impl Flood {
    fn new(rounds_left: u32) -> Self {
        Self { credits: RECEIVES.into(), tag: 1, rounds_left, came: VecDeque::new() }
    }

    fn goes_on(&mut self) {
        while self.credits >= 2 && self.rounds_left > 0 {
            let sync = Body::Sync { length: 10, read: true, header: b"", offer: None };
            for body in [sync, Body::Nak(Reason::Cancelled)] {
                let mut bytes = [0; MESSAGE];
                let length = Message { credits: 1, tag: self.tag, body }.encode(&mut bytes);
                self.came.push_back(bytes[..length].to_vec());
            }
            self.credits -= 2;
            self.rounds_left -= 1;
            self.tag += 2;
        }
    }
}

impl Around for Pressed {
    type Inner = SimEndpoint;

    fn send(&mut self, message: &[u8], inner: &mut SimEndpoint) -> io::Result<()> {
        self.takes_more()?;
        match &mut self.flood {
            Some(flood) => flood.credits += u32::from(Message::decode(message).unwrap().credits),
            None => inner.send(message)?,
        }
        Ok(())
    }

    fn before_write(&mut self, _: Segment) -> io::Result<()> {
        self.takes_more()
    }

    fn before_read(&mut self, pieces: usize) -> io::Result<()> {
        assert!(pieces <= 4, "no more pieces than the simulated endpoint takes");
        self.takes_more()
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE], inner: &mut SimEndpoint) -> Option<Completion> {
        if let Some(flood) = &mut self.flood {
            flood.goes_on();
            if let Some(bytes) = flood.came.pop_front() {
                message[..bytes.len()].copy_from_slice(&bytes);
                return Some(Completion::Message { length: bytes.len() });
            }
        }
        inner.poll(message)
    }

    fn before_wait(&mut self) {
        self.sleeps.set(self.sleeps.get() + 1);
    }
}

struct Place {
    network: Network,
    nodes: [Node; 2],
    cache: Cache<SimDomain>,
    sleeps: Rc<Cell<u32>>,
}

impl Place {
    fn new() -> Self {
        let network = Network::new(1, Costs::default(), Faults::default());
        let nodes = [network.node(), network.node()];
        let builder = Cache::builder(nodes[0].domain()).ignore_environment().monitor(Explicit).background(false);
        Self { cache: builder.capacity_pages(100).build().unwrap(), network, nodes, sleeps: Rc::default() }
    }

    /// Returns an engine that accepted, and the end of its peer.
    fn engine(&self, flood: Option<Flood>) -> (Engine<'_, Between<Pressed>>, SimEndpoint) {
        let [peer, inner] = self.network.connect(&self.nodes[1], &self.nodes[0], RECEIVES);
        let pressed = Pressed { sleeps: self.sleeps.clone(), flood, full: None };
        let between = Between::new(inner, pressed);
        (Engine::new(&self.cache, between, Side::Accepting, Limits::default()), peer)
    }
}

#[test]
fn chatty_peer_does_not_monopolize_progress() {
    let place = Place::new();
    const ROUNDS: u32 = 100_000;
    let (mut engine, _peer) = place.engine(Some(Flood::new(ROUNDS)));
    engine.progress();
    let received = engine.counters().received;
    assert!(received < 10_000, "{received} messages before the caller had its turn");
    // Nothing is lost: it goes on with the next call.
    while engine.endpoint().around.flood.as_ref().unwrap().rounds_left > 0 {
        engine.progress();
        assert!(engine.counters().received > received);
    }
    engine.progress();
    assert_eq!(engine.counters().received, u64::from(2 * ROUNDS));
}

#[test]
fn withdrawn_request_is_never_reported() {
    // An application that waits for one transfer looks at no other event, and the peer goes on and on.
    let place = Place::new();
    let (mut engine, _peer) = place.engine(Some(Flood::new(10_000)));
    while engine.endpoint().around.flood.as_ref().unwrap().rounds_left > 0 {
        engine.progress();
    }
    engine.progress();
    assert_eq!((engine.open_transfers(), engine.counters().failed), (0, 10_000));
    assert!(engine.next_event().is_none(), "neither that it was asked, nor that it ended");
}

#[test]
fn intermittently_full_fabric_keeps_order() {
    const PAGE: usize = 4096;
    const BYTES: usize = 12 * PAGE;
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let network = Network::new(seed, Costs::default(), Faults::default());
        let nodes = [network.node(), network.node()];
        let caches = nodes.each_ref().map(|node| {
            let builder = Cache::builder(node.domain()).ignore_environment().monitor(Explicit).background(false);
            builder.capacity_pages(100).build().unwrap()
        });
        let mut ends = network.connect(&nodes[0], &nodes[1], RECEIVES).into_iter();
        let mut engine = |at: usize, side| {
            let (inner, full) = (ends.next().unwrap(), Some(StdRng::seed_from_u64(seed + 100 + at as u64)));
            let between = Between::new(inner, Pressed { sleeps: Rc::default(), flood: None, full });
            Engine::new(&caches[at], between, side, Limits { reads: 2, ..Limits::default() })
        };
        let mut engines = [engine(0, Side::Connecting), engine(1, Side::Accepting)];
        let source: Vec<u8> = (0..BYTES + PAGE).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let mut sink = vec![0_u8; BYTES + PAGE];
        let to = sink.as_mut_ptr();
        // SAFETY: the memory lives longer than the engines; what is read into is looked at when that has ended.
        let lease =
            |at: usize, from: *const u8, length, rights| unsafe { caches[at].acquire(from, length, rights) }.unwrap();
        // The buffer is in many registrations, so that a read takes several posts, and the fabric is full in between.
        let pieces: Vec<_> =
            (0..12).step_by(2).map(|page| lease(0, to.wrapping_add(page * PAGE), 1, Access::LOCAL_WRITE)).collect();
        let offered = lease(1, source.as_ptr(), BYTES, Access::REMOTE_READ);
        let part = offered.segments().next().unwrap();
        let from = nodes[1].domain().remote(part.registration(), part.address(), BYTES);
        let (mut said, mut heard, mut fetched, mut rooms) = ([0_u32; 2], [0_u32; 2], 0_u64, 0);
        let (mut last, mut into) = (None, Vec::new());
        while heard != [200; 2] || fetched < 50 {
            for side in 0..2 {
                if said[side] < 200 && rng.random_ratio(1, 2) {
                    said[side] += u32::from(engines[side].send_message(&said[side].to_le_bytes()).is_ok());
                }
            }
            if last.is_none() && fetched < 50 {
                sink.fill(0);
                // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                last = unsafe { engines[0].read_remote(to, BYTES, from) }.ok();
            }
            network.step(u64::MAX);
            for side in 0..2 {
                engines[side].progress();
                while let Some(event) = engines[side].next_event() {
                    match event {
                        Event::Message => {
                            assert!(engines[side].recv_message(&mut into));
                            assert_eq!(into, heard[side].to_le_bytes(), "seed {seed}: in order");
                            heard[side] += 1;
                        }
                        Event::ReadCompleted { id, succeeded: true } => {
                            assert_eq!(last.take(), Some(id));
                            assert!(sink[..BYTES] == source[..BYTES], "seed {seed}");
                            fetched += 1;
                        }
                        Event::Writable => rooms += 1,
                        other => panic!("seed {seed}: {other:?}"),
                    }
                }
            }
        }
        assert!(rooms > 0 && engines[0].open_reads() == 0, "seed {seed}: {rooms}");
        drop(engines);
        drop((pieces, offered));
    }
}

#[test]
fn what_was_told_is_told_to_its_end() {
    let place = Place::new();
    let (mut engine, mut peer) = place.engine(None);
    let say = |peer: &mut SimEndpoint, body| {
        let mut bytes = [0; MESSAGE];
        let length = Message { credits: 1, tag: 1, body }.encode(&mut bytes);
        peer.send(&bytes[..length]).unwrap();
        while place.network.step(u64::MAX) {}
    };
    say(&mut peer, Body::Sync { length: 10, read: true, header: b"", offer: None });
    engine.progress();
    assert!(matches!(engine.next_event(), Some(Event::Requested { tag: Tag(1), .. })));
    say(&mut peer, Body::Nak(Reason::Cancelled));
    engine.progress();
    assert!(matches!(engine.next_event(), Some(Event::Completed { tag: Tag(1), result: Err(_) })));
    assert!(engine.next_event().is_none());
}

/// Random messages that are nearly right, from a peer that takes part in nothing else, against an engine that answers what it is
/// asked and opens transfers of its own. How many of them ended, and how many connections.
fn fuzz(seed: u64, messages: u32) -> (u32, u32) {
    let mut rng = StdRng::seed_from_u64(seed);
    let place = Place::new();
    let mut memory = vec![7_u8; 40 * 100];
    let base = memory.as_mut_ptr();
    let (mut ended, mut connections, mut said) = (0, 0, 0);
    while said < messages {
        let (mut engine, mut peer) = place.engine(None);
        connections += 1;
        let mut bytes = Box::new([0; MESSAGE]);
        // Each transfer has its own of 40 places; what the engine opens is even, and the peer's odd.
        let mut free: Vec<usize> = (0..40).collect();
        let mut lent = HashMap::new();
        'connection: loop {
            let segment = Segment { address: 0x1000, length: rng.random_range(1..60), key: rng.random_range(0..3) };
            let placed = [Placed { offset: 0, segment }; 3];
            let segments = Segments::Plain(&placed[..rng.random_range(0..=3)]);
            let offset = if rng.random() { 0 } else { rng.random_range(0..60) };
            let body = match rng.random_range(0..10) {
                9 => Body::Say(b"something"),
                0..3 => Body::Sync { length: rng.random_range(0..100), read: rng.random(), header: b"", offer: None },
                3..5 => Body::Stcrw(Offer { offset, segments, more: rng.random() }),
                5 => Body::Done { bytes: rng.random_range(0..100) },
                6 => Body::Nak(Reason::Cancelled),
                7 => Body::Cancel,
                _ => Body::Credit,
            };
            let tag = rng.random_range(0..60);
            let length = Message { credits: 2, tag, body }.encode(&mut bytes);
            if rng.random_ratio(1, 40) {
                bytes[rng.random_range(0..length)] = rng.random();
            }
            said += u32::from(peer.send(&bytes[..length]).is_ok());
            while place.network.step(u64::MAX) {}
            // The engine's message takes a receive, and is not looked at.
            while peer.poll(&mut bytes).is_some() {
                peer.receive(1).unwrap();
            }
            engine.progress();
            while let Some(event) = engine.next_event() {
                match event {
                    Event::Requested { tag, read, length } => {
                        let Some(at) = free.pop() else { break };
                        let length = usize::try_from(length).unwrap().min(100);
                        lent.insert(tag, at);
                        // SAFETY: the place is this transfer's until it has ended, and the memory outlives the engine.
                        let answered = unsafe {
                            let memory = base.add(at * 100);
                            if read {
                                engine.accept_read(tag, memory, length)
                            } else {
                                engine.accept_write(tag, memory, length)
                            }
                        };
                        if answered.is_err() {
                            free.extend(lent.remove(&tag));
                        }
                    }
                    Event::Completed { tag, .. } => {
                        ended += 1;
                        free.extend(lent.remove(&tag));
                    }
                    Event::Closed { .. } => break 'connection,
                    // The messages are not taken.
                    _ => {}
                }
            }
            if rng.random_ratio(1, 4)
                && let Some(at) = free.pop()
            {
                // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                let tag = unsafe {
                    let memory = base.add(at * 100);
                    if rng.random() { engine.open_write(memory, 50, b"") } else { engine.open_read(memory, 50, b"") }
                };
                match tag {
                    Ok(tag) => drop(lent.insert(tag, at)),
                    Err(_) => free.push(at),
                }
            }
        }
        assert!(lent.is_empty() && engine.open_transfers() == 0, "seed {seed}: every transfer ends");
    }
    // Only the simulated card of the peer, which has registered nothing, was ever asked for what it has not.
    assert!(place.network.violations().iter().all(|violation| violation.node == 1), "seed {seed}");
    place.cache.flush().unwrap();
    assert_eq!((place.cache.usage().regions, place.nodes[0].registrations()), (0, 0), "seed {seed}: nothing is held");
    (ended, connections)
}

#[test]
fn nearly_valid_messages_are_harmless() {
    let (mut ended, mut connections) = (0, 0);
    for seed in 0..20 {
        let (transfers, times) = fuzz(seed, 2_000);
        (ended, connections) = (ended + transfers, connections + times);
    }
    println!("{ended} transfers ended, over {connections} connections");
    assert!(ended > 2_000 && connections > 200, "{ended} transfers, {connections} connections");
}

/// Refuses all that was opened. The messages lie before the other end.
fn refuse_all(place: &Place, peer: &mut SimEndpoint) {
    let mut bytes = Box::new([0; MESSAGE]);
    while place.network.step(u64::MAX) {}
    while let Some(Completion::Message { length }) = peer.poll(&mut bytes) {
        let tag = Message::decode(&bytes[..length]).unwrap().tag;
        let mut answer = [0; MESSAGE];
        let length = Message { credits: 1, tag, body: Body::Nak(Reason::Refused) }.encode(&mut answer);
        peer.send(&answer[..length]).unwrap();
    }
    while place.network.step(u64::MAX) {}
}

#[test]
fn future_ended_by_another_poll_is_woken() {
    let place = Place::new();
    let (engine, mut peer) = place.engine(None);
    // SAFETY: the cache goes with the place, and its memory is not used by others before.
    let connection = unsafe { Connection::new(engine) };
    let [first, second] = [0, 1].map(|_| connection.open_write(vec![1; 10], b"").unwrap());
    let (mut first, mut second) = (pin!(first), pin!(second));
    let mut ended = [false; 2];
    connection.block_on(poll_fn(|context| {
        ended[0] |= first.as_mut().poll(context).is_ready();
        if !ended[0] {
            // News comes just now: the second finds them, for both.
            refuse_all(&place, &mut peer);
        }
        ended[1] = ended[1] || second.as_mut().poll(context).is_ready();
        if ended == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
    }));
    assert_eq!(place.sleeps.get(), 0, "nothing more would ever have come");
}

thread_local! {
    /// The object that a task held.
    static HELD: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// A task that is gone takes the futures with it that it held: they are dropped where its last waker is.
struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Task {
    fn drop(&mut self) {
        HELD.take().into_iter().for_each(|held| held());
    }
}

#[test]
fn waker_dropping_another_transfer_is_harmless() {
    for drops in [false, true] {
        let place: &'static Place = Box::leak(Box::new(Place::new()));
        let (engine, _peer) = place.engine(None);
        // SAFETY: the place is leaked, and so are the transfers' buffers.
        let connection: &'static Connection<'_, _> = Box::leak(Box::new(unsafe { Connection::new(engine) }));
        let [held, polled] = [0, 1].map(|_| connection.open_write(vec![1; 10], b"").unwrap());
        let mut polled = Box::pin(polled);
        let task = Waker::from(Arc::new(Task));
        assert!(polled.as_mut().poll(&mut Context::from_waker(&task)).is_pending());
        drop(task);
        HELD.set(Some(Box::new(move || drop(held))));
        if !drops {
            assert!(polled.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        drop(polled);
        assert!(HELD.take().is_none(), "its waker is gone");
        connection.progress();
        assert_eq!(connection.held(), 0, "neither was heard of: both were taken back at once");
    }
}

#[test]
fn dropped_asked_future_leaves_no_waker() {
    let place = Place::new();
    let (engine, _peer) = place.engine(None);
    // SAFETY: the cache outlives the connection, which is lent no memory of others.
    let connection = unsafe { Connection::new(engine) };
    let task = Arc::new(Task);
    let mut asked = Box::pin(connection.requested());
    assert!(asked.as_mut().poll(&mut Context::from_waker(&Waker::from(task.clone()))).is_pending());
    assert_eq!(Arc::strong_count(&task), 2);
    drop(asked);
    assert_eq!(Arc::strong_count(&task), 1);
}
