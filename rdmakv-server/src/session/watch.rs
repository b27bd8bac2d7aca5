//! `watch`: what the server does, as lines for the clients that asked for them.
//!
//! Each watcher has a buffer of a fixed size. A line that does not fit is counted and not kept, and so are those after it until
//! the watcher takes what is there. Then it reads how many it missed. So a watcher that does not read costs its buffer, and no
//! command waits for it. While nothing is watched, an event costs one load.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::peer::Peer;
use super::replies::put_number;
use crate::store::{Observer, View};

/// Keys that are looked up.
pub(super) const FETCHERS: u32 = 1;
/// Items that are stored.
pub(super) const MUTATIONS: u32 = 2;
/// Items that leave for memory.
const EVICTIONS: u32 = 4;
/// Items that are deleted.
pub(super) const DELETIONS: u32 = 8;
/// Connections that come and go.
const CONNECTIONS: u32 = 16;

/// Watchers at most.
const MOST: usize = 20;

/// Returns the events that the words after `watch` ask for; without any it is fetchers.
pub(super) fn interest<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Option<u32> {
    let all = words.try_fold(0, |all, word| {
        Some(
            all | match word {
                b"fetchers" => FETCHERS,
                b"mutations" => MUTATIONS,
                b"evictions" => EVICTIONS,
                b"deletions" => DELETIONS,
                b"connevents" => CONNECTIONS,
                _ => return None,
            },
        )
    });
    all.map(|all| if all == 0 { FETCHERS } else { all })
}

