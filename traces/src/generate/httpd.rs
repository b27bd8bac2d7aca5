//! HTTPD: a parallel web server that reads its files whole.
//!
//! The trace (a seven-node IBM SP2, which replayed the August 1995 log of NASA's web server) is not public. Where each
//! number comes from:
//!
//! | figure | default | source |
//! | --- | --- | --- |
//! | requests, clients | 1,100,000 by 7 | Table 2 of the paper |
//! | files | 13,457 of together 524 MB (524,000,000 bytes) | section 7; the traces' own header |
//! | a request | 1 to 32 pages | Fig. 9 (b), section 7 |
//! | rights | to read | section 7: only reads of whole files |
//!
//! and, measured on one day of that server's log (KB of 1,000 bytes):
//!
//! | figure | measured |
//! | --- | --- |
//! | file sizes at 10, 25, 50, 75, 90, 95, 99 % of the files | 0.5, 1.6, 6.8, 57, 174, 280, 709 KB |
//! | file sizes weighted by request: mean | 17.3 KB |
//! | requests for files of 1, 2, 3–4, 5–8, 9–16, 17–32, more pages | 51, 22, 11, 6, 5, 3, 2 % |
//! | requests for the 10 most popular files | 42 % |
//! | requests for the most popular tenth of the files | 80 % |
//! | files asked for once | 37 % |
//! | slope of popularity over rank, both logarithmic | about −1.1 |
//!
//! Count, total and number of requests govern. So the sizes are the quantiles above, and above the median what they exceed
//! it by is scaled down by one factor until the total is right. Popularity, sizes and how the two go together are planned
//! exactly before the first request (`plan.rs` says how), and requests drawn from that without replacement, so that every
//! share holds to a fraction of a percent.
//!
//! Not published, and assumed: the smallest file has 50 bytes, the largest 3.42 MB (the largest answer in the August log)
//! before scaling; every order of the requests is as likely as any other; a request comes from any client with the same
//! probability; files lie one behind the other, each from the start of a page, in the order in which they are first asked for;
//! there is no clock.
//!
//! A file of more than 32 pages is read by several requests one behind the other, from one client, or only its
//! first 32 pages are read ([`Larger`]). The 1,100,000 requests are counted after that rule; the shares in the table above are
//! of files asked for, before it.
//!
//! Memory: some 40 bytes a file.

mod plan;

use super::options::{bytes, spelled, value, within, wrong};
use super::{Checks, Generator, Unit};
use crate::{Event, Larger, Reader, Span, Summary, TraceError};
use mrrc_core::{Access, PAGE};
use plan::{BUCKETS, ONCE, Plan, TENTH_SHARE, TOP, TOP_SHARE};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt;

/// The workload to generate. Fields may be added: write `..Options::default()` for the rest.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Files, each asked for at least once.
    pub files: u32,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Requests, after larger files are split or cut.
    pub requests: u64,
    /// Clients.
    pub clients: u32,
    /// The largest request.
    pub pages: u32,
    /// The treatment of larger files.
    pub larger: Larger,
    /// Another seed is another trace.
    pub seed: u64,
}

/// The paper's.
impl Default for Options {
    fn default() -> Self {
        Self {
            files: 13_457,
            bytes: 524_000_000,
            requests: 1_100_000,
            clients: 7,
            pages: 32,
            larger: Larger::Split,
            seed: 1,
        }
    }
}

spelled! {
    Options:
    "files" files value,
    "bytes" bytes bytes,
    "requests" requests value,
    "clients" clients value,
    "pages" pages value,
    "larger" larger larger,
    "seed" seed value,
}

fn larger(key: &str, text: &str) -> Result<Larger, TraceError> {
    let known = [Larger::Split, Larger::Cut].into_iter().find(|larger| larger.to_string() == text);
    known.ok_or_else(|| wrong(format!("{key}: `{text}` is neither"), "give split or cut"))
}

/// The generator.
pub struct Httpd {
    options: Options,
    rng: Pcg64Mcg,
    plan: Plan,
    /// The number of remaining requests for each file.
    left: Left,
    /// The places of the files; `u64::MAX` before the first request.
    places: Vec<u64>,
    free: u64,
    /// The rest of a file that is read in several requests, and its client.
    rest: Option<(Span, u32)>,
    summary: Summary,
    stats: Stats,
}

impl fmt::Debug for Httpd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Httpd").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The figures of the events.
struct Stats {
    asked: Vec<u32>,
    by_client: Vec<u64>,
    least: u64,
    most: u64,
}

