//! Runs of procedures, over the regions that are here.
//!
//! A procedure takes some steps in a turn of the lane's worker, then others have theirs. Its time is that of its turns, not of its waiting.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use mrrc::volatile_copy;
use rdmakv_proto::far::messages::{Ran, Refusal, Run, RunStatus};
use rdmakv_proto::far::procedures::{Module, Procedure};

use super::arena::Part;
use super::batches::NotDone;
use super::modules::{Call, Modules};
use super::procedures::{End, LIMITS, Miss, Space, Spent, take_steps};
use super::workers::Worker;

/// Steps of a procedure in a turn.
const STEPS: u32 = 64;

/// The regions of a memory.
pub(super) trait Regions {
    /// Returns a region that is here, and keeps it from being dropped. [`Regions::end_read`] follows. Before, the read of `ended` ends.
    fn begin_read(&self, region: u32, ended: Option<u32>) -> Option<Part>;
    /// Lets the region be dropped again.
    fn end_read(&self, region: u32);
    /// Returns a region that is here, and keeps it from being frozen. 8 bytes are written there. [`Regions::end_write`] follows.
    fn begin_write(&self, region: u32, offset: u64) -> Result<Part, Miss>;
    /// Lets the region be frozen again.
    fn end_write(&self, region: u32, offset: u64);
}

impl<R: Regions + ?Sized> Regions for &R {
    fn begin_read(&self, region: u32, ended: Option<u32>) -> Option<Part> {
        (**self).begin_read(region, ended)
    }
    fn end_read(&self, region: u32) {
        (**self).end_read(region);
    }
    fn begin_write(&self, region: u32, offset: u64) -> Result<Part, Miss> {
        (**self).begin_write(region, offset)
    }
    fn end_write(&self, region: u32, offset: u64) {
        (**self).end_write(region, offset);
    }
}

/// A procedure that ended here.
#[derive(Debug)]
pub(in crate::fabric) struct Ended {
    request: u64,
    procedure: Procedure,
    end: End,
    spent: Spent,
    nanos: u64,
    micros: u32,
    arguments: Vec<u8>,
    reply: Vec<u8>,
}

impl Ended {
    /// Returns the answer.
    pub(in crate::fabric) fn answer(&self) -> Ran<'_> {
        let Self { request, end: End { status, at }, spent, micros, arguments, reply, .. } = self;
        Ran { request: *request, status: *status, bytes: spent.bytes, micros: *micros, at: *at, arguments, reply }
    }

    /// Returns the procedure, its status, and for how many nanoseconds it ran here.
    pub(super) fn counted(&self) -> (&Procedure, RunStatus, u64) {
        (&self.procedure, self.end.status, self.nanos)
    }
}

/// Runs a procedure in the turns of a worker. `is_long` is called once if it takes more than one, or has to wait for it.
///
/// # Errors
///
/// [`NotDone`]: there is no such procedure, or its arguments make no sense.
pub(super) fn carry_out(
    worker: &Worker,
    regions: &dyn Regions,
    region_bytes: u64,
    run: &Run<'_>,
    is_long: &dyn Fn(),
) -> Result<Ended, NotDone> {
    if !(1..Procedure::MODULE).contains(&run.procedure) {
        return Err(Refusal::Unable.into());
    }
    let mut procedure = Procedure::decode(run.procedure, run.arguments)?;
    let mut spent = Spent { hops: run.hops, bytes: run.bytes, replied: run.replied };
    let (mut nanos, mut reply) = (0_u64, Vec::new());
    let micros = |nanos: u64| run.micros.saturating_add(u32::try_from(nanos / 1000).unwrap_or(u32::MAX));
    let mut is_long = Some(is_long);
    let mut tell = || {
        if let Some(is_long) = is_long.take() {
            is_long();
        }
    };
    let mut turn = worker.turn(&mut tell);
    let end = loop {
        let begun = Instant::now();
        // Regions may end or move between turns.
        let mut here = Here { regions, region_bytes, kept: None };
        let end = take_steps(&mut procedure, &mut here, (&mut spent, &LIMITS), &mut reply, STEPS);
        // Not in others' turns.
        drop(here);
        nanos = nanos.saturating_add(begun.elapsed().as_nanos() as u64);
        match end {
            Some(end) => break end,
            None if micros(nanos) >= LIMITS.micros => break End { status: RunStatus::Time, at: procedure.at() },
            None => {
                tell();
                turn = worker.next_turn(turn);
            }
        }
    };
    drop(turn);
    let mut arguments = Vec::new();
    if end.status != RunStatus::Done {
        procedure.encode(&mut arguments);
    }
    Ok(Ended { request: run.request, procedure, end, spent, nanos, micros: micros(nanos), arguments, reply })
}

