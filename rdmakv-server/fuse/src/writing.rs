//! The view that a mount has of a file that it writes: the generation, and where its chunks are.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdmakv_proto::files::{Generation, Ino, Inode, MAX_RUNS, Run, Time};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::inode::Written;
use crate::map::Map;
use crate::spill::{Room, Spilled};

/// How long writes wait for a sync that is not tried again: its program may have been killed.
const SYNC_WAITS: Duration = Duration::from_secs(1);

/// A writer's view of the file.
#[derive(Debug)]
pub(crate) struct Writing {
    generation: Generation,
    /// The generation is the file's.
    has_begun: bool,
    /// The cluster knows that the generation is open.
    is_open: bool,
    /// Bytes up to here are those of the earlier generation, where no chunk was written.
    limit: u64,
    size: u64,
    /// Chunks that are stored, or on their way.
    map: Map,
    modified: Time,
    /// Chunks that the servers had no room for. Each stays there in this generation.
    spilled: Option<Spilled>,
    /// Something is to be synced.
    is_dirty: bool,
    /// Chunks that no longer belong to the file, once a sync has told so.
    removed: BTreeSet<u32>,
    /// When a sync last had to wait for the disk. Writes wait for it, or it would have more to sync each time.
    sync_waits: Option<Instant>,
    /// Why the generation cannot be finished.
    failed: Option<Error>,
    /// When its last writer closed it.
    closed: Option<Instant>,
}

/// The place of a chunk in the generation that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In the cluster, or on its way there.
    Chunk(Generation),
    /// In the data file of this mount.
    Spilled,
    /// That of the earlier generation, up to this byte of the file.
    Earlier(u64),
}

impl Writing {
    /// Begins, with the generation that is reserved for this mount.
    pub(crate) fn new(inode: &Inode, now: Instant) -> Self {
        Self {
            generation: inode.reserved,
            has_begun: false,
            is_open: false,
            limit: inode.size,
            size: inode.size,
            map: Map::default(),
            modified: inode.modified,
            spilled: None,
            is_dirty: false,
            removed: BTreeSet::new(),
            sync_waits: None,
            failed: None,
            closed: Some(now),
        }
    }

    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the size of the file, as programs see it on this mount.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns when its bytes changed.
    pub(crate) fn modified(&self) -> Time {
        self.modified
    }

    pub(crate) fn set_modified(&mut self, modified: Time) {
        self.modified = modified;
    }

    /// Returns when its last writer closed it.
    pub(crate) fn closed(&self) -> Option<Instant> {
        self.closed
    }

    /// Notes that its last writer closed it.
    pub(crate) fn close(&mut self, now: Instant) {
        self.closed = Some(now);
    }

    /// Notes that it is closed, unless it was before.
    pub(crate) fn close_once(&mut self, now: Instant) {
        self.closed.get_or_insert(now);
    }

    /// Notes that it is open.
    pub(crate) fn reopen(&mut self) {
        self.closed = None;
    }

    /// Returns whether a sync has something to tell the cluster.
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Returns whether the generation is the file's.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns whether the cluster knows that the generation is open.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Notes that the generation is the file's, and open.
    pub(crate) fn begin(&mut self) {
        (self.has_begun, self.is_open) = (true, true);
    }

