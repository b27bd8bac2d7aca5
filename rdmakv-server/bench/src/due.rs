//! What was to begin at a given time, and began late or not at all: counted alike, whoever makes the requests.

use crate::bursts::{Begun, Clients};
use crate::schedule::Schedule;
use crate::tally::{Kind, Tally};
use crate::window::Window;

impl Tally {
    /// Whether an open loop has come to its end: nothing more is due in the window, or the time of `grace` after it is over. What is
    /// due and not begun by then never will be.
    pub(crate) fn ends_open_loop(&mut self, schedule: &Schedule, now: u64, window: Window, grace: u64) -> bool {
        if schedule.next() >= window.to {
            return true;
        }
        if now < window.to + grace {
            return false;
        }
        let left = schedule.left_between(window.from, window.to);
        self.late.saturating_record_n(now - schedule.next().max(window.from), left);
        self.counts.unsent += left;
        true
    }

    /// A block of a burst begins.
    pub(crate) fn block_begins(&mut self, begun: &Begun, window: Window) {
        if window.counts(begun.scheduled) {
            self.late.saturating_record(begun.late);
            self.counts.overrun += u64::from(begun.overrun);
        }
    }

    /// So many chunks of a block have ended, and maybe the block with them.
    pub(crate) fn chunks_end(&mut self, clients: &mut Clients, conn: usize, chunks: u64, now: u64, window: Window) {
        if let Some(scheduled) = clients.done(conn, chunks, now)
            && window.counts(scheduled)
        {
            self.latencies.record(Kind::Block, now.saturating_sub(scheduled));
        }
    }

    /// Whether no block begins any more.
    pub(crate) fn ends_bursts(&mut self, clients: &Clients, now: u64, window: Window, grace: u64) -> bool {
        if now < window.to {
            return false;
        }
        let left = clients.left_before(window.to);
        if left > 0 && now < window.to + grace {
            return false;
        }
        self.counts.unsent += left;
        true
    }
}
