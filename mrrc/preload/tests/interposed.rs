//! Programs with and without the shim, over a libibverbs that counts what it is asked for.

mod common;

use traces_record::layout::{HEAD, Operation, RECORD};

use common::{Counts, Ran, built, run, run_under, shim};

#[test]
fn repeated_registration_registers_each_buffer_once() {
    // And what came before it was known for such a one: three of the program's own.
    let [without, with] = [false, true].map(|on| run(on, "each", &["1000", "4", "16", "send"], &[]).well());
    assert_eq!(without.count().registered, 1001);
    assert_eq!(with.count().registered, 7);
    let told = |text: &str| text.split(", us").next().unwrap().to_owned();
    assert_eq!(told(&with.said), told(&without.said));
}

#[test]
fn buffers_on_their_way_are_registered_once() {
    // What was registered before the first was deregistered comes once more, and nothing else. Three more are the program's.
    let [without, with] = [false, true].map(|on| run(on, "nasty", &["ahead-only"], &[]).well());
    assert_eq!(with.said, without.said);
    assert_eq!((without.count().registered, with.count().registered), (3 + 8 + 96, 3 + 8 + 8));
}

#[test]
fn single_registrations_start_no_cache() {
    let ran = run(true, "each", &["1", "1", "1"], &[("MRRC_PRELOAD_SUMMARY", "1")]);
    assert!(ran.complained.contains("2 registrations passed on before any was made again"), "{ran:?}");
    assert!(ran.complained.contains("0 served"), "{ran:?}");
}

#[test]
fn all_is_deregistered_before_domain_and_device() {
    let Counts { registered, deregistered, live, domains, contexts, .. } =
        run(true, "each", &["100", "10", "1"], &[]).well().count();
    assert_eq!((registered, deregistered, live, domains, contexts), (13, 13, 0, 0, 0));
}

#[test]
fn nasty_programs_say_the_same_with_and_without() {
    for what in
        ["unmap", "twice", "fork", "pds", "errors", "rereg", "threads", "leak", "shapes", "storm", "cancel", "little"]
    {
        let [without, with] = [false, true].map(|on| run(on, "nasty", &[what], &[]).well());
        assert_eq!(with.said, without.said, "{what}");
        for of_process in with.counts {
            assert_eq!((of_process.live, of_process.contexts), (0, 0), "{what}: {of_process:?}");
        }
    }
}

#[test]
fn closed_descriptors_take_nothing_from_the_program() {
    // The descriptor of the monitor may be among those that the program closes, and so its number the program's.
    let [without, with] = [false, true].map(|on| run(on, "nasty", &["descriptors"], &[]).well());
    assert_eq!(with.said, without.said);
    assert_eq!(with.count().live, 0);
}

#[test]
fn unmapping_does_not_wait_for_a_forked_child() {
    // The program closes its descriptors, the monitor's too. The child would keep the monitor's alive.
    let [without, with] = [false, true].map(|on| run(on, "nasty", &["beside"], &[]).well());
    assert_eq!(with.said, without.said);
}

#[test]
fn many_registrations_and_ending_threads_are_served() {
    for what in ["many", "ending"] {
        let [without, with] = [false, true].map(|on| run(on, "nasty", &[what], &[]).well());
        assert_eq!(with.said, without.said, "{what}");
        assert_eq!((with.count().live, with.count().contexts), (0, 0), "{what}");
    }
}

#[test]
fn rights_for_peers_are_cached_only_on_demand() {
    let [local, remote, none] =
        [("", ""), ("MRRC_PRELOAD_REMOTE", "1"), ("MRRC_PRELOAD", "off")].map(|(name, value)| {
            let variables: &[_] = if name.is_empty() { &[] } else { &[(name, value)] };
            run(true, "nasty", &["shapes"], variables).well().count().registered
        });
    assert!(remote < local && local < none, "{remote}, {local}, {none}");
}

#[test]
fn the_preset_serves_rights_for_peers() {
    let off = run(true, "peers", &["400"], &[("MRRC_PRELOAD_SUMMARY", "1")]);
    assert_eq!((off.code, off.count().registered), (Some(0), 400));
    let first = off.complained.lines().next().unwrap();
    assert!(first.contains("MRRC_PRELOAD=trusted caches them"), "{}", off.complained);
    let on = run(true, "peers", &["400"], &[("MRRC_PRELOAD", "trusted")]).well();
    // Two of the program's own, before it was known for one that registers again.
    assert_eq!((on.count().registered, on.count().live), (10, 0));
    let local = [("MRRC_PRELOAD", "trusted"), ("MRRC_PRELOAD_REMOTE", "off")];
    assert_eq!(run(true, "peers", &["400"], &local).well().count().registered, 400);
}

/// Variables for memory windows, over a device that binds them more cheaply than it registers.
const WINDOWS: [(&str, &str); 2] = [("MRRC_PRELOAD_REMOTE", "windows"), ("FAKE_DELAY_US", "100")];

trait ButForTimes {
    /// As [`Ran::well`], for a program that says what time it took.
    fn well_but_for_times(self) -> Self;
}

