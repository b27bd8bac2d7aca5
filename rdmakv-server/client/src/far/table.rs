//! The table of a memory: which server has each region, and where an access goes.
//!
//! A memory is a byte array, cut into regions of one length. Each change of the table has a number. A lane notes the number that it knew
//! when an access began ([`Accesses`]). So a change *counts* once no access is under way that began before it: then no access follows the
//! table as it was. Lanes share the table, and never wait for one another.

use rdmakv_proto::far::messages::RegionRun;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// The number of a run of a server: a restarted server has another one.
pub type ServerId = u64;

/// Writes to a region that wait while it is paused, at most.
pub const QUEUED_WRITES: u32 = 1024;
/// Bytes of such writes at most. One write may be longer.
pub const QUEUED_BYTES: u64 = 4 << 20;

/// Regions of a memory at most. A server's word makes no longer table.
const REGIONS_MAX: u32 = 1 << 24;

/// An access that is not carried out.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AccessError {
    /// It goes beyond the end.
    #[error("access far memory [{at}, +{length}): it has {capacity} bytes: stay within them, or reshape it")]
    OutOfRange {
        /// The first byte.
        at: u64,
        /// How many bytes.
        length: u64,
        /// The bytes of the memory.
        capacity: u64,
    },
    /// A server that had the region is gone.
    #[error("access far memory, regions {} to {}: {}", regions.start, regions.end.saturating_sub(1), loss(*server))]
    Lost {
        /// The regions.
        regions: Range<u32>,
        /// The server, or 0 where no server that answered has them.
        server: ServerId,
        /// When the loss was noticed.
        since: Duration,
    },
    /// Its time is over, or it was deleted.
    #[error("access far memory: its time is over, or it was deleted: create another one, and renew it in time")]
    Ended,
    /// There is no memory for a buffer.
    #[error("get a buffer of {bytes} bytes: no such piece is free: drop buffers, or raise `Options::buffers`")]
    NoBuffer {
        /// The bytes that were asked for.
        bytes: usize,
    },
    /// A batch does not fill its buffer.
    #[error("read a batch of {wanted} bytes into a buffer of {length}: give one of as many bytes")]
    Buffer {
        /// Bytes of the batch.
        wanted: u64,
        /// Bytes of the buffer.
        length: u64,
    },
    /// It has too many parts.
    #[error("access far memory in {parts} pieces: a batch has {most} at most, cut at the ends of regions: divide it")]
    Long {
        /// Pieces of the batch.
        parts: usize,
        /// The most that one can have.
        most: usize,
    },
    /// The server has no key left by which the lane could reach the region. It is not lost.
    #[error("access far memory, region {region}: its server has no key left for it: drop lanes, or ask for batches")]
    NoKey {
        /// The region.
        region: u32,
    },
    /// The ticket is of another lane.
    #[error("wait for an access: the ticket is of another lane: give it to the lane that it came from")]
    OtherLane,
    /// Writes to the region are paused, and too many wait.
    #[error("write far memory, region {region}: it moves, and its queue is full: try again")]
    Busy {
        /// The region.
        region: u32,
    },
}

