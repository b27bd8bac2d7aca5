//! The output of every command, as it stands in `snapshots`. `INSTA_UPDATE=always cargo test` writes it anew; then read
//! what changed before you believe it.

mod common;

use common::{folder, golden, path, stdout};
use insta::assert_snapshot;

#[test]
fn replay() {
    let trace = &golden("whole-files.csv");
    assert_snapshot!("replay-table", stdout(&["replay", "-p", "mrrc,pindown,firehose,none", "-c", "256p,5%", trace]));
    assert_snapshot!("replay-json", stdout(&["replay", "--json", "-p", "mrrc,firehose", "-c", "1MiB", trace]));
    assert_snapshot!("replay-csv", stdout(&["replay", "--csv", "-p", "mrrc,ogr", "-c", "1MiB", trace]));
    let choices =
        ["--dereg-cost=region", "--cost=fmr", "--match=exact", "--recency=deferred", "--resort=0.7", "--evict=0.2"];
    let arguments: Vec<&str> = ["replay", "-p", "all"].into_iter().chain(choices).chain([trace.as_str()]).collect();
    assert_snapshot!("replay-choices", common::stdout(&arguments));
}

#[test]
fn compare() {
    let traces = ["overlaps.csv", "straddles-and-giants.csv"].map(golden);
    let study = ["compare", "-p", "mrrc,pindown,gdsf", "-c", "5%,25%,1MiB"];
    let with = |form: &[&'static str]| -> String {
        let arguments: Vec<&str> =
            study.into_iter().chain(form.iter().copied()).chain(traces.iter().map(String::as_str)).collect();
        stdout(&arguments)
    };
    assert_snapshot!("compare-table", with(&[]));
    assert_snapshot!("compare-json", with(&["--json"]));
    assert_snapshot!("compare-csv", with(&["--csv"]));
    assert_snapshot!("compare-shard", with(&["--shard", "2/5"]));
}

#[test]
fn info() {
    assert_snapshot!("info", stdout(&["info", &golden("overlaps.csv")]));
    assert_snapshot!("info-json", stdout(&["info", "--json", &golden("overlaps.csv")]));
}

#[test]
fn bounds_and_curves() {
    let trace = &golden("whole-files.csv");
    assert_snapshot!("bound", stdout(&["bound", "-c", "5%,25%", trace]));
    assert_snapshot!("bound-json", stdout(&["bound", "--json", "-c", "5%,25%", trace]));
    assert_snapshot!("mrc", stdout(&["mrc", "--points", "5", trace]));
    assert_snapshot!("mrc-json", stdout(&["mrc", "--json", "--by", "page", "-c", "5%,25%", trace]));
}

#[test]
fn advise() {
    let trace = &golden("whole-files.csv");
    assert_snapshot!("advise", stdout(&["advise", "-p", "mrrc,pindown", trace]));
    assert_snapshot!("advise-json", stdout(&["advise", "-p", "mrrc", "--cost", "1,1,1,1", "--json", trace]));
    assert_snapshot!("advise-not-worth-it", stdout(&["advise", "-p", "mrrc", "--worth", "99", trace]));
    for (arguments, what) in [
        (["advise", "--worth", "100", trace], "give percent"),
        (["advise", "--cost", "dear", trace], "cost model"),
        (["advise", "--policy", "best", trace], "best"),
    ] {
        let complaint = common::complaint(&arguments, 2);
        assert!(complaint.contains(what), "{complaint}");
    }
}

/// A recording of two processes with everything in it.
const RECORDED: &str = "\
time,op,addr,len,client,process
1,read,0x1000,4096,1,0
2,write,0x3000,8192,2,0
3,read,0x1000,16384,1,1
";

#[test]
fn convert() {
    let folder = folder();
    let (csv, converted) = (path(&folder, "some.csv"), path(&folder, "some.reg"));
    std::fs::write(&csv, RECORDED).unwrap();
    for to in ["pages", "csv", "registrations"] {
        assert_snapshot!(format!("convert-{to}"), stdout(&["convert", "--to", to, &csv]));
    }
    assert_eq!(stdout(&["convert", "--to", "registrations-binary", &csv, &converted]), "");
    let [before, after] = [&csv, &converted].map(|file| stdout(&["convert", "--to", "csv", file]));
    assert_eq!(before, after, "nothing is lost in the binary form");
    assert_snapshot!("info-two-processes", stdout(&["info", &converted]));
}

#[test]
fn generate() {
    let requests = stdout(&["generate", "zipf:objects=50,requests=500,pages=4"]);
    assert_eq!(requests.lines().count(), 501);
    assert_eq!(requests.lines().next(), Some("start_page,pages"));
    assert_eq!(requests, stdout(&["generate", "zipf:objects=50,requests=500,pages=4"]), "the same each time");
    assert_eq!(requests, stdout(&["convert", "zipf:objects=50,requests=500,pages=4"]), "a workload is a trace");
    let output = common::run(&["generate", "zipf:objects=50,requests=500,pages=4"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("asked") && said.contains("measured") && said.contains("500 events"), "{said}");
}

#[test]
fn workloads_in_examples_are_workloads() {
    let mut seen = 0;
    for command in ["generate", "replay", "compare", "convert", "info"] {
        let help = stdout(&[command, "--help"]);
        let names = |word: &&str| {
            ["httpd", "cello92", "zipf", "buffers"].iter().any(|name| word.starts_with(&format!("{name}:")))
        };
        for word in help.split_whitespace().filter(names).filter(|word| !word.ends_with([':', ','])) {
            word.parse::<traces::generate::Workload>().unwrap_or_else(|error| panic!("{command}: {word}: {error}"));
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen}");
}

#[test]
fn help() {
    for command in [
        "record",
        "replay",
        "compare",
        "advise",
        "merge",
        "info",
        "generate",
        "convert",
        "bound",
        "mrc",
        "calibrate",
        "reproduce",
    ] {
        assert_snapshot!(format!("help-{command}"), stdout(&[command, "-h"]));
    }
    assert_snapshot!("help", stdout(&["--help"]));
    assert_snapshot!("help-compare-long", stdout(&["compare", "--help"]));
}
