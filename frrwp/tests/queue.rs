//! A completion queue of a thousand connections: what the idle ones cost, and what a busy one costs among them.
#![allow(unsafe_code, reason = "limits of this process")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

#[path = "common/around.rs"]
mod around;
#[path = "common/ends.rs"]
mod ends;
#[path = "common/process.rs"]
mod process;

use around::{Around, Between};
use ends::Ends;
use frrwp::engine::future::{Connection, Driver};
use frrwp::engine::queue::{CompletionQueue, ConnectionId};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::poller::Bell;
use frrwp::fabric::sim::{Costs, Faults, Network, Node, SimDomain, SimEndpoint};
use frrwp::fabric::{Armed, Capabilities, Domain, Endpoint, FabricEndpoint};
use frrwp::handshake::{Expired, Limits, Operation, Phase, Side};
use frrwp::wire::Segment;
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache};
use process::{descriptors, sleeps};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One at a time: they look at the whole process.
static ALONE: Mutex<()> = Mutex::new(());

const MANY: usize = 1_000;
const PINGS: u64 = 200;

fn raise_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is this function's own, and lives.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(16_384);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

type Queue<'cache> = CompletionQueue<'cache, FabricEndpoint>;

/// So many connections, the near ends in one queue and the far ones in another. A message goes each way.
fn connect<'cache>(
    ends: &'cache Ends,
    address: &str,
    connections: usize,
) -> ([Queue<'cache>; 2], Vec<[ConnectionId; 2]>) {
    let mut listener = ends.listen(address);
    let mut queues = [(); 2].map(|()| CompletionQueue::new().unwrap());
    let mut ids = Vec::new();
    let limits = Limits::default();
    for _ in 0..connections {
        let [near, far] = ends.pair(&mut listener, limits.receives);
        let near = Engine::new(&ends.caches[0], near, Side::Connecting, limits);
        let far = Engine::new(&ends.caches[1], far, Side::Accepting, limits);
        ids.push([queues[0].add(near).unwrap(), queues[1].add(far).unwrap()]);
    }
    for ids in &ids {
        ping(&mut queues, *ids);
    }
    (queues, ids)
}

/// A message there and one back.
fn ping([near, far]: &mut [Queue<'_>; 2], ids: [ConnectionId; 2]) {
    near.engine(ids[0]).unwrap().send_message(b"ping").unwrap();
    for (queue, id, answers) in [(far, ids[1], true), (near, ids[0], false)] {
        let event = queue.run();
        assert!(matches!(event, Some((told, Event::Message)) if told == id), "{event:?}");
        let engine = queue.engine(id).unwrap();
        assert!(engine.recv_message(&mut Vec::new()));
        if answers {
            engine.send_message(b"pong").unwrap();
            // It goes to sleep before the next comes.
            assert!(queue.next_event().is_none());
        }
    }
}

/// Returns the cost of pings on one of so many connections to the far queue: looks at connections, and system calls of
/// the queue.
fn steps(address: &str, connections: usize) -> (u64, u64) {
    let ends = Ends::new(address);
    let (mut queues, ids) = connect(&ends, address, connections);
    let count = |queue: &Queue<'_>| (queue.looks(), queue.counters().waits + queue.counters().signals);
    let before = count(&queues[1]);
    for _ in 0..PINGS {
        ping(&mut queues, ids[connections / 2]);
    }
    let after = count(&queues[1]);
    (after.0 - before.0, after.1 - before.1)
}

fn costs_what_it_costs_alone(address: &str) {
    let _alone = ALONE.lock();
    raise_files();
    let (alone, among) = (steps(address, 1), steps(address, MANY));
    println!("{address}, {PINGS} pings: {alone:?} looks and system calls of the queue alone, {among:?} among {MANY}");
    for (looks, calls) in [alone, among] {
        // It looks when it was rung for, and once more where that was for room.
        assert!(looks <= 3 * PINGS && calls <= 6 * PINGS, "{looks} looks, {calls} calls");
    }
    assert!(among.0 <= alone.0 + PINGS && among.1 <= alone.1 + 2 * PINGS);
}

#[test]
fn busy_among_many_costs_no_more_over_iwarp() {
    costs_what_it_costs_alone("iwarp:127.0.0.1:0");
}

#[test]
fn busy_among_many_costs_no_more_over_shm() {
    costs_what_it_costs_alone(&format!("shm:@frrwp-queue-{}", std::process::id()));
}

/// The least wake-ups of a second with all threads asleep, the queues' among them; and descriptors of both ends.
fn idle(address: &str) -> (u64, usize) {
    let _alone = ALONE.lock();
    raise_files();
    let before = descriptors();
    let ends = Ends::new(address);
    let (mut queues, ids) = connect(&ends, address, MANY);
    let held = descriptors() - before;
    let mut woken = u64::MAX;
    std::thread::scope(|scope| {
        for queue in &mut queues {
            scope.spawn(|| (0..2).for_each(|_| queue.wait(Some(Duration::from_secs(4)))));
        }
        for _ in 0..6 {
            let before = sleeps();
            std::thread::sleep(Duration::from_secs(1));
            // This thread's own.
            woken = woken.min((sleeps() - before).saturating_sub(1));
            if woken <= 5 {
                break;
            }
        }
    });
    // They slept for long, and hear all the same.
    ping(&mut queues, ids[MANY - 1]);
    println!("{address}: {woken} wake-ups in a second, {held} descriptors, {MANY} connections, both ends");
    (woken, held)
}

#[test]
fn idle_queues_wake_nothing_over_iwarp() {
    let (woken, held) = idle("iwarp:127.0.0.1:0");
    // One for each end; and those of domains, listener and queues.
    assert!(woken <= 5 && held <= 2 * MANY + 24, "{woken} wake-ups, {held} descriptors");
}

#[test]
fn idle_queues_wake_nothing_over_shm() {
    let (woken, held) = idle(&format!("shm:@frrwp-queue-idle-{}", std::process::id()));
    // A socket for each end, and what tells of the death of the process at the other.
    assert!(woken <= 5 && held <= 4 * MANY + 24, "{woken} wake-ups, {held} descriptors");
}

#[test]
fn a_queue_returns_what_has_expired() {
    let network = Network::new(1, Costs { latency: 1_000_000_000_000, ..Costs::default() }, Faults::default());
    let nodes = [network.node(), network.node()];
    let builder = Cache::builder(nodes[0].domain()).ignore_environment().monitor(Explicit).background(false);
    let cache = builder.build().unwrap();
    let mut sink = vec![0; 1_000];
    let mut queue = CompletionQueue::new().unwrap();
    let limits = Limits { read_time: 7_000_000_000, ..Limits::default() };
    let connected = [2_000, 1_000].map(|ahead| {
        nodes[0].spend(ahead);
        let [one, other] = network.connect(&nodes[0], &nodes[1], limits.receives);
        (queue.add(Engine::new(&cache, one, Side::Connecting, limits)).unwrap(), other)
    });
    let ids = [0, 1].map(|at: usize| {
        let from = Segment { address: 4096, length: 500, key: 7 };
        let engine = queue.engine(connected[at].0).unwrap();
        // SAFETY: the sink lives longer than the queue, and no reference leads to it.
        let id = unsafe { engine.read_remote(sink[at * 500..].as_mut_ptr(), 500, from) }.unwrap();
        // The second has less time.
        assert!(at == 0 || engine.set_read_deadline(id, 5_000_000_000));
        id
    });
    for at in [1, 0] {
        let Some((id, Event::Expired(expired))) = queue.run() else { panic!("its time is over") };
        let Expired { operation, phase, waited } = expired;
        assert_eq!((id, operation, phase), (connected[at].0, Operation::Read(ids[at]), Phase::Reading));
        assert!(waited >= 4_000_000_000 && (at == 0 || waited < 5_000_000_000), "{waited}");
    }
    drop(queue);
}

#[test]
fn a_queue_is_readable_when_it_has_news() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let is_readable = |queue: &Queue<'_>| {
        let mut files = [PollFd::new(queue, PollFlags::IN)];
        poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    for address in ["iwarp:127.0.0.1:0".to_owned(), format!("shm:@frrwp-queue-fd-{}", std::process::id())] {
        let ends = Ends::new(&address);
        let ([mut near, mut far], ids) = connect(&ends, &address, 3);
        for _ in 0..20 {
            while far.next_event().is_some() {}
            far.wait(Some(Duration::ZERO));
            if far.next_event().is_none() && !is_readable(&far) {
                break;
            }
        }
        assert!(!is_readable(&far), "{address}: nothing is left");
        near.engine(ids[1][0]).unwrap().send_message(b"ping").unwrap();
        let mut files = [PollFd::new(&far, PollFlags::IN)];
        assert_eq!(poll(&mut files, None).unwrap(), 1);
        far.wait(Some(Duration::ZERO));
        let event = far.next_event();
        assert!(matches!(event, Some((id, Event::Message)) if id == ids[1][1]), "{address}: {event:?}");
    }
}

/// Makes an end unlike the simulated one in some way.
struct Odd {
    /// It takes so many reads, and has no room for more.
    reads: usize,
    rings: Rings,
}

enum Rings {
    /// As the simulated one.
    Duly,
    /// It always may have news, as where the peer says things that are no events.
    Always,
    /// It may have news while this file is readable.
    While(Arc<OwnedFd>),
    /// Another thread took what it would have been rung for.
    Never,
}

fn odd(end: SimEndpoint, reads: usize, rings: Rings) -> Between<Odd> {
    Between::new(end, Odd { reads, rings })
}

impl Around for Odd {
    type Inner = SimEndpoint;

    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities { gather: 1, ..inner }
    }

    fn before_read(&mut self, _: usize) -> io::Result<()> {
        self.reads = self.reads.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
        Ok(())
    }

    fn attach(&mut self, bell: &Bell, inner: &mut SimEndpoint) -> io::Result<()> {
        match &self.rings {
            Rings::Never => return Ok(()),
            Rings::While(file) => bell.watch(file.as_fd())?,
            Rings::Duly | Rings::Always => {}
        }
        inner.attach(bell)
    }

    fn arm(&mut self, inner: &mut SimEndpoint) -> Armed {
        let armed = inner.arm();
        match &self.rings {
            Rings::Always => Armed::News,
            Rings::While(file) if is_readable(file) => Armed::News,
            Rings::Duly | Rings::While(_) | Rings::Never => armed,
        }
    }
}

