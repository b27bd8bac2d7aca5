//! The one server, the cluster and the memcacheds, their clients, and turns of requests.

use super::cluster::{Cluster, Memcached, Server, Watcher};
use super::{Kind, SERVERS};
use crate::pin;
use crate::side_by_side::remote::Outcome;
use hdrhistogram::Histogram;
use rdmakv_client::{Client, Data, Options, Stored, Ticket};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Requests of a turn, at least: a short turn of long requests has a median, too.
const LEAST: u64 = 10;
/// Small GETs between two looks at the clock, which would be a tenth of one that is one-sided.
const UNTIMED: u64 = 16;
/// The memcacheds that have a copy each, and the MiB of each.
const MEMCACHEDS: usize = 3;
const MEMORY: u64 = 128;

/// The operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    Set,
    Get,
}

/// The cost of the requests of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) requests: u64,
    /// The median, in nanoseconds.
    pub(super) p50: f64,
    /// CPU of a request, in nanoseconds.
    pub(super) cpu: f64,
    /// Calls to servers of a request.
    pub(super) calls: f64,
    /// Bytes that servers read and wrote otherwise than by transfers, of a request.
    pub(super) copied: f64,
}

/// Counts of servers.
#[derive(Clone, Copy, Default)]
struct Counts {
    calls: u64,
    copied: u64,
}

/// All that takes turns.
pub(super) struct Contestant {
    /// Clients end before the servers.
    one: Client,
    resilient: Client,
    /// One of each memcached.
    plain: Vec<Client>,
    watchers: Vec<Watcher>,
    pub(super) cluster: Cluster,
    pub(super) alone: Server,
    memcacheds: Vec<Memcached>,
    _folder: TempDir,
}

impl Contestant {
    /// Starts everything, with so many MiB of memory for each server.
    pub(super) fn start(cpus: &[usize], memory: u64) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let policies = Kind::RESILIENT.map(|kind| (format!("{}:", kind.name()), kind.policy()));
        let cluster = Cluster::start(folder.path(), cpus, memory, &policies)?;
        let cpu = |nth: usize| cpus.get(nth % cpus.len().max(1)).copied().ok_or("no CPU for servers");
        let alone = Server::alone(folder.path(), cpu(SERVERS)?, memory)?;
        let count = if Memcached::version().is_some() { MEMCACHEDS } else { 0 };
        let memcacheds = (0..count).map(|nth| Memcached::start(folder.path(), cpu(nth)?, MEMORY));
        let memcacheds = memcacheds.collect::<Outcome<Vec<_>>>()?;
        let one = Client::with_options([alone.fabric()], options())?;
        let resilient = Client::of_cluster(&cluster.of_clients(), options())?;
        let client = |memcached: &Memcached| Client::with_options([&memcached.address], options());
        let plain = memcacheds.iter().map(client).collect::<Result<_, _>>()?;
        let watchers = cluster.watchers()?;
        Ok(Self { one, resilient, plain, watchers, cluster, alone, memcacheds, _folder: folder })
    }

    /// Returns the kinds that are here.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        let has_memcached = !self.memcacheds.is_empty();
        Kind::ALL.into_iter().filter(move |&kind| kind != Kind::Memcached || has_memcached)
    }

    /// Kills a server of the cluster.
    pub(super) fn kill(&mut self, at: usize) -> Outcome<()> {
        self.cluster.kill(at);
        self.watchers = self.cluster.watchers()?;
        Ok(())
    }

    /// Returns the clients that store a value of a kind, all of them.
    fn clients(&mut self, kind: Kind) -> &mut [Client] {
        match kind {
            Kind::One => std::slice::from_mut(&mut self.one),
            Kind::Copies | Kind::Code => std::slice::from_mut(&mut self.resilient),
            Kind::Memcached => &mut self.plain,
        }
    }

    /// Returns the processes of the servers and agents of a kind.
    pub(super) fn processes(&self, kind: Kind) -> Vec<u32> {
        match kind {
            Kind::One => self.alone.processes(),
            Kind::Copies | Kind::Code => self.cluster.processes(),
            Kind::Memcached => self.memcacheds.iter().map(Memcached::id).collect(),
        }
    }

    /// Returns the counts of the cluster's servers; none of others.
    fn counts(&mut self, kind: Kind) -> Outcome<Counts> {
        let mut counts = Counts::default();
        if !Kind::RESILIENT.contains(&kind) {
            return Ok(counts);
        }
        for watcher in &mut self.watchers {
            counts.calls += watcher.cluster("calls")?;
            let stats = watcher.stats("")?;
            let sum = |is: fn(&str) -> bool| -> u64 {
                stats.iter().filter(|(name, _)| is(name)).map(|(_, bytes)| *bytes).sum()
            };
            let all = sum(|name| matches!(name, "bytes_read" | "bytes_written"));
            counts.copied += all - sum(|name| matches!(name, "shm_pulled_bytes" | "shm_transferred_bytes"));
        }
        Ok(counts)
    }

    /// Stores values with these numbers.
    pub(super) fn fill(&mut self, kind: Kind, of: &str, count: usize, bytes: usize) -> Outcome<()> {
        fill(self.clients(kind), kind, of, count, bytes)
    }

    /// Asks for so long, for one of so many keys after the other.
    pub(super) fn turn(
        &mut self,
        asked: Asked,
        kind: Kind,
        (of, keys, bytes): (&str, usize, usize),
        whole: Duration,
    ) -> Outcome<Turn> {
        let keys: Vec<_> = (0..keys).map(|number| kind.key(of, number)).collect();
        let processes = self.processes(kind);
        let counts = self.counts(kind)?;
        let clients = self.clients(kind);
        let mut data = if asked == Asked::Set { buffers(clients, bytes)? } else { Vec::new() };
        let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let cpu = cpu(&processes)?;
        let begun = Instant::now();
        let at_once = if asked == Asked::Get && bytes < 1 << 20 { UNTIMED } else { 1 };
        let mut keys = keys.iter().cycle();
        let mut at = begun;
        while at - begun < whole || times.len() < LEAST {
            for key in keys.by_ref().take(at_once as usize) {
                match asked {
                    Asked::Set => data = set(clients, key, data)?,
                    Asked::Get => get(clients, key, bytes)?,
                }
            }
            let now = Instant::now();
            times.saturating_record_n((now - at).as_nanos() as u64 / at_once, at_once);
            at = now;
        }
        let requests = times.len();
        let of_request = |all: u64| all as f64 / requests as f64;
        let cpu = of_request(self::cpu(&processes)? - cpu);
        let now = self.counts(kind)?;
        let (calls, copied) = (of_request(now.calls - counts.calls), of_request(now.copied - counts.copied));
        Ok(Turn { requests, p50: times.value_at_quantile(0.5) as f64, cpu, calls, copied })
    }
}

