//! The engine's three faces, what overlaps what, and what becomes of memory when engines and futures are dropped.
#![allow(unsafe_code, reason = "buffers are lent to engines by address")]

use frrwp::engine::future::{Connection, Finished};
use frrwp::engine::{Engine, Event, TransferError};
use frrwp::fabric::sim::{Costs, Faults, Network, Node, SimDomain, SimEndpoint};
use frrwp::handshake::{Failure, Limits, RECEIVES, Side, Tag};
use frrwp::wire::Reason;
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

const PAGE: usize = 4096;
const TARGET: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// Two nodes, five microseconds apart.
struct Place {
    network: Network,
    nodes: [Node; 2],
    caches: [Cache<SimDomain>; 2],
}

impl Place {
    fn new() -> Self {
        let network = Network::new(1, Costs { latency: 5_000, ..Costs::default() }, Faults::default());
        let nodes = [network.node(), network.node()];
        let caches = [0, 1].map(|at: usize| {
            let builder = Cache::builder(nodes[at].domain()).ignore_environment().monitor(Explicit).background(false);
            builder.capacity_pages(10_000).build().expect("a cache")
        });
        Self { network, nodes, caches }
    }

    fn engines(&self) -> [Engine<'_, SimEndpoint>; 2] {
        let [one, other] = self.network.connect(&self.nodes[0], &self.nodes[1], RECEIVES);
        let limits = Limits::default();
        [
            Engine::new(&self.caches[0], one, Side::Connecting, limits),
            Engine::new(&self.caches[1], other, Side::Accepting, limits),
        ]
    }

    fn transfers(&self) -> [Connection<'_, SimEndpoint>; 2] {
        // SAFETY: the caches are flushed, or dropped, before what the simulated network copies could be memory of others;
        // it looks at no page before a key of a live transfer names it.
        self.engines().map(|engine| unsafe { Connection::new(engine) })
    }

    /// Registers the first page of the memory, and sets both clocks to the same time.
    fn warm(&self, side: usize, memory: *const u8, access: Access) {
        // SAFETY: the caller's buffer lives as long as the place.
        unsafe { self.caches[side].warm(memory, 1, access) }.unwrap();
        let now = self.nodes.iter().map(Node::now).max().unwrap();
        self.nodes.iter().for_each(|node| node.sleep_until(now));
    }

    fn nothing_is_held(&self) {
        assert_eq!(self.network.violations(), []);
        for (cache, node) in self.caches.iter().zip(&self.nodes) {
            cache.flush().unwrap();
            assert_eq!((cache.usage().regions, node.registrations()), (0, 0));
        }
    }
}

fn asked(engine: &mut Engine<'_, SimEndpoint>) -> Tag {
    match engine.run() {
        Some(Event::Requested { tag, .. }) => tag,
        other => panic!("{other:?}"),
    }
}

/// 201 pages, of which the first is registered in one side's cache. From the call on, that side registers for as long as
/// 200 pages take.
fn placed_and_registered(opens: usize, partly: usize, read: bool) -> (u64, u64) {
    let place = Place::new();
    let [mut source, mut sink] = [vec![7_u8; 201 * PAGE], vec![0_u8; 201 * PAGE]];
    let (writer, target) = if read { (1 - opens, opens) } else { (opens, 1 - opens) };
    // The other side has all of it registered.
    let all = |side: usize, memory: *const u8, access| {
        // SAFETY: both buffers live to the end of this function.
        unsafe { place.caches[side].warm(memory, 201 * PAGE, access) }.unwrap()
    };
    if partly == writer {
        all(target, sink.as_ptr(), TARGET);
        place.warm(writer, source.as_ptr(), Access::LOCAL_READ);
    } else {
        all(writer, source.as_ptr(), Access::LOCAL_READ);
        place.warm(target, sink.as_ptr(), TARGET);
    }
    let [from, to, length] = [source.as_mut_ptr() as usize, sink.as_mut_ptr() as usize, 201 * PAGE];
    let mut engines = place.engines();
    let mut registered = 0;
    let mut note = |side: usize| {
        if side == partly {
            registered = place.nodes[side].now();
        }
    };
    // SAFETY: both buffers live to the end of this function, and only the transfer uses them.
    unsafe {
        let tag = match read {
            true => engines[opens].open_read(to as *mut u8, length, b""),
            false => engines[opens].open_write(from as *const u8, length, b""),
        };
        let tag = tag.unwrap();
        note(opens);
        assert_eq!(asked(&mut engines[1 - opens]), tag);
        match read {
            true => engines[1 - opens].accept_read(tag, from as *const u8, length),
            false => engines[1 - opens].accept_write(tag, to as *mut u8, length),
        }
        .unwrap();
        note(1 - opens);
        assert_eq!(engines[writer].finish(tag).unwrap(), length as u64);
        assert_eq!(engines[target].finish(tag).unwrap(), length as u64);
    }
    drop(engines);
    assert!(source == sink);
    place.nothing_is_held();
    (place.network.first_placed().unwrap(), registered)
}

