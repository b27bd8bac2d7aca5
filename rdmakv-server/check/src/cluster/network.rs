//! Network namespaces: each server and each etcd has one, with an address of its own, and packets between two of them can be lost.
//!
//! The clients have a namespace, too, with a bridge that joins the others. A cut is a permanent neighbour entry with the hardware address of
//! no interface: packets leave, and arrive nowhere. So each direction is cut by itself, and connections learn nothing. All of it ends with this
//! process.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The hardware address of no interface.
const NOWHERE: &str = "02:00:00:00:00:01";
/// The name of the interface in each namespace.
const INTERFACE: &str = "eth0";

/// The namespaces. The thread that makes them is in that of the clients from then on.
#[derive(Debug)]
pub(super) struct Network {
    clients: Namespace,
    others: Vec<Namespace>,
}

/// One end of a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Clients,
    /// One of the other namespaces.
    At(usize),
}

/// A namespace. The process in it keeps it for the commands that name it.
#[derive(Debug)]
struct Namespace {
    holder: Child,
    descriptor: OwnedFd,
}

impl Namespace {
    fn new() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "echo ready; exec cat"]).stdin(Stdio::piped());
        let mut holder = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let is_ready = holder.stdout.as_mut().is_some_and(|output| output.read_exact(&mut [0; 6]).is_ok());
        if !is_ready {
            let _ = holder.wait();
            return Err(io::Error::other("`unshare -n` does not work here"));
        }
        let descriptor = File::open(format!("/proc/{}/ns/net", holder.id()))?.into();
        Ok(Self { holder, descriptor })
    }

    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.descriptor.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Network {
    /// Makes this many namespaces and that of the clients, which this thread enters.
    ///
    /// # Errors
    ///
    /// The process has no right to, or a tool is missing.
    pub(super) fn new(count: usize) -> io::Result<Self> {
        let clients = Namespace::new()?;
        let others = (0..count).map(|_| Namespace::new()).collect::<io::Result<Vec<_>>>()?;
        let this = Self { clients, others };
        this.clients.enter()?;
        ip("link set lo up")?;
        ip("link add br0 type bridge")?;
        ip(&format!("addr add {}/24 dev br0", address(End::Clients)))?;
        ip("link set br0 up")?;
        for (at, other) in this.others.iter().enumerate() {
            ip(&format!("link add v{at} type veth peer name {INTERFACE} netns {}", other.holder.id()))?;
            ip(&format!("link set v{at} master br0 up"))?;
            this.within(End::At(at), || {
                ip("link set lo up")?;
                ip(&format!("addr add {}/24 dev {INTERFACE}", address(End::At(at))))?;
                ip(&format!("link set {INTERFACE} up"))
            })?;
        }
        Ok(this)
    }

    /// Does this in a namespace. Processes that it starts stay there.
    pub(super) fn within<T>(&self, end: End, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if let End::At(at) = end {
            self.others[at].enter()?;
        }
        let done = act();
        self.clients.enter()?;
        done
    }

    /// Loses all packets from one end to another, or no more.
    pub(super) fn cut(&self, from: End, to: End, is_cut: bool) -> io::Result<()> {
        let (interface, to) = (if from == End::Clients { "br0" } else { INTERFACE }, address(to));
        self.within(from, || match is_cut {
            true => ip(&format!("neigh replace {to} lladdr {NOWHERE} dev {interface} nud permanent")),
            false => ip(&format!("neigh del {to} dev {interface}")),
        })
    }
}

/// Returns the address of a namespace.
pub(super) fn address(end: End) -> IpAddr {
    let last = match end {
        End::Clients => 1,
        // There are at most 21.
        End::At(at) => at as u8 + 2,
    };
    IpAddr::from([10, 78, 0, last])
}

fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.map_err(|error| io::Error::other(format!("ip: {error}: install iproute2")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