/// A memory that cannot be made, opened or used any more.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MemoryError {
    /// Servers have less room.
    #[error("create far memory: {}", shortage(*offered))]
    NoRoom {
        /// Bytes that they have room for.
        offered: u64,
    },
    /// As many connections use it at a server as may be.
    #[error("use far memory at {server}: as many connections use it as may be: drop lanes or runners")]
    Connections {
        /// The server, as it was given.
        server: String,
    },
    /// Another process has it open.
    #[error("open far memory: another process has it open: wait until that one has ended")]
    Taken,
    /// Its time is over, or it was deleted.
    #[error("use far memory: its time is over, or it was deleted: create another one")]
    Ended,
    /// There is no memory of this name, or the secret is another.
    #[error("open far memory: no server has one of this name and secret: look at both, and whether its time is over")]
    Unknown,
    /// The login has a memory of this name.
    #[error("create far memory: there is one of this name: choose another name, or delete that one")]
    NameInUse,
    /// A name that cannot be one.
    #[error("name far memory: a name has 1 to 255 bytes, and no control characters: choose another one")]
    Name,
    /// The client has no servers.
    #[error("create far memory: the client has no servers: name one that was started with --far")]
    NoServer,
    /// A server has no address over which there is far memory.
    #[error("reach far memory at {server}: it has no address of shm: or iwarp: name one")]
    NoFabric {
        /// The server, as it was given.
        server: String,
    },
    /// A server offers none.
    #[error("create far memory at {server}: it offers none: start it with --far SIZE")]
    Unable {
        /// The server, as it was given.
        server: String,
    },
    /// A server does not answer.
    #[error("reach far memory at {server}: {why}: see whether it runs")]
    Unreachable {
        /// The server, as it was given.
        server: String,
        /// The reason.
        why: String,
    },
    /// A server answers, and takes no connection.
    #[error(
        "reach far memory at {server}: it refuses the connection: {why}: see its --fabric-connections, and the user's password"
    )]
    Refused {
        /// The server, as it was given.
        server: String,
        /// The reason.
        why: String,
    },
    /// A server carries out fewer batches at a time.
    #[error(
        "access far memory at {server} by batches: it has {offered} workers: ask for fewer, or raise its --far-threads"
    )]
    Workers {
        /// The server, as it was given.
        server: String,
        /// Its workers.
        offered: u32,
    },
    /// The client was not given this server.
    #[error("move far memory: {server} is no server of it: name one of the client's servers")]
    UnknownServer {
        /// The server, as it was given.
        server: String,
    },
    /// A region stays where it is.
    #[error("move far memory, region {region}: {why}")]
    NotMoved {
        /// The region.
        region: u32,
        /// Why, and what to do.
        why: String,
    },
    /// This system lacks something.
    #[error("make far memory: {what}: free some memory")]
    System {
        /// The resource that is not there.
        what: String,
    },
    /// It has more regions than 16,777,216.
    #[error("create far memory of {capacity} bytes in regions of {region}: make it shorter, or its regions longer")]
    Shape {
        /// The bytes of the memory.
        capacity: u64,
        /// The bytes of a region.
        region: u64,
    },
}

/// Returns what became of the regions of a server, and the remedy.
fn loss(server: ServerId) -> String {
    match server {
        0 => "no server that answered has them: name all servers of the memory, or refill them from a file or a checkpoint".to_owned(),
        _ => format!("server {server:#x} is lost: refill them from a file or a checkpoint"),
    }
}

/// Returns how much servers have room for, and the remedy.
fn shortage(offered: u64) -> String {
    match offered {
        0 => "servers have no room left for this user: delete memories, wait until their time is over, or raise the servers' --far".to_owned(),
        _ => format!("servers offer {offered} bytes, each at most half of what it has free: ask for less, or raise their --far"),
    }
}

/// A part of an access that lies in one region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The region.
    pub region: u32,
    /// The first byte in the region.
    pub offset: u64,
    /// The part of the buffer.
    pub buffer: Range<u64>,
}

/// The place that an access goes to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The server.
    pub server: ServerId,
    /// The epoch of the region there.
    pub epoch: u32,
}

/// The fate of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WriteRoute {
    /// It goes to the target.
    To(Target),
    /// It goes to the target. Its pages are [marked](super::migration::Migration::mark) before it is sent.
    Marked(Target),
    /// It waits until the region is no longer paused. It counts as queued.
    Wait,
}

/// Whether writes to a region go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Writes {
    Flow,
    /// They are marked, because the region is being copied.
    Marked,
    Paused {
        queued: u32,
        bytes: u64,
    },
    Lost {
        since: Duration,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Region {
    target: Target,
    writes: Writes,
}

/// The regions of a memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Table {
    capacity: u64,
    region_bytes: u64,
    regions: Vec<Region>,
    /// The number of the last change.
    change: u64,
}

