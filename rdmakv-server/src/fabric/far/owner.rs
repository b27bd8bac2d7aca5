//! A server's far memory: the regions, their memory and their ends, for all fabrics together.
//!
//! A region ends in three steps. [`Offers`] frees its place, the fabrics close all tags of the place, and the memory goes back to the
//! system. Then the place is free for others. A thread does that for memories whose time is over, and for tags that stalled peers
//! held.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use frrwp::fabric::shm::ShmDomain;
use rdmakv_proto::clock;
use rdmakv_proto::far::batch::Status;
use rdmakv_proto::far::messages::{Refusal, Run, Secret, Source, Token};
use rdmakv_proto::far::procedures::Procedure;

use super::super::bell::Bell;
use super::arena::{Arena, Part};
use super::batches::{NotDone, Operations};
use super::modules::Modules;
use super::moves::Moves;
use super::offers::{Caller, Freeze, List, Offers, Refused, Settings, Take};
use super::page_sums::PageSums;
use super::procedures::Miss;
use super::pull::{Pages, Pullers, Remote};
use super::runs::{self, Ended, Regions};
use super::workers::Workers;
use crate::log;
use crate::metrics::{FarCounts, FarGauges, FarReported, FarRuns, add, count};

/// How long a region that moved is known.
const FORWARD: Duration = Duration::from_secs(60);
/// How long FREEZE and END wait for writes of procedures and batches: each of them ends long before.
const WRITERS: Duration = Duration::from_secs(5);
/// The interval at which ends are looked for.
const ROUND: Duration = Duration::from_millis(200);

/// How much the server offers, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fabric) struct FarPlan {
    /// Regions.
    pub(in crate::fabric) regions: u32,
    /// Bytes of one.
    pub(in crate::fabric) region_bytes: u64,
    /// The longest time for which a memory is reserved.
    pub(in crate::fabric) longest: Duration,
    /// Batches that are carried out at a time.
    pub(in crate::fabric) workers: u32,
    /// Addresses of servers that regions are read from. An `iwarp:` address without a port is all of its host.
    pub(in crate::fabric) peers: Vec<String>,
    /// How long clients may move their regions elsewhere before the server stops.
    pub(in crate::fabric) notice: Option<Duration>,
    /// Threads that run modules of clients, if it runs any.
    pub(in crate::fabric) module_threads: Option<u32>,
}

impl FarPlan {
    /// Returns the bytes of all regions.
    pub(in crate::fabric) fn bytes(&self) -> u64 {
        self.region_bytes * u64::from(self.regions)
    }

    /// Returns whether regions may be read at this address.
    pub(super) fn has_peer(&self, address: &str) -> bool {
        let is_of_host = |host: &str| {
            let port = address.strip_prefix(host).and_then(|rest| rest.strip_prefix(':'));
            host.starts_with("iwarp:") && port.is_some_and(|port| port.parse::<u16>().is_ok())
        };
        self.peers.iter().any(|peer| peer == address || is_of_host(peer))
    }
}

/// A fabric, as far as it has tags of regions.
pub(in crate::fabric) trait Closes: Send + Sync {
    /// Closes all tags of a place. Returns whether none is left.
    fn close_place(&self, place: u32, part: &Part) -> bool;
    /// Closes all tags of a connection. Returns whether none is left.
    fn close_connection(&self, connection: u64) -> bool;
}

/// The regions of a server, for all fabrics.
pub(in crate::fabric) struct Far {
    /// The number that this run drew.
    server: u64,
    plan: FarPlan,
    arena: Arena,
    state: Mutex<State>,
    /// One thread at a time frees what ended.
    freeing: Mutex<()>,
    fabrics: Mutex<Vec<Weak<dyn Closes>>>,
    pullers: Pullers,
    connections: AtomicU64,
    workers: Workers,
    /// Those of clients, if the server runs any.
    modules: OnceLock<Modules>,
    counts: FarCounts,
    runs: FarRuns,
    /// When the server stops, in nanoseconds of the boot clock; 0 as long as it does not.
    stops: AtomicU64,
    bell: Bell,
}

