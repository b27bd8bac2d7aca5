//! The value of an inode.

use super::fields::{Reader, check, kind};
use super::{FilesError, Generation, Ino, Kind, MAX_CHUNKS, MAX_NAME, MountId, VERSION, is_name};

/// Runs of a file's map at most.
pub const MAX_RUNS: usize = 256;

/// Bytes of a symbolic link's target at most.
pub const MAX_TARGET: usize = 4095;

/// Binary logarithms of the sizes that a chunk may have: 64 KiB to 8 MiB.
const CHUNK_BITS: std::ops::RangeInclusive<u8> = 16..=23;

/// The state of a generation, which is that of its file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Its writer may change it. Bytes after the last sync may be lost with the writer.
    Open,
    /// Its writer closed it, and may reopen it for a while.
    Closed,
    /// It never changes, and is being drained.
    Frozen,
    /// The backing shows it.
    Persisted,
}

/// A time: seconds since 1970, and nanoseconds below 10⁹.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds above them.
    pub nanos: u32,
}

/// Consecutive chunks of one generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// Index of the first chunk.
    pub first: u32,
    /// How many there are, at least 1.
    pub count: u32,
    /// The generation that their keys name.
    pub generation: Generation,
}

impl Run {
    /// Returns the index after the last chunk.
    pub fn end(&self) -> u32 {
        self.first.saturating_add(self.count)
    }
}

/// A file, a directory or a symbolic link.
///
/// ```text
///   0 u8 version   1 u8 kind (1 file, 2 directory, 3 link)   2 u8 state (1 open, 2 closed, 3 frozen, 4 persisted)
///   3 u8 marks: 1 torn, 2 unlinked   4 u16 mode: 12 bits   6 u8 log2 of a chunk's bytes   7 u8 zero   8 u32 owner   12 u32 group
///  16 u64 size   24 i64 u32 modified   36 i64 u32 changed   48 u64 generation   56 u64 reserved   64 u64 writer, 0 is none
///  72 u64 parent, 0 of the root   80 u64 inode of the backing   88 u16 length of the name   90 u16 length of the target
///  92 u16 runs   94 u16 zero   96 name, target, then for each run: u32 first, u32 count, u64 generation
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Inode {
    /// Its kind.
    pub kind: Kind,
    /// The state of its generation.
    pub state: State,
    /// Its writer died before it closed the file: bytes that were not synced may be missing.
    pub is_torn: bool,
    /// It has no name any more.
    pub is_unlinked: bool,
    /// Memory had no room for all of its generation. Chunks that are not in the map are in the generation's data file, if it has them.
    pub is_spilled: bool,
    /// Permissions: 12 bits.
    pub mode: u16,
    /// Binary logarithm of a chunk's bytes, 16 to 23.
    pub chunk_bits: u8,
    /// The user that owns it.
    pub owner: u32,
    /// The group that owns it.
    pub group: u32,
    /// Bytes of the file.
    pub size: u64,
    /// When its bytes changed.
    pub modified: Time,
    /// When its bytes or attributes changed.
    pub changed: Time,
    /// The generation of its bytes.
    pub generation: Generation,
    /// The last generation that was given to a writer. A generation is given once, so only one mount ever writes its chunks.
    pub reserved: Generation,
    /// The mount that has the file open for writing.
    pub writer: Option<MountId>,
    /// The directory of its name; None of the root.
    pub parent: Option<Ino>,
    /// The number of its inode on the backing, while it is persisted.
    pub backing: u64,
    /// Its name; empty of the root.
    pub name: Vec<u8>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// The chunks that there are. Others are holes.
    pub map: Vec<Run>,
}

impl Inode {
    /// Returns the bytes of a chunk.
    pub fn chunk_size(&self) -> u64 {
        1 << self.chunk_bits
    }

