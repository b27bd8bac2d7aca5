//! This end: opens the transfers and takes the time.
#![expect(unsafe_code, reason = "buffers are lent to engines by address")]

use super::cells::{Cell, rows};
use super::link::{FIGURES, Use, cache, connecting, engine};
use super::priced::Priced;
use super::remote::{Figures, WRITER, prepare};
use super::{process_name, states};
use crate::pin;
use crate::side_by_side::part::Setting;
use crate::side_by_side::remote::{Far, Outcome};
use crate::side_by_side::report::Row;
use frrwp::engine::{Engine, Event};
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::{Process, Side, Tag};
use mrrc::cost::Linear;
use std::time::Instant;

/// The two, ours first.
const PROCESSES: [Process; 2] = [Process::Frrwp, Process::Traditional];

/// The measurement to make.
pub(super) struct Ask<'a> {
    pub(super) fabric: &'static str,
    pub(super) cost: Linear,
    pub(super) bytes: usize,
    pub(super) write: bool,
    pub(super) name: &'a str,
}

/// Measures both processes in every state.
pub(super) fn measure(setting: &Setting, ask: &Ask<'_>) -> Outcome<Vec<Row>> {
    pin::pin(setting.near)?;
    if setting.near == setting.far {
        return Err("both ends register at once, which takes a CPU for each: this process may use one only".into());
    }
    let Linear { reg_page, reg_call, dereg_page, dereg_call } = ask.cost;
    let cost = format!("{reg_page},{reg_call},{dereg_page},{dereg_call}");
    let start = |process| Far::start(setting.far, &["handshake", ask.fabric, process_name(process), &cost]);
    let fars = [start(PROCESSES[0])?, start(PROCESSES[1])?];
    let mut addresses = fars.iter().map(|far| far.address.clone());
    let address = || addresses.next().ok_or_else(|| "more connections than ends".into());
    let cells = connecting(ask.fabric, ask.cost, address, Run { setting, ask })?;
    // They end with their connections, or are ended.
    drop(fars);
    Ok(rows(ask.name, &cells))
}

struct Run<'a> {
    setting: &'a Setting,
    ask: &'a Ask<'a>,
}

impl Use for Run<'_> {
    type Output = Vec<Cell>;

    fn with<E: Endpoint<Domain = Priced<D>>, D: Domain>(
        self,
        domain: Priced<D>,
        memory: *mut u8,
        mut connect: impl FnMut() -> Outcome<E>,
    ) -> Outcome<Vec<Cell>> {
        let Ask { bytes, write, .. } = *self.ask;
        let cache = cache(domain.clone())?;
        let mut ends = Vec::new();
        for process in PROCESSES {
            ends.push(End { engine: engine(&cache, connect()?, Side::Connecting, process), memory });
        }
        let part = if write { "target" } else { WRITER };
        let mut cells: Vec<_> = states(bytes).map(Cell::new).collect();
        // The first rounds warm up.
        let warm = self.setting.rounds / 10;
        let mut far = ends.iter_mut().map(End::figures).collect::<Outcome<Vec<_>>>()?;
        let mut begun = Instant::now();
        let mut rounds = 0;
        while rounds < warm + self.setting.rounds || begun.elapsed() < self.setting.whole {
            if rounds == warm {
                begun = Instant::now();
            }
            for cell in &mut cells {
                let state = cell.state;
                for turn in 0..2 {
                    // There and back: neither always runs behind the other.
                    let nth = if rounds % 2 == 0 { turn } else { 1 - turn };
                    let end = &mut ends[nth];
                    prepare(&cache, memory, bytes, state.ready(true, bytes), write)?;
                    end.write(0, format!("{} {bytes} {part}", state.name()).as_bytes())?;
                    let (registered, start) = (domain.registering(), Instant::now());
                    let moved = if write { end.write(bytes, b"")? } else { end.read(0, bytes, b"")? };
                    let (took, registering) = (start.elapsed(), domain.registering().saturating_sub(registered));
                    if rounds >= warm {
                        cell.times[nth].push(took.as_nanos() as f64);
                        cell.registering[nth].push(registering.as_nanos() as f64);
                    }
                    if moved != bytes as u64 {
                        return Err(format!("{moved} of {bytes} bytes came").into());
                    }
                }
            }
            // The other end's time is asked for after each round, so that every transfer has its own.
            for (nth, (end, before)) in ends.iter_mut().zip(&mut far).enumerate() {
                let now = end.figures()?;
                for cell in &mut cells {
                    let index = cell.state.index();
                    if let Some(last) = cell.registering[nth].last_mut() {
                        *last += now[index].saturating_sub(before[index]) as f64;
                    }
                }
                *before = now;
            }
            rounds += 1;
        }
        Ok(cells)
    }
}

/// An engine, and the memory that it may use.
struct End<'cache, E: Endpoint> {
    engine: Engine<'cache, E>,
    memory: *mut u8,
}

impl<E: Endpoint> End<'_, E> {
    fn write(&mut self, bytes: usize, header: &[u8]) -> Outcome<u64> {
        // SAFETY: the memory is used by these engines alone, one at a time, and lives longer than they do.
        let tag = unsafe { self.engine.open_write(self.memory, bytes, header) }?;
        self.end(tag)
    }

    fn read(&mut self, at: usize, bytes: usize, header: &[u8]) -> Outcome<u64> {
        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
        let tag = unsafe { self.engine.open_read(self.memory.wrapping_add(at), bytes, header) }?;
        self.end(tag)
    }

    /// Is the application: in the traditional process it wants the write once it was told of the keys.
    fn end(&mut self, tag: Tag) -> Outcome<u64> {
        loop {
            match self.engine.run() {
                Some(Event::KeysCame { tag }) => self.engine.submit(tag)?,
                Some(Event::Completed { tag: ended, result }) if ended == tag => return Ok(result?),
                Some(Event::Closed { why }) => return Err(format!("the connection ended: {why:?}").into()),
                Some(_) => {}
                None => return Err("the connection is gone".into()),
            }
        }
    }

    /// Returns the other end's time spent registering for transfers.
    fn figures(&mut self) -> Outcome<Figures> {
        let mut nanos = Figures::default();
        self.read(FIGURES, size_of::<Figures>(), b"figures")?;
        let at = self.memory.wrapping_add(FIGURES);
        // SAFETY: the transfer has ended, so the engine writes there no more.
        unsafe { std::ptr::copy_nonoverlapping(at, nanos.as_mut_ptr().cast(), size_of::<Figures>()) };
        Ok(nanos)
    }
}
