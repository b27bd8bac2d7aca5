//! Transfers between two engines over any provider, both driven by one thread.
#![allow(unreachable_pub, dead_code, reason = "shared by tests")]

use frrwp::engine::{Engine, Event, OpenError};
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::{Limits, Side, Tag};
use frrwp::wire::Segment;
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::HashMap;

/// How a side was told that a transfer ended: nothing for a failure, else the count and the bytes.
type Told = Option<(u64, Vec<u8>)>;

pub const PAGE: usize = 4096;

/// Memory that transfers may use, for as long as it is there.
pub trait Memory {
    fn start(&self) -> *mut u8;
    fn bytes(&self, at: usize, length: usize) -> Vec<u8>;
}

struct Heap(*mut [u8]);

impl Memory for Heap {
    fn start(&self) -> *mut u8 {
        self.0.cast()
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.0.len());
        // SAFETY: inside, and no transfer uses it now, by this thread or another.
        unsafe { std::slice::from_raw_parts(self.start().add(at), length) }.to_vec()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and has no other owner.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// The interface of a provider for a test.
pub trait Fabric {
    type Endpoint: Endpoint;
    /// Its name in messages.
    fn name(&self) -> String;
    /// Memory of that side that can be registered, with these bytes in it. Any can, where a provider does not say otherwise.
    fn memory(&self, _side: usize, bytes: Vec<u8>) -> Box<dyn Memory> {
        Box::new(Heap(Box::into_raw(bytes.into_boxed_slice())))
    }
    /// Returns the domain of that side.
    fn domain(&self, side: usize) -> <Self::Endpoint as Endpoint>::Domain;
    /// Returns a new connection, the connecting side first.
    fn connect(&self) -> [Self::Endpoint; 2];
    /// Nothing is to be done: lets time go on.
    fn idle(&self);
    /// Registrations of that side that live.
    fn registrations(&self, side: usize) -> usize;
}

pub type Caches<F> = [Cache<<<F as Fabric>::Endpoint as Endpoint>::Domain>; 2];

pub fn caches<F: Fabric>(fabric: &F, pages: u64) -> Caches<F> {
    [0, 1].map(|side| {
        let builder = Cache::builder(fabric.domain(side)).ignore_environment().monitor(Explicit).background(false);
        builder.capacity_pages(pages).build().expect("a cache")
    })
}

pub fn engines<'cache, F: Fabric>(
    fabric: &F,
    caches: &'cache Caches<F>,
    limits: Limits,
) -> [Engine<'cache, F::Endpoint>; 2] {
    let [one, other] = fabric.connect();
    [Engine::new(&caches[0], one, Side::Connecting, limits), Engine::new(&caches[1], other, Side::Accepting, limits)]
}

pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    StdRng::seed_from_u64(seed).fill_bytes(&mut buffer);
    buffer
}

