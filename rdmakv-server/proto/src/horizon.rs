//! Whether a message is waited for awake, before the thread sleeps.
//!
//! To wake a sleeping thread takes tens of microseconds, about as long as a server's answer. A write at several servers takes several
//! messages, one after the other. So clients and servers wait for these awake, as long as that pays. It does not where others need the
//! processor.

use std::time::{Duration, Instant};

/// The time for which a message is waited for awake: twice that which it takes to wake a thread. On 16 cores 100 µs were not faster.
const AWAKE: Duration = Duration::from_micros(50);
/// The waits at most that are not awake after one that was in vain.
const REST: u32 = 1024;

/// Decides about the next wait by those before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Horizon {
    /// Waits left that are not awake.
    rest: u32,
    /// How many there will be after the next wait in vain.
    next_rest: u32,
}

impl Default for Horizon {
    fn default() -> Self {
        Self { rest: 0, next_rest: 1 }
    }
}

impl Horizon {
    /// Returns for how long the next message is waited for awake.
    pub fn get(self) -> Duration {
        if self.rest == 0 { AWAKE } else { Duration::ZERO }
    }

    /// Waits awake: looks again and again whether the message has come. Returns whether it came.
    pub fn wait(&mut self, longest: Duration, mut has_come: impl FnMut() -> bool) -> bool {
        let (begun, awake) = (Instant::now(), self.get().min(longest));
        let mut came = false;
        while !came && begun.elapsed() < awake {
            // Where another thread needs this processor, giving it up would cost more than sleeping: whole turns of the scheduler.
            std::hint::spin_loop();
            came = has_come();
        }
        self.learn(came);
        came
    }

    /// Learns whether the message came while the thread was awake. After each wait in vain twice as many are not.
    fn learn(&mut self, came: bool) {
        if came {
            self.next_rest = 1;
        } else if self.rest > 0 {
            self.rest -= 1;
        } else {
            (self.rest, self.next_rest) = (self.next_rest, (self.next_rest * 2).min(REST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of so many waits are awake.
    fn awake(horizon: &mut Horizon, waits: u32, comes: bool) -> usize {
        let mut wait = || {
            let is_awake = horizon.get() > Duration::ZERO;
            horizon.learn(is_awake && comes);
            is_awake
        };
        (0..waits).filter(|_| wait()).count()
    }

    #[test]
    fn thread_stays_awake_while_that_pays() {
        let mut horizon = Horizon::default();
        assert_eq!(awake(&mut horizon, 100, true), 100);
        // After rests of 1, 2, 4 and so on up to 1,024, and then once in 1,025 waits.
        assert_eq!(awake(&mut horizon, 10_000, false), 11 + 8);
        // It pays again: within the longest rest it is found out.
        assert!(awake(&mut horizon, 10_000, true) >= 10_000 - REST as usize);
    }
}
