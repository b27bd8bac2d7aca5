//! How long leases last, on the side that grants them and on the side that relies on them.

use std::time::Duration;

/// The longest duration (D) that a client may be granted.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Returns how long a lease of this duration (D) lasts on the side that grants it: an eighth longer.
#[inline]
pub fn lasting(duration: Duration) -> Duration {
    duration + duration / 8
}
