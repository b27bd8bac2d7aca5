//! A real cluster: etcd, and servers that are this test program, run once more. All end with the test.

// Each test program uses some of it.
#![allow(dead_code)]

#[path = "../../../cluster/tests/etcd_server/mod.rs"]
mod etcd_server;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_server::Members;
use rdmakv_client::{Agent, Cluster as Address, Options};
use rdmakv_cluster::config::{Config, Policy, Rule, State};
use rdmakv_cluster::etcd::Operation;
use rdmakv_cluster::etcd::gateway::Write;
use rdmakv_fuse::{Files, Settings};

/// How long anything is waited for: far longer than a busy machine takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of the server, a line each, for the process that is to be one.
const SERVE: &str = "RDMAKV_TEST_SERVES";

/// Becomes the server, where [`Cluster`] started this process.
#[test]
#[ignore = "the process of a server"]
fn serve() {
    let Ok(arguments) = std::env::var(SERVE) else { return };
    rdmakv_server::startup::main_with(arguments.lines().map(Into::into));
    // The output of the test harness is of no use to a server's client.
    std::process::exit(0);
}

/// Addresses of etcd, and the name of a server, for the process that is to be its agent.
const TEND: &str = "RDMAKV_TEST_TENDS";

/// Becomes the agent of a server, where [`Cluster`] started this process.
#[test]
#[ignore = "the process of an agent"]
fn tend() {
    let Ok(arguments) = std::env::var(TEND) else { return };
    let (urls, name) = arguments.split_once('\n').unwrap();
    let mut agent = Agent::of_server(&Address::new(urls), name, u64::MAX, Options::default()).unwrap();
    loop {
        agent.work(Duration::from_secs(1));
    }
}

/// A server, and its output: the test harness in it prints there once a minute has passed, and ends where nothing reads.
type Process = (Child, BufReader<ChildStdout>);

/// Servers of one cluster. Each keeps its port, and with it its name.
pub(crate) struct Cluster {
    etcd: Members,
    pub(crate) ports: Vec<u16>,
    servers: Vec<Option<Process>>,
    /// Memory of each server, in MiB, and the percentage of it that dirty chunks may take.
    memory: u32,
    dirty_limit: u8,
    /// Those that repair what killed servers had; none where no server returns.
    agents: Vec<Option<Child>>,
    backing: tempfile::TempDir,
    /// The servers have the backing directory.
    carry: bool,
}

impl Cluster {
    /// Starts servers, and waits until all are up. None, with a line, where etcd is missing.
    pub(crate) fn start(count: usize) -> Option<Self> {
        Self::start_with(count, 512)
    }

    /// The same, each with so many MiB of memory.
    pub(crate) fn start_with(count: usize, memory: u32) -> Option<Self> {
        Self::start_as(count, memory, Policy::Copies(2))
    }

    /// The same, with this policy of chunks.
    pub(crate) fn start_as(count: usize, memory: u32, of_chunks: Policy) -> Option<Self> {
        Self::with(count, (memory, 70), (of_chunks, Policy::Copies(2)), (false, false))
    }

    /// Starts servers that write chunks to the backing directory.
    pub(crate) fn carrying(count: usize) -> Option<Self> {
        Self::with(count, (512, 70), (Policy::Copies(2), Policy::Copies(2)), (false, true))
    }

    /// Starts servers that have room for some dirty chunks only: 655 KiB each.
    pub(crate) fn tight(count: usize) -> Option<Self> {
        Self::with(count, (64, 1), (Policy::Copies(2), Policy::Copies(2)), (false, false))
    }

    /// Starts servers with a policy, and with agents, so that killed servers may return. They write chunks to the backing directory.
    ///
    /// Dirty chunks may take so many percent of their memory, 512 MiB.
    pub(crate) fn repaired(count: usize, policy: Policy, dirty_limit: u8) -> Option<Self> {
        Self::with(count, (512, dirty_limit), (policy, policy), (true, true))
    }

    fn with(
        count: usize,
        (memory, dirty_limit): (u32, u8),
        (of_chunks, of_others): (Policy, Policy),
        (has_agents, carry): (bool, bool),
    ) -> Option<Self> {
        let etcd = Members::start(1)?;
        let mut config = Config::with_lease(7, 1000).unwrap();
        for prefix in ["c/", "d/", "i/", "m/", "n/", "p/"] {
            let evicts_clean = prefix == "c/";
            let rule = Rule { policy: if evicts_clean { of_chunks } else { of_others }, evicts_clean };
            config = config.with_rule(prefix.as_bytes(), rule).unwrap();
        }
        assert!(etcd.store("main").create(&config).unwrap());
        let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(listeners);
        let backing = tempfile::tempdir().unwrap();
        let (servers, agents) = ((0..count).map(|_| None).collect(), Vec::new());
        let mut this = Self { etcd, ports, servers, memory, dirty_limit, agents, backing, carry };
        (0..count).for_each(|at| this.run(at));
        if has_agents {
            this.agents = (0..count).map(|at| Some(this.agent(at))).collect();
        }
        this.is_up(count);
        Some(this)
    }

