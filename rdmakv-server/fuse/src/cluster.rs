//! The file system's keys in a cluster, over the client: reads, changes by `cas`, and chunks with many under way.
//!
//! The client has no delete that compares versions. A key that a `cas` deletes becomes an empty value, which no key of the file
//! system has, and which ends after a minute. Such keys are never made again, because their numbers are random.
//!
//! **Remembered values.** Names and inodes below directories that this mount holds are kept here. Only this mount changes them, and
//! agents, which only move them on towards the backing. A change that begins with a value that is too old is refused by its
//! `cas`, and reads the key again. Values of other directories are read each time.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use rdmakv_client::{Client, Cluster as Address, Error as ClientError, Expire, Frozen, Options, Stored, Ticket, Value};
use rdmakv_proto::files::{Bucket, Generation, Ino, Inode, Key, MountId, bucket_of};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::inode::{Edit, InodeEdit};
use crate::names::{Acquire, Acquired, Held, Sequence, Step};
use crate::store::{Answer, Change, Progress, Request, Update};

/// How long an empty value stands for a deleted key, until it ends.
const DELETED: Expire = Expire::In(Duration::from_secs(60));

/// Values that are remembered at most.
const REMEMBERED: usize = 50_000;

/// Deletions under way at most.
const DELETIONS: usize = 64;

/// A version and a value.
type Versioned = (u64, Vec<u8>);

/// The keys of the file system in one cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    client: Client,
    held: BTreeSet<Ino>,
    remembered: HashMap<Key, Versioned>,
    deletions: VecDeque<Ticket<bool>>,
}

impl Cluster {
    /// Returns the keys of a cluster that can be reached.
    ///
    /// # Errors
    ///
    /// Etcd does not answer, or has no such cluster.
    pub(crate) fn open(address: &Address, options: Options) -> Result<Self> {
        let client = Client::of_cluster(address, options).map_err(|error| Error::of_client(&error))?;
        Ok(Self { client, held: BTreeSet::new(), remembered: HashMap::new(), deletions: VecDeque::new() })
    }

    /// Answers a request of a machine.
    ///
    /// # Errors
    ///
    /// The cluster does not serve. Nothing was changed, or it is not known: then machines get [`Answer::Unknown`].
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Answer> {
        match request {
            Request::Get(key) => Ok(match self.get(key)? {
                Some((version, value)) => Answer::Found(version, value),
                None => Answer::Absent,
            }),
            Request::Cas { key, version, value } => self.change(key, *version, value.as_deref()),
        }
    }

    /// Makes the changes of an operation.
    ///
    /// # Errors
    ///
    /// The first change that was refused; the cluster does not serve.
    pub(crate) fn run(&mut self, steps: Vec<Step>) -> Result<()> {
        let Some((mut sequence, mut request)) = Sequence::begin(steps) else { return Ok(()) };
        loop {
            let answer = self.ask(&request)?;
            match sequence.take(&answer) {
                Progress::Ask(next) => request = next,
                Progress::Ended(Ok(())) => return Ok(()),
                Progress::Ended(Err(refusal)) => return Err(Error::of_refusal(refusal, key_of(&request))),
            }
        }
    }

