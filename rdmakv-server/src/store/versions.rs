//! Versions of items (CAS), and flushes, which are bounds on them.

use super::chunk::{CHOSEN, Chunk};
use super::warm::Continuation;

/// The versions that items get, and up to which they are over.
#[derive(Debug)]
pub(super) struct Versions {
    incarnation: u32,
    latest: u64,
    /// Items up to this version are gone.
    flushed: u64,
    flush_at: Option<u64>,
    /// Whether a client chose a version since the last flush.
    chosen: bool,
}

impl Versions {
    pub(super) fn new(incarnation: u32) -> Self {
        Self { incarnation, latest: 0, flushed: 0, flush_at: None, chosen: false }
    }

    /// Returns the incarnation of the server, which every header carries.
    pub(super) fn incarnation(&self) -> u32 {
        self.incarnation
    }
    /// Returns the version of what was stored last.
    pub(super) fn latest(&self) -> u64 {
        self.latest
    }

    /// Gives an unpublished item the next version, or the one that a client chose, and returns it.
    pub(super) fn stamp(&mut self, chunk: Chunk<'_>, chosen: Option<u64>) -> u64 {
        self.latest += 1;
        if chosen.is_some() {
            self.chosen = true;
            chunk.mark(CHOSEN);
        }
        let version = chosen.unwrap_or(self.latest);
        chunk.set_version(version);
        version
    }

    /// Gives an unpublished item a version that its cluster chose. Flushes are not about it.
    pub(super) fn take_over(&self, chunk: Chunk<'_>, version: u64) {
        chunk.set_version(version);
    }

    /// Sets the time of the next flush.
    pub(super) fn flush_later(&mut self, at: u64) {
        self.flush_at = Some(at);
    }
    /// Returns whether the time of a flush has come.
    pub(super) fn flush_due(&self, now: u64) -> bool {
        self.flush_at.is_some_and(|at| at <= now)
    }
    /// Flushes everything stored so far, except items whose version a client chose: says whether there may be any.
    pub(super) fn flush(&mut self) -> bool {
        self.flushed = self.latest;
        self.flush_at = None;
        std::mem::take(&mut self.chosen)
    }
    /// Returns the numbers that go on in the next run of the server.
    pub(super) fn continuation(&self) -> Continuation {
        let Self { latest, flushed, flush_at, chosen, .. } = *self;
        Continuation { latest, flushed, flush_at, chosen }
    }
    /// Goes on from the numbers of the run before.
    pub(super) fn resume(&mut self, from: Continuation) {
        let Continuation { latest, flushed, flush_at, chosen } = from;
        *self = Self { latest, flushed, flush_at, chosen, ..*self };
    }
    /// Returns whether an item is from before a flush. Those whose version a client chose do not outlive one.
    #[inline]
    pub(super) fn is_flushed(&self, chunk: Chunk<'_>) -> bool {
        chunk.version() <= self.flushed && !chunk.marked(CHOSEN)
    }
}