impl ButForTimes for Ran {
    fn well_but_for_times(mut self) -> Self {
        self.complained = self.complained.lines().filter(|line| !line.starts_with("us a time")).collect();
        self.well()
    }
}

fn windows_and(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    WINDOWS.into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn windows_end_the_rights_of_peers_at_once() {
    let [without, with] = [false, true].map(|on| run(on, "rights", &["3000", "1000"], &WINDOWS).well_but_for_times());
    assert_eq!(with.said, without.said);
    assert!(without.count().registered > 4000, "{without:?}");
    let Counts { registered, live, domains, contexts, windows, .. } = with.count();
    assert_eq!((live, domains, contexts, windows), (0, 0, 0, 0));
    // The trial's ten, what came before the cache, and 8 buffers.
    assert!(registered <= 40, "{registered}");
}

#[test]
fn summary_counts_what_windows_served() {
    let ran = run(true, "rights", &["300", "100"], &windows_and(&[("MRRC_PRELOAD_SUMMARY", "1")]));
    let line = ran.complained.lines().find(|line| line.contains("by memory windows"));
    let line = line.unwrap_or_else(|| panic!("{ran:?}"));
    assert!(line.ends_with("by memory windows: their rights ended with them; 0 failed"), "{line}");
    let off = run(true, "rights", &["300", "100"], &[("MRRC_PRELOAD_SUMMARY", "1")]);
    assert!(!off.complained.contains("by memory windows:"), "{off:?}");
}

#[test]
fn summary_says_why_no_window_served() {
    for (name, value, why) in [
        ("FAKE_WINDOWS", "none", "with rights for peers, because the device's memory windows do not hold"),
        ("FAKE_BIND_REFUSED", "1", "with rights for peers, because no memory window could be bound for them"),
    ] {
        let ran = run(true, "rights", &["300", "100"], &windows_and(&[(name, value), ("MRRC_PRELOAD_SUMMARY", "1")]));
        let passed =
            ran.complained.lines().find_map(|line| line.strip_suffix(why)).unwrap_or_else(|| panic!("{ran:?}"));
        let times = passed.strip_suffix(" registrations passed on ").and_then(|said| said.rsplit(' ').next());
        assert!(times.is_some_and(|times| times.parse::<u32>().unwrap() > 300), "{ran:?}");
    }
    // That device has no atomic operations.
    let ran = run(true, "nasty", &["shapes"], &windows_and(&[("MRRC_PRELOAD_SUMMARY", "1")]));
    let why = "with rights to atomic operations, because the device's memory windows do not hold for these";
    assert!(ran.complained.lines().any(|line| line.ends_with(why)), "{ran:?}");
}

#[test]
fn windows_that_do_not_hold_are_named_and_unused() {
    let without = run(false, "rights", &["300", "100"], &WINDOWS).well_but_for_times();
    for (name, value, part) in [
        ("FAKE_WINDOWS", "none", "fake0 are missing"),
        ("MLX5_FREEZE_ON_ERROR_CQE", "1", "fake0 cannot be tried where MLX5_FREEZE_ON_ERROR_CQE stops a program"),
        ("FAKE_WINDOWS", "loose", "fake0 let peers reach bytes outside of the registration"),
        ("FAKE_WINDOWS", "stale", "fake0 let peers use keys of ended registrations"),
        ("FAKE_WINDOWS", "same", "fake0 "),
        ("FAKE_WINDOWS", "slow", "fake0 take longer to bind than memory takes to register"),
        ("FAKE_PORT_DOWN", "1", "fake0 could not be tried: bind a window: Network is down"),
    ] {
        let with = run(true, "rights", &["300", "100"], &windows_and(&[(name, value)]));
        assert_eq!((with.code, &with.said), (Some(0), &without.said), "{value}: {with:?}");
        let lines: Vec<_> = with.complained.lines().filter(|line| !line.starts_with("us a time")).collect();
        assert!(lines.len() == 1 && lines[0].contains(part) && lines[0].contains("passed on"), "{value}: {lines:?}");
        let count = with.count();
        assert!(count.registered >= without.count().registered, "{value}: {count:?}");
        assert_eq!((count.live, count.windows, count.domains, count.contexts), (0, 0, 0, 0), "{value}");
    }
}

#[test]
fn failed_bindings_pass_the_request_on() {
    let without = run(false, "rights", &["600", "300"], &WINDOWS).well_but_for_times();
    for (name, each, fewest, most) in [
        ("FAKE_BIND_REFUSED", "7", 100, 600),
        // The second try has a new queue pair.
        ("FAKE_BIND_BROKEN", "7", 0, 50),
        ("FAKE_BIND_BROKEN", "1", 900, 1100),
        ("FAKE_BIND_REFUSED", "1", 900, 1100),
    ] {
        let variables = windows_and(&[(name, each)]);
        let with = run(true, "rights", &["600", "300"], &variables).well_but_for_times();
        assert_eq!(with.said, without.said, "{name}={each}");
        let count = with.count();
        assert_eq!((count.live, count.windows, count.domains, count.contexts), (0, 0, 0, 0), "{name}={each}");
        assert!((fewest..=most).contains(&count.registered), "{name}={each}: {count:?}");
    }
}

#[test]
fn nothing_is_cached_for_windows_that_failed_for_good() {
    let ran = run(true, "each", &["1000", "400", "1", "peer"], &windows_and(&[("FAKE_BIND_BROKEN", "1")]));
    let count = ran.count();
    assert!(count.registered < 1100 && count.most < 50, "memory is registered in vain: {count:?}");
}

#[test]
fn nasty_programs_say_the_same_with_windows() {
    for what in ["unmap", "twice", "fork", "pds", "errors", "rereg", "threads", "leak", "shapes", "storm", "cancel"] {
        let [without, with] = [false, true].map(|on| run(on, "nasty", &[what], &WINDOWS).well());
        assert_eq!(with.said, without.said, "{what}");
        for of_process in with.counts {
            assert_eq!((of_process.live, of_process.contexts, of_process.windows), (0, 0, 0), "{what}: {of_process:?}");
        }
    }
}

#[test]
fn metrics_have_the_windows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics");
    let variables = [WINDOWS[0], WINDOWS[1], ("MRRC_METRICS", file.to_str().unwrap())];
    let ran = run(true, "rights", &["100", "20", "stay"], &variables).well_but_for_times();
    assert_eq!(ran.count().windows, 1);
    let text = std::fs::read_to_string(&file).unwrap();
    for (label, value) in [(",state=\"bound\"", 1), (",state=\"idle\"", 0)] {
        let line = text.lines().find(|line| line.starts_with("mrrc_windows{") && line.contains(label));
        assert_eq!(line.and_then(|line| line.rsplit(' ').next()), Some(&*format!("{value}")), "{text}");
    }
    assert!(metric(&text, "mrrc_window_bindings_total").is_some_and(|bound| (100..200).contains(&bound)), "{text}");
    assert_eq!(metric(&text, "mrrc_window_failures_total"), Some(0));
}

