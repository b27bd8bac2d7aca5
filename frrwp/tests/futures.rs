//! Futures over real fabrics: sent between threads, moved on by one driver, with buffers of other types; and the buffers of
//! dropped or overdue futures.
#![allow(unsafe_code, reason = "buffers that are registered, and a buffer type")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

#[path = "common/ends.rs"]
mod ends;
#[path = "common/place.rs"]
mod place;

use ends::{Ends, SOON};
use frrwp::engine::future::{Buffer, Connection, Driver, Finished, ReadError};
use frrwp::engine::{Engine, TransferError};
use frrwp::fabric::{Connector, Domain, FabricDomain, FabricEndpoint, FabricMemory, FabricOptions};
use frrwp::handshake::{Failure, Limits, Phase, SendError, Side};
use frrwp::wire::Segment;
use mrrc::{Access, Cache};
use place::{Place, SECOND, Woken, poll_once};
use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

const LENGTH: usize = 300_000;

fn assert_send<T: Send>(value: T) -> T {
    value
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An executor of one task, which knows nothing of connections: the task is polled once here, and ends on another thread.
fn run_elsewhere<T: Send>(task: impl Future<Output = T> + Send) -> T {
    let mut task = Box::pin(task);
    if let Poll::Ready(output) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(move || {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let mut context = Context::from_waker(&waker);
            loop {
                if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
                    return output;
                }
                std::thread::park();
            }
        });
        elsewhere.join().unwrap()
    })
}

/// So many bytes: a domain may make a few more.
fn memory(domain: &FabricDomain) -> FabricMemory {
    let mut memory = domain.memory(LENGTH).unwrap();
    drop(memory.split_off(LENGTH));
    memory
}

fn fill(memory: &FabricMemory, bytes: &[u8]) {
    assert!(bytes.len() <= memory.len());
    // SAFETY: it is this side's, no transfer has it, and it has as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.start(), bytes.len()) };
}

fn content(memory: &FabricMemory) -> Vec<u8> {
    // SAFETY: it is this side's, and no transfer has it.
    unsafe { std::slice::from_raw_parts(memory.start(), memory.len()) }.to_vec()
}

type Shared<'cache> = Arc<Connection<'cache, FabricEndpoint>>;

/// Says a number, writes, hears a key, and reads by it what it wrote.
async fn client(transfers: Shared<'_>, domain: &FabricDomain, number: u8) {
    let bytes = vec![number; LENGTH];
    let mut memory = domain.memory(2 * LENGTH).unwrap();
    let sink = memory.split_off(LENGTH);
    fill(&memory, &bytes);
    transfers.send_message(&[number]).await.unwrap();
    let Finished { buffer, result } = transfers.open_write(memory, &[number]).unwrap().await;
    assert_eq!(result.unwrap(), LENGTH as u64);
    assert!(content(&buffer.unwrap())[..LENGTH] == bytes, "it is the same memory");
    let key = transfers.recv_message().await.unwrap();
    let from = Segment {
        address: u64::from_le_bytes(key[..8].try_into().unwrap()),
        length: LENGTH as u64,
        key: u32::from_le_bytes(key[8..].try_into().unwrap()),
    };
    // More at a time than there is room for: they wait for it.
    let (mut small, mut memory) = (Vec::new(), domain.memory(1_000).unwrap());
    for at in 0..100 {
        let part = Segment { address: from.address + at, length: 10, ..from };
        let rest = memory.split_off(10);
        small.push(transfers.read_remote(std::mem::replace(&mut memory, rest), part).within(SOON));
    }
    let Finished { buffer, result } = transfers.read_remote(sink, from).await;
    assert_eq!(result.unwrap(), LENGTH as u64);
    assert!(content(&buffer.unwrap())[..LENGTH] == bytes);
    for read in small {
        let Finished { buffer, result } = read.await;
        assert_eq!((result.unwrap(), &content(&buffer.unwrap())[..10]), (10, &bytes[..10]));
    }
    transfers.send_message(b"bye").await.unwrap();
    assert!(transfers.recv_message().await.is_none(), "the end");
}

