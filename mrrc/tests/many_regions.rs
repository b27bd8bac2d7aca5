//! One request over very many small regions: the work under the lock is n log n in the regions, whatever becomes of them.
//!
//! Each test has a size at which a quadratic algorithm would not end soon. `work_is_n_log_n` counts the instructions of the same
//! requests over few regions and over more, by valgrind, in a process of its own.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::cache::Builder;
use mrrc::{Access, Cache};
use std::process::Command;
use tracesim_policies::AnyPolicy;

/// Regions of a page, with a page between each and the next.
const MANY: u64 = 320_000;
const SOME: u64 = 80_000;
/// Regions where instructions are counted; and four times as many.
const FEW: u64 = 400;

/// Does something to so many regions, and calls `counted` once.
type Work = fn(u64);

const WORK: [(&str, Work); 8] = [
    ("filling gaps", fill_gaps),
    ("adding rights", add_rights),
    ("adding rights to every other", add_rights_to_every_other),
    ("merging, one key", merge_into_one_key),
    ("merging, ucx", merge_by_ucx),
    ("one key with more rights", one_key_with_more_rights),
    ("victims that were held", held_victims),
    ("replacing without room", replace_without_room),
];

/// Does what is counted: valgrind knows it by this name.
#[inline(never)]
#[unsafe(export_name = "mrrc_many_regions_counted")]
fn counted(work: &mut dyn FnMut()) {
    work();
}

#[test]
#[ignore = "is run under valgrind, by the test that counts"]
fn what_is_counted() {
    for (_, work) in WORK {
        work(FEW);
        work(4 * FEW);
    }
}

/// Four times the regions take at most five times the instructions: n log n takes 4.4 times as many, and n² up to sixteen.
#[test]
#[cfg(target_os = "linux")]
fn work_is_n_log_n() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("not run: there is no valgrind");
        return;
    }
    let folder = std::env::temp_dir().join(format!("many-regions-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let out = folder.join("counted");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--toggle-collect=mrrc_many_regions_counted"]);
    // A file after each.
    command.arg("--dump-after=mrrc_many_regions_counted").arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "what_is_counted", "--ignored", "--test-threads=1"]);
    let output = command.output().unwrap();
    let instructions = |number: usize| -> Option<u64> {
        let text = std::fs::read_to_string(out.with_extension(number.to_string())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("summary: "))?.trim().parse().ok()
    };
    let counts: Vec<_> = (1..=2 * WORK.len()).map(instructions).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (at, (what, _)) in WORK.into_iter().enumerate() {
        let [less, more] = [0, 1].map(|nth| counts[2 * at + nth].expect("callgrind writes what it counted"));
        println!("{what}: {less} and {more} instructions");
        assert!(less > 100 * FEW, "{what}: it counts what it does");
        assert!(more < 5 * less, "{what}: {less} and {more} instructions");
    }
}

fn filled(builder: Builder<Device>, regions: u64) -> Cache<Device> {
    let cache = builder.build().unwrap();
    for region in 0..regions {
        drop(ask(&cache, 2 * region, 1, Access::LOCAL_READ).unwrap());
    }
    cache
}

#[track_caller]
fn spans_all(cache: &Cache<Device>, regions: u64, access: Access) -> usize {
    let mut segments = 0;
    counted(&mut || {
        let lease = ask(cache, 0, 2 * regions, access).unwrap();
        segments = lease.segments().count();
        drop(lease);
        cache.reap().unwrap();
    });
    segments
}

fn fill_gaps(regions: u64) {
    let device = device();
    let cache = filled(builder(&device, 4 * regions), regions);
    assert_eq!(spans_all(&cache, regions, Access::LOCAL_READ) as u64, 2 * regions);
}

#[test]
fn filling_gaps_between_many_regions_is_quick() {
    fill_gaps(SOME);
}

fn add_rights(regions: u64) {
    let device = device();
    let cache = filled(builder(&device, 4 * regions), regions);
    assert_eq!(spans_all(&cache, regions, Access::LOCAL) as u64, 2 * regions);
    assert_eq!((device.counts().pages, cache.usage().regions), (2 * regions, 2 * regions));
}

#[test]
fn adding_rights_to_many_regions_is_quick() {
    add_rights(MANY);
}

fn add_rights_to_every_other(regions: u64) {
    let device = device();
    let cache = builder(&device, 4 * regions).build().unwrap();
    for region in 0..regions {
        let access = if region % 2 == 0 { Access::LOCAL_READ } else { Access::LOCAL };
        drop(ask(&cache, 2 * region, 1, access).unwrap());
    }
    spans_all(&cache, regions, Access::LOCAL);
    assert_eq!(device.counts().pages, 2 * regions);
}

#[test]
fn adding_rights_to_every_other_region_is_quick() {
    add_rights_to_every_other(SOME);
}

fn merge(regions: u64, settings: impl FnOnce(Builder<Device>) -> Builder<Device>) {
    let device = device();
    let cache = filled(settings(builder(&device, 4 * regions)), regions);
    assert_eq!(spans_all(&cache, regions, Access::LOCAL_READ), 1);
    assert_eq!((device.counts().pages, cache.usage().regions), (2 * regions, 1));
}

fn merge_into_one_key(regions: u64) {
    merge(regions, |builder| builder.max_segments(1));
}

fn merge_by_ucx(regions: u64) {
    merge(regions, |builder| builder.policy_from(|params| AnyPolicy::Ucx.build(params)));
}

#[test]
fn merging_many_regions_into_one_is_quick() {
    merge_into_one_key(MANY);
    merge_by_ucx(MANY);
}

fn one_key_with_more_rights(regions: u64) {
    let device = device();
    let cache = filled(builder(&device, 4 * regions).max_segments(1), regions);
    assert_eq!(spans_all(&cache, regions, Access::LOCAL), 1);
}

#[test]
fn one_key_with_more_rights_over_many_is_quick() {
    one_key_with_more_rights(SOME);
}

fn held_victims(regions: u64) {
    let device = device();
    let cache = builder(&device, regions).build().unwrap();
    fill(&cache, regions, 1);
    let mut held: Vec<_> = (0..regions).map(|page| take(&cache, page, 1)).collect();
    counted(&mut || {
        // All of them are proposed, found held, and set aside.
        assert!(ask(&cache, 2 * regions, 1, Access::LOCAL).is_err());
        held.clear();
        drop(take(&cache, 2 * regions, 1));
    });
    assert_eq!(cache.usage().retired, 0);
}

#[test]
fn many_victims_that_were_held_come_back_quickly() {
    held_victims(SOME);
}

fn replace_without_room(regions: u64) {
    // There is no room for what replaces them beside them.
    let device = device();
    let cache = filled(builder(&device, 2 * regions).max_segments(1), regions);
    assert_eq!(spans_all(&cache, regions, Access::LOCAL), 1);
}

#[test]
fn replacing_many_regions_without_room_is_quick() {
    replace_without_room(SOME);
}
