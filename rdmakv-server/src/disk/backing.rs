//! The thread that writes chunks of files to the backing directory, as agents order it.
//!
//! A frozen chunk never changes, so the thread may write one late, or after another server did: the same bytes at the same place. It
//! makes no file. The agent made it, and gives the number of its inode. Another file under that name is left alone.
//!
//! An order ends once a sync has. A chunk counts as on disk only then.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use rdmakv_proto::files::{Part, Places};
use rustix::fs::{Advice, CWD, Mode, OFlags, fadvise, openat};

use crate::metrics::{add, count};
use crate::session::{Cluster, Order, Shared, chunks_of};

/// How long it waits for an order before it looks whether the server is to end.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes that are written before the disk is told to begin.
const WRITE: u64 = 8 << 20;

/// The thread, and what ends it.
#[derive(Debug)]
pub(crate) struct BackingThread {
    cluster: Arc<Cluster>,
    thread: JoinHandle<()>,
}

impl BackingThread {
    /// Starts the thread, for a directory.
    ///
    /// # Errors
    ///
    /// The system has no more threads.
    pub(crate) fn start(path: PathBuf, cluster: Arc<Cluster>, shared: Arc<Shared>) -> io::Result<Self> {
        let own = Arc::clone(&cluster);
        let run = move || {
            while !shared.stop.load(Relaxed) {
                let Some(order) = own.orders().next(LOOK) else { continue };
                let written = carry(&path, &own, &shared, &order).unwrap_or_else(|_| {
                    count(&own.file_counts().carry_errors);
                    Vec::new()
                });
                own.orders().end(written);
            }
        };
        let thread = std::thread::Builder::new().name("rdmakv-backing".to_owned()).spawn(run)?;
        Ok(Self { cluster, thread })
    }

    /// Waits for its end, after the server was told to stop.
    pub(crate) fn end(self) {
        self.cluster.orders().stop();
        let _ = self.thread.join();
    }
}

/// Writes the chunks of an order that are this server's, and syncs them. Returns a bit for each that is on disk.
fn carry(path: &Path, cluster: &Cluster, shared: &Shared, order: &Order) -> io::Result<Vec<u64>> {
    let (frozen, mut bytes) = (&order.frozen, Vec::new());
    let places = Places { size: frozen.size, chunk_bits: frozen.chunk_bits };
    let (mut file, mut bits, mut written, mut begun) = (None, Vec::new(), 0, 0);
    for (at, (index, key)) in chunks_of(frozen).enumerate() {
        if shared.stop.load(Relaxed) {
            break;
        }
        if !cluster.copy_final(&shared.shards, key.as_bytes(), &mut bytes) {
            continue;
        }
        let file = match &mut file {
            Some(file) => file,
            none => none.insert(open(path, order)?),
        };
        let (place, _) = places.slice(index, bytes.len() as u64, Part::Whole);
        file.write_all_at(&bytes[..(place.end - place.start) as usize], place.start)?;
        written += place.end - place.start;
        if written - begun >= WRITE {
            begun = written;
            begin_to_write(file);
        }
        if bits.len() <= at / 64 {
            bits.resize(at / 64 + 1, 0);
        }
        bits[at / 64] |= 1 << (at % 64);
    }
    if let Some(file) = file {
        file.sync_data()?;
    }
    add(&cluster.file_counts().carried_bytes, written);
    Ok(bits)
}

/// Has the system write dirty pages to the disk, so that it is busy before the sync.
fn begin_to_write(file: &File) {
    let _ = fadvise(file, 0, None::<NonZeroU64>, Advice::DontNeed);
}

/// Opens the data file of an order's generation.
fn open(path: &Path, order: &Order) -> io::Result<File> {
    let id = std::fs::read_to_string(path.join(".rdmakv/id"))?;
    if id.trim() != format!("{:032x}", order.cluster) {
        return Err(io::Error::other("the directory belongs to another cluster"));
    }
    let name = format!(".rdmakv/data/{:x}.{:x}", order.frozen.ino, order.frozen.generation);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::from(openat(CWD, path.join(name), flags, Mode::empty())?);
    if file.metadata()?.ino() != order.file {
        return Err(io::Error::other("the agent's data file is another one"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_cluster::messages::{Epoch, Frozen};

    #[test]
    fn another_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join(".rdmakv/data")).unwrap();
        let frozen = Frozen { ino: 0x1f, generation: 10, size: 1, chunk_bits: 16, runs: vec![(0, 1)] };
        let mut order = Order { cluster: 7, epoch: Epoch(1), file: 0, frozen };
        let why = |order: &Order| open(folder.path(), order).err().map(|error| (error.kind(), error.to_string()));
        let missing = |why: Option<(io::ErrorKind, String)>| assert_eq!(why.unwrap().0, io::ErrorKind::NotFound);
        missing(why(&order));
        std::fs::write(folder.path().join(".rdmakv/id"), format!("{:032x}", 7)).unwrap();
        // The agent makes the file.
        missing(why(&order));
        let data = folder.path().join(".rdmakv/data/1f.a");
        std::fs::write(&data, b"").unwrap();
        assert!(why(&order).unwrap().1.contains("another one"));
        order.file = std::fs::metadata(&data).unwrap().ino();
        assert_eq!(why(&order), None);
        order.cluster = 8;
        assert!(why(&order).unwrap().1.contains("another cluster"));
        // Nor is a link followed.
        order.cluster = 7;
        std::fs::rename(&data, folder.path().join("shown")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("shown"), &data).unwrap();
        assert!(why(&order).is_some());
    }
}
