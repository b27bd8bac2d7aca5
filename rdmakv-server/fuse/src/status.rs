//! How much of a file system the backing directory does not have yet.

use rdmakv_client::{Cluster as Address, Options};
use rdmakv_proto::files::{Ino, Inode, Key, Kind, Standing, State};
use rustix::io::Errno;

use crate::cluster::Cluster;
use crate::disk_error::{DiskError, NOTE};
use crate::error::{Error, Result};
use crate::map::Map;
use crate::walk::{entries, known, unsettled};

/// Keys that are asked for at once.
const KEYS: usize = 256;

/// Chunks that are read at once, to see whether they are there.
const CHUNKS: usize = 16;

/// The state of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Status {
    /// Files that the cluster knows.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files that are being written, or were closed a moment ago.
    pub open: u64,
    /// Files that never change and are not on the backing yet.
    pub frozen: u64,
    /// Bytes of files that are not on the backing.
    pub dirty: u64,
    /// Bytes of these that their mounts wrote to the backing directory themselves, because servers had no room. They are under no name yet.
    pub spilled: u64,
    /// Names that the backing does not show as they are, with those that are removed.
    pub names: u64,
    /// Files whose writer died before it closed them.
    pub torn: Vec<Vec<u8>>,
    /// Files that are not on the backing, and of which chunks are lost. Only if they were looked for.
    pub lost: Vec<Vec<u8>>,
    /// The last failure of the backing directory that an agent noted, if it was within a day. It may have passed since.
    pub disk_error: Option<DiskError>,
}

impl Status {
    /// Returns the state of a cluster's file system. To look for lost files, all bytes are read that are not on the backing.
    ///
    /// # Errors
    ///
    /// Etcd or the cluster does not answer, or a value cannot be read.
    pub fn of(cluster: &Address, options: Options, looks_for_lost: bool) -> Result<Self> {
        let mut cluster = Cluster::open(cluster, options)?;
        // Without the note the rest is reported all the same.
        let note = cluster.many(&[NOTE]).ok().and_then(|mut values| values.pop().flatten());
        let disk_error = note.and_then(|note| DiskError::decode(&note));
        let mut status = Self { disk_error, ..Self::default() };
        let mut left = vec![(Ino::ROOT, Vec::new())];
        while let Some((directory, path)) = left.pop() {
            let entries = entries(&mut cluster, directory)?;
            status.names += entries.iter().filter(|entry| entry.standing != Standing::Shown).count() as u64;
            let live: Vec<_> = entries.into_iter().filter(|entry| entry.standing != Standing::Whiteout).collect();
            let path_of = |name: &[u8]| [path.as_slice(), b"/", name].concat();
            let directories = live.iter().filter(|entry| entry.kind == Kind::Directory);
            left.extend(directories.map(|entry| (entry.ino, path_of(&entry.name))));
            let files: Vec<_> = live.iter().filter(|entry| entry.kind == Kind::File).collect();
            for some in files.chunks(KEYS) {
                let keys: Vec<Key> = some.iter().map(|entry| Key::Inode(entry.ino)).collect();
                for ((entry, key), value) in some.iter().zip(&keys).zip(cluster.many(&keys)?) {
                    let Some(value) = value else { continue };
                    let inode = Inode::decode(&value).map_err(|error| Error::of_value(&error, key))?;
                    status.count(&inode);
                    if inode.is_torn {
                        status.torn.push(path_of(&entry.name));
                    }
                    if looks_for_lost && is_lost(&mut cluster, entry.ino, &inode)? {
                        status.lost.push(path_of(&entry.name));
                    }
                }
            }
        }
        Ok(status)
    }

    /// Returns one path that the backing does not show as it is, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Status::of`].
    pub fn unsettled(cluster: &Address, options: Options) -> Result<Option<Vec<u8>>> {
        unsettled(&mut Cluster::open(cluster, options)?, b"")
    }

    /// The same for a file, or for all that a directory has. The path begins at the root of the file system.
    ///
    /// # Errors
    ///
    /// `ENOENT`: the cluster knows no such path. Others as [`Status::of`].
    pub fn unsettled_in(cluster: &Address, options: Options, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut cluster = Cluster::open(cluster, options)?;
        let Some(path) = known(&mut cluster, path)? else {
            let why = "no mount has used it: give the path from the root of the mount";
            return Err(Error::new(Errno::NOENT, format!("look up {}: {why}", path.escape_ascii())));
        };
        unsettled(&mut cluster, &path)
    }

    fn count(&mut self, inode: &Inode) {
        self.files += 1;
        self.bytes += inode.size;
        self.open += u64::from(inode.writer.is_some());
        self.frozen += u64::from(inode.state == State::Frozen && inode.writer.is_none());
        self.dirty += if inode.state == State::Persisted { 0 } else { inode.size };
        if inode.is_spilled {
            let chunks: u64 = inode.map.iter().map(|run| u64::from(run.count)).sum();
            self.spilled += inode.size.saturating_sub(chunks << inode.chunk_bits);
        }
    }
}

/// Returns whether chunks of a file are lost that is not on the backing.
fn is_lost(cluster: &mut Cluster, ino: Ino, inode: &Inode) -> Result<bool> {
    if inode.state == State::Persisted {
        return Ok(false);
    }
    let key = |(index, generation)| Key::Chunk(ino, generation, index);
    let keys: Vec<Key> = Map::new(&inode.map).chunks().map(key).collect();
    for some in keys.chunks(CHUNKS) {
        if cluster.many(some)?.iter().any(Option::is_none) {
            // It may have been written again meanwhile.
            let now = cluster.inode_now(ino)?;
            return Ok(now.is_some_and(|now| now.generation == inode.generation && now.state != State::Persisted));
        }
    }
    Ok(false)
}
