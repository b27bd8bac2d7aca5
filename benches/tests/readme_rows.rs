//! The results in READMEs equal those in benches/RESULTS.md: a table's line that begins with the name of a row has that row's
//! figures, the best of ours and of the peer's, and their ratio.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Returns the cells of a table's line whose first one is a name in backticks.
fn row(line: &str) -> Option<(&str, Vec<&str>)> {
    let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim);
    let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
    Some((name, cells.collect()))
}

#[test]
fn rows_that_readmes_show_are_those_of_the_results() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |page: &str| fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    let results = read("benches/RESULTS.md");
    let rows = results.lines().filter_map(row).filter(|(_, cells)| cells.len() == 7);
    // The first of a name is that of the defaults. Sections of other settings follow.
    let results: HashMap<_, _> = rows.rev().collect();
    for (page, least) in [("mrrc/README.md", 10), ("frrwp/README.md", 20)] {
        let (text, mut shown) = (read(page), 0);
        for (name, cells) in text.lines().filter_map(row) {
            let Some(result) = results.get(name) else { continue };
            // Name, ours, the peer's, unit, ratio.
            let [_, ours, peer, unit, ratio] = cells[..] else { panic!("{page}: a row of other cells: {name}") };
            assert_eq!([ours, peer, unit, ratio], [result[0], result[2], result[4], result[5]], "{page}: {name}");
            shown += 1;
        }
        assert!(shown >= least, "{page} shows {shown} rows that there are");
    }
}
