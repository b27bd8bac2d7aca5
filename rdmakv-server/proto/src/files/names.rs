//! A directory's names, in buckets.

use super::fields::{Reader, check, kind};
use super::{FilesError, Ino, Kind, MAX_VALUE, VERSION};

/// Buckets of a directory.
pub const BUCKETS: u8 = 16;

/// Bytes of a name at most.
pub const MAX_NAME: usize = 255;

/// Names of a bucket at most: a directory of 100,000 names has 6,250 in each.
pub const MAX_ENTRIES: usize = 8192;

const HEAD: usize = 16;

/// Bytes of an entry before its name.
const ENTRY: usize = 12;

/// A name's relation to the backing directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Standing {
    /// The backing does not show the inode's bytes under the name yet: an agent has work here.
    New,
    /// The backing shows the inode under the name.
    Shown,
    /// The name is removed. The backing may still show it: an agent has work here.
    Whiteout,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The name: 1 to [`MAX_NAME`] bytes.
    pub name: Vec<u8>,
    /// Its inode; of a whiteout the one that had the name last.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: Kind,
    /// Its relation to the backing.
    pub standing: Standing,
}

/// A sixteenth of a directory's names.
///
/// ```text
///  0 u8 version   1 u8[3] zero   4 u32 count   8 u64 term of the lease under which it was last changed   16 the entries by name, each:
///  0 u64 inode   8 u8 kind (1 file, 2 directory, 3 link)   9 u8 standing (1 new, 2 shown, 3 whiteout)   10 u16 length   12 name
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Bucket {
    /// The term of the directory's lease under which names may change.
    pub term: u64,
    entries: Vec<Entry>,
}

/// Returns the bucket of a name: a FNV-1a hash of 64 bits, all folded into four.
pub fn bucket_of(name: &[u8]) -> u8 {
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let half = hash ^ (hash >> 32);
    let quarter = half ^ (half >> 16);
    ((quarter ^ (quarter >> 8) ^ (quarter >> 4) ^ (quarter >> 12)) as u8) % BUCKETS
}

/// Returns whether bytes are a name: not empty, not too long, without `/` and zero, and neither `.` nor `..`.
pub fn is_name(name: &[u8]) -> bool {
    let is_short = !name.is_empty() && name.len() <= MAX_NAME;
    is_short && name != b"." && name != b".." && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

impl Bucket {
    /// Returns a bucket without names, of a term.
    pub fn new(term: u64) -> Self {
        Self { term, entries: Vec::new() }
    }

    /// Returns the entry of a name, a whiteout too.
    pub fn find(&self, name: &[u8]) -> Option<&Entry> {
        self.place(name).ok().map(|at| &self.entries[at])
    }

    /// Adds an entry, or replaces that of its name. Returns whether it has room.
    pub fn put(&mut self, entry: Entry) -> bool {
        match self.place(&entry.name) {
            Ok(at) => self.entries[at] = entry,
            Err(_) if self.entries.len() >= MAX_ENTRIES => return false,
            Err(_) if self.size() + ENTRY + entry.name.len() > MAX_VALUE => return false,
            Err(at) => self.entries.insert(at, entry),
        }
        true
    }

    /// Removes the entry of a name. Returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.place(name).map(|at| self.entries.remove(at)).is_ok()
    }

    /// Returns the entries by name, whiteouts too.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn place(&self, name: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.name.as_slice().cmp(name))
    }

    fn size(&self) -> usize {
        HEAD + self.entries.iter().map(|entry| ENTRY + entry.name.len()).sum::<usize>()
    }

    /// Returns the value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size());
        out.extend([VERSION, 0, 0, 0]);
        out.extend((self.entries.len() as u32).to_le_bytes());
        out.extend(self.term.to_le_bytes());
        for entry in &self.entries {
            let standing = match entry.standing {
                Standing::New => 1,
                Standing::Shown => 2,
                Standing::Whiteout => 3,
            };
            out.extend(entry.ino.0.to_le_bytes());
            out.extend([kind(entry.kind), standing]);
            out.extend((entry.name.len() as u16).to_le_bytes());
            out.extend(&entry.name);
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
        reader.zeros(3)?;
        let count = reader.u32()? as usize;
        check(count <= MAX_ENTRIES && bytes.len() <= MAX_VALUE, "number of names")?;
        let mut bucket = Self::new(reader.u64()?);
        for _ in 0..count {
            let ino = Ino(reader.u64()?);
            let kind = reader.kind()?;
            let standing = match reader.u8()? {
                1 => Standing::New,
                2 => Standing::Shown,
                3 => Standing::Whiteout,
                _ => return Err(FilesError::Field("standing")),
            };
            let length = usize::from(reader.u16()?);
            let name = reader.bytes(length)?.to_vec();
            let follows = bucket.entries.last().is_none_or(|before| before.name < name);
            check(is_name(&name) && follows, "name")?;
            check(ino.0 > Ino::ROOT.0, "inode")?;
            bucket.entries.push(Entry { name, ino, kind, standing });
        }
        reader.end()?;
        Ok(bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8]) -> Entry {
        Entry { name: name.to_vec(), ino: Ino(7), kind: Kind::File, standing: Standing::New }
    }

    #[test]
    fn names_are_found_replaced_and_removed() {
        let mut bucket = Bucket::default();
        for name in [b"b", b"a", b"c"] {
            assert!(bucket.put(entry(name)));
        }
        assert!(bucket.put(Entry { ino: Ino(8), ..entry(b"b") }));
        let names: Vec<(&[u8], u64)> = bucket.entries().iter().map(|entry| (&entry.name[..], entry.ino.0)).collect();
        assert_eq!(names, [(&b"a"[..], 7), (b"b", 8), (b"c", 7)]);
        assert!(bucket.remove(b"a") && !bucket.remove(b"a"));
        assert_eq!(bucket.find(b"a"), None);
    }

    #[test]
    fn a_full_bucket_refuses_only_new_names() {
        let mut bucket = Bucket::default();
        for at in 0..MAX_ENTRIES {
            assert!(bucket.put(entry(format!("{at:05}").as_bytes())));
        }
        assert!(!bucket.put(entry(b"one more")));
        assert!(bucket.put(entry(b"00000")));
        assert_eq!(Bucket::decode(&bucket.encode()), Ok(bucket));
        let mut long = Bucket::default();
        let count = (0..MAX_ENTRIES).take_while(|at| long.put(entry(format!("{at:0255}").as_bytes()))).count();
        assert!(count < MAX_ENTRIES && long.encode().len() <= MAX_VALUE);
        assert_eq!(Bucket::decode(&long.encode()), Ok(long));
    }

    #[test]
    fn names_spread_over_the_buckets() {
        let mut counts = [0_usize; BUCKETS as usize];
        (0..100_000).for_each(|at| counts[usize::from(bucket_of(format!("rank-{at}.ckpt").as_bytes()))] += 1);
        assert!(counts.iter().all(|count| (5500..7000).contains(count)), "{counts:?}");
        // The hash is part of the layout.
        assert_eq!([bucket_of(b"a"), bucket_of(b"b"), bucket_of(b"checkpoint")], [0, 4, 5]);
    }

    #[test]
    fn tells_names_from_other_bytes() {
        assert!(is_name(b"a") && is_name(b"...") && is_name(&[0xff; MAX_NAME]));
        for other in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'a'; MAX_NAME + 1]] {
            assert!(!is_name(other), "{other:?}");
        }
    }
}
