//! The cost of registration and deregistration.
//!
//! Every model says the same four things: registering `p` pages takes `a·p + b` microseconds, and
//! deregistering a batch that holds `p` pages takes `a'·p + b'`. [`Linear`] holds such constants;
//! [`Fit`] learns them from observations as they come. Policies that weigh cost take a [`Linear`],
//! as counting does ([`Counters::cost`](crate::Counters::cost)).

use std::fmt;
use std::str::FromStr;

/// Linear costs in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Linear {
    /// `a`: registering one more page.
    pub reg_page: f64,
    /// `b`: each registration, whatever its size.
    pub reg_call: f64,
    /// `a'`: deregistering one more page.
    pub dereg_page: f64,
    /// `b'`: each batch of deregistrations, whatever its size.
    pub dereg_call: f64,
}

impl Linear {
    /// The constants that the paper takes from Wu et al. 2003b (InfiniBand, 2.4 GHz Xeon).
    pub const PAPER: Self = Self { reg_page: 0.77, reg_call: 7.42, dereg_page: 0.22, dereg_call: 1.10 };

    /// Fast registration (FMR), derived from the paper, which gives it only as ratios.
    ///
    /// Section 4 and Table 1: telling the card is about half of an ordinary one-page registration
    /// (8.19 µs / 2 = 4.095 µs, which is 79.124 units, so a unit is 0.05175 µs), and a fast one replaces
    /// that half by 1.000 units for one page and 2.027 for 32: 0.0331 units a page and 0.9669 a call.
    /// So `a = 0.77 + 0.0331 · 0.05175` and `b = 7.42 − 4.095 + 0.9669 · 0.05175`; deregistration stays.
    pub const FMR: Self = Self { reg_page: 0.7717, reg_call: 3.375, dereg_page: 0.22, dereg_call: 1.10 };

    /// Fixed buffers of an `io_uring` on Linux 6.18 (a 2026 virtual machine, resident 4 KiB pages).
    pub const IO_URING: Self = Self { reg_page: 0.0353, reg_call: 0.267, dereg_page: 0.0106, dereg_call: 0.244 };

    /// Returns whether every constant is a finite number, 0 or more.
    pub fn is_valid(&self) -> bool {
        [self.reg_page, self.reg_call, self.dereg_page, self.dereg_call].iter().all(|n| n.is_finite() && *n >= 0.0)
    }

    /// Microseconds to register `pages` pages in one call.
    #[inline]
    pub fn register(&self, pages: u64) -> f64 {
        self.reg_page * pages as f64 + self.reg_call
    }

    /// Microseconds to deregister a batch of `pages` pages in one call.
    #[inline]
    pub fn deregister(&self, pages: u64) -> f64 {
        self.dereg_page * pages as f64 + self.dereg_call
    }

    /// Returns the cost of losing a region of this size and needing it again.
    #[inline]
    pub fn reload(&self, pages: u64) -> f64 {
        self.register(pages) + self.deregister(pages)
    }
}

impl Default for Linear {
    fn default() -> Self {
        Self::PAPER
    }
}

/// Why a cost model cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cost model `{given}`: expected paper, fmr, io-uring, or four non-negative numbers a,b,a',b' in microseconds")]
pub struct CostError {
    given: String,
}

impl FromStr for Linear {
    type Err = CostError;

    /// `paper`, `fmr`, `io-uring`, or `a,b,a',b'` in microseconds.
    fn from_str(given: &str) -> Result<Self, CostError> {
        match given {
            "paper" => return Ok(Self::PAPER),
            "fmr" => return Ok(Self::FMR),
            "io-uring" => return Ok(Self::IO_URING),
            _ => {}
        }
        let error = || CostError { given: given.to_owned() };
        let numbers: Vec<f64> =
            given.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>().map_err(|_| error())?;
        match numbers[..] {
            [reg_page, reg_call, dereg_page, dereg_call] => {
                let model = Self { reg_page, reg_call, dereg_page, dereg_call };
                if model.is_valid() { Ok(model) } else { Err(error()) }
            }
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "register {}·p + {} µs, deregister {}·p + {} µs",
            self.reg_page, self.reg_call, self.dereg_page, self.dereg_call
        )
    }
}

