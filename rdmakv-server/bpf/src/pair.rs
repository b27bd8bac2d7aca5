//! A pair of network interfaces in two namespaces, for tests and measurements: a server is at one, clients are at the other.
//!
//! Nothing has a name outside of this process and those that it starts. All of it ends with them.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::layout::Settings;
use crate::load::{Gets, Links, OBJECT, missing_capabilities};

/// The server's address.
pub const SERVER: &str = "10.77.0.1";
/// The clients' address.
pub const CLIENT: &str = "10.77.0.2";
/// The server's interface.
pub const INTERFACE: &str = "rdmakva";
/// The clients' one.
pub const OTHER: &str = "rdmakvb";

/// The two namespaces. They end with this, and with the processes and sockets in them.
#[derive(Debug)]
pub struct Pair {
    here: OwnedFd,
    there: OwnedFd,
    /// The pair loses what XDP sends back unless there is a program at its other end.
    _program: (Gets, Links),
}

/// A process in a namespace of its own, until this is dropped.
#[derive(Debug)]
struct Holder(Child);

/// Runs a command; returns what it prints.
///
/// # Errors
///
/// It cannot be started, or fails.
pub fn run(line: &str) -> io::Result<String> {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap_or_default()).args(words).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs this on a thread in a namespace. Processes that it starts are there, too.
///
/// # Errors
///
/// The namespace cannot be entered: CAP_SYS_ADMIN is missing.
///
/// # Panics
///
/// If `act` does.
pub fn within<T: Send>(namespace: impl AsFd + Sync, act: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(act())
        });
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Holder {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "echo ready; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Self(command.spawn()?);
        let mut ready = [0; 6];
        holder.0.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.read_exact(&mut ready)?;
        Ok(holder)
    }

    fn namespace(&self) -> io::Result<OwnedFd> {
        Ok(std::fs::File::open(format!("/proc/{}/ns/net", self.0.id()))?.into())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Pair {
    /// Returns why this process cannot have a pair, if it cannot.
    pub fn lacks() -> Option<String> {
        let missing = missing_capabilities();
        if !missing.is_empty() {
            return Some(format!("this process lacks {}", missing.join(", ")));
        }
        let tools = ["ip -V", "unshare -n true"];
        tools.iter().find(|tool| run(tool).is_err()).map(|tool| format!("`{tool}` does not work here"))
    }

    /// Makes a pair.
    ///
    /// # Errors
    ///
    /// A command that fails, or a program that cannot be loaded.
    pub fn new() -> io::Result<Self> {
        let (one, other) = (Holder::start()?, Holder::start()?);
        let (here, there) = (one.namespace()?, other.namespace()?);
        within(&here, || {
            run(&format!("ip link add {INTERFACE} type veth peer name {OTHER} netns {}", other.0.id()))?;
            run(&format!("ip addr add {SERVER}/24 dev {INTERFACE}"))?;
            run(&format!("ip link set {INTERFACE} up"))?;
            run("ip link set lo up")
        })??;
        let program = within(&there, || {
            run(&format!("ip addr add {CLIENT}/24 dev {OTHER}"))?;
            run(&format!("ip link set {OTHER} up"))?;
            Self::program()
        })??;
        Ok(Self { here, there, _program: program })
    }

    /// Puts a program at the other end, which answers nothing.
    fn program() -> io::Result<(Gets, Links)> {
        let settings = Settings {
            value_size: 1 << 20,
            memory: 1 << 20,
            shard_size: 1 << 20,
            buckets: 64,
            secret: [1, 2],
            clock: 0,
            without_cas: false,
            only_tcx: false,
            mtu: 1500,
            port: 1,
            mac: [0; 6],
            addresses: Vec::new(),
            sources: Vec::new(),
        };
        let gets = Gets::load(OBJECT, &settings, None).map_err(io::Error::other)?;
        let shown = run(&format!("ip -o link show {OTHER}"))?;
        let number = shown.split(':').next().and_then(|number| number.parse().ok());
        let number = number.ok_or_else(|| io::Error::other("ip shows no number of an interface"))?;
        let links = gets.attach(number, true).map_err(io::Error::other)?;
        Ok((gets, links))
    }

    /// Runs this where the server is.
    ///
    /// # Errors
    ///
    /// See [`within`].
    pub fn here<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        within(&self.here, act)
    }

    /// Runs this where clients are.
    ///
    /// # Errors
    ///
    /// See [`within`].
    pub fn there<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        within(&self.there, act)
    }

    /// Returns the path of the clients' namespace, for other processes: they can open it as long as this is not dropped.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.there.as_raw_fd())
    }
}
