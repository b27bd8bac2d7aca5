//! The library's threads, for which threads of the program wait, inherit neither the CPUs nor the scheduling of the
//! thread that makes a cache.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]
#![expect(unsafe_code, reason = "threads are scheduled, and memory is mapped, by hand")]

use mrrc::invalidation::Userfaultfd;
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache, PAGE};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CHILD: &str = "MRRCTEST_SCHEDULING";

/// Much longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

/// Binds the calling thread to one CPU.
fn bind(cpu: usize) {
    // SAFETY: a set of CPUs is plain data, borrowed for the call, which is about this thread.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&cpus), &cpus), 0);
    }
}

/// Puts the calling thread under the real-time policy. False where that takes a privilege.
fn run_in_real_time() -> bool {
    let parameter = libc::sched_param { sched_priority: 10 };
    // SAFETY: the call reads one `sched_param` and is about this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) == 0 }
}

/// CPUs of this thread, as the system writes them.
fn cpus_of(task: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_owned()
}

/// Returns the CPUs that this process may use.
fn cpus() -> Vec<usize> {
    // SAFETY: a set of CPUs is plain data, borrowed for the call, which is about this thread.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&cpus), &mut cpus), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &cpus)).collect()
    }
}

/// Stands for a timer slack that cannot be read: that of another thread takes a privilege.
const HIDDEN: &str = "hidden";

/// Each thread of the library, by name: its CPUs, nice value, policy and timer slack.
fn own_threads() -> BTreeMap<String, String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let own = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{task}/comm")).ok()?.trim().to_owned();
        let stat = std::fs::read_to_string(format!("/proc/self/task/{task}/stat")).ok()?;
        // From the third field on: what is before it may have blanks.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let slack = std::fs::read_to_string(format!("/proc/{task}/timerslack_ns")).unwrap_or(HIDDEN.to_owned());
        let (cpus, nice, policy) = (cpus_of(&format!("self/task/{task}")), fields[16], fields[38]);
        name.starts_with("mrrc-").then(|| (name, format!("{cpus} {nice} {policy} {}", slack.trim())))
    });
    own.collect()
}

