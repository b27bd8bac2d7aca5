//! Assertions of memcached's tests of extstore (`t/*extstore*.t`), on a server whose items go to flash when memory is full.
//!
//! They wait until all items leave memory by their age, which they do not here. So each test stores more than memory holds. What is left
//! out asserts how extstore is built: pages for certain items, items that compaction skips, and commands that tune it.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{Server, ask};

/// Starts a server with this memory and these files, in MB.
fn start(folder: &tempfile::TempDir, memory: &str, files: &[(&str, u32)], more: &[&str]) -> Server {
    let paths: Vec<String> =
        files.iter().map(|(name, size)| format!("ext_path={}/{name}:{size}m", folder.path().display())).collect();
    let tuning = "ext_page_size=4,ext_wbuf_size=1,ext_threads=1,ext_io_depth=2,ext_item_size=512,ext_item_age=2,\
                  ext_recache_rate=10000,ext_max_frag=0.9,ext_compact_under=1,ext_max_sleep=100000,slab_automove=0";
    let extended = format!("{tuning},{}", paths.join(","));
    let flags = ["-m", memory, "-t", "1", "-U", "0", "-o", &extended];
    Server::on_a_free_port(&[&flags, more].concat())
}

/// Returns a value that shows what is torn or mixed.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let part: String = (0..40).map(|number| format!("{}:", number * 7919 + seed * 31)).collect();
    let mut value = part.repeat(len / part.len() + 1).into_bytes();
    value.truncate(len);
    value
}

fn set(client: &mut TcpStream, key: &str, value: &[u8]) {
    let mut request = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
    ask(client, &request, b"STORED\r\n");
}

/// Returns the version and the value of an item, if it is there.
fn gets(client: &mut TcpStream, key: &str) -> Option<(u64, Vec<u8>)> {
    client.write_all(format!("gets {key}\r\n").as_bytes()).unwrap();
    let mut client = BufReader::new(client);
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["VALUE", _, _, len, version] = words[..] else {
        assert_eq!(line, "END\r\n");
        return None;
    };
    let mut data = vec![0; len.parse::<usize>().unwrap() + 7];
    client.read_exact(&mut data).unwrap();
    assert!(data.ends_with(b"\r\nEND\r\n"));
    data.truncate(data.len() - 7);
    Some((version.parse().unwrap(), data))
}

/// Bytes that are stored without a pause, and how long the shortest pauses are, and the longest.
const BURST: usize = 256 << 10;
const PAUSES: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(64)];
/// Pauses between two looks at the losses.
const LOOKS: usize = 8;

/// Stores items with pauses. What comes faster than the device writes is dropped: then the pauses become longer.
fn fill(server: &Server, name: &str, count: usize, len: usize) {
    let (mut client, mut lost) = (server.connect(), dropped(server));
    let [shortest, longest] = PAUSES;
    let (mut pause, mut burst, mut pauses) = (shortest, 0, 0);
    for number in 0..count {
        set(&mut client, &format!("{name}{number}"), &pattern(number, len));
        burst += len;
        if burst < BURST {
            continue;
        }
        (burst, pauses) = (0, pauses + 1);
        std::thread::sleep(pause);
        if pauses % LOOKS == 0 {
            let now = dropped(server);
            let has_lost = now > std::mem::replace(&mut lost, now);
            pause = if has_lost { (pause * 2).min(longest) } else { (pause / 2).max(shortest) };
        }
    }
}

/// Returns how many items a slow device has cost.
fn dropped(server: &Server) -> usize {
    server.stat("flash_dropped_busy") as usize
}

/// Reads items back; returns how many were there.
fn read(server: &Server, name: &str, numbers: impl Iterator<Item = usize>, len: usize) -> usize {
    let mut client = server.connect();
    numbers
        .filter(|&number| {
            let found = gets(&mut client, &format!("{name}{number}"));
            assert!(found.as_ref().is_none_or(|(_, value)| *value == pattern(number, len)), "{name}{number}");
            found.is_some()
        })
        .count()
}

