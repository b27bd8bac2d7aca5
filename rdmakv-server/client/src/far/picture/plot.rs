//! One plot as an SVG: its frame, lines, points, and the part that meets a level.

use super::axis::Axis;
use std::fmt::Write as _;

/// Units of the picture, and those around the part for points.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 52.0;
/// The pixels of an axis across, and of one upwards.
pub(super) const ACROSS: (f64, f64) = (LEFT, WIDTH - RIGHT);
pub(super) const UP: (f64, f64) = (HEIGHT - BOTTOM, TOP);

/// An axis, its name, and how its values are written.
pub(super) type Named<'a> = (Axis, &'a str, fn(f64) -> String);

pub(super) struct Plot {
    across: Axis,
    up: Axis,
    svg: String,
}

impl Plot {
    /// Returns a plot with its axes. The summary is its text in place of a picture.
    pub(super) fn new(
        (across, across_name, across_words): Named<'_>,
        (up, up_name, up_words): Named<'_>,
        summary: &str,
    ) -> Self {
        let mut svg = format!(
            "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escaped(summary)
        );
        let mut last = f64::NEG_INFINITY;
        for &tick in &across.ticks {
            let x = across.at(tick);
            let _ = writeln!(svg, "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>", UP.0);
            // Words that touch cannot be read.
            if x - last >= 44.0 {
                last = x;
                text(&mut svg, (x, UP.0 + 19.0), "text-anchor=\"middle\"", &across_words(tick));
            }
        }
        let mut last = f64::INFINITY;
        for &tick in &up.ticks {
            let y = up.at(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>",
                ACROSS.1
            );
            if last - y >= 20.0 {
                last = y;
                text(&mut svg, (LEFT - 7.0, y + 4.5), "text-anchor=\"end\"", &up_words(tick));
            }
        }
        let (x, y) = (LEFT, UP.0);
        let _ = writeln!(svg, "<path class=\"axis\" fill=\"none\" d=\"M{x} {TOP}V{y}H{:.1}\"/>", ACROSS.1);
        text(
            &mut svg,
            ((ACROSS.0 + ACROSS.1) / 2.0, HEIGHT - 9.0),
            "class=\"label\" text-anchor=\"middle\"",
            across_name,
        );
        text(&mut svg, (4.0, 14.0), "class=\"label\"", up_name);
        Self { across, up, svg }
    }

    /// Shades, and names, what lies at these values and beyond, to the right or, without one, everywhere; upwards or downwards.
    pub(super) fn zone(&mut self, name: &str, from: Option<f64>, (up, is_below): (f64, bool)) {
        let x = from.map_or(ACROSS.0, |from| self.across.at(from));
        let y = self.up.at(up);
        let (top, bottom) = if is_below { (y, UP.0) } else { (UP.1, y) };
        let (width, height) = (ACROSS.1 - x, bottom - top);
        let _ = writeln!(
            self.svg,
            "<rect class=\"zone\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
        if height > 24.0 && width > 130.0 {
            let y = if is_below { bottom - 8.0 } else { top + 17.0 };
            text(&mut self.svg, (ACROSS.1 - 6.0, y), "class=\"zone-name\" text-anchor=\"end\"", name);
        }
    }

    /// Draws a level as lines at these values.
    pub(super) fn level(&mut self, across: Option<f64>, up: f64) {
        if let Some(across) = across.filter(|&across| self.across.has(across)) {
            let x = self.across.at(across);
            let _ = writeln!(
                self.svg,
                "<line class=\"level\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>",
                UP.0
            );
        }
        let y = self.up.at(up);
        let _ = writeln!(
            self.svg,
            "<line class=\"level\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>",
            ACROSS.1
        );
    }

    /// Draws a line of this hue through points.
    pub(super) fn line(&mut self, hue: usize, points: &[(f64, f64)]) {
        let places: Vec<String> =
            points.iter().map(|&(x, y)| format!("{:.1},{:.1}", self.across.at(x), self.up.at(y))).collect();
        let _ =
            writeln!(self.svg, "<g class=\"h{hue}\"><polyline class=\"line\" points=\"{}\"/></g>", places.join(" "));
    }

    /// Returns where a point lies, in whole units: no other one is seen there.
    pub(super) fn place(&self, (x, y): (f64, f64)) -> (i32, i32) {
        (self.across.at(x).round() as i32, self.up.at(y).round() as i32)
    }

    /// Draws a point: a circle, or a square for batches. It has a name where it is pointed at.
    pub(super) fn dot(&mut self, (hue, is_square): (usize, bool), meets: bool, (x, y): (f64, f64), name: &str) {
        let (x, y) = (self.across.at(x), self.up.at(y));
        let class = format!("class=\"dot h{hue}{}\"", if meets { "" } else { " misses" });
        let title = format!("<title>{}</title>", escaped(name));
        let _ = if is_square {
            let (x, y) = (x - 3.2, y - 3.2);
            writeln!(self.svg, "<rect {class} x=\"{x:.1}\" y=\"{y:.1}\" width=\"6.4\" height=\"6.4\">{title}</rect>")
        } else {
            writeln!(self.svg, "<circle {class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\">{title}</circle>")
        };
    }

    /// Marks the choice.
    pub(super) fn choice(&mut self, (x, y): (f64, f64)) {
        let (x, y) = (self.across.at(x), self.up.at(y));
        let _ = writeln!(self.svg, "<circle class=\"choice\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8.5\"/>");
        let is_right = x > (ACROSS.0 + ACROSS.1) / 2.0;
        let (anchor, x) = if is_right { ("end", x - 13.0) } else { ("start", x + 13.0) };
        let y = if y < TOP + 30.0 { y + 20.0 } else { y - 10.0 };
        text(&mut self.svg, (x, y), &format!("class=\"choice-name\" text-anchor=\"{anchor}\""), "the choice");
    }

    pub(super) fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{}</text>", escaped(words));
}

/// Returns words as text or an attribute of HTML and SVG.
pub(super) fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
