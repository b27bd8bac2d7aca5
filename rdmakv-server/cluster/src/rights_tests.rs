//! Rights and fences: at no time do two runs answer for one key.

use proptest::prelude::*;

use crate::config::{Config, Epoch, Incarnation, ServerId};
use crate::dice::Dice;
use crate::faults;
use crate::placement::Placement;
use crate::rights::{Fences, Renewal, Right, fence_time};

const LEASE: u64 = 1 << 10;
const KEY: &[u8] = b"key";

/// A run of a server, with a clock of its own.
struct Run {
    incarnation: Incarnation,
    /// Its clock: an offset, and its rate in parts of 32, from 30 to 33.
    clock: (u64, u64),
    right: Right,
    fences: Fences,
    config: Option<Config>,
    /// Whether it is the key's primary in the epoch that it adopted.
    is_primary: bool,
    /// A read that was sent, and what it will show.
    read: Option<(Renewal, Config)>,
    /// The epoch in its fact `adopted`.
    written: Epoch,
}

impl Run {
    fn new(incarnation: u64, dice: &mut Dice) -> Self {
        let incarnation = Incarnation(incarnation);
        Self {
            incarnation,
            clock: (dice.below(1 << 20), 30 + dice.below(4)),
            right: Right::new(LEASE, incarnation),
            fences: Fences::new(LEASE, incarnation),
            config: None,
            is_primary: false,
            read: None,
            written: Epoch(0),
        }
    }

    fn now(&self, time: u64) -> u64 {
        self.clock.0 + time * self.clock.1 / 32
    }

    fn adopt(&mut self, config: &Config, time: u64) {
        if self.config.as_ref().is_none_or(|own| config.supersedes(own)) {
            self.fences.adopt(config, self.now(time));
            let primary = Placement::of(config).primary(KEY).and_then(|id| config.server(id));
            self.is_primary = primary.is_some_and(|primary| primary.incarnation == self.incarnation);
            self.config = Some(config.clone());
        }
    }

    fn answers(&self, time: u64, written: &[(Incarnation, Epoch)]) -> bool {
        let has_adopted = |run, epoch| written.iter().any(|&(other, adopted)| other == run && adopted >= epoch);
        self.is_primary
            && self.right.is_in_force(self.now(time))
            && self.fences.until(KEY, self.now(time), has_adopted).is_none()
    }
}

/// Runs one history. Returns how often two runs could answer at once, and whether any could.
fn history(seed: u64, steps: u32) -> (u32, bool) {
    let mut dice = Dice(seed);
    let mut latest = Config::new(1);
    let mut runs: Vec<Run> = Vec::new();
    let (mut time, mut violations, mut answered) = (0, 0, false);
    for _ in 0..steps {
        time += dice.below(LEASE / 8);
        match dice.below(16) {
            0 if latest.servers().len() < 4 || dice.below(2) == 0 => {
                let run = Run::new(runs.len() as u64 + 1, &mut dice);
                let name = format!("s{}", dice.below(4));
                latest = latest.with_server(&name, vec![], 1, run.incarnation).unwrap();
                runs.push(run);
            }
            1 if latest.servers().len() > 1 => {
                let at = dice.below(latest.servers().len() as u64) as usize;
                latest = latest.without_server(latest.servers()[at].id).unwrap();
            }
            2 if !latest.servers().is_empty() => {
                let at = dice.below(latest.servers().len() as u64) as usize;
                latest = latest.draining(latest.servers()[at].id).unwrap_or(latest);
            }
            3 => {
                let members = runs.iter_mut().filter(|run| latest.incarnation(run.incarnation).is_some());
                members.for_each(|run| run.adopt(&latest, time));
            }
            4 => {
                // Agents repair the keys of a primary when its fence is over.
                let done = runs.iter().filter(|run| latest.incarnation(run.incarnation).is_some()).all(|run| {
                    let is_fenced = || run.fences.until(KEY, run.now(time), |_, _| false).is_some();
                    run.config.as_ref() == Some(&latest) && !(run.is_primary && is_fenced())
                });
                let stays = latest.servers().iter().any(|server| server.state != crate::config::State::Draining);
                if done && stays {
                    latest = latest.whole().unwrap();
                }
            }
            _ if runs.is_empty() => {}
            chance => {
                let run = dice.below(runs.len() as u64) as usize;
                let run =
                    if dice.below(4) == 0 { run } else { runs.len() - 1 - run.min(runs.len() - 1) % 4.min(runs.len()) };
                let run = &mut runs[run];
                match chance {
                    5..=7 if run.read.is_none() => run.read = Some((run.right.renew(run.now(time)), latest.clone())),
                    5..=10 => {
                        if let Some((renewal, config)) = run.read.take() {
                            run.right.answered(renewal, &config);
                            run.adopt(&config, time);
                        }
                    }
                    11 | 12 => run.adopt(&latest, time),
                    _ => run.written = run.config.as_ref().map_or(Epoch(0), Config::epoch),
                }
            }
        }
        let written: Vec<_> = runs.iter().map(|run| (run.incarnation, run.written)).collect();
        let answering = runs.iter().filter(|run| run.answers(time, &written)).count();
        violations += u32::from(answering > 1);
        answered |= answering > 0;
    }
    (violations, answered)
}

