//! Columns that line up, without lines between them: plain text wherever it goes.

// Without a blank, so that each word of a line is a column's.
pub(crate) use crate::report::{bytes, percent_unspaced as percent};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// The alignment of a column.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Returns a table of these columns. Where sides run out, the last one goes on.
pub(crate) fn table(sides: &[Side], header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(Cell::new));
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(match sides.get(at).or(sides.last()) {
            Some(Side::Right) => CellAlignment::Right,
            _ => CellAlignment::Left,
        });
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Milliseconds, of microseconds.
pub(crate) fn ms(us: f64) -> String {
    format!("{:.2}", us / 1000.0)
}

/// Returns a dash where there is nothing.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

/// `8192 pages (32 MiB)`
pub(crate) fn pages(pages: u64) -> String {
    format!("{} ({})", many(pages, "page"), bytes(pages))
}

/// `1 page`, `8192 pages`
pub(crate) fn many(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
