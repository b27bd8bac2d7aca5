//! Messages beside as many transfers as there may be, in both directions.

use super::engines::{Fabric, caches, noise};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::Endpoint;
use frrwp::handshake::{Limits, Side, Tag};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Messages of each side.
const MESSAGES: u32 = 1_400;
/// Transfers that each side has open, and bytes of each.
const OPEN: usize = 32;
const LENGTH: usize = 300_000;
/// Transfers of each side while the messages go, at most: several for each message.
const TRANSFERS: usize = 8_000;

#[derive(Default)]
struct Both {
    heard: [AtomicU32; 2],
    transfers: [AtomicUsize; 2],
    idle: [AtomicU32; 2],
}

impl Both {
    fn all_heard(&self) -> bool {
        self.heard.iter().all(|heard| heard.load(Ordering::Relaxed) >= MESSAGES)
    }

    fn is_over(&self) -> bool {
        let many = |transfers: &AtomicUsize| transfers.load(Ordering::Relaxed) >= TRANSFERS;
        self.all_heard() || self.transfers.iter().any(many)
    }
}

/// An address that threads may share.
#[derive(Clone, Copy)]
struct At(*mut u8);

// SAFETY: the memory outlives the threads, and each uses a part of its own.
unsafe impl Send for At {}

impl At {
    fn slot(self, slot: usize) -> *mut u8 {
        self.0.wrapping_add(slot * LENGTH)
    }
}

/// Each message arrives, and in order, while 32 transfers of each side are open at any time.
pub(super) fn flooded<F: Fabric>(fabric: &F)
where
    F::Endpoint: Send,
    <F::Endpoint as Endpoint>::Domain: Sync,
{
    let caches = caches(fabric, 10_000);
    let memory = [0, 1].map(|side| [0, 1].map(|kind| fabric.memory(side, noise(kind, OPEN * LENGTH))));
    let ends = fabric.connect();
    let both = Both::default();
    std::thread::scope(|scope| {
        for (me, end) in ends.into_iter().enumerate() {
            let (cache, both) = (&caches[me], &both);
            let [source, sink] = [0, 1].map(|kind: usize| At(memory[me][kind].start()));
            let side = [Side::Connecting, Side::Accepting][me];
            scope.spawn(move || one_side(Engine::new(cache, end, side, Limits::default()), me, both, source, sink));
        }
    });
    let heard = both.heard.each_ref().map(|heard| heard.load(Ordering::Relaxed));
    let transfers = both.transfers.each_ref().map(|transfers| transfers.load(Ordering::Relaxed));
    println!("{}: {heard:?} messages beside {transfers:?} transfers", fabric.name());
    assert_eq!(heard, [MESSAGES; 2], "{}: beside {transfers:?} transfers", fabric.name());
    assert!(transfers.iter().all(|&transfers| transfers > OPEN), "{}: {transfers:?} transfers", fabric.name());
}

fn one_side<E: Endpoint>(mut engine: Engine<'_, E>, me: usize, both: &Both, source: At, sink: At) {
    let (mut said, mut into) = (0_u32, Vec::new());
    let mut free: [Vec<usize>; 2] = [(0..OPEN).collect(), (0..OPEN).collect()];
    let mut lent: HashMap<Tag, (usize, usize)> = HashMap::new();
    while both.idle.iter().any(|idle| idle.load(Ordering::Relaxed) == 0) {
        while !both.is_over()
            && let Some(slot) = free[0].pop()
        {
            // SAFETY: the memory outlives the engine; the slot is this transfer's.
            match unsafe { engine.open_write(source.slot(slot), LENGTH, b"") } {
                Ok(tag) => drop(lent.insert(tag, (0, slot))),
                Err(error) => panic!("{error}"),
            }
        }
        if said < MESSAGES && !both.is_over() && engine.send_message(&said.to_le_bytes()).is_ok() {
            said += 1;
        }
        if both.is_over() && lent.is_empty() && engine.open_transfers() == 0 {
            both.idle[me].store(1, Ordering::Relaxed);
        }
        engine.progress();
        let mut quiet = true;
        while let Some(event) = engine.next_event() {
            quiet = false;
            match event {
                Event::Requested { tag, .. } => {
                    let slot = free[1].pop().expect("no more are open than there are slots");
                    // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                    unsafe { engine.accept_write(tag, sink.slot(slot), LENGTH) }.unwrap();
                    lent.insert(tag, (1, slot));
                }
                Event::Completed { tag, result } => {
                    assert_eq!(result.unwrap(), LENGTH as u64);
                    let (kind, slot) = lent.remove(&tag).expect("a transfer ends once");
                    free[kind].push(slot);
                    both.transfers[me].fetch_add(usize::from(kind == 0), Ordering::Relaxed);
                }
                Event::Message => {
                    if engine.recv_message(&mut into) {
                        assert_eq!(into, both.heard[me].fetch_add(1, Ordering::Relaxed).to_le_bytes(), "in order");
                    }
                }
                Event::Writable => {}
                other => panic!("{other:?}"),
            }
        }
        if quiet {
            engine.wait_at_most(1_000_000);
        }
    }
}
