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
    edges: i128,
    /// By how many pages the number of those that wait for all of a window is more in the next window than in this one.
    begun: i128,
    /// By how many it is less in this window than in the one before.
    ended: i128,
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
        let pages = i128::from(pages);
        let first = &mut self.windows[(from / self.window) as usize];
        first.edges += pages * i128::from(self.window - from % self.window);
        first.begun += pages;
        let last = &mut self.windows[(to / self.window) as usize];
        last.edges += pages * i128::from(to % self.window);
        last.ended += pages;
    }

    /// Returns the sums of pages that wait, and the moments, of each window.
    pub(super) fn windows(&self) -> impl Iterator<Item = (u128, u64)> {
        let mut whole = 0;
        self.windows.iter().enumerate().map(move |(at, window)| {
            let moments = self.moments.saturating_sub(at as u64 * self.window).min(self.window);
            whole -= window.ended;
            let sum = window.edges + whole * i128::from(self.window);
            whole += window.begun;
            (u128::try_from(sum).unwrap_or(0), moments)
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
                *usable += sum.min(u128::from(capacity) * u128::from(moments)) as f64;
            }
        }
        usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Waits, as pages and a pair of moments before the last one.
    type Waits = Vec<(u64, u64, u64)>;

    fn waits() -> impl Strategy<Value = (u64, Waits)> {
        (2u64..200).prop_flat_map(|moments| {
            let wait = (1u64..9, 0..moments - 1, 0..moments);
            let ordered = |(pages, from, to): (u64, u64, u64)| (pages, from, to.max(from + 1));
            (Just(moments), prop::collection::vec(wait.prop_map(ordered), 0..30))
        })
    }

    /// Returns the sums in windows of this length, and the pages that wait at each moment.
    fn summed(moments: u64, window: u64, waits: &Waits) -> (Living, Vec<u64>) {
        let mut living = Living { window, ..Living::new(moments) };
        let mut waiting = vec![0; moments as usize];
        for &(pages, from, to) in waits {
            living.wait(pages, from, to);
            waiting[from as usize..to as usize].iter_mut().for_each(|at| *at += pages);
        }
        (living, waiting)
    }

    proptest! {
        #[test]
        fn windows_add_up_what_waits((moments, waits) in waits(), window in 1u64..40) {
            let (living, waiting) = summed(moments, window, &waits);
            let sum = |chunk: &[u64]| chunk.iter().map(|&pages| u128::from(pages)).sum();
            let sums: Vec<u128> = waiting.chunks(window as usize).map(sum).collect();
            let got: Vec<u128> = living.windows().map(|(sum, _)| sum).collect();
            prop_assert_eq!(&got[..sums.len()], &sums[..]);
            prop_assert!(got[sums.len()..].iter().all(|&sum| sum == 0));
        }

        #[test]
        fn usable_room_is_limited_window_by_window(
            (moments, waits) in waits(),
            window in 1u64..40,
            capacities in prop::collection::vec(0u64..40, 1..5),
        ) {
            let (living, waiting) = summed(moments, window, &waits);
            let usable = living.usable_by(&capacities);
            for (&capacity, &usable) in capacities.iter().zip(&usable) {
                let in_window = |chunk: &[u64]| chunk.iter().sum::<u64>().min(capacity * chunk.len() as u64);
                let by_window: u64 = waiting.chunks(window as usize).map(in_window).sum();
                let by_moment: u64 = waiting.iter().map(|&pages| pages.min(capacity)).sum();
                prop_assert_eq!(usable, by_window as f64, "{} pages in windows of {}", capacity, window);
                prop_assert_eq!(usable, living.usable(capacity));
                prop_assert!(usable >= by_moment as f64);
                prop_assert!(window > 1 || usable == by_moment as f64);
            }
        }
    }

    #[test]
    fn huge_ranges_and_windows_do_not_wrap() {
        let window = 1 << 20;
        let mut living = Living { window, ..Living::new(2 * window + 7) };
        for _ in 0..3 {
            living.wait(1 << 50, 0, window + 5);
        }
        let all = (window + 5) as f64 * 3.0 * (1u64 << 50) as f64;
        assert_eq!(living.usable_by(&[3, u64::MAX]), [6.0 * window as f64, all]);
    }
}