/// A cost model fitted to observations as they come.
///
/// Two weighted least-squares lines, one for registrations and one for batches of deregistrations. An
/// observation's weight halves every [`Fit::HALF_LIFE`] observations, so the model follows a machine
/// that changes, and it needs no memory of the past. Where the observations cannot tell slope from
/// intercept (fewer than two sizes), the ratio of the prior model is kept and only its scale learned.
/// One outlier (a page fault, a preempted call) cannot bend the line: once there are
/// [`Fit::TRUSTED`] observations, a time above eight times the prediction counts as eight times it.
///
/// ```
/// use mrrc_core::cost::{Fit, Linear};
/// let mut fit = Fit::new(Linear::PAPER);
/// for pages in [1, 4, 16, 64] {
///     fit.registered(pages, 0.5 * pages as f64 + 2.0);
/// }
/// let model = fit.model();
/// assert!((model.reg_page - 0.5).abs() < 1e-6 && (model.reg_call - 2.0).abs() < 1e-6);
/// assert_eq!(model.dereg_page, Linear::PAPER.dereg_page); // nothing seen, nothing learned
/// ```
#[derive(Clone, Debug)]
pub struct Fit {
    prior: Linear,
    register: Line,
    deregister: Line,
}

impl Fit {
    /// Observations after which an older one counts half.
    pub const HALF_LIFE: u32 = 4096;
    /// Observations from which outliers are capped.
    pub const TRUSTED: u64 = 32;

    /// Returns a fit that answers with `prior` until it has seen something.
    pub fn new(prior: Linear) -> Self {
        Self { prior, register: Line::default(), deregister: Line::default() }
    }

    /// One registration of `pages` pages took `us` microseconds. Nonsense (no pages, a time that is not a
    /// number, negative or longer than a day) is ignored.
    pub fn registered(&mut self, pages: u64, us: f64) {
        let expected = self.model().register(pages);
        self.register.observe(pages, us, expected);
    }

    /// One batch of deregistrations of `pages` pages in all took `us` microseconds.
    pub fn deregistered(&mut self, pages: u64, us: f64) {
        let expected = self.model().deregister(pages);
        self.deregister.observe(pages, us, expected);
    }

    /// Returns the model that fits best so far; its constants are never negative.
    pub fn model(&self) -> Linear {
        let (reg_page, reg_call) = self.register.solve(self.prior.reg_page, self.prior.reg_call);
        let (dereg_page, dereg_call) = self.deregister.solve(self.prior.dereg_page, self.prior.dereg_call);
        Linear { reg_page, reg_call, dereg_page, dereg_call }
    }

    /// Registrations and batches observed.
    pub fn observations(&self) -> (u64, u64) {
        (self.register.seen, self.deregister.seen)
    }
}

/// A day: what takes longer is no registration but a broken clock.
const LONGEST_US: f64 = 86.4e9;

/// The sums of a weighted least-squares line.
#[derive(Clone, Debug, Default)]
struct Line {
    seen: u64,
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn observe(&mut self, pages: u64, us: f64, expected: f64) {
        if pages == 0 || !(0.0..=LONGEST_US).contains(&us) {
            return;
        }
        // A prediction of nothing (a clock that stood still) would cap everything at nothing for ever.
        let trusted = self.seen >= Fit::TRUSTED && expected > 0.0;
        let us = if trusted { us.min(8.0 * expected) } else { us };
        let keep = 0.5f64.powf(1.0 / f64::from(Fit::HALF_LIFE));
        // Relative errors matter: a call of 1,024 pages must not drown what small calls say of `b`.
        let x = pages as f64;
        let weight = 1.0 / x;
        for (sum, term) in
            [(&mut self.n, 1.0), (&mut self.x, x), (&mut self.y, us), (&mut self.xx, x * x), (&mut self.xy, x * us)]
        {
            *sum = *sum * keep + weight * term;
        }
        self.seen += 1;
    }