#[test]
fn counters_follow_items_to_flash_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder, "16", &[("log", 64)], &[]);
    let mut client = server.connect();
    set(&mut client, "foo", b"hi");
    assert_eq!(gets(&mut client, "foo").unwrap().1, b"hi");
    assert_eq!(server.stat("extstore_objects_written"), 0);
    fill(&server, "nfoo", 1500, 20_000);
    let of = |name: &str| server.stat(name);
    let found = read(&server, "nfoo", 0..200, 20_000);
    assert!(found > 100 && found + dropped(&server) >= 200, "{found}");
    assert!(of("extstore_page_allocs") > 0 && of("extstore_objects_written") > 500);
    assert!(of("extstore_bytes_written") > 40_000 && of("extstore_bytes_read") > 20_000);
    assert!(of("get_extstore") > 0 && of("extstore_objects_read") > 0 && of("recache_from_extstore") > 0);
    let (bytes, objects) = (of("extstore_bytes_used"), of("extstore_objects_used"));
    for number in (0..1500).step_by(2) {
        client.write_all(format!("delete nfoo{number} noreply\r\n").as_bytes()).unwrap();
    }
    ask(&mut client, b"mn\r\n", b"MN\r\n");
    assert!(of("extstore_bytes_used") < bytes && of("extstore_objects_used") < objects);
    assert_eq!((of("badcrc_from_extstore"), of("miss_from_extstore")), (0, 0));

    // More than flash holds: the oldest go, and what is asked for stays.
    // Those that were never read do not drive others out.
    let evicts = |name: &String| {
        fill(&server, name, 500, 20_000);
        read(&server, name, 0..500, 20_000);
        of("extstore_objects_evicted") > 0
    };
    let last = (0..64).map(|round| format!("mfoo{round}-")).find(evicts).expect("flash becomes full");
    assert!(of("extstore_page_evictions") > 0 && of("extstore_page_reclaims") > 0);
    assert!(of("extstore_bytes_evicted") >= 20_000 * of("extstore_objects_evicted"));
    assert!(of("extstore_pages_free") < 4);
    // Full flash takes what was read only, so some of the last ones are gone. All that are there are right.
    assert!(read(&server, &last, 0..500, 20_000) > 1);
    assert_eq!((of("badcrc_from_extstore"), of("miss_from_extstore")), (0, 0));
    // What extstore refuses for an item on flash is done.
    let mut there =
        (0..500).map(|number| format!("{last}{number}")).filter(|key| gets(&mut server.connect(), key).is_some());
    let (one, two) = (there.next().unwrap(), there.next().unwrap());
    let refused = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    ask(&mut client, format!("incr {one} 1\r\n").as_bytes(), refused);
    ask(&mut client, format!("append {two} 0 0 2\r\nhi\r\n").as_bytes(), b"STORED\r\n");
    assert!(gets(&mut client, &two).unwrap().1.ends_with(b"hi"));
}

#[test]
fn large_values_come_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder, "32", &[("log", 128)], &[]);
    for (name, count, len) in [("pattern", 3, 38_893), ("foo", 5, 400 << 10), ("toast", 100, 573_440)] {
        fill(&server, name, count, len);
    }
    let found = read(&server, "toast", 0..100, 573_440);
    let gone = server.stat("evictions");
    assert!(found > 50 && found + gone as usize >= 100, "{found} found, {gone} gone");
    assert_eq!(server.stat("badcrc_from_extstore"), 0);
    // Memory holds less than half of them.
    assert!(server.stat("extstore_objects_read") > 0);
    let first = read(&server, "foo", 0..5, 400 << 10) + read(&server, "pattern", 0..3, 38_893);
    assert!(first > 0 && first + server.stat("evictions") as usize >= 8, "{first} of the first ones");
}

