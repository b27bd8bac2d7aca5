//! A far memory: a byte array in the memory of servers, which this process alone reads and writes.

use super::configuration::Configuration;
use super::connection::{Connection, Trouble};
use super::lane::Lane;
use super::migration::{Recovery, Step};
use super::runner::Runner;
use super::shared::{Name, Place, Secret, Shared, failed, not_open, over};
use super::steps::{Events, Left, StepParts, request_step};
use super::table::{MemoryError, ServerId, Table, Target};
use super::{Source, SourceServer};
use crate::Client;
use crate::address::Fabric;
use crate::domains::Fabrics;
use crate::slots::Slots;
use rdmakv_proto::clock;
use rdmakv_proto::far::messages::{Answer, Entry, Refusal, Request, Verb};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use std::time::Duration;

/// The epoch of regions that have never moved.
const EPOCH: u32 = 1;
/// Accesses of a lane that are under way at most.
pub const DEPTH_MAX: u32 = 48;
/// Accesses of a batch at most.
pub const BATCH_MAX: u32 = 512;
/// Bytes of a name at most.
pub const NAME_MAX: usize = 255;

/// How a memory is made and accessed.
///
/// Fields may be added in a minor release: name those that you set, and write `..Default::default()` for the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// A name by which it is opened. None, unless set. A login has each name once.
    pub name: Option<String>,
    /// How long servers keep it after this call, and after each [`Memory::renew`]: an hour. They may give less.
    pub duration: Duration,
    /// Accesses of a lane that are under way at a server at most: 8, and up to [`DEPTH_MAX`]. Of batches: so many batches.
    pub depth: u32,
    /// Workers of each server that carry out batches of the lanes: 0, which is one-sided access without batches.
    pub workers: u32,
    /// Accesses of a batch at most: 16, and up to [`BATCH_MAX`].
    pub batch: u32,
    /// Bytes of all buffers of its lanes: 64 MiB of addresses, of which the system gives what is used.
    pub buffers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { name: None, duration: Duration::from_secs(3600), depth: 8, workers: 0, batch: 16, buffers: 64 << 20 }
    }
}

/// A server that was asked.
pub(super) struct Asked {
    pub(super) place: Place,
    pub(super) connection: Connection,
    pub(super) region_bytes: u64,
    pub(super) room: u32,
}

impl Asked {
    /// Returns for how many bytes it has room, whatever it says.
    fn offered(&self) -> u64 {
        u64::from(self.room).saturating_mul(self.region_bytes)
    }
}

/// A far memory. From [`Memory::create`] or [`Memory::open`].
///
/// It stays when this is dropped: until its time is over, or [`Memory::delete`].
pub struct Memory {
    /// One connection a server, which keeps others from opening it.
    pub(super) connections: Vec<(Place, Connection)>,
    pub(super) shared: Arc<Shared>,
    /// The name by which it is opened, or nothing.
    pub(super) label: Vec<u8>,
    pub(super) events: Events,
    /// Parts that moves left at servers.
    pub(super) left: Vec<Left>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("capacity", &self.capacity()).field("servers", &self.shared.servers()).finish()
    }
}

fn random() -> Result<u64, MemoryError> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match got {
        Ok(8) => Ok(u64::from_le_bytes(bytes).max(1)),
        _ => Err(MemoryError::System { what: "the system gives no random numbers".to_owned() }),
    }
}

/// Returns whether a memory may have this name: printed, it has to change no terminal.
fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// The common part of opening and creating: the memory of this side, and the servers that answer.
struct Opening {
    fabrics: Fabrics,
    slots: Slots,
    source: Source,
    asked: Vec<Asked>,
    /// Why others do not.
    down: Option<MemoryError>,
}

impl Opening {
    fn begin(client: &Client, options: &Options) -> Result<Self, MemoryError> {
        if options.name.as_ref().is_some_and(|name| !is_name(name)) {
            return Err(MemoryError::Name);
        }
        let source = client.far_source();
        let mut fabrics = Fabrics::new(&crate::Options::default());
        let no_memory = |error: std::io::Error| MemoryError::System { what: error.to_string() };
        let slots = Slots::new(options.buffers).map_err(no_memory)?;
        let (mut asked, mut down) = (Vec::new(), None);
        for server in &source.servers {
            match ask(server, &mut fabrics, &source) {
                Ok(found) => asked.push(found),
                // One that lives tells more than one that is gone.
                Err(error) => down = down.filter(is_refusal).or(Some(error)),
            }
        }
        Ok(Self { fabrics, slots, source, asked, down })
    }

