//! Requests that find everything in use are refused by a cache, and have to be served all the same: no result is cheaper for that.

mod common;

use common::{folder, path, stdout};
use serde_json::Value;
use tempfile::TempDir;

const ROUNDS: usize = 50;
const BUFFERS: usize = 8;
const PAGES: usize = 4;

/// Eight buffers of four pages, of which the first few are in use at once, and anew and anew.
fn recording(folder: &TempDir, at_once: usize) -> String {
    let mut now = 0;
    let mut event = |op: &str, buffer: usize| {
        now += 1000;
        format!("{now},{op},0,1,{:#x},{},w\n", (1 + 2 * buffer * PAGES) << 12, PAGES << 12)
    };
    let mut text = String::from("# mrrc registrations 1\ntime_ns,operation,process,thread,address,length,access\n");
    for _ in 0..ROUNDS {
        for first in (0..BUFFERS).step_by(at_once) {
            let all = first..(first + at_once).min(BUFFERS);
            text.extend(all.clone().map(|buffer| event("acquire", buffer)));
            text.extend(all.map(|buffer| event("release", buffer)));
        }
    }
    let file = path(folder, &format!("{at_once}-at-once.csv"));
    std::fs::write(&file, text).unwrap();
    file
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"))
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    stdout(arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn refused_requests_cost_as_without_cache() {
    let folder = folder();
    let file = recording(&folder, BUFFERS);
    for by in ["batch", "region"] {
        for command in ["compare", "replay"] {
            let rows = rows(&[command, "--json", "--dereg-cost", by, "-p", "all", "-c", "8p,16p,64p", &file]);
            let mut refused_at_all = 0;
            for row in &rows {
                let refused = number(row, "refused");
                let pages = refused * PAGES as f64;
                let batches = number(row, if by == "batch" { "dereg_batches" } else { "deregs" });
                let reg = 0.77 * (number(row, "reg_pages") + pages) + 7.42 * (number(row, "regs") + refused);
                let dereg = 0.22 * (number(row, "dereg_pages") + pages) + 1.1 * (batches + refused);
                assert!((number(row, "reg_us") - reg).abs() < 1e-6, "{reg}: {row}");
                assert!((number(row, "dereg_us") - dereg).abs() < 1e-6, "{dereg}: {row}");
                assert!((number(row, "total_us") - reg - dereg).abs() < 1e-6, "{row}");
                // The bound is there where some are refused as well, and holds.
                if let Some(bound) = row["lower_bound_us"].as_f64() {
                    assert!(bound <= number(row, "total_us") + 1e-6, "{row}");
                }
                refused_at_all += u64::from(refused > 0.0);
                let fits = number(row, "capacity_pages") >= 64.0 || row["policy"] == "infinite";
                assert!(!fits || refused == 0.0, "{row}");
            }
            assert!(refused_at_all > 20, "{refused_at_all}");
            assert!(rows.iter().any(|row| number(row, "refused") > 0.0 && row["lower_bound_us"].is_f64()));
        }
    }
}

#[test]
fn nobody_wins_by_refusing_more() {
    let folder = folder();
    let rows = rows(&["compare", "--json", "-p", "lazy,pindown,mrrc", "-c", "8p,16p", &recording(&folder, BUFFERS)]);
    let none = rows.iter().find(|row| row["policy"] == "none").unwrap();
    for row in rows.iter().filter(|row| number(row, "refused") > 0.0) {
        // Every miss was registered: a cache can save only what it found, by the pages and by the call.
        let found = number(row, "hit_pages") * (0.77 + 0.22) + number(row, "hits") * (7.42 + 1.1);
        let kept = number(row, "capacity_pages") * (0.77 + 0.22) + 7.42 + 1.1;
        // Batches of deregistrations save their calls besides, as many as there are regions.
        let batched = 1.1 * (number(row, "deregs") - number(row, "dereg_batches"));
        let saved = number(none, "total_us") - number(row, "total_us");
        assert!(saved <= found + kept + batched + 1e-6, "saves {saved}, found {found}: {row}");
    }
}

#[test]
fn one_line_says_how_many_were_refused() {
    let folder = folder();
    let file = recording(&folder, BUFFERS);
    let said = |arguments: &[&str]| String::from_utf8(common::run(arguments).stderr).unwrap();
    let all = said(&["compare", "-p", "all", "-c", "8p,16p,64p", &file]);
    let lines: Vec<&str> = all.lines().filter(|line| line.contains("found all in use")).collect();
    assert_eq!(lines.len(), 1, "{all}");
    assert!(lines[0].contains("charged what it costs without a cache"), "{all}");
    let one = said(&["replay", "-p", "pindown", "-c", "16p", &file]);
    assert!(one.contains("8-at-once.csv: 200 requests found all in use: each is charged"), "{one}");
    assert_eq!(said(&["compare", "-p", "all", "-c", "64p", &file]), "", "nothing is said where nothing was refused");
}

#[test]
fn refusal_column_is_in_all_lines_or_none() {
    let folder = folder();
    let [tight, loose] = [BUFFERS, 1].map(|at_once| recording(&folder, at_once));
    let csv = |file: &str| stdout(&["compare", "--csv", "-p", "pindown", "-c", "8p,64p", file]);
    let columns = |text: &str| text.lines().map(|line| line.split(',').count()).collect::<Vec<_>>();
    let with = csv(&tight);
    assert!(with.lines().next().unwrap().ends_with(",lower_bound_us,refused"), "{with}");
    assert!(columns(&with).iter().all(|columns| *columns == 27), "{with}");
    let without = csv(&loose);
    assert!(columns(&without).iter().all(|columns| *columns == 26), "{without}");
    let table = |file: &str| stdout(&["replay", "-p", "pindown", "-c", "8p,64p", file]);
    assert!(table(&tight).contains("refused") && !table(&loose).contains("refused"));
}

#[test]
fn shares_of_a_study_say_what_one_machine_says() {
    let folder = folder();
    let file = recording(&folder, BUFFERS);
    let study = ["compare", "-p", "lazy,pindown", "-c", "8p,64p"];
    let shares: Vec<String> = (1..=3).map(|k| path(&folder, &format!("{k}.shard"))).collect();
    for (k, share) in shares.iter().enumerate() {
        stdout(&[&study[..], &["--shard", &format!("{}/3", k + 1), "-o", share, &file]].concat());
    }
    for form in ["--csv", "--json"] {
        let mut merge = vec!["merge", form];
        merge.extend(shares.iter().map(String::as_str));
        assert_eq!(stdout(&merge), stdout(&[&study[..], &[form, &file]].concat()));
    }
}

#[test]
fn of_several_processes_the_largest_has_the_footprint() {
    let folder = folder();
    let file = recording(&folder, 1);
    let both = path(&folder, "both.csv");
    let one = std::fs::read_to_string(&file).unwrap();
    let other: String = one.lines().skip(2).take(2).map(|line| line.replacen(",0,1,", ",1,2,", 1) + "\n").collect();
    std::fs::write(&both, one + &other).unwrap();
    let table = |file: &str| stdout(&["compare", "-p", "pindown", "-c", "64p", file]);
    let line = table(&both).lines().next().unwrap().to_owned();
    assert!(line.ends_with("2 processes, footprint of the largest process 32 pages (128 KiB)"), "{line}");
    assert!(!table(&file).contains("process"), "{}", table(&file));
    assert!(rows(&["compare", "--json", "-p", "pindown", "-c", "64p", &both]).iter().all(|row| row["processes"] == 2));
}
