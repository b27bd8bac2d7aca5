//! Failure detection: which servers are suspected, and which are to be removed.
//!
//! Each server pings all others each [`INTERVAL`]. It suspects one that refused twice in a row, or left four pings in a row unanswered. It
//! also suspects one that answered for a lease that it has no right. That counts only while this server has a right itself: an outage of etcd
//! makes none suspected. It writes a suspicion as a fact until the other answers again, with a right. To remove a server that is healthy is safe, but costs a repair, and more than a
//! group may lose would cost values. So a server is removed only by one that
//!
//! * suspects it at that time, so that facts which an outage of etcd left behind remove none;
//! * is not itself suspected by most, so that two halves that do not reach each other, but reach etcd and the clients, both stay;
//! * and sees that most of the other servers suspect it, or that its `alive` is gone. Servers that most suspect, or that are not alive, do not
//!   count.
//!
//! One that answers without a right has its values yet, and may return with them. So it is removed only as long as all that were removed since
//! the last whole epoch are no more than each key may lose.
//!
//! The last server that is not joining is never removed: the joining ones may lack its values. It answers again when it returns. Its next run
//! takes its place if it was lost.
//!
//! A server that reaches no other suspects all, but alone it is never most of several. One that was paused counts no ping that it could not
//! have seen answered.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, Incarnation, Server, ServerId, State};
use crate::facts::{Fact, Facts};
use crate::faults::is_planted;

/// The time between two pings of a server, in nanoseconds.
pub const INTERVAL: u64 = 100_000_000;

/// Refusals in a row that make a server suspected.
const REFUSALS: u8 = 2;

/// Unanswered pings in a row that make a server suspected.
const MISSES: u8 = 4;

/// A run's knowledge of the others, by its own pings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detector {
    me: (ServerId, Incarnation),
    peers: BTreeMap<ServerId, Peer>,
    /// When pings were sent last.
    pinged: Option<u64>,
    /// Nanoseconds of a right.
    lease: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Peer {
    run: Incarnation,
    /// A ping is under way.
    waits: bool,
    missed: u8,
    refused: u8,
    /// How far its clock is from this one's at least, in nanoseconds; None before the first answer.
    skew: Option<i64>,
    /// Since when it answers without a right, and this run has one.
    powerless: Option<u64>,
}

/// Which of two servers have a right, as the answer to a ping comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// The one that asked.
    pub own: bool,
    /// The one that answered.
    pub other: bool,
}

/// The clocks that the answer to a ping shows, in nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clocks {
    /// This server's when it sent the ping.
    pub sent: i64,
    /// The other's when it answered.
    pub answered: i64,
    /// This server's when the answer came.
    pub received: i64,
}

impl Clocks {
    /// Returns how far the other clock is from this one at least: 0 if both may be alike.
    fn skew(self) -> i64 {
        let (least, most) = (self.answered.saturating_sub(self.received), self.answered.saturating_sub(self.sent));
        if least > 0 { least } else { most.min(0) }
    }
}

impl Detector {
    /// Returns the detector of a run.
    pub fn new(id: ServerId, run: Incarnation) -> Self {
        Self { me: (id, run), peers: BTreeMap::new(), pinged: None, lease: 0 }
    }

    /// Returns the number of this run's server.
    pub fn id(&self) -> ServerId {
        self.me.0
    }

    /// Takes the servers of a configuration. What is known of runs that stay is kept.
    pub fn follow(&mut self, config: &Config) {
        self.lease = u64::from(config.lease_ms()) * 1_000_000;
        self.peers.retain(|&id, peer| config.server(id).is_some_and(|server| server.incarnation == peer.run));
        for server in config.servers().iter().filter(|server| server.id != self.me.0) {
            let run = server.incarnation;
            let new = || Peer { run, waits: false, missed: 0, refused: 0, skew: None, powerless: None };
            self.peers.entry(server.id).or_insert_with(new);
        }
    }