async fn server(transfers: Shared<'_>, domain: &FabricDomain, cache: &Cache<FabricDomain>) {
    let number = transfers.recv_message().await.unwrap();
    let put = transfers.requested().await.unwrap();
    assert_eq!((put.length, &put.header), (LENGTH as u64, &number));
    let stored = transfers.accept_write(put.tag, domain.memory(LENGTH).unwrap()).unwrap().await;
    stored.result.unwrap();
    let stored = stored.buffer.unwrap();
    // SAFETY: the memory lives until the connection has ended, and is only read.
    let lease = unsafe { cache.acquire(stored.start(), LENGTH, Access::REMOTE_READ) }.unwrap();
    let part = lease.segments().next().unwrap();
    let key = domain.remote(part.registration(), part.address(), part.len());
    transfers.send_message(&[&key.address.to_le_bytes()[..], &key.key.to_le_bytes()].concat()).await.unwrap();
    assert_eq!(transfers.recv_message().await.unwrap(), b"bye");
    transfers.disconnect();
    assert!(transfers.recv_message().await.is_none());
}

fn connect<'cache>(ends: &'cache Ends, address: &str, connections: usize) -> Vec<[Shared<'cache>; 2]> {
    let mut listener = ends.listen(address);
    let limits = Limits::default();
    let connect = |_| {
        let mut sides = [Side::Connecting, Side::Accepting].into_iter().zip(&ends.caches);
        ends.pair(&mut listener, limits.receives).map(|end| {
            let (side, cache) = sides.next().unwrap();
            // SAFETY: the caches hear of nothing, and of the memory of domains nothing is given back while they live that
            // is used again by others.
            Arc::new(unsafe { Connection::new(Engine::new(cache, end, side, limits)) })
        })
    };
    (0..connections).map(connect).collect()
}

fn addresses(test: &str) -> [String; 2] {
    ["iwarp:127.0.0.1:0".to_owned(), format!("shm:@frrwp-futures-{test}-{}", std::process::id())]
}

#[test]
fn futures_run_on_many_threads_over_one_driver() {
    const CONNECTIONS: usize = 6;
    for address in addresses("driver") {
        let ends = Ends::new(&address);
        let connections = connect(&ends, &address, CONNECTIONS);
        let mut driver = Driver::new().unwrap();
        std::thread::scope(|scope| {
            for (number, [near, far]) in connections.iter().enumerate() {
                driver.add(near.clone()).unwrap();
                driver.add(far.clone()).unwrap();
                let (near, far) = (near.clone(), far.clone());
                let client = assert_send(client(near, &ends.domains[0], number as u8));
                let server = assert_send(server(far, &ends.domains[1], &ends.caches[1]));
                scope.spawn(|| run_elsewhere(client));
                scope.spawn(|| run_elsewhere(server));
            }
            // Until all have come to their ends.
            driver.run();
        });
        assert!(connections.iter().flatten().all(|transfers| transfers.held() == 0 && transfers.is_closed()));
    }
}

#[test]
fn several_threads_wait_for_one_connection() {
    for address in addresses("threads") {
        let ends = Ends::new(&address);
        let connections = connect(&ends, &address, 1);
        let [near, far] = &connections[0];
        let [writes, takes] = &ends.domains;
        std::thread::scope(|scope| {
            for number in 0..4_u8 {
                scope.spawn(move || {
                    let memory = memory(writes);
                    fill(&memory, &vec![number; LENGTH]);
                    let written = near.open_write(memory, &[number]).unwrap();
                    assert_eq!(near.block_on(written).result.unwrap_or(0), LENGTH as u64);
                });
                scope.spawn(move || {
                    far.block_on(async {
                        let put = far.requested().await.unwrap();
                        let memory = memory(takes);
                        let Finished { buffer, result } = far.accept_write(put.tag, memory).unwrap().await;
                        result.unwrap();
                        assert!(content(&buffer.unwrap())[..LENGTH] == vec![put.header[0]; LENGTH]);
                    });
                });
            }
        });
        assert_eq!((near.held(), far.held()), (0, 0));
    }
}

/// A buffer of a type of its own: so many of them live.
#[derive(Debug)]
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn new(length: usize, live: &Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::SeqCst);
        Self(vec![0; length], Arc::clone(live))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: a vector's bytes lie on the heap, and are its own.
