//! Cello92: the disks of a timesharing system behind its buffer cache.
//!
//! The traces themselves (18 April 1992, Hewlett-Packard) are not public. Where each number comes from:
//!
//! | figure | default | source |
//! | --- | --- | --- |
//! | requests | 500,000, a day's | Table 2 of the paper: 0.5 million a day |
//! | disks | 10.4 GB | Table 2 |
//! | first-level cache | 30 MB | Table 2, "client cache" |
//! | one page, two pages | 20 %, 80 % | Fig. 9 (a), section 7: the largest request is of 2 pages, "almost 80 %" have 2 |
//! | writes | 57 % of requests | Ruemmler and Wilkes, *Unix disk access patterns*, 1993 |
//! | of these, metadata | two thirds | the same |
//! | reads that follow the one before | 25 % | the same: 20 to 30 % |
//! | blocks and fragments | 8 KB and 1 KB | the file system of HP-UX |
//!
//! Not published, and assumed:
//!
//! * *Layout.* Groups of 2,048 blocks (16 MB) as in the Berkeley file system. The first 4 % of a group hold metadata, the next
//!   20 % file tails in fragments, the rest whole blocks. A block is always asked for in the same way: metadata and data by 8
//!   KB, a tail by its 1 to 4 fragments, which lie in one page.
//! * *Popularity.* Zipf over the blocks of each of the three kinds, `skew` (1.0), the ranks scattered over the disks; each request
//!   independent of those before, but for sequential reads, which take the next block. Metadata is only written: how
//!   much of it is read is not published.
//! * *The first-level cache* is LRU and absorbs every request whose pages it holds, writes too, as a delayed write is
//!   overwritten in memory. It is full before the first request. The shares above hold for what gets out: the kind of
//!   the next request is drawn first, then blocks of that kind until one is not in the cache.
//! * *Time.* Arrivals at random, exponentially distributed, so many a day.
//!
//! Memory: the first-level cache's table.

use super::first_level::FirstLevel;
use super::options::{bytes, spelled, value, within, wrong};
use super::{Checks, Generator, Unit};
use crate::{Event, Reader, Span, Summary, TraceError};
use mrrc_core::{Access, PAGE};
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;
use std::fmt;

/// The workload to generate. Fields may be added: write `..Options::default()` for the rest.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Requests that get out of the first-level cache.
    pub requests: u64,
    /// Requests a day, for the times.
    pub a_day: u64,
    /// Bytes of all disks.
    pub disks: u64,
    /// Bytes of the first-level cache; 0 for none.
    pub client_cache: u64,
    /// Of requests, those of one page.
    pub one_page: f64,
    /// Of requests, writes.
    pub writes: f64,
    /// Of writes, those of metadata.
    pub metadata: f64,
    /// Of reads, those that follow the read before.
    pub sequential: f64,
    /// The exponent of popularity.
    pub skew: f64,
    /// Another seed is another trace.
    pub seed: u64,
}

/// A day of the paper's.
impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 500_000,
            a_day: 500_000,
            disks: 10_400_000_000,
            client_cache: 30_000_000,
            one_page: 0.2,
            writes: 0.57,
            metadata: 2.0 / 3.0,
            sequential: 0.25,
            skew: 1.0,
            seed: 1,
        }
    }
}

spelled! {
    Options:
    "requests" requests value,
    "a-day" a_day value,
    "disks" disks bytes,
    "client-cache" client_cache bytes,
    "one-page" one_page value,
    "writes" writes value,
    "metadata" metadata value,
    "sequential" sequential value,
    "skew" skew value,
    "seed" seed value,
}

const BLOCK: u64 = 2 * PAGE;
const FRAGMENT: u64 = 1024;
const GROUP: u64 = 2048;
const METADATA: u64 = GROUP * 4 / 100;
const TAILS: u64 = GROUP * 20 / 100;

/// The content of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Metadata,
    Tails,
    Data,
}

impl Kind {
    /// Returns the first block of a group that holds it, and how many do.
    const fn place(self) -> (u64, u64) {
        match self {
            Self::Metadata => (0, METADATA),
            Self::Tails => (METADATA, TAILS),
            Self::Data => (METADATA + TAILS, GROUP - METADATA - TAILS),
        }
    }

    fn of(address: u64) -> Self {
        match address / BLOCK % GROUP {
            block if block < METADATA => Self::Metadata,
            block if block < METADATA + TAILS => Self::Tails,
            _ => Self::Data,
        }
    }
}

/// The pieces of one kind, by popularity.
struct Popularity {
    kind: Kind,
    ranks: rand_distr::Zipf<f64>,
    pieces: u64,
    /// Ranks are scattered by multiplication with this, which has no common divisor with the number of pieces.
    factor: u64,
}

