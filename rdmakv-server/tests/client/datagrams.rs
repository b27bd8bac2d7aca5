//! Clients over datagrams: `udp:`, alone and before a socket.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use frrwp::fabric::reliability::wire::{Body, Datagram, Part};
use rdmakv_client::{Client, Error, Fabric, Options, Stored};

use super::common::{Server, ask, soon};
use super::{client, patient};

const UDP: [&str; 2] = ["--fabric", "udp:127.0.0.1:0"];

fn server(more: &[&str]) -> Server {
    Server::on_a_free_port(&[&UDP, more].concat())
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| ((at * 7) >> 3) as u8).collect()
}

#[test]
fn operations_go_by_datagrams() {
    let server = server(&[]);
    let mut client = client([server.fabric("udp")]);
    for length in [0, 1, 100, 1400, 20_000, 300_000, 1 << 20] {
        let value = bytes(length);
        // With its header and key the longest item has 1 MiB (-I).
        let length = length.min((1 << 20) - 1024);
        assert!(client.set("k", &value[..length], ()).unwrap().is_stored(), "{length}");
        assert!(client.get("k").unwrap().unwrap()[..] == value[..length], "{length}");
    }
    assert!(client.get("none").unwrap().is_none());
    assert!(client.set("n", b"5", ()).unwrap().is_stored());
    assert_eq!(client.incr("n", 2).unwrap(), Some(7));
    assert!(matches!(client.add("n", b"1", ()).unwrap(), Stored::NotStored));
    assert!(client.delete("n").unwrap());
    assert!(client.get("n").unwrap().is_none());
    assert_eq!(server.stat("udp_connections"), 1);
    assert_eq!(server.stat("get_one_sided"), 0);
    assert!(server.stat("udp_gets_by_message") >= 7);
    assert!(server.stat("udp_datagrams_received") > 100);
}

#[test]
fn values_beyond_datagrams_take_the_socket() {
    let server = server(&["-I", "4m"]);
    let value = bytes(3 << 20);
    let mut both = client([format!("{},tcp:{}", server.fabric("udp"), server.address("tcp"))]);
    assert!(both.set("k", &value, ()).unwrap().is_stored());
    assert!(both.get("k").unwrap().unwrap()[..] == value[..]);
    assert!(both.set("small", b"1", ()).unwrap().is_stored());
    assert_eq!(server.stat("udp_connections"), 1);
    let mut alone = client([server.fabric("udp")]);
    assert!(alone.set("k", &value, ()).is_err());
    assert!(alone.get("k").is_err());
    assert!(alone.get("small").unwrap().is_some(), "it goes on");
    // What has changed something is not done again by the socket.
    for client in [&mut both, &mut alone] {
        let before = server.stat("cmd_touch");
        let said = client.gat("k", Duration::from_secs(1000)).unwrap_err().to_string();
        assert!(said.contains("it was carried out"), "{said}");
        assert_eq!(server.stat("cmd_touch"), before + 1);
    }
}

#[test]
fn clients_log_in_over_datagrams() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "me:secret\n").unwrap();
    let server = server(&["-Y", users.to_str().unwrap()]);
    let udp = server.fabric("udp");
    let options = |password: &str| Options { login: Some(("me".into(), password.into())), ..patient() };
    let mut known = Client::with_options([&udp], options("secret")).unwrap();
    assert!(known.set("k", b"1", ()).unwrap().is_stored());
    assert_eq!(&known.get("k").unwrap().unwrap()[..], b"1");
    let quick = |options| Options { timeout: Duration::from_secs(2), ..options };
    for options in [quick(options("wrong")), quick(patient())] {
        assert!(Client::with_options([&udp], options).unwrap().get("k").is_err());
    }
}

#[test]
fn clients_meet_the_next_server() {
    let mut first = server(&[]);
    let udp = first.fabric("udp");
    let mut client = client([&udp]);
    assert!(client.set("k", b"1", ()).unwrap().is_stored());
    first.process.kill().unwrap();
    first.process.wait().unwrap();
    let _second = Server::on_a_free_port(&["--fabric", &udp]);
    assert!(client.get("k").unwrap().is_none());
    assert!(client.set("k", b"2", ()).unwrap().is_stored());
}

