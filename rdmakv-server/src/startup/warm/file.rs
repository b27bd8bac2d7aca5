//! `FILE`: the items of an orderly stop, behind a superblock that tells whose it is and of which stop.
//!
//! | at | bytes | what                                     |
//! |---:|------:|------------------------------------------|
//! |  0 |     8 | magic: `rdmakvim`                        |
//! |  8 |     4 | version of the format: 1                 |
//! | 12 |     4 | state: 1 in use, 2 clean, 3 in use by a server that ends |
//! | 16 |     8 | stop id, where clean; else 0             |
//! | 24 |     4 | CRC32C of the above                      |
//! | 4096 |     | of each shard: items, then the [manifest](rdmakv_flash::Flash::write_manifest) of its flash |
//!
//! Items and manifests are in blocks: length (4), CRC32C (4), bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rdmakv_flash::record;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatfs, fstatvfs};

use crate::disk::{has_data, is_at, limit_below, open_or_make, remedy, remove_made};
use crate::log;
use crate::session::Shards;
use crate::store::ImagePlace;

const MAGIC: &[u8; 8] = b"rdmakvim";
const VERSION: u32 = 1;
const SUM_AT: usize = 24;
/// The begin of the items.
pub(super) const BEGIN: u64 = 4096;
/// Bytes of a block at least: it ends with the item that reaches them.
const BLOCK: usize = 1 << 20;
/// Length and sum before a block.
const BLOCK_HEAD: usize = 8;
/// Between two looks at a lock.
const LOOK: Duration = Duration::from_millis(20);
/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;

/// FILE, locked by this process.
#[derive(Debug)]
pub(in super::super) struct WarmFile {
    pub(super) path: PathBuf,
    /// The file itself, as `path` may be a symbolic link.
    pub(super) place: PathBuf,
    file: File,
    /// Bytes that it needs at most.
    size: u64,
    /// The stop of which its items are.
    pub(super) stop: Option<u64>,
    /// Whether no server wrote it before.
    pub(super) is_new: bool,
    /// Whether its bytes are memory.
    is_memory: bool,
}

/// The states in a superblock.
const IN_USE: u32 = 1;
const CLEAN: u32 = 2;
/// In use by a server that serves no new clients, and ends.
const ENDING: u32 = 3;