#[test]
fn ready_parts_are_written_before_registration_ends() {
    // The target's buffer is a partial hit, of a write and of a read; the writer's, where the keys come with the question.
    for (what, opens, partly, read) in [("accepted", 0, 1, false), ("read", 0, 0, true), ("supplied", 0, 1, true)] {
        let (placed, registered) = placed_and_registered(opens, partly, read);
        println!("{what}: the first byte placed at {placed} ns, the rest registered at {registered} ns");
        assert!(placed + 100_000 < registered, "{what}: {placed}, {registered}");
    }
}

#[test]
fn opening_writer_uses_keys_once_registered() {
    // They come while it registers, and registering is all that its one thread does. The target was ready long before.
    let (placed, registered) = placed_and_registered(0, 0, false);
    assert_eq!(placed, registered + 5_000, "at once, and one way");
}

/// A buffer of 200 pages for each of three peers. Returns how late the last peer was asked, and when the buffer was registered here.
fn asked_of_three(open: impl Fn(&mut [Engine<'_, SimEndpoint>], *const u8, usize) -> Vec<Tag>) -> (u64, u64) {
    let network = Network::new(1, Costs { latency: 5_000, ..Costs::default() }, Faults::default());
    let nodes: [Node; 4] = std::array::from_fn(|_| network.node());
    let caches = nodes.each_ref().map(|node| {
        let builder = Cache::builder(node.domain()).ignore_environment().monitor(Explicit).background(false);
        builder.capacity_pages(10_000).build().unwrap()
    });
    let source = vec![7_u8; 200 * PAGE];
    let mut sinks: [_; 3] = std::array::from_fn(|_| vec![0_u8; 200 * PAGE]);
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for peer in 1..4 {
        let [one, other] = network.connect(&nodes[0], &nodes[peer], RECEIVES);
        near.push(Engine::new(&caches[0], one, Side::Connecting, Limits::default()));
        far.push(Engine::new(&caches[peer], other, Side::Accepting, Limits::default()));
    }
    let tags = open(&mut near, source.as_ptr(), source.len());
    let registered = nodes[0].now();
    let asked = far.iter_mut().map(asked).collect::<Vec<_>>();
    let last = nodes[1..].iter().map(Node::now).max().unwrap();
    assert_eq!(asked, tags);
    for ((far, sink), &tag) in far.iter_mut().zip(&mut sinks).zip(&tags) {
        // SAFETY: the buffer lives to the end of this function, and only the transfer uses it.
        unsafe { far.accept_write(tag, sink.as_mut_ptr(), sink.len()) }.unwrap();
    }
    for ((near, far), &tag) in near.iter_mut().zip(&mut far).zip(&tags) {
        assert_eq!((near.finish(tag).unwrap(), far.finish(tag).unwrap()), (source.len() as u64, source.len() as u64));
    }
    drop((near, far));
    assert_eq!(nodes[0].registrations(), 1, "one for all three");
    assert!(sinks.iter().all(|sink| *sink == source));
    assert_eq!(network.violations(), []);
    (last, registered)
}

#[test]
fn peers_of_one_buffer_are_asked_at_once() {
    // SAFETY: the buffer lives longer than the engines, and has no other user.
    let (last, registered) = asked_of_three(|engines, memory, length| unsafe {
        Engine::open_writes(engines, memory, length, b"").into_iter().map(Result::unwrap).collect()
    });
    assert!(last < 10_000 && last + 100_000 < registered, "{last}, {registered}");

    // SAFETY: the buffer lives longer than the engines, and has no other user.
    let (last, registered) = asked_of_three(|engines, memory, length| unsafe {
        engines.iter_mut().map(|engine| engine.open_write(memory, length, b"").unwrap()).collect()
    });
    assert!(last >= registered, "one after the other: {last}, {registered}");
}

#[test]
fn blocking_call_returns_its_end_and_keeps_events() {
    let place = Place::new();
    let mut memory = [vec![1_u8; 100], vec![0_u8; 100], vec![2_u8; 100], vec![0_u8; 100]];
    let at: Vec<usize> = memory.iter_mut().map(|buffer| buffer.as_mut_ptr() as usize).collect();
    let [mut one, mut other] = place.engines();
    // SAFETY: the buffers live longer than the engines.
    unsafe {
        let tags = [0, 2].map(|buffer: usize| one.open_write(at[buffer] as *const u8, 100, b"").unwrap());
        for (tag, buffer) in tags.into_iter().zip([1, 3]) {
            assert_eq!(asked(&mut other), tag);
            other.accept_write(tag, at[buffer] as *mut u8, 100).unwrap();
        }
        assert_eq!(one.finish(tags[1]).unwrap(), 100);
        assert!(matches!(one.next_event(), Some(Event::Completed { tag, result: Ok(100) }) if tag == tags[0]));
        assert_eq!(other.finish(tags[0]).unwrap(), 100);
        assert_eq!(other.finish(tags[1]).unwrap(), 100);
        // Told before, or never opened.
        for tag in [tags[1], Tag(99)] {
            let failure = Failure::Here(Reason::UnknownTag);
            assert!(matches!(one.finish(tag), Err(TransferError::Failed { failure: told, .. }) if told == failure));
        }
    }
    drop((one, other));
    assert_eq!(memory[1], memory[0]);
    assert_eq!(memory[3], memory[2]);
    place.nothing_is_held();
}

#[test]
fn misfit_answer_ends_transfer_unregistered() {
    for read in [false, true] {
        let place = Place::new();
        let [source, mut sink] = [vec![1_u8; 100], vec![0_u8; 100]];
        let [mut one, mut other] = place.engines();
        // SAFETY: the buffers live longer than the engines.
        unsafe {
            let tag = if read {
                one.open_read(sink.as_mut_ptr(), 50, b"")
            } else {
                one.open_write(source.as_ptr(), 100, b"")
            };
            let tag = tag.unwrap();
            assert_eq!(asked(&mut other), tag);
            match read {
                true => other.accept_read(tag, source.as_ptr(), 100),
                false => other.accept_write(tag, sink.as_mut_ptr(), 50),
            }
            .unwrap();
            for (engine, failure) in [
                (&mut other, Failure::Here as fn(Reason) -> Failure),
                (&mut one, Failure::Peer as fn(Reason) -> Failure),
            ] {
                let Err(TransferError::Failed { failure: told, .. }) = engine.finish(tag) else { panic!() };
                assert_eq!(told, failure(Reason::TooLong { needed: 100 }));
            }
        }
        assert_eq!(place.nodes[1].registrations(), 0);
    }
}

#[test]
fn dropped_engine_releases_all_memory() {
    // The writer is dropped with writes posted; the target with keys out. The other side hears of it.
    for drops in [0, 1] {
        let place = Place::new();
        let [source, mut sink] = [vec![1_u8; 10 * PAGE], vec![0_u8; 10 * PAGE]];
        let [one, other] = place.engines();
        let mut engines = [Some(one), Some(other)];
        // SAFETY: the buffers live until their engines have ended.
        let tag = unsafe {
            let [Some(one), Some(other)] = &mut engines else { panic!() };
            let tag = one.open_write(source.as_ptr(), source.len(), b"").unwrap();
            assert_eq!(asked(other), tag);
            other.accept_write(tag, sink.as_mut_ptr(), sink.len()).unwrap();
            while one.open_transfers() == 1 && place.network.first_placed().is_none() && place.network.step(u64::MAX) {
                one.progress();
            }
            tag
        };
        engines[drops] = None;
        let placed = sink.clone();
        while place.network.step(u64::MAX) {}
        assert_eq!(placed, sink);
        let rest = engines[1 - drops].as_mut().unwrap();
        let _ = rest.finish(tag);
        assert!(matches!(rest.run(), Some(Event::Closed { .. })));
        assert_eq!(rest.open_transfers(), 0);
        drop(engines);
        place.nothing_is_held();
    }
}

/// Both, each polled when the other waits.
async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(output) = one.as_mut().poll(context)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(context)
        {
            second = Some(output);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

#[test]
fn futures_hand_their_buffers_over_and_back() {
    let place = Place::new();
    let [one, other] = place.transfers();
    let data: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
    let client = async {
        let written = one.open_write(data.clone(), b"put").unwrap().await;
        assert_eq!((written.result.unwrap(), written.buffer.as_ref()), (100_000, Some(&data)));
        one.open_read(vec![0; 150_000], b"get").unwrap().await
    };
    let server = async {
        let put = other.requested().await.unwrap();
        assert_eq!((put.read, put.length, &put.header[..]), (false, 100_000, &b"put"[..]));
        let stored = other.accept_write(put.tag, vec![0; 100_000]).unwrap().await;
        stored.result.unwrap();
        let get = other.requested().await.unwrap();
        assert_eq!((get.read, get.length, &get.header[..]), (true, 150_000, &b"get"[..]));
        other.accept_read(get.tag, stored.buffer.unwrap()).unwrap().await.result.unwrap()
    };
    let (Finished { buffer, result }, supplied) = one.block_on(both(client, server));
    assert_eq!((result.unwrap(), supplied), (100_000, 100_000));
    assert_eq!(buffer.unwrap()[..100_000], data);
    assert_eq!((one.held(), other.held()), (0, 0));
    drop((one, other));
    place.nothing_is_held();
}

#[test]
fn futures_send_messages_in_order_as_room_allows() {
    let place = Place::new();
    let [one, other] = place.transfers();
    let talks = async {
        for number in 0..100_u32 {
            one.send_message(&number.to_le_bytes()).await.unwrap();
        }
        let answer = one.recv_message().await;
        one.disconnect();
        answer
    };
    let listens = async {
        for number in 0..100_u32 {
            assert_eq!(other.recv_message().await.unwrap(), number.to_le_bytes());
        }
        other.send_message(b"that is all").await.unwrap();
        // Nothing more comes: the connection ends.
        other.recv_message().await
    };
    // The end of the other comes last.
    let (answer, last) = other.block_on(both(talks, listens));
    assert_eq!((answer.as_deref(), last), (Some(&b"that is all"[..]), None));
    assert!(one.block_on(one.send_message(b"x")).is_err());
    drop((one, other));
    place.nothing_is_held();
}

#[test]
fn dropped_future_keeps_buffer_while_writable() {
    let place = Place::new();
    let [one, other] = place.transfers();
    let mut write = Box::pin(one.open_write(vec![1; PAGE], b"").unwrap());
    let put = one.block_on(other.requested()).unwrap();
    let accepted = other.accept_write(put.tag, vec![0; PAGE]).unwrap();
    // Keys are out.
    drop(accepted);
    assert_eq!(other.held(), 1, "the peer may write to it");
    let Finished { result, .. } = one.block_on(async { both(&mut write, other.moves_on()).await.0 });
    // The writer had all it needed before it heard of the CANCEL, or heard of it first.
    println!("{result:?}");
    other.progress();
    while place.network.step(u64::MAX) {
        one.progress();
        other.progress();
    }
    assert_eq!((one.held(), other.held()), (0, 0));
    drop(write);
    drop((one, other));
    place.nothing_is_held();
}

/// Moves a side on without waiting for it.
trait MovesOn {
    fn moves_on(&self) -> impl Future<Output = ()>;
}

impl MovesOn for Connection<'_, SimEndpoint> {
    async fn moves_on(&self) {
        self.progress();
    }
}

#[test]
fn forgotten_futures_end_before_their_buffers() {
    let place = Place::new();
    let [one, other] = place.transfers();
    std::mem::forget(one.open_write(vec![1; PAGE], b"").unwrap());
    other.block_on(async {
        let put = other.requested().await.unwrap();
        std::mem::forget(other.accept_write(put.tag, vec![0; PAGE]).unwrap());
    });
    assert_eq!((one.held(), other.held()), (1, 1));
    drop(other);
    drop(one);
    place.nothing_is_held();
}
