//! A server under the paper's load, and what its turns took.

use super::calls::{Calls, calls};
use super::load::{Load, Mix, Turn};
use super::one_sided::OneSided;
use super::server::{Cpu, Server, Switches, Whose};
use super::share::Share;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::Setting;
use crate::side_by_side::remote::Outcome;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// How a GET comes to its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Iwarp,
    Shm,
    Udp,
    Tcp,
    Memcached,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
            Self::Shm => "shm",
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Memcached => "memcached",
        }
    }

    /// Returns an address of this fabric without a listener; none if it is no fabric.
    pub(super) fn address(self) -> Outcome<Option<String>> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Ok(match self {
            Self::Iwarp => {
                // It is free now, and unlikely to be taken at once.
                let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
                Some(format!("iwarp:127.0.0.1:{port}"))
            }
            Self::Shm => Some(format!("shm:@side-by-side-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed))),
            Self::Udp => {
                let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
                Some(format!("udp:127.0.0.1:{port}"))
            }
            Self::Tcp | Self::Memcached => None,
        })
    }
}

enum Asking {
    Sockets(Load),
    Fabric(Box<OneSided>),
}

/// A turn: what was asked, and what of it the server had.
pub(super) struct Lap {
    pub(super) turn: Turn,
    pub(super) cpu: Cpu,
    pub(super) switches: Switches,
}

/// A server, the load on it, and its turns.
pub(super) struct Contestant {
    pub(super) way: Way,
    asking: Asking,
    pub(super) server: Server,
    pub(super) laps: Vec<Lap>,
    pub(super) calls: Option<Calls>,
    asked: u64,
    /// Goes after the server.
    _share: Option<Share>,
}

impl Contestant {
    /// Starts a server and stores the values.
    pub(super) fn begin(way: Way, cpu: usize, mix: Mix, threads: usize, connections: usize) -> Outcome<Self> {
        let threads = threads.to_string();
        let mut flags = vec!["-m", "1024", "-I", "2m", "-t", &threads];
        let address = way.address()?;
        if way != Way::Memcached {
            let fabric = address.as_deref().unwrap_or("none");
            flags.extend(["--fabric", fabric, "--tag-lease", "60s", "--registered-memory", "2048"]);
        }
        let whose = if way == Way::Memcached { Whose::Peer } else { Whose::Ours };
        let server = Server::start(whose, cpu, &flags)?;
        let asking = match &address {
            Some(address) => Asking::Fabric(Box::new(OneSided::begin(address, connections, mix)?)),
            None => Asking::Sockets(Load::begin(&server.address, mix)?),
        };
        Ok(Self { way, asking, server, laps: Vec::new(), calls: None, asked: 0, _share: None })
    }

    /// Leaves it so many percent of a CPU.
    pub(super) fn reduce(&mut self, percent: u32) -> Outcome<()> {
        let share =
            Share::new(percent).map_err(|error| format!("a share of a CPU: {error}; control groups take root"))?;
        share.take(self.server.process())?;
        self._share = Some(share);
        Ok(())
    }

    /// A turn that is measured.
    pub(super) fn turn(&mut self, setting: &Setting) -> Outcome<()> {
        let (cpu, switches) = (self.server.cpu()?, self.server.switches()?);
        let before = self.asked();
        let turn = self.load(setting)?;
        self.asked += self.asked() - before;
        self.laps.push(Lap {
            turn,
            cpu: self.server.cpu()?.since(cpu),
            switches: self.server.switches()?.since(switches),
        });
        Ok(())
    }

    /// A turn that is not.
    pub(super) fn load(&mut self, setting: &Setting) -> Outcome<Turn> {
        match &mut self.asking {
            Asking::Sockets(load) => load.turn(setting.whole),
            Asking::Fabric(load) => load.turn(setting.whole),
        }
    }

    fn asked(&self) -> u64 {
        match &self.asking {
            Asking::Sockets(_) => 0,
            Asking::Fabric(load) => load.asked,
        }
    }

    /// Has its system calls counted.
    pub(super) fn count_calls(&mut self) -> Outcome<()> {
        let asking = &mut self.asking;
        self.calls = calls(self.server.process(), |count| match asking {
            Asking::Sockets(load) => load.one_by_one(count),
            Asking::Fabric(load) => load.one_by_one(count),
        })?;
        Ok(())
    }

    /// For a request, the best of the rounds.
    pub(super) fn rounds(&self, of: impl Fn(&Lap) -> f64) -> Figure {
        Figure::lowest(self.laps.iter().map(|lap| of(lap) / lap.turn.requests as f64).collect())
    }

    pub(super) fn requests(&self) -> f64 {
        self.laps.iter().map(|lap| lap.turn.requests).sum::<u64>() as f64
    }

    /// For a request of all rounds together: the clock's ticks are too coarse for one.
    pub(super) fn ticks(&self, part: fn(&Cpu) -> u64) -> Figure {
        Figure::once(self.laps.iter().map(|lap| part(&lap.cpu)).sum::<u64>() as f64 / self.requests())
    }

    /// Returns the share of GETs that the server answered.
    pub(super) fn answered(&self) -> Figure {
        Figure::once(self.asked as f64 / self.requests())
    }
}

/// Runs turns, there and back, so that no contestant always runs behind the same other.
pub(super) fn rounds(setting: &Setting, all: &mut [Contestant]) -> Outcome<()> {
    for round in 0..setting.rounds.max(if setting.quick { 1 } else { 5 }) {
        for nth in 0..all.len() {
            let nth = if round % 2 == 0 { nth } else { all.len() - 1 - nth };
            all[nth].turn(setting)?;
        }
    }
    Ok(())
}
