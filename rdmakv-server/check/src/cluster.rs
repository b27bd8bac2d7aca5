//! A cluster under torture: servers and an etcd of its own, clients with copies of each key, and faults by seed.
//!
//! Every key is written before the first fault, and nothing is deleted or expires. So a key that is absent is a lost write, and each history
//! has to be linearizable. Without repair a group loses what it loses: at most as many servers fail as each key has copies to spare.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rdmakv_client::{Client, Cluster, Error, Options, Stored};
use rdmakv_cluster::config::{Config, Policy, State};
use rdmakv_cluster::etcd::{Endpoint, Etcd, Store};

use crate::clock;
use crate::history::{NEVER, Operation, Step, Value};
use crate::judge::{Verdict, judge};
use crate::server::Server;
use crate::values::{self, Lengths, MOST_THREADS};

/// Time for what has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// The name of the cluster.
const NAME: &str = "check";
/// Keys that are registers, and keys that are numbers.
const KEYS: (usize, usize) = (24, 4);

const EXAMPLES: &str = "Examples:
  rdmakv-check cluster
  rdmakv-check cluster --shm -n 100000 --seed 7         other faults, by another seed
  rdmakv-check cluster --servers 4 --copies 2 --kills 0 --pauses 1";

/// The plan of a run with a cluster.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Plan {
    /// Operations in all
    #[arg(short = 'n', long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..100_000_000))]
    pub operations: u64,
    /// Clients, each a thread
    #[arg(short = 't', long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u32).range(1..MOST_THREADS as i64))]
    pub threads: u32,
    /// Servers
    #[arg(long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=16))]
    pub servers: u8,
    /// Copies of each value
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=16))]
    pub copies: u8,
    /// Servers that are killed, and started anew without values
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub kills: u32,
    /// Servers that stand still for longer than their right, and go on
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub pauses: u32,
    /// Times that etcd is killed and started anew
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub outages: u32,
    /// Clients reach servers by shared memory too
    #[arg(long)]
    pub shm: bool,
    /// The right of servers, in milliseconds
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u32).range(500..=60_000))]
    pub lease: u32,
    /// Seed of random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A fault that is put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Kill,
    Pause,
    Outage,
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Run {
    /// Operations, by name and end.
    counts: BTreeMap<&'static str, u64>,
    /// Keys that were absent though all had been written.
    lost: u64,
    /// The reasons of keys without an order.
    violations: Vec<String>,
    undecided: u64,
    /// The first errors that an operation may not have.
    strange: Vec<String>,
    /// Times of the operations that succeeded, sorted.
    times: Vec<u64>,
    worked: Duration,
    faults: Vec<Fault>,
}

impl Run {
    /// Returns whether nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.violations.is_empty() && self.undecided == 0 && self.strange.is_empty()
    }

    /// Returns the report.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let counts: Vec<String> = self.counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let _ = writeln!(text, "operations: {} in {:.1} s", counts.join(", "), self.worked.as_secs_f64());
        let faults = |of| self.faults.iter().filter(|&&fault| fault == of).count();
        let (kills, pauses, outages) = (faults(Fault::Kill), faults(Fault::Pause), faults(Fault::Outage));
        let _ = writeln!(text, "faults: {kills} servers killed, {pauses} paused, etcd killed {outages} times");
        let at = |share: f64| self.times.get((self.times.len() as f64 * share) as usize).copied().unwrap_or(0);
        let longest = self.times.last().copied().unwrap_or(0);
        let ms = |time: u64| time as f64 / 1e6;
        let (half, most) = (ms(at(0.5)), ms(at(0.999)));
        let _ = writeln!(text, "times: median {half:.2} ms, 99.9 % {most:.1} ms, longest {:.1} ms", ms(longest));
        let violations = self.violations.len();
        let _ =
            writeln!(text, "lost writes: {}; violations: {violations}; undecided keys: {}", self.lost, self.undecided);
        for why in self.violations.iter().chain(&self.strange).take(10) {
            let _ = writeln!(text, "{why}");
        }
        text
    }
}

