//! Memory pressure: caches keep less while memory is short (`MRRC_PRESSURE=on`).
//!
//! A thread of the process reads the kernel's counters as long as there is a cache that shrinks. The kernel's trigger wakes it, and so
//! do the events of the group; else it looks every [`REST`]. Where this process may set no trigger, and while caches keep less, it looks
//! every [`PERIOD`]. [`shrinker`] decides which part caches keep. When that changes the thread wakes the background of each cache. The
//! counters are those of the
//! process's control group (`memory.pressure` and the `high` of `memory.events`, version 2), else those of the system
//! (`/proc/pressure/memory`).

mod shrinker;
mod trigger;

pub(crate) use shrinker::WHOLE;

use crate::own_file::OwnFile;
use crate::own_thread;
use shrinker::{Sample, Shrinker};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use trigger::Trigger;

/// The time between two looks at the counters.
const PERIOD: Duration = Duration::from_millis(500);
/// The same while the kernel's trigger is waited for.
const REST: Duration = Duration::from_secs(10);
/// The most bytes of a file that are read.
const MOST: usize = 4096;

/// A cache that shrinks: it is woken when the part changes.
pub(crate) trait Shrinks: Send + Sync {
    fn wake(&self);
}

/// The memory pressure of one source, and the caches that follow it.
#[derive(Debug)]
pub(crate) struct Pressure {
    process: u32,
    counters: Counters,
    /// The part that caches keep.
    sixteenths: AtomicU64,
    caches: Mutex<Caches>,
}

#[derive(Default)]
struct Caches {
    all: Vec<Weak<dyn Shrinks>>,
    /// Whether a thread looks at the counters.
    has_thread: bool,
}

impl std::fmt::Debug for Caches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caches").field("caches", &self.all.len()).finish_non_exhaustive()
    }
}

/// The files with the counters.
#[derive(Debug)]
struct Counters {
    stalls: Option<OwnFile>,
    events: Option<OwnFile>,
    /// The kernel's trigger, if it lets this process have one.
    trigger: Option<Trigger>,
}

impl Pressure {
    /// Returns that of this process.
    ///
    /// # Errors
    /// The system counts no memory pressure, or does not show it.
    pub(crate) fn of_process() -> io::Result<Arc<Self>> {
        static OF_PROCESS: OnceLock<Arc<Pressure>> = OnceLock::new();
        let new = || Self::over(group().as_deref(), Path::new("/proc/pressure/memory"));
        let pressure = match OF_PROCESS.get() {
            Some(pressure) => pressure.clone(),
            None => {
                let made = new()?;
                OF_PROCESS.get_or_init(|| made).clone()
            }
        };
        // In a forked child its lock may be held by a thread that is not there.
        if pressure.process == std::process::id() { Ok(pressure) } else { new() }
    }

    /// Returns that of a control group, or else of the system.
    ///
    /// # Errors
    /// There is no counter of stalls.
    pub(crate) fn over(group: Option<&Path>, system: &Path) -> io::Result<Arc<Self>> {
        let of_group = |name: &str| group.and_then(|group| OwnFile::open(group.join(name)).ok());
        let events = of_group("memory.events");
        let of_group_pressure = of_group("memory.pressure");
        let source = match (&of_group_pressure, group) {
            (Some(_), Some(group)) => group.join("memory.pressure"),
            _ => system.to_owned(),
        };
        let stalls = match of_group_pressure {
            Some(stalls) => Some(stalls),
            None => OwnFile::open(system)
                .map_or_else(|error| if events.is_some() { Ok(None) } else { Err(error) }, |file| Ok(Some(file)))?,
        };
        let trigger = Trigger::set(&source, shrinker::STALL, shrinker::WINDOW).ok();
        let counters = Counters { stalls, events, trigger };
        Ok(Arc::new(Self {
            process: std::process::id(),
            counters,
            sixteenths: AtomicU64::new(WHOLE),
            caches: Mutex::default(),
        }))
    }

    /// Returns the sixteenths that caches keep.
    #[inline]
    pub(crate) fn sixteenths(&self) -> u64 {
        self.sixteenths.load(Ordering::Relaxed)
    }

