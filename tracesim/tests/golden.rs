//! `tracesim replay --json` counts exactly what the golden files say, which an independent implementation made.

mod common;

use serde_json::Value;
use std::collections::BTreeSet;

/// The fields of a result, in their order.
const FIELDS: [&str; 26] = [
    "trace",
    "policy",
    "capacity_pages",
    "resort",
    "evict",
    "requests",
    "exact",
    "subset",
    "covered",
    "partial",
    "miss",
    "bypass",
    "regs",
    "reg_pages",
    "deregs",
    "dereg_pages",
    "dereg_batches",
    "pages",
    "hit_pages",
    "hits",
    "hit_ratio",
    "page_hit_ratio",
    "reg_us",
    "dereg_us",
    "total_us",
    "lower_bound_us",
];

#[test]
fn every_golden_count_is_reproduced() {
    let text = std::fs::read_to_string(common::golden("expected.json")).expect("it is part of the repository");
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 80);
    let setting = |case: &Value| [&case["trace"], &case["resort"], &case["evict"]].map(|value| value.to_string());
    let settings: BTreeSet<[String; 3]> = cases.iter().map(setting).collect();
    for wanted in settings {
        let cases: Vec<&Value> = cases.iter().filter(|case| setting(case) == wanted).collect();
        let list = |of: &dyn Fn(&Value) -> String| -> String {
            cases.iter().map(|case| of(case)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",")
        };
        let policies = list(&|case| case["policy"].as_str().unwrap().into());
        let capacities = list(&|case| format!("{}p", case["capacity_pages"]));
        let trace = common::golden(wanted[0].trim_matches('"'));
        let [_, resort, evict] = &wanted;
        let printed = common::stdout(&[
            "replay",
            "--json",
            "--policy",
            &policies,
            "--capacity",
            &capacities,
            "--resort",
            resort,
            "--evict",
            evict,
            &trace,
        ]);
        let rows: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for case in cases {
            let same = |row: &&Value| ["policy", "capacity_pages"].iter().all(|field| row[field] == case[field]);
            let row = rows.iter().find(same).unwrap_or_else(|| panic!("no result for {case}"));
            assert_eq!(row["trace"], case["trace"]);
            for (field, expected) in case["result"].as_object().unwrap() {
                if expected.is_u64() {
                    assert_eq!(&row[field], expected, "{field} of {case}");
                } else {
                    let [got, expected] = [&row[field], expected].map(|value| value.as_f64().unwrap());
                    assert!((got - expected).abs() <= 1e-6 * expected.abs(), "{field} is {got}: {case}");
                }
            }
            let bound = row["lower_bound_us"].as_f64();
            assert!(bound.is_none_or(|bound| bound <= row["total_us"].as_f64().unwrap() * (1.0 + 1e-9)), "{row}");
        }
    }
}

#[test]
fn a_result_has_these_fields_in_this_order() {
    let printed = common::stdout(&["replay", "--json", &common::golden("overlaps.csv")]);
    let mut rest = printed.trim().strip_prefix('{').expect("an object");
    for field in FIELDS {
        rest = rest.strip_prefix(&format!("\"{field}\":")).unwrap_or_else(|| panic!("{field} before {rest}"));
        rest = rest.find([',', '}']).map_or("", |end| &rest[end + 1..]);
    }
    assert_eq!(rest, "", "and no others");
    let without = common::stdout(&["replay", "--json", "--no-bound", &common::golden("overlaps.csv")]);
    let [with, without] = [printed, without].map(|row| serde_json::from_str::<Value>(&row).unwrap());
    assert!(with["lower_bound_us"].is_f64() && without["lower_bound_us"].is_null());
    assert_eq!(with["total_us"], without["total_us"]);
}