/// Carries out a plan.
///
/// # Errors
///
/// More servers are to fail than keys have copies to spare, or etcd or a server does not start.
pub fn run(plan: &Plan) -> io::Result<Run> {
    if plan.kills + plan.pauses >= u32::from(plan.copies) || plan.copies > plan.servers {
        let why = "choose faults: more servers than copies, and fewer kills and pauses than copies, are needed: nothing repairs yet";
        return Err(io::Error::other(why));
    }
    let folder = tempfile::tempdir()?;
    let mut place = Setup::start(plan, folder.path())?;
    let shared = Shared { stops: AtomicBool::new(false), done: AtomicU64::new(0) };
    let (begun, mut random) = (Instant::now(), Pcg64Mcg::seed_from_u64(plan.seed));
    let mut histories: Vec<Vec<Did>> = vec![place.write_all(plan)?];
    let faults = std::thread::scope(|scope| -> io::Result<Vec<Fault>> {
        let (shared, etcd) = (&shared, place.etcd.url());
        let work = |thread: u32| {
            let (plan, etcd) = (plan.clone(), etcd.clone());
            scope.spawn(move || Worker::new(&plan, &etcd, thread as usize + 1).map(|worker| worker.run(shared)))
        };
        let workers: Vec<_> = (0..plan.threads).map(work).collect();
        let put_in = place.put_in_faults(plan, shared, &mut random);
        shared.stops.store(true, Ordering::Release);
        for worker in workers {
            let history = worker.join().map_err(|_| io::Error::other("a client panicked"))?;
            histories.push(history.map_err(|error| io::Error::other(error.to_string()))?);
        }
        put_in
    })?;
    // All that was acknowledged is there for a client that comes now.
    let mut last = Worker::new(plan, &place.etcd.url(), plan.threads as usize + 1)
        .map_err(|error| io::Error::other(error.to_string()))?;
    (0..KEYS.0 + KEYS.1).for_each(|key| last.get(key));
    histories.push(last.did);
    Ok(verdict(histories, faults, begun.elapsed()))
}

struct Shared {
    stops: AtomicBool,
    done: AtomicU64,
}

/// An operation of a client.
#[derive(Debug)]
struct Did {
    key: usize,
    name: &'static str,
    time: u64,
    end: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Effect(Operation),
    /// It changed nothing, and tells nothing.
    Nothing,
    /// The key was absent.
    Lost,
    Strange(String),
}

fn verdict(histories: Vec<Vec<Did>>, faults: Vec<Fault>, worked: Duration) -> Run {
    let mut run = Run { faults, worked, ..Run::default() };
    let mut keys: Vec<Vec<Operation>> = vec![Vec::new(); KEYS.0 + KEYS.1];
    for Did { key, name, time, end } in histories.into_iter().flatten() {
        let name = match end {
            Outcome::Effect(operation) => {
                keys[key].push(operation);
                if operation.certain {
                    run.times.push(time);
                }
                if operation.certain { name } else { "of unknown outcome" }
            }
            Outcome::Nothing => "not done",
            Outcome::Lost => {
                run.lost += 1;
                "lost"
            }
            Outcome::Strange(why) => {
                run.strange.push(why);
                "strange"
            }
        };
        *run.counts.entry(name).or_default() += 1;
    }
    run.times.sort_unstable();
    for (key, history) in keys.iter().enumerate() {
        match judge(history) {
            Verdict::Linearizable => {}
            Verdict::Undecided => run.undecided += 1,
            Verdict::Violated(violation) => {
                let mut why = format!("{}: {violation:?}", name(key));
                for &at in violation.operations.iter().take(4) {
                    let _ = write!(why, "\n  {:?}", history[at]);
                }
                run.violations.push(why);
            }
        }
    }
    run
}

fn name(key: usize) -> String {
    if is_counter(key) { format!("counter-{key}") } else { format!("key-{key}") }
}

fn is_counter(key: usize) -> bool {
    key >= KEYS.0
}

/// One client.
struct Worker {
    client: Client,
    thread: usize,
    plan: Plan,
    did: Vec<Did>,
    /// The versions that were read last.
    versions: BTreeMap<usize, (u64, Value)>,
}

