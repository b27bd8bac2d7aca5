//! Plots as inline SVG without a colour of their own: the style sheet has them.

mod bars;
mod lines;
mod look;
mod scale;

pub use bars::{Bars, Group};
pub use lines::{Lines, Point, Series};
pub use look::{Look, swatch};
pub use scale::{Scale, Unit};

/// A plot's units; the page scales them.
const WIDTH: f64 = 600.0;
/// Its height.
const HEIGHT: f64 = 370.0;

/// A coordinate, short.
fn at(coordinate: f64) -> String {
    let text = format!("{coordinate:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