#[test]
fn keys_of_peers_end_some_time_after() {
    let variables = [("MRRC_PRELOAD_REMOTE", "trusted"), ("MRRC_MAX_UNHELD", "200ms")];
    for program in ["wait", "clear"] {
        let ran = run(true, "peers", &["400", program], &variables).well();
        assert_eq!(ran.said, "0 registered at the end\n", "{program}");
    }
}

#[test]
fn without_background_keys_of_peers_are_cached() {
    let variables = [("MRRC_PRELOAD_REMOTE", "1"), ("MRRC_BACKGROUND", "off")];
    for [of_peers, registered] in [["peers", "10"], ["each", "7"]] {
        let arguments: &[_] = if of_peers == "peers" { &["400"] } else { &["100", "4", "1"] };
        let ran = run(true, of_peers, arguments, &variables).well();
        assert_eq!((ran.count().registered.to_string(), &*ran.complained), (registered.into(), ""), "{of_peers}");
    }
}

#[test]
fn the_preset_widens_misses() {
    let registered =
        |variables: &[_]| run(true, "each", &["1000", "1", "1", "walk"], variables).well().count().registered;
    assert_eq!(registered(&[("MRRC_PRELOAD", "on")]), 1001);
    let wide = registered(&[("MRRC_PRELOAD", "trusted")]);
    assert!(wide <= 400, "{wide}");
    assert_eq!(registered(&[("MRRC_PRELOAD", "trusted"), ("MRRC_WIDEN", "off")]), 1001);
    // There no change of the memory around what is registered is reported.
    for widens in [("MRRC_PRELOAD", "trusted"), ("MRRC_WIDEN", "on")] {
        assert_eq!(registered(&[widens, ("MRRC_MONITOR", "explicit")]), 1001, "{widens:?}");
    }
}

#[test]
fn the_same_pointer_deregistered_twice_is_refused() {
    assert!(run(true, "nasty", &["dangling"], &[]).well().said.starts_with("again: EINVAL\n"));
}

#[test]
fn rereg_matches_the_device_without_cache() {
    for variables in [&[("FAKE_NO_REREG", "1")][..], &[]] {
        let [without, with] = [false, true].map(|on| run(on, "nasty", &["rereg"], variables).well());
        assert_eq!(with.said, without.said);
    }
}

#[test]
fn cached_regions_make_room_for_the_program() {
    // Room for 16 registrations; the program needs one at a time, of 40 buffers.
    let with = run(true, "each", &["400", "40", "1"], &[("FAKE_MOST", "16")]).well().count();
    assert!(with.most <= 16 && with.live == 0, "{with:?}");
    for remote in ["0", "1"] {
        let variables = [("FAKE_MOST", "16"), ("MRRC_PRELOAD_REMOTE", remote)];
        let [without, with] = [false, true].map(|on| run(on, "nasty", &["room"], &variables).well());
        assert_eq!(with.said, without.said);
        assert!(with.count().most <= 16 && with.count().live == 0, "{with:?}");
    }
}

