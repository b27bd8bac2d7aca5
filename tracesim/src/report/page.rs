//! The frame of a page: head, style, footer; and the pieces that all pages are made of.

use super::chart::{Bars, Lines, Look, swatch};
use super::provenance::Provenance;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::fmt::Write as _;

/// A whole page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its name.
    pub title: String,
    /// The subject.
    pub lead: Markup,
    /// Its sections.
    pub body: Markup,
    /// Series that can be pointed at: one more than the largest key.
    pub keys: usize,
    /// The provenance.
    pub provenance: Provenance,
}

/// How lines in one place are drawn.
pub const COINCIDENCE: &str = "Where lines coincide, their dashes take turns and their markers stand side by side.";

const STYLE: &str = include_str!("style.css");

impl Page {
    /// Returns the HTML.
    pub fn render(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="generator" content={ "tracesim " (self.provenance.version) };
                    title { (self.title) }
                    // Both are our own text, none of it from a trace.
                    style { (PreEscaped(STYLE)) (PreEscaped(pointing(self.keys))) }
                }
                body {
                    header { h1 { (self.title) } div class="lead" { (self.lead) } }
                    main { (self.body) }
                    (self.provenance.footer())
                }
            }
        };
        let mut text = page.into_string();
        text.push('\n');
        text
    }
}

/// Returns the style that highlights a key under the pointer, of a legend or a plot, in all plots of its section.
fn pointing(keys: usize) -> String {
    let mut css = String::new();
    for key in 0..keys {
        let at = format!(".study:has(.k{key}:hover, .k{key}:focus-visible)");
        // Writing into a string does not fail.
        let _ = writeln!(
            css,
            "{at} .lines .series:not(.k{key}){{opacity:.13}}{at} .series.k{key} .line{{stroke-width:3.4}}{at} \
             .series.k{key} .shared{{stroke-dasharray:none!important}}{at} .series.k{key}.muted{{--hue:var(--ink)}}{at} .series.k{key}.muted :is(.name,.leader){{visibility:visible}}"
        );
    }
    css
}

/// Returns a plot of bars that takes the room of two.
pub fn wide_figure(id: &str, title: &str, note: &str, bars: &Bars) -> Markup {
    framed(id, title, &[note], &bars.draw_wide(), true)
}

/// Returns a plot of bars with what is to be said of it.
pub fn bars_figure(id: &str, title: &str, note: &str, bars: &Bars) -> Markup {
    framed(id, title, &[note], &bars.draw(), false)
}

/// Returns a plot of lines with what is to be said of it, and of the lines that coincide.
pub fn lines_figure(id: &str, title: &str, note: &str, lines: &Lines) -> Markup {
    framed(id, title, &[note, &lines.coincidences()], &lines.draw(), false)
}

fn framed(id: &str, title: &str, notes: &[&str], plot: &Markup, wide: bool) -> Markup {
    html! {
        figure id=(id) class=[wide.then_some("wide")] {
            figcaption { h3 { (title) } @for note in notes.iter().filter(|note| !note.is_empty()) { p { (note) } } }
            (plot)
        }
    }
}

/// Returns the legend of a section: number, name and look of each series.
pub fn key<'a>(series: impl IntoIterator<Item = (usize, &'a str, Look)>) -> Markup {
    html! {
        ul class="legend" aria-label="series" {
            @for (number, name, look) in series {
                li class={ "k" (number) } tabindex="0" { (swatch(look)) (name) }
            }
        }
    }
}

/// Returns a table in a card; the first column is words. A table wider than the card scrolls beside that column, which
/// stays.
pub fn table(title: &str, note: &str, header: &Markup, rows: &Markup) -> Markup {
    html! {
        div class="card" {
            h3 { (title) }
            @if !note.is_empty() { p class="note" { (note) } }
            div class="scroll" tabindex="0" { table { thead { tr { (header) } } tbody { (rows) } } }
        }
    }
}