impl Table {
    /// Returns a table of regions that all are on one server, in one epoch. [`Table::place`] puts them elsewhere.
    ///
    /// # Errors
    ///
    /// There are no regions, or more than 16,777,216.
    pub fn new(capacity: u64, region_bytes: u64, target: Target) -> Result<Self, MemoryError> {
        let shape = MemoryError::Shape { capacity, region: region_bytes };
        let count = capacity.checked_add(region_bytes.saturating_sub(1)).and_then(|end| end.checked_div(region_bytes));
        let Some(count) =
            count.and_then(|count| u32::try_from(count).ok()).filter(|count| (1..=REGIONS_MAX).contains(count))
        else {
            return Err(shape);
        };
        let regions = vec![Region { target, writes: Writes::Flow }; count as usize];
        Ok(Self { capacity, region_bytes, regions, change: 1 })
    }

    /// Returns the bytes of the memory.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns how many regions there are.
    pub fn len(&self) -> u32 {
        self.regions.len() as u32
    }

    /// Returns false: a table has a region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the number of the last change.
    pub fn change(&self) -> u64 {
        self.change
    }

    /// Splits an access over regions, in order.
    ///
    /// # Errors
    ///
    /// It goes beyond the end.
    pub fn split(&self, at: u64, length: u64) -> Result<impl Iterator<Item = Piece> + use<>, AccessError> {
        let end = at.checked_add(length).filter(|&end| end <= self.capacity);
        let end = end.ok_or(AccessError::OutOfRange { at, length, capacity: self.capacity })?;
        let bytes = self.region_bytes;
        let mut next = at;
        Ok(std::iter::from_fn(move || {
            if next == end {
                return None;
            }
            let (region, offset) = (next / bytes, next % bytes);
            let length = (bytes - offset).min(end - next);
            let buffer = next - at..next - at + length;
            next += length;
            Some(Piece { region: region as u32, offset, buffer })
        }))
    }

    /// Returns where a read of a region goes.
    ///
    /// # Errors
    ///
    /// The region is lost.
    pub fn read(&self, region: u32) -> Result<Target, AccessError> {
        let Region { target, writes } = self.regions[region as usize];
        match writes {
            Writes::Lost { since } => Err(self.lost(region, since)),
            _ => Ok(target),
        }
    }

    /// Returns where a write of `length` bytes to a region goes.
    ///
    /// # Errors
    ///
    /// The region is lost, or paused with a full queue.
    pub fn write(&mut self, region: u32, length: u64) -> Result<WriteRoute, AccessError> {
        let Region { target, writes } = &mut self.regions[region as usize];
        match writes {
            Writes::Flow => Ok(WriteRoute::To(*target)),
            Writes::Marked => Ok(WriteRoute::Marked(*target)),
            Writes::Paused { queued, bytes } => {
                let sum = bytes.saturating_add(length);
                if *queued >= QUEUED_WRITES || (*queued > 0 && sum > QUEUED_BYTES) {
                    return Err(AccessError::Busy { region });
                }
                (*queued, *bytes) = (*queued + 1, sum);
                Ok(WriteRoute::Wait)
            }
            &mut Writes::Lost { since } => Err(self.lost(region, since)),
        }
    }

    /// Returns the regions around a lost one that the same server took along.
    fn lost(&self, region: u32, since: Duration) -> AccessError {
        let server = self.regions[region as usize].target.server;
        let is_lost = |at: &Region| at.target.server == server && at.writes == Writes::Lost { since };
        let at = region as usize;
        let before = self.regions[..at].iter().rev().take_while(|at| is_lost(at)).count();
        let after = self.regions[at..].iter().take_while(|at| is_lost(at)).count();
        AccessError::Lost { regions: (at - before) as u32..(at + after) as u32, server, since }
    }

    /// Returns the target of a region, or None if it is lost.
    pub fn target(&self, region: u32) -> Option<Target> {
        let at = self.regions.get(region as usize)?;
        (!matches!(at.writes, Writes::Lost { .. })).then_some(at.target)
    }

    /// Returns whether a region moves: its writes are marked or paused.
    pub(super) fn is_moving(&self, region: u32) -> bool {
        let region = self.regions.get(region as usize);
        region.is_some_and(|region| matches!(region.writes, Writes::Marked | Writes::Paused { .. }))
    }

