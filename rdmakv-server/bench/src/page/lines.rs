//! A plot of lines as inline SVG, without colours: the style sheet has them. Each line is named at its right end.

use maud::{Markup, html};

use super::axis::Axis;

/// One line.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// Which hue.
    pub(super) hue: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// The plot.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    /// For users of screen readers.
    pub(super) about: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
    /// Whether what is below each line, down to the one before, is filled.
    pub(super) filled: bool,
}

const WIDTH: f64 = 540.0;
const HEIGHT: f64 = 350.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 304.0;
const LEFT: f64 = 66.0;
/// Units of a letter, about; capitals are wider.
const LETTER: f64 = 6.9;
const CAPITAL: f64 = 9.2;
/// Between the baselines of two names.
const GAP: f64 = 15.0;

pub(super) fn at(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

impl Lines {
    pub(super) fn draw(&self) -> Markup {
        let longest = self.series.iter().map(|series| width(&series.name)).fold(0.0, f64::max);
        let right = WIDTH - (longest + 26.0).clamp(30.0, 230.0);
        let x = |value: f64| LEFT + self.x.place(value) * (right - LEFT);
        let y = |value: f64| BOTTOM - self.y.place(value) * (BOTTOM - TOP);
        let ends: Vec<f64> =
            self.series.iter().map(|series| series.points.last().map_or(BOTTOM, |point| y(point.1))).collect();
        let names = apart(&ends, TOP + 2.0, BOTTOM - 2.0);
        let path = |points: &[(f64, f64)]| {
            let corners: Vec<_> = points.iter().map(|&(px, py)| format!("{} {}", at(x(px)), at(y(py)))).collect();
            corners.join("L")
        };
        html! {
            svg class="plot" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.about) {
                @for (value, text) in &self.y.ticks {
                    path class="grid" d={ "M" (at(LEFT)) " " (at(y(*value))) "H" (at(right)) } {}
                    text x=(LEFT - 9.0) y=(at(y(*value))) dy="0.32em" text-anchor="end" { (text) }
                }
                @for (value, text) in self.readable(&x) {
                    path class="tick" d={ "M" (at(x(value))) " " (BOTTOM) "v5" } {}
                    text x=(at(x(value))) y=(BOTTOM + 20.0) text-anchor="middle" { (text) }
                }
                path class="axis" d={ "M" (LEFT) " " (BOTTOM) "H" (at(right)) } {}
                text class="label" x=(at((LEFT + right) / 2.0)) y=(HEIGHT - 5.0) text-anchor="middle" { (self.x.label) }
                text class="label" x="4" y="13" { (self.y.label) }
                @if self.filled {
                    @for (number, series) in self.series.iter().enumerate().rev() {
                        @let below: Vec<(f64, f64)> = match number.checked_sub(1) {
                            Some(before) => self.series[before].points.iter().rev().copied().collect(),
                            None => series.points.iter().rev().map(|point| (point.0, 0.0)).collect(),
                        };
                        path class={ "area h" (series.hue) } d={ "M" (path(&series.points)) "L" (path(&below)) "Z" } {}
                    }
                }
                @for (number, (series, name)) in self.series.iter().zip(&names).enumerate() {
                    g class={ "series k" (number) " h" (series.hue) } {
                        path class="line" d={ "M" (path(&series.points)) } {}
                        path class="reach" d={ "M" (path(&series.points)) } { title { (series.name) } }
                        @if let [only] = series.points[..] {
                            circle class="dot" cx=(at(x(only.0))) cy=(at(y(only.1))) r="3.5" {}
                        }
                        @if let Some(&(px, py)) = series.points.last() {
                            @if self.series.len() > 1 || !series.name.is_empty() {
                                path class="leader" d={ "M" (at(x(px) + 4.0)) " " (at(y(py))) "L" (at(right + 9.0)) " " (at(*name)) } {}
                                text class="name" x=(at(right + 13.0)) y=(at(*name)) dy="0.32em" { (series.name) }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Ticks along that do not run into each other.
    fn readable(&self, x: &impl Fn(f64) -> f64) -> Vec<(f64, &str)> {
        let mut kept: Vec<(f64, &str)> = Vec::new();
        for (value, text) in &self.x.ticks {
            let half = |text: &str| text.chars().count() as f64 * LETTER / 2.0;
            let free =
                kept.last().is_none_or(|(before, word)| x(*value) - x(*before) >= half(word) + half(text) + 12.0);
            if free {
                kept.push((*value, text));
            }
        }
        kept
    }
}

/// Units that a text takes, about.
pub(super) fn width(text: &str) -> f64 {
    text.chars().map(|letter| if letter.is_ascii_uppercase() { CAPITAL } else { LETTER }).sum()
}

/// These heights, moved so that none is nearer than a name's height to another.
fn apart(wanted: &[f64], least: f64, most: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut places = wanted.to_vec();
    let mut free = least;
    for &at in &order {
        places[at] = places[at].max(free);
        free = places[at] + GAP;
    }
    // A label that was pushed out below comes back up.
    let mut free = most;
    for &at in order.iter().rev() {
        places[at] = places[at].min(free);
        free = places[at] - GAP;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_overlap_and_stay_in_the_plot() {
        for wanted in [vec![300.0; 8], vec![30.0; 8], vec![100.0, 101.0, 240.0, 99.0], vec![]] {
            let mut places = apart(&wanted, TOP, BOTTOM);
            places.sort_by(f64::total_cmp);
            assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= GAP - 1e-9), "{places:?}");
            assert!(places.iter().all(|place| (TOP..=BOTTOM).contains(place)), "{places:?}");
        }
        assert_eq!(apart(&[200.0, 50.0], TOP, BOTTOM), [200.0, 50.0], "what is apart stays where it is");
    }
}
