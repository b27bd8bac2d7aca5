//! One conversation: bytes come in, requests are carried out on the store, bytes go out. No sockets here.
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.
//!
//! A session knows which protocol its client speaks from the first byte, and keeps what is between requests: a chunk
//! that is being filled, data that is being dropped. Values small enough are copied into the output; larger ones are
//! lent by the store until they are sent.

mod admin;
mod adoption;
mod binary;
mod body;
mod carry;
mod cluster;
#[cfg(test)]
mod cluster_tests;
mod context;
mod files;
mod flash;
mod login;
mod meta;
mod out;
mod peer;
mod prefixes;
mod replicas;
mod replicate;
mod replies;
mod room;
mod settings;
mod shards;
mod shared;
mod snapshot;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod text;
mod tls;
mod watch;

pub(crate) use body::Rest;
pub(crate) use carry::Order;
pub use cluster::Cluster;
pub use context::Context;
pub use files::DIRTY_LIMIT;
pub(crate) use files::chunks_of;
pub(crate) use flash::Recalled;
pub use flash::{Bell, Reads, Waits};
pub use out::{Out, SLICES};
pub use peer::{Address, Doing, Peer, Peers};
pub use prefixes::Prefixes;
pub(crate) use replicate::{Follows, resilient};
pub use settings::{ProtocolMode, RESERVED, Settings};
pub use shards::Shards;
pub(crate) use shared::stuck_worker;
pub use shared::{Shared, is_accepting, is_stopping};
pub(crate) use snapshot::{Snapshot, measured};
pub use tls::Tls;
pub use watch::Watchers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use body::{Body, Done, LoginRequest, Reply};
use flash::Stopped;
use login::Login;
use replies::OUT_MAX;
use state::State;

/// Values up to this length are copied; larger ones are lent.
const COPIED: usize = 8192;
/// Bytes that a worker reads at once at most.
pub const READ_BUFFER: usize = 128 << 10;
/// Copied output of one request at most; a value can be lent only so often.
const COPIED_MAX: usize = 64 << 20;
/// Bytes of a line at most; only keys make one so long.
const LINE_MAX: usize = 1 << 20;
/// Bytes of a line that is no `get` at most.
const PLAIN_LINE_MAX: usize = 2048;
/// The answer to `version`: the memcached of this protocol, and nothing else. There are clients that take the last three
/// numbers of whatever comes for the version, and find in it what they may use.
pub const VERSION: &str = "1.6.18";

/// Why a session stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It needs more input.
    Input,
    /// It had its turn.
    Turn,
    /// Its output has to go first.
    Output,
    /// It waits for an item on flash: the [bell](Bell) names its turn. No input is needed until then.
    Flash,
    /// It is over once the output has gone.
    Over,
}

/// A conversation.
#[derive(Debug, Default)]
pub struct Session {
    protocol: Option<ProtocolMode>,
    /// No other one of this server has it.
    number: u64,
    state: State,
    login: Login,
    /// Which connection it is on, if that is a socket's.
    peer: Option<Arc<Peer>>,
    /// How far the request has come that waits for flash.
    stopped: Stopped,
    /// The call of a cluster that may follow the last one at once.
    follows: Option<Follows>,
}