unsafe impl Buffer for Counted {
    fn start(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn a_dropped_read_keeps_its_buffer() {
    let place = Place::new(SECOND);
    let [one, _other] = place.transfers(Limits::default());
    let (source, live) = (vec![7; 1_000], Arc::new(AtomicUsize::new(0)));
    let from = place.key(&source);
    for drops in [false, true] {
        let mut read = one.read_remote(Counted::new(1_000, &live), from);
        assert!(poll_once(&mut read).is_pending());
        if drops {
            drop(read);
            assert_eq!((one.held(), live.load(Ordering::SeqCst)), (1, 1), "its bytes are on their way");
            while place.network.step(u64::MAX) {}
            one.progress();
        } else {
            read.cancel();
            let Finished { buffer, result } = one.block_on(read);
            assert!(matches!(result, Err(ReadError::Cancelled)));
            assert!(buffer.is_some_and(|buffer| buffer.0 == source), "they came all the same");
        }
        assert_eq!((one.held(), live.load(Ordering::SeqCst)), (0, 0));
    }
}

#[test]
fn futures_are_ready_when_their_time_is_over() {
    let place = Place::new(1_000 * SECOND);
    let limits = Limits { reads: 1, ..Limits::default() };
    let [one, _other] = place.transfers(limits);
    let live = Arc::new(AtomicUsize::new(0));
    let counted = || Counted::new(1_000, &live);
    let (second, now) = (Duration::from_secs(1), || place.nodes[0].now());
    let from = Segment { address: 4096, length: 1_000, key: 7 };
    let begun = now();
    // Only this side has heard of it: its buffer comes back.
    let written = one.block_on(one.open_write(counted(), b"").unwrap().within(second));
    let Err(TransferError::Failed { failure: Failure::TimedOut { phase, .. }, .. }) = written.result else { panic!() };
    assert!(written.buffer.is_some() && phase == Phase::Answer);
    assert!((SECOND..2 * SECOND).contains(&(now() - begun)));
    // Its keys are out: the buffer stays.
    let begun = now();
    let read = one.block_on(one.open_read(counted(), b"").unwrap().within(second));
    let Err(TransferError::Failed { failure: Failure::TimedOut { phase, .. }, .. }) = read.result else { panic!() };
    assert!(read.buffer.is_none() && phase == Phase::Done);
    assert!((SECOND..2 * SECOND).contains(&(now() - begun)));
    // The bytes of a one-sided read in flight are kept too; one that waits for room has posted nothing.
    let begun = now();
    let (first, waits) =
        (one.read_remote(counted(), from).within(second), one.read_remote(counted(), from).within(2 * second));
    let first = one.block_on(first);
    assert!(matches!(first.result, Err(ReadError::Expired(_))) && first.buffer.is_none());
    let waits = one.block_on(waits);
    assert!(matches!(waits.result, Err(ReadError::Unopened(_))) && waits.buffer.is_some());
    assert!((2 * SECOND..3 * SECOND).contains(&(now() - begun)));
    drop((written, waits));
    assert_eq!((one.held(), live.load(Ordering::SeqCst)), (2, 2), "what the peer, or the fabric, may be at");
    drop(one);
    assert_eq!(live.load(Ordering::SeqCst), 0);
}

#[test]
fn messages_are_sent_in_time_or_never() {
    let place = Place::new(1_000 * SECOND);
    let [one, _other] = place.transfers(Limits::default());
    // All credits but the last go on messages that the peer does not hear of.
    let writes: Vec<_> = (0..16).map(|_| one.open_write(vec![1; 10], b"").unwrap()).collect();
    let second = Duration::from_secs(1);
    // The engine keeps eight; those behind them wait for room.
    let mut kept: Vec<_> = (0..8).map(|_| one.send_message(b"kept").within(10 * second)).collect();
    assert!(kept.iter_mut().all(|said| poll_once(said).is_pending()));
    let (begun, now) = (place.nodes[0].now(), || place.nodes[0].now());
    let said = one.block_on(one.send_message(b"no room").within(second));
    assert!(matches!(said, Err(SendError::Expired(expired)) if expired.phase == Phase::Credit), "{said:?}");
    assert!((SECOND..2 * SECOND).contains(&(now() - begun)));
    // One that is dropped leaves its room to another, which waits for a credit.
    drop(kept.pop());
    let said = one.block_on(one.send_message(b"in its place").within(second));
    assert!(matches!(said, Err(SendError::Expired(expired)) if expired.waited == SECOND), "{said:?}");
    assert!((2 * SECOND..3 * SECOND).contains(&(now() - begun)));
    drop((kept, writes));
}

/// Does what executors do: polls those that were woken, in the order of their wake-ups.
struct Executor {
    woken: mpsc::Receiver<usize>,
    wakers: Vec<Waker>,
    polls: usize,
}

struct Number(usize, mpsc::Sender<usize>);

impl Wake for Number {
    fn wake(self: Arc<Self>) {
        let _ = self.1.send(self.0);
    }
}

impl Executor {
    fn new(futures: usize) -> Self {
        let (wake, woken) = mpsc::channel();
        (0..futures).for_each(|number| wake.send(number).unwrap());
        let wakers = (0..futures).map(|number| Waker::from(Arc::new(Number(number, wake.clone())))).collect();
        Self { woken, wakers, polls: 0 }
    }

    /// Runs them all, with `most` polls. `wait` moves the network on. Returns outputs with the numbers of their futures, as they came.
    fn run<F: Future + Unpin>(
        &mut self,
        futures: Vec<F>,
        most: usize,
        mut wait: impl FnMut(),
    ) -> Vec<(usize, F::Output)> {
        let (mut futures, mut outputs): (Vec<_>, _) = (futures.into_iter().map(Some).collect(), Vec::new());
        while outputs.len() < futures.len() {
            let Ok(number) = self.woken.try_recv() else {
                wait();
                continue;
            };
            let Some(future) = &mut futures[number] else { continue };
            self.polls += 1;
            assert!(self.polls <= most, "{} have ended after {most} polls", outputs.len());
            if let Poll::Ready(output) = Pin::new(future).poll(&mut Context::from_waker(&self.wakers[number])) {
                futures[number] = None;
                outputs.push((number, output));
            }
        }
        outputs
    }
}

const CROWD: usize = 100_000;

#[test]
fn a_crowd_of_reads_is_polled_twice_each() {
    let place = Place::new(1_000);
    let [one, _other] = place.transfers(Limits::default());
    let source = vec![7; 64];
    let from = place.key(&source);
    let reads: Vec<_> = (0..CROWD).map(|_| one.read_remote(vec![0; 64], from)).collect();
    let ended = Executor::new(CROWD).run(reads, 2 * CROWD, || {
        place.network.step(u64::MAX);
        one.progress();
    });
    assert!(ended.iter().map(|&(number, _)| number).is_sorted(), "in order");
    assert!(ended.into_iter().all(|(_, read)| read.result.is_ok() && read.buffer.is_some_and(|bytes| bytes == source)));
    assert_eq!(one.held(), 0);
}

#[test]
fn a_crowd_of_messages_is_polled_twice_each() {
    let place = Place::new(1_000);
    let [one, other] = place.transfers(Limits::default());
    let texts: Vec<_> = (0..CROWD).map(|number| number.to_le_bytes()).collect();
    let says: Vec<_> = texts.iter().map(|text| one.send_message(text)).collect();
    let mut heard = Vec::new();
    let ended = Executor::new(CROWD).run(says, 2 * CROWD, || {
        place.network.step(u64::MAX);
        one.progress();
        while let Poll::Ready(Some(text)) = poll_once(&mut Box::pin(other.recv_message())) {
            heard.push(text);
        }
    });
    assert!(ended.iter().all(|(_, said)| said.is_ok()));
    while place.network.step(u64::MAX) {
        other.progress();
        while let Poll::Ready(Some(text)) = poll_once(&mut Box::pin(other.recv_message())) {
            heard.push(text);
        }
    }
    assert!(heard == texts, "in order");
}

#[test]
fn a_crowd_of_hearers_is_polled_twice_each() {
    let place = Place::new(1_000);
    let [one, other] = place.transfers(Limits::default());
    let mut says: Vec<_> = (0..CROWD).map(|_| one.send_message(b"news")).collect();
    says.retain_mut(|said| poll_once(said).is_pending());
    let hears: Vec<_> = (0..CROWD).map(|_| Box::pin(other.recv_message())).collect();
    let heard = Executor::new(CROWD).run(hears, 2 * CROWD, || {
        place.network.step(u64::MAX);
        one.progress();
        other.progress();
    });
    assert!(heard.into_iter().all(|(_, text)| text.is_some_and(|text| text == b"news")));
}

#[test]
fn a_crowd_of_askers_is_polled_twice_each() {
    const ASKERS: usize = 1_000;
    let place = Place::new(1_000);
    let [one, other] = place.transfers(Limits::default());
    let writes: Vec<_> = (0..ASKERS).map(|_| one.open_write(vec![1; 10], b"").unwrap()).collect();
    let asks: Vec<_> = (0..ASKERS).map(|_| Box::pin(other.requested())).collect();
    let asked = Executor::new(ASKERS).run(asks, 2 * ASKERS, || {
        place.network.step(u64::MAX);
        one.progress();
        other.progress();
    });
    assert!(asked.into_iter().all(|(_, asked)| asked.is_some_and(|asked| other.refuse(asked.tag).is_ok())));
    drop(writes);
}

#[test]
fn unpolled_futures_keep_no_room() {
    let place = Place::new(SECOND);
    let [one, _other] = place.transfers(Limits { reads: 1, ..Limits::default() });
    let source = vec![7; 64];
    let from = place.key(&source);
    let first = one.read_remote(vec![0; 64], from);
    let mut kept = one.read_remote(vec![0; 64], from);
    let dropped = one.read_remote(vec![0; 64], from);
    let waits = one.read_remote(vec![0; 64], from);
    assert!(poll_once(&mut kept).is_pending() && one.held() == 4);
    drop(dropped);
    assert_eq!(one.held(), 3, "nothing was at its buffer");
    assert_eq!(one.block_on(waits).buffer, Some(source.clone()));
    assert!(matches!(poll_once(&mut kept), Poll::Ready(Finished { result: Ok(64), .. })));
    drop(first);
    assert_eq!(one.held(), 0);
}

/// Whatever waits when its driver goes is woken, and has its end.
fn ends_with_its_driver<'a, E: frrwp::fabric::Endpoint + 'a>(
    near: &Connection<'a, E>,
    bytes: [Vec<u8>; 3],
    from: Option<Segment>,
) {
    let [write, read, waits] = bytes;
    let mut driver = Driver::new().unwrap();
    driver.add(near).unwrap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let (mut hears, mut asked) = (Box::pin(near.recv_message()), Box::pin(near.requested()));
    let mut written = near.open_write(write, b"").unwrap();
    let mut reads = from.map(|from| [near.read_remote(read, from), near.read_remote(waits, from)]);
    let mut says: Vec<_> = (0..200).map(|_| near.send_message(b"not heard")).collect();
    says.retain_mut(|said| Pin::new(said).poll(&mut context).is_pending());
    assert!(says.len() > 16, "some wait for a credit, some for room");
    assert!(hears.as_mut().poll(&mut context).is_pending() && asked.as_mut().poll(&mut context).is_pending());
    assert!(Pin::new(&mut written).poll(&mut context).is_pending());
    assert!(reads.iter_mut().flatten().all(|read| Pin::new(read).poll(&mut context).is_pending()));
    let before = woken.0.load(Ordering::SeqCst);
    drop(driver);
    let waiting = 3 + says.len() + reads.iter().flatten().count();
    assert!(woken.0.load(Ordering::SeqCst) - before >= waiting, "each is woken");
    assert!(matches!(poll_once(&mut hears), Poll::Ready(None)) && matches!(poll_once(&mut asked), Poll::Ready(None)));
    let Poll::Ready(written) = poll_once(&mut written) else { panic!("it has no end") };
    assert!(matches!(written.result, Err(TransferError::Failed { failure: Failure::Lost, .. })), "{written:?}");
    assert!(written.buffer.is_some());
    for said in &mut says {
        assert!(matches!(poll_once(said), Poll::Ready(Err(SendError::Disconnected))));
    }
    for read in reads.iter_mut().flatten() {
        let Poll::Ready(Finished { buffer, result }) = poll_once(read) else { panic!("it has no end") };
        assert!(buffer.is_some() && matches!(result, Err(ReadError::Failed { .. } | ReadError::Unopened(_))));
    }
    assert_eq!(near.held(), 0);
}

#[test]
fn a_dropped_driver_ends_what_waits() {
    let bytes = || [(); 3].map(|()| vec![0; 1_000]);
    for address in addresses("dropped") {
        let ends = Ends::new(&address);
        let connections = connect(&ends, &address, 1);
        let [near, far] = &connections[0];
        ends_with_its_driver(near, bytes(), None);
        while far.block_on(far.requested()).is_some() {}
    }
    let place = Place::new(SECOND);
    let [near, _far] = place.transfers(Limits { reads: 1, ..Limits::default() });
    let from = Segment { address: 4096, length: 1_000, key: 7 };
    ends_with_its_driver(&near, bytes(), Some(from));
}

/// In a process of its own: all others of this one need descriptors.
#[test]
fn waits_where_no_descriptors_are_left() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["without_descriptors", "--exact", "--ignored", "--test-threads=1"])
        .spawn()
        .unwrap();
    let given_up = Instant::now() + SOON;
    let ended = loop {
        match child.try_wait().unwrap() {
            None if Instant::now() < given_up => std::thread::sleep(Duration::from_millis(10)),
            ended => break ended,
        }
    };
    let _ = child.kill();
    assert!(ended.or_else(|| child.wait().ok()).is_some_and(|status| status.success()));
}

