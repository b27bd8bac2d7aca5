//! The procedures of far memory, and their arguments in messages RUN. Numbers are little-endian.
//!
//! ```text
//! 1 walk    follows a chain of nodes, to a key or so many nodes far
//!    0  u64  the node        8  u32  first byte of its pointer to the next node; 0 there ends the chain
//!   12  u32  first byte of its key      16  u32  nodes that may be read, this one included
//!   20  u32  bytes of the found node for the reply      24  u8 length, then the key; without one the last node is found
//! 2 bucket  looks a key up in a bucket of a hash table
//!    0  u64  the bucket, of entries: u64 hash, u64 address of the item     8  u32  entries, at most 256
//!   12  u32  the first entry to look at      16  u64  hash      24  u32  first byte of an item's key
//!   28  u32  bytes of the found item for the reply      32  u64  the item that is looked at next, or 0
//!   40  u8 length, then the key; without one the first item of that hash is found
//! 3 filter  finds records by a number in them, and replies with bytes of each, or of what it points to
//!    0  u64  the record      8  u64  records      16  u32  bytes of one, at most 4096
//!   20  u32  first byte of its number, a u64     24  u64, u64  the least and the greatest number
//!   40  u32  first byte of its pointer, or 2^32 - 1: without one the bytes are its own
//!   44  u32  first byte of the reply      48  u32  bytes of it      52  u32  zero      56  u64  what it points to, once found
//! 4 cas64   replaces an aligned number by another one if it is as expected; replies with what was there
//!    0  u64  its address      8  u64  the expected one      16  u64  the new one
//! 5 module  takes the steps of a WebAssembly module that the login stored
//!    0  u64  the address of its next step      8  u8 length, then its name      then u8 length, its state, at most 128 bytes
//! ```
//!
//! All addresses are of the memory. A procedure that stopped half-way has the same form, and goes on from there.

use super::messages::{ARGUMENTS_MAX, REPLY_MAX};
use super::modules;
use crate::messages::{Fields, Malformed};

/// Bytes of a key at most.
pub const KEY_MAX: usize = 128;
/// Bytes that a procedure reads at a time, at most.
pub const READ_MAX: usize = 4096;
/// Entries of a bucket at most.
pub const ENTRIES_MAX: u32 = 256;
/// Bytes of an entry.
pub const ENTRY: usize = 16;

const NO_POINTER: u32 = u32::MAX;

/// A procedure with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Procedure {
    /// Follows a chain.
    Walk(Walk),
    /// Looks a key up in a bucket.
    Bucket(Bucket),
    /// Finds records.
    Filter(Filter),
    /// Replaces a number.
    Cas64(Cas64),
    /// Takes the steps of a module.
    Module(Module),
}

/// Follows a chain of nodes, to a key or so many nodes far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Walk {
    /// The node.
    pub at: u64,
    /// The first byte of a node's pointer to the next one; address 0 ends the chain.
    pub next: u32,
    /// The first byte of a node's key.
    pub key_at: u32,
    /// Nodes that are read at most.
    pub nodes: u32,
    /// Bytes of the found node for the reply.
    pub length: u32,
    /// The key. Empty: the last node that is read is the found one.
    pub key: Vec<u8>,
}

/// Looks a key up in a bucket of a hash table, whose entries are a hash and an address each. Address 0 is that of no item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// The first entry.
    pub at: u64,
    /// Entries.
    pub entries: u32,
    /// The entry that is looked at first.
    pub first: u32,
    /// The hash.
    pub hash: u64,
    /// The first byte of an item's key.
    pub key_at: u32,
    /// Bytes of the found item for the reply.
    pub length: u32,
    /// The address of the item that is looked at next, or 0.
    pub item: u64,
    /// The key. Empty: the first item of that hash is the found one.
    pub key: Vec<u8>,
}

/// Finds records whose number lies within bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The first record.
    pub at: u64,
    /// Records.
    pub records: u64,
    /// Bytes of one.
    pub stride: u32,
    /// The first byte of a record's number.
    pub field: u32,
    /// The least number.
    pub least: u64,
    /// The greatest number.
    pub greatest: u64,
    /// The first byte of a record's pointer to the bytes of the reply. None: they are the record's own. A pointer to 0 is left out.
    pub pointer: Option<u32>,
    /// The first byte of the reply.
    pub from: u32,
    /// Bytes of the reply.
    pub length: u32,
    /// The address that the first record points to, once that record has been found.
    pub found: u64,
}

