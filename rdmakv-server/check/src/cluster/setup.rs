//! The processes of a run, and the faults that are put into them.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};
use rdmakv_cluster::config::{Config, State};
use rdmakv_cluster::etcd::Store;

use super::etcds::Etcds;
use super::network::{End, Network, address};
use super::plan::{CUT, Direction, Fault, OUTAGE, Peer, Plan};
use super::worker::{Did, KEYS, Outcome, Shared, Worker};
use super::{NAME, PATIENCE, other};
use crate::clock;
use crate::history::Operation;
use crate::server::Server;

/// The processes of a run.
#[derive(Debug)]
pub(super) struct Setup {
    /// Before the network: they end first.
    servers: Vec<Member>,
    pub(super) etcds: Etcds,
    network: Option<Network>,
    folder: PathBuf,
    log: File,
    plan: Plan,
    /// Servers that may have been lost since the last whole epoch with all of them.
    lost: u32,
}

#[derive(Debug)]
struct Member {
    place: End,
    address: SocketAddr,
    /// The port for iWARP.
    iwarp: u16,
    process: Option<Server>,
}

impl Setup {
    pub(super) fn start(plan: &Plan, folder: &Path) -> io::Result<Self> {
        let (servers, etcds) = (usize::from(plan.servers), usize::from(plan.etcds));
        let network = match Network::new(servers + etcds) {
            Ok(network) => Some(network),
            Err(_) if plan.cuts == 0 => None,
            Err(why) => {
                eprintln!("rdmakv-check: no server is cut off: {why}: run as root, with iproute2 and util-linux");
                None
            }
        };
        let mut plan = plan.clone();
        let places: Vec<(End, SocketAddr, SocketAddr)> = if network.is_some() {
            let at = |at| (End::At(at), there(End::At(at), 11211), there(End::At(at), 7471));
            (0..servers + etcds).map(at).collect()
        } else {
            plan.cuts = 0;
            let ports = free_ports(2 * (servers + etcds))?;
            let here = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            ports.chunks_exact(2).map(|ports| (End::Clients, here(ports[0]), here(ports[1]))).collect()
        };
        let (members, etcds) = places.split_at(servers);
        let etcds = Etcds::start(folder, etcds, network.as_ref())?;
        let config = Config::with_lease(u128::from(plan.seed) << 64 | u128::from(clock::now()), plan.lease);
        let config = config.and_then(|config| config.with_policy(b"", plan.policy));
        etcds.store()?.create(&config.map_err(other)?).map_err(other)?;
        let member = |&(place, address, fabric): &(End, SocketAddr, SocketAddr)| Member {
            place,
            address,
            iwarp: fabric.port(),
            process: None,
        };
        let (members, log) = (members.iter().map(member).collect(), File::create(folder.join("servers.log"))?);
        let mut this = Self { servers: members, etcds, network, folder: folder.to_owned(), log, plan, lost: 0 };
        (0..servers).try_for_each(|at| this.run(at))?;
        this.wait_for_all()?;
        Ok(this)
    }

    /// Starts a server that does not run.
    fn run(&mut self, at: usize) -> io::Result<()> {
        let Member { place, address, iwarp, .. } = self.servers[at];
        let (port, host, url) = (address.port().to_string(), address.ip().to_string(), self.etcds.urls());
        let fabric = match (self.plan.shm, self.plan.iwarp) {
            (true, _) => Some(format!("shm:{}", self.folder.join(format!("shm-{at}")).display())),
            (_, true) => Some(format!("iwarp:{host}:{iwarp}")),
            _ => None,
        };
        let advertised = [Some(format!("tcp:{address}")), fabric.clone()].into_iter().flatten();
        let advertised = advertised.collect::<Vec<_>>().join(",");
        // Its agent is this program, too.
        let agent = std::env::current_exe()?.display().to_string();
        // Tags that may be granted for most of the time of a right.
        let lease = format!("{}ms", self.plan.lease / 5);
        let arguments = ["-p", &port, "-l", &host, "-t", "1", "-m", "64", "--etcd", &url, "--cluster", NAME];
        let arguments = arguments.into_iter().chain(["--advertise", &advertised, "--agent", &agent]);
        let arguments = arguments.chain(fabric.iter().flat_map(|fabric| ["--fabric", fabric, "--tag-lease", &lease]));
        let arguments: Vec<String> = arguments.map(str::to_owned).collect();
        let start = || Server::start(None, &arguments, &[], &self.log);
        let process = match &self.network {
            Some(network) => network.within(place, start)?,
            None => start()?,
        };
        self.servers[at].process = Some(process);
        Ok(())
    }

    /// Writes every key once, before the first fault.
    pub(super) fn write_all(&self) -> io::Result<Vec<Did>> {
        let mut worker = Worker::new(&self.plan, &self.etcds.urls(), 0).map_err(other)?;
        (0..KEYS.0 + KEYS.1).for_each(|key| worker.set(key));
        match worker.did.iter().find(|did| !matches!(did.end, Outcome::Effect(Operation { certain: true, .. }))) {
            None => Ok(worker.did),
            Some(did) => Err(io::Error::other(format!("write the first values: {did:?}"))),
        }
    }

