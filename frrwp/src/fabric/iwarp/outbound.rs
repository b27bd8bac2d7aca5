//! The sending side: from posts and the peer's read requests to frames.
//!
//! No input or output: [`Outbound::fill`] cuts what waits into frames. [`Outbound::show`] returns the bytes to be sent
//! next, in registered memory if they lie there. [`Outbound::sent`] takes how many were sent. A message's segments follow
//! each other and are not mixed with others' (RFC 5041, section 5.3). Where both sides' messages wait, answers to reads and
//! posts take turns.
//!
//! Short frames are written one behind the other into a buffer, the *stream*. So many of them are one piece for the system,
//! which takes longer for three pieces than for some hundred bytes. The payload of a longer one is sent from where it lies.
//!
//! Without CRCs every longer payload is sent from where it lies. With them the payload of an answer is copied first,
//! because its memory may change while it is sent. A reader expects to find out by its own means, not to lose the
//! connection. Bytes read by a bound tag are copied as a whole when their first frame is cut.

#![expect(unsafe_code, reason = "reads registered memory by address")]

use super::binding::{Binding, Entered};
use super::crc;
use super::ddp::{Header, Operation, Place, ReadRequest};
use super::inbound::Reading;
use super::memory::Buffer;
use super::mpa::padding;
use super::socket::Piece;
use super::tags::Pin;
use super::terminate::Terminate;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Pieces of local memory that a write takes.
pub(super) const GATHER: usize = 8;
/// The most payload of a frame.
const SEGMENT: usize = 65_472;
/// The most payload of an answer's frame that is copied.
const COPIED: usize = 8_192;
/// The longest payload of a frame that goes into the stream.
const STREAMED: usize = 2048;
/// Bytes of the stream at most, but for the last frame.
const STREAM: usize = 40 * 1024;
/// Bytes of the stream that each connection keeps. A longer one is the thread's, and goes back when its frames have left.
const KEPT: usize = 4096;
/// Bytes of a stream that a thread lends.
const LENT: usize = STREAM + STREAMED + 64;
/// Frames that are cut at a time, and bytes of them. A write of 1 MiB goes in one call, and so do answers to 32 small
/// reads.
const FRAMES: usize = 32;
const BYTES: usize = 1024 * 1024;
/// Pieces of them, as a rule: two of each, and the payload.
pub(super) const SHOWN: usize = 64;
/// Buffers that are kept for the next message or answer, if they are not too large.
const POOL: usize = 4;

thread_local! {
    /// A long stream that no connection needs just now.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

type Pieces = SmallVec<[Piece; GATHER]>;

/// Something that was posted.
#[derive(Debug)]
pub(super) enum Post {
    /// A message.
    Send { bytes: Vec<u8>, invalidate: Option<u32> },
    /// A write: what is left of it.
    Write { sequence: u64, pieces: Pieces, tag: u32, at: u64 },
    /// A wish to read, and what is to come of it.
    Read(ReadRequest, Reading),
}

/// An answer to a read: what is left of it.
#[derive(Clone, Copy, Debug)]
struct Answer {
    request: ReadRequest,
    sent: u32,
    /// Its tag is bound.
    bound: bool,
    /// The binding when the answer began.
    resolved: usize,
}

enum Body {
    Nothing,
    Memory(Pieces),
    Tag {
        tag: u32,
        at: u64,
    },
    /// A bound tag's bytes: as long as it is bound to this address, else zeros.
    Bound {
        tag: u32,
        at: u64,
        address: usize,
    },
    Bytes(Vec<u8>),
    /// Part of them, from there on.
    Part(Arc<Vec<u8>>, usize),
    /// The whole frame, in the stream from there on.
    Stream(usize),
}

/// Keeps memory where it is during a call that sends it.
pub(super) type Kept = (Pin, Option<Entered>);

/// The bytes sent in the place of bytes that may not be read any more.
static ZEROS: [u8; SEGMENT] = [0; SEGMENT];

/// The step after a frame was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ends {
    /// Nothing.
    Nothing,
    /// A write.
    Write {
        /// Its name.
        sequence: u64,
    },
    /// An answer.
    Answer,
    /// The connection: these were the last words.
    Connection,
}

