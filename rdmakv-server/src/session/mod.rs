//! One conversation: bytes come in, requests are carried out on the store, bytes go out. No sockets here.
//!
//! A session knows which protocol its client speaks from the first byte, and keeps what is between requests: a chunk
//! that is being filled, data that is being dropped. Values small enough are copied into the output; larger ones are
//! lent by the store until they are sent.

mod admin;
mod binary;
mod counts;
mod latencies;
mod meta;
mod out;
mod shards;
mod stats;
#[cfg(test)]
mod tests;
mod text;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub use counts::Counts;
pub use latencies::{Asked, BUCKETS, Latencies, Measured, below_micros, end_of};
pub use out::{Out, SLICES};
pub use shards::Shards;
pub(crate) use stats::{classes, counts};

use crate::rdma::server::counts::Reported;
use crate::store::{Filling, Handle, Mode, Outcome, Refused, Store, Terms};

/// Values up to this length are copied; larger ones are lent.
const COPIED: usize = 8192;
/// Output that waits at most before a session does nothing more.
const OUT_MAX: usize = 1 << 20;
/// Copied output of one request at most; a value can be lent only so often.
const COPIED_MAX: usize = 64 << 20;
/// Bytes of a line at most; only keys make one so long.
const LINE_MAX: usize = 1 << 20;
/// Bytes of a line that is no `get` at most.
const PLAIN_LINE_MAX: usize = 8192;
/// What `version` says: the memcached whose protocol this is, and nothing else. There are clients that take the last three
/// numbers of whatever comes for the version, and find in it what they may use.
pub const VERSION: &str = "1.6.18";

/// Which protocols a listener speaks (`-B`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speaks {
    /// Whichever the first byte says.
    #[default]
    Auto,
    /// Text only.
    Ascii,
    /// Binary only.
    Binary,
}