    /// Returns when the next pings are due.
    pub fn due(&self) -> u64 {
        self.pinged.map_or(0, |pinged| pinged + INTERVAL)
    }

    /// Returns the runs to be pinged now, if it is time. A ping that is still unanswered counts as missed.
    ///
    /// If this server was late by an interval it did not run, and may not have seen the answers: then none counts.
    pub fn ping(&mut self, now: u64) -> Vec<(ServerId, Incarnation)> {
        if now < self.due() {
            return Vec::new();
        }
        let late = self.pinged.is_some_and(|pinged| now >= pinged + 2 * INTERVAL) && !is_planted("late-pings-count");
        self.pinged = Some(now);
        let ping = |(&id, peer): (&ServerId, &mut Peer)| {
            if peer.waits && !late {
                peer.missed = peer.missed.saturating_add(1);
            }
            peer.waits = true;
            (id, peer.run)
        };
        self.peers.iter_mut().map(ping).collect()
    }

    /// Takes an answer of a run to the last ping. One of another run is ignored.
    pub fn answered(&mut self, id: ServerId, run: Incarnation, clocks: Clocks, rights: Rights) {
        let now = self.pinged.unwrap_or(0);
        if let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.run == run) {
            (peer.waits, peer.missed, peer.refused, peer.skew) = (false, 0, 0, Some(clocks.skew()));
            let counts = !rights.other && (rights.own || is_planted("outage-counts"));
            peer.powerless = counts.then(|| peer.powerless.unwrap_or(now));
        }
    }

    /// Takes a refused connection: the machine is there, and no server on it.
    pub fn refused(&mut self, id: ServerId, run: Incarnation) {
        if let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.run == run && peer.waits) {
            (peer.waits, peer.refused) = (false, peer.refused.saturating_add(1));
        }
    }

    /// Returns whether this run suspects a server by its own pings.
    pub fn suspects(&self, id: ServerId) -> bool {
        self.is_silent(id) || self.is_powerless(id)
    }

    fn is_silent(&self, id: ServerId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.refused >= REFUSALS || peer.missed >= MISSES)
    }

    /// Returns whether a server has answered for a lease that it has no right.
    fn is_powerless(&self, id: ServerId) -> bool {
        let since = self.peers.get(&id).and_then(|peer| peer.powerless);
        since.is_some_and(|since| self.pinged.is_some_and(|now| now.saturating_sub(since) > self.lease))
    }

    /// Returns the facts that this run has to write and to delete, so that its suspicions in etcd are those that it has.
    pub fn changes(&self, facts: &Facts) -> (Vec<Fact>, Vec<Fact>) {
        let own = |fact: &&Fact| matches!(fact, Fact::Suspect { by, .. } if by.0 == self.me.0);
        let suspicion = |(&id, peer): (&ServerId, &Peer)| Fact::Suspect { of: (id, peer.run), by: self.me };
        let wanted: Vec<Fact> = self.peers.iter().filter(|(id, _)| self.suspects(**id)).map(suspicion).collect();
        // A fact with the same key is replaced by the one to be written.
        let is_wanted = |fact: &Fact| wanted.iter().any(|wanted| wanted.path() == fact.path());
        let stale = facts.iter().filter(own).filter(|fact| !is_wanted(fact)).copied().collect();
        (wanted.into_iter().filter(|fact| !facts.has(fact)).collect(), stale)
    }

    /// Returns a server that this run may remove now by the next epoch.
    pub fn to_remove(&self, config: &Config, facts: &Facts) -> Option<ServerId> {
        let is_member = config.server(self.me.0).is_some_and(|server| server.incarnation == self.me.1);
        let may_spare = may_spare_one(config) || is_planted("powerless-are-spared");
        let has_failed = |server: &&Server| {
            let is_silent = self.is_silent(server.id) || is_planted("old-suspicion-removes");
            (is_silent || self.is_powerless(server.id) && may_spare) && self.knows(server.id, server.incarnation)
        };
        let failed: Vec<&Server> = config.servers().iter().filter(has_failed).collect();
        if !is_member || failed.is_empty() {
            return None;
        }
        let suspected = suspected_by_most(config, facts);
        if suspected.contains(&self.me.0) && !is_planted("suspected-removes") {
            return None;
        }
        let is_gone =
            |server: &&&Server| suspected.contains(&server.id) || !facts.is_alive(server.id, server.incarnation);
        failed.iter().filter(is_gone).find(|server| !is_last_with_values(config, server)).map(|server| server.id)
    }

    fn knows(&self, id: ServerId, run: Incarnation) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.run == run)
    }

    /// Returns whether this server's clock is off by more than half of what is allowed, so that it has to drain.
    ///
    /// Most of at least two others have to agree, all in one direction: of two clocks either may be right.
    pub fn is_clock_off(&self, allowed: u64) -> bool {
        let skews: Vec<i64> = self.peers.values().filter_map(|peer| peer.skew).collect();
        let limit = i64::try_from(allowed / 2).unwrap_or(i64::MAX);
        let ahead = skews.iter().filter(|&&skew| skew > limit).count();
        let behind = skews.iter().filter(|&&skew| skew < -limit).count();
        skews.len() >= 2 && ahead.max(behind) * 2 > skews.len()
    }
}

