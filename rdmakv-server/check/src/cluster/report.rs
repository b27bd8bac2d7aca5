//! The results of a run, and its report.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::plan::Fault;
use super::worker::{Did, KEYS, Outcome, name};
use crate::history::Operation;
use crate::judge::{Verdict, judge};

/// The results of a run.
#[derive(Debug, Default)]
pub struct Run {
    /// Operations, by name and end.
    counts: BTreeMap<&'static str, u64>,
    /// Keys that were absent though all had been written.
    lost: u64,
    /// The reasons of keys without an order.
    violations: Vec<String>,
    undecided: u64,
    /// The first errors that an operation may not have.
    strange: Vec<String>,
    /// Times of the operations that succeeded, sorted.
    times: Vec<u64>,
    /// For each kind of faults how many there were, and the longest gap: the part of an operation's time between one and the next.
    kinds: BTreeMap<&'static str, (u32, u64)>,
    facts: Facts,
}

/// The facts of a run beside its operations.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The faults, with the times of their begins.
    pub(super) faults: Vec<(u64, Fault)>,
    pub(super) worked: Duration,
    /// The last epoch.
    pub(super) epoch: u32,
    pub(super) seed: u64,
    /// The right of servers, in milliseconds.
    pub(super) lease: u32,
    /// Reads without a server.
    pub(super) one_sided: u64,
}

impl Run {
    /// Returns whether nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.violations.is_empty() && self.undecided == 0 && self.strange.is_empty()
    }

    /// Notes the time of an operation under each fault that it met: of two faults in a row, each has its own part.
    fn note_gaps(&mut self, begin: u64, end: u64) {
        let faults = &self.facts.faults;
        let first = faults.partition_point(|&(at, _)| at <= begin).saturating_sub(1);
        for (index, &(at, fault)) in faults.iter().enumerate().skip(first).take_while(|&(_, &(at, _))| at <= end) {
            let until = faults.get(index + 1).map_or(end, |&(next, _)| next.min(end));
            let (_, gap) = self.kinds.entry(fault.kind()).or_default();
            *gap = (until - at.max(begin)).max(*gap);
        }
    }

    /// Returns the report.
    pub fn render(&self) -> String {
        let (mut text, facts) = (String::new(), &self.facts);
        let counts: Vec<String> = self.counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let worked = facts.worked.as_secs_f64();
        let _ = writeln!(text, "operations: {} in {worked:.1} s; seed {}", counts.join(", "), facts.seed);
        let ms = |time: u64| time as f64 / 1e6;
        let _ = writeln!(text, "faults, and the longest gap after each kind, until the next:");
        for kind in Fault::KINDS {
            if let Some(&(count, gap)) = self.kinds.get(kind) {
                let (leases, why) = Fault::lasts(kind).map_or((1, "lease"), |leases| (leases, "fault"));
                let limit = leases * facts.lease + 1000;
                let _ = writeln!(text, "  {kind:<28} {count:>3} {:>8.0} ms; limit {limit} ms, {why} and 1 s", ms(gap));
            }
        }
        let at = |share: f64| self.times.get((self.times.len() as f64 * share) as usize).copied().unwrap_or(0);
        let (half, most, longest) = (ms(at(0.5)), ms(at(0.999)), ms(self.times.last().copied().unwrap_or(0)));
        let _ = writeln!(text, "times: median {half:.2} ms, 99.9 % {most:.1} ms, longest {longest:.1} ms");
        let _ = writeln!(text, "epochs: {}; reads without a server: {}", facts.epoch, facts.one_sided);
        let (lost, violations, undecided) = (self.lost, self.violations.len(), self.undecided);
        let _ = writeln!(text, "lost writes: {lost}; violations: {violations}; undecided keys: {undecided}");
        for why in self.violations.iter().chain(&self.strange).take(10) {
            let _ = writeln!(text, "{why}");
        }
        text
    }
}

