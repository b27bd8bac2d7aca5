//! Memory and room on the backing that dead mounts left, and that nothing would free.
//!
//! A mount that dies before its first sync leaves chunks of a generation that never began, and perhaps a data file of its own. No name
//! tells of them, so the agent looks for them from time to time. So it does for files that lost their names while dead mounts had them open.
//!
//! Servers look for each chunk that such a file may have, which takes them long. So the agent frees a [few](MOST) files at a time, and carries
//! others in between.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use rdmakv_proto::files::{Entry, Generation, Ino, Inode, Key, Kind, MountId, Standing, State};

use crate::backing::{Backing, DataFile};
use crate::cluster::Cluster;
use crate::error::Result;
use crate::inode::Edit;
use crate::unnamed::{self, parts_of};
use crate::walk::{KEYS, entries, inodes};

/// Files whose chunks are known to be freed, at most.
const FREED: usize = 1 << 16;

/// Files whose chunks are freed at a time, and those that wait for it, at most.
const MOST: usize = 4;
const WAITING: usize = 1 << 16;

/// The numbers of what a sweep freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Swept {
    /// Files that a dead mount had open for writing.
    pub writers: u64,
    /// Files whose servers were told that chunks of generations that never began may go.
    pub freed: u64,
    /// Files that lost their names while dead mounts had them open.
    pub unnamed: u64,
    /// Data files that were removed from the backing directory.
    pub data_files: u64,
    /// Files that were found, and are freed later.
    pub left: u64,
}

/// A file whose chunks are to be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiting {
    /// It lost its name.
    Unnamed(Ino),
    /// It has this generation, which never began, and chunks of so many bits.
    Unused(Ino, Generation, u8),
}

/// Sweeps again and again, and remembers what was freed.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    /// The last generation of a file that is known to be free.
    freed: HashMap<Ino, Generation>,
    waiting: VecDeque<Waiting>,
    /// The numbers since the last look.
    swept: Swept,
}

impl Sweeper {
    /// Looks at all files, and at all data files that did not change for so long. Then frees a few files.
    ///
    /// # Errors
    ///
    /// The cluster does not serve, or the backing fails.
    pub(crate) fn sweep(&mut self, cluster: &mut Cluster, backing: &Backing, age: Duration) -> Result<Swept> {
        let mut swept = Swept::default();
        // Servers keep their chunks whatever happens, so they come first.
        let (unneeded, looked) = unnamed::look(cluster);
        self.waiting = unneeded.into_iter().map(Waiting::Unnamed).collect();
        let mut left = vec![Ino::ROOT];
        while let Some(directory) = left.pop() {
            let entries = entries(cluster, directory)?;
            left.extend(entries.iter().filter(|entry| entry.kind == Kind::Directory).map(|entry| entry.ino));
            // An agent looks at the others anyway.
            let is_shown = |entry: &&Entry| entry.kind == Kind::File && entry.standing == Standing::Shown;
            let files: Vec<Ino> = entries.iter().filter(is_shown).map(|entry| entry.ino).collect();
            for some in files.chunks(KEYS) {
                self.files(cluster, some, &mut swept)?;
            }
        }
        for some in backing.data_files(age)?.chunks(KEYS) {
            let inos: BTreeSet<Ino> = some.iter().map(|file| file.ino).collect();
            let inodes = inodes(cluster, &inos.into_iter().collect::<Vec<_>>())?;
            for file in some.iter().filter(|file| is_left(file, inodes.get(&file.ino))) {
                backing.remove_data(file)?;
                swept.data_files += 1;
            }
        }
        self.swept = swept;
        // Notes that cannot be read stop nothing else.
        let freed = self.free(cluster, backing)?;
        looked.map(|()| freed)
    }

