//! A program that does in a mount and in a plain directory the same, and compares what it gets, while the mount's process is killed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rdmakv_fuse::Files;
use rdmakv_proto::files::State;

use crate::common::{Dice, soon};
use crate::known::Known;
use crate::mapped::mapped;

/// Bytes of a file at most, but for what is appended: four chunks, the last in part.
const SIZE: u64 = 200_000;

/// Files that a program has open at most.
const OPEN: usize = 4;

/// Names of files, in the program's directory and in the directory `s` in it.
const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "s/a", "s/b", "s/c"];

/// A mount: where it is, and how often its process was killed, and mounted after that.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) killed: AtomicU64,
    pub(crate) mounted: AtomicU64,
    /// Held by what maps a file: a page of a dead mount would end this process.
    pub(crate) maps: RwLock<()>,
}

/// The parts of a run that all programs share.
pub(crate) struct Shared<'a> {
    pub(crate) places: Vec<Place>,
    pub(crate) plain: &'a Path,
    pub(crate) backing: &'a Path,
    /// Operations that were done.
    pub(crate) done: AtomicU64,
}

/// A file that is open on both sides.
struct Open {
    id: u64,
    writes: bool,
    appends: bool,
    ours: File,
    plain: File,
}

/// An operation. Files are named by their place among the open ones.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Operation {
    Open {
        path: String,
        writes: bool,
        creates: bool,
        truncates: bool,
        appends: bool,
    },
    Close(usize),
    Write(usize, u64, Range<usize>),
    Read(usize, u64, usize),
    Map(usize),
    MapWrite(usize, usize, Range<usize>),
    Truncate(usize, u64),
    Sync(usize),
    Rename(String, String),
    Unlink(String),
    Mkdir,
    Rmdir,
    Symlink(String),
    Cat(String),
    Stat(String),
    List(&'static str),
    Chmod(String, u32),
    /// Reads a closed file by the other mount.
    Other(String),
    /// Looks at a file on the backing: it is a whole generation.
    Backing(String),
    /// Goes on with the other mount.
    Switch,
}

/// The outcome of an operation, equal on both sides.
type Outcome = Result<Vec<u8>, i32>;

/// A program.
pub(crate) struct Program<'a> {
    shared: &'a Shared<'a>,
    /// A mount for looking. The last program closes it.
    files: Files,
    number: usize,
    dice: Dice,
    pool: Vec<u8>,
    /// The mount that it uses, and how often that was killed as far as it has noticed.
    at: usize,
    seen: u64,
    names: BTreeMap<String, u64>,
    known: HashMap<u64, Known>,
    next: u64,
    open: Vec<Open>,
    /// Hashes of what files were when a sync or a close began.
    whole: HashSet<u64>,
}