    /// Makes a change of one key.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub(crate) fn update(&mut self, change: impl Change) -> Result<()> {
        let (mut update, mut request) = Update::begin(change);
        loop {
            match update.take(&self.ask(&request)?) {
                Progress::Ask(next) => request = next,
                Progress::Ended(Ok(())) => return Ok(()),
                Progress::Ended(Err(refusal)) => return Err(Error::of_refusal(refusal, key_of(&request))),
            }
        }
    }

    /// Changes an inode.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub(crate) fn edit(&mut self, ino: Ino, edit: Edit) -> Result<()> {
        self.run(vec![Step::Inode(InodeEdit { ino, edit })])
    }

    /// Attempts to hold a directory. Returns None if another mount has it.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub(crate) fn hold(&mut self, directory: Ino, mount: MountId) -> Result<Option<Held>> {
        let (mut acquire, mut request) = Acquire::begin(directory, mount);
        loop {
            let answer = self.ask(&request)?;
            match acquire.take(&answer) {
                Acquired::Ask(next) => request = next,
                Acquired::Wait => return Ok(None),
                Acquired::Held(held) => {
                    self.held.insert(directory);
                    return Ok(Some(held));
                }
                Acquired::Refused(refusal) => return Err(Error::of_refusal(refusal, key_of(&request))),
            }
        }
    }

    /// Notes that this mount holds a directory, because it made it.
    pub(crate) fn remember(&mut self, directory: Ino) {
        self.held.insert(directory);
    }

    /// Forgets the values of a directory that this mount no longer holds.
    pub(crate) fn forget(&mut self, directory: Ino) {
        self.held.remove(&directory);
        self.remembered.clear();
    }

    /// Returns an inode; None if it is gone.
    ///
    /// # Errors
    ///
    /// The cluster does not serve, or the value cannot be read.
    pub(crate) fn inode(&mut self, ino: Ino) -> Result<Option<Inode>> {
        let key = Key::Inode(ino);
        let Some((_, value)) = self.get(&key)? else { return Ok(None) };
        Inode::decode(&value).map(Some).map_err(|error| Error::of_value(&error, &key))
    }

    /// Returns an inode as it is now, whatever is remembered; None if it is gone.
    ///
    /// # Errors
    ///
    /// As [`Self::inode`].
    pub(crate) fn inode_now(&mut self, ino: Ino) -> Result<Option<Inode>> {
        self.remembered.remove(&Key::Inode(ino));
        self.inode(ino)
    }

    /// Returns the bucket of a name; None if it has no names.
    ///
    /// # Errors
    ///
    /// As [`Self::inode`].
    pub(crate) fn bucket_of(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Bucket>> {
        self.bucket(directory, bucket_of(name))
    }

    /// Returns a bucket by its number; None if it has no names.
    ///
    /// # Errors
    ///
    /// As [`Self::inode`].
    pub(crate) fn bucket(&mut self, directory: Ino, bucket: u8) -> Result<Option<Bucket>> {
        let key = Key::Bucket(directory, bucket);
        let Some((_, value)) = self.get(&key)? else { return Ok(None) };
        Bucket::decode(&value).map(Some).map_err(|error| Error::of_value(&error, &key))
    }

    /// Notes how many bytes a chunk has that will be read.
    pub(crate) fn expect(&mut self, chunk: &Key, bytes: u64) {
        self.client.expect(chunk.to_string(), usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Returns the values of keys, each None if it is absent. All are asked for at once.
    ///
    /// A chunk of which too few fragments are left counts as absent, too: each server evicts those of clean ones by itself.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn many(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let values = self.client.get_many(keys.iter().map(ToString::to_string));
        let taken = |(key, value): (&Key, std::result::Result<Option<Value>, ClientError>)| match value {
            Err(ClientError::Lost { .. }) if matches!(key, Key::Chunk(..)) => Ok(None),
            value => Ok(value.map_err(|error| Error::of_client(&error))?.filter(|value| !value.is_empty())),
        };
        keys.iter().zip(values).map(taken).collect()
    }

    /// Begins to store a chunk. The bytes may change once this returns.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn put(&mut self, key: &Key, bytes: &[u8]) -> Result<Ticket<Stored>> {
        self.client.bset(key.to_string(), bytes, ()).map_err(|error| Error::of_client(&error))
    }

    /// Waits until a chunk is stored.
    ///
    /// # Errors
    ///
    /// It is not, or this is not known.
    pub(crate) fn wait(&mut self, ticket: Ticket<Stored>) -> std::result::Result<(), ClientError> {
        self.client.wait(ticket).map(|_| ())
    }

    /// Tells servers what they wait for: that writes were published. Until then they do not freeze these chunks.
    pub(crate) fn move_on(&mut self) {
        self.client.progress();
    }

    /// Returns whether a chunk is stored, or failed.
    pub(crate) fn is_done(&mut self, ticket: &Ticket<Stored>) -> bool {
        self.client.test(ticket).unwrap_or(true)
    }

    /// Begins to delete chunks. One that stays takes memory. If its bytes moved to the data file, a mount that read the inode before may find
    /// the earlier ones.
    pub(crate) fn drop_chunks(&mut self, ino: Ino, chunks: impl IntoIterator<Item = (u32, Generation)>) {
        self.drop_keys(chunks.into_iter().map(|(index, generation)| Key::Chunk(ino, generation, index)));
    }

    /// Begins to delete keys that nothing reads.
    pub(crate) fn drop_keys(&mut self, keys: impl IntoIterator<Item = Key>) {
        for key in keys {
            while self.deletions.len() >= DELETIONS {
                self.finish_deletion();
            }
            if let Ok(ticket) = self.client.idelete(key.to_string()) {
                self.deletions.push_back(ticket);
            }
        }
    }

    /// Waits until deletions ended.
    pub(crate) fn finish_deletions(&mut self) {
        while !self.deletions.is_empty() {
            self.finish_deletion();
        }
    }

    /// Stores a key that one process alone writes.
    ///
    /// # Errors
    ///
    /// It is not stored, or this is not known.
    pub(crate) fn store(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        self.client.set(key.to_string(), value, ()).map(|_| ()).map_err(|error| Error::of_client(&error))
    }

    /// Stores a key that ends by itself, for others to know. It may come to nothing.
    pub(crate) fn note(&mut self, key: &Key, value: &[u8], lasts: Duration) {
        let _ = self.client.set(key.to_string(), value, lasts);
    }

    /// Has all servers refuse changes of a generation's chunks.
    ///
    /// # Errors
    ///
    /// Some did not take it in time.
    pub(crate) fn freeze(&mut self, frozen: &Frozen) -> Result<()> {
        self.client.freeze(frozen).map(|_| ()).map_err(|error| Error::of_client(&error))
    }

    /// Has servers write chunks of a frozen generation to its data file. Returns for each whether it is on disk.
    ///
    /// # Errors
    ///
    /// As [`Self::freeze`].
    pub(crate) fn carry(&mut self, file: u64, frozen: &Frozen) -> Result<Vec<bool>> {
        self.client.carry(file, frozen).map_err(|error| Error::of_client(&error))
    }

    /// Tells all servers that the backing has a generation.
    ///
    /// # Errors
    ///
    /// As [`Self::freeze`].
    pub(crate) fn persisted(&mut self, frozen: &Frozen) -> Result<()> {
        self.client.persisted(frozen).map(|_| ()).map_err(|error| Error::of_client(&error))
    }

    fn finish_deletion(&mut self) {
        if let Some(ticket) = self.deletions.pop_front() {
            let _ = self.client.wait(ticket);
        }
    }

    /// Stores a key that ends, if it has this version still; None makes it. Returns its new version, or None if it has another.
    ///
    /// # Errors
    ///
    /// The cluster does not serve, or the outcome is not known.
    pub(crate) fn touch(
        &mut self,
        key: &Key,
        value: &[u8],
        version: Option<u64>,
        lives: Duration,
    ) -> Result<Option<u64>> {
        let key = key.to_string();
        let stored = match version {
            Some(version) => self.client.cas(&key, value, version, lives),
            None => self.client.add(&key, value, lives),
        };
        match stored.map_err(|error| Error::of_client(&error))? {
            Stored::Yes(version) => Ok(Some(version)),
            Stored::NotStored | Stored::Exists | Stored::NotFound => Ok(None),
        }
    }

    /// Makes a key, unless it is there.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn make(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        match self.change(key, None, Some(value))? {
            Answer::Unknown => Err(Error::new(Errno::IO, format!("make {key}: the outcome is not known: try again"))),
            _ => Ok(()),
        }
    }

    fn get(&mut self, key: &Key) -> Result<Option<Versioned>> {
        if let Some(found) = self.remembered.get(key) {
            return Ok(Some(found.clone()));
        }
        let value = self.client.get(key.to_string()).map_err(|error| Error::of_client(&error))?;
        let found = value.filter(|value| !value.is_empty()).map(|value| (value.version(), value.into_vec()));
        if let Some(found) = &found {
            self.keep(key, found.clone());
        }
        Ok(found)
    }

    fn keep(&mut self, key: &Key, found: Versioned) {
        let is_own = match key {
            Key::Bucket(directory, _) => self.held.contains(directory),
            Key::Inode(_) => {
                let parent = Inode::decode(&found.1).ok().and_then(|inode| inode.parent);
                parent.is_some_and(|parent| self.held.contains(&parent))
            }
            _ => false,
        };
        if is_own {
            if self.remembered.len() >= REMEMBERED {
                self.remembered.clear();
            }
            self.remembered.insert(*key, found);
        }
    }

    fn change(&mut self, key: &Key, version: Option<u64>, value: Option<&[u8]>) -> Result<Answer> {
        self.remembered.remove(key);
        let (text, bytes) = (key.to_string(), value.unwrap_or(b""));
        let expire = if value.is_some() { Expire::Never } else { DELETED };
        let stored = match version {
            Some(version) => self.client.cas(&text, bytes, version, expire),
            None => self.client.add(&text, bytes, expire),
        };
        match stored {
            Ok(Stored::Yes(version)) => {
                if let Some(value) = value {
                    self.keep(key, (version, value.to_vec()));
                }
                Ok(Answer::Stored)
            }
            Ok(Stored::NotStored | Stored::Exists | Stored::NotFound) => Ok(Answer::Conflict),
            Err(ClientError::OutcomeUnknown { .. }) => Ok(Answer::Unknown),
            Err(error) => Err(Error::of_client(&error)),
        }
    }
}

fn key_of(request: &Request) -> &Key {
    match request {
        Request::Get(key) | Request::Cas { key, .. } => key,
    }
}

/// Returns the error of an inode that is gone.
pub(crate) fn gone(ino: Ino) -> Error {
    Error::new(Errno::STALE, format!("read {}: the file was removed: open it again", Key::Inode(ino)))
}