#[derive(Debug)]
struct State {
    offers: Offers,
    moves: Moves,
    /// The memory of places that are in use, or being freed.
    parts: BTreeMap<u32, Part>,
    /// Freed places with tags that may be open.
    revoking: Vec<u32>,
    /// Connections that ended, with tags that may be open.
    leaving: Vec<u64>,
    /// Names of logins. A login's number is its place, counted from 1.
    logins: Vec<Box<[u8]>>,
}

/// Returns the time by which far memory is reserved.
pub(in crate::fabric) fn now() -> Duration {
    Duration::from_nanos(clock::boot())
}

impl std::fmt::Debug for Far {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Far").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Far {
    /// Returns far memory in files of this domain. All regions are free.
    pub(in crate::fabric) fn new(plan: FarPlan, domain: ShmDomain) -> Self {
        let settings = Settings {
            regions: plan.regions,
            longest: plan.longest,
            forward: FORWARD,
            // Files are not lent twice: once its tags are closed no former owner reaches a region.
            quarantine: Duration::ZERO,
        };
        let offers = Offers::new(settings);
        let (parts, logins) = (BTreeMap::new(), Vec::new());
        Self {
            server: rand::random::<u64>().max(1),
            arena: Arena::new(domain, plan.region_bytes),
            state: Mutex::new(State {
                offers,
                moves: Moves::default(),
                parts,
                revoking: Vec::new(),
                leaving: Vec::new(),
                logins,
            }),
            freeing: Mutex::default(),
            fabrics: Mutex::default(),
            pullers: Pullers::default(),
            connections: AtomicU64::new(1),
            workers: Workers::new(plan.workers),
            modules: OnceLock::new(),
            plan,
            counts: FarCounts::default(),
            runs: FarRuns::default(),
            stops: AtomicU64::new(0),
            bell: Bell::default(),
        }
    }

    /// Adds a fabric.
    pub(in crate::fabric) fn attach(&self, fabric: Weak<dyn Closes>) {
        self.fabrics.lock().unwrap_or_else(PoisonError::into_inner).push(fabric);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::fabric) fn server(&self) -> u64 {
        self.server
    }

    pub(in crate::fabric) fn plan(&self) -> &FarPlan {
        &self.plan
    }

    pub(in crate::fabric) fn counts(&self) -> &FarCounts {
        &self.counts
    }

    /// Returns a number for a new connection.
    pub(in crate::fabric) fn connection(&self) -> u64 {
        self.connections.fetch_add(1, Relaxed)
    }

    /// Returns the number of a login; 0 is that of clients which need none.
    pub(in crate::fabric) fn login(&self, name: Option<&[u8]>) -> u32 {
        let Some(name) = name else { return 0 };
        let logins = &mut self.state().logins;
        let at = logins.iter().position(|known| **known == *name).unwrap_or_else(|| {
            logins.push(name.into());
            logins.len() - 1
        });
        at as u32 + 1
    }

    /// Returns how many regions a login can take.
    pub(in crate::fabric) fn room(&self, login: u32) -> u32 {
        if self.stops_within().is_some() { 0 } else { self.state().offers.room(login) }
    }

    /// Returns how long clients may still move their regions elsewhere, once the server is to stop.
    pub(in crate::fabric) fn stops_within(&self) -> Option<Duration> {
        let stops = self.stops.load(Relaxed);
        (stops > 0).then(|| Duration::from_nanos(stops.saturating_sub(clock::boot())))
    }

    /// Takes regions, and makes memory for those that are new. A copy is to be read from the source.
    pub(in crate::fabric) fn take(
        &self,
        caller: &Caller,
        take: &Take<'_>,
        source: Option<Source<'_>>,
    ) -> Result<Secret, Refused> {
        if source.is_some_and(|source| !std::str::from_utf8(source.address).is_ok_and(|at| self.plan.has_peer(at))) {
            return Err(Refusal::Unable.into());
        }
        if self.stops_within().is_some() {
            return Err(Refused { why: Refusal::NoRoom, room: 0 });
        }
        let secret = self.take_regions(caller, take)?;
        if let Some(source) = source {
            let mut state = self.state();
            for region in take.first..take.first + take.regions {
                state.moves.come((take.memory, region), take.epoch, &source);
            }
        }
        Ok(secret)
    }