impl Popularity {
    fn new(kind: Kind, groups: u64, skew: f64, rng: &mut Pcg64Mcg) -> Result<Self, TraceError> {
        let a_block = if kind == Kind::Tails { 2 } else { 1 };
        let pieces = groups * kind.place().1 * a_block;
        let ranks = rand_distr::Zipf::new(pieces as f64, skew)
            .map_err(|error| wrong(error.to_string(), "give another skew"))?;
        let factor =
            (0..1000).map(|_| rng.random_range(1..pieces)).find(|&factor| gcd(factor, pieces) == 1).unwrap_or(1);
        Ok(Self { kind, ranks, pieces, factor })
    }

    fn draw(&self, rng: &mut Pcg64Mcg) -> Span {
        let rank = (self.ranks.sample(rng) as u64).clamp(1, self.pieces) - 1;
        // Below 2⁴⁰ each, but not their product.
        let piece = (u128::from(rank) * u128::from(self.factor) % u128::from(self.pieces)) as u64;
        let (first, a_group) = self.kind.place();
        let block = |at: u64| at / a_group * GROUP + first + at % a_group;
        if self.kind != Kind::Tails {
            return Span { address: block(piece) * BLOCK, length: BLOCK };
        }
        // A tail has as many fragments every time.
        let fragments = 1 + (piece.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62);
        Span { address: block(piece / 2) * BLOCK + piece % 2 * PAGE, length: fragments * FRAGMENT }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The generator.
pub struct Cello {
    options: Options,
    rng: Pcg64Mcg,
    metadata: Popularity,
    tails: Popularity,
    data: Popularity,
    /// The share of tails among reads that do not follow and writes of data.
    tail_share: f64,
    /// The share of reads that follow, among those after a read that was not of a tail.
    follow_share: f64,
    /// The read before was of a whole block of data.
    may_follow: bool,
    first_level: FirstLevel,
    /// The end of the read before, within the first level too.
    next_block: u64,
    time: f64,
    left: u64,
    summary: Summary,
    stats: Stats,
}

impl fmt::Debug for Cello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cello").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The figures of the events.
#[derive(Default)]
struct Stats {
    one_page: u64,
    longer: u64,
    writes: u64,
    metadata: u64,
    sequential: u64,
    read_end: u64,
    end: u64,
    time: u64,
    /// Requests that a tenth of the first-level cache would have absorbed.
    again: u64,
    small: Option<FirstLevel>,
}

/// A request that no draw got past the first level: it holds everything of the kind.
const DRAWS: u32 = 100_000;

impl Cello {
    /// Returns a generator at its start, the first-level cache full.
    ///
    /// # Errors
    /// [`TraceError::Option`] for an option out of its range.
    pub fn new(options: Options) -> Result<Self, TraceError> {
        within("disks", options.disks, GROUP * BLOCK, 1 << 50)?;
        within("a-day", options.a_day, 1, u64::MAX)?;
        for (key, share) in [
            ("one-page", options.one_page),
            ("writes", options.writes),
            ("metadata", options.metadata),
            ("sequential", options.sequential),
        ] {
            within(key, share, 0.0, 1.0)?;
        }
        within("skew", options.skew, 0.0, 10.0)?;
        let groups = options.disks / (GROUP * BLOCK);
        within("client-cache", options.client_cache, 0, (options.disks / 4).min(64 << 30))?;
        let may_be_tails =
            options.writes * (1.0 - options.metadata) + (1.0 - options.writes) * (1.0 - options.sequential);
        if options.one_page > may_be_tails {
            let what = format!("one-page={} with so much metadata and so many sequential reads", options.one_page);
            return Err(wrong(what, format!("both are of two pages: give {may_be_tails:.3} at most")));
        }
        let tail_share = if may_be_tails > 0.0 { options.one_page / may_be_tails } else { 0.0 };
        // A read that follows needs one before it that is not of a tail.
        let followed = 1.0 - (1.0 - options.sequential) * tail_share;
        if options.sequential > followed {
            let what = format!("sequential={} with so many requests of one page", options.sequential);
            return Err(wrong(what, "nothing follows a file's tail: give fewer of either"));
        }
        let follow_share = if followed > 0.0 { options.sequential / followed } else { 0.0 };
        let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
        let [metadata, tails, data] =
            [Kind::Metadata, Kind::Tails, Kind::Data].map(|kind| Popularity::new(kind, groups, options.skew, &mut rng));
        let stats = Stats { small: Some(FirstLevel::new(options.client_cache / 10)), ..Stats::default() };
        let mut cello = Self {
            metadata: metadata?,
            tails: tails?,
            data: data?,
            rng,
            tail_share,
            follow_share,
            may_follow: false,
            first_level: FirstLevel::new(options.client_cache),
            next_block: 0,
            time: 0.0,
            left: options.requests,
            summary: Summary::new(format!("cello92, generated: {options}")),
            stats,
            options,
        };
        while !cello.first_level.was_full() {
            cello.request()?;
        }
        Ok(cello)
    }

    /// Returns the next request that gets out.
    fn request(&mut self) -> Result<(Span, bool), TraceError> {
        let Options { writes, metadata, .. } = self.options;
        let is_write = self.rng.random_bool(writes);
        let of_metadata = is_write && self.rng.random_bool(metadata);
        let mut follows = !is_write && self.may_follow && self.rng.random_bool(self.follow_share);
        let of_tail = !of_metadata && !follows && self.rng.random_bool(self.tail_share);
        for _ in 0..DRAWS {
            // A run ends where data ends.
            follows &=
                Kind::of(self.next_block * BLOCK) == Kind::Data && (self.next_block + 1) * BLOCK <= self.options.disks;
            let span = match (of_metadata, of_tail) {
                _ if follows => Span { address: self.next_block * BLOCK, length: BLOCK },
                (true, _) => self.metadata.draw(&mut self.rng),
                (_, true) => self.tails.draw(&mut self.rng),
                _ => self.data.draw(&mut self.rng),
            };
            if !is_write {
                self.next_block = (span.address + span.length).div_ceil(BLOCK);
            }
            if !self.first_level.absorbs(span) {
                if !is_write {
                    self.may_follow = !of_tail;
                }
                return Ok((span, is_write));
            }
        }
        Err(wrong("client-cache: it holds all that is asked for", "give a smaller first-level cache or larger disks"))
    }

    fn stats(&mut self, span: Span, is_write: bool, time: u64) {
        let stats = &mut self.stats;
        stats.one_page += u64::from(span.pages().is_ok_and(|range| range.pages() == 1));
        stats.longer += u64::from(span.pages().is_ok_and(|range| range.pages() > 2));
        stats.writes += u64::from(is_write);
        stats.metadata += u64::from(is_write && Kind::of(span.address) == Kind::Metadata);
        if !is_write {
            stats.sequential += u64::from(stats.read_end == span.address);
            stats.read_end = span.address + span.length;
        }
        stats.end = stats.end.max(span.address + span.length);
        stats.time = time;
        stats.again += u64::from(stats.small.as_mut().is_some_and(|small| small.absorbs(span)));
    }
}

impl Iterator for Cello {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (span, is_write) = match self.request() {
            Ok(request) => request,
            Err(error) => {
                self.left = 0;
                return Some(Err(error));
            }
        };
        let gap: f64 = Exp1.sample(&mut self.rng);
        self.time += gap * 86_400e9 / self.options.a_day as f64;
        let time = self.time as u64;
        self.stats(span, is_write, time);
        let access = if is_write { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
        let event = Event { time, ..Event::request(span, access) };
        self.summary.read(&event);
        Some(Ok(event))
    }
}

impl Reader for Cello {
    fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl Generator for Cello {
    fn checks(&self) -> Checks {
        let Options { requests, a_day, disks, one_page, writes, metadata, sequential, .. } = self.options;
        let Stats { ref small, .. } = self.stats;
        let mut checks = Checks::default();
        let made = self.summary.events.max(1) as f64;
        let share = |of: u64, all: f64| of as f64 / all.max(1.0);
        // Four standard deviations of a draw, and half a percent for what the layout takes.
        let within = |share: f64, all: f64| 0.005 + 4.0 * (share * (1.0 - share) / all.max(1.0)).sqrt();
        let stats = &self.stats;
        checks.add("requests", Unit::Count, requests as f64, self.summary.events as f64, 0.0);
        let rate = made * 86_400e9 / (stats.time as f64).max(1.0);
        checks.add("requests a day", Unit::Count, a_day as f64, rate, 4.0 * a_day as f64 / made.sqrt());
        checks.add("requests of more than 2 pages", Unit::Count, 0.0, stats.longer as f64, 0.0);
        checks.add("requests of 1 page", Unit::Share, one_page, share(stats.one_page, made), within(one_page, made));
        checks.add("writes", Unit::Share, writes, share(stats.writes, made), within(writes, made));
        let written = stats.writes as f64;
        checks.add(
            "metadata, of writes",
            Unit::Share,
            metadata,
            share(stats.metadata, written),
            within(metadata, written),
        );
        let reads = made - written;
        checks.add(
            "sequential, of reads",
            Unit::Share,
            sequential,
            share(stats.sequential, reads),
            0.01 + within(sequential, reads),
        );
        checks.add("beyond the disks, bytes", Unit::Count, 0.0, stats.end.saturating_sub(disks) as f64, 0.0);
        if small.as_ref().is_some_and(|small| small.size() > 0) {
            let figure = "again within a tenth of the first-level cache";
            checks.add(figure, Unit::Share, 0.0, share(stats.again, made), 0.001);
        }
        checks
    }
}
