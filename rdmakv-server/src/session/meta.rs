//! Meta commands, carried out. An answer's flags come in the order of the request's.

use super::body::{Body, Reply};
use super::replies::{NO_MEMORY_TO_READ, put_number, put_value, refusal};
use super::state::State;
use super::{COPIED, Context, Out, Recalled};
use crate::store::{Deleted, Keep, Mode, Outcome, Store, Sum, Terms, View};
use rdmakv_proto::commands::meta::{Key, Request, TOO_OPAQUE, encode};
use rdmakv_proto::commands::words;

/// Returns whether the key came as base64.
fn is_binary(flags: &[u8]) -> bool {
    words(flags).any(|flag| flag[0] == b'b')
}

/// Appends flags that repeat what was sent: the key, with how it is written, and the opaque token.
fn echo(flags: &[u8], (key, binary): (&[u8], bool), out: &mut Vec<u8>) {
    for flag in words(flags) {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => {
                out.extend_from_slice(b" k");
                out.extend_from_slice(key);
                if binary {
                    out.extend_from_slice(b" b");
                }
            }
            _ => {}
        }
    }
}

fn line(code: &[u8], flags: &[u8], key: &[u8], out: &mut Out) {
    out.bytes.extend_from_slice(code);
    echo(flags, (key, is_binary(flags)), &mut out.bytes);
    out.bytes.extend_from_slice(b"\r\n");
}

/// `size` is what the item's value has now.
pub(super) fn stored(outcome: Outcome, (flags, quiet): (&[u8], bool), key: &[u8], size: usize, out: &mut Out) {
    let (code, version): (&[u8], u64) = match outcome {
        Outcome::Refused(refused) => return out.bytes.extend_from_slice(refusal(refused)),
        Outcome::Stored(_) if quiet => return,
        Outcome::Stored(version) => (b"HD", version),
        Outcome::NotStored => (b"NS", 0),
        Outcome::Exists => (b"EX", 0),
        Outcome::NotFound => (b"NF", 0),
    };
    out.bytes.extend_from_slice(code);
    for flag in words(flags) {
        if flag[0] == b'c' {
            out.bytes.extend_from_slice(b" c");
            put_number(&mut out.bytes, version);
        } else if flag[0] == b's' && matches!(outcome, Outcome::Stored(_)) {
            out.bytes.extend_from_slice(b" s");
            put_number(&mut out.bytes, size);
        } else {
            echo(flag, (key, is_binary(flags)), &mut out.bytes);
        }
    }
    out.bytes.extend_from_slice(b"\r\n");
}

fn ttl(expiry: u64, now: u64, out: &mut Vec<u8>) {
    if expiry == 0 {
        out.extend_from_slice(b"-1");
    } else {
        put_number(out, expiry.saturating_sub(now));
    }
}

/// Runs a command, and changes the state for what follows it.
pub(super) fn run(request: &Request<'_>, state: &mut State, cx: &mut Context<'_>, out: &mut Out) {
    match request.command {
        b'g' => get(request, cx, out),
        b's' => set(request, state, cx, out),
        b'd' => delete(request, cx, out),
        _ => arithmetic(request, cx, out),
    }
    cx.counts.cmd_meta += u64::from(!cx.waits.is_away());
}

/// Returns whether what there is of the key is in memory. If not, it is read and the command runs again, or it is refused.
fn is_here(store: &mut Store, shard: usize, key: &[u8], cx: &mut Context<'_>, out: &mut Out) -> bool {
    let recalled = cx.recall(store, shard, key);
    if recalled == Recalled::Failed {
        out.bytes.extend_from_slice(NO_MEMORY_TO_READ);
    }
    recalled == Recalled::Here
}

fn set(request: &Request<'_>, state: &mut State, cx: &mut Context<'_>, out: &mut Out) {
    let options = &request.options;
    // An item that is to be added has no version yet.
    let cas = options.cas.filter(|_| options.mode != Mode::Add);
    let binary = request.key.binary;
    // An append to nothing is stored with an end of its own.
    let appends = matches!(options.mode, Mode::Append | Mode::Prepend);
    let vivify = options.vivify.filter(|_| appends);
    let (version, invalidate) = (options.version, options.invalidate);
    let terms = Terms { mode: options.mode, cas, invalidate, version, vivify: vivify.is_some(), binary };
    let reply = Reply::Meta { flags: request.flags.to_vec(), key: request.sent_key.to_vec(), quiet: options.quiet };
    let item = (request.len, options.client_flags, vivify.or(options.ttl).unwrap_or(0));
    let body = Body::of_item(request.key.get(), item, (terms, true), cx, reply);
    state.fill(body, |no_room| out.bytes.extend_from_slice(refusal(no_room.refused)));
}

