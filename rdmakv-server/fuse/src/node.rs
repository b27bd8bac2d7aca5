//! A file that a mount has open: its chunks in buffers, and its next generation on the way to the cluster.
//!
//! A writer's bytes go to chunks of its reserved generation. Until the first sync the file has its earlier generation, so others see
//! whole bytes only. The sync copies the chunks that were not written, and waits until all are stored. Only then it begins the
//! generation, by one change of the inode. Later syncs store what changed since.
//!
//! A chunk that is full goes out at once, and up to sixteen are under way. The client copies each into memory that is registered once.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use rdmakv_client::{Error as ClientError, Stored, Ticket};
use rdmakv_proto::files::{Generation, Ino, Inode, Key, MAX_CHUNKS, MountId, Ranges, State, Time};
use rustix::io::Errno;

use crate::backing::Backing;
use crate::buffers::{Buffers, Chunk, Read};
use crate::cluster::{Cluster, gone};
use crate::error::{Error, Result};
use crate::inode::Edit;
use crate::map::Map;
use crate::names::Step;
use crate::ranges::Flush;
use crate::spill::Room;
use crate::writing::{Place, Writing};

/// Chunks under way at most, of one file.
const WINDOW: usize = 16;

/// Chunks that a sequential reader gets at once.
const READ_AHEAD: u32 = 8;

/// The cluster and the backing, which all files share, and how much a file may have in buffers.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) cluster: Cluster,
    pub(crate) backing: Backing,
    pub(crate) mount: MountId,
    /// Bytes of chunks in buffers, for each open file.
    pub(crate) buffered: u64,
    /// Whether the servers take chunks.
    pub(crate) room: Room,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Node {
    ino: Ino,
    inode: Inode,
    handles: u32,
    writers: u32,
    writing: Option<Writing>,
    buffers: Buffers,
    puts: VecDeque<Put>,
    /// The chunk after those that were read last, if reading is sequential.
    next_read: u32,
}

/// A chunk on its way to the cluster.
#[derive(Debug)]
struct Put {
    index: u32,
    ticket: Ticket<Stored>,
    taken: Ranges,
}

/// The place of a chunk's bytes, and how many there can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Hole,
    Chunk(Generation, u64),
    /// The data file of this mount, which writes the file.
    Spilled(u64),
    /// The data file of a generation on the backing.
    Disk(Generation, u64),
}

impl Source {
    fn length(self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Chunk(_, length) | Self::Spilled(length) | Self::Disk(_, length) => length,
        }
    }
}

impl Node {
    /// Returns a file that nothing has open yet.
    pub(crate) fn new(ino: Ino, inode: Inode) -> Self {
        Self {
            ino,
            inode,
            handles: 0,
            writers: 0,
            writing: None,
            buffers: Buffers::default(),
            puts: VecDeque::new(),
            next_read: 0,
        }
    }

    /// Returns the inode as programs see it on this mount.
    pub(crate) fn inode(&self) -> Inode {
        let mut inode = self.inode.clone();
        if let Some(writing) = self.writing.as_ref() {
            inode.size = writing.size();
            inode.modified = writing.modified();
            inode.changed = inode.changed.max(writing.modified());
        }
        inode
    }

    /// Takes the inode as it is in the cluster.
    pub(crate) fn set_inode(&mut self, inode: Inode) {
        // Before it is frozen, its writer may change the bytes of a generation.
        let is_frozen = |inode: &Inode| matches!(inode.state, State::Frozen | State::Persisted);
        let is_same = inode.generation == self.inode.generation && is_frozen(&inode) && is_frozen(&self.inode);
        if self.writing.is_none() && !is_same {
            self.buffers.clear();
        }
        self.inode = inode;
    }

    /// Returns whether a program has it open.
    pub(crate) fn is_open(&self) -> bool {
        self.handles > 0
    }

    /// Returns whether its name is in a directory. One that lost its name is in none.
    pub(crate) fn is_in(&self, directory: Ino) -> bool {
        self.inode.parent == Some(directory) && !self.inode.is_unlinked
    }

    /// Returns whether a program has it open for writing.
    pub(crate) fn has_writers(&self) -> bool {
        self.writers > 0
    }

