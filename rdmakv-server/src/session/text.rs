//! Classic commands, carried out.

use super::body::{Body, LoginRequest, Reply};
use super::flash::HINTS;
use super::login::Login;
use super::replies::{NO_MEMORY_TO_READ, put_line, put_number, put_value, refusal};
use super::state::State;
use super::{COPIED_MAX, Context, Out, Recalled, admin, meta, replicate, stats, watch};
use crate::store::{Deleted, Outcome, Sum, Terms};
use rdmakv_proto::commands::text::{Request, parse};
use rdmakv_proto::commands::words;

pub(super) fn stored(outcome: Outcome, quiet: bool, out: &mut Out) {
    let line: &[u8] = match outcome {
        Outcome::Refused(refused) => return out.bytes.extend_from_slice(refusal(refused)),
        Outcome::Stored(_) => b"STORED\r\n",
        Outcome::NotStored => b"NOT_STORED\r\n",
        Outcome::Exists => b"EXISTS\r\n",
        Outcome::NotFound => b"NOT_FOUND\r\n",
    };
    put_line(line, quiet, out);
}

/// Runs the command of a line, and changes the state for what follows it.
pub(super) fn run(line: &[u8], login: &Login, state: &mut State, cx: &mut Context<'_>, out: &mut Out) {
    let request = match parse(line) {
        Ok(request) => request,
        Err(fault) => {
            if fault.line != rdmakv_proto::commands::text::SILENT {
                out.bytes.extend_from_slice(fault.line.as_bytes());
                out.bytes.extend_from_slice(b"\r\n");
            }
            *state = State::skip(fault.drop);
            return;
        }
    };
    if !login.is_enough(cx) && !admit(&request, login, state, cx, out) {
        return;
    }
    match request {
        Request::Get { keys, cas, touch } => {
            if !get(keys, cas, touch, cx, out) {
                *state = State::over();
            }
        }
        Request::Store { mode, key, flags, exptime, len, cas, quiet } => {
            let terms = Terms { mode, cas, ..Terms::default() };
            let body = Body::of_item(key, (len, flags, exptime), (terms, true), cx, Reply::Text { quiet });
            state.fill(body, |no_room| put_line(refusal(no_room.refused), quiet, out));
        }
        Request::Delete { key, quiet } => {
            let mut store = cx.shared.shards.with(key);
            cx.report_get(&store, key);
            cx.report_delete(&store, key, "delete");
            let done = store.delete(key, None, cx.now) == Deleted::Done;
            drop(store);
            cx.shared.prefixes.deleted(key);
            *(if done { &mut cx.counts.delete_hits } else { &mut cx.counts.delete_misses }) += 1;
            put_line(if done { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" }, quiet, out);
        }
        Request::Add { key, up, by, quiet } => {
            let shard = cx.shared.shards.of(key);
            let mut store = cx.shared.shards.at(shard);
            match cx.recall(&mut store, shard, key) {
                Recalled::Here => {}
                Recalled::Away => return,
                Recalled::Failed => {
                    out.bytes.extend_from_slice(NO_MEMORY_TO_READ);
                    return;
                }
            }
            cx.report_get(&store, key);
            let sum = store.add(key, (up, by), (None, None), None, cx.now);
            drop(store);
            cx.count_sum(sum, up);
            match sum {
                Sum::Done { number, .. } if !quiet => {
                    put_number(&mut out.bytes, number);
                    out.bytes.extend_from_slice(b"\r\n");
                }
                Sum::Done { .. } => {}
                Sum::NotFound | Sum::Exists => put_line(b"NOT_FOUND\r\n", quiet, out),
                Sum::NoNumber => {
                    put_line(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n", quiet, out);
                }
                Sum::Refused(_) => out.bytes.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
            }
        }
        Request::Touch { key, exptime, quiet } => {
            let until = cx.until(exptime);
            let mut store = cx.shared.shards.with(key);
            cx.report_get(&store, key);
            let done = store.touch(key, until, cx.now).is_some() || store.touch_away(key, until, cx.now);
            drop(store);
            cx.counts.cmd_touch += 1;
            *(if done { &mut cx.counts.touch_hits } else { &mut cx.counts.touch_misses }) += 1;
            put_line(if done { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" }, quiet, out);
        }
        Request::Version => {
            out.bytes.extend_from_slice(format!("VERSION {}\r\n", super::VERSION).as_bytes());
        }
        Request::Quit => *state = State::Over { quit: true },
        Request::Http => *state = State::over(),
        Request::Watch(words) => *state = watch(words, cx, out),
        Request::Meta(request) => meta::run(&request, state, cx, out),
        Request::MetaNoop => out.bytes.extend_from_slice(b"MN\r\n"),
        Request::MetaDebug(key) => meta::debug(&key, cx, out),
        Request::Replicate(request) => replicate::begin(&request, state, cx, out),
        Request::Ping => replicate::ping(cx, out),
        Request::Stats(what) => stats::text(what, cx, out),
        other => {
            if let Some(dump) = admin::run(other, cx, out) {
                *state = State::Dumping(dump);
            }
        }
    }
}

/// Begins to watch; nothing else is done on the connection from then on.
fn watch(words: &[u8], cx: &Context<'_>, out: &mut Out) -> State {
    let mut state = State::Ready;
    let line = match watch::interest(rdmakv_proto::commands::words(words)) {
        _ if !cx.shared.settings.watch => "CLIENT_ERROR watch commands not allowed",
        // Lines are delivered to sockets' connections only.
        _ if cx.peer < 0 => "CLIENT_ERROR watch needs a connection over TCP or a Unix socket",
        _ if !out.is_empty() => "ERROR cannot pipeline other commands before watch",
        None => "ERROR",
        Some(interest) => match cx.shared.watchers.add(interest) {
            None => "WATCHER_TOO_MANY log watcher limit reached",
            Some(watch) => {
                state = State::Watching(watch);
                "OK"
            }
        },
    };
    out.bytes.extend_from_slice(line.as_bytes());
    out.bytes.extend_from_slice(b"\r\n");
    state
}

/// Decides whether a request goes on whose client has to log in, or whose keys may be a cluster's.
#[cold]
fn admit(request: &Request<'_>, login: &Login, state: &mut State, cx: &mut Context<'_>, out: &mut Out) -> bool {
    if login.is_shown(cx) {
        return replicate::admit(request, state, cx, out);
    }
    // Other servers have no user, and learn nothing else.
    if let Request::Ping = request {
        return true;
    }
    *state = introduce(request, out);
    false
}

/// Before a user has shown a name and password, only that is understood: a `set` with them as its data.
fn introduce(request: &Request<'_>, out: &mut Out) -> State {
    let follows = match *request {
        Request::Store { len, quiet, .. } if len <= 4096 => {
            return State::Filling(Body::of_login(len, LoginRequest::Set { quiet }));
        }
        Request::Replicate(rdmakv_proto::commands::replicate::Request { len, .. }) => len + 2,
        Request::Quit => return State::Over { quit: true },
        Request::Http => return State::over(),
        Request::Store { len, .. }
        | Request::Meta(rdmakv_proto::commands::meta::Request { len, command: b's', .. }) => len + 2,
        _ => 0,
    };
    out.bytes.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n");
    State::skip(follows)
}

/// Appends the values; returns whether the answer was within bounds. If not, it ends in the middle, and so does the conversation.
fn get(keys: &[u8], cas: bool, touch: Option<i64>, cx: &mut Context<'_>, out: &mut Out) -> bool {
    let until = touch.map(|exptime| cx.until(exptime));
    let over = cx.ends_after(until);
    let shards = &cx.shared.shards;
    for (at, key) in words(keys).enumerate().skip(cx.waits.stopped.cursor) {
        let shard = shards.of(key);
        let mut store = shards.at(shard);
        match cx.recall(&mut store, shard, key) {
            Recalled::Here => {}
            Recalled::Away => {
                cx.waits.stopped.cursor = at;
                drop(store);
                let _ = words(keys).skip(at + 1).take(HINTS).all(|key| cx.hint(key));
                return true;
            }
            Recalled::Failed => {
                out.bytes.extend_from_slice(NO_MEMORY_TO_READ);
                return true;
            }
        }
        cx.counts.cmd_get += 1;
        cx.report_get(&store, key);
        let found = match until {
            None => store.get(key, true, cx.now),
            Some(until) => {
                cx.counts.cmd_touch += 1;
                let touched =
                    if over.is_none() { store.touch(key, until, cx.now) } else { store.get(key, false, cx.now) };
                *(if touched.is_some() { &mut cx.counts.touch_hits } else { &mut cx.counts.touch_misses }) += 1;
                touched
            }
        };
        cx.shared.prefixes.got(key, found.is_some());
        let Some(view) = found else {
            cx.counts.get_misses += 1;
            continue;
        };
        cx.counts.get_hits += 1;
        out.bytes.extend_from_slice(b"VALUE ");
        out.bytes.extend_from_slice(key);
        out.bytes.push(b' ');
        put_number(&mut out.bytes, view.flags);
        out.bytes.push(b' ');
        put_number(&mut out.bytes, view.value.len());
        if cas {
            out.bytes.push(b' ');
            put_number(&mut out.bytes, cx.shown(view.version));
        }
        out.bytes.extend_from_slice(b"\r\n");
        let handle = view.handle();
        put_value(&mut store, handle, shard, out);
        if let Some(until) = over {
            store.touch(key, until, cx.now);
        }
        out.bytes.extend_from_slice(b"\r\n");
        if out.bytes.len() > COPIED_MAX {
            out.bytes.extend_from_slice(b"SERVER_ERROR out of memory writing get response\r\n");
            return false;
        }
    }
    out.bytes.extend_from_slice(b"END\r\n");
    true
}

/// Begins the reads of the lookups that these lines begin with.
pub(super) fn hint(mut rest: &[u8], cx: &mut Context<'_>) {
    for _ in 0..HINTS {
        let Some(end) = memchr::memchr(b'\n', rest) else { return };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let may_go_on = match parse(line) {
            Ok(Request::Get { keys, .. }) => words(keys).take(HINTS).all(|key| cx.hint(key)),
            Ok(Request::Meta(request)) if request.command == b'g' => cx.hint(request.key.get()),
            Ok(Request::MetaNoop) => true,
            _ => false,
        };
        if !may_go_on {
            return;
        }
        rest = &rest[end + 1..];
    }
}
