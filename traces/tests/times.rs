//! Times in any unit, and times that are none.

use std::io::Cursor;
use traces::{Columns, Event, ReadOptions, Reader, Summary, TimeUnit, Trace};

fn read(text: &str, options: &ReadOptions) -> (Vec<Event>, Summary) {
    let mut reader = traces::read("t.csv", Cursor::new(text.as_bytes().to_vec()), options).unwrap();
    let events = reader.by_ref().collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{text}: {error}"));
    (events, reader.summary().clone())
}

fn times(text: &str, options: &ReadOptions) -> Vec<u64> {
    read(text, options).0.iter().map(|event| event.time).collect()
}

/// The first of May 2024 and a bit, in nanoseconds.
const DATE: u64 = 1_714_521_600_123_456_789;

#[test]
fn csv_times_of_any_epoch_unit_are_read() {
    for (unit, name) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us"), (1, "ns")] {
        let (first, second) = (DATE / unit, DATE / unit + 7);
        let table = format!("timestamp,offset,size\n{first},0,4096\n{second},4096,4096\n");
        let expected = [first * unit, second * unit];
        assert_eq!(times(&table, &ReadOptions::default()), expected, "{name} by magnitude");
        let summary = read(&table, &ReadOptions::default()).1;
        let understood = format!("column 1 is the time in units of {unit} ns, by the first one");
        assert!(summary.understood.contains(&understood), "{}", summary.understood);

        let columns: Columns = "time=1,addr=2,len=3".parse().unwrap();
        let options = ReadOptions { columns: Some(columns), ..ReadOptions::default() };
        assert_eq!(times(&table, &options), expected, "{name} with --columns");

        let headless = table.replace("timestamp,offset,size\n", "");
        assert_eq!(times(&headless, &options), expected, "{name} without a header");

        let objects = format!("{first} 1 4096\n{second} 2 4096\n");
        assert_eq!(times(&objects, &ReadOptions::default()), expected, "{name} of objects");
    }
}

#[test]
fn a_time_unit_may_be_given() {
    let us = ReadOptions { time_unit: Some(TimeUnit::Microseconds), ..ReadOptions::default() };
    assert_eq!(times("time,offset\n5,0\n1700000000000000000,0\n", &us), [5000, u64::MAX]);
    assert_eq!(times("5 1 10\n6 2 10\n", &us), [5000, 6000]);
    // A column that states its unit is right.
    let columns = Some("time=1:ms,addr=2".parse().unwrap());
    assert_eq!(times("time,offset\n5,0\n", &ReadOptions { columns, ..us.clone() }), [5_000_000]);
    assert_eq!(times("time_ms,offset\n5,0\n", &us), [5000], "what is given overrides a name");
    let text = b"start_page,pages\n1,1\n".to_vec();
    let error = traces::read("t.csv", Cursor::new(text), &us).err().unwrap().to_string();
    assert_eq!(error, "--time-unit: the times of pages have one unit; leave it out; csv and objects take it");
}

#[test]
fn no_time_keeps_requests_from_being_read() {
    let table = "timestamp,offset\n2024-05-01T00:00:00Z,0\n,4096\n5,8192\nnever,0\n";
    let (events, summary) = read(table, &ReadOptions::default());
    assert_eq!(events.iter().map(|event| event.time).collect::<Vec<_>>(), [0, 0, 5_000_000_000, 5_000_000_000]);
    assert_eq!((summary.events, summary.skipped(), summary.untimed), (4, 0, 3));
    assert!(summary.to_string().contains("3 times could not be read"), "{summary}");
    // Fixed formats have one unit: what does not fit is as late as can be.
    assert_eq!(
        times("1714521600123456,irecv,-1,10,8\n99999999999999999999,irecv,-1,10,8\n", &ReadOptions::default()),
        [1_714_521_600_123_456_000, u64::MAX]
    );
    assert_eq!(
        times("0,8,512,R,1714521600123456789\n0,8,512,R,0.5\n", &ReadOptions::default()),
        [u64::MAX, 500_000_000]
    );
}

#[test]
fn the_unit_is_known_where_first_times_are_none() {
    let lines: String = (0..9).map(|at| format!("{},{},4096\n", 1_700_000_000_000_u64 + at, at * 4096)).collect();
    let table = format!("timestamp,offset,size\n-,0,4096\n-,4096,4096\n{lines}");
    let reader = traces::read("t.csv", Cursor::new(table.into_bytes()), &ReadOptions::default()).unwrap();
    let summary = Trace::load("t.csv", reader, false).unwrap().summary;
    let understood = "column 1 is the time in units of 1000000 ns, by the first one";
    assert!(summary.understood.contains(understood) && summary.untimed == 2, "{summary}");
}

#[test]
fn sharing_needs_times_only_of_several_processes() {
    let load = |table: &str| {
        let reader = traces::read("t.csv", Cursor::new(table.as_bytes().to_vec()), &ReadOptions::default()).unwrap();
        Trace::load("t.csv", reader, true).map(|trace| trace.processes.len())
    };
    assert_eq!(load("time,offset,process\nnever,0,0\nnever,0,0\n").unwrap(), 1);
    let error = load("time,offset,process\nnever,0,0\n5,0,1\n").unwrap_err().to_string();
    assert!(error.starts_with("--share: t.csv: 1 times could not be read"), "{error}");
}
