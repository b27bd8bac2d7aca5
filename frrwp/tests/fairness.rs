//! How long a message waits behind transfers, in pieces that are posted: counted between engine and fabric.
#![allow(unsafe_code, reason = "lends memory to transfers, and posts what an engine posts")]

#[path = "common/around.rs"]
mod around;

use around::{Around, Between};
use frrwp::engine::{Engine, Event, PIECE, PIECES, TransferError};
use frrwp::fabric::sim::{Costs, Faults, Network, SimEndpoint};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::handshake::{Limits, RECEIVES, Side, Tag};
use frrwp::wire::{MESSAGE, Reason, Segment};
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// The posts, and those in flight.
#[derive(Default)]
struct Log {
    pieces: u64,
    longest: u64,
    /// Bytes of each.
    under_way: Vec<u64>,
    most_under_way: u64,
    /// Pieces that were posted without looking at completions in between count as one.
    groups: u64,
    has_looked: bool,
    /// Pieces that were posted before each message of the application's, and bytes that were under way then.
    messages: Vec<(u64, u64)>,
}

/// Counts the posts of an endpoint.
struct Counted(Rc<RefCell<Log>>);

const SAY: u8 = 7;

impl Around for Counted {
    type Inner = SimEndpoint;

    fn send(&mut self, message: &[u8], inner: &mut SimEndpoint) -> io::Result<()> {
        if message[5] == SAY {
            let mut log = self.0.borrow_mut();
            let entry = (log.pieces, log.under_way.iter().sum());
            log.messages.push(entry);
        }
        inner.send(message)
    }

    fn before_write(&mut self, to: Segment) -> io::Result<()> {
        let mut log = self.0.borrow_mut();
        log.pieces += 1;
        log.groups += u64::from(std::mem::take(&mut log.has_looked));
        log.longest = log.longest.max(to.length);
        log.under_way.push(to.length);
        log.most_under_way = log.most_under_way.max(log.under_way.len() as u64);
        Ok(())
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE], inner: &mut SimEndpoint) -> Option<Completion> {
        let completion = inner.poll(message);
        self.0.borrow_mut().has_looked = true;
        if let Some(Completion::Done { .. }) = completion {
            self.0.borrow_mut().under_way.remove(0);
        }
        completion
    }
}

type Engines<'cache> = [Engine<'cache, Between<Counted>>; 2];

