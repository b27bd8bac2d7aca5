//! The etcd of a run: one server or several, which are killed and started anew.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdmakv_cluster::etcd::http::Answer;
use rdmakv_cluster::etcd::{Endpoint, Etcd, Store};

use super::network::{End, Network};
use super::{NAME, PATIENCE, other};

/// How long one etcd may take to tell whether it leads.
const STATUS: Duration = Duration::from_secs(2);

/// The servers of etcd.
#[derive(Debug)]
pub(super) struct Etcds(Vec<Member>);

#[derive(Debug)]
struct Member {
    address: SocketAddr,
    place: End,
    arguments: Vec<String>,
    process: Option<Child>,
}

impl Etcds {
    /// Starts one at each place, with the addresses for clients and for the others.
    pub(super) fn start(
        folder: &Path,
        places: &[(End, SocketAddr, SocketAddr)],
        network: Option<&Network>,
    ) -> io::Result<Self> {
        let all: Vec<String> =
            places.iter().enumerate().map(|(at, (_, _, peer))| format!("m{at}=http://{peer}")).collect();
        let member = |(at, &(place, address, peer)): (usize, &(End, SocketAddr, SocketAddr))| {
            let (client, peer) = (format!("http://{address}"), format!("http://{peer}"));
            let arguments = [
                ("name", format!("m{at}")),
                ("data-dir", folder.join(format!("etcd-{at}")).display().to_string()),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer),
                ("initial-cluster", all.join(",")),
                ("logger", "zap".to_owned()),
                ("log-outputs", "/dev/null".to_owned()),
            ];
            let arguments = arguments.map(|(name, value)| format!("--{name}={value}")).into();
            Member { address, place, arguments, process: None }
        };
        let mut this = Self(places.iter().enumerate().map(member).collect());
        this.run(network)?;
        Ok(this)
    }

    /// Returns the addresses as `--etcd` takes them.
    pub(super) fn urls(&self) -> String {
        let urls: Vec<String> = self.0.iter().map(|member| format!("http://{}", member.address)).collect();
        urls.join(",")
    }

    pub(super) fn store(&self) -> io::Result<Store> {
        let endpoints = Endpoint::list(&self.urls()).map_err(other)?;
        Store::new(Etcd::new(endpoints, Duration::from_secs(5)), NAME).map_err(other)
    }

    /// Starts those that do not run, and waits until they answer.
    pub(super) fn run(&mut self, network: Option<&Network>) -> io::Result<()> {
        for member in self.0.iter_mut().filter(|member| member.process.is_none()) {
            let arguments = &member.arguments;
            member.process = Some(match network {
                Some(network) => network.within(member.place, || spawn(arguments))?,
                None => spawn(arguments)?,
            });
        }
        let begun = Instant::now();
        while !self.0.iter().all(|member| member.leads().is_some()) {
            if begun.elapsed() > PATIENCE {
                return Err(io::Error::other("etcd does not answer: see whether its ports are free"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(super) fn kill_all(&mut self) {
        self.0.iter_mut().for_each(Member::kill);
    }

    /// Kills the one that leads.
    pub(super) fn kill_leader(&mut self) -> io::Result<()> {
        let leader = self.0.iter_mut().find(|member| member.leads() == Some(true));
        leader.map(Member::kill).ok_or_else(|| io::Error::other("no etcd leads"))
    }
}

impl Drop for Etcds {
    fn drop(&mut self) {
        self.kill_all();
    }
}

impl Member {
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Returns whether it leads; None if it does not answer, or if there is no leader.
    fn leads(&self) -> Option<bool> {
        let mut stream = TcpStream::connect_timeout(&self.address, STATUS).ok()?;
        stream.set_read_timeout(Some(STATUS)).ok()?;
        write!(stream, "POST /v3/maintenance/status HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{{}}").ok()?;
        let (mut answer, mut bytes) = (Answer::default(), [0; 4096]);
        while !answer.is_done() {
            let count = stream.read(&mut bytes).ok().filter(|&count| count > 0)?;
            answer.push(&bytes[..count]).ok()?;
        }
        leads(std::str::from_utf8(answer.body()).ok()?)
    }
}

/// Returns whether the etcd with this status leads.
fn leads(status: &str) -> Option<bool> {
    let number = |name: &str| {
        let (_, rest) = status.split_once(&format!("\"{name}\":\""))?;
        rest.split_once('"').map(|(number, _)| number)
    };
    let leader = number("leader").filter(|&leader| leader != "0")?;
    Some(number("member_id")? == leader)
}

fn spawn(arguments: &[String]) -> io::Result<Child> {
    let mut etcd = Command::new("etcd");
    let etcd = etcd.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    etcd.spawn().map_err(|error| io::Error::other(format!("start etcd: {error}: install etcd-server 3.4 or later")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_recognized() {
        let status = |leader| format!(r#"{{"header":{{"member_id":"17","raft_term":"2"}},"leader":"{leader}"}}"#);
        assert_eq!(leads(&status("17")), Some(true));
        assert_eq!(leads(&status("18")), Some(false));
        assert_eq!((leads(&status("0")), leads(r#"{"header":{"member_id":"17"}}"#)), (None, None));
    }
}
