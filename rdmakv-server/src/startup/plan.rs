//! The plan of a run: the checked command line.

use std::path::PathBuf;

use super::cluster::ClusterPlan;
use super::flash::FlashPlan;
use super::process::User;
use crate::fabric::options;
use crate::http::Hosts;
use crate::kernel;
use crate::net::listen::Place;
use crate::net::tls::{Certificates, Options};
use crate::session::Settings;
use crate::store::Config;

/// All that the command line asks for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) store: Config,
    pub(super) places: Vec<Place>,
    pub(super) crawler: bool,
    /// Whether pages move between classes by themselves, as in `slabs automove`.
    pub(super) automove: u32,
    pub(super) notes: Vec<String>,
    /// The user to become.
    pub(super) user: Option<User>,
    /// The file of names and passwords, to be read again.
    pub(super) users_file: Option<String>,
    pub(super) http: Option<(String, u16)>,
    /// Names by which requests may ask for it.
    pub(super) hosts: Hosts,
    pub(super) fabrics: options::Plan,
    /// Interfaces at which the kernel answers.
    pub(super) kernel: Option<kernel::options::Plan>,
    pub(super) flash: FlashPlan,
    /// The cluster to join.
    pub(super) cluster: Option<ClusterPlan>,
    /// The file in which items outlive the server (`-e`).
    pub(super) memory_file: Option<PathBuf>,
    pub(super) tls: Option<Options>,
    pub(super) certificates: Option<Certificates>,
}

impl Plan {
    /// Returns whether there is an address that clients reach.
    pub(super) fn listens(&self) -> bool {
        let settings = &self.settings;
        let is_reached = settings.socket.is_some() || settings.tcp_port != 0 || settings.udp_port != 0;
        is_reached || !self.fabrics.places.is_empty()
    }
}