    /// Checks what holds of every inode.
    ///
    /// # Errors
    ///
    /// The field that is wrong.
    pub fn check(&self) -> Result<(), FilesError> {
        let is_file = self.kind == Kind::File;
        check(self.mode <= 0o7777, "mode")?;
        check(CHUNK_BITS.contains(&self.chunk_bits), "size of a chunk")?;
        check(self.modified.nanos < 1_000_000_000 && self.changed.nanos < 1_000_000_000, "time")?;
        check(!is_file || self.size <= u64::from(MAX_CHUNKS) << self.chunk_bits, "size")?;
        check(self.generation <= self.reserved, "generation")?;
        let is_own = self.generation == self.reserved;
        match (self.state, self.writer) {
            (State::Open | State::Closed, writer) => check(is_file && writer.is_some() && is_own, "state")?,
            (_, Some(_)) => check(is_file && !is_own, "writer")?,
            (_, None) => {}
        }
        match self.parent {
            None => check(self.kind == Kind::Directory && self.name.is_empty(), "name")?,
            Some(parent) => check(parent.0 != 0 && is_name(&self.name), "name")?,
        }
        let has_target = !self.target.is_empty() && self.target.len() <= MAX_TARGET && !self.target.contains(&0);
        check(if self.kind == Kind::Link { has_target } else { self.target.is_empty() }, "target")?;
        check((is_file || self.map.is_empty()) && self.map.len() <= MAX_RUNS, "map")?;
        check(is_file || !self.is_spilled, "marks")?;
        let mut before: Option<Run> = None;
        for run in &self.map {
            let follows = before.is_none_or(|before| {
                before.end() < run.first || before.end() == run.first && before.generation != run.generation
            });
            let fits = u64::from(run.first) + u64::from(run.count) <= self.size.div_ceil(self.chunk_size());
            let is_given = run.generation.0 > 0 && run.generation <= self.generation;
            check(follows && fits && is_given && run.count > 0, "map")?;
            before = Some(*run);
        }
        Ok(())
    }

