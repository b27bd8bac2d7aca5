//! Lines over an axis, each named at its right end.

use super::coincide::{self, Run};
use super::look::Look;
use super::scale::Scale;
use super::{HEIGHT, WIDTH, at};
use maud::{Markup, html};

/// A value with its text for a pointing user.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Along.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// In words.
    pub title: String,
}

/// One line.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Its number in the section: what is pointed at in one plot stands out in the others.
    pub key: usize,
    /// Its name.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Its points, from the left; a reference of one point goes right across.
    pub points: Vec<Point>,
}

/// A plot of lines.
#[derive(Clone, PartialEq, Debug)]
pub struct Lines {
    /// The subject, for users of screen readers.
    pub title: String,
    /// Along.
    pub x: Scale,
    /// Up.
    pub y: Scale,
    /// Whether muted lines can leave the plot at its top.
    pub clipped: bool,
    /// The lines, the last on top.
    pub series: Vec<Series>,
}

/// Room for the ticks of the axis up; longer ones get more.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 116.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 60.0;
/// Between the baselines of two names.
const NAME_GAP: f64 = 15.0;
/// Units that a letter of a tick takes, about.
const LETTER: f64 = 7.2;
/// And a digit, at most.
const DIGIT: f64 = 8.2;
/// Between two ticks along, at least.
const TICK_GAP: f64 = 10.0;

