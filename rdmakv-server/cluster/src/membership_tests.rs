//! Clusters of [`crate::membership`] over an etcd in memory, with clocks that run apart, kills, pauses, cuts and outages.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{ChangeError, Config, Epoch, Incarnation, ServerId, State};
use crate::detector::Clocks;
use crate::dice::Dice;
use crate::facts::{Change, Fact, View};
use crate::faults;
use crate::member::Role;
use crate::membership::{Action, Identity, Membership, Mismatch, Part};

const MS: u64 = 1_000_000;
/// A step of the simulation.
const STEP: u64 = 20 * MS;
/// The lease of rights.
const LEASE: u64 = 2_000 * MS;
/// How long a tag may be used: the most that is allowed.
const TAG: u64 = LEASE / 2;
/// When etcd ends the lease of a run that does not renew it.
const SESSION: u64 = 2_500 * MS;
const KEYS: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];

/// The keys of the cluster in etcd.
struct Etcd {
    revision: i64,
    config: Option<(Config, i64)>,
    /// Path, value, revision, and the run whose lease it hangs on.
    facts: BTreeMap<String, (String, i64, Option<Incarnation>)>,
    is_down: bool,
}

impl Etcd {
    fn view(&self) -> View {
        let config = self.config.as_ref().map(|(config, revision)| (crate::json::encode(config), *revision));
        let config =
            config.iter().map(|(bytes, revision)| Change { path: "config", value: Some(bytes), revision: *revision });
        let fact = |(path, (value, revision, _)): (&'_ String, &'_ (String, i64, Option<Incarnation>))| {
            (path.clone(), value.clone(), *revision)
        };
        let facts: Vec<_> = self.facts.iter().map(fact).collect();
        let facts = facts.iter().map(|(path, value, revision)| Change {
            path,
            value: Some(value.as_bytes()),
            revision: *revision,
        });
        View::of(self.revision, config.chain(facts)).unwrap()
    }

    fn put(&mut self, fact: &Fact, lease: Option<Incarnation>) {
        self.revision += 1;
        self.facts.insert(fact.path(), (fact.value(), self.revision, lease));
    }

