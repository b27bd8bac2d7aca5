//! Draining a frozen generation to the backing directory, and showing it there under its name.
//!
//! | process | work |
//! | --- | --- |
//! | every server | answers FREEZE: marks the generation [final](Finals) |
//! | the agent | for each name that is new or a whiteout, a [`Publication`]; it writes chunks by [`Draining`], syncs, writes `p/INO/GEN/SERVER` |
//! | the agent, when it begins | takes a [staging folder](Staging) before it publishes |
//!
//! The machines also serve an agent for each server, which publishes the directories that its server is primary of, and servers that drain by
//! themselves. Today one agent does all, but for the chunks that servers write when it asks (`Call::Carry`). The model explores both.
//!
//! **A frozen generation never changes**, so a slice may be written twice, late, and by two servers: the bytes are the same. Draining
//! begins at a server only after it answered FREEZE. Finishing needs the answers of all servers of one epoch: a late change of a chunk
//! then finds a server that refuses it.
//!
//! **Files on the backing.** `.rdmakv/data/INO.GEN` gets the slices. Bytes count as written once they are synced. When the ranges of all servers
//! cover the file, the agent links it into its staging folder, `.rdmakv/new/NUMBER/`. There it sets length and attributes, syncs it,
//! and renames it over the name. So the name shows whole generations only. Names that go are renamed into the folder, and unlinked there.
//!
//! **The staging folder is a fence.** Agents are numbered, here called epochs. One that publishes first removes the folders of all earlier ones. Each change of the
//! backing's names leads through an agent's own folder. So a late agent, which the cluster removed, changes no name any more: its folder
//! is gone. It makes a folder only for an epoch that it reads again afterwards. An agent of a later epoch, which removes the folder, came
//! after that.
//!
//! **An entry that is new is the list of work.** The agent reads the bucket, then the inode. The entry becomes *shown* by a `cas` of that bucket.
//! A writer marks the entry before its generation begins, and that always writes. So the agent overlooks no generation. A whiteout is
//! dropped in the same way.
//!
//! Links in `.rdmakv/data` stay while the inode is in memory. So two names that change in any order destroy no bytes, and evicted chunks are
//! read from there.

use std::ops::Range;

use rdmakv_proto::files::{Bucket, Entry, Generation, Ino, Inode, Key, Kind, Ranges, Standing, State, bucket_of};
pub use rdmakv_proto::files::{Draining, Finals, Part, Places};

use crate::faults::is_planted;
use crate::inode::{Edit, InodeEdit};
use crate::store::{Answer, Change, Decision, Progress, Refusal, Request, Update};

/// The agent's number in `p/INO/GEN/SERVER`. No server has it.
pub const AGENT: u8 = u8::MAX;

/// An agent's wait for the answers to FREEZE.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Freezing {
    epoch: u32,
    waiting: Vec<u8>,
}

impl Freezing {
    /// Begins with all servers of an epoch.
    pub fn begin(epoch: u32, servers: &[u8]) -> Self {
        Self { epoch, waiting: servers.to_vec() }
    }

    /// Begins again in a later epoch: a server that joined has to answer, too.
    pub fn adopt(&mut self, epoch: u32, servers: &[u8]) {
        if epoch > self.epoch {
            *self = Self::begin(epoch, servers);
        }
    }

    /// Returns the epoch, and the servers that have not answered in it.
    pub fn waiting(&self) -> (u32, &[u8]) {
        (self.epoch, &self.waiting)
    }

    /// Takes an answer that a server gave in an epoch.
    pub fn answered(&mut self, epoch: u32, server: u8) {
        if epoch == self.epoch {
            self.waiting.retain(|&other| other != server);
            if is_planted("freeze-not-all") {
                self.waiting.clear();
            }
        }
    }

