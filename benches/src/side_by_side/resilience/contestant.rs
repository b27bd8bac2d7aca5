//! The one server, the cluster, a client of each, and turns of requests.

use super::cluster::{Cluster, Server};
use super::{Kind, SERVERS};
use crate::pin;
use crate::side_by_side::remote::Outcome;
use hdrhistogram::Histogram;
use rdmakv_client::{Client, Data, Options};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Most of the requests that a turn has at least: a short turn of long requests has a median, too.
const LEAST: u64 = 10;

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
}

/// All that takes turns.
pub(super) struct Contestant {
    /// Clients end before the servers.
    one: Client,
    resilient: Client,
    pub(super) cluster: Cluster,
    pub(super) alone: Server,
    _folder: TempDir,
}

impl Contestant {
    /// Starts everything, with so many MiB of memory for each server.
    pub(super) fn start(cpus: &[usize], memory: u64) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let policies = Kind::RESILIENT.map(|kind| (format!("{}:", kind.name()), kind.policy()));
        let cluster = Cluster::start(folder.path(), cpus, memory, &policies)?;
        let cpu = cpus.get(SERVERS % cpus.len().max(1)).copied().ok_or("no CPU for servers")?;
        let alone = Server::alone(folder.path(), cpu, memory)?;
        let one = Client::with_options([alone.fabric()], options())?;
        let resilient = Client::of_cluster(&cluster.of_clients(), options())?;
        Ok(Self { one, resilient, cluster, alone, _folder: folder })
    }

    fn client(&mut self, kind: Kind) -> &mut Client {
        match kind {
            Kind::One => &mut self.one,
            Kind::Copies | Kind::Code => &mut self.resilient,
        }
    }

    /// Returns the processes of the servers and agents of a kind.
    pub(super) fn processes(&self, kind: Kind) -> Vec<u32> {
        match kind {
            Kind::One => self.alone.processes(),
            Kind::Copies | Kind::Code => self.cluster.processes(),
        }
    }

    /// Returns the calls that the servers of the cluster have answered.
    fn calls(&self, kind: Kind) -> Outcome<u64> {
        if kind == Kind::One {
            return Ok(0);
        }
        let serve = self.cluster.servers.iter().filter(|server| !server.processes().is_empty());
        serve.map(|server| server.watcher()?.cluster("calls")).sum()
    }

    /// Stores values with these numbers.
    pub(super) fn fill(&mut self, kind: Kind, of: &str, count: usize, bytes: usize) -> Outcome<()> {
        let client = self.client(kind);
        fill(client, kind, of, count, bytes)
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
        let calls = self.calls(kind)?;
        let client = self.client(kind);
        let sockets = client.counters().over_sockets;
        let mut data = Data::None;
        if asked == Asked::Set {
            let mut buffer = client.buffer(bytes)?;
            buffer.fill(b'v');
            data = buffer.into();
        }
        let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let cpu = cpu(&processes)?;
        let begun = Instant::now();
        for key in keys.iter().cycle() {
            let at = Instant::now();
            if at - begun >= whole && times.len() >= LEAST {
                break;
            }
            match asked {
                Asked::Set => data = set(client, key, data)?,
                Asked::Get => {
                    let value = client.get(key)?.ok_or_else(|| format!("get {key}: the value is gone"))?;
                    if value.len() != bytes || value.first() != Some(&b'v') || value.last() != Some(&b'v') {
                        return Err(format!("get {key}: the value is another than was stored").into());
                    }
                }
            }
            times.saturating_record(at.elapsed().as_nanos() as u64);
        }
        let requests = times.len();
        let of_request = |all: u64| all as f64 / requests as f64;
        let cpu = of_request(self::cpu(&processes)? - cpu);
        if client.counters().over_sockets > sockets {
            return Err("values came over TCP: the shm fabric was lost".into());
        }
        let calls = of_request(self.calls(kind)? - calls);
        Ok(Turn { requests, p50: times.value_at_quantile(0.5) as f64, cpu, calls })
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
pub(super) fn fill(client: &mut Client, kind: Kind, of: &str, count: usize, bytes: usize) -> Outcome<()> {
    let mut buffer = client.buffer(bytes)?;
    buffer.fill(b'v');
    let mut data = Data::Buffer(buffer);
    for number in 0..count {
        data = set(client, &kind.key(of, number), data)?;
    }
    Ok(())
}

/// Stores a value out of registered memory, which is given back.
fn set(client: &mut Client, key: &str, data: Data) -> Outcome<Data> {
    let ticket = client.iset(key, data, ())?;
    let (stored, data) = client.wait_for_data(ticket);
    if stored?.is_stored() { Ok(data) } else { Err(format!("set {key}: the value was not stored").into()) }
}
