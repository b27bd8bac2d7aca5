//! Errors name the place and the remedy, have the right exit status, and leave nothing behind.

mod common;

use common::{command, complaint, folder, golden, names, path};
use std::io::Read as _;
use std::process::Stdio;

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

#[test]
fn a_missing_trace_is_named() {
    for arguments in [&["replay", "nowhere.csv"][..], &["compare", "nowhere.csv"], &["info", "nowhere.csv"]] {
        assert_says(
            &complaint(arguments, 1),
            &["nowhere.csv", "No such file", ": name a trace that is there, or a workload"],
        );
    }
    assert_says(
        &complaint(&["compare", "httpd"], 1),
        &["No such file", "the generated workload is `httpd:`, with a colon"],
    );
    assert_says(&complaint(&["convert", "nowhere.csv", "-"], 1), &["nowhere.csv", "No such file"]);
    assert_says(&complaint(&["merge", "nowhere.shard"], 1), &["nowhere.shard", "No such file"]);
}

#[test]
fn inputs_are_never_overwritten() {
    let folder = folder();
    let (trace, link) = (path(&folder, "in.csv"), path(&folder, "link.csv"));
    let before = std::fs::read(golden("overlaps.csv")).unwrap();
    std::fs::write(&trace, &before).unwrap();
    std::fs::hard_link(&trace, &link).unwrap();
    for output in [&trace, &link] {
        for arguments in [
            &["compare", "-p", "mrrc", "-c", "10%", "-o", output, &trace][..],
            &["compare", "-p", "mrrc", "-c", "10%", "--report", output, &trace],
            &["compare", "-p", "mrrc", "-c", "10%", "--shard", "1/2", "-o", output, &trace],
            &["replay", "-o", output, &trace],
            &["info", "-o", output, &trace],
            &["advise", "-o", output, &trace],
            &["mrc", "-o", output, &trace],
            &["bound", "-c", "10%", "-o", output, &trace],
            &["merge", "-o", output, &trace],
            &["convert", &trace, output],
        ] {
            assert_says(&complaint(arguments, 2), &[output, "this command reads it"]);
        }
    }
    let mut piped = command(&["compare", "-p", "mrrc", "-c", "10%", "-o", &trace, "-"]);
    let piped = piped.stdin(std::fs::File::open(&trace).unwrap()).output().unwrap();
    assert_eq!(piped.status.code(), Some(2));
    assert_says(&String::from_utf8(piped.stderr).unwrap(), &[&trace, "this command reads it"]);
    let logs = folder.path().to_str().unwrap();
    assert_says(&complaint(&["reproduce", "--quick", "--logs", logs, "--out", &trace], 2), &["this command reads it"]);
    assert_eq!(std::fs::read(&trace).unwrap(), before);
}