    /// Returns whether all servers answered.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Returns the bytes of a file's chunks that no server has on disk.
pub fn uncovered(inode: &Inode, on_disk: &Ranges) -> Vec<Range<u64>> {
    let runs = inode.map.iter().map(|run| {
        let place = |chunk: u32| (u64::from(chunk) << inode.chunk_bits).min(inode.size);
        place(run.first)..place(run.end())
    });
    runs.flat_map(|run| on_disk.gaps(run)).collect()
}

/// A change of the backing. Names are those of a publication's directory; `staged` is the agent's own folder.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Disk {
    /// Makes `data/INO.GEN`, without bytes, if it is not there.
    Create(Ino, Generation),
    /// Links `data/INO.GEN` into the folder. That it is there already is no error.
    Link(Ino, Generation),
    /// Makes a directory or a symbolic link in the folder, if the name is not one on the backing.
    Make(Ino, Box<Inode>),
    /// Sets length, owner, mode and times of the file in the folder, by its path there, and syncs it.
    Finish(Ino, Box<Inode>),
    /// Renames it over the name, removes what is left of it in the folder, and syncs both directories. Returns its inode's number.
    Show(Ino, Vec<u8>),
    /// Renames a name into the folder, removes it there, and syncs the directory. That it is not there is no error.
    Hide(Vec<u8>),
    /// Removes `data/INO.*` of generations below this one, or of all.
    Drop(Ino, Option<Generation>),
}

/// The outcome of a change of the backing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DiskAnswer {
    /// It is done; of [`Disk::Show`] the number of the inode on the backing, else 0.
    Done(u64),
    /// The agent's folder is gone: another agent publishes now.
    Fenced,
    /// It failed, and may be tried again later.
    Failed,
}

/// A need of a publication.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Need {
    /// A request to the cluster.
    Store(Request),
    /// A change of the backing.
    Disk(Disk),
    /// All servers of one epoch answer FREEZE with this generation and its inode: see [`Freezing`].
    Freeze(Ino, Box<Inode>),
    /// Nothing: it ended.
    Nothing(Outcome),
}

/// An answer to a need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The cluster's.
    Store(Answer),
    /// The backing's.
    Disk(DiskAnswer),
    /// All servers answered FREEZE.
    Frozen,
}

/// How a publication ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The backing shows what the name is.
    Done,
    /// It is written, or not drained yet, or changed meanwhile: look again later.
    Later,
    /// The backing failed: report it, and try again later.
    Failed,
    /// Another agent publishes now: take the staging folder of the latest epoch first.
    Fenced,
    /// The name's inode or another value is lost or broken: report it.
    Broken,
}

/// The deletion of a server's ranges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RangesGone(Key);

impl Change for RangesGone {
    fn key(&self) -> Key {
        self.0
    }

    fn decide(&self, _: Option<&[u8]>) -> Result<Decision, Refusal> {
        Ok(Decision::Delete)
    }
}

/// An agent's work on one name of a directory, until the backing shows what the name is.
///
/// An agent has one publication of a directory at a time: two names may have the same inode for a while.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Publication {
    directory: Ino,
    name: Vec<u8>,
    /// The servers whose ranges count: all that ever were in the cluster, dead ones too.
    servers: Vec<u8>,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Name,
    /// The bucket's version and value, and the name's entry.
    Inode(Seen),
    /// The inode is absent. The bucket is read again: the name may have gone to another since.
    Missing(Seen),
    Writer(Seen, Inode),
    Abandoning(Seen, Update<InodeEdit>),
    Freezing(Seen, Inode),
    Covering(Seen, Inode, Ranges, usize),
    Changing(Seen, Inode, usize),
    Persisting(Seen, Inode, Update<InodeEdit>),
    Clearing(Seen, Inode, Update<RangesGone>, usize),
    Dropping(Seen),
    /// The bucket is written, at the version that was read.
    Writing,
    Hiding(Seen),
    Unused(Seen),
    Removing(Seen),
    RemovingInode(Seen, Update<InodeEdit>),
    Ended,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Seen {
    version: u64,
    bucket: Bucket,
    entry: Entry,
}

