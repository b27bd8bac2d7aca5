//! The other end: answers transfers as their headers say.
//!
//! A write of nothing with the header `STATE BYTES writer`, or `target`, brings its cache into that state, and ends when that is done. A read
//! with the header `figures` takes the nanoseconds that it has spent registering for transfers, by
//! state. Any other transfer
//! is of as many bytes as were said last.
#![expect(unsafe_code, reason = "buffers are lent to engines by address")]

use super::link::{FIGURES, Price, ROOM, Use, cache, engine, listening};
use super::priced::Priced;
use super::{State, process_name};
use crate::side_by_side::remote::Outcome;
use frrwp::engine::Event;
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::{Process, Side};
use mrrc::{Access, Cache};
use std::time::Duration;

/// The far end's role as an argument; anything else is the target.
pub(super) const WRITER: &str = "writer";

/// Is the other end, until the connection ends.
pub(in crate::side_by_side) fn run(arguments: &[&str]) -> Outcome<()> {
    let [fabric, process, cost, yields] = arguments else { return Err("fabric, process, cost, yields".into()) };
    let process = [Process::Frrwp, Process::Traditional].into_iter().find(|&p| process_name(p) == *process);
    let process = process.ok_or("no such process")?;
    let price = Price { cost: cost.parse()?, yields: yields.parse()? };
    listening(fabric, process, price, Answer { process })
}

/// Nanoseconds in each state, in the order of [`State::ALL`], as this machine writes them.
pub(super) type Figures = [u64; State::ALL.len()];

/// Counts the time spent registering for transfers.
struct Counted<D> {
    domain: Priced<D>,
    /// The total duration of registrations when the transfer began.
    mark: Duration,
    nanos: Figures,
}

impl<D: Domain> Counted<D> {
    /// Adds the time since the mark to this state.
    fn add(&mut self, state: State) {
        let now = self.domain.registering();
        self.nanos[state.index()] += now.saturating_sub(self.mark).as_nanos() as u64;
        self.mark = now;
    }
}

struct Answer {
    process: Process,
}

impl Use for Answer {
    type Output = ();

    fn with<E: Endpoint<Domain = Priced<D>>, D: Domain>(
        self,
        domain: Priced<D>,
        memory: *mut u8,
        mut connect: impl FnMut() -> Outcome<E>,
    ) -> Outcome<()> {
        let cache = cache(domain.clone())?;
        let mut engine = engine(&cache, connect()?, Side::Accepting, self.process);
        let (mut bytes, mut state) = (0, State::Warm);
        let mut counted = Counted { domain: domain.clone(), mark: Duration::ZERO, nanos: Figures::default() };
        while let Some(event) = engine.run() {
            match event {
                Event::Requested { tag, read, length: 0 } => {
                    let header = engine.header(tag).unwrap_or_default().to_vec();
                    let words: Vec<_> = std::str::from_utf8(&header)?.split(' ').collect();
                    let [name, size, part] = words[..] else { return Err("a header of three words".into()) };
                    counted.add(state);
                    state = State::of(name).ok_or("no such state")?;
                    bytes = size.parse()?;
                    if bytes > FIGURES || read {
                        return Err("more than there is memory for".into());
                    }
                    prepare(&cache, memory, bytes, state.ready(false, bytes), part == WRITER)?;
                    counted.mark = domain.registering();
                    // SAFETY: the memory is used by this engine alone, and lives longer than it.
                    unsafe { engine.accept_write(tag, memory, 0) }?;
                }
                Event::Requested { tag, read: true, .. } if engine.header(tag) == Some(b"figures") => {
                    counted.add(state);
                    let at = memory.wrapping_add(FIGURES);
                    // SAFETY: the engine lends no buffer there now, and there is room for a page behind the largest
                    // buffer.
                    unsafe { std::ptr::copy_nonoverlapping(counted.nanos.as_ptr().cast(), at, size_of::<Figures>()) };
                    // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                    unsafe { engine.accept_read(tag, at, size_of::<Figures>()) }?;
                    counted.mark = domain.registering();
                }
                // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                Event::Requested { tag, read: true, .. } => unsafe { engine.accept_read(tag, memory, bytes) }?,
                // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
                Event::Requested { tag, read: false, .. } => unsafe { engine.accept_write(tag, memory, bytes) }?,
                Event::KeysCame { tag } => engine.submit(tag)?,
                Event::Completed { result, .. } => drop(result?),
                Event::Closed { .. } => break,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Has so many bytes of a buffer registered, and no others of it.
pub(super) fn prepare<D: Domain>(
    cache: &Cache<Priced<D>>,
    memory: *mut u8,
    bytes: usize,
    ready: usize,
    writer: bool,
) -> Outcome<()> {
    cache.invalidate(memory, ROOM.min(bytes))?;
    cache.reap()?;
    if ready > 0 {
        // As the engine asks.
        let access = if writer { Access::LOCAL_READ } else { Access::LOCAL_WRITE | Access::REMOTE_WRITE };
        // SAFETY: the memory lives longer than the cache, and its leases are the engine's.
        unsafe { cache.warm(memory, ready, access) }?;
    }
    Ok(())
}