#[test]
fn the_next_server_takes_the_port_at_once() {
    let mut first = server(&[]);
    let udp = first.fabric("udp");
    let mut client = client([&udp]);
    assert!(client.set("k", b"1", ()).unwrap().is_stored());
    // Its connection lets the first server go on, and a stranger's datagrams do not.
    let mut old = first.connect();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    first.signal("-USR1");
    soon("that the port is free", || {
        let _ = stranger.send_to(b"noise", at(&udp));
        ask(&mut old, b"mn\r\n", b"MN\r\n");
        UdpSocket::bind(at(&udp)).is_ok()
    });
    let _second = Server::on_a_free_port(&["--fabric", &udp]);
    ask(&mut old, b"get k\r\n", b"VALUE k 0 1\r\n1\r\nEND\r\n");
    assert!(client.get("k").unwrap().is_none(), "it is the second server that answers");
    assert!(client.set("k", b"2", ()).unwrap().is_stored());
    drop(old);
    assert!(first.process.wait().unwrap().success());
}

#[test]
fn a_stale_item_is_won_once_though_the_reply_is_lost() {
    let server = server(&[]);
    let mut by_tcp = server.connect();
    ask(&mut by_tcp, b"ms k 1\r\nv\r\nmd k I T9\r\n", b"HD\r\nHD\r\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(9))).unwrap();
    let udp = at(&server.fabric("udp"));
    let id = admit(&socket, udp, 1).unwrap();
    let hello = hello();
    let ask = |request: u64, message: &[u8]| {
        let part = Part { execution: 0, part: 0, parts: 1, length: message.len() as u32, bytes: message };
        let mut buffer = [0; 2000];
        socket.send_to(&encode(id, request, Body::Part(part)), udp).unwrap();
        let (read, _) = socket.recv_from(&mut buffer).unwrap();
        let Some(Body::Part(part)) = Datagram::decode(&buffer[..read], true).map(|datagram| datagram.body) else {
            panic!("no answer")
        };
        String::from_utf8_lossy(part.bytes).into_owned()
    };
    ask(1, &hello);
    let mut win = Vec::new();
    let mut bytes = Vec::new();
    let kind = rdmakv_proto::messages::Request::run(&mut bytes, false, b"k", &[b"mg k t v\r\n"]);
    rdmakv_proto::messages::start(&mut win, 7, kind, false);
    win.extend(bytes);
    // The second answer is the first one again, as after a loss.
    for _ in 0..2 {
        let answer = ask(2, &win);
        assert!(answer.contains(" X W\r\n"), "{answer}");
    }
    let other = ask(3, &win);
    assert!(other.contains(" Z X\r\n"), "{other}");
}

#[test]
fn silent_datagrams_leave_the_socket() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = server(&[]);
    let address = format!("udp:{},tcp:{}", silent.local_addr().unwrap(), server.address("tcp"));
    let mut client = client([address]);
    assert!(client.set("k", b"1", ()).unwrap().is_stored());
    assert_eq!(&client.get("k").unwrap().unwrap()[..], b"1");
}

