//! A burst buffer in one value: mounts, servers, agents, the cluster's keys and the backing, with the machines that ship.
//!
//! [`World::actions`] lists what may happen next, and [`World::step`] lets it happen. `model_tests.rs` explores small worlds and walks at
//! random through larger ones.
//!
//! Keys are linearizable, as the cluster promises while at most m servers are lost. A file has two chunks, each with a number for
//! its bytes. The backing loses what a server wrote and did not sync when the server dies. A server that was removed
//! may go on, and so may a mount whose key expired. Real ones stop, so this asks for more. The last request of a mount that died may
//! arrive at any time.
//!
//! After each step:
//!
//! * The backing shows whole generations only, synced ones.
//! * A chunk that is not persisted is in memory, or in its writer's data file. One that was evicted is on the backing.
//! * A chunk of a frozen generation never changes.
//! * A name that is *shown* is on the backing with its inode's generation, and a name without entry is not there.

use std::collections::BTreeMap;

use rdmakv_proto::files::{
    Bucket, Directory, Generation, Ino, Inode, Key, Kind, MountId, Ranges, Rename, Run, Standing, State, Time,
    bucket_of,
};

use crate::faults::is_planted;
use crate::finish::{
    AGENT, Disk, DiskAnswer, Draining, Finals, Freezing, Need, Outcome, Part, Places, Publication, Staging, Told,
};
use crate::fixtures::empty_file;
use crate::inode::{Edit, InodeEdit, Written, is_garbage, may_evict};
use crate::names::{Acquire, Acquired, Held, Lookup, Sequence, Step, look_up};
use crate::store::{Answer, Progress, Refusal, Request};

const CHUNK: u64 = 1 << 16;
const NAMES: [&[u8]; 2] = [b"a", b"b"];
/// Bytes of a chunk, as a number; None for a hole.
type Bytes = Option<u8>;
type File = (Ino, Generation);

/// How much may happen in a world of two servers and two mounts.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Operations of each mount.
    pub(crate) operations: u8,
    /// Mounts that die, or seem to.
    pub(crate) dead_mounts: u8,
    /// A server may be lost.
    pub(crate) loses_server: bool,
    /// Dirty chunks that servers take, if that is bounded.
    pub(crate) room: Option<usize>,
    /// A mount may write chunks to the backing that servers have no room for.
    pub(crate) spills: bool,
    /// Operations that a mount may choose.
    pub(crate) choices: &'static [Operation],
}