/// Returns the bytes of a superblock.
fn superblock(state: u32, stop: u64) -> Vec<u8> {
    let mut bytes = vec![0; BEGIN as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&state.to_le_bytes());
    bytes[16..SUM_AT].copy_from_slice(&stop.to_le_bytes());
    let sum = record::sum(&bytes[..SUM_AT]);
    bytes[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The owner that a superblock names.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// None: all bytes are zero.
    Empty,
    Foreign,
    /// A server's, and the stop of which its items are.
    Ours(Option<u64>),
}

/// Returns a state and a stop, if these bytes are a superblock.
fn state(bytes: &[u8]) -> Option<(u32, u64)> {
    let bytes = bytes.get(..SUM_AT + 4)?;
    let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let is_whole = half(8) == VERSION && half(SUM_AT) == record::sum(&bytes[..SUM_AT]);
    is_whole.then(|| (half(12), u64::from(half(16)) | u64::from(half(20)) << 32))
}

/// Returns whether the server that has the file ends. A clean one has not begun to serve, or has its last steps before it.
fn is_last_state(bytes: &[u8]) -> bool {
    state(bytes).is_some_and(|(state, _)| state != IN_USE)
}

fn owner(bytes: &[u8]) -> Owner {
    if bytes.iter().all(|&byte| byte == 0) {
        return Owner::Empty;
    }
    if !bytes.starts_with(MAGIC) || bytes.len() < SUM_AT + 4 {
        return Owner::Foreign;
    }
    Owner::Ours(state(bytes).filter(|(state, _)| *state == CLEAN).map(|(_, stop)| stop))
}

impl WarmFile {
    /// Opens FILE or creates it, with room for `bytes` of items. Waits for its lock, `wait` at most, and as long as a server that
    /// ends has it.
    ///
    /// # Errors
    ///
    /// Why it cannot be used. Nothing that it has was changed.
    pub(super) fn open(path: &Path, bytes: u64, wait: Duration) -> Result<Self, String> {
        let failed =
            |doing: &str, error: io::Error| format!("-e {}: {doing}: {error}: {}", path.display(), remedy(&error));
        let until = Instant::now() + wait;
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
        let (mut head, mut is_waiting) = (vec![0; BEGIN as usize], false);
        let (file, about, is_made) = loop {
            let (file, is_made) = open_or_make(&options, path).map_err(|error| failed("opening it", error))?;
            let about = file.metadata().map_err(|error| failed("opening it", error))?;
            if !about.is_file() {
                return Err(format!("-e {}: it is not a regular file: name one, or a new name", path.display()));
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The server before may have put another one there.
                Ok(()) if is_at(path, &file) => break (file, about, is_made),
                Ok(()) if Instant::now() < until => {}
                Ok(()) => {
                    let path = path.display();
                    return Err(format!("-e {path}: another program replaces it: name another file"));
                }
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if Instant::now() < until => {
                    std::thread::sleep(LOOK);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let is_ending = read_up_to(&file, &mut head).is_ok_and(|read| is_last_state(&head[..read]));
                    if !is_ending {
                        return Err(format!(
                            "-e {}: another server uses it: stop that one or name another file",
                            path.display()
                        ));
                    }
                    if !std::mem::replace(&mut is_waiting, true) {
                        log::print(format_args!("-e {}: waits until the server before has ended", path.display()));
                    }
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(failed("locking it", error.into())),
            }
        };
        let read = read_up_to(&file, &mut head).map_err(|error| failed("reading it", error))?;
        let unlike = |what: &str| format!("-e {}: {what}: name another file, or remove this one", path.display());
        let (stop, is_new) = match owner(&head[..read]) {
            Owner::Empty if has_data(&file).map_err(|error| failed("reading it", error))? => {
                return Err(unlike("it begins with zeros and has data behind them"));
            }
            Owner::Empty => (None, true),
            Owner::Ours(stop) => (stop, false),
            Owner::Foreign => return Err(unlike("another program wrote it")),
        };
        let is_memory = fstatfs(&file).is_ok_and(|about| about.f_type as u64 == TMPFS);
        let place = std::fs::canonicalize(path).map_err(|error| failed("opening it", error))?;
        let own = Self { path: path.to_owned(), place, file, size: BEGIN + bytes, stop, is_new, is_memory };
        // Known as a server's from now on: a start that fails leaves one that the next start takes.
        let is_ready = own.reserve().and_then(|()| {
            let marked = if is_new { own.mark(None) } else { Ok(()) };
            marked.map_err(|error| failed("writing it", error))
        });
        is_ready.inspect_err(|_| {
            if is_made && is_new {
                remove_made(path, &own.file);
            }
        })?;
        let private = std::fs::Permissions::from_mode(0o600);
        if about.mode() & 0o077 != 0 && own.file.set_permissions(private).is_err() {
            log::print(format_args!("-e {}: other users may read the items in it: chmod 600", path.display()));
        }
        Ok(own)
    }

    /// Returns whether a server that serves no new clients has the file still.
    pub(super) fn is_ending(path: &Path) -> bool {
        let mut head = vec![0; BEGIN as usize];
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        opened.is_ok_and(|file| {
            let is_held = flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK);
            is_held && read_up_to(&file, &mut head).is_ok_and(|read| is_last_state(&head[..read]))
        })
    }

    /// Sees that a stop does not lack room.
    fn reserve(&self) -> Result<(), String> {
        let about = self.file.metadata().map_err(|error| self.too_small(&error))?;
        if let Some(limit) = limit_below(self.size) {
            return Err(self.too_small(&format_args!("the limit on file sizes allows {limit} bytes (ulimit -f)")));
        }
        if self.is_memory {
            // Taken now it would be memory twice.
            let there = fstatvfs(&self.file).map_err(|error| self.too_small(&error))?;
            let free = there.f_bavail.saturating_mul(there.f_frsize).saturating_add(about.blocks() * 512);
            return if free < self.size { Err(self.too_small(&"too little is free")) } else { Ok(()) };
        }
        if about.len() < self.size {
            frrwp::fabric::grow_file(&self.file, self.size).map_err(|error| self.too_small(&error))?;
        }
        match fallocate(&self.file, FallocateFlags::empty(), 0, self.size) {
            // Then the stop finds out.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(error) => {
                let _ = self.file.set_len(about.len());
                Err(self.too_small(&error))
            }
        }
    }

    fn too_small(&self, error: &dyn std::fmt::Display) -> String {
        let needed = self.size.div_ceil(1 << 20);
        format!(
            "-e {}: reserving {needed} MiB for the items: {error}: name a file on a larger file system, or lower -m",
            self.path.display()
        )
    }

    /// Returns whether its path still leads to it.
    pub(super) fn is_there(&self) -> bool {
        is_at(&self.place, &self.file)
    }

    /// Marks it as in use, or with the stop of which its items are, and waits until the device has all of it.
    pub(super) fn mark(&self, stop: Option<u64>) -> io::Result<()> {
        self.file.sync_data()?;
        self.file.write_all_at(&superblock(if stop.is_some() { CLEAN } else { IN_USE }, stop.unwrap_or(0)), 0)?;
        self.file.sync_data()
    }

    /// Has the next server wait until this one has ended.
    pub(super) fn announce_end(&self) {
        // Without it the next one waits for less long.
        let _ = self.file.write_all_at(&superblock(ENDING, 0), 0);
    }

    /// Gives memory back that items take which are not needed any more.
    pub(super) fn discard(&self) {
        if self.is_memory {
            // It stays as it is otherwise.
            let _ = self.file.set_len(BEGIN);
        }
    }

    /// Writes the items of a shard from there on; returns the bytes that they take, and how many items. It takes the memory of a
    /// block and an item.
    pub(super) fn save(&self, shards: &Shards, shard: usize, at: u64) -> io::Result<(u64, u64)> {
        let (store, mut items) = (shards.at(shard), 0);
        let mut blocks = BlockWriter::new(self, at);
        let mut place = ImagePlace::default();
        loop {
            match store.image_on(&mut place, BLOCK, &mut blocks.block) {
                0 => break,
                more => items += more,
            }
            blocks.flush()?;
        }
        Ok((blocks.at - at, items))
    }

    /// Returns a writer of blocks from there on.
    pub(super) fn write_from(&self, at: u64) -> BlockWriter<'_> {
        BlockWriter::new(self, at)
    }

    /// Returns a reader of the bytes in the blocks from there on, which take `bytes`.
    pub(super) fn read_from(&self, (at, bytes): (u64, u64)) -> BlockReader<'_> {
        BlockReader { file: self, at, end: at.saturating_add(bytes), block: Vec::new(), read: 0 }
    }

    /// Brings the items of a shard back, `bytes` from there on; returns how many.
    pub(super) fn load(&self, shards: &Shards, shard: usize, place: (u64, u64), now: u64) -> Result<u64, String> {
        let mut store = shards.at(shard);
        let (mut items, mut blocks) = (0, self.read_from(place));
        while blocks.next().map_err(|error| error.to_string())? {
            items += store.restore(&blocks.block, now).map_err(|error| error.to_string())?;
        }
        Ok(items)
    }
}