impl Worker {
    fn new(plan: &Plan, etcd: &str, thread: usize) -> Result<Self, Error> {
        let mut cluster = Cluster::new(etcd);
        cluster.name = NAME.to_owned();
        let client = Client::of_cluster(&cluster, Options::default())?;
        Ok(Self { client, thread, plan: plan.clone(), did: Vec::new(), versions: BTreeMap::new() })
    }

    fn run(mut self, shared: &Shared) -> Vec<Did> {
        let mut random = Pcg64Mcg::seed_from_u64(self.plan.seed ^ (self.thread as u64) << 32);
        while !shared.stops.load(Ordering::Acquire) {
            self.act(&mut random);
            shared.done.fetch_add(1, Ordering::Relaxed);
        }
        self.did
    }

    fn act(&mut self, random: &mut impl Rng) {
        let key = random.random_range(0..KEYS.0 + KEYS.1);
        match random.random_range(0..10) {
            0..5 => self.get(key),
            _ if is_counter(key) => self.incr(key),
            5..8 => self.set(key),
            _ => match self.versions.remove(&key) {
                Some((version, from)) => self.cas(key, version, from),
                None => self.get(key),
            },
        }
    }

    fn get(&mut self, key: usize) {
        let begin = clock::now();
        let got = self.client.get(name(key));
        let end = match got {
            Ok(Some(value)) => {
                let read =
                    if is_counter(key) { values::read_counter(&value) } else { values::read(&value, Lengths::Mixed) };
                match read {
                    values::Read::Whole(seen) => {
                        self.versions.insert(key, (value.version(), seen));
                        effect(begin, Step::Read(seen))
                    }
                    values::Read::Torn(..) => Outcome::Strange(format!("get {}: a torn value", name(key))),
                }
            }
            Ok(None) => Outcome::Lost,
            Err(error) => failed(error, begin, None),
        };
        self.note(key, "reads", begin, end);
    }

    fn set(&mut self, key: usize) {
        let value = values::version(self.thread, self.did.len());
        let value = if is_counter(key) { values::counter(value) } else { value };
        let mut bytes = Vec::new();
        match is_counter(key) {
            true => bytes.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
            false => values::write(value, Lengths::Mixed, &mut bytes),
        }
        let begin = clock::now();
        let end = match self.client.set(name(key), &bytes, ()) {
            Ok(Stored::Yes(_)) => effect(begin, Step::Write(value)),
            Ok(other) => Outcome::Strange(format!("set {}: {other:?}", name(key))),
            Err(error) => failed(error, begin, Some(Step::Write(value))),
        };
        self.note(key, "sets", begin, end);
    }

    fn cas(&mut self, key: usize, version: u64, from: Value) {
        let to = values::version(self.thread, self.did.len());
        let mut bytes = Vec::new();
        values::write(to, Lengths::Mixed, &mut bytes);
        let begin = clock::now();
        let end = match self.client.cas(name(key), &bytes, version, ()) {
            Ok(Stored::Yes(_)) => effect(begin, Step::Swap { from, to }),
            Ok(Stored::Exists) => effect(begin, Step::Present { not: Some(from) }),
            Ok(Stored::NotFound) => Outcome::Lost,
            Ok(other) => Outcome::Strange(format!("cas {}: {other:?}", name(key))),
            Err(error) => failed(error, begin, Some(Step::Swap { from, to })),
        };
        self.note(key, "compared", begin, end);
    }

    fn incr(&mut self, key: usize) {
        let begin = clock::now();
        let end = match self.client.incr(name(key), 1) {
            Ok(Some(number)) => effect(begin, Step::Swap { from: number.wrapping_sub(1), to: number }),
            Ok(None) => Outcome::Lost,
            Err(error) => failed(error, begin, Some(Step::Count)),
        };
        self.note(key, "increments", begin, end);
    }

    fn note(&mut self, key: usize, name: &'static str, begin: u64, end: Outcome) {
        self.did.push(Did { key, name, time: clock::now() - begin, end });
    }
}

fn effect(begin: u64, step: Step) -> Outcome {
    Outcome::Effect(Operation { begin, end: clock::now(), certain: true, step })
}

