//! The plan of a run: its size, and the faults that are put in.

use std::fmt;
use std::io;

use clap::Args;
use rand::{Rng, RngExt};
use rdmakv_cluster::config::Policy;

use crate::values::MOST_THREADS;

const EXAMPLES: &str = "Examples:
  rdmakv-check cluster
  rdmakv-check cluster --shm -n 100000 --seed 7         other faults, by another seed
  rdmakv-check cluster --iwarp --kills 4 --cuts 6       more of some
  rdmakv-check cluster --policy code:4+2 --servers 7

Cuts need namespaces, which root can make. Without that they are left out, and a line says so.";

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
    /// Servers of etcd
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub etcds: u8,
    /// How values are stored: copies:N or code:K+M
    #[arg(long, default_value = "copies:3", value_name = "POLICY")]
    pub policy: Policy,
    /// Servers that are killed, and started anew without values
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub kills: u32,
    /// Servers that stand still for longer than their right, and go on
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub pauses: u32,
    /// Times that all of etcd is killed and started anew
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub outages: u32,
    /// Times that the leader of etcd is killed and started anew
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub leaders: u32,
    /// Servers that are cut off from etcd, from the other servers or from clients, one way or both
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub cuts: u32,
    /// Servers that are drained, and join anew
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub drains: u32,
    /// Clients reach servers by shared memory too
    #[arg(long, conflicts_with = "iwarp")]
    pub shm: bool,
    /// Clients reach servers by iWARP in user space too
    #[arg(long)]
    pub iwarp: bool,
    /// The right of servers, in milliseconds
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u32).range(500..=60_000))]
    pub lease: u32,
    /// Seed of random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// How many leases of servers a cut lasts. The others have removed the server by then, if they do.
pub(super) const CUT: u32 = 3;
/// How many leases of servers etcd is away.
pub(super) const OUTAGE: u32 = 2;

/// A fault that is put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Kill,
    Pause,
    Outage,
    Leader,
    Cut(Peer, Direction),
    Drain,
}

/// The peers that a server is cut off from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    Etcd,
    Servers,
    Clients,
}

/// The packets that a cut loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Both,
    /// Those that the server sends.
    Out,
    /// Those that are sent to the server.
    In,
}

impl Fault {
    /// The kinds of faults, in the order of a report.
    pub(super) const KINDS: [&'static str; 8] = [
        "server killed",
        "server paused",
        "all of etcd killed",
        "leader of etcd killed",
        "server cut off from etcd",
        "server cut off from servers",
        "server cut off from clients",
        "server drained",
    ];

    /// Returns its kind.
    pub(super) fn kind(self) -> &'static str {
        Self::KINDS[match self {
            Self::Kill => 0,
            Self::Pause => 1,
            Self::Outage => 2,
            Self::Leader => 3,
            Self::Cut(Peer::Etcd, _) => 4,
            Self::Cut(Peer::Servers, _) => 5,
            Self::Cut(Peer::Clients, _) => 6,
            Self::Drain => 7,
        }]
    }

    /// Returns how many leases of servers one of this kind lasts, if nothing can take the place of what it takes away.
    pub(super) fn lasts(kind: &str) -> Option<u32> {
        let kinds = [(Self::KINDS[2], OUTAGE), (Self::KINDS[4], CUT), (Self::KINDS[6], CUT)];
        kinds.iter().find(|(name, _)| *name == kind).map(|&(_, leases)| leases)
    }

    /// Returns whether the cluster may remove a server for it.
    pub(super) fn loses_a_server(self) -> bool {
        matches!(self, Self::Kill | Self::Pause | Self::Cut(..))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Self::Cut(_, Direction::Out) => f.write_str(", what it sends"),
            Self::Cut(_, Direction::In) => f.write_str(", what it is sent"),
            _ => Ok(()),
        }
    }
}

impl Plan {
    /// Returns how many servers may be lost between two whole epochs.
    pub(super) fn may_lose(&self) -> u32 {
        self.policy.may_lose() as u32
    }

    /// Refuses a plan that makes no sense.
    pub(super) fn check(&self) -> io::Result<()> {
        let (group, servers) = (self.policy.group_size(), usize::from(self.servers));
        let why = if self.may_lose() == 0 {
            "choose a policy: values would not survive a server: take copies:N or code:K+M"
        } else if group > servers {
            "choose a policy: there are fewer servers: raise --servers"
        } else if self.drains > 0 && group == servers {
            "choose drains: no server could take the keys of one that drains: raise --servers, or ask for --drains 0"
        } else if self.leaders > 0 && self.etcds < 3 {
            "choose leaders: the other etcds have to elect one: raise --etcds to 3, or ask for --leaders 0"
        } else {
            return Ok(());
        };
        Err(io::Error::other(why))
    }

    /// Returns the faults in a random order. Cuts take turns, so that few of them are of all kinds.
    pub(super) fn faults(&self, random: &mut impl Rng) -> Vec<Fault> {
        let of = |fault, count| (0..count).map(move |_| fault);
        let mut faults: Vec<Fault> = of(Fault::Kill, self.kills).collect();
        faults.extend(of(Fault::Pause, self.pauses).chain(of(Fault::Outage, self.outages)));
        faults.extend(of(Fault::Leader, self.leaders).chain(of(Fault::Drain, self.drains)));
        let first = random.random_range(0..3);
        for at in 0..self.cuts as usize {
            let peer = [Peer::Etcd, Peer::Servers, Peer::Clients][at % 3];
            // Each kind of peer has all directions in nine cuts.
            let direction = [Direction::Both, Direction::Out, Direction::In][(first + at + at / 3) % 3];
            faults.push(Fault::Cut(peer, direction));
        }
        // Fisher and Yates.
        (1..faults.len()).rev().for_each(|at| faults.swap(at, random.random_range(0..=at)));
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        plan: Plan,
    }

    #[test]
    fn nine_cuts_are_of_all_kinds() {
        for seed in 0..20 {
            let plan = Cli::parse_from(["x", "--cuts", "9", "--kills", "0", "--pauses", "0"]).plan;
            let faults = plan.faults(&mut Pcg64Mcg::seed_from_u64(seed));
            for peer in [Peer::Etcd, Peer::Servers, Peer::Clients] {
                for direction in [Direction::Both, Direction::Out, Direction::In] {
                    assert!(faults.contains(&Fault::Cut(peer, direction)), "{seed}: {faults:?}");
                }
            }
            assert_eq!(faults.len(), 12);
        }
    }
}
