//! The boundary from the side of Rust: callbacks that panic, a table that is copied, rings as C has them.

#![allow(unsafe_code, reason = "the interface of C, called as C does")]

use mrrc_c::mrrc_status_t::*;
use mrrc_c::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A device whose callbacks can panic, with its count of regions.
#[derive(Default)]
struct Card {
    register: AtomicBool,
    deregister: AtomicBool,
    refuse_once: AtomicBool,
    done: AtomicBool,
    regions: AtomicU64,
    ended: AtomicU64,
}

fn card<'a>(user: *mut c_void) -> &'a Card {
    // SAFETY: the tests keep it for longer than the cache.
    unsafe { &*user.cast::<Card>() }
}

unsafe extern "C-unwind" fn register(
    user: *mut c_void,
    address: *mut c_void,
    _: usize,
    _: mrrc_access_t,
    made: *mut mrrc_registration_t,
) -> c_int {
    assert!(!card(user).register.load(Ordering::SeqCst), "register, on purpose");
    let key = card(user).regions.fetch_add(1, Ordering::SeqCst) + 1;
    // SAFETY: the cache passes a place for the registration that can be written.
    unsafe { made.write(mrrc_registration_t { handle: address, lkey: key, rkey: 0 }) };
    0
}

unsafe extern "C-unwind" fn deregister(user: *mut c_void, _: *mut mrrc_registered_t, count: usize) {
    assert!(!card(user).deregister.load(Ordering::SeqCst), "deregister, on purpose");
    assert!(!card(user).refuse_once.swap(false, Ordering::SeqCst), "deregister, once");
    card(user).regions.fetch_sub(count as u64, Ordering::SeqCst);
}

unsafe extern "C-unwind" fn done(user: *mut c_void) {
    card(user).ended.fetch_add(1, Ordering::SeqCst);
    assert!(!card(user).done.load(Ordering::SeqCst), "done, on purpose");
}

fn table(card: &Card) -> mrrc_registrar_t {
    // SAFETY: all zero is a table with nothing in it.
    let mut table: mrrc_registrar_t = unsafe { zeroed() };
    table.size = size_of::<mrrc_registrar_t>();
    table.user = ptr::from_ref(card).cast_mut().cast();
    table.register_range = Some(register);
    table.deregister_batch = Some(deregister);
    table.done = Some(done);
    table
}

/// Returns a cache over it that the program tells of changes.
fn cache(card: &Card, settings: &[(&CStr, &CStr)]) -> *mut mrrc_cache_t {
    let (options, mut cache) = (mrrc_options_new(), ptr::null_mut());
    // SAFETY: each function of C gets the arguments that the header asks for: live objects and texts that end with 0.
    unsafe {
        for (name, value) in [(c"monitor", c"explicit"), (c"environment", c"off")].iter().chain(settings) {
            assert_eq!(mrrc_options_set(options, name.as_ptr(), value.as_ptr(), ptr::null_mut()), MRRC_OK);
        }
        assert_eq!(mrrc_cache_new(options, &table(card), &mut cache, ptr::null_mut()), MRRC_OK);
        mrrc_options_free(options);
    }
    cache
}

/// Returns the status of a call and its message.
fn said(call: impl FnOnce(*mut mrrc_error_t) -> mrrc_status_t) -> (mrrc_status_t, String) {
    let mut error = MaybeUninit::<mrrc_error_t>::uninit();
    let status = call(error.as_mut_ptr());
    if status == MRRC_OK {
        return (status, String::new());
    }
    // SAFETY: a call that failed has written the whole error.
    let error = unsafe { error.assume_init() };
    assert_eq!(error.status, status);
    // SAFETY: the library ends every message with 0.
    (status, unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().unwrap().to_owned())
}