    fn take_regions(&self, caller: &Caller, take: &Take<'_>) -> Result<Secret, Refused> {
        let mut state = self.state();
        let state = &mut *state;
        let is_known = state.offers.has(take.memory);
        let secret = state.offers.take(caller, take, rand::random())?;
        let numbers = take.first..take.first + take.regions;
        let places = numbers.filter_map(|region| Some((region, state.offers.place(take.memory, region)?)));
        let new: Vec<(u32, u32)> = places.filter(|(_, place)| !state.parts.contains_key(place)).collect();
        if new.is_empty() {
            return Ok(secret);
        }
        match self.arena.allocate(new.len() as u32) {
            Ok(parts) => {
                state.parts.extend(new.iter().zip(parts).map(|(&(_, place), part)| (place, part)));
                Ok(secret)
            }
            Err(error) => {
                log::print(format_args!("far memory for {} regions: {error}", new.len()));
                for (region, _) in new {
                    let _ = state.offers.drop_region(caller, take.memory, region, take.epoch, 0);
                }
                if !is_known {
                    let _ = state.offers.end(caller, take.memory);
                }
                free_unused(state);
                Err(Refused { why: Refusal::NoRoom, room: 0 })
            }
        }
    }

    /// Returns the place and the memory of a region that the caller may access.
    pub(in crate::fabric) fn reach(
        &self,
        caller: &Caller,
        memory: u64,
        region: u32,
        epoch: u32,
    ) -> Result<(u32, Part), Refused> {
        let mut state = self.state();
        let place = state.offers.reach(caller, memory, region, epoch)?;
        let part = state.parts.get(&place).cloned().ok_or(Refusal::Unknown)?;
        Ok((place, part))
    }

    /// Lets another server read a region by the returned token, and has the pages marked that procedures write from now on.
    pub(in crate::fabric) fn begin_move(
        &self,
        caller: &Caller,
        memory: u64,
        region: u32,
        epoch: u32,
    ) -> Result<Token, Refused> {
        let mut state = self.state();
        state.offers.reach(caller, memory, region, epoch)?;
        Ok(state.moves.begin((memory, region), epoch, self.plan.region_bytes, rand::random()))
    }

    /// Returns the place and the memory of a region that a server with this token may read.
    pub(in crate::fabric) fn reach_by_token(
        &self,
        (memory, region, epoch): (u64, u32, u32),
        token: &Token,
    ) -> Result<(u32, Part), Refused> {
        let state = self.state();
        if !state.moves.opens((memory, region), epoch, token) {
            return Err(Refusal::Unknown.into());
        }
        let place = state.offers.place(memory, region).ok_or(Refusal::Unknown)?;
        let part = state.parts.get(&place).cloned().ok_or(Refusal::Unknown)?;
        Ok((place, part))
    }

