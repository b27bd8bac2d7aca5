//! Churn: a cycle over twice as many regions as fit, so that under LRU every request misses and evicts.
//!
//! Not every policy lets a cycle flush it. So there are two figures: time for one request, and time for one
//! miss, which is the whole time divided by the registrations.
//!
//! A miss is where a monitor costs something: it is asked whether it watches the memory. So ours is there
//! twice: with the program itself reporting changes, as the peer with its hooks off, and watched.

use super::field::Field;
use super::race::{CHUNK, Contestant, Lap, Laps, Stint, race};
use super::{Options, fill};
use crate::Layout;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::report::{Row, Unit};
use crate::subject::{Setup, Subject};

/// Above the table.
pub const TITLE: &str = "Churn: capacity of 1,000 regions, cycling over 2,000; a miss registers one and evicts one";

/// The ends of the names of its rows.
pub const ROWS: [&str; 3] = ["1000-of-2000", "1000-of-2000/request", "1000-of-2000/watched"];

const FIT: usize = 1_000;
const CYCLE: usize = 2 * FIT;

/// Measures it.
///
/// # Errors
/// If the ground cannot be prepared, and those of [`race`].
pub fn measure<O: Subject, P: Subject>(options: &Options) -> Result<Vec<Row>, String> {
    let field = field()?;
    let watched_field = field.twin()?;
    let (ours, peer) = (full::<O>(&field, true)?, full::<P>(&field, true)?);
    let ours = ours.ok_or("our own cache is not there")?;
    let watched = full::<O>(&watched_field, false)?.ok_or("our own cache is not there")?;
    let our_run = |stint| cycle(&ours, &field, stint);
    let our_attempts = || ours.behaviour().attempts();
    let watched_run = |stint| cycle(&watched, &watched_field, stint);
    let watched_attempts = || watched.behaviour().attempts();
    let peer_run = |stint| peer.as_ref().map_or(0, |peer| cycle(peer, &field, stint));
    let peer_attempts = || peer.as_ref().map_or(0, |peer| peer.behaviour().attempts());
    let mut contestants = vec![
        Contestant { run: &our_run, attempts: &our_attempts },
        Contestant { run: &watched_run, attempts: &watched_attempts },
    ];
    if peer.is_some() {
        contestants.push(Contestant { run: &peer_run, attempts: &peer_attempts });
    }
    let laps = race(&contestants, &options.alone(), &options.places.cpus, options.length)?;
    let (ours, watched, peer) = (&laps[0][0], &laps[1][0], laps.get(2).map(|laps| &laps[0]));
    let hits = |laps: &Laps| format!("{:.1} %", 100.0 * (1.0 - laps.misses()));
    let note = format!("found: {}{}", hits(ours), peer.map_or(String::new(), |peer| format!(" and {}", hits(peer))));
    let miss = |lap: &Lap| lap.nanos / lap.misses;
    Ok(vec![
        row("churn/1000-of-2000", ours, peer, miss).note("for one miss with its eviction"),
        row("churn/1000-of-2000/request", ours, peer, |lap| lap.nanos).note(note),
        row("churn/1000-of-2000/watched", watched, None, miss).note("as the first, with the monitor on"),
    ])
}

fn row(name: &str, ours: &Laps, peer: Option<&Laps>, value: fn(&Lap) -> f64) -> Row {
    let figure = |laps: &Laps| -> Figure { laps.figure(value) };
    Row::new(name, figure(ours), peer.map(figure), Unit::Nanos)
}

/// Returns the regions of the cycle, in the order of their addresses.
///
/// # Errors
/// If that much address space is not to be had.
pub fn field() -> Result<Field, String> {
    let mut field = Field::new(Layout::Stride, CYCLE, 3)?;
    field.sort();
    Ok(field)
}

/// Returns a cache in the middle of the cycle.
///
/// # Errors
/// If it cannot be made or filled.
pub fn full<S: Subject>(field: &Field, unwatched: bool) -> Result<Option<S>, String> {
    let setup = Setup { most_regions: FIT, most_pages: field.pages(0..FIT), unwatched, ..Setup::default() };
    let cache = S::create(&setup)?;
    if let Some(cache) = &cache {
        fill(cache, (0..CYCLE).map(|region| field.place(region)))?;
    }
    Ok(cache)
}

/// Goes on with the cycle. Returns how many operations failed.
pub fn cycle<S: Subject>(cache: &S, field: &Field, stint: Stint) -> usize {
    let mut failed = 0;
    let mut next = stint.first.wrapping_mul(CHUNK) % CYCLE;
    for _ in 0..stint.chunks * CHUNK {
        let (address, length) = field.place(next);
        failed += usize::from(!cache.touch(address, length));
        next = if next + 1 == CYCLE { 0 } else { next + 1 };
    }
    failed
}
