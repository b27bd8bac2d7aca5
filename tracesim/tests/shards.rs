//! A study in shares, each a process: joined they print what one process prints, and what is amiss is named.

mod common;

use common::{command, complaint, folder, golden, path, stdout};
use std::process::{Child, Stdio};
use tempfile::TempDir;

const STUDY: &[&str] = &["compare", "-p", "mrrc,pindown,sieve", "-c", "2%,64p"];

fn study(more: &[&str]) -> Vec<String> {
    let traces = ["overlaps.csv", "one-or-two.csv"].map(golden);
    STUDY.iter().chain(more).map(ToString::to_string).chain(traces).collect()
}

fn shard(folder: &TempDir, number: u32, of: u32) -> (String, Child) {
    let file = path(folder, &format!("{number}.shard"));
    let arguments = study(&["--shard", &format!("{number}/{of}"), "-o", &file]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let child = command(&arguments).stdout(Stdio::null()).spawn().expect("the command starts");
    (file, child)
}

fn shards(folder: &TempDir, of: u32) -> Vec<String> {
    let started: Vec<_> = (1..=of).map(|number| shard(folder, number, of)).collect();
    let finish = |(file, mut child): (String, Child)| {
        assert!(child.wait().unwrap().success());
        file
    };
    started.into_iter().map(finish).collect()
}

fn merge(options: &[&str], files: &[String]) -> String {
    let arguments: Vec<&str> =
        ["merge"].iter().chain(options).copied().chain(files.iter().map(String::as_str)).collect();
    stdout(&arguments)
}

fn refused(options: &[&str], files: &[String]) -> String {
    let arguments: Vec<&str> =
        ["merge"].iter().chain(options).copied().chain(files.iter().map(String::as_str)).collect();
    complaint(&arguments, 1)
}

#[test]
fn shards_merge_to_the_whole_study() {
    for of in [1, 3, 7] {
        let folder = folder();
        let mut files = shards(&folder, of);
        files.reverse();
        for form in [&[][..], &["--json"], &["--csv"]] {
            let arguments = study(form);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            assert_eq!(merge(form, &files), stdout(&arguments), "{of} shares, {form:?}");
        }
    }
}

#[test]
fn missing_shard_is_named_and_partial_works() {
    let folder = folder();
    let files = shards(&folder, 3);
    let said = refused(&[], &[files[0].clone(), files[2].clone()]);
    assert!(said.contains("shard 2/3") && said.contains("--partial"), "{said}");
    let partial = merge(&["--partial", "--json"], &[files[0].clone(), files[2].clone()]);
    let whole = merge(&["--json"], &files);
    assert!(partial.lines().count() < whole.lines().count());
    assert!(partial.lines().all(|line| whole.contains(line)));
    assert!(merge(&["--partial"], &files[..1]).contains(" - "), "a table with dashes");
}

#[test]
fn a_share_that_was_cut_off_is_missing_what_it_lacks() {
    let folder = folder();
    let files = shards(&folder, 2);
    let text = std::fs::read_to_string(&files[1]).unwrap();
    let without_last = text.trim_end().rsplit_once('\n').unwrap().0;
    std::fs::write(&files[1], without_last).unwrap();
    assert!(refused(&[], &files).contains("1 of 16 results are missing, those of shard 2/2"));
    std::fs::write(&files[1], &text[..text.len() - 40]).unwrap();
    let said = refused(&[], &files);
    assert!(said.contains("2.shard, line 9"), "{said}");
}

#[test]
fn a_share_may_be_there_twice() {
    let folder = folder();
    let mut files = shards(&folder, 2);
    let once = merge(&["--json"], &files);
    files.push(files[0].clone());
    assert_eq!(merge(&["--json"], &files), once);
}

#[test]
fn what_does_not_go_together_is_named() {
    let folder = folder();
    let files = shards(&folder, 2);
    let text = std::fs::read_to_string(&files[1]).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        std::fs::write(&files[1], text.replacen(from, to, 1)).unwrap();
        refused(&[], &files)
    };
    let said = with("\"64p\"", "\"65p\"");
    assert!(
        said.contains("different studies, with capacities") && said.contains("64p") && said.contains("65p"),
        "{said}"
    );
    assert!(with("resort: 0.5", "resort: 0.6").contains("`resort: 0.5`, and `resort: 0.6`"));
    let head = text.lines().next().unwrap();
    std::fs::write(&files[1], head.replace("\"of\":2", "\"of\":3")).unwrap();
    assert!(refused(&[], &files).contains("a study of 2 shards, and one of 3"));
    assert!(with("\"tracesim_shard\":1", "\"tracesim_shard\":2").contains("layout 2"));
    assert!(with("\"number\":2", "\"number\":0").contains("no shard 0/2"));
    assert!(with("\"cell\":1,", "\"cell\":2,").contains("line 2: cell 2 is none of this shard"));
    assert!(with("\"cells_each\":8", "\"cells_each\":800000").contains("800000 cells"));
    let checksum = text.split("\"checksum\":\"").nth(1).unwrap().get(..16).unwrap();
    assert!(with(checksum, "0123456789abcdef").contains("overlaps.csv is not the same trace"));
    std::fs::write(&files[1], text.replacen("\"requests\":", "\"requests\":1", 1)).unwrap();
    std::fs::write(path(&folder, "again"), &text).unwrap();
    let said = refused(&[], &[files[0].clone(), files[1].clone(), path(&folder, "again")]);
    assert!(said.contains("cell 1 has two results"), "{said}");
    let said = refused(&[], &[golden("overlaps.csv")]);
    assert!(said.contains("overlaps.csv, line 1: no head of a shard") && said.contains("compare --shard"), "{said}");
}
