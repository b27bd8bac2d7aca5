//! Many connections in one completion queue, both ends of each, driven by one thread that sleeps when there is nothing: a
//! wake-up that is lost is the end of the test.
#![allow(unreachable_pub, reason = "shared by tests")]

use crate::engines::{Fabric, PAGE, caches, engines, noise};
use frrwp::engine::Event;
use frrwp::engine::queue::{CompletionQueue, ConnectionId};
use frrwp::fabric::Domain;
use frrwp::handshake::{Limits, SendError};
use mrrc::Access;
use std::collections::HashMap;

const CONNECTIONS: usize = 12;
const MESSAGES: u32 = 100;
/// More than may be posted at a time.
const LENGTH: usize = 700 * PAGE;

/// An end: of which connection, of which side, and what it has said and heard.
struct End {
    number: usize,
    side: usize,
    said: u32,
    heard: u32,
}

/// On each connection the connecting side says many things, as there is room; then it writes, and reads back, and disconnects.
pub fn queued<F: Fabric>(fabric: &F) {
    let caches = caches(fabric, 100_000);
    let bytes = noise(3, LENGTH);
    let sources: Vec<_> = (0..CONNECTIONS).map(|_| fabric.memory(0, bytes.clone())).collect();
    let sinks: Vec<_> = (0..CONNECTIONS).map(|_| fabric.memory(1, vec![0; LENGTH])).collect();
    let copies: Vec<_> = (0..CONNECTIONS).map(|_| fabric.memory(0, vec![0; LENGTH])).collect();
    // SAFETY: the memory lives to the end of this function, and is read when it was written.
    let leases = sinks.iter().map(|sink| unsafe { caches[1].acquire(sink.start(), LENGTH, Access::REMOTE_READ) });
    let leases: Vec<_> = leases.map(Result::unwrap).collect();
    // Neighbours in memory may share a page, and so be of several registrations.
    let part_of = |number: usize| leases[number].segments().next().unwrap();
    let mut queue = CompletionQueue::new().unwrap();
    let mut ends: HashMap<ConnectionId, End> = HashMap::new();
    for number in 0..CONNECTIONS {
        for (side, engine) in engines(fabric, &caches, Limits::default()).into_iter().enumerate() {
            let id = queue.add(engine).unwrap();
            ends.insert(id, End { number, side, said: 0, heard: 0 });
            if side == 0 {
                say(&mut queue, id, &mut ends);
            }
        }
    }
    let mut heard = Vec::new();
    while let Some((id, event)) = queue.run() {
        let end = ends.get_mut(&id).unwrap();
        let number = end.number;
        match event {
            Event::Message => {
                let engine = queue.engine(id).unwrap();
                assert!(engine.recv_message(&mut heard) && heard == end.heard.to_le_bytes(), "in order");
                end.heard += 1;
                if end.side == 1 && end.heard == MESSAGES {
                    engine.send_message(&0_u32.to_le_bytes()).unwrap();
                }
                if end.side == 0 {
                    // SAFETY: the memory lives to the end of this function, and has no other user.
                    unsafe { engine.open_write(sources[number].start(), LENGTH, b"") }.unwrap();
                }
            }
            Event::Writable => say(&mut queue, id, &mut ends),
            Event::Requested { tag, .. } => {
                // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                unsafe { queue.engine(id).unwrap().accept_write(tag, sinks[number].start(), LENGTH) }.unwrap();
            }
            Event::Completed { result, .. } => {
                assert_eq!(result.unwrap(), LENGTH as u64);
                if end.side == 0 {
                    let part = part_of(number);
                    let key = caches[1].registrar().remote(part.registration(), part.address(), part.len());
                    // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                    unsafe { queue.engine(id).unwrap().read_remote(copies[number].start(), LENGTH, key) }.unwrap();
                }
            }
            Event::ReadCompleted { succeeded, .. } => {
                let length = part_of(number).len();
                assert!(succeeded && copies[number].bytes(0, length) == bytes[..length], "{}", fabric.name());
                queue.engine(id).unwrap().disconnect();
            }
            Event::Closed { .. } => assert!(ends.remove(&id).is_some() && queue.remove(id)),
            other => panic!("{other:?}"),
        }
    }
    assert!(ends.is_empty());
    println!("{}: {} looks, {:?}", fabric.name(), queue.looks(), queue.counters());
    drop(leases);
}

fn say<E: frrwp::fabric::Endpoint>(
    queue: &mut CompletionQueue<'_, E>,
    id: ConnectionId,
    ends: &mut HashMap<ConnectionId, End>,
) {
    let (engine, end) = (queue.engine(id).unwrap(), ends.get_mut(&id).unwrap());
    while end.said < MESSAGES {
        match engine.send_message(&end.said.to_le_bytes()) {
            Ok(()) => end.said += 1,
            Err(SendError::Full) => return,
            Err(error) => panic!("{error}"),
        }
    }
}
