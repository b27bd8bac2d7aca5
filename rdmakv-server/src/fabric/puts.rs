//! Long values on their way in: the server reads them out of the client's memory, into a chunk that is not visible yet. So
//! the stores' memory is never left for clients to write.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use frrwp::engine::{Engine, OpenError};
use frrwp::fabric::Endpoint;
use frrwp::wire::Segment;
use rdmakv_proto::messages::RemoteSegment;

use super::budget::Room;
use rdmakv_proto::messages::{Malformed, Refusal, Segments};

/// How long a value may take beyond the time that its bytes take at [`SLOWEST`].
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes a second.
const SLOWEST: u64 = 10_000_000;
/// Reads that are under way at a time.
const AT_ONCE: usize = 16;

/// Returns the line of a PUT without its end, and the first bytes of its data, if they follow.
pub(super) fn line_of(text: &[u8]) -> (&[u8], &[u8]) {
    let (line, first) = match memchr::memchr(b'\n', text) {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, &[][..]),
    };
    (line.strip_suffix(b"\r").unwrap_or(line), first)
}

/// Returns the bytes of all segments.
pub(super) fn length_of(segments: Segments<'_>) -> Result<u64, Malformed> {
    let length = segments.iter().try_fold(0_u64, |sum, segment| sum.checked_add(segment.length));
    length.ok_or(Malformed("segments longer than memory is"))
}

/// A value that is being read.
#[derive(Debug)]
pub(super) struct Put {
    id: u32,
    /// The key for which the client wishes a tag.
    wish: Option<Vec<u8>>,
    segments: VecDeque<RemoteSegment>,
    /// The destination of the value, and how much of it was asked for.
    memory: *mut u8,
    length: usize,
    at: usize,
    under_way: usize,
    failed: Option<(Refusal, &'static str)>,
    until: Instant,
    _room: Room,
}

/// A value that no read is under way for any more.
#[derive(Debug)]
pub(super) struct Pulled {
    pub(super) id: u32,
    /// The key for which the client wishes a tag.
    pub(super) wish: Option<Vec<u8>>,
    /// Its bytes, or why it could not be read.
    pub(super) result: Result<usize, (Refusal, &'static str)>,
}

impl Put {
    /// Returns a value to be read from these segments into this memory, both of the same length.
    pub(super) fn new(
        id: u32,
        wish: Option<&[u8]>,
        segments: Segments<'_>,
        (memory, length): (*mut u8, usize),
        room: Room,
    ) -> Self {
        Self {
            id,
            wish: wish.map(<[u8]>::to_vec),
            segments: segments.iter().collect(),
            memory,
            length,
            at: 0,
            under_way: 0,
            failed: None,
            until: Instant::now() + TIMEOUT + Duration::from_secs(length as u64 / SLOWEST),
            _room: room,
        }
    }
}

/// The value that a client is giving, one at a time.
#[derive(Debug, Default)]
pub(super) struct Puts(Option<Put>);

impl Puts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns whether the value takes longer than it may.
    pub(super) fn is_late(&self) -> bool {
        self.0.as_ref().is_some_and(|put| Instant::now() > put.until)
    }

    /// Begins to read a value.
    pub(super) fn begin(&mut self, put: Put) {
        self.0 = Some(put);
    }

    /// Posts reads of the value; returns it when none is under way any more.
    #[expect(unsafe_code, reason = "the chunk is lent to the fabric by its address")]
    pub(super) fn pull<E: Endpoint>(&mut self, engine: &mut Engine<'_, E>) -> Option<Pulled> {
        let put = self.0.as_mut()?;
        while put.failed.is_none()
            && put.under_way < AT_ONCE
            && let Some(&RemoteSegment { address, length, key }) = put.segments.front()
        {
            let segment = Segment { address, length, key };
            // SAFETY: `read_remote` requires writable memory without another user until the read has ended or the engine is gone.
            // The chunk is the session's until then, as the session is dropped after the engine, and an unpublished chunk has no
            // other user. The segments together are as long as it is.
            let begun = unsafe { engine.read_remote(put.memory.wrapping_add(put.at), put.length - put.at, segment) };
            match begun {
                Ok(_) => {
                    put.segments.pop_front();
                    put.at += length as usize;
                    put.under_way += 1;
                }
                Err(OpenError::Busy { .. }) => return None,
                Err(OpenError::Registration(_)) => {
                    put.failed = Some((Refusal::Busy, "the memory for it could not be registered; ask again"));
                }
                Err(_) => put.failed = Some((Refusal::Unreadable, "the connection is gone")),
            }
        }
        if put.under_way > 0 {
            return None;
        }
        let Put { id, wish, length, failed, .. } = self.0.take()?;
        Some(Pulled { id, wish, result: failed.map_or(Ok(length), Err) })
    }

    /// Counts a read that has ended.
    pub(super) fn end_read(&mut self, succeeded: bool) {
        if let Some(put) = &mut self.0 {
            put.under_way = put.under_way.saturating_sub(1);
            if !succeeded {
                put.failed.get_or_insert((Refusal::Unreadable, "the client's memory could not be read"));
            }
        }
    }
}
