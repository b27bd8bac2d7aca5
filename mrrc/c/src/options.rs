//! Settings by name, kept until a cache is made with them.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::edge::Edge;
use crate::gate::{Failure, given, guarded, null, quietly, text};
use crate::status::{mrrc_error_t, mrrc_status_t};
use mrrc::cache::Builder;
use mrrc::invalidation::Explicit;
use mrrc::registrar::model::Dummy;
use mrrc::{BuildError, Cache};
use std::ffi::c_char;

/// Settings of a cache that is to be made. Used by one thread at a time; for any number of caches.
#[derive(Default)]
pub struct mrrc_options_t {
    settings: Vec<(String, String)>,
    ignores_environment: bool,
}

/// Options in which nothing is set yet. Freed by mrrc_options_free; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn mrrc_options_new() -> *mut mrrc_options_t {
    Box::into_raw(Box::default())
}

/// Sets what the environment variable of that name, after MRRC_, would set. Where both do, the environment wins; it never
/// weakens monitor and discard_bar, which correctness rests on, and a line on standard error reports that it tried.
///
/// | name                    | value                                                                                 |
/// | ----------------------- | ------------------------------------------------------------------------------------- |
/// | capacity                | the most that may be registered at once: 1GiB, 64M, 4096; else what may be pinned     |
/// | max_regions             | the most registrations at once: a number                                              |
/// | policy                  | who leaves when it is full: mrrc, gdsf, lru, ...; a wrong name is told the right ones  |
/// | resort, evict           | fractions of the capacity, from 0 to 1                                                |
/// | cost                    | paper, fmr, io-uring, or four numbers of microseconds                                 |
/// | monitor                 | who tells of changes of memory: userfaultfd (default), explicit: the program          |
/// | discard_bar             | longer than any discard of memory by the program takes: 100ms (default)               |
/// | wait_for_room           | how long a request waits for leases to end when all is in use: 0 (default), 20ms      |
/// | patience                | how long a request waits for other threads: 10s (default)                             |
/// | retries                 | how often a registration is tried again after room was made: 4 (default)              |
/// | max_segments            | the most segments of a lease, 1 where a transfer takes one key; else no limit         |
/// | headroom                | a fraction of the capacity that the background keeps free: 0 (default)                |
/// | background              | on, off: whether a thread of the cache deregisters what leaves                        |
/// | histograms              | on, off: whether latencies are recorded (mrrc_latency); 50 ns an acquire              |
/// | fence                   | on, off: whether hits use a fence although membarrier is there                        |
/// | cpus                    | all, or 0-3,8: where own threads of all caches run; else as the process was at load   |
/// | environment             | on (default), off: whether MRRC_ variables are read at all                            |
///
/// Case does not matter. A name or a value that makes no sense is MRRC_ERROR_SETTING, with what would, and changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_options_set(
    options: *mut mrrc_options_t,
    name: *const c_char,
    value: *const c_char,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let set = || {
        // SAFETY: as the header asks, it is used by one thread at a time.
        let options = unsafe { options.as_mut() }.ok_or_else(|| null("options"))?;
        // SAFETY: texts that end with 0.
        let (name, value) = unsafe { (text(name, "name")?, text(value, "value")?) };
        options.set(name, value)
    };
    // SAFETY: as the header asks.
    unsafe { guarded(error, set) }
}

/// Frees options. Caches that were made with them stay as they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_options_free(options: *mut mrrc_options_t) {
    if !options.is_null() {
        // SAFETY: as the header asks, it came from `mrrc_options_new`, and is freed once.
        quietly((), || drop(unsafe { Box::from_raw(options) }));
    }
}

impl mrrc_options_t {
    fn set(&mut self, name: &str, value: &str) -> Result<(), Box<Failure>> {
        if name.eq_ignore_ascii_case("environment") {
            self.ignores_environment = match &*value.trim().to_ascii_lowercase() {
                "on" | "1" | "true" | "yes" => false,
                "off" | "0" | "false" | "no" => true,
                _ => {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    let expected = "expected on, 1, true or yes; or off, 0, false or no".to_owned();
                    return Err(BuildError::Setting { name, value, expected }.into());
                }
            };
            return Ok(());
        }
        // Known to be right before it is kept. No cache is made of this one.
        _ = Cache::builder(Dummy::new()).monitor(Explicit).set(name, value)?;
        self.settings.retain(|(set, _)| !set.eq_ignore_ascii_case(name));
        self.settings.push((name.to_owned(), value.to_owned()));
        Ok(())
    }
}

/// What makes a cache over this edge, with these options; null is none.
///
/// # Safety
/// As `given`, but null is right.
pub(crate) unsafe fn builder(options: *const mrrc_options_t, edge: Edge) -> Result<Builder<Edge>, Box<Failure>> {
    let mut builder = Cache::builder(edge);
    if options.is_null() {
        return Ok(builder);
    }
    // SAFETY: by the contract.
    let options = unsafe { given(options, "options") }?;
    for (name, value) in &options.settings {
        builder = builder.set(name, value)?;
    }
    Ok(if options.ignores_environment { builder.ignore_environment() } else { builder })
}
