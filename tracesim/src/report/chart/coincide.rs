//! Lines that coincide: their dashes take turns, their markers stand side by side, so that none of them is hidden.

use std::collections::BTreeMap;
use std::ops::Range;

/// Lines that are nearer than this, in a plot's units, hide each other.
const NEAR: f64 = 1.2;
/// And markers.
const NEAR_MARKERS: f64 = 3.0;
/// Between the middles of markers side by side, and from the first to the last at most.
const STEP: f64 = 7.0;
const ASIDE: f64 = 28.0;
/// A dash, at most and at least.
const DASH: [f64; 2] = [9.0, 2.5];

/// The start and the end of a segment, in tenths.
type Stretch = (i64, i64);
/// A line's number with its heights at the ends of a segment.
type Heights = (usize, [f64; 2]);
/// The numbers of a line and of a corner of it, with its height.
type Height = ((usize, usize), f64);

/// Some corners of a line, one after the other.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Run {
    /// Which of them.
    pub(super) corners: Range<usize>,
    /// How it shares the place, if it does.
    pub(super) turns: Option<Turns>,
}

/// The turn of a line among those in one place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Turns {
    /// Its number among them.
    of: usize,
    /// How many they are.
    lines: usize,
    dash: f64,
}

impl Turns {
    /// As a style: the dashes of one line are where the others have their gaps.
    pub(super) fn style(self) -> String {
        let Self { of, lines, dash } = self;
        let gap = (lines - 1) as f64 * dash;
        format!("stroke-dasharray:{dash:.1} {gap:.1};stroke-dashoffset:{:.1}", 0.0 - of as f64 * dash)
    }
}

/// Each line in runs: those with which it shares a place are the same all along a run.
pub(super) fn runs(lines: &[&[(f64, f64)]]) -> Vec<Vec<Run>> {
    // By the horizontal place of a segment: the lines with their heights there.
    let mut segments: BTreeMap<Stretch, Vec<Heights>> = BTreeMap::new();
    for (line, corners) in lines.iter().enumerate() {
        for pair in corners.windows(2) {
            segments.entry((tenths(pair[0].0), tenths(pair[1].0))).or_default().push((line, [pair[0].1, pair[1].1]));
        }
    }
    let mut shared: BTreeMap<(Stretch, usize), Vec<usize>> = BTreeMap::new();
    for (place, heights) in segments {
        let apart = |a: &[f64; 2], b: &[f64; 2]| (a[0] - b[0]).abs().max((a[1] - b[1]).abs());
        for group in groups(heights, NEAR, |heights| heights[0] + heights[1], apart) {
            for &line in &group {
                shared.insert((place, line), group.clone());
            }
        }
    }
    let runs_of = |(line, corners): (usize, &&[(f64, f64)])| {
        let mut runs: Vec<(Range<usize>, &[usize])> = Vec::new();
        for (at, pair) in corners.windows(2).enumerate() {
            let group = shared.get(&((tenths(pair[0].0), tenths(pair[1].0)), line)).map_or(&[][..], Vec::as_slice);
            match runs.last_mut() {
                Some((corners, before)) if *before == group => corners.end = at + 2,
                _ => runs.push((at..at + 2, group)),
            }
        }
        let run = |(range, group): (Range<usize>, &[usize])| {
            let turns = group.iter().position(|&other| other == line).map(|of| {
                let length: f64 =
                    corners[range.clone()].windows(2).map(|p| (p[1].0 - p[0].0).hypot(p[1].1 - p[0].1)).sum();
                // Each has two turns at least where there is room for that.
                let dash = (length / (2 * group.len()) as f64).clamp(DASH[1], DASH[0]);
                Turns { of, lines: group.len(), dash }
            });
            Run { corners: range, turns }
        };
        runs.into_iter().map(run).collect()
    };
    lines.iter().enumerate().map(runs_of).collect()
}

/// How far each marker of each line stands aside, within these limits.
pub(super) fn side_by_side(lines: &[&[(f64, f64)]], left: f64, right: f64) -> Vec<Vec<f64>> {
    let mut aside: Vec<Vec<f64>> = lines.iter().map(|corners| vec![0.0; corners.len()]).collect();
    let mut places: BTreeMap<i64, Vec<Height>> = BTreeMap::new();
    for (line, corners) in lines.iter().enumerate() {
        for (at, &(x, y)) in corners.iter().enumerate() {
            places.entry(tenths(x)).or_default().push(((line, at), y));
        }
    }
    for (place, heights) in places {
        let x = place as f64 / 10.0;
        for group in groups(heights, NEAR_MARKERS, |y| *y, |a, b| (a - b).abs()) {
            let gaps = (group.len() - 1) as f64;
            let step = STEP.min(ASIDE / gaps);
            let first = (-gaps * step / 2.0).min(right - x - gaps * step).max(left - x);
            for (number, &(line, at)) in group.iter().enumerate() {
                aside[line][at] = first + number as f64 * step;
            }
        }
    }
    aside
}

