//! Batches of reads and writes of regions, which this server's CPU carries out.
//!
//! A region's memory outlives the batch, although it may end meanwhile: the batch keeps its file.

use mrrc::volatile_copy;
use rdmakv_proto::far::batch::{Batch, DATA_MAX, HEAD, Operation, REPLY, Reply, Status, Writer};
use rdmakv_proto::far::messages::Refusal;
use rdmakv_proto::messages::Malformed;

use super::arena::Part;
use super::offers::Refused;

/// The reason why a batch or a procedure is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric) enum NotDone {
    /// It makes no sense.
    Malformed(Malformed),
    /// The server does not do it for this client.
    Refused(Refused),
}

impl From<Malformed> for NotDone {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<Refused> for NotDone {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Refusal> for NotDone {
    fn from(why: Refusal) -> Self {
        Refused::from(why).into()
    }
}

/// The operations of a batch.
#[derive(Debug)]
pub(super) struct Operations<'a> {
    sequence: u32,
    list: Vec<Operation<'a>>,
    /// Bytes of their replies at most.
    replies: usize,
}

impl<'a> Operations<'a> {
    /// Reads a batch where it lies.
    ///
    /// # Errors
    ///
    /// It makes no sense, or its replies would be too long.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let batch = Batch::decode(bytes)?;
        let list: Vec<Operation<'_>> = batch.operations().collect::<Result<_, _>>()?;
        let replies = list.iter().map(reply_length).sum();
        if replies > DATA_MAX {
            return Err(Malformed("a batch whose replies are too long"));
        }
        Ok(Self { sequence: batch.sequence(), list, replies })
    }

    /// Returns their regions, each with whether it is written.
    pub(super) fn accesses(&self) -> Vec<(u32, bool)> {
        let access = |operation: &Operation<'_>| match *operation {
            Operation::Read { region, .. } => (region, false),
            Operation::Write { region, .. } => (region, true),
        };
        self.list.iter().map(access).collect()
    }

    /// Returns the writes: the region of each, the first byte and the length.
    pub(super) fn writes(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        self.list.iter().filter_map(|operation| match *operation {
            Operation::Write { region, offset, data } => Some((region, offset, data.len() as u64)),
            Operation::Read { .. } => None,
        })
    }

    /// Returns how many read, and how many write.
    pub(super) fn counts(&self) -> (u64, u64) {
        let writes = self.writes().count();
        ((self.list.len() - writes) as u64, writes as u64)
    }

    /// Returns room for the batch of replies.
    pub(super) fn room(&self) -> Vec<u8> {
        vec![0; HEAD + self.replies]
    }

    /// Carries them out, and puts the batch of replies into its room. `parts` has the region of each, or why it has none.
    ///
    /// # Errors
    ///
    /// The room is too short.
    pub(super) fn carry_out(&self, parts: &[Result<Part, Status>], replies: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut writer = Writer::new(replies).ok_or(Refusal::Unable)?;
        self.list.iter().zip(parts).for_each(|(operation, part)| carry_out(operation, part, &mut writer));
        let written = writer.finish(self.sequence).len();
        replies.truncate(written);
        Ok(())
    }
}

/// Returns the bytes of a reply at most.
fn reply_length(operation: &Operation<'_>) -> usize {
    match *operation {
        Operation::Read { length, .. } => REPLY + usize::from(length),
        Operation::Write { .. } => REPLY,
    }
}

/// Carries an operation out, and writes its reply. The replies have room for it.
#[expect(unsafe_code, reason = "the owner accesses the region at the same time")]
fn carry_out(operation: &Operation<'_>, part: &Result<Part, Status>, replies: &mut Writer<'_>) {
    let (offset, length) = match *operation {
        Operation::Read { offset, length, .. } => (offset, usize::from(length)),
        Operation::Write { offset, data, .. } => (offset, data.len()),
    };
    let place = part.as_ref().map_err(|&status| status).and_then(|part| part.at(offset, length));
    let status = match (place, operation) {
        (Ok(place), Operation::Read { .. }) => {
            if let Some(data) = replies.read(length) {
                // SAFETY: `volatile_copy` requires that both ranges are accessible and that no reference to the region is used. `at` found
                // that it has so many bytes there, and this process makes no reference to a region's bytes. `data` is as long.
                unsafe { volatile_copy(place, data.as_mut_ptr(), length) };
            }
            return;
        }
        (Ok(place), Operation::Write { data, .. }) => {
            // SAFETY: `volatile_copy` requires that both ranges are accessible and that no reference to the region is used. `at` found that
            // it has so many bytes there, and this process makes no reference to a region's bytes.
            unsafe { volatile_copy(data.as_ptr(), place, length) };
            Status::Done
        }
        (Err(status), _) => status,
    };
    let is_written = replies.reply(&Reply { status, data: &[] });
    debug_assert!(is_written, "the replies' length was computed");
}
