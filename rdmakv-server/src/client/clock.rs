//! Clocks: one that leases count by, which runs through suspend, and the one that items expire by.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine was started, those of suspend included.
pub(super) fn boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Unix seconds.
pub(super) fn unix() -> u64 {
    clock_gettime(ClockId::RealtimeCoarse).tv_sec.cast_unsigned()
}
