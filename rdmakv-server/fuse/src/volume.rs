//! A file system as one mount has it: names, leases of directories, and open files.
//!
//! Each operation begins with what may have to wait: the lease of its directory. An error that [may pass](Error::may_pass) left nothing
//! half done that the operation would not do again, so a caller repeats it for a while.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdmakv_proto::files::{
    BUCKETS, Directory, Entry, Generation, Ino, Inode, Key, Kind, MAX_CHUNKS, MAX_NAME, MAX_TARGET, Rename, Standing,
    State, Time, is_name,
};
use rustix::io::Errno;

use crate::backing::{Backing, FOLDER, Found, Names};
use crate::buffers::Read;
use crate::cluster::{Cluster, gone};
use crate::error::{Error, Result};
use crate::inode::{Attributes, Edit};
#[cfg(feature = "mount")]
use crate::life::has_agent;
use crate::names::{Held, Lookup, look_up};
use crate::node::{FLUSH_AFTER, Node, Stores};
use crate::persist::{AGAIN, FAILURE, Standing as Waiting, Wait, standing};
use crate::random::random;
use crate::store::Refusal;
use crate::unnamed::{self, Note};
use crate::walk::{Undrained, entries, undrained, unsettled};

/// How often other mounts' wishes for directories are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Binary logarithm of the bytes of the largest chunk.
const LARGEST_CHUNK: u8 = 23;

/// Directories on the way to the root at most.
const DEPTH: usize = 512;

/// The inode of a new name.
#[derive(Clone, Debug)]
pub(crate) struct New<'a> {
    pub(crate) kind: Kind,
    pub(crate) mode: u16,
    pub(crate) owner: u32,
    pub(crate) group: u32,
    /// Target of a symbolic link.
    pub(crate) target: &'a [u8],
}

/// Attributes to be set; None leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Change {
    pub(crate) mode: Option<u16>,
    pub(crate) owner: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) modified: Option<Time>,
}

/// A name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// Its kind.
    pub kind: Kind,
    /// Its inode; None if the name is only on the backing so far.
    pub ino: Option<Ino>,
}

/// A file that a program has open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Handle {
    ino: Ino,
    writes: bool,
}

/// The file system of one mount.
#[derive(Debug)]
pub(crate) struct Volume {
    stores: Stores,
    chunk_bits: u8,
    settle: Duration,
    /// Syncs wait for the backing.
    persists: bool,
    /// Syncs of files that wait for it.
    persisting: HashMap<Ino, Wait>,
    held: BTreeMap<Ino, Held>,
    /// Renames that failed half-way, by their directories: the file, and the one that it replaces.
    half_renamed: BTreeMap<Ino, (Ino, Option<Ino>)>,
    /// Directories that were given up. The cluster does not know that yet.
    unreleased: BTreeMap<Ino, Held>,
    nodes: BTreeMap<Ino, Node>,
    /// Open files that are noted as those without a name.
    noted: BTreeSet<Ino>,
    handles: HashMap<u64, Handle>,
    next_handle: u64,
    paths: HashMap<Ino, Names>,
    /// When names of directories changed, for their attributes.
    changed: HashMap<Ino, Time>,
    looked: Instant,
}

impl Volume {
    /// Returns the file system, which the cluster has.
    pub(crate) fn new(stores: Stores, chunk_bits: u8, (settle, persists): (Duration, bool)) -> Self {
        Self {
            stores,
            chunk_bits,
            settle,
            persists,
            persisting: HashMap::new(),
            held: BTreeMap::new(),
            half_renamed: BTreeMap::new(),
            unreleased: BTreeMap::new(),
            nodes: BTreeMap::new(),
            noted: BTreeSet::new(),
            handles: HashMap::new(),
            next_handle: 1,
            paths: HashMap::new(),
            changed: HashMap::new(),
            looked: Instant::now(),
        }
    }

    /// Looks a name up.
    ///
    /// # Errors
    ///
    /// `ENOENT`: there is no such name.
    pub(crate) fn look_up(&mut self, directory: Ino, name: &[u8]) -> Result<(Ino, Inode)> {
        let found = self.find(directory, name)?.ok_or_else(|| no_name(directory, name))?;
        Ok((found.0, self.attributes(found.0)?))
    }

    /// Returns an inode as programs see it on this mount.
    ///
    /// # Errors
    ///
    /// `ESTALE`: it is gone.
    pub(crate) fn attributes(&mut self, ino: Ino) -> Result<Inode> {
        if let Some(node) = self.nodes.get(&ino).filter(|node| node.is_writing()) {
            return Ok(node.inode());
        }
        let mut inode = self.inode(ino)?;
        if let Some(&changed) = self.changed.get(&ino) {
            inode.modified = inode.modified.max(changed);
            inode.changed = inode.changed.max(changed);
        }
        Ok(inode)
    }