/// Replaces an aligned number by another one if it is as expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cas64 {
    /// Its address, a multiple of 8.
    pub at: u64,
    /// The expected number.
    pub old: u64,
    /// The new number.
    pub new: u64,
}

/// Takes the steps of a WebAssembly module that the login stored at the servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// The address of its next step: it is taken by the server that has this byte.
    pub at: u64,
    /// The module's name, up to [`NAME_MAX`](modules::NAME_MAX) bytes.
    pub name: Vec<u8>,
    /// Its arguments, and what it keeps from step to step: up to [`STATE_MAX`](modules::STATE_MAX) bytes.
    pub state: Vec<u8>,
}

impl Procedure {
    /// The number of modules.
    pub const MODULE: u32 = 5;
    /// The names of procedures, by their numbers from 1 on.
    pub const NAMES: [&'static str; 5] = ["walk", "bucket", "filter", "cas64", "module"];

    /// Returns its number in messages.
    pub fn number(&self) -> u32 {
        match self {
            Self::Walk(_) => 1,
            Self::Bucket(_) => 2,
            Self::Filter(_) => 3,
            Self::Cas64(_) => 4,
            Self::Module(_) => Self::MODULE,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        Self::NAMES[self.number() as usize - 1]
    }

    /// Returns the address at which it begins, or goes on.
    pub fn at(&self) -> u64 {
        match self {
            Self::Walk(Walk { at, .. }) | Self::Cas64(Cas64 { at, .. }) | Self::Module(Module { at, .. }) => *at,
            Self::Bucket(Bucket { at, item: found, .. }) | Self::Filter(Filter { at, found, .. }) => {
                if *found == 0 {
                    *at
                } else {
                    *found
                }
            }
        }
    }

    /// Returns whether its first access is a write. A module may write later on.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Cas64(_))
    }

    /// Reads arguments.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: there is no such procedure, or it cannot have these arguments.
    pub fn decode(number: u32, arguments: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(arguments);
        let of = match number {
            1 => Self::Walk(Walk::decode(&mut fields)?),
            2 => Self::Bucket(Bucket::decode(&mut fields)?),
            3 => Self::Filter(Filter::decode(&mut fields)?),
            4 => Self::Cas64(Cas64 { at: fields.u64()?, old: fields.u64()?, new: fields.u64()? }),
            Self::MODULE => {
                Self::Module(Module { at: fields.u64()?, name: key(&mut fields)?, state: key(&mut fields)? })
            }
            _ => return Err(Malformed("a procedure that is none")),
        };
        fields.end()?;
        of.check()?;
        Ok(of)
    }

    /// Writes the arguments.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let u32s = |into: &mut Vec<u8>, numbers: &[u32]| numbers.iter().for_each(|it| into.extend(it.to_le_bytes()));
        let u64s = |into: &mut Vec<u8>, numbers: &[u64]| numbers.iter().for_each(|it| into.extend(it.to_le_bytes()));
        match self {
            Self::Walk(Walk { at, next, key_at, nodes, length, key }) => {
                u64s(into, &[*at]);
                u32s(into, &[*next, *key_at, *nodes, *length]);
                put_key(into, key);
            }
            Self::Bucket(Bucket { at, entries, first, hash, key_at, length, item, key }) => {
                u64s(into, &[*at]);
                u32s(into, &[*entries, *first]);
                u64s(into, &[*hash]);
                u32s(into, &[*key_at, *length]);
                u64s(into, &[*item]);
                put_key(into, key);
            }
            Self::Filter(Filter { at, records, stride, field, least, greatest, pointer, from, length, found }) => {
                u64s(into, &[*at, *records]);
                u32s(into, &[*stride, *field]);
                u64s(into, &[*least, *greatest]);
                u32s(into, &[pointer.unwrap_or(NO_POINTER), *from, *length, 0]);
                u64s(into, &[*found]);
            }
            Self::Cas64(Cas64 { at, old, new }) => u64s(into, &[*at, *old, *new]),
            Self::Module(Module { at, name, state }) => {
                u64s(into, &[*at]);
                put_key(into, name);
                put_key(into, state);
            }
        }
    }