    /// Returns whether writes to a region are paused.
    pub(super) fn is_paused(&self, region: u32) -> bool {
        self.regions.get(region as usize).is_some_and(|region| matches!(region.writes, Writes::Paused { .. }))
    }

    /// Puts a region where it is, with its writes unpaused. Returns the change's number. Writes that were queued go there.
    pub fn place(&mut self, region: u32, target: Target) -> u64 {
        self.set(region, |at| *at = Region { target, writes: Writes::Flow })
    }

    /// Lets writes to a region go on, and has them marked. Returns the change's number.
    pub(super) fn mark(&mut self, region: u32) -> u64 {
        self.set(region, |at| at.writes = Writes::Marked)
    }

    /// Pauses writes to a region. Returns the change's number.
    pub(super) fn pause(&mut self, region: u32) -> u64 {
        self.set(region, |at| at.writes = Writes::Paused { queued: 0, bytes: 0 })
    }

    /// Notes that a region is lost. Returns the change's number. Writes that were queued fail.
    pub fn lose(&mut self, region: u32, since: Duration) -> u64 {
        self.set(region, |at| at.writes = Writes::Lost { since })
    }

    fn set(&mut self, region: u32, change: impl FnOnce(&mut Region)) -> u64 {
        change(&mut self.regions[region as usize]);
        self.change += 1;
        self.change
    }

    /// Returns the map: runs of regions on one server and in one epoch. Lost regions are in none.
    pub fn runs(&self) -> impl Iterator<Item = RegionRun> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            while next < self.len() && self.target(next).is_none() {
                next += 1;
            }
            let target = self.target(next)?;
            let first = next;
            while self.target(next) == Some(target) {
                next += 1;
            }
            Some(RegionRun { first, regions: next - first, epoch: target.epoch, server: target.server })
        })
    }
}

/// The accesses of a lane that are under way, by the number of the table's last change when they began.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Accesses {
    begun: VecDeque<(u64, u32)>,
}

impl Accesses {
    /// Notes that an access begins. Numbers never fall.
    pub fn begin(&mut self, change: u64) {
        match self.begun.back_mut() {
            Some((last, count)) if *last >= change => *count += 1,
            _ => self.begun.push_back((change, 1)),
        }
    }

    /// Notes that an access ended which began at this number.
    pub fn end(&mut self, change: u64) {
        let at = self.begun.iter_mut().rev().find(|(begun, count)| *begun <= change && *count > 0);
        if let Some((_, count)) = at {
            *count -= 1;
        }
        while self.begun.front().is_some_and(|&(_, count)| count == 0) {
            self.begun.pop_front();
        }
    }