impl Publication {
    /// Begins, and returns the work with its first need.
    pub fn begin(directory: Ino, name: &[u8], servers: &[u8]) -> (Self, Need) {
        let (name, servers) = (name.to_vec(), servers.to_vec());
        let need = Need::Store(Request::Get(Key::Bucket(directory, bucket_of(&name))));
        (Self { directory, name, servers, stage: Stage::Name }, need)
    }

    /// Takes the answer to the last need, and returns the next one.
    pub fn take(&mut self, told: &Told) -> Need {
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        match (stage, told) {
            (Stage::Name, Told::Store(answer)) => self.read_name(answer),
            (Stage::Inode(seen), Told::Store(answer)) => self.read_inode(seen, answer),
            (Stage::Missing(seen), Told::Store(Answer::Found(version, _))) if *version == seen.version => {
                Need::Nothing(Outcome::Broken)
            }
            (Stage::Writer(_, _), Told::Store(Answer::Found(..))) => Need::Nothing(Outcome::Later),
            (Stage::Writer(seen, inode), Told::Store(Answer::Absent)) => match inode.writer {
                Some(mount) => {
                    let edit = InodeEdit { ino: seen.entry.ino, edit: Edit::Abandon(mount) };
                    let (update, request) = Update::begin(edit);
                    self.go_on(Stage::Abandoning(seen, update), Need::Store(request))
                }
                None => Need::Nothing(Outcome::Later),
            },
            (Stage::Abandoning(seen, mut update), Told::Store(answer)) => match update.take(answer) {
                Progress::Ask(request) => self.go_on(Stage::Abandoning(seen, update), Need::Store(request)),
                Progress::Ended(Ok(())) => self.ask_inode(seen),
                Progress::Ended(Err(refusal)) => refused(refusal),
            },
            (Stage::Freezing(seen, inode), Told::Frozen) => self.cover(seen, inode, Ranges::default(), 0),
            (Stage::Covering(seen, inode, mut ranges, at), Told::Store(answer)) => {
                match answer {
                    Answer::Found(_, value) => match Ranges::decode(value) {
                        Ok(others) => ranges.union(&others),
                        Err(_) => return Need::Nothing(Outcome::Broken),
                    },
                    Answer::Absent => {}
                    _ => return Need::Nothing(Outcome::Later),
                }
                self.cover(seen, inode, ranges, at + 1)
            }
            (Stage::Changing(seen, inode, at), Told::Disk(DiskAnswer::Done(number))) => {
                self.change(seen, inode, at + 1, *number)
            }
            (Stage::Persisting(seen, inode, mut update), Told::Store(answer)) => match update.take(answer) {
                Progress::Ask(request) => self.go_on(Stage::Persisting(seen, inode, update), Need::Store(request)),
                Progress::Ended(Ok(())) => self.clear(seen, inode, 0),
                Progress::Ended(Err(refusal)) => refused(refusal),
            },
            (Stage::Clearing(seen, inode, mut update, at), Told::Store(answer)) => match update.take(answer) {
                Progress::Ask(request) => self.go_on(Stage::Clearing(seen, inode, update, at), Need::Store(request)),
                Progress::Ended(_) => self.clear(seen, inode, at + 1),
            },
            (Stage::Dropping(seen), Told::Disk(DiskAnswer::Done(_))) => self.show(seen),
            (Stage::Writing, Told::Store(Answer::Stored)) => Need::Nothing(Outcome::Done),
            (Stage::Hiding(seen), Told::Disk(DiskAnswer::Done(_))) => {
                let request = Request::Get(Key::Inode(seen.entry.ino));
                self.go_on(Stage::Unused(seen), Need::Store(request))
            }
            (Stage::Unused(seen), Told::Store(answer)) => match answer {
                Answer::Found(_, value) => match Inode::decode(value) {
                    Ok(inode) if inode.is_unlinked && inode.writer.is_none() => {
                        let drop = Disk::Drop(seen.entry.ino, None);
                        self.go_on(Stage::Removing(seen), Need::Disk(drop))
                    }
                    Ok(_) => self.forget(seen),
                    Err(_) => Need::Nothing(Outcome::Broken),
                },
                Answer::Absent => self.forget(seen),
                _ => Need::Nothing(Outcome::Later),
            },
            (Stage::Removing(seen), Told::Disk(DiskAnswer::Done(_))) => {
                let (update, request) = Update::begin(InodeEdit { ino: seen.entry.ino, edit: Edit::Remove });
                self.go_on(Stage::RemovingInode(seen, update), Need::Store(request))
            }
            (Stage::RemovingInode(seen, mut update), Told::Store(answer)) => match update.take(answer) {
                Progress::Ask(request) => self.go_on(Stage::RemovingInode(seen, update), Need::Store(request)),
                Progress::Ended(Ok(())) => self.forget(seen),
                Progress::Ended(Err(refusal)) => refused(refusal),
            },
            (_, Told::Disk(DiskAnswer::Fenced)) => Need::Nothing(Outcome::Fenced),
            (_, Told::Disk(DiskAnswer::Failed)) => Need::Nothing(Outcome::Failed),
            _ => Need::Nothing(Outcome::Later),
        }
    }