#[test]
fn panicking_callback_fails_only_its_request() {
    let (card, memory) = (Card::default(), vec![0_u8; 100_000]);
    let cache = cache(&card, &[]);
    let (address, length) = (memory.as_ptr().cast(), memory.len());
    // SAFETY: what C would do, with memory that outlives the cache.
    unsafe {
        let mut lease = MaybeUninit::<mrrc_lease_t>::zeroed();
        card.register.store(true, Ordering::SeqCst);
        let (status, text) = said(|error| mrrc_acquire(cache, address, length, MRRC_LOCAL, lease.as_mut_ptr(), error));
        assert_eq!(status, MRRC_ERROR_REGISTER, "{text}");
        assert!(text.contains("the callback panicked: register, on purpose"), "{text}");
        assert_eq!(mrrc_release(lease.as_mut_ptr()), MRRC_ERROR_LEASE);
        card.register.store(false, Ordering::SeqCst);
        assert_eq!(mrrc_acquire(cache, address, length, MRRC_LOCAL, lease.as_mut_ptr(), ptr::null_mut()), MRRC_OK);
        assert_eq!(mrrc_release(lease.as_mut_ptr()), MRRC_OK);

        card.deregister.store(true, Ordering::SeqCst);
        let (status, text) = said(|error| mrrc_flush(cache, ptr::null_mut(), error));
        assert_eq!(status, MRRC_OK, "{text}");
        let mut usage = mrrc_usage_t::default();
        assert_eq!(mrrc_usage(cache, &mut usage, size_of::<mrrc_usage_t>()), MRRC_OK);
        assert_eq!((usage.refused, usage.regions), (1, 1));
        card.deregister.store(false, Ordering::SeqCst);
        let mut regions = 0;
        assert_eq!(mrrc_reap(cache, &mut regions, ptr::null_mut()), MRRC_OK);
        assert_eq!((regions, card.regions.load(Ordering::SeqCst)), (1, 0));

        card.done.store(true, Ordering::SeqCst);
        mrrc_cache_free(cache);
        assert_eq!(card.ended.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn free_ends_although_callbacks_panic() {
    // What is refused is tried again after the free: the card has to live until `done`.
    let (card, memory) = (&*Box::leak(Box::<Card>::default()), vec![0_u8; 100_000]);
    let cache = cache(card, &[(c"background", c"on")]);
    // SAFETY: what C would do, with memory that outlives the cache.
    unsafe {
        assert_eq!(mrrc_warm(cache, memory.as_ptr().cast(), memory.len(), MRRC_LOCAL, ptr::null_mut()), MRRC_OK);
        card.deregister.store(true, Ordering::SeqCst);
        assert_eq!(mrrc_invalidate(cache, memory.as_ptr().cast(), 1, ptr::null_mut()), MRRC_OK);
        mrrc_cache_free(cache);
    }
    assert_eq!(card.regions.load(Ordering::SeqCst), 1, "it is refused, and left with the card");
}

#[test]
fn refused_region_is_tried_again_after_free() {
    let (card, memory) = (&*Box::leak(Box::<Card>::default()), vec![0_u8; 100_000]);
    let cache = cache(card, &[(c"background", c"on")]);
    // SAFETY: what C would do, with memory that outlives the cache.
    unsafe {
        assert_eq!(mrrc_warm(cache, memory.as_ptr().cast(), memory.len(), MRRC_LOCAL, ptr::null_mut()), MRRC_OK);
        card.refuse_once.store(true, Ordering::SeqCst);
        mrrc_cache_free(cache);
    }
    let begun = std::time::Instant::now();
    while card.ended.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed().as_secs() < 30, "done was not called");
        std::thread::yield_now();
    }
    assert_eq!(card.regions.load(Ordering::SeqCst), 0);
}

#[test]
fn a_table_is_copied() {
    let (card, memory) = (Card::default(), vec![0_u8; 4096]);
    let (options, mut cache) = (mrrc_options_new(), ptr::null_mut());
    let name = CString::new("a card").unwrap();
    let mut table = table(&card);
    table.name = name.as_ptr();
    table.rights = MRRC_LOCAL;
    // SAFETY: each function of C gets the arguments that the header asks for: live objects and texts that end with 0.
    unsafe {
        assert_eq!(mrrc_options_set(options, c"monitor".as_ptr(), c"explicit".as_ptr(), ptr::null_mut()), MRRC_OK);
        assert_eq!(mrrc_cache_new(options, &table, &mut cache, ptr::null_mut()), MRRC_OK);
        ptr::write_bytes(&raw mut table, 0, 1);
        drop(name);
        let address = memory.as_ptr().cast();
        assert_eq!(mrrc_warm(cache, address, 4096, MRRC_LOCAL, ptr::null_mut()), MRRC_OK);
        let (status, text) = said(|error| mrrc_warm(cache, address, 4096, MRRC_REMOTE_READ, error));
        assert_eq!(status, MRRC_ERROR_RIGHTS);
        assert!(text.contains("a card grants local-read + local-write"), "{text}");
        mrrc_cache_free(cache);
        mrrc_options_free(options);
    }
}

/// Pages that the kernel says are pinned.
#[cfg(target_os = "linux")]
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() / 4
}

