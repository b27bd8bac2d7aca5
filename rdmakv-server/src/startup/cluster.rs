//! The flags of a server in a cluster.

use std::path::PathBuf;

use clap::Args;

use rdmakv_cluster::config::{MAX_ADDRESS, MAX_ADDRESSES, MAX_NAME};
use rdmakv_cluster::etcd::Endpoint;
use rdmakv_cluster::facts::Keys;
use rdmakv_cluster::membership::Identity;

use crate::net::membership::{Agent, Place};
use crate::session::DIRTY_LIMIT;

/// How far the clocks of two servers may be from each other, in nanoseconds.
const CLOCK_SKEW: u64 = 1_000_000_000;

/// The flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Keys that survive their servers")]
pub(super) struct ClusterFlags {
    /// Join a cluster: keys with a policy (rdmakv cluster policy) survive their servers. The servers of etcd, with commas: http://HOST[:PORT].
    /// Without it there is RDMAKV_ETCD, which may have http://USER:PASSWORD@HOST: a command line is public
    #[arg(long = "etcd", value_name = "URL", requires = "advertise")]
    etcd: Option<String>,
    /// The cluster's name in etcd
    #[arg(long = "cluster", value_name = "NAME", default_value = "main", requires = "advertise")]
    cluster: String,
    /// Addresses at which clients and the other servers reach this one, best first, with commas: tcp:10.0.0.1:11211. One is over TCP.
    /// The first is the server's name, too: keep it, and its keys stay its own
    #[arg(long = "advertise", value_name = "ADDR", value_delimiter = ',')]
    advertise: Vec<String>,
    /// The program that repairs this server's keys, which the server starts and ends: rdmakv, beside this program or in PATH. Or no: start
    /// rdmakv agent otherwise, or epochs never become whole
    #[arg(long = "agent", value_name = "PATH|no", requires = "advertise")]
    agent: Option<String>,
    /// Share of -m that chunks of files may take which the backing directory does not have yet (rdmakv-fuse), in percent. Writes beyond it wait
    #[arg(
        long = "dirty-limit",
        value_name = "PERCENT",
        default_value_t = DIRTY_LIMIT,
        value_parser = clap::value_parser!(u8).range(1..=85),
        requires = "advertise"
    )]
    dirty_limit: u8,
    /// The directory that has the files in the end, as mounts and agents have it (rdmakv-fuse). This server writes its own chunks there itself,
    /// as the user that the agent runs as, or root. Without it they go through the agent
    #[arg(long = "backing", value_name = "DIR", requires = "advertise")]
    backing: Option<PathBuf>,
}

/// A server's place in a cluster.
#[derive(Clone, Debug)]
pub(super) struct ClusterPlan {
    pub(super) place: Place,
    pub(super) identity: Identity,
    /// The share of dirty chunks of files, in percent.
    pub(super) dirty_limit: u8,
    /// The directory of a file system that it writes chunks to.
    pub(super) backing: Option<PathBuf>,
}

impl ClusterFlags {
    /// Returns the plan, if the server is one of a cluster.
    ///
    /// # Errors
    ///
    /// The fault and the right form.
    pub(super) fn plan(&self) -> Result<Option<ClusterPlan>, String> {
        if self.etcd.is_none() && self.advertise.is_empty() {
            return Ok(None);
        }
        let from_environment = || std::env::var("RDMAKV_ETCD").ok().filter(|etcd| !etcd.trim().is_empty());
        let etcd = self.etcd.clone().or_else(from_environment);
        let etcd = etcd.ok_or("--advertise: no etcd is given: use --etcd or the variable RDMAKV_ETCD")?;
        let endpoints = Endpoint::list(&etcd).map_err(|error| format!("--etcd: {error}"))?;
        Keys::of(&self.cluster).map_err(|error| format!("--cluster: {error}"))?;
        let addresses = self.advertise.clone();
        let is_plain = |address: &String| {
            let has_space = address.contains(|c: char| c.is_whitespace() || c.is_control());
            !address.is_empty() && !has_space && address.len() <= MAX_ADDRESS.min(MAX_NAME)
        };
        if addresses.len() > MAX_ADDRESSES || !addresses.iter().all(is_plain) {
            return Err(format!("--advertise: 1 to {MAX_ADDRESSES} addresses of at most {MAX_NAME} bytes are needed"));
        }
        let pinged = addresses.iter().find(|address| crate::net::membership::is_tcp(address));
        let pinged =
            pinged.ok_or("--advertise: the other servers ping over TCP: add an address such as tcp:10.0.0.1:11211")?;
        let address = pinged.clone();
        if let Some(address) = addresses.iter().find(|address| crate::net::membership::leads_nowhere(address)) {
            return Err(format!(
                "--advertise {address}: other machines reach no server by it: give this machine's own address and a port, such as \
                 tcp:10.0.0.1:11211"
            ));
        }
        if let Some(path) = self.backing.as_ref().filter(|path| !path.is_dir()) {
            return Err(format!("--backing {}: it is no directory: mount the file system first", path.display()));
        }
        let name = addresses[0].clone();
        let agent = Agent { program: self.agent.clone(), etcd, cluster: self.cluster.clone(), server: name.clone() };
        let agent = (self.agent.as_deref() != Some("no")).then_some(agent);
        let identity = Identity { name, addresses, weight: 1, clock_skew: CLOCK_SKEW };
        Ok(Some(ClusterPlan {
            place: Place { endpoints, name: self.cluster.clone(), address, agent, tag_lease: None },
            identity,
            dirty_limit: self.dirty_limit,
            backing: self.backing.clone(),
        }))
    }
}
