//! Long values on their way in: the server reads them out of the client's memory, into a chunk that is not visible yet. So
//! the stores' memory is never left for clients to write.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use frrwp::engine::OpenError;
use frrwp::wire::Segment;
use rdmakv_proto::messages::RemoteSegment;

use super::budget::Room;
use super::connection::Connection;
use super::providers::Fabric;
use crate::metrics::{add, count};
use crate::session::Pause;
use rdmakv_proto::messages::{Malformed, Refusal, Segments};

/// How long a value may take beside the time that its bytes take at [`SLOWEST`].
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes a second.
const SLOWEST: u64 = 10_000_000;
/// Reads that are under way at a time.
const AT_ONCE: usize = 16;

/// A value that is being read.
#[derive(Debug)]
pub(super) struct Put {
    id: u32,
    /// For which key the client wishes for a tag.
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

impl Put {
    pub(super) fn is_late(&self) -> bool {
        Instant::now() > self.until
    }
}

impl<F: Fabric> Connection<'_, F> {
    /// A PUT: its line makes room for the value.
    pub(super) fn put(
        &mut self,
        id: u32,
        wish: Option<&[u8]>,
        line: &[u8],
        segments: Segments<'_>,
    ) -> Result<(), Malformed> {
        if !self.may_ask(id) {
            return Ok(());
        }
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.contains(&b'\n') {
            return Err(Malformed("PUT takes one line"));
        }
        let segments: VecDeque<RemoteSegment> = segments.iter().collect();
        let length = segments.iter().try_fold(0_u64, |sum, segment| sum.checked_add(segment.length));
        let length = length.ok_or(Malformed("segments longer than memory is"))?;
        let Some(room) = self.state.under_way.take(length) else {
            self.refuse(id, Refusal::Busy, "too many large values are on their way; ask again");
            return Ok(());
        };
        let (session, out, mut cx) = self.own.context();
        let (_, pause) = session.advance(&[line, b"\r\n"].concat(), &mut 1, &mut cx, out);
        let announced = session.announced().map(|memory| (memory.as_mut_ptr(), memory.len()));
        let Some((memory, announced)) = announced else {
            // The answer to a line without room for its data, if it wants one; or to a command that takes no data at all.
            let refused = pause == Pause::Input && !session.is_quiet();
            session.give_up(&cx.shared.shards);
            if refused {
                self.own.saying.ran(id, None);
                return Ok(());
            }
            out.clear(&cx.shared.shards);
            return Err(Malformed("PUT takes a command that stores a value"));
        };
        if announced as u64 != length {
            session.give_up(&cx.shared.shards);
            return Err(Malformed("the segments have another length than the line says"));
        }
        self.own.put = Some(Put {
            id,
            wish: wish.map(<[u8]>::to_vec),
            segments,
            memory,
            length: announced,
            at: 0,
            under_way: 0,
            failed: None,
            until: Instant::now() + PATIENCE + Duration::from_secs(length / SLOWEST),
            _room: room,
        });
        Ok(())
    }

    /// Reads on; says whether that has come to its end.
    #[expect(unsafe_code, reason = "the chunk is lent to the fabric by its address")]
    pub(super) fn pull(&mut self) -> bool {
        let Some(put) = &mut self.own.put else { return true };
        while put.failed.is_none()
            && put.under_way < AT_ONCE
            && let Some(&RemoteSegment { address, length, key }) = put.segments.front()
        {
            let segment = Segment { address, length, key };
            // SAFETY: the chunk is the session's until the last read has ended or the engine is gone: `Own` is dropped after
            // it. An unpublished chunk has no other user. The segments together are as long as it is.
            let begun =
                unsafe { self.engine.read_remote(put.memory.wrapping_add(put.at), put.length - put.at, segment) };
            match begun {
                Ok(_) => {
                    put.segments.pop_front();
                    put.at += length as usize;
                    put.under_way += 1;
                }
                Err(OpenError::Busy { .. }) => return false,
                Err(OpenError::Registration(_)) => {
                    put.failed = Some((Refusal::Busy, "the memory for it could not be registered; ask again"));
                }
                Err(_) => put.failed = Some((Refusal::Unreadable, "the connection is gone")),
            }
        }
        if put.under_way > 0 {
            return false;
        }
        self.pulled_all();
        true
    }

    /// A read has ended.
    pub(super) fn pulled(&mut self, succeeded: bool) {
        if let Some(put) = &mut self.own.put {
            put.under_way = put.under_way.saturating_sub(1);
            if !succeeded {
                put.failed.get_or_insert((Refusal::Unreadable, "the client's memory could not be read"));
            }
        }
    }

    /// Nothing is under way any more: the value is stored, or given up.
    fn pulled_all(&mut self) {
        let Some(Put { id, wish, length, failed, .. }) = self.own.put.take() else { return };
        let (session, out, mut cx) = self.own.context();
        if let Some((why, text)) = failed {
            session.give_up(&cx.shared.shards);
            count(&self.state.counts.failed_pulls);
            return self.refuse(id, why, text);
        }
        session.add_direct(length);
        session.advance(b"\r\n", &mut 1, &mut cx, out);
        cx.counts.bytes_read += length as u64;
        count(&self.state.counts.sets_pulled);
        add(&self.state.counts.pulled_bytes, length as u64);
        let tag = wish.and_then(|key| self.grant(&key));
        self.own.saying.ran(id, tag);
    }
}
