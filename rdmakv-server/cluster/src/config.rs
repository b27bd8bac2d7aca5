//! Configurations: the servers and policies of one epoch.
//!
//! A change makes the configuration of the next epoch. The store of configurations (etcd) accepts it only if no other change came
//! first, so epochs are in one order.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

pub use crate::ids::{Epoch, Incarnation, MAX_EPOCH, MAX_SERVERS, ServerId};
use crate::ring::Ring;

/// The most bytes of a server's name.
pub const MAX_NAME: usize = 128;

/// The most addresses of a server.
pub const MAX_ADDRESSES: usize = 8;

/// The most bytes of an address.
pub const MAX_ADDRESS: usize = 256;

/// The most policies of a cluster.
pub const MAX_POLICIES: usize = 256;

/// The most bytes of a policy's prefix: those of a key.
pub const MAX_PREFIX: usize = 250;

/// The most earlier epochs that a configuration lists.
pub const MAX_PAST: usize = 256;

/// The length of a right if nothing else is chosen, in milliseconds.
pub const DEFAULT_LEASE_MS: u32 = 2000;

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

impl State {
    /// Returns the state's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Up => "up",
            Self::Draining => "draining",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
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

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Copies(copies) => f.pad(&format!("copies:{copies}")),
            Self::Code { data, parity } => f.pad(&format!("code:{data}+{parity}")),
        }
    }
}

impl FromStr for Policy {
    type Err = ChangeError;

    /// Returns the policy of a text as [`Display`](fmt::Display) writes it: `none`, `copies:3`, `code:4+2`.
    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let number = |digits: &str| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
            plain.then(|| digits.parse().ok()).flatten()
        };
        let policy = match text.split_once(':') {
            None if text == "none" => Some(Self::None),
            Some(("copies", copies)) => number(copies).map(Self::Copies),
            Some(("code", code)) => code
                .split_once('+')
                .and_then(|(data, parity)| Some(Self::Code { data: number(data)?, parity: number(parity)? })),
            _ => None,
        };
        policy.filter(|policy| policy.is_sound()).ok_or(ChangeError::Policy)
    }
}

/// A policy, and whether servers evict what is kept elsewhere, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rule {
    /// How often a value is stored, and how.
    pub policy: Policy,
    /// Chunks of files may be evicted once the backing directory has them.
    pub evicts_clean: bool,
}

/// The end of a rule by which clean values may be evicted.
const EVICTS_CLEAN: &str = ",evict=clean";

impl From<Policy> for Rule {
    fn from(policy: Policy) -> Self {
        Self { policy, evicts_clean: false }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.evicts_clean { EVICTS_CLEAN } else { "" };
        f.pad(&format!("{}{more}", self.policy))
    }
}

impl FromStr for Rule {
    type Err = ChangeError;

