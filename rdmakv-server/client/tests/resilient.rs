//! A client of a cluster with a real etcd, over sockets, at servers that are made of the protocol that ships.

#[path = "../../cluster/tests/etcd_server/mod.rs"]
mod etcd_server;
mod members;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use etcd_server::Members;
use members::{Kept, Sent};
use rdmakv_client::future::AsyncClient;
use rdmakv_client::{Client, Cluster, Error, Options, Stored};
use rdmakv_cluster::config::{Config, Incarnation, Policy, ServerId};
use rdmakv_cluster::member::{CallId, Role, Standing};
use rdmakv_cluster::placement::Placement;

/// A server that answers `mx` and nothing else.
struct Server {
    id: ServerId,
    address: String,
    state: Arc<Mutex<State>>,
}

struct State {
    kept: Kept,
    config: Option<Config>,
    waiting: HashMap<CallId, Sender<Sent>>,
    connections: Vec<TcpStream>,
    calls: u64,
    /// Calls that came with the one before.
    joined: u64,
    begun: Instant,
    /// It takes connections and calls, and answers none.
    is_stopped: bool,
}

impl State {
    fn role(config: &Config, id: ServerId, key: &[u8]) -> Role {
        let group = Placement::of(config).group(key, config.policy(key).group_size());
        match group.all().position(|member| member == id) {
            Some(0) => Role::Primary,
            Some(_) => Role::Backup,
            None => Role::Outside,
        }
    }

    fn standing(&self, id: ServerId, key: &[u8]) -> Option<Standing> {
        let config = self.config.as_ref()?;
        let (epoch, is_whole) = (config.epoch(), config.is_whole());
        let (role, flushed) = (Self::role(config, id, key), config.flushed());
        Some(Standing { epoch, role, has_right: true, is_fenced: false, is_whole, flushed })
    }

    fn tell(&mut self, all: Vec<Sent>) {
        for sent in all {
            let waiting = self.waiting.remove(&sent.call_id);
            waiting.map(|waiting| waiting.send(sent));
        }
    }
}

impl Server {
    fn start(id: u8) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", listener.local_addr().unwrap());
        let (kept, waiting, connections) = (Kept::new(CLUSTER, id.is_multiple_of(2)), HashMap::new(), Vec::new());
        let (begun, is_stopped) = (Instant::now(), false);
        let state = State { kept, config: None, waiting, connections, calls: 0, joined: 0, begun, is_stopped };
        let server = Self { id: ServerId(id), address, state: Arc::new(Mutex::new(state)) };
        let (id, state) = (server.id, Arc::clone(&server.state));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.unwrap(), Arc::clone(&state));
                state.lock().unwrap().connections.push(stream.try_clone().unwrap());
                // A lost connection ends its thread.
                thread::spawn(move || serve(id, stream, &state));
            }
        });
        let (id, state) = (server.id, Arc::downgrade(&server.state));
        thread::spawn(move || {
            while let Some(state) = state.upgrade() {
                let mut state = state.lock().unwrap();
                let now = state.begun.elapsed().as_nanos() as u64;
                for key in state.kept.keys() {
                    let Some(standing) = state.standing(id, &key) else { continue };
                    let sent = state.kept.overdue(&key, &standing, now);
                    state.tell(sent);
                }
                drop(state);
                thread::sleep(Duration::from_millis(20));
            }
        });
        server
    }

    /// Takes a server into an epoch; without one it is dead.
    fn adopt(&self, config: Option<&Config>) {
        let mut state = self.state.lock().unwrap();
        let before = std::mem::replace(&mut state.config, config.cloned());
        if config.is_none() {
            let connections = std::mem::take(&mut state.connections);
            connections.iter().for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
        }
        let (Some(config), Some(before)) = (config, before) else { return };
        for key in state.kept.keys() {
            let Some(standing) = state.standing(self.id, &key) else { continue };
            let (was, is) = (State::role(&before, self.id, &key), State::role(config, self.id, &key));
            let stayed = was == Role::Primary && is == Role::Primary;
            let sent = state.kept.adopt(&key, was, &standing, (stayed, was == Role::Outside));
            state.tell(sent);
        }
    }

    fn calls(&self) -> u64 {
        self.state.lock().unwrap().calls
    }
}

