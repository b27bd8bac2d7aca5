//! Transfers between two engines over the simulated network: bytes arrive, faults end in errors on both sides, and
//! nothing is held at the end.
//!
//! ```text
//! cargo test --release -p frrwp --test transfers
//! TRANSFERS=1000000 cargo test --release -p frrwp --test transfers -- --ignored --nocapture   # at length
//! SEED=7 TRANSFERS=1000 cargo test --release -p frrwp --test transfers -- --ignored --nocapture   # that seed again
//! ```
#![allow(unsafe_code, reason = "buffers are lent to engines by address")]

use frrwp::engine::{Engine, Event};
use frrwp::fabric::sim::{Costs, Faults, Network, Node, SimDomain, SimEndpoint};
use frrwp::handshake::{Limits, Process, RECEIVES, Side, Tag};
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use mrrc::policy::PolicyKind;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::HashMap;

const PAGE: usize = 4096;

/// The default policy looks at addresses, which differ between two storms. This one does not.
fn cache(node: &Node, pages: u64) -> Cache<SimDomain> {
    let builder = Cache::builder(node.domain()).ignore_environment().monitor(Explicit).background(false);
    builder.capacity_pages(pages).policy(PolicyKind::Mrrc).build().expect("a cache")
}

/// Two engines, and what moves time on.
struct Pair<'cache> {
    network: Network,
    nodes: [Node; 2],
    engines: [Engine<'cache, SimEndpoint>; 2],
}

impl<'cache> Pair<'cache> {
    fn new(network: &Network, nodes: [Node; 2], caches: &'cache [Cache<SimDomain>; 2], limits: Limits) -> Self {
        let [one, other] = network.connect(&nodes[0], &nodes[1], RECEIVES);
        let engines = [
            Engine::new(&caches[0], one, Side::Connecting, limits),
            Engine::new(&caches[1], other, Side::Accepting, limits),
        ];
        Self { network: network.clone(), nodes, engines }
    }

    /// Lets one thing happen and both sides see it. False where nothing is left but time-outs.
    fn step(&mut self) -> bool {
        let stepped = self.network.step(u64::MAX);
        self.engines.iter_mut().for_each(Engine::progress);
        stepped || self.engines.iter_mut().any(|engine| engine.endpoint().has_news())
    }

    /// Time goes on until the next time-out.
    fn sleep(&mut self) -> bool {
        let Some(deadline) = self.engines.iter().filter_map(Engine::next_deadline).min() else { return false };
        for node in &self.nodes {
            node.sleep_until(deadline);
        }
        self.engines.iter_mut().for_each(Engine::progress);
        true
    }
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    StdRng::seed_from_u64(seed).fill_bytes(&mut buffer);
    buffer
}