    /// Ends writes to a region, because `to` takes over. Returns the pages that this server's CPU wrote. It waits for procedures and
    /// batches that write.
    pub(in crate::fabric) fn freeze(
        &self,
        caller: &Caller,
        (memory, region, epoch): (u64, u32, u32),
        to: u64,
    ) -> Result<Vec<u8>, Refused> {
        let begun = Instant::now();
        loop {
            let mut state = self.state();
            if state.offers.freeze(caller, memory, region, epoch, to)? == Freeze::Done {
                state.moves.freeze((memory, region), epoch, caller.now);
                return Ok(state.moves.marks((memory, region), epoch));
            }
            drop(state);
            if begun.elapsed() > WRITERS {
                return Err(Refusal::State.into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Reads pages of a copy from its source: all, or for the last time those that are marked. Returns the sum of the region after the last
    /// time, and otherwise 0.
    ///
    /// # Errors
    ///
    /// It is no such copy, not all of it was read before the last time, or the source does not answer.
    pub(in crate::fabric) fn pull(
        &self,
        caller: &Caller,
        (memory, region, epoch): (u64, u32, u32),
        is_last: bool,
        marks: &[u8],
    ) -> Result<u32, Refused> {
        let name = (memory, region);
        let (place, part, from, mut sums) = {
            let mut state = self.state();
            let place = state.offers.copying(caller, memory, region, epoch)?;
            let part = state.parts.get(&place).cloned().ok_or(Refusal::Unknown)?;
            let from = state.moves.source(name, epoch).ok_or(Refusal::State)?;
            let before = state.moves.take_sums(name, epoch);
            let sums = if is_last { before.ok_or(Refusal::State)? } else { PageSums::new(self.plan.region_bytes) };
            (place, part, from, sums)
        };
        let remote = Remote { memory, region, epoch: epoch.wrapping_sub(1), token: from.token };
        let pages = if is_last { Pages::Marked(marks.to_vec()) } else { Pages::All };
        let bytes = self.pullers.pull(&from.address, &remote, &part, &pages).map_err(|why| {
            log::print(format_args!("far memory: reading region {region} of {memory:#x} from another server: {why}"));
            Refused::from(Refusal::SourceGone)
        })?;
        add(&self.counts.moved_bytes, bytes);
        part.sum_pages(pages.ranges(self.plan.region_bytes), &mut sums);
        let sum = if is_last { sums.whole() } else { 0 };
        let mut state = self.state();
        if state.offers.place(memory, region) != Some(place) {
            return Err(Refusal::Unknown.into());
        }
        state.moves.keep_sums(name, epoch, sums);
        if is_last {
            state.offers.copied(caller, memory, region, epoch)?;
        }
        Ok(sum)
    }

    pub(in crate::fabric) fn commit(
        &self,
        caller: &Caller,
        (memory, region, epoch): (u64, u32, u32),
    ) -> Result<(), Refused> {
        self.state().offers.commit(caller, memory, region, epoch)
    }

    pub(in crate::fabric) fn thaw(
        &self,
        caller: &Caller,
        (memory, region, epoch): (u64, u32, u32),
    ) -> Result<(), Refused> {
        let mut state = self.state();
        state.offers.thaw(caller, memory, region, epoch)?;
        self.count_pause(&mut state, (memory, region), caller.now);
        Ok(())
    }

    /// Counts the time for which writes to a region were paused, if they were.
    fn count_pause(&self, state: &mut State, name: (u64, u32), now: Duration) {
        if let Some(paused) = state.moves.thaw(name, now) {
            count(&self.counts.pauses);
            add(&self.counts.pause_nanos, paused.as_nanos() as u64);
        }
    }

    /// Notes that the client's map has regions here.
    pub(in crate::fabric) fn map(
        &self,
        caller: &Caller,
        memory: u64,
        regions: impl Iterator<Item = (Range<u32>, u32)>,
    ) -> Result<(), Refused> {
        let mut state = self.state();
        regions.into_iter().try_for_each(|(regions, epoch)| state.offers.map(caller, memory, regions, epoch))
    }

    /// Carries out a batch for a lane in the turn of its worker, and returns the batch of replies. `is_long` is called if it has to wait for
    /// that.
    ///
    /// # Errors
    ///
    /// [`NotDone`].
    pub(in crate::fabric) fn batch(
        &self,
        caller: &Caller,
        (memory, lane): (u64, u32),
        batch: &[u8],
        is_long: &dyn Fn(),
    ) -> Result<Vec<u8>, NotDone> {
        let operations = Operations::decode(batch)?;
        // Whether it may.
        self.state().offers.places_of(caller, memory, std::iter::empty())?;
        let (worker, mut replies) = (self.workers.of_lane(lane)?, operations.room());
        let turn = worker.turn(is_long);
        let begun = Instant::now();
        // In the turn: while it waits, no FREEZE has to wait for it, and regions may be frozen.
        let regions = self.begin_batch(caller, memory, &operations)?;
        operations.carry_out(&regions.parts, &mut replies)?;
        drop(regions);
        let busy = begun.elapsed();
        drop(turn);
        let (reads, writes) = operations.counts();
        count(&self.counts.batches);
        add(&self.counts.reads, reads);
        add(&self.counts.writes, writes);
        add(&self.counts.busy_nanos, busy.as_nanos() as u64);
        Ok(replies)
    }

    /// Runs a procedure for a lane. `is_long` is called once if it takes more than a turn, has to wait for one, or is a module.
    ///
    /// # Errors
    ///
    /// [`NotDone`].
    pub(in crate::fabric) fn run(
        self: &Arc<Self>,
        caller: &Caller,
        (memory, lane): (u64, u32),
        run: &Run<'_>,
        is_long: &dyn Fn(),
    ) -> Result<Ended, NotDone> {
        // Whether it may.
        self.state().offers.places_of(caller, memory, std::iter::empty())?;
        let (ended, busy) = if run.procedure == Procedure::MODULE {
            let regions = Lent { far: self.clone(), caller: *caller, memory };
            let modules = self.modules()?;
            is_long();
            let ended = runs::carry_out_module(modules, caller.login, regions, self.plan.region_bytes, run)?;
            (ended, &self.counts.module_nanos)
        } else {
            let worker = self.workers.of_lane(lane)?;
            let regions: &dyn Regions = &Called { far: self, caller, memory };
            (runs::carry_out(worker, regions, self.plan.region_bytes, run, is_long)?, &self.counts.busy_nanos)
        };
        let (procedure, status, nanos) = ended.counted();
        self.runs.count(procedure.number(), status as u8);
        add(busy, nanos);
        Ok(ended)
    }

    /// Returns the modules of clients.
    ///
    /// # Errors
    ///
    /// The server runs none.
    fn modules(&self) -> Result<&Modules, Refusal> {
        self.modules.get().ok_or(Refusal::NoModules)
    }

    /// Takes a part of a login's module: its bytes, the first of the part, its name, the part. Returns how many bytes have come.
    pub(in crate::fabric) fn store_module(&self, login: u32, sent: (u32, u32, &[u8], &[u8])) -> Result<u32, Refused> {
        Ok(self.modules()?.take(login, sent)?)
    }

    /// Returns the names of a login's modules, and the bytes of each.
    pub(in crate::fabric) fn list_modules(&self, login: u32) -> Result<Vec<(Vec<u8>, u32)>, Refused> {
        Ok(self.modules()?.list(login))
    }

    /// Removes a login's module.
    pub(in crate::fabric) fn forget_module(&self, login: u32, name: &[u8]) -> Result<(), Refused> {
        Ok(self.modules()?.forget(login, name)?)
    }

    /// Returns the regions that the caller accesses in a batch. Those that it writes are not frozen, and their pages are marked.
    fn begin_batch(&self, caller: &Caller, memory: u64, operations: &Operations<'_>) -> Result<Begun<'_>, Refused> {
        let accesses = operations.accesses();
        let mut state = self.state();
        let places = state.offers.begin_batch(caller, memory, &accesses)?;
        if !state.moves.is_empty() {
            operations.writes().for_each(|(region, offset, length)| state.moves.mark((memory, region), offset, length));
        }
        let begun = accesses.iter().zip(&places).filter(|((_, writes), place)| *writes && place.is_ok());
        let written = begun.map(|(&(region, _), _)| region).collect();
        let part = |place: Result<u32, Refusal>| match place {
            Ok(place) => state.parts.get(&place).cloned().ok_or(Status::Elsewhere),
            Err(Refusal::State) => Err(Status::Frozen),
            Err(_) => Err(Status::Elsewhere),
        };
        let parts = places.into_iter().map(part).collect();
        Ok(Begun { far: self, memory, parts, written })
    }

    /// Returns whether a region still has this place.
    pub(in crate::fabric) fn has_place(&self, memory: u64, region: u32, place: u32) -> bool {
        self.state().offers.place(memory, region) == Some(place)
    }

    pub(in crate::fabric) fn list(
        &self,
        caller: &Caller,
        (memory, name): (u64, &[u8]),
        (owner, secret): (u64, &Secret),
        first: u32,
    ) -> Result<List, Refused> {
        self.state().offers.list(caller, memory, name, owner, secret, first)
    }

    pub(in crate::fabric) fn renew(
        &self,
        caller: &Caller,
        memory: u64,
        duration: Duration,
    ) -> Result<Duration, Refused> {
        self.state().offers.renew(caller, memory, duration)
    }

    /// Drops a region. Its place is free when this returns, unless a stalled peer holds it. Returns the sum of a region that moved away, as it
    /// was frozen, and otherwise 0.
    pub(in crate::fabric) fn drop_region(
        &self,
        caller: &Caller,
        memory: u64,
        (region, epoch): (u32, u32),
        to: u64,
    ) -> Result<u32, Refused> {
        let frozen = {
            let state = self.state();
            let place = state.offers.frozen(memory, region, epoch).filter(|_| to > 0);
            place.and_then(|place| state.parts.get(&place).cloned())
        };
        let sum = frozen.map_or(0, |part| {
            let mut sums = PageSums::new(self.plan.region_bytes);
            part.sum_pages(std::iter::once(0..self.plan.region_bytes), &mut sums);
            sums.whole()
        });
        let mut state = self.state();
        if state.offers.drop_region(caller, memory, region, epoch, to)? {
            count(&self.counts.lost);
        }
        self.count_pause(&mut state, (memory, region), caller.now);
        drop(state);
        self.free();
        Ok(sum)
    }

    /// Ends a memory. Its places are free when this returns, unless a stalled peer holds them. It waits for procedures and batches that
    /// write.
    pub(in crate::fabric) fn end(&self, caller: &Caller, memory: u64) -> Result<(), Refused> {
        let begun = Instant::now();
        loop {
            let ended = self.state().offers.end(caller, memory);
            match ended {
                Err(Refused { why: Refusal::State, .. }) if begun.elapsed() <= WRITERS => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                ended => break ended?,
            }
        }
        self.free();
        Ok(())
    }

    /// Takes note that a connection has ended and was flushed.
    pub(in crate::fabric) fn leave(&self, connection: u64) {
        self.state().leaving.push(connection);
        self.free();
    }

    /// Frees what ended: closes tags, gives memory back. Returns how many memories ran out of time.
    fn free(&self) {
        let _one = self.freeing.lock().unwrap_or_else(PoisonError::into_inner);
        let fabrics: Vec<Arc<dyn Closes>> = {
            let fabrics = self.fabrics.lock().unwrap_or_else(PoisonError::into_inner);
            fabrics.iter().filter_map(Weak::upgrade).collect()
        };
        let (places, connections) = {
            let mut state = self.state();
            let over = state.offers.expire(now());
            let State { offers, moves, .. } = &mut *state;
            moves.retain(|(memory, region), epoch| offers.has_epoch(memory, region, epoch));
            add(&self.counts.expired, over.len() as u64);
            while let Some(place) = state.offers.places_mut().next_to_revoke() {
                state.revoking.push(place);
            }
            let places: Vec<_> = std::mem::take(&mut state.revoking);
            let places: Vec<_> = places.into_iter().map(|place| (place, state.parts.get(&place).cloned())).collect();
            (places, std::mem::take(&mut state.leaving))
        };
        // Each fabric is asked, also after one that holds something.
        let are_closed =
            |close: &dyn Fn(&dyn Closes) -> bool| fabrics.iter().filter(|fabric| !close(&***fabric)).count() == 0;
        let mut state = self.state();
        for connection in connections {
            drop(state);
            let is_closed = are_closed(&|fabric| fabric.close_connection(connection));
            state = self.state();
            if is_closed { state.offers.detach(connection) } else { state.leaving.push(connection) }
        }
        for (place, part) in places {
            drop(state);
            let is_closed = part.as_ref().is_none_or(|part| are_closed(&|fabric| fabric.close_place(place, part)));
            state = self.state();
            if !is_closed {
                state.revoking.push(place);
                continue;
            }
            drop(part);
            if let Some(Err(error)) = state.parts.remove(&place).map(Part::free) {
                log::print(format_args!("far memory: giving a region back to the system: {error}"));
            }
            free_place(&mut state, place);
        }
    }

    /// Counts a request.
    pub(in crate::fabric) fn count_request(&self, verb: u8) {
        if let Some(counter) = self.counts.requests(verb) {
            count(counter);
        }
    }

    /// Starts the thread that ends memories whose time is over. It ends by [`Far::stop`].
    ///
    /// # Errors
    ///
    /// No thread.
    pub(in crate::fabric) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        if let Some(threads) = self.plan.module_threads {
            let _ = self.modules.set(Modules::start(threads)?);
        }
        let far = self.clone();
        Builder::new().name("far".to_owned()).spawn(move || {
            while !far.bell.wait(ROUND, false) {
                far.free();
            }
        })
    }

    /// Ends the thread.
    pub(in crate::fabric) fn stop(&self) {
        self.pullers.end();
        if let Some(modules) = self.modules.get() {
            modules.end();
        }
        self.bell.end();
    }
}

/// The regions of a batch that is carried out. Those that it writes are not frozen until this is dropped.
struct Begun<'f> {
    far: &'f Far,
    memory: u64,
    /// The region of each operation, or why it has none.
    parts: Vec<Result<Part, Status>>,
    /// The region of each write that has one.
    written: Vec<u32>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.written.is_empty() {
            let mut state = self.far.state();
            self.written.iter().for_each(|&region| state.offers.end_write(self.memory, region));
        }
    }
}

/// A memory, as the procedures of a client see it.
struct Called<'f> {
    far: &'f Far,
    caller: &'f Caller,
    memory: u64,
}

impl Called<'_> {
    /// Returns the part of a region here.
    fn part(&self, state: &mut State, region: u32, writes: bool) -> Result<Part, Refused> {
        let places = state.offers.places_of(self.caller, self.memory, std::iter::once((region, writes)))?;
        let place = places.into_iter().next().unwrap_or(Err(Refusal::Unknown))?;
        Ok(state.parts.get(&place).cloned().ok_or(Refusal::Unknown)?)
    }
}

