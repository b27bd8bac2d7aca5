//! A directory's names, and the lease of the mount that changes them.
//!
//! One mount holds a directory, `d/INO`. It alone changes names there and opens files there for writing. Others ask for the lease, and a
//! holder gives it up when no file there is open for writing. If it does not in 5 s, the operation fails with `EBUSY`. A holder whose
//! key `m/MOUNT` expired has lost the directory.
//!
//! **Terms.** A new holder writes its term into all buckets before it changes one. So a `cas` that an old holder sent fails: the bucket has
//! another version. An old holder that reads the bucket again finds the later term, and ends with [`Refusal::Lost`].
//!
//! **Sequences.** An operation is a [`Sequence`] of changes of one key each. Each may be repeated:
//!
//! | operation | changes |
//! | --- | --- |
//! | create | the inode; the name |
//! | unlink | the name becomes a whiteout; the inode loses its name |
//! | rename | noted in `d/INO`; the target's name; the source's becomes a whiteout; the inode's name; the note goes |
//! | mkdir | the inode; its lease, held; the name |
//! | rmdir, under the directory's own lease | each bucket has no names; its lease goes; then as unlink |
//!
//! A rename takes effect with its note, because the next holder completes what it finds noted, before anything else. Readers that come in
//! between may see both names, never none. A create that was not completed leaves an inode without a name; agents remove it later.
//!
//! A *whiteout* hides a name that the backing still shows. A name that has no entry is looked up on the backing.

use rdmakv_proto::files::{
    BUCKETS, Bucket, Directory, Entry, Ino, Inode, Key, Kind, MountId, Rename, Standing, bucket_of,
};

use crate::faults::is_planted;
use crate::inode::{Edit, InodeEdit};
use crate::store::{Answer, Change, Decision, Progress, Refusal, Request, Update};

/// The result of looking a name up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lookup {
    /// The name has this inode.
    Found(Ino, Kind),
    /// The name was removed.
    Removed,
    /// The name is not known here: the backing may have it.
    AskBacking,
}

/// Looks a name up in its bucket; None stands for one that is absent.
pub fn look_up(bucket: Option<&Bucket>, name: &[u8]) -> Lookup {
    match bucket.and_then(|bucket| bucket.find(name)) {
        None => Lookup::AskBacking,
        Some(entry) if entry.standing == Standing::Whiteout => Lookup::Removed,
        Some(entry) => Lookup::Found(entry.ino, entry.kind),
    }
}

/// A change of a bucket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum BucketEdit {
    /// Writes the term of a new holder into a bucket.
    Term(u8),
    /// Adds a name that must not exist.
    Add(Vec<u8>, Ino, Kind),
    /// Gives a name to another inode; the name's inode before, if there was one.
    Replace(Vec<u8>, Ino, Kind, Option<Ino>),
    /// Makes a whiteout of an inode's name.
    Remove(Vec<u8>, Ino),
    /// Has agents look at an inode's name again. It always writes, so an agent that read the bucket before does not overlook it.
    Mark(Vec<u8>, Ino),
    /// Checks that a bucket has no names.
    CheckEmpty(u8),
}

/// A change in a directory, under a term of its lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NameEdit {
    /// The directory.
    pub directory: Ino,
    /// The term under which a mount holds it.
    pub term: u64,
    /// The change.
    pub edit: BucketEdit,
}

impl Change for NameEdit {
    fn key(&self) -> Key {
        let bucket = match &self.edit {
            BucketEdit::Term(bucket) | BucketEdit::CheckEmpty(bucket) => *bucket,
            BucketEdit::Add(name, ..) | BucketEdit::Replace(name, ..) => bucket_of(name),
            BucketEdit::Remove(name, _) | BucketEdit::Mark(name, _) => bucket_of(name),
        };
        Key::Bucket(self.directory, bucket)
    }