fn is_readable(file: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

type Simulated = (Network, [Node; 2], [Cache<SimDomain>; 2]);

fn simulated() -> Simulated {
    let network = Network::new(1, Costs::default(), Faults::default());
    let nodes = [network.node(), network.node()];
    let caches = [0, 1].map(|at: usize| {
        let builder = Cache::builder(nodes[at].domain()).ignore_environment().monitor(Explicit).background(false);
        builder.build().unwrap()
    });
    (network, nodes, caches)
}

#[test]
fn news_without_events_keep_nobody() {
    let (network, nodes, caches) = simulated();
    let limits = Limits::default();
    let [near, far] = network.connect(&nodes[0], &nodes[1], limits.receives);
    let mut queue = CompletionQueue::new().unwrap();
    queue.add(Engine::new(&caches[0], odd(near, 0, Rings::Always), Side::Connecting, limits)).unwrap();
    let mut far = Engine::new(&caches[1], far, Side::Accepting, limits);
    for _ in 0..3 {
        assert!(queue.next_event().is_none());
        assert!(is_readable(&queue), "there is more");
        queue.wait(None);
    }
    far.send_message(b"an event").unwrap();
    while network.step(u64::MAX) {}
    assert!(matches!(queue.next_event(), Some((_, Event::Message))));
}

/// Part of it has come, and the fabric has no room for the rest: nothing more would ever tell of its end.
#[test]
fn a_cancelled_read_ends_if_nothing_is_under_way() {
    let (network, nodes, caches) = simulated();
    let limits = Limits::default();
    const LENGTH: usize = 4 * 4096;
    let [source, mut sink] = [7, 0].map(|byte| vec![byte; LENGTH]);
    for by_time in [false, true] {
        let [near, _far] = network.connect(&nodes[0], &nodes[1], limits.receives);
        let mut engine = Engine::new(&caches[0], odd(near, 1, Rings::Duly), Side::Connecting, limits);
        // SAFETY: the memory lives until the leases are dropped, and the engine is.
        let [held, key] = unsafe {
            let held = caches[0].acquire(sink.as_mut_ptr(), 4096, Access::LOCAL_WRITE).unwrap();
            let key = caches[1].acquire(source.as_ptr(), LENGTH, Access::REMOTE_READ).unwrap();
            [held, key]
        };
        let part = key.segments().next().unwrap();
        let from = caches[1].registrar().remote(part.registration(), source.as_ptr(), LENGTH);
        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
        let id = unsafe { engine.read_remote(sink.as_mut_ptr(), LENGTH, from) }.unwrap();
        while network.step(u64::MAX) {}
        engine.progress();
        assert!(engine.next_event().is_none() && engine.open_reads() == 1, "the rest waits for room");
        if by_time {
            engine.set_read_deadline(id, engine.endpoint().now());
            engine.progress();
            assert!(matches!(engine.next_event(), Some(Event::Expired(_))));
        } else {
            assert!(engine.cancel_read(id));
        }
        assert!(
            matches!(engine.next_event(), Some(Event::ReadCompleted { id: ended, succeeded: false }) if ended == id)
        );
        assert_eq!(engine.open_reads(), 0);
        drop((engine, held));
    }
}

#[test]
fn a_driver_lets_go_of_what_another_has_seen_end() {
    let (network, nodes, caches) = simulated();
    let limits = Limits::default();
    let [near, mut far] = network.connect(&nodes[0], &nodes[1], limits.receives);
    let near = Engine::new(&caches[0], odd(near, 0, Rings::Never), Side::Connecting, limits);
    // SAFETY: the cache outlives the connection, which is lent no buffer.
    let near = unsafe { Connection::new(near) };
    let mut driver = Driver::new().unwrap();
    driver.add(&near).unwrap();
    while driver.turn() {}
    far.disconnect();
    while network.step(u64::MAX) {}
    near.progress();
    assert!(near.is_closed());
    while driver.turn() {}
    assert!(driver.is_empty());
}

/// A program that watches the descriptor, and calls `turn` once when it is readable, misses nothing.
#[test]
fn a_driver_is_readable_while_it_has_more() {
    let (network, nodes, caches) = simulated();
    let limits = Limits::default();
    let [near, _far] = network.connect(&nodes[0], &nodes[1], limits.receives);
    let file = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let near = odd(near, 0, Rings::While(Arc::clone(&file)));
    // SAFETY: the cache outlives the connection, which is lent no buffer.
    let near = unsafe { Connection::new(Engine::new(&caches[0], near, Side::Connecting, limits)) };
    let mut driver = Driver::new().unwrap();
    driver.add(&near).unwrap();
    while driver.turn() || is_readable(&driver) {}
    rustix::io::write(&file, &1_u64.to_ne_bytes()).unwrap();
    let has_more = [(); 3].map(|()| driver.turn() && is_readable(&driver));
    rustix::io::read(&file, &mut [0; 8]).unwrap();
    assert_eq!(has_more, [true; 3]);
}