    /// Returns how many handles write it.
    pub(crate) fn writers(&self) -> u32 {
        self.writers
    }

    /// Returns whether this mount is the file's writer.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Returns when its last writer closed it, while it may be reopened.
    pub(crate) fn closed(&self) -> Option<Instant> {
        self.writing.as_ref().and_then(Writing::closed)
    }

    /// Returns whether a sync would begin a generation, so the file's name has to be marked before.
    pub(crate) fn begins(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.is_dirty() && !writing.has_begun())
    }

    /// Opens it.
    pub(crate) fn open(&mut self, writes: bool) {
        self.handles += 1;
        if writes {
            self.writers += 1;
            if let Some(writing) = &mut self.writing {
                writing.reopen();
            }
        }
    }

    /// Keeps it with this mount as its writer until it is closed for good.
    pub(crate) fn reopen(&mut self) {
        if let Some(writing) = &mut self.writing {
            writing.reopen();
        }
    }

    /// Closes it.
    pub(crate) fn close(&mut self, writes: bool, now: Instant) {
        self.handles = self.handles.saturating_sub(1);
        self.writers = self.writers.saturating_sub(u32::from(writes));
        // Without a name and a writer it is removed, so it keeps this one for its readers.
        let is_kept = self.handles > 0 && self.inode.is_unlinked;
        if let Some(writing) = self.writing.as_mut().filter(|_| self.writers == 0 && !is_kept) {
            if writes {
                writing.close(now);
            } else if self.handles == 0 {
                // It was to be kept for its readers.
                writing.close_once(now);
            }
        }
    }

    /// Becomes the writer's, as the cluster has it now: this mount opened it for writing.
    pub(crate) fn begin_writing(&mut self, inode: Inode, now: Instant) {
        self.set_inode(inode);
        let inode = &self.inode;
        self.writing.get_or_insert_with(|| Writing::new(inode, now));
    }

    /// Sets when its bytes changed, if this mount writes it.
    pub(crate) fn set_modified(&mut self, modified: Time) {
        if let Some(writing) = &mut self.writing {
            writing.set_modified(modified);
        }
    }

    /// Takes bytes. They are stored when a chunk is full, after a second, or at the next sync.
    ///
    /// # Errors
    ///
    /// The file would be too large, or its generation failed before.
    pub(crate) fn write(&mut self, stores: &mut Stores, offset: u64, data: &[u8], now: Time) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= self.largest());
        let end = end.ok_or_else(|| self.too_large())?;
        if data.is_empty() {
            return Ok(());
        }
        self.begin_change(stores)?;
        let size = self.inode.chunk_size();
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (index, start) = ((at / size) as u32, at % size);
            let (part, more) = rest.split_at(rest.len().min((size - start) as usize));
            let stop = start + part.len() as u64;
            self.make_room(stores, index)?;
            let chunk = self.chunk(index);
            chunk.write(start, part);
            let is_full = stop == size && matches!(chunk.flush(), Flush::Whole(_));
            if let Some(writing) = &mut self.writing {
                writing.reserve(at + part.len() as u64);
                writing.set_modified(now);
            }
            if is_full {
                self.send(stores, index)?;
            }
            (at, rest) = (at + part.len() as u64, more);
        }
        debug_assert_eq!(at, end);
        Ok(())
    }

    /// Has the file end here at least, for an append that has to wait.
    pub(crate) fn reserve(&mut self, end: u64) {
        if let Some(writing) = &mut self.writing {
            writing.reserve(end);
        }
    }

    /// Sets the size.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub(crate) fn truncate(&mut self, stores: &mut Stores, size: u64, now: Time) -> Result<()> {
        if size > self.largest() {
            return Err(self.too_large());
        }
        self.begin_change(stores)?;
        let chunk_size = self.inode.chunk_size();
        let (last, part) = ((size / chunk_size) as u32, size % chunk_size);
        let kept = last + u32::from(part > 0);
        let is_shorter = self.writing.as_ref().is_some_and(|writing| size < writing.size());
        if is_shorter {
            // A chunk of this generation that stays in part is stored anew, shorter.
            let is_stored = self.writing.as_ref().is_some_and(|writing| writing.has(last));
            if part > 0 && (is_stored || self.buffers.has(last)) {
                self.make_room(stores, last)?;
                self.chunk(last).truncate(part);
            }
            self.buffers.truncate(kept);
        }
        if let Some(writing) = &mut self.writing {
            writing.set_size(size, kept, now);
        }
        Ok(())
    }

    /// Returns bytes, fewer at the file's end.
    ///
    /// # Errors
    ///
    /// Bytes are lost, or cannot be read now.
    pub(crate) fn read(&mut self, stores: &mut Stores, offset: u64, length: u64) -> Result<Read> {
        let end = offset.saturating_add(length).min(self.size());
        let size = self.inode.chunk_size();
        let (mut out, mut at) = (Vec::new(), offset);
        while at < end {
            let (index, start) = ((at / size) as u32, at % size);
            let stop = (start + (end - at)).min(size);
            let next = index + u32::from(stop == size);
            if !self.buffers.has(index) && self.source(index) == Source::Hole {
                out.resize(out.len() + (stop - start) as usize, 0);
                self.next_read = next;
            } else {
                self.load(stores, index, start..stop)?;
                self.next_read = next;
                let chunk = self.chunk(index);
                if (at, stop - start) == (offset, end - offset)
                    && let Some(part) = chunk.part(start, stop)
                {
                    return Ok(part);
                }
                out.reserve((end - at) as usize);
                chunk.copy(start, stop, &mut out);
            }
            at += stop - start;
        }
        Ok(Read::Own(out))
    }

    /// Stores all that was written, and has the cluster's inode tell it. Returns once the bytes survive lost servers.
    ///
    /// `mark` has agents look at the file's name again; it is needed if [`Self::begins`], unless the file has no name.
    ///
    /// # Errors
    ///
    /// Bytes could not be stored. They are kept, and may be stored by the next sync.
    pub(crate) fn sync(&mut self, stores: &mut Stores, mark: Option<Step>, closes: bool) -> Result<()> {
        self.check()?;
        self.flush(stores, None)?;
        let Some(writing) = &self.writing else { return Ok(()) };
        let (begins, changes) = (writing.is_dirty() && !writing.has_begun(), writing.is_dirty());
        if begins {
            self.copy_rest(stores)?;
        }
        if changes {
            // A put that is refused would cut a run in two.
            self.finish_puts(stores, 0)?;
            self.shorten_map(stores)?;
        }
        self.finish_puts(stores, 0)?;
        let Some(writing) = &mut self.writing else { return Ok(()) };
        writing.sync_spilled()?;
        let (mount, earlier) = (stores.mount, self.inode.clone());
        let written = writing.written();
        if begins {
            if let Some(mark) = mark {
                stores.cluster.run(vec![mark])?;
            }
            stores.cluster.edit(self.ino, Edit::Begin(mount, written.clone()))?;
            writing.begin();
        }
        if writing.has_begun() && (changes && !begins || closes && writing.is_open()) {
            stores.cluster.edit(self.ino, Edit::Sync(mount, written, closes))?;
            writing.set_open(!closes);
        }
        if changes {
            let unused = writing.synced();
            if !unused.is_empty() {
                stores.cluster.drop_chunks(self.ino, unused);
                // Another mount that read the inode before would read the chunks' earlier bytes.
                stores.cluster.finish_deletions();
            }
        }
        if begins {
            stores.cluster.drop_chunks(self.ino, Map::new(&earlier.map).chunks());
        }
        if changes || closes {
            self.inode = stores.cluster.inode(self.ino)?.ok_or_else(|| gone(self.ino))?;
        }
        Ok(())
    }

    /// Ends this mount's writing: the generation is frozen, if it began one. It was synced and closed.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn settle(&mut self, stores: &mut Stores) -> Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        // What could not be stored is lost with its writer, as after its death.
        let edit = if writing.check().is_err() || writing.is_dirty() {
            Edit::Abandon(stores.mount)
        } else {
            Edit::Settle(stores.mount)
        };
        let unused = writing.has_spilled() && !writing.has_begun();
        let generation = writing.generation().0;
        stores.cluster.edit(self.ino, edit)?;
        self.writing = None;
        if unused {
            // Nothing reads it. One that stays takes room, and does no other harm.
            let _ = stores.backing.drop_data(self.ino, generation..generation.saturating_add(1));
        }
        self.puts.clear();
        self.buffers.clear();
        // Of a lost file the earlier one stays: it cannot be read either.
        self.inode = stores.cluster.inode(self.ino)?.unwrap_or_else(|| self.inode.clone());
        Ok(())
    }

    /// Stores chunks that are dirty: all, or those since before a time.
    ///
    /// # Errors
    ///
    /// As [`Self::sync`].
    pub(crate) fn flush(&mut self, stores: &mut Stores, before: Option<Instant>) -> Result<()> {
        self.buffers.due(before).into_iter().try_for_each(|index| self.send(stores, index))
    }

    /// Returns all chunks that the file has in the cluster.
    pub(crate) fn stored(&self) -> Vec<(u32, Generation)> {
        let mut all: Vec<_> = Map::new(&self.inode.map).chunks().collect();
        if let Some(writing) = &self.writing {
            all.extend(writing.stored());
        }
        all
    }

    fn size(&self) -> u64 {
        self.writing.as_ref().map_or(self.inode.size, Writing::size)
    }

    fn largest(&self) -> u64 {
        u64::from(MAX_CHUNKS) << self.inode.chunk_bits
    }

    fn too_large(&self) -> Error {
        let why = format!("write {}: it would be too large: use a larger --chunk", Key::Inode(self.ino));
        Error::new(Errno::FBIG, why)
    }

    fn check(&self) -> Result<()> {
        self.writing.as_ref().map_or(Ok(()), Writing::check)
    }

    /// Has the cluster know that the generation is open, before a change of what was closed.
    fn begin_change(&mut self, stores: &mut Stores) -> Result<()> {
        self.check()?;
        let Some(writing) = &mut self.writing else {
            let why = format!("write {}: it is not open for writing", Key::Inode(self.ino));
            return Err(Error::new(Errno::BADF, why));
        };
        if writing.waits_for_disk() {
            let why = format!("write {}: a sync of it is under way: wait for the disk", Key::Inode(self.ino));
            return Err(Error::passing(Errno::AGAIN, why));
        }
        if writing.has_begun() && !writing.is_open() {
            stores.cluster.edit(self.ino, Edit::Sync(stores.mount, writing.written(), false))?;
            writing.set_open(true);
        }
        Ok(())
    }

    /// Returns where a chunk's bytes are.
    fn source(&self, index: u32) -> Source {
        let start = u64::from(index) << self.inode.chunk_bits;
        let within = |size: u64| size.saturating_sub(start).min(self.inode.chunk_size());
        let limit = match &self.writing {
            Some(writing) => match writing.place(index) {
                Place::Chunk(generation) => return Source::Chunk(generation, within(writing.size())),
                Place::Spilled => return Source::Spilled(within(writing.size())),
                Place::Earlier(limit) => limit,
            },
            None => self.inode.size,
        };
        let length = within(limit);
        match Map::new(&self.inode.map).get(index) {
            _ if length == 0 => Source::Hole,
            Some(generation) => Source::Chunk(generation, length),
            None if self.inode.state == State::Persisted || self.inode.is_spilled => {
                Source::Disk(self.inode.generation, length)
            }
            None => Source::Hole,
        }
    }

    /// Returns a chunk's buffer.
    fn chunk(&mut self, index: u32) -> &mut Chunk {
        let (stored, size) = (self.source(index).length(), self.inode.chunk_size());
        self.buffers.chunk(index, stored, size)
    }

    /// Has bytes of a chunk in its buffer.
    fn load(&mut self, stores: &mut Stores, index: u32, range: Range<u64>) -> Result<()> {
        self.make_room(stores, index)?;
        let mut ahead = if index > 0 && index == self.next_read { READ_AHEAD } else { 1 };
        // Chunks ahead could take its place.
        while !self.chunk(index).has(range.clone()) {
            self.load_ahead(stores, index, ahead)?;
            ahead = 1;
        }
        Ok(())
    }

    fn load_ahead(&mut self, stores: &mut Stores, index: u32, ahead: u32) -> Result<()> {
        // A hole may have a buffer that does not know it: of a read beyond the bytes that the hole took the place of.
        let wanted = |node: &Self, at: u32| at == index || !node.buffers.has(at) && node.source(at) != Source::Hole;
        let indexes: Vec<u32> = (index..index.saturating_add(ahead)).filter(|&at| wanted(self, at)).collect();
        for (at, bytes) in self.fetch(stores, &indexes)? {
            if at != index {
                self.make_room(stores, at)?;
            }
            self.chunk(at).take(bytes);
        }
        Ok(())
    }

    /// Reads chunks from where they are.
    fn fetch(&mut self, stores: &mut Stores, indexes: &[u32]) -> Result<Vec<(u32, Vec<u8>)>> {
        let is_ours = self.writing.as_ref().is_some_and(Writing::has_begun);
        let sources: Vec<(u32, Source)> = indexes.iter().map(|&index| (index, self.source(index))).collect();
        let mut keys = Vec::with_capacity(sources.len());
        for &(index, source) in &sources {
            if let Source::Chunk(generation, length) = source {
                let key = Key::Chunk(self.ino, generation, index);
                stores.cluster.expect(&key, length);
                keys.push(key);
            }
        }
        let mut values = stores.cluster.many(&keys)?.into_iter();
        let mut chunks = Vec::with_capacity(sources.len());
        for (index, source) in sources {
            let bytes = match source {
                Source::Hole => Vec::new(),
                Source::Disk(generation, length) => self.disk(stores, index, generation, length)?,
                Source::Spilled(length) => self.spilled(index, length)?,
                Source::Chunk(generation, length) => match values.next().flatten() {
                    Some(value) => {
                        let mut bytes = value.into_vec();
                        bytes.truncate(length as usize);
                        bytes
                    }
                    // It was evicted since the inode was read, or a later generation took its place.
                    None => {
                        let inode = stores.cluster.inode_now(self.ino)?.ok_or_else(|| gone(self.ino))?;
                        if !is_ours && inode.generation != self.inode.generation {
                            let why = format!("read {}: another mount wrote it: open it again", Key::Inode(self.ino));
                            return Err(Error::new(Errno::STALE, why));
                        }
                        let is_elsewhere = !is_ours && Map::new(&inode.map).get(index).is_none();
                        if is_elsewhere && inode.state != State::Persisted {
                            // Its writer moved it to the data file, or cut the file.
                            let bytes = if inode.is_spilled {
                                self.disk(stores, index, generation, length)?
                            } else {
                                Vec::new()
                            };
                            chunks.push((index, bytes));
                            continue;
                        }
                        let is_persisted = inode.state == State::Persisted && inode.generation == generation;
                        if !is_persisted {
                            let key = Key::Chunk(self.ino, generation, index);
                            let why = format!("read {key}: its servers are lost, and it was not persisted: restore it");
                            return Err(Error::new(Errno::IO, why));
                        }
                        self.disk(stores, index, generation, length)?
                    }
                },
            };
            chunks.push((index, bytes));
        }
        Ok(chunks)
    }

    fn disk(&self, stores: &Stores, index: u32, generation: Generation, length: u64) -> Result<Vec<u8>> {
        let offset = u64::from(index) << self.inode.chunk_bits;
        let bytes = stores.backing.read(self.ino, generation, offset, length)?;
        bytes.ok_or_else(|| {
            let why = format!("read {}: the backing has no data file of it: restore it", Key::Inode(self.ino));
            Error::new(Errno::IO, why)
        })
    }

    fn spilled(&self, index: u32, length: u64) -> Result<Vec<u8>> {
        let offset = u64::from(index) << self.inode.chunk_bits;
        self.writing.as_ref().map_or(Ok(Vec::new()), |writing| writing.spilled(offset, length))
    }

    /// Stores a chunk, if it is dirty.
    fn send(&mut self, stores: &mut Stores, index: u32) -> Result<()> {
        if self.buffers.find(index).is_some_and(|chunk| chunk.flush() == Flush::Fetch) {
            let fetched = self.fetch(stores, &[index])?;
            for (at, bytes) in fetched {
                self.chunk(at).take(bytes);
            }
        }
        self.finish_puts(stores, WINDOW - 1)?;
        let Some(generation) = self.writing.as_ref().map(Writing::generation) else { return Ok(()) };
        if self.buffers.find(index).and_then(Chunk::value).is_none() {
            return Ok(());
        }
        if self.writing.as_ref().is_some_and(|writing| writing.spills(&stores.room, index)) {
            return self.spill(stores, index);
        }
        let Some(chunk) = self.buffers.find(index) else { return Ok(()) };
        let Some(value) = chunk.value() else { return Ok(()) };
        let ticket = stores.cluster.put(&Key::Chunk(self.ino, generation, index), value)?;
        let taken = chunk.take_dirty();
        self.puts.push_back(Put { index, ticket, taken });
        if let Some(writing) = &mut self.writing {
            writing.send(index);
        }
        Ok(())
    }

    /// Stores a chunk in the data file, whose buffer has all of it.
    fn spill(&mut self, stores: &Stores, index: u32) -> Result<()> {
        let (Some(chunk), Some(writing)) = (self.buffers.find(index), &mut self.writing) else { return Ok(()) };
        let Some(bytes) = chunk.bytes() else { return Ok(()) };
        writing.spill(&stores.backing, (self.ino, self.inode.chunk_bits), (index, bytes))?;
        chunk.take_dirty();
        Ok(())
    }

    /// Waits until at most so many chunks are under way.
    fn finish_puts(&mut self, stores: &mut Stores, left: usize) -> Result<()> {
        while self.puts.len() > left || self.puts.front().is_some_and(|put| stores.cluster.is_done(&put.ticket)) {
            let Some(put) = self.puts.pop_front() else { return Ok(()) };
            let outcome = stores.cluster.wait(put.ticket);
            let chunk = self.buffers.find(put.index);
            let Err(error) = outcome else {
                stores.room.stored();
                if let Some(chunk) = chunk {
                    chunk.stored();
                }
                continue;
            };
            let is_unknown = matches!(error, ClientError::OutcomeUnknown { .. });
            let error = Error::of_client(&error);
            let Some(writing) = &mut self.writing else { return Err(error) };
            let is_copy = put.taken.is_empty();
            if is_copy {
                // The earlier generation still has it, unless a write is under way behind it.
                if !self.puts.iter().any(|other| other.index == put.index) {
                    writing.take_back(put.index);
                }
            } else if let Some(chunk) = chunk {
                chunk.restore(&put.taken);
            }
            // A write that may still be carried out could replace a later one.
            let is_gone = !is_copy && !self.buffers.has(put.index) && writing.is_sent(put.index);
            if is_unknown || is_gone {
                writing.fail(error.clone());
            } else if error.may_pass() {
                let now = Instant::now();
                stores.room.refused(now);
                let refused = self.buffers.find(put.index).map(|chunk| chunk.refused(now));
                let is_over = refused.is_some_and(|since| stores.room.is_over(since, now));
                // Copies are made again by the next try of the sync.
                if !is_copy && (is_over || writing.spills(&stores.room, put.index)) {
                    self.spill(stores, put.index)?;
                    continue;
                }
            }
            return Err(error);
        }
        Ok(())
    }

    /// Makes room for a buffer: the one that was used longest ago goes, and is stored before if it is dirty.
    fn make_room(&mut self, stores: &mut Stores, index: u32) -> Result<()> {
        let most = (stores.buffered >> self.inode.chunk_bits).max(READ_AHEAD.into()) as usize;
        while !self.buffers.has(index) && self.buffers.count() >= most {
            // A put that fails has its chunk stored again. Copies are read again.
            let under_way: Vec<u32> =
                self.puts.iter().filter(|put| !put.taken.is_empty()).map(|put| put.index).collect();
            if self.buffers.evict(&under_way) {
                continue;
            }
            if let Some(dirty) = self.buffers.oldest_dirty() {
                self.send(stores, dirty)?;
                self.finish_puts(stores, WINDOW / 2)?;
            } else {
                self.finish_puts(stores, self.puts.len().saturating_sub(1))?;
            }
        }
        Ok(())
    }

    /// Copies the chunks of the earlier generation that were not written.
    fn copy_rest(&mut self, stores: &mut Stores) -> Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let (generation, end) = (writing.generation(), writing.earlier().div_ceil(self.inode.chunk_size()) as u32);
        let is_left = |node: &Self, index: u32| {
            let is_stored = node.writing.as_ref().is_some_and(|writing| writing.has(index));
            !is_stored && node.source(index) != Source::Hole
        };
        let left: Vec<u32> = (0..end).filter(|&index| is_left(self, index)).collect();
        for indexes in left.chunks(READ_AHEAD as usize) {
            for (index, bytes) in self.fetch(stores, indexes)? {
                // Holes of a file on the backing stay holes.
                if bytes.iter().all(|&byte| byte == 0) {
                    continue;
                }
                self.finish_puts(stores, WINDOW - 1)?;
                let place = (self.ino, self.inode.chunk_bits);
                if let Some(writing) = self.writing.as_mut().filter(|writing| writing.spills(&stores.room, index)) {
                    writing.spill(&stores.backing, place, (index, &bytes))?;
                    continue;
                }
                let ticket = stores.cluster.put(&Key::Chunk(self.ino, generation, index), &bytes)?;
                self.puts.push_back(Put { index, ticket, taken: Ranges::default() });
                if let Some(writing) = &mut self.writing {
                    writing.send(index);
                }
            }
        }
        Ok(())
    }

    /// Makes the map short enough for an inode.
    fn shorten_map(&mut self, stores: &mut Stores) -> Result<()> {
        let Some(writing) = self.writing.as_ref().filter(|writing| !writing.fits()) else { return Ok(()) };
        // Chunks that are not in the map may be in the data file.
        if writing.has_spilled() || stores.room.spills(Instant::now()) {
            self.spill_runs(stores)
        } else {
            self.fill_holes(stores)
        }
    }

    /// Moves the chunks of the shortest runs to the data file.
    fn spill_runs(&mut self, stores: &mut Stores) -> Result<()> {
        self.finish_puts(stores, 0)?;
        let surplus = self.writing.as_ref().map_or_else(Vec::new, Writing::surplus);
        let place = (self.ino, self.inode.chunk_bits);
        for index in surplus {
            for (index, bytes) in self.fetch(stores, &[index])? {
                let Some(writing) = &mut self.writing else { return Ok(()) };
                writing.spill(&stores.backing, place, (index, &bytes))?;
            }
        }
        Ok(())
    }

    /// Stores chunks of zeros in place of holes.
    fn fill_holes(&mut self, stores: &mut Stores) -> Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let generation = writing.generation();
        for index in writing.holes() {
            self.finish_puts(stores, WINDOW - 1)?;
            let ticket = stores.cluster.put(&Key::Chunk(self.ino, generation, index), &[0])?;
            self.puts.push_back(Put { index, ticket, taken: Ranges::default() });
            if let Some(writing) = &mut self.writing {
                writing.send(index);
            }
        }
        Ok(())
    }
}

