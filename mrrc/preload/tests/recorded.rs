//! A program's registrations are recorded as it requested them, with a cache and without.

mod common;

use common::run;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use traces_record::layout::{HEAD, Head, Operation, Place, RECORD, Record};

/// Returns the head, and the records of the file.
fn recorded(file: &Path) -> (Head, Vec<Record>) {
    let bytes = std::fs::read(file).unwrap();
    let head = Head::of_bytes(bytes[..HEAD].try_into().unwrap()).unwrap();
    let places = bytes[HEAD..].chunks_exact(RECORD).take(head.records() as usize);
    let records = places.map(|bytes| match Record::of_bytes(bytes.try_into().unwrap()) {
        Place::Written(record) => record,
        other => panic!("{other:?}"),
    });
    (head, records.collect())
}

/// Every release ends what was acquired before; what is in use at the end.
fn in_use(records: &[Record]) -> u64 {
    let mut open: BTreeMap<(u32, u8, u64, u64), u64> = BTreeMap::new();
    for record in records {
        let Record { process, domain, address, length, .. } = *record;
        let count = open.entry((process, domain, address, length)).or_default();
        match record.operation {
            Operation::Acquire => *count += 1,
            Operation::Release => {
                *count = count.checked_sub(1).unwrap_or_else(|| panic!("nothing to release: {record:?}"))
            }
            Operation::Invalidate => {}
            other @ Operation::Request => panic!("{other:?}"),
        }
    }
    open.values().sum()
}

#[test]
fn each_registration_is_recorded() {
    for preload in ["on", "off"] {
        let file = tempfile::tempdir().unwrap();
        let file = file.path().join("x.reg");
        let variables = [("MRRC_PRELOAD", preload), ("MRRC_RECORD", file.to_str().unwrap())];
        let ran = run(true, "each", &["1000", "4", "16", "send"], &variables).well();
        assert_eq!(ran.count().live, 0);
        let (head, records) = recorded(&file);
        assert_eq!((head.source, head.attached, head.ended), (1, 1, 1));
        assert_eq!((records.len(), in_use(&records)), (2002, 0), "{preload}");
        let ranges: BTreeSet<(u64, u64)> = records.iter().map(|record| (record.address, record.length)).collect();
        assert_eq!(ranges.len(), 5);
        assert!(records.iter().all(|record| record.length == 16 * 4096 && record.access & 1 == 1));
    }
}

#[test]
fn unmapping_is_recorded_before_reregistration() {
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("x.reg");
    let variables = [("MRRC_PRELOAD", "off"), ("MRRC_RECORD", file.to_str().unwrap())];
    let ran = run(true, "each", &["200", "1", "4", "new"], &variables);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    if ran.complained.contains("userfaultfd") {
        return eprintln!("not run: {}", ran.complained);
    }
    let (_, records) = recorded(&file);
    // One unmapping lies between each two registrations of a buffer.
    let mut mapped: BTreeSet<u64> = BTreeSet::new();
    let mut anew = 0;
    for Record { operation, address, length, .. } in records {
        match operation {
            Operation::Acquire => anew += u64::from(!mapped.insert(address)),
            Operation::Invalidate => mapped.retain(|page| !(address..address + length).contains(page)),
            _ => {}
        }
    }
    assert_eq!(anew, 0);
}

#[test]
fn what_is_too_much_to_be_watched_is_counted() {
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("x.reg");
    let variables = [("MRRC_PRELOAD", "off"), ("MRRC_RECORD", file.to_str().unwrap())];
    // Each page of them once, and one buffer before that.
    let ran = run(true, "each", &["5000", "1", "1", "walk"], &variables);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    if ran.complained.contains("userfaultfd") {
        return eprintln!("not run: {}", ran.complained);
    }
    let (head, records) = recorded(&file);
    assert_eq!((records.len(), head.unwatched), (2 * 5001, 5001 - 4096));
}

#[test]
fn nasty_programs_say_the_same_and_are_recorded() {
    for what in ["unmap", "twice", "fork", "pds", "errors", "rereg", "threads", "leak", "shapes"] {
        let file = tempfile::tempdir().unwrap();
        let file = file.path().join("x.reg");
        let without = run(false, "nasty", &[what], &[]).well();
        let with = run(true, "nasty", &[what], &[("MRRC_RECORD", file.to_str().unwrap())]).well();
        assert_eq!(with.said, without.said, "{what}");
        let (head, records) = recorded(&file);
        assert!(!records.is_empty() && head.left_out() == 0, "{what}");
        in_use(&records);
        match what {
            "pds" => assert!(records.iter().any(|record| record.domain == 1), "{what}"),
            "fork" => assert!(head.attached > 1, "{what}"),
            _ => {}
        }
    }
}

#[test]
fn unwritable_recording_warns_once() {
    let without = run(false, "nasty", &["pds"], &[]).well();
    for (name, value) in [("MRRC_RECORD", "/nowhere/x.reg"), ("MRRC_RECORD_LIMIT", "lots")] {
        let variables = [("MRRC_RECORD", "/nowhere/x.reg"), (name, value)];
        let with = run(true, "nasty", &["pds"], &variables);
        assert_eq!((with.code, &with.said), (Some(0), &without.said));
        assert_eq!(with.complained.lines().count(), 1, "{with:?}");
        assert!(with.complained.contains("nothing is recorded"), "{with:?}");
    }
}
