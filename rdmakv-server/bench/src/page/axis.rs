//! From values to places along an axis.

/// The unit of the numbers along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Microseconds, written in the unit that suits each.
    Time,
    /// Plain numbers, thousands and millions short.
    Count,
    /// Seconds.
    Seconds,
}

/// An axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: String,
    pub(super) ticks: Vec<(f64, String)>,
    range: (f64, f64),
    log: bool,
}

impl Axis {
    /// From nothing to a round number that is not below the largest.
    pub(super) fn from_zero(label: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let step = round_up(most / 5.0);
        let steps = (most / step - 1e-9).ceil().max(1.0);
        let ticks = (0..=steps as u32).map(|at| f64::from(at) * step).map(|tick| (tick, unit.text(tick))).collect();
        Self { label: label.into(), ticks, range: (0.0, steps * step), log: false }
    }

    /// Round numbers around these, by their logarithms.
    pub(super) fn logarithmic(label: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
        let (least, most) = if least <= most { (least, most) } else { (1.0, 10.0) };
        let wide = most / least > 300.0;
        let parts: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = (least.log10().floor() as i32 - 1)..=(most.log10().ceil() as i32 + 1);
        let all: Vec<f64> = powers.flat_map(|power| parts.iter().map(move |part| part * 10_f64.powi(power))).collect();
        let first = all.iter().rposition(|&tick| tick <= least * (1.0 + 1e-9)).unwrap_or(0);
        let last = all.iter().position(|&tick| tick >= most * (1.0 - 1e-9)).unwrap_or(all.len() - 1).max(first + 1);
        let ticks: Vec<_> = all[first..=last.min(all.len() - 1)].iter().map(|&tick| (tick, unit.text(tick))).collect();
        let range = (ticks[0].0, ticks[ticks.len() - 1].0);
        Self { label: label.into(), ticks, range, log: true }
    }

    /// Quantiles up to this one, each nine as wide as the others.
    pub(super) fn quantiles(count: u64) -> Self {
        let nines = (count.max(10) as f64).log10();
        let named =
            [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];
        let more = [(0.99999, "99.999 %"), (0.999_999, "99.9999 %")];
        let within = |quantile: f64| nines_of(quantile) <= nines + 1e-9;
        let ticks = named.into_iter().chain(more).filter(|(quantile, _)| within(*quantile));
        let ticks = ticks.map(|(quantile, text)| (nines_of(quantile), text.to_owned())).collect();
        Self { label: "share of the requests that took no longer".into(), ticks, range: (0.0, nines), log: false }
    }

    /// Returns the place of a value, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (first, last) = self.range;
        let part = if self.log {
            (value.max(1e-12) / first).ln() / (last / first).ln()
        } else {
            (value - first) / (last - first)
        };
        part.clamp(0.0, 1.0)
    }
}

/// How many nines: where on the axis a quantile stands.
pub(super) fn nines_of(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

impl Unit {
    pub(super) fn text(self, value: f64) -> String {
        let short = |value: f64| {
            let text = if value >= 99.95 {
                format!("{value:.0}")
            } else if value >= 9.995 {
                format!("{value:.1}")
            } else {
                format!("{value:.2}")
            };
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        };
        match self {
            _ if value == 0.0 => "0".into(),
            Self::Time if value >= 999_500.0 => format!("{} s", short(value / 1e6)),
            Self::Time if value >= 999.5 => format!("{} ms", short(value / 1e3)),
            Self::Time if value >= 0.9995 => format!("{} µs", short(value)),
            Self::Time => format!("{} ns", short(value * 1e3)),
            Self::Count if value >= 999_500.0 => format!("{} M", short(value / 1e6)),
            Self::Count if value >= 9_995.0 => format!("{} k", short(value / 1e3)),
            Self::Count | Self::Seconds => short(value),
        }
    }
}

/// 1, 2 or 5 times a power of ten, not below.
fn round_up(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|part| part * power)
        .find(|&round| round >= step * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_reach_around_the_values() {
        let axis = Axis::from_zero("", Unit::Count, [3.0, 114_000.0].into_iter());
        assert_eq!(texts(&axis), ["0", "50 k", "100 k", "150 k"]);
        assert_eq!((axis.place(0.0), axis.place(150_000.0)), (0.0, 1.0));
        assert_eq!(
            texts(&Axis::logarithmic("", Unit::Time, [42.0, 180.0].into_iter())),
            ["20 µs", "50 µs", "100 µs", "200 µs"]
        );
        let wide = Axis::logarithmic("", Unit::Time, [42.0, 95_000.0].into_iter());
        assert_eq!(texts(&wide), ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]);
        assert!((wide.place(1000.0) - 0.5).abs() < 1e-9);
        assert_eq!(texts(&Axis::quantiles(3000)), ["0 %", "50 %", "90 %", "99 %", "99.9 %"]);
    }

    #[test]
    fn whatever_the_values_there_is_an_axis() {
        for values in
            [vec![], vec![0.0], vec![f64::NAN, f64::INFINITY], vec![1e-9], vec![1e15, 1.0], vec![10.0], vec![7.0, 7.0]]
        {
            for axis in [
                Axis::from_zero("", Unit::Count, values.iter().copied()),
                Axis::logarithmic("", Unit::Time, values.iter().copied()),
            ] {
                assert!((2..=30).contains(&axis.ticks.len()), "{values:?}: {:?}", axis.ticks);
                assert!(
                    values
                        .iter()
                        .filter(|value| value.is_finite())
                        .all(|&value| (0.0..=1.0).contains(&axis.place(value)))
                );
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let time = |value| Unit::Time.text(value);
        assert_eq!(
            [0.3, 1.0, 85.25, 999.9, 1234.0, 95_000.0, 2e6].map(time),
            ["300 ns", "1 µs", "85.2 µs", "1 ms", "1.23 ms", "95 ms", "2 s"]
        );
        assert_eq!(
            [0.0, 0.25, 9000.0, 12_500.0, 2e6].map(|value| Unit::Count.text(value)),
            ["0", "0.25", "9000", "12.5 k", "2 M"]
        );
    }
}