/// Two engines over the simulated network, and what each posts.
fn on_sim(test: impl FnOnce(&Network, Engines<'_>, [Rc<RefCell<Log>>; 2])) {
    let costs = Costs { latency: 1_000, byte: 0.1, jitter: 500, ..Costs::default() };
    let network = Network::new(1, costs, Faults::default());
    let nodes = [network.node(), network.node()];
    let cache =
        |node: usize| Cache::builder(nodes[node].domain()).ignore_environment().monitor(Explicit).build().unwrap();
    let caches = [cache(0), cache(1)];
    let logs: [Rc<RefCell<Log>>; 2] = Default::default();
    let [one, other] = network.connect(&nodes[0], &nodes[1], RECEIVES);
    let (one, other) =
        (Between::new(one, Counted(Rc::clone(&logs[0]))), Between::new(other, Counted(Rc::clone(&logs[1]))));
    let client = Engine::new(&caches[0], one, Side::Connecting, Limits::default());
    let server = Engine::new(&caches[1], other, Side::Accepting, Limits::default());
    test(&network, [client, server], logs);
}

#[test]
fn a_message_waits_for_four_pieces() {
    const SLOTS: usize = 12;
    const LENGTH: usize = 900_000;
    const MESSAGES: usize = 600;
    let sources = [vec![7_u8; LENGTH], vec![8_u8; LENGTH]];
    let mut sinks = [vec![0_u8; SLOTS * LENGTH], vec![0_u8; SLOTS * LENGTH]];
    on_sim(|network, mut engines, logs| {
        let mut rng = StdRng::seed_from_u64(1);
        let mut free: [Vec<usize>; 2] = [(0..SLOTS).collect(), (0..SLOTS).collect()];
        let mut slots = std::collections::HashMap::new();
        // Pieces that were posted when each was said.
        let mut said: [Vec<u64>; 2] = Default::default();
        let (mut open, mut heard, mut transfers) = ([0; 2], [0; 2], 0);
        while heard != [MESSAGES; 2] {
            let me = rng.random_range(0..2);
            let length = if rng.random() { LENGTH } else { rng.random_range(1..5_000) };
            while heard != [MESSAGES; 2] && open[me] < SLOTS {
                // SAFETY: the source lives longer than the engines and is not written.
                unsafe { engines[me].open_write(sources[me].as_ptr(), length, b"") }.unwrap();
                open[me] += 1;
            }
            if said[me].len() < MESSAGES && rng.random_ratio(1, 3) {
                let before = logs[me].borrow().pieces;
                if engines[me].send_message(&said[me].len().to_le_bytes()).is_ok() {
                    said[me].push(before);
                }
            }
            engines[me].progress();
            while let Some(event) = engines[me].next_event() {
                match event {
                    Event::Requested { tag, length, .. } => {
                        let slot = free[me].pop().expect("no more are open than there are slots");
                        slots.insert((me, tag), slot);
                        let at = sinks[me][slot * LENGTH..].as_mut_ptr();
                        // SAFETY: the slot is this transfer's, and lives longer than the engines.
                        unsafe { engines[me].accept_write(tag, at, length as usize) }.unwrap();
                    }
                    Event::Completed { tag, result } => {
                        result.unwrap();
                        transfers += 1;
                        match slots.remove(&(me, tag)) {
                            Some(slot) => free[me].push(slot),
                            None => open[me] -= 1,
                        }
                    }
                    Event::Message => {
                        let mut into = Vec::new();
                        assert!(engines[me].recv_message(&mut into) && into == heard[me].to_le_bytes(), "in order");
                        heard[me] += 1;
                    }
                    Event::Writable => {}
                    other => panic!("{other:?}"),
                }
            }
            if rng.random() {
                network.step(u64::MAX);
            }
            assert!(transfers < 30 * MESSAGES, "{heard:?} messages beside {transfers} transfers");
        }
        let mut waited = 0;
        for (log, said) in logs.iter().zip(&said) {
            let log = log.borrow();
            assert_eq!((log.messages.len(), log.longest), (MESSAGES, PIECE));
            for (&(before, under_way), &when) in log.messages.iter().zip(said) {
                assert!(before - when <= PIECES, "{} pieces were posted before it", before - when);
                // Shorter writes share a piece.
                assert!(under_way <= PIECES * PIECE, "{under_way} bytes were under way before it");
                waited += u64::from(before > when);
            }
        }
        assert!(waited > 0, "some message waited, else this shows nothing");
        println!("{waited} of {} messages waited; {transfers} transfers ended", 2 * MESSAGES);
    });
    drop(sinks);
}

/// Bytes of a transfer of many pieces.
const LONG: usize = 30_000_000;

/// The first engine writes all of the source to the second; `look` is called after each round. The results that both sides
/// got.
fn write_all(
    network: &Network,
    engines: &mut Engines<'_>,
    [source, sink]: [&mut [u8]; 2],
    mut look: impl FnMut(&mut Engines<'_>, Tag),
) -> [Result<u64, TransferError>; 2] {
    // SAFETY: both are borrowed until the transfer has ended at both sides.
    let tag = unsafe { engines[0].open_write(source.as_ptr(), source.len(), b"") }.unwrap();
    let mut ended = [None, None];
    loop {
        for (engine, ended) in engines.iter_mut().zip(&mut ended) {
            engine.progress();
            match engine.next_event() {
                Some(Event::Requested { tag, .. }) => {
                    // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                    unsafe { engine.accept_write(tag, sink.as_mut_ptr(), sink.len()) }.unwrap()
                }
                Some(Event::Completed { result, .. }) => *ended = Some(result),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        look(engines, tag);
        if let [Some(_), Some(_)] = ended {
            return ended.map(|result| result.unwrap());
        }
        network.step(u64::MAX);
    }
}

#[test]
fn four_pieces_are_under_way_at_a_time() {
    let (mut source, mut sink) = (vec![7_u8; LONG], vec![0_u8; LONG]);
    on_sim(|network, mut engines, logs| {
        let ends = write_all(network, &mut engines, [&mut source, &mut sink], |_, _| {});
        assert!(ends.iter().all(|end| *end.as_ref().unwrap() == LONG as u64));
        let log = logs[0].borrow();
        assert_eq!((log.pieces, log.most_under_way), ((LONG as u64).div_ceil(PIECE), PIECES));
    });
    assert!(source == sink);
}

/// A fabric sends what is posted together for the price of one: over TCP that is one system call.
#[test]
fn pieces_that_may_be_posted_leave_together() {
    let (mut source, mut sink) = (vec![7_u8; LONG], vec![0_u8; LONG]);
    on_sim(|network, mut engines, logs| {
        // Whatever was posted has completed before an engine looks again.
        let settle = |_: &mut Engines<'_>, _| while network.step(u64::MAX) {};
        let ends = write_all(network, &mut engines, [&mut source, &mut sink], settle);
        assert!(ends.iter().all(|end| *end.as_ref().unwrap() == LONG as u64));
        let log = logs[0].borrow();
        assert_eq!(log.groups, log.pieces.div_ceil(PIECES), "{} pieces", log.pieces);
    });
}

#[test]
fn what_is_not_posted_is_not_after_a_cancel() {
    for by_the_writer in [true, false] {
        let (mut source, mut sink) = (vec![7_u8; LONG], vec![0_u8; LONG]);
        on_sim(|network, mut engines, logs| {
            let mut cancelled = false;
            let ends = write_all(network, &mut engines, [&mut source, &mut sink], |engines, tag| {
                if !cancelled && logs[0].borrow().pieces >= 8 {
                    engines[usize::from(!by_the_writer)].cancel(tag).unwrap();
                    cancelled = true;
                }
            });
            for end in ends {
                let why = end.unwrap_err().to_string();
                assert!(why.contains(&Reason::Cancelled.to_string()), "{why}");
            }
            let pieces = logs[0].borrow().pieces;
            assert!(pieces <= 8 + 3 * PIECES, "{pieces} of 115 pieces were posted");
            assert!(engines.iter().all(|engine| engine.open_transfers() == 0));
        });
    }
}
