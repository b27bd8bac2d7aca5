//! Configurations: the servers and policies of one epoch.
//!
//! A change makes the configuration of the next epoch. The store of configurations (etcd) accepts it only if no other change came
//! first, so epochs are in one order.

use thiserror::Error;

pub use crate::ids::{Epoch, Incarnation, MAX_EPOCH, MAX_SERVERS, ServerId};
use crate::ring::Ring;

/// The part that a server has in its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Takes every write of its future keys, and serves none.
    Joining,
    /// Serves its keys.
    Up,
    /// Serves its keys until others have them.
    Draining,
}

/// A server as its cluster knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server {
    /// Its number.
    pub id: ServerId,
    /// Its name on the ring. It keeps its keys if it returns under the same name.
    pub name: String,
    /// The addresses that clients use, best first.
    pub addresses: Vec<String>,
    /// Its share of the keys, compared with the others; at least 1.
    pub weight: u16,
    /// The run that belongs to the cluster. Another run has to join again.
    pub incarnation: Incarnation,
    /// Its part.
    pub state: State,
}

/// How often a key's value is stored, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Once, on one server.
    #[default]
    None,
    /// Whole, on this many servers.
    Copies(u8),
    /// In fragments, one on each server of the group.
    Code {
        /// Fragments that suffice to read the value.
        data: u8,
        /// Fragments that may be lost.
        parity: u8,
    },
}

impl Policy {
    /// Returns how many servers have a part of each key.
    pub fn group_size(self) -> usize {
        match self {
            Self::None => 1,
            Self::Copies(copies) => usize::from(copies),
            Self::Code { data, parity } => usize::from(data) + usize::from(parity),
        }
    }

    /// Returns how many servers of a group may be lost.
    pub fn may_lose(self) -> usize {
        match self {
            Self::None => 0,
            Self::Copies(copies) => usize::from(copies).saturating_sub(1),
            Self::Code { parity, .. } => usize::from(parity),
        }
    }

    /// Returns the policy of new values while only `live` servers are there. It still loses as many, or has a copy on each.
    ///
    /// None means that a write cannot survive the loss of even one server.
    pub fn shrunk_to(self, live: usize) -> Option<Self> {
        if live >= self.group_size() {
            return Some(self);
        }
        match self {
            Self::None => None,
            Self::Copies(_) => (live >= 2).then_some(Self::Copies(live as u8)),
            Self::Code { parity, .. } => match live.saturating_sub(usize::from(parity)) {
                0 | 1 => (live >= 2).then_some(Self::Copies(live as u8)),
                data => Some(Self::Code { data: data as u8, parity }),
            },
        }
    }

    fn is_sound(self) -> bool {
        match self {
            Self::None => true,
            Self::Copies(copies) => copies >= 2 && self.group_size() <= MAX_SERVERS,
            Self::Code { data, parity } => data >= 2 && parity >= 1 && self.group_size() <= MAX_SERVERS,
        }
    }
}

/// The servers of one epoch, as later epochs remember them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Members {
    /// The epoch.
    pub epoch: Epoch,
    /// Its servers by rising number: name, weight, incarnation and state.
    pub servers: Vec<Member>,
}

/// A server in [`Members`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    /// Its number.
    pub id: ServerId,
    /// Its name on the ring.
    pub name: String,
    /// Its share of the keys.
    pub weight: u16,
    /// Its run.
    pub incarnation: Incarnation,
    /// Its part.
    pub state: State,
}

/// A change that cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ChangeError {
    /// The cluster is full.
    #[error("join cluster: it has 64 servers: remove one first")]
    Full,
    /// The name belongs to another server.
    #[error("join cluster: another server has this name: remove it first, or choose another name")]
    NameTaken,
    /// A weight of 0.
    #[error("join cluster: the weight is 0: use 1 or more")]
    NoWeight,
    /// No such server.
    #[error("change server: the cluster has no such server: see its status")]
    Unknown,
    /// The policy makes no sense.
    #[error("set policy: too few or too many servers in a group: use copies:2 to copies:64, or code:2+1 and up")]
    Policy,
    /// The last epoch was used.
    #[error("change configuration: no epoch is left: make a new cluster")]
    Epochs,
}

