//! The paper's comparison on real traces.

use super::figures::total_us;
use crate::row::{DeregCost, Row};
use mrrc_core::cost::Linear;

/// Shares of the footprint that logs are replayed at, as sizes are written.
pub const CAPACITIES: [&str; 3] = ["5%", "10%", "25%"];

/// The replayed policies.
pub const POLICIES: [&str; 2] = ["mrrc", "pindown"];

/// The comparison on a trace at one capacity.
#[derive(Clone, PartialEq, Debug)]
pub struct Compared {
    /// The trace.
    pub trace: String,
    /// As it was asked for.
    pub capacity: &'static str,
    /// In pages.
    pub pages: u64,
    /// Requests.
    pub requests: u64,
    /// Hit ratios of MRRC and of the pin-down cache.
    pub hits: [f64; 2],
    /// By what share MRRC's cost is below the pin-down cache's: by the batch, by the region.
    pub cheaper: [f64; 2],
    /// By what share it is below that of no cache, by the batch and by the region.
    pub below_no_cache: [f64; 2],
}

/// From the results of a study of these policies and capacities, lines included.
pub fn compared(rows: &[Row], cost: &Linear) -> Vec<Compared> {
    let by_name = |name: &str| rows.iter().filter(|row| row.policy == name).collect::<Vec<&Row>>();
    let [mrrc, pindown] = POLICIES.map(by_name);
    let Some(none) = by_name("none").first().copied() else { return Vec::new() };
    let compare = |((capacity, one), other): ((&'static str, &&Row), &&Row)| {
        // Where nothing costs anything, nothing is cheaper.
        let below = |other: &Row| {
            [DeregCost::Batch, DeregCost::Region].map(|by| {
                let (one, other) = (total_us(one, cost, by), total_us(other, cost, by));
                if other > 0.0 { 1.0 - one / other } else { 0.0 }
            })
        };
        Compared {
            trace: one.trace.clone(),
            capacity,
            pages: one.capacity_pages,
            requests: one.requests,
            hits: [one.hit_ratio, other.hit_ratio],
            cheaper: below(other),
            below_no_cache: below(none),
        }
    };
    CAPACITIES.into_iter().zip(&mrrc).zip(&pindown).map(compare).collect()
}