/// Answers the calls of a connection, one after another.
fn serve(id: ServerId, stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let (mut from, mut to) = (BufReader::new(stream.try_clone().ok()?), stream);
    loop {
        let (mut line, has_come) = (String::new(), !from.buffer().is_empty());
        from.read_line(&mut line).ok().filter(|&read| read > 0)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["mx", key, length, call] = words[..] else { panic!("no call: {line:?}") };
        let (length, call): (usize, usize) = (length.parse().unwrap(), call.parse().unwrap());
        let mut body = vec![0; length + 2];
        from.read_exact(&mut body).ok()?;
        let (tell, told) = channel();
        {
            let mut state = state.lock().unwrap();
            if state.is_stopped {
                // As a stopped process: the connection stays.
                state.connections.push(to);
                return None;
            }
            state.calls += 1;
            state.joined += u64::from(has_come);
            let standing = state.standing(id, key.as_bytes())?;
            let now = state.begun.elapsed().as_nanos() as u64;
            let (call_id, sent) = state.kept.serve(key.as_bytes(), (&body[..length], call), &standing, now);
            state.waiting.insert(call_id, tell);
            state.tell(sent);
        }
        let Sent { reply, bytes, .. } = told.recv().ok()?;
        let mut answer = format!("MX {} {}\r\n", reply.len() + bytes.len(), reply.len()).into_bytes();
        answer.extend([&reply[..], &bytes, b"\r\n"].concat());
        to.write_all(&answer).ok()?;
    }
}

const CLUSTER: u128 = 7;

/// Servers with their configuration in etcd.
struct Setup {
    etcd: Members,
    servers: Vec<Server>,
}

impl Setup {
    fn start(count: u8) -> Option<Self> {
        let etcd = Members::start(1)?;
        let servers: Vec<Server> = (0..count).map(Server::start).collect();
        let join = |config: Config, server: &Server| {
            let (name, run) = (format!("s{}", server.id.0), Incarnation(u64::from(server.id.0)));
            config.with_server(&name, vec![server.address.clone()], 1, run).unwrap()
        };
        let config = servers.iter().fold(Config::new(CLUSTER), join);
        let config = config.with_policy(b"k", Policy::Copies(3)).unwrap();
        let config = config.with_policy(b"c", Policy::Code { data: 2, parity: 2 }).unwrap().whole().unwrap();
        assert!(etcd.store("main").create(&config).unwrap());
        servers.iter().for_each(|server| server.adopt(Some(&config)));
        Some(Self { etcd, servers })
    }

    fn client(&self, give_up_after: Duration) -> Client {
        let mut cluster = Cluster::new(self.etcd.urls());
        cluster.give_up_after = give_up_after;
        Client::of_cluster(&cluster, Options { timeout: Duration::from_millis(500), ..Options::default() }).unwrap()
    }

    /// Kills a server, and begins the epoch without it.
    fn kill(&self, dead: ServerId) {
        self.servers[usize::from(dead.0)].adopt(None);
        let config = self.etcd.store("main").update(|_, config| config.without_server(dead).map(Some)).unwrap();
        let live = self.servers.iter().filter(|server| config.server(server.id).is_some());
        live.for_each(|server| server.adopt(Some(&config)));
    }

    fn primary(&self, key: &[u8]) -> ServerId {
        self.members(key, 1)[0]
    }

    fn members(&self, key: &[u8], count: usize) -> Vec<ServerId> {
        let view = self.etcd.store("main").read().unwrap();
        Placement::of(view.config().unwrap()).group(key, count).all().collect()
    }