#[test]
fn queues_find_room_beside_the_cache() {
    let variables = [("FAKE_MOST", "16")];
    let [without, with] = [false, true].map(|on| run(on, "nasty", &["queues"], &variables).well());
    assert!(with.said.contains("queue pair: made"), "{with:?}");
    assert_eq!(with.said, without.said);
    // It was full: 15 besides the one that the program keeps.
    assert!(with.count().most == 16 && with.count().live == 0, "{with:?}");
}

#[test]
fn empty_caches_repeat_no_call() {
    // There is a cache by then. It tries first.
    for (on, calls) in [(false, 1), (true, 2)] {
        let ran = run(on, "nasty", &["queues"], &[("FAKE_MOST", "1")]);
        assert_eq!((ran.code, ran.count().refused), (Some(3), calls), "{ran:?}");
    }
}

#[test]
fn metrics_are_in_a_file_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("%p.prom");
    let variables = [("MRRC_METRICS", file.to_str().unwrap())];
    run(true, "each", &["1000", "2", "4"], &variables).well();
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("one file, and none beside it: {files:?}") };
    let process: u32 = file.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let labels = format!("program=\"each\",pid=\"{process}\"");
    for (name, label, value) in [
        ("mrrc_requests_total", "", 1001),
        ("mrrc_requests_served_total", "", 998),
        ("mrrc_requests_passed_total", ",reason=\"first\"", 3),
        ("mrrc_requests_passed_total", ",reason=\"remote\"", 0),
        ("mrrc_hits_total", "", 996),
        ("mrrc_registrations_total", "", 2),
        ("mrrc_deregistrations_total", "", 2),
        ("mrrc_evictions_total", "", 0),
        ("mrrc_invalidations_total", "", 0),
        ("mrrc_flushed_total", "", 2),
        ("mrrc_expired_total", "", 0),
        ("mrrc_registered_bytes", "", 0),
        ("mrrc_unheld_bytes", "", 0),
        ("mrrc_dead_pin_bytes", "", 0),
        ("mrrc_dead_pin_seconds", "", 0),
        ("mrrc_caches", "", 0),
    ] {
        let line = format!("{name}{{{labels}{label}}} {value}");
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    assert!(text.contains("\n# TYPE mrrc_saved_seconds gauge\n"), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("mrrc_") && name.contains(&labels) && value.parse::<f64>().is_ok(), "{line}");
    }
    let nowhere = run(true, "each", &["10", "1", "1"], &[("MRRC_METRICS", "/nowhere/at/all")]);
    assert_eq!((nowhere.code, nowhere.complained.lines().count()), (Some(0), 1), "{nowhere:?}");
    assert!(nowhere.complained.contains("name a file in a directory that is there"), "{nowhere:?}");
}

/// Returns the value of a metric without labels but those of the process.
fn metric(text: &str, name: &str) -> Option<u64> {
    let samples = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    samples?.rsplit_once("} ")?.1.parse().ok()
}

#[test]
fn metrics_have_what_the_caches_hold() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics");
    let variables = [("MRRC_PRELOAD", "trusted"), ("MRRC_METRICS", file.to_str().unwrap()), ("MRRC_CAPACITY", "2M")];
    run(true, "peers", &["100", "stay"], &variables).well();
    let text = std::fs::read_to_string(&file).unwrap();
    let bytes = 8 * 4 * 4096;
    for (name, value) in [
        ("mrrc_caches", 1),
        ("mrrc_registered_bytes", bytes),
        ("mrrc_unheld_bytes", bytes),
        ("mrrc_capacity_bytes", 2 << 20),
    ] {
        assert_eq!(metric(&text, name), Some(value), "{name} in\n{text}");
    }
}

#[test]
fn counters_outlive_a_domain_that_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics");
    let variables = [
        ("MRRC_PRELOAD", "trusted"),
        ("MRRC_METRICS", file.to_str().unwrap()),
        ("MRRC_CAPACITY", "64K"),
        ("FAKE_ONE_ADDRESS", "1"),
    ];
    let [once, again] = ["stay", "again"].map(|what| {
        run(true, "peers", &["60", what], &variables).well();
        let text = std::fs::read_to_string(&file).unwrap();
        metric(&text, "mrrc_evictions_total").unwrap()
    });
    // Each of 60 registrations evicts one at most, so one domain has no more.
    assert!(once > 40 && again > 60, "{once} evictions, and {again} in two domains");
}

#[test]
fn metrics_replace_no_device_and_are_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let ran = run(true, "peers", &["100"], &[("MRRC_METRICS", link.to_str().unwrap())]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.complained.contains("no regular file") && ran.complained.lines().count() == 1, "{ran:?}");
    assert_eq!(std::fs::read_link(&link).unwrap().to_str(), Some("/dev/null"));
}

#[test]
fn cache_steps_aside_for_fresh_mappings() {
    let ran = run(true, "each", &["3000", "1", "1", "new"], &[("MRRC_PRELOAD_SUMMARY", "1")]);
    let count = ran.count();
    assert_eq!((ran.code, count.live), (Some(0), 0), "{ran:?}");
    assert!(summed(&ran, "because memory is unmapped") > 2000, "{}", ran.complained);
}