impl Regions for Called<'_> {
    fn begin_read(&self, region: u32, ended: Option<u32>) -> Option<Part> {
        let mut state = self.far.state();
        let state = &mut *state;
        if let Some(ended) = ended {
            state.offers.end_read(self.memory, ended);
        }
        let place = state.offers.begin_read(self.caller, self.memory, region).ok()?;
        let part = state.parts.get(&place).cloned();
        if part.is_none() {
            state.offers.end_read(self.memory, region);
        }
        part
    }

    fn end_read(&self, region: u32) {
        self.far.state().offers.end_read(self.memory, region);
    }

    fn begin_write(&self, region: u32, offset: u64) -> Result<Part, Miss> {
        let mut state = self.far.state();
        let part = self.part(&mut state, region, true);
        let begun = part.and_then(|part| state.offers.begin_write(self.memory, region).map(|_| part));
        if begun.is_ok() {
            // A move copies the page again.
            state.moves.mark((self.memory, region), offset, size_of::<u64>() as u64);
        }
        begun.map_err(|refused| if refused.why == Refusal::State { Miss::Frozen } else { Miss::Elsewhere })
    }

    fn end_write(&self, region: u32, offset: u64) {
        let mut state = self.far.state();
        // A move may have begun, and have read the page, since the write began.
        state.moves.mark((self.memory, region), offset, size_of::<u64>() as u64);
        state.offers.end_write(self.memory, region);
    }
}