struct Frame {
    head: SmallVec<[u8; 64]>,
    body: Body,
    length: usize,
    tail: [u8; 7],
    ends_at: usize,
    ends: Ends,
}

impl Frame {
    fn total(&self) -> usize {
        self.head.len() + self.length + self.ends_at
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Posts,
    Answers,
}

/// Lets at memory of tags.
pub(super) trait Sources {
    /// Keeps the memory there.
    fn pin(&self, tag: u32, at: u64, length: u64) -> Result<Pin, Terminate>;
}

/// The sending half of a connection.
pub(super) struct Outbound {
    checksums: bool,
    /// Whether this side may speak: the accepting one waits for the other's first frame (RFC 5044, section 7.1.1).
    pub(super) may_speak: bool,
    posts: VecDeque<Post>,
    answers: VecDeque<Answer>,
    /// The first answer as a whole, where it has left in part and was copied so.
    copied: Option<Arc<Vec<u8>>>,
    frames: VecDeque<Frame>,
    /// Short frames. It is begun anew when the last of them was sent.
    stream: Vec<u8>,
    /// Whether the last stream was a long one.
    was_long: bool,
    /// Bytes of the first frame that were sent.
    begun: usize,
    turn: Turn,
    /// Whether the front of that turn's queue has left in part.
    within: bool,
    sends: u32,
    requests: u32,
    /// Reads that were cut, until the receiving half is told.
    pub(super) asked: SmallVec<[Reading; 4]>,
    /// Reads that may still be sent, and answers that may still be asked for.
    reads: u16,
    room: u16,
    /// Reads of the peer that were taken.
    pub(super) taken: u64,
    last_words: Option<Vec<u8>>,
    pool: Vec<Vec<u8>>,
}

impl Outbound {
    /// With so many reads of this side's and of the peer's at a time.
    pub(super) fn new(checksums: bool, may_speak: bool, reads: u16, answers: u16) -> Self {
        Self {
            checksums,
            may_speak,
            posts: VecDeque::new(),
            answers: VecDeque::new(),
            copied: None,
            frames: VecDeque::new(),
            stream: Vec::new(),
            was_long: false,
            begun: 0,
            turn: Turn::Posts,
            within: false,
            sends: 1,
            requests: 1,
            asked: SmallVec::new(),
            reads,
            room: answers,
            taken: 0,
            last_words: None,
            pool: Vec::new(),
        }
    }

    /// Posts that wait.
    pub(super) fn waiting(&self) -> usize {
        self.posts.len()
    }

    pub(super) fn post(&mut self, post: Post) {
        self.posts.push_back(post);
    }

    /// A buffer for a message.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.pool.pop().unwrap_or_default()
    }