    /// Returns what is wrong with the arguments. A server runs none with a fault.
    ///
    /// # Errors
    ///
    /// [`Malformed`] names it.
    pub fn check(&self) -> Result<(), Malformed> {
        let (fine, what) = match self {
            Self::Walk(walk) => (
                walk.span() <= READ_MAX && walk.key.len() <= KEY_MAX && is_reply(walk.length) && walk.nodes > 0,
                "a walk: a node's pointer and key are in its first 4096 bytes, a key has 128, a reply 4096, and it reads a node",
            ),
            Self::Bucket(bucket) => (
                bucket.first <= bucket.entries
                    && bucket.entries <= ENTRIES_MAX
                    && bucket.span() <= READ_MAX
                    && bucket.key.len() <= KEY_MAX
                    && is_reply(bucket.length),
                "a bucket: it has 256 entries at most, an item's key is in its first 4096 bytes, a key has 128, a reply 4096",
            ),
            Self::Filter(filter) => (
                filter.is_fine(),
                "a filter: a record has 1 to 4096 bytes, with its number, its pointer and what is its own of the reply; a reply has 1 to 4096",
            ),
            Self::Cas64(cas) => (cas.at.is_multiple_of(8), "cas64: an address that is no multiple of 8"),
            Self::Module(module) => (
                modules::is_name(&module.name) && module.state.len() <= modules::STATE_MAX,
                "a module: its name has 1 to 64 bytes, its state 128",
            ),
        };
        if fine { Ok(()) } else { Err(Malformed(what)) }
    }
}

fn is_reply(length: u32) -> bool {
    length as usize <= REPLY_MAX
}

/// Returns the end of so many bytes from a first one on.
fn end(first: u32, bytes: usize) -> usize {
    (first as usize).saturating_add(bytes)
}

fn put_key(into: &mut Vec<u8>, key: &[u8]) {
    debug_assert!(key.len() <= KEY_MAX, "the caller has looked at the length");
    into.push(key.len() as u8);
    into.extend_from_slice(key);
}

fn key(fields: &mut Fields<'_>) -> Result<Vec<u8>, Malformed> {
    let length = usize::from(fields.u8()?);
    Ok(fields.take(length)?.to_vec())
}

impl Walk {
    fn decode(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (at, next, key_at, nodes) = (fields.u64()?, fields.u32()?, fields.u32()?, fields.u32()?);
        Ok(Self { at, next, key_at, nodes, length: fields.u32()?, key: key(fields)? })
    }

    /// Returns the bytes of a node up to the end of its pointer and key.
    pub fn span(&self) -> usize {
        end(self.next, 8).max(if self.key.is_empty() { 0 } else { end(self.key_at, self.key.len()) })
    }
}

impl Bucket {
    fn decode(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (at, entries, first, hash) = (fields.u64()?, fields.u32()?, fields.u32()?, fields.u64()?);
        let (key_at, length, item) = (fields.u32()?, fields.u32()?, fields.u64()?);
        Ok(Self { at, entries, first, hash, key_at, length, item, key: key(fields)? })
    }

    /// Returns the bytes of an item up to the end of its key.
    pub fn span(&self) -> usize {
        end(self.key_at, self.key.len())
    }
}

impl Filter {
    fn decode(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let (at, records, stride, field) = (fields.u64()?, fields.u64()?, fields.u32()?, fields.u32()?);
        let (least, greatest, pointer) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let (from, length) = (fields.u32()?, fields.u32()?);
        if fields.u32()? != 0 {
            return Err(Malformed("a filter with bytes that have to be zero and are not"));
        }
        let pointer = (pointer != NO_POINTER).then_some(pointer);
        Ok(Self { at, records, stride, field, least, greatest, pointer, from, length, found: fields.u64()? })
    }

    fn is_fine(&self) -> bool {
        let stride = self.stride as usize;
        let of_reply = match self.pointer {
            Some(pointer) => end(pointer, 8),
            None => end(self.from, self.length as usize),
        };
        (1..=READ_MAX).contains(&stride)
            && end(self.field, 8).max(of_reply) <= stride
            && self.length > 0
            && is_reply(self.length)
            && (self.found == 0 || self.pointer.is_some() && self.records > 0)
    }
}

