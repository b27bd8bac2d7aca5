//! Reads of another process's memory, beside a `memcpy` of the same bytes.
//!
//! The other process owns the memory and sleeps. A read is posted and its completion polled: the tag is looked up, the bytes
//! are copied, and the tag is looked at again. The peer copies the same bytes from memory of this process, of the same kind
//! and at the same places. Each is timed by itself, so all times have a look at the clock in them.
#![expect(unsafe_code, reason = "posts local memory by address")]

use super::goal;
use super::interleave::turns;
use crate::pin;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::Setting;
use crate::side_by_side::remote::{Far, Outcome, answer};
use crate::side_by_side::report::{Row, Unit};
use frrwp::fabric::shm::{Sharing, ShmAddress, ShmArena, ShmDomain, ShmEndpoint, ShmListener, ShmOptions, connect};
use frrwp::fabric::{Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::Registrar;
use mrrc::{Access, PageRange};
use std::time::{Duration, Instant};

/// Above the table.
pub const TITLE: &str = "shm: a read of another process's memory beside a memcpy, a look at the clock in each";

/// The sizes of reads, with the goals of their medians.
pub const SIZES: [usize; 2] = [1 << 10, 10 << 10];

const MEMORY: usize = 16 << 20;
const WITHIN: Duration = Duration::from_secs(10);

/// `shm/read/1KiB`.
pub fn name(bytes: usize) -> String {
    format!("shm/read/{}KiB", bytes >> 10)
}

/// Measures reads of this size.
///
/// # Errors
/// The error of the provider or the other process.
pub fn measure(setting: &Setting, bytes: usize) -> Outcome<Vec<Row>> {
    pin::pin(setting.near)?;
    let domain = ShmDomain::new(ShmOptions::default())?;
    let mut far = Far::start(setting.far, &["shm"])?;
    let mut endpoint = connect(&domain, &far.address.parse()?, 16, WITHIN)?;
    let all = offer(&mut endpoint)?;
    let mine = touched(&domain)?;
    let near = touched(&domain)?;
    let range = PageRange::of_bytes(near.as_ptr() as u64, bytes as u64)?;
    let key = domain.register(range, Access::LOCAL)?;
    let local = [Local { address: near.as_ptr(), length: bytes, registration: &key }];
    let mut message = Box::new([0; MESSAGE]);
    let operations = if setting.quick { 100 } else { 4000 };
    let (mut copied, mut read) = (Quantiles::default(), Quantiles::default());
    let done = turns(
        setting,
        &mut far,
        operations,
        [
            &mut |operations| {
                copied.turn(operations, |nth| {
                    let from = mine.as_ptr().wrapping_add(place(nth, bytes));
                    // SAFETY: both are arenas of this process that no peer has, and the bytes are within them.
                    unsafe { std::ptr::copy_nonoverlapping(std::hint::black_box(from), near.as_ptr(), bytes) };
                    Ok(())
                })
            },
            &mut |operations| {
                read.turn(operations, |nth| {
                    let segment =
                        Segment { address: all.address + place(nth, bytes) as u64, length: bytes as u64, ..all };
                    // SAFETY: the local memory is registered and has no other user, and the call that returns has
                    // ended it.
                    unsafe { endpoint.read(1, &local, segment) }?;
                    match endpoint.poll(&mut message) {
                        Some(Completion::Done { succeeded: true, .. }) => Ok(()),
                        other => Err(format!("a read ended with {other:?}").into()),
                    }
                })
            },
        ],
    )?;
    let [copies, reads] = &done;
    let name = name(bytes);
    // The first turn warmed up.
    let of = |turns: &[f64]| Figure::lowest(turns.get(1..).unwrap_or_default().to_vec());
    let p50 = of(&read.p50);
    let (limit, text) = if bytes == SIZES[0] { (250.0, "250 ns") } else { (1000.0, "1 us") };
    let median = p50.median.unwrap_or(f64::NAN);
    let row = |what: &str, ours, peer| Row::new(format!("{name}/{what}"), ours, Some(peer), Unit::Nanos);
    Ok(vec![
        row("p50", p50, of(&copied.p50)).note(goal(text, median, median <= limit)),
        row("p99", of(&read.p99), of(&copied.p99)),
        row("cpu/near", reads.figure(|turn| turn.near), copies.figure(|turn| turn.near)),
        Row::new(format!("{name}/cpu/far"), reads.figure(|turn| turn.far), None, Unit::Nanos),
    ])
}

/// Of each turn.
#[derive(Default)]
struct Quantiles {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Quantiles {
    fn turn(&mut self, operations: usize, mut run: impl FnMut(usize) -> Outcome<()>) -> Outcome<()> {
        let mut times = Vec::with_capacity(operations);
        for nth in 0..operations {
            let start = Instant::now();
            run(nth)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let of = |share: usize| times.get(times.len() * share / 100).map_or(f64::NAN, |time| time.as_nanos() as f64);
        self.p50.push(of(50));
        self.p99.push(of(99));
        Ok(())
    }
}

/// Places that no prefetcher guesses, in memory that the caches of a core hold in part.
fn place(nth: usize, bytes: usize) -> usize {
    let slot = (nth as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    (slot % (MEMORY / bytes) as u64) as usize * bytes
}

/// Returns an arena whose pages are there.
fn touched(domain: &ShmDomain) -> Outcome<ShmArena> {
    let arena = domain.arena(MEMORY, Sharing::Writable)?;
    for page in (0..MEMORY).step_by(4096) {
        arena.write_at(page, &[1])?;
    }
    Ok(arena)
}

/// Returns the place of the other end's memory.
fn offer(endpoint: &mut ShmEndpoint) -> Outcome<Segment> {
    let mut message = Box::new([0; MESSAGE]);
    loop {
        match endpoint.poll(&mut message) {
            Some(Completion::Message { length: 12 }) => {
                let address = u64::from_le_bytes(message[..8].try_into()?);
                let key = u32::from_le_bytes(message[8..12].try_into()?);
                return Ok(Segment { address, length: MEMORY as u64, key });
            }
            Some(other) => return Err(format!("the other process: {other:?}").into()),
            None => endpoint.wait(None),
        }
    }
}

/// Runs the process that serves its memory to reads.
pub(in crate::side_by_side) fn far() -> Outcome<()> {
    let address: ShmAddress = format!("shm:@side-by-side-{}", std::process::id()).parse()?;
    let domain = ShmDomain::new(ShmOptions::default())?;
    let listener = ShmListener::bind(&domain, &address)?;
    let arena = touched(&domain)?;
    println!("{address}");
    let mut endpoint = listener.accept(16, WITHIN)?;
    let range = PageRange::of_bytes(arena.as_ptr() as u64, MEMORY as u64)?;
    let key = domain.register(range, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let all = domain.remote(&key, arena.as_ptr(), MEMORY);
    let mut offer = [0; 12];
    offer[..8].copy_from_slice(&all.address.to_le_bytes());
    offer[8..].copy_from_slice(&all.key.to_le_bytes());
    endpoint.send(&offer)?;
    answer()
}