    /// A buffer that is not needed any more.
    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.pool.len() < POOL && buffer.capacity() <= 2 * COPIED {
            buffer.clear();
            self.pool.push(buffer);
        }
    }

    /// The peer wants to read, by a tag that is bound if its pin is given. False if it has asked for more at a time than was
    /// agreed.
    pub(super) fn answer(&mut self, request: ReadRequest, bound: Option<&Pin>) -> bool {
        let Some(room) = self.room.checked_sub(1) else { return false };
        self.room = room;
        self.taken += 1;
        // The pin saves a second look at the tag.
        if let Some(pin) = bound
            && self.may_answer_now()
            && let Some(frame) = self.cut_whole(request, pin)
        {
            self.turn = Turn::Answers;
            self.frames.push_back(frame);
        } else {
            self.answers.push_back(Answer { request, sent: 0, bound: bound.is_some(), resolved: 0 });
        }
        true
    }

    /// Returns whether an answer would be the next frame, and there is room for it.
    fn may_answer_now(&mut self) -> bool {
        if self.frames.is_empty() {
            self.stream.clear();
        }
        let is_next = self.may_speak && self.answers.is_empty() && self.posts.is_empty() && self.last_words.is_none();
        is_next && self.frames.len() < FRAMES && self.stream.len() < STREAM
    }

    /// A read of this side's has ended.
    pub(super) fn read_ended(&mut self) {
        self.reads += 1;
    }

    /// Nothing but these words is sent after what has begun.
    pub(super) fn terminate(&mut self, words: Vec<u8>) {
        self.posts.clear();
        self.answers.clear();
        self.copied = None;
        // Answers that were not begun are not sent.
        self.frames.truncate(usize::from(self.begun > 0));
        // A frame that was begun is finished from a copy: its memory goes back to its poster.
        for frame in &mut self.frames {
            if let Body::Memory(pieces) = &frame.body {
                let mut bytes = Vec::with_capacity(frame.length);
                for piece in pieces {
                    // SAFETY: the write is not done yet, so that its memory may still be read, as its poster promised.
                    bytes.extend_from_slice(unsafe { piece.bytes() });
                }
                frame.body = Body::Bytes(bytes);
                frame.ends = Ends::Nothing;
            }
        }
        self.may_speak = true;
        self.within = false;
        self.last_words = Some(words);
    }

    /// Forgets all that was to be sent.
    pub(super) fn clear(&mut self) {
        self.posts.clear();
        self.answers.clear();
        self.copied = None;
        self.frames.clear();
        self.stream = Vec::new();
        self.last_words = None;
        self.begun = 0;
    }

    fn next_turn(&self) -> Option<Turn> {
        if self.within {
            return Some(self.turn);
        }
        let posts = match self.posts.front() {
            None => false,
            Some(Post::Read(..)) => self.reads > 0,
            Some(_) => true,
        };
        match (posts, !self.answers.is_empty()) {
            (true, true) => Some(if self.turn == Turn::Posts { Turn::Answers } else { Turn::Posts }),
            (true, false) => Some(Turn::Posts),
            (false, true) => Some(Turn::Answers),
            (false, false) => None,
        }
    }

    /// Cuts what waits into frames. The error is a tag that this side took back while a peer was reading it.
    pub(super) fn fill(&mut self, sources: &impl Sources) -> Result<(), Terminate> {
        if !self.may_speak {
            return Ok(());
        }
        if !self.frames.iter().any(|frame| matches!(frame.body, Body::Stream(_))) {
            self.stream.clear();
        }
        let mut bytes: usize = self.frames.iter().map(Frame::total).sum();
        // Where the stream is full, what follows waits until its frames have left, and it is begun anew.
        while self.frames.len() < FRAMES && bytes < BYTES && self.stream.len() < STREAM {
            let frame = if let Some(words) = self.last_words.take() {
                let place = Place::Untagged { invalidate: 0, queue: 2, number: 1, offset: 0 };
                let header = Header { operation: Operation::Terminate, last: true, place };
                self.frame(header, words.len(), Body::Bytes(words), Ends::Connection)
            } else {
                let Some(turn) = self.next_turn() else { break };
                self.turn = turn;
                let frame = if turn == Turn::Posts { self.cut_post() } else { self.cut_answer(sources)? };
                let Some(frame) = frame else { break };
                frame
            };
            bytes += frame.total();
            self.frames.push_back(frame);
        }
        Ok(())
    }

    fn cut_post(&mut self) -> Option<Frame> {
        self.within = false;
        let untagged = |operation: Operation, invalidate, number| Header {
            operation,
            last: true,
            place: Place::Untagged { invalidate, queue: operation.queue(), number, offset: 0 },
        };
        match self.posts.front_mut()? {
            Post::Write { sequence, pieces, tag, at } => {
                let mut body = Pieces::new();
                let mut length = 0;
                while let Some(piece) = pieces.first_mut() {
                    let now = piece.length.min(SEGMENT - length);
                    body.push(Piece { address: piece.address, length: now });
                    length += now;
                    if now == piece.length {
                        pieces.remove(0);
                    } else {
                        piece.address = piece.address.wrapping_add(now);
                        piece.length -= now;
                        break;
                    }
                }
                let last = pieces.is_empty();
                let place = Place::Tagged { tag: *tag, offset: *at };
                let ends = if last { Ends::Write { sequence: *sequence } } else { Ends::Nothing };
                *at = at.wrapping_add(length as u64);
                self.within = !last;
                if last {
                    self.posts.pop_front();
                }
                let header = Header { operation: Operation::Write, last, place };
                Some(self.frame(header, length, Body::Memory(body), ends))
            }
            Post::Send { bytes, invalidate } => {
                let (bytes, invalidate) = (std::mem::take(bytes), *invalidate);
                self.posts.pop_front();
                let operation = if invalidate.is_some() { Operation::SendInvalidate } else { Operation::Send };
                let header = untagged(operation, invalidate.unwrap_or(0), self.sends);
                self.sends = self.sends.wrapping_add(1);
                Some(self.frame(header, bytes.len(), Body::Bytes(bytes), Ends::Nothing))
            }
            Post::Read(request, reading) => {
                self.asked.push(*reading);
                let mut bytes = self.pool.pop().unwrap_or_default();
                bytes.extend_from_slice(&request.encode());
                self.posts.pop_front();
                self.reads -= 1;
                let header = untagged(Operation::ReadRequest, 0, self.requests);
                self.requests = self.requests.wrapping_add(1);
                Some(self.frame(header, bytes.len(), Body::Bytes(bytes), Ends::Nothing))
            }
        }
    }

    fn cut_answer(&mut self, sources: &impl Sources) -> Result<Option<Frame>, Terminate> {
        self.within = false;
        let Some(&Answer { request, sent: start, bound, .. }) = self.answers.front() else { return Ok(None) };
        let mut whole = None;
        if bound && start == 0 {
            let pin = sources.pin(request.source_tag, request.source_offset, request.length.into())?;
            if let Some(frame) = self.cut_whole(request, &pin) {
                self.answers.pop_front();
                return Ok(Some(frame));
            }
            if let Some(binding) = pin.binding() {
                let entered = binding.enter();
                // Counted reads have been resolved.
                binding.count();
                if let Some(answer) = self.answers.front_mut() {
                    answer.resolved = entered.address as usize;
                }
                if self.checksums {
                    let mut bytes = self.pool.pop().unwrap_or_default();
                    let from = entered.address.wrapping_add(pin.address as usize);
                    copy(from, request.length, &mut bytes).map_err(|_| Terminate::LOCAL_CATASTROPHE)?;
                    if bytes.len() <= SEGMENT {
                        whole = Some(bytes);
                    } else {
                        self.copied = Some(Arc::new(bytes));
                    }
                }
            }
        }
        let is_copied = whole.is_some() || self.copied.is_some();
        let most = if self.checksums && !is_copied { COPIED } else { SEGMENT };
        let length = (request.length - start).min(most as u32);
        let last = start + length == request.length;
        let Some(answer) = self.answers.front_mut() else { return Ok(None) };
        answer.sent += length;
        let resolved = answer.resolved;
        if last {
            self.answers.pop_front();
        }
        self.within = !last;
        let (tag, at) = (request.source_tag, request.source_offset.wrapping_add(start.into()));
        let place = Place::Tagged { tag: request.sink_tag, offset: request.sink_offset.wrapping_add(start.into()) };
        let header = Header { operation: Operation::ReadResponse, last, place };
        let ends = if last { Ends::Answer } else { Ends::Nothing };
        let body = if length == 0 {
            Body::Nothing
        } else if let Some(bytes) = whole {
            Body::Bytes(bytes)
        } else if let Some(bytes) = &self.copied {
            let bytes = Arc::clone(bytes);
            if last {
                self.copied = None;
            }
            Body::Part(bytes, start as usize)
        } else if self.checksums {
            let pin = sources.pin(tag, at, length.into())?;
            let mut bytes = self.pool.pop().unwrap_or_default();
            // Torn where it is written meanwhile, which its readers find out by their own means.
            copy(pin.address, length, &mut bytes).map_err(|_| Terminate::LOCAL_CATASTROPHE)?;
            Body::Bytes(bytes)
        } else if bound {
            Body::Bound { tag, at, address: resolved }
        } else {
            Body::Tag { tag, at }
        };
        Ok(Some(self.frame(header, length as usize, body, ends)))
    }

    /// Cuts the answer to a read by a bound tag, if it is one frame that needs no copy for its CRC.
    fn cut_whole(&mut self, request: ReadRequest, pin: &Pin) -> Option<Frame> {
        let binding = pin.binding()?;
        let length = request.length as usize;
        if length > STREAMED && (self.checksums || length > SEGMENT) {
            return None;
        }
        let entered = binding.enter();
        // Counted reads have been resolved.
        binding.count();
        let place = Place::Tagged { tag: request.sink_tag, offset: request.sink_offset };
        let header = Header { operation: Operation::ReadResponse, last: true, place };
        if length > STREAMED {
            let (tag, at, address) = (request.source_tag, request.source_offset, entered.address as usize);
            return Some(self.frame(header, length, Body::Bound { tag, at, address }, Ends::Answer));
        }
        let from = entered.address.wrapping_add(pin.address as usize);
        Some(self.streamed(header, length, Ends::Answer, |stream| {
            // It has the room already, but this is where it is relied on.
            stream.reserve(length);
            let end = stream.len();
            // SAFETY: bound bytes stay mapped until no read is at them, whatever is done to them; there is room.
            unsafe {
                mrrc::volatile_copy(from, stream.as_mut_ptr().add(end), length);
                stream.set_len(end + length);
            }
        }))
    }

    fn frame(&mut self, header: Header, length: usize, body: Body, ends: Ends) -> Frame {
        match body {
            Body::Nothing => return self.streamed(header, 0, ends, |_| {}),
            Body::Bytes(bytes) if length <= STREAMED => {
                let frame = self.streamed(header, length, ends, |stream| stream.extend_from_slice(&bytes));
                self.give_back(bytes);
                return frame;
            }
            _ => {}
        }
        let (encoded, used) = header.encode();
        let carried = used + length;
        let mut head = SmallVec::new();
        head.extend_from_slice(&(carried as u16).to_be_bytes());
        head.extend_from_slice(&encoded[..used]);
        let zeroes = padding(carried);
        let mut tail = [0; 7];
        if self.checksums {
            let crc = crc::of(&head);
            let crc = match &body {
                Body::Nothing | Body::Tag { .. } | Body::Bound { .. } | Body::Stream(_) => crc,
                Body::Bytes(bytes) => crc::append(crc, bytes),
                Body::Part(bytes, at) => crc::append(crc, &bytes[*at..*at + length]),
                Body::Memory(pieces) => pieces.iter().fold(crc, |crc, piece| {
                    // SAFETY: the poster of the write promised that its memory may be read until it is done.
                    crc::append(crc, unsafe { piece.bytes() })
                }),
            };
            let crc = crc::append(crc, &tail[..zeroes]);
            tail[zeroes..zeroes + 4].copy_from_slice(&crc.to_le_bytes());
        }
        Frame { head, body, length, tail, ends_at: zeroes + 4, ends }
    }

    /// Sends a short frame, with the payload behind its header.
    fn streamed(&mut self, header: Header, length: usize, ends: Ends, put: impl FnOnce(&mut Vec<u8>)) -> Frame {
        let (encoded, used) = header.encode();
        let carried = used + length;
        let at = self.stream.len();
        // Two bytes of the length, up to three of padding, and the CRC.
        let room = 2 + carried + 3 + 4;
        if self.stream.capacity() - at < room {
            self.lengthen(at + room);
        }
        self.stream.extend_from_slice(&(carried as u16).to_be_bytes());
        self.stream.extend_from_slice(&encoded[..used]);
        put(&mut self.stream);
        debug_assert_eq!(self.stream.len(), at + 2 + carried);
        self.stream.resize(at + 2 + carried + padding(carried), 0);
        let crc = if self.checksums { crc::of(&self.stream[at..]) } else { 0 };
        self.stream.extend_from_slice(&crc.to_le_bytes());
        let length = self.stream.len() - at;
        Frame { head: SmallVec::new(), body: Body::Stream(at), length, tail: [0; 7], ends_at: 0, ends }
    }

    /// Makes room for so many bytes in the stream.
    #[cold]
    fn lengthen(&mut self, bytes: usize) {
        if bytes <= KEPT && !self.was_long {
            let bytes = bytes.max(2 * self.stream.capacity()).min(KEPT);
            return self.stream.reserve_exact(bytes - self.stream.len());
        }
        let mut long = SPARE.take();
        if long.capacity() < LENT {
            long = Vec::with_capacity(LENT);
        }
        long.clear();
        long.extend_from_slice(&self.stream);
        self.stream = long;
    }

    /// Gives a long stream back, of which all was sent.
    #[inline]
    fn shorten(&mut self) {
        if self.stream.capacity() > KEPT {
            self.was_long = self.stream.len() > KEPT;
            SPARE.set(std::mem::take(&mut self.stream));
        }
    }

    /// The bytes to be sent next, and what keeps them there.
    pub(super) fn show(
        &self,
        sources: &impl Sources,
        vector: &mut SmallVec<[Piece; SHOWN]>,
        pins: &mut SmallVec<[Kept; FRAMES]>,
    ) -> Result<(), Terminate> {
        let mut skip = self.begun;
        let mut show = |address: *const u8, length: usize| {
            let skipped = skip.min(length);
            skip -= skipped;
            if length == skipped {
                return;
            }
            let (address, length) = (address.wrapping_add(skipped), length - skipped);
            match vector.last_mut() {
                // Frames of the stream.
                Some(last) if last.address.wrapping_add(last.length) == address => last.length += length,
                _ => vector.push(Piece { address, length }),
            }
        };
        for frame in &self.frames {
            show(frame.head.as_ptr(), frame.head.len());
            match &frame.body {
                Body::Nothing => {}
                Body::Memory(pieces) => pieces.iter().for_each(|piece| show(piece.address, piece.length)),
                Body::Bytes(bytes) => show(bytes.as_ptr(), bytes.len()),
                Body::Part(bytes, at) => show(bytes[*at..].as_ptr(), frame.length),
                Body::Stream(at) => show(self.stream[*at..].as_ptr(), frame.length),
                Body::Tag { tag, at } => {
                    let pin = sources.pin(*tag, *at, frame.length as u64)?;
                    show(pin.address, frame.length);
                    pins.push((pin, None));
                }
                Body::Bound { tag, at, address } => {
                    // The tag may have ended, or its binding have changed, since the answer began.
                    let pin = sources.pin(*tag, *at, frame.length as u64).ok();
                    let entered = pin.as_ref().and_then(Pin::binding).map(Binding::enter);
                    match pin.zip(entered.filter(|entered| entered.address as usize == *address)) {
                        Some((pin, entered)) => {
                            show(entered.address.wrapping_add(*at as usize), frame.length);
                            pins.push((pin, Some(entered)));
                        }
                        None => show(ZEROS.as_ptr(), frame.length),
                    }
                }
            }
            show(frame.tail.as_ptr(), frame.ends_at);
        }
        Ok(())
    }

    /// So many bytes were sent; what ends by that is told.
    pub(super) fn sent(&mut self, bytes: usize, mut ended: impl FnMut(Ends)) {
        self.begun += bytes;
        while let Some(total) = self.frames.front().map(Frame::total)
            && self.begun >= total
        {
            self.begun -= total;
            let Some(frame) = self.frames.pop_front() else { break };
            if let Body::Bytes(bytes) = frame.body {
                self.give_back(bytes);
            }
            if frame.ends == Ends::Answer {
                self.room += 1;
            }
            if frame.ends != Ends::Nothing {
                ended(frame.ends);
            }
        }
        if self.frames.is_empty() {
            self.shorten();
        }
    }
}