/// Before an answer with these flags: counts the uses in the kernel, if it tells of any.
#[inline]
fn learn_hits(store: &mut Store, key: &[u8], flags: &[u8], now: u64) {
    if store.is_listed_in_kernel() && words(flags).any(|flag| matches!(flag[0], b'h' | b'l')) {
        store.learn_hits(key, now);
    }
}

fn get(request: &Request<'_>, cx: &mut Context<'_>, out: &mut Out) {
    let (options, key) = (&request.options, request.key.get());
    let shard = cx.shared.shards.of(key);
    let mut store = cx.shared.shards.at(shard);
    if needs_no_read(request, cx) && answer_from_stub(request, &mut store, cx, out) {
        return;
    }
    if !is_here(&mut store, shard, key, cx, out) {
        return;
    }
    cx.counts.cmd_get += 1;
    cx.report_get(&store, key);
    let mut won = false;
    learn_hits(&mut store, key, request.flags, cx.now);
    let there = store.get(key, false, cx.now).is_some();
    cx.shared.prefixes.got(key, there);
    if !there {
        cx.counts.get_misses += 1;
        won = options
            .vivify
            .is_some_and(|ttl| vivify(&mut store, &request.key, b"", (ttl, options.version), cx).is_some());
        if !won {
            if options.vivify.is_some() {
                out.bytes.extend_from_slice(b"SERVER_ERROR out of memory\r\n");
            } else if !options.quiet {
                line(b"EN", request.flags, request.sent_key, out);
            }
            return;
        }
    } else {
        cx.counts.get_hits += 1;
    }
    // The item before this question; then the question's effect on it.
    let Some(before) = store.get(key, !options.no_bump && !won, cx.now) else {
        // Made, and over at once.
        return nothing_made(request, &mut out.bytes);
    };
    let (handle, accessed, fetched, stale) = (before.handle(), before.accessed, before.fetched, before.stale);
    let mut already = before.won && !won;
    let made = won;
    let left = if before.expiry == 0 { i64::MAX } else { before.expiry.saturating_sub(cx.now) as i64 };
    if !won && (stale || options.recache.is_some_and(|least| left < least)) {
        won = !already;
    } else if !stale && !won && options.recache.is_none() && options.vivify.is_none() {
        already = already && before.won;
    }
    if made && !options.no_bump {
        store.get(key, true, cx.now);
    }
    if won {
        store.mark_won(handle);
    }
    let until = options.ttl.map(|exptime| cx.until(exptime));
    let over = cx.ends_after(until);
    if let Some(until) = until {
        cx.counts.cmd_touch += 1;
        cx.counts.touch_hits += 1;
        if over.is_none() {
            store.touch(key, until, cx.now);
        }
    }
    let Some(item) = store.get(key, false, cx.now) else { return };
    let bytes = &mut out.bytes;
    if options.value {
        bytes.extend_from_slice(b"VA ");
        put_number(bytes, item.value.len());
    } else {
        bytes.extend_from_slice(b"HD");
    }
    for flag in words(request.flags) {
        let letter = flag[0];
        if b"cfhlst".contains(&letter) {
            bytes.extend_from_slice(&[b' ', letter]);
        }
        match letter {
            b'c' => put_number(bytes, cx.shown(item.version)),
            b'f' => put_number(bytes, item.flags),
            b'h' => put_number(bytes, u8::from(fetched)),
            b'l' => put_number(bytes, (cx.now as u32).saturating_sub(accessed)),
            b's' => put_number(bytes, item.value.len()),
            b't' => ttl(item.expiry, cx.now, bytes),
            // The key as it was stored, however it was sent.
            b'k' if item.binary => {
                bytes.extend_from_slice(b" k");
                encode(item.key, bytes);
                bytes.extend_from_slice(b" b");
            }
            _ => echo(flag, (item.key, false), bytes),
        }
    }
    for (said, flag) in [(already && !won, b" Z"), (stale, b" X"), (won, b" W")] {
        if said {
            bytes.extend_from_slice(flag);
        }
    }
    bytes.extend_from_slice(b"\r\n");
    if options.value {
        if item.value.len() <= COPIED {
            bytes.extend_from_slice(item.value);
        } else {
            let handle = item.handle();
            put_value(&mut store, handle, shard, out);
        }
        out.bytes.extend_from_slice(b"\r\n");
    }
    if let Some(until) = over {
        store.touch(key, until, cx.now);
    }
}

