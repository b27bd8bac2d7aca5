//! Keys, as text.

use std::fmt;

use super::{BUCKETS, Generation, Ino, MAX_CHUNKS, MountId};

/// Servers of a cluster at most.
const MAX_SERVERS: u8 = 64;

/// A key of the file system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// A chunk of a generation, by its index.
    Chunk(Ino, Generation, u32),
    /// An inode.
    Inode(Ino),
    /// A directory's names whose hash gives this bucket.
    Bucket(Ino, u8),
    /// A directory's lease.
    Directory(Ino),
    /// A generation's bytes on disk, as a server says.
    Persisted(Ino, Generation, u8),
    /// A mount's life.
    Mount(MountId),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Chunk(ino, generation, index) => write!(f, "c/{:x}/{:x}/{index:x}", ino.0, generation.0),
            Self::Inode(ino) => write!(f, "i/{:x}", ino.0),
            Self::Bucket(ino, bucket) => write!(f, "n/{:x}/{bucket:x}", ino.0),
            Self::Directory(ino) => write!(f, "d/{:x}", ino.0),
            Self::Persisted(ino, generation, server) => write!(f, "p/{:x}/{:x}/{server:x}", ino.0, generation.0),
            Self::Mount(mount) => write!(f, "m/{:x}", mount.0),
        }
    }
}

impl Key {
    /// Returns the key that is spelled so; None for one that is no key of the file system.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let kind = parts.next()?;
        let mut number = |bound: u64| -> Option<u64> {
            let digits = parts.next()?;
            let is_canonical = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            let has_one_form = is_canonical && (digits == "0" || !digits.starts_with('0'));
            let number = u64::from_str_radix(digits, 16).ok().filter(|_| has_one_form)?;
            (number <= bound).then_some(number)
        };
        let ino = number(u64::MAX).filter(|&ino| ino != 0)?;
        let key = match kind {
            "c" => Self::Chunk(Ino(ino), Generation(number(u64::MAX)?), number(u64::from(MAX_CHUNKS) - 1)? as u32),
            "i" => Self::Inode(Ino(ino)),
            "n" => Self::Bucket(Ino(ino), number(u64::from(BUCKETS) - 1)? as u8),
            "d" => Self::Directory(Ino(ino)),
            "p" => Self::Persisted(Ino(ino), Generation(number(u64::MAX)?), number(u64::from(MAX_SERVERS) - 1)? as u8),
            "m" => Self::Mount(MountId(ino)),
            _ => return None,
        };
        parts.next().is_none().then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spelled_as_the_table_says() {
        let (ino, generation) = (Ino(0x1f), Generation(10));
        let keys = [
            (Key::Chunk(ino, generation, 256), "c/1f/a/100"),
            (Key::Inode(ino), "i/1f"),
            (Key::Bucket(ino, 15), "n/1f/f"),
            (Key::Directory(Ino::ROOT), "d/1"),
            (Key::Persisted(ino, generation, 63), "p/1f/a/3f"),
            (Key::Mount(MountId(u64::MAX)), "m/ffffffffffffffff"),
        ];
        for (key, text) in keys {
            assert_eq!(key.to_string(), text);
            assert_eq!(Key::parse(text), Some(key));
        }
    }

    #[test]
    fn refuses_other_spellings() {
        let others = [
            "",
            "c",
            "i/",
            "i/0",
            "i/01",
            "i/1F",
            "i/+1",
            "i/1/",
            "i//1",
            "x/1",
            "c/1/1",
            "c/1/1/1/1",
            "n/1/10",
            "p/1/1/40",
            "m/10000000000000000",
            "i/ 1",
            "c/1/1/20000",
            "c/1/1/ffffffff",
        ];
        for text in others {
            assert_eq!(Key::parse(text), None, "{text:?}");
        }
    }
}
