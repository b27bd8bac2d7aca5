//! A cluster whose servers fail: which are removed, when, and by which cause.
//!
//! Steps are of one interval. Each server sees etcd as of the step before, unless it is cut off from etcd. A cut is one way: the ping or its
//! answer does not arrive, and either looks the same to the one that asks.

use std::collections::BTreeSet;

use crate::config::{Config, Incarnation, Policy, ServerId};
use crate::detector::{Clocks, Detector, INTERVAL, Rights, suspected_by_most};
use crate::facts::{Change, Fact, Facts};
use crate::faults;

/// Steps after which etcd ends the lease of a run that does not renew it: 2 s, and up to half a second to notice.
const LEASE: u64 = 25;
/// Steps of a right.
const RIGHT: u64 = 20;

struct Cluster {
    step: u64,
    config: Config,
    facts: Facts,
    servers: Vec<Run>,
    /// No answer comes from the second to the first.
    cut: BTreeSet<(u8, u8)>,
    /// etcd answers none.
    etcd_is_down: bool,
    removed: Vec<(u64, ServerId)>,
}

struct Run {
    detector: Detector,
    state: Condition,
    reaches_etcd: bool,
    renewed: u64,
    /// When etcd was read last.
    read: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
    Runs,
    /// Refuses connections.
    Dead,
    /// Answers nothing and does nothing.
    Paused,
}

fn set(facts: &mut Facts, fact: &Fact, is_there: bool) {
    let (path, value) = (fact.path(), fact.value());
    let value = is_there.then_some(value.as_bytes());
    let change = Change { path: &path, value, revision: 1 };
    facts.set(change.path, change.value);
}

fn run_of(id: u8) -> Incarnation {
    Incarnation(u64::from(id) + 100)
}

impl Cluster {
    fn of(servers: u8) -> Self {
        let join = |config: Config, id| config.with_server(&format!("s{id}"), vec![], 1, run_of(id)).unwrap();
        let config = (0..servers).fold(Config::new(1), join).whole().unwrap();
        let run = |id| {
            let mut detector = Detector::new(ServerId(id), run_of(id));
            detector.follow(&config);
            Run { detector, state: Condition::Runs, reaches_etcd: true, renewed: 0, read: 0 }
        };
        let servers: Vec<Run> = (0..servers).map(run).collect();
        let (facts, cut, removed) = (Facts::default(), BTreeSet::new(), Vec::new());
        let mut cluster = Self { step: 0, config, facts, servers, cut, etcd_is_down: false, removed };
        cluster.advance(3);
        cluster
    }

    fn isolate(&mut self, id: u8) {
        for other in 0..self.servers.len() as u8 {
            self.cut.extend([(id, other), (other, id)]);
        }
    }

    fn advance(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step += 1;
            self.pings();
            self.etcd();
        }
    }

    fn pings(&mut self) {
        let states: Vec<Condition> = self.servers.iter().map(|run| run.state).collect();
        let rights: Vec<bool> = self.servers.iter().map(|run| self.step <= run.read + RIGHT).collect();
        for (me, run) in self.servers.iter_mut().enumerate().filter(|(me, _)| states[*me] == Condition::Runs) {
            for (id, incarnation) in run.detector.ping(self.step * INTERVAL) {
                // A ping goes one way and its answer the other.
                let (me, other) = (me as u8, id.0);
                let arrives = !self.cut.contains(&(me, other)) && !self.cut.contains(&(other, me));
                match states[usize::from(id.0)] {
                    Condition::Runs if arrives => {
                        let rights = Rights { own: rights[usize::from(me)], other: rights[usize::from(other)] };
                        let clocks = Clocks { sent: 0, answered: 0, received: 0 };
                        run.detector.answered(id, incarnation, clocks, rights);
                    }
                    Condition::Dead if arrives => run.detector.refused(id, incarnation),
                    _ => {}
                }
            }
        }
    }

    /// Each server that reaches etcd renews its lease, writes its suspicions and may remove one server.
    fn etcd(&mut self) {
        if self.etcd_is_down {
            // Leases begin anew when etcd returns.
            self.servers.iter_mut().for_each(|run| run.renewed = self.step);
            return;
        }
        let (seen, config) = (self.facts.clone(), self.config.clone());
        let mut next = None;
        for (me, run) in self.servers.iter_mut().enumerate() {
            let id = ServerId(me as u8);
            if run.state == Condition::Runs && run.reaches_etcd {
                (run.renewed, run.read) = (self.step, self.step);
                set(&mut self.facts, &Fact::Alive(id, run_of(id.0)), true);
                let (wanted, stale) = run.detector.changes(&seen);
                stale.iter().for_each(|fact| set(&mut self.facts, fact, false));
                wanted.iter().for_each(|fact| set(&mut self.facts, fact, true));
                next = next.or(run.detector.to_remove(&config, &seen));
            } else if self.step - run.renewed > LEASE {
                let hang = |fact: &&Fact| match fact {
                    Fact::Alive(of, _) => *of == id,
                    Fact::Suspect { by, .. } => by.0 == id,
                    _ => false,
                };
                let gone: Vec<Fact> = self.facts.iter().filter(hang).copied().collect();
                gone.iter().for_each(|fact| set(&mut self.facts, fact, false));
            }
        }
        if let Some(id) = next {
            self.config = config.without_server(id).unwrap();
            self.removed.push((self.step, id));
            self.servers.iter_mut().for_each(|run| run.detector.follow(&self.config));
        }
    }

    fn removed(&self) -> Vec<u8> {
        self.removed.iter().map(|(_, id)| id.0).collect()
    }
}

