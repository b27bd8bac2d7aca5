//! One clock for all processes, which is never set and runs through suspend.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
