//! `FILE`: the items of an orderly stop, behind a superblock that tells whose it is and of which stop.
//!
//! | at | bytes | what                                     |
//! |---:|------:|------------------------------------------|
//! |  0 |     8 | magic: `rdmakvim`                        |
//! |  8 |     4 | version of the format: 1                 |
//! | 12 |     4 | state: 1 in use, 2 clean                 |
//! | 16 |     8 | stop id, where clean; else 0             |
//! | 24 |     4 | CRC32C of the above                      |
//! | 4096 |     | blocks: length, CRC32C, items of a shard |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rdmakv_flash::record;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatfs, fstatvfs};

use crate::session::Shards;
use crate::store::ImagePlace;

const MAGIC: &[u8; 8] = b"rdmakvim";
const VERSION: u32 = 1;
const SUM_AT: usize = 24;
/// The begin of the items.
pub(super) const BEGIN: u64 = 4096;
/// A block has so many bytes, and the rest of its last item.
const BLOCK: usize = 1 << 20;
/// Length and sum before a block.
const BLOCK_HEAD: u64 = 8;
/// Between two looks at a lock.
const LOOK: Duration = Duration::from_millis(20);
/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;

/// FILE, locked by this process.
#[derive(Debug)]
pub(super) struct WarmFile {
    path: PathBuf,
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

/// Returns the bytes of a superblock.
fn superblock(stop: Option<u64>) -> Vec<u8> {
    let mut bytes = vec![0; BEGIN as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(1 + u32::from(stop.is_some())).to_le_bytes());
    bytes[16..SUM_AT].copy_from_slice(&stop.unwrap_or(0).to_le_bytes());
    let sum = record::sum(&bytes[..SUM_AT]);
    bytes[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The owner that a superblock names.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Empty,
    Foreign,
    /// A server's, and the stop of which its items are.
    Ours(Option<u64>),
}

fn owner(bytes: &[u8]) -> Owner {
    if bytes.iter().all(|&byte| byte == 0) {
        return Owner::Empty;
    }
    if !bytes.starts_with(MAGIC) || bytes.len() < SUM_AT + 4 {
        return Owner::Foreign;
    }
    let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let is_clean = half(8) == VERSION && half(12) == 2 && half(SUM_AT) == record::sum(&bytes[..SUM_AT]);
    Owner::Ours(is_clean.then(|| u64::from(half(16)) | u64::from(half(20)) << 32))
}

impl WarmFile {
    /// Opens FILE or creates it, with room for items of so many bytes. Waits for its lock, `wait` at most.
    ///
    /// # Errors
    ///
    /// Why it cannot be used. Nothing that it has was changed.
    pub(super) fn open(path: &Path, bytes: u64, wait: Duration) -> Result<Self, String> {
        let failed = |doing: &str, error: &dyn std::fmt::Display| {
            format!("-e {}: {doing}: {error}: name a file in a directory that this user may write to", path.display())
        };
        let until = Instant::now() + wait;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NONBLOCK);
        let file = loop {
            let file = options.open(path).map_err(|error| failed("opening it", &error))?;
            let about = file.metadata().map_err(|error| failed("opening it", &error))?;
            if !about.is_file() {
                return Err(failed("opening it", &"it is not a regular file"));
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The server before may have put another one there.
                Ok(()) => match std::fs::metadata(path) {
                    Ok(there) if (there.dev(), there.ino()) == (about.dev(), about.ino()) => break file,
                    _ if Instant::now() < until => continue,
                    _ => return Err(failed("opening it", &"another program replaces it")),
                },
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if Instant::now() < until => {
                    std::thread::sleep(LOOK);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(format!(
                        "-e {}: another server uses it: stop that one or name another file",
                        path.display()
                    ));
                }
                Err(error) => return Err(failed("locking it", &error)),
            }
        };
        let mut head = vec![0; BEGIN as usize];
        let read = read_up_to(&file, &mut head).map_err(|error| failed("reading it", &error))?;
        let stop = match owner(&head[..read]) {
            Owner::Empty => None,
            Owner::Ours(stop) => stop,
            Owner::Foreign => {
                return Err(format!(
                    "-e {}: another program wrote it: name another file, or remove this one",
                    path.display()
                ));
            }
        };
        let is_new = head.iter().all(|&byte| byte == 0);
        let is_memory = fstatfs(&file).is_ok_and(|about| about.f_type as u64 == TMPFS);
        let own = Self { path: path.to_owned(), file, size: BEGIN + bytes, stop, is_new, is_memory };
        own.reserve().inspect_err(|_| {
            if own.is_new {
                // It was made in vain, and is locked still.
                let _ = std::fs::remove_file(path);
            }
        })?;
        Ok(own)
    }

    /// Sees that a stop does not lack room.
    fn reserve(&self) -> Result<(), String> {
        let about = self.file.metadata().map_err(|error| self.too_small(&error))?;
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
            "-e {}: reserving {needed} MB for the items: {error}: name a file on a larger file system, or lower -m",
            self.path.display()
        )
    }