    fn propose(&mut self, shown: i64, config: Config) {
        if self.config.as_ref().map_or(0, |(_, revision)| *revision) == shown {
            self.revision += 1;
            self.config = Some((config, self.revision));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
    Runs,
    Paused,
    Dead,
}

struct Server {
    membership: Membership,
    condition: Condition,
    /// Its clock runs this many 64ths as fast as the world's.
    rate: u64,
    reaches_etcd: bool,
    /// When it renewed its lease in etcd, by the world's clock.
    renewed: u64,
    /// The epoch that it adopted, and when.
    adopted: (Epoch, u64),
    /// Until when its keys are taken into an epoch, by the world's clock.
    adopts_until: Option<u64>,
    /// Until when clients may read an alive value by tag, by the world's clock.
    tags: BTreeMap<&'static [u8], u64>,
}

struct World {
    now: u64,
    etcd: Etcd,
    servers: Vec<Server>,
    /// Answers of the second do not reach the first.
    cuts: BTreeSet<(usize, usize)>,
    runs: u64,
    /// How long agents take to repair.
    repair: u64,
    /// How long servers take to take their keys into an epoch.
    adoption: u64,
    /// Keys that two servers answered for at once.
    twice: BTreeSet<&'static [u8]>,
}

impl World {
    fn new(names: &[&str]) -> Self {
        let config = Some((Config::new(7), 1));
        let etcd = Etcd { revision: 1, config, facts: BTreeMap::new(), is_down: false };
        let mut world = Self {
            now: STEP,
            etcd,
            servers: Vec::new(),
            cuts: BTreeSet::new(),
            runs: 0,
            repair: 0,
            adoption: 0,
            twice: BTreeSet::new(),
        };
        names.iter().zip([64, 61, 67, 66, 62, 65]).for_each(|(name, rate)| world.add(name, rate));
        world
    }

    fn add(&mut self, name: &str, rate: u64) {
        self.runs += 1;
        let identity = Identity { name: name.to_owned(), addresses: Vec::new(), weight: 1, clock_skew: 1_000 * MS };
        let membership = Membership::new(identity, Incarnation(self.runs));
        let (condition, reaches_etcd, renewed, adopted) = (Condition::Runs, true, self.now, (Epoch(0), 0));
        let tags = BTreeMap::new();
        let adopts_until = None;
        self.servers.push(Server { membership, condition, rate, reaches_etcd, renewed, adopted, adopts_until, tags });
    }

    fn local(&self, server: usize) -> u64 {
        self.now * self.servers[server].rate / 64
    }

    fn config(&self) -> &Config {
        &self.etcd.config.as_ref().unwrap().0
    }

    fn states(&self) -> Vec<State> {
        self.config().servers().iter().map(|server| server.state).collect()
    }

    fn run(&mut self, time: u64) {
        for _ in 0..time / STEP {
            self.step();
        }
    }

    /// Runs until something is so. Returns how long that took.
    fn run_until(&mut self, most: u64, is_so: impl Fn(&Self) -> bool) -> u64 {
        let begun = self.now;
        while !is_so(self) {
            assert!(self.twice.is_empty(), "{:?}", self.twice);
            assert!(self.now - begun < most, "not within {most} ns: {:?}", self.config());
            self.step();
        }
        self.now - begun
    }

    fn step(&mut self) {
        self.now += STEP;
        if !self.etcd.is_down {
            let over = |lease: &Option<Incarnation>, servers: &[Server]| {
                lease.is_some_and(|run| {
                    !servers.iter().any(|one| one.membership.run() == run && self.now - one.renewed < SESSION)
                })
            };
            let before = self.etcd.facts.len();
            self.etcd.facts.retain(|_, (_, _, lease)| !over(lease, &self.servers));
            self.etcd.revision += i64::from(before != self.etcd.facts.len());
        }
        for server in 0..self.servers.len() {
            if self.servers[server].condition == Condition::Runs {
                self.drive(server);
            }
        }
        self.check();
    }

    /// Does all that a server has to do now.
    fn drive(&mut self, at: usize) {
        let has_etcd = self.servers[at].reaches_etcd && !self.etcd.is_down;
        let local = self.local(at);
        if has_etcd {
            self.servers[at].renewed = self.now;
            if self.servers[at].membership.view().revision() < self.etcd.revision {
                let view = self.etcd.view();
                self.servers[at].membership.changed(view);
            }
        }
        let (epoch, adopted) = self.servers[at].adopted;
        if epoch > Epoch(0) && self.now >= adopted + self.repair {
            self.servers[at].membership.repaired(epoch);
        }
        for turn in 0.. {
            assert!(turn < 50, "server {at} has work without an end");
            if self.servers[at].adopts_until.is_some_and(|until| self.now >= until) {
                self.end_adoption(at);
            }
            let Some(action) = self.servers[at].membership.next(local) else { break };
            let run = self.servers[at].membership.run();
            match action {
                Action::Read(renewal) if has_etcd => {
                    let view = self.etcd.view();
                    self.servers[at].membership.read(renewal, view);
                }
                Action::Read(_) => self.servers[at].membership.read_failed(),
                Action::Ping(runs) => self.ping(at, &runs),
                Action::PingSelf if self.cuts.contains(&(at, at)) => {}
                Action::PingSelf => self.servers[at].membership.reached(run),
                Action::Write { leased, lasting, removed } => {
                    if has_etcd {
                        leased.iter().for_each(|fact| self.etcd.put(fact, Some(run)));
                        lasting.iter().for_each(|fact| self.etcd.put(fact, None));
                        self.etcd.revision += 1;
                        removed.iter().for_each(|fact| drop(self.etcd.facts.remove(&fact.path())));
                    }
                    let revision = has_etcd.then_some(self.etcd.revision);
                    self.servers[at].membership.written(revision);
                }
                Action::Propose(config) => {
                    let shown = self.servers[at].membership.view().config_revision();
                    if has_etcd {
                        self.etcd.propose(shown, config);
                    }
                    self.servers[at].membership.proposed(local, has_etcd);
                }
                Action::Adopt => {
                    assert_eq!(
                        self.servers[at].membership.standing(KEYS[0], local),
                        None,
                        "before the keys are adopted"
                    );
                    self.servers[at].adopts_until = Some(self.now + self.adoption);
                }
                Action::Hold => {
                    self.servers[at].tags.clear();
                    self.servers[at].membership.held();
                }
                Action::Leave => self.servers[at].condition = Condition::Dead,
                Action::Empty => {
                    self.runs += 1;
                    self.servers[at].tags.clear();
                    self.servers[at].membership.restart(Incarnation(self.runs), local);
                }
            }
        }
    }

    fn end_adoption(&mut self, at: usize) {
        let local = self.local(at);
        self.servers[at].adopts_until = None;
        self.servers[at].membership.adopted();
        let is_primary = |key: &&[u8]| {
            let standing = self.servers[at].membership.standing(key, local);
            standing.is_some_and(|standing| standing.role == Role::Primary)
        };
        let kept: BTreeSet<&[u8]> = KEYS.into_iter().filter(is_primary).collect();
        self.servers[at].tags.retain(|key, _| kept.contains(key));
        self.servers[at].adopted = (self.servers[at].membership.config().unwrap().epoch(), self.now);
    }

    fn ping(&mut self, from: usize, runs: &[(ServerId, Incarnation)]) {
        for &(id, run) in runs {
            let Some(to) = self.servers.iter().position(|server| server.membership.run() == run) else {
                self.servers[from].membership.refused(id, run);
                continue;
            };
            match self.servers[to].condition {
                Condition::Dead => self.servers[from].membership.refused(id, run),
                Condition::Runs if !self.cuts.contains(&(from, to)) => {
                    let now = self.now as i64;
                    let clocks = Clocks { sent: now, answered: now, received: now };
                    let has_right = self.servers[to].membership.is_in_force(self.local(to));
                    let local = self.local(from);
                    self.servers[from].membership.answered(id, run, (clocks, has_right), local);
                }
                _ => {}
            }
        }
    }

    fn answers(&self, server: usize, key: &[u8]) -> bool {
        let standing = self.servers[server].membership.standing(key, self.local(server));
        let runs = self.servers[server].condition == Condition::Runs;
        standing.is_some_and(|it| runs && it.role == Role::Primary && it.has_right && !it.is_fenced)
    }

    /// Returns whether a tag that was granted may read a value of the key, whether the server runs or is paused.
    fn is_read_by_tag(&self, server: usize, key: &[u8]) -> bool {
        let server = &self.servers[server];
        server.condition != Condition::Dead && server.tags.get(key).is_some_and(|&end| self.now < end)
    }

    /// Grants tags, and notes keys that two servers answer for, or tags of two.
    fn check(&mut self) {
        for key in KEYS {
            for server in 0..self.servers.len() {
                let allows = self.servers[server].membership.allows_tag(self.local(server), TAG);
                if allows && self.answers(server, key) {
                    self.servers[server].tags.insert(key, self.now + TAG);
                }
            }
            let answers = |server: &usize| self.answers(*server, key) || self.is_read_by_tag(*server, key);
            if (0..self.servers.len()).filter(answers).count() > 1 {
                self.twice.insert(key);
            }
        }
    }

    fn all_are_answered(&self) -> bool {
        KEYS.iter().all(|key| (0..self.servers.len()).any(|server| self.answers(server, key)))
    }

    fn is_up(&self, servers: usize) -> bool {
        let states = self.states();
        states.len() == servers && states.iter().all(|&state| state == State::Up) && self.config().is_whole()
    }

    /// A cluster whose servers are all up, and answer.
    fn up(names: &[&str]) -> Self {
        let mut world = Self::new(names);
        world.run_until(5_000 * MS, |world| world.is_up(names.len()));
        world.run_until(5_000 * MS, Self::all_are_answered);
        world.run(2 * STEP);
        world
    }
}

#[test]
fn servers_join_and_all_keys_are_answered() {
    let world = World::up(&["s0", "s1", "s2", "s3"]);
    assert!(world.servers.iter().all(|server| server.membership.part() == Part::Member(State::Up)));
}

#[test]
fn dead_servers_are_removed_and_replaced() {
    let mut world = World::up(&["s0", "s1", "s2", "s3"]);
    world.servers[1].condition = Condition::Dead;
    let removed = world.run_until(1_000 * MS, |world| world.config().servers().len() == 3);
    assert!(removed <= 500 * MS, "{} ms", removed / MS);
    let gap = removed + world.run_until(4_000 * MS, World::all_are_answered);
    assert!(gap <= LEASE + 1_000 * MS, "{} ms", gap / MS);
}

#[test]
fn paused_servers_return_as_other_runs() {
    let mut world = World::up(&["s0", "s1", "s2", "s3"]);
    let run = world.servers[2].membership.run();
    world.servers[2].condition = Condition::Paused;
    world.run_until(4_000 * MS, |world| world.config().servers().len() == 3);
    world.run(4_000 * MS);
    world.servers[2].condition = Condition::Runs;
    world.run_until(10_000 * MS, |world| world.is_up(4));
    assert_ne!(world.servers[2].membership.run(), run);
}

#[test]
fn drained_servers_leave_without_a_fence() {
    let mut world = World::up(&["s0", "s1", "s2", "s3"]);
    world.run(5_000 * MS);
    world.repair = 4_000 * MS;
    let (draining, shown) = (world.config().draining(ServerId(1)).unwrap(), world.etcd.config.as_ref().unwrap().1);
    world.etcd.propose(shown, draining);
    // It serves meanwhile.
    let whole = world.run_until(5_000 * MS, |world| world.is_up(3));
    assert!(whole >= 4_000 * MS);
    let gap = world.run_until(3_000 * MS, World::all_are_answered);
    assert!(gap <= 100 * MS, "{} ms", gap / MS);
    world.run(2 * STEP);
    assert_eq!(world.servers[1].membership.part(), Part::Drained);
}

#[test]
fn an_outage_of_etcd_stops_all_and_changes_nothing() {
    let mut world = World::up(&["s0", "s1", "s2"]);
    let epoch = world.config().epoch();
    world.etcd.is_down = true;
    world.run(LEASE + LEASE / 8 + 500 * MS);
    assert!((0..3).all(|server| KEYS.iter().all(|key| !world.answers(server, key))), "no right is left");
    world.run(60_000 * MS);
    world.etcd.is_down = false;
    world.run_until(2_000 * MS, World::all_are_answered);
    assert_eq!((world.config().epoch(), world.states().len()), (epoch, 3));
}

#[test]
fn a_second_server_of_one_name_displaces_nothing() {
    let mut world = World::up(&["s0", "s1"]);
    let epoch = world.config().epoch();
    world.add("s1", 64);
    world.run(20_000 * MS);
    assert_eq!((world.config().epoch(), world.servers[2].membership.part()), (epoch, Part::Outside));
    world.servers[1].condition = Condition::Dead;
    world.run_until(10_000 * MS, |world| world.config().incarnation(Incarnation(3)).is_some() && world.is_up(2));
    world.run(2 * STEP);
    assert_eq!(world.servers[2].membership.part(), Part::Member(State::Up));
}

#[test]
fn restarts_in_a_loop_wait_longer_each_time() {
    let mut world = World::up(&["s0", "s1", "s2"]);
    let before = world.config().epoch().0;
    // It reaches etcd, and no other server reaches it: it joins, and is removed.
    for other in [0, 1] {
        world.cuts.extend([(other, 2), (2, other)]);
    }
    world.run(120_000 * MS);
    let epochs = world.config().epoch().0 - before;
    assert!(epochs < 80, "{epochs} epochs");
    world.cuts.clear();
    world.run_until(130_000 * MS, |world| world.is_up(3));
}

#[test]
fn a_server_at_a_wrong_address_makes_few_epochs() {
    let mut world = World::up(&["s0", "s1"]);
    let before = world.config().epoch().0;
    world.add("s2", 64);
    world.cuts.extend([(0, 2), (1, 2), (2, 2)]);
    world.run(59_000 * MS);
    assert_eq!(world.config().epoch().0, before);
    world.run(1_000_000 * MS);
    // It joins after 1, 2, 4 and 8 minutes: each time it joins, the epoch is whole, it is removed, the epoch is whole.
    let epochs = world.config().epoch().0 - before;
    assert!((1..=16).contains(&epochs), "{epochs} epochs");
    // Where only the others reach it, it is up after the wait. Where it reaches itself, too, it joins at once.
    world.cuts.clear();
    world.run_until(5_000 * MS, |world| world.is_up(3));
    world.add("s3", 64);
    world.cuts.insert((3, 3));
    let wait = world.run_until(65_000 * MS, |world| world.is_up(4));
    assert!(wait > 55_000 * MS, "{wait}");
}

#[test]
fn an_answer_of_another_run_is_none() {
    let mut membership = outside("s0", Incarnation(2));
    assert!(!proposes(&mut membership, 0));
    membership.reached(Incarnation(1));
    assert!(proposes(&mut membership, 0));
}

#[test]
fn servers_that_adopt_for_long_stay() {
    let mut world = World::up(&["s0", "s1", "s2", "s3"]);
    world.run(5_000 * MS);
    // Longer than rights last, and than silent servers are waited for.
    world.adoption = 3 * LEASE;
    world.servers[0].condition = Condition::Dead;
    let epoch = world.config().epoch().0;
    let adopts = |world: &World| world.servers[1..].iter().all(|one| one.adopts_until.is_some());
    world.run_until(1_000 * MS, adopts);
    world.run(2 * LEASE);
    assert!(adopts(&world) && world.config().epoch().0 == epoch + 1 && world.config().servers().len() == 3);
    for at in 1..4 {
        let (membership, local) = (&world.servers[at].membership, world.local(at));
        assert!(membership.is_in_force(local) && !membership.has_right(local), "it renews, and answers nothing");
    }
    world.run_until(3 * LEASE, |world| world.all_are_answered());
    assert_eq!((world.config().servers().len(), &world.twice), (3, &BTreeSet::new()));
}

/// Takes a cluster through failures, and lets it recover. Returns the keys that two servers answered for at once.
fn fail_at_random(seed: u64) -> BTreeSet<&'static [u8]> {
    let mut dice = Dice(seed);
    let mut world = World::up(&["s0", "s1", "s2", "s3", "s4"]);
    world.repair = dice.below(4) * 700 * MS;
    world.adoption = dice.below(3) * 900 * MS;
    for _ in 0..60 {
        let (server, other) = (dice.below(5) as usize, dice.below(5) as usize);
        match dice.below(8) {
            // Most stay, so that one can remove the others.
            0 | 1 if world.servers.iter().filter(|one| one.condition != Condition::Runs).count() < 2 => {
                world.servers[server].condition = Condition::Paused;
            }
            2 | 3 => world.servers.iter_mut().for_each(|one| one.condition = Condition::Runs),
            4 => {
                world.cuts.insert((server, other));
            }
            5 => {
                world.cuts.clear();
                world.servers.iter_mut().for_each(|one| one.reaches_etcd = true);
            }
            6 => world.servers[server].reaches_etcd = false,
            7 => world.etcd.is_down = !world.etcd.is_down,
            _ => {}
        }
        let time = dice.below(4) * 500 * MS;
        world.run(time);
    }
    world.cuts.clear();
    world.etcd.is_down = false;
    for server in &mut world.servers {
        (server.condition, server.reaches_etcd) = (Condition::Runs, true);
    }
    world.run_until(130_000 * MS, |world| world.is_up(5) && world.all_are_answered());
    world.twice
}

#[test]
fn random_failures_never_let_two_answer() {
    let seeds = std::env::var("RDMAKV_WALKS").map_or(15, |walks| walks.parse().expect("RDMAKV_WALKS is a number"));
    for seed in 0..seeds {
        assert_eq!(fail_at_random(seed), BTreeSet::new(), "seed {seed}");
    }
}

/// A server is cut off while it has a right, and its successor leaves before its fence is over. Returns the keys that two answered for.
fn hand_over_twice() -> BTreeSet<&'static [u8]> {
    let mut world = World::up(&["s0", "s1", "s2", "s3"]);
    world.run(5_000 * MS);
    let key = KEYS[0];
    let first = (0..4).find(|&server| world.answers(server, key)).unwrap();
    let run = world.servers[first].membership.run();
    world.servers[first].reaches_etcd = false;
    (0..4).for_each(|other| world.cuts.extend([(first, other), (other, first)]));
    world.run_until(1_000 * MS, |world| world.config().incarnation(run).is_none());
    world.run(2 * STEP);
    let is_primary = |&server: &usize| {
        let standing = world.servers[server].membership.standing(key, world.local(server));
        server != first && standing.is_some_and(|standing| standing.role == Role::Primary)
    };
    let second = world.servers[(0..4).find(is_primary).unwrap()].membership.run();
    let second = world.config().incarnation(second).unwrap().id;
    let (next, shown) = (world.config().without_server(second).unwrap(), world.etcd.config.as_ref().unwrap().1);
    world.etcd.propose(shown, next);
    world.run(4_000 * MS);
    world.twice
}

