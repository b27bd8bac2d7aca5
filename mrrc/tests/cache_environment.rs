//! Settings by environment variables, as a program meets them: in processes of their own.

#![expect(unsafe_code, reason = "memory is mapped by hand, and a monitor is implemented")]

mod common;

use common::*;
use mrrc::invalidation::{Monitor, Reports, Watch};
use mrrc::policy::sieve::Sieve;
use mrrc::{Cache, PAGE, PageRange};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CHILD: &str = "MRRCTEST_BUILDS";
const CHOICE: &str = "MRRCTEST_MONITOR";
const REMAPS: &str = "MRRCTEST_REMAPS";
const OWN_POLICY: &str = "MRRCTEST_OWN_POLICY";
/// The program asks for widening; and for a policy that cannot widen.
const WIDENS: &str = "MRRCTEST_WIDENS";
/// Neighbours are asked for, in plain memory and in an arena.
const NEIGHBOURS: &str = "MRRCTEST_NEIGHBOURS";
/// Another cache is built before.
const TWICE: &str = "MRRCTEST_TWICE";

/// A monitor of the program's own, which vouches, and needs so long a grace period.
struct Own(Duration);

// SAFETY: it vouches for no range; no device uses the memory.
unsafe impl Monitor for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    unsafe fn start(&self, _: Arc<dyn Reports>) -> std::io::Result<()> {
        Ok(())
    }

    fn least_grace(&self) -> Duration {
        self.0
    }

    unsafe fn watch(&self, _: PageRange) -> Watch {
        Watch::Watched
    }
}

/// How often memory is registered that is unmapped and mapped again between two requests.
fn remap(cache: &Cache<Device>) -> u64 {
    let bytes = 16 * PAGE as usize;
    let map = |at: *mut libc::c_void, fixed: libc::c_int| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        // SAFETY: new memory, or in the place of this test's own.
        let memory = unsafe { libc::mmap(at, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        memory
    };
    let memory = map(std::ptr::null_mut(), 0);
    for _ in 0..2 {
        // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
        unsafe { cache.warm(memory.cast(), bytes, mrrc::Access::LOCAL) }.unwrap();
        map(memory, libc::MAP_FIXED);
    }
    cache.counters().attempts
}

/// Returns how many requests for pages one after the other were widened: in plain memory, and in an arena.
fn widened(cache: &Cache<Device>) -> (u64, u64) {
    let (page, pages) = (PAGE as usize, 500);
    let memory = vec![1_u8; pages * page];
    for at in 0..pages - 1 {
        drop(acquire_at(cache, memory[at * page..].as_ptr(), page, mrrc::Access::LOCAL).unwrap());
    }
    let plain = cache.counters().widened;
    let arena = cache.arena(64 * page).unwrap();
    arena.write_at(0, &vec![1; arena.len()]).unwrap();
    for at in 0..64 {
        drop(arena.acquire(at * page..(at + 1) * page, mrrc::Access::LOCAL).unwrap());
    }
    (plain, cache.counters().widened - plain)
}

/// The pages that the program's own policy evicts at once; 0 until a cache makes one.
static BATCH: AtomicU64 = AtomicU64::new(0);

/// Returns how often a cache registers one range for two requests.
fn register_twice(cache: &Cache<Device>) -> u64 {
    let memory = [0_u8; 16];
    for _ in 0..2 {
        // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
        unsafe { cache.warm(memory.as_ptr(), memory.len(), mrrc::Access::LOCAL) }.unwrap();
    }
    cache.counters().attempts
}

#[test]
#[ignore = "for the other tests of this file"]
fn child_builds_a_cache() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let plain = Cache::builder(device()).capacity_pages(100).max_regions(50);
    // The monitor that the program chooses: the name of one, a type of its own, or none.
    let built = match std::env::var(CHOICE).as_deref() {
        Err(_) => plain.monitor(mrrc::invalidation::Explicit),
        Ok("") => plain,
        Ok("own") => plain.monitor(Own(Duration::ZERO)),
        // It is refused, with a line that names the grace period.
        Ok("grace") => plain.monitor(Own(Duration::MAX)),
        Ok("grace of 50 ms") => plain.monitor(Own(Duration::MAX)).discard_grace(Duration::from_millis(50)),
        Ok(named) => plain.set("monitor", named).unwrap(),
    };
    let built = match std::env::var(OWN_POLICY).as_deref() {
        Err(_) => built,
        Ok(calls) => {
            let built = built.policy_from(|params| {
                BATCH.store(params.pages_of(params.evict), Ordering::Relaxed);
                Box::new(Sieve::new())
            });
            // The last call of the program counts.
            if calls == "named later" { built.policy(mrrc::policy::PolicyKind::None) } else { built }
        }
    };
    let built = match std::env::var(WIDENS).as_deref() {
        Err(_) => built,
        Ok("policy") => built.policy(mrrc::policy::PolicyKind::None),
        Ok("own policy") => built.policy_from(|params| tracesim_policies::AnyPolicy::Widening.build(params)),
        Ok("own policy, widen") => {
            built.policy_from(|params| tracesim_policies::AnyPolicy::Widening.build(params)).widen(true)
        }
        Ok("both") => built.policy(mrrc::policy::PolicyKind::None).widen(true),
        Ok(_) => built.widen(true),
    };
    if std::env::var_os(TWICE).is_some() {
        let other = Cache::builder(device()).capacity_pages(100).monitor(Own(Duration::ZERO));
        println!("{:?}", other.build().map(|cache| cache.usage()));
    }
    match built.build() {
        Ok(cache) if std::env::var_os(OWN_POLICY).is_some() => {
            println!("built: {} registrations, batch {}", register_twice(&cache), BATCH.load(Ordering::Relaxed));
        }
        Ok(cache) if std::env::var_os(NEIGHBOURS).is_some() => {
            let (plain, arena) = widened(&cache);
            println!("built: widened {} {}", plain > 0, arena > 0);
        }
        Ok(cache) if std::env::var_os(REMAPS).is_some() => {
            println!("built: {} registrations, {}", remap(&cache), cache.monitor())
        }
        Ok(cache) => {
            let usage = cache.usage();
            let times = if cache.latencies().is_some() { "timed" } else { "not timed" };
            println!(
                "built: {} pages, {} regions, {times}, {}",
                usage.capacity_pages,
                usage.capacity_regions,
                cache.monitor()
            );
        }
        Err(error) => println!("refused: {error}"),
    }
}

