//! Settings by name, kept until a cache is made with them.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::edge::Edge;
use crate::gate::{Failure, given, guarded, null, quietly, text};
use crate::status::{mrrc_error_t, mrrc_status_t};
use mrrc::cache::Builder;
use mrrc::settings::{SWITCH, Settings, switch};
use mrrc::{BuildError, Cache};
use std::ffi::c_char;

/// Settings of a cache that is to be made. Used by one thread at a time; for any number of caches.
#[derive(Default)]
pub struct mrrc_options_t {
    settings: Settings,
    ignores_environment: bool,
}

/// Options in which nothing is set yet. Freed by mrrc_options_free; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn mrrc_options_new() -> *mut mrrc_options_t {
    Box::into_raw(Box::default())
}

/// Sets what the environment variable of that name, after MRRC_, would set. Where both do, the environment wins. It
/// never weakens monitor and discard_grace, which correctness rests on; a line on standard error reports that it
/// tried. Of two limits max_unheld the stricter one holds.
///
/// | name                    | value                                                                                 |
/// | ----------------------- | ------------------------------------------------------------------------------------- |
/// | capacity                | the most that may be registered at once: 1GiB, 64M, 4096; else what may be pinned     |
/// | max_regions             | the most registrations at once: a number; else what the registrar takes, or 2^20      |
/// | slice                   | no registration crosses a multiple of so many bytes: 1G; else what the device takes   |
/// | policy                  | the eviction policy: probation (default), mrrc, gdsf, ...; an error names all of them |
/// | resort                  | the share of the capacity in the resorting section of policy mrrc: 0.5 (default)      |
/// | evict                   | the share of the capacity that policy mrrc evicts in one batch: 0.1 (default)         |
/// | widen                   | on, off: whether misses register neighbours too, where that has paid; else off        |
/// | cost                    | the cost model: paper (default), fmr, io-uring, or four numbers of microseconds       |
/// | monitor                 | reports changes of memory: userfaultfd (default); or explicit: the program does       |
/// | shared                  | shared memory that is cached besides anonymous: sealed (default) memfds; trusted; off |
/// | discard_grace           | longer than any discard of memory by the program takes: 100ms (default)               |
/// | capacity_timeout        | how long a request waits for leases to end when all is in use: 0 (default), 20ms      |
/// | wait_timeout            | how long a request waits for other threads: 10s (default)                             |
/// | retries                 | how often a registration is tried again after room was made: 4 (default)              |
/// | max_segments            | the most segments of a lease, 1 where a transfer takes one key; else no limit         |
/// | headroom                | the share of the capacity that the background keeps free: 0 (default)                 |
/// | max_unheld              | after this time regions without a lease end: 60s, or with a size 1G,60s; else never   |
/// | pressure                | on, off (default): whether the cache keeps less while memory is short                 |
/// | background              | on, off: whether a thread of the cache deregisters; else on if the monitor reports    |
/// | histograms              | on, off (default): whether latencies are recorded; 50 ns an acquire                   |
/// | fence                   | on, off (default): whether hits use a fence although there is membarrier              |
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
        // SAFETY: the header requires that `name` and `value` are texts that end with 0, or NULL.
        let (name, value) = unsafe { (text(name, "name")?, text(value, "value")?) };
        options.set(name, value)
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
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
            let Some(on) = switch(value) else {
                let (name, value, expected) = (name.to_owned(), value.to_owned(), format!("expected {SWITCH}"));
                return Err(BuildError::Setting { name, value, expected }.into());
            };
            self.ignores_environment = !on;
            return Ok(());
        }
        Ok(self.settings.set(name, value)?)
    }
}

/// Returns the builder of a cache over this edge with these options; null is none.
///
/// # Safety
/// As `given`, but null is right.
pub(crate) unsafe fn builder(options: *const mrrc_options_t, edge: Edge) -> Result<Builder<Edge>, Box<Failure>> {
    let builder = Cache::builder(edge);
    if options.is_null() {
        return Ok(builder);
    }
    // SAFETY: the caller promises that `options` is null or was returned by mrrc_options_new and not freed yet.
    let options = unsafe { given(options, "options") }?;
    let builder = builder.settings(&options.settings);
    Ok(if options.ignores_environment { builder.ignore_environment() } else { builder })
}