    fn decide(&self, value: Option<&[u8]>) -> Result<Decision, Refusal> {
        // The first holder made the directory, so it writes no term where there are no names.
        let mut bucket = value.map_or(Ok(Bucket::new(1)), Bucket::decode)?;
        if let BucketEdit::Term(_) = self.edit {
            return match bucket.term.cmp(&self.term) {
                std::cmp::Ordering::Greater => Err(Refusal::Lost),
                std::cmp::Ordering::Equal => Ok(Decision::Already),
                std::cmp::Ordering::Less => {
                    bucket.term = self.term;
                    Ok(Decision::Write(bucket.encode()))
                }
            };
        }
        if bucket.term != self.term && !is_planted("term-not-checked") {
            return Err(Refusal::Lost);
        }
        let live = |bucket: &Bucket, name: &[u8]| {
            let entry = bucket.find(name).filter(|entry| entry.standing != Standing::Whiteout);
            entry.map(|entry| (entry.ino, entry.kind))
        };
        let put = |bucket: &mut Bucket, name: &[u8], ino, kind, standing| {
            let entry = Entry { name: name.to_vec(), ino, kind, standing };
            if bucket.put(entry) { Ok(Decision::Write(bucket.encode())) } else { Err(Refusal::Full) }
        };
        match &self.edit {
            BucketEdit::Add(name, ino, kind) => match live(&bucket, name) {
                Some((other, _)) if other != *ino => Err(Refusal::Exists),
                Some(_) => Ok(Decision::Already),
                None => put(&mut bucket, name, *ino, *kind, Standing::New),
            },
            BucketEdit::Replace(name, ino, kind, before) => match live(&bucket, name).map(|(ino, _)| ino) {
                Some(other) if other == *ino => Ok(Decision::Already),
                other if other == *before => put(&mut bucket, name, *ino, *kind, Standing::New),
                _ => Err(Refusal::Lost),
            },
            BucketEdit::Remove(name, ino) => match bucket.find(name) {
                Some(entry) if entry.ino != *ino => Ok(Decision::Already),
                Some(entry) if entry.standing == Standing::Whiteout => Ok(Decision::Already),
                Some(entry) => {
                    let kind = entry.kind;
                    put(&mut bucket, name, *ino, kind, Standing::Whiteout)
                }
                None => Ok(Decision::Already),
            },
            BucketEdit::Mark(name, ino) => match live(&bucket, name) {
                Some((other, kind)) if other == *ino => put(&mut bucket, name, *ino, kind, Standing::New),
                _ => Err(Refusal::NotFound),
            },
            BucketEdit::CheckEmpty(_) => {
                let is_empty = bucket.entries().iter().all(|entry| entry.standing == Standing::Whiteout);
                if is_empty { Ok(Decision::Already) } else { Err(Refusal::NotEmpty) }
            }
            BucketEdit::Term(_) => Ok(Decision::Already),
        }
    }
}

/// A change of a directory's lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LeaseEdit {
    /// Makes the lease of a new directory, held by the mount that makes it.
    Create(MountId),
    /// Notes a rename that a holder begins.
    Note(MountId, u64, Rename),
    /// Removes the note of a completed rename.
    Completed(MountId, u64, Ino),
    /// Gives the lease up.
    Release(MountId, u64),
    /// Removes the lease of a directory that is removed.
    Remove(MountId, u64),
}

/// A change of the lease of a directory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DirectoryEdit {
    /// The directory.
    pub directory: Ino,
    /// The change.
    pub edit: LeaseEdit,
}

impl Change for DirectoryEdit {
    fn key(&self) -> Key {
        Key::Directory(self.directory)
    }

