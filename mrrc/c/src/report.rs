//! Counters, usage, and why a request would hit or miss.
#![expect(unsafe_code, reason = "what C passes is pointers")]

use crate::access::{mrrc_access_t, rights};
use crate::cache::mrrc_cache_t;
use crate::gate::{Failure, given, guarded, null, quietly, write_text};
use crate::status::mrrc_status_t::MRRC_ERROR_UNSUPPORTED;
use crate::status::{mrrc_error_t, mrrc_status_t};
use mrrc::cache::Usage;
use std::ffi::{c_char, c_void};
use std::ptr;

/// Everything counted since a cache was made; exact when no thread is inside a call. Fields may be added at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mrrc_counters_t {
    /// Requests: hits and misses.
    pub requests: u64,
    /// Requests that needed no registration.
    pub hits: u64,
    /// Requests that did, for all of their memory or a part.
    pub misses: u64,
    /// Requests refused because everything was in use; counted as misses too.
    pub all_in_use: u64,
    /// Pages (of 4096 bytes) asked for.
    pub pages: u64,
    /// Pages asked for that were registered already.
    pub hit_pages: u64,
    /// Calls of the registrar to register, those that failed included.
    pub attempts: u64,
    /// Registrations decided on: those that came about and `failed`.
    pub registrations: u64,
    /// Registrations that did not come about.
    pub failed: u64,
    /// Registrations tried again because the system was out of something.
    pub retries: u64,
    /// Pages registered.
    pub registered_pages: u64,
    /// Regions deregistered.
    pub deregistered: u64,
    /// Batches in which they were.
    pub deregister_batches: u64,
    /// Deregistrations that failed; they are tried again.
    pub failed_deregistrations: u64,
    /// Regions registered for one lease only, because changes there would not be reported.
    pub unwatched: u64,
    /// Regions registered for one lease only: pages were just discarded there, or a change was announced.
    pub discarded: u64,
    /// Regions registered for one lease only: the memory changed meanwhile.
    pub changed_in_flight: u64,
    /// Changes of memory that the monitor reported.
    pub changes: u64,
    /// Regions that changes and invalidations touched.
    pub invalidated: u64,
    /// Requests that waited for what another thread was registering, or for leases to end; each counts once.
    pub waits: u64,
    /// The most pages ever registered at once.
    pub peak_pages: u64,
    /// The most regions ever registered at once.
    pub peak_regions: u64,
    /// Requests that registered more pages than they asked for (setting widen).
    pub widened: u64,
    /// Pages that these registered beyond what they asked for.
    pub widened_pages: u64,
    /// Requests whose widened registration failed: they were registered as they are.
    pub widened_failed: u64,
    /// Regions that ended by max_unheld. They count as invalidated, too.
    pub expired: u64,
    /// The most dead pins (see mrrc_usage_t) ever at once, in pages.
    pub peak_dead_pages: u64,
    /// The longest time for which pins were dead, in nanoseconds, those that are dead now included.
    pub longest_dead_nanoseconds: u64,
}

/// The current registrations. Fields may be added at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mrrc_usage_t {
    /// Pages (of 4096 bytes) registered, being registered, being deregistered, or refused by the registrar. Never above the capacity.
    pub pages: u64,
    /// Regions, counted likewise.
    pub regions: u64,
    /// Regions that left and wait to be deregistered.
    pub leaving: u64,
    /// Regions that the registrar refused to deregister. They are tried again.
    pub refused: u64,
    /// Regions that leave when their leases end.
    pub retired: u64,
    /// The capacity in pages.
    pub capacity_pages: u64,
    /// The capacity in regions.
    pub capacity_regions: u64,
    /// Dead pins, in pages: still registered although the memory was unmapped, moved or discarded, and in no lease. The background
    /// deregisters them.
    pub dead_pages: u64,
}