/// Returns the time after which dirty chunks are stored though their file stays open.
pub(crate) const FLUSH_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::empty_file;

    fn inode() -> Inode {
        Inode { state: State::Persisted, reserved: Generation(1), writer: Some(MountId(7)), backing: 5, ..empty_file() }
    }

    /// The file was to lose its name, so its reader keeps it; and it kept the name.
    #[test]
    fn a_kept_file_is_closed_with_its_last_reader() {
        let mut node = Node::new(Ino(5), inode());
        node.open(false);
        node.open(false);
        node.begin_writing(inode(), Instant::now());
        node.reopen();
        node.close(false, Instant::now());
        assert_eq!(node.closed(), None);
        node.close(false, Instant::now());
        assert!(node.closed().is_some());
    }

    /// Its writer closed it, and a reader has it still.
    #[test]
    fn only_a_file_with_a_name_is_closed_by_its_writer() {
        for is_unlinked in [false, true] {
            let mut node = Node::new(Ino(5), inode());
            node.begin_writing(Inode { is_unlinked, ..inode() }, Instant::now());
            node.open(true);
            node.open(false);
            node.close(true, Instant::now());
            assert_eq!(node.closed().is_none(), is_unlinked);
            node.close(false, Instant::now());
            assert!(node.closed().is_some());
        }
    }

    #[test]
    fn a_file_without_a_name_is_in_no_directory() {
        let in_root = |is_unlinked| Node::new(Ino(5), Inode { is_unlinked, ..inode() }).is_in(Ino::ROOT);
        assert!(in_root(false) && !in_root(true));
    }
}