/// Returns whether a `mg` asks for nothing that is on flash only, and changes no more than the item's end.
fn needs_no_read(request: &Request<'_>, cx: &Context<'_>) -> bool {
    let options = &request.options;
    let ends = options.ttl.map(|exptime| cx.until(exptime));
    !options.value
        && options.recache.is_none()
        && cx.ends_after(ends).is_none()
        && !words(request.flags).any(|flag| b"cfls".contains(&flag[0]))
}

/// Answers a `mg` for an item that is on flash only, without a read of it; returns whether it is one.
fn answer_from_stub(request: &Request<'_>, store: &mut Store, cx: &mut Context<'_>, out: &mut Out) -> bool {
    let (options, key) = (&request.options, request.key.get());
    let Some(glance) = store.glance(key, !options.no_bump, cx.now) else { return false };
    cx.report_get(store, key);
    cx.counts.cmd_get += 1;
    cx.counts.get_hits += 1;
    cx.shared.prefixes.got(key, true);
    let mut expiry = glance.expiry;
    if let Some(exptime) = options.ttl {
        expiry = cx.until(exptime);
        cx.counts.cmd_touch += 1;
        cx.counts.touch_hits += 1;
        store.touch_away(key, expiry, cx.now);
    }
    let bytes = &mut out.bytes;
    bytes.extend_from_slice(b"HD");
    for flag in words(request.flags) {
        match flag[0] {
            b'h' => bytes.extend_from_slice(if glance.fetched { b" h1" } else { b" h0" }),
            b't' => {
                bytes.extend_from_slice(b" t");
                ttl(expiry, cx.now, bytes);
            }
            b'k' if glance.binary => {
                bytes.extend_from_slice(b" k");
                encode(key, bytes);
                bytes.extend_from_slice(b" b");
            }
            _ => echo(flag, (key, false), bytes),
        }
    }
    bytes.extend_from_slice(b"\r\n");
    true
}

/// Returns the answer to a request that made an empty item which was over before it could be shown.
fn nothing_made(request: &Request<'_>, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(if request.options.value { b"VA 0" } else { b"HD" });
    for flag in words(request.flags) {
        match flag[0] {
            letter @ (b'c' | b'f' | b'h' | b'l' | b's' | b't') => bytes.extend_from_slice(&[b' ', letter, b'0']),
            _ => echo(flag, (request.sent_key, request.key.binary), bytes),
        }
    }
    bytes.extend_from_slice(if request.options.value { b" W\r\n\r\n" } else { b" W\r\n" });
}

/// Makes an item where there was none; returns its version, which is the given one if there is one.
fn vivify(
    store: &mut Store,
    key: &Key,
    value: &[u8],
    (ttl, version): (i64, Option<u64>),
    cx: &Context<'_>,
) -> Option<u64> {
    let mut writer = store.reserve(key.get(), value.len(), 0, cx.until(ttl), cx.now).ok()?;
    writer.value().copy_from_slice(value);
    match store.publish(writer, Terms { binary: key.binary, version, ..Terms::default() }, cx.now) {
        Outcome::Stored(version) => Some(version),
        _ => None,
    }
}

fn delete(request: &Request<'_>, cx: &mut Context<'_>, out: &mut Out) {
    let (options, key) = (&request.options, request.key.get());
    let shard = cx.shared.shards.of(key);
    let mut store = cx.shared.shards.at(shard);
    let needs_value = options.invalidate || options.empty || options.cas.is_some();
    if needs_value && !is_here(&mut store, shard, key, cx, out) {
        return;
    }
    cx.report_get(&store, key);
    if !options.invalidate && !options.empty {
        cx.report_delete(&store, key, "md");
    }
    cx.shared.prefixes.deleted(key);
    let deleted = if options.invalidate || options.empty {
        let expiry = options.ttl.map(|ttl| cx.until(ttl));
        let keep = Keep { stale: options.invalidate, empty: options.empty, expiry, version: options.version };
        store.invalidate(key, options.cas, keep, cx.now)
    } else {
        store.delete(key, options.cas, cx.now)
    };
    let code: &[u8] = match deleted {
        Deleted::Done => {
            cx.counts.delete_hits += 1;
            if options.quiet {
                return;
            }
            b"HD"
        }
        Deleted::NotFound => {
            cx.counts.delete_misses += 1;
            b"NF"
        }
        Deleted::Exists => b"EX",
    };
    line(code, request.flags, request.sent_key, out);
}