impl Lines {
    /// Returns the SVG.
    pub fn draw(&self) -> Markup {
        let (left, right, bottom) = (self.left(), WIDTH - RIGHT, HEIGHT - BOTTOM);
        let names = self.names();
        let corners: Vec<Vec<(f64, f64)>> = self.series.iter().map(|series| self.corners(series)).collect();
        let distinct: Vec<&[(f64, f64)]> = self.distinct(&corners);
        let runs = coincide::runs(&distinct);
        let markers = coincide::side_by_side(&distinct, left, right);
        html! {
            svg class="plot lines" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.title) {
                @for (value, text, _) in &self.y.ticks {
                    @let y = at(self.up(*value));
                    path class="grid" d={ "M" (left) " " (y) "H" (right) } {}
                    text class="tick" x=(left - 8.0) y=(y) dy="0.32em" text-anchor="end" { (text) }
                }
                @for (value, text, below) in self.readable_ticks() {
                    @let x = at(self.along(value));
                    path class="tick-mark" d={ "M" (x) " " (bottom) "v5" } {}
                    text class="tick" x=(x) y=(bottom + 19.0) text-anchor="middle" { (text) }
                    @if !below.is_empty() {
                        text class="tick below" x=(x) y=(bottom + 34.0) text-anchor="middle" { (below) }
                    }
                }
                @if self.y.crosses_zero() {
                    path class="zero" d={ "M" (left) " " (at(self.up(0.0))) "H" (right) } {}
                }
                path class="axis" d={ "M" (left) " " (bottom) "H" (right) } {}
                text class="axis-label" x=((left + right) / 2.0) y=(HEIGHT - 6.0) text-anchor="middle" { (self.x.label) }
                text class="axis-label" x="2" y="13" { (self.y.label) }
                @for (number, (series, name_at)) in self.series.iter().zip(names).enumerate() {
                    @let line = self.line(series, &corners[number], &runs[number], &markers[number], name_at);
                    @if self.clipped && series.look == Look::Muted {
                        // A nested viewport hides what lies outside of it.
                        svg x="0" y=(TOP - 6.0) width=(WIDTH) height=(HEIGHT - TOP)
                            viewBox={ "0 " (TOP - 6.0) " " (WIDTH) " " (HEIGHT - TOP) } { (line) }
                    } @else {
                        (line)
                    }
                }
            }
        }
    }

    fn line(
        &self,
        series: &Series,
        corners: &[(f64, f64)],
        runs: &[Run],
        markers: &[f64],
        name_at: Option<f64>,
    ) -> Markup {
        let (right, look) = (WIDTH - RIGHT, series.look);
        let path = |corners: &[(f64, f64)]| {
            let corners: Vec<String> = corners.iter().map(|&(x, y)| format!("{} {}", at(x), at(y))).collect();
            if corners.is_empty() { String::new() } else { format!("M{}", corners.join("L")) }
        };
        html! {
            g class={ "series k" (series.key) " " (look.class()) } data-series=(series.name) {
                @if runs.is_empty() { path class="line" d=(path(corners)) {} }
                @for run in runs {
                    @match run.turns {
                        None => path class="line" d=(path(&corners[run.corners.clone()])) {},
                        Some(turns) => {
                            path class="line shared" style=(turns.style()) d=(path(&corners[run.corners.clone()])) {}
                        }
                    }
                }
                // Wider than what is seen, so that it is easy to point at.
                path class="reach" d=(path(corners)) { title { (series.name) } }
                @for ((number, point), &(x, y)) in series.points.iter().enumerate().zip(corners) {
                    @let aside = markers.get(number).copied().unwrap_or_default();
                    @if let Some(outline) = look.marker(x + aside, y) {
                        path class="mark" d=(outline) { title { (point.title) } }
                    }
                }
                @if let (Some(name_at), Some(&(x, y))) = (name_at, corners.last()) {
                    path class="leader" d={ "M" (at(x + 5.0)) " " (at(y)) "L" (right + 13.0) " " (at(name_at)) } {}
                    text class="name" x=(right + 16.0) y=(at(name_at)) dy="0.32em" { (series.name) }
                }
            }
        }
    }

    /// Returns the corners of a series. A reference of one point goes right across, with a corner wherever another
    /// series has one.
    fn corners(&self, series: &Series) -> Vec<(f64, f64)> {
        if let ([point], true) = (&series.points[..], series.look.is_reference()) {
            let measured = self.series.iter().filter(|other| other.points.len() > 1);
            let mut places: Vec<f64> =
                measured.flat_map(|other| other.points.iter().map(|point| self.along(point.x))).collect();
            places.extend([self.left(), WIDTH - RIGHT]);
            places.sort_by(f64::total_cmp);
            places.dedup_by(|a, b| (*a - *b).abs() < 0.1);
            return places.into_iter().map(|x| (x, self.up(point.y))).collect();
        }
        series.points.iter().map(|point| (self.along(point.x), self.up(point.y))).collect()
    }

    /// Returns the lines that have to be told apart where they coincide: muted ones look alike anyway.
    fn distinct<'a>(&self, corners: &'a [Vec<(f64, f64)>]) -> Vec<&'a [(f64, f64)]> {
        let told_apart = self.series.iter().map(|series| series.look != Look::Muted);
        corners.iter().zip(told_apart).map(|(corners, is)| if is { &corners[..] } else { &[] }).collect()
    }

    /// Which lines coincide from end to end, in words; empty if none do.
    pub fn coincidences(&self) -> String {
        let corners: Vec<Vec<(f64, f64)>> = self.series.iter().map(|series| self.corners(series)).collect();
        let measured: Vec<(&str, &[(f64, f64)])> = self
            .series
            .iter()
            .zip(&corners)
            .filter(|(series, _)| !series.look.is_reference() && !series.points.is_empty())
            .map(|(series, corners)| (series.name.as_str(), &corners[..]))
            .rev()
            .collect();
        let groups: Vec<String> = coincide::wholly(&measured).iter().map(|names| listed(names)).collect();
        if groups.is_empty() { String::new() } else { format!("On one line: {}.", groups.join("; ")) }
    }

    fn along(&self, x: f64) -> f64 {
        self.left() + self.x.place(x) * (WIDTH - RIGHT - self.left())
    }

    /// Returns the start of the axis: right of the longest tick beside it.
    fn left(&self) -> f64 {
        let letters = self.y.ticks.iter().map(|(_, text, _)| text.chars().count()).max().unwrap_or(0);
        (letters as f64 * DIGIT + 10.0).max(LEFT)
    }

    fn up(&self, y: f64) -> f64 {
        let bottom = HEIGHT - BOTTOM;
        bottom - self.y.place(y) * (bottom - TOP)
    }

    /// Ticks whose texts do not run into each other; the last one is always there.
    fn readable_ticks(&self) -> Vec<(f64, &str, &str)> {
        let mut kept: Vec<(f64, &str, &str)> = Vec::new();
        let half = |text: &str, below: &str| text.chars().count().max(below.chars().count()) as f64 * LETTER / 2.0;
        for (value, text, below) in self.x.ticks.iter().rev() {
            let free = kept.last().is_none_or(|(before, above, under)| {
                self.along(*before) - self.along(*value) >= half(above, under) + half(text, below) + TICK_GAP
            });
            if free {
                kept.push((*value, text, below));
            }
        }
        kept.reverse();
        kept
    }

    /// Heights of the names: beside the lines' ends, and apart from each other. Muted series show theirs only when they are
    /// pointed at, so they need no place of their own.
    fn names(&self) -> Vec<Option<f64>> {
        let ends: Vec<Option<f64>> = self.series.iter().map(|s| s.points.last().map(|p| self.up(p.y))).collect();
        let mut placed: Vec<(usize, f64)> = ends
            .iter()
            .enumerate()
            .filter(|(at, _)| self.series[*at].look != Look::Muted && !self.series[*at].name.is_empty())
            .filter_map(|(at, end)| end.map(|end| (at, end)))
            .collect();
        placed.sort_by(|a, b| a.1.total_cmp(&b.1));
        spread(&mut placed, TOP + 2.0, HEIGHT - BOTTOM - 3.0);
        let mut names = ends;
        for (name, series) in names.iter_mut().zip(&self.series) {
            *name = name.filter(|_| !series.name.is_empty());
        }
        for (series, height) in placed {
            names[series] = Some(height);
        }
        names
    }
}

