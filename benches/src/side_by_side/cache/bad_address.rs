//! The bad address: what one address that cannot be registered costs a cache with 1,000 idle regions.
//!
//! The registrar says `EFAULT`. Trying again cannot help and evicting cannot help: one attempt, no eviction.

use super::field::Field;
use super::{Options, fill};
use crate::Layout;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::report::{Row, Unit};
use crate::subject::{Setup, Subject};

/// Above the table.
pub const TITLE: &str = "Bad address: one request that fails with EFAULT, 1,000 idle regions cached (lower is better)";

/// The ends of the names of its rows.
pub const ROWS: [&str; 4] = ["attempts", "evictions", "full/attempts", "full/evictions"];

const IDLE: usize = 1_000;

/// Measures it.
///
/// # Errors
/// If the cache cannot be filled, or the bad address is registered.
pub fn measure<O: Subject, P: Subject>(_: &Options) -> Result<Vec<Row>, String> {
    let field = Field::new(Layout::Stride, IDLE + 1, 5)?;
    let mut rows = Vec::new();
    for (setting, room) in [("bad-address", 2 * IDLE), ("bad-address/full", IDLE)] {
        let ours = counts::<O>(&field, room)?.ok_or("our own cache is not there")?;
        let peer = counts::<P>(&field, room)?;
        let row = |name: &str, value: fn(&Counts) -> u64| {
            let figure = |counts: &Counts| Figure::once(value(counts) as f64);
            Row::new(format!("{setting}/{name}"), figure(&ours), peer.as_ref().map(figure), Unit::Count)
        };
        let full = if room == IDLE { "the cache was full: room may have been made before" } else { "" };
        rows.push(row("attempts", |counts| counts.attempts));
        rows.push(row("evictions", |counts| counts.evictions).note(full));
    }
    Ok(rows)
}

struct Counts {
    attempts: u64,
    evictions: u64,
}

fn counts<S: Subject>(field: &Field, room: usize) -> Result<Option<Counts>, String> {
    let (bad, length) = field.place(IDLE);
    let setup = Setup {
        most_regions: room,
        most_pages: field.pages(0..IDLE) * (room / IDLE) as u64,
        bad: bad..bad + length,
        ..Setup::default()
    };
    let Some(cache) = S::create(&setup)? else { return Ok(None) };
    let idle = || (0..IDLE).map(|region| field.place(region));
    fill(&cache, idle())?;
    let behaviour = cache.behaviour();
    if (behaviour.attempts(), behaviour.deregistered()) != (IDLE as u64, 0) {
        return Err("the cache did not keep the idle regions that fit".into());
    }
    if cache.touch(bad, length) {
        return Err("the bad address was registered".into());
    }
    let attempts = behaviour.attempts() - IDLE as u64;
    // A region that was only set aside, to be deregistered by a later call, shows when the others are asked for.
    let evicted = behaviour.deregistered();
    fill(&cache, idle())?;
    let again = behaviour.attempts() - IDLE as u64 - attempts;
    Ok(Some(Counts { attempts, evictions: evicted.max(again) }))
}