/// Returns the first number of the line of the summary that has this in it.
fn summed(ran: &Ran, part: &str) -> u64 {
    let line = ran.complained.lines().find(|line| line.contains(part));
    let number = line.and_then(|line| line.split(' ').find_map(|word| word.parse().ok()));
    number.unwrap_or_else(|| panic!("no {part} in {}", ran.complained))
}

/// Variables that ask for a summary, and leave room for 32 buffers of 16 pages.
const LITTLE: [(&str, &str); 2] = [("MRRC_PRELOAD_SUMMARY", "1"), ("MRRC_CAPACITY", "2M")];

#[test]
fn a_stream_passes_a_cache_that_cannot_help() {
    let ran = run(true, "stream", &["50000", "0"], &LITTLE);
    let (served, count) = (summed(&ran, "registrations made for those"), ran.count());
    assert!(ran.code == Some(0) && count.live == 0 && count.registered == 50_000, "{ran:?}");
    // 32 that find room, two times that, and to the next look; then a sixteenth.
    assert!(served <= 192 + 50_000 / 16, "{}", ran.complained);
    let passed = summed(&ran, "passed on because regions are evicted before they come again");
    assert_eq!(passed + served + 2, 50_000, "{}", ran.complained);
    // The cached region has left.
    assert!(ran.said.ends_with("\n0 registered at the end\n") && count.most <= 32 + 2, "{ran:?}");
}

#[test]
fn without_a_thread_what_was_cached_leaves_too() {
    let ran = run(true, "stream", &["1000", "0"], &[("MRRC_CAPACITY", "2M"), ("MRRC_BACKGROUND", "off")]).well();
    // But for the one that the program had at that moment.
    assert!(ran.said.ends_with("\n1 registered at the end\n"), "{ran:?}");
}

#[test]
fn a_cache_comes_back_when_memory_comes_again() {
    for fresh in [3000, 10_000, 30_000] {
        let ran = run(true, "stream", &[&fresh.to_string(), "100000"], &LITTLE);
        let anew: u64 = ran.said.split(' ').next().unwrap().parse().unwrap();
        // As many as were passed on before, at most, and a trial.
        assert!(anew <= fresh + fresh / 16 + 8, "{}", ran.said);
        assert_eq!((ran.code, ran.count().registered), (Some(0), fresh + anew));
        assert!(summed(&ran, "because regions are evicted") <= 2 * fresh, "{}", ran.complained);
    }
}

#[test]
fn one_domain_stands_aside_for_itself() {
    // Both have 2,000 requests, and the second uses 8 buffers: all its requests but the first are served.
    let ran = run(true, "domains", &["flood"], &LITTLE);
    let passed = summed(&ran, "because regions are evicted");
    assert!(passed > 1500 && ran.said.starts_with("10 of"), "{ran:?}");
}

#[test]
fn what_cannot_be_kept_passes_the_cache() {
    // Not watched, and refused because there is no room beside what is in use.
    for (what, before) in [("named", 0), ("held", 42)] {
        let ran = run(true, "stream", &[what, "20000"], &LITTLE);
        assert_eq!((ran.code, ran.count().registered, ran.count().live), (Some(0), 20_000 + before, 0), "{ran:?}");
        let passed = summed(&ran, "because the cache could keep few of those before");
        assert!(passed >= 20_000 - 2 - 2 * 64 - 20_000 / 16, "{}", ran.complained);
    }
}

#[test]
fn no_domain_starves_another() {
    // Room for 32 buffers: the second domain, which uses 8, is guaranteed those.
    for what in ["idle", "flood"] {
        let ran = run(true, "domains", &[what], &[("MRRC_CAPACITY", "2M")]).well();
        let anew: u64 = ran.said.split(' ').next().unwrap().parse().unwrap();
        // Before the cache is made, and once for each buffer.
        assert!(anew <= 2 + 8 + 8, "{what}: {}", ran.said);
        // Two of each domain are the program's own while nothing is cached.
        assert!(ran.count().most <= 32 + 2 && ran.count().live == 0, "{what}: {:?}", ran.count());
    }
}

#[test]
fn short_lived_domains_leave_nothing_behind() {
    // Room for 32 buffers, of which each of four threads uses 40; children are forked meanwhile.
    let ran = run(true, "domains", &["churn"], &[("MRRC_CAPACITY", "2M")]).well();
    assert_eq!(ran.said, "all served\n");
    let count = ran.counts.last().unwrap();
    assert_eq!((count.live, count.domains, count.contexts), (0, 0, 0), "{ran:?}");
    // And one of each thread's own.
    assert!(count.most <= 32 + 4, "{ran:?}");
}

#[test]
fn direct_libibverbs_lookup_is_served() {
    let [without, with] = [false, true].map(|on| run(on, "unload", &[], &[]).well());
    assert_eq!(with.said, without.said);
    let registered = |counts: &[Counts]| counts.iter().map(|count| count.registered).sum::<u64>();
    assert_eq!(registered(&without.counts), 40);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(registered(&with.counts), 12, "{with:?}");
    }
    assert!(with.counts.iter().all(|count| count.live == 0), "{with:?}");
}

