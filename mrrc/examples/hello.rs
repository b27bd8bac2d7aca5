//! The smallest program with a cache: what misses, what hits, and what that saves.
//!
//! It registers with a model of a network card, so it runs anywhere; `remap` does the same with real pins.
//!
//! ```text
//! cargo run -p mrrc --example hello
//! ```

use mrrc::cost::Linear;
use mrrc::invalidation::Explicit;
use mrrc::testing::Model;
use mrrc::{Access, Cache};
use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough (`hello | head -1`).
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // The errors of the crate say what to do; `{:?}`, which `main` would print, does not.
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // A card whose registrations take as long as those measured in the paper.
    let card = Model::new(Linear::PAPER);
    let cache = Cache::builder(card.clone()).capacity_bytes(1 << 20).monitor(Explicit).build()?;
    // Four pages and a bit more, so that four whole pages are in it.
    let memory = vec![0_u8; 5 * 4096];
    let pages = memory.as_ptr().wrapping_add(memory.as_ptr().align_offset(4096));

    for (what, page, count) in [
        ("nothing is registered yet", 0, 2),
        ("the same again", 0, 2),
        ("a part of it", 1, 1),
        ("one page is there, one is not", 1, 2),
        ("two regions cover it", 0, 3),
    ] {
        let before = card.clock_us();
        let address = pages.wrapping_add(page * 4096);
        #[expect(unsafe_code, reason = "memory is lent to a device")]
        // SAFETY: the memory outlives the lease, and has no other user meanwhile.
        let lease = unsafe { cache.acquire(address, count * 4096, Access::LOCAL) }?;
        // A transfer names each segment by its key, and the lease lives until the transfer is complete.
        let keys: Vec<u64> = lease.segments().map(|segment| segment.registration().key()).collect();
        let (last, took) = (page + count - 1, card.clock_us() - before);
        writeln!(io::stdout(), "pages {page} to {last}: keys {keys:?}, {took:>5.2} us: {what}")?;
    } // Dropping a lease deregisters nothing: the memory stays in the cache.

    // The program reports before it unmaps memory. (A cache without `Explicit` notices by itself.)
    cache.invalidate(memory.as_ptr(), memory.len())?;
    // It is found no more. Deregistered it is when the cache lacks room, or now:
    cache.reap()?;
    writeln!(io::stdout(), "\n{}", cache.counters())?;
    Ok(())
}
