//! `replay --real`: what the kernel was asked to pin is what the simulation says, within the tolerance.
#![cfg(target_os = "linux")]

mod common;

use common::{folder, path, run};
use serde_json::Value;
use std::fmt::Write as _;

/// Returns a recording in lines.
fn recording(lines: impl IntoIterator<Item = String>) -> String {
    let mut text = String::from("# mrrc registrations 1\ntime_ns,operation,process,thread,address,length,access\n");
    lines.into_iter().for_each(|line| writeln!(text, "{line}").unwrap());
    text
}

/// Returns the object of `--json`; none where there is no io_uring to be had.
fn replayed(trace: &str, options: &[&str]) -> Option<Value> {
    let arguments: Vec<&str> = [&["replay", "--real", "io-uring", "--json"], options, &[trace]].concat();
    let output = run(&arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    if said.contains("setting up an io_uring") || said.contains("registering a table") {
        eprintln!("not run: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name}: {value}"))
}

#[test]
fn requests_that_never_leave_are_registered_once() {
    let folder = folder();
    let file = path(&folder, "x.reg");
    // Two buffers, one of which overlaps the other's end.
    let line = |n: u64| format!("{n},request,0,0,{:#x},16384,rw", 0x7f00_0000_1000 + n % 2 * 0x10_0000);
    std::fs::write(&file, recording((0..1000).map(line))).unwrap();
    let Some(result) = replayed(&file, &["-c", "1MiB"]) else { return };
    assert_eq!((number(&result, "predicted_registrations"), number(&result, "measured_registrations")), (2, 2));
    assert_eq!((number(&result, "predicted_avoided"), number(&result, "measured_avoided")), (998, 998));
    assert_eq!(number(&result["without"], "registrations"), 1000);
    assert_eq!(number(&result["cached"], "reg_pages"), 8);
    // Regions kept to the end are paid for, too.
    assert_eq!(["cached", "without"].map(|how| number(&result[how], "deregistrations")), [2, 1000]);
    assert!(number(&result, "pinned_kib") >= 32, "{result}");
}

#[test]
fn real_pins_match_simulation_for_every_policy() {
    // A workload whose buffers are asked for in all sizes, at a size where much has to leave.
    let trace = "zipf:objects=300,requests=4000,pages=4";
    for policy in ["mrrc", "pindown", "gdsf", "s3fifo", "probation", "fmrd", "ucx", "none", "widening"] {
        let Some(result) = replayed(trace, &["-p", policy, "-c", "256p"]) else { return };
        assert!(result["difference"].as_f64().unwrap().abs() <= 0.1, "{policy}: {result}");
    }
}

#[test]
fn real_pins_match_simulation_that_widens() {
    let trace = "buffers:pattern=log,pages=4096,requests=20000,seed=7";
    for policy in ["mrrc", "probation"] {
        let options = ["-c", "512p", "-p", policy, "--widen"];
        let (Some(exact), Some(widened)) = (replayed(trace, &options[..4]), replayed(trace, &options)) else { return };
        assert!(widened["difference"].as_f64().unwrap().abs() <= 0.1, "{policy}: {widened}");
        let [exact, widened] = [exact, widened].map(|result| number(&result, "measured_registrations"));
        assert!(widened < exact * 9 / 10, "{policy}: {widened} of {exact}");
    }
}

#[test]
fn real_cache_widens_no_requests_for_peers() {
    let folder = folder();
    let file = path(&folder, "x.reg");
    for (rights, every) in [("rwRW", 1), ("rw", 1), ("rwR", 3)] {
        // A scan of single pages; every so many runs of them are for peers.
        let line = |n: u64| {
            let rights = if (n / 8).is_multiple_of(every) { rights } else { "rw" };
            format!("{n},request,0,0,{:#x},4096,{rights}", 0x5000_0000 + n % 1500 * 4096)
        };
        std::fs::write(&file, recording((0..12_000).map(line))).unwrap();
        let Some(result) = replayed(&file, &["-c", "512p", "-p", "probation", "--widen"]) else { return };
        assert!(result["difference"].as_f64().unwrap().abs() <= 0.1, "{rights}: {result}");
        assert_eq!(result["policy"], "probation+widen");
        // Each request is for one page.
        let [pages, registrations] = ["reg_pages", "registrations"].map(|what| number(&result["cached"], what));
        assert_eq!(pages == registrations, rights == "rwRW", "{rights}: {result}");
    }
}

#[test]
fn held_stays_and_changed_is_registered_anew() {
    let folder = folder();
    let file = path(&folder, "x.reg");
    let at = |n: u64| 0x5000_0000 + n * 0x4000;
    let mut lines = vec![format!("0,acquire,0,0,{:#x},8192,rw", at(0))];
    // The first is in use all the while, so that of the others three fit beside it.
    lines.extend((1..=400).map(|n| format!("{n},request,0,0,{:#x},8192,rw", at(1 + n % 3))));
    lines.push(format!("401,invalidate,0,0,{:#x},{},-", at(1), 0x8000));
    lines.extend((1..=3).map(|n| format!("{},request,0,0,{:#x},8192,rw", 401 + n, at(n))));
    lines.push(format!("405,release,0,0,{:#x},8192,rw", at(0)));
    lines.push(format!("406,request,0,0,{:#x},8192,rw", at(0)));
    std::fs::write(&file, recording(lines)).unwrap();
    let Some(result) = replayed(&file, &["-p", "pindown", "-c", "8p"]) else { return };
    // Four, and the two anew whose memory changed.
    assert_eq!(
        (number(&result, "predicted_registrations"), number(&result, "measured_registrations")),
        (6, 6),
        "{result}"
    );
}

#[test]
fn uncacheable_requests_register_each_time() {
    let folder = folder();
    let file = path(&folder, "x.reg");
    let line =
        |n: u64| format!("{n},request,0,0,{:#x},{},rw", 0x5000_0000, if n.is_multiple_of(2) { 4096 } else { 65536 });
    std::fs::write(&file, recording((0..200).map(line))).unwrap();
    let Some(result) = replayed(&file, &["-c", "8p", "--tolerance", "100"]) else { return };
    assert!(number(&result["cached"], "reg_pages") >= 1600, "{result}");
    assert!(number(&result, "measured_registrations") >= 100, "{result}");
}

#[test]
fn what_cannot_be_is_said() {
    let folder = folder();
    let file = path(&folder, "x.reg");
    std::fs::write(&file, recording(["0,request,0,0,0x5000,4096,rw".to_owned()])).unwrap();
    for (options, status, what) in [
        (&["-p", "mrrc,pindown"][..], 2, "one --policy and one --capacity"),
        (&["-c", "1MiB,2MiB"], 2, "one --policy and one --capacity"),
        (&["--tolerance", "1000"], 2, "--tolerance"),
        (&["-c", "9000000MiB"], 1, "a capacity of 8.6 TiB is more than may be pinned here"),
    ] {
        let arguments: Vec<&str> = [&["replay", "--real", "io-uring", &file], options].concat();
        let output = run(&arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("setting up an io_uring") {
            return eprintln!("not run: {said}");
        }
        assert_eq!(output.status.code(), Some(status), "{options:?}: {said}");
        assert!(said.contains(what), "{options:?}: {said}");
    }
    // More memory than any machine has.
    std::fs::write(&file, recording([format!("0,request,0,0,0x5000,{},rw", 1_u64 << 45)])).unwrap();
    let said = common::complaint(&["replay", "--real", "io-uring", "-c", "1MiB", &file], 1);
    assert!(said.contains("the trace touches 33554432 MiB"), "{said}");
}
