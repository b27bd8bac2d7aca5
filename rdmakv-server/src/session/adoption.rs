//! The way of a server's keys into an epoch, in steps. The membership goes on between two, and threads that wait for a shard get it.

use std::collections::HashSet;
use std::sync::Arc;

use rdmakv_cluster::config::{Config, Incarnation, Members, Policy, ServerId, State};
use rdmakv_cluster::member::{Role, Standing};
use rdmakv_cluster::placement::Ring;
use rdmakv_proto::clock;

use super::Shards;
use crate::store::Walk;

/// Keys that are taken into an epoch in one step.
pub(super) const KEYS: usize = 2000;

/// Items that are looked at in one step, when policies changed.
const ITEMS: usize = 1000;

/// The keys of a server on their way into an epoch.
#[derive(Debug)]
pub(super) struct Adoption {
    config: Arc<Config>,
    history: History,
    /// The configuration whose policies were in force before, if there was one.
    replaced: Option<Arc<Config>>,
    step: Step,
    /// No key is left, and no fate is known.
    has_nothing: bool,
}

/// A step of an adoption.
#[derive(Debug)]
pub(super) enum Step {
    /// A shard is prepared, and its keys are counted.
    Shard(usize),
    /// The next keys of a shard are taken. Those that were not are below.
    Keys(usize, usize),
    /// Items of keys that got a policy, or lost it, are dropped.
    Items(usize, Walk),
    /// All is done.
    Done,
}

impl Adoption {
    /// Begins, for a run that adopted `before` last.
    pub(super) fn of(
        before: Option<&Config>,
        replaced: Option<Arc<Config>>,
        config: Arc<Config>,
        run: Incarnation,
    ) -> Self {
        let history = History::of(before, &config, run);
        Self { config, history, replaced, step: Step::Shard(0), has_nothing: true }
    }

    /// Returns the configuration of the epoch.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the next step.
    pub(super) fn step(&self) -> &Step {
        &self.step
    }

    /// Returns whether nothing was found that has to be repaired.
    pub(super) fn has_nothing(&self) -> bool {
        self.has_nothing
    }

    /// Returns a key's part before the epoch and its standing in it, and whether this run was its primary, and was outside, between.
    pub(super) fn of_key(&self, key: &[u8]) -> (Role, Standing, (bool, bool)) {
        let policy = self.config.policy(key);
        let roles = self.history.roles(key, policy.group_size());
        let standing = Standing {
            epoch: self.config.epoch(),
            // A key that lost its policy is no cluster's any more.
            role: if policy == Policy::None { Role::Outside } else { roles.last },
            has_right: false,
            is_fenced: true,
            is_whole: self.config.is_whole(),
            flushed: self.config.flushed(),
        };
        (roles.first, standing, (roles.stayed_primary, roles.was_outside))
    }

    /// Goes on after a step on the keys of a shard: those that were not taken are below, or it has none. `has_nothing` tells that nothing is
    /// left in a shard all keys of which were taken. `shards` is their number.
    pub(super) fn took(&mut self, below: usize, has_nothing: bool, shards: usize) {
        let (Step::Shard(at) | Step::Keys(at, _)) = self.step else { return };
        if below > 0 {
            self.step = Step::Keys(at, below);
            return;
        }
        self.has_nothing &= has_nothing;
        let policies = |config: &Config| config.policies().to_vec();
        self.step = if at + 1 < shards {
            Step::Shard(at + 1)
        } else if self.replaced.as_deref().map(policies) != Some(policies(&self.config)) {
            Step::Items(0, Walk::default())
        } else {
            Step::Done
        };
    }

    /// Drops items of keys that are resilient in one configuration and plain in the other. Such an item is not the key's value.
    pub(super) fn drop_moved(&mut self, shards: &Shards) {
        let Step::Items(at, walk) = &mut self.step else { return };
        let is_resilient = |config: &Config, key: &[u8]| config.policy(key) != Policy::None;
        let moved = |key: &[u8]| match &self.replaced {
            Some(before) => is_resilient(before, key) != is_resilient(&self.config, key),
            None => is_resilient(&self.config, key),
        };
        let now = clock::now();
        let mut store = shards.at(*at);
        let mut keys: HashSet<Box<[u8]>> = HashSet::new();
        let is_end = store.walk_on(walk, ITEMS, now, |entry| {
            if moved(entry.key) {
                keys.insert(entry.key.into());
            }
        });
        keys.iter().for_each(|key| _ = store.delete(key, None, now));
        if is_end {
            let next = *at + 1;
            self.step = if next < shards.count() { Step::Items(next, Walk::default()) } else { Step::Done };
        }
    }
}

/// The parts that this run had in keys, from the epoch that it leaves to the one that it adopts.
#[derive(Debug)]
struct History {
    /// By rising epoch.
    epochs: Vec<Rings>,
    /// An epoch between is not known.
    has_gap: bool,
}

/// The parts that this run had in one key.
struct Roles {
    first: Role,
    last: Role,
    stayed_primary: bool,
    was_outside: bool,
}

/// The servers of one epoch.
#[derive(Debug)]
struct Rings {
    me: Option<ServerId>,
    now: Ring,
    /// The ring of the next whole epoch, if that is another one.
    next: Option<Ring>,
}

impl Rings {
    fn of(members: &Members, run: Incarnation) -> Self {
        let me = members.servers.iter().find(|server| server.incarnation == run).map(|server| server.id);
        let next = members.servers.iter().filter(|server| server.state != State::Draining);
        let next = Ring::of(next.map(|server| (server.id, &*server.name, server.weight)));
        let now = members.ring();
        Self { me, next: (next != now).then_some(next), now }
    }

    fn role(&self, key: &[u8], size: usize) -> Role {
        let Some(me) = self.me else { return Role::Outside };
        let group = self.now.group(key, size.max(1));
        if group.first() == Some(&me) {
            Role::Primary
        } else if group.contains(&me) || self.next.as_ref().is_some_and(|next| next.group(key, size).contains(&me)) {
            Role::Backup
        } else {
            Role::Outside
        }
    }
}

impl History {
    fn of(before: Option<&Config>, config: &Config, run: Incarnation) -> Self {
        let from = before.map(|before| before.epoch());
        let between = config.past().iter().filter(|members| from.is_none_or(|from| members.epoch > from)).cloned();
        let all: Vec<Members> =
            before.map(Config::members).into_iter().chain(between).chain([config.members()]).collect();
        let has_gap = all.windows(2).any(|pair| pair[1].epoch.0 != pair[0].epoch.0 + 1);
        Self { epochs: all.iter().map(|members| Rings::of(members, run)).collect(), has_gap }
    }

    fn roles(&self, key: &[u8], size: usize) -> Roles {
        let mut roles = Roles {
            first: Role::Outside,
            last: Role::Outside,
            stayed_primary: !self.has_gap,
            was_outside: self.has_gap,
        };
        for (at, epoch) in self.epochs.iter().enumerate() {
            let role = epoch.role(key, size);
            if at == 0 {
                roles.first = role;
            }
            roles.last = role;
            roles.stayed_primary &= role == Role::Primary;
            roles.was_outside |= role == Role::Outside;
        }
        roles
    }
}