#[test]
fn plugins_with_bundled_libibverbs_are_served() {
    // The second's goes by a name of its own.
    for plugin in ["plugin.so", "bundled.so"] {
        let plugin = built().join(plugin);
        let arguments = [plugin.to_str().unwrap()];
        let [without, with] = [false, true].map(|on| run(on, "program", &arguments, &[]).well());
        assert_eq!(with.said, without.said, "{plugin:?}");
        let registered = |counts: &[Counts]| counts.iter().map(|count| count.registered).sum::<u64>();
        assert_eq!(registered(&without.counts), 40);
        // Half of them is of the plug-in's own memory, which is a mapping of its file.
        assert_eq!(registered(&with.counts), 24, "{plugin:?}: {with:?}");
    }
}

#[test]
fn other_interposers_count_passing_calls() {
    let (counting, counts) = (built().join("counting.so"), tempfile::NamedTempFile::new().unwrap());
    let counted = |preloaded: &[_]| {
        let variables = [("COUNTING", counts.path().to_str().unwrap())];
        let ran = run_under(preloaded, "each", &["100", "4", "1"], &variables).well();
        (std::fs::read_to_string(counts.path()).unwrap(), ran.count().registered)
    };
    assert_eq!(counted(&[counting.clone(), shim()]), ("101 101\n".into(), 7));
    // Behind the shim it sees what the shim makes of it.
    let (behind, registered) = counted(&[shim(), counting]);
    assert_eq!((behind.as_str(), registered), ("3 7\n", 7));
}

#[test]
fn a_program_without_verbs_runs_untouched() {
    let ran = run(true, "/bin/echo", &["hello"], &[]).well();
    assert_eq!((ran.said.as_str(), ran.counts.len()), ("hello\n", 0));
    let asked = run(true, "/bin/echo", &["hello"], &[("MRRC_PRELOAD_SUMMARY", "1")]);
    assert!(asked.complained.ends_with("the program registered no memory\n"), "{asked:?}");
    assert_eq!(asked.complained.lines().count(), 1);
}

#[test]
fn wrong_variable_warns_once_and_disables_nothing() {
    let without = run(false, "nasty", &["pds"], &[]).well();
    for (name, value, part) in [
        ("MRRC_PRELOAD", "maybe", "expected trusted, or on"),
        ("MRRC_PRELOAD_REMOTE", "2", "expected windows, trusted"),
        ("MRRC_MAX_UNHELD", "soon", "expected a time"),
        ("MRRC_PRELOAD_CACHE", "1", "no such setting"),
        ("MRRC_CAPACITY", "lots", "expected bytes"),
        ("MRRC_CAPACTIY", "64M", "did you mean MRRC_CAPACITY? (nothing is cached)"),
        ("MRRC_PATIENCE", "5s", "it was renamed: use MRRC_WAIT_TIMEOUT"),
        ("MRRC_POLICY", "best", "policy"),
        ("MRRC_MAX_SEGMENTS", "2", "one key"),
        ("MRRC_DISCARD_GRACE", "1us", "discard_grace"),
    ] {
        let with = run(true, "nasty", &["pds"], &[(name, value)]);
        assert_eq!((with.code, &with.said), (Some(0), &without.said), "{name}: {with:?}");
        assert_eq!(with.count().registered, without.count().registered, "{name}");
        let line = with.complained.trim_end();
        assert!(line.starts_with("mrrc-preload: ") && line.contains(part) && !line.contains('\n'), "{line}");
        assert!(line.contains(name) || part == "discard_grace", "{line}");
    }
}

#[test]
fn of_a_tree_of_processes_one_says_what_is_wrong() {
    let script = "true; sh -c 'true; true'; true";
    let same = run(true, "/bin/sh", &["-c", script], &[("MRRC_POLICY", "best")]);
    assert_eq!((same.code, same.complained.lines().count()), (Some(0), 1), "{same:?}");
    // A variable that is set on the way is another mistake.
    let script = "true; MRRC_POLICY=worst sh -c 'true; true'; true";
    let other = run(true, "/bin/sh", &["-c", script], &[("MRRC_POLICY", "best")]);
    let lines: Vec<_> = other.complained.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("best") && lines[1].contains("worst"), "{other:?}");
    // A file may be there for one process and not for another, if its path is relative.
    for (summary, is_one) in [("/nowhere/at/all-%p", true), ("nowhere/at/all", false)] {
        let script = "/bin/true; sh -c '/bin/true; true'; true";
        let nowhere = run(true, "/bin/sh", &["-c", script], &[("MRRC_PRELOAD_SUMMARY", summary)]);
        assert_eq!((nowhere.code, nowhere.complained.lines().count() == 1), (Some(0), is_one), "{nowhere:?}");
    }
}

