//! A listener that runs out of descriptors: when it reports that, and when it tries again.

use rustix::fd::AsFd;
use rustix::io::fcntl_dupfd_cloexec;
use std::io;
use std::time::{Duration, Instant};

/// How long a listener that found no descriptor, and nothing to evict, leaves its backlog alone.
pub(in crate::fabric) const RETRY: Duration = Duration::from_millis(50);
/// A shortage is over when no descriptor was missing for so long. The next one is reported again.
const QUIET: Duration = Duration::from_secs(10);

/// Times of want of a listener's descriptors. Each is one episode, however often descriptors were missing in it.
#[derive(Debug, Default)]
pub(in crate::fabric) struct Shortage {
    episodes: u64,
    last: Option<Instant>,
    /// The backlog is left alone until then.
    retry: Option<Instant>,
    reported: bool,
}

impl Shortage {
    /// Notes that a descriptor was missing.
    pub(in crate::fabric) fn note(&mut self, now: Instant) {
        let is_first = self.last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET);
        if is_first {
            self.episodes += 1;
            self.reported = false;
        }
        self.last = Some(now);
    }

    /// Leaves the backlog alone for a while: there is nothing to evict.
    pub(in crate::fabric) fn pause(&mut self, now: Instant) {
        self.retry = Some(now + RETRY);
    }

    /// Returns when the backlog is looked at again, if it is to be left alone now.
    pub(in crate::fabric) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.retry.filter(|&retry| now < retry)
    }

    /// Returns whether an episode is to be reported: once for each.
    pub(in crate::fabric) fn report(&mut self) -> bool {
        self.episodes > 0 && !std::mem::replace(&mut self.reported, true)
    }

    /// Returns how many episodes there were.
    pub(in crate::fabric) fn episodes(&self) -> u64 {
        self.episodes
    }
}

/// Returns whether the system lacks descriptors, or memory for them, rather than that a connection is broken.
pub(in crate::fabric) fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Returns whether this process can open so many more descriptors now.
pub(in crate::fabric) fn are_free(file: impl AsFd, descriptors: usize) -> bool {
    let opened: Vec<_> = (0..descriptors).map_while(|_| fcntl_dupfd_cloexec(&file, 0).ok()).collect();
    opened.len() == descriptors
}