#[test]
fn bad_sizes_and_names_are_usage_errors() {
    let trace = &golden("overlaps.csv");
    for (option, value, words) in [
        ("--capacity", "0p", &["0p", "8192p", "32MiB", "5%"][..]),
        ("--capacity", "0%", &["0%", "8192p"]),
        ("--capacity", "8192", &["no unit", "8192p"]),
        ("--capacity", "99999999999TiB", &["more than an address space"]),
        ("--policy", "lru", &["lru", "pindown", "mrrc"]),
        ("--cost", "1,2,3", &["1,2,3", "a,b,a',b'"]),
        ("--cost", "1,2,3,-4", &["1,2,3,-4", "paper"]),
        ("--resort", "1.5", &["resort", "1.5", "between 0 and 1"]),
        ("--evict", "nan", &["evict", "between 0 and 1"]),
        ("--max-regions", "0", &["--max-regions", "at least 1"]),
        ("--bucket-pages", "0", &["--bucket-pages", "at least 1"]),
        ("--lru-k", "0", &["--lru-k", "at least 1"]),
        ("--cost", "1e308,1e308,1,1", &["1e308", "a,b,a',b'"]),
        ("--overlap", "join", &["join", "split", "merge", "whole"]),
        ("--match", "near", &["near", "contain", "exact"]),
        ("--format", "tape", &["tape", "pages", "httpd"]),
        ("--columns", "what=3", &["what", "addr"]),
        ("--recency", "late", &["late", "deferred"]),
    ] {
        let option = format!("{option}={value}");
        for command in ["replay", "compare"] {
            assert_says(&complaint(&[command, &option, trace], 2), words);
        }
    }
    assert_says(&complaint(&["replay", "--policy=firehose", "--overlap=merge", trace], 2), &["firehose", "buckets"]);
    assert_says(&complaint(&["replay", "--json", "--csv", trace], 2), &["--json", "--csv"]);
    let columns = ["--columns=addr=1", "--format=msr"];
    assert_says(&complaint(&["replay", columns[0], columns[1], trace], 2), &["columns", "msr", "csv"]);
    for shard in ["0/3", "4/3", "1", "a/b", "1/0"] {
        assert_says(&complaint(&["compare", "--shard", shard, trace], 2), &[shard, "K/N"]);
    }
    complaint(&[], 2);
    complaint(&["replay"], 2);
    complaint(&["merge"], 2);
    assert_says(&complaint(&["generate", "gauss"], 2), &["gauss", "zipf"]);
    assert_says(&complaint(&["generate", "zipf:size=3"], 2), &["size", "objects"]);
    assert_says(&complaint(&["generate", "zipf:objects=-3"], 2), &["`-3`", "a whole number"]);
    assert_says(&complaint(&["convert", "--to=tape", trace], 2), &["tape", "registrations"]);
    assert_says(&complaint(&["convert", trace, "here", "-o", "there"], 2), &["FILE", "--output"]);
    for points in ["0", "many"] {
        assert_says(&complaint(&["mrc", "--points", points, trace], 2), &[points, "from 1 to 100000"]);
    }
    assert_says(&complaint(&["compare", "--lru-k", "5000000000", trace], 2), &["at most 4294967295"]);
}

#[test]
fn unconfigurable_policy_is_left_out_and_named() {
    let output =
        command(&["replay", "--json", "-p", "all", "--overlap", "merge", &golden("overlaps.csv")]).output().unwrap();
    assert!(output.status.success());
    let (said, printed) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_says(&said, &["firehose is left out", "pindown-page is left out"]);
    assert!(!printed.contains("firehose") && printed.contains("\"ucx\""), "{printed}");
}