#[test]
fn unwritable_warning_does_not_stop_the_program() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut program = std::process::Command::new("true");
    program.env("LD_PRELOAD", shim()).env("MRRC_PRELOAD", "maybe").stderr(full);
    let status = program.status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn without_monitor_nothing_is_cached_and_one_warning() {
    let program = built().join("nasty");
    let arguments = [program.to_str().unwrap(), "unmap"];
    let without = run(false, "confined", &arguments, &[]);
    if without.code == Some(77) {
        eprintln!("not run: filters of system calls are not to be had here: {}", without.complained.trim_end());
        return;
    }
    let with = run(true, "confined", &arguments, &[]);
    assert_eq!((with.code, &with.said), (Some(0), &without.said), "{with:?}");
    assert_eq!(with.count().registered, without.count().registered);
    let lines: Vec<_> = with.complained.lines().collect();
    assert!(
        lines.len() == 1 && lines[0].contains("userfaultfd") && lines[0].ends_with("nothing is cached"),
        "{lines:?}"
    );
    // Unless a variable says that no monitor is needed.
    let each = built().join("each");
    let trusted = run(true, "confined", &[each.to_str().unwrap(), "100", "4", "1"], &[("MRRC_MONITOR", "explicit")]);
    assert_eq!(trusted.well().count().registered, 7);
}

