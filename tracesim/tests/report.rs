//! Pages: whole, alone, the same each time, and nothing left where they cannot be.

mod common;

use common::{complaint, folder, golden, names, path, run, stdout};

/// Returns the page of a comparison of these traces.
fn page(arguments: &[&str]) -> String {
    let folder = folder();
    let file = path(&folder, "page.html");
    let options = ["compare", "-p", "mrrc,pindown,gdsf,firehose", "-c", "5%,25%,1MiB", "--report"];
    let arguments: Vec<&str> = options.into_iter().chain([file.as_str()]).chain(arguments.iter().copied()).collect();
    stdout(&arguments);
    assert_eq!(names(&folder), ["page.html"], "nothing else is left");
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn report_has_every_plot_and_policy_per_trace() {
    let page = page(&[&golden("overlaps.csv"), &golden("whole-files.csv")]);
    for trace in 0..2 {
        for plot in ["hits", "cost", "gap", "sizes", "reuse"] {
            assert_eq!(page.matches(&format!("<figure id=\"{plot}-{trace}\"")).count(), 1, "{plot} of trace {trace}");
        }
    }
    // Two plots have all; the third has no bound for firehose.
    for (series, plots) in [("mrrc", 3), ("gdsf", 3), ("firehose", 2), ("no cache", 2), ("infinite", 2), ("bound", 1)] {
        assert_eq!(page.matches(&format!("data-series=\"{series}\"")).count(), 2 * plots, "{series}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf\""), "no plot has a place that is none");
}

#[test]
fn lines_that_coincide_are_all_seen_and_named() {
    let folder = folder();
    let file = path(&folder, "page.html");
    // Where everything fits no policy differs from another.
    stdout(&[
        "compare",
        "-p",
        "mrrc,pindown,gdsf",
        "-c",
        "99%,100%",
        "--no-bound",
        "--report",
        &file,
        &golden("whole-files.csv"),
    ]);
    let page = std::fs::read_to_string(&file).unwrap();
    let plot = page.split("<figure id=\"cost-0\"").nth(1).unwrap().split("</figure>").next().unwrap();
    assert!(plot.contains("<p>On one line: mrrc, pindown and gdsf.</p>"), "{plot}");
    let turns: Vec<&str> =
        plot.split("stroke-dashoffset:").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(
        turns,
        ["0.0", "-9.0", "-18.0", "-27.0"],
        "the infinite cache's, too: each has its dashes where the others have gaps"
    );
    let mut marks: Vec<&str> =
        plot.split("class=\"mark\" d=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let all = marks.len();
    marks.sort_unstable();
    marks.dedup();
    assert_eq!(marks.len(), all, "no marker is under another");
}

#[test]
fn a_page_needs_nothing_but_itself() {
    let page = page(&[&golden("overlaps.csv")]);
    for outside in ["<script", "<link", "src=", "href=", "@import", "url(", "clip-path", "http:", "https:"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("charset=\"utf-8\""));
}

#[test]
fn footer_has_command_and_checksum() {
    let folder = folder();
    let (trace, file) = (path(&folder, "two pages.csv"), path(&folder, "page.html"));
    std::fs::write(&trace, "start_page,pages\n1,2\n1,2\n").unwrap();
    stdout(&["compare", "-p", "mrrc", "-c", "5p", "--report", &file, &trace]);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains(&format!("tracesim compare -p mrrc -c 5p --report {file} '{trace}'")), "{page}");
    // printf 'start_page,pages\n1,2\n1,2\n' | sha256sum
    assert!(page.contains("6117793481e8609588f2f1678643684a934b181076a50c49c18bab8732fe0e68"), "{page}");
}

#[test]
fn the_same_command_makes_the_same_page() {
    let folder = folder();
    let file = path(&folder, "page.html");
    let make = || {
        stdout(&["compare", "-c", "5%,25%", "--report", &file, "zipf:objects=50,requests=500,pages=4"]);
        std::fs::read_to_string(&file).unwrap()
    };
    let page = make();
    assert_eq!(page, make());
    assert!(page.contains("zipf:objects=50,requests=500"), "a workload is named with its options");
}

#[test]
fn what_comes_from_a_trace_is_text() {
    let folder = folder();
    let trace = path(&folder, "<b onload=x>&.csv");
    std::fs::write(&trace, "start_page,pages\n1,2\n").unwrap();
    let page = page(&[&trace]);
    assert!(page.contains("&lt;b onload=x&gt;&amp;.csv") && !page.contains("<b onload"), "{page}");
}

#[test]
fn single_request_trace_makes_a_report() {
    let folder = folder();
    let (trace, file) = (path(&folder, "one.csv"), path(&folder, "page.html"));
    std::fs::write(&trace, "start_page,pages\n7,1\n").unwrap();
    stdout(&["compare", "-p", "mrrc", "-c", "1p", "--report", &file, &trace]);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("data-series=\"mrrc\"") && !page.contains("NaN"));
    stdout(&["compare", "-p", "mrrc", "-c", "1p", "--no-bound", "--report", &file, &trace]);
    assert!(!std::fs::read_to_string(&file).unwrap().contains("id=\"gap-0\""), "without a bound nothing is above it");
}

