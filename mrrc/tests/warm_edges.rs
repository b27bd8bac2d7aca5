//! `warm_with` at its edges, with a device that registers any address: no memory is behind these, so nothing is made present.

#![allow(unsafe_code, reason = "ranges are warmed for no transfer")]

mod common;

use common::*;
use mrrc::cache::{Warm, WarmError};
use mrrc::testing::{Event, NoopRegistrar};
use mrrc::{Access, AcquireError, Cache, PAGE};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Warms pages in chunks of one by two threads.
fn warm(
    cache: &Cache<Device>,
    pages: u64,
    progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<u64, WarmError> {
    warm_as(cache, pages, &Warm::new().threads(2).chunk(PAGE).prefault(false), progress)
}

fn warm_as(
    cache: &Cache<Device>,
    pages: u64,
    how: &Warm,
    progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<u64, WarmError> {
    // SAFETY: the registrar only counts, so nothing reads or writes the memory.
    unsafe { cache.warm_with(address(0), (pages * PAGE) as usize, Access::LOCAL, how, progress) }
}

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn panic_in_progress_ends_the_threads_first() {
    let (device, is_panicking) = (device(), Arc::new(AtomicBool::new(false)));
    let (begun, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let hook = (is_panicking.clone(), begun.clone(), ended.clone());
    device.on_call(move |event| {
        if matches!(event, Event::Registering { .. }) {
            let (is_panicking, begun, ended) = &hook;
            // The second begins before the panic, and ends a while after it.
            if begun.fetch_add(1, Ordering::SeqCst) == 1 {
                while !is_panicking.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            ended.fetch_add(1, Ordering::SeqCst);
        }
    });
    let cache = cache(&device, 100);
    let progress = |_, _| {
        while begun.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        is_panicking.store(true, Ordering::SeqCst);
        panic!("progress")
    };
    let caught = catch_unwind(AssertUnwindSafe(|| warm(&cache, 50, progress))).unwrap_err();
    assert_eq!(caught.downcast_ref::<&str>(), Some(&"progress"));
    let ended = ended.load(Ordering::SeqCst);
    assert_eq!(begun.load(Ordering::SeqCst), ended, "a thread still registers");
    assert!((2..50).contains(&ended), "{ended} chunks");
}

#[test]
fn panic_of_the_registrar_stops_all_and_comes_through() {
    let (device, cache_pages) = (device(), 20_000);
    let registered = Arc::new(AtomicU64::new(0));
    let counted = registered.clone();
    device.on_call(move |event| {
        if matches!(event, Event::Registering { .. }) {
            let before = counted.fetch_add(1, Ordering::SeqCst);
            assert!(before != 3, "registrar");
            if before > 3 {
                // The panic's message, with a backtrace, takes longer than thousands of registrations of the other thread.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    });
    let cache = cache(&device, cache_pages);
    let caught = catch_unwind(AssertUnwindSafe(|| warm(&cache, 10_000, go_on))).unwrap_err();
    assert!(caught.downcast_ref::<&str>().is_some_and(|message| message.contains("registrar")));
    assert!(registered.load(Ordering::SeqCst) < 10_000, "the other thread went on to the end");
}

#[test]
fn progress_is_not_called_after_break() {
    let device = device();
    let cache = cache(&device, 100);
    let mut is_stopped = false;
    let progress = |_, _| {
        assert!(!is_stopped, "called once more");
        is_stopped = true;
        // Another result is there by then.
        while device.counts().regs < 3 {
            std::thread::yield_now();
        }
        ControlFlow::Break(())
    };
    let bytes = warm(&cache, 50, progress).unwrap();
    assert_eq!(bytes, cache.usage().pages * PAGE);
    assert!((3..50).contains(&cache.usage().pages), "{bytes}");
}

#[test]
fn threads_wait_for_a_slow_caller() {
    let device = device();
    let cache = cache(&device, 1000);
    let mut calls = 0;
    let progress = |_, _| {
        calls += 1;
        std::thread::sleep(Duration::from_millis(10));
        // A result for each call, four that wait to be taken, and two of threads that wait, or of chunks under way.
        let made = device.counts().reg_attempts;
        assert!(made <= calls + 6, "{made} registrations after {calls} calls");
        if calls < 5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    assert!(warm(&cache, 500, progress).unwrap() < 20 * PAGE);
}

#[test]
fn lease_of_all_has_no_more_segments_than_set() {
    let device = device();
    let cache = builder(&device, 1000).max_segments(3).build().unwrap();
    assert_eq!(warm(&cache, 100, go_on).unwrap(), 100 * PAGE);
    let lease = take(&cache, 0, 100);
    assert_eq!((lease.segments().count(), cache.counters().attempts), (3, 3));
}

#[test]
fn too_much_is_refused_before_pages_are_made_present() {
    let device = device();
    let cache = cache(&device, 99);
    // Pages that do not exist would be the first error.
    let error = warm_as(&cache, 100, &Warm::new(), go_on).unwrap_err();
    assert!(matches!(error, WarmError::Acquire(AcquireError::TooLarge { needed: 100, limit: 99, .. })), "{error}");
    device.grant(Access::LOCAL_READ);
    let builder = Cache::builder(device).monitor(mrrc::invalidation::Explicit).ignore_environment();
    let error = warm_as(&builder.build().unwrap(), 1, &Warm::new(), go_on).unwrap_err();
    assert!(matches!(error, WarmError::Acquire(AcquireError::Rights { .. })), "{error}");
}

#[test]
fn ends_of_the_address_space_are_warmed() {
    let builder = Cache::builder(NoopRegistrar::default()).monitor(mrrc::invalidation::Explicit);
    let cache = builder.capacity_pages(u64::MAX).ignore_environment().build().unwrap();
    let warm = |address: usize, length| {
        let (address, mut last) = (std::ptr::without_provenance(address), (0, 0));
        let how = Warm::new().prefault(false).chunk(u64::MAX);
        let progress = |done, total| {
            last = (done, total);
            ControlFlow::Continue(())
        };
        // SAFETY: the registrar only counts, so nothing reads or writes the memory.
        let bytes = unsafe { cache.warm_with(address, length, Access::LOCAL, &how, progress) }.unwrap();
        assert_eq!(last, (bytes, bytes));
        bytes
    };
    assert_eq!(warm(100, 10_000), 3 * PAGE);
    assert_eq!(warm(usize::MAX - 5000, 5001), 2 * PAGE);
    // One byte less than there are.
    assert_eq!(warm(1, usize::MAX), u64::MAX);
    // SAFETY: nothing is at the null address, so no memory is registered there.
    let null = unsafe { cache.warm_with(std::ptr::null(), 1, Access::LOCAL, &Warm::new(), go_on) };
    assert!(matches!(null, Err(WarmError::Acquire(AcquireError::Range(_)))), "{null:?}");
}

#[test]
fn child_that_progress_forks_gets_an_error() {
    let device = device();
    let cache = cache(&device, 100);
    let mut child = None;
    let progress = |_, _| {
        // SAFETY: the child goes on to the end of the call, and ends without its parent's destructors. The C library makes allocators fit
        // for that.
        child.get_or_insert_with(|| unsafe { libc::fork() });
        if child == Some(0) {
            // SAFETY: a number. One that waits for threads that are not there dies of it.
            unsafe { libc::alarm(20) };
        }
        ControlFlow::Continue(())
    };
    let result = warm(&cache, 50, progress);
    if child == Some(0) {
        let is_told = matches!(result, Err(WarmError::Acquire(AcquireError::Unusable(_))));
        // SAFETY: a number; nothing of the parent's is run.
        unsafe { libc::_exit(i32::from(!is_told)) };
    }
    assert_eq!(result.unwrap(), 50 * PAGE);
    let (child, mut status) = (child.unwrap(), 0);
    // SAFETY: the child is this test's own, and `waitpid` writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child waited, or was served");
}