/// An operation of a program, on names by index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Operation {
    /// Creates the file or begins its next generation, writes both chunks, syncs, writes one again, and closes.
    Write(usize),
    Rename(usize, usize),
    Unlink(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Action {
    Begin(u8, Operation),
    Mount(u8),
    Release(u8),
    /// A write that waits for room fails, and its program closes the file.
    GiveUp(u8),
    /// A chunk that waits for room goes to its writer's data file.
    Spill(u8),
    KillMount(u8),
    Expire(u8),
    Late(usize),
    KillServer(u8),
    Remove(u8),
    Adopt(u8),
    Stage(u8),
    Publish(u8, usize),
    Work(u8),
    DrainWrite(u8, File),
    DrainSync(u8, File),
    DrainState(u8, File),
    /// A server answers an agent's order, and the agent states what the server has on disk.
    Carry(u8, File),
    Evict(Key),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Job {
    Acquiring(Operation, Acquire, Request),
    /// Steps, and the writes that follow.
    Running(Sequence, Request, Option<Writing>),
    Putting(Writing),
}

/// A write under way: the file, its bytes, and the next of its steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Writing {
    ino: Ino,
    bytes: u8,
    step: u8,
    /// Its chunks that are in its data file, a bit each.
    spilled: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Mount {
    id: MountId,
    is_alive: bool,
    is_expired: bool,
    operations: u8,
    held: Option<Held>,
    job: Option<Job>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Server {
    is_alive: bool,
    epoch: u32,
    finals: Finals,
    staging: Staging,
    work: Option<(Publication, Need, Freezing)>,
    drains: BTreeMap<File, Draining>,
}

/// A file on the backing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct OnDisk {
    file: File,
    /// The bytes that readers see, with the server or mount that wrote them, and those that were synced.
    bytes: [(Bytes, u8); 2],
    synced: [Bytes; 2],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Backing {
    files: Vec<OnDisk>,
    data: BTreeMap<File, usize>,
    /// Data files of generations' writers.
    spilled: BTreeMap<File, usize>,
    staging: BTreeMap<(u32, u8), Option<usize>>,
    names: BTreeMap<usize, usize>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    keys: BTreeMap<Key, (u64, Vec<u8>)>,
    /// Versions that keys had when they were deleted.
    deleted: BTreeMap<Key, u64>,
    mounts: Vec<Mount>,
    servers: Vec<Server>,
    /// The servers of each epoch.
    epochs: Vec<Vec<u8>>,
    backing: Backing,
    /// Requests and chunks of mounts that died.
    late: Vec<Late>,
    /// The bytes of each generation once it was frozen by all.
    frozen: BTreeMap<File, [Bytes; 2]>,
    /// The chunks of frozen generations that their writers' data files had, a bit each.
    apart: BTreeMap<File, u8>,
    inodes: u64,
    bytes: u8,
    published: u32,
    room: Option<usize>,
    violation: Option<&'static str>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Late {
    Request(Request),
    Chunk(Key, u8),
    /// Bytes for a file on the backing that the mount has open.
    Spill(usize, u32, u8, u8),
}

fn new_inode(name: usize) -> Inode {
    Inode { name: NAMES[name].to_vec(), ..empty_file() }
}

fn written(generation: Generation, spilled: u8) -> Written {
    let map = match spilled {
        0 => vec![Run { first: 0, count: 2, generation }],
        1 => vec![Run { first: 1, count: 1, generation }],
        2 => vec![Run { first: 0, count: 1, generation }],
        _ => Vec::new(),
    };
    Written { size: 2 * CHUNK, map, is_spilled: spilled != 0, modified: Time::default() }
}

/// Returns the number by which the backing knows a mount.
fn writer(mount: u8) -> u8 {
    2 + mount
}

/// Returns whether the map of an inode has a chunk.
fn is_mapped(inode: &Inode, index: u32) -> bool {
    inode.map.iter().any(|run| (run.first..run.end()).contains(&index))
}

/// Tells a server that the backing has a generation.
fn persist(finals: &mut Finals, frozen: &BTreeMap<File, [Bytes; 2]>, (ino, generation): File) {
    if !is_planted("thawed") {
        return finals.persisted(ino, generation);
    }
    *finals = Finals::default();
    let others = frozen.keys().filter(|&&(other, of)| other != ino || of > generation);
    others.for_each(|&(ino, generation)| finals.freeze(ino, generation));
}

/// Returns the bytes that a server states to have on disk.
fn stated(draining: &Draining) -> Ranges {
    let mut ranges = draining.value();
    if is_planted("p-before-fsync") {
        ranges.union(draining.unsynced());
    }
    ranges
}

impl World {
    pub(crate) fn new(shape: &Shape) -> Self {
        let mount = |number: u8| Mount {
            id: MountId(u64::from(number) + 1),
            is_alive: true,
            is_expired: false,
            operations: 0,
            held: None,
            job: None,
        };
        let server = Server {
            is_alive: true,
            epoch: 0,
            finals: Finals::default(),
            staging: Staging::begin(0),
            work: None,
            drains: BTreeMap::new(),
        };
        let mut world = Self {
            keys: BTreeMap::new(),
            deleted: BTreeMap::new(),
            mounts: vec![mount(0), mount(1)],
            servers: vec![server; 2],
            epochs: vec![vec![0, 1]],
            backing: Backing::default(),
            late: Vec::new(),
            frozen: BTreeMap::new(),
            apart: BTreeMap::new(),
            inodes: Ino::ROOT.0,
            bytes: 0,
            published: 0,
            room: shape.room,
            violation: None,
        };
        let lease = Directory::default().encode();
        world.keys.insert(Key::Directory(Ino::ROOT), (1, lease));
        for mount in [0, 1] {
            world.keys.insert(Key::Mount(world.mounts[mount].id), (1, Vec::new()));
        }
        world
    }

    pub(crate) fn violation(&self) -> Option<&'static str> {
        self.violation
    }

    /// Returns how many names were shown.
    pub(crate) fn published(&self) -> u32 {
        self.published
    }

    fn epoch(&self) -> u32 {
        self.epochs.len() as u32 - 1
    }

    fn members(&self, epoch: u32) -> &[u8] {
        &self.epochs[epoch as usize]
    }

    /// The first member of a chunk's group, or of the directory's for 0.
    fn primary(&self, epoch: u32, index: u32) -> u8 {
        let members = self.members(epoch);
        members[index as usize % members.len()]
    }

    fn inode(&self, ino: Ino) -> Option<Inode> {
        let (_, value) = self.keys.get(&Key::Inode(ino))?;
        Some(Inode::decode(value).expect("an inode"))
    }

    fn bucket(&self, name: usize) -> Bucket {
        let value = self.keys.get(&Key::Bucket(Ino::ROOT, bucket_of(NAMES[name])));
        value.map_or(Bucket::default(), |(_, value)| Bucket::decode(value).expect("a bucket"))
    }

    fn find(&self, name: usize) -> Option<Ino> {
        match look_up(Some(&self.bucket(name)), NAMES[name]) {
            Lookup::Found(ino, _) => Some(ino),
            Lookup::Removed | Lookup::AskBacking => None,
        }
    }

    fn chunk(&self, (ino, generation): File, index: u32) -> Bytes {
        self.keys.get(&Key::Chunk(ino, generation, index)).map(|(_, value)| value[0])
    }

    /// Returns the bytes of a chunk of an inode's generation, wherever they are.
    fn stored(&self, file: File, inode: &Inode, index: u32) -> Bytes {
        if is_mapped(inode, index) || !inode.is_spilled {
            return self.chunk(file, index);
        }
        let at = self.backing.data.get(&file)?;
        self.backing.files[*at].bytes[index as usize].0
    }

    /// Returns all that may happen.
    pub(crate) fn actions(&self, shape: &Shape) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.violation.is_some() {
            return actions;
        }
        let dead = self.mounts.iter().filter(|mount| !mount.is_alive || mount.is_expired).count();
        for (mount, at) in self.mounts.iter().zip(0..) {
            if !mount.is_expired && (!mount.is_alive || dead < usize::from(shape.dead_mounts)) {
                actions.push(Action::Expire(at));
            }
            if !mount.is_alive {
                continue;
            }
            if mount.job.is_some() {
                let waits = self.waits(mount);
                actions.push(if waits { Action::GiveUp(at) } else { Action::Mount(at) });
                actions.extend((waits && shape.spills).then_some(Action::Spill(at)));
                if mount.is_expired || dead < usize::from(shape.dead_mounts) {
                    actions.push(Action::KillMount(at));
                }
            } else if !mount.is_expired && mount.operations < shape.operations {
                actions.extend(shape.choices.iter().map(|&operation| Action::Begin(at, operation)));
            }
            if mount.job.is_none() && mount.held.is_some() {
                actions.push(Action::Release(at));
            }
        }
        actions.extend((0..self.late.len()).map(Action::Late));
        for (server, at) in self.servers.iter().zip(0..) {
            let is_member = self.members(self.epoch()).contains(&at);
            if shape.loses_server && self.epoch() == 0 {
                if self.servers[usize::from(1 - at)].is_alive {
                    actions.push(Action::Remove(at));
                }
                if self.servers.iter().all(|server| server.is_alive) {
                    actions.push(Action::KillServer(at));
                }
            }
            if server.is_alive {
                self.server_actions(at, is_member, &mut actions);
            }
        }
        actions.extend(self.keys.keys().filter(|key| self.may_go(key)).map(|&key| Action::Evict(key)));
        actions
    }

    fn server_actions(&self, at: u8, is_member: bool, actions: &mut Vec<Action>) {
        let server = &self.servers[usize::from(at)];
        if is_member && server.epoch < self.epoch() {
            actions.push(Action::Adopt(at));
        }
        match (server.staging, &server.work) {
            (Staging::Ready(epoch), None) if epoch == server.epoch && self.primary(epoch, 0) == at => {
                let is_open = |name: &usize| {
                    let entry = self.bucket(*name).find(NAMES[*name]).map(|entry| entry.standing);
                    entry.is_some_and(|standing| standing != Standing::Shown)
                };
                actions.extend((0..NAMES.len()).filter(is_open).map(|name| Action::Publish(at, name)));
            }
            (Staging::Ready(_), Some((_, Need::Freeze(..), freezing))) => {
                let (epoch, waiting) = freezing.waiting();
                let answers = waiting.first().is_none_or(|&target| {
                    let target = &self.servers[usize::from(target)];
                    target.is_alive && target.epoch == epoch
                });
                actions.extend(answers.then_some(Action::Work(at)));
            }
            (Staging::Ready(_), Some(_)) => actions.push(Action::Work(at)),
            (Staging::Ready(_), None) => {}
            _ => actions.push(Action::Stage(at)),
        }
        for (&file, draining) in &server.drains {
            if draining.next().is_some() {
                actions.push(Action::DrainWrite(at, file));
            }
            if draining.clone().begin_sync() {
                actions.push(Action::DrainSync(at, file));
            }
            let stored = self.keys.get(&Key::Persisted(file.0, file.1, at)).map(|(_, value)| value.as_slice());
            let is_frozen =
                self.inode(file.0).is_some_and(|inode| (inode.generation, inode.state) == (file.1, State::Frozen));
            if is_frozen && stored.unwrap_or(&Ranges::default().encode()) != stated(draining).encode() {
                actions.push(Action::DrainState(at, file));
            }
            if is_frozen && self.carried(at, file).encode() != self.ranges(file, AGENT).encode() {
                actions.push(Action::Carry(at, file));
            }
        }
    }

    /// Returns the ranges that a server or the agent stated.
    fn ranges(&self, (ino, generation): File, by: u8) -> Ranges {
        let stored = self.keys.get(&Key::Persisted(ino, generation, by));
        stored.map_or(Ranges::default(), |(_, value)| Ranges::decode(value).expect("ranges"))
    }

    /// Returns what an agent states once a server answered its order: that, and what it stated before.
    fn carried(&self, server: u8, file: File) -> Ranges {
        let draining = &self.servers[usize::from(server)].drains[&file];
        let mut ranges = self.ranges(file, AGENT);
        ranges.union(&draining.value());
        if is_planted("carried-before-sync") {
            ranges.union(draining.unsynced());
        }
        ranges
    }

    /// Returns whether an agent may delete a chunk.
    fn may_go(&self, key: &Key) -> bool {
        let &Key::Chunk(ino, generation, _) = key else { return false };
        let inode = self.inode(ino);
        let is_clean = inode.as_ref().is_some_and(|inode| may_evict(inode, generation));
        is_clean || is_garbage(inode.as_ref(), generation)
    }

    pub(crate) fn step(&mut self, action: Action) {
        match action {
            Action::Begin(mount, operation) => {
                self.mounts[usize::from(mount)].operations += 1;
                self.begin(mount, operation);
            }
            Action::Mount(mount) => self.go_on(mount),
            Action::GiveUp(mount) => self.give_up(mount),
            Action::Spill(mount) => self.spill(mount),
            Action::Release(mount) => {
                let mount = &mut self.mounts[usize::from(mount)];
                let held = mount.held.take().expect("a lease");
                let (sequence, request) = Sequence::begin(vec![held.release()]).expect("a step");
                mount.job = Some(Job::Running(sequence, request, None));
            }
            Action::KillMount(mount) => self.kill_mount(mount),
            Action::Expire(mount) => {
                self.mounts[usize::from(mount)].is_expired = true;
                let id = self.mounts[usize::from(mount)].id;
                self.keys.remove(&Key::Mount(id));
            }
            Action::Late(at) => match self.late.remove(at) {
                Late::Request(request) => drop(self.answer(&request)),
                Late::Chunk(key, bytes) => drop(self.put(key, bytes)),
                Late::Spill(at, index, bytes, by) => self.backing.files[at].bytes[index as usize] = (Some(bytes), by),
            },
            Action::KillServer(server) => self.kill_server(server),
            Action::Remove(server) => self.epochs.push(vec![1 - server]),
            Action::Adopt(server) => {
                let epoch = self.epoch();
                let server = &mut self.servers[usize::from(server)];
                (server.epoch, server.staging, server.work) = (epoch, Staging::begin(epoch), None);
            }
            Action::Stage(server) => self.stage(server),
            Action::Publish(server, name) => {
                let (publication, need) = Publication::begin(Ino::ROOT, NAMES[name], &[0, 1, AGENT]);
                self.need(server, publication, need);
            }
            Action::Work(server) => self.work(server),
            Action::DrainWrite(server, file) => self.drain(server, file),
            Action::DrainSync(server, file) => {
                let draining = self.servers[usize::from(server)].drains.get_mut(&file).expect("a drain");
                draining.begin_sync();
                draining.end_sync(true);
                if let Some(&at) = self.backing.data.get(&file) {
                    self.backing.files[at].sync(server);
                }
            }
            Action::DrainState(server, file) => {
                let value = stated(&self.servers[usize::from(server)].drains[&file]).encode();
                self.write(Key::Persisted(file.0, file.1, server), Some(value));
            }
            Action::Carry(server, file) => {
                let value = self.carried(server, file).encode();
                self.write(Key::Persisted(file.0, file.1, AGENT), Some(value));
            }
            Action::Evict(key) => self.write(key, None),
        }
        self.observe();
    }

    fn write(&mut self, key: Key, value: Option<Vec<u8>>) {
        let version = self.keys.get(&key).map(|(version, _)| *version);
        let version = version.unwrap_or(self.deleted.get(&key).copied().unwrap_or(0));
        match value {
            Some(value) => drop(self.keys.insert(key, (version + 1, value))),
            None => {
                self.keys.remove(&key);
                self.deleted.insert(key, version);
            }
        }
    }

    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Get(key) => match self.keys.get(key) {
                Some((version, value)) => Answer::Found(*version, value.clone()),
                None => Answer::Absent,
            },
            Request::Cas { key, version, value } => {
                if self.keys.get(key).map(|(version, _)| *version) != *version {
                    return Answer::Conflict;
                }
                self.write(*key, value.clone());
                Answer::Stored
            }
        }
    }

    /// Writes a chunk, unless its primary froze it. A server that was removed answers nothing.
    fn put(&mut self, key: Key, bytes: u8) -> bool {
        let Key::Chunk(_, _, index) = key else { return false };
        let primary = self.primary(self.epoch(), index);
        let accepts = self.servers[usize::from(primary)].finals.accepts(&key) || is_planted("frozen-changed");
        let accepts = accepts && !self.is_full();
        if accepts {
            self.write(key, Some(vec![bytes]));
        }
        accepts
    }

    /// Returns whether servers take no more chunks until some of those that they have are on the backing.
    fn is_full(&self) -> bool {
        let is_dirty = |key: &&Key| matches!(key, Key::Chunk(..)) && !self.may_go(key);
        self.room.is_some_and(|room| self.keys.keys().filter(is_dirty).count() >= room)
    }

    /// Returns whether a mount waits for room.
    fn waits(&self, mount: &Mount) -> bool {
        let Some(Job::Putting(writing)) = mount.job else { return false };
        // A chunk that is in the data file stays there.
        writing.chunk().is_some_and(|(index, _)| writing.spilled & 1 << index == 0) && self.is_full()
    }

    /// Writes the next chunk of a write to its data file.
    fn spill(&mut self, mount: u8) {
        let at = usize::from(mount);
        let Some(Job::Putting(writing)) = self.mounts[at].job.take() else { return };
        let id = self.mounts[at].id;
        let (Some(inode), Some((index, bytes))) = (self.inode(writing.ino), writing.chunk()) else { return };
        if inode.writer != Some(id) {
            return;
        }
        let file = self.backing.spill((writing.ino, inode.reserved));
        self.backing.files[file].bytes[index as usize] = (Some(bytes), writer(mount));
        let spilled = writing.spilled | 1 << index;
        self.mounts[at].job = Some(Job::Putting(Writing { step: writing.step + 1, spilled, ..writing }));
    }

    /// Makes the data file of a generation's writer that of the generation.
    fn adopt(&mut self, server: u8, file: File, is_torn: bool) {
        let Some(at) = self.backing.spilled.remove(&file) else { return };
        if self.backing.data.contains_key(&file) {
            return;
        }
        let at = if is_torn && !is_planted("torn-not-copied") {
            let bytes = self.backing.files[at].bytes.map(|(bytes, _)| bytes);
            self.backing.files.push(OnDisk { file, bytes: bytes.map(|bytes| (bytes, server)), synced: bytes });
            self.backing.files.len() - 1
        } else {
            at
        };
        self.backing.data.insert(file, at);
    }

    fn give_up(&mut self, mount: u8) {
        let at = usize::from(mount);
        let Some(Job::Putting(Writing { ino, step, spilled, .. })) = self.mounts[at].job.take() else { return };
        let (id, Some(inode)) = (self.mounts[at].id, self.inode(ino)) else { return };
        let edit = |edit| Step::Inode(InodeEdit { ino, edit });
        // What was synced is the file. Without that it is the earlier generation.
        let sync = (step == 3).then(|| edit(Edit::Sync(id, written(inode.reserved, spilled), true)));
        let steps = sync.into_iter().chain([edit(Edit::Settle(id))]).collect();
        let (sequence, request) = Sequence::begin(steps).expect("steps");
        self.mounts[at].job = Some(Job::Running(sequence, request, None));
    }

    fn begin(&mut self, mount: u8, operation: Operation) {
        let at = usize::from(mount);
        let Some(held) = self.mounts[at].held else {
            let (acquire, request) = Acquire::begin(Ino::ROOT, self.mounts[at].id);
            self.mounts[at].job = Some(Job::Acquiring(operation, acquire, request));
            return;
        };
        let id = self.mounts[at].id;
        let mut writing = None;
        let steps = match operation {
            Operation::Write(name) => {
                let (ino, mut steps) = match self.find(name) {
                    Some(ino) => (ino, Vec::new()),
                    None => {
                        self.inodes += 1;
                        (Ino(self.inodes), held.create(Ino(self.inodes), new_inode(name)))
                    }
                };
                self.bytes = self.bytes.wrapping_add(4);
                writing = Some(Writing { ino, bytes: self.bytes, step: 0, spilled: 0 });
                steps.push(Step::Inode(InodeEdit { ino, edit: Edit::Open(id) }));
                steps.push(held.mark(NAMES[name], ino));
                steps
            }
            Operation::Rename(source, target) => match self.find(source) {
                None => return,
                Some(ino) => {
                    let replaced = self.find(target).filter(|&other| other != ino);
                    let (source, target) = (NAMES[source].to_vec(), NAMES[target].to_vec());
                    let rename = Rename { ino, kind: Kind::File, replaced, source, target };
                    let mut steps = held.rename(&rename).expect("a file");
                    let gone = |ino| Step::Inode(InodeEdit { ino, edit: Edit::Remove });
                    steps.extend(replaced.map(gone));
                    steps
                }
            },
            Operation::Unlink(name) => match self.find(name) {
                None => return,
                Some(ino) => held.unlink(NAMES[name], ino),
            },
        };
        let (sequence, request) = Sequence::begin(steps).expect("steps");
        self.mounts[at].job = Some(Job::Running(sequence, request, writing));
    }

    fn go_on(&mut self, mount: u8) {
        let at = usize::from(mount);
        match self.mounts[at].job.take().expect("a job") {
            Job::Acquiring(operation, mut acquire, mut request) => loop {
                // Buckets without names of the model are written at once.
                let is_quick = self.is_empty_bucket(&request);
                match acquire.take(&self.answer(&request)) {
                    Acquired::Ask(next) => {
                        request = next;
                        if !(is_quick && self.is_empty_bucket(&request)) {
                            self.mounts[at].job = Some(Job::Acquiring(operation, acquire, request));
                            return;
                        }
                    }
                    Acquired::Held(held) => {
                        self.mounts[at].held = Some(held);
                        self.begin(mount, operation);
                        return;
                    }
                    Acquired::Wait | Acquired::Refused(_) => return,
                }
            },
            Job::Running(mut sequence, request, writing) => match sequence.take(&self.answer(&request)) {
                Progress::Ask(next) => self.mounts[at].job = Some(Job::Running(sequence, next, writing)),
                Progress::Ended(Ok(())) => self.mounts[at].job = writing.map(Job::Putting),
                Progress::Ended(Err(refusal)) => {
                    let is_lost = refusal == Refusal::Lost;
                    self.mounts[at].held = self.mounts[at].held.filter(|_| !is_lost);
                }
            },
            Job::Putting(writing) => self.put_next(mount, writing),
        }
    }

    fn is_empty_bucket(&self, request: &Request) -> bool {
        let (Request::Get(key) | Request::Cas { key, .. }) = request;
        matches!(key, Key::Bucket(_, bucket) if NAMES.iter().all(|name| bucket_of(name) != *bucket))
    }

    /// Makes the next step of a write: a chunk, or changes of the inode.
    fn put_next(&mut self, mount: u8, writing: Writing) {
        let at = usize::from(mount);
        let id = self.mounts[at].id;
        // The mount knows the generation that it was given. It has none if it was thought dead and another was given one since.
        let Some(inode) = self.inode(writing.ino).filter(|inode| inode.writer == Some(id)) else { return };
        let Writing { ino, step, spilled, .. } = writing;
        let generation = inode.reserved;
        let edit = |edit| Step::Inode(InodeEdit { ino, edit });
        let next = Writing { step: step + 1, ..writing };
        let steps = match step {
            2 => vec![edit(Edit::Begin(id, written(generation, spilled)))],
            _ => vec![edit(Edit::Sync(id, written(generation, spilled), true)), edit(Edit::Settle(id))],
        };
        match writing.chunk() {
            Some((index, bytes)) if spilled & 1 << index != 0 => {
                let file = self.backing.spill((ino, generation));
                self.backing.files[file].bytes[index as usize] = (Some(bytes), writer(mount));
                self.mounts[at].job = Some(Job::Putting(next));
            }
            Some((index, bytes)) => {
                let is_put = self.put(Key::Chunk(ino, generation, index), bytes);
                self.mounts[at].job = is_put.then_some(Job::Putting(next));
            }
            None => {
                if let Some(&file) = self.backing.spilled.get(&(ino, generation))
                    && !is_planted("spill-not-synced")
                {
                    self.backing.files[file].sync(writer(mount));
                }
                let (sequence, request) = Sequence::begin(steps).expect("steps");
                self.mounts[at].job = Some(Job::Running(sequence, request, (step == 2).then_some(next)));
            }
        }
    }

    fn kill_mount(&mut self, mount: u8) {
        let at = usize::from(mount);
        self.mounts[at].is_alive = false;
        match self.mounts[at].job.take() {
            Some(Job::Running(_, request @ Request::Cas { .. }, _)) => self.late.push(Late::Request(request)),
            Some(Job::Acquiring(_, _, request @ Request::Cas { .. })) => self.late.push(Late::Request(request)),
            Some(Job::Putting(writing)) => {
                let Some(inode) = self.inode(writing.ino).filter(|inode| inode.writer == Some(self.mounts[at].id))
                else {
                    return;
                };
                let file = (writing.ino, inode.reserved);
                if let Some((index, bytes)) = writing.chunk() {
                    self.late.push(Late::Chunk(Key::Chunk(file.0, file.1, index), bytes));
                    let opened = self.backing.spilled.get(&file);
                    self.late.extend(opened.map(|&at| Late::Spill(at, index, bytes, writer(mount))));
                }
            }
            _ => {}
        }
        self.backing.lose_unsynced(writer(mount));
    }

    fn kill_server(&mut self, server: u8) {
        let killed = &mut self.servers[usize::from(server)];
        killed.is_alive = false;
        (killed.work, killed.drains) = (None, BTreeMap::new());
        self.backing.lose_unsynced(server);
    }

    fn stage(&mut self, server: u8) {
        let latest = self.epoch();
        match self.servers[usize::from(server)].staging {
            Staging::Making(epoch) => drop(self.backing.staging.entry((epoch, server)).or_default()),
            Staging::Fencing(epoch) => self.backing.staging.retain(|&(other, _), _| other >= epoch),
            Staging::Confirming(_) | Staging::Ready(_) => {}
        }
        self.servers[usize::from(server)].staging.done(latest);
    }

    fn need(&mut self, server: u8, publication: Publication, need: Need) {
        let epoch = self.servers[usize::from(server)].epoch;
        let freezing = Freezing::begin(epoch, self.members(epoch));
        match need {
            Need::Nothing(Outcome::Broken) => self.violation = Some("a publication found what cannot be"),
            Need::Nothing(outcome) => {
                self.published += u32::from(outcome == Outcome::Done);
                self.servers[usize::from(server)].work = None;
            }
            need => self.servers[usize::from(server)].work = Some((publication, need, freezing)),
        }
    }

    fn work(&mut self, server: u8) {
        let (mut publication, need, mut freezing) = self.servers[usize::from(server)].work.take().expect("work");
        let told = match &need {
            Need::Store(request) => Told::Store(self.answer(request)),
            Need::Disk(disk) => Told::Disk(self.change(server, disk)),
            Need::Freeze(ino, inode) => {
                if inode.is_spilled {
                    self.adopt(server, (*ino, inode.generation), inode.is_torn);
                }
                let (epoch, waiting) = freezing.waiting();
                if let Some(&target) = waiting.first() {
                    self.freeze(target, *ino, inode);
                    freezing.answered(epoch, target);
                }
                if !freezing.is_done() {
                    self.servers[usize::from(server)].work = Some((publication, need, freezing));
                    return;
                }
                let file = (*ino, inode.generation);
                let bytes = [0, 1].map(|index| self.stored(file, inode, index));
                let apart = (0..2).filter(|&index| !is_mapped(inode, index)).map(|index| 1 << index).sum();
                self.apart.entry(file).or_insert(apart);
                let is_there = bytes.iter().any(Option::is_some);
                if is_there && *self.frozen.entry(file).or_insert(bytes) != bytes {
                    self.violation = Some("a generation was frozen twice, with other bytes");
                }
                Told::Frozen
            }
            Need::Nothing(_) => return,
        };
        let need = publication.take(&told);
        self.need(server, publication, need);
    }

    /// A server answers FREEZE, and has slices to write: of the chunks that it is primary of.
    fn freeze(&mut self, server: u8, ino: Ino, inode: &Inode) {
        let epoch = self.servers[usize::from(server)].epoch;
        let own = (0..2).filter(|&index| is_mapped(inode, index) && self.primary(epoch, index) == server);
        let own: Vec<u32> = own.collect();
        let stored = self.ranges((ino, inode.generation), server);
        let server = &mut self.servers[usize::from(server)];
        server.finals.freeze(ino, inode.generation);
        let draining = server.drains.entry((ino, inode.generation)).or_insert_with(|| Draining::new(stored));
        own.into_iter().for_each(|index| draining.add(Places::from(inode).slice(index, CHUNK, Part::Whole).1));
    }

    fn drain(&mut self, server: u8, file: File) {
        let draining = self.servers[usize::from(server)].drains.get(&file).expect("a drain");
        let range = draining.next().expect("a range");
        // A range may be of both chunks. The server has the bytes, or the chunk is gone because it is not needed.
        let first = (range.start / CHUNK) as u32;
        let range = range.start..range.end.min(u64::from(first + 1) * CHUNK);
        let Some(bytes) = self.chunk(file, first) else {
            self.servers[usize::from(server)].drains.remove(&file);
            return;
        };
        let at = self.backing.create(file);
        self.backing.files[at].bytes[first as usize] = (Some(bytes), server);
        self.servers[usize::from(server)].drains.get_mut(&file).expect("a drain").wrote(range);
    }

    fn change(&mut self, server: u8, disk: &Disk) -> DiskAnswer {
        let folder = (self.servers[usize::from(server)].epoch, server);
        let named = |name: &[u8]| NAMES.iter().position(|other| *other == name).expect("a name");
        let backing = &mut self.backing;
        match disk {
            Disk::Create(ino, generation) => {
                backing.create((*ino, *generation));
                return DiskAnswer::Done(0);
            }
            Disk::Drop(ino, below) => {
                let reserved =
                    self.keys.get(&Key::Inode(*ino)).map(|(_, value)| Inode::decode(value).expect("an inode"));
                let reserved = reserved.map_or(Generation(0), |inode| inode.reserved);
                for server in &mut self.servers {
                    persist(&mut server.finals, &self.frozen, (*ino, below.unwrap_or(reserved)));
                }
                for files in [&mut backing.data, &mut backing.spilled] {
                    files.retain(|file, _| file.0 != *ino || below.is_some_and(|below| file.1 >= below));
                }
                return DiskAnswer::Done(0);
            }
            _ => {}
        }
        let Some(staged) = backing.staging.get_mut(&folder) else { return DiskAnswer::Fenced };
        match disk {
            Disk::Link(ino, generation) => match backing.data.get(&(*ino, *generation)) {
                Some(&at) => {
                    *staged = Some(at);
                    DiskAnswer::Done(0)
                }
                None => DiskAnswer::Failed,
            },
            Disk::Finish(..) => match *staged {
                Some(at) => {
                    backing.files[at].sync(server);
                    DiskAnswer::Done(0)
                }
                None => DiskAnswer::Failed,
            },
            Disk::Show(_, name) => match staged.take() {
                Some(at) => {
                    backing.names.insert(named(name), at);
                    DiskAnswer::Done(at as u64 + 1)
                }
                None => DiskAnswer::Failed,
            },
            Disk::Hide(name) => {
                backing.names.remove(&named(name));
                DiskAnswer::Done(0)
            }
            Disk::Make(..) | Disk::Create(..) | Disk::Drop(..) => DiskAnswer::Failed,
        }
    }

    /// Checks what must hold after each step.
    fn observe(&mut self) {
        let mut found = None;
        let mut check = |holds: bool, violation| {
            if !holds {
                found = Some(violation);
            }
        };
        for (file, frozen) in &self.frozen {
            for (index, bytes) in (0..).zip(frozen) {
                if self.apart.get(file).is_some_and(|apart| apart & 1 << index != 0) {
                    continue;
                }
                let stored = self.chunk(*file, index);
                check(stored.is_none() || stored == *bytes, "a frozen chunk changed");
            }
        }
        for &at in self.backing.names.values() {
            let file = &self.backing.files[at];
            let whole = self.frozen.get(&file.file).copied().unwrap_or_default();
            let shown = file.bytes.map(|(bytes, _)| bytes);
            check(file.file.1.0 == 0 || whole.iter().all(Option::is_some), "the backing shows what was not frozen");
            check(shown == whole, "the backing shows a part of a generation");
            check(file.synced == whole, "the backing shows what was not synced");
        }
        for (key, (_, value)) in &self.keys {
            let &Key::Inode(ino) = key else { continue };
            let inode = Inode::decode(value).expect("an inode");
            let file = (ino, inode.generation);
            let has = |index: u32| {
                let at = self.backing.data.get(&file).or(self.backing.spilled.get(&file));
                at.is_some_and(|&at| self.backing.files[at].bytes[index as usize].0.is_some())
            };
            let is_unused = inode.is_unlinked && inode.writer.is_none();
            let is_lost = |index| inode.is_spilled && !is_mapped(&inode, index) && !has(index);
            check(is_unused || !(0..2).any(is_lost), "a chunk of a data file is gone");
            for run in &inode.map {
                for index in run.first..run.end() {
                    let is_in_memory = self.chunk(file, index).is_some();
                    let on_disk = self.backing.data.get(&file).map(|&at| &self.backing.files[at]);
                    let frozen = self.frozen.get(&file).copied().unwrap_or_default();
                    let is_there = on_disk.is_some_and(|file| file.synced[index as usize] == frozen[index as usize]);
                    let is_safe = inode.state == State::Persisted && is_there;
                    check(is_in_memory || is_safe || is_unused, "a dirty chunk was evicted");
                }
            }
        }
        for (name, bytes) in NAMES.iter().enumerate() {
            let shown = self.backing.names.get(&name).map(|&at| self.backing.files[at].file);
            match self.bucket(name).find(bytes) {
                None => check(shown.is_none(), "the backing shows a name that is gone"),
                Some(entry) if entry.standing == Standing::Shown => {
                    let inode = self.inode(entry.ino);
                    let is_shown = inode.is_some_and(|inode| shown == Some((entry.ino, inode.generation)));
                    check(is_shown, "a shown name has another generation");
                }
                Some(_) => {}
            }
        }
        self.violation = self.violation.or(found);
    }

    /// Returns whether a server died.
    pub(crate) fn is_dead(&self, server: u8) -> bool {
        !self.servers[usize::from(server)].is_alive
    }

    /// Returns whether no mount and no agent is at work.
    pub(crate) fn is_idle(&self) -> bool {
        let is_busy = self.mounts.iter().any(|mount| mount.job.is_some());
        !is_busy && self.servers.iter().all(|server| server.work.is_none())
    }

    /// Returns whether the backing shows all names that there are, and nothing is left to do.
    pub(crate) fn is_persisted(&self) -> bool {
        (0..NAMES.len()).all(|name| match self.bucket(name).find(NAMES[name]) {
            None => true,
            Some(entry) => entry.standing == Standing::Shown,
        })
    }
}

