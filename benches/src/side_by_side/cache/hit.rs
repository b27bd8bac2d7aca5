//! Hits: acquire and release of what is registered, with one thread and with more.
//!
//! Two settings each. In the plain one nothing is ever evicted. In the *evicting* one every thread asks for a
//! missing range once in [`CHUNK`] operations, and the cache is full. So registrations and evictions go on all the
//! time, at the same share of the work for any number of threads. Two threads with evictions are compared with one
//! thread with evictions. (At 15 ns for a hit that is 65,000 misses a second and thread, as fast as a real
//! registrar could go.)
//!
//! The cold regions are of the same kind as the hot ones, and the spare room is a quarter of the hot set. So a hot
//! region is asked for hundreds of times before its turn to leave would come, whether victims leave one by one or a
//! tenth of the cache at a time. Each request is for all of its region, so that an evicted one comes back as it was.
//! Else a cache of regions would come to hold 256 regions of two pages in place of one of 512, and the measurement
//! would be of that. The note counts registrations in a thousand operations: about one, or a policy evicts what is
//! hot.

use super::field::{DRAWN, Draw, Field, Whole};
use super::names::{threads_name, timed};
use super::race::{CHUNK, Contestant, Laps, Length, Stint, race};
use super::{Options, fill};
use crate::Layout;
use crate::side_by_side::report::{Row, Unit};
use crate::subject::{Setup, Subject};
use std::hint::black_box;

/// Above the table.
pub const TITLE: &str = "Hits: one acquire and release, all threads together (two threads at 20 ns each make 10); \
                         speed-ups are of total throughput";

/// `hit/stride/1000`.
pub fn name(layout: Layout, regions: usize) -> String {
    format!("hit/{}/{regions}", layout_name(layout))
}

/// Returns the names of the rows of so many regions with these numbers of threads.
pub fn rows(layout: Layout, regions: usize, threads: &[usize]) -> Vec<String> {
    timed(&name(layout, regions), &["", "/evicting"], threads)
}

fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::Stride => "stride",
        Layout::Irregular => "irregular",
        Layout::Packed => "packed",
        Layout::Scattered => "scattered",
    }
}

/// The source of hits, the same for every cache and every number of threads.
pub struct Ground {
    /// The field without evictions.
    field: Field,
    /// The field with evictions.
    twin: Field,
    /// Regions that stay; those behind them are cold.
    hot: usize,
    cold: usize,
    /// Cold regions that fit.
    spare: usize,
    /// Requests of each thread, in the field.
    draws: Vec<Vec<Draw>>,
    /// In the twin.
    whole: Vec<Vec<Whole>>,
}

impl Ground {
    /// `hot` regions, three times the spare room in cold ones, and requests for so many threads.
    ///
    /// # Errors
    /// If that much address space is not to be had.
    pub fn new(layout: Layout, hot: usize, threads: usize) -> Result<Self, String> {
        let spare = 64 + hot / 4;
        let cold = 3 * spare;
        let field = Field::new(layout, hot + cold, 1)?;
        let twin = field.twin()?;
        let draws = (0..threads as u64).map(|thread| field.draw(hot, 2 + thread)).collect();
        let whole = (0..threads as u64).map(|thread| twin.draw_whole(hot, 2 + thread)).collect();
        Ok(Self { field, twin, hot, cold, spare, draws, whole })
    }

    /// Returns a chunk of requests for each number: they repeat.
    #[inline]
    fn chunk<T>(draws: &[T], number: usize) -> &[T] {
        let start = number % (DRAWN / CHUNK) * CHUNK;
        &draws[start..start + CHUNK]
    }

    /// The loop alone: what the harness adds to every figure.
    fn empty(&self, stint: Stint) -> usize {
        for number in stint.first..stint.first.wrapping_add(stint.chunks) {
            for &draw in Self::chunk(&self.draws[stint.thread], number) {
                black_box(self.field.asked(draw));
            }
        }
        0
    }

    /// Touches what is there. Returns how many operations failed.
    pub fn hits<S: Subject>(&self, cache: &S, stint: Stint) -> usize {
        let mut failed = 0;
        for number in stint.first..stint.first.wrapping_add(stint.chunks) {
            for &draw in Self::chunk(&self.draws[stint.thread], number) {
                let (address, length) = self.field.asked(draw);
                failed += usize::from(!cache.touch(address, length));
            }
        }
        failed
    }

    /// As [`Ground::hits`], and one operation of each chunk is a miss.
    pub fn evicting<S: Subject>(&self, cache: &S, stint: Stint) -> usize {
        let mut failed = 0;
        for number in stint.first..stint.first.wrapping_add(stint.chunks) {
            for &draw in &Self::chunk(&self.whole[stint.thread], number)[1..] {
                let (address, length) = self.twin.asked_whole(draw);
                failed += usize::from(!cache.touch(address, length));
            }
            let (address, length) = self.twin.place(self.hot + number % self.cold);
            failed += usize::from(!cache.touch(address, length));
        }
        failed
    }

    /// Returns a cache with room for everything and the hot regions in it.
    ///
    /// # Errors
    /// If it cannot be made or filled.
    pub fn roomy<S: Subject>(&self) -> Result<Option<S>, String> {
        let setup = Setup { most_regions: 2 * self.hot + 64, most_pages: 1 << 40, ..Setup::default() };
        let cache = S::create(&setup)?;
        if let Some(cache) = &cache {
            fill(cache, (0..self.hot).map(|region| self.field.place(region)))?;
        }
        Ok(cache)
    }