    /// Returns the rule of a text as [`Display`](fmt::Display) writes it: a policy, or `copies:2,evict=clean`.
    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let (policy, evicts_clean) = match text.strip_suffix(EVICTS_CLEAN) {
            Some(policy) => (policy, true),
            None => (text, false),
        };
        let rule = Self { policy: policy.parse()?, evicts_clean };
        if evicts_clean && rule.policy == Policy::None { Err(ChangeError::Policy) } else { Ok(rule) }
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
    /// The run belongs to the cluster already.
    #[error("join cluster: this run is a server of it already: start it anew to join again")]
    RunTaken,
    /// A server of the same name lives.
    #[error(
        "join cluster: the lease in etcd of a server of this name has not ended: this one joins when it does, about 2 s after a kill; if it never does, another server has this name: stop it, or advertise another address first"
    )]
    NameTaken,
    /// A name that cannot be shown, is too long, or could be a server's number.
    #[error(
        "join cluster: the name is empty, longer than 128 bytes, a number, or has spaces or control characters: choose another"
    )]
    Name,
    /// Too many addresses, or ones that are too long or cannot be shown.
    #[error(
        "join cluster: more than 8 addresses, or one that is empty, longer than 256 bytes, or has spaces or control characters: advertise others"
    )]
    Addresses,
    /// A weight of 0.
    #[error("join cluster: the weight is 0: use 1 or more")]
    NoWeight,
    /// No such server.
    #[error("change server: the cluster has no such server: see its status")]
    Unknown,
    /// The policy makes no sense.
    #[error(
        "set policy: no such policy: use none, copies:2 to copies:64, or code:2+1 up to 64 servers in all; with ,evict=clean for chunks of files"
    )]
    Policy,
    /// Eviction of values that are nowhere else.
    #[error("set policy: only chunks of files are kept elsewhere, too: use ,evict=clean for the prefix c/")]
    Eviction,
    /// Values in fragments, of which a smaller group would keep too few.
    #[error(
        "set policy: its values are in fragments, and too few would be left: use as many data fragments, or set none first, which drops them"
    )]
    Fragments,
    /// A prefix that no key has.
    #[error("set policy: the prefix is longer than a key: use at most 250 bytes")]
    Prefix,
    /// The cluster has all the policies it may have.
    #[error("set policy: the cluster has 256 policies: set some to none first, those of longer prefixes last")]
    Policies,
    /// A lease that is out of bounds.
    #[error("make cluster: the lease is out of bounds: use 500 to 60000 ms")]
    Lease,
    /// A server that joins has no keys that others could take.
    #[error("drain server: it joins yet, and has no keys: wait until it is up, or stop it")]
    Joining,
    /// The last server that serves and does not drain.
    #[error("drain server: no other server could take its keys: add one first, and wait until it is up")]
    LastServer,
    /// Others serve beside the server, so none waits for it.
    #[error("forget server: others do not wait for it: it is removed by itself if it has ended; drain it if it runs")]
    NotAwaited,
    /// The server has a lease in the store of configurations.
    #[error(
        "forget server: its lease in etcd has not ended: it runs, or ended less than 2 s ago: drain it, or stop it first"
    )]
    Alive,
    /// The last epoch was used.
    #[error("change configuration: no epoch is left: make a new cluster")]
    Epochs,
}

/// The configuration of one epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config(Parts);

/// All that a configuration consists of, for its codec.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Parts {
    pub(crate) uuid: u128,
    pub(crate) epoch: Epoch,
    pub(crate) lease_ms: u32,
    pub(crate) servers: Vec<Server>,
    pub(crate) policies: Vec<(Vec<u8>, Policy)>,
    /// The prefixes of them whose clean values may be evicted.
    pub(crate) evicting: Vec<Vec<u8>>,
    pub(crate) past: Vec<Members>,
    pub(crate) whole: Option<Epoch>,
    pub(crate) flushed: Epoch,
}

impl Config {
    /// Returns the first configuration of a new cluster. It has no servers.
    pub fn new(uuid: u128) -> Self {
        let (servers, policies, evicting, past) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (epoch, lease_ms, flushed) = (Epoch(1), DEFAULT_LEASE_MS, Epoch(0));
        Self(Parts { uuid, epoch, lease_ms, servers, policies, evicting, past, whole: None, flushed })
    }

    /// Returns the first configuration of a new cluster, with rights of this length.
    ///
    /// All servers use the length that the configuration has, and it never changes: a fence is as long as the right of the server
    /// before.
    ///
    /// # Errors
    ///
    /// The length is out of bounds.
    pub fn with_lease(uuid: u128, lease_ms: u32) -> Result<Self, ChangeError> {
        let mut config = Self::new(uuid);
        config.0.lease_ms = lease_ms;
        if is_lease(lease_ms) { Ok(config) } else { Err(ChangeError::Lease) }
    }

