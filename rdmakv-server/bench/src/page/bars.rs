//! Bars that lie, each of one or more parts, with its value at its end.

use maud::{Markup, html};

use super::axis::Axis;
use super::lines::{at, width};

/// One bar.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    /// Hue and value of each part.
    pub(super) parts: Vec<(usize, f64)>,
    /// The text at its end.
    pub(super) value: String,
}

/// The plot.
#[derive(Clone, Debug)]
pub(super) struct Bars {
    /// For users of screen readers.
    pub(super) about: String,
    pub(super) x: Axis,
    /// The meanings of the hues of parts, if there are several.
    pub(super) meanings: Vec<(usize, &'static str)>,
    pub(super) bars: Vec<Bar>,
}

/// How much room a plot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// A column.
    Usual,
    /// Two columns; for wide windows.
    Wide,
    /// A column, in place of the wide one in windows that are too narrow for it.
    Narrow,
}

const WIDTH: f64 = 540.0;
/// Of one that takes the room of two.
const WIDE: f64 = 1290.0;
const ROW: f64 = 27.0;
const THICK: f64 = 17.0;
/// Letters of a name at most.
const NAME: usize = 30;

/// Returns a name that is not too long.
fn short(name: &str) -> String {
    if name.chars().count() <= NAME { name.into() } else { name.chars().take(NAME - 1).chain(['…']).collect() }
}

impl Bars {
    pub(super) fn draw(&self, room: Width) -> Markup {
        let (whole, class) = match room {
            Width::Usual => (WIDTH, "plot"),
            Width::Wide => (WIDE, "plot wide"),
            Width::Narrow => (WIDTH, "plot narrow"),
        };
        let left = self.bars.iter().map(|bar| width(&short(&bar.name))).fold(0.0, f64::max) + 18.0;
        let right = whole - self.bars.iter().map(|bar| width(&bar.value)).fold(0.0, f64::max) - 14.0;
        let top = if self.meanings.is_empty() { 8.0 } else { 34.0 };
        let bottom = top + ROW * self.bars.len() as f64;
        let height = bottom + 46.0;
        let x = |value: f64| left + self.x.place(value) * (right - left);
        let spans = |bar: &Bar| {
            let mut sum = 0.0;
            bar.parts
                .iter()
                .map(|&(hue, value)| {
                    let from = sum;
                    sum += value;
                    (hue, from, sum)
                })
                .collect::<Vec<_>>()
        };
        html! {
            svg class=(class) viewBox={ "0 0 " (whole) " " (at(height)) } role="img" aria-label=(self.about) {
                @for (number, (hue, meaning)) in self.meanings.iter().enumerate() {
                    @let place = left + 150.0 * number as f64;
                    rect class={ "bar h" (hue) } x=(at(place)) y="5" width="12" height="12" rx="2" {}
                    text x=(at(place + 18.0)) y="11" dy="0.32em" { (meaning) }
                }
                @for (value, text) in &self.x.ticks {
                    path class="grid" d={ "M" (at(x(*value))) " " (at(top)) "V" (at(bottom)) } {}
                    text x=(at(x(*value))) y=(at(bottom + 18.0)) text-anchor="middle" { (text) }
                }
                @for (number, bar) in self.bars.iter().enumerate() {
                    @let y = top + ROW * number as f64 + (ROW - THICK) / 2.0;
                    text x=(at(left - 9.0)) y=(at(y + THICK / 2.0)) dy="0.32em" text-anchor="end" { (short(&bar.name)) }
                    @for (hue, from, to) in spans(bar) {
                        rect class={ "bar h" (hue) } x=(at(x(from))) y=(at(y)) width=(at((x(to) - x(from)).max(0.5))) height=(THICK) {
                            title { (bar.name) }
                        }
                    }
                    @let end = spans(bar).last().map_or(0.0, |span| span.2);
                    text class="value" x=(at(x(end) + 7.0)) y=(at(y + THICK / 2.0)) dy="0.32em" { (bar.value) }
                }
                path class="axis" d={ "M" (at(left)) " " (at(top)) "V" (at(bottom)) } {}
                text class="label" x=(at((left + right) / 2.0)) y=(at(height - 5.0)) text-anchor="middle" { (self.x.label) }
            }
        }
    }
}
