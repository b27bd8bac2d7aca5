//! Two hosts on one machine, in network namespaces of their own, and two ways between them: one that can be cut, through a router, and
//! a cable beside it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::common::soon;

/// A network namespace. It goes with the process that is in it, and that with this one's end of its input.
#[derive(Debug)]
pub(crate) struct Host {
    process: Child,
    place: File,
}

impl Host {
    fn new() -> Result<Self, String> {
        let process = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut process = process.map_err(|error| format!("unshare: {error}"))?;
        let mut echo = [0];
        let said = process.stdin.as_mut().unwrap().write_all(b"x");
        if said.and_then(|()| process.stdout.as_mut().unwrap().read_exact(&mut echo)).is_err() {
            let mut why = String::new();
            let _ = process.stderr.as_mut().unwrap().read_to_string(&mut why);
            let _ = process.wait();
            return Err(why.trim().to_owned());
        }
        let place = File::open(format!("/proc/{}/ns/net", process.id())).map_err(|error| error.to_string())?;
        Ok(Self { process, place })
    }

    /// Does something in a thread that is there; what it starts is there too.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.place.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn run(&self, command: &str) -> Result<(), String> {
        let mut words = command.split_whitespace();
        let output = self.inside(|| Command::new(words.next().unwrap()).args(words).output());
        let output = output.map_err(|error| format!("{command}: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How the way is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// No end is told: the router forwards nothing more.
    Silently,
    /// The client sees that there is no cable in its card.
    Cable,
}

/// A server's host and a client's.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) server: Host,
    pub(crate) client: Host,
    router: Host,
}

/// The server's address over the way that can be cut, and over the other.
pub(crate) const FAR: &str = "10.77.1.1";
pub(crate) const NEAR: &str = "10.77.3.1";

impl Hosts {
    /// Makes it where this is permitted; else it prints why not.
    pub(crate) fn new() -> Option<Self> {
        match Self::lay() {
            Ok(hosts) => Some(hosts),
            Err(why) => {
                eprintln!("SKIPPED: no network namespaces with a router between them here: {why}");
                None
            }
        }
    }

    fn lay() -> Result<Self, String> {
        let hosts = Self { server: Host::new()?, client: Host::new()?, router: Host::new()? };
        let cables = [
            ("far", &hosts.server, &hosts.router, "10.77.1"),
            ("way", &hosts.client, &hosts.router, "10.77.2"),
            ("near", &hosts.server, &hosts.client, "10.77.3"),
        ];
        for (name, one, other, net) in cables {
            let at = |host: &Host| host.process.id();
            one.run(&format!("ip link add {name} type veth peer name {name} netns {}", at(other)))?;
            for (host, number) in [(one, 1), (other, 2)] {
                host.run(&format!("ip address add {net}.{number}/24 dev {name}"))?;
                host.run(&format!("ip link set {name} up"))?;
            }
        }
        for host in [&hosts.server, &hosts.client, &hosts.router] {
            host.run("ip link set lo up")?;
        }
        hosts.server.run("ip route add 10.77.2.0/24 via 10.77.1.2")?;
        hosts.client.run("ip route add 10.77.1.0/24 via 10.77.2.2")?;
        hosts.forward(true)?;
        Ok(hosts)
    }

    fn forward(&self, does: bool) -> Result<(), String> {
        let place = "/proc/sys/net/ipv4/ip_forward";
        self.router
            .inside(|| std::fs::write(place, if does { "1" } else { "0" }))
            .map_err(|error| format!("{place}: {error}"))
    }

    pub(crate) fn cut(&self, how: Cut) {
        match how {
            Cut::Silently => self.forward(false).unwrap(),
            Cut::Cable => self.router.run("ip link set way down").unwrap(),
        }
    }

    pub(crate) fn mend(&self) {
        self.router.run("ip link set way up").unwrap();
        self.forward(true).unwrap();
    }

    /// Cuts the other way, from which nothing is to be had either then; or mends it.
    pub(crate) fn near(&self, is_there: bool) {
        self.server.run(if is_there { "ip link set near up" } else { "ip link set near down" }).unwrap();
    }

    /// Makes the way that can be cut a slow one, 2.5 MB a second: false, and a line, where the system cannot.
    pub(crate) fn slow_down(&self) -> bool {
        let slow =
            |name| self.router.run(&format!("tc qdisc add dev {name} root tbf rate 20mbit burst 16k latency 200ms"));
        let done = slow("far").and_then(|()| slow("way"));
        if let Err(why) = &done {
            eprintln!("SKIPPED: this system makes no slow networks: {why}");
        }
        done.is_ok()
    }

    /// Bytes that have gone over that way, in both directions.
    fn passed(&self) -> u64 {
        let text = self.router.inside(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("way:")).unwrap();
        let numbers: Vec<u64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
        numbers[0] + numbers[8]
    }

    /// Cuts the way when so many more bytes have gone over it.
    pub(crate) fn cut_after(&self, before: u64, bytes: u64, how: Cut) {
        soon("that something is on its way", || self.passed() >= before + bytes);
        self.cut(how);
    }

    /// Returns the mark that [`cut_after`](Self::cut_after) counts from.
    pub(crate) fn mark(&self) -> u64 {
        self.passed()
    }
}
