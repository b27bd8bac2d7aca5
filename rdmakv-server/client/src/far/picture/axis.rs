//! Axes: where values lie, and which have ticks.

/// An axis: its ends, the pixels there, and the values of its ticks.
#[derive(Debug)]
pub(super) struct Axis {
    is_logarithmic: bool,
    ends: (f64, f64),
    pub(super) pixels: (f64, f64),
    pub(super) ticks: Vec<f64>,
}

/// 1, 2 and 5 of all decades that this may have to show.
fn steps() -> impl Iterator<Item = f64> {
    (-4..16).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)))
}

/// Returns the least and the greatest of the values that an axis can show.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let valid = values.filter(|value| value.is_finite() && *value > 0.0);
    let (least, most) =
        valid.fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    if most > 0.0 { (least, most) } else { (1.0, 1.0) }
}

impl Axis {
    /// Returns a logarithmic axis that has these values, between ticks at 1, 2 or 5. Over more than two decades it has whole ones.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let (least, most) = range(values);
        let low = steps().take_while(|&step| step <= least).last().unwrap_or(least);
        let high = steps().find(|&step| step >= most && step > low).unwrap_or(most.max(low * 2.0));
        let is_long = high / low > 150.0;
        let is_tick = |step: &f64| (low..=high * 1.000_001).contains(step) && (!is_long || is_decade(*step));
        Self { is_logarithmic: true, ends: (low, high), pixels, ticks: steps().filter(is_tick).collect() }
    }

    /// Returns a logarithmic axis from 1 with ticks at powers of two.
    pub(super) fn powers(most: u32, pixels: (f64, f64)) -> Self {
        let ticks: Vec<f64> =
            (0..31).map(|bit| f64::from(1_u32 << bit)).take_while(|&tick| tick <= f64::from(most)).collect();
        Self { is_logarithmic: true, ends: (1.0, ticks.last().map_or(2.0, |last| last.max(2.0))), pixels, ticks }
    }

    /// Returns an axis from 0 that has these values.
    pub(super) fn linear(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let most = range(values).1;
        let step = steps().find(|step| step * 6.0 >= most).unwrap_or(most);
        let count = (most / step).ceil().max(1.0);
        let ticks = (0..=count as u32).map(|tick| f64::from(tick) * step).collect();
        Self { is_logarithmic: false, ends: (0.0, count * step), pixels, ticks }
    }

    /// Returns the pixel of a value. One beyond an end lies at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let of = |value: f64| if self.is_logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let (low, high) = (of(self.ends.0), of(self.ends.1));
        let share = (of(value) - low) / (high - low);
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.pixels.0 + share * (self.pixels.1 - self.pixels.0)
    }

    /// Returns whether a value lies between the ends.
    pub(super) fn has(&self, value: f64) -> bool {
        (self.ends.0..=self.ends.1).contains(&value)
    }
}

fn is_decade(step: f64) -> bool {
    let power = step.log10();
    (power - power.round()).abs() < 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_where_their_values_are() {
        let axis = Axis::logarithmic([20.0, 3000.0].into_iter(), (0.0, 300.0));
        assert_eq!((axis.ends, &axis.ticks[..]), ((20.0, 5000.0), &[100.0, 1000.0][..]));
        let axis = Axis::logarithmic([11.0, 90.0].into_iter(), (300.0, 0.0));
        assert_eq!(axis.ticks, [10.0, 20.0, 50.0, 100.0]);
        assert!((axis.at(10.0), axis.at(100.0), axis.at(1e9), axis.at(0.0)) == (300.0, 0.0, 0.0, 300.0));
        assert!(axis.has(11.0) && !axis.has(101.0));
        for none in [Axis::logarithmic(std::iter::empty(), (0.0, 1.0)), Axis::linear(std::iter::empty(), (0.0, 1.0))] {
            assert!(none.at(f64::NAN).is_finite() && none.at(f64::INFINITY).is_finite(), "{none:?}");
        }
    }

    #[test]
    fn ticks_are_round_numbers() {
        let axis = Axis::linear([2.6].into_iter(), (0.0, 100.0));
        assert_eq!(axis.ticks, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
        assert!((axis.at(1.5) - 50.0).abs() < 1e-9);
        assert_eq!(Axis::powers(6, (0.0, 1.0)).ticks, [1.0, 2.0, 4.0]);
        assert!(Axis::powers(1, (0.0, 1.0)).at(1.0).abs() < 1e-9);
    }
}