    fn decide(&self, value: Option<&[u8]>) -> Result<Decision, Refusal> {
        let Some(value) = value else {
            return match &self.edit {
                LeaseEdit::Create(mount) => {
                    let lease = Directory { term: 1, holder: Some(*mount), ..Directory::default() };
                    Ok(Decision::Write(lease.encode()))
                }
                LeaseEdit::Remove(..) => Ok(Decision::Already),
                _ => Err(Refusal::NotFound),
            };
        };
        let before = Directory::decode(value)?;
        let mut next = before.clone();
        let is_held = |mount: MountId, term: u64| before.holder == Some(mount) && before.term == term;
        match &self.edit {
            // Its number is random, so it is this one, made before an answer was lost.
            LeaseEdit::Create(_) => {}
            LeaseEdit::Release(mount, term) if !is_held(*mount, *term) => {}
            LeaseEdit::Release(..) if before.rename.is_some() => return Err(Refusal::Busy),
            LeaseEdit::Release(..) => next.holder = None,
            LeaseEdit::Note(mount, term, _) | LeaseEdit::Completed(mount, term, _) | LeaseEdit::Remove(mount, term)
                if !is_held(*mount, *term) =>
            {
                return Err(Refusal::Lost);
            }
            LeaseEdit::Note(_, _, rename) => match &before.rename {
                Some(other) if other != rename => return Err(Refusal::Busy),
                _ => next.rename = Some(rename.clone()),
            },
            LeaseEdit::Completed(_, _, ino) => next.rename = before.rename.clone().filter(|rename| rename.ino != *ino),
            LeaseEdit::Remove(..) => return Ok(Decision::Delete),
        }
        Ok(if next == before { Decision::Already } else { Decision::Write(next.encode()) })
    }
}

/// A change of one key of an operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Of an inode.
    Inode(InodeEdit),
    /// Of a bucket.
    Name(NameEdit),
    /// Of a lease.
    Lease(DirectoryEdit),
}

impl Change for Step {
    fn key(&self) -> Key {
        match self {
            Self::Inode(edit) => edit.key(),
            Self::Name(edit) => edit.key(),
            Self::Lease(edit) => edit.key(),
        }
    }

    fn decide(&self, value: Option<&[u8]>) -> Result<Decision, Refusal> {
        match self {
            Self::Inode(edit) => edit.decide(value),
            Self::Name(edit) => edit.decide(value),
            Self::Lease(edit) => edit.decide(value),
        }
    }
}

/// An operation: changes of one key each, in their order. It ends with the first that is refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sequence {
    update: Update<Step>,
    rest: Vec<Step>,
}

impl Sequence {
    /// Begins an operation, and returns it with its first request; None if it has no steps.
    pub fn begin(steps: Vec<Step>) -> Option<(Self, Request)> {
        let mut steps = steps.into_iter();
        let (update, request) = Update::begin(steps.next()?);
        Some((Self { update, rest: steps.collect() }, request))
    }

    /// Takes the answer to the last request.
    pub fn take(&mut self, answer: &Answer) -> Progress {
        let progress = self.update.take(answer);
        if self.rest.is_empty() || progress != Progress::Ended(Ok(())) {
            return progress;
        }
        let (update, request) = Update::begin(self.rest.remove(0));
        self.update = update;
        Progress::Ask(request)
    }
}

/// A directory that a mount holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    /// The directory.
    pub directory: Ino,
    /// The mount.
    pub mount: MountId,
    /// The term of the lease.
    pub term: u64,
}

impl Held {
    /// Returns the steps that make an inode and give it a name. A directory gets its lease, which the mount holds.
    pub fn create(&self, ino: Ino, inode: Inode) -> Vec<Step> {
        let (name, kind) = (inode.name.clone(), inode.kind);
        let lease = DirectoryEdit { directory: ino, edit: LeaseEdit::Create(self.mount) };
        let lease = (kind == Kind::Directory).then_some(Step::Lease(lease));
        let made = edit(ino, Edit::Create(Box::new(inode)));
        let named = self.name(BucketEdit::Add(name, ino, kind));
        [Some(made), lease, Some(named)].into_iter().flatten().collect()
    }