    /// Returns the configuration that these parts are.
    ///
    /// # Errors
    ///
    /// No sequence of changes could make them: returns the first rule that is broken.
    pub(crate) fn from_parts(parts: Parts) -> Result<Self, &'static str> {
        parts.check()?;
        Ok(Self(parts))
    }

    /// Returns its parts.
    pub(crate) fn parts(&self) -> &Parts {
        &self.0
    }

    /// Returns how long a right lasts, in milliseconds.
    pub fn lease_ms(&self) -> u32 {
        self.0.lease_ms
    }

    /// Returns the policies: prefix and policy, by rising prefix.
    pub fn policies(&self) -> &[(Vec<u8>, Policy)] {
        &self.0.policies
    }

    /// Returns the rules: the same, and whether clean values may be evicted.
    pub fn rules(&self) -> impl Iterator<Item = (&[u8], Rule)> {
        self.0.policies.iter().map(|(prefix, policy)| {
            let evicts_clean = self.0.evicting.contains(prefix);
            (prefix.as_slice(), Rule { policy: *policy, evicts_clean })
        })
    }

    /// Returns the number of the cluster. Members of another never talk to it.
    pub fn uuid(&self) -> u128 {
        self.0.uuid
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// Returns the servers by rising number.
    pub fn servers(&self) -> &[Server] {
        &self.0.servers
    }

    /// Returns the server with this number.
    pub fn server(&self, id: ServerId) -> Option<&Server> {
        self.0.servers.iter().find(|server| server.id == id)
    }

    /// Returns the server that is this run.
    pub fn incarnation(&self, incarnation: Incarnation) -> Option<&Server> {
        self.0.servers.iter().find(|server| server.incarnation == incarnation)
    }

    /// Returns the epoch of the last flush: values confirmed before it are gone.
    pub fn flushed(&self) -> Epoch {
        self.0.flushed
    }

    /// Returns whether all keys are where this epoch wants them.
    pub fn is_whole(&self) -> bool {
        self.0.whole == Some(self.0.epoch)
    }

    /// Returns the members of the epochs before this one, by rising epoch, back to the last whole one, at most [`MAX_PAST`].
    ///
    /// A reader that misses an epoch knows nothing of its members, and has to expect any.
    pub fn past(&self) -> &[Members] {
        &self.0.past
    }

    /// Returns the policy of a key: that of the longest prefix.
    pub fn policy(&self, key: &[u8]) -> Policy {
        self.longest(key).map_or(Policy::None, |&(_, policy)| policy)
    }

    /// Returns whether a key's value may be evicted once it is kept elsewhere, too.
    pub fn evicts_clean(&self, key: &[u8]) -> bool {
        self.longest(key).is_some_and(|(prefix, _)| self.0.evicting.contains(prefix))
    }

    fn longest(&self, key: &[u8]) -> Option<&(Vec<u8>, Policy)> {
        let of = self.0.policies.iter().filter(|(prefix, _)| key.starts_with(prefix));
        of.max_by_key(|(prefix, _)| prefix.len())
    }

    /// Returns whether a member that has `older` may adopt this one: the same cluster, and a later epoch.
    pub fn supersedes(&self, older: &Self) -> bool {
        self.0.uuid == older.0.uuid && self.0.epoch > older.0.epoch
    }

    /// Returns the ring of the servers that serve in this epoch.
    pub fn ring(&self) -> Ring {
        Ring::of(self.0.servers.iter().filter(|server| server.state != State::Joining).map(Server::share))
    }

    /// Returns the ring of the next whole epoch: joining servers serve, draining ones have left.
    pub fn next_ring(&self) -> Ring {
        Ring::of(self.0.servers.iter().filter(|server| server.state != State::Draining).map(Server::share))
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
        Members { epoch: self.0.epoch, servers: self.0.servers.iter().map(member).collect() }
    }

    /// Returns the next epoch with one more server. It joins empty, and serves when that epoch is whole.
    ///
    /// The first server of a cluster serves at once: there is nothing to repair. A new run of a known name takes its number.
    ///
    /// # Errors
    ///
    /// The cluster is full, this run is a server of it, or name, addresses or weight are out of bounds.
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
        if !is_name(name) {
            return Err(ChangeError::Name);
        }
        if !are_addresses(&addresses) {
            return Err(ChangeError::Addresses);
        }
        if self.incarnation(incarnation).is_some() {
            return Err(ChangeError::RunTaken);
        }
        let mut next = self.next()?;
        next.0.servers.retain(|server| server.name != name);
        let taken = |id: &u8| self.0.servers.iter().any(|server| server.id.0 == *id && server.name != name);
        let id = (0..MAX_SERVERS as u8).find(|id| !taken(id)).ok_or(ChangeError::Full)?;
        let first = !next.0.servers.iter().any(|server| server.state != State::Joining) && self.0.servers.is_empty();
        let state = if first { State::Up } else { State::Joining };
        let (id, name) = (ServerId(id), name.to_owned());
        next.0.servers.push(Server { id, name, addresses, weight, incarnation, state });
        next.0.servers.sort_by_key(|server| server.id);
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
        next.0.servers.retain(|server| server.id != id);
        Ok(next)
    }

    /// Returns the next epoch, in which a server hands its keys to others.
    ///
    /// # Errors
    ///
    /// There is no such server, it joins yet, or no other is up.
    pub fn draining(&self, id: ServerId) -> Result<Self, ChangeError> {
        // A draining server serves, and one that joins has nothing to serve.
        if self.server(id).ok_or(ChangeError::Unknown)?.state == State::Joining {
            return Err(ChangeError::Joining);
        }
        if !self.servers().iter().any(|server| server.id != id && server.state == State::Up) {
            return Err(ChangeError::LastServer);
        }
        let mut next = self.next()?;
        let server = next.0.servers.iter_mut().find(|server| server.id == id).ok_or(ChangeError::Unknown)?;
        server.state = State::Draining;
        Ok(next)
    }

    /// Returns the next epoch without the last server that has values, and without all values. It may be what others that join wait for. They
    /// have nothing to repair then, and are up in the next whole epoch.
    ///
    /// As after each removal, rights and tags of that server end before others answer. If it was only paused, it joins again, without values.
    ///
    /// # Errors
    ///
    /// There is no such server, or others do not wait for it.
    pub fn forget(&self, id: ServerId) -> Result<Self, ChangeError> {
        let serves = |server: &&Server| server.state != State::Joining;
        let awaited: Vec<ServerId> = self.servers().iter().filter(serves).map(|server| server.id).collect();
        let mut next = self.without_server(id)?;
        if awaited != [id] {
            return Err(ChangeError::NotAwaited);
        }
        next.0.flushed = next.0.epoch;
        Ok(next)
    }

    /// Returns the next epoch with the policy of a prefix. The policy of the longest prefix of a key wins.
    ///
    /// Values keep the form that they were written in. So the group of values in fragments does not get smaller than they need: the number of
    /// data fragments does not fall. Without a policy the values go.
    ///
    /// # Errors
    ///
    /// The policy makes no sense, values would be lost, the prefix is longer than a key, or there are too many.
    pub fn with_policy(&self, prefix: &[u8], policy: Policy) -> Result<Self, ChangeError> {
        self.with_rule(prefix, policy.into())
    }

    /// The same, with a rule for its eviction.
    ///
    /// # Errors
    ///
    /// As [`Self::with_policy`]; values that are nowhere else would be evicted.
    pub fn with_rule(&self, prefix: &[u8], rule: Rule) -> Result<Self, ChangeError> {
        let Rule { policy, evicts_clean } = rule;
        if evicts_clean && !prefix.starts_with(b"c/") {
            return Err(ChangeError::Eviction);
        }
        if !policy.is_sound() {
            return Err(ChangeError::Policy);
        }
        if prefix.len() > MAX_PREFIX {
            return Err(ChangeError::Prefix);
        }
        let keeps_values = match (self.policy(prefix), policy) {
            (Policy::Code { data: before, .. }, Policy::Code { data, .. }) => data >= before,
            (Policy::Code { .. }, Policy::Copies(_)) => false,
            _ => true,
        };
        if !keeps_values {
            return Err(ChangeError::Fragments);
        }
        let mut next = self.next()?;
        next.0.policies.retain(|(of, _)| of != prefix);
        next.0.evicting.retain(|of| of != prefix);
        if evicts_clean {
            next.0.evicting.push(prefix.to_vec());
            next.0.evicting.sort();
        }
        // Without a policy of a shorter prefix this one says nothing.
        let is_default = policy == Policy::None && next.policy(prefix) == Policy::None;
        if !is_default {
            next.0.policies.push((prefix.to_vec(), policy));
        }
        next.0.policies.sort_by(|(one, _), (other, _)| one.cmp(other));
        if next.0.policies.len() > MAX_POLICIES { Err(ChangeError::Policies) } else { Ok(next) }
    }

    /// Returns the next epoch, in which nothing else changes. It has versions of its own.
    ///
    /// # Errors
    ///
    /// No epoch is left.
    pub fn renewed(&self) -> Result<Self, ChangeError> {
        self.next()
    }

    /// Returns the next epoch, in which no value confirmed before it is left.
    ///
    /// # Errors
    ///
    /// No epoch is left.
    pub fn flush(&self) -> Result<Self, ChangeError> {
        let mut next = self.next()?;
        next.0.flushed = next.0.epoch;
        Ok(next)
    }

    /// Returns the next epoch, which says that repair is done: *joining* becomes *up*, and *draining* leaves. If no server would be left,
    /// draining ones are *up* again: the servers that were to have their keys are gone.
    ///
    /// Repair of this epoch must be done at each server: the caller has read that from the store of configurations.
    ///
    /// # Errors
    ///
    /// No epoch is left.
    pub fn whole(&self) -> Result<Self, ChangeError> {
        let mut next = self.next()?;
        if next.0.servers.iter().any(|server| server.state != State::Draining) {
            next.0.servers.retain(|server| server.state != State::Draining);
        }
        for server in &mut next.0.servers {
            server.state = State::Up;
        }
        next.0.whole = Some(next.0.epoch);
        Ok(next)
    }

    /// The next epoch, unchanged but for its number and its past. A whole epoch keeps the past from before it, for the fences of those
    /// that adopt it. The epoch after drops what was before the whole one.
    fn next(&self) -> Result<Self, ChangeError> {
        if self.0.epoch.0 >= MAX_EPOCH {
            return Err(ChangeError::Epochs);
        }
        let mut next = self.clone();
        next.0.past.push(self.members());
        next.0.past.retain(|members| self.0.whole.is_none_or(|whole| members.epoch >= whole));
        let excess = next.0.past.len().saturating_sub(MAX_PAST);
        next.0.past.drain(..excess);
        next.0.epoch = Epoch(self.0.epoch.0 + 1);
        Ok(next)
    }
}