#[test]
#[cfg(target_os = "linux")]
fn ring_may_be_closed_before_its_cache() {
    use std::os::fd::AsRawFd;
    let ring = match io_uring::IoUring::new(8) {
        Ok(ring) => ring,
        Err(error) => return println!("not run: this system has no io_uring for this process ({error})"),
    };
    let memory = vec![1_u8; 8 * 4096];
    let (address, length) = (memory.as_ptr().cast(), memory.len());
    let (options, mut cache, mut second) = (mrrc_options_new(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: what C would do, with memory that outlives the cache.
    unsafe {
        assert_eq!(mrrc_options_set(options, c"monitor".as_ptr(), c"explicit".as_ptr(), ptr::null_mut()), MRRC_OK);
        let (status, text) = said(|error| mrrc_cache_new_io_uring(options, ring.as_raw_fd(), 8, &mut cache, error));
        if status == MRRC_ERROR_DEVICE {
            return println!("not run: {text}");
        }
        assert_eq!(status, MRRC_OK, "{text}");
        let (status, text) = said(|error| mrrc_cache_new_io_uring(options, ring.as_raw_fd(), 8, &mut second, error));
        assert!(status == MRRC_ERROR_DEVICE && text.contains("already") && second.is_null(), "{text}");
        mrrc_options_free(options);
        drop(ring);

        let mut lease = MaybeUninit::<mrrc_lease_t>::zeroed();
        let (status, text) =
            said(|error| mrrc_acquire(cache, address, length, MRRC_REMOTE_READ, lease.as_mut_ptr(), error));
        assert_eq!(status, MRRC_ERROR_RIGHTS, "{text}");
        let (status, text) = said(|error| mrrc_acquire(cache, address, length, MRRC_LOCAL, lease.as_mut_ptr(), error));
        assert_eq!(status, MRRC_OK, "{text}");
        let mut part = MaybeUninit::<mrrc_segment_t>::uninit();
        assert_eq!(mrrc_segments(lease.as_ptr(), part.as_mut_ptr(), 1), 1);
        let part = part.assume_init();
        assert!(part.lkey < 8 && part.rkey == 0 && part.handle.is_null());
        assert!(pinned() >= 8, "{} pages", pinned());
        let none = ptr::without_provenance(4096);
        let (status, text) = said(|error| mrrc_warm(cache, none, 1, MRRC_LOCAL, error));
        assert!(status == MRRC_ERROR_REGISTER && text.contains("0x1000 is not mapped"), "{text}");
        mrrc_cache_free(cache);
        assert!(pinned() >= 8, "a lease keeps its pages");
        assert_eq!(mrrc_release(lease.as_mut_ptr()), MRRC_OK);
    }
    // A thread of the library's hears of it.
    let begun = std::time::Instant::now();
    while pinned() > 0 {
        assert!(begun.elapsed().as_secs() < 30, "{} pages are still pinned", pinned());
        std::thread::yield_now();
    }
}
