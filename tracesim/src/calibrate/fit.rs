//! A line through medians.

use serde::Serialize;

/// `page_us` for each page and `call_us` for each call.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Line {
    /// Microseconds for a page more.
    pub page_us: f64,
    /// Microseconds for each call.
    pub call_us: f64,
    /// How far off the line is: the root of the mean square of its errors, each as a share of what was measured.
    pub error: f64,
    /// The largest such error.
    pub largest_error: f64,
}

impl Line {
    /// Returns the line's value for so many pages.
    pub fn at(&self, pages: f64) -> f64 {
        self.page_us * pages + self.call_us
    }
}

/// Returns the line through points (pages, microseconds) with the least sum of squared relative errors of those
/// lines that fall nowhere and begin at zero or above: a cost model has no negative constants. Times of zero are
/// passed over.
pub fn fit(points: &[(f64, f64)]) -> Line {
    let points: Vec<(f64, f64)> = points.iter().copied().filter(|(_, us)| *us > 0.0).collect();
    let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(x, y) in &points {
        let weight = 1.0 / (y * y);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    let determinant = w * wxx - wx * wx;
    let free = (determinant > 1e-12 * w * wxx)
        .then(|| ((w * wxy - wx * wy) / determinant, (wxx * wy - wx * wxy) / determinant));
    let (page_us, call_us) = match free {
        Some((page, call)) if page >= 0.0 && call >= 0.0 => (page, call),
        // The best line lies at the edge of what is allowed: no cost a page, or none a call.
        Some((page, _)) if page < 0.0 => (0.0, if w > 0.0 { wy / w } else { 0.0 }),
        Some(_) => (wxy / wxx, 0.0),
        // One size cannot tell the two apart: all of it is the call's.
        None => (0.0, if w > 0.0 { wy / w } else { 0.0 }),
    };
    let mut line = Line { page_us, call_us, error: 0.0, largest_error: 0.0 };
    let errors: Vec<f64> = points.iter().map(|&(x, y)| (line.at(x) - y).abs() / y).collect();
    line.error = (errors.iter().map(|error| error * error).sum::<f64>() / errors.len().max(1) as f64).sqrt();
    line.largest_error = errors.into_iter().fold(0.0, f64::max);
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_line_is_found_again(page in 0.001f64..10.0, call in 0.001f64..10.0) {
            let points: Vec<(f64, f64)> = (0..11).map(|n| (f64::from(1 << n), page * f64::from(1 << n) + call)).collect();
            let line = fit(&points);
            prop_assert!((line.page_us - page).abs() < 1e-6 * page.max(1.0) && (line.call_us - call).abs() < 1e-6 * call.max(1.0));
            prop_assert!(line.error < 1e-6 && line.largest_error < 1e-6);
        }

        #[test]
        fn no_constant_is_negative_and_no_better_line_is_near(
            points in prop::collection::vec((1f64..2000.0, 0.01f64..1000.0), 1..15),
            (dx, dy) in (-0.1f64..0.1, -0.1f64..0.1),
        ) {
            let line = fit(&points);
            prop_assert!(line.page_us >= 0.0 && line.call_us >= 0.0);
            let loss = |page: f64, call: f64| points.iter().map(|(x, y)| ((page * x + call - y) / y).powi(2)).sum::<f64>();
            let other = ((line.page_us + dx).max(0.0), (line.call_us + dy).max(0.0));
            prop_assert!(loss(line.page_us, line.call_us) <= loss(other.0, other.1) + 1e-6);
        }
    }

    #[test]
    fn one_size_and_none_are_lines_too() {
        assert_eq!((fit(&[(4.0, 2.0)]).page_us, fit(&[(4.0, 2.0)]).call_us), (0.0, 2.0));
        assert_eq!(fit(&[]), Line { page_us: 0.0, call_us: 0.0, error: 0.0, largest_error: 0.0 });
    }

    #[test]
    fn the_error_is_a_share_of_what_was_measured() {
        let line = fit(&[(1.0, 1.0), (2.0, 1.0), (1.0, 1.1), (2.0, 1.1)]);
        assert!((0.04..0.06).contains(&line.error), "{line:?}");
    }
}
