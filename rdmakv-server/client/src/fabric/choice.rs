//! Chooses between messages and transfers for values that may take either, by the times that both took.
//!
//! Which of them is faster depends on the fabric, the machine, and how much is under way, because wake-ups cost most. So values
//! of a class try both in turns, some requests each. The faster way has the next requests. Both are tried again after more and
//! more of them. A class is an operation, a size, and whether several requests are under way.

/// The longest values of the first classes of sizes, in bytes. The last class has all longer ones.
const SIZES: [usize; 2] = [16 << 10, 32 << 10];
/// Requests of a trial that count, and of the ones before them, that do not: alone, and where several are under way. Those
/// come and go together, so that 8 of them would say no more than one.
const COUNTED: [usize; 2] = [8, 32];
const WARM: [u32; 2] = [8, 32];
/// Requests of a trial after which it is given up: their ends are not seen.
const MOST: u32 = 512;
/// Requests before the first trial, between the first two, and at most.
const BEGIN: u32 = 32;
const HOLD: u32 = 1024;
const LONGEST: u32 = 64 * HOLD;
/// So many other requests under way make a class of their own.
const CROWD: u32 = 2;
/// The unit of the crowd: parts of a request.
const PARTS: u32 = 64;

/// The direction of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Get = 0,
    Set = 1,
}

/// The way of a request, and the trial that it is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    /// By a transfer, and not in a message.
    pub(super) transfer: bool,
    class: u8,
    trial: u32,
    counts: bool,
}

/// The choices of a connection.
#[derive(Default)]
pub(super) struct Choices {
    classes: [Class; 12],
    /// Other requests under way, in parts: the most of late. It falls by a 32nd with each request, as answers may come together
    /// and leave none under way between.
    crowd: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The better way has all requests.
    Hold,
    /// It is measured.
    Better,
    /// The other one is; and how long the better one took.
    Other(u64),
}

struct Class {
    /// The better way is a transfer.
    transfer: bool,
    phase: Phase,
    /// Requests of this phase.
    requests: u32,
    /// Requests of this trial that do not count.
    warm: u32,
    /// Names the trial.
    trial: u32,
    /// Requests until the next trial.
    hold: u32,
    times: Vec<u64>,
}

impl Default for Class {
    fn default() -> Self {
        Self { transfer: false, phase: Phase::Hold, requests: 0, warm: 0, trial: 0, hold: BEGIN, times: Vec::new() }
    }
}

impl Choices {
    /// Returns the way of a value of so many bytes, with so many other requests under way.
    pub(super) fn choose(&mut self, kind: Kind, bytes: usize, others: usize) -> Choice {
        let now = others.min(1 << 16) as u32 * PARTS;
        self.crowd = now.max(self.crowd - self.crowd.div_ceil(32));
        let size = SIZES.iter().take_while(|&&most| bytes > most).count();
        let crowd = usize::from(self.crowd >= CROWD * PARTS);
        let number = (kind as usize * 3 + size) * 2 + crowd;
        let class = &mut self.classes[number];
        class.requests += 1;
        match class.phase {
            // What is under way has taken the other way.
            Phase::Hold if class.requests > class.hold => {
                class.begin(Phase::Better, WARM[crowd].max(others.min(256) as u32));
            }
            Phase::Hold => {}
            _ if class.requests > MOST + class.warm => class.begin(Phase::Hold, 0),
            _ => {}
        }
        let transfer = class.transfer != matches!(class.phase, Phase::Other(_));
        let counts = class.phase != Phase::Hold && class.requests > class.warm;
        Choice { transfer, class: number as u8, trial: class.trial, counts }
    }

    /// Notes how long a request took, in nanoseconds.
    pub(super) fn ended(&mut self, choice: Choice, took: u64) {
        let class = &mut self.classes[usize::from(choice.class)];
        if !choice.counts || class.trial != choice.trial || class.phase == Phase::Hold {
            return;
        }
        class.times.push(took);
        let counted = COUNTED[usize::from(choice.class % 2)];
        if class.times.len() < counted {
            return;
        }
        // Half of them: one that was interrupted says nothing.
        class.times.sort_unstable();
        let took = class.times[counted / 2];
        match class.phase {
            Phase::Better => class.begin(Phase::Other(took), class.warm),
            Phase::Other(better) => {
                if took < better - better / 16 {
                    (class.transfer, class.hold) = (!class.transfer, HOLD);
                } else {
                    class.hold = (class.hold.max(HOLD / 4) * 4).min(LONGEST);
                }
                class.begin(Phase::Hold, 0);
            }
            Phase::Hold => {}
        }
    }
}

impl Class {
    fn begin(&mut self, phase: Phase, warm: u32) {
        self.phase = phase;
        self.requests = 1;
        self.warm = warm;
        self.trial = self.trial.wrapping_add(1);
        self.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has requests end one after the other, and returns the share of transfers.
    fn run(choices: &mut Choices, requests: u32, others: usize, took: impl Fn(bool) -> u64) -> f64 {
        let mut transfers = 0;
        for _ in 0..requests {
            let choice = choices.choose(Kind::Get, 64 << 10, others);
            transfers += u32::from(choice.transfer);
            choices.ended(choice, took(choice.transfer));
        }
        f64::from(transfers) / f64::from(requests)
    }

    #[test]
    fn the_faster_way_has_most_requests() {
        let mut choices = Choices::default();
        assert!(run(&mut choices, 2000, 0, |transfer| if transfer { 100 } else { 300 }) > 0.95);
        // It changes, and is noticed in time.
        assert!(run(&mut choices, 20_000, 0, |transfer| if transfer { 300 } else { 100 }) < 0.3);
        assert!(run(&mut choices, 20_000, 0, |transfer| if transfer { 300 } else { 100 }) < 0.01);
    }

    #[test]
    fn few_requests_take_messages() {
        let mut choices = Choices::default();
        assert!(run(&mut choices, BEGIN, 0, |transfer| if transfer { 1 } else { 2 }) == 0.0);
    }

    #[test]
    fn classes_learn_by_themselves() {
        let mut choices = Choices::default();
        assert!(run(&mut choices, 5000, 0, |transfer| if transfer { 100 } else { 300 }) > 0.9);
        assert!(run(&mut choices, 5000, 7, |transfer| if transfer { 300 } else { 100 }) < 0.1);
        assert!(run(&mut choices, 5000, 0, |transfer| if transfer { 100 } else { 300 }) > 0.9);
        assert!(!choices.choose(Kind::Set, 64 << 10, 0).transfer);
        assert!(!choices.choose(Kind::Get, 16 << 10, 0).transfer);
    }

    #[test]
    fn bursts_are_one_class() {
        let mut choices = Choices::default();
        let mut choose = |others| choices.choose(Kind::Get, 64 << 10, others).class;
        (0..8).for_each(|others| _ = choose(others));
        let crowd = choose(7);
        // All answers came together, and the next requests follow each other.
        assert!((0..1000).all(|at| choose(at % 8) == crowd));
        let alone: Vec<_> = (0..100).map(|_| choose(0)).collect();
        assert!(alone[0] == crowd && alone[99] != crowd);
    }

    #[test]
    fn trials_without_ends_are_given_up() {
        let mut choices = Choices::default();
        let all: Vec<_> = (0..5000).map(|_| choices.choose(Kind::Set, 64 << 10, 0)).collect();
        assert!(all.iter().all(|choice| !choice.transfer));
        // An end of a trial that is over changes nothing.
        choices.ended(all[100], 1);
        assert!(choices.classes[10].times.is_empty());
    }
}
