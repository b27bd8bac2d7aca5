//! How far back the last use lies: the histogram of reuse distances.

use super::{Sampling, Unit, curve};
use traces::Trace;

/// Uses by how many pages were used since the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reuse {
    /// At most so many pages, the thing itself included, and more than in the entry before; `None`: it was never used.
    pub up_to_pages: Option<u64>,
    /// Requests.
    pub requests: u64,
    /// Pages.
    pub pages: u64,
}

/// Returns the distances of all requests by power of two, with first uses last, as far as there are any.
pub fn reuse_distances(trace: &Trace, unit: Unit) -> Vec<Reuse> {
    let powers: Vec<u64> = (0..=52).map(|power| 1 << power).collect();
    let curve = curve(trace, &powers, unit, Sampling::Exact);
    let (mut requests, mut pages) = (0, 0);
    let mut histogram: Vec<Reuse> = Vec::new();
    for point in &curve.points {
        let (hits, hit_pages) = (point.hits as u64, point.hit_pages as u64);
        histogram.push(Reuse {
            up_to_pages: Some(point.capacity),
            requests: hits - requests,
            pages: hit_pages - pages,
        });
        (requests, pages) = (hits, hit_pages);
    }
    while histogram.last().is_some_and(|last| last.requests == 0 && last.pages == 0) {
        histogram.pop();
    }
    histogram.push(Reuse { up_to_pages: None, requests: curve.requests - requests, pages: curve.pages - pages });
    histogram
}
