//! Real servers in a cluster over a real etcd. The tests are skipped, with a line, on machines without etcd.

mod common;
#[path = "../cluster/tests/etcd_server/mod.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod etcd_server;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{PATIENCE, SERVER, Server, ask, soon, to};
use etcd_server::Members;
use rdmakv_client::{Agent, Client, Error, Options, Terms};
use rdmakv_cluster::config::{Config, Policy, ServerId, State};
use rdmakv_cluster::etcd::Store;
use rdmakv_cluster::helper::{Calls, Target};
use rdmakv_cluster::messages::{
    Answer, Call, Chunk, Condition, Epoch, Form, Piece, Refusal, Reply, Request, Verdict, WriteId,
};
use rdmakv_cluster::placement::Placement;
use rdmakv_cluster::wire::{Arguments, Attributes, ReplyFrame, RequestFrame, carries_piece};
use rdmakv_cluster::writer::{Bytes, Outcome, Writer};

const RESILIENT: &str = "SERVER_ERROR resilient key: use rdmakv --etcd\r\n";

/// Servers of one cluster. Each keeps its port, and with it its name.
struct Cluster {
    etcd: Members,
    ports: Vec<u16>,
    /// Those for iWARP.
    iwarp: Vec<u16>,
    fabric: Fabric,
    servers: Vec<Option<Server>>,
    /// The standard error of each server, by its place.
    logs: tempfile::TempDir,
}

/// A way to servers beside TCP.
#[derive(Clone, Copy, PartialEq)]
enum Fabric {
    None,
    Shm,
    Iwarp,
}

impl Cluster {
    /// Starts servers one after another, and waits until all are up.
    fn start(count: usize, more: &[&str], policies: &[(&str, Policy)]) -> Option<Self> {
        Self::over(Fabric::None, count, more, policies)
    }

