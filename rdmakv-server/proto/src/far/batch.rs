//! Batches of far memory: reads and writes that a worker of the server carries out, in one message. Numbers are little-endian.
//!
//! ```text
//!  0  u32  sequence  counts the batches of a lane; a reply has that of its batch
//!  4  u16  n         operations
//!  6  u16  bytes     of what follows the head
//!  8  u32  crc       CRC32C of head and operations, with this field zero
//! 12  u32  zero
//! 16       n times, in a batch
//!       u8 op (1 read, 2 write), u8 zero, u16 length, u32 region, u64 offset in the region; the data of a write
//! 16       n times, in the batch of replies
//!       u8 status, u8 zero, u16 length, u32 zero; the data of a read
//! ```
//!
//! The sum is checked from end to end, because `iwarp` connections carry none of their own here. A batch with another sum, or one that
//! makes no sense, ends the connection.

use crate::messages::Malformed;
use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a batch before its operations.
pub const HEAD: usize = 16;
/// Bytes of an operation before its data.
pub const OPERATION: usize = 16;
/// Bytes of a reply before its data.
pub const REPLY: usize = 8;
/// Bytes of an operation's data at most.
pub const DATA_MAX: usize = u16::MAX as usize;

const SUM: std::ops::Range<usize> = 8..12;

/// An operation of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// Reads bytes of a region.
    Read {
        /// The region.
        region: u32,
        /// The first byte in it.
        offset: u64,
        /// How many bytes.
        length: u16,
    },
    /// Writes bytes to a region.
    Write {
        /// The region.
        region: u32,
        /// The first byte in it.
        offset: u64,
        /// The bytes, at most [`DATA_MAX`].
        data: &'a [u8],
    },
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// It is done.
    Done = 0,
    /// The region is not here any more, or never was.
    Elsewhere = 1,
    /// It goes beyond the region's end.
    OutOfRange = 2,
    /// The region is frozen: a write has to wait for the move to end.
    Frozen = 3,
}

/// The reply to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// How it ended.
    pub status: Status,
    /// The bytes that were read; empty for a write.
    pub data: &'a [u8],
}

/// Fills a buffer with a batch.
#[derive(Debug)]
pub struct Writer<'a> {
    slot: &'a mut [u8],
    at: usize,
    count: u16,
}

impl<'a> Writer<'a> {
    /// Begins a batch in a buffer; None if that has no room for a head.
    pub fn new(slot: &'a mut [u8]) -> Option<Self> {
        (slot.len() >= HEAD).then_some(Self { slot, at: HEAD, count: 0 })
    }

    /// Returns how many entries the batch has.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns whether the batch has no entry.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an operation. Returns false, and changes nothing, where the buffer or a batch has no room for it.
    #[must_use]
    pub fn operation(&mut self, operation: &Operation<'_>) -> bool {
        let (op, length, region, offset, data) = match *operation {
            Operation::Read { region, offset, length } => (1, length, region, offset, &[][..]),
            Operation::Write { region, offset, data } => {
                let Ok(length) = data.len().try_into() else { return false };
                (2, length, region, offset, data)
            }
        };
        let mut head = [0; OPERATION];
        head[0] = op;
        head[2..4].copy_from_slice(&u16::to_le_bytes(length));
        head[4..8].copy_from_slice(&region.to_le_bytes());
        head[8..].copy_from_slice(&offset.to_le_bytes());
        self.add(&head, data)
    }

    /// Adds a reply. Returns false, and changes nothing, where the buffer or a batch has no room for it.
    #[must_use]
    pub fn reply(&mut self, reply: &Reply<'_>) -> bool {
        let Ok(length) = u16::try_from(reply.data.len()) else { return false };
        let mut head = [0; REPLY];
        head[0] = reply.status as u8;
        head[2..4].copy_from_slice(&length.to_le_bytes());
        self.add(&head, reply.data)
    }

    /// Adds the reply to a read that is done, and returns the place for its bytes. None, and nothing is changed, where the buffer or a
    /// batch has no room for it.
    pub fn read(&mut self, length: usize) -> Option<&mut [u8]> {
        let mut head = [0; REPLY];
        head[0] = Status::Done as u8;
        head[2..4].copy_from_slice(&u16::try_from(length).ok()?.to_le_bytes());
        self.make_room(&head, length)
    }

    fn add(&mut self, head: &[u8], data: &[u8]) -> bool {
        self.make_room(head, data.len()).map(|place| place.copy_from_slice(data)).is_some()
    }

    /// Adds an entry's head, and returns the place for its data.
    fn make_room(&mut self, head: &[u8], data: usize) -> Option<&mut [u8]> {
        let end = self.at + head.len() + data;
        if end > self.slot.len() || end - HEAD > DATA_MAX || self.count == u16::MAX {
            return None;
        }
        let (of_head, of_data) = self.slot[self.at..end].split_at_mut(head.len());
        of_head.copy_from_slice(head);
        self.at = end;
        self.count += 1;
        Some(of_data)
    }