/// The configuration of one epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    uuid: u128,
    epoch: Epoch,
    servers: Vec<Server>,
    policies: Vec<(Vec<u8>, Policy)>,
    past: Vec<Members>,
    whole: Option<Epoch>,
    flushed: Epoch,
}

impl Config {
    /// Returns the first configuration of a new cluster. It has no servers.
    pub fn new(uuid: u128) -> Self {
        let epoch = Epoch(1);
        let (servers, policies, past) = (Vec::new(), Vec::new(), Vec::new());
        Self { uuid, epoch, servers, policies, past, whole: None, flushed: Epoch(0) }
    }

    /// Returns the number of the cluster. Members of another never talk to it.
    pub fn uuid(&self) -> u128 {
        self.uuid
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the servers by rising number.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Returns the server with this number.
    pub fn server(&self, id: ServerId) -> Option<&Server> {
        self.servers.iter().find(|server| server.id == id)
    }

    /// Returns the server that is this run.
    pub fn incarnation(&self, incarnation: Incarnation) -> Option<&Server> {
        self.servers.iter().find(|server| server.incarnation == incarnation)
    }

    /// Returns the epoch of the last flush: values confirmed before it are gone.
    pub fn flushed(&self) -> Epoch {
        self.flushed
    }

    /// Returns whether all keys are where this epoch wants them.
    pub fn is_whole(&self) -> bool {
        self.whole == Some(self.epoch)
    }

    /// Returns the members of the epochs before this one, by rising epoch, back to the last whole one.
    pub fn past(&self) -> &[Members] {
        &self.past
    }

    /// Returns the policy of a key: that of the longest prefix.
    pub fn policy(&self, key: &[u8]) -> Policy {
        let of = self.policies.iter().filter(|(prefix, _)| key.starts_with(prefix));
        of.max_by_key(|(prefix, _)| prefix.len()).map_or(Policy::None, |&(_, policy)| policy)
    }

    /// Returns whether a member that has `older` may adopt this one: the same cluster, and a later epoch.
    pub fn supersedes(&self, older: &Self) -> bool {
        self.uuid == older.uuid && self.epoch > older.epoch
    }

    /// Returns the ring of the servers that serve in this epoch.
    pub fn ring(&self) -> Ring {
        Ring::of(self.servers.iter().filter(|server| server.state != State::Joining).map(Server::share))
    }

    /// Returns the ring of the next whole epoch: joining servers serve, draining ones have left.
    pub fn next_ring(&self) -> Ring {
        Ring::of(self.servers.iter().filter(|server| server.state != State::Draining).map(Server::share))
    }

    /// Returns the members of this epoch.
    pub fn members(&self) -> Members {
        let member = |server: &Server| Member {
            id: server.id,
            name: server.name.clone(),
            weight: server.weight,
            incarnation: server.incarnation,
            state: server.state,
        };
        Members { epoch: self.epoch, servers: self.servers.iter().map(member).collect() }
    }

    /// Returns the next epoch with one more server. It joins empty, and serves when that epoch is whole.
    ///
    /// The first server of a cluster serves at once: there is nothing to repair. A new run of a known name takes its number.
    ///
    /// # Errors
    ///
    /// The cluster is full, the weight is 0, or the name belongs to this run already.
    pub fn with_server(
        &self,
        name: &str,
        addresses: Vec<String>,
        weight: u16,
        incarnation: Incarnation,
    ) -> Result<Self, ChangeError> {
        if weight == 0 {
            return Err(ChangeError::NoWeight);
        }
        let mut next = self.next()?;
        if let Some(known) = self.servers.iter().find(|server| server.name == name) {
            if known.incarnation == incarnation {
                return Err(ChangeError::NameTaken);
            }
            next.servers.retain(|server| server.name != name);
        }
        let taken = |id: &u8| self.servers.iter().any(|server| server.id.0 == *id && server.name != name);
        let id = (0..MAX_SERVERS as u8).find(|id| !taken(id)).ok_or(ChangeError::Full)?;
        let first = !next.servers.iter().any(|server| server.state != State::Joining) && self.servers.is_empty();
        let state = if first { State::Up } else { State::Joining };
        let (id, name) = (ServerId(id), name.to_owned());
        next.servers.push(Server { id, name, addresses, weight, incarnation, state });
        next.servers.sort_by_key(|server| server.id);
        Ok(next)
    }

    /// Returns the next epoch without a server: one that is dead, or has answered to nothing.
    ///
    /// # Errors
    ///
    /// There is no such server.
    pub fn without_server(&self, id: ServerId) -> Result<Self, ChangeError> {
        self.server(id).ok_or(ChangeError::Unknown)?;
        let mut next = self.next()?;
        next.servers.retain(|server| server.id != id);
        Ok(next)
    }

    /// Returns the next epoch, in which a server hands its keys to others.
    ///
    /// # Errors
    ///
    /// There is no such server.
    pub fn draining(&self, id: ServerId) -> Result<Self, ChangeError> {
        let mut next = self.next()?;
        let server = next.servers.iter_mut().find(|server| server.id == id).ok_or(ChangeError::Unknown)?;
        server.state = State::Draining;
        Ok(next)
    }

    /// Returns the next epoch with the policy of a prefix. The policy of the longest prefix of a key wins.
    ///
    /// # Errors
    ///
    /// The policy makes no sense.
    pub fn with_policy(&self, prefix: &[u8], policy: Policy) -> Result<Self, ChangeError> {
        if !policy.is_sound() {
            return Err(ChangeError::Policy);
        }
        let mut next = self.next()?;
        next.policies.retain(|(of, _)| of != prefix);
        next.policies.push((prefix.to_vec(), policy));
        next.policies.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(next)
    }

    /// Returns the next epoch, in which no value confirmed before it is left.
    ///
    /// # Errors
    ///
    /// No epoch is left.
    pub fn flush(&self) -> Result<Self, ChangeError> {
        let mut next = self.next()?;
        next.flushed = next.epoch;
        Ok(next)
    }

    /// Returns the next epoch, which says that repair is done: *joining* becomes *up*, and *draining* leaves.
    ///
    /// Repair of this epoch must be done at each server: the caller has read that from the store of configurations.
    ///
    /// # Errors
    ///
    /// No epoch is left.
    pub fn whole(&self) -> Result<Self, ChangeError> {
        let mut next = self.next()?;
        next.servers.retain(|server| server.state != State::Draining);
        for server in &mut next.servers {
            server.state = State::Up;
        }
        next.whole = Some(next.epoch);
        Ok(next)
    }

    /// The next epoch, unchanged but for its number and its past. A whole epoch keeps the past from before it, for the fences of those
    /// that adopt it. The epoch after drops what was before the whole one.
    fn next(&self) -> Result<Self, ChangeError> {
        if self.epoch.0 >= MAX_EPOCH {
            return Err(ChangeError::Epochs);
        }
        let mut next = self.clone();
        next.past.push(self.members());
        next.past.retain(|members| self.whole.is_none_or(|whole| members.epoch >= whole));
        next.epoch = Epoch(self.epoch.0 + 1);
        Ok(next)
    }
}

impl Server {
    fn share(&self) -> (ServerId, &str, u16) {
        (self.id, &self.name, self.weight)
    }
}

impl Members {
    /// Returns the ring of the servers that served in this epoch.
    pub fn ring(&self) -> Ring {
        let serving = self.servers.iter().filter(|member| member.state != State::Joining);
        Ring::of(serving.map(|member| (member.id, member.name.as_str(), member.weight)))
    }

    /// Returns the run of the server with this number.
    pub fn incarnation(&self, id: ServerId) -> Option<Incarnation> {
        self.servers.iter().find(|member| member.id == id).map(|member| member.incarnation)
    }
}