/// Runs one transfer opened by side 0, and the time from the call to the last byte's DONE.
fn one(read: bool, limits: Limits, costs: Costs, length: usize, warm: [bool; 2]) -> (Vec<u8>, Vec<u8>, u64) {
    let network = Network::new(1, costs, Faults::default());
    let nodes = [network.node(), network.node()];
    let caches = [cache(&nodes[0], 10_000), cache(&nodes[1], 10_000)];
    let source = noise(7, length);
    let mut sink = vec![0_u8; length];
    let (writer, target) = if read { (1, 0) } else { (0, 1) };
    // SAFETY: both buffers live to the end of this function, and only the transfer uses them.
    unsafe {
        if warm[0] {
            caches[writer].warm(source.as_ptr(), length, mrrc::Access::LOCAL_READ).unwrap();
        }
        if warm[1] {
            let rights = mrrc::Access::LOCAL_WRITE | mrrc::Access::REMOTE_WRITE;
            caches[target].warm(sink.as_ptr(), length, rights).unwrap();
        }
    }
    let start = nodes.iter().map(Node::now).max().unwrap();
    nodes.iter().for_each(|node| node.sleep_until(start));
    let mut pair = Pair::new(&network, nodes, &caches, limits);
    // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
    let tag = unsafe {
        if read {
            pair.engines[0].open_read(sink.as_mut_ptr(), length, b"give")
        } else {
            pair.engines[0].open_write(source.as_ptr(), length, b"take")
        }
    };
    let tag = tag.unwrap();
    let mut ended = [None, None];
    while ended.iter().any(Option::is_none) {
        let stepped = pair.step();
        for (side, ended) in ended.iter_mut().enumerate() {
            while let Some(event) = pair.engines[side].next_event() {
                match event {
                    Event::Requested { tag, read: false, .. } => {
                        assert_eq!(pair.engines[side].header(tag), Some(&b"take"[..]));
                        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                        unsafe { pair.engines[side].accept_write(tag, sink.as_mut_ptr(), length) }.unwrap();
                    }
                    Event::Requested { tag, read: true, .. } => {
                        assert_eq!(pair.engines[side].header(tag), Some(&b"give"[..]));
                        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                        unsafe { pair.engines[side].accept_read(tag, source.as_ptr(), length) }.unwrap();
                    }
                    Event::KeysCame { tag } => {
                        // T1, T2 and T3 of the paper: the completion, and the way to the application and back.
                        pair.nodes[side].spend(2_000 + 3_000 + 3_000);
                        pair.engines[side].submit(tag).unwrap();
                    }
                    Event::Completed { tag: ended_tag, result } => {
                        assert_eq!((ended_tag, result.unwrap()), (tag, length as u64));
                        *ended = Some(pair.nodes[side].now() - start);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(stepped || ended.iter().all(Option::is_some), "stuck");
    }
    assert_eq!(network.violations(), []);
    let time = ended[target].unwrap();
    (source, sink, time)
}

#[test]
fn bytes_arrive_in_both_directions_by_both_processes() {
    for process in [Process::Frrwp, Process::Traditional] {
        for read in [false, true] {
            for immediate in [false, true] {
                for length in [0, 1, 4096, 100_001] {
                    let limits = Limits { process, immediate, ..Limits::default() };
                    let costs = Costs { latency: 1_000, byte: 0.1, jitter: 500, ..Costs::default() };
                    let (source, sink, _) = one(read, limits, costs, length, [false; 2]);
                    assert!(source == sink, "{process:?}, read {read}, immediate {immediate}, {length} bytes");
                }
            }
        }
    }
}

/// The buffer that one side lends to a transfer.
struct Lent {
    read: bool,
    buffer: std::ops::Range<usize>,
    /// The content of the writer's buffer, for the target to compare with.
    written: Option<Vec<u8>>,
}

/// Random transfers with faults. Returns how many ended well, and how many did not.
fn storm(seed: u64, transfers: usize, faults: Faults) -> (u64, u64) {
    const ROOM: usize = 32;
    let mut rng = StdRng::seed_from_u64(seed);
    let costs = Costs {
        latency: rng.random_range(0..20_000),
        byte: 0.1,
        jitter: rng.random_range(0..20_000),
        immediate: rng.random(),
        ..Costs::default()
    };
    let process = if rng.random_ratio(1, 4) { Process::Traditional } else { Process::Frrwp };
    let limits = Limits { immediate: rng.random(), process, open: 8, ..Limits::default() };
    let network = Network::new(seed, costs, faults);
    let nodes = [network.node(), network.node()];
    // Room for some of the memory only: regions come and go.
    let caches = [cache(&nodes[0], 200), cache(&nodes[1], 200)];
    // Each transfer has a slot of memory of its own on each side, within one large buffer where regions overlap.
    let slot = 16 * PAGE;
    let mut memory = [noise(seed, (ROOM + 1) * slot), noise(seed + 1, (ROOM + 1) * slot)];
    // From a page on, so that the same seed overlaps the same pages.
    let skip = [0, 1].map(|side: usize| memory[side].as_ptr().align_offset(PAGE));
    let bases = [0, 1].map(|side: usize| memory[side][skip[side]..].as_mut_ptr());
    let mut free: [Vec<usize>; 2] = [(0..ROOM).collect(), (0..ROOM).collect()];
    let (mut good, mut bad, mut opened) = (0, 0, 0);
    while opened < transfers {
        // Connections go; the caches stay.
        let mut pair = Pair::new(&network, nodes.clone(), &caches, limits);
        let mut lent: [HashMap<Tag, Lent>; 2] = Default::default();
        let mut results: HashMap<Tag, [Option<Result<u64, ()>>; 2]> = HashMap::new();
        let mut closed = [false; 2];
        let lend = |rng: &mut StdRng, free: &mut Vec<usize>| {
            let slots = free.len();
            let taken = free.swap_remove(rng.random_range(0..slots));
            let start = taken * slot + rng.random_range(0..slot / 2);
            let length = if rng.random_ratio(1, 20) { 0 } else { rng.random_range(1..slot / 2) };
            start..start + length
        };
        while !(closed[0] && closed[1]) {
            if rng.random_ratio(1, 3) && opened < transfers {
                let side = rng.random_range(0..2);
                if !free[side].is_empty() && !closed[side] {
                    let read = rng.random();
                    let buffer = lend(&mut rng, &mut free[side]);
                    // SAFETY: the slot is this transfer's until it has ended; memory lives longer than the engines.
                    let tag = unsafe {
                        let at = bases[side].add(buffer.start);
                        if read {
                            pair.engines[side].open_read(at, buffer.len(), b"r")
                        } else {
                            pair.engines[side].open_write(at, buffer.len(), b"w")
                        }
                    };
                    match tag {
                        Ok(tag) => {
                            opened += 1;
                            lent[side].insert(tag, Lent { read, buffer, written: None });
                        }
                        Err(_) => free[side].push(buffer.start / slot),
                    }
                }
            }
            if rng.random_ratio(1, 200) {
                let side = rng.random_range(0..2);
                if let Some(&tag) = lent[side].keys().min() {
                    let _ = pair.engines[side].cancel(tag);
                }
            }
            let stepped = pair.step();
            for side in 0..2 {
                while let Some(event) = pair.engines[side].next_event() {
                    match event {
                        Event::Requested { tag, read, length } => {
                            if free[side].is_empty() || rng.random_ratio(1, 50) {
                                let _ = pair.engines[side].refuse(tag);
                                continue;
                            }
                            let mut buffer = lend(&mut rng, &mut free[side]);
                            let most = usize::try_from(length).unwrap().min(slot / 2);
                            if !read && rng.random_ratio(19, 20) {
                                // Large enough.
                                buffer.end = buffer.start + most;
                            } else if read && rng.random_ratio(19, 20) {
                                buffer.end = buffer.end.min(buffer.start + most);
                            }
                            let (start, length) = (buffer.start, buffer.len());
                            lent[side].insert(tag, Lent { read: !read, buffer, written: None });
                            // SAFETY: the slot is in this side's own memory, which outlives the engines, and has no
                            // other user.
                            let answered = unsafe {
                                let at = bases[side].add(start);
                                if read {
                                    pair.engines[side].accept_read(tag, at, length)
                                } else {
                                    pair.engines[side].accept_write(tag, at, length)
                                }
                            };
                            if answered.is_err() {
                                lent[side].remove(&tag);
                                free[side].push(start / slot);
                            }
                        }
                        Event::KeysCame { tag } => {
                            let _ = pair.engines[side].submit(tag);
                        }
                        Event::Completed { tag, result } => {
                            let result = result.map_err(|_| ());
                            let ends = results.entry(tag).or_default();
                            assert!(ends[side].is_none(), "an end that is told twice");
                            ends[side] = Some(result);
                            if let Some(mine) = lent[side].remove(&tag) {
                                free[side].push(mine.buffer.start / slot);
                                compare(&mut lent, &memory[side][skip[side]..], side, tag, mine, result);
                            }
                        }
                        Event::Closed { .. } => closed[side] = true,
                        other => panic!("{other:?}"),
                    }
                }
            }
            if !stepped && !pair.sleep() && opened >= transfers {
                pair.engines.iter_mut().for_each(Engine::disconnect);
            }
        }
        for ends in results.values() {
            match ends {
                [Some(Ok(one)), Some(Ok(other))] => {
                    assert_eq!(one, other);
                    good += 1;
                }
                _ => bad += 1,
            }
        }
        assert!(lent.iter().all(HashMap::is_empty), "seed {seed}: every transfer ends");
        assert!(free.iter().all(|free| free.len() == ROOM));
        assert!(pair.engines.iter().all(|engine| engine.open_transfers() == 0));
    }
    assert_eq!(network.violations(), [], "seed {seed}");
    for (cache, node) in caches.iter().zip(&nodes) {
        cache.flush().unwrap();
        assert_eq!((cache.usage().regions, node.registrations()), (0, 0), "seed {seed}: nothing is held");
    }
    (good, bad)
}

/// A success is compared byte by byte: the writer's slot, as it was at its end, against the target's.
fn compare(
    lent: &mut [HashMap<Tag, Lent>; 2],
    memory: &[u8],
    side: usize,
    tag: Tag,
    mine: Lent,
    result: Result<u64, ()>,
) {
    let Ok(bytes) = result else { return };
    let bytes = &memory[mine.buffer.start..mine.buffer.start + usize::try_from(bytes).unwrap()];
    match mine.written {
        // The other side ended first, and left its bytes here.
        Some(theirs) => assert!(theirs == bytes, "the bytes of {tag:?} differ"),
        None => {
            if let Some(theirs) = lent[1 - side].get_mut(&tag) {
                assert_ne!(theirs.read, mine.read);
                theirs.written = Some(bytes.to_vec());
            }
        }
    }
}

const FAULTS: Faults = Faults { registration: 0.01, slow_registration: 0.01, loss: 0.0005 };

#[test]
fn faulty_storms_end_on_both_sides() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..12 {
        let (well, badly) = storm(seed, 200, FAULTS);
        (good, bad) = (good + well, bad + badly);
    }
    println!("{good} transfers ended well, {bad} did not");
    assert!(good > 1_200 && bad > 60, "{good} and {bad}");
}

#[test]
fn a_storm_is_the_same_from_the_same_seed() {
    assert_eq!(storm(3, 200, FAULTS), storm(3, 200, FAULTS));
}

#[test]
fn faultless_storm_fails_only_by_refusal_or_cancel() {
    let (good, bad) = storm(11, 500, Faults::default());
    assert!(bad * 4 < good, "{good} and {bad}");
}

#[test]
#[ignore = "minutes: a million transfers, or TRANSFERS of them"]
fn storms_at_length() {
    let number = |name, or| std::env::var(name).ok().map_or(or, |text| text.parse::<u64>().expect("a number"));
    let (transfers, first) = (number("TRANSFERS", 1_000_000), number("SEED", 0));
    let (mut good, mut bad) = (0, 0);
    for seed in first..first + transfers.div_ceil(1_000) {
        println!("seed {seed}");
        let (well, badly) = storm(seed, 1_000, FAULTS);
        (good, bad) = (good + well, bad + badly);
    }
    println!("{good} transfers ended well, {bad} did not; nothing was held, no byte differed");
}