#[test]
fn bad_key_amid_reads_ends_the_command_only() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder, "64", &[("log", 128)], &["-I", "4m", "-o", "ext_page_size=16,ext_wbuf_size=4"]);
    fill(&server, "foo", 30, 3000 << 10);
    let mut client = server.connect();
    let request = format!("get foo1 foo2 foo3 {}\r\nmn\r\n", "f".repeat(512));
    client.write_all(request.as_bytes()).unwrap();
    // What is before the key may be answered; an error ends it, and the connection goes on.
    let (mut lines, mut client) = (Vec::new(), BufReader::new(client));
    while !lines.ends_with(b"MN\r\n") {
        assert!(client.read_until(b'\n', &mut lines).unwrap() > 0);
    }
    let said = String::from_utf8_lossy(&lines);
    assert!(said.contains("CLIENT_ERROR"), "{}", &said[said.len().saturating_sub(200)..]);
    let found = read(&server, "foo", 0..30, 3000 << 10);
    assert!(found > 15 && found as u64 + server.stat("evictions") >= 30, "{found}");
}

#[test]
fn version_lasts_on_its_way_to_flash_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder, "16", &[("log", 64)], &[]);
    let mut client = server.connect();
    let mut store = |server: &Server| {
        for turn in 0..3 {
            set(&mut client, "foo", &pattern(turn, 20_000));
        }
        gets(&mut server.connect(), "foo").unwrap()
    };
    let mut stored = store(&server);
    // A slow device may cost this item, too. Then another one is stored.
    let comes_back = |_: &usize| {
        fill(&server, "other", 1000, 20_000);
        let reads = server.stat("get_extstore");
        match gets(&mut server.connect(), "foo") {
            Some(found) => assert!(found == stored),
            None => {
                assert!(dropped(&server) > 0, "it is gone");
                stored = store(&server);
            }
        }
        server.stat("get_extstore") > reads
    };
    (0..8).find(comes_back).expect("the item comes back from flash");
    let version = stored.0;
    let set = format!("cas foo 0 0 3 {version}\r\nnew\r\n");
    ask(&mut client, set.as_bytes(), b"STORED\r\n");
    ask(&mut client, set.as_bytes(), b"EXISTS\r\n");
}

#[test]
fn last_values_survive_reclaim() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder, "16", &[("log", 64)], &[]);
    // Each turn stores more than memory holds, so values of each are on flash. Their lengths differ.
    for turn in 0..6 {
        fill(&server, "overwrite", 1000, 20_000 + turn);
    }
    let found = read(&server, "overwrite", 0..1000, 20_005);
    assert!(found > 500, "{found} of 1000 are there");
    assert!(server.stat("get_extstore") > 100 && server.stat("extstore_page_reclaims") > 0);
    assert_eq!((server.stat("badcrc_from_extstore"), server.stat("miss_from_extstore")), (0, 0));
}

#[test]
fn several_files_are_used_alike() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder, "32", &[("one", 64), ("two", 96)], &[]);
    let blocks = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    fill(&server, "nfoo", 4000, 20_000);
    let found = read(&server, "nfoo", 0..4000, 20_000);
    assert!(found > 2000 && found + dropped(&server) >= 4000, "{found}");
    for _ in 0..8 {
        fill(&server, "nfoo", 4000, 20_000);
        if server.stat("extstore_page_reclaims") > 1 {
            break;
        }
    }
    for name in ["one", "two"] {
        let bytes = blocks(name);
        let written = bytes.chunks(1 << 20).filter(|part| part.iter().any(|&byte| byte != 0)).count();
        assert!(written * 2 > bytes.len() >> 20, "{written} MB of {name}");
    }
    let mut client = server.connect();
    for number in (0..4000).step_by(2) {
        client.write_all(format!("delete nfoo{number} noreply\r\n").as_bytes()).unwrap();
    }
    fill(&server, "again", 4000, 20_000);
    assert!(server.stat("extstore_page_reclaims") > 1 && server.stat("miss_from_extstore") == 0);
}

#[test]
fn names_of_tiers_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let extended = format!("ext_page_size=4,ext_path={}:64m:default,ext_path={}:64m:compact", path("a"), path("b"));
    let server = Server::on_a_free_port(&["-m", "16", "-t", "1", "-o", &extended]);
    assert_eq!(server.stat("extstore_limit_maxbytes") >> 20, 128);
}