    /// Returns the steps that remove the name of a file or a link, which was looked up under this lease.
    pub fn unlink(&self, name: &[u8], ino: Ino) -> Vec<Step> {
        vec![self.name(BucketEdit::Remove(name.to_vec(), ino)), edit(ino, Edit::Unlink)]
    }

    /// Returns the steps that remove a directory, which the mount holds, too.
    ///
    /// A file that another name of the directory has may not be added after the check: only this mount could.
    pub fn remove_directory(&self, name: &[u8], child: &Self) -> Vec<Step> {
        let checks = (0..BUCKETS).map(|bucket| child.name(BucketEdit::CheckEmpty(bucket)));
        let lease = LeaseEdit::Remove(child.mount, child.term);
        let gone = Step::Lease(DirectoryEdit { directory: child.directory, edit: lease });
        checks.chain([gone]).chain(self.unlink(name, child.directory)).collect()
    }

    /// Returns the steps of a rename within the directory. Source and target were looked up under this lease.
    ///
    /// # Errors
    ///
    /// [`Refusal::OtherDirectory`] of a directory: the backing cannot be changed so that a late agent does no harm.
    pub fn rename(&self, rename: &Rename) -> Result<Vec<Step>, Refusal> {
        if rename.kind == Kind::Directory {
            return Err(Refusal::OtherDirectory);
        }
        let note = LeaseEdit::Note(self.mount, self.term, rename.clone());
        let note = Step::Lease(DirectoryEdit { directory: self.directory, edit: note });
        Ok([vec![note], self.complete(rename)].concat())
    }

    /// Returns the steps that complete a rename that is noted.
    pub fn complete(&self, rename: &Rename) -> Vec<Step> {
        let Rename { ino, kind, replaced, source, target } = rename.clone();
        let completed = LeaseEdit::Completed(self.mount, self.term, ino);
        let completed = Step::Lease(DirectoryEdit { directory: self.directory, edit: completed });
        let target_named = self.name(BucketEdit::Replace(target.clone(), ino, kind, replaced));
        let source_gone = self.name(BucketEdit::Remove(source.clone(), ino));
        let renamed = edit(ino, Edit::Rename(source, target));
        let unlinked = replaced.map(|replaced| edit(replaced, Edit::Unlink));
        let steps = [Some(target_named), Some(source_gone), Some(renamed), unlinked, Some(completed)];
        steps.into_iter().flatten().collect()
    }

    /// Returns the step that has agents look at an inode's name again: before its next generation begins, and after its attributes changed.
    pub fn mark(&self, name: &[u8], ino: Ino) -> Step {
        self.name(BucketEdit::Mark(name.to_vec(), ino))
    }

    /// Returns the step that gives the lease up.
    pub fn release(&self) -> Step {
        let edit = LeaseEdit::Release(self.mount, self.term);
        Step::Lease(DirectoryEdit { directory: self.directory, edit })
    }

    fn name(&self, edit: BucketEdit) -> Step {
        Step::Name(NameEdit { directory: self.directory, term: self.term, edit })
    }
}

fn edit(ino: Ino, edit: Edit) -> Step {
    Step::Inode(InodeEdit { ino, edit })
}

/// A mount's attempt to hold a directory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Acquire {
    directory: Ino,
    mount: MountId,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Reading,
    /// The holder's key is read.
    Judging(u64, Directory),
    Taking(u64, Option<Rename>),
    Asking,
    Completing(u64, Sequence),
    Ended,
}

/// How an attempt goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// It needs the answer to this request.
    Ask(Request),
    /// Another mount holds the directory, and knows that it is wanted. Try again after a while; after 5 s fail with [`Refusal::Busy`].
    Wait,
    /// The mount holds it.
    Held(Held),
    /// It failed.
    Refused(Refusal),
}