#[test]
#[ignore = "takes all descriptors of its process"]
fn without_descriptors() {
    let limit = libc::rlimit { rlim_cur: 128, rlim_max: 4096 };
    // SAFETY: `setrlimit` reads the limit that it is given.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let take_all = || std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect::<Vec<_>>();
    // Over iWARP each thread needs one of its own to read a socket.
    let [_, address] = addresses("few");
    let ends = Ends::new(&address);
    let connections = connect(&ends, &address, 1);
    let [near, far] = &connections[0];
    let all = take_all();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            near.block_on(async {
                tell.send(()).unwrap();
                near.recv_message().await
            })
        });
        // Another thread of this side may use the connection meanwhile.
        told.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        near.block_on(near.send_message(b"question")).unwrap();
        assert_eq!(far.block_on(far.recv_message()).unwrap(), b"question");
        far.block_on(far.send_message(b"answer")).unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), b"answer");
    });
    drop(all);
    far.block_on(far.send_message(b"there are descriptors")).unwrap();
    assert_eq!(near.block_on(near.recv_message()).unwrap(), b"there are descriptors");
    let all = take_all();
    let place = Place::new(SECOND);
    let [near, _far] = place.transfers(Limits::default());
    let source = vec![7; 64];
    let read = near.block_on(near.read_remote(vec![0; 64], place.key(&source)));
    assert_eq!(read.buffer, Some(source), "simulated time goes on");
    drop(all);
}

