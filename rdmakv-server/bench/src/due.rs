//! Operations that began late or not at all: counted alike in every driver.

use crate::bursts::{Begun, Clients};
use crate::schedule::Schedule;
use crate::tally::Tally;
use crate::window::Window;

/// Returns whether an open loop has come to its end: nothing more is due in the window, or the time of `grace` after it is
/// over. A request that is due and not begun by then never will be.
pub(crate) fn ends_open_loop(tally: &mut Tally, schedule: &Schedule, now: u64, window: Window, grace: u64) -> bool {
    if schedule.next() >= window.to {
        return true;
    }
    if now < window.to + grace {
        return false;
    }
    let left = schedule.left_between(window.from, window.to);
    tally.never_started(left, now - schedule.next().max(window.from));
    true
}

/// A block of a burst begins.
pub(crate) fn block_begins(tally: &mut Tally, begun: &Begun, window: Window) {
    if window.counts(begun.scheduled) {
        tally.block_started(begun.late, begun.overrun);
    }
}

/// So many chunks of a block have ended, and maybe the block with them.
pub(crate) fn chunks_end(tally: &mut Tally, clients: &mut Clients, conn: usize, chunks: u64, now: u64, window: Window) {
    if let Some(scheduled) = clients.done(conn, chunks, now)
        && window.counts(scheduled)
    {
        tally.block_ended(now.saturating_sub(scheduled));
    }
}

/// Returns whether no block begins any more.
pub(crate) fn ends_bursts(tally: &mut Tally, clients: &Clients, now: u64, window: Window, grace: u64) -> bool {
    if now < window.to {
        return false;
    }
    let left = clients.left_before(window.to);
    if left > 0 && now < window.to + grace {
        return false;
    }
    tally.blocks_never_started(left);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn grace_end_counts_unsent_operations() {
        let window = Window { begin: Instant::now(), from: 100, to: 200 };
        let mut tally = Tally::default();
        let behind = Schedule::recorded(vec![50, 150, 180, 250]);
        assert!(!ends_open_loop(&mut tally, &behind, 229, window, 30), "there is time yet");
        assert_eq!((tally.counts.unsent, tally.late.len()), (0, 0));
        assert!(ends_open_loop(&mut tally, &behind, 230, window, 30));
        // Those that were to count; how late they are is counted from when the first of them could have been due.
        assert_eq!((tally.counts.unsent, tally.late.len(), tally.late.max()), (2, 2, 130));
        let done = Schedule::recorded(vec![200]);
        assert!(ends_open_loop(&mut tally, &done, 150, window, 30));
        assert_eq!(tally.counts.unsent, 2, "nothing is owed");
    }
}
