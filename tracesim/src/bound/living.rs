//! The usable capacity: at a moment when fewer pages wait for their next use than fit, the rest of the capacity is
//! useless.
//!
//! Moments are counted in windows, at most 65,536 of them, so that memory is bounded. Over a window, the sum of
//! `min(C, waiting)` is at most `min(C · moments, sum of waiting)`, so windows only make the bound weaker.

/// The most windows.
const WINDOWS: u64 = 1 << 16;

/// Pages that wait for their next use, by time.
pub(super) struct Living {
    window: u64,
    moments: u64,
    windows: Vec<Window>,
}

/// The waits that meet a window.
#[derive(Clone, Copy, Default)]
struct Window {
    /// The contribution of pages whose wait begins or ends in it.
    edges: i64,
    /// By how many pages the number of those that wait for all of a window is more in the next window than in this one.
    begun: i64,
    /// By how many it is less in this window than in the one before.
    ended: i64,
}

impl Living {
    /// For so many moments.
    pub(super) fn new(moments: u64) -> Self {
        let window = moments.div_ceil(WINDOWS).max(1);
        let windows = (moments / window + 2) as usize;
        Self { window, moments, windows: vec![Window::default(); windows] }
    }

    /// So many pages wait from one use to the next.
    #[inline]
    pub(super) fn wait(&mut self, pages: u64, from: u64, to: u64) {
        let pages = pages as i64;
        let first = &mut self.windows[(from / self.window) as usize];
        first.edges += pages * (self.window - from % self.window) as i64;
        first.begun += pages;
        let last = &mut self.windows[(to / self.window) as usize];
        last.edges += pages * (to % self.window) as i64;
        last.ended += pages;
    }

    /// Returns the sums of pages that wait, and the moments, of each window.
    pub(super) fn windows(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut whole = 0;
        self.windows.iter().enumerate().map(move |(at, window)| {
            let moments = self.moments.saturating_sub(at as u64 * self.window).min(self.window);
            whole -= window.ended;
            let sum = i128::from(window.edges) + i128::from(whole) * i128::from(self.window);
            whole += window.begun;
            (u64::try_from(sum).unwrap_or(0), moments)
        })
    }

    /// Page-moments that a cache of so many pages can use.
    pub(super) fn usable(&self, capacity: u64) -> f64 {
        self.usable_by(&[capacity])[0]
    }

    /// Page-moments that caches of so many pages each can use.
    pub(super) fn usable_by(&self, capacities: &[u64]) -> Vec<f64> {
        let mut usable = vec![0.0; capacities.len()];
        for (sum, moments) in self.windows() {
            for (usable, &capacity) in usable.iter_mut().zip(capacities) {
                *usable += sum.min(capacity.saturating_mul(moments)) as f64;
            }
        }
        usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_add_up_what_waits(waits in prop::collection::vec((1u64..9, 0u64..99, 1u64..99), 0..30), window in 1u64..40) {
            let mut living = Living { window, ..Living::new(200) };
            let mut single = [0u64; 200];
            for (pages, from, long) in waits {
                living.wait(pages, from, from + long);
                single[from as usize..(from + long) as usize].iter_mut().for_each(|at| *at += pages);
            }
            let sums: Vec<u64> = single.chunks(window as usize).map(|chunk| chunk.iter().sum()).collect();
            let got: Vec<u64> = living.windows().map(|(sum, _)| sum).collect();
            prop_assert_eq!(&got[..sums.len()], &sums[..]);
            prop_assert!(got[sums.len()..].iter().all(|&sum| sum == 0));
        }
    }
}