impl Httpd {
    /// Returns a generator at its start.
    ///
    /// # Errors
    /// [`TraceError::Option`] for an option out of its range, or for files, bytes and requests that the shares do not fit.
    pub fn new(options: Options) -> Result<Self, TraceError> {
        within("files", options.files, 200, 10_000_000)?;
        within("bytes", options.bytes, 1, 1 << 44)?;
        within("requests", options.requests, 1, 1 << 31)?;
        within("clients", options.clients, 1, 1 << 20)?;
        within("pages", options.pages, 1, 1 << 20)?;
        let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
        let plan = Plan::new(&options, &mut rng)?;
        let files = plan.sizes.len();
        let stats =
            Stats { asked: vec![0; files], by_client: vec![0; options.clients as usize], least: u64::MAX, most: 0 };
        Ok(Self {
            left: Left::new(&plan.counts),
            places: vec![u64::MAX; files],
            free: 0,
            rest: None,
            summary: Summary { is_laid_out: true, ..Summary::new(format!("httpd, generated: {options}")) },
            stats,
            rng,
            plan,
            options,
        })
    }

    /// Returns the next piece of a file, and the client that reads it.
    fn request(&mut self) -> Option<(Span, u32)> {
        let (whole, client) = match self.rest.take() {
            Some(rest) => rest,
            None => self.next_file()?,
        };
        let longest = u64::from(self.options.pages) * PAGE;
        let piece = Span { length: whole.length.min(longest), ..whole };
        let rest = Span { address: whole.address + piece.length, length: whole.length - piece.length };
        if rest.length > 0 && self.options.larger == Larger::Split {
            self.rest = Some((rest, client));
        }
        Some((piece, client))
    }

    fn next_file(&mut self) -> Option<(Span, u32)> {
        let all = self.left.all();
        if all == 0 {
            return None;
        }
        let file = self.left.take(self.rng.random_range(0..all));
        let client = self.rng.random_range(0..self.options.clients);
        let length = self.plan.sizes[file];
        let place = &mut self.places[file];
        if *place == u64::MAX {
            *place = self.free;
            self.free += length.next_multiple_of(PAGE);
        }
        self.stats.asked[file] += 1;
        Some((Span { address: *place, length }, client))
    }
}

impl Iterator for Httpd {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (span, client) = self.request()?;
        let pages = span.length.div_ceil(PAGE);
        self.stats.by_client[client as usize] += 1;
        self.stats.least = self.stats.least.min(pages);
        self.stats.most = self.stats.most.max(pages);
        let event = Event { client, ..Event::request(span, Access::LOCAL_READ) };
        self.summary.read(&event);
        Some(Ok(event))
    }
}