impl Parts {
    /// Checks what holds of each configuration that changes make.
    fn check(&self) -> Result<(), &'static str> {
        let rule = |holds: bool, rule| if holds { Ok(()) } else { Err(rule) };
        rule((1..=MAX_EPOCH).contains(&self.epoch.0), "an epoch is 1 to 16777215")?;
        rule(is_lease(self.lease_ms), "a lease is 500 to 60000 ms")?;
        rule(self.whole.is_none_or(|whole| whole <= self.epoch), "the last whole epoch is not a later one")?;
        rule(self.flushed <= self.epoch, "the epoch of the last flush is not a later one")?;
        rule(
            self.servers.iter().all(|server| are_addresses(&server.addresses)),
            "at most 8 addresses of 1 to 256 bytes",
        )?;
        let all_up = || self.servers.iter().all(|server| server.state == State::Up);
        rule(self.whole != Some(self.epoch) || all_up(), "all servers of a whole epoch are up")?;
        check_members(self.servers.iter().map(|server| (server.share(), server.incarnation)))?;

        let rising = self.policies.windows(2).all(|pair| pair[0].0 < pair[1].0);
        rule(rising && self.policies.len() <= MAX_POLICIES, "at most 256 policies, by rising prefix")?;
        let fits = |(prefix, policy): &(Vec<u8>, Policy)| prefix.len() <= MAX_PREFIX && policy.is_sound();
        rule(self.policies.iter().all(fits), "a prefix has at most 250 bytes, and a group at most 64 servers")?;
        let is_kept =
            |prefix: &Vec<u8>| self.policies.iter().any(|(of, policy)| of == prefix && *policy != Policy::None);
        let evicts = |prefix: &Vec<u8>| prefix.starts_with(b"c/") && is_kept(prefix);
        rule(self.evicting.iter().all(evicts), "only values of prefixes that begin with c/ are evicted when clean")?;

