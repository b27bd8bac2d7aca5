//! The commands of a cluster: calls (`mx`), pings (`mp`), and plain commands on resilient keys.
//!
//! A plain client may `get` a resilient key at its primary. All its other commands on such keys are refused. A server of a cluster looks at
//! the keys of each plain command. Other servers do not: the check for a login covers both.

use super::body::{Body, TooLarge};
use super::cluster::{Cluster, Keeping, RESILIENT, Value};
use super::replies::put_number;
use super::room::Room;
use super::state::State;
use super::{Context, Out, Shared};
use crate::metrics::count;
use rdmakv_cluster::messages::Answer;
use rdmakv_cluster::wire::MAX_CALL;
use rdmakv_proto::commands::binary::Op;
use rdmakv_proto::commands::replicate::Request as Announced;
use rdmakv_proto::commands::text::Request;
use rdmakv_proto::commands::words;

/// The answer while it is not known which keys are resilient.
pub(crate) const UNKNOWN: &str = "SERVER_ERROR cluster not known yet: try again";

/// Returns the line that refuses a plain command on this key, if one does.
fn refusal(cluster: &Cluster, key: &[u8]) -> Option<&'static str> {
    match cluster.keeping(key) {
        Keeping::Plain => None,
        Keeping::Resilient => Some(RESILIENT),
        Keeping::Unknown => Some(UNKNOWN),
    }
}

fn put_line(line: &str, out: &mut Out) {
    out.bytes.extend_from_slice(line.as_bytes());
    out.bytes.extend_from_slice(b"\r\n");
}

/// Announces a call whose body follows.
pub(super) fn begin(request: &Announced, state: &mut State, cx: &Context<'_>, out: &mut Out) {
    let line = match &cx.shared.cluster {
        None => "ERROR",
        Some(_) if request.call_len > MAX_CALL => "CLIENT_ERROR call too long",
        Some(cluster) => match Body::of_call(cluster, request.key.get(), (request.len, request.call_len), cx) {
            Ok(body) => {
                *state = State::Filling(body);
                return;
            }
            Err(TooLarge) => "SERVER_ERROR object too large for cache",
        },
    };
    put_line(line, out);
    *state = State::skip(request.len + 2);
}

/// The call that a client makes next, if it goes on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    /// The one that publishes the write that was ordered.
    Publication,
    /// One of another write.
    Write,
}

/// Answers a call over this connection whose body is complete. Returns which one follows.
pub(super) fn finish(
    key: &[u8],
    call: &[u8],
    (room, shard): (Room, usize),
    connection: u64,
    cx: &Context<'_>,
    out: &mut Out,
) -> Option<Follows> {
    let Some(cluster) = &cx.shared.cluster else {
        room.abandon(&cx.shared.shards, shard);
        return None;
    };
    let bytes = &mut out.bytes;
    let mut follows = None;
    let done = cluster.call(&cx.shared.shards, (key, connection, cx.now), (call, room), |reply, piece| {
        let mut encoded = Vec::new();
        reply.encode(&mut encoded);
        follows = Some(follows_on(&reply.reply.answer));
        bytes.extend_from_slice(b"MX ");
        put_number(bytes, encoded.len() + piece.len());
        bytes.push(b' ');
        put_number(bytes, encoded.len());
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&encoded);
        bytes.extend_from_slice(piece);
        bytes.extend_from_slice(b"\r\n");
    });
    if let Err(line) = done {
        put_line(line, out);
    }
    follows
}

fn follows_on(answer: &Answer) -> Follows {
    if matches!(answer, Answer::Ordered { .. }) { Follows::Publication } else { Follows::Write }
}

/// Answers `mp`.
pub(super) fn ping(cx: &Context<'_>, out: &mut Out) {
    match &cx.shared.cluster {
        None => put_line("ERROR", out),
        Some(cluster) => {
            let (run, epoch, now, has_right) = cluster.ping();
            let right = if has_right { "right" } else { "none" };
            put_line(&format!("MP {:016x} {} {now} {right}", run.0, epoch.0), out);
        }
    }
}

