//! The value of a directory's lease.

use super::fields::{Reader, check, kind};
use super::{FilesError, Ino, Kind, MountId, VERSION, is_name};

/// A rename within one directory that was begun. Its source and target are names there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rename {
    /// The inode that gets another name.
    pub ino: Ino,
    /// Its kind.
    pub kind: Kind,
    /// The inode that had the target's name, and loses it.
    pub replaced: Option<Ino>,
    /// The name that goes.
    pub source: Vec<u8>,
    /// The name that it gets.
    pub target: Vec<u8>,
}

/// A directory's lease: which mount may change its names and open its files for writing.
///
/// ```text
///  0 u8 version   1 u8 kind of a rename's inode, 0 without one   2 u16 length of its source   4 u16 length of its target   6 u16 zero
///  8 u64 term   16 u64 holder, 0 is none   24 u64 mount that waits for it, 0 is none
/// 32 u64 inode of the rename   40 u64 inode replaced, 0 is none   48 source, target
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Directory {
    /// How often the lease was taken. A holder writes it into all buckets before it changes one.
    pub term: u64,
    /// The mount that holds it.
    pub holder: Option<MountId>,
    /// A mount that waits for it.
    pub wanted: Option<MountId>,
    /// A rename that was begun. A new holder completes it first.
    pub rename: Option<Rename>,
}

impl Directory {
    /// Returns the value.
    pub fn encode(&self) -> Vec<u8> {
        let rename = self.rename.as_ref();
        let (source, target) = rename.map_or((&[][..], &[][..]), |rename| (&rename.source, &rename.target));
        let mut out = vec![VERSION, rename.map_or(0, |rename| kind(rename.kind))];
        out.extend((source.len() as u16).to_le_bytes());
        out.extend((target.len() as u16).to_le_bytes());
        out.extend([0, 0]);
        let mount = |mount: Option<MountId>| mount.map_or(0, |mount| mount.0);
        let replaced = rename.and_then(|rename| rename.replaced).map_or(0, |ino| ino.0);
        let ino = rename.map_or(0, |rename| rename.ino.0);
        for number in [self.term, mount(self.holder), mount(self.wanted), ino, replaced] {
            out.extend(number.to_le_bytes());
        }
        out.extend(source);
        out.extend(target);
        out
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// The bytes are no such value.
    pub fn decode(bytes: &[u8]) -> Result<Self, FilesError> {
        let has_rename = bytes.get(1).is_some_and(|&kind| kind != 0);
        let mut reader = Reader::new(bytes)?;
        let kind = if has_rename { Some(reader.kind()?) } else { reader.u8().map(|_| None)? };
        let (source, target) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        reader.zeros(2)?;
        let term = reader.u64()?;
        let mount = |number: u64| (number != 0).then_some(MountId(number));
        let (holder, wanted) = (mount(reader.u64()?), mount(reader.u64()?));
        let (ino, replaced) = (reader.u64()?, reader.u64()?);
        let (source, target) = (reader.bytes(source)?.to_vec(), reader.bytes(target)?.to_vec());
        reader.end()?;
        let rename = match kind {
            None => {
                check(source.is_empty() && target.is_empty() && ino == 0 && replaced == 0, "rename")?;
                None
            }
            Some(kind) => {
                let differ = is_name(&source) && is_name(&target) && source != target;
                check(differ && ino != 0 && ino != replaced, "rename")?;
                let replaced = (replaced != 0).then_some(Ino(replaced));
                Some(Rename { ino: Ino(ino), kind, replaced, source, target })
            }
        };
        Ok(Self { term, holder, wanted, rename })
    }
}
