//! Commands for operators.

use std::sync::atomic::Ordering::Relaxed;

use super::{Context, Out};
use crate::store::{Entry, NoMove, Walk};
use rdmakv_proto::commands::text::Request;
use rdmakv_proto::commands::{BAD_FORMAT, number32, words};

pub(super) fn flush(delay: i64, cx: &mut Context<'_>) {
    cx.counts.cmd_flush += 1;
    let at = (delay > 0).then(|| cx.until(delay));
    let now = cx.now;
    // Every shard flushes at once, the later ones a moment later: commands in between see it half done, each key
    // whole.
    cx.shared.shards.each(|store| store.flush(at, now));
}

pub(super) fn verbosity(level: u32, cx: &Context<'_>) {
    cx.shared.log.set_level(level.min(3));
}

/// Carries it out; a dump is begun only.
pub(super) fn run(request: Request<'_>, cx: &mut Context<'_>, out: &mut Out) -> Option<Dump> {
    let (answer, quiet) = match request {
        Request::Flush { .. } if !cx.shared.settings.flush => ("CLIENT_ERROR flush_all not allowed", false),
        Request::Flush { delay, quiet } => {
            flush(delay, cx);
            ("OK", quiet)
        }
        Request::Verbosity { level, quiet } => {
            verbosity(level, cx);
            ("OK", quiet)
        }
        Request::Reassign(from, to) => (reassign(from, to, cx), false),
        Request::Automove(level) => {
            cx.shared.automove.store(level, Relaxed);
            cx.shared.shards.each(|store| store.set_automove(level > 0));
            ("OK", false)
        }
        Request::Lru => {
            ("CLIENT_ERROR lru: items are evicted by S3-FIFO, which has no modes and no segments to tune", false)
        }
        Request::AutomoveRatio => {
            ("CLIENT_ERROR slabs automove ratio: pages move by what they answer, not by a ratio", false)
        }
        Request::Crawler(rest) => match crawler(rest, cx) {
            Ok(answer) => (answer, false),
            // As memcached: what was answered before would be mixed up with the dump.
            Err(_) if !out.is_empty() => ("ERROR cannot pipeline other commands before metadump", false),
            Err(dump) => return Some(dump),
        },
        Request::MemLimit { megabytes, quiet } => {
            if megabytes < 8 {
                ("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m", quiet)
            } else if megabytes > 1_000_000_000 {
                ("MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes", quiet)
            } else {
                (set_limit(megabytes << 20, cx), quiet)
            }
        }
        Request::Shutdown { graceful: None } if cx.shared.settings.shutdown => {
            ("CLIENT_ERROR invalid shutdown mode", false)
        }
        Request::Shutdown { graceful: Some(graceful) } if cx.shared.settings.shutdown => {
            (if graceful { &cx.shared.finish } else { &cx.shared.stop }).store(true, Relaxed);
            return None;
        }
        Request::Shutdown { .. } => ("ERROR: shutdown not enabled", false),
        Request::RefreshCerts => match &cx.shared.tls {
            None => ("Error TLS not enabled", false),
            Some(tls) => match tls.refresh(cx.now) {
                Ok(()) => ("OK", false),
                Err(wrong) => {
                    out.bytes.extend_from_slice(format!("Error {wrong}\r\n").as_bytes());
                    return None;
                }
            },
        },
        _ => ("ERROR", false),
    };
    if !quiet {
        out.bytes.extend_from_slice(answer.as_bytes());
        out.bytes.extend_from_slice(b"\r\n");
    }
    None
}