/// Decides whether a plain command goes on: it has no resilient key. Otherwise the command is answered here.
pub(super) fn admit(request: &Request<'_>, state: &mut State, cx: &mut Context<'_>, out: &mut Out) -> bool {
    let Some(cluster) = &cx.shared.cluster else { return true };
    let (key, follows) = match request {
        Request::Get { keys, cas, touch } => {
            let mut kinds = words(keys).map(|key| cluster.keeping(key));
            let Some(first) = kinds.next() else { return true };
            return match (first, kinds.all(|kind| kind == first)) {
                (Keeping::Plain, true) => true,
                (Keeping::Resilient, true) if touch.is_none() => {
                    get(cluster, keys, *cas, cx, out);
                    false
                }
                (Keeping::Unknown, _) => refuse(cluster, UNKNOWN, 0, state, out),
                (_, false) => {
                    let line = "SERVER_ERROR plain and resilient keys in one command: ask for them apart";
                    refuse(cluster, line, 0, state, out)
                }
                _ => refuse(cluster, RESILIENT, 0, state, out),
            };
        }
        Request::Store { key, len, .. } => (*key, len + 2),
        Request::Delete { key, .. } | Request::Add { key, .. } | Request::Touch { key, .. } => (*key, 0),
        Request::MetaDebug(key) => (key.get(), 0),
        Request::Meta(request) => (request.key.get(), if request.command == b's' { request.len + 2 } else { 0 }),
        _ => return true,
    };
    match refusal(cluster, key) {
        None => true,
        Some(line) => refuse(cluster, line, follows, state, out),
    }
}

/// Returns the line that refuses a request for this key over a binary connection, if one does.
fn refuses(cx: &Context<'_>, key: &[u8]) -> Option<&'static str> {
    let cluster = cx.shared.cluster.as_ref()?;
    let line = refusal(cluster, key)?;
    count(&cluster.counts().plain_refused);
    Some(line)
}

/// Returns the cluster that has the key, if one has: only its part at this server knows the value.
///
/// # Errors
///
/// It is not known yet.
pub(crate) fn resilient<'a>(shared: &'a Shared, key: &[u8]) -> Result<Option<&'a Cluster>, &'static str> {
    let Some(cluster) = &shared.cluster else { return Ok(None) };
    match cluster.keeping(key) {
        Keeping::Plain => Ok(None),
        Keeping::Resilient => Ok(Some(cluster)),
        Keeping::Unknown => {
            count(&cluster.counts().plain_refused);
            Err(UNKNOWN)
        }
    }
}

/// Returns the line that refuses a binary request, if one does.
pub(super) fn refuses_binary(cx: &Context<'_>, op: Op, key: &[u8]) -> Option<&'static str> {
    // The key of other requests is a name, and not the key of a value.
    let has_key = !matches!(op, Op::Stat | Op::SaslMechanisms | Op::SaslAuth | Op::SaslStep);
    refuses(cx, key).filter(|_| has_key && !key.is_empty())
}

fn refuse(cluster: &Cluster, line: &str, follows: usize, state: &mut State, out: &mut Out) -> bool {
    count(&cluster.counts().plain_refused);
    put_line(line, out);
    *state = State::skip(follows);
    false
}

/// Appends the values of resilient keys.
fn get(cluster: &Cluster, keys: &[u8], cas: bool, cx: &mut Context<'_>, out: &mut Out) {
    let from = out.bytes.len();
    for key in words(keys) {
        cx.counts.cmd_get += 1;
        let shown = |version| cx.shown(version);
        let bytes = &mut out.bytes;
        let read = cluster.read(&cx.shared.shards, key, cx.now, |value: Option<Value<'_>>| {
            let Some(Value { bytes: value, flags, version }) = value else { return false };
            bytes.extend_from_slice(b"VALUE ");
            bytes.extend_from_slice(key);
            bytes.push(b' ');
            put_number(bytes, flags);
            bytes.push(b' ');
            put_number(bytes, value.len());
            if cas {
                bytes.push(b' ');
                put_number(bytes, shown(version));
            }
            bytes.extend_from_slice(b"\r\n");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
            true
        });
        let is_too_long = out.bytes.len() - from > super::COPIED_MAX;
        match read {
            Ok(true) if !is_too_long => cx.counts.get_hits += 1,
            Ok(false) => cx.counts.get_misses += 1,
            read => {
                // The error is the whole answer, so that no client takes a part of the values for all.
                out.bytes.truncate(from);
                count(&cluster.counts().plain_refused);
                return put_line(read.err().unwrap_or("SERVER_ERROR out of memory writing get response"), out);
            }
        }
    }
    out.bytes.extend_from_slice(b"END\r\n");
}