fn is_root() -> bool {
    // SAFETY: the call takes nothing and returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the nice value that the library's threads have: it takes a privilege to lower one.
fn nice() -> i32 {
    // SAFETY: the call takes and returns numbers.
    if is_root() { 0 } else { unsafe { libc::getpriority(libc::PRIO_PROCESS, 0).max(0) } }
}

/// Whether the attributes are the library's on these CPUs: policy 0, and 50 us of timer slack, as far as that is shown.
fn are_own(attributes: &str, cpus: &str) -> bool {
    let own = |slack| format!("{cpus} {} 0 {slack}", nice());
    attributes == own("50000") || !is_root() && attributes == own(HIDDEN)
}

/// These threads, when they have come to run and have all that the library gives them, or after a while.
fn await_threads(names: &[&str]) -> BTreeMap<String, String> {
    let begun = Instant::now();
    loop {
        let mut own = own_threads();
        own.retain(|name, _| names.contains(&&**name));
        let is_ordinary =
            |attributes: &String| attributes.split_once(' ').is_some_and(|(cpus, _)| are_own(attributes, cpus));
        if own.len() == names.len() && own.values().all(is_ordinary) || begun.elapsed() > LONG {
            return own;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Mapping(*mut libc::c_void);

// SAFETY: the mapping's address is a number to other threads; the pages stay mapped for the test.
unsafe impl Send for Mapping {}

impl Mapping {
    const BYTES: usize = 16 * PAGE as usize;

    fn new() -> Self {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: it is mapped where nothing is.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::BYTES, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at)
    }

    fn unmap(self) {
        // SAFETY: this test's own, to which nothing refers.
        assert_eq!(unsafe { libc::munmap(self.0, Self::BYTES) }, 0);
    }
}

fn cache() -> Cache<NoopRegistrar> {
    let monitor = Userfaultfd::new().unwrap();
    Cache::builder(NoopRegistrar::default()).monitor(monitor).background(true).build().unwrap()
}

/// A creator that is bound, and under the real-time policy where it may be.
fn report_attributes() {
    let all = cpus_of("self");
    let cpus = cpus();
    bind(cpus[0]);
    // SAFETY: about this thread, with a number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_000_000 as libc::c_ulong) };
    let real_time = run_in_real_time();
    let cache = cache();
    let memory = Mapping::new();
    // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
    let lease = unsafe { cache.acquire(memory.0.cast(), PAGE as usize, Access::LOCAL) }.unwrap();
    // The thread that looks after leases of a cache that is gone, too.
    let seen = await_threads(&["mrrc-background", "mrrc-monitor"]);
    drop(cache);
    let orphans = await_threads(&["mrrc-orphans"]);
    drop(lease);
    println!("process: {all}; real time: {real_time}");
    for (name, attributes) in seen.iter().chain(&orphans) {
        println!("thread {name}: {attributes}");
    }
}

/// The creator polls, and another thread unmaps.
fn unmap_beside_a_poller() {
    let (first, second) = (cpus()[0], cpus()[1]);
    let done = AtomicBool::new(false);
    let memory = Mapping::new();
    let address = memory.0.cast::<u8>().cast_const();
    let (ready, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let (ready, go, done) = (&ready, &go, &done);
    std::thread::scope(|threads| {
        // Made first: it inherits nothing of the creator's.
        threads.spawn(move || {
            bind(second);
            ready.wait();
            go.wait();
            memory.unmap();
            done.store(true, Ordering::Release);
        });
        ready.wait();
        bind(first);
        assert!(run_in_real_time());
        let cache = cache();
        // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
        unsafe { cache.warm(address, PAGE as usize, Access::LOCAL) }.unwrap();
        go.wait();
        let begun = Instant::now();
        while !done.load(Ordering::Acquire) && begun.elapsed() < LONG {
            std::hint::spin_loop();
        }
        println!("unmapped: {}", done.load(Ordering::Acquire));
        if !done.load(Ordering::Acquire) {
            // The unmapping thread waits for good.
            std::process::exit(0);
        }
    });
}

#[test]
#[ignore = "for the other tests of this file"]
fn child() {
    match std::env::var(CHILD).as_deref() {
        Ok("attributes") => report_attributes(),
        Ok("poller") => unmap_beside_a_poller(),
        _ => {}
    }
}

/// Returns the report of a process of its own; none where this system does not let it.
fn run(what: &str, variables: &[(&str, &str)]) -> Option<String> {
    if let Err(error) = Userfaultfd::new() {
        println!("skipped: {error}");
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env(CHILD, what).envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    Some(said)
}

fn threads(said: &str) -> Vec<(&str, &str)> {
    said.lines().filter_map(|line| line.strip_prefix("thread mrrc-")?.split_once(": ")).collect()
}

#[test]
fn threads_do_not_inherit_from_their_creator() {
    let Some(said) = run("attributes", &[]) else { return };
    let process = said.lines().find_map(|line| line.split_once("process: ")?.1.split_once(';')).unwrap().0;
    let names: Vec<_> = threads(&said).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["background", "monitor", "orphans"]);
    assert!(threads(&said).iter().all(|(_, attributes)| are_own(attributes, process)), "{said}");
}

#[test]
fn threads_run_on_the_cpus_that_are_set() {
    let last = cpus().pop().unwrap().to_string();
    let Some(said) = run("attributes", &[("MRRC_CPUS", &last)]) else { return };
    assert!(threads(&said).len() == 3 && threads(&said).iter().all(|(_, attributes)| are_own(attributes, &last)));
}

#[test]
fn cpus_that_make_no_sense_are_refused() {
    for value in ["many", "3-1", "8192", "8191"] {
        let builder =
            Cache::builder(NoopRegistrar::default()).ignore_environment().monitor(mrrc::invalidation::Explicit);
        let built = builder.set("cpus", value).and_then(|builder| builder.build().map(drop));
        let said = built.expect_err(value).to_string();
        assert!(said.contains("cpus") || said.contains("MRRC_CPUS"), "{said}");
        assert!(value != "8191" || said.contains("at least one of which"), "{said}");
    }
}

#[test]
fn unmapping_returns_beside_a_creator_that_polls() {
    if cpus().len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    let allowed = std::thread::spawn(run_in_real_time).join().unwrap();
    if !allowed {
        println!("skipped: the real-time policy is not to be had");
        return;
    }
    let Some(said) = run("poller", &[]) else { return };
    assert!(said.contains("unmapped: true"));
}

#[test]
fn a_thread_that_ends_at_once_moves_no_creator() {
    if cpus().len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    std::thread::spawn(|| {
        bind(cpus()[0]);
        let bound = cpus_of("thread-self");
        for nth in 0..2_000 {
            let thread = mrrc::spawn_own_thread("mrrc-short", || ()).unwrap();
            assert_eq!(cpus_of("thread-self"), bound, "after {nth} threads");
            thread.join().unwrap();
        }
    })
    .join()
    .unwrap();
}
