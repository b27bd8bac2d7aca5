//! The clock of server and clients: leases count by [`boot`], items expire by [`now`].

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

const A_SECOND: u64 = 1_000_000_000;

/// Unix seconds as of the start, and by a clock that is never set since: as in memcached, items do not expire, nor clients, because
/// the machine's clock was put right. It runs on while the machine sleeps.
#[inline]
pub fn now() -> u64 {
    nanos() / A_SECOND
}

/// The same clock, in nanoseconds.
#[inline]
pub fn nanos() -> u64 {
    boot() + beyond_boot()
}

/// Returns the difference of [`boot`] to [`nanos`]: it never changes.
#[inline]
pub fn beyond_boot() -> u64 {
    static BETWEEN: OnceLock<u64> = OnceLock::new();
    let unix = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    BETWEEN.get_or_init(|| unix().saturating_sub(boot() / A_SECOND)) * A_SECOND
}

/// Nanoseconds since the machine was started, those of suspend included: a clock that its processes share.
#[inline]
pub fn boot() -> u64 {
    let since_boot = clock_gettime(ClockId::Boottime);
    since_boot.tv_sec.cast_unsigned() * A_SECOND + since_boot.tv_nsec.cast_unsigned()
}

/// Returns the machine's time of day, in Unix seconds, as of its last timer tick.
#[inline]
pub fn unix() -> u64 {
    clock_gettime(ClockId::RealtimeCoarse).tv_sec.cast_unsigned()
}

/// Returns the time since 1970, for dates of events.
#[inline]
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