        let first = (self.epoch.0 as usize).saturating_sub(self.past.len());
        let in_order = self.past.iter().enumerate().all(|(at, members)| members.epoch.0 as usize == first + at);
        let enough = self.epoch.0 == 1 || !self.past.is_empty();
        rule(
            self.past.len() <= MAX_PAST && first >= 1 && in_order && enough,
            "at most 256 earlier epochs, without gap",
        )?;
        for members in &self.past {
            check_members(members.servers.iter().map(|member| (member.share(), member.incarnation)))?;
        }
        // So the runs of all epochs are at most 64 and one more for each, and those of the next configuration, too.
        let now = self.servers.iter().map(|server| (server.share(), server.incarnation)).collect();
        let epochs: Vec<Vec<Run<'_>>> = self.past.iter().map(Members::runs).chain([now]).collect();
        let is_one = |pair: &[Vec<Run<'_>>]| pair[1].iter().filter(|run| !pair[0].contains(run)).count() <= 1;
        rule(epochs.windows(2).all(is_one), "an epoch has at most one run that the epoch before had not")
    }
}

/// A run of a server, with its share of the keys: number, name and weight.
type Run<'a> = ((ServerId, &'a str, u16), Incarnation);

/// Checks the servers of one epoch.
fn check_members<'a>(servers: impl Iterator<Item = Run<'a>>) -> Result<(), &'static str> {
    let (mut last, mut names, mut runs) = (None, Vec::new(), Vec::new());
    for ((id, name, weight), run) in servers {
        if last >= Some(id) || usize::from(id.0) >= MAX_SERVERS {
            return Err("servers have rising numbers below 64");
        }
        if !is_name(name) || weight == 0 {
            return Err("a server has a name of 1 to 128 bytes that is no number, and a weight");
        }
        last = Some(id);
        names.push(name);
        runs.push(run);
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    runs.sort_unstable();
    runs.dedup();
    if names.len() == count && runs.len() == count { Ok(()) } else { Err("two servers have one name, or are one run") }
}

