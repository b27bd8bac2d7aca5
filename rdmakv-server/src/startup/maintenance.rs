//! Maintenance: a thread that looks after the stores once a second, and after what signals ask for more often.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use super::signals::Signals;
use super::{activation, clock, users};
use crate::log;
use crate::session::{Shared, is_stopping, stuck_worker};

/// Between two looks at the flags that signals set.
const LOOK: Duration = Duration::from_millis(100);
/// Chunks, or stubs, that the crawler looks at while it holds a lock.
const PIECE: usize = 500;
/// And in a second at most of each, in all shards together.
const A_SECOND: usize = 200_000;
/// Seconds between two lines about items that cannot be read from flash.
const QUIET: u64 = 60;

/// Starts it; it ends when the server stops. `upkeep` is called once a second, too.
///
/// # Errors
///
/// No thread.
pub(super) fn start(
    shared: Arc<Shared>,
    signals: Signals,
    users: Option<String>,
    upkeep: impl FnMut() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name("maintenance".into());
    builder.spawn(move || keep(&shared, &signals, users.as_deref(), upkeep))
}

fn keep(shared: &Shared, signals: &Signals, users: Option<&str>, mut upkeep: impl FnMut()) {
    let (mut ticked, watched) = (0, activation::watchdog().is_some());
    let mut unreadable = Unreadable::default();
    while !is_stopping(shared) {
        if signals.is_finish_wanted() {
            shared.finish.store(true, Relaxed);
        }
        if signals.is_end_wanted() && !shared.far.get().is_some_and(|far| far.delays_stop()) {
            shared.stop.store(true, Relaxed);
            break;
        }
        if signals.take_reload() {
            reload(shared, users);
        }
        std::thread::sleep(LOOK);
        let now = clock::now();
        if now == ticked {
            continue;
        }
        ticked = now;
        if watched && stuck_worker(shared, now).is_none() {
            activation::alive();
        }
        tick(shared, now);
        shared.log.tick();
        let of = |shard| {
            shared.shards.at(shard).flash_tier().map_or(0, |tier| tier.counts().wrong + tier.counts().read_errors)
        };
        if let Some(line) = unreadable.take((0..shared.shards.count()).map(of).sum(), now) {
            log::print(line);
        }
        upkeep();
    }
}

/// The lines about items that cannot be read from flash.
#[derive(Debug, Default)]
struct Unreadable {
    told: u64,
    silent_until: u64,
}

impl Unreadable {
    /// Takes how many there were until now. Returns a line if there are more, at most one each [`QUIET`] seconds.
    fn take(&mut self, all: u64, now: u64) -> Option<String> {
        if all <= self.told || now < self.silent_until {
            return None;
        }
        let more = all - self.told;
        (self.told, self.silent_until) = (all, now + QUIET);
        Some(format!(
            "--flash: {more} items could not be read, or were not what was written: they are lost: \
             let no other program change the files, and check the device"
        ))
    }
}

/// Flushes that are due, pages that should move, items that have expired.
fn tick(shared: &Shared, now: u64) {
    let all = shared.crawl_now.swap(false, Relaxed);
    let crawl = all || shared.crawler.load(Relaxed);
    if crawl {
        shared.crawler_starts.fetch_add(1, Relaxed);
        shared.crawling.store(true, Relaxed);
    }
    for shard in 0..shared.shards.count() {
        shared.shards.at(shard).tick(now);
        let pieces = if crawl { (A_SECOND / PIECE / shared.shards.count()).max(1) } else { 0 };
        for _ in 0..pieces {
            if shared.shards.at(shard).crawl(PIECE, now) {
                break;
            }
        }
        for _ in 0..pieces {
            if shared.shards.at(shard).crawl_flash(PIECE, now) {
                break;
            }
        }
    }
    shared.kernel.get().into_iter().for_each(|kernel| kernel.look());
    // A round that was asked for meanwhile comes next second.
    if crawl && !shared.crawl_now.load(Relaxed) {
        shared.crawling.store(false, Relaxed);
    }
}

fn reload(shared: &Shared, users: Option<&str>) {
    let mut done = Vec::new();
    if let Some(file) = users {
        done.push(users::refresh(file, shared).map(|()| "users"));
    }
    if let Some(tls) = &shared.tls {
        done.push(tls.refresh(clock::now()).map(|()| "certificates"));
    }
    for each in done {
        match each {
            Ok(what) => log::print(format_args!("SIGHUP: {what} read again")),
            Err(wrong) => log::print(format_args!("SIGHUP: {wrong}; the old ones stay in use")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_items_are_told_once_a_minute() {
        let mut unreadable = Unreadable::default();
        assert_eq!(unreadable.take(0, 100), None);
        assert!(unreadable.take(3, 101).is_some_and(|line| line.contains(" 3 items")));
        assert_eq!((unreadable.take(3, 300), unreadable.take(3, 301)), (None, None));
        assert!(unreadable.take(5, 302).is_some_and(|line| line.contains(" 2 items")));
        assert_eq!(unreadable.take(9, 361), None);
        assert!(unreadable.take(9, 362).is_some_and(|line| line.contains(" 4 items")));
    }
}