/// Appends so many bytes from an address of this process, through the kernel, which knows whether they are mapped.
fn copy(from: *const u8, length: u32, into: &mut Vec<u8>) -> io::Result<()> {
    Buffer::with(|buffer| {
        let mut done = 0;
        while done < length as usize {
            let now = buffer.get(from.wrapping_add(done), length as usize - done)?;
            into.extend_from_slice(now);
            done += now.len();
        }
        Ok(())
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    struct None;

    impl Sources for None {
        fn pin(&self, _: u32, _: u64, _: u64) -> Result<Pin, Terminate> {
            Err(Terminate::LOCAL_CATASTROPHE)
        }
    }

    /// Sends so many messages of a kilobyte, some bytes at a time, and returns how much was sent.
    fn send(outbound: &mut Outbound, messages: u8, at_a_time: usize) -> usize {
        for message in 0..messages {
            outbound.post(Post::Send { bytes: vec![message; 1024], invalidate: Option::None });
        }
        let mut sent = Vec::new();
        loop {
            outbound.fill(&None).unwrap();
            let (mut vector, mut pins) = (SmallVec::new(), SmallVec::new());
            outbound.show(&None, &mut vector, &mut pins).unwrap();
            // SAFETY: the frames are in the stream until they are sent.
            let shown: Vec<u8> = vector.iter().flat_map(|piece| unsafe { piece.bytes() }.to_vec()).collect();
            if shown.is_empty() {
                break;
            }
            let now = shown.len().min(at_a_time);
            sent.extend_from_slice(&shown[..now]);
            outbound.sent(now, |_| {});
        }
        let each = sent.len() / usize::from(messages);
        for (message, frame) in (0..messages).zip(sent.chunks(each)) {
            assert_eq!(frame.iter().filter(|&&byte| byte == message).count() / 1024, 1, "message {message}");
        }
        sent.len()
    }

    #[test]
    fn idle_connections_keep_short_streams() {
        for at_a_time in [usize::MAX, 10_000, 999] {
            let mut outbound = Outbound::new(true, true, 4, 4);
            let one = send(&mut outbound, 1, at_a_time);
            let kept = outbound.stream.as_ptr();
            assert!((1..=KEPT).contains(&outbound.stream.capacity()));
            assert_eq!(send(&mut outbound, 1, at_a_time), one);
            assert_eq!(outbound.stream.as_ptr(), kept, "short ones are written where the last one was");
            for _ in 0..3 {
                assert_eq!(send(&mut outbound, 32, at_a_time), 32 * one);
                assert_eq!(outbound.stream.capacity(), 0);
            }
            let spare = SPARE.take();
            assert!((STREAM..=LENT).contains(&spare.capacity()), "{}", spare.capacity());
            SPARE.set(spare);
            // Two short ones, and it has one of its own again.
            (0..2).for_each(|_| _ = send(&mut outbound, 1, at_a_time));
            assert!((1..=KEPT).contains(&outbound.stream.capacity()));
        }
    }

    #[test]
    fn connections_of_a_thread_share_a_long_stream() {
        let mut connections = [(); 20].map(|()| Outbound::new(false, true, 4, 4));
        for _ in 0..2 {
            connections.iter_mut().for_each(|outbound| _ = send(outbound, 32, usize::MAX));
        }
        let spare = SPARE.take();
        let kept: usize = connections.iter().map(|outbound| outbound.stream.capacity()).sum();
        assert!(kept <= 20 * KEPT && spare.capacity() <= LENT, "{kept}");
    }
}
