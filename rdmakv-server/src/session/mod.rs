//! One conversation: bytes come in, requests are carried out on the store, bytes go out. No sockets here.
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.
//!
//! A session knows which protocol its client speaks from the first byte, and keeps what is between requests: a chunk
//! that is being filled, data that is being dropped. Values small enough are copied into the output; larger ones are
//! lent by the store until they are sent.

mod admin;
mod binary;
mod body;
mod context;
mod login;
mod meta;
mod out;
mod peer;
mod prefixes;
mod settings;
mod shards;
mod shared;
mod snapshot;
mod stats;
#[cfg(test)]
mod tests;
mod text;
mod tls;
mod watch;

pub use context::Context;
pub use out::{Out, SLICES};
pub use peer::{Address, Doing, Peer, Peers};
pub use prefixes::Prefixes;
pub use settings::{ProtocolMode, RESERVED, Settings};
pub use shards::Shards;
pub(crate) use shared::stuck_worker;
pub use shared::{Shared, is_accepting, is_stopping};
pub(crate) use snapshot::{Snapshot, measured};
pub use tls::Tls;
pub use watch::Watchers;

use std::sync::Arc;

use crate::store::{Handle, Store};
use body::Body;
use login::Login;

/// Values up to this length are copied; larger ones are lent.
const COPIED: usize = 8192;
/// Bytes that a worker reads at once at most.
pub const READ_BUFFER: usize = 128 << 10;
/// Output that waits at most before a session does nothing more.
const OUT_MAX: usize = 1 << 20;
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
    /// It is over once the output has gone.
    Over,
}

/// A conversation.
#[derive(Debug, Default)]
pub struct Session {
    protocol: Option<ProtocolMode>,
    body: Option<Body>,
    drop: usize,
    dump: Option<admin::Dump>,
    login: Login,
    over: bool,
    /// Whether the client said that it is over.
    quit: bool,
    /// Which connection it is on, if that is a socket's.
    peer: Option<Arc<Peer>>,
    watch: Option<watch::Watch>,
}

impl Session {
    /// Returns a conversation in these protocols.
    pub fn new(protocol: ProtocolMode) -> Self {
        Self { protocol: (protocol != ProtocolMode::Auto).then_some(protocol), ..Self::default() }
    }

    /// The same, on this connection.
    pub fn on(protocol: ProtocolMode, peer: Arc<Peer>) -> Self {
        Self { peer: Some(peer), ..Self::new(protocol) }
    }

    /// Carries out what can be carried out of the input, up to `turns` requests; says how much of it is done with.
    pub fn advance(&mut self, input: &[u8], turns: &mut usize, cx: &mut Context<'_>, out: &mut Out) -> (usize, Pause) {
        let mut at = 0;
        cx.peer = self.peer.as_ref().map_or(-1, |peer| peer.number);
        loop {
            if self.over {
                return (at, Pause::Over);
            }
            if out.waiting() > OUT_MAX {
                return (at, Pause::Output);
            }
            if let Some(dump) = &mut self.dump {
                if *turns == 0 {
                    cx.counts.conn_yields += 1;
                    return (at, Pause::Turn);
                }
                *turns -= 1;
                if dump.go_on(cx, out) {
                    self.dump = None;
                }
                continue;
            }
            if let Some(watch) = &self.watch {
                // A watcher's input is not looked at. It takes lines once those before have gone.
                if out.is_empty() {
                    watch.take(&mut out.bytes);
                }
                return (input.len(), Pause::Input);
            }
            let rest = &input[at..];
            if self.drop > 0 {
                let dropped = self.drop.min(rest.len());
                self.drop -= dropped;
                at += dropped;
                if self.drop > 0 {
                    return (at, Pause::Input);
                }
                continue;
            }
            if self.body.is_some() {
                let (used, done) = self.fill(rest, cx, out);
                at += used;
                if !done {
                    return (at, Pause::Input);
                }
                continue;
            }
            let Some(&first) = rest.first() else { return (at, Pause::Input) };
            if *turns == 0 {
                cx.counts.conn_yields += 1;
                return (at, Pause::Turn);
            }
            let used = match self.protocol {
                None => {
                    let binary = first == rdmakv_proto::commands::binary::REQUEST;
                    self.protocol = Some(if binary { ProtocolMode::Binary } else { ProtocolMode::Ascii });
                    continue;
                }
                Some(ProtocolMode::Binary) => self.binary(rest, cx, out),
                Some(_) => self.line(rest, cx, out),
            };
            if used == 0 && !self.over {
                return (at, Pause::Input);
            }
            at += used;
            *turns -= 1;
        }
    }

    fn line(&mut self, rest: &[u8], cx: &mut Context<'_>, out: &mut Out) -> usize {
        match memchr::memchr(b'\n', rest) {
            Some(end) => {
                let line = &rest[..end];
                self.text(line.strip_suffix(b"\r").unwrap_or(line), cx, out);
                end + 1
            }
            None => {
                let keys =
                    [&b"get "[..], b"bget ", b"gets ", b"gat ", b"gats "].iter().any(|name| rest.starts_with(name));
                if rest.len() > if keys { LINE_MAX } else { PLAIN_LINE_MAX } {
                    out.bytes.extend_from_slice(b"SERVER_ERROR line too long\r\n");
                    self.over = true;
                }
                0
            }
        }
    }

    /// Returns whether nothing is between a request's bytes, nor in the middle of an answer.
    pub fn is_quiet(&self) -> bool {
        self.body.is_none() && self.drop == 0 && self.dump.is_none()
    }

    /// Returns whether an answer goes on without more input.
    pub fn has_more(&self) -> bool {
        self.dump.is_some() || self.watch.as_ref().is_some_and(watch::Watch::is_ready)
    }

    /// Returns whether it watches.
    pub fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns whether it is over because its client said so.
    pub fn has_quit(&self) -> bool {
        self.quit
    }

    /// Returns the connection's activity, if all answers are sent.
    pub fn doing(&self) -> Doing {
        if self.watch.is_some() {
            Doing::Watching
        } else if self.body.is_some() {
            Doing::Filling
        } else {
            Doing::Reading
        }
    }

    /// Returns whether the client may do something yet.
    pub(crate) fn may_speak(&self, cx: &Context<'_>) -> bool {
        self.login.is_enough(cx)
    }

    /// The conversation ends: what it holds of the store goes back.
    pub fn close(&mut self, shards: &Shards) {
        if let Some(Body { writer: Some(writer), shard, .. }) = self.body.take() {
            shards.at(shard).abandon(writer);
        }
    }
}

fn put_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Returns the end that a GET gives to an item, if it has come already. The item is shown once more before it gets that.
fn ends_after(until: Option<u64>, cx: &Context<'_>) -> Option<u64> {
    until.filter(|&until| until != 0 && until <= cx.now)
}

/// The value, copied if it is small, else lent.
fn put_value(store: &mut Store, handle: Handle, shard: usize, out: &mut Out) {
    let value = store.value(handle);
    // A long answer lends small values too: copies of them would have no bound.
    if value.len() <= COPIED && out.bytes.len() < 4 * OUT_MAX {
        return out.bytes.extend_from_slice(value);
    }
    match store.hold(handle) {
        Some(held) => out.lend(shard, held),
        None => out.bytes.extend_from_slice(store.value(handle)),
    }
}