    fn over(fabric: Fabric, count: usize, more: &[&str], policies: &[(&str, Policy)]) -> Option<Self> {
        let etcd = Members::start(1)?;
        let mut config = Config::with_lease(7, 1000).unwrap();
        for (prefix, policy) in policies {
            config = config.with_policy(prefix.as_bytes(), *policy).unwrap();
        }
        assert!(etcd.store("main").create(&config).unwrap());
        let listeners: Vec<_> = (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(listeners);
        let iwarp = ports.split_off(count);
        let logs = tempfile::tempdir().unwrap();
        let mut cluster = Self { etcd, ports, iwarp, fabric, servers: (0..count).map(|_| None).collect(), logs };
        (0..count).for_each(|at| cluster.run(at, more));
        cluster.is_up(count);
        Some(cluster)
    }

    fn run(&mut self, at: usize, more: &[&str]) {
        let (port, urls) = (self.ports[at].to_string(), self.etcd.urls());
        let fabric = match self.fabric {
            Fabric::None => None,
            Fabric::Shm => Some(format!("shm:@rdmakv-test-{port}")),
            Fabric::Iwarp => Some(format!("iwarp:127.0.0.1:{}", self.iwarp[at])),
        };
        let addresses: Vec<String> =
            [Some(format!("tcp:127.0.0.1:{port}")), fabric.clone()].into_iter().flatten().collect();
        // What these tests need of agents they have in threads of their own.
        let address = addresses.join(",");
        let cluster = ["--etcd", &urls, "--advertise", &address, "--agent", "no"];
        let mut flags = [&["-p", &port, "-l", "127.0.0.1", "-t", "2"], &cluster[..]].concat();
        flags.extend(fabric.iter().flat_map(|fabric| ["--fabric", fabric]));
        self.servers[at] = Some(Server::with_log(&[&flags, more].concat(), &self.log_file(at)));
    }

    fn log_file(&self, at: usize) -> PathBuf {
        self.logs.path().join(at.to_string())
    }

    /// Waits until a server has told this.
    fn tells(&self, at: usize, what: &str) {
        soon(what, || std::fs::read_to_string(self.log_file(at)).is_ok_and(|log| log.contains(what)));
    }

    fn kill(&mut self, at: usize) {
        let mut server = self.servers[at].take().expect("it runs");
        server.process.kill().unwrap();
        server.process.wait().unwrap();
    }

    /// Starts the agent of each server.
    fn agents(&self) -> Agents {
        let ends = Arc::new(AtomicBool::new(false));
        let start = |port: &u16| {
            let (ends, cluster) = (ends.clone(), rdmakv_client::Cluster::new(self.etcd.urls()));
            let name = format!("tcp:127.0.0.1:{port}");
            let mut agent = Agent::of_server(&cluster, &name, 400_000_000, Options::default()).unwrap();
            std::thread::spawn(move || {
                while !ends.load(Relaxed) {
                    for event in agent.work(Duration::from_millis(50)) {
                        println!("{name}: {event:?}");
                    }
                }
            })
        };
        Agents { threads: self.ports.iter().map(start).collect(), ends }
    }

    fn client(&self) -> Client {
        Client::of_cluster(&rdmakv_client::Cluster::new(self.etcd.urls()), Options::default()).unwrap()
    }

    /// Waits until this many servers are left, and the members of all keys have all that they should.
    fn is_whole(&self, count: usize) {
        soon("that the epoch is whole", || {
            let config = self.config();
            config.servers().len() == count && config.is_whole() && self.serve(config.epoch())
        });
    }

    /// Waits until this many servers are left, and all that their keys can have there is there.
    fn is_repaired(&self, count: usize) {
        soon("that all that can be repaired is", || {
            let view = self.store().read().unwrap();
            let config = view.config().expect("the cluster exists");
            let done = |server: &rdmakv_cluster::config::Server| {
                let stats = self.server(server.id).stats("cluster");
                let is_put_off = stats["repair_short_keys"] != "0" && stats["repair_left_keys"] == "0";
                is_put_off || view.facts().has_repaired(server.incarnation, config.epoch())
            };
            let is_count = config.servers().len() == count && self.serve(config.epoch());
            is_count && (config.is_whole() || config.servers().iter().all(done))
        });
    }

    fn store(&self) -> Store {
        self.etcd.store("main")
    }

    fn config(&self) -> Config {
        self.store().read().unwrap().config().expect("the cluster exists").clone()
    }

    /// Waits until this many servers are up, all have a right for the latest epoch, and that is whole.
    fn is_up(&self, count: usize) {
        soon("that all servers are up", || {
            let config = self.config();
            let are_up = config.servers().iter().all(|server| server.state == State::Up);
            config.servers().len() == count && are_up && config.is_whole() && self.serve(config.epoch())
        });
    }

    /// Returns whether all running servers have a right for this epoch.
    fn serve(&self, epoch: Epoch) -> bool {
        self.servers.iter().flatten().all(|server| {
            let stats = server.stats("cluster");
            stats["epoch"] == epoch.0.to_string() && stats["right"] == "1"
        })
    }

    /// Returns the place of the server with this number.
    fn at(&self, id: ServerId) -> usize {
        let config = self.config();
        let address = &config.server(id).expect("it is in the configuration").addresses[0];
        self.ports.iter().position(|port| address.ends_with(&format!(":{port}"))).unwrap()
    }

    fn server(&self, id: ServerId) -> &Server {
        self.servers[self.at(id)].as_ref().expect("it runs")
    }

    /// Returns the members of a key now, its primary first.
    fn target(&self, key: &str) -> Target {
        let config = self.config();
        let group = Placement::of(&config).group(key.as_bytes(), config.policy(key.as_bytes()).group_size());
        Target { cluster: config.uuid(), epoch: config.epoch(), members: group.all().collect() }
    }

    fn call(&self, to: ServerId, key: &str, frame: &RequestFrame, piece: &[u8]) -> (ReplyFrame, Vec<u8>) {
        let answer = exchange(&self.server(to).address("tcp"), key, frame, piece);
        answer.unwrap_or_else(|line| panic!("{:?}: {line}", frame.request.call))
    }

    /// Calls a server without a piece.
    fn ask(&self, to: ServerId, key: &str, target: &Target, call: Call) -> Answer {
        let request = Request { cluster: target.cluster, epoch: target.epoch, call };
        self.call(to, key, &RequestFrame::new(request), b"").0.reply.answer
    }

    /// Reads a value at the key's primary, and waits for its fences.
    fn read(&self, key: &str) -> Option<Vec<u8>> {
        let mut value = None;
        soon("an answer of the primary", || {
            let target = self.target(key);
            let request = Request { cluster: target.cluster, epoch: target.epoch, call: Call::Read };
            let Ok((frame, bytes)) =
                exchange(&self.server(target.members[0]).address("tcp"), key, &RequestFrame::new(request), b"")
            else {
                return false;
            };
            let Answer::Value(stored) = frame.reply.answer else { return false };
            value = stored.map(|_| bytes);
            true
        });
        value
    }

    /// Does a write, under later numbers as long as it never happens, and returns how it ended.
    fn write(&self, key: &str, write: &Order<'_>) -> Outcome {
        let again =
            (0..100).map(|again| self.try_write(key, &Order { sequence: write.sequence * 1000 + again, ..*write }));
        again.into_iter().find(|outcome| *outcome != Outcome::Again).expect("it happens")
    }

    /// Does a write, and returns how it ended.
    fn try_write(&self, key: &str, write: &Order<'_>) -> Outcome {
        let target = self.target(key);
        let piece = copy(write.value);
        let bytes = match (write.arguments, write.is_staged) {
            (Some(_), _) => Bytes::Computed(0),
            (None, false) => Bytes::Carried(piece),
            (None, true) => Bytes::Staged(vec![piece; target.members.len()]),
        };
        let id = WriteId { client: 5, sequence: write.sequence };
        let (mut writer, calls) = Writer::begin(target, (id, id.sequence), write.condition, bytes);
        // The bytes that the primary computed, or that another write has.
        let until = Instant::now() + PATIENCE;
        let (mut computed, mut waiting) = (Vec::new(), VecDeque::from(calls));
        while let Some((to, request)) = waiting.pop_front() {
            let frame = RequestFrame {
                attributes: Attributes { flags: write.flags, expiry: write.expiry, ..Attributes::default() },
                arguments: matches!(request.call, Call::Order { .. }).then_some(write.arguments).flatten(),
                request,
            };
            let bytes = match &frame.request.call {
                Call::Order { .. } => write.value,
                call if carries_piece(call) && write.arguments.is_some() => &computed,
                call if carries_piece(call) => write.value,
                _ => b"",
            };
            let bytes = if carries_piece(&frame.request.call) || frame.arguments.is_some() { bytes } else { b"" };
            let frame = if carries_piece(&frame.request.call) {
                frame
            } else {
                RequestFrame { attributes: Attributes::default(), ..frame }
            };
            let (answer, with) = self.call(to, key, &frame, bytes);
            if let Answer::Ordered { computed: Some(_), .. } = answer.reply.answer {
                computed = with;
            }
            // A new primary waits for its fences, a server for its right. The writer asks then what became of its write.
            let more: Calls = match answer.reply.answer {
                Answer::Fenced | Answer::NotServing | Answer::OtherEpoch => {
                    assert!(until > Instant::now(), "{key}: {answer:?}");
                    std::thread::sleep(Duration::from_millis(20));
                    let target = self.target(key);
                    waiting.clear();
                    if target.epoch > writer.target().epoch { writer.adopt(target) } else { writer.lost() }
                }
                _ => writer.take(to, &answer.reply),
            };
            waiting.extend(more);
        }
        writer.outcome().expect("it ended")
    }
}

/// Agents that end with it.
struct Agents {
    threads: Vec<JoinHandle<()>>,
    ends: Arc<AtomicBool>,
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// A write of a test.
#[derive(Clone, Copy)]
struct Order<'a> {
    sequence: u64,
    condition: Condition,
    value: &'a [u8],
    is_staged: bool,
    arguments: Option<Arguments>,
    flags: u32,
    expiry: u64,
}

fn set(sequence: u64, value: &[u8]) -> Order<'_> {
    let condition = Condition::Always;
    Order { sequence, condition, value, is_staged: false, arguments: None, flags: 0, expiry: 0 }
}

fn copy(value: &[u8]) -> Piece {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, value) as u32;
    Piece { chunk: Chunk(0), form: Form::Copy, length: value.len() as u64, sum }
}

/// Sends a call and returns the reply with its bytes, or the line that came in place of one.
fn exchange(address: &str, key: &str, frame: &RequestFrame, piece: &[u8]) -> Result<(ReplyFrame, Vec<u8>), String> {
    let mut call = Vec::new();
    frame.encode(&mut call);
    raw(address, key, &call, piece)
}

fn raw(address: &str, key: &str, call: &[u8], piece: &[u8]) -> Result<(ReplyFrame, Vec<u8>), String> {
    let mut stream = BufReader::new(to(address));
    let line = format!("mx {key} {} {}\r\n", call.len() + piece.len(), call.len());
    let request = [line.as_bytes(), call, piece, b"\r\n"].concat();
    stream.get_mut().write_all(&request).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let mut words = line.trim_end().split(' ');
    if words.next() != Some("MX") {
        return Err(line);
    }
    let (body, reply): (usize, usize) =
        (words.next().unwrap().parse().unwrap(), words.next().unwrap().parse().unwrap());
    let mut bytes = vec![0; body + 2];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.split_off(body), b"\r\n");
    let piece = bytes.split_off(reply);
    Ok((ReplyFrame::decode(&bytes).unwrap(), piece))
}

