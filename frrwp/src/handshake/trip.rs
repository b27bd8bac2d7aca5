//! The common state of both ends of a transfer.

use super::ends::Failure;
use super::extents::Extent;
use super::link::{Link, Out};
use super::{Action, Tag};
use crate::wire::Placed;

/// The common state of both ends of a transfer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Trip {
    pub(super) tag: Tag,
    /// Whether it was opened here.
    pub(super) ours: bool,
    /// Whether the peer knows of it: its SYNC was sent, or came.
    pub(super) said: bool,
    /// Whether the application knows its end.
    pub(super) ended: bool,
    /// Whether its lease may go: it is to be forgotten.
    pub(super) released: bool,
    /// The length of its SYNC.
    pub(super) length: u64,
    /// When the present wait began, and when it ends.
    pub(super) since: u64,
    pub(super) deadline: u64,
    /// When the application gives it up, whatever it waits for then.
    pub(super) limit: u64,
    /// The application's, from the SYNC.
    pub(super) header: Vec<u8>,
    /// Writer: segments of the peer's for which local bytes may still come. Target: segments to be sent.
    pub(super) pieces: Vec<Placed>,
    /// Writer: what is registered of the local buffer. Target: what was offered of it.
    pub(super) extents: Vec<Extent>,
    /// Counted against the bound on early segments.
    pub(super) early_bytes: usize,
}

impl Trip {
    pub(super) fn new(tag: Tag, ours: bool, length: u64, since: u64, deadline: u64) -> Self {
        Self {
            tag,
            ours,
            said: !ours,
            ended: false,
            released: false,
            length,
            since,
            deadline,
            limit: u64::MAX,
            header: Vec::new(),
            pieces: Vec::new(),
            extents: Vec::new(),
            early_bytes: 0,
        }
    }

    /// Uses the allocations of one that is gone.
    pub(super) fn take_lists(&mut self, gone: &mut Self) {
        std::mem::swap(&mut self.header, &mut gone.header);
        std::mem::swap(&mut self.pieces, &mut gone.pieces);
        std::mem::swap(&mut self.extents, &mut gone.extents);
    }

    /// Keeps the allocations of so many of each for the next.
    pub(super) fn empty_lists(&mut self, kept: usize) {
        self.header.clear();
        self.pieces.clear();
        self.extents.clear();
        self.pieces.shrink_to(kept);
        self.extents.shrink_to(kept);
    }

    /// When something is to be done about it though nothing comes.
    pub(super) fn next_deadline(&self) -> u64 {
        self.deadline.min(self.limit)
    }

    /// A new wait begins.
    pub(super) fn wait(&mut self, link: &mut Link, now: u64, time: u64) {
        (self.since, self.deadline) = (now, link.deadline(now, time));
    }

    /// Tells the application, once.
    pub(super) fn end(&mut self, link: &mut Link, result: Result<u64, Failure>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        match result {
            Ok(_) => link.counters.completed += 1,
            Err(_) => link.counters.failed += 1,
        }
        link.actions.push_back(Action::Completed { tag: self.tag, result });
    }

    /// The lease may go, once.
    pub(super) fn release(&mut self, link: &mut Link) {
        if !std::mem::replace(&mut self.released, true) {
            link.early_bytes -= std::mem::take(&mut self.early_bytes);
            if !self.said {
                link.take_back(Out::Sync(self.tag));
            }
            link.actions.push_back(Action::Release { tag: self.tag });
        }
    }

    pub(super) fn finish(&mut self, link: &mut Link, result: Result<u64, Failure>) {
        self.end(link, result);
        self.release(link);
    }
}