    /// Notes whether the cluster knows that the generation is open.
    pub(crate) fn set_open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }

    /// Returns whether it can be finished.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Notes that the generation cannot be finished.
    pub(crate) fn fail(&mut self, why: Error) {
        self.failed = Some(why);
    }

    /// Has the file end here at least.
    pub(crate) fn reserve(&mut self, end: u64) {
        self.size = self.size.max(end);
        self.is_dirty = true;
    }

    /// Sets the size. Of the chunks so many are `kept` if it is smaller.
    pub(crate) fn set_size(&mut self, size: u64, kept: u32, now: Time) {
        if size < self.size {
            let gone = self.map.chunks().map(|(index, _)| index).filter(|&index| index >= kept);
            self.removed.extend(gone);
            self.map.truncate(kept);
            self.spilled.iter_mut().for_each(|spilled| spilled.truncate(kept, size));
            self.limit = self.limit.min(size);
        }
        (self.size, self.is_dirty, self.modified) = (size, true, now);
    }

    /// Returns the place of a chunk.
    pub(crate) fn place(&self, index: u32) -> Place {
        match self.map.get(index) {
            Some(generation) => Place::Chunk(generation),
            None if self.has(index) => Place::Spilled,
            None => Place::Earlier(self.earlier()),
        }
    }

    /// Returns up to which byte the earlier generation has the chunks that were not written.
    pub(crate) fn earlier(&self) -> u64 {
        if self.has_begun { 0 } else { self.limit }
    }

    /// Returns whether this generation has a chunk, in memory or in the data file.
    pub(crate) fn has(&self, index: u32) -> bool {
        self.is_sent(index) || self.spilled.as_ref().is_some_and(|spilled| spilled.has(index))
    }

    /// Returns whether a chunk is in the cluster, or on its way there.
    pub(crate) fn is_sent(&self, index: u32) -> bool {
        self.map.get(index).is_some()
    }

    /// Notes that a chunk is on its way to the cluster.
    pub(crate) fn send(&mut self, index: u32) {
        self.map.set(Run { first: index, count: 1, generation: self.generation });
    }

    /// Notes that a chunk did not reach the cluster.
    pub(crate) fn take_back(&mut self, index: u32) {
        self.map.remove(index);
    }

    /// Returns the chunks in the cluster that are the file's, or were until the next sync.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (u32, Generation)> {
        self.map.chunks().chain(self.removed.iter().map(|&index| (index, self.generation)))
    }

    /// Returns whether the data file has chunks.
    pub(crate) fn has_spilled(&self) -> bool {
        self.spilled.is_some()
    }

    /// Returns whether a chunk goes to the data file.
    pub(crate) fn spills(&self, room: &Room, index: u32) -> bool {
        self.spilled.as_ref().is_some_and(|spilled| spilled.has(index)) || room.spills(Instant::now())
    }

    /// Stores a chunk in the data file. The one in memory goes once a sync has told so.
    pub(crate) fn spill(&mut self, to: &Backing, (ino, bits): (Ino, u8), (index, bytes): (u32, &[u8])) -> Result<()> {
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            None => self.spilled.insert(Spilled::open(to, ino, self.generation)?),
        };
        spilled.write(index, bits, bytes)?;
        if self.map.get(index).is_some() {
            self.map.remove(index);
            self.removed.insert(index);
        }
        Ok(())
    }

    /// Reads from the data file.
    pub(crate) fn spilled(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        self.spilled.as_ref().map_or(Ok(Vec::new()), |spilled| spilled.read(offset, length))
    }

    /// Has the data file's bytes survive a crash of the machine.
    ///
    /// # Errors
    ///
    /// The disk lost some, so the generation cannot be finished. Or it takes long, and may pass.
    pub(crate) fn sync_spilled(&mut self) -> Result<()> {
        let Some(spilled) = &mut self.spilled else { return Ok(()) };
        let synced = spilled.sync();
        // What the disk lost is not written again by another sync.
        self.failed = synced.as_ref().err().filter(|error| !error.may_pass()).cloned();
        self.sync_waits = synced.is_err().then(Instant::now);
        synced
    }

    /// Returns whether a sync waits for the disk.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.sync_waits.is_some_and(|since| since.elapsed() < SYNC_WAITS)
    }

    /// Returns the chunks of the shortest runs, without which the map fits an inode; none if it does.
    pub(crate) fn surplus(&self) -> Vec<u32> {
        let mut runs = self.map.runs().to_vec();
        runs.sort_unstable_by_key(|run| run.count);
        let many = runs.len().saturating_sub(MAX_RUNS);
        runs[..many].iter().flat_map(|run| run.first..run.end()).collect()
    }

    /// Returns the chunks up to the last one that the map does not have.
    pub(crate) fn holes(&self) -> Vec<u32> {
        let end = self.map.runs().last().map_or(0, Run::end);
        (0..end).filter(|&index| !self.is_sent(index)).collect()
    }

    /// Returns whether the map fits an inode.
    pub(crate) fn fits(&self) -> bool {
        self.map.fits()
    }

    /// Returns what the next sync tells the cluster.
    pub(crate) fn written(&self) -> Written {
        let (map, is_spilled) = (self.map.runs().to_vec(), self.spilled.is_some());
        Written { size: self.size, map, is_spilled, modified: self.modified }
    }

    /// Notes that the cluster was told. Returns the chunks that the file has no more.
    pub(crate) fn synced(&mut self) -> Vec<(u32, Generation)> {
        self.is_dirty = false;
        let removed = std::mem::take(&mut self.removed).into_iter();
        let unused = removed.filter(|&index| !self.is_sent(index));
        unused.map(|index| (index, self.generation)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::empty_file;

    fn writing(size: u64) -> Writing {
        Writing::new(&Inode { size, reserved: Generation(2), ..empty_file() }, Instant::now())
    }

    #[test]
    fn a_chunk_that_is_written_again_is_not_dropped() {
        let mut writing = writing(0);
        writing.reserve(4 << 16);
        (0..4).for_each(|index| writing.send(index));
        writing.set_size(0, 0, Time::default());
        writing.send(2);
        let stored: BTreeSet<_> = writing.stored().map(|(index, _)| index).collect();
        assert_eq!(stored, BTreeSet::from([0, 1, 2, 3]));
        assert_eq!(writing.synced(), [0, 1, 3].map(|index| (index, Generation(2))));
        assert!(!writing.is_dirty() && writing.synced().is_empty());
    }

    #[test]
    fn the_earlier_generation_ends_where_the_file_was_cut() {
        let mut writing = writing(100);
        writing.send(1);
        assert_eq!((writing.place(0), writing.place(1)), (Place::Earlier(100), Place::Chunk(Generation(2))));
        writing.set_size(40, 1, Time::default());
        writing.set_size(90, 1, Time::default());
        assert_eq!((writing.place(0), writing.place(1)), (Place::Earlier(40), Place::Earlier(40)));
        writing.begin();
        assert_eq!(writing.place(0), Place::Earlier(0));
    }

    #[test]
    fn the_shortest_runs_are_surplus() {
        let mut writing = writing(0);
        // Each third chunk is a hole, and the first run has one chunk only.
        (1..3 * MAX_RUNS as u32 + 3).filter(|index| index % 3 > 0 && *index != 2).for_each(|index| writing.send(index));
        assert!(!writing.fits());
        assert_eq!(writing.surplus(), [1]);
        assert_eq!(writing.holes()[..3], [0, 2, 3]);
    }
}