    fn go_on(&mut self, stage: Stage, need: Need) -> Need {
        self.stage = stage;
        need
    }

    fn read_name(&mut self, answer: &Answer) -> Need {
        let (version, value) = match answer {
            Answer::Found(version, value) => (*version, value),
            Answer::Absent => return Need::Nothing(Outcome::Done),
            _ => return Need::Nothing(Outcome::Later),
        };
        let Ok(bucket) = Bucket::decode(value) else { return Need::Nothing(Outcome::Broken) };
        let Some(entry) = bucket.find(&self.name).cloned() else { return Need::Nothing(Outcome::Done) };
        let standing = entry.standing;
        let seen = Seen { version, bucket, entry };
        match standing {
            Standing::Shown => Need::Nothing(Outcome::Done),
            Standing::New => self.ask_inode(seen),
            Standing::Whiteout => {
                let hide = Disk::Hide(self.name.clone());
                self.go_on(Stage::Hiding(seen), Need::Disk(hide))
            }
        }
    }

    fn ask_inode(&mut self, seen: Seen) -> Need {
        let request = Request::Get(Key::Inode(seen.entry.ino));
        self.go_on(Stage::Inode(seen), Need::Store(request))
    }

    fn read_inode(&mut self, seen: Seen, answer: &Answer) -> Need {
        let value = match answer {
            Answer::Found(_, value) => value,
            Answer::Absent => {
                let bucket = Need::Store(Request::Get(Key::Bucket(self.directory, bucket_of(&self.name))));
                return self.go_on(Stage::Missing(seen), bucket);
            }
            _ => return Need::Nothing(Outcome::Later),
        };
        let Ok(inode) = Inode::decode(value) else { return Need::Nothing(Outcome::Broken) };
        if let Some(mount) = inode.writer {
            let request = Request::Get(Key::Mount(mount));
            return self.go_on(Stage::Writer(seen, inode), Need::Store(request));
        }
        match inode.state {
            State::Frozen if inode.kind == Kind::File => {
                let (ino, frozen) = (seen.entry.ino, Box::new(inode.clone()));
                self.go_on(Stage::Freezing(seen, inode), Need::Freeze(ino, frozen))
            }
            State::Frozen | State::Persisted => self.change(seen, inode, 0, 0),
            // Only a file that is being written is open, so a writer is missing.
            State::Open | State::Closed => Need::Nothing(Outcome::Broken),
        }
    }

    /// Reads the ranges of the next server; of the last one decides whether they cover the file.
    fn cover(&mut self, seen: Seen, inode: Inode, ranges: Ranges, at: usize) -> Need {
        if let Some(&server) = self.servers.get(at).filter(|_| !inode.map.is_empty()) {
            let key = Key::Persisted(seen.entry.ino, inode.generation, server);
            return self.go_on(Stage::Covering(seen, inode, ranges, at), Need::Store(Request::Get(key)));
        }
        if !uncovered(&inode, &ranges).is_empty() && !is_planted("finish-with-hole") {
            return Need::Nothing(Outcome::Later);
        }
        self.change(seen, inode, 0, 0)
    }

