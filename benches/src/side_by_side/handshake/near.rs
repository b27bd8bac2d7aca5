//! This end: opens the transfers and takes the time.
#![expect(unsafe_code, reason = "buffers are lent to engines by address")]

use super::cells::{Cell, rows};
use super::link::{FIGURES, Price, Use, cache, connecting, engine};
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
pub(super) struct Ask {
    pub(super) fabric: &'static str,
    pub(super) cost: Linear,
    pub(super) bytes: usize,
    pub(super) write: bool,
    /// How many have the buffer written to them.
    pub(super) peers: usize,
}

/// Measures both processes in every state.
pub(super) fn measure(setting: &Setting, ask: &Ask, name: &str) -> Outcome<Vec<Row>> {
    pin::pin(setting.near)?;
    if setting.near == setting.far {
        return Err("both ends register at once, which takes a CPU for each: this process may use one only".into());
    }
    let Linear { reg_page, reg_call, dereg_page, dereg_call } = ask.cost;
    let cost = format!("{reg_page},{reg_call},{dereg_page},{dereg_call}");
    let yields = (ask.peers > 1).to_string();
    let start = |process| Far::start(setting.far, &["handshake", ask.fabric, process_name(process), &cost, &yields]);
    let fars = PROCESSES.into_iter().flat_map(|process| (0..ask.peers).map(move |_| process));
    let fars = fars.map(start).collect::<Outcome<Vec<_>>>()?;
    let mut addresses = fars.iter().map(|far| far.address.clone());
    let address = || addresses.next().ok_or_else(|| "more connections than ends".into());
    let price = Price { cost: ask.cost, yields: false };
    let cells = connecting(ask.fabric, price, address, Run { setting, ask })?;
    // They end with their connections, or are ended.
    drop(fars);
    Ok(rows(name, &cells, if ask.peers == 1 { "both" } else { "all" }))
}

struct Run<'a> {
    setting: &'a Setting,
    ask: &'a Ask,
}

impl Use for Run<'_> {
    type Output = Vec<Cell>;

    fn with<E: Endpoint<Domain = Priced<D>>, D: Domain>(
        self,
        domain: Priced<D>,
        memory: *mut u8,
        mut connect: impl FnMut() -> Outcome<E>,
    ) -> Outcome<Vec<Cell>> {
        let Ask { bytes, write, peers, .. } = *self.ask;
        let cache = cache(domain.clone())?;
        let mut ends = Vec::new();
        for process in PROCESSES {
            let one = |_| Ok(engine(&cache, connect()?, Side::Connecting, process));
            ends.push(End { engines: (0..peers).map(one).collect::<Outcome<_>>()?, memory });
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
                    let moved = if write { end.write(bytes, b"")? } else { end.read(0, 0, bytes, b"")? };
                    let (took, registering) = (start.elapsed(), domain.registering().saturating_sub(registered));
                    if rounds >= warm {
                        cell.times[nth].push(took.as_nanos() as f64);
                        cell.registering[nth].push(registering.as_nanos() as f64);
                    }
                    let wanted = (bytes * peers) as u64;
                    if moved != wanted {
                        return Err(format!("{moved} of {wanted} bytes came").into());
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

/// An engine for each peer, and the memory that they may use.
struct End<'cache, E: Endpoint> {
    engines: Vec<Engine<'cache, E>>,
    memory: *mut u8,
}

impl<E: Endpoint> End<'_, E> {
    /// Writes to all peers, and returns how many bytes came, all together.
    fn write(&mut self, bytes: usize, header: &[u8]) -> Outcome<u64> {
        // SAFETY: the memory is used by these engines alone, for one buffer at a time, and lives longer than they do.
        let tags = unsafe { Engine::open_writes(&mut self.engines, self.memory, bytes, header) };
        let tags = tags.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let ([engine], [tag]) = (&mut self.engines[..], &tags[..]) {
            return end(engine, *tag);
        }
        // None sleeps while another could go on.
        let mut results = vec![None; tags.len()];
        while results.iter().any(Option::is_none) {
            for ((engine, &tag), result) in self.engines.iter_mut().zip(&tags).zip(&mut results) {
                engine.progress();
                if let Some(event) = engine.next_event() {
                    *result = result.or(take(engine, event, tag)?);
                }
            }
        }
        Ok(results.into_iter().flatten().sum())
    }

    fn read(&mut self, peer: usize, at: usize, bytes: usize, header: &[u8]) -> Outcome<u64> {
        let engine = &mut self.engines[peer];
        // SAFETY: the buffer outlives the engine and has no other user, as the engine's calls require.
        let tag = unsafe { engine.open_read(self.memory.wrapping_add(at), bytes, header) }?;
        end(engine, tag)
    }

    /// Returns the other ends' time spent registering for transfers, all together.
    fn figures(&mut self) -> Outcome<Figures> {
        let mut all = Figures::default();
        for peer in 0..self.engines.len() {
            let mut nanos = Figures::default();
            self.read(peer, FIGURES, size_of::<Figures>(), b"figures")?;
            let at = self.memory.wrapping_add(FIGURES);
            // SAFETY: the transfer has ended, so the engine writes there no more.
            unsafe { std::ptr::copy_nonoverlapping(at, nanos.as_mut_ptr().cast(), size_of::<Figures>()) };
            all.iter_mut().zip(nanos).for_each(|(all, nanos)| *all += nanos);
        }
        Ok(all)
    }
}

/// Waits for the end of a transfer.
fn end<E: Endpoint>(engine: &mut Engine<'_, E>, tag: Tag) -> Outcome<u64> {
    loop {
        let event = engine.run().ok_or("the connection is gone")?;
        if let Some(bytes) = take(engine, event, tag)? {
            return Ok(bytes);
        }
    }
}

/// Is the application: in the traditional process it wants the write once it was told of the keys. Returns the bytes of a transfer that ended.
fn take<E: Endpoint>(engine: &mut Engine<'_, E>, event: Event, tag: Tag) -> Outcome<Option<u64>> {
    match event {
        Event::KeysCame { tag } => engine.submit(tag)?,
        Event::Completed { tag: ended, result } if ended == tag => return Ok(Some(result?)),
        Event::Closed { why } => return Err(format!("the connection ended: {why:?}").into()),
        _ => {}
    }
    Ok(None)
}
