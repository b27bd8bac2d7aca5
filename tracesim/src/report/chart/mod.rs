//! Plots as inline SVG without a colour of their own: the style sheet has them.

mod bars;
mod coincide;
mod lines;
mod look;
mod scale;

pub use bars::{Bars, Group};
pub use lines::{Lines, Point, Series};
pub use look::{Look, swatch};
pub use scale::{Scale, Unit};

/// A plot's units. Pages show it at 0.8 to 1.2 of them, so that its text is as large as the text around it.
const WIDTH: f64 = 520.0;
/// Its height.
const HEIGHT: f64 = 340.0;

/// Returns a coordinate, short.
fn at(coordinate: f64) -> String {
    let text = format!("{coordinate:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