/// A future that is polled moves the connection on, so two that wait could wake each other for ever.
#[test]
fn a_message_that_has_left_wakes_others_once() {
    let place = Place::new(1_000 * SECOND);
    let [one, _other] = place.transfers(Limits::default());
    let writes: Vec<_> = (0..16).map(|_| one.open_write(vec![1; 10], b"").unwrap()).collect();
    let mut kept = one.send_message(b"kept, and not polled").within(Duration::from_secs(1));
    assert!(poll_once(&mut kept).is_pending());
    let said = one.block_on(one.send_message(b"later").within(Duration::from_secs(2)));
    assert!(matches!(said, Err(SendError::Expired(_))));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut hears = Box::pin(one.recv_message());
    assert!(hears.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    (0..3).for_each(|_| one.progress());
    assert_eq!(woken.0.load(Ordering::SeqCst), 0, "nothing has come");
    assert!(matches!(poll_once(&mut kept), Poll::Ready(Err(SendError::Expired(_)))));
    drop((hears, kept, writes));
}

#[test]
fn parts_of_memory_are_lent_apart() {
    let domain = FabricDomain::new(&"iwarp:127.0.0.1:0".parse().unwrap(), FabricOptions::default()).unwrap();
    let mut memory = domain.memory(10_000).unwrap();
    let (start, length) = (memory.start(), memory.len());
    let rest = memory.split_off(4_000);
    assert_eq!((memory.start(), memory.len()), (start, 4_000));
    assert_eq!((rest.start(), rest.len()), (start.wrapping_add(4_000), length - 4_000));
    drop(memory);
    assert!(content(&rest) == vec![0; length - 4_000], "it is there as long as one part is");
}
