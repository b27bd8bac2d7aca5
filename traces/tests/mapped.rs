//! A recording of a running program is read as far as it goes, and missing records are counted.

use mrrc_core::Access;
use proptest::prelude::*;
use std::io::Cursor;
use std::path::Path;
use traces::registrations::{self, CutShort};
use traces::{Action, Event, ReadOptions, Reader, Span, TraceError};
use traces_record::layout::{HEAD, Head, Operation, RECORD, Record};

/// Returns a file with these records, and places for so many more.
fn file(records: &[Record], more: usize, head: Head) -> Vec<u8> {
    let mut file = head.bytes().to_vec();
    file.extend(records.iter().flat_map(Record::bytes));
    file.resize(HEAD + (records.len() + more) * RECORD, 0);
    file
}

/// Returns the head of a recording that ended well.
fn whole(records: usize) -> Head {
    let records = records as u64;
    Head { limit: 1 << 20, claimed: records, ready: records + 100, attached: 1, ended: 1, source: 1, ..Head::default() }
}

fn record(n: u64) -> Record {
    let process = 1000 + (n % 2) as u32;
    Record {
        operation: Operation::Acquire,
        access: 0b1011,
        process,
        thread: 7,
        time: n,
        address: n << 12,
        length: n + 1,
        domain: 0,
    }
}

fn read(file: Vec<u8>, cut: CutShort) -> (Vec<Event>, Option<TraceError>, traces::Summary) {
    let mut reader = match registrations::read(Path::new("recording"), Cursor::new(file), cut) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error), traces::Summary::default()),
    };
    let mut events = Vec::new();
    let mut error = None;
    for event in reader.by_ref() {
        match event {
            Ok(event) => events.push(event),
            Err(found) => error = Some(found),
        }
    }
    (events, error, reader.summary().clone())
}

fn skipped(summary: &traces::Summary) -> Vec<(&str, u64)> {
    summary.skipped.iter().map(|skipped| (skipped.reason, skipped.count)).collect()
}

#[test]
fn records_become_events_by_process() {
    let records: Vec<Record> = (1..=2000).map(record).collect();
    let (events, error, summary) = read(file(&records, 48, whole(2000)), CutShort::Refused);
    assert!(error.is_none(), "{error:?}");
    assert_eq!((events.len(), summary.skipped()), (2000, 0));
    let span = Span { address: 3 << 12, length: 4 };
    let access = Access::LOCAL | Access::REMOTE_WRITE;
    let third = Event { time: 3, process: 0, client: 7, access, action: Action::Acquire(smallvec::smallvec![span]) };
    assert_eq!(events[2], third);
    assert_eq!(events[1].process, 1);
    assert!(summary.understood.starts_with("registrations of verbs: a recording"), "{}", summary.understood);
}

#[test]
fn each_domain_of_a_process_is_a_cache_of_its_own() {
    let records: Vec<Record> = (1..=4).map(|n| Record { domain: (n / 3) as u8, process: 9, ..record(n) }).collect();
    let (events, error, _) = read(file(&records, 0, whole(4)), CutShort::Refused);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(events.iter().map(|event| event.process).collect::<Vec<_>>(), [0, 0, 1, 1]);
}

#[test]
fn registrations_that_nobody_watched_are_told() {
    let read = |unwatched| read(file(&[record(1)], 0, Head { unwatched, ..whole(1) }), CutShort::Refused).2.understood;
    assert!(!read(0).contains("unmapped"));
    assert!(read(7).contains("of 7 registrations it would be missing that their memory was unmapped"), "{}", read(7));
}

#[test]
fn it_is_detected_and_read_out_of_compression() {
    let records: Vec<Record> = (1..=10).map(record).collect();
    let packed = zstd::encode_all(&file(&records, 0, whole(10))[..], 1).unwrap();
    let mut reader = traces::read("x.zst", Cursor::new(packed), &ReadOptions::default()).unwrap();
    assert_eq!(reader.by_ref().filter(|event| event.is_ok()).count(), 10);
}

#[test]
fn a_killed_program_leaves_what_it_finished() {
    let records: Vec<Record> = (1..=10).map(record).collect();
    let mut bytes = file(&records, 10, Head { claimed: 12, ended: 0, ..whole(10) });
    // Another thread was in the middle of the fourth.
    bytes[HEAD + 3 * RECORD..][..8].fill(0);
    let (events, error, summary) = read(bytes, CutShort::Refused);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(events.len(), 9);
    assert_eq!(skipped(&summary), [("begun and not finished: the program was killed there, or is running", 3)]);
    assert!(summary.understood.contains("1 of 1 processes run, or were ended otherwise"), "{}", summary.understood);
}

#[test]
fn what_found_no_room_is_counted() {
    let records: Vec<Record> = (1..=10).map(record).collect();
    for (head, why) in [
        (Head { claimed: 35, ready: 10, limit: 10, ..whole(0) }, "limit"),
        (Head { claimed: 35, ready: 10, stopped: 28, ..whole(0) }, "disk full"),
    ] {
        let (events, error, summary) = read(file(&records, 0, head), CutShort::Refused);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(events.len(), 10);
        assert!(skipped(&summary)[0].0.contains(why) && skipped(&summary)[0].1 == 25, "{:?}", skipped(&summary));
    }
}

#[test]
fn damaged_records_are_skipped_up_to_half() {
    let records: Vec<Record> = (1..=10).map(record).collect();
    let mut bytes = file(&records, 0, whole(10));
    bytes[HEAD + 4 * RECORD + 17] ^= 4;
    let (events, error, summary) = read(bytes.clone(), CutShort::Refused);
    assert!(error.is_none() && events.len() == 9);
    assert_eq!(skipped(&summary), [("damaged", 1)]);
    (0..8).for_each(|nth| bytes[HEAD + nth * RECORD + 17] ^= 8);
    let message = read(bytes, CutShort::Refused).1.unwrap().to_string();
    assert!(message.contains("of 10 records are damaged"), "{message}");
}

#[test]
fn cut_at_any_byte_it_is_read_up_to_there() {
    let records: Vec<Record> = (1..=10).map(record).collect();
    let bytes = file(&records, 0, whole(10));
    for length in (0..HEAD).step_by(97).chain(HEAD..bytes.len()) {
        let (events, error, _) = read(bytes[..length].to_vec(), CutShort::Refused);
        let message = error.unwrap_or_else(|| panic!("{length} bytes are not taken for whole")).to_string();
        assert!(message.contains("recording, "), "{message}");
        assert_eq!(events.len(), length.saturating_sub(HEAD) / RECORD);
        let (accepted, error, _) = read(bytes[..length].to_vec(), CutShort::Accepted);
        assert_eq!((accepted, error.is_some()), (events, length < HEAD), "{length} bytes");
    }
}

#[test]
fn another_version_is_refused_with_a_remedy() {
    let mut bytes = file(&[], 0, whole(0));
    bytes[8] = 3;
    let message = read(bytes, CutShort::Accepted).1.unwrap().to_string();
    assert!(message.contains("version 3") && message.contains("later version of this tool"), "{message}");
}

proptest! {
    #[test]
    fn noise_behind_a_head_ends(noise in prop::collection::vec(any::<u8>(), 0..2000), counts in any::<[u64; 3]>()) {
        let [limit, claimed, ready] = counts;
        let mut bytes = Head { limit, claimed, ready, ..whole(0) }.bytes().to_vec();
        bytes.extend(&noise);
        for cut in [CutShort::Refused, CutShort::Accepted] {
            let (events, ..) = read(bytes.clone(), cut);
            prop_assert!(events.len() <= noise.len() / RECORD);
        }
    }
}
