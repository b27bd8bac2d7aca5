//! From values to places along an axis.

use crate::report::number::{bytes, grouped};

/// The unit of the numbers along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Plain numbers.
    Number,
    /// Shares of one, written in percent.
    Share,
}

impl Unit {
    /// Returns a tick, where the next one is so far off.
    fn tick(self, value: f64, step: f64) -> String {
        let (by, sign) = if self == Self::Share { (100.0, " %") } else { (1.0, "") };
        let (value, step) = (value * by, step * by);
        if step >= 1.0 && (1000.0..1e15).contains(&value) {
            return grouped(value.round() as u64) + sign;
        }
        let decimals = if step < 1.0 { (-step.log10()).ceil().clamp(0.0, 12.0) as usize } else { 0 };
        // No minus before a zero.
        let value = if value.abs() < step / 2.0 { 0.0 } else { value };
        format!("{value:.decimals$}{sign}")
    }
}

/// An axis: its values, its ticks, and what it says.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// The meaning of the values.
    pub label: String,
    /// The first and the last value.
    range: (f64, f64),
    logarithmic: bool,
    /// Values with what is written there, and below it.
    pub ticks: Vec<(f64, String, String)>,
}

impl Scale {
    /// From zero to a round number not below the largest value.
    pub fn from_zero(label: &str, values: impl IntoIterator<Item = f64>, unit: Unit) -> Self {
        Self::around(label, std::iter::once(0.0).chain(values), unit)
    }

    /// From a round number to a round number around these values.
    pub fn around(label: &str, values: impl IntoIterator<Item = f64>, unit: Unit) -> Self {
        let finite = values.into_iter().filter(|value| value.is_finite());
        let (least, most) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), v| (l.min(v), m.max(v)));
        let (least, most) = match (least, most) {
            _ if least > most => (0.0, 1.0),
            _ if least == most => (least.min(0.0), if least > 0.0 { least } else { 1.0 }),
            both => both,
        };
        let step = round_step((most - least) / 5.0);
        let (first, last) = ((least / step + 1e-9).floor(), (most / step - 1e-9).ceil());
        let ticks = (0..=(last - first) as u64).map(|i| (first + i as f64) * step);
        Self {
            label: label.to_owned(),
            range: (first * step, last * step),
            logarithmic: false,
            ticks: ticks.map(|tick| (tick, unit.tick(tick, step), String::new())).collect(),
        }
    }

    /// Capacities in pages, by their logarithms, with their shares of a footprint, if there is one, below.
    pub fn capacities(pages: &[u64], footprint: Option<u64>) -> Self {
        let mut pages = pages.to_vec();
        pages.sort_unstable();
        pages.dedup();
        pages.retain(|&pages| pages > 0);
        let share = |pages: u64| footprint.map(|all| share(pages as f64 / all.max(1) as f64)).unwrap_or_default();
        let ticks = pages.iter().map(|&pages| (pages as f64, bytes(pages), share(pages)));
        let (first, last) = (pages.first().copied().unwrap_or(1) as f64, pages.last().copied().unwrap_or(1) as f64);
        // A single one stands in the middle.
        let range = if first == last { (first / 2.0, last * 2.0) } else { (first, last) };
        let below = if footprint.is_some() { ", and its share of the footprint" } else { "" };
        Self { label: format!("capacity{below}"), range, logarithmic: true, ticks: ticks.collect() }
    }

    /// Rising values, by their logarithms.
    pub fn powers(label: &str, values: &[f64]) -> Self {
        let ticks = values.iter().map(|&value| (value, value.to_string(), String::new())).collect();
        let (first, last) = (values.first().copied().unwrap_or(1.0), values.last().copied().unwrap_or(1.0));
        let range = if first == last { (first / 2.0, last * 2.0) } else { (first, last) };
        Self { label: label.to_owned(), range, logarithmic: true, ticks }
    }

    /// Returns whether zero lies within.
    pub(super) fn crosses_zero(&self) -> bool {
        !self.logarithmic && self.range.0 < 0.0 && self.range.1 > 0.0
    }

    /// Returns the place of a value, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (first, last) = self.range;
        if self.logarithmic { (value / first).ln() / (last / first).ln() } else { (value - first) / (last - first) }
    }
}

/// Two digits, or a whole number where that is as good.
fn share(share: f64) -> String {
    let percent = 100.0 * share;
    let whole = percent.round();
    if whole > 0.0 && (percent - whole).abs() <= 0.02 * whole {
        return format!("{whole:.0} %");
    }
    let decimals = if percent >= 1.0 { 1 } else { (1.0 - percent.log10().floor()).clamp(0.0, 6.0) as usize };
    let text = format!("{percent:.decimals$}");
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// 1, 2 or 5 times a power of ten, not below.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let found = [1.0, 2.0, 5.0, 10.0].into_iter().map(|by| by * power).find(|&round| round >= step * (1.0 - 1e-9));
    found.unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round_and_reach_around_the_values() {
        let scale = Scale::from_zero("ms", [3.0, 87.3], Unit::Number);
        let ticks: Vec<f64> = scale.ticks.iter().map(|tick| tick.0).collect();
        assert_eq!(ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let texts: Vec<&str> = scale.ticks.iter().map(|tick| tick.1.as_str()).collect();
        assert_eq!(texts, ["0", "20", "40", "60", "80", "100"]);
        assert_eq!((scale.place(0.0), scale.place(100.0), scale.place(25.0)), (0.0, 1.0, 0.25));
        let scale = Scale::around("x", [1.21, 1.74], Unit::Number);
        assert!((scale.range.0 - 1.2).abs() < 1e-9 && (scale.range.1 - 1.8).abs() < 1e-9, "{:?}", scale.range);
        let shares: Vec<String> = Scale::from_zero("x", [0.007], Unit::Share).ticks.into_iter().map(|t| t.1).collect();
        assert_eq!(shares, ["0.0 %", "0.2 %", "0.4 %", "0.6 %", "0.8 %"]);
        assert_eq!([Unit::Number.tick(12_000.0, 2000.0), Unit::Number.tick(-1e-17, 0.5)], ["12,000", "0.0"]);
    }

    #[test]
    fn capacities_are_placed_logarithmically() {
        let scale = Scale::capacities(&[1024, 256, 512], Some(102_400));
        let texts: Vec<(&str, &str)> = scale.ticks.iter().map(|tick| (tick.1.as_str(), tick.2.as_str())).collect();
        assert_eq!(texts, [("1 MiB", "0.25 %"), ("2 MiB", "0.5 %"), ("4 MiB", "1 %")]);
        assert!((scale.place(512.0) - 0.5).abs() < 1e-9);
        assert!((Scale::capacities(&[7, 7], None).place(7.0) - 0.5).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn any_values_fit_with_few_ticks(
            values in prop::collection::vec(prop::num::f64::NORMAL.prop_map(|v| v % 1e15), 0..20),
        ) {
            let scale = Scale::around("any", values.iter().copied(), Unit::Number);
            prop_assert!((2..=12).contains(&scale.ticks.len()), "{} ticks", scale.ticks.len());
            for value in values {
                let place = scale.place(value);
                prop_assert!((-1e-6..=1.0 + 1e-6).contains(&place), "{value} stands at {place}");
            }
        }
    }
}
