//! When requests are to start, whatever the server does: an open loop.
//!
//! A request's latency counts from the time it was to start. Were it counted from when it could be sent, a server that
//! stops for a second would be asked nothing in that second. The pause would show in one request instead of in all
//! that should have been made (coordinated omission).

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
    times: Times,
    next: f64,
}

#[derive(Clone, Debug)]
enum Times {
    Law {
        arrivals: Arrivals,
        gap: f64,
    },
    /// Recorded ones, in order.
    List {
        times: Vec<u64>,
        at: usize,
    },
}

impl Schedule {
    /// One of `threads` schedules that together start `rate` requests a second; constant ones interleave.
    pub fn new(arrivals: Arrivals, rate: f64, thread: usize, threads: usize) -> Self {
        let gap = threads as f64 * 1e9 / rate;
        let next = match arrivals {
            Arrivals::Constant => gap * thread as f64 / threads as f64,
            Arrivals::Poisson => 0.0,
        };
        Self { times: Times::Law { arrivals, gap }, next }
    }

    /// These times, which rise.
    pub fn recorded(times: Vec<u64>) -> Self {
        let next = times.first().map_or(f64::INFINITY, |&time| time as f64);
        Self { times: Times::List { times, at: 0 }, next }
    }

    /// When the next request is to start; after the last of recorded ones, never.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next as u64
    }

    /// About how many are still to start between these times.
    pub(crate) fn left_between(&self, from: u64, to: u64) -> u64 {
        match &self.times {
            Times::Law { gap, .. } => ((to as f64 - self.next.max(from as f64)).max(0.0) / gap).ceil() as u64,
            Times::List { times, at } => times[*at..].iter().filter(|time| (from..to).contains(time)).count() as u64,
        }
    }

    /// Goes on to the one after it.
    #[inline]
    pub fn step(&mut self, random: &mut impl Rng) {
        match &mut self.times {
            Times::Law { arrivals: Arrivals::Constant, gap } => self.next += *gap,
            Times::Law { arrivals: Arrivals::Poisson, gap } => {
                let part: f64 = Exp1.sample(random);
                self.next += part * *gap;
            }
            Times::List { times, at } => {
                *at = (*at + 1).min(times.len());
                self.next = times.get(*at).map_or(f64::INFINITY, |&time| time as f64);
            }
        }
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

    #[test]
    fn recorded_times_are_kept_and_end() {
        let mut random = Pcg64::seed_from_u64(5);
        let mut schedule = Schedule::recorded(vec![0, 5, 5, 9]);
        assert_eq!(schedule.left_between(1, 9), 2);
        let mut seen = Vec::new();
        while schedule.next() < u64::MAX {
            seen.push(schedule.next());
            schedule.step(&mut random);
        }
        assert_eq!(seen, [0, 5, 5, 9]);
        assert_eq!((schedule.left_between(0, u64::MAX), Schedule::recorded(Vec::new()).next()), (0, u64::MAX));
    }
}
