//! The session of a connection, with its output and its counts.

use std::sync::MutexGuard;
use std::time::Duration;

use crate::metrics::Counts;
use crate::session::{Context, Doing, Follows, Out, Pause, ProtocolMode, Recalled, Rest, Session, Shared, is_stopping};
use crate::store::Store;
use rdmakv_proto::clock;
use rdmakv_proto::messages::Malformed;

/// How often a lookup may come for the same item.
const ROUNDS: usize = 8;
/// How long a read from flash is waited for before a look whether the server ends, and how often. The tier gives up silent reads before.
const READ_ROUND: Duration = Duration::from_millis(500);
const READ_ROUNDS: usize = 20;

/// The answer to the line that announces a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Announced {
    /// The value goes into this chunk, of so many bytes.
    Memory(*mut u8, usize),
    /// There is no room for it, or no interest in it; the session has answered.
    Answered,
    /// No fabric may write its memory.
    NoMemory,
}

/// The session. Dropping it gives back what it has of the stores.
pub(super) struct Commands<'f> {
    shared: &'f Shared,
    /// The place of its published counts.
    seat: usize,
    counts: Counts,
    session: Session,
    out: Out,
    /// Names what is waited for to the bell of the seat.
    turn: u64,
}

impl<'f> Commands<'f> {
    /// Returns a session that goes on with the counts of its seat.
    pub(super) fn new(shared: &'f Shared, seat: usize) -> Self {
        let counts = shared.counts[seat].lock().map_or_else(|_| Counts::default(), |counts| *counts);
        Self { shared, seat, counts, session: Session::new(ProtocolMode::Ascii), out: Out::default(), turn: 0 }
    }

    /// Begins another conversation: of a client that has logged in before, or of one that has not.
    pub(super) fn begin(&mut self, has_logged_in: bool) {
        self.give_up();
        self.out.clear(&self.shared.shards);
        let (_, _, cx) = self.parts();
        self.session = match has_logged_in {
            true => Session::of_known(ProtocolMode::Ascii, &cx),
            false => Session::new(ProtocolMode::Ascii),
        };
    }