/// What `stats settings` shows, and what the sessions obey.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the names are those of memcached's settings")]
pub struct Settings {
    pub maxbytes: u64,
    pub maxconns: usize,
    pub tcp_port: i32,
    pub udp_port: i32,
    pub inter: Option<String>,
    pub evictions: bool,
    pub socket: Option<String>,
    pub socket_mode: u32,
    pub shutdown: bool,
    pub factor: f64,
    pub chunk_size: usize,
    pub threads: usize,
    pub reqs_per_event: usize,
    pub cas: bool,
    pub backlog: i32,
    pub speaks: Speaks,
    pub item_max: usize,
    pub maxconns_fast: bool,
    pub hashpower: u32,
    pub idle_timeout: u64,
    pub flush: bool,
    pub dump: bool,
    pub users: Option<Vec<Vec<u8>>>,
    /// What `stats settings` says of TLS, by memcached's names; empty without it.
    pub tls: Vec<(&'static str, String)>,
    /// And of fabrics; empty without any.
    pub fabrics: Vec<(&'static str, String)>,
    /// How many besides the workers keep counts: connections over fabrics.
    pub seats: usize,
}

/// What all sessions share.
#[derive(Debug)]
pub struct Shared {
    /// The stores.
    pub shards: Shards,
    /// How the server was started.
    pub settings: Settings,
    /// Set while running.
    pub verbosity: AtomicU32,
    /// Bytes for items, as `cache_memlimit` left them.
    pub limit: AtomicU64,
    /// Whether the server is to end.
    pub stop: AtomicBool,
    /// Whether nobody new is accepted, and connections end once they are silent.
    pub finish: AtomicBool,
    /// Unix seconds at the start.
    pub started: u64,
    /// Each worker's counts.
    pub counts: Vec<Mutex<Counts>>,
    /// The counts at the last `stats reset`.
    pub baseline: Mutex<Counts>,
    /// Connections at present.
    pub connections: AtomicI64,
    /// Connections ever.
    pub total_connections: AtomicU64,
    /// Connections refused.
    pub rejected_connections: AtomicU64,
    /// Times the server stopped accepting.
    pub listen_disabled: AtomicU64,
    /// Whether the crawler runs.
    pub crawler: AtomicBool,
    /// Whether the crawler is to make a round at once.
    pub crawl_now: AtomicBool,
    /// Rounds of the crawler.
    pub crawler_starts: AtomicU64,
    /// Names and passwords, as last read.
    pub users: Mutex<Vec<Vec<u8>>>,
    /// When each worker last came round, in Unix seconds.
    pub rounds: Vec<AtomicU64>,
    /// What each worker measured.
    pub latencies: Vec<Latencies>,
    /// TLS as the server has it.
    pub tls: Option<Tls>,
    /// Fabrics, to report on.
    pub fabrics: OnceLock<Vec<Arc<dyn Reported>>>,
}

/// What sessions know of TLS.
pub struct Tls {
    /// How certificates and keys are read again.
    pub read_again: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// When they were last read, in Unix seconds.
    pub refreshed: AtomicU64,
    /// Handshakes that failed.
    pub handshake_errors: AtomicU64,
    /// Handshakes that were done.
    pub handshakes: AtomicU64,
}

impl Tls {
    /// Nobody was met yet.
    pub fn new(read_again: Box<dyn Fn() -> Result<(), String> + Send + Sync>, now: u64) -> Self {
        let [handshake_errors, handshakes] = [0; 2].map(AtomicU64::new);
        Self { read_again, refreshed: AtomicU64::new(now), handshake_errors, handshakes }
    }

    /// Reads certificates and keys again.
    ///
    /// # Errors
    ///
    /// What is wrong with them; the old ones stay in use.
    pub fn refresh(&self, now: u64) -> Result<(), String> {
        (self.read_again)()?;
        self.refreshed.store(now, Relaxed);
        Ok(())
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("refreshed", &self.refreshed).finish_non_exhaustive()
    }
}

impl Shared {
    /// For a server that has not yet met anyone.
    pub fn new(shards: Shards, settings: Settings, now: u64) -> Self {
        let workers = settings.threads + 1 + settings.seats;
        Self {
            shards,
            verbosity: AtomicU32::new(0),
            limit: AtomicU64::new(settings.maxbytes),
            stop: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            started: now,
            counts: (0..workers).map(|_| Mutex::default()).collect(),
            baseline: Mutex::default(),
            connections: AtomicI64::new(0),
            total_connections: AtomicU64::new(0),
            rejected_connections: AtomicU64::new(0),
            listen_disabled: AtomicU64::new(0),
            crawler: AtomicBool::new(true),
            crawl_now: AtomicBool::new(false),
            crawler_starts: AtomicU64::new(0),
            users: Mutex::new(settings.users.clone().unwrap_or_default()),
            rounds: (0..settings.threads).map(|_| AtomicU64::new(now)).collect(),
            latencies: (0..settings.threads).map(|_| Latencies::default()).collect(),
            tls: None,
            fabrics: OnceLock::new(),
            settings,
        }
    }
}

/// What a session needs to do anything: the worker's own.
#[derive(Debug)]
pub struct Context<'a> {
    /// What all share.
    pub shared: &'a Shared,
    /// Unix seconds.
    pub now: u64,
    /// The worker's counts.
    pub counts: &'a mut Counts,
    /// The worker's number.
    pub worker: usize,
}

impl Context<'_> {
    /// When an item ends that is given this expiry: memcached's rule of thirty days.
    fn until(&self, exptime: i64) -> u64 {
        const MONTH: i64 = 60 * 60 * 24 * 30;
        match exptime {
            0 => 0,
            // In the past, but not never.
            ..0 => 1,
            1..=MONTH => self.now + exptime as u64,
            _ => exptime as u64,
        }
    }

    /// The version as clients see it: with `-C` none.
    fn shown(&self, version: u64) -> u64 {
        if self.shared.settings.cas { version } else { 0 }
    }

    /// Publishes the counts.
    pub fn publish(&self) {
        if let Ok(mut counts) = self.shared.counts[self.worker].lock() {
            *counts = *self.counts;
        }
    }
}

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

/// Who gets the answer once the data is there.
#[derive(Debug)]
enum Answer {
    Text { quiet: bool },
    Meta { flags: Vec<u8>, key: Vec<u8>, quiet: bool },
    Binary { header: crate::protocol::binary::Header },
    Auth { quiet: bool },
}

/// Data on its way into the store.
#[derive(Debug)]
struct Body {
    filling: Option<Filling>,
    /// For what goes nowhere but here: a user's name and password.
    scratch: Vec<u8>,
    shard: usize,
    got: usize,
    len: usize,
    /// Whether "\r\n" follows it, as in the text protocol.
    ended: bool,
    terms: Terms,
    answer: Answer,
}