    pub(crate) fn run(&mut self, at: usize) {
        let (port, urls, memory) = (self.ports[at].to_string(), self.urls(), self.memory.to_string());
        let limit = self.dirty_limit.to_string();
        let address = self.name(at);
        let arguments = ["rdmakv-server", "-p", &port, "-l", "127.0.0.1", "-t", "2", "-m", &memory, "--etcd", &urls];
        let arguments = [&arguments[..], &["--advertise", &address, "--agent", "no", "--dirty-limit", &limit]].concat();
        let backing = self.backing().to_str().unwrap();
        let more = if self.carry { &["--backing", backing][..] } else { &[] };
        let arguments = [&arguments[..], more].concat();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "common::serve", "--nocapture", "--include-ignored"])
            .env(SERVE, arguments.join("\n"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut output = BufReader::new(process.stdout.take().unwrap());
        // The line about memory is the last one.
        let is_last = |line: std::io::Result<String>| line.unwrap().contains("SIGTERM");
        assert!(output.by_ref().lines().any(is_last), "the server starts");
        self.servers[at] = Some((process, output));
    }

    pub(crate) fn kill(&mut self, at: usize) {
        let (server, _) = self.servers[at].take().expect("it runs");
        end(server);
        self.agents.get_mut(at).and_then(Option::take).into_iter().for_each(end);
    }

    /// Starts a killed server once more, with its agent. The others have removed it by then, or find that it is another incarnation.
    pub(crate) fn restart(&mut self, at: usize) {
        self.run(at);
        self.agents[at] = Some(self.agent(at));
    }

    fn agent(&self, at: usize) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "common::tend", "--nocapture", "--include-ignored"])
            .env(TEND, [self.urls(), self.name(at)].join("\n"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the agent starts")
    }

    /// Waits until so many servers are left.
    pub(crate) fn has(&self, count: usize) {
        soon("that killed servers are removed", || {
            let view = self.etcd.store("main").read().unwrap();
            view.config().expect("the cluster exists").servers().len() == count
        });
    }

    /// Waits until so many servers are left, all are up, and their epoch is whole.
    pub(crate) fn is_up(&self, count: usize) {
        soon("that all servers are up", || {
            let view = self.etcd.store("main").read().unwrap();
            let config = view.config().expect("the cluster exists");
            let are_up = config.servers().iter().all(|server| server.state == State::Up);
            config.servers().len() == count && are_up && config.is_whole()
        });
    }

    pub(crate) fn name(&self, at: usize) -> String {
        format!("tcp:127.0.0.1:{}", self.ports[at])
    }

    pub(crate) fn urls(&self) -> String {
        self.etcd.urls()
    }

    /// Ends etcd, or starts it again with what it had.
    pub(crate) fn set_etcd(&mut self, runs: bool) {
        let member = &mut self.etcd.list[0];
        if runs { member.start() } else { member.kill() }
    }

    /// Deletes a key in etcd.
    pub(crate) fn forget(&self, key: &str) {
        self.etcd.client().transaction(Operation::Fact, None, &[Write::Delete(key)]).unwrap();
    }

    pub(crate) fn address(&self) -> Address {
        Address::new(self.urls())
    }

    pub(crate) fn backing(&self) -> &Path {
        self.backing.path()
    }

    /// Mounts with small chunks, so that files have several.
    pub(crate) fn mount(&self) -> Files {
        self.mount_with(Settings { chunk: Some(64 << 10), ..Settings::default() })
    }

    pub(crate) fn mount_with(&self, settings: Settings) -> Files {
        Files::mount(&self.address(), self.backing(), settings).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let servers = self.servers.drain(..).flatten().map(|(server, _)| server);
        servers.chain(self.agents.drain(..).flatten()).for_each(end);
    }
}

fn end(mut process: Child) {
    let _ = process.kill();
    let _ = process.wait();
}

/// Waits until it is so.
pub(crate) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what} does not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Numbers at random, the same for the same seed (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % bound
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}