    /// Returns whether files that were found wait to be freed.
    pub(crate) fn has_left(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Frees a few of the files that were found. Returns what was freed since the look.
    ///
    /// # Errors
    ///
    /// As [`Self::sweep`]. The file that failed is freed by a later sweep.
    pub(crate) fn free(&mut self, cluster: &mut Cluster, backing: &Backing) -> Result<Swept> {
        for _ in 0..MOST {
            match self.waiting.pop_front() {
                None => break,
                Some(Waiting::Unnamed(ino)) => {
                    self.swept.unnamed += u64::from(unnamed::remove(cluster, backing, ino)?);
                }
                Some(Waiting::Unused(ino, unused, chunk_bits)) => {
                    // A later writer has a later generation.
                    parts_of(ino, unused, chunk_bits).try_for_each(|part| cluster.persisted(&part))?;
                    if self.freed.len() >= FREED {
                        self.freed.clear();
                    }
                    self.freed.insert(ino, unused);
                    self.swept.freed += 1;
                }
            }
        }
        self.swept.left = self.waiting.len() as u64;
        Ok(self.swept)
    }

    fn files(&mut self, cluster: &mut Cluster, inos: &[Ino], swept: &mut Swept) -> Result<()> {
        let mut inodes = inodes(cluster, inos)?;
        let written = |(&ino, inode): (&Ino, &Inode)| inode.writer.map(|writer| (ino, writer));
        let writers: Vec<(Ino, MountId)> = inodes.iter().filter_map(written).collect();
        let keys: Vec<Key> = writers.iter().map(|&(_, writer)| Key::Mount(writer)).collect();
        for (&(ino, writer), life) in writers.iter().zip(cluster.many(&keys)?) {
            if life.is_none() {
                cluster.edit(ino, Edit::Abandon(writer))?;
                swept.writers += 1;
                inodes.remove(&ino);
                inodes.extend(cluster.inode_now(ino)?.map(|inode| (ino, inode)));
            }
        }
        for (ino, inode) in inodes {
            let is_new = |unused: &Generation| self.freed.get(&ino) != Some(unused) && self.waiting.len() < WAITING;
            if let Some(unused) = unused(&inode).filter(is_new) {
                self.waiting.push_back(Waiting::Unused(ino, unused, inode.chunk_bits));
            }
        }
        Ok(())
    }
}

/// Returns the last generation that was reserved and never began, if nothing writes it any more and the backing has the one before.
///
/// Servers take all generations up to it as persisted, so none of them may be needed.
fn unused(inode: &Inode) -> Option<Generation> {
    let is_needed = inode.writer.is_some() || inode.state != State::Persisted;
    Some(inode.reserved).filter(|&reserved| !is_needed && reserved > inode.generation)
}

/// Returns whether nothing needs a data file any more; None stands for an inode that is gone.
fn is_left(file: &DataFile, inode: Option<&Inode>) -> bool {
    let Some(inode) = inode else { return true };
    let is_written = inode.writer.is_some() && inode.reserved == file.generation;
    let is_to_be_taken = inode.is_spilled && inode.generation == file.generation;
    // Publications remove those that agents wrote.
    file.is_writers && !is_written && !is_to_be_taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::empty_file;

    fn inode(generation: u64, reserved: u64, writer: Option<MountId>, state: State, is_spilled: bool) -> Inode {
        Inode {
            state,
            is_spilled,
            generation: Generation(generation),
            reserved: Generation(reserved),
            writer,
            backing: 7,
            ..empty_file()
        }
    }

    #[test]
    fn only_what_never_began_is_unused() {
        let unused = |generation, reserved, writer: Option<u64>, state| {
            unused(&inode(generation, reserved, writer.map(MountId), state, false)).map(|unused| unused.0)
        };
        assert_eq!(unused(1, 2, None, State::Persisted), Some(2));
        assert_eq!(unused(2, 2, None, State::Persisted), None);
        // Something writes it, or servers have the only bytes of the generation before.
        assert_eq!(unused(1, 2, Some(9), State::Persisted), None);
        assert_eq!(unused(1, 2, None, State::Frozen), None);
    }

    #[test]
    fn data_files_stay_while_they_are_needed() {
        let file = |generation, is_writers| DataFile { ino: Ino(5), generation: Generation(generation), is_writers };
        let written = inode(1, 2, Some(MountId(9)), State::Persisted, false);
        assert!(!is_left(&file(2, true), Some(&written)) && is_left(&file(1, true), Some(&written)));
        let spilled = inode(2, 2, None, State::Frozen, true);
        assert!(!is_left(&file(2, true), Some(&spilled)) && is_left(&file(3, true), Some(&spilled)));
        let shown = inode(2, 2, None, State::Persisted, false);
        assert!(is_left(&file(2, true), Some(&shown)) && !is_left(&file(2, false), Some(&shown)));
        assert!(is_left(&file(2, true), None) && is_left(&file(2, false), None));
    }
}