    /// Makes the next change of the backing. After the last one the inode is persisted.
    fn change(&mut self, seen: Seen, inode: Inode, at: usize, number: u64) -> Need {
        let (ino, generation) = (seen.entry.ino, inode.generation);
        let full = || Box::new(inode.clone());
        // No server drains a file without chunks. One that is persisted has its bytes there, perhaps those of an imported file.
        let is_empty = inode.kind == Kind::File && inode.map.is_empty() && inode.state == State::Frozen;
        let create = is_empty.then_some(Disk::Create(ino, generation));
        let place = if inode.kind == Kind::File { Disk::Link(ino, generation) } else { Disk::Make(ino, full()) };
        let changes = [create, Some(place), Some(Disk::Finish(ino, full())), Some(Disk::Show(ino, self.name.clone()))];
        if let Some(disk) = changes.into_iter().flatten().nth(at) {
            return self.go_on(Stage::Changing(seen, inode, at), Need::Disk(disk));
        }
        let (update, request) = Update::begin(InodeEdit { ino, edit: Edit::Persist(generation, number) });
        self.go_on(Stage::Persisting(seen, inode, update), Need::Store(request))
    }

    /// Removes the ranges of the next server, then earlier generations.
    fn clear(&mut self, seen: Seen, inode: Inode, at: usize) -> Need {
        let (ino, generation) = (seen.entry.ino, inode.generation);
        if inode.kind != Kind::File {
            return self.show(seen);
        }
        match self.servers.get(at) {
            Some(&server) => {
                let (update, request) = Update::begin(RangesGone(Key::Persisted(ino, generation, server)));
                self.go_on(Stage::Clearing(seen, inode, update, at), Need::Store(request))
            }
            None => self.go_on(Stage::Dropping(seen), Need::Disk(Disk::Drop(ino, Some(generation)))),
        }
    }

    /// Ends the work on a name that is shown, unless its bucket changed since it was read.
    fn show(&mut self, seen: Seen) -> Need {
        let Seen { version, mut bucket, entry } = seen;
        bucket.put(Entry { standing: Standing::Shown, ..entry });
        self.write(version, &bucket)
    }

    /// Drops a whiteout, unless its bucket changed since it was read: the name may have come and gone again.
    fn forget(&mut self, seen: Seen) -> Need {
        let Seen { version, mut bucket, entry } = seen;
        bucket.remove(&entry.name);
        self.write(version, &bucket)
    }

    fn write(&mut self, version: u64, bucket: &Bucket) -> Need {
        let key = Key::Bucket(self.directory, bucket_of(&self.name));
        let request = Request::Cas { key, version: Some(version), value: Some(bucket.encode()) };
        self.go_on(Stage::Writing, Need::Store(request))
    }
}

fn refused(refusal: Refusal) -> Need {
    Need::Nothing(if refusal == Refusal::Broken { Outcome::Broken } else { Outcome::Later })
}

/// An agent's way to its staging folder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Staging {
    /// Makes the folder of an epoch.
    Making(u32),
    /// Reads the epoch again, linearizably.
    Confirming(u32),
    /// Removes the folders of all earlier epochs: each is renamed first, so that nothing in it has a path any more.
    Fencing(u32),
    /// Publishes in an epoch.
    Ready(u32),
}

impl Staging {
    /// Begins in an epoch that the agent read.
    pub fn begin(epoch: u32) -> Self {
        Self::Making(epoch)
    }