/// Returns the meaning of an error for an operation that changes the key in this way.
fn failed(error: Error, begin: u64, step: Option<Step>) -> Outcome {
    match (error, step) {
        (Error::NotServed { .. } | Error::TooFew { .. }, _) => Outcome::Nothing,
        (Error::OutcomeUnknown { .. }, Some(step)) => {
            Outcome::Effect(Operation { begin, end: NEVER, certain: false, step })
        }
        (error, _) => Outcome::Strange(error.to_string()),
    }
}

/// The processes of a run.
struct Setup {
    etcd: EtcdServer,
    servers: Vec<(u16, Server)>,
    log: File,
    shm: bool,
}

impl Setup {
    fn start(plan: &Plan, folder: &std::path::Path) -> io::Result<Self> {
        let etcd = EtcdServer::start(folder)?;
        let log = File::create(folder.join("servers.log"))?;
        let config = Config::with_lease(u128::from(plan.seed) << 64 | u128::from(clock::now()), plan.lease);
        let config = config.and_then(|config| config.with_policy(b"", Policy::Copies(plan.copies)));
        let mut store = etcd.store()?;
        store.create(&config.map_err(other)?).map_err(other)?;
        let mut this = Self { etcd, servers: Vec::new(), log, shm: plan.shm };
        for port in free_ports(plan.servers.into())? {
            let server = this.server(port)?;
            this.servers.push((port, server));
        }
        let begun = Instant::now();
        loop {
            let view = store.read().map_err(other)?;
            let config = view.config().ok_or_else(|| io::Error::other("the cluster is gone"))?;
            let all = config.servers().len() == this.servers.len();
            if all && config.is_whole() && config.servers().iter().all(|server| server.state == State::Up) {
                return Ok(this);
            }
            if begun.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("servers do not join the cluster:\n{}", this.complaints(folder))));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn complaints(&self, folder: &std::path::Path) -> String {
        std::fs::read_to_string(folder.join("servers.log")).unwrap_or_default()
    }

    fn server(&self, port: u16) -> io::Result<Server> {
        let (number, mut address, url) = (port.to_string(), format!("tcp:127.0.0.1:{port}"), self.etcd.url());
        // The port is no other run's.
        let fabric = format!("shm:@rdmakv-check-{port}");
        let by_shm = ["--fabric", &fabric];
        if self.shm {
            address = format!("{address},{fabric}");
        }
        let arguments = ["-p", &number, "-l", "127.0.0.1", "-t", "1", "-m", "64", "--etcd", &url];
        let arguments = arguments.into_iter().chain(["--cluster", NAME, "--advertise", &address]);
        let arguments = arguments.chain(by_shm.into_iter().filter(|_| self.shm));
        let arguments: Vec<String> = arguments.map(str::to_owned).collect();
        Server::start(None, &arguments, &[], &self.log)
    }

    /// Writes every key once, before the first fault.
    fn write_all(&self, plan: &Plan) -> io::Result<Vec<Did>> {
        let mut worker = Worker::new(plan, &self.etcd.url(), 0).map_err(other)?;
        (0..KEYS.0 + KEYS.1).for_each(|key| worker.set(key));
        match worker.did.iter().find(|did| !matches!(did.end, Outcome::Effect(Operation { certain: true, .. }))) {
            None => Ok(worker.did),
            Some(did) => Err(io::Error::other(format!("write the first values: {did:?}"))),
        }
    }

    /// Puts the faults in, evenly among the operations, and returns them.
    fn put_in_faults(&mut self, plan: &Plan, shared: &Shared, random: &mut impl Rng) -> io::Result<Vec<Fault>> {
        let of = |fault, count| (0..count).map(move |_| fault);
        let mut faults: Vec<Fault> = of(Fault::Kill, plan.kills).collect();
        faults.extend(of(Fault::Pause, plan.pauses).chain(of(Fault::Outage, plan.outages)));
        // Fisher and Yates.
        (1..faults.len()).rev().for_each(|at| faults.swap(at, random.random_range(0..=at)));
        let mut victims: Vec<usize> = (0..self.servers.len()).collect();
        let lease = Duration::from_millis(plan.lease.into());
        let limit = Instant::now() + PATIENCE * 10;
        for (at, fault) in faults.iter().enumerate() {
            let from = plan.operations * (at as u64 + 1) / (faults.len() as u64 + 1);
            wait(shared, from, limit)?;
            match fault {
                Fault::Kill => {
                    let victim = victims.swap_remove(random.random_range(0..victims.len()));
                    self.servers[victim].1.kill();
                    // The others have removed it by then.
                    std::thread::sleep(lease * 3);
                    let server = self.server(self.servers[victim].0)?;
                    self.servers[victim].1 = server;
                }
                Fault::Pause => {
                    let victim = victims.swap_remove(random.random_range(0..victims.len()));
                    self.servers[victim].1.pause(lease * 3)?;
                }
                Fault::Outage => {
                    self.etcd.kill();
                    std::thread::sleep(lease * 2);
                    self.etcd.restart()?;
                }
            }
        }
        wait(shared, plan.operations, limit)?;
        Ok(faults)
    }
}

