//! The writer: records that leave RAM go to a buffer, full buffers to the open segment.
//!
//! A batch is what one write carries. It starts and ends at multiples of 4 KiB, its records at multiples of a unit. A full segment
//! ends with its directory, a batch of its own. There are a few buffers; when none is free, nothing is taken.

use std::sync::Arc;

use crate::layout::BLOCK;
use crate::record::{self, Entry};

const ALIGN: usize = BLOCK as usize;

/// Memory for a batch, aligned as direct I/O needs it.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    begin: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGN].into_boxed_slice();
        let begin = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { bytes, begin }
    }
    /// Returns its bytes, of which a write carries the first ones.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..]
    }
}

#[derive(Debug)]
struct Open {
    segment: u32,
    sequence: u64,
    /// The begin of the next batch.
    next: usize,
    directory: Vec<u8>,
}

#[derive(Debug)]
struct Filling {
    buffer: Buffer,
    begin: usize,
    len: usize,
}

/// A batch on its way to the device.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) ticket: u64,
    pub(crate) segment: u32,
    pub(crate) begin: u32,
    pub(crate) len: u32,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) is_directory: bool,
    issued: bool,
}

/// A segment that takes no more records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Full {
    pub(crate) segment: u32,
    pub(crate) records: u32,
}

/// The lack that keeps a record out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Segment,
    Buffer,
}

#[derive(Debug)]
pub(crate) struct Writer {
    unit: usize,
    segment_bytes: usize,
    batch: usize,
    most: usize,
    made: usize,
    /// Buffers in no use, some of which the device's driver may still name.
    idle: Vec<Arc<Buffer>>,
    open: Option<Open>,
    filling: Option<Filling>,
    sealing: Option<Open>,
    in_flight: Vec<Batch>,
    full: Vec<Full>,
    next_ticket: u64,
}

impl Writer {
    pub(crate) fn new(unit: u32, segment: u32, batch: u32, buffers: usize) -> Self {
        Self {
            unit: unit as usize,
            segment_bytes: segment as usize,
            batch: (batch as usize).next_multiple_of(ALIGN).min(segment as usize / 4),
            most: buffers.max(2),
            made: 0,
            idle: Vec::new(),
            open: None,
            filling: None,
            sealing: None,
            in_flight: Vec::new(),
            full: Vec::new(),
            next_ticket: 0,
        }
    }