impl Session {
    /// Returns a conversation in these protocols.
    pub fn new(protocol: ProtocolMode) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let protocol = (protocol != ProtocolMode::Auto).then_some(protocol);
        Self { protocol, number: NUMBERS.fetch_add(1, Relaxed), ..Self::default() }
    }

    /// The same, on this connection.
    pub fn on(protocol: ProtocolMode, peer: Arc<Peer>) -> Self {
        Self { peer: Some(peer), ..Self::new(protocol) }
    }

    /// The same, of a client that has logged in before.
    pub(crate) fn of_known(protocol: ProtocolMode, cx: &Context<'_>) -> Self {
        Self { login: Login::shown(cx), ..Self::new(protocol) }
    }

    /// Carries out what can be carried out of the input, up to `turns` requests; returns how much of it is done with.
    pub fn advance(&mut self, input: &[u8], turns: &mut usize, cx: &mut Context<'_>, out: &mut Out) -> (usize, Pause) {
        let mut at = 0;
        cx.peer = self.peer.as_ref().map_or(-1, |peer| peer.number);
        loop {
            if let State::Over { .. } = self.state {
                return (at, Pause::Over);
            }
            // Not within a request: of some drivers, all of its answer leaves together.
            if out.waiting() > OUT_MAX && self.stopped.cursor == 0 {
                return (at, Pause::Output);
            }
            let rest = &input[at..];
            match &mut self.state {
                State::Ready => {}
                State::Filling(body) => {
                    let (used, end) = body.fill(rest);
                    at += used;
                    let Some(good) = end else { return (at, Pause::Input) };
                    let State::Filling(body) = std::mem::take(&mut self.state) else { continue };
                    if self.finish(body, good, cx, out) {
                        return (at, Pause::Flash);
                    }
                    continue;
                }
                State::Ending(..) => {
                    let State::Ending(body, good) = std::mem::take(&mut self.state) else { continue };
                    if self.finish(*body, good, cx, out) {
                        return (at, Pause::Flash);
                    }
                    continue;
                }
                State::Skipping(left) => {
                    let skipped = rest.len().min(*left);
                    at += skipped;
                    *left -= skipped;
                    if *left > 0 {
                        return (at, Pause::Input);
                    }
                    self.state = State::Ready;
                    continue;
                }
                State::Dumping(dump) => {
                    if *turns == 0 {
                        cx.counts.conn_yields += 1;
                        return (at, Pause::Turn);
                    }
                    *turns -= 1;
                    if dump.go_on(cx, out) {
                        self.state = State::Ready;
                    }
                    continue;
                }
                State::Watching(watch) => {
                    // A watcher takes lines once those before have gone.
                    if out.is_empty() {
                        watch.take(&mut out.bytes);
                    }
                    return (input.len(), Pause::Input);
                }
                State::Over { .. } => return (at, Pause::Over),
            }
            let Some(&first) = rest.first() else { return (at, Pause::Input) };
            if *turns == 0 {
                cx.counts.conn_yields += 1;
                return (at, Pause::Turn);
            }
            cx.waits.go_on(self.stopped);
            let used = match self.protocol {
                None => {
                    let binary = first == rdmakv_proto::commands::binary::REQUEST;
                    self.protocol = Some(if binary { ProtocolMode::Binary } else { ProtocolMode::Ascii });
                    continue;
                }
                Some(ProtocolMode::Binary) => binary::run(rest, &mut self.login, &mut self.state, cx, out),
                Some(_) => self.line(rest, cx, out),
            };
            if cx.waits.is_away() {
                self.hint(&rest[used..], cx);
                self.stopped = cx.stop(self.stopped);
                return (at, Pause::Flash);
            }
            cx.begin_reads();
            self.stopped = Stopped::default();
            if used == 0 && !matches!(self.state, State::Over { .. }) {
                return (at, Pause::Input);
            }
            at += used;
            *turns -= 1;
        }
    }

    /// Runs the first line, if all of it is there; returns its length with its end.
    fn line(&mut self, rest: &[u8], cx: &mut Context<'_>, out: &mut Out) -> usize {
        match memchr::memchr(b'\n', rest) {
            Some(end) => {
                let line = &rest[..end];
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                text::run(line, &self.login, &mut self.state, cx, out);
                end + 1
            }
            None => {
                let keys =
                    [&b"get "[..], b"bget ", b"gets ", b"gat ", b"gats "].iter().any(|name| rest.starts_with(name));
                if rest.len() > if keys { LINE_MAX } else { PLAIN_LINE_MAX } {
                    out.bytes.extend_from_slice(b"SERVER_ERROR line too long\r\n");
                    self.state = State::over();
                }
                0
            }
        }
    }

    /// Begins the reads of lookups that follow a request which waits.
    fn hint(&self, rest: &[u8], cx: &mut Context<'_>) {
        match self.protocol {
            Some(ProtocolMode::Binary) => binary::hint(rest, cx),
            _ => text::hint(rest, cx),
        }
    }

    /// Ends the request whose data is complete; returns whether it has to wait for flash.
    fn finish(&mut self, body: Body, good: bool, cx: &mut Context<'_>, out: &mut Out) -> bool {
        cx.waits.go_on(self.stopped);
        let done = match body.finish(good, cx) {
            Ok(done) => done,
            Err(body) => {
                self.state = State::Ending(body, good);
                self.stopped = cx.stop(self.stopped);
                return true;
            }
        };
        cx.begin_reads();
        self.stopped = Stopped::default();
        match done {
            Done::Stored { reply, mode, outcome, size } => match reply {
                Reply::Text { quiet } => text::stored(outcome, quiet, out),
                Reply::Meta { flags, key, quiet } => meta::stored(outcome, (&flags, quiet), &key, size, out),
                Reply::Binary { header } => binary::stored(&header, mode, outcome, out),
            },
            Done::BadData { quiet } => replies::put_line(b"CLIENT_ERROR bad data chunk\r\n", quiet, out),
            Done::Login { bytes, request: LoginRequest::Set { quiet }, good } => {
                self.login.authenticate(&bytes, good, quiet, cx, out);
            }
            Done::Call { key, call, writer, shard } => {
                self.follows = replicate::finish(&key, &call, (writer, shard), self.number, cx, out);
            }
            Done::Login { bytes, request: LoginRequest::Sasl { header }, .. } => {
                self.login.finish_sasl(&header, &bytes, cx, out);
            }
        }
        false
    }

    /// Returns the memory for the rest of a large value, for direct reads.
    pub fn direct(&mut self) -> Option<&mut [u8]> {
        if let State::Filling(body) = &mut self.state { body.direct() } else { None }
    }

    /// Counts bytes that were read into that memory.
    pub fn add_direct(&mut self, read: usize) {
        if let State::Filling(body) = &mut self.state {
            body.add_direct(read);
        }
    }

    /// Takes the first bytes of the data that the last line announced, and returns the destination of the others. None if it has no data, or
    /// takes other bytes first.
    ///
    /// It is for values that arrive another way. The end of the request still has to come the usual way.
    pub(crate) fn announced(&mut self, first: &[u8]) -> Option<Rest<'_>> {
        if let State::Filling(body) = &mut self.state { body.announced(first) } else { None }
    }

    /// Gives up the request for lack of its data: the next bytes are another's.
    pub(crate) fn give_up(&mut self, shards: &Shards) {
        self.close(shards);
        if let State::Skipping(_) = self.state {
            self.state = State::Ready;
        }
    }

    /// Returns whether nothing is between a request's bytes, nor in the middle of an answer.
    pub fn is_quiet(&self) -> bool {
        !matches!(self.state, State::Filling(_) | State::Ending(..) | State::Skipping(_) | State::Dumping(_))
    }

    /// Returns whether an answer goes on without more input.
    pub fn has_more(&self) -> bool {
        match &self.state {
            State::Dumping(_) | State::Ending(..) => true,
            State::Watching(watch) => watch.is_ready(),
            _ => false,
        }
    }

    /// Takes the call that may follow the last one at once, if that was a call.
    pub(crate) fn take_follows(&mut self) -> Option<Follows> {
        self.follows.take()
    }

    /// Returns whether it watches.
    pub fn is_watching(&self) -> bool {
        matches!(self.state, State::Watching(_))
    }

    /// Returns whether it is over because its client asked for the end.
    pub fn has_quit(&self) -> bool {
        matches!(self.state, State::Over { quit: true })
    }

    /// Returns the connection's activity, if all answers are sent.
    pub fn doing(&self) -> Doing {
        match self.state {
            State::Watching(_) => Doing::Watching,
            State::Filling(_) => Doing::Filling,
            _ => Doing::Reading,
        }
    }

    /// Returns whether the client may ask for items yet.
    pub(crate) fn is_authorised(&self, cx: &Context<'_>) -> bool {
        self.login.is_shown(cx)
    }

    /// Returns the name that the client logged in by, if it did.
    pub(crate) fn login(&self) -> Option<&[u8]> {
        self.login.name()
    }

    /// The conversation ends: what it holds of the store goes back.
    pub fn close(&mut self, shards: &Shards) {
        match &self.state {
            State::Filling(_) | State::Ending(..) => {}
            _ => return,
        }
        match std::mem::take(&mut self.state) {
            State::Filling(body) => body.abandon(shards),
            State::Ending(body, _) => body.abandon(shards),
            _ => {}
        }
    }
}