    /// Returns the number at which the oldest open access began, or the highest number without one.
    ///
    /// A change counts if its number is at most the oldest of all lanes.
    pub fn oldest(&self) -> u64 {
        self.begun.front().map_or(u64::MAX, |&(change, _)| change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOME: Target = Target { server: 1, epoch: 1 };
    const AWAY: Target = Target { server: 2, epoch: 2 };

    fn table(regions: u64) -> Table {
        Table::new(regions * 16 - 3, 16, HOME).unwrap()
    }

    proptest! {
        #[test]
        fn pieces_cover_an_access_once(at in 0..1000_u64, length in 0..1000_u64, bytes in 1..70_u64) {
            let table = Table::new(1500, bytes, HOME).unwrap();
            match table.split(at, length) {
                Err(error) => prop_assert!(at + length > 1500, "{error}"),
                Ok(pieces) => {
                    let mut next = at;
                    for piece in pieces {
                        prop_assert_eq!(piece.buffer.start, next - at);
                        prop_assert_eq!(u64::from(piece.region) * bytes + piece.offset, next);
                        next += piece.buffer.end - piece.buffer.start;
                        prop_assert!(piece.buffer.start < piece.buffer.end && piece.region < table.len());
                        prop_assert!(piece.offset + (piece.buffer.end - piece.buffer.start) <= bytes);
                    }
                    prop_assert_eq!(next, at + length);
                }
            }
        }

        #[test]
        fn any_access_and_shape_is_taken(capacity: u64, bytes: u64, at: u64, length: u64) {
            let capacity = capacity >> (length % 64);
            if let Ok(table) = Table::new(capacity, bytes.max(capacity >> 10), HOME) {
                prop_assert_eq!(table.split(at, length).is_ok(), at.checked_add(length).is_some_and(|end| end <= capacity));
            }
        }

        #[test]
        fn oldest_access_is_that_of_a_plain_list(steps in prop::collection::vec((any::<bool>(), 0..3_u64), 0..60)) {
            let (mut accesses, mut plain, mut change) = (Accesses::default(), Vec::new(), 0);
            for (begins, pick) in steps {
                if begins {
                    change += pick;
                    accesses.begin(change);
                    plain.push(change);
                } else if !plain.is_empty() {
                    accesses.end(plain.swap_remove(pick as usize % plain.len()));
                }
                prop_assert_eq!(accesses.oldest(), plain.iter().copied().min().unwrap_or(u64::MAX));
            }
        }
    }

    #[test]
    fn shapes_without_regions_are_refused() {
        for (capacity, bytes) in [(0, 16), (16, 0), (1 << 40, 1), (u64::MAX, 2)] {
            assert!(Table::new(capacity, bytes, HOME).is_err(), "{capacity} in {bytes}");
        }
        assert_eq!(Table::new(17, 16, HOME).unwrap().len(), 2);
        let most = u64::from(REGIONS_MAX);
        for regions in [most + 1, u64::from(u32::MAX) - 1] {
            let error = Table::new(regions * 16, 16, HOME).unwrap_err();
            assert_eq!(error, MemoryError::Shape { capacity: regions * 16, region: 16 });
        }
    }

    #[test]
    fn paused_regions_queue_up_to_bounds() {
        let mut table = table(3);
        table.pause(1);
        assert_eq!(table.read(1), Ok(HOME), "reads go on");
        assert_eq!(table.write(0, 8), Ok(WriteRoute::To(HOME)));
        assert_eq!(table.write(1, QUEUED_BYTES + 1), Ok(WriteRoute::Wait), "a first one of any length");
        assert_eq!(table.write(1, 1), Err(AccessError::Busy { region: 1 }));
        table.pause(1);
        for _ in 0..QUEUED_WRITES {
            assert_eq!(table.write(1, 8), Ok(WriteRoute::Wait));
        }
        assert_eq!(table.write(1, 8), Err(AccessError::Busy { region: 1 }));
        table.place(1, AWAY);
        assert_eq!(table.write(1, 8), Ok(WriteRoute::To(AWAY)));
    }

    #[test]
    fn lost_regions_are_named_together() {
        let mut table = table(5);
        table.place(3, AWAY);
        let since = Duration::from_secs(7);
        for region in 1..=3 {
            table.lose(region, since);
        }
        let lost = Err(AccessError::Lost { regions: 1..3, server: 1, since });
        assert_eq!(table.read(2), lost);
        assert_eq!(table.write(1, 8).map(drop), lost.map(drop));
        assert_eq!(table.read(3), Err(AccessError::Lost { regions: 3..4, server: 2, since }));
        assert_eq!((table.target(2), table.target(4), table.target(9)), (None, Some(HOME), None));
    }

    #[test]
    fn maps_are_runs_without_lost_regions() {
        let mut table = table(6);
        table.place(2, AWAY);
        table.place(3, AWAY);
        table.lose(4, Duration::ZERO);
        let runs: Vec<_> = table.runs().map(|run| (run.first, run.regions, run.server)).collect();
        assert_eq!(runs, [(0, 2, 1), (2, 2, 2), (5, 1, 1)]);
        table.lose(0, Duration::ZERO);
        table.lose(5, Duration::ZERO);
        assert_eq!(table.runs().map(|run| run.first).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn changes_have_rising_numbers() {
        let mut table = table(1);
        let first = table.change();
        let numbers = [table.mark(0), table.pause(0), table.place(0, AWAY), table.lose(0, Duration::ZERO)];
        assert_eq!(numbers, [first + 1, first + 2, first + 3, first + 4]);
    }
}