#[test]
fn unwritable_report_fails_before_the_work() {
    let folder = folder();
    let trace = &golden("overlaps.csv");
    let nowhere = path(&folder, "nowhere/page.html");
    for (file, words) in [(nowhere.as_str(), "nowhere: make it"), (&path(&folder, ""), "directory")] {
        for command in
            [&["compare", "-p", "mrrc", "--report", file, trace][..], &["reproduce", "--quick", "--out", file]]
        {
            // A directory is what `reproduce` may be given.
            if command[0] == "reproduce" && words == "directory" {
                continue;
            }
            let said = complaint(command, 1);
            assert!(said.contains(file) && said.contains(words), "{said}");
        }
    }
    assert_eq!(names(&folder), [""; 0]);
    let existing = path(&folder, "page.html");
    std::fs::write(&existing, "before").unwrap();
    complaint(&["compare", "--report", &existing, "nowhere.csv"], 1);
    assert_eq!(
        std::fs::read_to_string(&existing).unwrap(),
        "before",
        "what was there stays until the new page is whole"
    );
    assert_eq!(names(&folder), ["page.html"]);
}

#[test]
fn report_excludes_tables_and_shards() {
    let trace = &golden("overlaps.csv");
    for arguments in [
        &["compare", "--report", "-", trace][..],
        &["compare", "--report", "x.html", "-o", "x.html", trace],
        &["compare", "--report", "x.html", "--shard", "1/2", trace],
        &["reproduce", "--out", "-"],
    ] {
        complaint(arguments, 2);
    }
}

#[test]
fn calibrate_prints_a_usable_model() {
    let output = run(&["calibrate", "--rounds", "20"]);
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.code() == Some(1) {
        assert!(said.contains("calibrate: ") && (said.contains("io_uring") || said.contains("ulimit")), "{said}");
        eprintln!("calibrate: not run: {said}");
        return;
    }
    let printed = String::from_utf8(output.stdout).unwrap();
    let cost = printed.lines().find_map(|line| line.strip_prefix("--cost ")).expect("a model");
    let replayed = stdout(&["replay", "-c", "5%", "--cost", cost, &golden("overlaps.csv")]);
    assert!(replayed.contains(&format!("register {}·p", cost.split(',').next().unwrap())), "{replayed}");
    let object: serde_json::Value = serde_json::from_str(&stdout(&["calibrate", "--rounds", "5", "--json"])).unwrap();
    assert_eq!(object["sizes"].as_array().map(Vec::len), Some(11));
    assert!(object["register"]["error"].is_number() && object["cost"].is_string());
}

#[test]
fn verbs_calibration_needs_its_build() {
    let said = complaint(&["calibrate", "--device", "rxe0"], 2);
    assert!(said.contains("--registrar verbs"), "{said}");
    let said = complaint(&["calibrate", "--registrar", "verbs", "--device", "no such device"], 1);
    let remedies = if cfg!(any(feature = "verbs", feature = "verbs-linked")) {
        ["rdma link", "libibverbs1", "modprobe"]
    } else {
        ["--features verbs", "libclang", "without verbs"]
    };
    assert!(remedies.iter().any(|remedy| said.contains(remedy)), "{said}");
}