/// Runs a login's module by the threads for modules, and waits for it.
///
/// # Errors
///
/// [`NotDone`]: there is no such module, or its arguments make no sense.
pub(super) fn carry_out_module(
    modules: &Modules,
    login: u32,
    regions: impl Regions + Send + 'static,
    region_bytes: u64,
    run: &Run<'_>,
) -> Result<Ended, NotDone> {
    let Procedure::Module(Module { at, name, state }) = Procedure::decode(run.procedure, run.arguments)? else {
        return Err(Refusal::Unable.into());
    };
    let spent = Spent { hops: run.hops, bytes: run.bytes, replied: run.replied };
    let space = Box::new(Here { regions, region_bytes, kept: None });
    let ran = modules.run(login, &name, Call { at, state, space, spent, micros: run.micros })?;
    let procedure = Procedure::Module(Module { at: ran.at, name, state: ran.state });
    let mut arguments = Vec::new();
    if ran.end.status != RunStatus::Done {
        procedure.encode(&mut arguments);
    }
    let (end, spent, nanos, micros, reply) = (ran.end, ran.spent, ran.nanos, ran.micros, ran.reply);
    Ok(Ended { request: run.request, procedure, end, spent, nanos, micros, arguments, reply })
}

/// The bytes of a memory that are here.
struct Here<R: Regions> {
    regions: R,
    region_bytes: u64,
    /// The region that was read last. It is not dropped meanwhile.
    kept: Option<(u32, Part)>,
}

impl<R: Regions> Here<R> {
    /// Returns the region of an address, and the first byte there.
    fn place(&self, at: u64) -> Option<(u32, u64)> {
        let region = u32::try_from(at.checked_div(self.region_bytes)?).ok()?;
        Some((region, at % self.region_bytes))
    }

    /// Returns the memory at an address, and for how many of these bytes it goes on.
    fn piece(&mut self, at: u64, length: usize) -> Option<(*mut u8, usize)> {
        let (region, offset) = self.place(at)?;
        if self.kept.as_ref().is_none_or(|(kept, _)| *kept != region) {
            let ended = self.kept.take().map(|(ended, _)| ended);
            self.kept = Some((region, self.regions.begin_read(region, ended)?));
        }
        let length = length.min(usize::try_from(self.region_bytes - offset).unwrap_or(usize::MAX));
        Some((self.kept.as_ref()?.1.at(offset, length).ok()?, length))
    }
}

impl<R: Regions> Drop for Here<R> {
    fn drop(&mut self) {
        if let Some((region, _)) = self.kept.take() {
            self.regions.end_read(region);
        }
    }
}

impl<R: Regions> Space for Here<R> {
    fn here(&mut self, at: u64, length: usize) -> usize {
        let mut sum = 0;
        while sum < length
            && let Some(at) = at.checked_add(sum as u64)
            && let Some((_, piece)) = self.piece(at, length - sum)
        {
            sum += piece;
        }
        sum
    }

