//! Planned failures, and the errors that report them.
//!
//! A [`Fault`] judges one region at a time, when it is registered or when it is deregistered. The regions
//! of a batch that it strikes stay behind and the others leave, so every part of a batch can fail.

use crate::range::PageRange;
use crate::shim::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

/// A rule by which registrations or deregistrations fail, until [`Model::heal`](super::Model::heal).
///
/// Errors are numbers of the system, as in `libc::ENOMEM`.
pub struct Fault {
    strikes: When,
    error: Error,
    pub(super) told: Told,
}

enum When {
    Always,
    Within(PageRange),
    Next(AtomicU64),
    /// Strikes when the next number of the sequence is below the bound.
    Chance {
        bound: u64,
        sequence: AtomicU64,
    },
    Judged(Box<dyn Fn(PageRange) -> bool + Send + Sync>),
}

#[derive(Clone, Copy)]
enum Error {
    Number(i32),
    Kind(io::ErrorKind),
}

/// The registrar's behaviour for a region that does not leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// It stays, and there is an error.
    Truth,
    /// It stays, and nothing is said.
    Nothing,
    /// It leaves, and there is an error.
    FalseAlarm,
}

impl Fault {
    fn new(strikes: When, errno: i32) -> Self {
        Self { strikes, error: Error::Number(errno), told: Told::Truth }
    }

    /// Everything fails.
    pub fn always(errno: i32) -> Self {
        Self::new(When::Always, errno)
    }

    /// Fails every registration that touches the range: a bad address, with `EFAULT`.
    pub fn within(range: PageRange, errno: i32) -> Self {
        Self::new(When::Within(range), errno)
    }

    /// The next `regions` regions fail.
    pub fn next(regions: u64, errno: i32) -> Self {
        Self::new(When::Next(AtomicU64::new(regions)), errno)
    }

    /// Each region fails with this probability. The same seed gives the same sequence of failures.
    pub fn chance(probability: f64, seed: u64, errno: i32) -> Self {
        // The conversion saturates, and takes what is not a number for 0.
        let bound = (probability * u64::MAX as f64) as u64;
        Self::new(When::Chance { bound, sequence: AtomicU64::new(seed) }, errno)
    }

    /// Regions fail for which the closure says so. It is called with no lock held.
    pub fn when(errno: i32, judge: impl Fn(PageRange) -> bool + Send + Sync + 'static) -> Self {
        Self::new(When::Judged(Box::new(judge)), errno)
    }

    /// The error has a kind and no number, as of a registrar that is not a system call.
    pub fn of_kind(self, kind: io::ErrorKind) -> Self {
        Self { error: Error::Kind(kind), ..self }
    }

    /// A registrar that misbehaves: what fails to be deregistered stays in the batch and `Ok` is returned. A
    /// failed registration is an error nevertheless.
    pub fn untold(self) -> Self {
        Self { told: Told::Nothing, ..self }
    }

    /// A registrar that misbehaves: the error is returned, and the regions are deregistered all the same. A
    /// failed registration fails nevertheless.
    pub fn false_alarm(self) -> Self {
        Self { told: Told::FalseAlarm, ..self }
    }

    pub(super) fn strikes(&self, range: PageRange) -> bool {
        match &self.strikes {
            When::Always => true,
            When::Within(bad) => bad.overlaps(range),
            When::Next(left) => {
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            }
            When::Chance { bound, sequence } => splitmix(sequence) < *bound,
            When::Judged(judge) => judge(range),
        }
    }

    /// Returns whether it will never strike again.
    pub(super) fn is_spent(&self) -> bool {
        matches!(&self.strikes, When::Next(left) if left.load(Ordering::Relaxed) == 0)
    }

    pub(super) fn error(&self) -> io::Error {
        match self.error {
            Error::Number(errno) => io::Error::from_raw_os_error(errno),
            Error::Kind(kind) => io::Error::from(kind),
        }
    }
}

/// SplitMix64: its state only counts, so threads share it without losing a number.
fn splitmix(state: &AtomicU64) -> u64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = state.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match &self.strikes {
            When::Always => "always".to_owned(),
            When::Within(range) => format!("within {range}"),
            When::Next(left) => format!("next {}", left.load(Ordering::Relaxed)),
            When::Chance { bound, .. } => format!("chance {:.3}", *bound as f64 / u64::MAX as f64),
            When::Judged(_) => "judged".to_owned(),
        };
        write!(f, "Fault({when}: {}, told: {:?})", self.error(), self.told)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn page(start: u64) -> PageRange {
        PageRange::new(start, 1).unwrap()
    }

    #[test]
    fn chance_keeps_to_its_probability_and_its_seed() {
        let strikes = |probability, seed| {
            let fault = Fault::chance(probability, seed, libc::EIO);
            (0..10_000).map(|n| fault.strikes(page(n))).collect::<Vec<_>>()
        };
        let struck = strikes(0.25, 7).iter().filter(|&&struck| struck).count();
        assert!((2_300..2_700).contains(&struck), "{struck}");
        assert_eq!(strikes(0.25, 7), strikes(0.25, 7));
        assert_ne!(strikes(0.25, 7), strikes(0.25, 8));
        assert!(strikes(1.0, 1).iter().all(|&struck| struck));
        for never in [0.0, -1.0, f64::NAN] {
            assert!(!strikes(never, 1).contains(&true));
        }
    }

    #[test]
    fn the_next_n_fail_and_then_no_more() {
        let fault = Fault::next(2, libc::EIO);
        assert_eq!([(); 4].map(|()| fault.strikes(page(1))), [true, true, false, false]);
        assert!(fault.is_spent());
    }

    #[test]
    fn a_bad_range_is_bad_wherever_it_is_touched() {
        let fault = Fault::within(PageRange::new(10, 2).unwrap(), libc::EFAULT);
        let touched = [8, 9, 10, 11, 12].map(|start| fault.strikes(PageRange::new(start, 2).unwrap()));
        assert_eq!(touched, [false, true, true, true, false]);
        assert_eq!(fault.error().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(fault.of_kind(io::ErrorKind::OutOfMemory).error().raw_os_error(), None);
    }
}
