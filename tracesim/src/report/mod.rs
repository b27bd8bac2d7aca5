//! Pages that show results: one HTML file each, which needs no network, no script and no other file.
//!
//! The plots are inline SVG with a class at every mark. So one style sheet gives them their colours, light or dark as the reader
//! has it, and hovering over a name makes its lines stand out in all plots of a section. That is why the plots are drawn here:
//! crates that plot write colours into the marks, or leave the drawing to a script.

pub mod chart;
pub mod comparison;
mod number;
mod page;
pub mod provenance;

pub use number::{bytes, grouped, milliseconds, percent, percent_unspaced, unbroken};
pub use page::{COINCIDENCE, Page, bars_figure, key, lines_figure, table, wide_figure};