impl<'a> Program<'a> {
    /// Returns a program with a directory of its own on both sides.
    pub(crate) fn new(shared: &'a Shared<'a>, files: Files, number: usize, seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(1000) + number as u64);
        let pool = dice.bytes(300_000);
        let at = number % shared.places.len();
        let this = Self {
            shared,
            files,
            number,
            dice,
            pool,
            at,
            seen: 0,
            names: BTreeMap::new(),
            known: HashMap::new(),
            next: 0,
            open: Vec::new(),
            whole: HashSet::from([hash(b"")]),
        };
        for root in [this.ours(""), this.plain("")] {
            fs::create_dir(root).unwrap();
        }
        this
    }

    /// Does so many operations, then closes its files.
    ///
    /// # Panics
    ///
    /// Both sides differ.
    pub(crate) fn run(mut self, operations: u64) {
        for step in 0..operations {
            self.step(step);
            self.shared.done.fetch_add(1, Ordering::Relaxed);
        }
        self.recover_if_killed("the end");
        while !self.open.is_empty() {
            self.step_with(operations, Operation::Close(0));
        }
    }

    fn step(&mut self, step: u64) {
        self.recover_if_killed(&format!("before operation {step}"));
        let operation = self.draw();
        self.step_with(step, operation);
    }

    fn step_with(&mut self, step: u64, operation: Operation) {
        let text = format!("program {}, operation {step}, {operation:?}", self.number);
        match &operation {
            Operation::Open { .. } => return self.open(&text, &operation),
            Operation::Switch => return self.switch(),
            Operation::Other(path) => return self.look_by_other(&text, path),
            Operation::Backing(path) => return self.look_at_backing(&text, path),
            Operation::Close(at) | Operation::Sync(at) | Operation::MapWrite(at, ..) => {
                self.note_whole(*at, &operation)
            }
            _ => {}
        }
        let ours = self.perform(&operation, true);
        // A close does not return its error.
        if self.was_killed() && (ours.is_err() || matches!(operation, Operation::Close(_))) {
            return self.recover(&text, Some(&operation));
        }
        let before = self.size(&operation);
        let plain = self.perform(&operation, false);
        if ours != plain {
            let only_reads =
                matches!(operation, Operation::Cat(_) | Operation::Stat(_) | Operation::List(_) | Operation::Read(..));
            if self.was_killed() && only_reads {
                return;
            }
            panic!("{text}: {}", differ(&ours, &plain));
        }
        if ours.is_ok() {
            self.took_effect(&operation, before);
        }
    }

    fn draw(&mut self) -> Operation {
        let name = |dice: &mut Dice| NAMES[dice.below(NAMES.len() as u64) as usize].to_owned();
        let dice = &mut self.dice;
        let roll = dice.below(10_000);
        if !self.open.is_empty() && roll < 6_800 {
            let at = dice.below(self.open.len() as u64) as usize;
            let offset = dice.below(SIZE);
            let length = if dice.below(8) == 0 { dice.below(100_000) } else { dice.below(3_000) } as usize;
            let from = dice.below(200_000) as usize;
            return match roll {
                0..2_600 => Operation::Write(at, offset, from..from + length),
                2_600..4_700 => Operation::Read(at, offset, length),
                4_700..5_000 => Operation::Map(at),
                5_000..5_200 => Operation::MapWrite(at, offset as usize, from..from + length % 5_000),
                5_200..5_600 => Operation::Truncate(at, offset),
                5_600..5_900 => Operation::Sync(at),
                _ => Operation::Close(at),
            };
        }
        match roll % 1_000 {
            0..400 => {
                let (writes, creates) = (dice.below(4) > 0, dice.below(2) == 0);
                let truncates = writes && dice.below(6) == 0;
                Operation::Open { path: name(dice), writes, creates, truncates, appends: writes && dice.below(5) == 0 }
            }
            400..500 => match name(dice) {
                source if source.starts_with("s/") => Operation::Rename(source, "s/b".to_owned()),
                source => Operation::Rename(source, NAMES[dice.below(6) as usize].to_owned()),
            },
            500..560 => Operation::Unlink(name(dice)),
            560..590 => Operation::Mkdir,
            590..610 => Operation::Rmdir,
            610..630 => Operation::Symlink(name(dice)),
            630..720 => Operation::Cat(name(dice)),
            720..850 => Operation::Stat(name(dice)),
            850..890 => Operation::List(if dice.below(2) == 0 { "" } else { "s" }),
            890..930 => Operation::Chmod(name(dice), 0o600 + dice.below(64) as u32),
            930..960 => Operation::Other(name(dice)),
            960..996 => Operation::Backing(name(dice)),
            _ => Operation::Switch,
        }
    }

    /// Does an operation on one side.
    fn perform(&self, operation: &Operation, is_ours: bool) -> Outcome {
        let path = |name: &str| if is_ours { self.ours(name) } else { self.plain(name) };
        let file = |at: &usize| if is_ours { &self.open[*at].ours } else { &self.open[*at].plain };
        let done = |()| Vec::new();
        let outcome = match operation {
            // It closes one of two descriptors, which stores the file; the other one closes later.
            Operation::Close(at) => rustix::io::dup(file(at)).map_err(Into::into).map(drop).map(done),
            Operation::Write(at, offset, bytes) => {
                let (mut file, bytes) = (file(at), &self.pool[bytes.clone()]);
                let written =
                    if self.open[*at].appends { file.write_all(bytes) } else { file.write_all_at(bytes, *offset) };
                written.map(done)
            }
            Operation::Read(at, offset, length) => read(file(at), *offset, *length),
            Operation::Map(at) => self.map(is_ours, *at, None),
            Operation::MapWrite(at, offset, bytes) => {
                self.map(is_ours, *at, Some((*offset, &self.pool[bytes.clone()])))
            }
            Operation::Truncate(at, size) => file(at).set_len(*size).map(done),
            Operation::Sync(at) => file(at).sync_all().map(done),
            Operation::Rename(from, to) => fs::rename(path(from), path(to)).map(done),
            Operation::Unlink(name) => fs::remove_file(path(name)).map(done),
            Operation::Mkdir => fs::create_dir(path("s")).map(done),
            Operation::Rmdir => fs::remove_dir(path("s")).map(done),
            Operation::Symlink(name) => std::os::unix::fs::symlink("no/target", path(name)).map(done),
            Operation::Cat(name) => fs::read(path(name)),
            Operation::Stat(name) => fs::symlink_metadata(path(name)).map(|found| attributes(&found).into_bytes()),
            Operation::List(name) => list(&path(name)).map(|names| names.join(",").into_bytes()),
            Operation::Chmod(name, mode) => rustix::fs::chmodat(
                rustix::fs::CWD,
                path(name),
                rustix::fs::Mode::from_raw_mode(*mode),
                rustix::fs::AtFlags::empty(),
            )
            .map_err(Into::into)
            .map(done),
            _ => unreachable!("{operation:?} is not done on one side"),
        };
        outcome.map_err(|error: io::Error| error.raw_os_error().unwrap_or(-1))
    }

    /// Maps a whole file, if its mount lives.
    fn map(&self, is_ours: bool, at: usize, write: Option<(usize, &[u8])>) -> io::Result<Vec<u8>> {
        let place = &self.shared.places[self.at];
        let _lives = place.maps.read().unwrap();
        if is_ours && self.was_killed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let open = &self.open[at];
        let length = open.plain.metadata()?.len() as usize;
        let write = write.filter(|(offset, bytes)| self.maps(at, offset + bytes.len()));
        if length == 0 || open.appends {
            return Ok(Vec::new());
        }
        mapped(if is_ours { &open.ours } else { &open.plain }, length, write)
    }

    /// Returns whether bytes up to here are written by way of a map, and synced.
    fn maps(&self, at: usize, end: usize) -> bool {
        let open = &self.open[at];
        let length = open.plain.metadata().unwrap().len() as usize;
        open.writes && !open.appends && length > 0 && end <= length
    }

    /// Notes what a file is before it is stored: from now on the backing may show it.
    fn note_whole(&mut self, at: usize, operation: &Operation) {
        let mut bytes = self.bytes(at);
        if let Operation::MapWrite(_, offset, from) = operation {
            let end = offset + from.len();
            if self.open[at].writes && !self.open[at].appends && end <= bytes.len() {
                bytes[*offset..end].copy_from_slice(&self.pool[from.clone()]);
            }
        }
        self.whole.insert(hash(&bytes));
    }

    fn bytes(&self, at: usize) -> Vec<u8> {
        let plain = &self.open[at].plain;
        read(plain, 0, plain.metadata().unwrap().len() as usize).unwrap()
    }

    /// Returns the size of the file that an operation changes.
    fn size(&self, operation: &Operation) -> u64 {
        match operation {
            Operation::Write(at, ..) | Operation::Truncate(at, _) => self.open[*at].plain.metadata().unwrap().len(),
            _ => 0,
        }
    }

    fn took_effect(&mut self, operation: &Operation, before: u64) {
        match operation {
            Operation::Write(at, ..) | Operation::Truncate(at, _) => self.note_change(*at, operation, before),
            Operation::Sync(at) => self.acknowledged(*at),
            Operation::MapWrite(at, offset, bytes) if self.maps(*at, offset + bytes.len()) => self.acknowledged(*at),
            Operation::Close(at) => {
                if self.open[*at].writes {
                    self.acknowledged(*at);
                }
                self.forget(*at);
            }
            Operation::Rename(from, to) if from != to => {
                match self.names.remove(from) {
                    Some(id) => self.names.insert(to.clone(), id),
                    None => self.names.remove(to),
                };
            }
            Operation::Unlink(name) => _ = self.names.remove(name),
            _ => {}
        }
    }

    /// Notes a change of bytes that may be lost, or there in part, if the mount is killed.
    fn note_change(&mut self, at: usize, operation: &Operation, before: u64) {
        let open = &self.open[at];
        let known = self.known.get_mut(&open.id).expect("it is open");
        match operation {
            Operation::Write(_, offset, bytes) => {
                let offset = if open.appends { before } else { *offset };
                known.wrote(offset, &self.pool[bytes.clone()]);
            }
            Operation::Truncate(_, size) => known.cut(*size, before),
            _ => {}
        }
    }

    fn acknowledged(&mut self, at: usize) {
        let (bytes, id) = (self.bytes(at), self.open[at].id);
        self.known.insert(id, Known::new(bytes));
    }

    /// Closes a file on both sides.
    fn forget(&mut self, at: usize) {
        let closed = self.open.remove(at);
        let (id, has_name) = (closed.id, self.names.values().any(|&id| id == closed.id));
        drop(closed);
        if !has_name && self.open.iter().all(|open| open.id != id) {
            self.known.remove(&id);
        }
    }

    fn open(&mut self, text: &str, operation: &Operation) {
        let Operation::Open { path, writes, creates, truncates, appends } = operation else { return };
        if self.open.len() >= OPEN {
            return;
        }
        let open = |path: PathBuf| {
            let mut options = File::options();
            options
                .read(true)
                .write(*writes)
                .append(*appends)
                .create(*creates && *writes)
                .truncate(*truncates && !*appends);
            options.open(path)
        };
        let known = self.names.get(path).copied();
        let ours = open(self.ours(path));
        if self.was_killed() && ours.is_err() {
            return self.recover(text, Some(operation));
        }
        let plain = open(self.plain(path));
        let (ours, plain) = match (ours, plain) {
            (Ok(ours), Ok(plain)) => (ours, plain),
            (Err(ours), Err(plain)) if ours.raw_os_error() == plain.raw_os_error() => return,
            (ours, plain) => panic!("{text}: {ours:?} on the mount, {plain:?} in the plain directory"),
        };
        let id = known.unwrap_or_else(|| self.is_new(path, &[]));
        if *truncates && !*appends {
            let known = self.known.get_mut(&id).expect("it has a name");
            known.cut(0, known.longest());
            known.may_have(0);
        }
        self.open.push(Open { id, writes: *writes, appends: *appends, ours, plain });
    }

    fn is_new(&mut self, path: &str, bytes: &[u8]) -> u64 {
        self.next += 1;
        self.names.insert(path.to_owned(), self.next);
        self.known.insert(self.next, Known::new(bytes.to_vec()));
        self.next
    }

    fn switch(&mut self) {
        while !self.open.is_empty() {
            if self.was_killed() {
                return;
            }
            self.step_with(0, Operation::Close(0));
        }
        self.recover_if_killed("before a switch of mounts");
        self.at = (self.at + 1) % self.shared.places.len();
        self.seen = self.shared.places[self.at].killed.load(Ordering::SeqCst);
        self.wait_for_mount();
    }

    /// Has the other mount read a file that nothing here has open: it sees what was closed.
    fn look_by_other(&self, text: &str, path: &str) {
        let Some(&id) = self.names.get(path) else { return };
        if self.open.iter().any(|open| open.id == id) {
            return;
        }
        let other = &self.shared.places[(self.at + 1) % self.shared.places.len()];
        let killed = other.killed.load(Ordering::SeqCst);
        if other.mounted.load(Ordering::SeqCst) != killed {
            return;
        }
        let seen = fs::read(other.path.join(self.folder()).join(path));
        if other.killed.load(Ordering::SeqCst) != killed && seen.is_err() {
            return;
        }
        let (seen, plain) =
            (seen.map_err(|error| error.raw_os_error().unwrap_or(-1)), fs::read(self.plain(path)).unwrap());
        assert!(seen.as_ref() == Ok(&plain), "{text}: {}", differ(&seen, &Ok(plain.clone())));
    }

    /// Looks at a file on the backing. What is there was a whole generation of a file of this program.
    fn look_at_backing(&self, text: &str, path: &str) {
        let path = self.shared.backing.join(self.folder()).join(path);
        let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        if let (true, Ok(bytes)) = (is_file, fs::read(&path)) {
            let length = bytes.len();
            assert!(
                self.whole.contains(&hash(&bytes)),
                "{text}: the backing shows {length} bytes that were never stored"
            );
        }
    }

    fn was_killed(&self) -> bool {
        self.shared.places[self.at].killed.load(Ordering::SeqCst) != self.seen
    }

    fn wait_for_mount(&mut self) {
        let place = &self.shared.places[self.at];
        soon("that it is mounted anew", || {
            self.seen = place.killed.load(Ordering::SeqCst);
            place.mounted.load(Ordering::SeqCst) == self.seen
        });
    }

    fn recover_if_killed(&mut self, text: &str) {
        if self.was_killed() {
            self.recover(&format!("program {}, {text}", self.number), None);
        }
    }

    /// Goes on after the mount was killed, perhaps in the middle of an operation: what was acknowledged is there.
    fn recover(&mut self, text: &str, operation: Option<&Operation>) {
        if let Some(operation) = operation {
            self.interrupted(operation);
        }
        // The mount may live for another moment. Then it stores what is closed here.
        for open in self.open.drain(..).filter(|open| open.writes) {
            let size = open.plain.metadata().unwrap().len();
            self.known.get_mut(&open.id).expect("it is open").may_have(size);
        }
        self.wait_for_mount();
        self.fence();
        if let Some(operation) = operation {
            self.complete(operation);
        }
        let (ours, plain) = (self.tree(&self.ours("")), self.tree(&self.plain("")));
        assert_eq!(ours, plain, "{text}: names after the mount was killed");
        for (name, id) in self.names.clone() {
            let known = self.known.get(&id).expect("it has a name");
            let path = format!("{}/{name}", self.folder());
            if !known.is_certain() {
                // Writes that were under way end before that.
                soon(&format!("{text}: that {path} is persisted"), || {
                    let found = self.files.look_up(&path);
                    found.is_ok_and(|(_, inode)| inode.state == State::Persisted)
                });
            }
            let seen = fs::read(self.ours(&name)).unwrap_or_else(|error| panic!("{text}: read {path}: {error}"));
            if let Some(why) = known.check(&seen) {
                panic!("{text}: {path} after the mount was killed: {why}");
            }
            fs::write(self.plain(&name), &seen).unwrap();
            self.whole.insert(hash(&seen));
            self.known.insert(id, Known::new(seen));
            let mode = fs::metadata(self.ours(&name)).unwrap().permissions().mode();
            fs::set_permissions(self.plain(&name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.known.retain(|id, _| named.contains(id));
    }

    /// Has the new mount change directories. Requests of the dead one that arrive later are refused then.
    fn fence(&self) {
        for directory in ["", "s"].map(|name| self.ours(name)) {
            if directory.is_dir() {
                let fence = directory.join("fence");
                fs::create_dir(&fence).and_then(|()| fs::remove_dir(&fence)).unwrap();
            }
        }
    }

    /// Notes what an operation may have done to bytes, though it did not return.
    fn interrupted(&mut self, operation: &Operation) {
        match operation {
            Operation::Write(at, ..) | Operation::Truncate(at, _) => {
                let before = self.size(operation);
                self.note_change(*at, operation, before);
            }
            Operation::MapWrite(at, offset, bytes) => {
                let (id, length) = (self.open[*at].id, self.bytes(*at).len() as u64);
                let known = self.known.get_mut(&id).expect("it is open");
                if offset + bytes.len() <= length as usize {
                    known.wrote(*offset as u64, &self.pool[bytes.clone()]);
                }
                known.may_have(length);
            }
            Operation::Sync(at) | Operation::Close(at) => {
                let (id, length) = (self.open[*at].id, self.bytes(*at).len() as u64);
                self.known.get_mut(&id).expect("it is open").may_have(length);
            }
            Operation::Open { path, truncates: true, .. } => {
                if let Some(known) = self.names.get(path).and_then(|id| self.known.get_mut(id)) {
                    known.cut(0, known.longest());
                    known.may_have(0);
                }
            }
            _ => {}
        }
    }

    /// Has the plain directory follow, if an operation on names took effect though it did not return.
    fn complete(&mut self, operation: &Operation) {
        let is_here = |name: &str| fs::symlink_metadata(self.ours(name)).is_ok();
        let was_here = |name: &str| fs::symlink_metadata(self.plain(name)).is_ok();
        match operation {
            Operation::Open { path, .. } if is_here(path) && !was_here(path) => {
                fs::write(self.plain(path), b"").unwrap();
                self.is_new(path, &[]);
            }
            Operation::Rename(from, to) if was_here(from) && !is_here(from) && is_here(to) => {
                assert_eq!(self.perform(operation, false), Ok(Vec::new()));
                self.took_effect(operation, 0);
            }
            Operation::Unlink(name) if was_here(name) && !is_here(name) => {
                assert_eq!(self.perform(operation, false), Ok(Vec::new()));
                self.took_effect(operation, 0);
            }
            Operation::Mkdir | Operation::Rmdir if was_here("s") != is_here("s") => {
                assert_eq!(self.perform(operation, false), Ok(Vec::new()));
            }
            Operation::Symlink(name) if was_here(name) != is_here(name) => {
                assert_eq!(self.perform(operation, false), Ok(Vec::new()));
            }
            _ => {}
        }
    }

    fn tree(&self, root: &Path) -> Vec<String> {
        let mut names =
            list(root).unwrap_or_else(|error| panic!("program {}: list {}: {error}", self.number, root.display()));
        names.extend(list(&root.join("s")).unwrap_or_default().into_iter().map(|name| format!("s/{name}")));
        names
    }

    fn folder(&self) -> String {
        format!("p{}", self.number)
    }

    fn ours(&self, name: &str) -> PathBuf {
        self.shared.places[self.at].path.join(self.folder()).join(name)
    }

    fn plain(&self, name: &str) -> PathBuf {
        self.shared.plain.join(self.folder()).join(name)
    }
}

fn read(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut at = 0;
    while let count @ 1.. = file.read_at(&mut bytes[at..], offset + at as u64)? {
        at += count;
    }
    bytes.truncate(at);
    Ok(bytes)
}

/// Returns the names of a directory, in order.
fn list(directory: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().into_string().expect("a plain name")));
    let mut names: Vec<String> = names.collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn attributes(found: &fs::Metadata) -> String {
    let size = if found.is_dir() { 0 } else { found.len() };
    format!("{:o} {size}", found.mode())
}

/// Returns all that is below a directory: for each path its mode and its bytes or target, but for the folder `.rdmakv`.
pub(crate) fn everything(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(directory) = left.pop() {
        for name in list(&root.join(&directory)).unwrap() {
            let path = directory.join(&name);
            let found = fs::symlink_metadata(root.join(&path)).unwrap();
            let bytes = if found.is_dir() {
                if name == ".rdmakv" {
                    continue;
                }
                left.push(path.clone());
                Vec::new()
            } else if found.is_symlink() {
                fs::read_link(root.join(&path)).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(root.join(&path)).unwrap()
            };
            all.insert(path, (found.mode(), bytes));
        }
    }
    all
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn differ(ours: &Outcome, plain: &Outcome) -> String {
    let shown = |outcome: &Outcome| match outcome {
        Ok(bytes) if bytes.len() <= 200 => format!("{}", bytes.escape_ascii()),
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(errno) => format!("error {errno}"),
    };
    let place = match (ours, plain) {
        (Ok(ours), Ok(plain)) => {
            let place = ours.iter().zip(plain).position(|(ours, plain)| ours != plain);
            format!(", which differ at {:?}", place.unwrap_or(ours.len().min(plain.len())))
        }
        _ => String::new(),
    };
    format!("{} on the mount, {} in the plain directory{place}", shown(ours), shown(plain))
}