#[derive(Debug)]
struct Watcher {
    id: u64,
    interest: u32,
    waiting: Vec<u8>,
    /// Lines that did not fit since it last took what waits.
    skipped: u64,
    ready: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct List {
    events: u64,
    ids: u64,
    watchers: Vec<Watcher>,
    line: Vec<u8>,
}

/// All watchers. The lock is held for a line or a buffer; it may be taken under a store's, and no other is taken under it.
#[derive(Debug)]
pub struct Watchers {
    /// The events that any of them watches.
    interest: AtomicU32,
    list: Mutex<List>,
    buffer: usize,
    time: OnceLock<fn() -> Duration>,
    /// Lines that were handed to watchers.
    pub sent: AtomicU64,
    /// Lines that did not fit.
    pub skipped: AtomicU64,
}

impl Watchers {
    /// Without any; each that comes has a buffer of so many bytes.
    pub fn new(buffer: usize) -> Self {
        Self {
            interest: AtomicU32::new(0),
            list: Mutex::default(),
            buffer,
            time: OnceLock::new(),
            sent: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// Sets the clock that dates events: the time since 1970. Without one they have the time of the command.
    pub fn set_time(&self, time: fn() -> Duration) {
        let _ = self.time.set(time);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().watchers.len()
    }

    /// Returns whether any watches this.
    #[inline]
    pub fn wants(&self, kind: u32) -> bool {
        self.interest.load(Relaxed) & kind != 0
    }

    /// One more, or none if there are as many as may be.
    pub(super) fn add(self: &Arc<Self>, interest: u32) -> Option<Watch> {
        let mut list = self.lock();
        if list.watchers.len() == MOST {
            return None;
        }
        list.ids += 1;
        let (id, ready) = (list.ids, Arc::new(AtomicBool::new(false)));
        let waiting = Vec::with_capacity(self.buffer);
        list.watchers.push(Watcher { id, interest, waiting, skipped: 0, ready: ready.clone() });
        self.update(&list);
        Some(Watch { watchers: self.clone(), id, ready })
    }

    fn update(&self, list: &List) {
        self.interest.store(list.watchers.iter().fold(0, |all, watcher| all | watcher.interest), Relaxed);
    }

    /// An event, if any watches it: `write` writes what comes after time and number.
    pub(super) fn log(&self, kind: u32, now: u64, write: impl Fn(&mut Vec<u8>)) {
        let mut list = self.lock();
        list.events += 1;
        let List { events, watchers, line, .. } = &mut *list;
        line.clear();
        for watcher in watchers.iter_mut().filter(|watcher| watcher.interest & kind != 0) {
            if watcher.skipped == 0 {
                if line.is_empty() {
                    let time = self.time.get().map_or(Duration::from_secs(now), |time| time());
                    // Writing to memory does not fail.
                    let _ = write!(line, "ts={}.{:06} gid={events} ", time.as_secs(), time.subsec_micros());
                    write(line);
                    line.push(b'\n');
                }
                if watcher.waiting.len() + line.len() <= self.buffer {
                    watcher.waiting.extend_from_slice(line);
                    watcher.ready.store(true, Relaxed);
                    self.sent.fetch_add(1, Relaxed);
                    continue;
                }
            }
            watcher.skipped += 1;
            self.skipped.fetch_add(1, Relaxed);
        }
    }

    /// A connection came.
    pub fn came(&self, peer: &Peer, now: u64) {
        if self.wants(CONNECTIONS) {
            self.log(CONNECTIONS, now, |line| {
                line.extend_from_slice(b"type=conn_new ");
                peer.address.describe(line);
                field(line, " cfd=", peer.number);
            });
        }
    }

    /// A connection went, for this reason by memcached's words.
    pub fn went(&self, peer: &Peer, reason: &str, now: u64) {
        if self.wants(CONNECTIONS) {
            self.log(CONNECTIONS, now, |line| {
                line.extend_from_slice(b"type=conn_close ");
                peer.address.describe(line);
                let _ = write!(line, " reason={reason}");
                field(line, " cfd=", peer.number);
            });
        }
    }
}

impl Observer for Watchers {
    fn evicted(&self, item: &View<'_>, now: u64) {
        if !self.wants(EVICTIONS) {
            return;
        }
        self.log(EVICTIONS, now, |line| {
            line.extend_from_slice(b"type=eviction key=");
            escape(item.key, line);
            let fetched = if item.fetched { "yes" } else { "no" };
            let ttl = if item.expiry == 0 { -1 } else { item.expiry.saturating_sub(now) as i64 };
            let idle = (now as u32).saturating_sub(item.accessed);
            let (class, size) = (item.class + 1, item.value.len());
            let _ = write!(line, " fetch={fetched} ttl={ttl} la={idle} clsid={class} size={size}");
        });
    }
}

fn field(line: &mut Vec<u8>, name: &str, number: impl itoa::Integer) {
    line.extend_from_slice(name.as_bytes());
    put_number(line, number);
}

/// A key, with all but unreserved characters as in a URI.
pub(super) fn escape(key: &[u8], line: &mut Vec<u8>) {
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            line.push(byte);
        } else {
            let _ = write!(line, "%{byte:02X}");
        }
    }
}

/// A session that watches. Dropping it ends that.
#[derive(Debug)]
pub(super) struct Watch {
    watchers: Arc<Watchers>,
    id: u64,
    ready: Arc<AtomicBool>,
}

impl Watch {
    /// Returns whether lines wait for it.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    /// Takes what waits, and how many lines did not fit after it.
    pub(super) fn take(&self, into: &mut Vec<u8>) {
        let mut list = self.watchers.lock();
        if let Some(watcher) = list.watchers.iter_mut().find(|watcher| watcher.id == self.id) {
            watcher.ready.store(false, Relaxed);
            into.extend_from_slice(&watcher.waiting);
            watcher.waiting.clear();
            let skipped = std::mem::take(&mut watcher.skipped);
            if skipped > 0 {
                let _ = writeln!(into, "skipped={skipped}");
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut list = self.watchers.lock();
        list.watchers.retain(|watcher| watcher.id != self.id);
        self.watchers.update(&list);
    }
}

/// An item that was to be stored.
pub(super) struct Set<'a> {
    pub(super) key: &'a [u8],
    pub(super) command: &'static str,
    pub(super) expiry: u64,
    /// Counted from one, or 0 if there is none for it.
    pub(super) class: usize,
    pub(super) size: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_that_does_not_read_keeps_its_buffer() {
        let watchers = Arc::new(Watchers::new(1000));
        let (slow, fast) = (watchers.add(FETCHERS).unwrap(), watchers.add(FETCHERS).unwrap());
        let mut read = Vec::new();
        for _ in 0..100_000 {
            watchers.log(FETCHERS, 7, |line| line.extend_from_slice(b"type=item_get key=x"));
            fast.take(&mut read);
        }
        let lines = read.split(|&byte| byte == b'\n').count() - 1;
        assert_eq!((lines, read.starts_with(b"ts=7.000000 gid=1 type=item_get key=x\n")), (100_000, true));
        let list = watchers.lock();
        let [waiting, other] = &list.watchers[..] else { panic!() };
        assert!(waiting.waiting.len() <= 1000 && waiting.waiting.capacity() == 1000);
        assert_eq!((other.waiting.len(), other.waiting.capacity(), other.skipped), (0, 1000, 0));
        let skipped = waiting.skipped;
        drop(list);
        let mut read = Vec::new();
        slow.take(&mut read);
        assert!(read.len() < 1100 && read.ends_with(format!("\nskipped={skipped}\n").as_bytes()));
        let kept = read.split(|&byte| byte == b'\n').count() as u64 - 2;
        assert_eq!((kept + skipped, watchers.skipped.load(Relaxed)), (100_000, skipped));
        // From here on it reads again.
        watchers.log(FETCHERS, 8, |line| line.extend_from_slice(b"y"));
        read.clear();
        slow.take(&mut read);
        assert_eq!(read, b"ts=8.000000 gid=100001 y\n");
    }

    #[test]
    fn there_are_only_so_many_watchers() {
        let watchers = Arc::new(Watchers::new(100));
        let mut all: Vec<_> = (0..MOST).map(|_| watchers.add(EVICTIONS).unwrap()).collect();
        assert!(watchers.add(FETCHERS).is_none() && !watchers.wants(FETCHERS) && watchers.wants(EVICTIONS));
        all.clear();
        assert!(watchers.count() == 0 && !watchers.wants(EVICTIONS) && watchers.add(FETCHERS).is_some());
    }

    #[test]
    fn only_known_words_can_be_watched() {
        let of = |text: &'static str| interest(rdmakv_proto::commands::words(text.as_bytes()));
        assert_eq!((of(""), of("mutations evictions"), of("nonsense")), (Some(FETCHERS), Some(6), None));
        assert_eq!(of("fetchers mutations evictions deletions connevents"), Some(31));
    }
}