/// Passes datagrams between one client and a server. Of both directions it drops each fifth, sends each seventh twice, and holds each
/// third back behind the next.
struct Lossy {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Lossy {
    fn to(server: SocketAddr) -> Self {
        let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        back.connect(server).unwrap();
        let (ends, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let address = front.local_addr().unwrap();
        let client = Arc::new(std::sync::Mutex::new(None));
        let threads = [true, false].map(|is_up| {
            let (from, to) = if is_up { (&front, &back) } else { (&back, &front) };
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let (client, ends, lost) = (client.clone(), ends.clone(), lost.clone());
            from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            std::thread::spawn(move || {
                let send = |bytes: &[u8]| {
                    let _ = match (is_up, *client.lock().unwrap()) {
                        (true, _) => to.send(bytes),
                        (false, Some(client)) => to.send_to(bytes, client),
                        (false, None) => Ok(0),
                    };
                };
                let (mut buffer, mut held, mut count) = (vec![0; 2000], None::<Vec<u8>>, 0_u64);
                while !ends.load(Relaxed) {
                    let Ok((read, sender)) = from.recv_from(&mut buffer) else {
                        held.take().inspect(|held| send(held));
                        continue;
                    };
                    if is_up {
                        *client.lock().unwrap() = Some(sender);
                    }
                    count += 1;
                    let bytes = &buffer[..read];
                    match count {
                        _ if count % 5 == 0 => drop(lost.fetch_add(1, Relaxed)),
                        _ if count % 3 == 0 && held.is_none() => held = Some(bytes.to_vec()),
                        _ => {
                            send(bytes);
                            if count % 7 == 0 {
                                send(bytes);
                            }
                            held.take().inspect(|held| send(held));
                        }
                    }
                }
            })
        });
        Self { address, ends, lost, threads: threads.into() }
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Passes datagrams between one client and a server, but for requests that have these bytes in them.
fn without(server: SocketAddr, bytes: &'static [u8]) -> SocketAddr {
    let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    back.connect(server).unwrap();
    let address = front.local_addr().unwrap();
    let (from, to) = (front.try_clone().unwrap(), back.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 2000];
        while let Ok((read, sender)) = from.recv_from(&mut buffer) {
            let _ = from.connect(sender);
            if !buffer[..read].windows(bytes.len()).any(|window| window == bytes) {
                let _ = to.send(&buffer[..read]);
            }
        }
    });
    std::thread::spawn(move || {
        let mut buffer = vec![0; 2000];
        while let Ok(read) = back.recv(&mut buffer) {
            let _ = front.send(&buffer[..read]);
        }
    });
    address
}

#[test]
fn a_lost_operation_ends_alone() {
    let server = server(&[]);
    let udp = without(at(&server.fabric("udp")), b"lost-key");
    let options = Options { timeout: Duration::from_secs(2), ..patient() };
    let mut client = Client::with_options([format!("udp:{udp}")], options).unwrap();
    assert!(client.set("other", b"1", ()).unwrap().is_stored());
    let lost = client.iset("lost-key", b"1".to_vec(), ()).unwrap();
    for round in 0..40 {
        let got = client.get("other").unwrap_or_else(|error| panic!("{round}: {error}"));
        assert_eq!(got.unwrap(), b"1");
    }
    assert!(matches!(client.wait(lost), Err(Error::OutcomeUnknown { .. })));
    assert!(client.get("other").unwrap().is_some());
}

#[test]
fn operations_that_were_not_sent_end_alone() {
    // More than wait for datagrams at a time.
    const ALL: usize = 3000;
    let server = server(&[]);
    let options = Options { timeout: Duration::from_secs(1), window: 2 * ALL, ..patient() };
    let timeout = options.timeout;
    let mut client = Client::with_options([server.fabric("udp")], options).unwrap();
    assert!(client.set("other", b"1", ()).unwrap().is_stored());
    server.stop();
    let set = |number| client.iset(format!("k{number}"), b"1".to_vec(), ()).unwrap();
    let mut begun: Vec<_> = (0..ALL).map(set).collect();
    server.signal("-CONT");
    soon("that the server goes on", || server.stat("cmd_set") > 1);
    std::thread::sleep(timeout);
    // There are answers to the first ones. The last one waits behind a thousand others.
    let last = client.wait(begun.pop().unwrap());
    assert!(matches!(last, Err(Error::TimedOut { .. })), "{last:?}");
    let mut stored = 1;
    for begun in begun {
        match client.wait(begun) {
            Ok(answer) => stored += u64::from(answer.is_stored()),
            Err(Error::TimedOut { .. } | Error::OutcomeUnknown { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(client.get("other").unwrap().is_some());
    assert_eq!(client.counters().lost_connections, 0);
    assert!(client.get(format!("k{}", ALL - 1)).unwrap().is_none(), "nothing of it was sent");
    soon("that all are counted", || server.stat("cmd_set") >= stored);
}

#[test]
fn unsent_mutations_go_to_the_next_server() {
    const ALL: u64 = 300;
    const KEYS: u64 = 50;
    let mut first = server(&[]);
    let udp = first.fabric("udp");
    let mut client = client([&udp]);
    assert!(client.set("k", b"1", ()).unwrap().is_stored());
    first.stop();
    let set = |number: u64| client.iset(format!("k{}", number % KEYS), number.to_string().into_bytes(), ()).unwrap();
    let begun: Vec<_> = (0..ALL).map(set).collect();
    first.process.kill().unwrap();
    first.process.wait().unwrap();
    let second = Server::on_a_free_port(&["--fabric", &udp]);
    let mut unknown = 0;
    for begun in begun {
        match client.wait(begun) {
            Ok(answer) => assert!(answer.is_stored()),
            Err(Error::OutcomeUnknown { .. }) => unknown += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // One of each key at most was under way.
    assert!((1..=KEYS).contains(&unknown), "{unknown}");
    soon("that all are counted", || second.stat("cmd_set") >= ALL - unknown);
    assert_eq!(second.stat("cmd_set"), ALL - unknown);
    for last in ALL - KEYS..ALL {
        let value = client.get(format!("k{}", last % KEYS)).unwrap().unwrap();
        assert_eq!(value[..], *last.to_string().as_bytes(), "in their order");
    }
}

/// Passes datagrams between the first client that comes and a server. It can keep requests back.
struct Holding {
    address: SocketAddr,
    to: UdpSocket,
    holds: Arc<AtomicBool>,
    held: Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
}

impl Holding {
    fn to(server: SocketAddr) -> Self {
        let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        back.connect(server).unwrap();
        let relay = Self {
            address: front.local_addr().unwrap(),
            to: back.try_clone().unwrap(),
            holds: Arc::default(),
            held: Arc::default(),
        };
        let (from, to) = (front.try_clone().unwrap(), back.try_clone().unwrap());
        let (holds, held) = (relay.holds.clone(), relay.held.clone());
        std::thread::spawn(move || {
            let (mut buffer, mut is_first) = ([0; 2000], true);
            while let Ok((read, sender)) = from.recv_from(&mut buffer) {
                if std::mem::take(&mut is_first) {
                    from.connect(sender).unwrap();
                }
                let bytes = &buffer[..read];
                match Datagram::decode(bytes, true).map(|datagram| datagram.body) {
                    Some(Body::Part(_)) if holds.load(Relaxed) => held.lock().unwrap().push(bytes.to_vec()),
                    Some(Body::Bye) => {}
                    _ => drop(to.send(bytes)),
                }
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok(read) = back.recv(&mut buffer) {
                let _ = front.send(&buffer[..read]);
            }
        });
        relay
    }

    /// Sends what was kept back; returns how many datagrams that are.
    fn release(&self) -> u64 {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.iter().for_each(|bytes| assert!(self.to.send(bytes).is_ok()));
        held.len() as u64
    }
}

#[test]
fn lost_datagrams_change_nothing_after_a_connection() {
    let server = server(&["--fabric", "iwarp:127.0.0.1:0"]);
    let relay = Holding::to(at(&server.fabric("udp")));
    let options = Options { timeout: Duration::from_secs(5), ..patient() };
    let both = format!("udp:{},{}", relay.address, server.fabric("iwarp"));
    let mut client = Client::with_options([both], options).unwrap();
    assert!(client.set("k", b"0", ()).unwrap().is_stored());
    // On a busy machine the connection may be the first that answers.
    soon("that datagrams are in use", || {
        client.get("k").unwrap();
        matches!(client.fabric(0), Some(Fabric::Udp(_)))
    });
    relay.holds.store(true, Relaxed);
    let late = client.set("k", b"late", ());
    assert!(matches!(late, Err(Error::OutcomeUnknown { .. })), "{late:?}");
    soon("that the client has a connection", || client.set("k", b"new", ()).is_ok_and(|stored| stored.is_stored()));
    assert!(is_by_iwarp(&client));
    let received = server.stat("udp_datagrams_received");
    let late = relay.release();
    soon("that the late datagrams have come", || server.stat("udp_datagrams_received") >= received + late);
    assert!(late > 0);
    assert_eq!(&client.get("k").unwrap().unwrap()[..], b"new");
}

fn at(udp: &str) -> SocketAddr {
    udp.strip_prefix("udp:").unwrap().parse().unwrap()
}

#[test]
fn lost_datagrams_count_no_increment_twice() {
    let server = server(&[]);
    let lossy = Lossy::to(at(&server.fabric("udp")));
    let mut client = client([format!("udp:{}", lossy.address)]);
    assert!(client.set("n", b"0", ()).unwrap().is_stored());
    let value = bytes(30_000);
    for count in 1..=150 {
        assert_eq!(client.incr("n", 1).unwrap(), Some(count));
        if count % 30 == 0 {
            assert!(client.set("v", &value, ()).unwrap().is_stored());
            assert!(client.get("v").unwrap().unwrap()[..] == value[..]);
        }
    }
    assert!(lossy.lost.load(Relaxed) > 50);
    assert!(server.stat("udp_datagrams_duplicate") > 0, "mutations came again");
    assert_eq!(server.stat("incr_hits"), 150);
}

#[test]
fn replayed_datagrams_change_nothing() {
    let server = server(&[]);
    let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    back.connect(at(&server.fabric("udp"))).unwrap();
    for socket in [&front, &back] {
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    }
    let ends = AtomicBool::new(false);
    let mut client = client([format!("udp:{}", front.local_addr().unwrap())]);
    let (mut recorded, mut buffer) = (Vec::new(), [0; 2000]);
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            assert!(client.set("n", b"0", ()).unwrap().is_stored());
            (1..=50).for_each(|count| assert_eq!(client.incr("n", 1).unwrap(), Some(count)));
            ends.store(true, Relaxed);
        });
        let mut client = None;
        while !ends.load(Relaxed) {
            if let Ok((read, from)) = front.recv_from(&mut buffer) {
                client = Some(from);
                recorded.push(buffer[..read].to_vec());
                back.send(&buffer[..read]).unwrap();
            }
            if let (Ok(read), Some(client)) = (back.recv(&mut buffer), client) {
                front.send_to(&buffer[..read], client).unwrap();
            }
        }
        counting.join().unwrap();
    });
    assert!(recorded.len() > 50);
    // From the client's address, and from a stranger's.
    let (stranger, received) = (UdpSocket::bind("127.0.0.1:0").unwrap(), server.stat("udp_datagrams_received"));
    stranger.connect(at(&server.fabric("udp"))).unwrap();
    for (number, datagram) in (0..).zip(&recorded) {
        back.send(datagram).unwrap();
        stranger.send(datagram).unwrap();
        soon("that they have come", || server.stat("udp_datagrams_received") >= received + 2 * (number + 1));
    }
    assert_eq!(server.stat("incr_hits"), 50, "no replayed datagram counts");
    assert_eq!((server.stat("cmd_set"), server.stat("udp_connections")), (1, 1));
}

fn encode(client: u64, request: u64, body: Body<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    Datagram { client, request, floor: 0, flags: 0, clock: 1, echo: 0, body }.encode(&[], true, &mut bytes);
    bytes
}

#[test]
fn a_flood_of_strangers_costs_nothing() {
    let server = server(&[]);
    let udp = server.fabric("udp");
    let mut client = client([&udp]);
    assert!(client.set("k", b"1", ()).unwrap().is_stored());
    let before = resident(&server);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.connect(at(&udp)).unwrap();
    let part = Part { execution: 0, part: 0, parts: 1, length: 8, bytes: b"flush_al" };
    let forged = [
        encode(0, 7, Body::Hello(Default::default())),
        encode(12_345, 1, Body::Part(part)),
        encode(12_345, 1, Body::Ping),
        bytes(700),
        Vec::new(),
    ];
    let mut sent = 0;
    for number in 0..100_000_usize {
        sent += u64::from(stranger.send(&forged[number % forged.len()]).is_ok());
        if number % 1000 == 0 {
            // In between the client is served.
            assert_eq!(&client.get("k").unwrap().unwrap()[..], b"1");
        }
    }
    assert!(sent > 50_000);
    assert_eq!(client.incr("k", 1).unwrap(), Some(2));
    assert_eq!(server.stat("udp_connections"), 1, "no stranger has a record");
    assert!(server.stat("udp_datagrams_malformed") > 0 && server.stat("udp_datagrams_retry") > 0);
    let grown = resident(&server).saturating_sub(before);
    println!("{sent} datagrams of strangers: {grown} KiB more");
    assert!(grown < 8 << 10, "{grown} KiB");
}

/// Returns the memory of a server's process, in KiB, without the pages of its program: others of the same program share those, and end.
fn resident(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", server.process.id())).unwrap();
    let parts = ["Pss_Anon:", "Pss_Shmem:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    parts.into_iter().sum()
}

/// Sends a datagram, and returns the answer.
fn exchange(socket: &UdpSocket, server: SocketAddr, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = [0; 2000];
    socket.send_to(bytes, server).unwrap();
    socket.recv_from(&mut buffer).ok().map(|(read, _)| buffer[..read].to_vec())
}

/// Admits a client by hand; returns its id.
fn admit(socket: &UdpSocket, server: SocketAddr, nonce: u64) -> Option<u64> {
    let mut cookie = Default::default();
    for _ in 0..20 {
        let Some(answer) = exchange(socket, server, &encode(0, nonce, Body::Hello(cookie))) else { continue };
        match Datagram::decode(&answer, true) {
            Some(Datagram { body: Body::Retry(new), .. }) => cookie = new,
            Some(Datagram { body: Body::Admit { .. }, client, .. }) => return Some(client),
            _ => {}
        }
    }
    None
}

/// Returns the greeting of a client.
fn hello() -> Vec<u8> {
    [[1, 0, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]].concat()
}

/// Admits a client by hand, and has it greet the server.
fn come(socket: &UdpSocket, server: SocketAddr, nonce: u64) -> bool {
    let Some(id) = admit(socket, server, nonce) else { return false };
    let ask = |bytes: &[u8]| exchange(socket, server, bytes);
    // Its first request, and the word that the reply has come.
    let hello = hello();
    let part = Part { execution: 0, part: 0, parts: 1, length: hello.len() as u32, bytes: &hello };
    let greeted = (0..20).find_map(|_| ask(&encode(id, 1, Body::Part(part))));
    let told = (0..20).find_map(|_| ask(&encode(id, 2, Body::Ping)));
    greeted.is_some() && told.is_some()
}

#[test]
fn four_thousand_clients_take_four_mebibytes() {
    const CLIENTS: u64 = 4096;
    const FIRST: u64 = 256;
    let server = server(&[]);
    let udp = at(&server.fabric("udp"));
    let before = resident(&server);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    // Many clients of one address, as threads of one host would be behind one translator.
    let come = |nonces: std::ops::Range<u64>| {
        let (all, first) = (nonces.end, nonces.start);
        let came = nonces.filter(|nonce| come(&socket, udp, 1 + nonce)).count() as u64;
        assert_eq!(came, all - first);
        soon("that all clients are counted", || server.stat("udp_connections") == all);
        resident(&server)
    };
    // The first clients bring in the code that serves them.
    let (first, last) = (come(0..FIRST), come(FIRST..CLIENTS));
    let (grown, each) = (last.saturating_sub(before), last.saturating_sub(first) * 1024 / (CLIENTS - FIRST));
    println!(
        "{CLIENTS} clients: {grown} KiB more, {} bytes each, {each} of them beyond the first",
        grown * 1024 / CLIENTS
    );
    assert!(grown <= 4 << 10, "{grown} KiB");
    assert!(each <= 200, "{each} bytes for an idle client");
}

#[test]
fn clients_beyond_the_bound_are_refused() {
    // One host gets little of the second half.
    let server = server(&["--datagram-clients", "4"]);
    let udp = server.fabric("udp");
    let mut clients: Vec<Client> = (0..3).map(|_| client([&udp])).collect();
    let served = |client: &mut Client| client.set("k", b"1", ()).is_ok();
    assert!(clients.iter_mut().all(served));
    let quick = Options { timeout: Duration::from_secs(2), connect_timeout: Duration::from_secs(1), ..patient() };
    let refused = Client::with_options([&udp], quick).unwrap().set("k", b"1", ()).unwrap_err().to_string();
    assert!(refused.contains("no room for another client"), "{refused}");
    assert!(server.stat("udp_datagrams_full") > 0);
    assert!(clients.iter_mut().all(served), "the others go on");
    let both = format!("{udp},tcp:{}", server.address("tcp"));
    assert!(served(&mut client([both])), "a socket does");
}

#[test]
fn several_threads_serve_datagrams() {
    let server = server(&["--datagram-threads", "3", "--fabric", "iwarp:127.0.0.1:0"]);
    let udp = server.fabric("udp");
    let mut clients: Vec<Client> = (0..16).map(|_| client([&udp])).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert!(client.set(format!("k{number}"), b"1", ()).unwrap().is_stored());
    }
    for number in 0..16 {
        assert!(clients[15 - number].get(format!("k{number}")).unwrap().is_some());
    }
    assert_eq!(server.stat("udp_connections"), 16);
    drop(clients);
    server.signal("-TERM");
}

fn is_by_iwarp(client: &Client) -> bool {
    client.fabric(0).is_some_and(|fabric| matches!(fabric, Fabric::Iwarp(_)))
}

#[test]
fn clients_without_a_connection_go_by_datagrams() {
    let server = server(&["--fabric", "iwarp:127.0.0.1:0", "--fabric-connections", "1"]);
    let both = format!("{},{}", server.fabric("iwarp"), server.fabric("udp"));
    let mut first = client([&both]);
    assert!(first.set("n", b"0", ()).unwrap().is_stored());
    soon("that the first client has the connection", || {
        first.get("n").unwrap();
        server.stat("iwarp_connections") == 1 && is_by_iwarp(&first)
    });
    let mut second = client([&both]);
    for count in 1..=20 {
        assert_eq!(second.incr("n", 1).unwrap(), Some(count));
    }
    assert!(server.stat("udp_connections") >= 1);
    drop(first);
    // The connection is free: the second client takes it, and no increment is lost or counted twice.
    let mut count = 20;
    soon("that the second client has the connection", || {
        count += 1;
        assert_eq!(second.incr("n", 1).unwrap(), Some(count));
        is_by_iwarp(&second)
    });
    assert_eq!(second.incr("n", 1).unwrap(), Some(count + 1));
}