#[test]
fn successors_wait_for_the_fences_of_those_before() {
    assert_eq!(hand_over_twice(), BTreeSet::new());
    faults::plant("adopted-told-early");
    let found = hand_over_twice();
    faults::plant("");
    assert!(!found.is_empty(), "an epoch that is told early is found");
}

/// A server drains, and leaves. Returns the keys that two answered for, one of them by a tag.
fn drain_with_tags() -> BTreeSet<&'static [u8]> {
    let mut world = World::up(&["s0", "s1", "s2", "s3"]);
    world.run(5_000 * MS);
    // Longer than its fences run.
    world.repair = 4_000 * MS;
    let first = (0..4).find(|&server| world.answers(server, KEYS[0])).unwrap();
    let id = world.config().incarnation(world.servers[first].membership.run()).unwrap().id;
    let (draining, shown) = (world.config().draining(id).unwrap(), world.etcd.config.as_ref().unwrap().1);
    world.etcd.propose(shown, draining);
    world.run(5_000 * MS);
    assert!(world.is_up(3));
    world.twice
}

#[test]
fn tags_read_nothing_after_a_hand_over() {
    assert_eq!(drain_with_tags(), BTreeSet::new());
    faults::plant("adopted-before-held");
    let found = drain_with_tags();
    faults::plant("");
    assert!(!found.is_empty(), "a value that is read after its hand-over is found");
}

