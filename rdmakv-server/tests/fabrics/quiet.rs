//! Reads by tags cost the server nothing, and the pins stay within the bound, as the kernel counts them.

use std::collections::BTreeMap;
use std::time::Instant;

use mrrc::registrar::Registrar;
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::{Access, PageRange};

use super::client::{Client, Iwarp, Shm, Way, cache};
use super::common::{Server, soon};
use super::fabric;

/// Reads in a measurement.
const READS: u64 = 20_000;

/// How often each thread of the process went to sleep of its own, by its name.
fn sleeps(process: u32) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let path = thread.unwrap().path();
        let (Ok(name), Ok(status)) =
            (std::fs::read_to_string(path.join("comm")), std::fs::read_to_string(path.join("status")))
        else {
            continue;
        };
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        *all.entry(name.trim().to_owned()).or_default() += count.trim().parse::<u64>().unwrap();
    }
    all
}

/// Time of the processor, in ticks.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse().unwrap())
        .collect();
    fields[0] + fields[1]
}

fn grown(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, name: &str) -> u64 {
    after.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0)
}

/// How often threads wake of their own, at most: they look round now and then, as on any idle server.
fn idle(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64 / 10
}

fn read_often<W: Way>(way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    let tag = client.set("a", b"value").unwrap();
    for _ in 0..READS {
        assert_eq!(client.read_value(&tag, "a").as_deref(), Some(&b"value"[..]));
    }
}

/// One lease lasts for all reads.
const LONG: [&str; 2] = ["--tag-lease", "60s"];

#[test]
fn shm_reads_wake_no_server_thread() {
    let server = Server::on_a_free_port(&LONG);
    let process = server.process.id();
    let (begun, before, used) = (Instant::now(), sleeps(process), ticks(process));
    read_often(&Shm::new(), &fabric(&server, "shm"));
    let (after, used) = (sleeps(process), ticks(process) - used);
    let woken: u64 = ["shm-client", "shm-accept", "shm-reaper"].iter().map(|name| grown(&before, &after, name)).sum();
    assert!(woken < READS / 50 + idle(begun), "{woken} wake-ups: {before:?}, then {after:?}");
    assert!(used < 50, "{used} ticks");
}

#[test]
fn over_iwarp_no_worker_is_woken_for_a_read() {
    let server = Server::on_a_free_port(&[&LONG[..], &["--fabric", "iwarp:127.0.0.1:0"]].concat());
    let process = server.process.id();
    let way = Iwarp::new();
    let cache = cache(&way);
    let mut client = Client::new(&way, &cache, &fabric(&server, "iwarp"));
    let tag = client.set("a", b"value").unwrap();
    let (begun, before) = (Instant::now(), sleeps(process));
    assert!(before.contains_key("iwarp-client"), "{before:?}");
    for _ in 0..READS {
        assert_eq!(client.read_value(&tag, "a").as_deref(), Some(&b"value"[..]));
    }
    let after = sleeps(process);
    let woken = grown(&before, &after, "iwarp-client");
    assert!(woken < READS / 200 + idle(begun), "{woken} wake-ups of the connection's thread for {READS} reads");
    soon("that the server has counted them", || client.stat("iwarp_seen_reads") == READS);
}

/// kB that the kernel has pinned for the process.
fn pinned(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns whether pins can be had here.
fn may_pin() -> bool {
    let page = vec![0_u8; 8192];
    let range = PageRange::of_bytes(page.as_ptr() as u64, 1).unwrap();
    let pins = || -> Result<(), Box<dyn std::error::Error>> {
        let ring = io_uring::IoUring::new(2)?;
        let _pinned = IoUringBuffers::new(&ring, 64)?.register(range, Access::LOCAL)?;
        Ok(())
    };
    pins().is_ok()
}

#[test]
fn pins_stay_within_registered_memory() {
    if !may_pin() {
        eprintln!("SKIPPED: pins by io_uring cannot be had here");
        return;
    }
    const MEGABYTES: u64 = 12;
    let registered = MEGABYTES.to_string();
    let name = format!("shm:@rdmakv-pins-{}", std::process::id());
    let mut flags = vec!["-m", "128", "--registered-memory", &registered, "--pin", "--tag-lease", "50ms"];
    flags.extend(["--fabric", &name, "--fabric", "iwarp:127.0.0.1:0"]);
    let server = Server::on_a_free_port(&flags);
    let process = server.process.id();
    let (shm, iwarp) = (Shm::new(), Iwarp::new());
    let caches = (cache(&shm), cache(&iwarp));
    let mut one = Client::new(&shm, &caches.0, &fabric(&server, "shm"));
    let mut other = Client::new(&iwarp, &caches.1, &fabric(&server, "iwarp"));
    let value = vec![b'v'; 30_000];
    let mut most = 0;
    for n in 0..1500 {
        // Far more is stored than may be pinned, and every value was pinned at some time.
        let key = format!("k{n}");
        one.put(&key, &value, 1);
        one.get(&key, true);
        other.get(&format!("k{}", n / 2), true);
        let now = pinned(process);
        assert!(now <= MEGABYTES << 10, "{now} kB are pinned");
        most = most.max(now);
        for client in ["shm", "iwarp"] {
            if n % 100 == 0 {
                assert!(one.stat(&format!("{client}_registered_bytes")) <= MEGABYTES << 19);
            }
        }
    }
    assert!(most > MEGABYTES << 9, "more than half of it is used: {most} kB");
}