    /// Marks it as in use, or with the stop of which its items are, and waits until the device has all of it.
    pub(super) fn mark(&self, stop: Option<u64>) -> io::Result<()> {
        self.file.sync_data()?;
        self.file.write_all_at(&superblock(stop), 0)?;
        self.file.sync_data()
    }

    /// Gives memory back that items take which are not needed any more.
    pub(super) fn discard(&self) {
        if self.is_memory {
            // It stays as it is otherwise.
            let _ = self.file.set_len(BEGIN);
        }
    }

    /// Writes the items of all shards; returns the bytes of each, and how many items.
    pub(super) fn save(&self, shards: &Shards) -> io::Result<(Vec<u64>, u64)> {
        let (mut at, mut items) = (BEGIN, 0);
        let mut lengths = Vec::new();
        let mut block = Vec::with_capacity(BLOCK * 2);
        for shard in 0..shards.count() {
            let (store, begin) = (shards.at(shard), at);
            let mut place = ImagePlace::default();
            loop {
                block.clear();
                block.resize(BLOCK_HEAD as usize, 0);
                match store.image_on(&mut place, BLOCK, &mut block) {
                    0 => break,
                    more => items += more,
                }
                let (head, body) = block.split_at_mut(BLOCK_HEAD as usize);
                head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
                head[4..].copy_from_slice(&record::sum(body).to_le_bytes());
                self.file.write_all_at(&block, at)?;
                at += block.len() as u64;
            }
            lengths.push(at - begin);
        }
        Ok((lengths, items))
    }

    /// Brings the items of a shard back, `bytes` from there on; returns how many.
    pub(super) fn load(
        &self,
        shards: &Shards,
        shard: usize,
        (mut at, bytes): (u64, u64),
        now: u64,
    ) -> Result<u64, String> {
        let damaged = || "they are damaged".to_owned();
        let mut store = shards.at(shard);
        let end = at.checked_add(bytes).ok_or_else(damaged)?;
        let (mut items, mut block) = (0, Vec::new());
        while at < end {
            let mut head = [0; BLOCK_HEAD as usize];
            self.file.read_exact_at(&mut head, at).map_err(|error| error.to_string())?;
            let [a, b, c, d, sum @ ..] = head;
            let len = u32::from_le_bytes([a, b, c, d]);
            at += BLOCK_HEAD;
            // A damaged length takes no memory.
            if u64::from(len) > end.saturating_sub(at) || u64::from(len) > self.size {
                return Err(damaged());
            }
            block.resize(len as usize, 0);
            self.file.read_exact_at(&mut block, at).map_err(|error| error.to_string())?;
            if record::sum(&block) != u32::from_le_bytes(sum) {
                return Err(damaged());
            }
            items += store.restore(&block, now).map_err(|_| damaged())?;
            at += u64::from(len);
        }
        Ok(items)
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
        assert_eq!(owner(&superblock(None)), Owner::Ours(None));
        for stop in [0, 5, u64::MAX] {
            let bytes = superblock(Some(stop));
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
        assert!(error.contains("may write to"), "{error}");
        assert!(open(Path::new("/dev/null"), 1).unwrap_err().contains("not a regular file"));
        let vast = folder.path().join("vast");
        let error = open(&vast, 1 << 55).unwrap_err();
        assert!(error.contains("larger file system") && !vast.exists(), "{error}");
    }
}