/// A conversation.
#[derive(Debug, Default)]
pub struct Session {
    speaks: Option<Speaks>,
    body: Option<Body>,
    drop: usize,
    dump: Option<admin::Dump>,
    authenticated: bool,
    over: bool,
}

impl Session {
    /// A conversation in these protocols.
    pub fn new(speaks: Speaks) -> Self {
        Self { speaks: (speaks != Speaks::Auto).then_some(speaks), ..Self::default() }
    }

    /// Carries out what can be carried out of the input, up to `turns` requests; says how much of it is done with.
    pub fn advance(&mut self, input: &[u8], turns: &mut usize, cx: &mut Context<'_>, out: &mut Out) -> (usize, Pause) {
        let mut at = 0;
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
            let used = match self.speaks {
                None => {
                    let binary = first == crate::protocol::binary::REQUEST;
                    self.speaks = Some(if binary { Speaks::Binary } else { Speaks::Ascii });
                    continue;
                }
                Some(Speaks::Binary) => self.binary(rest, cx, out),
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
                let keys = [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|name| rest.starts_with(name));
                if rest.len() > if keys { LINE_MAX } else { PLAIN_LINE_MAX } {
                    out.bytes.extend_from_slice(b"SERVER_ERROR line too long\r\n");
                    self.over = true;
                }
                0
            }
        }
    }

    /// Where a large value that is on its way may be read to directly.
    pub fn direct(&mut self) -> Option<&mut [u8]> {
        let body = self.body.as_mut()?;
        let (got, len) = (body.got, body.len);
        // The last bytes go the usual way, which also ends the request; of a binary one nothing follows the value, so
        // that its last byte has to be left for that.
        if len.saturating_sub(got) < COPIED {
            return None;
        }
        let end = if body.ended { len } else { len - 1 };
        Some(&mut body.filling.as_mut()?.value()[got..end])
    }

    /// So much was read there.
    pub fn directly(&mut self, read: usize) {
        if let Some(body) = &mut self.body {
            body.got += read;
        }
    }

    /// Takes data for the body; says how much, and whether it was all.
    fn fill(&mut self, rest: &[u8], cx: &mut Context<'_>, out: &mut Out) -> (usize, bool) {
        let Some(body) = &mut self.body else { return (0, true) };
        let part = (body.len - body.got).min(rest.len());
        match &mut body.filling {
            Some(filling) => filling.value()[body.got..body.got + part].copy_from_slice(&rest[..part]),
            None => body.scratch.extend_from_slice(&rest[..part]),
        }
        body.got += part;
        if body.got < body.len {
            return (part, false);
        }
        let mut used = part;
        let mut good = true;
        if body.ended {
            let Some(end) = rest.get(part..part + 2) else { return (part, false) };
            good = end == b"\r\n";
            used += 2;
        }
        if let Some(body) = self.body.take() {
            self.finish(body, good, cx, out);
        }
        (used, true)
    }

    fn finish(&mut self, body: Body, good: bool, cx: &mut Context<'_>, out: &mut Out) {
        if let Answer::Auth { quiet } = body.answer {
            return self.authenticate(&body.scratch, good, quiet, cx, out);
        }
        let Some(filling) = body.filling else { return };
        let mut store = cx.shared.shards.at(body.shard);
        if !good {
            store.abandon(filling);
            // As memcached: of a meta command this answer comes even if none was wanted.
            if !matches!(body.answer, Answer::Text { quiet: true }) {
                out.bytes.extend_from_slice(b"CLIENT_ERROR bad data chunk\r\n");
            }
            return;
        }
        let outcome = store.publish(filling, body.terms, cx.now);
        drop(store);
        if body.terms.cas.is_some() {
            match outcome {
                Outcome::Stored(_) => cx.counts.cas_hits += 1,
                Outcome::Exists => cx.counts.cas_badval += 1,
                Outcome::NotFound => cx.counts.cas_misses += 1,
                _ => {}
            }
        }
        // To memcached, what has nothing to be put to is not stored, whatever version was asked for.
        let outcome = match (outcome, body.terms.mode) {
            (Outcome::NotFound, Mode::Append | Mode::Prepend) => Outcome::NotStored,
            (outcome, _) => outcome,
        };
        let outcome = match outcome {
            Outcome::Stored(version) => Outcome::Stored(cx.shown(version)),
            other => other,
        };
        match body.answer {
            Answer::Text { quiet } => text::stored(outcome, quiet, out),
            Answer::Meta { flags, key, quiet } => meta::stored(outcome, &flags, &key, quiet, out),
            Answer::Binary { header } => binary::stored(&header, body.terms.mode, outcome, out),
            Answer::Auth { .. } => {}
        }
    }

    /// Begins to take data for an item.
    fn begin(
        &mut self,
        key: &[u8],
        (len, flags, exptime): (usize, u32, i64),
        (terms, ended): (Terms, bool),
        cx: &mut Context<'_>,
        answer: Answer,
    ) -> Result<(), Refused> {
        cx.counts.cmd_set += 1;
        let shard = cx.shared.shards.of(key);
        let mut store = cx.shared.shards.at(shard);
        match store.reserve(key, len, flags, cx.until(exptime), cx.now) {
            Ok(filling) => {
                let filling = Some(filling);
                self.body = Some(Body { filling, scratch: Vec::new(), shard, got: 0, len, ended, terms, answer });
                Ok(())
            }
            Err(refused) => {
                // As memcached: better no value than the one that should have been replaced. `cas` would have replaced
                // only the one that was meant.
                let compared = terms.cas.is_some() && matches!(answer, Answer::Text { .. });
                if terms.mode == Mode::Set && !compared {
                    store.delete(key, None, cx.now);
                }
                self.drop = len + if ended { 2 } else { 0 };
                Err(refused)
            }
        }
    }

    /// Where the value that the last line announced goes, if none of it has come: for who brings it another way. What ends the
    /// request still has to come the usual way.
    pub(crate) fn awaited(&mut self) -> Option<&mut [u8]> {
        let body = self.body.as_mut().filter(|body| body.got == 0)?;
        Some(body.filling.as_mut()?.value())
    }

    /// Gives up the request whose data did not come: the next bytes are another's.
    pub(crate) fn give_up(&mut self, shards: &Shards) {
        self.close(shards);
        self.drop = 0;
    }

    /// Whether nothing is between a request's bytes, nor in the middle of an answer.
    pub fn is_quiet(&self) -> bool {
        self.body.is_none() && self.drop == 0 && !self.has_more()
    }

    /// Whether an answer goes on without more input.
    pub fn has_more(&self) -> bool {
        self.dump.is_some()
    }

    /// The conversation ends: what it holds of the store goes back.
    pub fn close(&mut self, shards: &Shards) {
        if let Some(Body { filling: Some(filling), shard, .. }) = self.body.take() {
            shards.at(shard).abandon(filling);
        }
    }

    fn authenticate(&mut self, name_and_password: &[u8], good: bool, quiet: bool, cx: &mut Context<'_>, out: &mut Out) {
        cx.counts.auth_cmds += 1;
        let space = name_and_password.iter().position(|&byte| byte == b' ');
        let known = space.filter(|_| good).map(|at| {
            let mut wanted = name_and_password.to_vec();
            wanted[at] = b':';
            let users = cx.shared.users.lock().unwrap_or_else(PoisonError::into_inner);
            // Each is compared to its end, so that the time says nothing.
            users.iter().fold(false, |found, user| found | same(user, &wanted))
        });
        let line = match known {
            Some(true) => {
                self.authenticated = true;
                "STORED\r\n"
            }
            Some(false) => "CLIENT_ERROR authentication failure\r\n",
            None => "CLIENT_ERROR bad authentication token format\r\n",
        };
        cx.counts.auth_errors += u64::from(known != Some(true));
        if !(quiet && known == Some(true)) {
            out.bytes.extend_from_slice(line.as_bytes());
        }
    }

    /// Whether the client may do something yet.
    pub(crate) fn may_speak(&self, cx: &Context<'_>) -> bool {
        self.authenticated || cx.shared.settings.users.is_none()
    }
}

fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn put_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
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

/// Whether this server's stop was asked for.
pub fn is_stopping(shared: &Shared) -> bool {
    shared.stop.load(Relaxed)
}

/// Whether it takes new connections.
pub fn is_accepting(shared: &Shared) -> bool {
    !shared.stop.load(Relaxed) && !shared.finish.load(Relaxed)
}
