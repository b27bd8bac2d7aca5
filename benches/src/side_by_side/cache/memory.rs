//! Memory: what a cached region takes, by the memory of the process before and after the cache is filled. Rows `/evicted` are
//! of later, when it evicted as many regions as it holds.
//!
//! The kernel's own count of anonymous memory: neither cache is asked. What the allocator had to spare is given back before.

use super::field::Field;
use super::{Options, fill};
use crate::Layout;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::report::{Row, Unit};
use crate::subject::{Setup, Subject};

/// Above the table.
pub const TITLE: &str = "Memory: what one cached region takes, with a registrar that keeps nothing (lower is better)";

/// The ends of the names of its rows.
pub const ROWS: [&str; 9] = [
    "stride/100000",
    "stride/100000/evicted",
    "stride/100000/watched",
    "stride/1000000",
    "stride/1000000/evicted",
    "stride/1000000/watched",
    "irregular/100000",
    "irregular/100000/evicted",
    "irregular/100000/watched",
];

/// Measures it.
///
/// # Errors
/// If a cache cannot be filled, or the kernel does not tell.
pub fn measure<O: Subject, P: Subject>(_: &Options) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (layout, name, regions) in [
        (Layout::Stride, "stride", 100_000),
        (Layout::Stride, "stride", 1_000_000),
        (Layout::Irregular, "irregular", 100_000),
    ] {
        let field = Field::new(layout, 2 * regions, 7)?;
        let name = format!("memory/{name}/{regions}");
        let [ours, evicted] = bytes::<O>(&field, regions, true)?.ok_or("our own cache is not there")?;
        let [watched, _] = bytes::<O>(&field, regions, false)?.ok_or("our own cache is not there")?;
        let [peer, peer_evicted] = match bytes::<P>(&field, regions, true)? {
            Some(bytes) => bytes.map(|bytes| Some(Figure::once(bytes))),
            None => [None; 2],
        };
        rows.push(Row::new(&name, Figure::once(ours), peer, Unit::Bytes));
        rows.push(Row::new(format!("{name}/evicted"), Figure::once(evicted), peer_evicted, Unit::Bytes));
        rows.push(Row::new(format!("{name}/watched"), Figure::once(watched), None, Unit::Bytes));
    }
    Ok(rows)
}

/// Returns the bytes of a region when the cache is full for the first time. Then each region is touched twice and as many
/// others once. Returns the bytes of a region after that as well.
fn bytes<S: Subject>(field: &Field, regions: usize, unwatched: bool) -> Result<Option<[f64; 2]>, String> {
    let setup = Setup { most_regions: regions, most_pages: field.pages(0..regions), unwatched, ..Setup::default() };
    let Some(cache) = S::create(&setup)? else { return Ok(None) };
    let place = |region| field.place(region);
    fill(&cache, [field.place(0)])?;
    let before = resident()?;
    fill(&cache, (1..regions).map(place))?;
    let filled = (resident()? - before) / (regions - 1) as f64;
    fill(&cache, (0..regions).chain(0..regions).chain(regions..2 * regions).map(place))?;
    let behaviour = cache.behaviour();
    let registered = behaviour.attempts().saturating_sub(behaviour.deregistered()).max(2);
    Ok(Some([filled, (resident()? - before) / (registered - 1) as f64]))
}

/// Returns the bytes of anonymous memory.
fn resident() -> Result<f64, String> {
    const ROLLUP: &str = "/proc/self/smaps_rollup";
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: it gives memory back that is not allocated.
    unsafe {
        libc::malloc_trim(0);
    }
    let text = std::fs::read_to_string(ROLLUP).map_err(|error| format!("{ROLLUP}: {error}"))?;
    let kilobytes =
        text.lines().find_map(|line| line.strip_prefix("Anonymous:")?.trim().strip_suffix(" kB")?.parse().ok());
    let kilobytes: f64 = kilobytes.ok_or_else(|| format!("{ROLLUP}: no line of anonymous memory"))?;
    Ok(kilobytes * 1024.0)
}