    /// Returns how it hears of pressure.
    pub(crate) fn source(&self) -> &'static str {
        match &self.counters.trigger {
            Some(trigger) if trigger.is_whole() => "a trigger of the kernel",
            _ => "two looks a second",
        }
    }

    /// Has a cache follow it, from now to its end.
    ///
    /// # Errors
    /// There is no thread left.
    pub(crate) fn join(self: &Arc<Self>, cache: Weak<dyn Shrinks>) -> io::Result<()> {
        let mut caches = self.caches();
        caches.all.retain(|other| other.strong_count() > 0);
        if !caches.has_thread {
            let pressure = self.clone();
            own_thread::spawn("mrrc-pressure", move || pressure.look_on())?;
            caches.has_thread = true;
        }
        caches.all.push(cache);
        Ok(())
    }

    fn caches(&self) -> std::sync::MutexGuard<'_, Caches> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the counters, until no cache is left.
    fn look_on(&self) {
        let (begun, mut shrinker, mut has_fired) = (Instant::now(), Shrinker::new(), false);
        loop {
            let (stalled, high) = (self.counters.stalled(), self.counters.high());
            let sample = Sample { at: begun.elapsed(), stalled, high, has_fired };
            let now = shrinker.look(sample);
            let has_changed = self.sixteenths.swap(now, Ordering::Relaxed) != now;
            let mut caches = self.caches();
            caches.all.retain(|cache| cache.strong_count() > 0);
            if caches.all.is_empty() {
                caches.has_thread = false;
                self.sixteenths.store(WHOLE, Ordering::Relaxed);
                return;
            }
            let woken = if has_changed { caches.all.clone() } else { Vec::new() };
            drop(caches);
            woken.iter().filter_map(Weak::upgrade).for_each(|cache| cache.wake());
            has_fired = self.counters.wait(if now < WHOLE { PERIOD } else { REST });
        }
    }
}

impl Counters {
    /// Waits for the next look, at most so long. Returns whether the trigger fired.
    fn wait(&self, longest: Duration) -> bool {
        let Some(trigger) = self.trigger.as_ref().filter(|trigger| trigger.is_whole()) else {
            std::thread::sleep(PERIOD);
            return false;
        };
        let woken = trigger.wait(self.events.as_ref(), longest);
        if woken.is_early {
            // However often the kernel wakes it, there are few looks.
            std::thread::sleep(PERIOD / 5);
        }
        woken.has_fired
    }

    /// Returns how long some thread was stalled for memory, in all.
    fn stalled(&self) -> Option<Duration> {
        total(&text(self.stalls.as_ref()?)?)
    }

    /// Returns how often the group was above `memory.high`.
    fn high(&self) -> Option<u64> {
        high(&text(self.events.as_ref()?)?)
    }
}

/// Reads a file of the kernel, which answers anew each time.
fn text(file: &OwnFile) -> Option<String> {
    let mut bytes = [0; MOST];
    let length = file.get().ok()?.read_at(&mut bytes, 0).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// Reads the total of the line `some` of a file as `/proc/pressure/memory`.
fn total(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let micros = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    micros.parse().ok().map(Duration::from_micros)
}

/// Reads the line `high` of a file as `memory.events`.
fn high(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("high "))?.trim().parse().ok()
}

/// Returns the folder of this process's control group, of version 2.
fn group() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(path))
}

