//! How a series looks: a hue, a marker and a dash, so that none of them alone has to tell it apart.

use super::at;
use maud::{Markup, html};

/// How a series looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// One that stands out, with the hue, the marker and the dash of that number.
    Hue(usize),
    /// One of the others.
    Muted,
    /// The bound that none goes below.
    Bound,
    /// No cache.
    NoCache,
    /// A cache in which everything stays.
    Infinite,
}

impl Look {
    /// Hues that there are.
    pub const HUES: usize = 8;

    /// Returns the class that the style sheet knows.
    pub fn class(self) -> String {
        match self {
            Self::Hue(number) => format!("hue{}", number % Self::HUES),
            Self::Muted => "muted".into(),
            Self::Bound => "bound".into(),
            Self::NoCache => "no-cache".into(),
            Self::Infinite => "infinite".into(),
        }
    }

    /// Returns whether it is a line to measure others by.
    pub fn is_reference(self) -> bool {
        matches!(self, Self::Bound | Self::NoCache | Self::Infinite)
    }

    /// Returns the outline of its marker around a point; none for lines that are no series of measurements.
    pub(super) fn marker(self, x: f64, y: f64) -> Option<String> {
        let (x, y) = (|dx: f64| at(x + dx), |dy: f64| at(y + dy));
        let polygon = |corners: &[(f64, f64)]| {
            let corners: Vec<String> = corners.iter().map(|&(dx, dy)| format!("{} {}", x(dx), y(dy))).collect();
            format!("M{}Z", corners.join("L"))
        };
        let circle =
            |r: f64| format!("M{} {}a{r} {r} 0 1 0 {} 0a{r} {r} 0 1 0 -{} 0Z", x(-r), y(0.0), 2.0 * r, 2.0 * r);
        match self {
            Self::Hue(number) => Some(match number % Self::HUES {
                0 => circle(4.0),
                1 => polygon(&[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)]),
                2 => polygon(&[(0.0, -4.8), (4.6, 3.4), (-4.6, 3.4)]),
                3 => polygon(&[(0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)]),
                4 => polygon(&[(0.0, 4.8), (4.6, -3.4), (-4.6, -3.4)]),
                5 => polygon(&[(-5.0, -2.6), (5.0, -2.6), (5.0, 2.6), (-5.0, 2.6)]),
                6 => polygon(&[(-2.4, -4.6), (2.4, -4.6), (4.8, 0.0), (2.4, 4.6), (-2.4, 4.6), (-4.8, 0.0)]),
                _ => polygon(&[(-2.6, -5.0), (2.6, -5.0), (2.6, 5.0), (-2.6, 5.0)]),
            }),
            Self::Muted => Some(circle(1.6)),
            Self::Bound | Self::NoCache | Self::Infinite => None,
        }
    }
}

/// Returns a legend's swatch.
pub fn swatch(look: Look) -> Markup {
    html! {
        svg class={ "swatch " (look.class()) } viewBox="0 0 30 14" width="30" height="14" aria-hidden="true" {
            path class="line" d="M1 7H29" {}
            @if let Some(outline) = look.marker(15.0, 7.0) { path class="mark" d=(outline) {} }
        }
    }
}