    #[expect(unsafe_code, reason = "the owner accesses the region at the same time")]
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        let mut sum = 0;
        while sum < into.len() {
            let at = at.checked_add(sum as u64);
            let Some((from, length)) = at.and_then(|at| self.piece(at, into.len() - sum)) else { return false };
            // SAFETY: `volatile_copy` requires that both ranges are accessible and that no reference to the region is used. `Part::at`
            // found that it has so many bytes there, `kept` keeps its memory, and this process makes no reference to a region's bytes.
            // `piece` returns no more bytes than `into` has left.
            unsafe { volatile_copy(from, into[sum..].as_mut_ptr(), length) };
            sum += length;
        }
        true
    }

    #[expect(unsafe_code, reason = "the owner accesses the region at the same time")]
    fn cas64(&mut self, at: u64, old: u64, new: u64) -> Result<u64, Miss> {
        let (region, offset) = self.place(at).ok_or(Miss::Elsewhere)?;
        let part = self.regions.begin_write(region, offset)?;
        let was = part.at(offset, size_of::<u64>()).map_err(|_| Miss::Elsewhere).map(|place| {
            // SAFETY: `AtomicU64::from_ptr` requires an aligned place that lives as long as the reference. Regions begin at a page, the
            // arguments were checked to have an address that is a multiple of 8, and `part` keeps the memory. Others access it by
            // atomics, or by copies of bytes, which the machine carries out beside an atomic access.
            let place = unsafe { AtomicU64::from_ptr(place.cast()) };
            place.compare_exchange(old, new, SeqCst, SeqCst).unwrap_or_else(|was| was)
        });
        self.regions.end_write(region, offset);
        was
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use frrwp::fabric::shm::{ShmDomain, ShmOptions};
    use rdmakv_proto::far::procedures::Walk;

    use super::super::arena::Arena;
    use super::*;

    /// One region.
    struct One(Part);

    impl Regions for One {
        fn begin_read(&self, region: u32, _: Option<u32>) -> Option<Part> {
            (region == 0).then(|| self.0.clone())
        }
        fn end_read(&self, _: u32) {}
        fn begin_write(&self, _: u32, _: u64) -> Result<Part, Miss> {
            Err(Miss::Elsewhere)
        }
        fn end_write(&self, _: u32, _: u64) {}
    }

    #[test]
    #[expect(unsafe_code, reason = "regions are reached by their addresses")]
    fn only_long_procedures_are_told_of() {
        const BYTES: u64 = 4096;
        let domain = ShmDomain::new(ShmOptions::default()).unwrap();
        let part = Arena::new(domain, BYTES).allocate(1).unwrap().remove(0);
        let node = 64_u64.to_le_bytes();
        // SAFETY: the region has so many bytes there, and no other user.
        unsafe { volatile_copy(node.as_ptr(), part.at(64, node.len()).unwrap(), node.len()) };
        let (worker, regions) = (Worker::default(), One(part));
        for (nodes, told) in [(1, 0), (STEPS, 0), (STEPS + 1, 1), (STEPS * 4, 1)] {
            // The node is its own next one.
            let walk = Procedure::Walk(Walk { at: 64, next: 0, key_at: 0, nodes, length: 8, key: Vec::new() });
            let mut arguments = Vec::new();
            walk.encode(&mut arguments);
            let (procedure, arguments) = (walk.number(), &arguments[..]);
            let run = Run { request: 1, procedure, hops: 0, bytes: 0, replied: 0, micros: 0, arguments };
            let times = Cell::new(0);
            let ended = carry_out(&worker, &regions, BYTES, &run, &|| times.set(times.get() + 1)).unwrap();
            assert_eq!((ended.end.status, ended.end.at), (RunStatus::Done, 64), "{nodes} nodes");
            assert_eq!(times.get(), told, "{nodes} nodes");
        }
        // One that waits for its first turn tells of it then, and not again.
        let turn = worker.turn(|| ());
        let (told, is_told) = std::sync::mpsc::channel();
        std::thread::scope(|threads| {
            let (worker, regions) = (&worker, &regions);
            let waits = threads.spawn(move || {
                let walk = Walk { at: 64, next: 0, key_at: 0, nodes: STEPS * 4, length: 8, key: Vec::new() };
                let mut arguments = Vec::new();
                Procedure::Walk(walk).encode(&mut arguments);
                let (procedure, arguments) = (1, &arguments[..]);
                let run = Run { request: 1, procedure, hops: 0, bytes: 0, replied: 0, micros: 0, arguments };
                carry_out(worker, regions, BYTES, &run, &|| told.send(()).unwrap()).unwrap()
            });
            is_told.recv().expect("it waits");
            drop(turn);
            assert_eq!(waits.join().unwrap().end.status, RunStatus::Done);
        });
        assert!(is_told.recv().is_err(), "once");
    }
}