    pub(super) fn shared(&self) -> &'f Shared {
        self.shared
    }

    pub(super) fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// Returns the context of an operation on the stores.
    pub(super) fn context(&mut self) -> Context<'_> {
        self.parts().2
    }

    fn parts(&mut self) -> (&mut Session, &mut Out, Context<'_>) {
        let Self { shared, seat, counts, session, out, turn } = self;
        let mut cx = Context::new(shared, clock::now(), counts, *seat);
        *turn += 1;
        (cx.waits.turn, cx.waits.gives_up) = (*turn, is_stopping(shared));
        (session, out, cx)
    }

    /// Publishes the counts.
    pub(super) fn publish(&self) {
        if let Ok(mut counts) = self.shared.counts[self.seat].lock() {
            *counts = self.counts;
        }
    }

    /// Returns whether the client may ask for items.
    pub(super) fn is_authorised(&mut self) -> bool {
        let (session, _, cx) = self.parts();
        session.is_authorised(&cx)
    }

    /// Returns the name that the client logged in by, if it did.
    pub(super) fn login(&self) -> Option<&[u8]> {
        self.session.login()
    }

    /// Carries the input out, and waits for what it needs from flash; returns how much of it is done with.
    fn advance(&mut self, input: &[u8]) -> (usize, Pause) {
        let mut done = 0;
        loop {
            let (session, out, mut cx) = self.parts();
            let (used, pause) = session.advance(&input[done..], &mut 1, &mut cx, out);
            done += used;
            if pause != Pause::Flash {
                return (done, pause);
            }
            self.wait();
        }
    }

    /// Waits until what the last context asked for was read. Not for long, where that is not told or the server ends.
    fn wait(&self) {
        for _ in 0..READ_ROUNDS {
            if self.shared.bells[self.seat].wait(self.turn, READ_ROUND) || is_stopping(self.shared) {
                break;
            }
        }
    }

    /// Returns the shard of a key, and its store when what there is of the key is in memory. `None` if there is no memory for it.
    pub(super) fn recall(&mut self, key: &[u8]) -> Option<(usize, MutexGuard<'f, Store>)> {
        let shared = self.shared;
        let shard = shared.shards.of(key);
        for _ in 0..ROUNDS {
            let mut store = shared.shards.at(shard);
            if store.flash_tier().is_none() {
                return Some((shard, store));
            }
            let mut cx = self.context();
            match cx.recall(&mut store, shard, key) {
                Recalled::Here => return Some((shard, store)),
                Recalled::Failed => {
                    drop(store);
                    cx.begin_reads();
                    return None;
                }
                Recalled::Away => {
                    drop(store);
                    cx.begin_reads();
                }
            }
            self.wait();
        }
        None
    }

    /// Runs a whole command of the text or meta protocol, as over TCP; returns whether the connection ends with its answer.
    pub(super) fn run(&mut self, command: &[u8]) -> Result<bool, Malformed> {
        let (used, pause) = self.advance(command);
        let over = pause == Pause::Over;
        let (session, out, cx) = self.parts();
        if !over && (used < command.len() || !(session.is_quiet() || session.has_more())) {
            session.give_up(&cx.shared.shards);
            out.clear(&cx.shared.shards);
            return Err(Malformed("RUN takes one command, whole, with its data"));
        }
        Ok(over)
    }

    /// Runs the line of a command with data, of which the first bytes follow the line and `length` are to come. Returns the memory for those.
    pub(super) fn announce(&mut self, (line, first): (&[u8], &[u8]), length: u64) -> Result<Announced, Malformed> {
        let (_, pause) = self.advance(&[line, b"\r\n"].concat());
        let (session, out, cx) = self.parts();
        let is_refused = pause == Pause::Input && !session.is_quiet() && session.doing() != Doing::Filling;
        let announced = match session.announced(first) {
            Some(Rest::Memory(memory)) if memory.len() as u64 == length => {
                return Ok(Announced::Memory(memory.as_mut_ptr(), memory.len()));
            }
            Some(Rest::Skipped(bytes)) if bytes as u64 == length => {
                session.add_direct(bytes);
                self.advance(b"\r\n");
                return Ok(Announced::Answered);
            }
            Some(Rest::Apart) => Ok(Announced::NoMemory),
            Some(Rest::Memory(_) | Rest::Skipped(_)) => {
                Err(Malformed("the segments have another length than the line says"))
            }
            // The answer to a line without room for its data, if it wants one; or to a command that takes no data at all.
            None if is_refused => Ok(Announced::Answered),
            None => {
                out.clear(&cx.shared.shards);
                Err(Malformed("PUT takes a command that stores a value"))
            }
        };
        session.give_up(&cx.shared.shards);
        announced
    }

    /// Ends a command whose value is in the announced memory.
    pub(super) fn end_value(&mut self, length: usize) {
        self.session.add_direct(length);
        self.advance(b"\r\n");
        let (_, _, cx) = self.parts();
        cx.counts.bytes_read += length as u64;
    }

    /// Gives up a command whose value does not come.
    pub(super) fn give_up(&mut self) {
        self.session.give_up(&self.shared.shards);
    }

    /// Returns the bytes of the answer that wait. A long answer goes on until so many do.
    pub(super) fn prepare(&mut self, bytes: usize) -> usize {
        if self.out.waiting() < bytes {
            let (session, out, mut cx) = self.parts();
            // Few of a long answer's turns at a time; only such an answer goes on by itself.
            while session.has_more() && out.waiting() < bytes {
                session.advance(b"", &mut 8, &mut cx, out);
            }
        }
        self.out.waiting()
    }

    /// Appends the next bytes of the answer, so many of those that wait.
    pub(super) fn copy(&self, bytes: usize, into: &mut Vec<u8>) {
        self.out.copy(bytes, into);
    }

    /// Drops bytes of the answer that are sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.out.advance(bytes, &self.shared.shards);
    }

    /// Returns whether more of the answer comes than waits.
    pub(super) fn has_more(&self) -> bool {
        self.session.has_more()
    }

    /// Takes the call that may follow the last one at once.
    pub(super) fn take_follows(&mut self) -> Option<Follows> {
        self.session.take_follows()
    }

    /// Returns whether nothing of the answer is left.
    pub(super) fn is_answered(&self) -> bool {
        self.out.is_empty() && !self.session.has_more()
    }

    /// Gives memory back that a large answer needed.
    pub(super) fn shrink(&mut self, to: usize) {
        self.out.shrink(to);
    }
}

impl Drop for Commands<'_> {
    fn drop(&mut self) {
        let shards = &self.shared.shards;
        self.session.close(shards);
        self.out.clear(shards);
        self.publish();
    }
}
