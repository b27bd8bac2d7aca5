//! This end: opens the transfers and takes the time.
#![expect(unsafe_code, reason = "buffers are lent to engines by address")]

use super::far::{Figures, WRITER, prepare};
use super::link::{FIGURES, Use, cache, connecting, engine};
use super::{State, process_name, states};
use crate::pin;
use crate::side_by_side::far::{Far, Outcome};
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::Setting;
use crate::side_by_side::report::{Row, Unit};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::priced::Priced;
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::{Process, Side, Tag};
use mrrc::cost::Linear;
use std::time::Instant;

/// The two, ours first.
const PROCESSES: [Process; 2] = [Process::Frrwp, Process::Traditional];

/// Below this share of a transfer, registrations are not told from noise.
const TOLD: f64 = 0.05;

/// What is measured.
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
    Ok(rows(ask, &cells))
}

/// Into so many rounds the transfers are divided to see whether the two processes can be told apart.
const ROUNDS: usize = 5;

/// What came out of one state: of each process, the times in order, and what both ends spent registering for one transfer.
struct Cell {
    state: State,
    times: [Vec<f64>; 2],
    registering: [f64; 2],
}

impl Cell {
    /// So many hundredths of the times are below this.
    fn quantile(&self, process: usize, share: usize) -> Figure {
        let times = &self.times[process];
        let of = |times: &[f64]| {
            let mut sorted = times.to_vec();
            sorted.sort_unstable_by(f64::total_cmp);
            sorted.get(sorted.len() * share / 100).copied().unwrap_or(f64::NAN)
        };
        Figure::whole(of(times), times.chunks(times.len().div_ceil(ROUNDS).max(1)).map(of).collect())
    }
}

fn rows(ask: &Ask<'_>, cells: &[Cell]) -> Vec<Row> {
    let warm = cells.iter().find(|cell| cell.state == State::Warm);
    let mut rows = Vec::new();
    for cell in cells {
        let row = |what: &str, value: &dyn Fn(usize) -> Figure, unit| {
            let name = format!("{}/{}/{what}", ask.name, cell.state.name());
            Row::new(name, value(0), Some(value(1)), unit)
        };
        rows.push(row("p50", &|process| cell.quantile(process, 50), Unit::Nanos));
        rows.push(row("p99", &|process| cell.quantile(process, 99), Unit::Nanos));
        let Some(warm) = warm.filter(|_| cell.state != State::Warm) else { continue };
        let hidden = |process: usize| {
            let (took, registering) = (cell.quantile(process, 50).best, cell.registering[process]);
            let longer = took - warm.quantile(process, 50).best;
            Figure::once(if registering < TOLD * took { f64::NAN } else { 1.0 - longer / registering })
        };
        let micros = cell.registering[0] / 1e3;
        rows.push(row("hidden", &hidden, Unit::Part).note(format!("of {micros:.1} us of registering at both ends")));
    }
    rows
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
        let states =
            states(bytes).map(|state| (state, Cell { state, times: Default::default(), registering: [0.0; 2] }));
        let (states, mut cells): (Vec<_>, Vec<_>) = states.unzip();
        // The first rounds warm up.
        let warm = self.setting.rounds / 10;
        let mut before: Vec<Figures> = Vec::new();
        let mut begun = Instant::now();
        let mut rounds = 0;
        while rounds < warm + self.setting.rounds || begun.elapsed() < self.setting.whole {
            if rounds == warm {
                before = ends.iter_mut().map(End::figures).collect::<Outcome<_>>()?;
                begun = Instant::now();
            }
            for (cell, state) in cells.iter_mut().zip(&states) {
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
                        cell.registering[nth] += registering.as_nanos() as f64;
                    }
                    if moved != bytes as u64 {
                        return Err(format!("{moved} of {bytes} bytes came").into());
                    }
                }
            }
            rounds += 1;
        }
        for (nth, end) in ends.iter_mut().enumerate() {
            let far = end.figures()?;
            for cell in &mut cells {
                let index = cell.state.index();
                let far = far[index].saturating_sub(before[nth][index]);
                cell.registering[nth] = (cell.registering[nth] + far as f64) / (rounds - warm) as f64;
            }
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
        let tag = unsafe { self.engine.write(self.memory, bytes, header) }?;
        self.end(tag)
    }

    fn read(&mut self, at: usize, bytes: usize, header: &[u8]) -> Outcome<u64> {
        // SAFETY: as above.
        let tag = unsafe { self.engine.read(self.memory.wrapping_add(at), bytes, header) }?;
        self.end(tag)
    }

    /// Is the application: in the traditional process it wants the write once it was told of the keys.
    fn end(&mut self, tag: Tag) -> Outcome<u64> {
        loop {
            match self.engine.run() {
                Some(Event::KeysCame { tag }) => self.engine.submit(tag)?,
                Some(Event::Ended { tag: ended, result }) if ended == tag => return Ok(result?),
                Some(Event::Closed { why }) => return Err(format!("the connection ended: {why:?}").into()),
                Some(_) => {}
                None => return Err("the connection is gone".into()),
            }
        }
    }

    /// What the other end has spent registering for transfers.
    fn figures(&mut self) -> Outcome<Figures> {
        let mut nanos = Figures::default();
        self.read(FIGURES, size_of::<Figures>(), b"figures")?;
        let at = self.memory.wrapping_add(FIGURES);
        // SAFETY: the transfer has ended, so nobody writes there.
        unsafe { std::ptr::copy_nonoverlapping(at, nanos.as_mut_ptr().cast(), size_of::<Figures>()) };
        Ok(nanos)
    }
}