/// Names in a row: `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        _ => names.concat(),
    }
}

/// Moves sorted heights apart, as little as need be, between two limits if they fit there.
fn spread(placed: &mut [(usize, f64)], least: f64, most: f64) {
    // Names that touch form a block around the mean of where they want to be.
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for &(_, wanted) in placed.iter() {
        blocks.push((wanted, 1));
        while let [.., (above, n), (below, m)] = blocks[..] {
            let reach = (n + m) as f64 / 2.0 * NAME_GAP;
            if below - above >= reach {
                break;
            }
            blocks.truncate(blocks.len() - 2);
            let together = (n + m) as f64;
            // The wanted middle of both, each counted by its names.
            let middle = (above * n as f64 + below * m as f64) / together;
            let half = together / 2.0 * NAME_GAP;
            // Where more is wanted than there is room, the top wins.
            blocks.push((middle.min(most - half + NAME_GAP / 2.0).max(least + half - NAME_GAP / 2.0), n + m));
        }
    }
    let heights = blocks
        .iter()
        .flat_map(|&(middle, n)| (0..n).map(move |i| middle + (i as f64 - (n as f64 - 1.0) / 2.0) * NAME_GAP));
    for ((_, height), new) in placed.iter_mut().zip(heights) {
        *height = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_never_overlap(mut wanted in prop::collection::vec(TOP..HEIGHT - BOTTOM, 0..12)) {
            wanted.sort_by(f64::total_cmp);
            let mut placed: Vec<(usize, f64)> = wanted.into_iter().enumerate().collect();
            spread(&mut placed, TOP, HEIGHT - BOTTOM);
            for pair in placed.windows(2) {
                prop_assert!(pair[1].1 - pair[0].1 >= NAME_GAP - 1e-6, "{placed:?}");
            }
            for (_, height) in &placed {
                prop_assert!((TOP - 1.0..=HEIGHT - BOTTOM + 1.0).contains(height), "{placed:?}");
            }
        }
    }

    #[test]
    fn touching_ticks_are_dropped_but_not_the_last() {
        let pages: Vec<u64> = (1..=64).map(|n| n * 256).collect();
        let x = Scale::capacities(&pages, None);
        let y = Scale::from_zero("y", [1.0], crate::report::chart::Unit::Number);
        let lines = Lines { title: String::new(), x, y, clipped: false, series: Vec::new() };
        let ticks = lines.readable_ticks();
        assert!((4..12).contains(&ticks.len()), "{ticks:?}");
        assert_eq!(ticks.last().map(|tick| tick.1), Some("64 MiB"));
        for pair in ticks.windows(2) {
            let [end, start] = [(pair[0], 1.0), (pair[1], -1.0)]
                .map(|(tick, side)| lines.along(tick.0) + side * tick.1.chars().count() as f64 * LETTER / 2.0);
            assert!(start - end >= 8.0, "{pair:?} look like one");
        }
    }

    #[test]
    fn long_ticks_beside_the_axis_have_room() {
        for (most, beside) in [(87.0, "100"), (230_000.0, "250,000"), (8.2e9, "10,000,000,000")] {
            let (x, y) =
                (Scale::capacities(&[1, 2], None), Scale::from_zero("ms", [most], crate::report::chart::Unit::Number));
            let lines = Lines { title: String::new(), x, y, clipped: false, series: Vec::new() };
            let longest = lines.y.ticks.last().map(|tick| tick.1.clone()).unwrap();
            assert_eq!(longest, beside);
            let room = lines.along(1.0) - 8.0;
            assert!(room >= DIGIT * longest.chars().count() as f64, "{longest} is cut off");
        }
    }
}