/// Returns a member of cluster 7, at revision 10, that answers by a right of 1 s.
fn member() -> (Membership, Config) {
    let identity = Identity { name: "s0".to_owned(), addresses: Vec::new(), weight: 1, clock_skew: 1_000 * MS };
    let mut membership = Membership::new(identity, Incarnation(1));
    let config = Config::with_lease(7, 1_000).unwrap().with_server("s0", Vec::new(), 1, Incarnation(1)).unwrap();
    let renewal = begin_read(&mut membership, 0);
    membership.read(renewal, shown(10, &config));
    assert_eq!(membership.next(0), Some(Action::Adopt));
    membership.adopted();
    assert!(membership.has_right(999 * MS) && !membership.has_right(1_000 * MS));
    (membership, config)
}

fn begin_read(membership: &mut Membership, now: u64) -> crate::rights::Renewal {
    let read = std::iter::from_fn(|| membership.next(now)).find_map(|action| match action {
        Action::Read(renewal) => Some(renewal),
        _ => None,
    });
    read.expect("a read is due")
}

fn shown(revision: i64, config: &Config) -> View {
    let bytes = crate::json::encode(config);
    View::of(revision, [Change { path: "config", value: Some(&bytes), revision }]).unwrap()
}

#[test]
fn keys_have_no_standing_while_they_are_adopted() {
    let (mut membership, config) = member();
    assert!(membership.standing(KEYS[0], 0).is_some_and(|it| it.epoch == config.epoch() && it.has_right));
    let next = config.with_server("s1", Vec::new(), 1, Incarnation(2)).unwrap();
    membership.changed(shown(11, &next));
    assert_eq!(membership.next(0), Some(Action::Adopt));
    assert_eq!(membership.standing(KEYS[0], 0), None);
    membership.adopted();
    assert!(membership.standing(KEYS[0], 0).is_some_and(|it| it.epoch == next.epoch()));
}

