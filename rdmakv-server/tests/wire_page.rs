//! The book's page of wire formats says what the code does: its tables are those of the sources, its bytes are those that go out.

use std::time::Duration;

use frrwp::wire::MAX_FRAME_PAYLOAD;
use rdmakv_proto::item::{HEADER, KEY_MAX, check};
use rdmakv_proto::messages::RemoteSegment;
use rdmakv_proto::messages::{FRAGMENT, Kind, Reply, Request, SEGMENTS, Tag, VERSION, Welcome, start};
use rdmakv_server::fabric::predecessor::{IncarnationRecord, LENGTH};
use rdmakv_server::store::{Config, LONGEST, Store, Terms, lasting};

const WIRE: &str = include_str!("../proto/src/messages.rs");
const FAR: &str = include_str!("../proto/src/far/messages.rs");
const ITEM: &str = include_str!("../proto/src/item.rs");
const PREDECESSOR: &str = include_str!("../src/fabric/predecessor.rs");

/// Returns the page, which is the repository's: the crate is published without it.
fn page() -> Option<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wire-formats.md");
    let said = std::fs::read_to_string(page).ok();
    if said.is_none() {
        println!("not run: there is no {page}");
    }
    said
}

/// Returns the blocks or tables that the front of a source shows.
fn shown(source: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    let mut inside = false;
    for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        if line.starts_with("```") {
            inside = !inside;
        } else if inside || line.starts_with('|') {
            let block = blocks.last_mut().unwrap();
            block.push_str(line);
            block.push('\n');
            continue;
        }
        if !blocks.last().unwrap().is_empty() {
            blocks.push(String::new());
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

fn said(id: u32, kind: Kind, body: &[u8]) -> String {
    let mut bytes = Vec::new();
    start(&mut bytes, id, kind, false);
    hex(&[&bytes, body].concat())
}

#[test]
fn its_tables_are_those_of_the_sources() {
    let Some(page) = page() else { return };
    for (source, blocks) in [(WIRE, 2), (FAR, 1), (ITEM, 1), (PREDECESSOR, 1)] {
        let shown = shown(source);
        assert_eq!(shown.len(), blocks);
        for block in shown {
            assert!(page.contains(&block), "the page lacks what a source has:\n{block}");
        }
    }
}

#[test]
fn its_figures_are_those_of_the_code() {
    let Some(page) = page() else { return };
    let thousands = |number: usize| match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    };
    let lease = Duration::from_secs(8);
    assert_eq!((lasting(lease), LONGEST), (Duration::from_secs(9), Duration::from_secs(60)));
    for (words, number) in [
        ("at most # bytes, so that", MAX_FRAME_PAYLOAD),
        ("so that # of\nthem are the message's", MAX_FRAME_PAYLOAD - FRAGMENT),
        ("at most # bytes, a PUT", KEY_MAX),
        ("a PUT at most # segments", SEGMENTS),
        ("| # |       | the key, then the value", HEADER),
        ("It has # bytes", LENGTH),
    ] {
        let words = words.replace('#', &thousands(number));
        assert!(page.contains(&words), "the page does not say: {words}");
    }
    let life = IncarnationRecord { incarnation: 3_735_928_559, lease: Duration::from_secs(1), clean: false }.to_bytes();
    assert!(page.contains(std::str::from_utf8(&life).unwrap().trim_end()), "another file");
}

#[test]
fn its_bytes_are_those_that_go_out() {
    let Some(page) = page() else { return };
    let (key, value, incarnation) = (b"greeting", b"hello", 7);
    let mut lines = Vec::new();
    let mut body = Vec::new();
    let kind = Request::hello(&mut body, false);
    lines.push(format!("hello       {}", said(0, kind, &body)));
    body.clear();
    let eager = 8192;
    let welcome =
        Welcome { version: VERSION, incarnation, lease_ms: 1000, eager, transfers_from: eager, largest: 1 << 20 };
    let kind = Reply::Welcome(welcome).encode(&mut body);
    lines.push(format!("welcome     {}", said(0, kind, &body)));
    body.clear();
    let kind = Request::get(&mut body, true, key);
    lines.push(format!("get         {}", said(1, kind, &body)));

    let mut store = Store::new(&Config { incarnation, huge: false, ..Config::default() }).unwrap();
    let mut writer = store.reserve(key, value.len(), 0, 0, 1000).unwrap();
    writer.value().copy_from_slice(value);
    store.publish(writer, Terms::default(), 1000);
    let handle = store.get(key, true, 1000).unwrap().handle();
    let mut image = Vec::new();
    store.image(handle, &mut image);
    assert_eq!(check(&image, key, incarnation, 1000).unwrap().value, value);
    let segment = RemoteSegment { address: 0x1000, length: image.len() as u64, key: 42 };
    body.clear();
    let kind = Reply::Item { tag: Some(Tag { segment, incarnation }), image: b"" }.encode(&mut body);
    lines.push(format!("item        {}", said(1, kind, &body)));
    let parts = [&image[..32], &image[32..HEADER], &image[HEADER..]].map(hex);
    lines.push(format!("image       {}", parts.join(&format!("\n{}", " ".repeat(12)))));
    for line in lines {
        assert!(page.contains(&line), "the page has other bytes than:\n{line}");
    }
}
