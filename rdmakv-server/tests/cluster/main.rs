//! Real servers in a cluster over a real etcd. The tests are skipped, with a line, on machines without etcd.

// Each module uses some of it.
#[path = "../common/mod.rs"]
mod common;
#[path = "../../cluster/tests/etcd_server/mod.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod etcd_server;

mod agents;
mod membership;
mod reads;
mod writes;

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