    /// Puts the faults in, evenly among the operations, and returns them with their times.
    pub(super) fn put_in_faults(&mut self, shared: &Shared, random: &mut impl Rng) -> io::Result<Vec<(u64, Fault)>> {
        let (faults, mut done) = (self.plan.faults(random), Vec::new());
        for (at, &fault) in faults.iter().enumerate() {
            wait(shared, self.plan.operations * (at as u64 + 1) / (faults.len() as u64 + 1))?;
            if self.is_whole()? {
                self.lost = 0;
            } else if fault == Fault::Drain || fault.loses_a_server() && self.lost == self.plan.may_lose() {
                self.wait_for_all()?;
            }
            self.lost += u32::from(fault.loses_a_server());
            done.push((clock::now(), fault));
            self.put_in(fault, random.random_range(0..self.servers.len()))?;
        }
        wait(shared, self.plan.operations)?;
        self.wait_for_all()?;
        Ok(done)
    }

    /// Puts a fault in, and takes it back. Those of one server are this one's.
    fn put_in(&mut self, fault: Fault, victim: usize) -> io::Result<()> {
        let lease = Duration::from_millis(self.plan.lease.into());
        let server = &mut self.servers[victim];
        match fault {
            Fault::Kill => {
                server.process = None;
                // The others have removed it by then.
                std::thread::sleep(lease * 3);
                self.run(victim)
            }
            Fault::Pause => server.process.as_mut().map_or(Ok(()), |process| process.pause(lease * 3)),
            Fault::Outage => {
                self.etcds.kill_all();
                std::thread::sleep(lease * OUTAGE);
                self.etcds.run(self.network.as_ref())
            }
            Fault::Leader => {
                self.etcds.kill_leader()?;
                std::thread::sleep(lease * OUTAGE);
                self.etcds.run(self.network.as_ref())
            }
            Fault::Cut(peer, direction) => {
                self.cut(victim, peer, direction, true)?;
                std::thread::sleep(lease * CUT);
                self.cut(victim, peer, direction, false)?;
                // It may be removed yet for what was lost.
                std::thread::sleep(lease);
                Ok(())
            }
            Fault::Drain => self.drain(victim),
        }
    }

    /// Cuts a server off, or no more.
    fn cut(&self, victim: usize, peer: Peer, direction: Direction, is_cut: bool) -> io::Result<()> {
        let (Some(network), servers) = (&self.network, self.servers.len()) else { return Ok(()) };
        let others = match peer {
            Peer::Clients => vec![End::Clients],
            Peer::Servers => (0..servers).filter(|&at| at != victim).map(End::At).collect(),
            Peer::Etcd => (servers..servers + usize::from(self.plan.etcds)).map(End::At).collect(),
        };
        for other in others {
            if direction != Direction::In {
                network.cut(End::At(victim), other, is_cut)?;
            }
            if direction != Direction::Out {
                network.cut(other, End::At(victim), is_cut)?;
            }
        }
        Ok(())
    }

    /// Drains a server, waits for its end, and starts it anew.
    fn drain(&mut self, victim: usize) -> io::Result<()> {
        let name = format!("tcp:{}", self.servers[victim].address);
        let drained = self.etcds.store()?.update(|_, config| {
            let server = config.servers().iter().find(|server| server.name == name);
            server.map(|server| config.draining(server.id)).transpose()
        });
        drained.map_err(other)?;
        let begun = Instant::now();
        while let Some(process) = &mut self.servers[victim].process {
            if process.ended()?.is_some() {
                self.servers[victim].process = None;
            } else if begun.elapsed() > PATIENCE {
                return Err(self.stuck(&format!("drain {name}: it does not end")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.run(victim)
    }

    /// Returns whether all servers are up, in an epoch that is whole.
    fn is_whole(&self) -> io::Result<bool> {
        Ok(self.config(&mut self.etcds.store()?)?.is_some_and(|config| {
            let are_up = config.servers().iter().all(|server| server.state == State::Up);
            config.servers().len() == self.servers.len() && are_up && config.is_whole()
        }))
    }

    fn config(&self, store: &mut Store) -> io::Result<Option<Config>> {
        Ok(store.read().map_err(other)?.config().cloned())
    }

    /// Returns the epoch.
    pub(super) fn epoch(&self) -> io::Result<u32> {
        Ok(self.config(&mut self.etcds.store()?)?.map_or(0, |config| config.epoch().0))
    }

    /// Waits until all servers are up, and until no key lacks a copy.
    fn wait_for_all(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        while !self.is_whole()? {
            if begun.elapsed() > PATIENCE {
                let config = self.config(&mut self.etcds.store()?)?;
                return Err(self.stuck(&format!("wait for a whole epoch: it does not come: {config:?}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.lost = 0;
        Ok(())
    }

    /// Returns an error with the last lines of the servers.
    fn stuck(&self, why: &str) -> io::Error {
        let log = std::fs::read_to_string(self.folder.join("servers.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(30)..].join("\n");
        io::Error::other(format!("{why} within {} s; the last lines of servers:\n{last}", PATIENCE.as_secs()))
    }
}

/// Waits until so many operations are done.
fn wait(shared: &Shared, operations: u64) -> io::Result<()> {
    let (mut before, mut since) = (0, Instant::now());
    loop {
        let done = shared.done.load(Ordering::Relaxed);
        if done >= operations {
            return Ok(());
        }
        if done > before {
            (before, since) = (done, Instant::now());
        } else if since.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("no operation ends within {} s", PATIENCE.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns an address in a namespace.
fn there(place: End, port: u16) -> SocketAddr {
    SocketAddr::new(address(place), port)
}

fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    listeners.iter().map(|listener| listener.local_addr().map(|address| address.port())).collect()
}