impl Acquire {
    /// Begins an attempt, and returns it with its first request.
    pub fn begin(directory: Ino, mount: MountId) -> (Self, Request) {
        (Self { directory, mount, stage: Stage::Reading }, Request::Get(Key::Directory(directory)))
    }

    /// Takes the answer to the last request.
    pub fn take(&mut self, answer: &Answer) -> Acquired {
        let key = Key::Directory(self.directory);
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        match (stage, answer) {
            (Stage::Reading, Answer::Found(version, value)) => match Directory::decode(value) {
                Ok(lease) => self.judge(*version, lease),
                Err(_) => Acquired::Refused(Refusal::Broken),
            },
            (Stage::Reading, Answer::Absent) => Acquired::Refused(Refusal::NotFound),
            (Stage::Judging(version, lease), Answer::Absent) => self.seize(version, &lease),
            (Stage::Judging(version, lease), Answer::Found(..)) if lease.wanted.is_none() => {
                self.stage = Stage::Asking;
                let value = Directory { wanted: Some(self.mount), ..lease }.encode();
                Acquired::Ask(Request::Cas { key, version: Some(version), value: Some(value) })
            }
            (Stage::Judging(..), Answer::Found(..)) | (Stage::Asking, Answer::Stored) => Acquired::Wait,
            (Stage::Taking(term, rename), Answer::Stored) => self.enter(term, rename),
            (Stage::Completing(term, mut sequence), answer) => match sequence.take(answer) {
                Progress::Ask(request) => {
                    self.stage = Stage::Completing(term, sequence);
                    Acquired::Ask(request)
                }
                Progress::Ended(Ok(())) => self.held(term),
                Progress::Ended(Err(refusal)) => Acquired::Refused(refusal),
            },
            // Another mount changed the lease, or an answer was lost.
            _ => {
                self.stage = Stage::Reading;
                Acquired::Ask(Request::Get(key))
            }
        }
    }

    fn judge(&mut self, version: u64, lease: Directory) -> Acquired {
        match lease.holder {
            Some(holder) if holder != self.mount => {
                self.stage = Stage::Judging(version, lease);
                Acquired::Ask(Request::Get(Key::Mount(holder)))
            }
            // An answer was lost, and the attempt before came so far at least.
            Some(_) => self.enter(lease.term, lease.rename),
            None => self.seize(version, &lease),
        }
    }

    fn seize(&mut self, version: u64, lease: &Directory) -> Acquired {
        let Some(term) = lease.term.checked_add(1) else { return Acquired::Refused(Refusal::Broken) };
        let wanted = lease.wanted.filter(|&mount| mount != self.mount);
        let next = Directory { term, holder: Some(self.mount), wanted, rename: lease.rename.clone() };
        self.stage = Stage::Taking(term, next.rename.clone());
        let key = Key::Directory(self.directory);
        Acquired::Ask(Request::Cas { key, version: Some(version), value: Some(next.encode()) })
    }

    /// Writes the term into all buckets, then completes a rename.
    fn enter(&mut self, term: u64, rename: Option<Rename>) -> Acquired {
        let held = Held { directory: self.directory, mount: self.mount, term };
        // The mount that made the directory has term 1, and there was none before it.
        let buckets = if term > 1 && !is_planted("no-term") { 0..BUCKETS } else { 0..0 };
        let mut steps: Vec<Step> = buckets.map(|bucket| held.name(BucketEdit::Term(bucket))).collect();
        if let Some(rename) = rename.filter(|_| !is_planted("mark-read-as-done")) {
            steps.extend(held.complete(&rename));
        }
        match Sequence::begin(steps) {
            None => self.held(term),
            Some((sequence, request)) => {
                self.stage = Stage::Completing(term, sequence);
                Acquired::Ask(request)
            }
        }
    }

    fn held(&self, term: u64) -> Acquired {
        Acquired::Held(Held { directory: self.directory, mount: self.mount, term })
    }
}
