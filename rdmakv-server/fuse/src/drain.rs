//! Carries frozen generations to their data files on the backing.
//!
//! Servers write the chunks that they have whole, if they have the directory. The others are read by the client, and written where their
//! index tells. A generation that was frozen at all servers never changes. So a file that is written twice, late, or by several processes,
//! gets the same bytes.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread::ScopedJoinHandle;

use rdmakv_client::Frozen;
use rdmakv_proto::files::{Draining, Generation, Ino, Inode, Key, Part, Places, Ranges};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use crate::backing::Backing;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::faults::Countdown;
use crate::finish::AGENT;
use crate::map::Map;
use crate::orders::{LEAST, orders};

/// Bytes of chunks that are read at once.
const READ: u64 = 8 << 20;

/// Bytes that are written before they are synced, and stated in the cluster. While they are, the next ones are written.
const SYNC: u64 = 64 << 20;

/// Returns the chunks of an inode's generation, as servers freeze them.
pub(crate) fn frozen(ino: Ino, inode: &Inode) -> Frozen {
    let own = inode.map.iter().filter(|run| run.generation == inode.generation);
    Frozen {
        ino: ino.0,
        generation: inode.generation.0,
        size: inode.size,
        chunk_bits: inode.chunk_bits,
        runs: own.map(|run| (run.first, run.count)).collect(),
    }
}

/// How servers help with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Help {
    /// They wrote some of it.
    Came,
    /// They wrote none of it: they do not have the directory, or cannot write there.
    Absent,
    /// Not all of them answered.
    Failed,
    /// They were not asked.
    Unasked,
}

/// The bytes of a file that were written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Carried {
    /// By servers and by this agent.
    pub(crate) written: u64,
    /// By servers.
    pub(crate) by_servers: u64,
    pub(crate) help: Help,
}

/// Writes a frozen generation to its data file, from where an earlier agent came to.
///
/// # Errors
///
/// The backing fails, the cluster does not serve, or chunks are lost.
pub(crate) fn carry(
    (cluster, backing): (&mut Cluster, &Backing),
    (ino, inode): (Ino, &Inode),
    asks: bool,
    steps: &mut Countdown,
) -> Result<Carried> {
    let generation = inode.generation;
    let failed = |error: std::io::Error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::of_backing(errno, "write data file of", Key::Inode(ino))
    };
    steps.step();
    let opened = backing.data_file(ino, generation);
    let (file, is_new) = opened.map_err(|errno| Error::of_backing(errno, "open data file of", Key::Inode(ino)))?;
    let key = Key::Persisted(ino, generation, AGENT);
    let stated = match cluster.many(&[key])?.pop().flatten() {
        Some(value) if !is_new => Ranges::decode(&value).map_err(|error| Error::of_value(&error, &key))?,
        _ => Ranges::default(),
    };
    let (places, map) = (Places::from(inode), Map::new(&inode.map));
    let mut draining = Draining::new(stated);
    for (index, _) in map.chunks() {
        draining.add(places.slice(index, inode.chunk_size(), Part::Whole).1);
    }
    let number = file.metadata().map_err(failed)?.ino();
    let asks = asks && map.chunks().count() >= LEAST;
    let (by_servers, help) =
        if asks { ask(cluster, number, (ino, inode), &mut draining, (&key, steps))? } else { (0, Help::Unasked) };
    let (mut written, mut unsynced) = (by_servers, 0);
    std::thread::scope(|scope| {
        // A sync that is under way, so that the disk has something to do while chunks are read.
        let mut sync: Option<ScopedJoinHandle<'_, io::Result<()>>> = None;
        while let Some(range) = draining.next() {
            let first = (range.start >> inode.chunk_bits) as u32;
            let end = range.end.min(range.start.saturating_add(READ)).div_ceil(inode.chunk_size()) as u32;
            for (index, bytes) in read(cluster, ino, &map, first..end)? {
                let (bytes_at, covered) = places.slice(index, bytes.len() as u64, Part::Whole);
                let length = (bytes_at.end - bytes_at.start) as usize;
                steps.step();
                file.write_all_at(&bytes[..length], bytes_at.start).map_err(failed)?;
                draining.wrote(covered);
                (written, unsynced) = (written + length as u64, unsynced + length as u64);
            }
            write_out(&file, range.start..u64::from(end) << inode.chunk_bits);
            let is_last = draining.next().is_none();
            if unsynced < SYNC && !is_last {
                continue;
            }
            unsynced = 0;
            // One after the other: each is stated before the next one begins.
            if let Some(before) = sync.take() {
                finish(before, &mut draining, (&mut *cluster, &key), steps)?.map_err(failed)?;
            }
            if draining.begin_sync() {
                steps.step();
                sync = Some(scope.spawn(|| file.sync_data()));
            }
            if is_last && let Some(last) = sync.take() {
                finish(last, &mut draining, (&mut *cluster, &key), steps)?.map_err(failed)?;
            }
        }
        Ok(Carried { written, by_servers, help })
    })
}

