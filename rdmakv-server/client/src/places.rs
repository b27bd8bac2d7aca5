//! The places of a cluster's servers among those of a client.

use super::ServerAddress;
use super::common::Common;
use super::options::Options;
use super::server::Server;
use rdmakv_cluster::config::{Config, Incarnation, Server as Configured, ServerId};
use std::collections::BTreeMap;

/// The parts of a client that its operations need.
pub(super) struct Hands<'a> {
    pub(super) servers: &'a mut Vec<Server>,
    pub(super) common: &'a mut Common,
}

/// The place of each server of an epoch.
#[derive(Default)]
pub(super) struct Places {
    of: BTreeMap<ServerId, Place>,
    /// Places whose servers have left.
    vacant: Vec<usize>,
}

/// A server's place, and the run and the addresses that it is for.
struct Place {
    at: usize,
    run: Incarnation,
    addresses: String,
}

impl Places {
    /// Returns a server's place; None if it is in no epoch that this client knows any more.
    pub(super) fn of(&self, server: ServerId) -> Option<usize> {
        self.of.get(&server).map(|place| place.at)
    }

    /// Makes a place for each server of an epoch. Others have left.
    pub(super) fn adopt(&mut self, config: &Config, options: &Options, hands: &mut Hands<'_>) {
        let servers = config.servers();
        for (id, place) in std::mem::take(&mut self.of) {
            let is_same = |server: &Configured| {
                server.id == id && server.incarnation == place.run && server.addresses.join(",") == place.addresses
            };
            if servers.iter().any(is_same) {
                self.of.insert(id, place);
            } else {
                hands.servers[place.at].leave(hands.common);
                hands.servers[place.at] = Server::new(&ServerAddress::nowhere(), options);
                self.vacant.push(place.at);
            }
        }
        for server in servers {
            if self.of.contains_key(&server.id) {
                continue;
            }
            let addresses = server.addresses.join(",");
            // Addresses that this release does not know lead nowhere, as if the server were down.
            let address = addresses.parse().unwrap_or_else(|_| ServerAddress::nowhere());
            let made = Server::new(&address, options);
            let at = match self.vacant.pop() {
                Some(at) => {
                    hands.servers[at] = made;
                    at
                }
                None => {
                    hands.servers.push(made);
                    hands.servers.len() - 1
                }
            };
            self.of.insert(server.id, Place { at, run: server.incarnation, addresses });
        }
    }
}
