//! The real traces that lie beside the repository, read whole; skipped where they are not.

use std::path::PathBuf;
use traces::{Action, Event, Format, ReadOptions, Reader, Span, Summary};

/// Returns the folder, or a line that says that it is absent.
fn shared() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no traces beside the repository at ../shared/traces");
    None
}

fn read(name: &str, options: &ReadOptions) -> Option<(Vec<Event>, Summary)> {
    let mut reader = traces::open(shared()?.join(name), options).unwrap_or_else(|error| panic!("{error}"));
    let events: Vec<Event> = reader.by_ref().collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(reader.summary().events, events.len() as u64);
    Some((events, reader.summary().clone()))
}

fn span(event: &Event) -> Span {
    match &event.action {
        Action::Request(spans) => spans[0],
        other => panic!("{other:?}"),
    }
}

/// Detected as this, with so many events, left out and other lines; nothing is skipped.
fn expect(name: &str, format: Format, [events, left_out, other]: [u64; 3]) -> Option<Vec<Event>> {
    let (all, summary) = read(name, &ReadOptions::default())?;
    eprintln!("{name}\n{summary}");
    assert!(summary.understood.starts_with(format.name()), "{}", summary.understood);
    assert_eq!([summary.events, summary.left_out(), summary.other], [events, left_out, other], "{name}\n{summary}");
    assert_eq!(summary.skipped(), 0, "{summary}");
    Some(all)
}

#[test]
fn p3_is_read_in_sectors() {
    let Some(events) = expect("arc_P3.lis.zst", Format::Arc, [238_578, 0, 0]) else { return };
    assert_eq!(span(&events[0]), Span { address: 230_027 * 512, length: 8 * 512 });
}

#[test]
fn both_forms_of_the_virtual_machine_s_trace_agree() {
    let Some(table) = expect("cloudPhysicsIO.csv.zst", Format::Csv, [113_872, 0, 1]) else { return };
    let Some(records) = expect("cloudPhysicsIO.oracleGeneral.bin.zst", Format::OracleGeneral, [113_872, 0, 0]) else {
        return;
    };
    let mut places = std::collections::HashMap::new();
    let mut blocks = std::collections::HashMap::new();
    let mut sizes = std::collections::HashMap::new();
    for (line, record) in table.iter().zip(&records) {
        let [there, here] = [span(line), span(record)];
        assert_eq!(line.time, record.time);
        // The makers of the records gave each object the size of its first request; 13,671 lines of the table say
        // otherwise.
        assert_eq!(*sizes.entry(there.address).or_insert(there.length), here.length);
        // The same block is the same object, and no other.
        assert_eq!(*places.entry(there.address).or_insert(here.address), here.address);
        assert_eq!(*blocks.entry(here.address).or_insert(there.address), there.address);
    }
    assert_eq!(span(&table[0]), Span { address: 42_932_745 * 512, length: 512 });
}

#[test]
fn the_mpi_run_has_a_process_for_each_rank() {
    let Some(events) = expect("mpi_hpcc_np4.tar.zst", Format::Mpi, [65_037, 0, 0]) else { return };
    let of = |process| events.iter().filter(|event| event.process == process).count();
    assert_eq!([0, 1, 2, 3, 4].map(of).iter().sum::<usize>(), events.len());
    assert_eq!(of(4), 0);
    assert_eq!(span(&events[0]), Span { address: 0x5652_ed02_4ac0, length: 8192 });
    assert_eq!(events[0].time, 4_540_900);
}

#[test]
fn web_objects_are_read() {
    let Some(events) = expect("adaptsize_request.trace.xz", Format::Objects, [66_987, 0, 0]) else { return };
    assert_eq!(span(&events[0]), Span { address: 0, length: 68 });
    assert_eq!(span(&events[1]), Span { address: 4096, length: 7454 });
}

#[test]
fn lirs_s_own_traces_are_read() {
    expect("lirs_2_pools.trace.gz", Format::Lirs, [100_000, 0, 2]);
    expect("lirs_multi1.trace.gz", Format::Lirs, [15_858, 0, 0]);
    expect("lirs_sprite.trace.gz", Format::Lirs, [133_996, 0, 0]);
}

#[test]
fn mooncake_s_blocks_are_read() {
    let Some(events) = expect("mooncake_synthetic_trace.jsonl.zst", Format::Mooncake, [121_877, 0, 0]) else { return };
    assert_eq!(span(&events[1]), Span { address: 1 << 20, length: 1 << 20 });
}

#[test]
fn nasa_s_log_is_read_with_and_without_304() {
    expect("nasa_19950701_10k.tsv.zst", Format::Httpd, [8997, 1002, 1]);
    let options = ReadOptions { not_modified: true, ..ReadOptions::default() };
    let Some((_, summary)) = read("nasa_19950701_10k.tsv.zst", &options) else { return };
    assert_eq!([summary.events, summary.left_out()], [9528, 471]);
}