/// Changes the memory that items may take, or nothing if there is not so much address space.
fn set_limit(bytes: u64, cx: &Context<'_>) -> &'static str {
    let shards = &cx.shared.shards;
    let each = bytes / shards.count() as u64;
    let mut fits = true;
    shards.each(|store| fits &= each <= store.most_memory() as u64);
    if !fits {
        return "MEMLIMIT_ADJUST_FAILED the address space for items is smaller: restart with a larger -m";
    }
    shards.each(|store| store.set_limit(each as usize));
    cx.shared.limit.store(bytes, Relaxed);
    "OK"
}

fn reassign(from: i32, to: i32, cx: &Context<'_>) -> &'static str {
    if from == to {
        return "SAME src and dst class are identical";
    }
    // Classes are counted from one outside.
    let inside = |class: i32| usize::try_from(class - 1).ok();
    let Some(to) = inside(to) else { return "BADCLASS invalid src or dst class id" };
    if from == 0 || from < -1 {
        return "BADCLASS invalid src or dst class id";
    }
    let from = if from == -1 { None } else { inside(from) };
    let mut answer = "OK";
    cx.shared.shards.each(|store| {
        answer = match store.reassign(from, to, cx.now) {
            Ok(()) => "OK",
            Err(NoMove::BadClass) => "BADCLASS invalid src or dst class id",
            Err(NoMove::Same) => "SAME src and dst class are identical",
            Err(NoMove::NoSpare) => "NOSPARE source class has no spare pages",
        };
    });
    answer
}

fn crawler(rest: &[u8], cx: &Context<'_>) -> Result<&'static str, Dump> {
    let mut words = words(rest);
    let shared = cx.shared;
    let (Some(name), argument) = (words.next(), words.next()) else { return Ok("ERROR") };
    if words.next().is_some() {
        return Ok("ERROR");
    }
    match (name, argument) {
        (b"enable", None) => {
            let was = shared.crawler.swap(true, Relaxed);
            Ok(if was { "ERROR failed to start lru crawler thread" } else { "OK" })
        }
        (b"disable", None) => {
            shared.crawler.store(false, Relaxed);
            Ok("OK")
        }
        (b"sleep", Some(micros)) => Ok(match number32(micros) {
            Some(0..=1_000_000) => "OK",
            Some(_) => "CLIENT_ERROR sleep must be one second or less",
            None => BAD_FORMAT,
        }),
        (b"tocrawl", Some(count)) => Ok(if number32(count).is_some() { "OK" } else { BAD_FORMAT }),
        (b"crawl", Some(which)) => {
            if !shared.crawler.load(Relaxed) {
                return Ok("CLIENT_ERROR lru crawler disabled");
            }
            if classes(which) {
                // Running from now on, so that a client that waits for the end of the round does not miss its beginning.
                shared.crawling.store(true, Relaxed);
                shared.crawl_now.store(true, Relaxed);
                return Ok("OK");
            }
            Ok("BADCLASS invalid class id")
        }
        (b"metadump", Some(_)) if !shared.settings.dump => Ok("ERROR metadump not allowed"),
        (b"metadump", Some(which)) => {
            if which != b"hash" && !classes(which) {
                return Ok("BADCLASS invalid class id");
            }
            Err(Dump { which: which.to_vec(), shard: 0, walk: Walk::default() })
        }
        _ => Ok("ERROR"),
    }
}

/// Returns whether these are classes: `all`, or numbers with commas.
fn classes(list: &[u8]) -> bool {
    list == b"all"
        || list.split(|&byte| byte == b',').all(|class| number32(class).is_some_and(|class| (1..256).contains(&class)))
}

/// A dump under way: a line for each item, a piece at a time, so that it costs neither much memory nor a lock for long.
#[derive(Debug)]
pub(super) struct Dump {
    which: Vec<u8>,
    shard: usize,
    walk: Walk,
}

/// Chunks or stubs that a dump looks at while it holds a lock.
const PIECE: usize = 2000;

impl Dump {
    /// Returns the next piece; returns whether it was the last.
    pub(super) fn go_on(&mut self, cx: &Context<'_>, out: &mut Out) -> bool {
        let (which, bytes) = (&self.which[..], &mut out.bytes);
        let all = which == b"all" || which == b"hash";
        let mut store = cx.shared.shards.at(self.shard);
        let ended = store.walk_on(&mut self.walk, PIECE, cx.now, |item| {
            let wanted =
                all || which.split(|&byte| byte == b',').any(|class| number32(class) == Some(item.class as u32 + 1));
            if wanted {
                line(&item, cx, bytes);
            }
        });
        drop(store);
        if ended {
            (self.shard, self.walk) = (self.shard + 1, Walk::default());
        }
        let last = self.shard == cx.shared.shards.count();
        if last {
            bytes.extend_from_slice(b"END\r\n");
        }
        last
    }
}

fn line(item: &Entry<'_>, cx: &Context<'_>, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"key=");
    super::watch::escape(item.key, bytes);
    let expiry = if item.expiry == 0 { -1 } else { item.expiry as i64 };
    let fetched = if item.fetched { "yes" } else { "no" };
    let (cas, class, size) = (cx.shown(item.version), item.class + 1, item.size);
    let rest = format!(" exp={expiry} la={} cas={cas} fetch={fetched} cls={class} size={size}\n", item.accessed);
    bytes.extend_from_slice(rest.as_bytes());
}