/// Names of the lines that coincide from end to end.
pub(super) fn wholly<'a>(lines: &[(&'a str, &[(f64, f64)])]) -> Vec<Vec<&'a str>> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    for (line, (_, corners)) in lines.iter().enumerate() {
        let same = |other: usize| {
            let other = lines[other].1;
            let near = |(a, b): (&(f64, f64), &(f64, f64))| (a.0 - b.0).abs() < 0.1 && (a.1 - b.1).abs() < NEAR;
            other.len() == corners.len() && other.iter().zip(*corners).all(near)
        };
        match found.iter_mut().find(|group| same(group[0])) {
            Some(group) => group.push(line),
            None => found.push(vec![line]),
        }
    }
    found.retain(|group| group.len() > 1);
    found.into_iter().map(|group| group.into_iter().map(|line| lines[line].0).collect()).collect()
}

/// Those of one place that are near each other, in their order; alone there is no group.
fn groups<N: Copy + Ord, V>(
    mut all: Vec<(N, V)>,
    near: f64,
    height: impl Fn(&V) -> f64,
    apart: impl Fn(&V, &V) -> f64,
) -> Vec<Vec<N>> {
    all.sort_by(|(_, a), (_, b)| height(a).total_cmp(&height(b)));
    let mut groups: Vec<Vec<N>> = Vec::new();
    for (at, (name, value)) in all.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if apart(&all[at - 1].1, value) < near => group.push(*name),
            _ => groups.push(vec![*name]),
        }
    }
    groups.retain(|group| group.len() > 1);
    groups.iter_mut().for_each(|group| group.sort_unstable());
    groups
}

/// To compare horizontal places by.
fn tenths(x: f64) -> i64 {
    (x * 10.0).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_take_turns_where_they_coincide_only() {
        let one: &[(f64, f64)] = &[(0.0, 50.0), (100.0, 20.0), (200.0, 10.0)];
        let other: &[(f64, f64)] = &[(0.0, 80.0), (100.0, 20.3), (200.0, 10.0)];
        let far: &[(f64, f64)] = &[(0.0, 0.0), (100.0, 0.0), (200.0, 0.0)];
        let runs = runs(&[one, far, other]);
        assert_eq!(runs[1], [Run { corners: 0..3, turns: None }], "nothing is near it");
        for (line, of) in [(0, 0), (2, 1)] {
            let [alone, together] = &runs[line][..] else { panic!("{:?}", runs[line]) };
            assert_eq!((alone.corners.clone(), alone.turns), (0..2, None));
            let turns = together.turns.expect("they coincide");
            assert_eq!((together.corners.clone(), turns.of, turns.lines), (1..3, of, 2));
        }
    }

    #[test]
    fn dashes_of_some_lines_cover_the_place_once() {
        let line: &[(f64, f64)] = &[(0.0, 1.0), (300.0, 1.0)];
        let runs = runs(&[line; 3]);
        let turns: Vec<Turns> = runs.iter().filter_map(|runs| runs[0].turns).collect();
        assert_eq!(turns.iter().map(|turns| turns.of).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns[1].style(), "stroke-dasharray:9.0 18.0;stroke-dashoffset:-9.0");
        let many = super::runs(&[line; 40]);
        assert!(many.iter().all(|runs| runs[0].turns.is_some_and(|turns| turns.dash >= DASH[1])));
    }

    #[test]
    fn coinciding_markers_stay_within_the_plot() {
        let lines: [&[(f64, f64)]; 3] = [&[(0.0, 5.0), (100.0, 5.0)]; 3];
        let aside = side_by_side(&lines, 0.0, 100.0);
        assert_eq!(aside.iter().map(|of| of[0]).collect::<Vec<_>>(), [0.0, 7.0, 14.0]);
        assert_eq!(aside.iter().map(|of| of[1]).collect::<Vec<_>>(), [-14.0, -7.0, 0.0]);
        let apart: [&[(f64, f64)]; 2] = [&[(50.0, 5.0)], &[(50.0, 9.0)]];
        assert_eq!(side_by_side(&apart, 0.0, 100.0), [[0.0], [0.0]]);
    }

    #[test]
    fn lines_that_coincide_from_end_to_end_are_named() {
        let (one, other): (&[_], &[_]) = (&[(0.0, 1.0), (9.0, 2.0)], &[(0.0, 1.0), (9.0, 9.0)]);
        assert_eq!(wholly(&[("a", one), ("b", other), ("c", one)]), [["a", "c"]]);
        assert!(wholly(&[("a", one), ("b", other), ("c", &one[..1])]).is_empty());
    }
}
