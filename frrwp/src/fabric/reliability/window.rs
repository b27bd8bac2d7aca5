//! Congestion: how many datagrams a client may expect, and how long it waits for one.
//!
//! The window counts datagrams in both directions: parts that were sent and those of replies that are to come. It grows as
//! TCP's. It halves, at most once a round trip, on a sign of congestion:
//!
//! * the server asks for it (*slow down*);
//! * a round trip takes more than twice the shortest of the last 10 to 20 s and 100 µs;
//! * 4 of the last 64 datagrams were lost. A lone loss is only sent again: at 1 % of random loss a window that halves for each
//!   would stay at 12.
//!
//! The time-out is the smoothed round trip and four deviations, and doubles each time, up to 1 s. The second in a row sets
//! the window to 1. An answer to what was sent before the time-out shows that it was too early, and undoes it.
//!
//! Nothing follows the last datagram of a flight, so nothing shows that it was lost. A request that is silent for two round trips is sent
//! once more (a tail loss probe, RFC 8985). Window and time-outs stay. The next probe needs an answer in between, so a network that gets
//! slower is sent one datagram more.

use super::limits::{MILLISECOND, SECOND};

/// The most datagrams.
const MOST: u32 = 64;
/// The unit in which the window is counted.
const ONE: u32 = 256;
/// Lost datagrams, of the last 64, that halve the window.
const LOSSES: u32 = 4;
const SLACK: u64 = MILLISECOND / 10;
const LONGEST: u64 = SECOND;
/// The time-out before the first round trip.
const FIRST_TIMEOUT: u64 = 50 * MILLISECOND;
/// The shortest time-out divided by the shortest silence before a tail loss probe.
const PROBE: u64 = 5;

/// How long to wait for what is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Patience {
    /// Before it is given up.
    pub(super) timeout: u64,
    /// Before a tail loss probe, if that comes earlier.
    pub(super) probe: Option<u64>,
}

/// The window and the round trips of a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Window {
    size: u32,
    threshold: u32,
    least_timeout: u64,
    smoothed: u64,
    deviation: u64,
    /// The shortest round trip of this period and of the one before, and when this one began.
    lowest: [u64; 2],
    period: u64,
    /// The last 64 datagrams, a bit for each that was lost.
    losses: u64,
    /// When the window may halve again.
    calm: u64,
    /// Time-outs in a row, and until when another one counts as the same.
    backoff: u32,
    same_timeout: u64,
    /// Size and threshold before the time-outs.
    undo: Option<[u32; 2]>,
    /// Whether an answer has come since the last tail loss probe.
    may_probe: bool,
}

impl Window {
    pub(super) fn new(first: u16, least_timeout: u64) -> Self {
        Self {
            size: u32::from(first).clamp(1, MOST) * ONE,
            threshold: MOST * ONE,
            least_timeout,
            smoothed: 0,
            deviation: 0,
            lowest: [u64::MAX; 2],
            period: 0,
            losses: 0,
            calm: 0,
            backoff: 0,
            same_timeout: 0,
            undo: None,
            may_probe: false,
        }
    }

    /// Returns how many datagrams may be expected.
    pub(super) fn size(&self) -> u16 {
        (self.size / ONE) as u16
    }

    /// Returns how long to wait for a datagram.
    pub(super) fn timeout(&self) -> u64 {
        let base = if self.smoothed == 0 { FIRST_TIMEOUT } else { self.smoothed + 4 * self.deviation };
        (base.max(self.least_timeout) << self.backoff.min(12)).min(LONGEST)
    }

    /// Returns how long to wait for what is on its way.
    pub(super) fn patience(&self) -> Patience {
        let (timeout, probe) = (self.timeout(), (2 * self.smoothed).max(self.least_timeout / PROBE));
        let is_early = self.smoothed > 0 && self.backoff == 0 && probe < timeout;
        Patience { timeout, probe: is_early.then_some(probe) }
    }

    /// Returns whether a tail loss probe may be sent now, and counts it as sent.
    pub(super) fn take_probe(&mut self) -> bool {
        std::mem::take(&mut self.may_probe)
    }

    /// Returns how long to wait for the answer to a HELLO, after `tries` others; `first` while no round trip is known.
    pub(super) fn hello_time(&self, first: u64, tries: u32) -> u64 {
        let base = if self.smoothed == 0 { first } else { (4 * self.smoothed).clamp(self.least_timeout, first) };
        (base << tries.min(10)).min(LONGEST)
    }

    /// Returns whether the server is to be asked whether it knows this client: after each second time-out in a row.
    pub(super) fn is_to_probe(&self) -> bool {
        self.backoff > 0 && self.backoff.is_multiple_of(2)
    }

