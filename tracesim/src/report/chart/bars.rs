//! Bars in groups, each with its value above it.

use super::look::Look;
use super::scale::Scale;
use super::{HEIGHT, WIDTH, at};
use maud::{Markup, html};

/// Returns a name in lines of so many letters, two at most, broken after a sign if there is one; what is too long for them
/// has its end left out.
fn folded(name: &str, most: usize) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let most = most.max(2);
    if letters.len() <= most {
        return vec![name.to_owned()];
    }
    let sign = letters[..most].iter().rposition(|letter| !letter.is_alphanumeric());
    let (first, rest) = letters.split_at(sign.map_or(most, |sign| sign + 1));
    let first = first.iter().collect();
    let rest =
        if rest.len() <= most { rest.iter().collect() } else { rest[..most - 1].iter().chain(&['…']).collect() };
    vec![first, rest]
}

/// Returns a name of so many letters at most; what is too long has its end left out.
fn shortened(name: &str, most: usize) -> String {
    match name.char_indices().nth(most) {
        None => name.to_owned(),
        Some(_) => name.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// Bars of one kind, one for each category.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// A value for each category.
    pub values: Vec<f64>,
}

/// A plot of bars.
#[derive(Clone, Debug)]
pub struct Bars {
    /// The subject, for users of screen readers.
    pub title: String,
    /// The meaning of the categories.
    pub label: String,
    /// The categories.
    pub categories: Vec<String>,
    /// Up.
    pub y: Scale,
    /// The bars.
    pub groups: Vec<Group>,
    /// A value in words.
    pub show: fn(f64) -> String,
}

const LEFT: f64 = 58.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 44.0;
/// The width of two plots and what is between them.
const WIDE: f64 = 1060.0;
/// Units that a letter of a name takes, at most.
const LETTER: f64 = 8.2;
/// Categories from which their names stand aslant.
const CROWDED: f64 = 8.0;
/// Letters of a name that stands aslant.
const ASLANT: usize = 12;

impl Bars {
    /// Returns the SVG.
    pub fn draw(&self) -> Markup {
        self.drawn(WIDTH, "plot bars")
    }

    /// Twice: with the room of two plots, and for where there is room for one only. The style sheet shows one of them.
    pub fn draw_wide(&self) -> Markup {
        html! { (self.drawn(WIDE, "plot bars wide")) (self.drawn(WIDTH, "plot bars instead")) }
    }

    fn drawn(&self, width: f64, class: &str) -> Markup {
        let aslant = self.categories.len() as f64 > CROWDED * width / WIDTH;
        let right = width - RIGHT;
        let slot = (right - LEFT) / self.categories.len().max(1) as f64;
        let letters = ((slot / LETTER) as usize).saturating_sub(1);
        let names: Vec<Vec<String>> = self.categories.iter().map(|name| folded(name, letters)).collect();
        let bottom = HEIGHT
            - match names.iter().map(Vec::len).max() {
                _ if aslant => 104.0,
                Some(2) => 68.0,
                _ => 52.0,
            };
        let up = |value: f64| bottom - self.y.place(value) * (bottom - TOP);
        let wide = (slot * 0.84 / self.groups.len().max(1) as f64).min(60.0);
        let left_of = |category: usize, group: usize| {
            let all = wide * self.groups.len() as f64;
            LEFT + slot * (category as f64 + 0.5) - all / 2.0 + wide * group as f64
        };
        // As many as fit: a value takes some 40 units.
        let valued = wide >= 40.0;
        html! {
            svg class=(class) viewBox={ "0 0 " (width) " " (HEIGHT) } role="img" aria-label=(self.title) {
                @for (value, text, _) in &self.y.ticks {
                    @let y = at(up(*value));
                    path class="grid" d={ "M" (LEFT) " " (y) "H" (right) } {}
                    text class="tick" x=(LEFT - 8.0) y=(y) dy="0.32em" text-anchor="end" { (text) }
                }
                @for (number, (name, lines)) in self.categories.iter().zip(&names).enumerate() {
                    @let x = LEFT + slot * (number as f64 + 0.5);
                    @if aslant {
                        text class="tick" text-anchor="end"
                            transform={ "translate(" (at(x + 4.0)) " " (bottom + 15.0) ") rotate(-40)" } {
                            title { (name) }
                            (shortened(name, ASLANT))
                        }
                    } @else {
                        @for (line, text) in lines.iter().enumerate() {
                            text class="tick" x=(at(x)) y=(bottom + 19.0 + 15.0 * line as f64) text-anchor="middle" {
                                title { (name) }
                                (text)
                            }
                        }
                    }
                }
                @for (number, group) in self.groups.iter().enumerate() {
                    g class={ "series " (group.look.class()) } data-series=(group.name) {
                        @for (category, &value) in group.values.iter().enumerate() {
                            // Below zero they hang.
                            @let (x, y) = (left_of(category, number), up(value.max(0.0)));
                            @let foot = up(value.min(0.0));
                            @let text = (self.show)(value);
                            rect class="bar" x=(at(x + 1.0)) y=(at(y)) width=(at((wide - 2.0).max(1.0)))
                                height=(at((foot - y).max(0.0))) rx="1.5" {
                                title {
                                    (group.name) ", " (self.categories.get(category).map_or("", String::as_str)) ": " (text)
                                }
                            }
                            @if valued {
                                text class="value" x=(at(x + wide / 2.0)) y=(at(y - 5.0)) text-anchor="middle" { (text) }
                            }
                        }
                    }
                }
                @if self.y.crosses_zero() {
                    path class="zero" d={ "M" (LEFT) " " (at(up(0.0))) "H" (right) } {}
                }
                path class="axis" d={ "M" (LEFT) " " (bottom) "H" (right) } {}
                text class="axis-label" x=((LEFT + right) / 2.0) y=(HEIGHT - 6.0) text-anchor="middle" { (self.label) }
                text class="axis-label" x="2" y="13" { (self.y.label) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_folded_where_they_can_be() {
        assert_eq!(folded("arc_P3.lis", 14), ["arc_P3.lis"]);
        assert_eq!(folded("cloudPhysicsIO.oracleGeneral", 15), ["cloudPhysicsIO.", "oracleGeneral"]);
        assert_eq!(folded("mooncake_synthetic_trace", 15), ["mooncake_", "synthetic_trace"]);
        assert_eq!(folded("nothing to break in here at all", 8), ["nothing ", "to brea…"]);
        assert_eq!(folded("unbrokenandlong", 6), ["unbrok", "enand…"]);
        assert_eq!(folded("ab", 0), ["ab"]);
        assert_eq!(folded("äöüß", 2), ["äö", "üß"]);
    }
}