fn child() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_builds_a_cache", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1");
    command
}

/// Returns the output of a program with these variables.
fn build_with(variables: &[(&str, &str)]) -> String {
    let mut command = child();
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let line =
        said.lines().find_map(|line| line.find("built:").or(line.find("refused:")).map(|at| line[at..].to_owned()));
    line.unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn who_runs_a_program_has_the_last_word() {
    assert_eq!(build_with(&[]), "built: 100 pages, 50 regions, not timed, explicit");
    let variables = [("MRRC_CAPACITY", "256K"), ("MRRC_MAX_REGIONS", "7"), ("MRRC_HISTOGRAMS", "on")];
    assert_eq!(build_with(&variables), "built: 64 pages, 7 regions, timed, explicit");
    assert_eq!(build_with(&[("MRRC_CAPACITY", " "), ("MRRC_SOMETHING", "x")]), build_with(&[]));
}

#[test]
fn what_makes_no_sense_is_said_with_what_would() {
    for (name, value) in [
        ("MRRC_CAPACITY", "lots"),
        ("MRRC_CAPACITY", "99999999999T"),
        ("MRRC_MAX_REGIONS", "-1"),
        ("MRRC_POLICY", "best"),
        ("MRRC_EVICT", "2"),
        ("MRRC_MONITOR", "none"),
        ("MRRC_WAIT_TIMEOUT", "10"),
        ("MRRC_MAX_SEGMENTS", "0"),
        ("MRRC_BACKGROUND", "maybe"),
    ] {
        let said = build_with(&[(name, value)]);
        assert!(said.starts_with("refused: ") && said.contains(name) && said.contains("expected"), "{said}");
    }
    for (old, new) in
        [("PATIENCE", "WAIT_TIMEOUT"), ("WAIT_FOR_ROOM", "CAPACITY_TIMEOUT"), ("DISCARD_BAR", "DISCARD_GRACE")]
    {
        let said = build_with(&[(&format!("MRRC_{old}"), "1s")]);
        assert!(said.starts_with("refused: ") && said.ends_with(&format!("it was renamed: use MRRC_{new}")), "{said}");
    }
    let said = build_with(&[("MRRC_CAPACTIY", "64M")]);
    assert!(said.contains("did you mean MRRC_CAPACITY?"), "{said}");
    for nothing in ["0", "4095"] {
        let said = build_with(&[("MRRC_CAPACITY", nothing)]);
        assert!(said.contains("MRRC_CAPACITY") && said.contains("at least 4096"), "{said}");
    }
    let said = build_with(&[("MRRC_POLICY", "best")]);
    assert!(said.contains("gdsf") && said.contains("s3fifo"), "{said}");
}

/// Returns the output of a program that chooses this monitor, with these variables.
fn choose(choice: &str, variables: &[(&str, &str)]) -> String {
    build_with(&[&[(CHOICE, choice)], variables].concat())
}

#[test]
fn environment_never_weakens_the_monitor() {
    let weaker = ("MRRC_MONITOR", "explicit");
    assert_eq!(choose("own", &[weaker]), "built: 100 pages, 50 regions, not timed, own");
    // One by userfaultfd is no weaker, and is not what the program relies on either.
    let other = choose("own", &[("MRRC_MONITOR", "userfaultfd")]);
    assert_eq!(other, "built: 100 pages, 50 regions, not timed, own");
    if mrrc::invalidation::Userfaultfd::new().is_err() {
        println!("skipped: no userfaultfd here");
        return;
    }
    for choice in ["", "userfaultfd"] {
        let said = choose(choice, &[weaker, (REMAPS, "1")]);
        assert_eq!(said, "built: 2 registrations, userfaultfd", "chosen: {choice:?}");
    }
}

#[test]
fn environment_may_strengthen_the_monitor() {
    assert_eq!(choose("explicit", &[(REMAPS, "1")]), "built: 1 registrations, explicit");
    if mrrc::invalidation::Userfaultfd::new().is_err() {
        println!("skipped: no userfaultfd here");
        return;
    }
    let said = choose("explicit", &[(REMAPS, "1"), ("MRRC_MONITOR", "userfaultfd")]);
    assert_eq!(said, "built: 2 registrations, userfaultfd");
    // Given as a value and not by its name.
    let said = build_with(&[("MRRC_MONITOR", "userfaultfd")]);
    assert_eq!(said, "built: 100 pages, 50 regions, not timed, userfaultfd");
}

#[test]
fn environment_replaces_the_programs_own_policy() {
    let own = |variables: &[(&str, &str)]| choose("explicit", &[&[(OWN_POLICY, "1")], variables].concat());
    assert_eq!(own(&[]), "built: 1 registrations, batch 10");
    assert_eq!(own(&[("MRRC_POLICY", " ")]), "built: 1 registrations, batch 10");
    // The policy `none` keeps nothing, and the program's own is not made.
    assert_eq!(own(&[("MRRC_POLICY", "none")]), "built: 2 registrations, batch 0");
    assert!(own(&[("MRRC_POLICY", "best")]).starts_with("refused: "));
    // What it is made with comes from the environment, too.
    assert_eq!(own(&[("MRRC_EVICT", "0.5")]), "built: 1 registrations, batch 50");
    assert_eq!(own(&[(OWN_POLICY, "named later")]), "built: 2 registrations, batch 0");
}

#[test]
fn a_policy_that_cannot_widen_leaves_it_off() {
    let built = build_with(&[]);
    // Two sources, which do not know of each other.
    for variables in [
        &[(WIDENS, "widen"), ("MRRC_POLICY", "none")][..],
        &[(WIDENS, "policy"), ("MRRC_WIDEN", "on")],
        &[(WIDENS, "widen"), ("MRRC_POLICY", "none"), ("MRRC_WIDEN", " ")],
        &[(WIDENS, "widen"), ("MRRC_WIDEN", "off"), ("MRRC_POLICY", "none")],
    ] {
        assert_eq!(build_with(variables), built, "{variables:?}");
    }
    for variables in [&[(WIDENS, "both")][..], &[("MRRC_POLICY", "none"), ("MRRC_WIDEN", "on")]] {
        let said = build_with(variables);
        assert!(said.starts_with("refused: ") && said.contains("leave it off"), "{variables:?}: {said}");
    }
}

#[test]
fn environment_widens_what_the_cache_owns() {
    let ask = |variables: &[(&str, &str)]| build_with(&[&[(NEIGHBOURS, "1")], variables].concat());
    assert_eq!(ask(&[]), "built: widened false false");
    // The program did not promise to report changes around what it acquires.
    assert_eq!(ask(&[("MRRC_WIDEN", "on")]), "built: widened false true");
    assert_eq!(ask(&[(WIDENS, "widen")]), "built: widened true true");
    assert_eq!(ask(&[(WIDENS, "widen"), ("MRRC_WIDEN", "off")]), "built: widened false false");
}

#[test]
fn policy_that_widens_promises_nothing() {
    let ask = |variables: &[(&str, &str)]| build_with(&[&[(NEIGHBOURS, "1")], variables].concat());
    assert_eq!(ask(&[(WIDENS, "own policy")]), "built: widened false true");
    assert_eq!(ask(&[(WIDENS, "own policy"), ("MRRC_WIDEN", "on")]), "built: widened false true");
    assert_eq!(ask(&[(WIDENS, "own policy, widen")]), "built: widened true true");
}

#[test]
fn environment_never_shortens_the_bar() {
    for (choice, variable, expected) in [
        ("grace", "", "100ms"),
        ("grace", "20ms", "100ms"),
        ("grace", "400ms", "400ms"),
        ("grace of 50 ms", "20ms", "50ms"),
        ("grace of 50 ms", "200ms", "200ms"),
    ] {
        let said = choose(choice, &[("MRRC_DISCARD_GRACE", variable)]);
        assert!(said.contains(&format!("(MRRC_DISCARD_GRACE) is {expected},")), "{choice}, {variable}: {said}");
    }
}

#[test]
fn weaker_settings_are_reported_once() {
    let mut command = child();
    command.env(CHOICE, "own").env(TWICE, "1").env("MRRC_MONITOR", "explicit").env("MRRC_DISCARD_GRACE", "20ms");
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let of = |name: &str| errors.lines().filter(|line| line.starts_with("mrrc: ") && line.contains(name)).count();
    assert_eq!((of("MRRC_MONITOR"), of("MRRC_DISCARD_GRACE")), (1, 1), "{errors}");
}