#[test]
fn damaged_content_is_named_with_its_line() {
    let folder = folder();
    for (name, content, words) in [
        ("empty.csv", &b""[..], &["empty"][..]),
        ("header.csv", b"start_page,pages\n", &["no requests"]),
        ("columns.csv", b"alpha,beta\n1,2\n3,4\n", &["columns.csv"]),
        ("noise.csv", &noise(), &["noise.csv"]),
        (
            "overflow.csv",
            b"start_page,pages\n1,2\n18446744073709551615,18446744073709551615\n3,18446744073709551616\n",
            &["overflow"],
        ),
    ] {
        let file = path(&folder, name);
        std::fs::write(&file, content).unwrap();
        for arguments in [&["replay", &file][..], &["compare", "-c1p", "-pmrrc", &file], &["info", &file]] {
            assert_says(&complaint(arguments, 1), words);
        }
        if name == "columns.csv" {
            let output = command(&["replay", "--format", "pages", &file]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_says(&said, &["columns.csv: 1 passed over: a field is no number", "line or record 1: alpha,beta"]);
            assert_says(&complaint(&["replay", "--columns", "addr=1,len=7", &file], 1), &["columns.csv"]);
        }
        let out = path(&folder, "converted");
        let output = command(&["convert", &file, &out]).output().unwrap();
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
        assert!(!output.status.success() || name == "header.csv", "{name}");
        let _ = std::fs::remove_file(out);
    }
    let mut left = names(&folder);
    left.retain(|name| !name.ends_with(".csv"));
    assert_eq!(left, [""; 0], "nothing is left behind");
}

fn noise() -> Vec<u8> {
    (0..5000u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn what_cannot_be_written_is_named_and_leaves_nothing() {
    let folder = folder();
    let trace = &golden("overlaps.csv");
    let nowhere = &path(&folder, "no/such/folder/results");
    let temporary = |said: &str| assert!(!said.contains("/.results."), "the temporary name would only confuse: {said}");
    let itself = &path(&folder, "");
    let commands = [&["replay"][..], &["compare", "-pmrrc", "-c5%"], &["info"], &["compare", "-pmrrc", "--shard=1/2"]];
    for command in commands {
        // Only the kernel makes files in /proc.
        let kernels = ["no file may be made in /proc", "name another directory"];
        let places = [(nowhere, ["no/such/folder: make it", "write"]), (itself, ["write", "directory"])];
        for (to, words) in places.into_iter().chain([(&"/proc/results".to_owned(), kernels)]) {
            let arguments: Vec<&str> = command.iter().copied().chain(["-o", to, trace]).collect();
            let said = complaint(&arguments, 1);
            assert_says(&said, &words);
            temporary(&said);
        }
    }
    for (arguments, option) in [(["convert", trace], ""), (["generate", "zipf:requests=10"], "--output=")] {
        let below = &format!("{trace}/results");
        for (to, words) in [
            (nowhere, ["no/such/folder/results: create: ", "no/such/folder: make it"]),
            (itself, ["is a directory", "name a file in it"]),
            (below, ["overlaps.csv is no directory", "name another"]),
            (&"/proc/results".to_owned(), ["no file may be made in /proc", "name another directory"]),
        ] {
            let said = complaint(&[arguments[0], arguments[1], &format!("{option}{to}")], 1);
            assert_says(&said, &words);
            temporary(&said);
        }
    }
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_full_disk_is_failed_work() {
    if !std::path::Path::new("/dev/full").exists() {
        eprintln!("SKIPPED: there is no /dev/full");
        return;
    }
    let trace = &golden("overlaps.csv");
    for arguments in [&["replay", "-o", "/dev/full", trace][..], &["compare", "-pmrrc", "-o", "/dev/full", trace]] {
        assert_says(&complaint(arguments, 1), &["/dev/full", "No space left"]);
    }
    assert!(std::path::Path::new("/dev/full").exists(), "a device is written, not replaced");
}

#[test]
fn what_is_named_twice_counts_once() {
    let trace = &golden("overlaps.csv");
    let output = command(&["compare", "--json", "-pmrrc", "-c10%,5%,10%", trace, trace]).output().unwrap();
    let (printed, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(printed.lines().count(), 4, "two lines, and a policy at two capacities: {printed}");
    assert_eq!(said.matches("is named twice: it is taken once").count(), 2, "{said}");
    assert_says(&said, &["capacity 10% is", &format!("{trace} is")]);
}

#[test]
fn numbers_below_the_least_are_answered_with_it() {
    let trace = &golden("overlaps.csv");
    for option in ["--split", "--cut"] {
        assert_says(&complaint(&["replay", option, "0", trace], 2), &[option, "give a whole number, at least 1"]);
    }
}

#[test]
fn numbers_below_zero_are_no_traces() {
    let trace = &golden("overlaps.csv");
    let costs = ["--cost", "-1,1,1,1"];
    for arguments in [
        &["replay", "-c", "-5", trace][..],
        &["compare", "-c", "-5", trace],
        &["replay", costs[0], costs[1], trace],
        &["compare", costs[0], costs[1], trace],
        &["advise", costs[0], costs[1], trace],
    ] {
        let said = complaint(arguments, 2);
        assert_says(&said, &[arguments[2]]);
        // That tip would make it a trace.
        assert!(!said.contains(&format!("-- {}", arguments[2])), "{said}");
    }
}

#[test]
fn requests_for_nothing_are_told() {
    let folder = folder();
    let trace = &path(&folder, "objects.txt");
    std::fs::write(trace, "1 10 0\n2 11 4096\n3 12 0\n99999999999999999999 11 4096\n").unwrap();
    let output = command(&["replay", "--format", "objects", "-pmrrc", "-c1p", trace]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_says(
        &said,
        &["objects.txt: 2 left out: the request is for no bytes", "objects.txt: 1 time could not be read: its request"],
    );
}

#[test]
fn missing_trace_is_reported_before_reading() {
    let trace = &golden("overlaps.csv");
    // Standard input is empty, which would be said if it were read.
    assert_says(&complaint(&["compare", "-", trace, "nowhere.csv"], 1), &["nowhere.csv: open", "No such file"]);
    assert_says(&complaint(&["compare", "-", "zipf:size=3"], 2), &["size", "objects"]);
    assert_says(&complaint(&["compare", "-", trace, "-"], 2), &["standard input", "once"]);
}

#[test]
fn what_was_finished_before_a_trace_failed_is_printed() {
    let folder = folder();
    let (bad, results, page) = (path(&folder, "bad.csv"), path(&folder, "results.json"), path(&folder, "page.html"));
    std::fs::write(&bad, "alpha,beta\n1,2\n3,4\n").unwrap();
    let arguments = ["compare", "-pmrrc", "-c5%", "--json", "-o", &results, "--report", &page];
    let output = command(&arguments).args([&golden("overlaps.csv"), &bad]).output().unwrap();
    let (said, printed) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_says(&said, &["bad.csv"]);
    assert_eq!(printed.lines().count(), 3, "two lines and a policy of the first trace: {printed}");
    assert_eq!(names(&folder), ["bad.csv"], "no file of half a study");
}

#[test]
fn a_page_that_cannot_be_written_takes_no_table_along() {
    if !std::path::Path::new("/dev/full").exists() {
        eprintln!("SKIPPED: there is no /dev/full");
        return;
    }
    let output =
        command(&["compare", "-pmrrc", "-c5%", "--report", "/dev/full", &golden("overlaps.csv")]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_says(&String::from_utf8_lossy(&output.stderr), &["/dev/full", "No space left"]);
    assert_says(&String::from_utf8_lossy(&output.stdout), &["mrrc", "(no cache)"]);
}

#[test]
fn no_more_threads_are_started_than_there_are_replays() {
    // So many would take minutes to start and memory for their stacks.
    common::stdout(&["compare", "-pmrrc", "-c5%", "--threads", "65535", &golden("overlaps.csv")]);
}

#[cfg(unix)]
#[test]
fn output_follows_a_link() {
    let folder = folder();
    let (results, link) = (path(&folder, "results.csv"), path(&folder, "link.csv"));
    std::fs::write(&results, "older").unwrap();
    std::os::unix::fs::symlink(&results, &link).unwrap();
    common::stdout(&["replay", "--csv", "-o", &link, &golden("overlaps.csv")]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::read_to_string(&results).unwrap().starts_with("trace,policy"));
}

#[test]
fn a_failure_leaves_an_older_file_as_it_was() {
    let folder = folder();
    let results = &path(&folder, "results.csv");
    std::fs::write(results, "older").unwrap();
    complaint(&["replay", "-o", results, "nowhere.csv"], 1);
    assert_eq!(std::fs::read_to_string(results).unwrap(), "older");
    common::stdout(&["replay", "--csv", "-o", results, &golden("overlaps.csv")]);
    assert!(std::fs::read_to_string(results).unwrap().starts_with("trace,policy,capacity_pages"));
    assert_eq!(names(&folder), ["results.csv"]);
}

#[test]
fn nobody_who_reads_is_no_failure() {
    for arguments in [
        &["replay", "--json", "-p", "all", "-c", "1%,5%,10%", &golden("overlaps.csv")][..],
        &["generate", "zipf:requests=200000"],
        &["convert", "zipf:requests=200000"],
    ] {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        assert_eq!(said, "", "{arguments:?}");
    }
}