#[test]
fn an_epoch_waits_until_keys_are_in_the_one_before() {
    let (mut membership, config) = member();
    let next = config.with_server("s1", Vec::new(), 1, Incarnation(2)).unwrap();
    membership.changed(shown(11, &next));
    assert_eq!(membership.next(0), Some(Action::Adopt));
    let later = next.flush().unwrap();
    membership.changed(shown(12, &later));
    // Its fences are over, and it tells nothing before the keys are there.
    let told: Vec<Action> = std::iter::from_fn(|| membership.next(5_000 * MS)).take(9).collect();
    let is_expected = |action: &Action| match action {
        Action::Write { lasting, .. } => lasting.is_empty(),
        action => matches!(action, Action::Read(_) | Action::Ping(_)),
    };
    assert!(told.len() == 3 && told.iter().all(is_expected), "{told:?}");
    membership.adopted();
    assert_eq!(membership.next(5_000 * MS), Some(Action::Adopt));
    assert_eq!(membership.config(), Some(&later));
}

#[test]
fn reads_of_an_earlier_revision_renew_nothing() {
    let (mut membership, config) = member();
    let renewal = begin_read(&mut membership, 500 * MS);
    membership.read(renewal, shown(9, &config));
    assert!(!membership.has_right(1_000 * MS));
    // The next read may be of the revision that is known.
    let renewal = begin_read(&mut membership, 800 * MS);
    membership.read(renewal, shown(10, &config));
    assert!(membership.has_right(1_799 * MS) && !membership.has_right(1_800 * MS));
}