    /// Returns a cache that is full: cold regions, and the hot ones used after them.
    ///
    /// # Errors
    /// If it cannot be made or filled.
    pub fn full<S: Subject>(&self) -> Result<Option<S>, String> {
        let cold = self.hot..self.hot + self.cold;
        let spare_pages = self.field.pages(cold.clone()) * self.spare as u64 / self.cold as u64;
        let setup = Setup {
            most_regions: self.hot + self.spare,
            most_pages: self.field.pages(0..self.hot) + spare_pages,
            ..Setup::default()
        };
        let cache = S::create(&setup)?;
        if let Some(cache) = &cache {
            fill(cache, cold.chain(0..self.hot).map(|region| self.twin.place(region)))?;
        }
        Ok(cache)
    }
}

/// Measures hits on so many regions.
///
/// # Errors
/// If the ground cannot be prepared, and those of [`race`].
pub fn measure<O: Subject, P: Subject>(options: &Options, layout: Layout, hot: usize) -> Result<Vec<Row>, String> {
    let ground = Ground::new(layout, hot, options.threads.iter().copied().max().unwrap_or(1))?;

    let (ours, peer) = (ground.roomy::<O>()?, ground.roomy::<P>()?);
    let (ours_full, peer_full) = (ground.full::<O>()?, ground.full::<P>()?);
    let ours = ours.ok_or("our own cache is not there")?;
    let ours_full = ours_full.ok_or("our own cache is not there")?;

    let empty = |stint: Stint| ground.empty(stint);
    let none = || 0;
    let our_hits = |stint: Stint| ground.hits(&ours, stint);
    let our_evicting = |stint: Stint| ground.evicting(&ours_full, stint);
    let our_attempts = || ours_full.behaviour().attempts();
    let peer_hits = |stint: Stint| peer.as_ref().map_or(0, |peer| ground.hits(peer, stint));
    let peer_evicting = |stint: Stint| peer_full.as_ref().map_or(0, |peer| ground.evicting(peer, stint));
    let peer_attempts = || peer_full.as_ref().map_or(0, |peer| peer.behaviour().attempts());
    let mut contestants = vec![
        Contestant { run: &empty, attempts: &none },
        Contestant { run: &our_hits, attempts: &none },
        Contestant { run: &our_evicting, attempts: &our_attempts },
    ];
    if peer.is_some() && peer_full.is_some() {
        contestants.push(Contestant { run: &peer_hits, attempts: &none });
        contestants.push(Contestant { run: &peer_evicting, attempts: &peer_attempts });
    }
    let registered = ours.behaviour().attempts();
    // Every region twice or so, unless it is only to be seen that it works.
    let warm = if options.length.whole.is_zero() { 0 } else { 2 * hot / CHUNK };
    let length = Length { warm, ..options.length };
    let laps = race(&contestants, &options.threads, &options.places.cpus, length)?;
    if ours.behaviour().attempts() != registered {
        return Err("our cache registered something while everything was there".into());
    }
    let peer = |index: usize| laps.get(index).map(Vec::as_slice);
    let mut rows = Vec::new();
    let loop_alone = format!("the loop alone: {:.2} ns", laps[0][0].nanos().best);
    rows.extend(times(options, &name(layout, hot), "", &laps[1], peer(3), |threads, _, _| {
        if threads == 1 { loop_alone.clone() } else { String::new() }
    }));
    rows.extend(times(options, &name(layout, hot), "/evicting", &laps[2], peer(4), |_, ours, peer| {
        let peer = peer.map_or(String::new(), |peer| format!(" and {:.2}", 1e3 * peer.misses()));
        format!("registrations in 1,000: {:.2}{peer}", 1e3 * ours.misses())
    }));
    let speedup_name = format!("speedup/{}/{hot}", layout_name(layout));
    rows.extend(speedups(options, &speedup_name, "", &laps[1], peer(3)));
    rows.extend(speedups(options, &speedup_name, "/evicting", &laps[2], peer(4)));
    Ok(rows)
}

fn times(
    options: &Options,
    name: &str,
    setting: &str,
    ours: &[Laps],
    peer: Option<&[Laps]>,
    note: impl Fn(usize, &Laps, Option<&Laps>) -> String,
) -> Vec<Row> {
    let row = |(column, &threads): (usize, &usize)| {
        let (ours, peer) = (&ours[column], peer.map(|peer| &peer[column]));
        let name = format!("{name}/{}{setting}", threads_name(threads));
        Row::new(name, ours.nanos(), peer.map(Laps::nanos), Unit::Nanos).note(note(threads, ours, peer))
    };
    options.threads.iter().enumerate().map(row).collect()
}

fn speedups(options: &Options, name: &str, setting: &str, ours: &[Laps], peer: Option<&[Laps]>) -> Vec<Row> {
    let row = |(column, &threads): (usize, &usize)| {
        let speedup = |laps: &[Laps]| laps[column].nanos().speedup(laps[0].nanos());
        let name = format!("{name}/{}{setting}", threads_name(threads));
        Row::new(name, speedup(ours), peer.map(speedup), Unit::Times)
    };
    options.threads.iter().enumerate().skip(1).map(row).collect()
}