#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::invalidation::Explicit;
    use crate::testing::NoopRegistrar;
    use crate::{Access, Cache, Lease};
    use std::fs::File;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        let stalls =
            "some avg10=0.12 avg60=0.00 avg300=0.00 total=1234567\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(total(stalls), Some(Duration::from_micros(1_234_567)));
        let events = "low 0\nhigh 31\nmax 2\noom 0\noom_kill 0\noom_group_kill 0\n";
        assert_eq!(high(events), Some(31));
        for broken in [
            "",
            "some",
            "some avg10=0.12",
            "some total=x",
            "full total=9",
            "high",
            "high x",
            "some total=99999999999999999999999",
        ] {
            assert_eq!((total(broken), high(broken)), (None, None), "{broken}");
        }
    }

    #[test]
    fn system_without_counters_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let nothing = folder.path().join("nothing");
        assert_eq!(Pressure::over(None, &nothing).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Pressure::over(Some(folder.path()), &nothing).is_err());
        std::fs::write(folder.path().join("memory.events"), "high 1\n").unwrap();
        let pressure = Pressure::over(Some(folder.path()), &nothing).unwrap();
        assert_eq!((pressure.counters.stalled(), pressure.counters.high()), (None, Some(1)));
        match Pressure::of_process() {
            Ok(pressure) => assert!(pressure.counters.stalled().is_some() || pressure.counters.high().is_some()),
            Err(error) => println!("this system counts no memory pressure: {error}"),
        }
    }

    #[test]
    fn trigger_is_used_where_the_kernel_has_it() {
        let Ok(pressure) = Pressure::over(None, Path::new("/proc/pressure/memory")) else {
            return println!("this system counts no memory pressure");
        };
        let writable = File::options().read(true).write(true).open("/proc/pressure/memory").is_ok();
        match &pressure.counters.trigger {
            Some(trigger) => {
                assert!(writable && trigger.is_whole());
                assert_eq!(pressure.source(), "a trigger of the kernel");
                // It fires at stalls of this system only, and ends with the time.
                pressure.counters.wait(Duration::from_millis(10));
            }
            None => assert_eq!(pressure.source(), "two looks a second"),
        }
    }

    #[test]
    fn caches_shrink_while_the_group_is_above_its_limit() {
        const PAGES: u64 = 160;
        let folder = tempfile::tempdir().unwrap();
        let events = folder.path().join("memory.events");
        // Written in one piece, as the kernel's is read.
        let events = File::create(&events).unwrap();
        let write = |high: u64| events.write_all_at(format!("low 0\nhigh {high:09}\n").as_bytes(), 0).unwrap();
        write(0);
        let pressure = Pressure::over(Some(folder.path()), Path::new("/nothing")).unwrap();
        let builder =
            Cache::builder(NoopRegistrar::default()).capacity_pages(1000).monitor(Explicit).ignore_environment();
        let cache = builder.background(true).pressure_of(pressure.clone()).build().unwrap();
        let take = |page: u64| -> Lease<NoopRegistrar> {
            let address = std::ptr::without_provenance(((1 + page) * PAGE) as usize);
            #[expect(unsafe_code, reason = "no transfer is made")]
            // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
            unsafe { cache.acquire(address, PAGE as usize, Access::LOCAL) }.unwrap()
        };
        let wait_until = |what: &str, is_true: &dyn Fn() -> bool| {
            let end = Instant::now() + Duration::from_secs(60);
            while !is_true() {
                assert!(Instant::now() < end, "waited for {what}: {}", cache.usage());
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        let held: Vec<_> = (0..40).map(&take).collect();
        (40..PAGES).for_each(|page| drop(take(page)));
        assert_eq!(cache.usage().pages, PAGES);
        let mut high = 0;
        let mut above = || {
            high += 1;
            write(high);
        };
        // The thread notices a change only after its first look.
        while pressure.sixteenths() == WHOLE {
            above();
            std::thread::sleep(PERIOD / 4);
        }
        wait_until("an eighth less", &|| cache.usage().pages <= PAGES / 8 * 7);
        while pressure.sixteenths() > 2 {
            above();
            std::thread::sleep(PERIOD / 4);
        }
        // Leases keep theirs, and are above an eighth.
        wait_until("what no lease has", &|| cache.usage().pages <= 40);
        assert_eq!(cache.usage().pages, 40);
        // Requests are served as before, and what they leave does not stay.
        let more: Vec<_> = (0..500).map(|page| take(1000 + page)).collect();
        assert_eq!(cache.usage().pages, 540);
        drop((more, held));
        drop(take(3000));
        // An eighth of the 540. A quiet time may have given some back.
        wait_until("few", &|| cache.usage().pages <= 540 / 4);
        assert_eq!(cache.usage().capacity_pages, 1000, "the limit is as before");
        drop(cache);
        wait_until_no_thread(&pressure);
        assert_eq!(pressure.sixteenths(), WHOLE);
    }

    fn wait_until_no_thread(pressure: &Pressure) {
        let end = Instant::now() + Duration::from_secs(60);
        while pressure.caches().has_thread {
            assert!(Instant::now() < end, "the thread looks although no cache is left");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