#[test]
fn servers_join_fail_and_return() {
    let Some(mut cluster) = Cluster::start(3, &[], &[]) else { return };
    let (before, id) = (cluster.config(), cluster.config().servers()[1].id);
    let at = cluster.at(id);
    let run = before.server(id).unwrap().incarnation;
    cluster.kill(at);
    soon("that the others remove it", || {
        let config = cluster.config();
        config.servers().len() == 2 && cluster.serve(config.epoch())
    });
    cluster.run(at, &[]);
    cluster.is_up(3);
    let config = cluster.config();
    let back = config.server(id).expect("a server returns under its number");
    assert!(back.incarnation != run && config.epoch() > before.epoch());
}

/// A server that is killed leaves a lease in etcd, and its next run waits for the end of that.
#[test]
fn a_quick_restart_waits_for_the_lease_before() {
    let Some(mut cluster) = Cluster::start(1, &[], &[]) else { return };
    let run = cluster.config().servers()[0].incarnation;
    cluster.kill(0);
    cluster.run(0, &[]);
    cluster.tells(0, "has not ended: this one joins when it does");
    cluster.is_up(1);
    assert_ne!(cluster.config().servers()[0].incarnation, run);
}

#[test]
fn a_cluster_that_is_gone_is_told() {
    let Some(mut cluster) = Cluster::start(1, &[], &[("", Policy::Copies(2))]) else { return };
    cluster.etcd.list[0].kill();
    cluster.etcd.empty(0);
    cluster.etcd.list[0].start();
    cluster.tells(0, "is not in etcd any more (uuid 00000000000000000000000000000007)");
    let etcd_shows = |what| cluster.servers[0].as_ref().unwrap().stats("cluster")["etcd"] == what;
    assert!(etcd_shows("gone"));
    assert!(cluster.store().create(&Config::with_lease(8, 1000).unwrap()).unwrap());
    cluster
        .tells(0, "etcd has another cluster of this name (uuid 00000000000000000000000000000008, this server's is 0");
    assert!(etcd_shows("other"));
    // As it is told to be mended.
    cluster.kill(0);
    cluster.run(0, &[]);
    cluster.is_up(1);
    assert_eq!(cluster.servers[0].as_ref().unwrap().stats("cluster")["etcd"], "same");
}

/// A mistyped port: the server stays outside, and tells why. It made epochs without an end.
#[test]
fn a_server_at_a_wrong_address_stays_outside() {
    let Some(cluster) = Cluster::start(2, &[], &[]) else { return };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("tcp:{closed}");
    let urls = cluster.etcd.urls();
    let flags = ["-p", "-1", "-l", "127.0.0.1", "--etcd", &urls, "--agent", "no", "--advertise"];
    let start = |at, address: &str| Server::with_log(&[&flags[..], &[address]].concat(), &cluster.log_file(at));
    let epoch = cluster.config().epoch();
    let server = start(2, &address);
    cluster.tells(2, &format!("does not reach itself at {address}: Connection refused"));
    assert_eq!(server.stats("cluster")["part"], "outside");
    // Where another server answers, that is told.
    let other = start(4, &format!("tcp:127.0.0.1:{}", cluster.ports[1]));
    cluster.tells(4, "another server answers there");
    assert_eq!((other.stats("cluster")["part"].as_str(), cluster.config().epoch()), ("outside", epoch));
}

#[test]
fn tags_too_long_for_the_lease_are_told() {
    let Some(cluster) = Cluster::over(Fabric::Shm, 1, &["--tag-lease", "700ms"], &[]) else { return };
    cluster.tells(0, "--tag-lease 700ms is too long for the cluster's lease of 1000 ms");
    cluster.tells(0, "use less than 666 ms");
}

#[test]
fn refuses_addresses_that_lead_nowhere() {
    for address in ["tcp:0.0.0.0:11211", "tcp:[::]:11211", "tcp:127.0.0.1:0"] {
        let flags = ["--etcd", "http://127.0.0.1:1", "--advertise", address];
        let output = Command::new(SERVER).args(flags).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{why}");
        assert!(why.contains(address) && why.contains("give this machine's own address"), "{why}");
    }
}

