//! `--widen` and the policy `widening`: their marks in results, what refuses them, and notes on what they leave as it is.

mod common;

use common::{complaint, folder, golden, path, run, stdout};
use serde_json::Value;
use std::fmt::Write as _;

const SMALL: &str = "buffers:pattern=log,requests=3000,seed=5";

fn said(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn policies(json: &str) -> Vec<String> {
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["policy"].as_str().unwrap().to_owned();
    json.lines().map(name).collect()
}

#[test]
fn results_with_widening_say_so() {
    let widened = ["-p", "probation,sieve,widening", "-c", "10%", "--widen", SMALL];
    for command in ["replay", "compare"] {
        let with = |form: &[&'static str]| stdout(&[&[command], form, &widened[..]].concat());
        let names = policies(&with(&["--json"]));
        let all = ["probation+widen", "sieve+widen", "widening"];
        assert!(all.iter().all(|name| names.iter().any(|named| named == name)), "{names:?}");
        assert!(!names.iter().any(|name| name == "probation" || name == "widening+widen"), "{names:?}");
        for form in [&["--csv"][..], &[]] {
            let text = with(form);
            assert!(all.iter().all(|name| text.contains(name)), "{text}");
        }
    }
    assert!(policies(&stdout(&["replay", "--json", "-p", "probation", SMALL])) == ["probation"]);
}

#[test]
fn shares_with_widening_say_what_one_says() {
    let folder = folder();
    let study = ["compare", "-p", "probation,sieve", "-c", "5%,10%", "--widen", SMALL];
    let shares = [1, 2].map(|k| path(&folder, &format!("{k}.shard")));
    for (k, share) in (1..).zip(&shares) {
        stdout(&[&study[..], &["--shard", &format!("{k}/2"), "-o", share]].concat());
    }
    assert_eq!(stdout(&["merge", &shares[0], &shares[1]]), stdout(&study));
}

#[test]
fn policy_that_cannot_widen_is_refused() {
    for choice in [["--overlap", "merge"], ["--overlap", "whole"], ["--match", "exact"]] {
        for command in ["replay", "compare"] {
            let named = complaint(&[&[command, "-p", "widening", SMALL], &choice[..]].concat(), 2);
            assert!(named.contains("policy widening: widening needs a policy that"), "{named}");
        }
        let all = run(&[&["replay", "-p", "all", "--json", SMALL], &choice[..]].concat());
        assert!(
            all.status.success() && !policies(&String::from_utf8(all.stdout).unwrap()).contains(&"widening".into())
        );
        assert!(String::from_utf8(all.stderr).unwrap().contains("widening is left out: "), "{choice:?}");
    }
}

#[test]
fn traces_without_addresses_are_told() {
    let objects = "zipf:objects=50,requests=400";
    for options in [&["-p", "probation", "--widen"][..], &["-p", "widening"]] {
        for command in ["replay", "compare"] {
            let note = said(&[&[command, objects], options].concat());
            assert!(note.contains("nothing is widened: the objects of this trace have no addresses"), "{note}");
            assert_eq!(said(&[&[command, &golden("overlaps.csv")], options].concat()), "");
        }
    }
    assert_eq!(said(&["replay", objects]), "");
    assert_eq!(said(&["compare", objects]), "", "all policies take part, and none was named");
}

#[test]
fn requests_for_peers_are_told() {
    let folder = folder();
    let file = path(&folder, "x.reg");
    let mut text = String::from("# mrrc registrations 1\ntime_ns,operation,process,thread,address,length,access\n");
    for n in 0..40_000_u64 {
        writeln!(text, "{n},request,0,0,{:#x},4096,rwRW", 0x1000_0000 + (n % 3000) * 4096).unwrap();
    }
    std::fs::write(&file, text).unwrap();
    let compared = run(&["compare", "--json", "-p", "probation,widening", "-c", "10%,25%", &file]);
    let note = String::from_utf8(compared.stderr).unwrap();
    assert!(note.contains("x.reg: 40000 requests give rights to peers: results with widening do not widen"), "{note}");
    // Nothing else is in the trace: both cost the same.
    let rows: Vec<Value> =
        compared.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let costs = |policy: &str| -> Vec<f64> {
        rows.iter().filter(|row| row["policy"] == policy).map(|row| row["total_us"].as_f64().unwrap()).collect()
    };
    assert_eq!((costs("probation").len(), costs("probation")), (2, costs("widening")));
    assert_eq!(said(&["compare", "-p", "probation", "-c", "10%", &file]), "");
}