/// A memory, as the modules of a client see it on other threads.
struct Lent {
    far: Arc<Far>,
    caller: Caller,
    memory: u64,
}

impl Lent {
    fn called(&self) -> Called<'_> {
        Called { far: &self.far, caller: &self.caller, memory: self.memory }
    }
}

impl Regions for Lent {
    fn begin_read(&self, region: u32, ended: Option<u32>) -> Option<Part> {
        self.called().begin_read(region, ended)
    }
    fn end_read(&self, region: u32) {
        self.called().end_read(region);
    }
    fn begin_write(&self, region: u32, offset: u64) -> Result<Part, Miss> {
        self.called().begin_write(region, offset)
    }
    fn end_write(&self, region: u32, offset: u64) {
        self.called().end_write(region, offset);
    }
}

/// Makes a place free whose tags are closed and whose memory went back.
fn free_place(state: &mut State, place: u32) {
    let places = state.offers.places_mut();
    places.revoked(now(), place);
    while let Some(place) = places.next_to_zero(Duration::MAX) {
        places.zeroed(place);
    }
}

/// Frees places that were given back before they had memory.
fn free_unused(state: &mut State) {
    while let Some(place) = state.offers.places_mut().next_to_revoke() {
        if state.parts.contains_key(&place) { state.revoking.push(place) } else { free_place(state, place) }
    }
}

