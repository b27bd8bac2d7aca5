//! Transfers between two engines over any provider, both driven by one thread.
#![allow(unreachable_pub, dead_code, reason = "shared by tests")]

use frrwp::engine::{Engine, Event};
use frrwp::fabric::Endpoint;
use frrwp::handshake::{Limits, Side, Tag};
use mrrc::Cache;
use mrrc::invalidation::Explicit;
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
        // SAFETY: it came from a box, and nobody else has it.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// What a provider is to a test.
pub trait Fabric {
    type Endpoint: Endpoint;
    /// Its name in messages.
    fn name(&self) -> String;
    /// Memory of that side that can be registered, with these bytes in it. Any can, where a provider does not say otherwise.
    fn memory(&self, _side: usize, bytes: Vec<u8>) -> Box<dyn Memory> {
        Box::new(Heap(Box::into_raw(bytes.into_boxed_slice())))
    }
    /// What registers memory for that side.
    fn domain(&self, side: usize) -> <Self::Endpoint as Endpoint>::Domain;
    /// A new connection, the connecting side first.
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
    // SAFETY: both buffers live to the end of this function, and nobody but the transfer uses them.
    let tag = unsafe {
        if read {
            engines[0].read(sink.start(), length, b"give")
        } else {
            engines[0].write(source.start(), length, b"take")
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
                    Event::Asked { tag, read: false, .. } => {
                        assert_eq!(engines[side].header(tag), Some(&b"take"[..]));
                        // SAFETY: as above.
                        unsafe { engines[side].accept(tag, sink.start(), length) }.unwrap();
                    }
                    Event::Asked { tag, read: true, .. } => {
                        assert_eq!(engines[side].header(tag), Some(&b"give"[..]));
                        // SAFETY: as above.
                        unsafe { engines[side].supply(tag, source.start(), length) }.unwrap();
                    }
                    Event::KeysCame { tag } => engines[side].submit(tag).unwrap(),
                    Event::Ended { tag: ended_tag, result } => {
                        assert_eq!((ended_tag, result.unwrap()), (tag, length as u64));
                        ended[side] = true;
                    }
                    Event::Closed { why } => panic!("closed: {why:?}"),
                }
            }
        }
    }
    (source.bytes(0, length), sink.bytes(0, length))
}

/// What one side lends to a transfer.
struct Lent {
    slot: usize,
    length: usize,
    /// What the writer's buffer held, for the target to compare with.
    writes: bool,
}

/// Random transfers of random lengths both ways, some refused, some cancelled; connections that are taken down under way.
/// Returns how many ended well on both sides, and how many did not.
pub fn storm<F: Fabric>(fabric: &F, seed: u64, transfers: usize, limits: Limits) -> (usize, usize) {
    const ROOM: usize = 16;
    const SLOT: usize = 20 * PAGE;
    let mut rng = StdRng::seed_from_u64(seed);
    // Room for some of the memory only: regions come and go.
    let caches = caches(fabric, 150);
    let memory = [0, 1].map(|side| fabric.memory(side, noise(seed + side as u64, ROOM * SLOT)));
    let bases = [0, 1].map(|side: usize| memory[side].start());
    let (mut well, mut badly, mut opened) = (0, 0, 0);
    while opened < transfers {
        let mut engines = engines(fabric, &caches, limits);
        let mut free: [Vec<usize>; 2] = [(0..ROOM).collect(), (0..ROOM).collect()];
        let mut lent: [HashMap<Tag, Lent>; 2] = Default::default();
        let mut results: HashMap<Tag, [Option<Told>; 2]> = HashMap::new();
        let mut closed = [false; 2];
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
                    if read { engines[side].read(at, length, b"r") } else { engines[side].write(at, length, b"w") }
                };
                match tag {
                    Ok(tag) => {
                        opened += 1;
                        lent[side].insert(tag, Lent { slot, length, writes: !read });
                    }
                    Err(_) => free[side].push(slot),
                }
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
                        Event::Asked { tag, read, length } => {
                            if free[side].is_empty() || rng.random_ratio(1, 30) {
                                let _ = engines[side].refuse(tag);
                                continue;
                            }
                            let slot = free[side].swap_remove(0);
                            let length = usize::try_from(length).unwrap().min(SLOT);
                            lent[side].insert(tag, Lent { slot, length, writes: read });
                            // SAFETY: as above.
                            let answered = unsafe {
                                let at = bases[side].add(slot * SLOT);
                                if read {
                                    engines[side].supply(tag, at, length)
                                } else {
                                    engines[side].accept(tag, at, length)
                                }
                            };
                            if answered.is_err() {
                                lent[side].remove(&tag);
                                free[side].push(slot);
                            }
                        }
                        Event::KeysCame { tag } => drop(engines[side].submit(tag)),
                        Event::Ended { tag, result } => {
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
                        Event::Closed { .. } => closed[side] = true,
                    }
                }
            }
        }
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
    for (side, cache) in caches.iter().enumerate() {
        cache.flush().unwrap();
        let held = (cache.usage().regions, fabric.registrations(side));
        assert_eq!(held, (0, 0), "{}, seed {seed}: nothing is held", fabric.name());
    }
    (well, badly)
}
