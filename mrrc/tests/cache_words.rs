//! Refusals at the start, messages where nothing helps, and ends in unlikely places.

#![allow(unsafe_code, reason = "memory is acquired by hand")]
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::*;
use mrrc::cache::Builder;
use mrrc::invalidation::{Explicit, Monitor, Reports, Watch};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::testing::{Event, Fault, Gate, NoopRegistrar};
use mrrc::{Access, AcquireError, BuildError, Cache, ConfigError, PAGE, PageRange};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::Duration;

/// Says of everything that it is watched, and is believed.
#[derive(Default)]
struct Vouching {
    stopped: Arc<AtomicBool>,
}

// SAFETY: there is no device, so a change that goes unheard harms no memory.
unsafe impl Monitor for Vouching {
    fn name(&self) -> &'static str {
        "vouching"
    }

    unsafe fn start(&self, _: Arc<dyn Reports>) -> io::Result<()> {
        Ok(())
    }

    unsafe fn watch(&self, _: PageRange) -> Watch {
        Watch::Watched
    }

    unsafe fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

fn builder() -> Builder<NoopRegistrar> {
    Cache::builder(NoopRegistrar::new()).ignore_environment().capacity_pages(16)
}

#[test]
fn a_bar_that_is_too_short_to_be_relied_on_is_refused() {
    for short in [Duration::ZERO, Duration::from_millis(9)] {
        let error = builder().monitor(Vouching::default()).discard_grace(short).build().unwrap_err();
        assert!(
            matches!(error, BuildError::DiscardGrace { grace, monitor: "vouching", .. } if grace == short),
            "{error}"
        );
        let said = error.to_string();
        assert!(said.contains("MRRC_DISCARD_GRACE") && said.contains("10ms"), "{said}");
        // Discards are not reported there.
        assert!(builder().monitor(Explicit).discard_grace(short).build().is_ok());
    }
    assert!(builder().monitor(Vouching::default()).discard_grace(Duration::from_millis(10)).build().is_ok());
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for value in [f64::NAN, 7.0, -1.0] {
        let error = builder().monitor(Explicit).headroom(value).build().unwrap_err();
        assert!(matches!(error, BuildError::Config(ConfigError::Fraction { name: "headroom", .. })), "{error}");
        assert!(builder().monitor(Explicit).background(false).headroom(value).build().is_err());
    }
    let error = builder().monitor(Explicit).max_segments(0).build().unwrap_err();
    assert!(matches!(error, BuildError::Config(ConfigError::ZeroLimit { name: "max_segments" })), "{error}");
    let error = builder().monitor(Explicit).capacity_bytes(100).build().unwrap_err().to_string();
    assert!(error.contains("rounded down"), "{error}");
}

#[test]
fn tries_are_what_was_registered_and_what_failed() {
    let device = device();
    let cache = cache(&device, 16);
    fill(&cache, 3, 4);
    device.fail_register(Fault::always(libc::EIO));
    for _ in 0..2 {
        ask(&cache, 50, 4, Access::LOCAL).unwrap_err();
    }
    device.heal();
    device.fail_register(Fault::next(1, libc::ENOMEM));
    drop(take(&cache, 60, 4));
    let counters = cache.counters();
    let made = counters.decisions.regs - counters.decisions.failed;
    assert_eq!((counters.attempts, made, counters.retries), (7, 4, 1));
    let shown = counters.to_string();
    assert!(shown.contains("\nregistered      4  of 7 tries: 3 failed, 1 of them tried again\n"), "{shown}");
}

#[test]
fn dereg_failed_refusal_is_counted_with_cause() {
    let device = device();
    let cache = cache(&device, 16);
    fill(&cache, 4, 4);
    device.fail_deregister(Fault::always(libc::EBUSY));
    cache.flush().unwrap();
    let error = ask(&cache, 100, 8, Access::LOCAL).unwrap_err();
    let said = error.to_string();
    let AcquireError::DeregistrationFailed { registrar, why, .. } = error else { panic!("{said}") };
    let busy = io::Error::from_raw_os_error(libc::EBUSY).to_string();
    assert_eq!((registrar, &why), (cache.registrar().name(), &busy));
    assert!(said.contains(&format!("{registrar}: {busy}")), "{said}");
    let explained = cache.explain(address(100), 8 * PAGE as usize, Access::LOCAL).to_string();
    assert!(explained.contains(&busy), "{explained}");
    let counters = cache.counters();
    assert_eq!(counters.refused_dereg_failed, 1);
    assert!(counters.to_string().contains("1 request refused for that"), "{counters}");
    device.heal();
}

