//! The budget of a module: how long its steps take. Pure.
//!
//! A step is limited by its fuel, which instructions and bytes cost. Fuel has a rate that slow machines reach, too. All steps together are
//! limited by their fuel. They are limited by the processor's time as well, which may be a millisecond more.

/// Fuel of a microsecond.
const RATE: u64 = 256;
/// Microseconds of a step.
const STEP: u64 = 50;
/// Microseconds of all steps of a run, on all servers together.
pub(super) const TOTAL: u64 = 1000;
/// Microseconds of the processor here, after which no step begins.
const PROCESSOR: u64 = 2 * TOTAL;
/// Fuel that each step costs at least. So steps that do nothing end, too.
const LEAST: u64 = RATE;
/// Fuel of a call of one of the functions `far`, besides its bytes.
const CALL: u64 = 64;
/// Bytes of far memory for a unit of fuel.
const BYTES: u64 = 8;
/// Bytes that are made for a run, for a unit of fuel.
const MADE: u64 = 64;

/// The budget of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Budget {
    /// Microseconds at other servers.
    before: u64,
    fuel: u64,
    /// Microseconds of the processor here.
    micros: u64,
}

impl Budget {
    /// Returns the budget of a run that took so long at other servers.
    pub(super) fn new(before: u32) -> Self {
        Self { before: before.into(), fuel: 0, micros: 0 }
    }

    /// Takes note of the processor's time so far.
    pub(super) fn ran(&mut self, micros: u64) {
        self.micros = self.micros.max(micros);
    }

    /// Takes note of bytes that are made for the run: its memory, and what is copied there.
    pub(super) fn made(&mut self, bytes: u64) {
        self.fuel = self.fuel.saturating_add(bytes / MADE);
    }

    /// Takes note of a step.
    pub(super) fn spend(&mut self, fuel: u64) {
        self.fuel = self.fuel.saturating_add(fuel.max(LEAST));
    }

    /// Returns the fuel of the next step, unless the time is over.
    pub(super) fn next_step(&self) -> Option<u64> {
        let is_over = self.micros >= PROCESSOR;
        let left = if is_over { 0 } else { TOTAL.saturating_sub(self.micros()) };
        (left > 0).then_some(left.min(STEP) * RATE)
    }

    /// Returns whether a step with this fuel had as much as a step may have: the rest of a run's time is less.
    pub(super) fn is_whole(fuel: u64) -> bool {
        fuel >= STEP * RATE
    }

    /// Returns how long the run took, at all servers together, by its fuel.
    pub(super) fn micros(&self) -> u64 {
        self.before.saturating_add(self.fuel / RATE)
    }
}

/// Returns the fuel of a call of one of the functions `far`.
pub(super) fn price(bytes: u64) -> u64 {
    CALL.saturating_add(bytes / BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_do_nothing_end() {
        let mut budget = Budget::new(0);
        let mut steps = 0;
        while let Some(fuel) = budget.next_step() {
            assert!(fuel <= STEP * RATE);
            budget.spend(0);
            steps += 1;
        }
        assert_eq!((steps, budget.micros()), (TOTAL * RATE / LEAST, TOTAL));
    }

    #[test]
    fn full_steps_end_with_the_total() {
        let mut budget = Budget::new(0);
        let mut steps = 0;
        while let Some(fuel) = budget.next_step() {
            budget.spend(fuel);
            steps += 1;
        }
        assert_eq!(steps, TOTAL / STEP);
    }

    #[test]
    fn fuel_and_the_processor_end_a_run() {
        let mut budget = Budget::new(400);
        budget.spend(570 * RATE);
        assert_eq!((budget.micros(), budget.next_step()), (970, Some(30 * RATE)), "the rest is less than a step");
        budget.ran(PROCESSOR - 1);
        assert_eq!((budget.micros(), budget.next_step()), (970, Some(30 * RATE)));
        budget.ran(PROCESSOR);
        assert_eq!((budget.micros(), budget.next_step()), (970, None));
        assert_eq!(Budget::new(u32::MAX).next_step(), None, "what a client says is no reason to panic");
    }

    #[test]
    fn bytes_cost_fuel() {
        assert!(price(4096) > price(8) && price(0) > 0);
        let mut budget = Budget::new(0);
        budget.made(1 << 20);
        assert_eq!(budget.micros(), 64);
        budget.made(u64::MAX);
        budget.spend(u64::MAX);
        assert_eq!(budget.next_step(), None);
    }
}