impl Writing {
    /// Returns the chunk that is written next, and its bytes.
    fn chunk(self) -> Option<(u32, u8)> {
        match self.step {
            0 | 1 => Some((u32::from(self.step), self.bytes + self.step)),
            3 => Some((0, self.bytes + 2)),
            _ => None,
        }
    }
}

impl OnDisk {
    fn sync(&mut self, server: u8) {
        for (synced, (bytes, by)) in self.synced.iter_mut().zip(self.bytes) {
            if by == server {
                *synced = bytes;
            }
        }
    }
}

impl Backing {
    /// Opens the data file of a generation's writer.
    fn spill(&mut self, file: File) -> usize {
        let next = self.files.len();
        let at = *self.spilled.entry(file).or_insert(next);
        if at == next {
            self.files.push(OnDisk { file, bytes: [(None, 0); 2], synced: [None; 2] });
        }
        at
    }

    /// Has a server or mount die with its machine: what it wrote and did not sync is lost.
    fn lose_unsynced(&mut self, writer: u8) {
        for file in &mut self.files {
            for (bytes, synced) in file.bytes.iter_mut().zip(file.synced) {
                if bytes.1 == writer {
                    bytes.0 = synced;
                }
            }
        }
    }

    fn create(&mut self, file: File) -> usize {
        let next = self.files.len();
        let at = *self.data.entry(file).or_insert(next);
        if at == next {
            self.files.push(OnDisk { file, bytes: [(None, 0); 2], synced: [None; 2] });
        }
        at
    }
}