#[test]
fn reads_that_a_watch_overtakes_renew() {
    let (mut membership, config) = member();
    let renewal = begin_read(&mut membership, 500 * MS);
    membership.changed(shown(11, &config));
    membership.read(renewal, shown(10, &config));
    assert!(membership.has_right(1_499 * MS) && membership.view().revision() == 11);
}

#[test]
fn another_configuration_of_an_epoch_gives_no_right() {
    let (mut membership, config) = member();
    let next = config.flush().unwrap();
    membership.changed(shown(11, &next));
    assert_eq!(membership.next(0), Some(Action::Adopt));
    membership.adopted();
    assert!(membership.has_right(500 * MS));
    // etcd lost that epoch with its last writes, and another server began one of the same number.
    let other = config.with_server("s1", Vec::new(), 1, Incarnation(2)).unwrap();
    let renewal = begin_read(&mut membership, 500 * MS);
    membership.read(renewal, shown(20, &other));
    assert!(other.epoch() == next.epoch() && !membership.has_right(600 * MS));
    // The next epoch is one for both.
    let later = other.renewed().unwrap();
    membership.changed(shown(21, &later));
    assert_eq!(membership.next(600 * MS), Some(Action::Adopt));
    membership.adopted();
    assert!(membership.has_right(600 * MS));
}