#[test]
fn a_summary_says_what_was_spared() {
    let ran = run(true, "each", &["1000", "2", "4"], &[("MRRC_PRELOAD_SUMMARY", "1"), ("FAKE_DELAY_US", "100")]);
    assert_eq!(ran.code, Some(0));
    for part in [
        "1001 registrations asked for, 998 served",
        "996 avoided (99.8 % hits)",
        "ibv_reg_mr took",
        "ibv_dereg_mr took",
        // That is most of what the program waits for in a short run, and in neither of these.
        "1 cache took",
        "ms to make, and",
        "to end, in ibv_dealloc_pd",
    ] {
        assert!(ran.complained.contains(part), "no {part} in {}", ran.complained);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let name = file.path().to_str().unwrap();
    run(true, "each", &["10", "2", "4"], &[("MRRC_PRELOAD_SUMMARY", name)]).well();
    assert!(std::fs::read_to_string(name).unwrap().contains("11 registrations"));
    let nowhere = run(true, "each", &["10", "2", "4"], &[("MRRC_PRELOAD_SUMMARY", "/nowhere/at/all")]);
    assert_eq!((nowhere.code, nowhere.complained.lines().count()), (Some(0), 1), "{nowhere:?}");
    assert!(nowhere.complained.contains("name a file in a directory that is there"), "{nowhere:?}");
}

#[test]
fn recording_is_equal_with_and_without_cache() {
    for caching in ["off", "on"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("recording");
        let variables = [("MRRC_RECORD", file.to_str().unwrap()), ("MRRC_PRELOAD", caching)];
        let ran = run(true, "each", &["100", "4", "3"], &variables).well();
        assert_eq!(ran.count().registered, if caching == "on" { 7 } else { 101 });
        let recorded = std::fs::read(&file).unwrap();
        let records: Vec<_> = recorded[HEAD..]
            .chunks_exact(RECORD)
            .map_while(|bytes| {
                let words: Vec<_> =
                    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
                (words[0] != 0).then(|| (words[0] & 7, words[0] >> 3 & 31, words[3]))
            })
            .collect();
        let of = |operation: Operation| records.iter().filter(|&&(of, ..)| of == operation as u64).count();
        assert_eq!((records.len(), of(Operation::Acquire), of(Operation::Release)), (202, 101, 101));
        assert!(records.iter().all(|&(.., bytes)| bytes == 3 * 4096));
        assert!(records.iter().all(|&(of, rights, _)| of != Operation::Acquire as u64 || rights == 0b11));
    }
    let nowhere = run(true, "each", &["10", "1", "1"], &[("MRRC_RECORD", "/nowhere/at/all")]);
    assert_eq!((nowhere.code, nowhere.complained.lines().count()), (Some(0), 1), "{nowhere:?}");
}

#[test]
fn structures_are_those_of_libibverbs_header() {
    // The fake's header has them as well, so what is not installed is at least compared with that.
    let code = r#"
        #include <stddef.h>
        #include <infiniband/verbs.h>
        #define IS(a, b) _Static_assert((a) == (b), #a)
        IS(offsetof(struct ibv_pd, context), 0);
        IS(offsetof(struct ibv_mr, context), 0);
        IS(offsetof(struct ibv_mr, pd), sizeof(void *));
        IS(offsetof(struct ibv_mr, addr), 2 * sizeof(void *));
        IS(offsetof(struct ibv_mr, length), 3 * sizeof(void *));
        IS(offsetof(struct ibv_mr, handle), 4 * sizeof(void *));
        IS(offsetof(struct ibv_mr, lkey), 4 * sizeof(void *) + 4);
        IS(offsetof(struct ibv_mr, rkey), 4 * sizeof(void *) + 8);
        IS(offsetof(struct ibv_device_attr, max_mr_size), 80);
        IS(offsetof(struct ibv_device_attr, max_mr), 136);
        _Static_assert(sizeof(struct ibv_device_attr) <= 136 + 4 + 512, "room");
        IS(IBV_ACCESS_LOCAL_WRITE, 1); IS(IBV_ACCESS_REMOTE_WRITE, 2); IS(IBV_ACCESS_REMOTE_READ, 4);
        IS(IBV_ACCESS_REMOTE_ATOMIC, 8); IS(IBV_ACCESS_RELAXED_ORDERING, 1 << 20);
        IS(IBV_REREG_MR_CHANGE_ACCESS, 4); IS(IBV_ACCESS_MW_BIND, 1 << 4); IS(IBV_MW_TYPE_1, 1); IS(IBV_QPT_RC, 2);
        IS(offsetof(struct ibv_context, device), 0);
        IS(offsetof(struct ibv_context, ops.alloc_mw), 8 * sizeof(void *));
        IS(offsetof(struct ibv_context, ops.bind_mw), 9 * sizeof(void *));
        IS(offsetof(struct ibv_context, ops.dealloc_mw), 10 * sizeof(void *));
        IS(offsetof(struct ibv_context, ops.poll_cq), 12 * sizeof(void *));
        IS(offsetof(struct ibv_context, ops.post_send), 26 * sizeof(void *));
        IS(offsetof(struct ibv_mw, rkey), 16);
        IS(offsetof(struct ibv_mw_bind, send_flags), 8); IS(offsetof(struct ibv_mw_bind, bind_info.mr), 16);
        IS(offsetof(struct ibv_mw_bind, bind_info.addr), 24); IS(offsetof(struct ibv_mw_bind, bind_info.length), 32);
        IS(offsetof(struct ibv_mw_bind, bind_info.mw_access_flags), 40); IS(sizeof(struct ibv_mw_bind), 48);
        IS(offsetof(struct ibv_qp, context), 0); IS(offsetof(struct ibv_qp, qp_num), 52);
        IS(offsetof(struct ibv_qp_init_attr, cap), 32); IS(offsetof(struct ibv_qp_init_attr, qp_type), 52);
        IS(sizeof(struct ibv_qp_init_attr), 64);
        IS(offsetof(struct ibv_qp_attr, dest_qp_num), 28); IS(offsetof(struct ibv_qp_attr, qp_access_flags), 32);
        IS(offsetof(struct ibv_qp_attr, ah_attr), 56); IS(offsetof(struct ibv_qp_attr, pkey_index), 120);
        IS(offsetof(struct ibv_qp_attr, max_rd_atomic), 126); IS(offsetof(struct ibv_qp_attr, port_num), 129);
        IS(offsetof(struct ibv_qp_attr, rnr_retry), 132);
        _Static_assert(sizeof(struct ibv_qp_attr) <= 136 + 64, "room");
        IS(offsetof(struct ibv_ah_attr, grh.sgid_index), 20); IS(offsetof(struct ibv_ah_attr, dlid), 24);
        IS(offsetof(struct ibv_ah_attr, is_global), 29); IS(offsetof(struct ibv_ah_attr, port_num), 30);
        IS(offsetof(struct ibv_port_attr, state), 0); IS(offsetof(struct ibv_port_attr, gid_tbl_len), 12);
        IS(offsetof(struct ibv_port_attr, lid), 34); IS(offsetof(struct ibv_port_attr, link_layer), 46);
        IS(offsetof(struct ibv_wc, status), 8); IS(sizeof(struct ibv_wc), 48);
        IS(IBV_WC_SUCCESS, 0); IS(IBV_WC_REM_ACCESS_ERR, 10); IS(IBV_SEND_SIGNALED, 2);
        IS(sizeof(struct ibv_sge), 16); IS(offsetof(struct ibv_sge, lkey), 12);
        IS(offsetof(struct ibv_send_wr, opcode), 28); IS(offsetof(struct ibv_send_wr, send_flags), 32);
        IS(offsetof(struct ibv_send_wr, wr.rdma.remote_addr), 40); IS(offsetof(struct ibv_send_wr, wr.rdma.rkey), 48);
        IS(offsetof(struct ibv_send_wr, wr.atomic.compare_add), 48); IS(offsetof(struct ibv_send_wr, wr.atomic.rkey), 64);
        IS(sizeof(struct ibv_send_wr), 128);
        IS(IBV_WR_RDMA_WRITE, 0); IS(IBV_WR_RDMA_READ, 4); IS(IBV_WR_ATOMIC_FETCH_AND_ADD, 6);
        IS(offsetof(struct ibv_device_attr, atomic_cap), 164);
    "#;
    let fake = format!("{}/tests/fake", env!("CARGO_MANIFEST_DIR"));
    let source = built().join("structures.c");
    std::fs::write(&source, code).unwrap();
    let installed = std::path::Path::new("/usr/include/infiniband/verbs.h").exists();
    for include in [Some("/usr/include").filter(|_| installed), Some(fake.as_str())].into_iter().flatten() {
        let output =
            std::process::Command::new("cc").args(["-fsyntax-only", "-I", include]).arg(&source).output().unwrap();
        assert!(output.status.success(), "{include}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