    /// Returns the bytes of a record at most.
    pub(crate) fn record_max(&self) -> usize {
        self.batch
    }
    /// Returns the bytes of all buffers and of the directory that is being made.
    pub(crate) fn bytes(&self) -> usize {
        let directories = [&self.open, &self.sealing].into_iter().flatten().map(|open| open.directory.capacity());
        self.made * (self.batch + ALIGN) + directories.sum::<usize>()
    }
    /// Returns the bytes of all buffers that may be made.
    pub(crate) fn most_bytes(&self) -> usize {
        self.most * (self.batch + ALIGN)
    }
    /// Returns whether a batch waits to be written.
    pub(crate) fn is_due(&self) -> bool {
        self.in_flight.iter().any(|batch| !batch.issued)
    }
    pub(crate) fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }
    pub(crate) fn segment(&self) -> Option<(u32, u64)> {
        self.open.as_ref().map(|open| (open.segment, open.sequence))
    }
    /// Returns the writes of a segment that have not ended, its buffer that is being filled among them.
    pub(crate) fn is_busy(&self, segment: u32) -> bool {
        self.in_flight.iter().any(|batch| batch.segment == segment)
            || [&self.open, &self.sealing].into_iter().flatten().any(|open| open.segment == segment)
    }
    /// Returns whether all is written.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.open.is_none() && self.sealing.is_none()
    }

    fn take_buffer(&mut self) -> Option<Buffer> {
        for at in 0..self.idle.len() {
            match Arc::try_unwrap(self.idle.swap_remove(at)) {
                Ok(buffer) => return Some(buffer),
                Err(shared) => {
                    self.idle.push(shared);
                    let last = self.idle.len() - 1;
                    self.idle.swap(at, last);
                }
            }
        }
        (self.made < self.most).then(|| {
            self.made += 1;
            Buffer::new(self.batch)
        })
    }

    /// Returns whether a record of this length finds a buffer.
    pub(crate) fn has_buffer(&self, len: u32) -> bool {
        let fits = |filling: &Filling| filling.len + len as usize <= self.batch;
        let is_free = |buffer: &Arc<Buffer>| Arc::strong_count(buffer) == 1;
        self.sealing.is_none()
            && (self.filling.as_ref().is_some_and(fits) || self.made < self.most || self.idle.iter().any(is_free))
    }

    /// Opens a segment: the next records go there.
    pub(crate) fn open(&mut self, segment: u32, sequence: u64) {
        debug_assert!(self.open.is_none());
        self.open = Some(Open { segment, sequence, next: 0, directory: Vec::new() });
    }

    /// Adds a record to the open segment; returns how far into it, in bytes.
    pub(crate) fn append(&mut self, entry: &Entry<'_>, hash: u64) -> Result<u32, Missing> {
        let len = record::len(entry);
        let padded = len.next_multiple_of(self.unit);
        if self.sealing.is_some() && !self.write_directory() {
            return Err(Missing::Buffer);
        }
        if self.filling.as_ref().is_some_and(|filling| filling.len + padded > self.batch) {
            self.close_batch();
        }
        let open = self.open.as_ref().ok_or(Missing::Segment)?;
        let at = self.filling.as_ref().map_or(open.next, |filling| filling.begin + filling.len);
        let directory = record::directory_len(open.directory.len() / record::SLOT + 1);
        if (at + padded).next_multiple_of(ALIGN) + directory > self.segment_bytes || directory > self.batch {
            self.seal();
            return Err(if self.sealing.is_some() { Missing::Buffer } else { Missing::Segment });
        }
        if self.filling.is_none() {
            let buffer = self.take_buffer().ok_or(Missing::Buffer)?;
            self.filling = Some(Filling { buffer, begin: at, len: 0 });
        }
        let (Some(filling), Some(open)) = (&mut self.filling, &mut self.open) else { return Err(Missing::Segment) };
        let out = &mut filling.buffer.bytes_mut()[filling.len..filling.len + padded];
        record::write(out, entry, hash, open.sequence);
        out[len..].fill(0);
        filling.len += padded;
        open.directory.extend_from_slice(&hash.to_le_bytes());
        open.directory.extend_from_slice(&((at / self.unit) as u32).to_le_bytes());
        Ok(at as u32)
    }

    /// Ends the batch that is being filled: it is to be written.
    pub(crate) fn close_batch(&mut self) {
        let (Some(mut filling), Some(open)) = (self.filling.take(), &mut self.open) else { return };
        let len = filling.len.next_multiple_of(ALIGN);
        filling.buffer.bytes_mut()[filling.len..len].fill(0);
        open.next = filling.begin + len;
        let segment = open.segment;
        self.push(segment, filling.begin, len, filling.buffer, false);
    }
    fn push(&mut self, segment: u32, begin: usize, len: usize, buffer: Buffer, is_directory: bool) {
        let (ticket, buffer) = (self.ticket(), Arc::new(buffer));
        let (begin, len) = (begin as u32, len as u32);
        self.in_flight.push(Batch { ticket, segment, begin, len, buffer, is_directory, issued: false });
    }

    /// Ends the open segment; its directory is written as soon as a buffer is free.
    pub(crate) fn seal(&mut self) {
        if self.sealing.is_some() {
            return;
        }
        self.close_batch();
        self.sealing = self.open.take();
        self.write_directory();
    }
    /// Queues the directory of the segment that is being sealed; returns whether none is left.
    pub(crate) fn write_directory(&mut self) -> bool {
        let Some(open) = self.sealing.take() else { return true };
        let Some(mut buffer) = self.take_buffer() else {
            self.sealing = Some(open);
            return false;
        };
        let len = record::directory_len(open.directory.len() / record::SLOT);
        record::write_directory(&mut buffer.bytes_mut()[..len], &open.directory, open.sequence);
        self.push(open.segment, self.segment_bytes - len, len, buffer, true);
        self.full.push(Full { segment: open.segment, records: (open.directory.len() / record::SLOT) as u32 });
        true
    }
    /// Gives the open segment up, with what of it is not on its way yet.
    pub(crate) fn abandon(&mut self) {
        if let Some(filling) = self.filling.take() {
            self.idle.push(Arc::new(filling.buffer));
        }
        (self.open, self.sealing) = (None, None);
        self.full.clear();
    }
    pub(crate) fn next_full(&mut self) -> Option<Full> {
        self.full.pop()
    }

    /// Returns the next batch to write.
    pub(crate) fn next_write(&mut self) -> Option<Batch> {
        let batch = self.in_flight.iter_mut().find(|batch| !batch.issued)?;
        batch.issued = true;
        Some(batch.clone())
    }
    /// Takes the end of a write; returns its batch.
    pub(crate) fn written(&mut self, ticket: u64) -> Option<Batch> {
        let at = self.in_flight.iter().position(|batch| batch.ticket == ticket && batch.issued)?;
        Some(self.in_flight.swap_remove(at))
    }
    /// Takes a batch's buffer back.
    pub(crate) fn recycle(&mut self, batch: Batch) {
        self.idle.push(batch.buffer);
    }
    /// Returns the bytes from there on, if a buffer has them.
    pub(crate) fn bytes_at(&self, segment: u32, offset: u32) -> Option<&[u8]> {
        let at = offset as usize;
        if let (Some(filling), Some(open)) = (&self.filling, &self.open)
            && open.segment == segment
            && (filling.begin..filling.begin + filling.len).contains(&at)
        {
            return Some(&filling.buffer.bytes()[at - filling.begin..filling.len]);
        }
        let batch = self.in_flight.iter().find(|batch| {
            batch.segment == segment && !batch.is_directory && (batch.begin..batch.begin + batch.len).contains(&offset)
        })?;
        Some(&batch.buffer.bytes()[(offset - batch.begin) as usize..batch.len as usize])
    }
}
