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
    /// A page's contribution to the first and the last window of its wait.
    edges: Vec<i64>,
    /// By how many pages the number of those that wait for all of a window differs from the window before.
    steps: Vec<i64>,
}

impl Living {
    /// For so many moments.
    pub(super) fn new(moments: u64) -> Self {
        let window = moments.div_ceil(WINDOWS).max(1);
        let windows = (moments / window + 2) as usize;
        Self { window, moments, edges: vec![0; windows], steps: vec![0; windows] }
    }

    /// So many pages wait from one use to the next.
    #[inline]
    pub(super) fn wait(&mut self, pages: u64, from: u64, to: u64) {
        let [first, last] = [from, to].map(|at| (at / self.window) as usize);
        let pages = pages as i64;
        self.edges[first] += pages * (self.window - from % self.window) as i64;
        self.steps[first + 1] += pages;
        self.steps[last] -= pages;
        self.edges[last] += pages * (to % self.window) as i64;
    }

    /// Returns the sums of pages that wait, and the moments, of each window.
    pub(super) fn windows(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut whole = 0;
        self.edges.iter().zip(&self.steps).enumerate().map(move |(at, (edge, step))| {
            whole += step;
            let moments = self.moments.saturating_sub(at as u64 * self.window).min(self.window);
            let sum = i128::from(*edge) + i128::from(whole) * i128::from(self.window);
            (u64::try_from(sum).unwrap_or(0), moments)
        })
    }

    /// Page-moments that a cache of so many pages can use.
    pub(super) fn usable(&self, capacity: u64) -> f64 {
        self.windows().map(|(sum, moments)| sum.min(capacity.saturating_mul(moments)) as f64).sum()
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