#[test]
fn an_outage_of_etcd_ends_rights_and_no_epoch() {
    let Some(mut cluster) = Cluster::start(3, &[], &[("", Policy::Copies(3))]) else { return };
    assert!(matches!(cluster.write("key", &set(1, b"value")), Outcome::Known(Verdict::Stored(_))));
    let (epoch, members) = (cluster.config().epoch(), cluster.target("key").members);
    let [primary, backup] = [0, 1].map(|member: usize| cluster.at(members[member]));
    cluster.etcd.list[0].kill();
    let has_right = |server: &Server| server.stats("cluster")["right"] == "1";
    soon("that all rights end", || !cluster.servers.iter().flatten().any(has_right));
    let get = |at: usize, answer: &str| {
        ask(&mut cluster.servers[at].as_ref().unwrap().connect(), b"get key\r\n", answer.as_bytes());
    };
    get(backup, RESILIENT);
    get(primary, "SERVER_ERROR no right to answer for resilient keys now: see etcd\r\n");
    cluster.etcd.list[0].start();
    soon("that rights are back", || cluster.servers.iter().flatten().all(has_right));
    assert_eq!(cluster.config().epoch(), epoch);
    assert_eq!(cluster.read("key").as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_write_outlives_its_primary() {
    let Some(mut cluster) = Cluster::start(3, &[], &[("r:", Policy::Copies(3))]) else { return };
    let key = "r:key";
    let large = vec![b'x'; 300_000];
    assert!(matches!(cluster.write(key, &set(1, b"first")), Outcome::Known(Verdict::Stored(_))));
    let staged = Order { is_staged: true, flags: 9, ..set(2, &large) };
    assert!(matches!(cluster.write(key, &staged), Outcome::Known(Verdict::Stored(_))));
    assert!(cluster.read(key).as_deref() == Some(&large[..]), "the value is not the large one");

    let primary = cluster.target(key).members[0];
    let expected = [format!("VALUE {key} 9 {}\r\n", large.len()).as_bytes(), &large, b"\r\nEND\r\n"].concat();
    ask(&mut cluster.server(primary).connect(), format!("get {key}\r\n").as_bytes(), &expected);
    let at = cluster.at(primary);
    cluster.kill(at);
    soon("that the others remove it", || cluster.config().server(primary).is_none());
    assert!(cluster.read(key).as_deref() == Some(&large[..]), "the value is not the large one");
    assert!(matches!(cluster.write(key, &set(3, b"third")), Outcome::Known(Verdict::Stored(_))));
    assert_eq!(cluster.read(key).as_deref(), Some(&b"third"[..]));
}

#[test]
fn writes_have_conditions_and_are_computed() {
    let Some(cluster) = Cluster::start(2, &[], &[("", Policy::Copies(2))]) else { return };
    let declined = |refusal| Outcome::Known(Verdict::Declined(refusal));
    let stored = |outcome| matches!(outcome, Outcome::Known(Verdict::Stored(_)));
    let on = |sequence, condition, value| Order { condition, ..set(sequence, value) };
    assert_eq!(cluster.write("k", &on(1, Condition::Present, b"1")), declined(Refusal::NotStored));
    assert!(stored(cluster.write("k", &on(2, Condition::Absent, b"41"))));
    assert_eq!(cluster.write("k", &on(3, Condition::Absent, b"2")), declined(Refusal::NotStored));
    let compute = |sequence, arguments, value| Order { arguments: Some(arguments), ..set(sequence, value) };
    let up = Arguments::Increment { by: 1, initial: None };
    assert!(stored(cluster.write("k", &compute(4, up, b""))));
    assert_eq!(cluster.read("k").as_deref(), Some(&b"42"[..]));
    assert!(stored(cluster.write("k", &compute(5, Arguments::Append, b" is it"))));
    assert!(stored(cluster.write("k", &compute(6, Arguments::Prepend, b"so "))));
    assert_eq!(cluster.read("k").as_deref(), Some(&b"so 42 is it"[..]));
    assert_eq!(cluster.write("k", &compute(7, up, b"")), declined(Refusal::Invalid));
    assert_eq!(cluster.write("none", &compute(8, up, b"")), declined(Refusal::NotStored));
    // All members have it.
    let target = cluster.target("k");
    let version = match cluster.ask(target.members[0], "k", &target, Call::Survey) {
        Answer::Value(Some(stored)) => stored.version,
        other => panic!("{other:?}"),
    };
    let fetched = cluster.ask(target.members[1], "k", &target, Call::Fetch { version });
    assert!(matches!(&fetched, Answer::Value(Some(stored)) if stored.version == version), "{fetched:?}");
    // An expired value counts as absent.
    assert!(stored(cluster.write("k", &Order { expiry: 1, ..set(9, b"over") })));
    assert_eq!(cluster.read("k"), None);
    assert!(stored(cluster.write("k", &on(10, Condition::Absent, b"new"))));
    // No piece is left but those of the one key.
    for server in cluster.servers.iter().flatten() {
        let stats = server.stats("cluster");
        assert_eq!((&*stats["keys"], &*stats["staged_bytes"]), ("1", "0"));
        assert!(stats["pieces"].parse::<u64>().unwrap() <= 2, "{stats:?}");
    }
    // A staged write that is declined leaves no bytes anywhere.
    let large = vec![b'x'; 100_000];
    let add = Order { condition: Condition::Absent, is_staged: true, ..set(20, &large) };
    assert_eq!(cluster.write("k", &add), declined(Refusal::NotStored));
    assert!(cluster.servers.iter().flatten().all(|server| server.stats("cluster")["staged_bytes"] == "0"));
}

#[test]
fn an_order_behind_another_is_told_to_help() {
    let Some(cluster) = Cluster::start(2, &[], &[("", Policy::Copies(2))]) else { return };
    // Fences are over then.
    assert_eq!(cluster.read("k"), None);
    let target = cluster.target("k");
    let order = |sequence| Request {
        cluster: target.cluster,
        epoch: target.epoch,
        call: Call::Order {
            id: WriteId { client: 5, sequence },
            lowest: 1,
            condition: Condition::Always,
            change: rdmakv_cluster::messages::Change::Put(copy(b"value")),
        },
    };
    let answer = |sequence| cluster.call(target.members[0], "k", &RequestFrame::new(order(sequence)), b"value");
    assert!(matches!(answer(1).0.reply.answer, Answer::Ordered { .. }));
    let (help, bytes) = answer(2);
    let Answer::Help(pending) = help.reply.answer else { panic!("{help:?}") };
    assert_eq!((pending.stored.id.sequence, &*bytes), (1, &b"value"[..]));
    assert_eq!(cluster.server(target.members[0]).stats("cluster")["pieces"], "1");
    assert!(matches!(cluster.write("k", &set(3, b"value")), Outcome::Known(Verdict::Stored(_))));
}

#[test]
fn plain_commands_leave_resilient_keys_alone() {
    let Some(cluster) = Cluster::start(2, &[], &[("r:", Policy::Copies(2))]) else { return };
    assert!(matches!(cluster.write("r:k", &set(1, b"value")), Outcome::Known(Verdict::Stored(_))));
    // The primary of another key may wait for its fences yet.
    assert_eq!(cluster.read("r:none"), None);
    let target = cluster.target("r:k");
    let (mut primary, mut backup) =
        (cluster.server(target.members[0]).connect(), cluster.server(target.members[1]).connect());
    ask(&mut primary, b"get r:k\r\n", b"VALUE r:k 0 5\r\nvalue\r\nEND\r\n");
    let other = cluster.target("r:none").members[0];
    ask(&mut cluster.server(other).connect(), b"get r:none\r\n", b"END\r\n");
    ask(&mut backup, b"get r:k\r\n", RESILIENT.as_bytes());
    for command in [
        "set r:k 0 0 3\r\nget\r\n",
        "add r:k 0 0 1\r\nx\r\n",
        "delete r:k\r\n",
        "incr r:k 1\r\n",
        "touch r:k 0\r\n",
        "gat 0 r:k\r\n",
        "mg r:k v\r\n",
        "ms r:k 1\r\nx\r\n",
        "md r:k\r\n",
        "ma r:k\r\n",
        "me r:k\r\n",
        // In base64.
        "mg cjpr b\r\n",
    ] {
        ask(&mut primary, command.as_bytes(), RESILIENT.as_bytes());
    }
    let mixed = b"SERVER_ERROR plain and resilient keys in one command: ask for them apart\r\n";
    ask(&mut primary, b"get r:k plain\r\n", mixed);
    ask(&mut primary, b"set plain 0 0 1\r\nx\r\nget plain\r\n", b"STORED\r\nVALUE plain 0 1\r\nx\r\nEND\r\n");
    // A binary GET of "r:k": status 0x83.
    let mut binary = cluster.server(target.members[0]).connect();
    let mut request = vec![0x80, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3];
    request.resize(24, 0);
    request.extend(b"r:k");
    binary.write_all(&request).unwrap();
    let mut header = [0; 24];
    binary.read_exact(&mut header).unwrap();
    assert_eq!(header[6..8], [0, 0x83]);
}

#[test]
fn refuses_what_is_no_call() {
    let Some(cluster) = Cluster::start(1, &[], &[("", Policy::Copies(2))]) else { return };
    let server = cluster.servers[0].as_ref().unwrap();
    let address = server.address("tcp");
    let target = cluster.target("k");
    let frame = |call| {
        let mut bytes = Vec::new();
        RequestFrame::new(Request { cluster: target.cluster, epoch: target.epoch, call }).encode(&mut bytes);
        bytes
    };
    let id = WriteId { client: 1, sequence: 1 };
    let stage = frame(Call::Stage { id, piece: copy(b"value") });
    let refused = |call: &[u8], piece: &[u8]| raw(&address, "k", call, piece).unwrap_err();
    assert_eq!(refused(b"", b""), "CLIENT_ERROR bad call\r\n");
    assert_eq!(refused(&[2, 0, 0], b"x"), "CLIENT_ERROR call of another version\r\n");
    assert_eq!(refused(&frame(Call::Read), b"x"), "CLIENT_ERROR bytes without a piece\r\n");
    assert_eq!(refused(&stage, b"other"), "CLIENT_ERROR bytes that are not the piece\r\n");
    assert_eq!(refused(&vec![0; 40_000], b""), "CLIENT_ERROR call too long\r\n");
    assert_eq!(refused(&stage, &vec![0; 2 << 20]), "SERVER_ERROR object too large for cache\r\n");
    assert_eq!(server.stats("cluster")["pieces"], "0");

    let other = Request { cluster: 8, epoch: target.epoch, call: Call::Read };
    let answer = |request| exchange(&address, "k", &RequestFrame::new(request), b"").unwrap().0.reply;
    assert_eq!(answer(other).answer, Answer::NotServing);
    let late = Request { cluster: target.cluster, epoch: Epoch(target.epoch.0 + 1), call: Call::Read };
    let Reply { epoch, answer, .. } = answer(late);
    assert_eq!((epoch, answer), (target.epoch, Answer::OtherEpoch));
    // A server without a cluster knows neither command, and takes no body for commands.
    let plain = Server::on_a_free_port(&[]);
    ask(&mut plain.connect(), b"mx k 8 0\r\nversion\n\r\nmp\r\nmn\r\n", b"ERROR\r\nERROR\r\nMN\r\n");
}

#[test]
fn staged_bytes_without_room_are_declined() {
    let Some(cluster) = Cluster::start(1, &["-m", "8", "-I", "1m"], &[("", Policy::Copies(2))]) else { return };
    let (target, value) = (cluster.target("k"), vec![b'x'; 500_000]);
    let mut staged = 0;
    let refused = (1..100).find_map(|sequence| {
        let call = Call::Stage { id: WriteId { client: 1, sequence }, piece: copy(&value) };
        let request = Request { cluster: target.cluster, epoch: target.epoch, call };
        match cluster.call(target.members[0], "k", &RequestFrame::new(request), &value).0.reply.answer {
            Answer::Staged => {
                staged += 1;
                None
            }
            other => Some(other),
        }
    });
    assert_eq!(refused, Some(Answer::Done(Verdict::Declined(Refusal::NoMemory))));
    assert!(staged > 4, "{staged} pieces of half a megabyte in 8");
}

/// Values of many sizes under keys that begin with a prefix, some of them deleted.
#[test]
fn a_full_cluster_is_emptied_by_deletes() {
    let Some(cluster) = Cluster::start(3, &["-m", "8"], &[("", Policy::Copies(3))]) else { return };
    let (_agents, mut client) = (cluster.agents(), cluster.client());
    // Long keys, so that few chunks are of their class.
    let key = |kind: char, at: usize| format!("{kind}{at:0>240}");
    let mut fill = |kind: char, length: usize| {
        for at in 0.. {
            match client.set(key(kind, at), vec![7; length], ()) {
                Ok(done) => assert!(done.is_stored()),
                Err(error) => {
                    assert!(error.to_string().contains("out of memory storing object"), "{kind}{at}: {error}");
                    return at;
                }
            }
        }
        0
    };
    let (large, small) = (fill('l', 200 << 10), fill('s', 10));
    assert!(large > 10 && small > 1000, "{large} and {small}");
    for at in 0..large {
        assert!(client.delete(key('l', at)).unwrap(), "{at}");
        assert!(client.get(key('l', at)).unwrap().is_none());
    }
    for at in 0..large / 2 {
        assert!(client.set(key('l', at), vec![8; 200 << 10], ()).unwrap().is_stored(), "{at}");
    }
}

fn values(prefix: &str) -> Vec<(String, Option<Vec<u8>>)> {
    let value = |number: usize| {
        let length = [0, 1, 100, 5000, 70_000, 200_000][number % 6];
        (number % 7 != 3).then(|| (0..length).map(|at| (at * 7 + number) as u8).collect())
    };
    (0..120).map(|number| (format!("{prefix}{number}"), value(number))).collect()
}

fn store_all(client: &mut Client, values: &[(String, Option<Vec<u8>>)]) {
    for (key, value) in values {
        let stored = value.as_deref().unwrap_or(b"deleted soon");
        assert!(client.set(key, stored, Terms { flags: 5, ..Terms::default() }).unwrap().is_stored());
        assert!(value.is_some() || client.delete(key).unwrap());
    }
}

fn compare(client: &mut Client, values: &[(String, Option<Vec<u8>>)]) {
    for (key, value) in values {
        let found = client.get(key).unwrap();
        assert!(found.as_deref() == value.as_deref(), "{key} is another value, or is not there");
        assert!(found.is_none_or(|found| found.flags() == 5), "{key} has other flags");
    }
}

#[test]
fn agents_make_epochs_whole_again() {
    let code = Policy::Code { data: 2, parity: 1 };
    let policies = [("two:", Policy::Copies(2)), ("three:", Policy::Copies(3)), ("code:", code)];
    let Some(mut cluster) = Cluster::start(3, &[], &policies) else { return };
    let (mut client, agents) = (cluster.client(), cluster.agents());
    let mut all = values("two:");
    all.extend(values("three:"));
    let coded = values("code:");
    store_all(&mut client, &all);
    store_all(&mut client, &coded);

    // Of the three servers one after the other fails and returns empty: no value has any of its first places at the end.
    for at in 0..3 {
        cluster.kill(at);
        cluster.is_repaired(2);
        assert!(!cluster.config().is_whole(), "values in fragments have two of three");
        compare(&mut client, &all);
        compare(&mut client, &coded);
        cluster.run(at, &[]);
        cluster.is_up(3);
        compare(&mut client, &all);
        compare(&mut client, &coded);
    }
    // With two copies of each value one server is enough, after another was replaced.
    cluster.kill(0);
    cluster.is_repaired(2);
    cluster.kill(1);
    soon("that one is left", || cluster.config().servers().len() == 1);
    compare(&mut client, &all);
    // Lost values keep no epoch from being whole.
    cluster.run(0, &[]);
    cluster.is_up(2);
    compare(&mut client, &all);
    for (key, value) in &coded {
        let is_small = value.as_ref().is_none_or(|value| value.len() < 4096);
        match client.get(key) {
            // A server that returned empty is the primary of some.
            Ok(None) => assert!(!is_small || value.is_none(), "{key} has copies"),
            Ok(found) => assert!(is_small && found.as_deref() == value.as_deref(), "{key} is another value"),
            Err(Error::Lost { found: 1, needed: 2, .. }) => assert!(!is_small, "{key} has copies"),
            Err(error) => panic!("{error}"),
        }
    }
    drop(agents);
}

#[test]
fn values_in_fragments_outlive_two_of_six_servers() {
    let policies = [("code:", Policy::Code { data: 4, parity: 2 })];
    let Some(mut cluster) = Cluster::start(6, &[], &policies) else { return };
    let (mut client, agents) = (cluster.client(), cluster.agents());
    let lengths = [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 300_000];
    let value = |number: usize| {
        let length = lengths[number % lengths.len()];
        (number % 11 != 3).then(|| (0..length).map(|at| (at * 13 + at / 257 + number) as u8).collect())
    };
    let mut all: Vec<(String, Option<Vec<u8>>)> = (0..54).map(|n| (format!("code:{n}"), value(n))).collect();
    store_all(&mut client, &all);
    compare(&mut client, &all);

    // Two fail at once; then two others, after all pieces are there again.
    for pair in [[0, 1], [2, 3]] {
        pair.into_iter().for_each(|at| cluster.kill(at));
        soon("that both are removed", || cluster.config().servers().len() == 4);
        compare(&mut client, &all);
        // With four servers new values have two fragments of data.
        let (key, value) = (format!("code:{}", pair[0]), vec![pair[0] as u8; 50_000]);
        store_all(&mut client, &[(key.clone(), Some(value.clone()))]);
        all.iter_mut().filter(|(other, _)| *other == key).for_each(|(_, old)| *old = Some(value.clone()));
        pair.into_iter().for_each(|at| cluster.run(at, &[]));
        cluster.is_up(6);
        compare(&mut client, &all);
    }
    drop(agents);
    // Without repair a third loss is one too many for some values. None reads as another one.
    [0, 1, 2].into_iter().for_each(|at| cluster.kill(at));
    soon("that three are left", || cluster.config().servers().len() == 3);
    let mut lost = 0;
    for (key, value) in &all {
        match client.get(key) {
            Ok(found) => assert!(found.as_deref() == value.as_deref() || found.is_none(), "{key} is another value"),
            Err(Error::Lost { found, needed, .. }) => {
                assert!(found < needed && needed == 4 && value.is_some());
                lost += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost > 0);
}

#[test]
fn writers_of_one_key_mix_no_fragments() {
    let Some(cluster) = Cluster::start(4, &[], &[("", Policy::Code { data: 2, parity: 2 })]) else { return };
    let write = |byte: u8| {
        let mut client = cluster.client();
        std::thread::spawn(move || {
            for turn in 0..20 {
                // Copies follow fragments, and the other way round.
                let length = if turn % 4 == 3 { 100 } else { 5000 + 1000 * usize::from(byte) };
                assert!(client.set("key", vec![byte; length], ()).unwrap().is_stored());
                let found = client.get("key").unwrap().expect("it is never deleted");
                assert!(found.iter().all(|&other| other == found[0]), "a mix of values");
            }
        })
    };
    let writers = [1, 2, 3].map(write);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

#[test]
#[allow(unsafe_code, reason = "a fork")]
fn a_child_of_a_fork_writes_under_its_own_number() {
    let Some(cluster) = Cluster::start(2, &[], &[("r:", Policy::Copies(2))]) else { return };
    let mut client = cluster.client();
    assert!(client.set("r:key", "before", ()).unwrap().is_stored());
    // SAFETY: the child asks its servers and ends, without a return into the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The first operation that it begins is a write, as the parent's next one.
        let is_stored = client.set("r:key", "child", ()).is_ok_and(|stored| stored.is_stored());
        // SAFETY: `_exit` ends this child without destructors.
        unsafe { libc::_exit(i32::from(!is_stored)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local integer that the call may write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(client.set("r:key", "parent", ()).unwrap().is_stored());
    assert_eq!(client.get("r:key").unwrap().unwrap(), b"parent");
    assert_eq!(status, 0, "the child's write was not stored");
}

#[test]
fn a_server_leaves_when_its_keys_are_elsewhere() {
    let Some(mut cluster) = Cluster::start(3, &[], &[("", Policy::Copies(2))]) else { return };
    let (mut client, _agents) = (cluster.client(), cluster.agents());
    let all = values("");
    store_all(&mut client, &all);
    let id = cluster.config().servers()[1].id;
    let at = cluster.at(id);
    let mut server = cluster.servers[at].take().unwrap();
    let config = cluster.config().draining(id).unwrap();
    let mut store = cluster.store();
    assert!(store.update(|_, _| Ok(Some(config.clone()))).is_ok());
    soon("that the server has left", || cluster.config().server(id).is_none());
    assert!(server.process.wait().unwrap().success());
    cluster.is_whole(2);
    compare(&mut client, &all);
}

#[test]
fn a_cluster_goes_on_without_its_last_server() {
    let Some(mut cluster) = Cluster::start(3, &[], &[("", Policy::Copies(2))]) else { return };
    let all = values("");
    {
        let (mut client, _agents) = (cluster.client(), cluster.agents());
        store_all(&mut client, &all);
    }
    // All end, and two of them return. They wait for the one that was left last.
    (0..3).for_each(|at| cluster.kill(at));
    let last = cluster.config().servers()[0].clone();
    let gone = cluster.at(last.id);
    let others: Vec<usize> = (0..3).filter(|&at| at != gone).collect();
    let only = |config: &Config| {
        let others = config.servers().iter().filter(|server| server.id != last.id).map(|server| server.id);
        others.collect::<Vec<_>>().into_iter().fold(config.clone(), |config, id| config.without_server(id).unwrap())
    };
    cluster.store().update(|_, config| Ok((config.servers().len() > 1).then(|| only(config)))).unwrap();
    others.iter().for_each(|&at| cluster.run(at, &[]));
    soon("that the others join", || cluster.config().servers().len() == 3);
    let (mut client, _agents) = (cluster.client(), cluster.agents());
    assert!(cluster.config().servers().iter().filter(|server| server.state == State::Up).count() == 1);
    cluster.store().update(|_, config| config.server(last.id).map(|_| config.forget(last.id)).transpose()).unwrap();
    cluster.is_up(2);
    for (key, _) in &all {
        assert!(client.get(key).unwrap().is_none(), "{key} is of the epoch that was forgotten");
    }
    store_all(&mut client, &all);
    compare(&mut client, &all);
    // The one that was forgotten is as a new one.
    cluster.run(gone, &[]);
    cluster.is_up(3);
    compare(&mut client, &all);
}

/// Waits until a client reads without its servers.
fn reads_by_itself(client: &mut Client, key: &str) {
    soon("a read without a server", || {
        let value = client.get(key).unwrap().expect("it was stored");
        value.source() == rdmakv_client::Source::OneSided
    });
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

#[test]
fn values_with_copies_are_read_without_servers() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let more = ["--tag-lease", "300ms"];
        let Some(cluster) = Cluster::over(fabric, 3, &more, &[("", Policy::Copies(3))]) else { return };
        let (mut writer, mut reader) = (cluster.client(), cluster.client());
        let values = values("read");
        store_all(&mut writer, &values);
        for (key, value) in &values {
            assert_eq!(reader.get(key).unwrap().map(|value| value.into_vec()), *value, "{key}");
        }
        // What was stored is found at once, and what was read before is not.
        for key in 0..40 {
            let (key, first) = (format!("key-{key}"), vec![1; 1000 * key]);
            let version = writer.set(&key, &first, Terms { flags: 7, ..Terms::default() }).unwrap();
            reads_by_itself(&mut reader, &key);
            let value = reader.get(&key).unwrap().unwrap();
            assert_eq!((&value[..], value.flags()), (&first[..], 7));
            assert!(matches!(version, rdmakv_client::Stored::Yes(version) if version == value.version()));
            assert!(writer.set(&key, vec![2; 500], ()).unwrap().is_stored());
            assert_eq!(&reader.get(&key).unwrap().unwrap()[..], [2; 500]);
            assert!(writer.delete(&key).unwrap());
            assert!(reader.get(&key).unwrap().is_none());
        }
        assert!(reader.counters().one_sided >= 40);
    }
}

#[test]
fn small_values_of_a_code_are_read_without_servers() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let policies = [("", Policy::Code { data: 2, parity: 1 })];
        let Some(cluster) = Cluster::over(fabric, 3, &["--tag-lease", "300ms"], &policies) else { return };
        let (mut writer, mut reader) = (cluster.client(), cluster.client());
        for key in 0..10 {
            let key = format!("key-{key}");
            // Copies follow fragments, and the other way round: the reader finds what the writer stored.
            for length in [1000, 5000, 4095, 4096, 1, 70_000, 10] {
                let value: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
                assert!(writer.set(&key, &value, ()).unwrap().is_stored());
                for _ in 0..3 {
                    assert_eq!(&reader.get(&key).unwrap().unwrap()[..], value, "{key} of {length} bytes");
                    assert_eq!(&writer.get(&key).unwrap().unwrap()[..], value, "{key} of {length} bytes");
                }
                if length < 4096 {
                    reads_by_itself(&mut reader, &key);
                }
            }
            assert!(writer.delete(&key).unwrap() && reader.get(&key).unwrap().is_none());
        }
        let counters = reader.counters();
        assert!(counters.one_sided >= 40 && counters.errors == 0, "{counters:?}");
    }
}

#[test]
fn ends_of_resilient_values_change() {
    let policies = [("", Policy::Code { data: 2, parity: 1 })];
    let Some(cluster) = Cluster::over(Fabric::Shm, 3, &["--tag-lease", "300ms"], &policies) else { return };
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let past = rdmakv_client::Expire::At(std::time::UNIX_EPOCH + Duration::from_secs(1));
    // Copies, fragments, and fragments that are staged.
    for length in [3, 5000, 200_000] {
        let (key, value) = (format!("key-{length}"), vec![b'v'; length]);
        assert!(!client.touch(&key, PATIENCE).unwrap() && client.gat(&key, PATIENCE).unwrap().is_none());
        assert!(client.set(&key, &value, Terms { flags: 7, expire: PATIENCE.into() }).unwrap().is_stored());
        reads_by_itself(&mut other, &key);
        assert!(client.touch(&key, PATIENCE).unwrap());
        let touched = client.gat(&key, past).unwrap().unwrap();
        assert!(touched[..] == value[..] && touched.flags() == 7, "{length}");
        assert!(client.get(&key).unwrap().is_none() && !client.touch(&key, PATIENCE).unwrap());
        assert!(other.get(&key).unwrap().is_none(), "a value of {length} bytes outlives its end");
        assert!(client.add(&key, "new", ()).unwrap().is_stored());
        let version = client.gat(&key, PATIENCE).unwrap().unwrap().version();
        assert_eq!(other.gets(&key).unwrap().unwrap().version(), version);
    }
    assert_eq!(client.counters().errors + other.counters().errors, 0);
}

#[test]
fn fragments_are_read_without_servers() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let (more, policies) = (["--tag-lease", "300ms"], [("", Policy::Code { data: 2, parity: 2 })]);
        let Some(mut cluster) = Cluster::over(fabric, 4, &more, &policies) else { return };
        let (mut writer, mut reader) = (cluster.client(), cluster.client());
        let value = |length: usize| (0..length).map(|at| (at * 13 + at / 257) as u8).collect::<Vec<u8>>();
        let lengths = [4096, 4097, 20_000, 131_072, 300_001];
        for (number, length) in lengths.into_iter().enumerate() {
            let (key, first) = (format!("key-{number}"), value(length));
            let version = writer.set(&key, &first, Terms { flags: 7, ..Terms::default() }).unwrap();
            reads_by_itself(&mut reader, &key);
            let value = reader.get(&key).unwrap().unwrap();
            assert!(value[..] == first[..] && value.flags() == 7, "{length}");
            assert!(matches!(version, rdmakv_client::Stored::Yes(version) if version == value.version()));
            // What is stored is found at once, in fragments or whole.
            for length in [length - 1, 500, length] {
                assert!(writer.set(&key, vec![2; length], ()).unwrap().is_stored());
                assert!(reader.get(&key).unwrap().unwrap()[..] == vec![2; length], "{length}");
            }
            assert!(writer.delete(&key).unwrap());
            assert!(reader.get(&key).unwrap().is_none());
        }
        // Several at once, of which some are not known.
        let all: Vec<String> = (0..20).map(|number| format!("many-{number}")).collect();
        all.iter().for_each(|key| assert!(writer.set(key, value(9000), ()).unwrap().is_stored()));
        for count in [10, 20] {
            let found = reader.get_many(&all[..count]);
            assert!(found.into_iter().all(|found| found.unwrap().unwrap()[..] == value(9000)));
        }
        // Without one of the data's fragments.
        let lost = cluster.at(cluster.target("many-0").members[1]);
        cluster.kill(lost);
        soon("that it is removed", || cluster.config().servers().len() == 3);
        reads_by_itself(&mut reader, "many-0");
        assert!(reader.get("many-0").unwrap().unwrap()[..] == value(9000));
    }
}

#[test]
fn no_read_is_older_than_an_acknowledged_write() {
    const KEYS: u64 = 40;
    let (copies, code) = (Policy::Copies(3), Policy::Code { data: 2, parity: 1 });
    let cases = [
        (Fabric::Shm, "pause", "200ms", copies),
        (Fabric::Iwarp, "drain", "200ms", copies),
        // A tag would end after the right, so none is granted.
        (Fabric::Shm, "kill", "4s", copies),
        (Fabric::Shm, "pause", "200ms", code),
        (Fabric::Iwarp, "pause", "200ms", code),
        (Fabric::Iwarp, "drain", "200ms", code),
        (Fabric::Shm, "kill", "4s", code),
    ];
    for (fabric, fault, lease, policy) in cases {
        let more = ["--tag-lease", lease];
        let Some(mut cluster) = Cluster::over(fabric, 4, &more, &[("", policy)]) else { return };
        // Those of a code are in fragments.
        let numbers = if policy == code { 640 } else { 1 };
        let agents = cluster.agents();
        let written: Vec<_> = (0..KEYS).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
        let key = |at: u64| format!("key-{at}");
        let write = |client: &mut Client, number: u64| {
            let at = number % KEYS;
            assert!(client.set(key(at), number.to_le_bytes().repeat(numbers), ()).unwrap().is_stored());
            written[at as usize].store(number, std::sync::atomic::Ordering::SeqCst);
        };
        let mut writer = cluster.client();
        (KEYS..2 * KEYS).for_each(|number| write(&mut writer, number));
        let victim = cluster.at(cluster.target(&key(0)).members[0]);
        let ends = AtomicBool::new(false);
        let one_sided: u64 = std::thread::scope(|scope| {
            let read = || {
                let (mut client, mut at, mut last) = (cluster.client(), 0, vec![0; KEYS as usize]);
                while !ends.load(Relaxed) {
                    at = (at + 1) % KEYS;
                    let before = written[at as usize].load(std::sync::atomic::Ordering::SeqCst).max(last[at as usize]);
                    let value = client.get(key(at)).unwrap().unwrap_or_else(|| panic!("{fault}: {} is lost", key(at)));
                    last[at as usize] = number(&value);
                    assert!(number(&value) >= before, "{fault}: {} is {}, and was {before}", key(at), number(&value));
                }
                client.counters().one_sided
            };
            let readers = [scope.spawn(read), scope.spawn(read)];
            let mut next = 2 * KEYS;
            let mut write_for = |time: Duration| {
                let until = Instant::now() + time;
                while Instant::now() < until {
                    write(&mut writer, next);
                    next += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
            };
            write_for(Duration::from_secs(1));
            let process = cluster.servers[victim].as_ref().unwrap().process.id();
            let signal = |name: &str| {
                assert!(
                    std::process::Command::new("kill").args([name, &process.to_string()]).status().unwrap().success()
                )
            };
            match fault {
                "pause" => {
                    signal("-STOP");
                    write_for(Duration::from_secs(3));
                    signal("-CONT");
                    write_for(Duration::from_secs(1));
                }
                "kill" => {
                    signal("-KILL");
                    write_for(Duration::from_secs(3));
                }
                _ => {
                    let name = format!("tcp:127.0.0.1:{}", cluster.ports[victim]);
                    cluster
                        .store()
                        .update(|_, config| {
                            let server = config.servers().iter().find(|server| server.name == name);
                            server.map(|server| config.draining(server.id)).transpose()
                        })
                        .unwrap();
                    write_for(Duration::from_secs(3));
                }
            }
            ends.store(true, Relaxed);
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        let is_right = if lease == "4s" { one_sided == 0 } else { one_sided > 50 };
        assert!(is_right, "{policy:?}, {fault}: {one_sided} reads without a server");
        drop(agents);
        if fault != "pause" {
            cluster.servers[victim] = None;
        }
    }
}

#[test]
fn servers_read_large_pieces_out_of_the_client() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let policies = [("copies:", Policy::Copies(3)), ("code:", Policy::Code { data: 2, parity: 1 })];
        let Some(cluster) = Cluster::over(fabric, 3, &["-m", "16"], &policies) else { return };
        let name = if fabric == Fabric::Shm { "shm_sets_pulled" } else { "iwarp_sets_pulled" };
        let pulled = || -> u64 { cluster.servers.iter().flatten().map(|server| server.stat(name)).sum() };
        let mut client = cluster.client();
        // The fabrics of all servers are in use.
        soon("a value over the fabric", || {
            let before = pulled();
            assert!(client.set("copies:first", vec![1; 200_000], ()).unwrap().is_stored());
            pulled() >= before + 3
        });
        let mut before = pulled();
        for (at, length) in [65_537, 200_001, 400_000, 140_000, 131_071].into_iter().enumerate() {
            let value: Vec<u8> = (0..length).map(|byte| (byte * 7 + byte / 253 + at) as u8).collect();
            for prefix in ["copies:", "code:"] {
                let key = format!("{prefix}{at}");
                let mut buffer = client.buffer(length).unwrap();
                buffer.copy_from_slice(&value);
                let ticket = client.iset(&key, buffer, ()).unwrap();
                let (stored, data) = client.wait_for_data(ticket);
                assert!(stored.unwrap().is_stored());
                assert!(matches!(data, rdmakv_client::Data::Buffer(_)), "{key}: the memory comes back");
                assert_eq!(client.get(&key).unwrap().as_deref(), Some(&value[..]), "{key}");
                // A piece that fits into a message travels in it.
                let is_pulled = prefix == "copies:" || length > 131_072;
                let now = pulled();
                // A write that begins again has its pieces read again.
                let is_right = if is_pulled { now >= before + 3 } else { now == before };
                assert!(is_right, "{key} of {length}: {} pieces", now - before);
                before = now;
            }
        }
        // No byte of a value without room is read.
        let refused = (0..100).find_map(|at| client.set(format!("copies:more-{at}"), vec![2; 400_000], ()).err());
        let error = refused.expect("it is full").to_string();
        assert!(error.contains("out of memory storing object"), "{error}");
        assert!(client.delete("copies:0").unwrap() && client.delete("copies:2").unwrap());
        assert!(client.set("copies:last", vec![3; 400_000], ()).unwrap().is_stored());
    }
}

#[test]
fn calls_stay_on_a_fabric_that_takes_no_values() {
    let policies = [("", Policy::Copies(3))];
    let Some(cluster) = Cluster::over(Fabric::Shm, 3, &["--eager", "0"], &policies) else { return };
    let pulled = || -> u64 { cluster.servers.iter().flatten().map(|server| server.stat("shm_sets_pulled")).sum() };
    let mut client = cluster.client();
    soon("a value over the fabric", || {
        let before = pulled();
        assert!(client.set("key", "value", ()).unwrap().is_stored());
        pulled() >= before + 3
    });
    assert_eq!(client.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}