/// Holds the cache that calls it, for as long as a deregistration takes.
#[derive(Default)]
struct Holder {
    cache: OnceLock<Weak<Cache<Self>>>,
    /// Told when it has the cache, and waited for until the program has let go of it.
    steps: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
    registered: Arc<AtomicU64>,
    gone: Arc<AtomicBool>,
}

// SAFETY: its registrations name no memory: there is no device.
unsafe impl Registrar for Holder {
    type Registration = ();

    fn register(&self, _: PageRange, _: Access) -> io::Result<()> {
        self.registered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn deregister(&self, batch: &mut Vec<Registered<()>>) -> io::Result<()> {
        let steps = self.steps.lock().unwrap().take();
        if let (Some((has, free)), Some(cache)) = (steps, self.cache.get().and_then(Weak::upgrade)) {
            has.send(()).unwrap();
            free.recv().unwrap();
            drop(cache);
        }
        self.registered.fetch_sub(batch.len() as u64, Ordering::Relaxed);
        batch.clear();
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "holder"
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
    }
}

#[test]
fn cache_dropped_by_its_background_ends() {
    let holder = Holder::default();
    let (gone, registered) = (holder.gone.clone(), holder.registered.clone());
    let monitor = Vouching::default();
    let stopped = monitor.stopped.clone();
    let (has, had) = mpsc::channel();
    let (free, freed) = mpsc::channel();
    *holder.steps.lock().unwrap() = Some((has, freed));
    let cache = Cache::builder(holder).ignore_environment().capacity_pages(16).monitor(monitor);
    let cache = Arc::new(cache.build().unwrap());
    cache.registrar().cache.set(Arc::downgrade(&cache)).unwrap();
    for page in [16, 32] {
        // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
        unsafe { cache.warm((page * PAGE) as *const u8, PAGE as usize, Access::LOCAL) }.unwrap();
    }
    cache.invalidate((16 * PAGE) as *const u8, 1).unwrap();
    had.recv().unwrap();
    // The background has the other one.
    drop(cache);
    free.send(()).unwrap();
    // Everything is deregistered, and the state with its registrar is freed.
    for _ in 0..30_000 {
        if gone.load(Ordering::Acquire) {
            assert_eq!((registered.load(Ordering::Relaxed), stopped.load(Ordering::Relaxed)), (0, true));
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the cache has not ended");
}

#[test]
fn reap_waits_for_others_deregistrations() {
    let device = device();
    let (held, begun) = (Gate::closed(), Arc::new(AtomicBool::new(false)));
    let (gate, noted) = (held.clone(), begun.clone());
    device.on_call(move |event| {
        if matches!(event, Event::Deregistering { .. }) && !noted.swap(true, Ordering::AcqRel) {
            gate.pass();
        }
    });
    let cache = cache(&device, 16);
    fill(&cache, 2, 4);
    std::thread::scope(|threads| {
        cache.invalidate(address(0), 1).unwrap();
        let others = threads.spawn(|| cache.reap().unwrap());
        held.await_waiting(1);
        cache.invalidate(address(4), 1).unwrap();
        let reap = threads.spawn(|| {
            let reaped = cache.reap().unwrap();
            (reaped.regions, device.counts().pages)
        });
        // It has done its own part, and waits.
        while device.counts().pages > 4 {
            std::thread::yield_now();
        }
        held.open();
        // The other's region counts as well if it went before this one's was counted.
        let (regions, pages) = reap.join().unwrap();
        assert_eq!(pages, 0, "nothing is registered any more when it returns");
        assert!((1..=2).contains(&regions), "{regions}");
        others.join().unwrap();
    });
}