/// Returns whether a server may have this name: one word of a table, and no number, which is another server's.
fn is_name(name: &str) -> bool {
    is_word(name, MAX_NAME) && !name.bytes().all(|byte| byte.is_ascii_digit())
}

fn are_addresses(addresses: &[String]) -> bool {
    addresses.len() <= MAX_ADDRESSES && addresses.iter().all(|address| is_word(address, MAX_ADDRESS))
}

/// Returns whether a text is one word that a terminal shows as it is.
fn is_word(text: &str, most: usize) -> bool {
    let forbidden = |character: char| character.is_whitespace() || character.is_control();
    !text.is_empty() && text.len() <= most && !text.contains(forbidden)
}

fn is_lease(ms: u32) -> bool {
    (500..=60_000).contains(&ms)
}

impl Server {
    fn share(&self) -> (ServerId, &str, u16) {
        (self.id, &self.name, self.weight)
    }
}

impl Member {
    fn share(&self) -> (ServerId, &str, u16) {
        (self.id, &self.name, self.weight)
    }
}

impl Members {
    fn runs(&self) -> Vec<Run<'_>> {
        self.servers.iter().map(|member| (member.share(), member.incarnation)).collect()
    }

    /// Returns the ring of the servers that served in this epoch.
    pub fn ring(&self) -> Ring {
        Ring::of(self.serving())
    }

    /// Returns the servers that served in this epoch: number, name and weight.
    pub(crate) fn serving(&self) -> impl Iterator<Item = (ServerId, &str, u16)> {
        self.servers.iter().filter(|member| member.state != State::Joining).map(Member::share)
    }

    /// Returns the run of the server with this number.
    pub fn incarnation(&self, id: ServerId) -> Option<Incarnation> {
        self.servers.iter().find(|member| member.id == id).map(|member| member.incarnation)
    }
}