fn arithmetic(request: &Request<'_>, cx: &mut Context<'_>, out: &mut Out) {
    let (options, key) = (&request.options, request.key.get());
    let until = options.ttl.map(|ttl| cx.until(ttl));
    let shard = cx.shared.shards.of(key);
    let mut store = cx.shared.shards.at(shard);
    if !is_here(&mut store, shard, key, cx, out) {
        return;
    }
    cx.report_get(&store, key);
    // No item has the version 0, and memcached compares none with it.
    let cas = options.cas.filter(|&cas| cas != 0);
    let mut sum = store.add(key, (!options.down, options.delta.unwrap_or(1)), (cas, options.version), until, cx.now);
    cx.count_sum(sum, !options.down);
    let mut made = false;
    if let (Sum::NotFound, Some(exptime)) = (sum, options.vivify) {
        made = true;
        let exptime = options.ttl.unwrap_or(exptime);
        let number = options.initial;
        let digits = number.to_string();
        sum = match vivify(&mut store, &request.key, digits.as_bytes(), (exptime, options.version), cx) {
            Some(version) => Sum::Done { number, version, expiry: cx.until(exptime) },
            None => return out.bytes.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
        };
    }
    drop(store);
    let (number, version, expiry) = match sum {
        Sum::NotFound | Sum::Exists | Sum::Done { .. } if request.is_too_opaque() => {
            out.bytes.extend_from_slice(TOO_OPAQUE.as_bytes());
            return out.bytes.extend_from_slice(b"\r\n");
        }
        Sum::Done { number, version, expiry } => (number, version, expiry),
        Sum::NotFound => return line(b"NF", request.flags, request.sent_key, out),
        Sum::Exists => return line(b"EX", request.flags, request.sent_key, out),
        Sum::NoNumber => {
            return out.bytes.extend_from_slice(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
        }
        Sum::Refused(_) => return out.bytes.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
    };
    if options.quiet && !made {
        return;
    }
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(number);
    let bytes = &mut out.bytes;
    if options.value {
        bytes.extend_from_slice(b"VA ");
        put_number(bytes, digits.len());
    } else {
        bytes.extend_from_slice(b"HD");
    }
    for flag in words(request.flags) {
        match flag[0] {
            b'c' => {
                bytes.extend_from_slice(b" c");
                put_number(bytes, cx.shown(version));
            }
            b't' => {
                bytes.extend_from_slice(b" t");
                ttl(expiry, cx.now, bytes);
            }
            _ => echo(flag, (request.sent_key, request.key.binary), bytes),
        }
    }
    bytes.extend_from_slice(b"\r\n");
    if options.value {
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
}

pub(super) fn debug(key: &Key, cx: &mut Context<'_>, out: &mut Out) {
    let shard = cx.shared.shards.of(key.get());
    let mut store = cx.shared.shards.at(shard);
    if !is_here(&mut store, shard, key.get(), cx, out) {
        return;
    }
    learn_hits(&mut store, key.get(), b"h", cx.now);
    let Some(item) = store.get(key.get(), false, cx.now) else {
        return out.bytes.extend_from_slice(b"EN\r\n");
    };
    out.bytes.extend_from_slice(b"ME ");
    if item.binary {
        encode(key.get(), &mut out.bytes);
    } else {
        out.bytes.extend_from_slice(key.get());
    }
    out.bytes.push(b' ');
    details(&item, cx.shown(item.version), cx.now, &mut out.bytes);
    out.bytes.extend_from_slice(b"\r\n");
}

fn details(item: &View<'_>, version: u64, now: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"exp=");
    ttl(item.expiry, now, out);
    let idle = (now as u32).saturating_sub(item.accessed);
    let fetched = if item.fetched { "yes" } else { "no" };
    let rest = format!(" la={idle} cas={version} fetch={fetched} cls={} size={}", item.class + 1, item.size);
    out.extend_from_slice(rest.as_bytes());
}
