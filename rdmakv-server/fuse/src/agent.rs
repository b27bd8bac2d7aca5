//! The files agent: it carries frozen files to the backing directory, and shows them there under their names.
//!
//! [`Agent`] drives the machines of [`finish`](crate::finish). One agent works for a whole cluster: the one that began last. It may be killed at
//! any step, and another one goes on.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rdmakv_client::{Cluster as Address, Frozen, Options};
use rdmakv_proto::files::{BUCKETS, Entry, Ino, Inode, Key, Kind, Standing, State};
use rustix::io::Errno;

use crate::backing::Backing;
use crate::clean::Clean;
use crate::cluster::Cluster;
use crate::disk_error::{self, DiskError};
use crate::drain::{Help, carry, frozen};
use crate::error::{Error, Result};
use crate::faults::Countdown;
use crate::finish::{AGENT, Disk, DiskAnswer, Need, Outcome, Publication, Told};
use crate::inode::{Edit, may_evict};
use crate::library::{check_policies, open_backing, read_config};
use crate::map::Map;
use crate::persist::{FAILURE, FAILURE_LASTS, failure};
use crate::staging::Folder;
use crate::store::{Answer, Request};
use crate::sweep::{Sweeper, Swept};
use crate::walk::{Place, Walk, entries};

/// Inodes that are read at once.
const KEYS: usize = 256;

/// How long servers are not asked to write chunks, after they wrote none, and after some did not answer. They may be of an earlier release.
const UNASKED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));

/// The agent of a file system.
#[derive(Debug)]
pub struct Agent {
    cluster: Cluster,
    backing: Backing,
    folder: Folder,
    steps: Countdown,
    clean: Clean,
    /// Bytes of persisted chunks that stay in memory; None for all.
    kept: Option<u64>,
    sweeper: Sweeper,
    /// Until then servers are not asked to write chunks.
    unasked: Option<Instant>,
}

/// The outcome of one round through all names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Round {
    /// Names that the backing shows now as they are.
    pub shown: u64,
    /// Names that it does not show yet: their files are being written, or changed meanwhile.
    pub left: u64,
    /// Bytes that were written to the backing, by servers and by this agent.
    pub bytes: u64,
    /// Bytes of these that did not go through this agent: servers with the directory wrote them.
    pub by_servers: u64,
    /// Names that could not be shown, and why. They are tried again in the next round.
    pub failed: Vec<(Vec<u8>, Error)>,
}

/// A publication under way: what the driver has to know of it.
#[derive(Debug)]
struct Job<'a> {
    name: &'a [u8],
    /// The directory on the backing; None if it is not there.
    parent: Option<OwnedFd>,
    /// The inode as it was read last.
    inode: Option<Inode>,
    bytes: u64,
    by_servers: u64,
    /// Why a step failed.
    why: Option<Error>,
}

impl Agent {
    /// Begins to work for a cluster, in place of the agent before.
    ///
    /// # Errors
    ///
    /// Etcd or the cluster does not answer, its policies would lose bytes, or the directory belongs to another cluster.
    pub fn begin(cluster: &Address, backing: &Path, options: Options) -> Result<Self> {
        let config = read_config(cluster)?;
        check_policies(&config)?;
        let address = cluster;
        let mut cluster = Cluster::open(address, options)?;
        let backing = open_backing(&mut cluster, address, backing, &config)
            .and_then(|backing| Folder::take(&backing).map(|folder| (backing, folder)));
        let (backing, folder) = backing.inspect_err(|why| note_disk_error(&mut cluster, b"/", why))?;
        Ok(Self {
            cluster,
            backing,
            folder,
            steps: Countdown::default(),
            clean: Clean::default(),
            kept: None,
            sweeper: Sweeper::default(),
            unasked: None,
        })
    }