/// Returns the nanoseconds of CPU that these processes and this one have had.
pub(super) fn cpu(processes: &[u32]) -> Outcome<u64> {
    let one =
        |&process: &u32| pin::nanos_of(process).map_err(|error| format!("read the CPU time of {process}: {error}"));
    Ok(processes.iter().map(one).sum::<Result<u64, _>>()? + pin::process_nanos())
}

/// The defaults, with time for a machine that is busy.
pub(super) fn options() -> Options {
    Options { timeout: Duration::from_secs(20), ..Options::default() }
}

/// Stores values with these numbers.
pub(super) fn fill(clients: &mut [Client], kind: Kind, of: &str, count: usize, bytes: usize) -> Outcome<()> {
    let mut data = buffers(clients, bytes)?;
    for number in 0..count {
        data = set(clients, &kind.key(of, number), data)?;
    }
    Ok(())
}

/// Returns a value in memory of each client.
fn buffers(clients: &mut [Client], bytes: usize) -> Outcome<Vec<Data>> {
    let one = |client: &mut Client| {
        let mut buffer = client.buffer(bytes)?;
        buffer.fill(b'v');
        Ok(Data::Buffer(buffer))
    };
    clients.iter_mut().map(one).collect()
}

/// Stores a value by all clients at once, and returns the memory that it was in.
fn set(clients: &mut [Client], key: &str, data: Vec<Data>) -> Outcome<Vec<Data>> {
    let begun = clients.iter_mut().zip(data).map(|(client, data)| client.iset(key, data, ()));
    let tickets = begun.collect::<Result<Vec<_>, _>>()?;
    let end = |(client, ticket): (&mut Client, Ticket<Stored>)| {
        let (stored, data) = client.wait_for_data(ticket);
        if stored?.is_stored() { Ok(data) } else { Err(format!("set {key}: the value was not stored").into()) }
    };
    clients.iter_mut().zip(tickets).map(end).collect()
}

/// Reads a value by the first client, and checks it.
fn get(clients: &mut [Client], key: &str, bytes: usize) -> Outcome<()> {
    let client = clients.first_mut().ok_or("no client")?;
    let value = client.get(key)?.ok_or_else(|| format!("get {key}: the value is gone"))?;
    if value.len() != bytes || value.first() != Some(&b'v') || value.last() != Some(&b'v') {
        return Err(format!("get {key}: the value is another than was stored").into());
    }
    Ok(())
}