#[test]
fn reads_of_another_cluster_renew_nothing() {
    let (mut membership, _) = member();
    let other = Config::new(8).with_server("s0", Vec::new(), 1, Incarnation(1)).unwrap();
    let renewal = begin_read(&mut membership, 500 * MS);
    membership.read(renewal, shown(20, &other));
    assert!(!membership.has_right(1_000 * MS) && membership.view().config().map(Config::uuid) == Some(7));
}

#[test]
fn tells_how_etcd_differs() {
    let (mut membership, config) = member();
    let other = Config::new(8);
    let none = |revision| View::of(revision, []).unwrap();
    let shows = [
        (none(1), Some(Mismatch::Gone)),
        (shown(2, &other), Some(Mismatch::Other(8))),
        (shown(9, &config), Some(Mismatch::Earlier)),
        (shown(11, &config), None),
        (none(12), Some(Mismatch::Gone)),
        (shown(13, &other), Some(Mismatch::Other(8))),
    ];
    for (at, (view, expected)) in shows.into_iter().enumerate() {
        let renewal = begin_read(&mut membership, (at as u64 + 1) * 600 * MS);
        membership.read(renewal, view);
        assert_eq!(membership.mismatch(), expected, "{at}");
    }
}

#[test]
fn a_cluster_made_anew_has_its_own_lease() {
    let identity = Identity { name: "s0".to_owned(), addresses: Vec::new(), weight: 1, clock_skew: 1_000 * MS };
    let mut membership = Membership::new(identity, Incarnation(1));
    let renewal = begin_read(&mut membership, 0);
    membership.read(renewal, shown(3, &Config::with_lease(6, 60_000).unwrap()));
    let config = Config::with_lease(7, 1_000).unwrap().with_server("s0", Vec::new(), 1, Incarnation(1)).unwrap();
    let renewal = begin_read(&mut membership, 1_000 * MS);
    membership.read(renewal, shown(10, &config));
    assert_eq!(membership.next(1_000 * MS), Some(Action::Adopt));
    membership.adopted();
    assert!(membership.has_right(1_999 * MS) && !membership.has_right(2_000 * MS));
}