    /// Keeps at most so many bytes of persisted files in memory: those that were shown last. Without this all stay there.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub fn keep(&mut self, bytes: u64) -> Result<()> {
        self.kept = Some(bytes);
        // Those that agents before this one showed are the first to go.
        let mut left = vec![Ino::ROOT];
        while let Some(directory) = left.pop() {
            let entries = entries(&mut self.cluster, directory)?;
            left.extend(entries.iter().filter(|entry| entry.kind == Kind::Directory).map(|entry| entry.ino));
            let files: Vec<Ino> =
                entries.iter().filter(|entry| entry.kind == Kind::File).map(|entry| entry.ino).collect();
            for some in files.chunks(KEYS) {
                let keys: Vec<Key> = some.iter().map(|&ino| Key::Inode(ino)).collect();
                for (&ino, value) in some.iter().zip(self.cluster.many(&keys)?) {
                    if let Some(inode) = value.and_then(|value| Inode::decode(&value).ok()) {
                        self.count(ino, &inode);
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts a file if the backing has it, and its chunks are in memory.
    fn count(&mut self, ino: Ino, inode: &Inode) {
        if self.kept.is_some() && inode.state == State::Persisted && !inode.map.is_empty() {
            self.clean.add(ino, inode.generation, inode.size);
        }
    }

    /// Deletes chunks of persisted files, those that were shown first, until few enough are left.
    fn evict(&mut self) -> Result<()> {
        let Some(kept) = self.kept else { return Ok(()) };
        while let Some((ino, generation)) = self.clean.take(kept) {
            let Some(inode) = self.cluster.inode_now(ino)?.filter(|inode| may_evict(inode, generation)) else {
                continue;
            };
            self.steps.step();
            // A reader that misses a chunk of a persisted file looks at the backing.
            self.cluster.drop_chunks(ino, Map::new(&inode.map).chunks());
            self.cluster.finish_deletions();
            self.steps.step();
            // That the file changed meanwhile is no failure: its next generation is counted once it is shown.
            let _ = self.cluster.edit(ino, Edit::Evict(generation));
        }
        Ok(())
    }

    /// Has the process end by a signal after so many steps.
    #[doc(hidden)]
    pub fn abort_after(&mut self, steps: u64) {
        self.steps = Countdown::end_after(steps);
    }

    /// Looks for memory and room that dead mounts left behind, and frees those of a few files. Data files are looked at that did not change for so
    /// long: 10 minutes are enough for those that are being made.
    ///
    /// # Errors
    ///
    /// The cluster does not serve, or the backing fails.
    pub fn sweep(&mut self, age: Duration) -> Result<Swept> {
        self.sweeper.sweep(&mut self.cluster, &self.backing, age)
    }

    /// Frees memory of a few more files that the last sweep found. Returns all that was freed since, or None if there is nothing left.
    ///
    /// # Errors
    ///
    /// As [`Self::sweep`]. The file that failed is freed by a later sweep.
    pub fn sweep_on(&mut self) -> Result<Option<Swept>> {
        if !self.sweeper.has_left() {
            return Ok(None);
        }
        self.sweeper.free(&mut self.cluster, &self.backing).map(Some)
    }

    /// Goes through all names once, and has the backing show them as they are.
    ///
    /// # Errors
    ///
    /// `ESTALE`: a later agent began. Others: the cluster does not serve now.
    pub fn round(&mut self) -> Result<Round> {
        let (mut walk, mut round) = (Walk::new(), Round::default());
        while let Some((place, entries)) = walk.next(&mut self.cluster)? {
            if entries.is_empty() {
                continue;
            }
            for entry in entries {
                self.publish(&place, &entry, &mut round)?;
            }
        }
        if let Some((path, why)) = round.failed.iter().rev().find(|(_, why)| why.is_of_backing()) {
            note_disk_error(&mut self.cluster, path, why);
        }
        Ok(round)
    }

    /// Has the backing show a name as it is, if that is possible now.
    fn publish(&mut self, place: &Place, entry: &Entry, round: &mut Round) -> Result<()> {
        let mut job = Job { name: &entry.name, parent: None, inode: None, bytes: 0, by_servers: 0, why: None };
        let failures = round.failed.len();
        let outcome = self.parent(place).and_then(|parent| {
            job.parent = parent;
            self.run(place, &mut job)
        });
        round.bytes += job.bytes;
        round.by_servers += job.by_servers;
        let fail = |why: Error| (place.path(&entry.name), why);
        let failed = matches!(outcome, Err(_) | Ok(Outcome::Failed | Outcome::Broken));
        match outcome {
            _ if failed && self.has_changed(place, entry, job.inode.as_ref()) => round.left += 1,
            Ok(Outcome::Done) => {
                round.shown += 1;
                if let Some(inode) = job.inode.take().filter(|inode| !inode.is_unlinked) {
                    // It was read before it was persisted.
                    self.count(entry.ino, &Inode { state: State::Persisted, ..inode });
                }
                self.evict()?;
                if entry.kind == Kind::Directory && entry.standing == Standing::Whiteout {
                    self.forget_buckets(entry.ino);
                }
            }
            Ok(Outcome::Later) => round.left += 1,
            Ok(Outcome::Fenced) => {
                let path = self.backing.path().display().to_string();
                let why = format!("publish in {path}: another agent began: leave the work to it, and end this one");
                return Err(Error::new(Errno::STALE, why));
            }
            Ok(Outcome::Broken) => {
                let why =
                    format!("read {}: it is lost, or cannot be read: write the file again", Key::Inode(entry.ino));
                round.failed.push(fail(Error::new(Errno::IO, why)));
            }
            Ok(Outcome::Failed) => {
                let why = job.why.take();
                let path = self.backing.path().display();
                round.failed.push(fail(why.unwrap_or_else(|| Error::of_backing(Errno::IO, "publish in", path))));
            }
            Err(why) => round.failed.push(fail(why)),
        }
        if let (Some((_, why)), Some(inode)) = (round.failed.get(failures), &job.inode)
            && why.is_of_backing()
        {
            // A sync that waits for the file is told.
            let key = Key::Persisted(entry.ino, inode.generation, FAILURE);
            self.cluster.note(&key, &failure(why.errno()), FAILURE_LASTS);
        }
        Ok(())
    }

    /// Returns whether a name or its file changed since they were read: what was looked for may be gone.
    fn has_changed(&mut self, place: &Place, entry: &Entry, inode: Option<&Inode>) -> bool {
        let Ok(bucket) = self.cluster.bucket_of(place.directory, &entry.name) else { return false };
        if bucket.as_ref().and_then(|bucket| bucket.find(&entry.name)) != Some(entry) {
            return true;
        }
        let (Some(inode), Ok(now)) = (inode, self.cluster.inode_now(entry.ino)) else { return false };
        now.is_none_or(|now| now.generation != inode.generation)
    }

    fn run(&mut self, place: &Place, job: &mut Job<'_>) -> Result<Outcome> {
        let (mut publication, mut need) = Publication::begin(place.directory, job.name, &[AGENT]);
        loop {
            self.steps.step();
            let told = match &need {
                Need::Nothing(outcome) => return Ok(*outcome),
                Need::Store(request) => Told::Store(self.ask(request, job)?),
                Need::Disk(disk) => Told::Disk(self.change(disk, job)?),
                Need::Freeze(ino, inode) => {
                    self.drain(*ino, inode, job)?;
                    Told::Frozen
                }
            };
            need = publication.take(&told);
        }
    }

    fn ask(&mut self, request: &Request, job: &mut Job<'_>) -> Result<Answer> {
        let answer = self.cluster.ask(request)?;
        if let (Request::Get(Key::Inode(_)), Answer::Found(_, value)) = (request, &answer) {
            job.inode = Inode::decode(value).ok();
        }
        Ok(answer)
    }

    /// Freezes a generation at all servers, and carries it to its data file.
    fn drain(&mut self, ino: Ino, inode: &Inode, job: &mut Job<'_>) -> Result<()> {
        if inode.is_spilled {
            let file = (ino, inode.generation);
            let adopted = self.folder.adopt(&self.backing, file, inode.is_torn);
            adopted.map_err(|errno| Error::of_backing(errno, "take its writer's data file of", Key::Inode(ino)))?;
            self.steps.step();
        }
        if inode.map.is_empty() {
            return Ok(());
        }
        self.cluster.freeze(&frozen(ino, inode))?;
        let asks = self.unasked.is_none_or(|until| Instant::now() >= until);
        let carried = carry((&mut self.cluster, &self.backing), (ino, inode), asks, &mut self.steps)?;
        job.bytes += carried.written;
        job.by_servers += carried.by_servers;
        self.unasked = match carried.help {
            Help::Came => None,
            Help::Absent => Some(Instant::now() + UNASKED.0),
            Help::Failed => Some(Instant::now() + UNASKED.1),
            Help::Unasked => self.unasked,
        };
        Ok(())
    }

    fn change(&mut self, disk: &Disk, job: &mut Job<'_>) -> Result<DiskAnswer> {
        match (disk, job.inode.take()) {
            (Disk::Drop(ino, None), Some(inode)) => {
                self.remove(*ino, &inode)?;
                return Ok(DiskAnswer::Done(0));
            }
            (Disk::Drop(ino, Some(_)), Some(inode)) => {
                // Servers keep what is frozen until then, also if the last agent was killed in between.
                if !inode.map.is_empty() {
                    self.cluster.persisted(&frozen(*ino, &inode))?;
                }
                job.inode = Some(inode);
            }
            (_, inode) => job.inode = inode,
        }
        let errno = match &job.parent {
            Some(parent) => match self.folder.change(&self.backing, (parent, job.name), disk) {
                Ok(answer) => return Ok(answer),
                Err(errno) => errno,
            },
            // Its directory was removed with it.
            None if matches!(disk, Disk::Hide(_)) && !self.folder.is_gone() => return Ok(DiskAnswer::Done(0)),
            None => Errno::NOENT,
        };
        job.why = Some(Error::of_backing(errno, operation(disk), job.name.escape_ascii()));
        Ok(DiskAnswer::Failed)
    }

    /// Removes the chunks and data files of an inode that has no name.
    fn remove(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        self.cluster.drop_chunks(ino, Map::new(&inode.map).chunks());
        self.cluster.finish_deletions();
        // Servers that still have a piece of a chunk count it as clean.
        if !inode.map.is_empty() {
            self.cluster.persisted(&frozen(ino, inode))?;
        }
        if inode.reserved.0 > inode.generation.0 {
            self.cluster.persisted(&Frozen { generation: inode.reserved.0, runs: Vec::new(), ..frozen(ino, inode) })?;
        }
        self.backing.drop_data(ino, 0..inode.reserved.0.saturating_add(1))
    }

    /// Deletes the names of a directory that is gone.
    fn forget_buckets(&mut self, directory: Ino) {
        self.cluster.drop_keys((0..BUCKETS).map(|bucket| Key::Bucket(directory, bucket)));
    }

    /// Opens a directory on the backing; None if it is not there. Each on the way has to be the recorded one.
    fn parent(&mut self, place: &Place) -> Result<Option<OwnedFd>> {
        let mut names = Vec::new();
        let mut opened = self.backing.directory(&names)?;
        for (ino, name) in &place.way {
            names.push(name.clone());
            opened = self.backing.directory(&names)?;
            let (Some(directory), Some(inode)) = (&opened, self.cluster.inode_now(*ino)?) else { return Ok(None) };
            let stat = rustix::fs::fstat(directory);
            let stat = stat.map_err(|errno| Error::of_backing(errno, "look up", name.escape_ascii()))?;
            if inode.state == State::Persisted && stat.st_ino != inode.backing {
                if inode.is_unlinked {
                    return Ok(None);
                }
                let why = "another directory has its place: put the first one back";
                return Err(Error::new(Errno::STALE, format!("open {} on the backing: {why}", name.escape_ascii())));
            }
        }
        Ok(opened)
    }
}

/// Notes a failure of the backing, for others to see.
fn note_disk_error(cluster: &mut Cluster, path: &[u8], why: &Error) {
    if why.is_of_backing() {
        let error = DiskError { path: path.to_vec(), errno: why.errno(), at: SystemTime::now() };
        cluster.note(&disk_error::NOTE, &error.encode(), disk_error::LASTS);
    }
}

/// Returns what a change of the backing does, for errors.
fn operation(disk: &Disk) -> &'static str {
    match disk {
        Disk::Create(..) => "make data file of",
        Disk::Link(..) => "link data file of",
        Disk::Make(..) => "make",
        Disk::Finish(..) => "set attributes of",
        Disk::Show(..) => "show",
        Disk::Hide(_) => "remove",
        Disk::Drop(..) => "remove data files of",
    }
}