    /// Ends the batch. Returns its bytes, which the peer is to be sent.
    pub fn finish(self, sequence: u32) -> &'a [u8] {
        let Self { slot, at, count } = self;
        slot[..4].copy_from_slice(&sequence.to_le_bytes());
        slot[4..6].copy_from_slice(&count.to_le_bytes());
        slot[6..8].copy_from_slice(&((at - HEAD) as u16).to_le_bytes());
        slot[8..HEAD].fill(0);
        let sum = sum(&slot[..at]);
        slot[SUM].copy_from_slice(&sum.to_le_bytes());
        &slot[..at]
    }
}

fn sum(batch: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&batch[..SUM.start]);
    digest.update(&[0; 4]);
    digest.update(&batch[SUM.end..]);
    digest.finalize() as u32
}

/// The entries of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch<'a> {
    sequence: u32,
    count: u16,
    body: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Reads a batch where it lies.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: it has another length than its head tells, or another sum. Its entries are not looked at.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (head, body) = bytes.split_first_chunk::<HEAD>().ok_or(Malformed("a batch without its head"))?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        if body.len() != usize::from(short(6)) || number(12) != 0 {
            return Err(Malformed("a batch of another length"));
        }
        if sum(bytes) != number(SUM.start) {
            return Err(Malformed("a batch with another sum"));
        }
        Ok(Self { sequence: number(0), count: short(4), body })
    }

    /// Returns its number.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Returns how many entries it has.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns its operations, in order.
    pub fn operations(&self) -> impl Iterator<Item = Result<Operation<'a>, Malformed>> + use<'a> {
        entries(*self, |head: &[u8; OPERATION]| {
            let length = u16::from_le_bytes([head[2], head[3]]);
            match head[0] {
                1 => Ok(0),
                2 => Ok(usize::from(length)),
                _ => Err(Malformed("an operation that is none")),
            }
        })
        .map(|entry| {
            let (head, data) = entry?;
            let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let (region, offset) = (number(4), u64::from(number(8)) | u64::from(number(12)) << 32);
            Ok(match head[0] {
                1 => Operation::Read { region, offset, length: u16::from_le_bytes([head[2], head[3]]) },
                _ => Operation::Write { region, offset, data },
            })
        })
    }

    /// Returns its replies, in order.
    pub fn replies(&self) -> impl Iterator<Item = Result<Reply<'a>, Malformed>> + use<'a> {
        entries(*self, |head: &[u8; REPLY]| Ok(usize::from(u16::from_le_bytes([head[2], head[3]])))).map(|entry| {
            let (head, data) = entry?;
            let status = match head[0] {
                0 => Status::Done,
                1 => Status::Elsewhere,
                2 => Status::OutOfRange,
                3 => Status::Frozen,
                _ => return Err(Malformed("a status that is none")),
            };
            Ok(Reply { status, data })
        })
    }
}

