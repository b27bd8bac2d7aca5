//! Chunks of an open file that go to the backing directory, because the servers have no room for them.
//!
//! Agents drain closed files only. So if programs keep more bytes in open files than the servers have memory, nothing makes room. Then
//! a mount writes full chunks to a data file of its own, `.rdmakv/data/INO.GEN.w`, until servers take chunks again. It syncs that file
//! before the cluster's inode tells of the generation. The agent makes it the generation's data file once the generation is frozen.
//!
//! Only the mount that writes the generation has the file open. Once a mount is thought dead, it may wake and write on. So the agent
//! copies the file of a torn generation, and takes others as they are: their mount had closed them, and writes nothing more.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdmakv_proto::files::{Generation, Ino, Key, Run};
use rustix::io::Errno;

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::life::spawn;
use crate::map::Map;

/// Bytes that are written before a sync of them begins. While it is under way, so many more may be written.
const SYNC: u64 = 64 << 20;

/// How long chunks go to the backing before the servers are asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// Whether the servers have room, as far as a mount knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// How long servers refuse all chunks before some go to the backing.
    patience: Duration,
    /// When they refused one, after they had stored the one before.
    refused: Option<Instant>,
    /// Until then, chunks go to the backing.
    until: Option<Instant>,
}

impl Room {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, refused: None, until: None }
    }

    /// Notes that the servers stored a chunk.
    pub(crate) fn stored(&mut self) {
        (self.refused, self.until) = (None, None);
    }

    /// Notes that they refused one for want of room.
    pub(crate) fn refused(&mut self, now: Instant) {
        let since = *self.refused.get_or_insert(now);
        if self.is_over(since, now) {
            self.until = now.checked_add(AGAIN);
        }
    }

    /// Returns whether servers have refused for long enough.
    pub(crate) fn is_over(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.patience
    }

    /// Returns whether chunks go to the backing now.
    pub(crate) fn spills(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// The chunks of one generation that are in its writer's data file.
#[derive(Debug)]
pub(crate) struct Spilled {
    ino: Ino,
    generation: Generation,
    file: Arc<File>,
    chunks: Map,
    /// Bytes that were written since the last sync began.
    unsynced: u64,
    sync: Option<JoinHandle<io::Result<()>>>,
    /// The file has to be cut here before it grows again: a program made it shorter.
    cut: Option<u64>,
    /// Why a sync failed. The system tells it once, and the next sync would succeed.
    lost: Option<Error>,
}

impl Spilled {
    /// Opens the data file of a generation that this mount writes.
    ///
    /// # Errors
    ///
    /// The backing fails: it may pass.
    pub(crate) fn open(backing: &Backing, ino: Ino, generation: Generation) -> Result<Self> {
        let file = backing.spill_file(ino, generation).map_err(|errno| no_room(ino, errno))?;
        let (file, chunks) = (Arc::new(file), Map::default());
        Ok(Self { ino, generation, file, chunks, unsynced: 0, sync: None, cut: None, lost: None })
    }

    /// Returns whether a chunk's bytes are here.
    pub(crate) fn has(&self, index: u32) -> bool {
        self.chunks.get(index).is_some()
    }

    /// Writes a chunk to its place in the file; zeros follow up to its end.
    ///
    /// # Errors
    ///
    /// The backing has no room or fails, or too much is to be synced first: it may pass.
    pub(crate) fn write(&mut self, index: u32, chunk_bits: u8, bytes: &[u8]) -> Result<()> {
        if self.unsynced >= SYNC {
            self.begin_sync()?;
        }
        let start = u64::from(index) << chunk_bits;
        let end = start + bytes.len() as u64;
        // Counted before: a write that fails may have written a part.
        self.unsynced += bytes.len() as u64;
        let written = self.cut_now().and_then(|()| self.file.write_all_at(bytes, start)).and_then(|()| {
            // What an earlier write left behind these bytes goes. The part that is not in the file is a hole.
            self.fill(end, start + (1 << chunk_bits))
        });
        written.map_err(|error| no_room(self.ino, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        self.chunks.set(Run { first: index, count: 1, generation: self.generation });
        Ok(())
    }

    /// Returns bytes of the file, fewer at its end.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let length = self.cut.map_or(length, |cut| length.min(cut.saturating_sub(offset)));
        let mut bytes = vec![0; length as usize];
        let mut at = 0;
        while at < bytes.len() {
            match self.file.read_at(&mut bytes[at..], offset + at as u64) {
                Ok(0) => break,
                Ok(read) => at += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    return Err(Error::of_backing(errno, "read data file of", Key::Inode(self.ino)));
                }
            }
        }
        bytes.truncate(at);
        Ok(bytes)
    }

    /// Ends the file at a size, with so many chunks, before it grows again.
    pub(crate) fn truncate(&mut self, chunks: u32, size: u64) {
        self.chunks.truncate(chunks);
        self.cut = Some(self.cut.map_or(size, |cut| cut.min(size)));
    }

    /// Has all that was written on the disk. Call it again while its error may pass.
    ///
    /// # Errors
    ///
    /// It is under way, which passes, or it failed: then bytes may be lost.
    pub(crate) fn sync(&mut self) -> Result<()> {
        if self.cut.is_some() {
            let cut = self.cut_now();
            cut.map_err(|error| no_room(self.ino, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        }
        while self.unsynced > 0 || self.sync.is_some() || self.lost.is_some() {
            self.begin_sync()?;
            // A short one is not worth another try.
            for _ in 0..10 {
                if self.sync.as_ref().is_none_or(JoinHandle::is_finished) {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            self.end_sync()?;
        }
        Ok(())
    }

    /// Begins to sync what was written, once the sync before has ended.
    fn begin_sync(&mut self) -> Result<()> {
        self.end_sync()?;
        if self.unsynced > 0 {
            let file = Arc::clone(&self.file);
            let thread = spawn("rdmakv-sync", move || file.sync_data());
            // There may be threads again later.
            self.sync = Some(thread.map_err(|error| Error::passing(Errno::NOSPC, error.to_string()))?);
            self.unsynced = 0;
        }
        Ok(())
    }

    fn end_sync(&mut self) -> Result<()> {
        self.lost.clone().map_or(Ok(()), Err)?;
        let Some(sync) = self.sync.take() else { return Ok(()) };
        if !sync.is_finished() {
            self.sync = Some(sync);
            let why = format!("sync data file of {}: it is under way: wait for the disk", Key::Inode(self.ino));
            return Err(Error::passing(Errno::AGAIN, why));
        }
        let synced = sync.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        synced.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            let lost = Error::of_backing(errno, "sync data file of", Key::Inode(self.ino));
            self.lost = Some(lost.clone());
            lost
        })
    }

    fn cut_now(&mut self) -> io::Result<()> {
        if let Some(cut) = self.cut {
            if self.file.metadata()?.len() > cut {
                self.file.set_len(cut)?;
                self.unsynced += 1;
            }
            self.cut = None;
        }
        Ok(())
    }

    /// Writes zeros up to an offset, or to the file's end if that is before.
    fn fill(&mut self, from: u64, to: u64) -> io::Result<()> {
        let to = to.min(self.file.metadata()?.len());
        if from < to {
            self.unsynced += to - from;
            self.file.write_all_at(&vec![0; (to - from) as usize], from)?;
        }
        Ok(())
    }
}

/// Returns the error of a chunk that neither the servers nor the backing can take.
fn no_room(ino: Ino, errno: Errno) -> Error {
    let why = format!(
        "write {}: the servers have no room, and its data file fails ({errno}): see the backing directory",
        Key::Inode(ino)
    );
    Error::passing(Errno::NOSPC, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BITS: u8 = 4;
    const CHUNKS: u32 = 6;

    fn spilled(file: File) -> Spilled {
        let (ino, generation, chunks) = (Ino(5), Generation(1), Map::default());
        Spilled { ino, generation, file: Arc::new(file), chunks, unsynced: 0, sync: None, cut: None, lost: None }
    }

    #[test]
    fn chunks_spill_after_refusals_for_a_while() {
        let begin = Instant::now();
        let after = |millis| begin + Duration::from_millis(millis);
        let mut room = Room::new(Duration::from_secs(1));
        room.refused(begin);
        room.refused(after(999));
        assert!(!room.spills(after(999)));
        room.refused(after(1000));
        assert!(room.spills(after(1099)) && !room.spills(after(1100)));
        // The servers were asked again, and refused again.
        room.refused(after(1101));
        assert!(room.spills(after(1101)));
        room.stored();
        room.refused(after(1102));
        assert!(!room.spills(after(1102)));
    }

    #[test]
    fn a_mount_that_is_to_wait_never_spills() {
        let mut room = Room::new(Duration::MAX);
        room.refused(Instant::now());
        assert!(!room.spills(Instant::now()));
    }

    proptest! {
        /// Compared with a plain vector of which a chunk is read only if it is here.
        #[test]
        fn chunks_are_read_as_they_were_spilled(
            steps in proptest::collection::vec((0..4, 0..CHUNKS, proptest::collection::vec(1..=255_u8, 1..=16)), 0..40),
        ) {
            let mut spilled = spilled(tempfile::tempfile().unwrap());
            let mut plain: Vec<Option<Vec<u8>>> = vec![None; CHUNKS as usize];
            for (step, index, bytes) in steps {
                match step {
                    0 | 1 => {
                        spilled.write(index, BITS, &bytes).unwrap();
                        plain[index as usize] = Some(bytes);
                    }
                    2 => {
                        let (size, part) = ((u64::from(index) << BITS) + bytes.len() as u64 - 1, bytes.len() - 1);
                        spilled.truncate(index + u32::from(part > 0), size);
                        plain[index as usize + 1..].fill(None);
                        match &mut plain[index as usize] {
                            last if part == 0 => *last = None,
                            Some(last) => last.truncate(part),
                            None => {}
                        }
                    }
                    _ => while let Err(error) = spilled.sync() {
                        assert!(error.may_pass(), "{error}");
                    },
                }
                for (index, expected) in (0..).zip(&plain) {
                    prop_assert_eq!(spilled.has(index), expected.is_some());
                    if let Some(expected) = expected {
                        let mut read = spilled.read(u64::from(index) << BITS, 1 << BITS).unwrap();
                        read.resize(1 << BITS, 0);
                        let mut expected = expected.clone();
                        expected.resize(1 << BITS, 0);
                        prop_assert_eq!(read, expected);
                    }
                }
            }
        }
    }
}