/// One transfer, opened by the connecting side: what was to arrive, and what did.
pub fn one<F: Fabric>(fabric: &F, read: bool, limits: Limits, length: usize) -> (Vec<u8>, Vec<u8>) {
    let caches = caches(fabric, 10_000);
    let (opens, answers) = (fabric.memory(0, noise(7, length)), fabric.memory(1, noise(8, length)));
    let (source, sink) = if read { (&answers, &opens) } else { (&opens, &answers) };
    let mut engines = engines(fabric, &caches, limits);
    // SAFETY: both buffers live to the end of this function, and only the transfer uses them.
    let tag = unsafe {
        if read {
            engines[0].open_read(sink.start(), length, b"give")
        } else {
            engines[0].open_write(source.start(), length, b"take")
        }
    };
    let tag = tag.unwrap();
    let mut ended = [false; 2];
    while ended != [true; 2] {
        fabric.idle();
        for side in 0..2 {
            engines[side].progress();
            while let Some(event) = engines[side].next_event() {
                match event {
                    Event::Requested { tag, read: false, .. } => {
                        assert_eq!(engines[side].header(tag), Some(&b"take"[..]));
                        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                        unsafe { engines[side].accept_write(tag, sink.start(), length) }.unwrap();
                    }
                    Event::Requested { tag, read: true, .. } => {
                        assert_eq!(engines[side].header(tag), Some(&b"give"[..]));
                        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                        unsafe { engines[side].accept_read(tag, source.start(), length) }.unwrap();
                    }
                    Event::KeysCame { tag } => engines[side].submit(tag).unwrap(),
                    Event::Completed { tag: ended_tag, result } => {
                        assert_eq!((ended_tag, result.unwrap()), (tag, length as u64));
                        ended[side] = true;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    (source.bytes(0, length), sink.bytes(0, length))
}

/// Returns the next event of the connecting side; the other has nothing to do.
fn next<F: Fabric>(fabric: &F, engines: &mut [Engine<'_, F::Endpoint>; 2]) -> Event {
    loop {
        fabric.idle();
        for engine in engines.iter_mut() {
            engine.progress();
        }
        if let Some(event) = engines[0].next_event() {
            return event;
        }
    }
}

/// One-sided reads of every length, by keys that the peer's application says; as many at a time as there may be, and one that
/// is not allowed.
pub fn fetched<F: Fabric>(fabric: &F) {
    const LENGTH: usize = 300_000;
    let caches = caches(fabric, 10_000);
    let expected = noise(1, LENGTH);
    let (source, sink) = (fabric.memory(1, expected.clone()), fabric.memory(0, vec![0; LENGTH]));
    // SAFETY: the memory lives to the end of this function, and is not written.
    let offered = unsafe { caches[1].acquire(source.start(), LENGTH, Access::REMOTE_READ) }.unwrap();
    let key = |at: usize, length: usize| {
        let part = offered.segments().next().unwrap();
        assert!(part.len() == LENGTH);
        caches[1].registrar().remote(part.registration(), part.address().wrapping_add(at), length)
    };
    let mut engines = engines(fabric, &caches, Limits { reads: 3, ..Limits::default() });
    // The application says where.
    let all = key(0, LENGTH);
    engines[1].send_message(&[&all.address.to_le_bytes()[..], &all.key.to_le_bytes()].concat()).unwrap();
    assert!(matches!(next(fabric, &mut engines), Event::Message));
    let mut said = Vec::new();
    assert!(engines[0].recv_message(&mut said));
    let address = u64::from_le_bytes(said[..8].try_into().unwrap());
    let from = |at: usize, length: usize| {
        let key = u32::from_le_bytes(said[8..].try_into().unwrap());
        Segment { address: address + at as u64, length: length as u64, key }
    };
    // SAFETY: the sink has no other user, and lives longer than the engines.
    let fetch = |engines: &mut [Engine<'_, F::Endpoint>; 2], at: usize, length: usize, from| unsafe {
        engines[0].read_remote(sink.start().wrapping_add(at), length, from)
    };
    // SAFETY: the buffer outlives the engines and has no other user, and the lease is held until the read has ended.
    let leased = |engines: &mut [Engine<'_, F::Endpoint>; 2], lease: &_, at: usize, from| unsafe {
        engines[0].read_remote_leased(lease, sink.start().wrapping_add(at), from)
    };
    let rights = engines[0].endpoint().capabilities().sink;
    // SAFETY: the sink outlives the lease and has no other user.
    let lease =
        |at: usize, length| unsafe { caches[0].acquire(sink.start().wrapping_add(at), length, rights) }.unwrap();
    for length in [1, 7, 4096, 100_001, LENGTH] {
        let at = LENGTH - length;
        let id = fetch(&mut engines, 0, LENGTH, from(at, length)).unwrap();
        let event = next(fabric, &mut engines);
        assert!(matches!(event, Event::ReadCompleted { id: told, succeeded: true } if told == id), "{event:?}");
        assert!(sink.bytes(0, length) == expected[at..], "{}, {length} bytes", fabric.name());
    }
    // Few bytes that lie on two pages, which `siw` sends wrong in one answer.
    let boundary = 2 * PAGE - source.start() as usize % PAGE;
    for (before, after) in [(1, 1), (2, 17), (17, 2), (1, 31), (31, 1), (1, 32)] {
        let (at, length) = (boundary - before, before + after);
        let id = fetch(&mut engines, 5, LENGTH - 5, from(at, length)).unwrap();
        assert!(matches!(next(fabric, &mut engines), Event::ReadCompleted { id: told, succeeded: true } if told == id));
        assert!(sink.bytes(5, length) == expected[at..at + length], "{}, {before} + {after} bytes", fabric.name());
    }
    assert_eq!(engines[0].open_reads(), 0);
    // More than may be in flight, while there is no room for messages either, as the peer does not listen.
    while engines[0].send_message(b"is anybody there?").is_ok() {}
    let mut ids = Vec::new();
    let busy = loop {
        let at = ids.len() * 1000;
        match fetch(&mut engines, at, 1000, from(at + 5, 1000)) {
            Ok(id) => ids.push(id),
            Err(error) => break error,
        }
    };
    assert!(ids.len() == 3 && matches!(busy, OpenError::Busy { under_way: 3 }), "{busy}");
    let (mut told, mut rooms) = (Vec::new(), 0);
    while told.len() < 3 || rooms == 0 {
        match next(fabric, &mut engines) {
            Event::ReadCompleted { id, succeeded: true } => told.push(id),
            Event::Writable => rooms += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(told == ids && rooms == 1, "in order, and it is told when to try again: {told:?}, {rooms}");
    assert!(sink.bytes(0, 3000) == expected[5..3005]);
    // Without a look into the cache.
    let all_of_it = lease(0, LENGTH);
    let id = leased(&mut engines, &all_of_it, 9, from(70, 5000)).unwrap();
    assert!(matches!(next(fabric, &mut engines), Event::ReadCompleted { id: told, succeeded: true } if told == id));
    assert!(sink.bytes(9, 5000) == expected[70..5070]);
    // Before the call returns, where the fabric can do that: nothing is told of it afterwards. SAFETY: the sink
    // outlives the lease and has no other user.
    let now = unsafe { engines[0].read_remote_now(sink.start().wrapping_add(3), LENGTH - 3, from(90, 6000)) }.unwrap();
    assert_eq!(now, (fabric.name() == "shm").then_some(true));
    assert!(now.is_none() || sink.bytes(3, 6000) == expected[90..6090]);
    assert_eq!(engines[0].open_reads(), 0);
    let refused = leased(&mut engines, &all_of_it, LENGTH - 10, from(0, 11));
    assert!(matches!(refused, Err(OpenError::Uncovered { .. })));
    drop(all_of_it);
    // Into memory of many registrations, more than the fabric takes at a time.
    caches[0].flush().unwrap();
    let leases: Vec<_> = (1..40).step_by(2).map(|page| lease(page * PAGE, 1)).collect();
    assert!(caches[0].usage().regions >= 20);
    let id = fetch(&mut engines, 3, LENGTH, from(1, 40 * PAGE)).unwrap();
    assert!(matches!(next(fabric, &mut engines), Event::ReadCompleted { id: told, succeeded: true } if told == id));
    assert!(sink.bytes(3, 40 * PAGE) == expected[1..1 + 40 * PAGE], "{}, many registrations", fabric.name());
    drop(leases);
    // Nothing, and more than there is room for.
    let id = fetch(&mut engines, 0, 0, from(0, 0)).unwrap();
    assert!(matches!(next(fabric, &mut engines), Event::ReadCompleted { id: told, succeeded: true } if told == id));
    let refused = fetch(&mut engines, 0, 10, from(0, 11));
    assert!(matches!(refused, Err(OpenError::TooShort { length: 10, wanted: 11 })));
    // A key that was never given ends the connection; all transfers in flight end with it, and then nothing begins any
    // more.
    let wrong = Segment { key: all.key.wrapping_add(64), ..from(0, 100) };
    let id = fetch(&mut engines, 0, LENGTH, wrong).unwrap();
    let second = fetch(&mut engines, 1000, LENGTH, from(0, 100));
    let event = next(fabric, &mut engines);
    assert!(matches!(event, Event::ReadCompleted { id: told, succeeded: false } if told == id), "{event:?}");
    if second.is_ok() {
        assert!(matches!(next(fabric, &mut engines), Event::ReadCompleted { .. }));
    }
    assert!(matches!(next(fabric, &mut engines), Event::Closed { .. }));
    assert!(fetch(&mut engines, 0, LENGTH, from(0, 1)).is_err());
    drop(engines);
    drop(offered);
    for (side, cache) in caches.iter().enumerate() {
        cache.flush().unwrap();
        assert_eq!((cache.usage().regions, fabric.registrations(side)), (0, 0), "{}: nothing is held", fabric.name());
    }
}

/// One-sided writes in one order with reads, by a key that opens exactly some pages.
pub fn written<F: Fabric>(fabric: &F) {
    const LENGTH: usize = 200_000;
    let caches = caches(fabric, 10_000);
    let expected = noise(2, LENGTH);
    let (source, sink) = (fabric.memory(0, expected.clone()), fabric.memory(0, vec![0; LENGTH]));
    let far = fabric.memory(1, vec![0; LENGTH]);
    let rights = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
    // SAFETY: the memory lives to the end of this function, and is read after the writes have ended.
    let offered = unsafe { caches[1].acquire(far.start(), LENGTH, rights) }.unwrap();
    let part = offered.segments().next().unwrap();
    assert!(part.len() == LENGTH);
    let to = |at: usize, length: usize| {
        caches[1].registrar().remote(part.registration(), part.address().wrapping_add(at), length)
    };
    let mut engines = engines(fabric, &caches, Limits { reads: 8, ..Limits::default() });
    for length in [1, 7, 4096, 100_001, LENGTH] {
        let at = LENGTH - length;
        // SAFETY: the buffers outlive the engines, the source is not written, and the sink has no other user.
        let (write, read) = unsafe {
            let write = engines[0].write_remote(source.start().wrapping_add(at), length, to(at, length)).unwrap();
            // Over iwarp the end of a write says little. That of the read behind it says that the bytes were there.
            let event = next(fabric, &mut engines);
            assert!(matches!(event, Event::WriteCompleted { id, succeeded: true } if id == write), "{event:?}");
            (write, engines[0].read_remote(sink.start(), length, to(at, length)).unwrap())
        };
        assert!(read > write);
        let event = next(fabric, &mut engines);
        assert!(matches!(event, Event::ReadCompleted { id, succeeded: true } if id == read), "{event:?}");
        assert!(sink.bytes(0, length) == expected[at..], "{}, {length} bytes", fabric.name());
        assert!(far.bytes(at, length) == expected[at..], "{}, {length} bytes", fabric.name());
    }
    assert_eq!(engines[0].open_reads(), 0);
    // More than may be in flight, then none, then too much.
    let mut ids = Vec::new();
    let busy = loop {
        // SAFETY: the source outlives the engines and is not written.
        match unsafe { engines[0].write_remote(source.start(), 100, to(0, 100)) } {
            Ok(id) => ids.push(id),
            Err(error) => break error,
        }
    };
    assert!(ids.len() == 8 && matches!(busy, OpenError::Busy { under_way: 8 }), "{busy}");
    let (mut told, mut rooms) = (Vec::new(), 0);
    while told.len() < 8 || rooms == 0 {
        match next(fabric, &mut engines) {
            Event::WriteCompleted { id, succeeded: true } => told.push(id),
            Event::Writable => rooms += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, ids, "{}", fabric.name());
    // SAFETY: the source outlives the engines and is not written.
    let refused = unsafe { engines[0].write_remote(source.start(), 10, to(0, 11)) };
    assert!(matches!(refused, Err(OpenError::TooShort { length: 10, wanted: 11 })));
    // A key that was never given ends the connection, and writes nothing.
    let wrong = Segment { key: to(0, 1).key.wrapping_add(64), ..to(0, 100) };
    // SAFETY: the source outlives the engines and is not written.
    let _ = unsafe { engines[0].write_remote(source.start().wrapping_add(100), 100, wrong) };
    while !matches!(next(fabric, &mut engines), Event::Closed { .. }) {}
    assert!(far.bytes(0, 100) == expected[..100], "{}", fabric.name());
    drop(engines);
    drop(offered);
    for (side, cache) in caches.iter().enumerate() {
        cache.flush().unwrap();
        assert_eq!((cache.usage().regions, fabric.registrations(side)), (0, 0), "{}: nothing is held", fabric.name());
    }
}

/// The buffer that one side lends to a transfer.
struct Lent {
    slot: usize,
    length: usize,
    /// The content of the writer's buffer, for the target to compare with.
    writes: bool,
}

/// The other work beside the transfers of a storm: messages are sent, numbered, and sometimes not taken; a page of the
/// peer's is read.
struct Beside {
    said: [u32; 2],
    heard: [u32; 2],
    fetching: [Option<u64>; 2],
    fetched: u64,
}

impl Beside {
    fn listen<E: Endpoint>(&mut self, side: usize, engine: &mut Engine<'_, E>) {
        let mut said = Vec::new();
        if engine.recv_message(&mut said) {
            assert_eq!(said, self.heard[side].to_le_bytes(), "in order");
            self.heard[side] += 1;
        }
    }
}

/// Random transfers of random lengths both ways, some refused, some cancelled; connections that are taken down under way.
/// Beside them, things are said and memory is read. Returns how many ended well on both sides, and how many did not.
pub fn storm<F: Fabric>(fabric: &F, seed: u64, transfers: usize, limits: Limits) -> (usize, usize) {
    const ROOM: usize = 16;
    const SLOT: usize = 20 * PAGE;
    let mut rng = StdRng::seed_from_u64(seed);
    // Room for some of the memory only: regions come and go.
    let caches = caches(fabric, 150);
    let memory = [0, 1].map(|side| fabric.memory(side, noise(seed + side as u64, ROOM * SLOT)));
    let bases = [0, 1].map(|side: usize| memory[side].start());
    let pages = [0, 1].map(|side| fabric.memory(side, noise(seed + 10 + side as u64, PAGE)));
    let sinks = [0, 1].map(|side| fabric.memory(side, vec![0; PAGE]));
    // SAFETY: the pages live longer than the engines, and are not written.
    let offered = [0, 1].map(|side: usize| unsafe {
        let lease = caches[side].acquire(pages[side].start(), PAGE, Access::REMOTE_READ).unwrap();
        let part = lease.segments().next().unwrap();
        (caches[side].registrar().remote(part.registration(), part.address(), PAGE), lease)
    });
    let (mut well, mut badly, mut opened, mut asked, mut fetched) = (0, 0, 0, 0, 0);
    while opened < transfers {
        let mut engines = engines(fabric, &caches, limits);
        let mut free: [Vec<usize>; 2] = [(0..ROOM).collect(), (0..ROOM).collect()];
        let mut lent: [HashMap<Tag, Lent>; 2] = Default::default();
        let mut results: HashMap<Tag, [Option<Told>; 2]> = HashMap::new();
        let mut closed = [false; 2];
        let mut beside = Beside { said: [0; 2], heard: [0; 2], fetching: [None; 2], fetched: 0 };
        let last = opened + transfers / 3 + 1;
        while closed != [true; 2] {
            fabric.idle();
            let side = rng.random_range(0..2);
            if opened < last && !closed[side] && rng.random_ratio(1, 4) && !free[side].is_empty() {
                let slot = free[side].swap_remove(0);
                let read = rng.random();
                let length = if rng.random_ratio(1, 20) { 0 } else { rng.random_range(1..SLOT) };
                // SAFETY: the slot is this transfer's until it has ended, and the memory lives longer than the engines.
                let tag = unsafe {
                    let at = bases[side].add(slot * SLOT);
                    if read {
                        engines[side].open_read(at, length, b"r")
                    } else {
                        engines[side].open_write(at, length, b"w")
                    }
                };
                match tag {
                    Ok(tag) => {
                        opened += 1;
                        lent[side].insert(tag, Lent { slot, length, writes: !read });
                    }
                    Err(_) => free[side].push(slot),
                }
            }
            if rng.random_ratio(1, 4) && engines[side].send_message(&beside.said[side].to_le_bytes()).is_ok() {
                beside.said[side] += 1;
            }
            if rng.random_ratio(1, 8) {
                beside.listen(side, &mut engines[side]);
            }
            if beside.fetching[side].is_none() && rng.random_ratio(1, 4) {
                // SAFETY: the sink is looked at when the read has ended, and lives longer than the engines.
                let id = unsafe { engines[side].read_remote(sinks[side].start(), PAGE, offered[1 - side].0) };
                beside.fetching[side] = id.ok();
            }
            if rng.random_ratio(1, 500)
                && let Some(&tag) = lent[side].keys().min()
            {
                let _ = engines[side].cancel(tag);
            }
            if opened == last && (rng.random_ratio(1, 3000) || lent.iter().all(HashMap::is_empty)) {
                engines[side].disconnect();
            }
            for side in 0..2 {
                engines[side].progress();
                while let Some(event) = engines[side].next_event() {
                    match event {
                        Event::Requested { tag, read, length } => {
                            // By count: however fast the fabric is, some are refused.
                            asked += 1;
                            if free[side].is_empty() || asked % 16 == 0 {
                                let _ = engines[side].refuse(tag);
                                continue;
                            }
                            let slot = free[side].swap_remove(0);
                            let length = usize::try_from(length).unwrap().min(SLOT);
                            lent[side].insert(tag, Lent { slot, length, writes: read });
                            // SAFETY: the slot is in this side's own memory, which outlives the engines, and has no
                            // other user.
                            let answered = unsafe {
                                let at = bases[side].add(slot * SLOT);
                                if read {
                                    engines[side].accept_read(tag, at, length)
                                } else {
                                    engines[side].accept_write(tag, at, length)
                                }
                            };
                            if answered.is_err() {
                                lent[side].remove(&tag);
                                free[side].push(slot);
                            }
                        }
                        Event::KeysCame { tag } => drop(engines[side].submit(tag)),
                        Event::Completed { tag, result } => {
                            let mine = lent[side].remove(&tag);
                            if let Some(mine) = &mine {
                                free[side].push(mine.slot);
                            }
                            let bytes = result.ok().map(|bytes| {
                                let length = usize::try_from(bytes).unwrap();
                                let held = mine.map(|mine| {
                                    assert!(length <= mine.length || mine.writes);
                                    memory[side].bytes(mine.slot * SLOT, length)
                                });
                                (bytes, held.unwrap_or_default())
                            });
                            let ends = results.entry(tag).or_default();
                            assert!(ends[side].is_none(), "an end that is told twice");
                            ends[side] = Some(bytes);
                        }
                        Event::Message => {
                            if rng.random_ratio(3, 4) {
                                beside.listen(side, &mut engines[side]);
                            }
                        }
                        Event::ReadCompleted { id, succeeded } => {
                            assert_eq!(beside.fetching[side].take(), Some(id), "an end that is told once");
                            if succeeded {
                                let there = pages[1 - side].bytes(0, PAGE);
                                assert!(sinks[side].bytes(0, PAGE) == there, "{}: what was read", fabric.name());
                                beside.fetched += 1;
                            }
                        }
                        Event::Writable => {}
                        Event::Closed { .. } => closed[side] = true,
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        assert_eq!(beside.fetching, [None; 2], "{}, seed {seed}: every read ends", fabric.name());
        fetched += beside.fetched;
        for (tag, ends) in results {
            match ends {
                [Some(Some(one)), Some(Some(other))] => {
                    assert!(one == other, "{}: the bytes of {tag:?} differ", fabric.name());
                    well += 1;
                }
                _ => badly += 1,
            }
        }
        assert!(lent.iter().all(HashMap::is_empty), "{}, seed {seed}: every transfer ends", fabric.name());
        assert!(engines.iter().all(|engine| engine.open_transfers() == 0));
    }
    assert!(fetched > 0, "{}, seed {seed}: some is read", fabric.name());
    drop(offered);
    for (side, cache) in caches.iter().enumerate() {
        cache.flush().unwrap();
        let held = (cache.usage().regions, fabric.registrations(side));
        assert_eq!(held, (0, 0), "{}, seed {seed}: nothing is held", fabric.name());
    }
    (well, badly)
}
