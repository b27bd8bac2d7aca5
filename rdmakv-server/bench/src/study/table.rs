//! The study as a table.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use super::{Row, Study};

/// Returns the table, and the goals below it.
pub(crate) fn render(study: &Study) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let mut header: Vec<String> = ["", "server", "ops/s", "hits", "flash", "mean us"].map(str::to_owned).into();
    header.extend(study.penalties.iter().map(|penalty| format!("at {penalty} ms")));
    header.extend(["p50 us", "p99 us", "CPU us", "RSS MiB", "writes"].map(str::to_owned));
    let words = 2;
    table.set_header(header.iter().map(Cell::new));
    for row in &study.rows {
        table.add_row(cells(row));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(if at < words { CellAlignment::Left } else { CellAlignment::Right });
    }
    let amounts = study.amounts;
    let cache = if amounts.page_cache { "in the system's cache, too" } else { "not in the system's cache" };
    let mut text = format!(
        "{} MiB of memory, {} MiB of flash ({cache}), {} values of {} bytes, {} threads, {} connections, {} round(s)\n",
        amounts.memory, amounts.flash, study.keys, study.size, amounts.threads, study.connections, study.rounds
    );
    text += &format!("{}\n", table.trim_fmt());
    text += "hits: GETs with a value; flash: GETs read from there; at N ms: mean us of a GET if a miss costs that;\n";
    text += "CPU: of the server, an operation; writes: bytes written to flash for one admitted\n";
    for goal in &study.goals {
        let verdict = if goal.met { "met" } else { "MISSED" };
        text += &format!("{verdict}: {}: {:.4} (limit {:.4})\n", goal.name, goal.ours, goal.limit);
    }
    if study.ended_early {
        text += "interrupted: rows are missing\n";
    }
    text
}

fn cells(row: &Row) -> Vec<String> {
    let figures = &row.figures;
    let optional =
        |number: Option<f64>, digits: usize| number.map_or("-".into(), |number| format!("{number:.digits$}"));
    let name = row.contender.name();
    let mut cells = vec![
        row.part.clone(),
        name.to_owned(),
        format!("{:.0}", figures.rate),
        format!("{:.2} %", 100.0 * figures.hit_ratio),
        figures.flash_share.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share)),
        format!("{:.0}", figures.mean),
    ];
    cells.extend(figures.with_penalty.iter().map(|mean| format!("{mean:.0}")));
    cells.extend([format!("{:.0}", figures.p50), format!("{:.0}", figures.p99), optional(figures.cpu, 1)]);
    cells.extend([
        format!("{:.0}", figures.resident as f64 / f64::from(1 << 20)),
        optional(figures.write_amplification, 2),
    ]);
    cells
}
