//! Objects of Zipf popularity.
//!
//! The object of rank r is asked for with a probability in proportion to r to the power of minus the exponent, each time
//! independently of what came before. An object's size is uniform on 1 to so many pages. Objects lie one behind the other
//! in the order in which they are first asked for. Every request reads a whole object; there is no clock and one client.
//!
//! Memory: 12 bytes an object.

use super::options::{spelled, value, within};
use super::{Checks, Generator, Unit};
use crate::{Event, Reader, Span, Summary, TraceError};
use mrrc_core::{Access, PAGE};
use rand::{RngExt, SeedableRng};
use rand_distr::Distribution;
use rand_pcg::Pcg64Mcg;
use std::fmt;

/// The workload to generate. Fields may be added: write `..Options::default()` for the rest.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Objects; not all of them need to be asked for.
    pub objects: u32,
    /// The largest object's pages.
    pub pages: u32,
    /// 0 is uniform.
    pub exponent: f64,
    /// Requests.
    pub requests: u64,
    /// Another seed is another trace.
    pub seed: u64,
}

/// The workload that measures the simulator's speed: ten million requests over a million objects of 1 to 32 pages at
/// 0.9.
impl Default for Options {
    fn default() -> Self {
        Self { objects: 1_000_000, pages: 32, exponent: 0.9, requests: 10_000_000, seed: 1 }
    }
}

spelled! {
    Options:
    "objects" objects value,
    "pages" pages value,
    "exponent" exponent value,
    "requests" requests value,
    "seed" seed value,
}

/// The generator.
pub struct Zipf {
    options: Options,
    ranks: rand_distr::Zipf<f64>,
    rng: Pcg64Mcg,
    objects: Vec<Object>,
    /// The place of the next new object.
    free: u64,
    /// Objects seen and their pages.
    seen: u64,
    left: u64,
    summary: Summary,
}

impl fmt::Debug for Zipf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zipf").field("options", &self.options).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Default)]
struct Object {
    page: u32,
    /// None before it is first asked for.
    pages: u32,
    asked: u32,
}

impl Zipf {
    /// Returns a generator at its start.
    ///
    /// # Errors
    /// [`TraceError::Option`] for an option out of its range.
    pub fn new(options: Options) -> Result<Self, TraceError> {
        let Options { objects, pages, exponent, requests, seed } = options;
        within("objects", objects, 1, 1 << 28)?;
        within("pages", pages, 1, 1 << 20)?;
        // Pages are numbered in 32 bits.
        within("objects × pages", u64::from(objects) * u64::from(pages), 1, u32::MAX.into())?;
        within("exponent", exponent, 0.0, 10.0)?;
        within("requests", requests, 0, u32::MAX.into())?;
        let ranks = rand_distr::Zipf::new(f64::from(objects), exponent)
            .map_err(|error| super::options::wrong(error.to_string(), "give another exponent"))?;
        let understood = format!("zipf, generated: {options}");
        let summary = Summary { is_laid_out: true, ..Summary::new(understood) };
        let rng = Pcg64Mcg::seed_from_u64(seed);
        let objects = vec![Object::default(); objects as usize];
        Ok(Self { options, ranks, rng, objects, free: 0, seen: 0, left: requests, summary })
    }
}

impl Iterator for Zipf {
    type Item = Result<Event, TraceError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let rank = self.ranks.sample(&mut self.rng) as usize;
        let at = rank.clamp(1, self.objects.len()) - 1;
        let object = &mut self.objects[at];
        if object.pages == 0 {
            object.pages = self.rng.random_range(1..=self.options.pages);
            object.page = self.free as u32;
            self.free += u64::from(object.pages);
            self.seen += 1;
        }
        object.asked += 1;
        let [address, length] = [object.page, object.pages].map(|pages| u64::from(pages) * PAGE);
        let event = Event::request(Span { address, length }, Access::LOCAL_READ);
        self.summary.read(&event);
        Some(Ok(event))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl Reader for Zipf {
    fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl Generator for Zipf {
    fn checks(&self) -> Checks {
        let Options { objects, pages, exponent, requests, .. } = self.options;
        let mut checks = Checks::default();
        let made = self.summary.events as f64;
        checks.add("requests", Unit::Count, requests as f64, made, 0.0);
        let seen = self.seen.max(1) as f64;
        let deviation = f64::from(pages) / 12f64.sqrt() / seen.sqrt();
        checks.add(
            "mean pages of an object",
            Unit::Number,
            f64::from(pages + 1) / 2.0,
            self.free as f64 / seen,
            4.0 * deviation,
        );
        let weights = |upto: u32| -> f64 { (1..=upto).map(|rank| f64::from(rank).powf(-exponent)).sum() };
        let all = weights(objects);
        for (figure, upto) in [
            ("requests for the most popular object", 1),
            ("requests for the first 1 % of ranks", objects.div_ceil(100)),
            ("requests for the first 10 % of ranks", objects.div_ceil(10)),
        ] {
            let asked = weights(upto) / all;
            let measured: u64 = self.objects[..upto as usize].iter().map(|object| u64::from(object.asked)).sum();
            let deviation = (asked * (1.0 - asked) / made.max(1.0)).sqrt();
            checks.add(figure, Unit::Share, asked, measured as f64 / made.max(1.0), 4.0 * deviation + 1e-12);
        }
        checks
    }
}