    fn state(&self, server: ServerId) -> std::sync::MutexGuard<'_, State> {
        self.servers[usize::from(server.0)].state.lock().unwrap()
    }
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn operations_have_copies_at_all_members() {
    let Some(setup) = Setup::start(3) else { return };
    let mut client = setup.client(LONG);
    assert!(client.get("k").unwrap().is_none());
    assert_eq!(client.replace("k", "a", ()).unwrap(), Stored::NotStored);
    let Stored::Yes(version) = client.set("k", "one", rdmakv_client::Terms { flags: 9, ..().into() }).unwrap() else {
        panic!("not stored");
    };
    let value = client.gets("k").unwrap().unwrap();
    assert_eq!((&value[..], value.flags(), value.version()), (&b"one"[..], 9, version));
    assert_eq!(client.add("k", "two", ()).unwrap(), Stored::NotStored);
    assert!(client.cas("k", "two", version, ()).unwrap().is_stored());
    assert_eq!(client.cas("k", "three", version, ()).unwrap(), Stored::Exists);
    assert_eq!(client.cas("ka", "three", version, ()).unwrap(), Stored::NotFound);
    assert!(client.append("k", "!").unwrap().is_stored() && client.prepend("k", ">").unwrap().is_stored());
    assert_eq!(client.get("k").unwrap().unwrap(), b">two!");
    assert_eq!((client.incr("kn", 1).unwrap(), client.delete("kn").unwrap()), (None, false));
    assert!(client.set("kn", "41", ()).unwrap().is_stored());
    assert_eq!((client.incr("kn", 1).unwrap(), client.decr("kn", 50).unwrap()), (Some(42), Some(0)));
    let why = client.incr("k", 1).unwrap_err().to_string();
    assert!(why.starts_with("incr \"k\" at cluster main: the server says: CLIENT_ERROR cannot increment"), "{why}");
    assert!(client.delete("k").unwrap() && client.get("k").unwrap().is_none());
    assert!(client.touch("kn", LONG).unwrap() && !client.touch("k", LONG).unwrap());
    assert_eq!(client.gat("kn", LONG).unwrap().unwrap(), b"0");
    // Staged, and too large for one read of a socket.
    let large = vec![7; 3 << 20];
    assert!(client.set("kl", &large, ()).unwrap().is_stored());
    assert_eq!(client.get("kl").unwrap().unwrap(), large[..]);
    assert!(setup.servers.iter().all(|server| server.calls() > 10));
    assert_eq!(client.counters().errors, 1);
}

#[test]
fn values_outlive_two_of_their_servers() {
    let Some(setup) = Setup::start(4) else { return };
    let mut client = setup.client(LONG);
    assert!(client.set("k", "one", ()).unwrap().is_stored());
    for (number, value) in ["two", "three"].into_iter().enumerate() {
        setup.kill(setup.primary(b"k"));
        let before = ["one", "two"][number];
        assert_eq!(client.get("k").unwrap().unwrap(), *before.as_bytes());
        assert!(client.set("k", value, ()).unwrap().is_stored());
    }
    assert_eq!(client.get("k").unwrap().unwrap(), b"three");
    // The last server has the value, and a write could not survive its loss.
    setup.kill(setup.primary(b"k"));
    let why = client.set("k", "four", ()).unwrap_err();
    assert!(matches!(why, Error::TooFew { servers: 1, .. }), "{why}");
}

#[test]
fn reads_pass_over_servers_that_hang() {
    let Some(setup) = Setup::start(4) else { return };
    let cluster = Cluster::new(setup.etcd.urls());
    // A read that waits for the server's answer ends without its value.
    let options = Options { timeout: 2 * LONG, ..Options::default() };
    let mut client = Client::of_cluster(&cluster, options).unwrap();
    let value: Vec<u8> = (0..300_000).map(|at| (at * 13 + at / 257) as u8).collect();
    assert!(client.set("c", &value, ()).unwrap().is_stored());
    let members = setup.members(b"c", 4);
    for stopped in [members[1], members[2]] {
        setup.state(stopped).is_stopped = true;
        for _ in 0..3 {
            assert_eq!(client.get("c").unwrap().unwrap(), value[..]);
        }
    }
}

#[test]
fn reads_pass_over_damaged_fragments() {
    let Some(setup) = Setup::start(4) else { return };
    let mut client = setup.client(LONG);
    let value: Vec<u8> = (0..300_000).map(|at| (at * 13 + at / 257) as u8).collect();
    assert!(client.set("c", &value, ()).unwrap().is_stored());
    let members = setup.members(b"c", 4);
    for damaged in [members[0], members[1]] {
        setup.state(damaged).kept.damage(b"c");
        assert_eq!(client.get("c").unwrap().unwrap(), value[..]);
    }
    setup.state(members[2]).kept.damage(b"c");
    let why = client.get("c").unwrap_err();
    assert!(matches!(why, Error::Nonsense { .. }) && why.to_string().contains("a value whose sum is another"), "{why}");
}