impl FarReported for Far {
    fn gauges(&self) -> FarGauges {
        let state = self.state();
        let (total, free) = (u64::from(self.plan.regions), u64::from(state.offers.places().free_count()));
        let held = u64::from(state.offers.held());
        FarGauges {
            region_bytes: self.plan.region_bytes,
            memories: state.offers.memories() as u64,
            used: held,
            free,
            ending: total - free - held.min(total - free),
            modules: self.modules.get().map_or(0, |modules| modules.count() as u64),
        }
    }

    fn counts(&self) -> &FarCounts {
        &self.counts
    }

    fn runs(&self) -> &FarRuns {
        &self.runs
    }

    fn delays_stop(&self) -> bool {
        let Some(notice) = self.plan.notice else { return false };
        let held = self.state().offers.held();
        if self.stops.load(Relaxed) == 0 && held > 0 {
            let stops = clock::boot().saturating_add(notice.as_nanos() as u64);
            self.stops.store(stops.max(1), Relaxed);
            log::print(format_args!("far memory: {held} regions have to move to other servers within {notice:?}"));
        }
        let is_late = self.stops_within().is_some_and(|left| left.is_zero());
        if is_late && held > 0 {
            add(&self.counts.lost, held.into());
            log::print(format_args!("far memory: {held} regions did not move in time, and are lost"));
        }
        held > 0 && !is_late
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use frrwp::fabric::shm::ShmOptions;
    use rdmakv_proto::far::batch::{Batch, Operation, Writer};

    use super::*;

    const REGION: u64 = 2 << 20;
    const CALLER: Caller = Caller { now: Duration::ZERO, login: 1, connection: 1 };

    /// Returns far memory with a worker, and memory 9 with two regions.
    fn far() -> Far {
        let plan = FarPlan {
            regions: 8,
            region_bytes: REGION,
            longest: Duration::from_secs(3600),
            workers: 1,
            peers: Vec::new(),
            notice: None,
            module_threads: None,
        };
        let far = Far::new(plan, ShmDomain::new(ShmOptions::default()).unwrap());
        let (duration, secret) = (Duration::MAX, [3; 16]);
        let (name, source) = (b"", None);
        let take =
            Take { memory: 9, first: 0, regions: 2, total: 2, epoch: 1, duration, owner: 7, secret, name, source };
        far.take(&CALLER, &take, None).unwrap();
        far
    }

    fn batch(operations: &[Operation<'_>]) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let mut writer = Writer::new(&mut bytes).unwrap();
        assert!(operations.iter().all(|operation| writer.operation(operation)));
        writer.finish(1).to_vec()
    }

    fn statuses(replies: &[u8]) -> Vec<Status> {
        Batch::decode(replies).unwrap().replies().map(|reply| reply.unwrap().status).collect()
    }

    #[test]
    fn writes_under_way_when_a_move_begins_are_marked() {
        let far = far();
        let called = Called { far: &far, caller: &CALLER, memory: 9 };
        assert!(called.begin_write(1, 4096).is_ok());
        far.begin_move(&CALLER, 9, 1, 1).unwrap();
        // Here the page may be read.
        called.end_write(1, 4096);
        let marks = far.freeze(&CALLER, (9, 1, 1), 2).unwrap();
        assert_eq!((marks[0], marks[1..].iter().all(|&marks| marks == 0)), (0b10, true));
    }

    #[test]
    fn batches_that_wait_write_to_no_frozen_region() {
        let far = far();
        let write = |region| Operation::Write { region, offset: 0, data: b"bytes" };
        let bytes = batch(&[write(0), write(1), Operation::Read { region: 0, offset: 0, length: 5 }]);
        far.begin_move(&CALLER, 9, 0, 1).unwrap();
        let turn = far.workers.of_lane(0).unwrap().turn(|| ());
        let (waits, is_waiting) = channel();
        std::thread::scope(|threads| {
            let (far, bytes) = (&far, &bytes);
            let batch = threads.spawn(move || far.batch(&CALLER, (9, 0), bytes, &|| waits.send(()).unwrap()).unwrap());
            is_waiting.recv().expect("another thread has the turn");
            assert_eq!(far.freeze(&CALLER, (9, 0, 1), 2), Ok(vec![0; 64]), "it has not begun, and wrote no page");
            drop(turn);
            assert_eq!(statuses(&batch.join().unwrap()), [Status::Frozen, Status::Done, Status::Done]);
        });
        assert_eq!(far.end(&CALLER, 9), Ok(()), "nothing is counted as writing");
    }
}
