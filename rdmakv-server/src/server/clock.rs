//! The server's time.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

const A_SECOND: u64 = 1_000_000_000;

/// Unix seconds as of the start, and by a clock that nobody sets since: as in memcached, items do not expire, nor clients, because the
/// machine's clock was put right. It runs on while the machine sleeps.
pub(crate) fn now() -> u64 {
    nanos() / A_SECOND
}

/// The same clock, in nanoseconds.
pub(crate) fn nanos() -> u64 {
    static BETWEEN: OnceLock<u64> = OnceLock::new();
    let since_boot = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (since_boot.tv_sec.cast_unsigned(), since_boot.tv_nsec.cast_unsigned());
    let unix = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (seconds + BETWEEN.get_or_init(|| unix().saturating_sub(seconds))) * A_SECOND + nanos
}