#[test]
fn healthy_servers_stay() {
    for servers in 1..8 {
        let mut cluster = Cluster::of(servers);
        cluster.advance(200);
        assert!(cluster.removed().is_empty());
    }
}

/// Killed: refused twice, and the step in which the others see it. Paused: four missed pings.
#[test]
fn a_dead_server_is_removed_in_time() {
    for servers in 2..8 {
        for (state, steps) in [(Condition::Dead, 4), (Condition::Paused, 7)] {
            let mut cluster = Cluster::of(servers);
            let begun = cluster.step;
            cluster.servers[1].state = state;
            cluster.advance(100);
            assert_eq!(cluster.removed(), [1], "{servers} {state:?}");
            assert!(cluster.removed[0].0 - begun <= steps, "{servers} {state:?}: {}", cluster.removed[0].0 - begun);
        }
    }
}

#[test]
fn two_of_six_are_removed_in_time() {
    for state in [Condition::Dead, Condition::Paused] {
        let (mut cluster, begun) = (Cluster::of(6), 3);
        cluster.servers[1].state = state;
        cluster.servers[4].state = state;
        cluster.advance(100);
        assert_eq!(cluster.removed(), [1, 4]);
        assert!(cluster.removed[1].0 - begun <= 8);
    }
}

/// Most of three are lost, so etcd's lease decides.
#[test]
fn the_last_server_waits_for_the_leases() {
    let mut cluster = Cluster::of(3);
    cluster.servers[1].state = Condition::Dead;
    cluster.servers[2].state = Condition::Paused;
    cluster.advance(LEASE - 1);
    assert!(cluster.removed().is_empty());
    cluster.advance(10);
    assert_eq!(cluster.removed(), [1, 2]);
}

#[test]
fn an_isolated_server_is_removed_and_removes_none() {
    for servers in 3..8 {
        let mut cluster = Cluster::of(servers);
        cluster.isolate(0);
        cluster.advance(100);
        assert_eq!(cluster.removed(), [0], "{servers}");
    }
}

#[test]
fn a_link_that_is_cut_removes_none() {
    for servers in 2..8 {
        let mut cluster = Cluster::of(servers);
        cluster.cut.insert((0, 1));
        cluster.advance(200);
        // Of three, one more suspects neither.
        assert!(cluster.removed().is_empty(), "{servers}");
    }
}

#[test]
fn halves_that_do_not_meet_both_stay() {
    let mut cluster = Cluster::of(4);
    for (one, other) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        cluster.cut.insert((one, other));
    }
    cluster.advance(200);
    assert!(cluster.removed().is_empty());
}

#[test]
fn a_server_cut_off_from_etcd_only_is_removed() {
    for servers in 2..8 {
        let mut cluster = Cluster::of(servers);
        cluster.servers[0].reaches_etcd = false;
        // Its right ends, and it answers without one for as long.
        cluster.advance(2 * RIGHT - 1);
        assert!(cluster.removed().is_empty());
        cluster.advance(10);
        assert_eq!(cluster.removed(), [0], "{servers}");
    }
}