    /// Slope and intercept.
    fn solve(&self, slope: f64, intercept: f64) -> (f64, f64) {
        if self.seen == 0 {
            return (slope, intercept);
        }
        let determinant = self.n * self.xx - self.x * self.x;
        if determinant <= 1e-9 * self.n * self.xx {
            let predicted = slope * self.x + intercept * self.n;
            let scale = if predicted > 0.0 { self.y / predicted } else { 1.0 };
            return (slope * scale, intercept * scale);
        }
        let fitted = (self.n * self.xy - self.x * self.y) / determinant;
        let constant = (self.y - fitted * self.x) / self.n;
        if fitted < 0.0 {
            (0.0, self.y / self.n)
        } else if constant < 0.0 {
            (self.xy / self.xx, 0.0)
        } else {
            (fitted, constant)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_says_one_page_costs_eight_microseconds() {
        assert!((Linear::PAPER.register(1) - 8.19).abs() < 1e-12);
        assert!((Linear::PAPER.reload(2) - (8.96 + 1.54)).abs() < 1e-12);
    }

    #[test]
    fn models_are_read_by_name_or_by_constants() {
        assert_eq!("paper".parse(), Ok(Linear::PAPER));
        assert_eq!("fmr".parse(), Ok(Linear::FMR));
        assert_eq!("io-uring".parse(), Ok(Linear::IO_URING));
        assert_eq!("1,2, 3,4.5".parse(), Ok(Linear { reg_page: 1.0, reg_call: 2.0, dereg_page: 3.0, dereg_call: 4.5 }));
        for bad in ["", "1,2,3", "1,2,3,4,5", "a,b,c,d", "1,2,3,-4", "inf,0,0,0", "nan,0,0,0", "Paper"] {
            let error = bad.parse::<Linear>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{bad}`")), "{error}");
        }
    }

    #[test]
    fn a_fit_finds_the_line_under_noise_and_outliers() {
        let mut fit = Fit::new(Linear::PAPER);
        let mut noise = 1u64;
        for i in 0..20_000u64 {
            noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let jitter = 0.9 + 0.2 * (noise >> 40) as f64 / (1u64 << 24) as f64;
            let pages = 1 + i % 64;
            let late = if i % 100 == 99 { 5_000.0 } else { 0.0 };
            fit.registered(pages, (0.04 * pages as f64 + 0.3) * jitter + late);
            fit.deregistered(pages, (0.01 * pages as f64 + 0.2) * jitter);
        }
        let model = fit.model();
        let near = |got: f64, want: f64| (got / want - 1.0).abs() < 0.12;
        assert!(near(model.reg_page, 0.04) && near(model.reg_call, 0.3), "{model}");
        assert!(near(model.dereg_page, 0.01) && near(model.dereg_call, 0.2), "{model}");
    }

    #[test]
    fn one_size_scales_the_prior_and_nonsense_is_ignored() {
        let mut fit = Fit::new(Linear::PAPER);
        for us in [f64::NAN, f64::INFINITY, -1.0] {
            fit.registered(1, us);
        }
        fit.registered(0, 1.0);
        assert_eq!((fit.observations(), fit.model()), ((0, 0), Linear::PAPER));
        fit.registered(1, 16.38);
        let model = fit.model();
        assert!((model.reg_page - 1.54).abs() < 1e-9 && (model.reg_call - 14.84).abs() < 1e-9);
    }

    #[test]
    fn a_clock_that_stood_still_is_forgotten() {
        let mut fit = Fit::new(Linear::PAPER);
        for _ in 0..40 {
            fit.registered(1, 0.0);
            fit.deregistered(1, 1e-9);
        }
        for i in 0..100_000 {
            fit.registered(1 + i % 8, 7.0 + (i % 8) as f64);
            fit.deregistered(1 + i % 8, 7.0 + (i % 8) as f64);
        }
        let model = fit.model();
        assert!((model.reg_page - 1.0).abs() < 0.01 && (model.reg_call - 6.0).abs() < 0.05, "{model}");
        assert!((model.dereg_page - 1.0).abs() < 0.01 && (model.dereg_call - 6.0).abs() < 0.05, "{model}");
        fit.registered(u64::MAX, f64::MAX);
        assert!(fit.model().is_valid());
    }

    #[test]
    fn constants_never_fall_below_zero() {
        let mut falling = Fit::new(Linear::PAPER);
        let mut steep = Fit::new(Linear::PAPER);
        for pages in 1..50 {
            falling.registered(pages, 100.0 - pages as f64);
            steep.registered(pages, pages as f64 * pages as f64);
        }
        assert_eq!(falling.model().reg_page, 0.0);
        assert_eq!(steep.model().reg_call, 0.0);
    }
}