    /// Returns the value. It can be read if [`Self::check`] finds nothing.
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            State::Open => 1,
            State::Closed => 2,
            State::Frozen => 3,
            State::Persisted => 4,
        };
        let marks = u8::from(self.is_torn) | u8::from(self.is_unlinked) << 1 | u8::from(self.is_spilled) << 2;
        let mut out = vec![VERSION, kind(self.kind), state, marks];
        out.extend(self.mode.to_le_bytes());
        out.extend([self.chunk_bits, 0]);
        out.extend(self.owner.to_le_bytes());
        out.extend(self.group.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        for time in [self.modified, self.changed] {
            out.extend(time.seconds.to_le_bytes());
            out.extend(time.nanos.to_le_bytes());
        }
        let writer = self.writer.map_or(0, |writer| writer.0);
        let parent = self.parent.map_or(0, |parent| parent.0);
        for number in [self.generation.0, self.reserved.0, writer, parent, self.backing] {
            out.extend(number.to_le_bytes());
        }
        for length in [self.name.len(), self.target.len(), self.map.len(), 0] {
            out.extend((length as u16).to_le_bytes());
        }
        out.extend(&self.name);
        out.extend(&self.target);
        for run in &self.map {
            out.extend(run.first.to_le_bytes());
            out.extend(run.count.to_le_bytes());
            out.extend(run.generation.0.to_le_bytes());
        }
        out
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// The bytes are no such value.
    pub fn decode(bytes: &[u8]) -> Result<Self, FilesError> {
        let mut reader = Reader::new(bytes)?;
        let kind = reader.kind()?;
        let state = match reader.u8()? {
            1 => State::Open,
            2 => State::Closed,
            3 => State::Frozen,
            4 => State::Persisted,
            _ => return Err(FilesError::Field("state")),
        };
        let marks = reader.u8()?;
        check(marks < 8, "marks")?;
        let (mode, chunk_bits) = (reader.u16()?, reader.u8()?);
        reader.zeros(1)?;
        let (owner, group, size) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let mut time = || Ok(Time { seconds: reader.u64()? as i64, nanos: reader.u32()? });
        let (modified, changed) = (time()?, time()?);
        let (generation, reserved) = (Generation(reader.u64()?), Generation(reader.u64()?));
        let (writer, parent, backing) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (name, target, runs) = (reader.u16()?, reader.u16()?, reader.u16()?);
        reader.zeros(2)?;
        check(usize::from(name) <= MAX_NAME, "name")?;
        check(usize::from(target) <= MAX_TARGET, "target")?;
        check(usize::from(runs) <= MAX_RUNS, "map")?;
        let name = reader.bytes(usize::from(name))?.to_vec();
        let target = reader.bytes(usize::from(target))?.to_vec();
        let mut map = Vec::with_capacity(usize::from(runs));
        for _ in 0..runs {
            let (first, count, generation) = (reader.u32()?, reader.u32()?, Generation(reader.u64()?));
            map.push(Run { first, count, generation });
        }
        reader.end()?;
        let inode = Self {
            kind,
            state,
            is_torn: marks & 1 != 0,
            is_unlinked: marks & 2 != 0,
            is_spilled: marks & 4 != 0,
            mode,
            chunk_bits,
            owner,
            group,
            size,
            modified,
            changed,
            generation,
            reserved,
            writer: (writer != 0).then_some(MountId(writer)),
            parent: (parent != 0).then_some(Ino(parent)),
            backing,
            name,
            target,
            map,
        };
        inode.check().map(|()| inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Inode {
        let map = vec![
            Run { first: 0, count: 2, generation: Generation(3) },
            Run { first: 2, count: 1, generation: Generation(2) },
            Run { first: 4, count: 1, generation: Generation(2) },
        ];
        Inode {
            kind: Kind::File,
            state: State::Open,
            is_torn: false,
            is_unlinked: true,
            is_spilled: true,
            mode: 0o644,
            chunk_bits: 16,
            owner: 1000,
            group: 100,
            size: 4 * 65536 + 1,
            modified: Time { seconds: -1, nanos: 999_999_999 },
            changed: Time::default(),
            generation: Generation(3),
            reserved: Generation(3),
            writer: Some(MountId(5)),
            parent: Some(Ino::ROOT),
            backing: 0,
            name: b"checkpoint".to_vec(),
            target: Vec::new(),
            map,
        }
    }

    #[test]
    fn an_inode_is_read_as_it_was_written() {
        let bytes = file().encode();
        assert_eq!(Inode::decode(&bytes), Ok(file()));
        assert_eq!(bytes.len(), 96 + 10 + 3 * 16);
        for end in 0..bytes.len() {
            assert!(Inode::decode(&bytes[..end]).is_err(), "{end}");
        }
        assert_eq!(Inode::decode(&[&bytes[..], &[0]].concat()), Err(FilesError::Long));
        assert_eq!(Inode::decode(&[&[2], &bytes[1..]].concat()), Err(FilesError::Version(2)));
    }

    /// The field that a change makes wrong, and the change.
    type Wrong = (&'static str, fn(&mut Inode));

    #[test]
    fn refuses_what_no_change_makes() {
        let changes: [Wrong; 16] = [
            ("mode", |inode| inode.mode = 0o10000),
            ("size of a chunk", |inode| inode.chunk_bits = 24),
            ("time", |inode| inode.changed.nanos = 1_000_000_000),
            ("size", |inode| inode.size = u64::MAX),
            ("generation", |inode| inode.generation = Generation(4)),
            ("state", |inode| inode.writer = None),
            ("state", |inode| inode.reserved = Generation(4)),
            ("writer", |inode| inode.state = State::Frozen),
            ("name", |inode| inode.name = b"a/b".to_vec()),
            ("name", |inode| inode.parent = None),
            ("target", |inode| inode.target = b"x".to_vec()),
            ("map", |inode| inode.map[0].count = 3),
            ("map", |inode| inode.map[1].generation = Generation(3)),
            ("map", |inode| inode.map[2].first = 5),
            ("map", |inode| inode.map[2].count = 0),
            ("map", |inode| inode.map[0].generation = Generation(4)),
        ];
        for (field, change) in changes {
            let mut inode = file();
            change(&mut inode);
            assert_eq!(Inode::decode(&inode.encode()), Err(FilesError::Field(field)), "{inode:?}");
        }
    }
}