    /// Takes the end of the step, with the epoch as it was read when confirming.
    pub fn done(&mut self, read: u32) {
        *self = match *self {
            Self::Making(epoch) => Self::Confirming(epoch),
            Self::Confirming(epoch) if read != epoch => Self::Making(read),
            Self::Confirming(epoch) if is_planted("no-fence") => Self::Ready(epoch),
            Self::Confirming(epoch) => Self::Fencing(epoch),
            Self::Fencing(epoch) | Self::Ready(epoch) => Self::Ready(epoch),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::empty_file;
    use rdmakv_proto::files::Run;

    fn file(size: u64, chunks: u32) -> Inode {
        let run = Run { first: 0, count: chunks, generation: Generation(1) };
        Inode { size, generation: Generation(1), reserved: Generation(1), map: vec![run], ..empty_file() }
    }

    #[test]
    fn a_later_epoch_freezes_again() {
        let mut freezing = Freezing::begin(1, &[0, 1]);
        freezing.answered(1, 0);
        freezing.answered(0, 1);
        assert_eq!(freezing.waiting(), (1, &[1][..]));
        freezing.adopt(2, &[0, 2]);
        freezing.answered(1, 2);
        freezing.answered(2, 0);
        assert!(!freezing.is_done());
        freezing.answered(2, 2);
        assert!(freezing.is_done());
    }

    /// Returns the first change of the backing for the name of a file without chunks.
    fn first_change(state: State) -> Need {
        let inode = Inode { state, map: Vec::new(), ..file(10, 1) };
        let mut bucket = Bucket::new(1);
        bucket.put(Entry { name: b"a".to_vec(), ino: Ino(7), kind: Kind::File, standing: Standing::New });
        let (mut publication, _) = Publication::begin(Ino::ROOT, b"a", &[0]);
        publication.take(&Told::Store(Answer::Found(1, bucket.encode())));
        match publication.take(&Told::Store(Answer::Found(1, inode.encode()))) {
            Need::Freeze(..) => publication.take(&Told::Frozen),
            need => need,
        }
    }

    #[test]
    fn an_imported_file_is_not_made_anew() {
        let generation = Generation(1);
        assert_eq!(first_change(State::Frozen), Need::Disk(Disk::Create(Ino(7), generation)));
        assert_eq!(first_change(State::Persisted), Need::Disk(Disk::Link(Ino(7), generation)));
    }

    #[test]
    fn a_missing_inode_is_lost_only_if_its_name_stays() {
        let mut bucket = Bucket::new(1);
        bucket.put(Entry { name: b"a".to_vec(), ino: Ino(7), kind: Kind::File, standing: Standing::New });
        for (version, outcome) in [(1, Outcome::Broken), (2, Outcome::Later)] {
            let (mut publication, _) = Publication::begin(Ino::ROOT, b"a", &[0]);
            publication.take(&Told::Store(Answer::Found(1, bucket.encode())));
            let again = publication.take(&Told::Store(Answer::Absent));
            assert_eq!(again, Need::Store(Request::Get(Key::Bucket(Ino::ROOT, bucket_of(b"a")))));
            let bucket = Told::Store(Answer::Found(version, bucket.encode()));
            assert_eq!(publication.take(&bucket), Need::Nothing(outcome));
        }
    }

    #[test]
    fn holes_are_not_waited_for() {
        let mut inode = file(4 << 16, 1);
        inode.map.push(Run { first: 3, count: 1, generation: Generation(1) });
        assert_eq!(uncovered(&inode, &Ranges::of(0..1 << 16)).first(), Some(&(3 << 16..4 << 16)));
        let mut ranges = Ranges::of(0..1 << 16);
        ranges.insert(3 << 16..4 << 16);
        assert!(uncovered(&inode, &ranges).is_empty());
    }

    #[test]
    fn a_folder_is_made_for_a_confirmed_epoch_only() {
        let mut staging = Staging::begin(3);
        staging.done(3);
        assert_eq!(staging, Staging::Confirming(3));
        staging.done(4);
        assert_eq!(staging, Staging::Making(4));
        staging.done(4);
        staging.done(4);
        assert_eq!(staging, Staging::Fencing(4));
        staging.done(4);
        assert_eq!(staging, Staging::Ready(4));
    }
}