/// Returns run 1 of this name, that is in no cluster, and sees an empty one. This run answers at its address.
fn outside(name: &str, answers: Incarnation) -> Membership {
    let identity = Identity { name: name.to_owned(), addresses: Vec::new(), weight: 1, clock_skew: 1_000 * MS };
    let mut membership = Membership::new(identity, Incarnation(1));
    let renewal = begin_read(&mut membership, 0);
    membership.read(renewal, shown(3, &Config::new(7)));
    membership.reached(answers);
    membership
}

fn proposes(membership: &mut Membership, now: u64) -> bool {
    std::iter::from_fn(|| membership.next(now)).any(|action| matches!(action, Action::Propose(_)))
}

#[test]
fn a_run_that_cannot_join_knows_why() {
    let mut membership = outside("12", Incarnation(1));
    assert_eq!(membership.obstacle(), Some(ChangeError::Name));
    assert!(!proposes(&mut membership, 0));
    assert_eq!(outside("s12", Incarnation(1)).obstacle(), None);
}

#[test]
fn a_refused_proposal_waits() {
    for is_answered in [true, false] {
        let mut membership = outside("s0", Incarnation(1));
        assert!(proposes(&mut membership, 0));
        membership.proposed(1, is_answered);
        let renewal = begin_read(&mut membership, 1);
        membership.read(renewal, shown(3, &Config::new(7)));
        assert_eq!(proposes(&mut membership, 2), is_answered);
        membership.proposed(2, is_answered);
        let renewal = begin_read(&mut membership, 600 * MS);
        membership.read(renewal, shown(3, &Config::new(7)));
        assert!(proposes(&mut membership, 600 * MS));
    }
}

#[test]
fn an_epoch_that_runs_out_is_followed() {
    let (mut membership, config) = member();
    membership.needs_epoch(Epoch(config.epoch().0 - 1));
    assert!(!proposes(&mut membership, 1));
    membership.needs_epoch(config.epoch());
    let proposal = std::iter::from_fn(|| membership.next(1)).find_map(|action| match action {
        Action::Propose(config) => Some(config),
        _ => None,
    });
    assert_eq!(proposal, config.renewed().ok());
}