    /// Returns the error where no server does what is wanted.
    fn none(self, otherwise: MemoryError) -> MemoryError {
        if self.asked.is_empty() { self.down.unwrap_or(MemoryError::NoServer) } else { otherwise }
    }

    fn finish(
        self,
        (memory, owner, secret): (u64, u64, Secret),
        (table, ends): (Table, u64),
        options: &Options,
    ) -> Memory {
        let is_used =
            |server| (0..table.len()).any(|region| table.target(region).is_some_and(|at| at.server == server));
        let used = self.asked.into_iter().filter(|asked| is_used(asked.place.server()));
        let connections: Vec<_> = used.map(|asked| (asked.place, asked.connection)).collect();
        let servers = connections.iter().map(|(place, _)| place.clone()).collect();
        let name = Name { memory, owner, secret };
        let Options { workers, batch, depth, .. } = *options;
        let of = Configuration { workers, lanes: 1, batch, depth };
        let shared = Shared::new((self.fabrics, self.slots, self.source), name, (servers, table, ends), of);
        let label = options.name.clone().unwrap_or_default().into_bytes();
        Memory { connections, shared: Arc::new(shared), label, events: Events::default(), left: Vec::new() }
    }
}

/// Asks a server what it offers, over the first of its fabrics that works.
pub(super) fn ask(server: &SourceServer, fabrics: &mut Fabrics, source: &Source) -> Result<Asked, MemoryError> {
    let has_far = |fabric: &&Fabric| matches!(fabric, Fabric::Shm(_) | Fabric::Iwarp(_));
    let mut last = MemoryError::NoFabric { server: server.name.clone() };
    for fabric in server.fabrics.iter().filter(has_far) {
        let mut connection = match Connection::open(|| fabrics.attempt(fabric, source.connect), source) {
            Ok(connection) => connection,
            Err(why) => {
                last = not_open(why, &server.name);
                continue;
            }
        };
        let request = Request { memory: 0, region: 0, epoch: 0, verb: Verb::Offer };
        let offer = connection.ask(&request, |reply| match reply.answer {
            Answer::Offer { server, region_bytes, regions, workers, .. } if region_bytes > 0 => {
                Some((server, region_bytes, regions, workers))
            }
            _ => None,
        });
        let (number, region_bytes, room, workers) =
            offer.map_err(|trouble| failed(trouble, &server.name, MemoryError::Ended))?;
        let place = Place::new(number, &server.name, fabric, workers);
        return Ok(Asked { place, connection, region_bytes, room });
    }
    Err(last)
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Memory {
    /// Makes a memory of so many bytes, all zeros, at the servers of a client: on as few of them as have room.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn create(client: &Client, capacity: u64, options: &Options) -> Result<Self, MemoryError> {
        let mut opening = Opening::begin(client, options)?;
        // The largest first: so they are few.
        opening.asked.sort_by_key(|asked| std::cmp::Reverse(asked.offered()));
        let Some(first) = opening.asked.first() else { return Err(opening.none(MemoryError::NoServer)) };
        let (region_bytes, server) = (first.region_bytes, first.place.server());
        let mut table = Table::new(capacity, region_bytes, Target { server, epoch: EPOCH })?;
        let fitting = opening.asked.iter().filter(|asked| asked.region_bytes == region_bytes);
        let offered = fitting.map(Asked::offered).fold(0, u64::saturating_add);
        if offered < u64::from(table.len()) * region_bytes {
            return Err(MemoryError::NoRoom { offered });
        }
        let (memory, owner, mut secret) = (random()?, random()?, Secret::default());
        let name = options.name.as_deref().unwrap_or_default().as_bytes();
        let (mut next, mut ends, mut failure) = (0, u64::MAX, None);
        for asked in opening.asked.iter_mut().filter(|asked| asked.region_bytes == region_bytes) {
            let regions = asked.room.min(table.len() - next);
            if regions == 0 {
                continue;
            }
            let sent = clock::boot();
            let taken = (memory, next..next + regions, table.len());
            match take(asked, taken, (owner, secret, name), options.duration) {
                Ok((given, left)) => {
                    secret = given;
                    ends = ends.min(over(sent, left));
                    for region in next..next + regions {
                        table.place(region, Target { server: asked.place.server(), epoch: EPOCH });
                    }
                    next += regions;
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = failure {
            for asked in &mut opening.asked {
                // Where it took nothing, it knows of nothing to be ended.
                let _ = end(&mut asked.connection, memory);
            }
            return Err(error);
        }
        Ok(opening.finish((memory, owner, secret), (table, ends), options))
    }

    /// Opens a memory that this process, or another one, made at servers of the client. Its capacity is that of whole regions. The regions
    /// of servers that are gone are [lost](Memory::lost).
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open(client: &Client, name: &str, secret: Secret, options: &Options) -> Result<Self, MemoryError> {
        let options = &Options { name: Some(name.to_owned()), ..options.clone() };
        let mut opening = Opening::begin(client, options)?;
        if let Some(refusal) = opening.down.take_if(|down| is_refusal(down)) {
            // What it has is not lost.
            return Err(refusal);
        }
        let owner = random()?;
        let (mut found, mut memory, mut ends, mut failure) = (Vec::new(), 0, u64::MAX, None);
        // How many regions it has, and the bytes of one.
        let (mut count, mut shape) = (0_u64, None);
        for asked in &mut opening.asked {
            let sent = clock::boot();
            match list(asked, name.as_bytes(), (owner, secret)) {
                Ok(Listed { memory: number, left_millis, total, entries }) => {
                    memory = number;
                    ends = ends.min(over(sent, left_millis));
                    if let Some(last) = entries.iter().map(|entry| entry.region).max() {
                        count = count.max(u64::from(last) + 1).max(total.into());
                        shape.get_or_insert(asked.region_bytes);
                    }
                    found.extend(entries.into_iter().map(|entry| (asked.place.server(), entry)));
                }
                Err(MemoryError::Unknown) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        let Some(region_bytes) = shape else { return Err(opening.none(MemoryError::Unknown)) };
        let capacity = count.saturating_mul(region_bytes);
        let mut table = Table::new(capacity, region_bytes, Target { server: 0, epoch: EPOCH })?;
        let mut entries: BTreeMap<u32, Vec<(ServerId, Entry)>> = (0..table.len()).map(|at| (at, Vec::new())).collect();
        for (server, entry) in found {
            entries.entry(entry.region).or_default().push((server, entry));
        }
        for (region, entries) in entries {
            recover(&mut table, &mut opening.asked, memory, region, &entries);
        }
        Ok(opening.finish((memory, owner, secret), (table, ends), options))
    }

    /// Returns a lane: connections of its own, for one thread at a time.
    ///
    /// # Errors
    /// [`MemoryError`]; a server that does not answer is lost from then on, and no error, unless another lane is connected to
    /// it. [`Memory::lost`] looks whether it is gone. One that refuses the connection is not lost.
    pub fn lane(&self) -> Result<Lane, MemoryError> {
        self.lane_of(self.shared.configuration())
    }

    /// Returns a lane as [`Memory::lane`] does, of this configuration. Its number of lanes does not count.
    ///
    /// # Errors
    /// As [`Memory::lane`]; and a server has fewer workers.
    pub fn lane_of(&self, of: &Configuration) -> Result<Lane, MemoryError> {
        for place in &self.shared.servers() {
            if place.workers() < of.workers {
                let (server, offered) = (place.name().to_owned(), place.workers());
                return Err(MemoryError::Workers { server, offered });
            }
        }
        let (depth, batch) = (of.depth.clamp(1, DEPTH_MAX), of.batch.clamp(1, BATCH_MAX));
        Lane::new(&self.shared, &Configuration { depth, batch, ..*of })
    }

    /// Returns how many workers all of its servers have.
    pub fn workers(&self) -> u32 {
        self.shared.servers().iter().map(Place::workers).min().unwrap_or(0)
    }

    /// Returns the name of the fabric by which its first server is reached: `shm` or `iwarp`.
    pub fn fabric(&self) -> &'static str {
        self.shared.servers().first().map_or("", |place| place.fabric().name())
    }

    /// Returns the bytes that it has.
    pub fn capacity(&self) -> u64 {
        self.shared.table().capacity()
    }

    /// Returns a runner of procedures, for one thread. It connects to a server when it first runs something there.
    pub fn runner(&self) -> Runner {
        Runner::new(&self.shared)
    }

    /// Returns the secret by which it is opened.
    pub fn secret(&self) -> Secret {
        self.shared.name().secret
    }

    /// Returns what deletes it from another thread.
    #[cfg(feature = "cli")]
    pub(crate) fn ender(&self) -> Ender {
        Ender(self.shared.clone())
    }

    /// Returns how much time is left.
    pub fn left(&self) -> Duration {
        self.shared.left()
    }

    /// Reserves it for longer, from now on. Returns how much time is left then: servers may give less.
    ///
    /// # Errors
    /// [`MemoryError`]. Regions of a server that does not answer are [lost](Memory::lost).
    pub fn renew(&mut self, duration: Duration) -> Result<Duration, MemoryError> {
        let mut ends = u64::MAX;
        let shared = &self.shared;
        self.connections.retain(|(place, connection)| {
            let is_up = connection.broken().is_none();
            if !is_up {
                shared.lose(place.server());
            }
            is_up
        });
        for (place, connection) in &mut self.connections {
            let (sent, verb) = (clock::boot(), Verb::Renew { millis: millis(duration) });
            let request = Request { memory: shared.name().memory, region: 0, epoch: 0, verb };
            let left = connection.ask(&request, |reply| match reply.answer {
                Answer::Renew { left_millis } => Some(left_millis),
                _ => None,
            });
            match left {
                Ok(left) => ends = ends.min(over(sent, left)),
                Err(Trouble::Broken(_)) => shared.lose(place.server()),
                // All regions have moved away, and the server may have forgotten the memory.
                Err(Trouble::Refused(..)) if !shared.has_regions(place.server()) => {}
                Err(trouble) => return Err(failed(trouble, place.name(), MemoryError::Ended)),
            }
        }
        if ends == u64::MAX {
            return Err(MemoryError::Ended);
        }
        shared.ends_at(ends);
        // After all are reserved: a server that is stopped takes its time to fail.
        self.drop_left();
        Ok(self.left())
    }

    /// Returns the servers that are lost: to this connection, or to a lane's.
    pub(super) fn lost_servers(&mut self) -> Vec<ServerId> {
        for (place, connection) in &mut self.connections {
            connection.progress();
            if connection.broken().is_some() && !self.shared.is_gone(place.server()) {
                self.shared.lose(place.server());
            }
        }
        self.shared.now().1
    }

    /// Returns the regions that are lost, and the bytes of a region. It looks whether servers are gone, and does not wait.
    pub fn lost(&mut self) -> (Vec<Range<u32>>, u64) {
        self.lost_servers();
        let table = self.shared.table();
        let mut lost: Vec<Range<u32>> = Vec::new();
        for region in (0..table.len()).filter(|&region| table.target(region).is_none()) {
            match lost.last_mut() {
                Some(last) if last.end == region => last.end += 1,
                _ => lost.push(region..region + 1),
            }
        }
        (lost, table.region_bytes())
    }

    /// Deletes it. Accesses of its lanes end as [ended](super::AccessError::Ended). A server that is gone is left out. One that only lanes
    /// lost gives its regions back, too.
    ///
    /// # Errors
    /// [`MemoryError`]: a server did not answer; it keeps its regions until their time is over.
    pub fn delete(mut self) -> Result<(), MemoryError> {
        let mut outcome = Ok(());
        self.shared.ends_at(0);
        let lost = self.lost_servers();
        for (place, connection) in self.connections.iter_mut().filter(|(_, connection)| connection.broken().is_none()) {
            if let Err(trouble) = end(connection, self.shared.name().memory) {
                if lost.contains(&place.server()) {
                    continue;
                }
                if matches!(trouble, Trouble::Refused(..)) && !self.shared.has_regions(place.server()) {
                    continue;
                }
                outcome = Err(failed(trouble, place.name(), MemoryError::Ended));
            }
        }
        outcome
    }
}

/// Returns whether a server answers, and only takes no connection.
fn is_refusal(error: &MemoryError) -> bool {
    matches!(error, MemoryError::Refused { .. })
}

fn end(connection: &mut Connection, memory: u64) -> Result<(), Trouble> {
    let request = Request { memory, region: 0, epoch: 0, verb: Verb::End };
    connection.ask(&request, |reply| matches!(reply.answer, Answer::End).then_some(()))
}

/// Deletes a memory that another thread has.
#[cfg(feature = "cli")]
pub(crate) struct Ender(Arc<Shared>);

#[cfg(feature = "cli")]
impl Ender {
    /// Deletes it at the servers that answer, and returns the others. Accesses of its lanes end.
    pub(crate) fn end(&self) -> Vec<String> {
        let Self(shared) = self;
        shared.ends_by(0);
        // Where it is not known, its own thread has deleted it meanwhile.
        let is_kept = |place: &Place| match shared.connect(place) {
            Ok(mut connection) => {
                let ended = end(&mut connection, shared.name().memory);
                !matches!(ended, Ok(()) | Err(Trouble::Refused(Refusal::Unknown, _)))
            }
            Err(error) => error != MemoryError::Ended,
        };
        shared.servers().iter().filter(|place| is_kept(place)).map(|place| place.name().to_owned()).collect()
    }
}

/// Takes regions of a server, of so many in total. Returns the secret and how many milliseconds are left.
fn take(
    asked: &mut Asked,
    (memory, regions, total): (u64, Range<u32>, u32),
    (owner, secret, name): (u64, Secret, &[u8]),
    duration: Duration,
) -> Result<(Secret, u64), MemoryError> {
    let (millis, count) = (millis(duration), regions.end - regions.start);
    let secret = secret.bytes();
    let verb = Verb::Take { regions: count, of: total, millis, owner, secret, name, source: None };
    let request = Request { memory, region: regions.start, epoch: EPOCH, verb };
    let taken = asked.connection.ask(&request, |reply| match reply.answer {
        Answer::Take { secret } => Some(Secret::of(secret)),
        _ => None,
    });
    let secret = taken.map_err(|trouble| match trouble {
        Trouble::Refused(Refusal::NoRoom, room) => {
            MemoryError::NoRoom { offered: u64::from(room).saturating_mul(asked.region_bytes) }
        }
        Trouble::Refused(Refusal::Taken, _) => MemoryError::NameInUse,
        trouble => failed(trouble, asked.place.name(), MemoryError::Ended),
    })?;
    // A server may give less time than was asked for.
    let renew = Request { memory, region: 0, epoch: 0, verb: Verb::Renew { millis: 0 } };
    let left = asked.connection.ask(&renew, |reply| match reply.answer {
        Answer::Renew { left_millis } => Some(left_millis),
        _ => None,
    });
    left.map(|left| (secret, left)).map_err(|trouble| failed(trouble, asked.place.name(), MemoryError::Ended))
}

/// A memory, as a server has it.
struct Listed {
    memory: u64,
    left_millis: u64,
    /// How many regions it has at all servers together; 0 if this one was not told.
    total: u32,
    /// Its regions there.
    entries: Vec<Entry>,
}

/// Attaches the connection to a memory, and returns what the server has of it.
fn list(asked: &mut Asked, name: &[u8], (owner, secret): (u64, Secret)) -> Result<Listed, MemoryError> {
    let (mut regions, mut first) = (Vec::new(), 0);
    loop {
        let verb = Verb::List { owner, secret: secret.bytes(), name };
        let request = Request { memory: 0, region: first, epoch: 0, verb };
        let listed = asked.connection.ask(&request, |reply| match reply.answer {
            Answer::List { left_millis, more, total, entries, .. } => {
                let entries: Vec<Entry> = entries.iter().collect();
                let last = entries.last().map(|entry| entry.region);
                let listed = Listed { memory: reply.memory, left_millis, total, entries };
                Some((listed, more.then_some(last).flatten()))
            }
            _ => None,
        });
        let (mut listed, more) = listed.map_err(|trouble| failed(trouble, asked.place.name(), MemoryError::Unknown))?;
        regions.append(&mut listed.entries);
        match more.and_then(|last| last.checked_add(1)) {
            Some(next) => first = next,
            None => return Ok(Listed { entries: regions, ..listed }),
        }
    }
}

/// Makes a region usable after a move that its former owner did not end, by what the servers that answered have of it.
fn recover(table: &mut Table, asked: &mut [Asked], memory: u64, region: u32, entries: &[(ServerId, Entry)]) {
    let now = clock::since_1970();
    let mut recovery = Recovery::new(table, now, region, entries);
    while let Step::Ask(ask) = recovery.poll() {
        let of = asked.iter_mut().find(|asked| asked.place.server() == ask.server);
        let answer = of.map(|asked| request_step(&mut asked.connection, memory, &ask, &StepParts::default()));
        match answer {
            Some(Ok(answer)) => recovery.answered(table, now, &ask, Ok(&answer.marks)),
            Some(Err(Trouble::Refused(why, _))) => recovery.answered(table, now, &ask, Err(why)),
            Some(Err(Trouble::Broken(_))) | None => recovery.gone(table, now, ask.server),
        }
    }
}