// Arguments and state fit into a message.
const _: () = assert!(41 + KEY_MAX <= ARGUMENTS_MAX && 10 + modules::NAME_MAX + modules::STATE_MAX <= ARGUMENTS_MAX);
const _: () = assert!(modules::NAME_MAX <= KEY_MAX && modules::STATE_MAX <= KEY_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> impl Strategy<Value = Procedure> {
        let key = || prop::collection::vec(any::<u8>(), 0..=KEY_MAX);
        let walk = (any::<u64>(), 0..4000_u32, 0..3900_u32, 1..u32::MAX, 0..=4096_u32, key()).prop_map(
            |(at, next, key_at, nodes, length, key)| Procedure::Walk(Walk { at, next, key_at, nodes, length, key }),
        );
        let bucket = (any::<u64>(), 0..=ENTRIES_MAX, any::<[u64; 2]>(), 0..3900_u32, 0..=4096_u32, key()).prop_map(
            |(at, entries, [hash, item], key_at, length, key)| {
                Procedure::Bucket(Bucket { at, entries, first: entries / 2, hash, key_at, length, item, key })
            },
        );
        let filter = (any::<[u64; 4]>(), 24..=4096_u32, any::<bool>(), 0..2_u64).prop_map(
            |([at, records, least, greatest], stride, points, found)| {
                let pointer = points.then_some(stride - 8);
                let records = records.max(1);
                let (field, from, length, found) = (8, 16, 8, if points { found } else { 0 });
                let filter = Filter { at, records, stride, field, least, greatest, pointer, from, length, found };
                Procedure::Filter(filter)
            },
        );
        let cas = any::<[u64; 3]>().prop_map(|[at, old, new]| Procedure::Cas64(Cas64 { at: at & !7, old, new }));
        let bytes = |least, most| prop::collection::vec(any::<u8>(), least..=most);
        let module = (any::<u64>(), bytes(1, modules::NAME_MAX), bytes(0, modules::STATE_MAX))
            .prop_map(|(at, name, state)| Procedure::Module(Module { at, name, state }));
        prop_oneof![walk, bucket, filter, cas, module]
    }

    fn encoded(of: &Procedure) -> Vec<u8> {
        let mut bytes = Vec::new();
        of.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn arguments_come_back_as_they_were(of in all()) {
            let bytes = encoded(&of);
            prop_assert!(bytes.len() <= ARGUMENTS_MAX);
            prop_assert_eq!(Procedure::decode(of.number(), &bytes), Ok(of.clone()));
            prop_assert!(Procedure::decode(of.number(), &bytes[..bytes.len() - 1]).is_err());
            prop_assert!(Procedure::decode(of.number(), &[&bytes[..], &[0]].concat()).is_err());
        }

        #[test]
        fn any_bytes_are_taken_without_panic(number in 0..7_u32, bytes in prop::collection::vec(0..9_u8, 0..80)) {
            if let Ok(of) = Procedure::decode(number, &bytes) {
                prop_assert_eq!(encoded(&of), bytes, "arguments have one encoding");
            }
        }
    }

    #[test]
    fn impossible_arguments_are_refused() {
        let walk = Walk { at: 0, next: 0, key_at: 0, nodes: 1, length: 0, key: Vec::new() };
        let bucket = Bucket { at: 0, entries: 1, first: 0, hash: 0, key_at: 0, length: 0, item: 0, key: Vec::new() };
        let filter = Filter {
            at: 0,
            records: 1,
            stride: 16,
            field: 8,
            least: 0,
            greatest: 0,
            pointer: None,
            from: 0,
            length: 16,
            found: 0,
        };
        for fine in
            [Procedure::Walk(walk.clone()), Procedure::Bucket(bucket.clone()), Procedure::Filter(filter.clone())]
        {
            assert_eq!(fine.check(), Ok(()));
        }
        let refused = [
            Procedure::Walk(Walk { next: 4089, ..walk.clone() }),
            Procedure::Walk(Walk { next: u32::MAX, ..walk.clone() }),
            Procedure::Walk(Walk { key_at: 4096, key: vec![1], ..walk.clone() }),
            Procedure::Walk(Walk { nodes: 0, ..walk.clone() }),
            Procedure::Walk(Walk { length: 4097, ..walk }),
            Procedure::Bucket(Bucket { entries: 257, ..bucket.clone() }),
            Procedure::Bucket(Bucket { first: 2, ..bucket.clone() }),
            Procedure::Bucket(Bucket { key_at: u32::MAX, key: vec![1], ..bucket }),
            Procedure::Filter(Filter { stride: 0, ..filter.clone() }),
            Procedure::Filter(Filter { field: 9, ..filter.clone() }),
            Procedure::Filter(Filter { from: 1, ..filter.clone() }),
            Procedure::Filter(Filter { length: 0, ..filter.clone() }),
            Procedure::Filter(Filter { pointer: Some(9), ..filter.clone() }),
            Procedure::Filter(Filter { found: 5, ..filter }),
            Procedure::Cas64(Cas64 { at: 4, old: 0, new: 0 }),
            Procedure::Module(Module { at: 0, name: Vec::new(), state: Vec::new() }),
            Procedure::Module(Module { at: 0, name: vec![b'a'; 65], state: Vec::new() }),
            Procedure::Module(Module { at: 0, name: vec![b'a'], state: vec![0; 129] }),
        ];
        for of in refused {
            assert!(of.check().is_err(), "{of:?}");
        }
    }
}