/// Returns whether the values of all keys outlive the loss of one more server, though those that left since the last whole epoch are lost.
fn may_spare_one(config: &Config) -> bool {
    let kept = config.policies().iter().map(|(_, policy)| policy.may_lose()).filter(|&most| most > 0);
    let (now, past) = (config.members(), config.past());
    // Servers that were joining had nothing.
    let had_values = past.iter().chain([&now]).flat_map(|members| &members.servers);
    let had_values = had_values.filter(|server| server.state != State::Joining).map(|server| server.incarnation);
    let lost: BTreeSet<Incarnation> = had_values.filter(|&run| config.incarnation(run).is_none()).collect();
    let lost = if config.is_whole() { 0 } else { lost.len() };
    kept.min().is_none_or(|most| lost < most)
}

/// Returns whether all other servers are joining, so that they may lack values that this one has.
fn is_last_with_values(config: &Config, server: &Server) -> bool {
    let joins = |server: &Server| server.state == State::Joining;
    !is_planted("last-removed") && config.servers().iter().all(|other| other.id == server.id || joins(other))
}

/// Returns the servers that most of the others suspect, not counting those that are such themselves or not alive.
pub fn suspected_by_most(config: &Config, facts: &Facts) -> BTreeSet<ServerId> {
    let is_run = |(id, run): (ServerId, Incarnation)| config.server(id).is_some_and(|server| server.incarnation == run);
    let mut suspecters: BTreeMap<ServerId, Vec<ServerId>> = BTreeMap::new();
    for fact in facts.iter() {
        if let Fact::Suspect { of, by } = *fact
            && of.0 != by.0
            && is_run(of)
            && is_run(by)
        {
            suspecters.entry(of.0).or_default().push(by.0);
        }
    }
    let is_alive = |server: &&Server| facts.is_alive(server.id, server.incarnation);
    let mut voters: BTreeSet<ServerId> = config.servers().iter().filter(is_alive).map(|server| server.id).collect();
    let mut suspected = BTreeSet::new();
    loop {
        let is_suspected = |(id, by): &(&ServerId, &Vec<ServerId>)| {
            let others = voters.iter().filter(|voter| voter != id).count();
            !suspected.contains(*id) && by.iter().filter(|by| voters.contains(by)).count() * 2 > others
        };
        let new: Vec<ServerId> = suspecters.iter().filter(is_suspected).map(|(&id, _)| id).collect();
        if new.is_empty() {
            return suspected;
        }
        voters.retain(|voter| !new.contains(voter));
        suspected.extend(new);
    }
}