/// For mrrc_latency: acquires, hits included.
pub const MRRC_LATENCY_ACQUIRE: u32 = 0;
/// For mrrc_latency: registrations that were tried.
pub const MRRC_LATENCY_REGISTER: u32 = 1;
/// For mrrc_latency: batches that were deregistered.
pub const MRRC_LATENCY_DEREGISTER: u32 = 2;

/// Writes the counters. `size` is sizeof(mrrc_counters_t): a library that knows fewer counters makes the others 0. All are 0 in a
/// forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_counters(
    cache: *const mrrc_cache_t,
    counters: *mut mrrc_counters_t,
    size: usize,
) -> mrrc_status_t {
    let read = || {
        // SAFETY: the header requires that `cache` is NULL or live.
        let counted = unsafe { given(cache, "cache") }?.cache.counters();
        let decisions = counted.decisions;
        let shown = mrrc_counters_t {
            requests: decisions.requests,
            hits: decisions.hits(),
            misses: decisions.partial + decisions.miss,
            all_in_use: decisions.all_in_use,
            pages: decisions.pages,
            hit_pages: decisions.hit_pages,
            attempts: counted.attempts,
            registrations: decisions.regs,
            failed: decisions.failed,
            retries: counted.retries,
            registered_pages: decisions.reg_pages,
            deregistered: counted.deregistered,
            deregister_batches: counted.dereg_batches,
            failed_deregistrations: counted.failed_deregs,
            unwatched: counted.unwatched,
            discarded: counted.discarded,
            changed_in_flight: counted.changed_in_flight,
            changes: counted.changes,
            invalidated: decisions.invalidated,
            waits: counted.waits,
            peak_pages: counted.peak_pages,
            peak_regions: counted.peak_regions,
            widened: counted.widened,
            widened_pages: counted.widened_pages,
            widened_failed: counted.widened_failed,
            expired: counted.expired,
            peak_dead_pages: counted.peak_dead_pages,
            longest_dead_nanoseconds: u64::try_from(counted.longest_dead.as_nanos()).unwrap_or(u64::MAX),
        };
        // SAFETY: the header requires that `counters` can be written for `size` bytes.
        unsafe { fill(counters, size, &shown, "counters") }
    };
    // SAFETY: `guarded` accepts null as the place for an error.
    unsafe { guarded(ptr::null_mut(), read) }
}

/// Writes the current usage. `size` is sizeof(mrrc_usage_t). All is 0 in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_usage(
    cache: *const mrrc_cache_t,
    usage: *mut mrrc_usage_t,
    size: usize,
) -> mrrc_status_t {
    let read = || {
        // SAFETY: the header requires that `cache` is NULL or live.
        let used: Usage = unsafe { given(cache, "cache") }?.cache.usage();
        let shown = mrrc_usage_t {
            pages: used.pages,
            regions: used.regions,
            leaving: used.leaving,
            refused: used.refused,
            retired: used.retired,
            capacity_pages: used.capacity_pages,
            capacity_regions: used.capacity_regions,
            dead_pages: used.dead_pages,
        };
        // SAFETY: the header requires that `usage` can be written for `size` bytes.
        unsafe { fill(usage, size, &shown, "usage") }
    };
    // SAFETY: `guarded` accepts null as the place for an error.
    unsafe { guarded(ptr::null_mut(), read) }
}