    /// Sets attributes.
    ///
    /// # Errors
    ///
    /// `ESTALE`, and those of a write if the size changes.
    pub(crate) fn set_attributes(&mut self, ino: Ino, change: &Change) -> Result<Inode> {
        if let Some(size) = change.size {
            self.truncate(ino, size)?;
        }
        if (Change { size: None, ..*change }) != Change::default() {
            let inode = self.attributes(ino)?;
            let held = match inode.parent {
                Some(parent) if !inode.is_unlinked => Some(self.hold(parent)?),
                _ => None,
            };
            let attributes = Attributes {
                mode: change.mode.unwrap_or(inode.mode),
                owner: change.owner.unwrap_or(inode.owner),
                group: change.group.unwrap_or(inode.group),
                modified: change.modified.unwrap_or(inode.modified),
                changed: now(),
            };
            self.stores.cluster.edit(ino, Edit::Attributes(attributes))?;
            // The inode has it from here on.
            self.changed.remove(&ino);
            if let Some(held) = held {
                self.stores.cluster.run(vec![held.mark(&inode.name, ino)])?;
            }
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.set_modified(attributes.modified);
                if let Some(inode) = self.stores.cluster.inode(ino)? {
                    node.set_inode(inode);
                }
            }
        }
        self.attributes(ino)
    }

    /// Makes a file, a directory or a symbolic link, which must not exist. A file that is to be opened for writing is this mount's at once.
    ///
    /// # Errors
    ///
    /// `EEXIST`, `ENAMETOOLONG`, `EPERM` for the file system's own folder; `EBUSY`: another mount holds the directory.
    pub(crate) fn create(&mut self, directory: Ino, name: &[u8], new: &New<'_>, opens: bool) -> Result<(Ino, Inode)> {
        check_name(directory, name)?;
        if new.kind == Kind::Link && (new.target.is_empty() || new.target.len() > MAX_TARGET) {
            let errno = if new.target.is_empty() { Errno::NOENT } else { Errno::NAMETOOLONG };
            return Err(Error::new(errno, "make link: its target is empty, or has more than 4095 bytes"));
        }
        let held = self.hold(directory)?;
        if self.find(directory, name)?.is_some() {
            let why = format!("make {}: the name is taken", shown(directory, name));
            return Err(Error::new(Errno::EXIST, why));
        }
        let parent = self.inode(directory)?;
        let inherits = parent.mode & 0o2000 != 0;
        let mode = new.mode | if inherits && new.kind == Kind::Directory { 0o2000 } else { 0 };
        let (ino, time) = (draw(), now());
        let opens = opens && new.kind == Kind::File;
        let inode = Inode {
            kind: new.kind,
            state: State::Frozen,
            is_torn: false,
            is_unlinked: false,
            is_spilled: false,
            mode,
            chunk_bits: self.chunk_bits,
            owner: new.owner,
            group: if inherits { parent.group } else { new.group },
            size: if new.kind == Kind::Link { new.target.len() as u64 } else { 0 },
            modified: time,
            changed: time,
            generation: Generation(0),
            reserved: Generation(u64::from(opens)),
            writer: opens.then_some(self.stores.mount),
            parent: Some(directory),
            backing: 0,
            name: name.to_vec(),
            target: new.target.to_vec(),
            map: Vec::new(),
        };
        let removed = self.removed(directory, name)?;
        self.stores.cluster.run(held.create(ino, inode.clone()))?;
        self.forget_removed(removed);
        if new.kind == Kind::Directory {
            self.made(ino);
        }
        if opens {
            let mut node = Node::new(ino, inode.clone());
            node.begin_writing(inode.clone(), Instant::now());
            self.nodes.insert(ino, node);
        }
        self.changed.insert(directory, time);
        Ok((ino, inode))
    }

    /// Removes the name of a file or a link.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EISDIR`, `EBUSY`.
    pub(crate) fn unlink(&mut self, directory: Ino, name: &[u8]) -> Result<()> {
        let held = self.hold(directory)?;
        let (ino, kind) = self.find(directory, name)?.ok_or_else(|| no_name(directory, name))?;
        if kind == Kind::Directory {
            return Err(Error::new(Errno::ISDIR, format!("remove {}: it is a directory", shown(directory, name))));
        }
        let is_open = self.keep_if_open(ino, kind)?;
        self.stores.cluster.run(held.unlink(name, ino))?;
        self.changed.insert(directory, now());
        self.lost_name(ino, is_open, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EBUSY`.
    pub(crate) fn remove_directory(&mut self, directory: Ino, name: &[u8]) -> Result<()> {
        let held = self.hold(directory)?;
        let (ino, kind) = self.find(directory, name)?.ok_or_else(|| no_name(directory, name))?;
        if kind != Kind::Directory {
            return Err(Error::new(Errno::NOTDIR, format!("remove {}: it is no directory", shown(directory, name))));
        }
        let child = self.hold(ino)?;
        if !self.list(ino)?.is_empty() {
            let why = format!("remove {}: the directory has names", shown(directory, name));
            return Err(Error::new(Errno::NOTEMPTY, why));
        }
        self.stores.cluster.run(held.remove_directory(name, &child))?;
        self.held.remove(&ino);
        self.stores.cluster.forget(ino);
        self.changed.insert(directory, now());
        Ok(())
    }

    /// Renames a file or a link within its directory.
    ///
    /// # Errors
    ///
    /// `EXDEV`: to another directory, or a directory. `ENOENT`, `EISDIR`, `EBUSY`; `EEXIST` if the target must not be replaced.
    pub(crate) fn rename(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8]), replaces: bool) -> Result<()> {
        let ((directory, source), (other, target)) = (from, to);
        check_name(other, target)?;
        let held = self.hold(directory)?;
        let (ino, kind) = self.find(directory, source)?.ok_or_else(|| no_name(directory, source))?;
        let replaced = self.find(other, target)?;
        if !replaces && replaced.is_some() {
            return Err(Error::new(Errno::EXIST, format!("rename to {}: the name is taken", shown(other, target))));
        }
        if replaced.is_some_and(|(replaced, _)| replaced == ino) {
            return Ok(());
        }
        match (kind, replaced) {
            (Kind::Directory, Some((_, kind))) if kind != Kind::Directory => {
                return Err(Error::new(Errno::NOTDIR, format!("rename to {}: it is a file", shown(other, target))));
            }
            (Kind::File | Kind::Link, Some((_, Kind::Directory))) => {
                return Err(Error::new(Errno::ISDIR, format!("rename to {}: it is a directory", shown(other, target))));
            }
            _ if directory != other || kind == Kind::Directory => {
                let why = "this version renames files within one directory only: copy it, then remove it";
                return Err(Error::new(Errno::XDEV, format!("rename {}: {why}", shown(directory, source))));
            }
            _ => {}
        }
        let is_open = match replaced {
            Some((replaced, kind)) => self.keep_if_open(replaced, kind)?,
            None => false,
        };
        let replaced = replaced.map(|(replaced, _)| replaced);
        let rename = Rename { ino, kind, replaced, source: source.to_vec(), target: target.to_vec() };
        let refused = |refusal| Error::of_refusal(refusal, &Key::Directory(directory));
        let steps = held.rename(&rename).map_err(refused)?;
        // Once it is noted, it has to be completed before anything else.
        let bucket = self.stores.cluster.bucket_of(other, target)?;
        if !bucket.unwrap_or_default().put(Entry { name: target.to_vec(), ino, kind, standing: Standing::New }) {
            return Err(refused(Refusal::Full));
        }
        let removed = self.removed(other, target)?;
        if let Err(error) = self.stores.cluster.run(steps) {
            // It may be noted. What holds the directory next completes it: this mount, too.
            self.held.remove(&directory);
            self.stores.cluster.forget(directory);
            self.half_renamed.insert(directory, (ino, replaced));
            return Err(error);
        }
        self.forget_removed(removed);
        self.changed.insert(directory, now());
        let renamed = self.stores.cluster.inode(ino)?;
        if let (Some(node), Some(inode)) = (self.nodes.get_mut(&ino), renamed) {
            node.set_inode(inode);
        }
        replaced.map_or(Ok(()), |replaced| self.lost_name(replaced, is_open, true))
    }

    /// Returns all names of a directory.
    ///
    /// # Errors
    ///
    /// `ENOTDIR`, `ESTALE`.
    pub(crate) fn list(&mut self, directory: Ino) -> Result<Vec<Listed>> {
        let inode = self.inode(directory)?;
        if inode.kind != Kind::Directory {
            let why = format!("list {}: it is no directory", Key::Inode(directory));
            return Err(Error::new(Errno::NOTDIR, why));
        }
        let mut names: BTreeMap<Vec<u8>, Option<(Ino, Kind)>> = BTreeMap::new();
        for bucket in 0..BUCKETS {
            let Some(bucket) = self.stores.cluster.bucket(directory, bucket)? else { continue };
            for entry in bucket.entries() {
                let is_live = entry.standing != Standing::Whiteout;
                names.insert(entry.name.clone(), is_live.then_some((entry.ino, entry.kind)));
            }
        }
        let path = self.path(directory)?;
        let mut listed: Vec<Listed> = Vec::new();
        let shown = if is_shown(&inode) { self.stores.backing.list(&path)? } else { Vec::new() };
        for (name, kind) in shown {
            if !names.contains_key(&name) {
                listed.push(Listed { name, kind, ino: None });
            }
        }
        let known = |(name, found): (Vec<u8>, Option<(Ino, Kind)>)| {
            found.map(|(ino, kind)| Listed { name, kind, ino: Some(ino) })
        };
        listed.extend(names.into_iter().filter_map(known));
        Ok(listed)
    }

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// `EISDIR`, `ESTALE`; for writing also `EBUSY`: another mount writes it, or holds its directory.
    pub(crate) fn open_file(&mut self, ino: Ino, writes: bool) -> Result<u64> {
        if writes {
            self.begin_writing(ino)?;
        }
        if !self.nodes.contains_key(&ino) {
            let inode = self.inode_now(ino)?;
            self.nodes.insert(ino, Node::new(ino, inode));
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return Err(gone(ino)) };
        if !node.is_writing() {
            let inode = self.stores.cluster.inode_now(ino)?.ok_or_else(|| gone(ino))?;
            if inode.kind != Kind::File {
                self.nodes.remove(&ino);
                return Err(Error::new(Errno::ISDIR, format!("open {}: it is no file", Key::Inode(ino))));
            }
            node.set_inode(inode);
        }
        node.open(writes);
        let handle = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(handle, Handle { ino, writes });
        Ok(handle)
    }

    /// Reads bytes, fewer at the file's end.
    ///
    /// # Errors
    ///
    /// `EBADF`, `ESTALE`; `EIO`: bytes are lost.
    pub(crate) fn read(&mut self, handle: u64, offset: u64, length: u64) -> Result<Read> {
        let handle = self.handle(handle)?;
        let node = self.nodes.get_mut(&handle.ino).ok_or_else(|| gone(handle.ino))?;
        node.read(&mut self.stores, offset, length)
    }

    /// Writes bytes: at an offset, or with None at the file's end. That is noted in `place`, so that another try writes there, too.
    ///
    /// # Errors
    ///
    /// `EBADF`, `EFBIG`, `EIO`; `ENOSPC`: the cluster is full.
    pub(crate) fn write(&mut self, handle: u64, place: &mut Option<u64>, data: &[u8]) -> Result<u64> {
        let Handle { ino, writes } = self.handle(handle)?;
        if writes {
            // A sync may have frozen it.
            self.begin_writing(ino)?;
        }
        let node = self.nodes.get_mut(&ino).filter(|_| writes).ok_or_else(|| not_writable(ino))?;
        let is_append = place.is_none();
        let offset = *place.get_or_insert_with(|| node.inode().size);
        let written = node.write(&mut self.stores, offset, data, now());
        if is_append && written.as_ref().is_err_and(Error::may_pass) {
            // Others append behind it.
            node.reserve(offset.saturating_add(data.len() as u64));
        }
        written.map(|()| offset)
    }

    /// Sets the size of a file that is open for writing.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub(crate) fn set_size(&mut self, handle: u64, size: u64) -> Result<()> {
        let Handle { ino, writes } = self.handle(handle)?;
        if writes { self.truncate(ino, size) } else { Err(not_writable(ino)) }
    }

    /// Stores what was written, so that it survives lost servers. The last writer that closes the file has it closed.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub(crate) fn sync(&mut self, handle: u64, closes: bool) -> Result<()> {
        let Handle { ino, writes } = self.handle(handle)?;
        // A reader's sync stores what writers of the same mount wrote.
        if self.persists { self.persist(ino) } else { self.sync_file(ino, closes && writes) }
    }

    /// Stores what was written before the last writer closes a file, and waits for the backing if syncs do.
    ///
    /// # Errors
    ///
    /// As [`Self::sync`].
    pub(crate) fn persist_last(&mut self, handle: u64) -> Result<()> {
        let Handle { ino, writes } = self.handle(handle)?;
        let is_last = writes && self.nodes.get(&ino).is_some_and(|node| node.writers() == 1);
        if self.persists && is_last { self.persist(ino) } else { Ok(()) }
    }

    /// Freezes what a file has, and waits until the backing shows it.
    fn persist(&mut self, ino: Ino) -> Result<()> {
        match self.nodes.get(&ino) {
            // Its writer keeps its bytes until it is closed for good.
            Some(node) if node.inode().is_unlinked => return self.sync_file(ino, false),
            Some(node) if node.is_writing() => {
                self.sync_file(ino, true)?;
                self.settle_file(ino)?;
            }
            _ => {}
        }
        let Some(inode) = self.stores.cluster.inode_now(ino)? else {
            self.persisting.remove(&ino);
            return Ok(());
        };
        let space = self.stores.backing.space_for(ino, inode.generation)?;
        let why = |errno: Errno| format!("sync {}: the backing does not have it: {errno}", Key::Inode(ino));
        let note = [Key::Persisted(ino, inode.generation, FAILURE)];
        let wait = self.persisting.get(&ino).copied().filter(|wait| wait.generation == inode.generation);
        let is_due = wait.is_none_or(|wait| wait.since.elapsed() >= AGAIN);
        let note = if is_due { self.stores.cluster.many(&note)?.pop().flatten() } else { None };
        let note = note.as_ref().map(|note| (note.version(), &**note));
        let begin = || Wait::begin(inode.generation, note.map(|(version, _)| version), Instant::now());
        let wait = wait.unwrap_or_else(begin);
        self.persisting.insert(ino, wait);
        let done = match standing(&inode, wait.since.elapsed(), space, wait.failure(note)) {
            // What has waited is tried again while agents drain something.
            Waiting::Waits => {
                return Err(Error::passing(Errno::TIMEDOUT, why(Errno::TIMEDOUT) + ": see whether an agent runs"));
            }
            Waiting::Done => Ok(()),
            Waiting::Fails(errno) => Err(Error::new(errno, why(errno) + ": see the backing directory")),
        };
        self.persisting.remove(&ino);
        done
    }

    /// Stores all that was written, of all files.
    ///
    /// # Errors
    ///
    /// The first that came. All other files were stored.
    pub(crate) fn sync_all(&mut self) -> Result<()> {
        let written: Vec<Ino> = self.nodes.iter().filter(|(_, node)| node.is_writing()).map(|(&ino, _)| ino).collect();
        let mut outcome = Ok(());
        for ino in written {
            outcome = outcome.and(self.sync_file(ino, false));
        }
        outcome
    }

    /// Closes a file. What was written is stored, if it was not before.
    ///
    /// # Errors
    ///
    /// As [`Self::write`]. The file is closed nevertheless.
    pub(crate) fn close(&mut self, handle: u64) -> Result<()> {
        let Handle { ino, writes } = self.handle(handle)?;
        let stored = if writes { self.sync_file(ino, true) } else { Ok(()) };
        if stored.as_ref().is_err_and(Error::may_pass) {
            return stored;
        }
        self.handles.remove(&handle);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.close(writes, Instant::now());
            if !node.is_open() && node.inode().is_unlinked {
                self.bury(ino)?;
            } else if !node.is_open() && !node.is_writing() {
                self.nodes.remove(&ino);
            }
        }
        stored
    }

    /// Gives up a file whose bytes could not be stored in time.
    pub(crate) fn abandon(&mut self, handle: u64) {
        let Some(Handle { ino, writes }) = self.handles.remove(&handle) else { return };
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.close(writes, Instant::now());
        }
    }

    /// Does what is due: stores chunks that are dirty for a second, freezes closed files, gives up directories that others want.
    ///
    /// # Errors
    ///
    /// The first that came. All else was done.
    pub(crate) fn tick(&mut self) -> Result<()> {
        self.stores.cluster.move_on();
        let now = Instant::now();
        let mut outcome = Ok(());
        let before = now.checked_sub(FLUSH_AFTER);
        for node in self.nodes.values_mut().filter(|node| node.is_writing()) {
            if before.is_some() {
                outcome = outcome.and(node.flush(&mut self.stores, before));
            }
        }
        let settle = self.settle;
        let is_due = |node: &Node| node.closed().is_some_and(|closed| now.duration_since(closed) >= settle);
        let due: Vec<Ino> = self.nodes.iter().filter(|(_, node)| is_due(node)).map(|(&ino, _)| ino).collect();
        for ino in due {
            outcome = outcome.and(self.settle_file(ino));
        }
        if now.duration_since(self.looked) >= LOOK_EVERY {
            self.looked = now;
            outcome = outcome.and(self.complete_half_renamed()).and(self.end_releases()).and(self.give_up_wanted());
        }
        outcome
    }

    /// Freezes all closed files now.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn settle_all(&mut self) -> Result<()> {
        let closed: Vec<Ino> =
            self.nodes.iter().filter(|(_, node)| node.closed().is_some()).map(|(&ino, _)| ino).collect();
        closed.into_iter().try_for_each(|ino| self.settle_file(ino))
    }

    /// Gives up all directories without open writers.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn release_all(&mut self) -> Result<()> {
        let completed = self.complete_half_renamed();
        let held: Vec<Ino> = self.held.keys().copied().collect();
        let released = all(held, |directory| self.release(directory));
        completed.and(released).and(self.end_releases())
    }

    /// Returns one path that the backing does not show as it is, if there is one.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn unsettled(&mut self) -> Result<Option<Vec<u8>>> {
        unsettled(&mut self.stores.cluster, b"")
    }

    /// Returns what the agent has to do, and how far it came.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn undrained(&mut self) -> Result<Undrained> {
        undrained(&mut self.stores.cluster)
    }

    /// Returns whether an agent works.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    #[cfg(feature = "mount")]
    pub(crate) fn has_agent(&mut self) -> Result<bool> {
        has_agent(&mut self.stores.cluster)
    }

    fn handle(&self, handle: u64) -> Result<Handle> {
        let found = self.handles.get(&handle).copied();
        found.ok_or_else(|| Error::new(Errno::BADF, "use file: it is closed: open it again"))
    }

    fn inode(&mut self, ino: Ino) -> Result<Inode> {
        self.stores.cluster.inode(ino)?.ok_or_else(|| gone(ino))
    }

    fn inode_now(&mut self, ino: Ino) -> Result<Inode> {
        self.stores.cluster.inode_now(ino)?.ok_or_else(|| gone(ino))
    }

    /// Holds a directory.
    fn hold(&mut self, directory: Ino) -> Result<Held> {
        let held = match self.held.get(&directory) {
            Some(&held) => held,
            None => self.stores.cluster.hold(directory, self.stores.mount)?.ok_or_else(|| {
                let why = format!("hold {}: another mount has files open there", Key::Directory(directory));
                Error::passing(Errno::BUSY, why)
            })?,
        };
        self.held.insert(directory, held);
        self.unreleased.remove(&directory);
        self.end_half_renamed(directory)?;
        Ok(held)
    }

    /// Goes on after a rename that failed half-way, and was completed, or never noted, when the directory was held anew.
    fn end_half_renamed(&mut self, directory: Ino) -> Result<()> {
        let Some(&(ino, replaced)) = self.half_renamed.get(&directory) else { return Ok(()) };
        for ino in [Some(ino), replaced].into_iter().flatten() {
            let inode = self.stores.cluster.inode_now(ino)?;
            if let (Some(node), Some(inode)) = (self.nodes.get_mut(&ino), inode) {
                node.set_inode(inode);
            }
        }
        self.half_renamed.remove(&directory);
        self.forget_removed(replaced.map(|ino| (ino, Kind::File)));
        Ok(())
    }

    /// Notes a directory that this mount made, and holds.
    fn made(&mut self, ino: Ino) {
        self.held.insert(ino, Held { directory: ino, mount: self.stores.mount, term: 1 });
        self.stores.cluster.remember(ino);
    }

    fn release(&mut self, directory: Ino) -> Result<()> {
        let Some(held) = self.held.get(&directory).copied() else { return Ok(()) };
        let inside: Vec<Ino> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.is_writing() && node.is_in(directory))
            .map(|(&ino, _)| ino)
            .collect();
        if inside.iter().any(|ino| self.nodes.get(ino).is_some_and(Node::has_writers)) {
            return Ok(());
        }
        inside.into_iter().try_for_each(|ino| self.settle_file(ino))?;
        self.held.remove(&directory);
        self.stores.cluster.forget(directory);
        self.unreleased.insert(directory, held);
        self.end_release(directory)
    }

    /// Reports to the cluster that a directory was given up. That is tried again later if it fails.
    fn end_release(&mut self, directory: Ino) -> Result<()> {
        let Some(held) = self.unreleased.get(&directory) else { return Ok(()) };
        self.stores.cluster.run(vec![held.release()])?;
        self.unreleased.remove(&directory);
        Ok(())
    }

    fn end_releases(&mut self) -> Result<()> {
        let directories: Vec<Ino> = self.unreleased.keys().copied().collect();
        all(directories, |directory| self.end_release(directory))
    }

    /// Completes renames that failed half-way: other mounts wait for their directories.
    fn complete_half_renamed(&mut self) -> Result<()> {
        let directories: Vec<Ino> = self.half_renamed.keys().copied().collect();
        all(directories, |directory| self.hold(directory).map(drop))
    }

    fn give_up_wanted(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.held.keys().map(|&directory| Key::Directory(directory)).collect();
        let values = self.stores.cluster.many(&keys)?;
        let mut outcome = Ok(());
        for (key, value) in keys.iter().zip(values) {
            let (Key::Directory(directory), Some(value)) = (key, value) else { continue };
            let lease = match Directory::decode(&value) {
                Ok(lease) => lease,
                Err(error) => {
                    outcome = outcome.and(Err(Error::of_value(&error, key)));
                    continue;
                }
            };
            if lease.holder != Some(self.stores.mount) {
                // It seemed dead, and another mount took it.
                self.held.remove(directory);
                self.stores.cluster.forget(*directory);
            } else if lease.wanted.is_some() {
                outcome = outcome.and(self.release(*directory));
            }
        }
        outcome
    }

    /// Finds a name; one that is only on the backing gets an inode.
    fn find(&mut self, directory: Ino, name: &[u8]) -> Result<Option<(Ino, Kind)>> {
        if name.len() > MAX_NAME {
            return Err(Error::new(Errno::NAMETOOLONG, "look up name: it has more than 255 bytes"));
        }
        if directory == Ino::ROOT && name == FOLDER || !is_name(name) {
            return Ok(None);
        }
        let bucket = self.stores.cluster.bucket_of(directory, name)?;
        match look_up(bucket.as_ref(), name) {
            Lookup::Found(ino, kind) => return Ok(Some((ino, kind))),
            Lookup::Removed => return Ok(None),
            Lookup::AskBacking => {}
        }
        if !is_shown(&self.inode(directory)?) {
            return Ok(None);
        }
        let path = self.path(directory)?;
        let Some(found) = self.stores.backing.find(&path, name)? else { return Ok(None) };
        let held = self.hold(directory)?;
        // Another mount may have given it an inode since.
        let bucket = self.stores.cluster.bucket_of(directory, name)?;
        match look_up(bucket.as_ref(), name) {
            Lookup::Found(ino, kind) => return Ok(Some((ino, kind))),
            Lookup::Removed => return Ok(None),
            Lookup::AskBacking => {}
        }
        let ino = draw();
        let size = if found.kind == Kind::File { found.size } else { 0 };
        let bits = bits_for(size, self.chunk_bits).ok_or_else(|| {
            let why = format!("open {}: the file has more than 1 TiB: use it in the directory", shown(directory, name));
            Error::new(Errno::FBIG, why)
        })?;
        if found.kind == Kind::File {
            self.stores.backing.keep(&path, name, ino)?;
        }
        let inode = imported(&found, directory, name, bits);
        let kind = inode.kind;
        self.stores.cluster.run(held.create(ino, inode))?;
        if kind == Kind::Directory {
            self.made(ino);
        }
        Ok(Some((ino, kind)))
    }

    /// Returns the way to a directory on the backing. Directories do not move.
    fn path(&mut self, directory: Ino) -> Result<Names> {
        if let Some(path) = self.paths.get(&directory) {
            return Ok(path.clone());
        }
        let mut path = Names::new();
        let mut at = directory;
        while at != Ino::ROOT {
            let inode = self.inode(at)?;
            let Some(parent) = inode.parent.filter(|_| path.len() < DEPTH) else { return Err(gone(directory)) };
            path.push(inode.name);
            at = parent;
        }
        path.reverse();
        self.paths.insert(directory, path.clone());
        Ok(path)
    }

    /// Opens a file for writing in the cluster, unless this mount has it.
    fn begin_writing(&mut self, ino: Ino) -> Result<()> {
        if self.nodes.get(&ino).is_some_and(Node::is_writing) {
            return Ok(());
        }
        let inode = self.inode(ino)?;
        if inode.kind != Kind::File {
            return Err(Error::new(Errno::ISDIR, format!("write {}: it is no file", Key::Inode(ino))));
        }
        if let Some(parent) = inode.parent.filter(|_| !inode.is_unlinked) {
            self.hold(parent)?;
        }
        self.end_dead_writer(ino, &inode)?;
        self.stores.cluster.edit(ino, Edit::Open(self.stores.mount))?;
        let inode = self.inode(ino)?;
        let node = self.nodes.entry(ino).or_insert_with(|| Node::new(ino, inode.clone()));
        node.begin_writing(inode, Instant::now());
        if node.has_writers() {
            node.reopen();
        }
        Ok(())
    }

    /// Ends the writing of a mount that died, as an agent would. This mount holds the directory.
    fn end_dead_writer(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        let Some(writer) = inode.writer.filter(|&writer| writer != self.stores.mount) else { return Ok(()) };
        let lives = self.stores.cluster.many(&[Key::Mount(writer)])?.pop().flatten().is_some();
        if lives {
            let why = format!("write {}: another mount writes it: close the file there", Key::Inode(ino));
            return Err(Error::passing(Errno::BUSY, why));
        }
        self.stores.cluster.edit(ino, Edit::Abandon(writer))
    }

    fn truncate(&mut self, ino: Ino, size: u64) -> Result<()> {
        self.begin_writing(ino)?;
        let node = self.nodes.get_mut(&ino).ok_or_else(|| gone(ino))?;
        node.truncate(&mut self.stores, size, now())?;
        // Nothing will close it.
        if node.has_writers() { Ok(()) } else { self.sync_file(ino, true) }
    }

    fn sync_file(&mut self, ino: Ino, closes: bool) -> Result<()> {
        let Some(node) = self.nodes.get(&ino) else { return Ok(()) };
        let inode = node.inode();
        let mark = match inode.parent {
            Some(parent) if node.begins() && !inode.is_unlinked => Some(self.hold(parent)?.mark(&inode.name, ino)),
            _ => None,
        };
        let node = self.nodes.get_mut(&ino).ok_or_else(|| gone(ino))?;
        node.sync(&mut self.stores, mark, closes)
    }

    fn settle_file(&mut self, ino: Ino) -> Result<()> {
        let Some(node) = self.nodes.get_mut(&ino) else { return Ok(()) };
        node.settle(&mut self.stores)?;
        if !node.is_open() {
            self.nodes.remove(&ino);
        }
        Ok(())
    }

    /// Keeps the bytes of a file that loses its name while a program here has it open: its writer's file is not removed.
    fn keep_if_open(&mut self, ino: Ino, kind: Kind) -> Result<bool> {
        if kind != Kind::File || !self.nodes.get(&ino).is_some_and(Node::is_open) {
            return Ok(false);
        }
        self.begin_writing(ino)?;
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.reopen();
        }
        // If this mount dies, an agent removes the file.
        self.stores.cluster.update(Note::Make(ino))?;
        self.noted.insert(ino);
        Ok(true)
    }

    /// Goes on after a file lost its name. Nothing but this mount removes one that was replaced.
    fn lost_name(&mut self, ino: Ino, is_open: bool, is_replaced: bool) -> Result<()> {
        if is_open {
            if let (Some(node), Some(inode)) = (self.nodes.get_mut(&ino), self.stores.cluster.inode(ino)?) {
                node.set_inode(inode);
            }
            return Ok(());
        }
        self.settle_file(ino)?;
        if is_replaced { self.bury(ino) } else { Ok(()) }
    }

    /// Returns what had a name last, if the name was removed and the backing has not followed.
    fn removed(&mut self, directory: Ino, name: &[u8]) -> Result<Option<(Ino, Kind)>> {
        let bucket = self.stores.cluster.bucket_of(directory, name)?;
        let entry = bucket.as_ref().and_then(|bucket| bucket.find(name));
        let removed = entry.filter(|entry| entry.standing == Standing::Whiteout);
        Ok(removed.map(|entry| (entry.ino, entry.kind)))
    }

    /// Removes what had a name that went to another: no agent finds it any more, or what was in it.
    ///
    /// The change of the name took effect. What stays here takes memory, and does no other harm.
    fn forget_removed(&mut self, removed: Option<(Ino, Kind)>) {
        let mut left: Vec<(Ino, Kind)> = removed.into_iter().collect();
        while let Some((ino, kind)) = left.pop() {
            // It may have another name since a rename, and one that a program has open goes once it is closed.
            let inode = self.stores.cluster.inode_now(ino).ok().flatten();
            let is_open = self.nodes.get(&ino).is_some_and(Node::is_open);
            if is_open || !inode.is_some_and(|inode| inode.is_unlinked) {
                continue;
            }
            if kind == Kind::Directory {
                let entries = entries(&mut self.stores.cluster, ino).unwrap_or_default().into_iter();
                left.extend(entries.map(|entry| (entry.ino, entry.kind)));
                self.stores.cluster.drop_keys((0..BUCKETS).map(|bucket| Key::Bucket(ino, bucket)));
                let _ = self.stores.cluster.edit(ino, Edit::Remove);
            } else {
                let _ = self.bury(ino);
            }
        }
    }

    /// Removes a file without a name.
    fn bury(&mut self, ino: Ino) -> Result<()> {
        let Some(inode) = self.stores.cluster.inode_now(ino)? else {
            self.nodes.remove(&ino);
            return Ok(());
        };
        let mut node = self.nodes.remove(&ino).unwrap_or_else(|| Node::new(ino, inode.clone()));
        let stored = node.stored();
        node.settle(&mut self.stores)?;
        self.end_dead_writer(ino, &inode)?;
        if self.noted.remove(&ino) {
            // Without a name it gets no other writer. If this mount dies before the inode goes, an agent finds what is left by the note.
            self.stores.cluster.drop_chunks(ino, stored);
            self.stores.cluster.finish_deletions();
            self.stores.cluster.edit(ino, Edit::Remove)?;
            // A note that stays goes with the agent's next sweep.
            let _ = self.stores.cluster.update(Note::Remove(ino));
        } else {
            // Readers of other mounts see first that it is gone.
            self.stores.cluster.edit(ino, Edit::Remove)?;
            self.stores.cluster.drop_chunks(ino, stored);
        }
        self.stores.backing.drop_data(ino, 0..inode.reserved.0.saturating_add(1))
    }
}

/// Operations that only a kernel asks for.
#[cfg(feature = "mount")]
impl Volume {
    /// Stores what was written through a handle whose program closes a descriptor of it. Returns whether this mount writes the file.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub(crate) fn flush(&mut self, handle: u64) -> Result<bool> {
        let Handle { ino, writes } = self.handle(handle)?;
        if writes {
            let is_last = self.nodes.get(&ino).is_some_and(|node| node.writers() == 1);
            self.sync_file(ino, is_last)?;
            self.persist_last(handle)?;
        }
        Ok(writes)
    }

    /// Sets the size of a file that is open for writing, unless it is larger.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub(crate) fn extend(&mut self, handle: u64, size: u64) -> Result<()> {
        let Handle { ino, writes } = self.handle(handle)?;
        let is_larger = self.nodes.get(&ino).is_some_and(|node| node.inode().size >= size);
        if writes && is_larger { Ok(()) } else { self.set_size(handle, size) }
    }

    /// Closes all files, as if the programs that have them open had ended.
    ///
    /// # Errors
    ///
    /// The first that came. All files are closed.
    pub(crate) fn close_all(&mut self) -> Result<()> {
        let handles: Vec<u64> = self.handles.keys().copied().collect();
        let mut outcome = Ok(());
        for handle in handles {
            let closed = self.close(handle);
            if closed.is_err() {
                self.abandon(handle);
            }
            outcome = outcome.and(closed);
        }
        outcome
    }

    /// Returns how much room the backing has.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn space(&self) -> Result<rustix::fs::StatVfs> {
        self.stores.backing.space()
    }
}

/// Makes the root directory, if the cluster has none.
///
/// # Errors
///
/// The cluster does not serve, or the backing fails.
pub(crate) fn make_root(cluster: &mut Cluster, backing: &Backing) -> Result<()> {
    if cluster.inode(Ino::ROOT)?.is_none() {
        let root = imported(&backing.root()?, Ino::ROOT, b"root", LARGEST_CHUNK);
        let root = Inode { parent: None, name: Vec::new(), ..root };
        cluster.edit(Ino::ROOT, Edit::Create(Box::new(root)))?;
    }
    // All mounts make the same value, which nothing holds.
    cluster.make(&Key::Directory(Ino::ROOT), &Directory::default().encode())
}

/// Returns the inode of what is only on the backing.
fn imported(found: &Found, parent: Ino, name: &[u8], chunk_bits: u8) -> Inode {
    Inode {
        kind: found.kind,
        state: State::Persisted,
        is_torn: false,
        is_unlinked: false,
        is_spilled: false,
        mode: found.mode,
        chunk_bits,
        owner: found.owner,
        group: found.group,
        size: found.size,
        modified: found.modified,
        changed: found.changed,
        generation: Generation(0),
        reserved: Generation(0),
        writer: None,
        parent: Some(parent),
        backing: found.number,
        name: name.to_vec(),
        target: found.target.clone(),
        map: Vec::new(),
    }
}

/// Returns the size of a chunk, as its binary logarithm, with which a file of so many bytes may be imported: this one at least. None: it is too large.
fn bits_for(size: u64, least: u8) -> Option<u8> {
    (least..=LARGEST_CHUNK).find(|&bits| size <= u64::from(MAX_CHUNKS) << bits)
}

/// Does an operation on each directory, also if it fails on one. Returns the first error.
fn all(directories: Vec<Ino>, mut operation: impl FnMut(Ino) -> Result<()>) -> Result<()> {
    let mut outcome = Ok(());
    for directory in directories {
        outcome = outcome.and(operation(directory));
    }
    outcome
}

/// Returns whether the backing has a directory. Before, another one may have its place there, which was removed and has names still.
fn is_shown(directory: &Inode) -> bool {
    directory.state == State::Persisted
}

/// Returns the time.
pub(crate) fn now() -> Time {
    time(SystemTime::now())
}

/// Returns a time as inodes have it.
pub(crate) fn time(at: SystemTime) -> Time {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let nanos = before.subsec_nanos();
            let seconds = -(before.as_secs() as i64) - i64::from(nanos > 0);
            Time { seconds, nanos: if nanos > 0 { 1_000_000_000 - nanos } else { 0 } }
        }
    }
}

/// Returns a random number that is neither 0 nor one with a meaning.
pub(crate) fn number() -> u64 {
    loop {
        let number = random();
        if number > unnamed::LAST.0 {
            return number;
        }
    }
}

fn draw() -> Ino {
    Ino(number())
}

fn check_name(directory: Ino, name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        return Err(Error::new(Errno::NAMETOOLONG, "make name: it has more than 255 bytes: choose a shorter one"));
    }
    if directory == Ino::ROOT && name == FOLDER {
        return Err(Error::new(Errno::PERM, "make .rdmakv: the file system uses this name: choose another"));
    }
    if !is_name(name) {
        return Err(Error::new(Errno::INVAL, format!("make {}: it is no name", name.escape_ascii())));
    }
    Ok(())
}

fn shown(directory: Ino, name: &[u8]) -> String {
    format!("{} in {}", name.escape_ascii(), Key::Directory(directory))
}

fn no_name(directory: Ino, name: &[u8]) -> Error {
    Error::new(Errno::NOENT, format!("look up {}: there is no such name", shown(directory, name)))
}

fn not_writable(ino: Ino) -> Error {
    Error::new(Errno::BADF, format!("write {}: it is not open for writing", Key::Inode(ino)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_get_large_chunks() {
        assert_eq!(
            (bits_for(0, 18), bits_for(32 << 30, 18), bits_for((32 << 30) + 1, 18)),
            (Some(18), Some(18), Some(19))
        );
        assert_eq!((bits_for(1 << 40, 16), bits_for((1 << 40) + 1, 16)), (Some(23), None));
    }
}