/// Returns heads and data. After an error there is nothing more.
fn entries<'a, const N: usize>(
    batch: Batch<'a>,
    length: impl Fn(&[u8; N]) -> Result<usize, Malformed>,
) -> impl Iterator<Item = Result<(&'a [u8; N], &'a [u8]), Malformed>> {
    let (mut left, mut rest) = (batch.count, batch.body);
    std::iter::from_fn(move || {
        if left == 0 {
            let surplus = !std::mem::take(&mut rest).is_empty();
            return surplus.then_some(Err(Malformed("bytes behind the last entry")));
        }
        let entry = rest.split_first_chunk().ok_or(Malformed("an entry that is cut off")).and_then(|(head, tail)| {
            let (data, tail) = tail.split_at_checked(length(head)?).ok_or(Malformed("data that is cut off"))?;
            rest = tail;
            Ok((head, data))
        });
        left -= 1;
        if entry.is_err() {
            (left, rest) = (0, &[]);
        }
        Some(entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Made {
        Read(u32, u64, u16),
        Write(u32, u64, Vec<u8>),
    }

    impl Made {
        fn operation(&self) -> Operation<'_> {
            match self {
                Self::Read(region, offset, length) => {
                    Operation::Read { region: *region, offset: *offset, length: *length }
                }
                Self::Write(region, offset, data) => Operation::Write { region: *region, offset: *offset, data },
            }
        }
    }

    fn made() -> impl Strategy<Value = Vec<Made>> {
        let read = (any::<u32>(), any::<u64>(), any::<u16>())
            .prop_map(|(region, offset, length)| Made::Read(region, offset, length));
        let data = prop::collection::vec(any::<u8>(), 0..40);
        let write =
            (any::<u32>(), any::<u64>(), data).prop_map(|(region, offset, data)| Made::Write(region, offset, data));
        prop::collection::vec(prop_oneof![read, write], 0..12)
    }

    fn filled(slot: &mut [u8], operations: &[Made], sequence: u32) -> usize {
        let mut writer = Writer::new(slot).unwrap();
        assert!(operations.iter().all(|made| writer.operation(&made.operation())));
        writer.finish(sequence).len()
    }

    proptest! {
        #[test]
        fn batches_come_back_as_they_were(operations in made(), sequence in 1..u32::MAX) {
            let mut slot = vec![0xaa; 4096];
            let length = filled(&mut slot, &operations, sequence);
            let batch = Batch::decode(&slot[..length]).expect("it is whole");
            prop_assert_eq!(batch.sequence(), sequence);
            prop_assert_eq!(batch.len(), operations.len());
            let read: Vec<_> = batch.operations().collect::<Result<_, _>>().unwrap();
            let written: Vec<_> = operations.iter().map(Made::operation).collect();
            prop_assert_eq!(read, written);
            prop_assert!(Batch::decode(&slot[..length - 1]).is_err());
            prop_assert!(Batch::decode(&slot[..length + 1]).is_err());
        }

        #[test]
        fn any_bytes_are_taken_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), count in any::<u16>()) {
            // With a right head and sum the entries are anything.
            if bytes.len() >= HEAD {
                let length = bytes.len();
                bytes[..4].copy_from_slice(&7_u32.to_le_bytes());
                bytes[4..6].copy_from_slice(&count.to_le_bytes());
                bytes[6..8].copy_from_slice(&((length - HEAD) as u16).to_le_bytes());
                bytes[12..HEAD].fill(0);
                let told = sum(&bytes);
                bytes[SUM].copy_from_slice(&told.to_le_bytes());
                let batch = Batch::decode(&bytes).expect("head and sum are right");
                prop_assert!(batch.operations().count() <= usize::from(count) + 1);
                prop_assert!(batch.replies().count() <= usize::from(count) + 1);
            }
            let _ = Batch::decode(&bytes[bytes.len() / 2..]);
        }
    }

    #[test]
    fn replies_come_back_as_they_were() {
        let replies = [
            Reply { status: Status::Done, data: b"bytes" },
            Reply { status: Status::Frozen, data: b"" },
            Reply { status: Status::OutOfRange, data: b"" },
            Reply { status: Status::Elsewhere, data: b"" },
        ];
        let mut slot = [0; 128];
        let mut writer = Writer::new(&mut slot).unwrap();
        assert!(replies.iter().all(|reply| writer.reply(reply)));
        assert_eq!(writer.read(200), None, "there is no room for it");
        writer.read(3).unwrap().copy_from_slice(b"new");
        let replies = [&replies[..], &[Reply { status: Status::Done, data: b"new" }]].concat();
        let batch = writer.finish(1);
        let read: Vec<_> = Batch::decode(batch).unwrap().replies().collect::<Result<_, _>>().unwrap();
        assert_eq!(read, replies);
    }

    #[test]
    fn full_batches_take_nothing_more() {
        let mut slot = [0; HEAD + 2 * OPERATION];
        let mut writer = Writer::new(&mut slot).unwrap();
        let read = Operation::Read { region: 1, offset: 2, length: 3 };
        assert!(!writer.operation(&Operation::Write { region: 1, offset: 2, data: &[0; 17] }), "17 bytes do not fit");
        assert!(writer.is_empty());
        assert!(writer.operation(&read) && writer.operation(&read) && !writer.operation(&read));
        assert_eq!(writer.len(), 2);
        assert_eq!(writer.finish(3).len(), HEAD + 2 * OPERATION);
        assert_eq!(Batch::decode(&slot).unwrap().len(), 2);
        assert!(Writer::new(&mut [0; HEAD - 1]).is_none());
        let mut large = vec![0; 1 << 18];
        let mut writer = Writer::new(&mut large).unwrap();
        assert!(!writer.operation(&Operation::Write { region: 1, offset: 2, data: &[0; DATA_MAX + 1] }));
        assert!(
            !writer.operation(&Operation::Write { region: 1, offset: 2, data: &[0; DATA_MAX] }),
            "the head of it counts too"
        );
        assert!(writer.operation(&Operation::Write { region: 1, offset: 2, data: &[0; DATA_MAX - OPERATION] }));
        assert!(!writer.operation(&read));
    }

    #[test]
    fn a_sum_of_another_batch_is_wrong() {
        let mut slot = [0; 64];
        let length = filled(&mut slot, &[Made::Write(1, 2, vec![7; 8])], 9);
        for (at, bit) in (0..length * 8).map(|bit| (bit / 8, 1_u8 << (bit % 8))) {
            let mut broken = slot;
            broken[at] ^= bit;
            assert!(Batch::decode(&broken[..length]).is_err(), "byte {at}, bit {bit:#x}");
        }
    }
}
