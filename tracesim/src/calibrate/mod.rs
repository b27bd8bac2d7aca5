//! The cost of registrations on this machine: `a`, `b`, `a'` and `b'`, measured.
//!
//! A registrar registers and deregisters ranges of 1 to 1024 resident pages, one at a time, in rounds that take all sizes in turn, so
//! that a disturbance hits all of them alike. The median of each size counts, and a line is fitted to the medians, weighted by their
//! inverse squares. It minimises the error in percent, so that small ranges, which are most of what a cache sees, count as much as
//! large ones.

pub mod copying;
mod fit;
pub mod pages;

pub use fit::{Line, fit};

use mrrc::registrar::{Registered, Registrar};
use mrrc_core::cost::Linear;
use mrrc_core::{Access, PageRange};
use serde::Serialize;
use std::io;
use std::time::Instant;

/// The sizes, in pages.
pub const SIZES: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// The measurements.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Calibration {
    /// The registrar.
    pub registrar: String,
    /// With which device, where there may be several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Measurements of each size.
    pub rounds: u32,
    /// The medians, by size.
    pub sizes: Vec<Measured>,
    /// The line of the registrations.
    pub register: Line,
    /// The line of the deregistrations.
    pub deregister: Line,
}

/// The medians of a size, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// Pages.
    pub pages: u64,
    /// To register them.
    pub register_us: f64,
    /// To deregister them.
    pub deregister_us: f64,
}

impl Calibration {
    /// Returns the model, to the digits that the measurement is good for.
    pub fn model(&self) -> Linear {
        let [reg_page, reg_call, dereg_page, dereg_call] =
            [self.register.page_us, self.register.call_us, self.deregister.page_us, self.deregister.call_us]
                .map(three_digits);
        Linear { reg_page, reg_call, dereg_page, dereg_call }
    }

    /// Returns the model as `--cost` takes it.
    pub fn as_option(&self) -> String {
        let Linear { reg_page, reg_call, dereg_page, dereg_call } = self.model();
        format!("{reg_page},{reg_call},{dereg_page},{dereg_call}")
    }

    /// Returns the median of a size, if it was measured.
    pub fn of_pages(&self, pages: u64) -> Option<Measured> {
        self.sizes.iter().find(|measured| measured.pages == pages).copied()
    }
}

fn three_digits(us: f64) -> f64 {
    // A number printed so is a number.
    format!("{us:.2e}").parse().unwrap_or(us)
}

/// Measures a registrar on ranges of a piece of memory, which is resident and as large as the largest size at least. Sizes
/// that the registrar does not take at once are left out. `tick` hears of every round, and can end it.
///
/// # Errors
/// The registrar's, and [`io::ErrorKind::Interrupted`] if `tick` said so.
pub fn measure<R: Registrar>(
    registrar: &R,
    memory: PageRange,
    rounds: u32,
    mut tick: impl FnMut() -> bool,
) -> io::Result<Calibration> {
    let most = registrar.limits().region_pages.unwrap_or(u64::MAX).min(memory.pages());
    let sizes: Vec<u64> = SIZES.into_iter().filter(|&pages| pages <= most).collect();
    let mut times: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); sizes.len()];
    let mut batch = Vec::with_capacity(1);
    // The first round finds everything cold and does not count.
    for round in 0..=rounds {
        for (&pages, (register, deregister)) in sizes.iter().zip(&mut times) {
            // Other pages each time, as a cache's misses are.
            let start = memory.start() + u64::from(round) * pages % (memory.pages() - pages + 1);
            let range = PageRange::new(start, pages).map_err(io::Error::other)?;
            let begun = Instant::now();
            let registration = registrar.register(range, Access::LOCAL)?;
            let registered = begun.elapsed();
            batch.push(Registered { range, access: Access::LOCAL, registration });
            let begun = Instant::now();
            registrar.deregister(&mut batch)?;
            let deregistered = begun.elapsed();
            if round > 0 {
                register.push(registered.as_nanos() as f64 / 1e3);
                deregister.push(deregistered.as_nanos() as f64 / 1e3);
            }
        }
        if !tick() {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    let measured = |(&pages, (register, deregister)): (&u64, &mut (Vec<f64>, Vec<f64>))| Measured {
        pages,
        register_us: median(register),
        deregister_us: median(deregister),
    };
    let sizes: Vec<Measured> = sizes.iter().zip(&mut times).map(measured).collect();
    let line = |time: fn(&Measured) -> f64| fit(&sizes.iter().map(|m| (m.pages as f64, time(m))).collect::<Vec<_>>());
    let (register, deregister) = (line(|m| m.register_us), line(|m| m.deregister_us));
    Ok(Calibration { registrar: registrar.name().to_owned(), device: None, rounds, sizes, register, deregister })
}

/// Returns the middle one; nothing has none.
pub(crate) fn median(times: &mut [f64]) -> f64 {
    let middle = times.len() / 2;
    if times.is_empty() { 0.0 } else { *times.select_nth_unstable_by(middle, f64::total_cmp).1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc::registrar::Limits;
    use mrrc::testing::{Model, NoopRegistrar};

    #[test]
    fn each_round_measures_every_size() {
        let mut ticks = 0;
        let memory = PageRange::new(100, 64).unwrap();
        let calibration = measure(&NoopRegistrar::new(), memory, 5, || {
            ticks += 1;
            true
        });
        let calibration = calibration.unwrap();
        assert_eq!(ticks, 6, "one does not count");
        let pages: Vec<u64> = calibration.sizes.iter().map(|m| m.pages).collect();
        assert_eq!(pages, [1, 2, 4, 8, 16, 32, 64], "no larger than the memory");
        assert!(calibration.model().is_valid());
        assert_eq!(calibration.as_option().parse::<Linear>().unwrap(), calibration.model());
    }

    #[test]
    fn refused_sizes_are_left_out() {
        let model = Model::new(Linear::PAPER);
        model.limit(Limits { region_pages: Some(20), ..Limits::NONE });
        let calibration = measure(&model, PageRange::new(100, 64).unwrap(), 1, || true).unwrap();
        assert_eq!(calibration.sizes.iter().map(|m| m.pages).collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
    }

    #[test]
    fn it_ends_when_it_is_told_to() {
        let memory = PageRange::new(100, 64).unwrap();
        let error = measure(&NoopRegistrar::new(), memory, 5, || false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn the_median_does_not_hear_of_outliers() {
        assert_eq!(median(&mut [3.0, 1.0, 1e9, 2.0, 0.5]), 2.0);
        assert_eq!([0.035_26, 7.416, 0.0].map(three_digits), [0.0353, 7.42, 0.0]);
    }
}