/// Has servers write what is left of a file, whose data file has this inode number. Returns how many bytes they wrote.
fn ask(
    cluster: &mut Cluster,
    number: u64,
    (ino, inode): (Ino, &Inode),
    draining: &mut Draining,
    (key, steps): (&Key, &mut Countdown),
) -> Result<(u64, Help)> {
    let (places, mut written) = (Places::from(inode), 0);
    for runs in orders(draining.left(), inode.chunk_bits) {
        steps.step();
        let Ok(carried) = cluster.carry(number, &Frozen { runs: runs.clone(), ..frozen(ino, inode) }) else {
            return Ok((written, Help::Failed));
        };
        let before = written;
        let indexes = runs.iter().flat_map(|&(first, count)| first..first + count);
        for (index, _) in indexes.zip(carried).filter(|&(_, is_carried)| is_carried) {
            let (_, covered) = places.slice(index, inode.chunk_size(), Part::Whole);
            written += covered.end - covered.start;
            draining.wrote(covered);
        }
        if written == before {
            return Ok((written, if written == 0 { Help::Absent } else { Help::Came }));
        }
        // They synced before they answered.
        draining.begin_sync();
        draining.end_sync(true);
        steps.step();
        cluster.store(key, &draining.value().encode())?;
    }
    Ok((written, if written == 0 { Help::Unasked } else { Help::Came }))
}

/// Has the system begin to write bytes to the disk, so that it is busy before the next sync. Without that, the sync does so.
fn write_out(file: &File, bytes: Range<u64>) {
    if let Some(length) = NonZeroU64::new(bytes.end.saturating_sub(bytes.start)) {
        // Dirty pages are written, and leave the cache once they are. Others need it more.
        let _ = fadvise(file, bytes.start, Some(length), Advice::DontNeed);
    }
}

/// Waits for a sync, and states in the cluster what is on disk. Returns how the sync ended.
fn finish(
    sync: ScopedJoinHandle<'_, io::Result<()>>,
    draining: &mut Draining,
    (cluster, key): (&mut Cluster, &Key),
    steps: &mut Countdown,
) -> Result<io::Result<()>> {
    let synced = sync.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
    draining.end_sync(synced.is_ok());
    if synced.is_ok() {
        steps.step();
        cluster.store(key, &draining.value().encode())?;
    }
    Ok(synced)
}

/// Reads consecutive chunks, which all are there.
fn read(cluster: &mut Cluster, ino: Ino, map: &Map, indexes: Range<u32>) -> Result<Vec<(u32, rdmakv_client::Value)>> {
    let of = |index| map.get(index).map(|generation: Generation| (index, Key::Chunk(ino, generation, index)));
    let chunks: Vec<(u32, Key)> = indexes.filter_map(of).collect();
    let keys: Vec<Key> = chunks.iter().map(|&(_, key)| key).collect();
    let values = cluster.many(&keys)?;
    let taken = |((index, key), value): ((u32, Key), Option<rdmakv_client::Value>)| {
        let lost =
            || Error::new(Errno::IO, format!("read {key}: its servers are lost: restore the file, or write it again"));
        value.map(|value| (index, value)).ok_or_else(lost)
    };
    chunks.into_iter().zip(values).map(taken).collect()
}