/// Copies as much as the caller knows, and clears what only he does.
///
/// # Safety
/// It is null, or so many bytes can be written there.
unsafe fn fill<T: Copy>(place: *mut T, size: usize, shown: &T, name: &str) -> Result<(), Box<Failure>> {
    const MOST: usize = 1 << 16;
    if place.is_null() {
        return Err(null(name));
    }
    if size == 0 || !size.is_multiple_of(8) || size > MOST {
        return Err(Failure::argument(format!("size is {size}: it is to be sizeof(*{name})")));
    }
    let known = size.min(size_of::<T>());
    let bytes = place.cast::<u8>();
    // SAFETY: the caller promises `size` writable bytes; `known` is at most that and the size of `shown`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(shown).cast::<u8>(), bytes, known);
        bytes.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// A latency in nanoseconds, to three digits: that which this share of all stayed under, 0.5 for the median, 1 for the longest. Of
/// MRRC_LATENCY_ACQUIRE and its like. 0 if there was none yet.
///
/// MRRC_ERROR_UNSUPPORTED unless the cache was made with the setting histograms, and in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_latency(
    cache: *const mrrc_cache_t,
    what: u32,
    share: f64,
    nanoseconds: *mut u64,
    error: *mut mrrc_error_t,
) -> mrrc_status_t {
    let read = || {
        if nanoseconds.is_null() {
            return Err(null("nanoseconds"));
        }
        if !(0.0..=1.0).contains(&share) {
            return Err(Failure::argument(format!("share is {share}: it lies between 0 and 1")));
        }
        // SAFETY: the header requires that `cache` is NULL or live.
        let latencies = unsafe { given(cache, "cache") }?.cache.latencies().ok_or_else(|| {
            let message = "the cache records no latencies: set histograms=on (or MRRC_HISTOGRAMS) when it is made";
            Failure::new(MRRC_ERROR_UNSUPPORTED, message)
        })?;
        let histogram = match what {
            MRRC_LATENCY_ACQUIRE => latencies.acquire,
            MRRC_LATENCY_REGISTER => latencies.register,
            MRRC_LATENCY_DEREGISTER => latencies.deregister,
            _ => return Err(Failure::argument(format!("what is {what}: there are latencies 0, 1 and 2"))),
        };
        // SAFETY: it is not null, and as the header asks.
        unsafe { nanoseconds.write(histogram.value_at_quantile(share)) };
        Ok(())
    };
    // SAFETY: the header requires that `error` is NULL or can be written, as `guarded` does.
    unsafe { guarded(error, read) }
}

/// Says why a request would hit or miss, a line for each reason, without deciding anything. Writes as much as there
/// is room for, with a 0 at the end. Returns the length of all of it, without the 0: if that is not less than `room`,
/// the text was cut.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_explain(
    cache: *const mrrc_cache_t,
    address: *const c_void,
    length: usize,
    access: mrrc_access_t,
    text: *mut c_char,
    room: usize,
) -> usize {
    let explain = || {
        // SAFETY: the header requires that `cache` is NULL or live.
        let cache = &unsafe { given(cache, "cache") }?.cache;
        Ok(cache.explain(address.cast(), length, rights(access, "access")?).to_string())
    };
    // SAFETY: the header requires that `text` can be written for `room` bytes.
    unsafe { say(explain, text, room) }
}

/// Says in some lines what the cache is, what it has counted and what it has, for people; it may change. As mrrc_explain writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrrc_summary(cache: *const mrrc_cache_t, text: *mut c_char, room: usize) -> usize {
    let sum = || {
        // SAFETY: the header requires that `cache` is NULL or live.
        let cache = &unsafe { given(cache, "cache") }?.cache;
        let registrar = mrrc::registrar::Registrar::name(cache.registrar());
        Ok(format!("{registrar}, told of changes by {}\n{}\n{}", cache.monitor(), cache.counters(), cache.usage()))
    };
    // SAFETY: the header requires that `text` can be written for `room` bytes.
    unsafe { say(sum, text, room) }
}

/// # Safety
/// The text is null, or has so much room.
unsafe fn say(words: impl FnOnce() -> Result<String, Box<Failure>>, text: *mut c_char, room: usize) -> usize {
    let said = quietly("the library panicked".to_owned(), || match words() {
        Ok(words) => words,
        Err(failure) => failure.message().to_owned(),
    });
    // SAFETY: the caller promises `room` writable bytes at `text`.
    unsafe { write_text(&said, text, room) }
}