/// Writes blocks one behind the other.
pub(super) struct BlockWriter<'a> {
    file: &'a WarmFile,
    /// The end of what is written.
    pub(super) at: u64,
    /// A head, and bytes that are not written yet.
    block: Vec<u8>,
}

impl<'a> BlockWriter<'a> {
    fn new(file: &'a WarmFile, at: u64) -> Self {
        let mut block = Vec::with_capacity(BLOCK * 2);
        block.resize(BLOCK_HEAD, 0);
        Self { file, at, block }
    }
}

impl Write for BlockWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.block.extend_from_slice(bytes);
        if self.block.len() >= BLOCK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    /// Ends the block, if it has bytes.
    fn flush(&mut self) -> io::Result<()> {
        let (head, body) = self.block.split_at_mut(BLOCK_HEAD);
        if body.is_empty() {
            return Ok(());
        }
        head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&record::sum(body).to_le_bytes());
        self.file.file.write_all_at(&self.block, self.at)?;
        self.at += self.block.len() as u64;
        self.block.truncate(BLOCK_HEAD);
        Ok(())
    }
}

/// Reads blocks one behind the other.
pub(super) struct BlockReader<'a> {
    file: &'a WarmFile,
    at: u64,
    end: u64,
    block: Vec<u8>,
    /// Bytes of the block that were taken.
    read: usize,
}

