//! Binary commands, carried out.

use super::body::{Body, LoginRequest, Reply};
use super::flash::HINTS;
use super::login::{self, Login};
use super::replies::{put_error, put_value};
use super::state::State;
use super::{Context, Out, Recalled, admin, replicate, stats};
use crate::store::{Deleted, KEY_MAX, Mode, Outcome, Refused, Store, Sum, Terms};
use rdmakv_proto::commands::binary::{self, HEADER, Header, Op, status};

fn ok(header: &Header, cas: u64, out: &mut Out) {
    header.answer(&mut out.bytes, status::OK, (0, 0, 0), cas);
}

fn refusal(refused: Refused) -> u16 {
    match refused {
        Refused::TooLarge => status::TOO_LARGE,
        Refused::NoMemory => status::OUT_OF_MEMORY,
    }
}

pub(super) fn stored(header: &Header, mode: Mode, outcome: Outcome, out: &mut Out) {
    let code = match (outcome, mode) {
        (Outcome::Stored(version), _) => {
            if !header.quiet {
                ok(header, version, out);
            }
            return;
        }
        (Outcome::NotStored, Mode::Add) => status::KEY_EXISTS,
        (Outcome::NotStored, Mode::Replace) => status::KEY_NOT_FOUND,
        (Outcome::NotStored, _) => status::NOT_STORED,
        (Outcome::Exists, _) => status::KEY_EXISTS,
        (Outcome::NotFound, _) => status::KEY_NOT_FOUND,
        (Outcome::Refused(refused), _) => refusal(refused),
    };
    put_error(header, code, out);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// Runs the first request, if all of it but an item's value is there. Returns its length so far, and what follows it.
pub(super) fn run(rest: &[u8], login: &mut Login, state: &mut State, cx: &mut Context<'_>, out: &mut Out) -> usize {
    let Some(first) = rest.first_chunk::<HEADER>() else {
        // No need to wait for more of what cannot be one.
        if rest[0] != binary::REQUEST {
            *state = State::over();
        }
        return 0;
    };
    let Ok(header) = binary::parse(first) else {
        *state = State::over();
        return 0;
    };
    if !header.is_well_formed() || header.key > KEY_MAX || header.op == Op::Unknown {
        let known = header.op != Op::Unknown;
        put_error(&header, if known { status::INVALID } else { status::UNKNOWN_COMMAND }, out);
        // As memcached: after a command with parts of unknown length nothing more is read.
        let follows = header.extras + header.key + header.value;
        *state = if known { State::over() } else { State::skip(follows) };
        return HEADER;
    }
    let before_value = HEADER + header.extras + header.key;
    if rest.len() < before_value {
        return 0;
    }
    let (extras, key) = rest[HEADER..before_value].split_at(header.extras);
    carry_out(header, (extras, key), login, state, cx, out);
    before_value
}

/// Carries out a request, of which only an item's value may be missing.
fn carry_out(
    header: Header,
    (extras, key): (&[u8], &[u8]),
    login: &mut Login,
    state: &mut State,
    cx: &mut Context<'_>,
    out: &mut Out,
) {
    let sasl = matches!(header.op, Op::SaslMechanisms | Op::SaslAuth | Op::SaslStep);
    if sasl && !cx.shared.settings.sasl {
        put_error(&header, status::UNKNOWN_COMMAND, out);
        *state = State::skip(header.value);
        return;
    }
    // As memcached: what comes before the name and the password ends the connection.
    if !login.is_enough(cx) && !sasl && !matches!(header.op, Op::Quit | Op::Version) {
        if !login.is_shown(cx) {
            put_error(&header, status::AUTH_ERROR, out);
            *state = State::over();
            return;
        }
        if replicate::refuses_binary(cx, header.op, key).is_some() {
            put_error(&header, status::NOT_SUPPORTED, out);
            *state = State::skip(header.value);
            return;
        }
    }
    if let Op::SaslAuth | Op::SaslStep = header.op {
        if !login::is_acceptable(key, header.value) {
            put_error(&header, status::INVALID, out);
            *state = State::skip(header.value);
            return;
        }
        login.begin_sasl(key);
        *state = State::Filling(Body::of_login(header.value, LoginRequest::Sasl { header }));
        return;
    }
    let mode = match header.op {
        Op::Set => Mode::Set,
        Op::Add => Mode::Add,
        Op::Replace => Mode::Replace,
        Op::Append => Mode::Append,
        Op::Prepend => Mode::Prepend,
        _ => return simple(&header, (extras, key), state, cx, out),
    };
    // As memcached: with a version to compare with, these are what `cas` is.
    let mode = if header.cas != 0 && matches!(mode, Mode::Add | Mode::Replace) { Mode::Set } else { mode };
    let terms = Terms { mode, cas: (header.cas != 0).then_some(header.cas), ..Terms::default() };
    let item = (header.value, u32_at(extras, 0), exptime(extras, 4));
    let body = Body::of_item(key, item, (terms, false), cx, Reply::Binary { header });
    state.fill(body, |no_room| put_error(&header, refusal(no_room.refused), out));
}

/// Returns whether what there is of the key is in memory. If not, it is read and the command runs again, or it is refused.
fn is_here(
    store: &mut Store,
    shard: usize,
    (header, key): (&Header, &[u8]),
    cx: &mut Context<'_>,
    out: &mut Out,
) -> bool {
    let recalled = cx.recall(store, shard, key);
    if recalled == Recalled::Failed {
        put_error(header, status::OUT_OF_MEMORY, out);
    }
    recalled == Recalled::Here
}

/// Begins the reads of the lookups that these requests begin with.
pub(super) fn hint(mut rest: &[u8], cx: &mut Context<'_>) {
    for _ in 0..HINTS {
        let Some(Ok(header)) = rest.first_chunk::<HEADER>().map(binary::parse) else { return };
        let before_value = HEADER + header.extras + header.key;
        let is_lookup = matches!(header.op, Op::Get { .. } | Op::GetTouch { .. });
        if !is_lookup || !header.is_well_formed() || header.key > KEY_MAX || rest.len() < before_value {
            return;
        }
        if !cx.hint(&rest[HEADER + header.extras..before_value]) {
            return;
        }
        rest = &rest[before_value..];
    }
}

/// Runs a command without a value.
fn simple(header: &Header, (extras, key): (&[u8], &[u8]), state: &mut State, cx: &mut Context<'_>, out: &mut Out) {
    match header.op {
        Op::Get { with_key } => get(header, key, with_key, None, cx, out),
        Op::GetTouch { with_key } => get(header, key, with_key, Some(exptime(extras, 0)), cx, out),
        Op::Touch => {
            let until = cx.until(exptime(extras, 0));
            let shard = cx.shared.shards.of(key);
            let mut store = cx.shared.shards.at(shard);
            if !is_here(&mut store, shard, (header, key), cx, out) {
                return;
            }
            cx.counts.cmd_touch += 1;
            cx.report_get(&store, key);
            match store.touch(key, until, cx.now).map(|view| (view.version, view.flags)) {
                Some((version, flags)) => {
                    cx.counts.touch_hits += 1;
                    // The flags come back, as memcached has it.
                    header.answer(&mut out.bytes, status::OK, (4, 0, 0), cx.shown(version));
                    out.bytes.extend_from_slice(&flags.to_be_bytes());
                }
                None => {
                    cx.counts.touch_misses += 1;
                    put_error(header, status::KEY_NOT_FOUND, out);
                }
            }
        }
        Op::Delete => {
            let cas = (header.cas != 0).then_some(header.cas);
            let shard = cx.shared.shards.of(key);
            let mut store = cx.shared.shards.at(shard);
            if cas.is_some() && !is_here(&mut store, shard, (header, key), cx, out) {
                return;
            }
            cx.report_get(&store, key);
            cx.report_delete(&store, key, "delete");
            cx.shared.prefixes.deleted(key);
            match store.delete(key, cas, cx.now) {
                Deleted::Done => {
                    cx.counts.delete_hits += 1;
                    if !header.quiet {
                        ok(header, 0, out);
                    }
                }
                Deleted::NotFound => {
                    cx.counts.delete_misses += 1;
                    put_error(header, status::KEY_NOT_FOUND, out);
                }
                Deleted::Exists => put_error(header, status::KEY_EXISTS, out),
            }
        }
        Op::Increment | Op::Decrement => arithmetic(header, extras, key, cx, out),
        Op::Quit => {
            if !header.quiet {
                ok(header, 0, out);
            }
            *state = State::Over { quit: true };
        }
        Op::Flush => {
            if !cx.shared.settings.flush {
                return put_error(header, status::AUTH_ERROR, out);
            }
            let delay = u32_at(extras, 0);
            admin::flush(i64::from(delay), cx);
            if !header.quiet {
                ok(header, 0, out);
            }
        }
        Op::Noop => ok(header, 0, out),
        Op::SaslMechanisms => {
            header.answer(&mut out.bytes, status::OK, (0, 0, login::MECHANISM.len()), 0);
            out.bytes.extend_from_slice(login::MECHANISM);
        }
        Op::Version => {
            header.answer(&mut out.bytes, status::OK, (0, 0, super::VERSION.len()), 0);
            out.bytes.extend_from_slice(super::VERSION.as_bytes());
        }
        Op::Verbosity => {
            admin::verbosity(u32_at(extras, 0), cx);
            ok(header, 0, out);
        }
        Op::Stat => {
            let done = stats::run(key, cx, &mut |name, value| {
                header.answer(&mut out.bytes, status::OK, (0, name.len(), value.len()), 0);
                out.bytes.extend_from_slice(name.as_bytes());
                out.bytes.extend_from_slice(value.as_bytes());
            });
            match done {
                Ok(_) => ok(header, 0, out),
                Err(_) => put_error(header, status::KEY_NOT_FOUND, out),
            }
        }
        _ => put_error(header, status::UNKNOWN_COMMAND, out),
    }
}

/// Returns an expiry of 32 bits, without a sign: all ones is a time far off.
fn exptime(extras: &[u8], at: usize) -> i64 {
    i64::from(u32_at(extras, at))
}

fn get(header: &Header, key: &[u8], with_key: bool, touch: Option<i64>, cx: &mut Context<'_>, out: &mut Out) {
    let shard = cx.shared.shards.of(key);
    let mut store = cx.shared.shards.at(shard);
    if !is_here(&mut store, shard, (header, key), cx, out) {
        return;
    }
    cx.counts.cmd_get += 1;
    cx.report_get(&store, key);
    let until = touch.map(|exptime| cx.until(exptime));
    let over = cx.ends_after(until);
    let found = match until {
        None => store.get(key, true, cx.now),
        Some(until) => {
            cx.counts.cmd_touch += 1;
            let touched = if over.is_none() { store.touch(key, until, cx.now) } else { store.get(key, false, cx.now) };
            *(if touched.is_some() { &mut cx.counts.touch_hits } else { &mut cx.counts.touch_misses }) += 1;
            touched
        }
    };
    cx.shared.prefixes.got(key, found.is_some());
    let Some(view) = found else {
        cx.counts.get_misses += 1;
        if header.quiet {
            return;
        }
        if with_key {
            header.answer(&mut out.bytes, status::KEY_NOT_FOUND, (0, key.len(), 0), 0);
            return out.bytes.extend_from_slice(key);
        }
        return put_error(header, status::KEY_NOT_FOUND, out);
    };
    cx.counts.get_hits += 1;
    let cas = cx.shown(view.version);
    let sizes = (4, if with_key { key.len() } else { 0 }, view.value.len());
    header.answer(&mut out.bytes, status::OK, sizes, cas);
    out.bytes.extend_from_slice(&view.flags.to_be_bytes());
    if with_key {
        out.bytes.extend_from_slice(key);
    }
    let handle = view.handle();
    put_value(&mut store, handle, shard, out);
    if let Some(until) = over {
        store.touch(key, until, cx.now);
    }
}

fn arithmetic(header: &Header, extras: &[u8], key: &[u8], cx: &mut Context<'_>, out: &mut Out) {
    let (delta, initial, expiry) = (u64_at(extras, 0), u64_at(extras, 8), u32_at(extras, 16));
    let up = header.op == Op::Increment;
    let shard = cx.shared.shards.of(key);
    let mut store = cx.shared.shards.at(shard);
    if !is_here(&mut store, shard, (header, key), cx, out) {
        return;
    }
    cx.report_get(&store, key);
    let cas = (header.cas != 0).then_some(header.cas);
    let mut sum = store.add(key, (up, delta), (cas, None), None, cx.now);
    cx.count_sum(sum, up);
    // All ones: not to be made where there is none.
    if sum == Sum::NotFound && expiry != u32::MAX {
        let digits = initial.to_string();
        let made = store.reserve(key, digits.len(), 0, cx.until(i64::from(expiry)), cx.now).map(|mut writer| {
            writer.value().copy_from_slice(digits.as_bytes());
            store.publish(writer, Terms::default(), cx.now)
        });
        sum = match made {
            Ok(Outcome::Stored(version)) => Sum::Done { number: initial, version, expiry: 0 },
            Ok(_) => Sum::NotFound,
            Err(refused) => Sum::Refused(refused),
        };
    }
    let code = match sum {
        Sum::Done { number, version, .. } => {
            if !header.quiet {
                header.answer(&mut out.bytes, status::OK, (0, 0, 8), cx.shown(version));
                out.bytes.extend_from_slice(&number.to_be_bytes());
            }
            return;
        }
        Sum::NotFound => status::KEY_NOT_FOUND,
        Sum::NoNumber => status::NON_NUMERIC,
        Sum::Exists => status::KEY_EXISTS,
        Sum::Refused(refused) => refusal(refused),
    };
    put_error(header, code, out);
}
