//! `udp:`: requests over real sockets, threads that clients stay with, senders that are not those they claim to be, and what an idle
//! client costs.

use frrwp::fabric::datagram::{UdpError, UdpPort};
use frrwp::fabric::reliability::wire::{Body, Datagram, Part};
use frrwp::fabric::reliability::{
    Client, ClientLimits, Event, RequestKind, Scope, Secret, Server, ServerCounters, ServerLimits,
};
use frrwp::fabric::{DatagramPort, Peer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

const PART: usize = 1400;

fn classify(message: &[u8]) -> RequestKind {
    if message.first() == Some(&1) { RequestKind::Mutation } else { RequestKind::Read }
}

fn server(thread: u8) -> Server<Vec<u8>> {
    Server::new(ServerLimits::default(), Secret::new([3; 16]), 1, thread, classify)
}

/// Takes what has come, and answers each request with its thread and its bytes.
fn serve(port: &mut UdpPort, server: &mut Server<Vec<u8>>, thread: u8) {
    let now = port.now();
    for _ in 0..32 {
        let Some((from, bytes)) = port.poll() else { break };
        let Some(request) = server.receive(now, from, bytes) else { continue };
        let (message, work) = ([&[thread], request.message].concat(), request.work);
        server.complete(now, work, &message, None);
    }
    server.set_pressed(port.is_pressed());
    for (to, bytes) in server.outbox().iter() {
        port.send(to, bytes).unwrap();
    }
    server.outbox().clear();
}

/// The threads of a server.
struct Served {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(usize, ServerCounters)>>,
}

impl Served {
    fn start(at: &str, threads: usize) -> Self {
        let ports = UdpPort::listen(at.parse().unwrap(), threads, PART).unwrap();
        let address = ports[0].local_address().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..)
            .zip(ports)
            .map(|(thread, mut port)| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    let mut server = server(thread);
                    while !stop.load(Relaxed) {
                        serve(&mut port, &mut server, thread);
                        port.wait(Some(port.now() + 10_000_000));
                    }
                    (server.clients(), server.counters())
                })
            })
            .collect();
        Self { address, stop, threads }
    }

    /// Returns clients and counts of each thread.
    fn stop(self) -> Vec<(usize, ServerCounters)> {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

/// A client and its port.
struct Asking {
    client: Client,
    port: UdpPort,
    /// Datagrams that it sent.
    sent: Vec<Vec<u8>>,
}

impl Asking {
    fn new(server: SocketAddr, seed: u64) -> Self {
        // Debug builds on a busy machine are slow.
        let limits = ClientLimits { call_time: 60_000_000_000, ..ClientLimits::default() };
        let client = Client::new(limits, Peer::from(server), seed);
        Self { client, port: UdpPort::connect(server, PART).unwrap(), sent: Vec::new() }
    }

    fn ask(&mut self, kind: RequestKind, message: &[u8]) -> Vec<u8> {
        self.client.call(self.port.now(), kind, Scope::Key(1), message.to_vec()).unwrap();
        loop {
            match self.client.next_event() {
                Some(Event::Reply { message, .. }) => return message,
                Some(Event::Failed { why, .. }) => panic!("{why:?}"),
                None => {}
            }
            for (to, bytes) in self.client.outbox().iter() {
                self.sent.push(bytes.to_vec());
                self.port.send(to, bytes).unwrap();
            }
            self.client.outbox().clear();
            self.port.wait(self.client.timer());
            let now = self.port.now();
            self.client.tick(now);
            while let Some((from, bytes)) = self.port.poll() {
                self.client.receive(now, from, bytes);
            }
        }
    }
}

#[test]
fn requests_are_answered_by_both_families() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let served = Served::start(at, 1);
        let mut asking = Asking::new(served.address, 1);
        for length in [1, 100, 1352, 1353, 20_000, 500_000] {
            let message = vec![0; length];
            assert_eq!(asking.ask(RequestKind::Read, &message).len(), 1 + length);
        }
        assert_eq!(asking.ask(RequestKind::Mutation, &[1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(served.stop()[0].0, 1);
    }
}

#[test]
fn clients_stay_with_their_thread_when_they_move() {
    let served = Served::start("127.0.0.1:0", 3);
    let mut clients: Vec<Asking> = (0..24).map(|seed| Asking::new(served.address, seed)).collect();
    let mut used = [0; 3];
    for asking in &mut clients {
        let thread = asking.ask(RequestKind::Mutation, &[1])[0];
        assert_eq!(asking.client.id().map(|id| id as u8), Some(thread), "the id names the thread");
        used[usize::from(thread)] += 1;
        for _ in 0..3 {
            // Another socket: another port. The request that finds out may be one without room for a RETRY.
            asking.port = UdpPort::connect(served.address, PART).unwrap();
            assert_eq!(asking.ask(RequestKind::Mutation, &[1; 100])[0], thread);
        }
    }
    assert!(used.iter().all(|used| *used > 0), "{used:?}");
    let counted = served.stop();
    assert_eq!(counted.iter().map(|(clients, _)| *clients).sum::<usize>(), 24, "they moved, and are no new clients");
}

#[test]
fn replayed_and_forged_datagrams_change_nothing() {
    let mut ports = UdpPort::listen("127.0.0.1:0".parse().unwrap(), 1, PART).unwrap();
    let mut port = ports.remove(0);
    let address = port.local_address().unwrap();
    drop(port);
    let served = Served::start(&address.to_string(), 1);
    let mut asking = Asking::new(served.address, 1);
    for number in 0..50 {
        asking.ask(RequestKind::Mutation, &[1, number]);
    }
    // From another port: every datagram that the client sent. From the client's own: once more.
    let mut forger = UdpPort::connect(served.address, PART).unwrap();
    let (mut bytes_in, mut bytes_out) = (0, 0);
    for datagram in &asking.sent {
        bytes_in += datagram.len();
        forger.send(Peer::from(served.address), datagram).unwrap();
        asking.port.send(Peer::from(served.address), datagram).unwrap();
        let until = forger.now() + 1_000_000;
        forger.wait(Some(until));
        while let Some((_, bytes)) = forger.poll() {
            let body = Datagram::decode(bytes, true).unwrap().body;
            assert!(matches!(body, Body::Retry(_)), "nothing but RETRYs: {body:?}");
            bytes_out += bytes.len();
        }
    }
    assert!(bytes_out <= bytes_in, "{bytes_out} bytes for {bytes_in}");
    asking.ask(RequestKind::Read, &[0]);
    port = asking.port;
    drop(port);
    let (clients, counters) = served.stop()[0];
    assert_eq!((clients, counters.executed), (1, 51));
}

#[test]
fn listening_needs_threads_that_ids_can_name() {
    for threads in [0, 257] {
        let error = UdpPort::listen("127.0.0.1:0".parse().unwrap(), threads, PART).unwrap_err();
        assert!(matches!(error, UdpError::Threads { .. }), "{error}");
    }
    let error = UdpPort::listen("192.0.2.1:0".parse().unwrap(), 1, PART).unwrap_err();
    assert!(error.to_string().contains("192.0.2.1:0"), "{error}");
}

/// Returns a message in one part.
fn whole(bytes: &[u8]) -> Body<'_> {
    Body::Part(Part { execution: 0, part: 0, parts: 1, length: bytes.len() as u32, bytes })
}

/// Appends a client's datagram.
fn encode(client: u64, request: u64, body: Body<'_>, bytes: &mut Vec<u8>) {
    Datagram { client, request, floor: 0, flags: 0, clock: 1, echo: 0, body }.encode(&[], true, bytes);
}

#[test]
fn a_second_server_does_not_join() {
    for threads in [1, 3] {
        let ports = UdpPort::listen("127.0.0.1:0".parse().unwrap(), threads, PART).unwrap();
        let address = ports[0].local_address().unwrap();
        for others in [1, 3] {
            let error = UdpPort::listen(address, others, PART).unwrap_err();
            assert!(error.to_string().contains("that the port is free"), "{error}");
        }
        drop(ports);
        assert!(UdpPort::listen(address, threads, PART).is_ok());
    }
}

/// Admits a client of this address by hand.
fn admit(server: &mut Server<Vec<u8>>, from: Peer) -> u64 {
    let hello = |cookie| {
        let body = Body::Hello(cookie);
        let mut bytes = Vec::with_capacity(96);
        encode(0, 5, body, &mut bytes);
        bytes
    };
    let mut cookie = Default::default();
    loop {
        assert!(server.receive(0, from, &hello(cookie)).is_none());
        let answer = server.outbox().iter().next().map(|(_, bytes)| Datagram::decode(bytes, true).unwrap().client);
        let retry = server.outbox().iter().next().and_then(|(_, bytes)| match Datagram::decode(bytes, true)?.body {
            Body::Retry(cookie) => Some(cookie),
            _ => None,
        });
        server.outbox().clear();
        match retry {
            Some(retry) => cookie = retry,
            None => return answer.expect("an ADMIT"),
        }
    }
}

#[test]
fn idle_clients_cost_two_hundred_bytes() {
    const CLIENTS: u32 = 4096;
    for of_one_host in [true, false] {
        let mut server = server(0);
        let counted = allocation_counter::measure(|| {
            for client in 0..CLIENTS {
                let [_, high, middle, low] = client.to_be_bytes();
                let address = if of_one_host { ([10, 0, 0, 1], client as u16) } else { ([10, high, middle, low], 1) };
                let from = Peer::from(SocketAddr::from(address));
                let id = admit(&mut server, from);
                // Each has executed a mutation, and has told that the reply came.
                for (request, body) in [(1, whole(&[1])), (2, Body::Ping)] {
                    let mut bytes = Vec::new();
                    encode(id, request, body, &mut bytes);
                    let work = server.receive(0, from, &bytes).map(|request| request.work);
                    if let Some(work) = work {
                        server.complete(0, work, b"HD\r\n", None);
                    }
                    server.outbox().clear();
                }
            }
        });
        assert_eq!((server.clients(), server.kept_replies()), (CLIENTS as usize, 0));
        let bytes = counted.bytes_current;
        println!("{CLIENTS} clients: {bytes} bytes, {} each", bytes / i64::from(CLIENTS));
        assert!(bytes <= i64::from(CLIENTS) * 200, "{} bytes each", bytes / i64::from(CLIENTS));
    }
}

#[test]
fn requests_allocate_nothing_in_the_server() {
    let mut server = server(0);
    let from = Peer::from(SocketAddr::from(([10, 0, 0, 1], 1)));
    let id = admit(&mut server, from);
    let mut bytes = Vec::with_capacity(PART);
    let mut ask = |server: &mut Server<Vec<u8>>, request: u64| {
        bytes.clear();
        let message = [0; 64];
        encode(id, request, whole(&message), &mut bytes);
        let work = server.receive(0, from, &bytes).expect("a read").work;
        server.complete(0, work, &message, None);
        server.outbox().clear();
    };
    (1..100).for_each(|request| ask(&mut server, request));
    let counted = allocation_counter::measure(|| (100..200).for_each(|request| ask(&mut server, request)));
    assert_eq!(counted.count_total, 0);
}