#[test]
fn a_server_that_reads_etcd_again_in_time_stays() {
    let mut cluster = Cluster::of(3);
    for _ in 0..10 {
        cluster.servers[0].reaches_etcd = false;
        cluster.advance(2 * RIGHT - 2);
        cluster.servers[0].reaches_etcd = true;
        cluster.advance(2);
    }
    assert!(cluster.removed().is_empty());
}

/// Cuts three servers of six off from etcd, where keys may lose one server. Returns which are removed in one epoch after another.
fn cut_three_off() -> Vec<Vec<u8>> {
    let mut cluster = Cluster::of(6);
    cluster.config = cluster.config.with_policy(b"", Policy::Copies(2)).unwrap().whole().unwrap();
    cluster.servers[..3].iter_mut().for_each(|run| run.reaches_etcd = false);
    let mut removed = Vec::new();
    for _ in 0..3 {
        cluster.removed.clear();
        cluster.advance(100);
        removed.push(cluster.removed());
        cluster.config = cluster.config.whole().unwrap();
    }
    removed
}

#[test]
fn those_without_a_right_go_as_values_outlive_it() {
    assert_eq!(cut_three_off(), [vec![0], vec![1], vec![2]]);
    faults::plant("powerless-are-spared");
    let removed = cut_three_off();
    faults::plant("");
    assert_eq!(removed[0], [0, 1, 2]);
}

#[test]
fn an_outage_of_etcd_removes_none() {
    let mut cluster = Cluster::of(3);
    cluster.cut.extend([(0, 1), (2, 1)]);
    cluster.advance(4);
    // Suspicions are written, and then none can act or delete them.
    cluster.etcd_is_down = true;
    cluster.advance(2);
    cluster.cut.clear();
    cluster.advance(300);
    cluster.etcd_is_down = false;
    cluster.advance(200);
    assert!(cluster.removed().is_empty());
    assert_eq!(cluster.facts.iter().filter(|fact| matches!(fact, Fact::Suspect { .. })).count(), 0);
}

#[test]
fn a_server_that_wakes_suspects_none() {
    let mut cluster = Cluster::of(3);
    cluster.servers[0].state = Condition::Paused;
    cluster.advance(3);
    cluster.servers[0].state = Condition::Runs;
    cluster.advance(1);
    assert!((1..3).all(|id| !cluster.servers[0].detector.suspects(ServerId(id))));
    cluster.advance(100);
    assert!(cluster.removed().is_empty());
}

/// Random cuts, pauses and outages: whatever is removed was suspected by most or not alive, and one that is dead for long is removed.
#[test]
fn random_failures_remove_with_cause_only() {
    for seed in 0..60_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut dice = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % below
        };
        let servers = 3 + dice(5) as u8;
        let mut cluster = Cluster::of(servers);
        let dead = dice(u64::from(servers)) as u8;
        for _ in 0..40 {
            let (one, other) = (dice(u64::from(servers)) as u8, dice(u64::from(servers)) as u8);
            match dice(6) {
                0 => _ = cluster.cut.insert((one, other)),
                1 => cluster.cut.clear(),
                2 => cluster.etcd_is_down = !cluster.etcd_is_down,
                3 => cluster.servers[usize::from(one)].state = Condition::Paused,
                4 => cluster.servers.iter_mut().for_each(|run| run.state = Condition::Runs),
                _ => cluster.servers[usize::from(one)].reaches_etcd ^= true,
            }
            for _ in 0..1 + dice(12) {
                let (facts, config, before) = (cluster.facts.clone(), cluster.config.clone(), cluster.removed.len());
                cluster.advance(1);
                for &(_, id) in &cluster.removed[before..] {
                    let run = config.server(id).unwrap().incarnation;
                    assert!(
                        suspected_by_most(&config, &facts).contains(&id) || !facts.is_alive(id, run),
                        "seed {seed}"
                    );
                    let state = cluster.servers[usize::from(id.0)].state;
                    let is_cut = cluster.cut.iter().any(|&(one, other)| one == id.0 || other == id.0);
                    let has_right = cluster.step <= cluster.servers[usize::from(id.0)].read + RIGHT;
                    let is_well = state == Condition::Runs && !is_cut && has_right;
                    assert!(!is_well, "seed {seed}: {id:?} answers all");
                }
            }
        }
        cluster.cut.clear();
        cluster.etcd_is_down = false;
        cluster.servers.iter_mut().for_each(|run| (run.state, run.reaches_etcd) = (Condition::Runs, true));
        let gone = |cluster: &Cluster| cluster.config.server(ServerId(dead)).is_none();
        cluster.advance(60);
        cluster.servers[usize::from(dead)].state = Condition::Dead;
        cluster.advance(60);
        assert!(gone(&cluster) || cluster.config.servers().len() == 1, "seed {seed}: {:?}", cluster.facts);
    }
}

