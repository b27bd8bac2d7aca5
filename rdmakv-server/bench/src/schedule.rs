//! When requests are to start, whatever the server does: an open loop.
//!
//! A request's latency counts from the time it was to start. Were it counted from when it could be sent, a server that
//! stops for a second would be asked nothing in that second, and the pause would show in one request instead of in
//! all that should have been made (coordinated omission).

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand_distr::{Distribution, Exp1};

/// How the gaps between requests are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// As when many users ask independently: exponential gaps.
    #[default]
    Poisson,
    /// All gaps the same.
    Constant,
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "poisson" => Ok(Self::Poisson),
            "constant" => Ok(Self::Constant),
            _ => Err(format!("{text}: one of poisson, constant")),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Poisson => "poisson",
            Self::Constant => "constant",
        })
    }
}

/// The times of one thread's requests, in nanoseconds since the run began.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    gap: f64,
    next: f64,
}

impl Schedule {
    /// One of `threads` schedules that together start `rate` requests a second; constant ones interleave.
    pub fn new(arrivals: Arrivals, rate: f64, thread: usize, threads: usize) -> Self {
        let gap = threads as f64 * 1e9 / rate;
        let next = match arrivals {
            Arrivals::Constant => gap * thread as f64 / threads as f64,
            Arrivals::Poisson => 0.0,
        };
        Self { arrivals, gap, next }
    }

    /// When the next request is to start.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next as u64
    }

    /// About how many are still to start between these times.
    pub(crate) fn left_between(&self, from: u64, to: u64) -> u64 {
        ((to as f64 - self.next.max(from as f64)).max(0.0) / self.gap).ceil() as u64
    }

    /// Goes on to the one after it.
    #[inline]
    pub fn step(&mut self, random: &mut impl Rng) {
        self.next += match self.arrivals {
            Arrivals::Constant => self.gap,
            Arrivals::Poisson => {
                let gap: f64 = Exp1.sample(random);
                gap * self.gap
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::fits;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;

    #[test]
    fn gaps_between_independent_users_are_exponential() {
        let mut random = Pcg64::seed_from_u64(5);
        let mut schedule = Schedule::new(Arrivals::Poisson, 1000.0, 0, 2);
        let mut seen = vec![0; 41];
        for _ in 0..200_000 {
            let before = schedule.next;
            schedule.step(&mut random);
            // Bins of a twentieth of the mean gap, which is 2 ms for one of two threads.
            seen[(((schedule.next - before) / 1e5) as usize).min(40)] += 1;
        }
        let until = |bin: usize| (-0.05 * bin as f64).exp();
        let mut theory: Vec<f64> = (0..40).map(|bin| until(bin) - until(bin + 1)).collect();
        theory.push(until(40));
        fits(&seen, &theory);
    }

    #[test]
    fn constant_schedules_of_several_threads_interleave() {
        let mut random = Pcg64::seed_from_u64(5);
        let mut times = Vec::new();
        for thread in 0..4 {
            let mut schedule = Schedule::new(Arrivals::Constant, 1000.0, thread, 4);
            for _ in 0..10 {
                times.push(schedule.next());
                schedule.step(&mut random);
            }
        }
        times.sort();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000), "{times:?}");
    }
}