/// Returns the results: each key is judged.
pub(super) fn verdict(histories: Vec<Vec<Did>>, facts: Facts) -> Run {
    let mut run = Run { facts, ..Run::default() };
    for (_, fault) in &run.facts.faults {
        run.kinds.entry(fault.kind()).or_default().0 += 1;
    }
    let mut keys: Vec<Vec<Operation>> = vec![Vec::new(); KEYS.0 + KEYS.1];
    for Did { key, name, begin, time, end } in histories.into_iter().flatten() {
        let name = match end {
            Outcome::Effect(operation) => {
                keys[key].push(operation);
                if operation.certain {
                    run.times.push(time);
                    run.note_gaps(begin, begin + time);
                }
                if operation.certain { name } else { "of unknown outcome" }
            }
            Outcome::Nothing => "not done",
            Outcome::Lost => {
                run.lost += 1;
                "lost"
            }
            Outcome::Strange(why) => {
                run.strange.push(why);
                "strange"
            }
        };
        *run.counts.entry(name).or_default() += 1;
    }
    run.times.sort_unstable();
    for (key, history) in keys.iter().enumerate() {
        match judge(history) {
            Verdict::Linearizable => {}
            Verdict::Undecided => run.undecided += 1,
            Verdict::Violated(violation) => {
                let mut why = format!("{}: {violation:?}", name(key));
                for &at in violation.operations.iter().take(4) {
                    let _ = write!(why, "\n  {:?}", history[at]);
                }
                run.violations.push(why);
            }
        }
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{NEVER, Step};

    fn did(key: usize, end: Outcome) -> Did {
        Did { key, name: "reads", begin: 0, time: 1, end }
    }

    fn at(begin: u64, end: u64, step: Step) -> Outcome {
        Outcome::Effect(Operation { begin, end, certain: true, step })
    }

    fn run(end: Outcome) -> Run {
        let first = [at(1, 2, Step::Write(7)), at(3, 4, Step::Write(8)), at(5, 6, Step::Read(8))];
        let history = first.into_iter().chain([end]).map(|end| did(0, end)).collect();
        verdict(vec![history], Facts::default())
    }

    #[test]
    fn lost_and_old_values_are_found() {
        assert!(run(at(7, 8, Step::Read(8))).is_clean());
        assert!(run(Outcome::Nothing).is_clean());
        // A write of unknown outcome may still come.
        let unknown = Operation { begin: 2, end: NEVER, certain: false, step: Step::Write(9) };
        assert!(run(Outcome::Effect(unknown)).is_clean());
        let lost = run(Outcome::Lost);
        assert!(!lost.is_clean() && lost.render().contains("lost writes: 1; violations: 0"), "{}", lost.render());
        let old = run(at(7, 8, Step::Read(7)));
        assert!(!old.is_clean() && old.render().contains("lost writes: 0; violations: 1"), "{}", old.render());
        assert!(!run(Outcome::Strange("an error".to_owned())).is_clean());
    }

    #[test]
    fn a_gap_is_the_time_between_two_faults() {
        let did = |begin, time| Did { begin, time, ..did(0, at(begin, begin + time, Step::Read(0))) };
        let faults = vec![(100, Fault::Kill), (200, Fault::Pause), (300, Fault::Outage)];
        let gaps = |operations: Vec<Did>| {
            // Only the times matter here: the value was never written.
            let run = verdict(vec![operations], Facts { faults: faults.clone(), ..Facts::default() });
            assert_eq!(run.kinds.len(), 3);
            ["server killed", "server paused", "all of etcd killed"].map(|kind| run.kinds[kind])
        };
        assert_eq!(gaps(vec![did(10, 50), did(90, 40), did(210, 60)]), [(1, 30), (1, 60), (1, 0)]);
        // It waited for two of them, and ended after the third.
        assert_eq!(gaps(vec![did(140, 165)]), [(1, 60), (1, 100), (1, 5)]);
        assert_eq!(gaps(vec![did(400, 7), did(500, 5)]), [(1, 0), (1, 0), (1, 7)]);
        let run = verdict(vec![vec![did(210, 60)]], Facts { faults, ..Facts::default() });
        assert!(run.render().contains("  server paused                  1        0 ms; limit 1000 ms, lease and 1 s"));
    }
}
