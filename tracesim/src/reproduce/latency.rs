//! Section 8: what the fast read and write process saves.
//!
//! Its claims are arithmetic over costs of the testbed: `0.77·p + 7.42` µs by registering on both sides at once, 8 µs by
//! conditional writes, 68 % of the latency together. To measure them takes the handshake over a fabric; until it
//! exposes its latencies, they are listed as not measured.

use super::claim::Claim;

const WHY: &str = "the handshake does not expose its latencies yet";

/// The claims.
pub fn claims() -> Vec<Claim> {
    vec![
        Claim::open("Section 8", "latency that overlapped registrations save", "0.77·p + 7.42 µs", WHY),
        Claim::open("Section 8", "latency that conditional writes save", "8 µs", WHY),
        Claim::open("Section 8", "latency that both save, of all", "68 %, 15 µs at least", WHY),
    ]
}