impl BlockReader<'_> {
    /// Reads the next block; returns whether there was one.
    fn next(&mut self) -> io::Result<bool> {
        self.read = 0;
        self.block.clear();
        if self.at >= self.end {
            return Ok(false);
        }
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "they are damaged");
        let mut head = [0; BLOCK_HEAD];
        self.file.file.read_exact_at(&mut head, self.at)?;
        let [a, b, c, d, sum @ ..] = head;
        let len = u32::from_le_bytes([a, b, c, d]);
        self.at += BLOCK_HEAD as u64;
        // A damaged length takes no memory.
        if u64::from(len) > self.end.saturating_sub(self.at) || u64::from(len) > self.file.size {
            return Err(damaged());
        }
        self.block.resize(len as usize, 0);
        self.file.file.read_exact_at(&mut self.block, self.at)?;
        self.at += u64::from(len);
        if record::sum(&self.block) == u32::from_le_bytes(sum) { Ok(true) } else { Err(damaged()) }
    }
}

impl Read for BlockReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.read == self.block.len() {
            if !self.next()? {
                return Ok(0);
            }
        }
        let rest = &self.block[self.read..];
        let len = rest.len().min(bytes.len());
        bytes[..len].copy_from_slice(&rest[..len]);
        self.read += len;
        Ok(len)
    }
}

/// Reads as many bytes as there are, from the begin.
fn read_up_to(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, bytes: u64) -> Result<WarmFile, String> {
        WarmFile::open(path, bytes, Duration::from_millis(50))
    }

    #[test]
    fn only_own_and_empty_files_are_taken() {
        assert_eq!(owner(&[]), Owner::Empty);
        assert_eq!(owner(&[0; 4096]), Owner::Empty);
        assert_eq!(owner(b"hello"), Owner::Foreign);
        assert_eq!(owner(b"rdmakvfl\x01\0\0\0\x01\0\0\0            "), Owner::Foreign);
        assert_eq!(owner(&superblock(IN_USE, 0)), Owner::Ours(None));
        for stop in [0, 5, u64::MAX] {
            let bytes = superblock(CLEAN, stop);
            assert_eq!(owner(&bytes), Owner::Ours(Some(stop)));
            for at in 8..SUM_AT + 4 {
                let mut broken = bytes.clone();
                broken[at] ^= 1;
                assert_eq!(owner(&broken), Owner::Ours(None), "byte {at}");
            }
        }
    }

    #[test]
    fn file_has_one_owner_and_its_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("items");
        let first = open(&path, 1 << 20).unwrap();
        assert!(first.is_new && first.stop.is_none());
        assert!(open(&path, 1 << 20).unwrap_err().contains("another server uses it"));
        first.mark(Some(7)).unwrap();
        drop(first);
        let second = open(&path, 1 << 20).unwrap();
        assert!(!second.is_new && second.stop == Some(7));
        drop(second);
        std::fs::write(&path, "a diary").unwrap();
        assert!(open(&path, 1 << 20).unwrap_err().contains("another program wrote it"));
        assert_eq!(std::fs::read(&path).unwrap(), b"a diary");
        let error = open(Path::new("/proc/nothing"), 1).unwrap_err();
        assert!(error.contains("make its directory"), "{error}");
        assert!(open(Path::new("/dev/null"), 1).unwrap_err().contains("not a regular file"));
        let vast = folder.path().join("vast");
        let error = open(&vast, 1 << 55).unwrap_err();
        assert!(error.contains("larger file system") && !vast.exists(), "{error}");
        std::fs::write(&vast, "").unwrap();
        open(&vast, 1 << 55).unwrap_err();
        assert_eq!(std::fs::metadata(&vast).unwrap().len(), 0, "another made it");
    }

    #[test]
    fn blocks_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("items"), 4 << 20).unwrap();
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let mut blocks = file.write_from(BEGIN);
        bytes.chunks(1000).for_each(|part| blocks.write_all(part).unwrap());
        blocks.flush().unwrap();
        let end = blocks.at;
        let read = |end: u64| {
            let mut read = Vec::new();
            file.read_from((BEGIN, end - BEGIN)).read_to_end(&mut read).map(|_| read)
        };
        assert!(read(end).unwrap() == bytes);
        for end in [end - 1, BEGIN + 5] {
            assert!(read(end).is_err(), "{end}");
        }
        file.file.write_all_at(&[!bytes[2_000_000]], BEGIN + 2_000_000 + 8 + 8).unwrap();
        assert!(read(end).is_err());
    }

    #[test]
    fn file_of_a_server_that_ends_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("items");
        let first = open(&path, 1 << 20).unwrap();
        first.announce_end();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| open(&path, 1 << 20));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!second.is_finished());
            first.mark(Some(7)).unwrap();
            drop(first);
            assert_eq!(second.join().unwrap().unwrap().stop, Some(7));
        });
    }
}