    /// An answer came: after `total`, of which the server held it for `held`.
    pub(super) fn answered(&mut self, now: u64, total: u64, held: u64) {
        self.backoff = 0;
        self.same_timeout = 0;
        self.may_probe = true;
        if self.smoothed == 0 {
            (self.smoothed, self.deviation) = (total.max(1), total / 2);
        } else {
            self.deviation = (3 * self.deviation + self.smoothed.abs_diff(total)) / 4;
            self.smoothed = ((7 * self.smoothed + total) / 8).max(1);
        }
        if now.saturating_sub(self.period) >= 10 * SECOND {
            self.lowest = [u64::MAX, self.lowest[0]];
            self.period = now;
        }
        let trip = total.saturating_sub(held);
        self.lowest[0] = self.lowest[0].min(trip);
        let lowest = self.lowest[0].min(self.lowest[1]);
        if trip > 2 * lowest + SLACK {
            self.halve(now);
        }
    }

    /// This many datagrams came that were expected.
    pub(super) fn arrived(&mut self, count: u16) {
        for _ in 0..count.min(64) {
            self.losses <<= 1;
            let more = if self.size < self.threshold { ONE } else { ONE * ONE / self.size.max(1) };
            self.size = (self.size + more.max(1)).min(MOST * ONE);
        }
    }

    /// A datagram was lost, as its successors show.
    pub(super) fn lost(&mut self, now: u64) {
        self.losses = self.losses << 1 | 1;
        if self.losses.count_ones() >= LOSSES {
            self.halve(now);
        }
    }

    /// The server asks to slow down.
    pub(super) fn slow_down(&mut self, now: u64) {
        self.halve(now);
    }

    fn halve(&mut self, now: u64) {
        if now < self.calm {
            return;
        }
        self.threshold = (self.size / 2).max(ONE);
        self.size = self.threshold;
        self.losses = 0;
        self.calm = now + self.smoothed;
    }

    /// A datagram did not come in time.
    pub(super) fn timed_out(&mut self, now: u64) {
        if now < self.same_timeout {
            return;
        }
        self.undo.get_or_insert([self.size, self.threshold]);
        self.backoff += 1;
        if self.backoff >= 2 {
            self.threshold = (self.size / 2).max(2 * ONE);
            self.size = ONE;
        }
        self.same_timeout = now + self.timeout();
    }

    /// The answer after a time-out came: to what was sent before it (`early`), or to what was sent again.
    pub(super) fn recovered(&mut self, now: u64, early: bool) {
        let undo = self.undo.take();
        if !early {
            self.lost(now);
        } else if let Some([size, threshold]) = undo {
            (self.size, self.threshold) = (self.size.max(size), self.threshold.max(threshold));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled() -> Window {
        let mut window = Window::new(8, 5 * MILLISECOND);
        for now in 1..100 {
            window.answered(now * MILLISECOND, MILLISECOND, 0);
            window.arrived(1);
        }
        window
    }

    #[test]
    fn window_grows_to_its_most() {
        assert_eq!(Window::new(8, MILLISECOND).size(), 8);
        assert_eq!(settled().size(), 64);
    }

    #[test]
    fn lone_losses_do_not_halve_the_window() {
        let mut window = settled();
        for now in 0..1000 {
            window.lost(now * SECOND);
            window.arrived(63);
        }
        assert_eq!(window.size(), 64);
        (0..4).for_each(|_| window.lost(5000 * SECOND));
        assert_eq!(window.size(), 32);
    }

    #[test]
    fn window_halves_once_a_round_trip() {
        let mut window = settled();
        window.slow_down(SECOND);
        window.slow_down(SECOND + MILLISECOND / 2);
        assert_eq!(window.size(), 32);
        window.slow_down(SECOND + 2 * MILLISECOND);
        assert_eq!(window.size(), 16);
    }

    #[test]
    fn slow_networks_halve_the_window_not_slow_servers() {
        let mut window = settled();
        window.answered(SECOND, 50 * MILLISECOND, 49 * MILLISECOND);
        assert_eq!(window.size(), 64);
        window.answered(2 * SECOND, 50 * MILLISECOND, 0);
        assert_eq!(window.size(), 32);
    }

    #[test]
    fn second_timeout_in_a_row_leaves_a_window_of_one() {
        let mut window = settled();
        assert_eq!(window.timeout(), 5 * MILLISECOND);
        let mut now = SECOND;
        window.timed_out(now);
        window.timed_out(now + MILLISECOND);
        assert_eq!((window.size(), window.timeout()), (64, 10 * MILLISECOND));
        now += window.timeout();
        window.timed_out(now);
        assert_eq!((window.size(), window.timeout()), (1, 20 * MILLISECOND));
        for _ in 0..20 {
            now += window.timeout();
            window.timed_out(now);
        }
        assert_eq!(window.timeout(), SECOND);
        let mut undone = window.clone();
        undone.recovered(now, true);
        window.recovered(now, false);
        assert_eq!((undone.size(), window.size()), (64, 1));
    }
}