impl Reader for Httpd {
    fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl Generator for Httpd {
    fn checks(&self) -> Checks {
        let Options { files, bytes, requests, clients, pages, .. } = self.options;
        let mut checks = Checks::default();
        // Files with how often they were asked for, the most popular first.
        let asked = self.stats.asked.iter().copied().zip(self.plan.sizes.iter().copied());
        let mut asked: Vec<(u32, u64)> = asked.filter(|&(count, _)| count > 0).collect();
        asked.sort_unstable_by(|a, b| b.cmp(a));
        let all = asked.iter().map(|&(count, _)| f64::from(count)).sum::<f64>().max(1.0);
        let first = |upto: usize| asked.iter().take(upto).map(|&(count, _)| f64::from(count)).sum::<f64>() / all;
        let tenth = asked.len() / 10;

        checks.add("requests", Unit::Count, requests as f64, self.summary.events as f64, 0.0);
        checks.add("files", Unit::Count, files.into(), asked.len() as f64, 0.0);
        let total: u64 = asked.iter().map(|&(_, size)| size).sum();
        checks.add("bytes of all files", Unit::Kilobytes, bytes as f64, total as f64, 0.0);
        let heard = self.stats.by_client.iter().filter(|&&requests| requests > 0).count();
        checks.add("clients", Unit::Count, clients.into(), heard as f64, 0.0);
        checks.add("pages of the smallest request", Unit::Count, 1.0, self.stats.least as f64, 0.0);
        checks.add("pages of the largest request", Unit::Count, pages.into(), self.stats.most as f64, 0.0);

        let mut sizes: Vec<u64> = asked.iter().map(|&(_, size)| size).collect();
        sizes.sort_unstable();
        let quantile = |share: f64| sizes.get((share * sizes.len() as f64) as usize).map_or(0.0, |&size| size as f64);
        for (figure, share, kilobytes) in
            [("file size at 10 %", 0.1, 0.5), ("file size at 25 %", 0.25, 1.6), ("file size at 50 %", 0.5, 6.8)]
        {
            checks.add(figure, Unit::Kilobytes, kilobytes * 1e3, quantile(share), kilobytes * 20.0);
        }
        let factor = self.plan.factor;
        for (figure, share, kilobytes) in [
            ("file size at 75 %, scaled", 0.75, 57.0),
            ("file size at 90 %, scaled", 0.9, 174.0),
            ("file size at 95 %, scaled", 0.95, 280.0),
            ("file size at 99 %, scaled", 0.99, 709.0),
        ] {
            let scaled = plan::scaled(kilobytes * 1e3, factor);
            checks.add(figure, Unit::Kilobytes, scaled, quantile(share), scaled * 0.02);
        }

        checks.add("asked for: the 10 most popular files", Unit::Share, TOP_SHARE, first(TOP), 0.005);
        checks.add("asked for: the first tenth of the files", Unit::Share, TENTH_SHARE, first(tenth), 0.005);
        let once = asked.iter().filter(|&&(count, _)| count == 1).count() as f64 / asked.len().max(1) as f64;
        checks.add("files asked for once", Unit::Share, ONCE, once, 0.005);
        checks.add("slope of popularity, first tenth", Unit::Number, -plan::SLOPE, slope(&asked[..tenth]), 0.1);
        for (at, &(figure, share, _)) in BUCKETS.iter().enumerate() {
            let within = asked.iter().filter(|&&(_, size)| plan::bucket(size) == at);
            let measured = within.map(|&(count, _)| f64::from(count)).sum::<f64>() / all;
            checks.add(figure, Unit::Share, share, measured, 0.005);
        }
        let mean = asked.iter().map(|&(count, size)| f64::from(count) * size as f64).sum::<f64>() / all;
        checks.add("mean size asked for", Unit::Kilobytes, plan::MEAN, mean, plan::MEAN * 0.02);
        checks
    }
}

/// Returns the slope of the logarithm of the count over that of the rank, by least squares.
fn slope(asked: &[(u32, u64)]) -> f64 {
    let points = asked.iter().enumerate().map(|(at, &(count, _))| (((at + 1) as f64).ln(), f64::from(count).ln()));
    let (mut n, mut sx, mut sy, mut sxx, mut sxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in points {
        n += 1.0;
        sx += x;
        sy += y;
        sxx += x * x;
        sxy += x * y;
    }
    let spread: f64 = n * sxx - sx * sx;
    if spread > 0.0 { (n * sxy - sx * sy) / spread } else { 0.0 }
}

/// The rest of a multiset, drawn from without replacement in logarithmic time (a Fenwick tree).
struct Left {
    /// At i, counted from 1, the sum of as many counts up to i as the lowest set bit of i says.
    sums: Vec<u64>,
    all: u64,
}

impl Left {
    fn new(counts: &[u32]) -> Self {
        let mut sums: Vec<u64> = std::iter::once(0).chain(counts.iter().map(|&count| count.into())).collect();
        for at in 1..sums.len() {
            let above = at + (at & at.wrapping_neg());
            if above < sums.len() {
                sums[above] += sums[at];
            }
        }
        Self { sums, all: counts.iter().map(|&count| u64::from(count)).sum() }
    }

    fn all(&self) -> u64 {
        self.all
    }

    /// Takes one of the element at which the running sum first exceeds `position`, which is less than all.
    fn take(&mut self, mut position: u64) -> usize {
        let mut below = 0;
        let mut step = (self.sums.len() - 1).next_power_of_two();
        while step > 0 {
            let at = below + step;
            if let Some(sum) = self.sums.get_mut(at) {
                if *sum <= position {
                    position -= *sum;
                    below = at;
                } else {
                    // The element is within this sum.
                    *sum -= 1;
                }
            }
            step /= 2;
        }
        self.all -= 1;
        below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_drawn_as_often_as_it_is_there() {
        for counts in [vec![1], vec![0, 3], vec![2, 0, 5, 1, 1], vec![1; 33]] {
            let mut left = Left::new(&counts);
            let mut drawn = vec![0; counts.len()];
            let mut position = 0;
            while left.all() > 0 {
                position = (position * 31 + 7) % left.all();
                drawn[left.take(position)] += 1;
            }
            assert_eq!(drawn, counts);
        }
    }
}
