//! The processes: one etcd, servers with their agents, and what is seen of them from outside.

use super::{CLIENT, SERVERS};
use crate::pin;
use crate::side_by_side::kv::OURS;
use crate::side_by_side::remote::Outcome;
use rdmakv_client::{Client, Options};
use rdmakv_cluster::config::{Config, Policy, State};
use rdmakv_cluster::etcd::{self, Endpoint, Store};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time after which something that must happen is taken for never happening.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// The largest item: a value of 1 MiB with its key fits into the largest chunk, and leaves little of it.
const ITEM: &str = "1025k";
/// The name of the cluster in etcd.
const NAME: &str = "main";

/// A process that ends with this.
struct Process {
    child: Child,
    /// The file of its output.
    log: PathBuf,
}

impl Process {
    /// Starts a program on a CPU.
    fn start(mut command: Command, cpu: usize, log: &Path) -> io::Result<Self> {
        // Without the lines of an earlier run.
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = pin::on(cpu, move || command.spawn())?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Returns an error, with the last lines that it printed, if it has ended.
    fn is_running(&mut self) -> Outcome<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        Err(format!("it ended with {status}: {}", lines[lines.len().saturating_sub(3)..].join("; ")).into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One etcd.
pub(super) struct Etcd {
    process: Process,
    url: String,
}

impl Etcd {
    /// Returns its version.
    pub(super) fn version() -> String {
        let output = Command::new("etcd").arg("--version").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
        version.map_or("etcd, which is not here: apt-get install etcd-server".into(), |version| {
            format!("etcd {}", version.trim())
        })
    }

    fn start(folder: &Path, cpu: usize) -> Outcome<Self> {
        let [client, peer] = free_ports()?;
        let (url, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new("etcd");
        for (name, value) in [
            ("name", "m0".to_owned()),
            ("data-dir", folder.join("etcd").display().to_string()),
            ("listen-client-urls", url.clone()),
            ("advertise-client-urls", url.clone()),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer.clone()),
            ("initial-cluster", format!("m0={peer}")),
            ("logger", "zap".to_owned()),
        ] {
            command.arg(format!("--{name}={value}"));
        }
        let process = Process::start(command, cpu, &folder.join("etcd.log")).map_err(|error| match error.kind() {
            ErrorKind::NotFound => "start etcd: there is no such program: apt-get install etcd-server".to_owned(),
            _ => format!("start etcd: {error}"),
        })?;
        Ok(Self { process, url })
    }

    fn store(&self) -> Outcome<Store> {
        Ok(Store::new(etcd::Etcd::new(Endpoint::list(&self.url)?, PATIENCE), NAME)?)
    }

    /// Makes the cluster, as soon as etcd answers.
    fn create(&mut self, policies: &[(String, Policy)]) -> Outcome<()> {
        let mut config = Config::new(std::process::id().into());
        for (prefix, policy) in policies {
            config = config.with_policy(prefix.as_bytes(), *policy)?;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let done = self.store()?.create(&config);
            match done {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(format!("start etcd: {error}").into()),
                Err(_) => self.process.is_running().map_err(|error| format!("start etcd: {error}"))?,
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// A server: where it is, and its process while it runs.
pub(super) struct Server {
    port: u16,
    fabric: String,
    memory: u64,
    cpu: usize,
    process: Option<Process>,
}

impl Server {
    fn new(cpu: usize, memory: u64) -> Outcome<Self> {
        let [port] = free_ports()?;
        let fabric = format!("shm:@side-by-side-{}-{port}", std::process::id());
        Ok(Self { port, fabric, memory, cpu, process: None })
    }

    /// Starts one that has no cluster, with so many MiB of memory.
    pub(super) fn alone(folder: &Path, cpu: usize, memory: u64) -> Outcome<Self> {
        let mut server = Self::new(cpu, memory)?;
        server.start(folder, &[])?;
        Ok(server)
    }

    fn start(&mut self, folder: &Path, more: &[&str]) -> Outcome<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0(OURS).args(["-l", "127.0.0.1", "-I", ITEM]).args(["-p", &self.port.to_string()]);
        command.args(["-m", &self.memory.to_string(), "--fabric", &self.fabric]).args(more);
        command.env_remove("RDMAKV_ETCD").env_remove("RDMAKV_SERVERS");
        let log = folder.join(format!("{}.log", self.port));
        let process = self.process.insert(Process::start(command, self.cpu, &log)?);
        let until = Instant::now() + PATIENCE;
        // It prints that last.
        while !fs::read_to_string(&log).unwrap_or_default().contains("SIGTERM ends it") {
            process.is_running().map_err(|error| format!("start a server: {error}"))?;
            if Instant::now() >= until {
                return Err(format!("start a server: it is not ready within {} s", PATIENCE.as_secs()).into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Returns its name in the cluster.
    fn name(&self) -> String {
        format!("tcp:127.0.0.1:{}", self.port)
    }

    /// Returns its address over the fabric.
    pub(super) fn fabric(&self) -> &str {
        &self.fabric
    }

    /// Returns a client that asks it for its counts.
    pub(super) fn watcher(&self) -> Outcome<Watcher> {
        let options = Options { timeout: PATIENCE, connect_timeout: PATIENCE, ..Options::default() };
        Ok(Watcher(Client::with_options([self.name()], options)?))
    }

    /// Returns its process and those that it started.
    pub(super) fn processes(&self) -> Vec<u32> {
        let own = self.process.as_ref().map(|process| process.child.id());
        own.into_iter().flat_map(|own| std::iter::once(own).chain(children(own))).collect()
    }
}

/// One memcached.
pub(super) struct Memcached {
    process: Process,
    pub(super) address: String,
}

impl Memcached {
    const PROGRAM: &str = "memcached";

    /// Returns its version, if it is installed.
    pub(super) fn version() -> Option<String> {
        let output = Command::new(Self::PROGRAM).arg("-V").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Starts one that has so many MiB of memory, and waits until it listens.
    pub(super) fn start(folder: &Path, cpu: usize, memory: u64) -> Outcome<Self> {
        let [port] = free_ports()?;
        let mut command = Command::new(Self::PROGRAM);
        // It refuses to run as root without being told so.
        command.args(["-u", "root", "-l", "127.0.0.1", "-I", "2m", "-p", &port.to_string(), "-m", &memory.to_string()]);
        let mut process = Process::start(command, cpu, &folder.join(format!("{port}.log")))?;
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            process.is_running().map_err(|error| format!("start memcached: {error}"))?;
            if Instant::now() >= until {
                return Err(format!("start memcached: it does not listen within {} s", PATIENCE.as_secs()).into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(Self { process, address: format!("tcp:127.0.0.1:{port}") })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.child.id()
    }
}

/// Reads the counts of a server, over TCP.
pub(super) struct Watcher(Client);

impl Watcher {
    /// Returns the counts of a kind.
    pub(super) fn stats(&mut self, kind: &str) -> Outcome<Vec<(String, u64)>> {
        let (_, stats) = self.0.stats(kind).pop().ok_or("no server was asked")?;
        Ok(stats?.into_iter().filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect())
    }

    /// Returns a count of the server as a member of the cluster.
    pub(super) fn cluster(&mut self, name: &str) -> Outcome<u64> {
        self.count("cluster", name)
    }

    /// Returns a count of a kind.
    pub(super) fn count(&mut self, kind: &str, name: &str) -> Outcome<u64> {
        let found = self.stats(kind)?.into_iter().find(|(found, _)| found == name);
        Ok(found.ok_or_else(|| format!("a server has no count {name}"))?.1)
    }
}

/// Servers and their etcd.
pub(super) struct Cluster {
    /// Before etcd: they end first.
    pub(super) servers: Vec<Server>,
    etcd: Etcd,
    folder: PathBuf,
}

impl Cluster {
    /// Starts all servers with so many MiB of memory each, on these CPUs in turn, and waits until they serve.
    pub(super) fn start(folder: &Path, cpus: &[usize], memory: u64, policies: &[(String, Policy)]) -> Outcome<Self> {
        let cpu = |nth: usize| cpus.get(nth % cpus.len().max(1)).copied().ok_or("no CPU for servers");
        // Servers start this as their agent's program.
        std::os::unix::fs::symlink(std::env::current_exe()?, folder.join(CLIENT))?;
        let mut etcd = Etcd::start(folder, cpu(cpus.len() - 1)?)?;
        etcd.create(policies)?;
        let servers = (0..SERVERS).map(|nth| Server::new(cpu(nth)?, memory)).collect::<Outcome<_>>()?;
        let mut cluster = Self { servers, etcd, folder: folder.to_owned() };
        (0..SERVERS).try_for_each(|at| cluster.run(at))?;
        cluster.is_whole()?;
        Ok(cluster)
    }

    /// Starts a server that does not run. It is empty.
    pub(super) fn run(&mut self, at: usize) -> Outcome<()> {
        let server = &mut self.servers[at];
        let advertised = format!("{},{}", server.name(), server.fabric);
        let agent = self.folder.join(CLIENT).display().to_string();
        server.start(&self.folder, &["--etcd", &self.etcd.url, "--advertise", &advertised, "--agent", &agent])
    }

    /// Kills a server. Its agent ends with it.
    pub(super) fn kill(&mut self, at: usize) {
        self.servers[at].process = None;
    }

    /// Returns a cluster for clients.
    pub(super) fn of_clients(&self) -> rdmakv_client::Cluster {
        rdmakv_client::Cluster::new(&self.etcd.url)
    }

    /// Returns clients that ask the running servers for their counts.
    pub(super) fn watchers(&self) -> Outcome<Vec<Watcher>> {
        let running = self.servers.iter().filter(|server| server.process.is_some());
        running.map(Server::watcher).collect()
    }

    /// Returns the processes of all servers and agents.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.servers.iter().flat_map(Server::processes).collect()
    }

    /// Waits until all servers are up and no key lacks a piece.
    pub(super) fn is_whole(&self) -> Outcome<()> {
        self.wait("for a whole epoch of all servers", |config| {
            let are_up = config.servers().iter().all(|server| server.state == State::Up);
            config.servers().len() == SERVERS && are_up && config.is_whole()
        })
    }

    /// Waits until the cluster has so many servers, in an epoch in which all of them serve.
    pub(super) fn has(&self, servers: usize) -> Outcome<()> {
        self.wait("until the others go on without the lost servers", |config| config.servers().len() == servers)
    }

    /// Waits for a configuration, and then for all running servers to serve in it.
    fn wait(&self, what: &str, is_so: impl Fn(&Config) -> bool) -> Outcome<()> {
        let mut store = self.etcd.store()?;
        let mut watchers = self.watchers()?;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(config) = store.read()?.config().filter(|config| is_so(config)) {
                let mut serve = true;
                for watcher in &mut watchers {
                    let epoch = u64::from(config.epoch().0);
                    serve &= watcher.cluster("epoch")? == epoch && watcher.cluster("right")? == 1;
                }
                if serve {
                    return Ok(());
                }
            }
            if Instant::now() >= until {
                return Err(format!("wait {what}: it does not come within {} s", PATIENCE.as_secs()).into());
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Returns the processes that a process started and that run.
fn children(of: u32) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = |process: &u32| -> Option<u32> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The state and the parent's number are behind the name, which may have anything in it.
        text.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    numbers.filter(|process| parent(process) == Some(of)).collect()
}

/// Returns ports that were free just now.
fn free_ports<const COUNT: usize>() -> Outcome<[u16; COUNT]> {
    let listeners = (0..COUNT).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>()?;
    let mut ports = [0; COUNT];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_start_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room >&2; exit 3"]);
        let cpu = pin::allowed().unwrap()[0];
        let mut process = Process::start(command, cpu, &folder.path().join("log")).unwrap();
        process.child.wait().unwrap();
        let error = process.is_running().unwrap_err().to_string();
        assert!(error.contains("status: 3") && error.contains("no room"), "{error}");
    }

    #[test]
    fn children_are_found() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let found = children(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()), "{found:?}");
    }
}