/// Waits until so many operations are done.
fn wait(shared: &Shared, operations: u64, limit: Instant) -> io::Result<()> {
    while shared.done.load(Ordering::Relaxed) < operations {
        if Instant::now() > limit {
            return Err(io::Error::other("operations take too long: ask for fewer (-n)"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    listeners.iter().map(|listener| listener.local_addr().map(|address| address.port())).collect()
}

/// An etcd of the run's own.
struct EtcdServer {
    port: u16,
    arguments: Vec<String>,
    process: Child,
}

impl EtcdServer {
    fn start(folder: &std::path::Path) -> io::Result<Self> {
        let ports = free_ports(2)?;
        let (client, peer) = (format!("http://127.0.0.1:{}", ports[0]), format!("http://127.0.0.1:{}", ports[1]));
        let data = folder.join("etcd").display().to_string();
        let arguments: Vec<String> = [
            ("data-dir", data.as_str()),
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &format!("default={peer}")),
            ("logger", "zap"),
            ("log-outputs", "/dev/null"),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into();
        let process = spawn(&arguments)?;
        let this = Self { port: ports[0], arguments, process };
        this.is_up()?;
        Ok(this)
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn store(&self) -> io::Result<Store> {
        let endpoints = Endpoint::list(&self.url()).map_err(other)?;
        Store::new(Etcd::new(endpoints, Duration::from_secs(5)), NAME).map_err(other)
    }

    fn is_up(&self) -> io::Result<()> {
        let (mut store, begun) = (self.store()?, Instant::now());
        while let Err(error) = store.read() {
            if begun.elapsed() > PATIENCE {
                return Err(other(error));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn restart(&mut self) -> io::Result<()> {
        self.process = spawn(&self.arguments)?;
        self.is_up()
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(arguments: &[String]) -> io::Result<Child> {
    let mut etcd = Command::new("etcd");
    let etcd = etcd.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    etcd.spawn().map_err(|error| io::Error::other(format!("start etcd: {error}: install etcd-server 3.4 or later")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn did(key: usize, end: Outcome) -> Did {
        Did { key, name: "reads", time: 1, end }
    }

    fn at(begin: u64, end: u64, step: Step) -> Outcome {
        Outcome::Effect(Operation { begin, end, certain: true, step })
    }

    fn run(end: Outcome) -> Run {
        let first = [at(1, 2, Step::Write(7)), at(3, 4, Step::Write(8)), at(5, 6, Step::Read(8))];
        let history = first.into_iter().chain([end]).map(|end| did(0, end)).collect();
        verdict(vec![history], Vec::new(), Duration::ZERO)
    }

    #[test]
    fn lost_and_old_values_are_found() {
        assert!(run(at(7, 8, Step::Read(8))).is_clean());
        assert!(run(Outcome::Nothing).is_clean());
        // A write of unknown outcome may still come.
        let unknown = Operation { begin: 2, end: NEVER, certain: false, step: Step::Write(9) };
        assert!(run(Outcome::Effect(unknown)).is_clean());
        let lost = run(Outcome::Lost);
        assert!(!lost.is_clean() && lost.render().contains("lost writes: 1; violations: 0"), "{}", lost.render());
        let old = run(at(7, 8, Step::Read(7)));
        assert!(!old.is_clean() && old.render().contains("lost writes: 0; violations: 1"), "{}", old.render());
        assert!(!run(Outcome::Strange("an error".to_owned())).is_clean());
    }
}