/// Returns whether it went wrong.
type Scenario = fn(&mut Cluster) -> bool;

/// Each planted fault removes a server that runs, or suspects one.
#[test]
fn finds_planted_faults() {
    let halves = |cluster: &mut Cluster| {
        for (one, other) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
            cluster.cut.insert((one, other));
        }
        cluster.advance(100);
        !cluster.removed().is_empty()
    };
    let outage = |cluster: &mut Cluster| {
        cluster.cut.extend([(0, 1), (2, 1), (3, 1)]);
        cluster.advance(4);
        cluster.etcd_is_down = true;
        cluster.advance(2);
        cluster.cut.clear();
        cluster.advance(100);
        cluster.etcd_is_down = false;
        cluster.advance(100);
        !cluster.removed().is_empty()
    };
    let wakes = |cluster: &mut Cluster| {
        let id = ServerId(1);
        let detector = &mut cluster.servers[0].detector;
        for sleep in 1..6 {
            detector.ping((100 + 10 * sleep) * INTERVAL);
        }
        detector.suspects(id)
    };
    // One after another reads etcd again after an outage.
    let returns = |cluster: &mut Cluster| {
        cluster.etcd_is_down = true;
        cluster.advance(100);
        cluster.etcd_is_down = false;
        cluster.servers[0].reaches_etcd = false;
        cluster.advance(RIGHT / 2);
        cluster.servers[0].reaches_etcd = true;
        cluster.advance(100);
        !cluster.removed().is_empty()
    };
    let scenarios: [(&str, Scenario); 4] = [
        ("suspected-removes", halves),
        ("old-suspicion-removes", outage),
        ("late-pings-count", wakes),
        ("outage-counts", returns),
    ];
    for (fault, is_wrong) in scenarios {
        for planted in ["", fault] {
            crate::faults::plant(planted);
            let wrong = is_wrong(&mut Cluster::of(4));
            crate::faults::plant("");
            assert_eq!(wrong, !planted.is_empty(), "{fault}");
        }
    }
}

#[test]
fn a_wrong_clock_is_the_one_that_most_disagree_with() {
    let config = Cluster::of(3).config;
    let clocks = |skew: i64| Clocks { sent: 0, answered: skew, received: 1_000_000 };
    let detector = |skews: &[(u8, i64)]| {
        let mut detector = Detector::new(ServerId(0), run_of(0));
        detector.follow(&config);
        for &(id, skew) in skews {
            detector.answered(ServerId(id), run_of(id), clocks(skew), Rights { own: true, other: true });
        }
        detector.is_clock_off(1_000_000_000)
    };
    let off = 600_000_000;
    assert!(detector(&[(1, off), (2, off)]) && detector(&[(1, -off), (2, -off)]));
    assert!(!detector(&[(1, off), (2, 0)]) && !detector(&[(1, off), (2, -off)]) && !detector(&[(1, off)]));
    assert!(!detector(&[(1, 400_000_000), (2, 400_000_000)]));
}

/// Two servers join beside one that has values, and it is paused. Returns which servers are removed.
fn pause_the_last_with_values() -> Vec<u8> {
    let mut cluster = Cluster::of(3);
    for id in [1, 2] {
        cluster.config = cluster.config.without_server(ServerId(id)).unwrap();
    }
    for id in [1, 2] {
        cluster.config = cluster.config.with_server(&format!("s{id}"), vec![], 1, run_of(id)).unwrap();
    }
    cluster.servers.iter_mut().for_each(|run| run.detector.follow(&cluster.config));
    cluster.advance(3);
    cluster.servers[0].state = Condition::Paused;
    cluster.advance(100);
    cluster.removed()
}

#[test]
fn the_last_server_with_values_is_not_removed() {
    assert_eq!(pause_the_last_with_values(), Vec::<u8>::new());
    faults::plant("last-removed");
    let removed = pause_the_last_with_values();
    faults::plant("");
    assert_eq!(removed, vec![0]);
}