#[test]
fn additions_to_fragments_lose_nothing() {
    let Some(setup) = Setup::start(4) else { return };
    let mut client = setup.client(LONG);
    assert_eq!(client.append("c", "!").unwrap(), Stored::NotStored);
    let terms = rdmakv_client::Terms { flags: 9, ..().into() };
    assert!(client.set("c", vec![b'.'; 5000], terms).unwrap().is_stored());
    let add = |byte: u8| {
        let mut client = setup.client(LONG);
        thread::spawn(move || {
            let mut added = 0;
            for turn in 0..20 {
                let result = if turn % 2 == 0 { client.append("c", [byte]) } else { client.prepend("c", [byte]) };
                match result {
                    Ok(stored) => added += usize::from(stored.is_stored()),
                    Err(why) => assert!(matches!(why, Error::Contended { attempts: 8, .. }), "{why}"),
                }
            }
            added
        })
    };
    let threads = [b'a', b'b', b'c'].map(add);
    let added = threads.map(|thread| thread.join().unwrap());
    let value = client.get("c").unwrap().unwrap();
    let count = |byte: u8| value.iter().filter(|&&other| other == byte).count();
    assert_eq!(([b'a', b'b', b'c'].map(count), count(b'.'), value.flags()), (added, 5000, 9));
    assert!(added.iter().sum::<usize>() > 20, "{added:?}");
}

#[test]
fn operations_in_flight_keep_their_order() {
    let Some(setup) = Setup::start(3) else { return };
    let client = AsyncClient::new(setup.client(LONG));
    let before = setup.primary(b"k");
    client
        .block_on(async {
            let sets: Vec<_> =
                (0..200).map(|at| client.set(format!("k{}", at % 50), format!("{at}").into_bytes(), ())).collect();
            let gets: Vec<_> = (0..50).map(|at| client.get(format!("k{at}"))).collect();
            for set in sets {
                assert!(set.await?.is_stored());
            }
            for (at, get) in gets.into_iter().enumerate() {
                // The last one that was begun before.
                assert_eq!(get.await?.unwrap(), *format!("{}", 150 + at).as_bytes());
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    let client = client.into_inner();
    assert_eq!((client.open(), setup.primary(b"k")), (0, before));
}

#[test]
fn backups_learn_of_the_last_write() {
    let Some(setup) = Setup::start(3) else { return };
    let mut client = setup.client(LONG);
    assert!(client.set("k", "one", ()).unwrap().is_stored());
    drop(client);
    let is_settled = |server: &Server| server.state.lock().unwrap().kept.is_settled(b"k");
    let until = Instant::now() + LONG;
    while !setup.servers.iter().all(is_settled) {
        assert!(Instant::now() < until, "a backup does not know that the write is published");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn notes_leave_with_later_calls() {
    let Some(setup) = Setup::start(3) else { return };
    let mut client = setup.client(LONG);
    for at in 0..200 {
        assert!(client.set("k", format!("{at}"), ()).unwrap().is_stored());
    }
    let joined: u64 = setup.servers.iter().map(|server| server.state.lock().unwrap().joined).sum();
    // Two for each write but the last; on a busy machine some are sent before, as they wait for milliseconds only.
    assert!(joined >= 200, "{joined} of 398");
}

#[test]
fn a_silent_cluster_ends_operations_in_time() {
    let Some(setup) = Setup::start(3) else { return };
    let mut client = setup.client(Duration::from_millis(300));
    assert!(client.set("k", "one", ()).unwrap().is_stored());
    setup.servers.iter().for_each(|server| server.adopt(None));
    let why = client.get("k").unwrap_err();
    assert!(matches!(why, Error::NotServed { .. }), "{why}");
    assert!(why.to_string().starts_with("get \"k\" at cluster main: not served within 300 ms: server "), "{why}");
    // It may have been ordered.
    let why = client.set("k", "two", ()).unwrap_err();
    assert!(matches!(why, Error::OutcomeUnknown { .. }), "{why}");
}

#[test]
fn a_cluster_that_cannot_be_read_is_an_error() {
    let open = |etcd: &str, name: &str| {
        let mut cluster = Cluster::new(etcd);
        cluster.name = name.to_owned();
        Client::of_cluster(&cluster, Options::default()).unwrap_err().to_string()
    };
    assert!(open("http://127.0.0.1:1", "main").contains("connection refused: start etcd"));
    assert!(open("https://h", "main").contains("https is not supported"));
    assert!(open("http://h", "a/b").contains("use 1 to 64 letters"));
    let Some(etcd) = Members::start(1) else { return };
    assert!(open(&etcd.urls(), "main").contains("no such cluster: make it by `rdmakv cluster init`"));
}