#[test]
fn two_runs_never_answer_for_one_key() {
    let answered = (0..400).filter(|&seed| {
        let (violations, answered) = history(seed, 200);
        assert_eq!(violations, 0, "seed {seed}");
        answered
    });
    assert!(answered.count() > 250);
}

/// Returns the first seed that shows a planted fault.
fn found(fault: &'static str, histories: u64) -> Option<u64> {
    faults::plant(fault);
    let found = (0..histories).find(|&seed| history(seed, 200).0 > 0);
    faults::plant("");
    found
}

#[test]
fn finds_planted_no_fence() {
    assert!(found("no-fence", 400).is_some());
}

#[test]
fn finds_planted_no_fence_after_skip() {
    assert!(found("no-fence-after-skip", 400).is_some());
}

fn whole(names: &[&str]) -> Config {
    let join = |config: Config, (run, name): (usize, &&str)| {
        config.with_server(name, vec![], 1, Incarnation(run as u64)).unwrap()
    };
    names.iter().enumerate().fold(Config::new(1), join).whole().unwrap()
}

#[test]
fn a_right_counts_from_its_sending() {
    let config = whole(&["a"]);
    let mut right = Right::new(LEASE, Incarnation(0));
    assert!(right.is_due(5) && !right.is_in_force(5));
    let renewal = right.renew(5);
    assert!(right.answered(renewal, &config));
    assert_eq!((right.end(), right.is_due(6), right.is_due(5 + LEASE / 4)), (Some(5 + LEASE), false, true));
    assert!(right.is_in_force(4 + LEASE) && !right.is_in_force(5 + LEASE));
}

#[test]
fn an_older_answer_changes_nothing() {
    let config = whole(&["a", "b"]);
    let mut right = Right::new(LEASE, Incarnation(0));
    let (old, new) = (right.renew(1), right.renew(9));
    right.answered(new, &config);
    right.answered(old, &config);
    assert_eq!(right.end(), Some(9 + LEASE));
    let removed = config.without_server(ServerId(0)).unwrap();
    let last = right.renew(10);
    assert!(!right.answered(last, &removed) && !right.is_in_force(11));
}

#[test]
fn tags_end_inside_the_right() {
    let ends_later = |fault| {
        faults::plant(fault);
        let mut right = Right::new(LEASE, Incarnation(0));
        let renewal = right.renew(0);
        right.answered(renewal, &whole(&["a"]));
        let duration = LEASE / 2;
        let later = (0..2 * LEASE).any(|now| right.allows_tag(now, duration) && now + duration + duration / 8 > LEASE);
        assert!(right.allows_tag(0, duration));
        faults::plant("");
        later
    };
    assert!(!ends_later("") && ends_later("tag-past-right"));
}

#[test]
fn a_server_that_was_primary_throughout_has_no_fence() {
    let config = whole(&["a"]);
    let mut fences = Fences::new(LEASE, Incarnation(0));
    fences.adopt(&config, 0);
    let nothing = |_, _| false;
    let joined = config.with_server("b", vec![], 1, Incarnation(7)).unwrap();
    fences.adopt(&joined, 10);
    assert_eq!(fences.until(KEY, 11, nothing), None);
}

#[test]
fn too_many_rings_are_a_gap() {
    let config = whole(&["a", "b", "c", "d", "e", "f"]);
    let first = Placement::of(&config).primary(KEY).unwrap();
    let others = config.servers().iter().map(|server| server.id).filter(|&id| id != first);
    let epochs: Vec<Config> = others
        .scan(config.clone(), |last, id| {
            *last = last.without_server(id).unwrap();
            Some(last.clone())
        })
        .collect();
    let fences = |points| {
        let mut fences = Fences::new(LEASE, config.server(first).unwrap().incarnation).keep(points);
        fences.adopt(&config, 0);
        fences
    };
    // It was primary throughout, and knows it only if it keeps all rings.
    for (points, is_fenced) in [(1 << 20, false), (100, true)] {
        let mut skips = fences(points);
        skips.adopt(epochs.last().unwrap(), 4 * LEASE);
        assert_eq!(skips.until(KEY, 4 * LEASE + 1, |_, _| false).is_some(), is_fenced, "{points} points");
    }
    // One ring is always kept.
    let mut follows = fences(0);
    follows.adopt(&epochs[0], 4 * LEASE);
    assert_eq!(follows.until(KEY, 4 * LEASE + 1, |_, _| false), None);
}

proptest! {
    /// A new primary waits a lease, unless all that were primary wrote that they adopted its epoch.
    #[test]
    fn a_new_primary_waits_a_lease(at in 0_u64..1 << 40, adopted: bool, late in 0_u64..2 * LEASE) {
        let config = whole(&["a", "b", "c"]);
        let first = Placement::of(&config).primary(KEY).unwrap();
        let next = config.without_server(first).unwrap();
        let second = Placement::of(&next).primary(KEY).unwrap();
        let mut fences = Fences::new(LEASE, config.server(second).unwrap().incarnation);
        fences.adopt(&config, at);
        let at = at + 2 * LEASE;
        fences.adopt(&next, at);
        let old = config.server(first).unwrap().incarnation;
        let until = fences.until(KEY, at + late, |run, epoch| adopted && run == old && epoch == next.epoch());
        let end = at + fence_time(LEASE);
        prop_assert_eq!(until, (!adopted && at + late < end).then_some(end));
    }
}
