//! The wrappings of a trace, and the errors when it cannot be read: the file, the place, and a remedy.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use traces::{Event, Format, ReadOptions, Reader, TraceError};

const TEXT: &[u8] = b"start_page,pages\n1,1\n2,90\n3,7\n";

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut out = liblzma::write::XzEncoder::new(Vec::new(), 1);
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

fn read(name: &str, bytes: &[u8], options: &ReadOptions) -> Result<Vec<Event>, TraceError> {
    let mut reader = traces::read(name, Cursor::new(bytes.to_vec()), options)?;
    let events: Result<Vec<_>, _> = reader.by_ref().collect();
    assert!(reader.next().is_none(), "nothing follows the end, nor an error");
    events
}

fn error(name: &str, bytes: &[u8], options: &ReadOptions) -> String {
    match read(name, bytes, options) {
        Err(error) => error.to_string(),
        Ok(events) => panic!("{} events", events.len()),
    }
}

fn default() -> ReadOptions {
    ReadOptions::default()
}

#[test]
fn compression_is_known_by_content_whatever_the_name() {
    let plain = read("a.csv", TEXT, &default()).unwrap();
    assert_eq!(plain.len(), 3);
    for packed in [gz(TEXT), xz(TEXT), zst(TEXT)] {
        assert_eq!(read("a.csv", &packed, &default()).unwrap(), plain);
        // Files that were compressed in parts are one.
        let twice = [packed.clone(), packed].concat();
        assert_eq!(read("a.csv", &twice, &ReadOptions::of(Format::Pages)).unwrap().len(), 6);
    }
}

#[test]
fn byte_order_mark_is_skipped() {
    let plain = read("some.csv", TEXT, &default()).unwrap();
    let marked: Vec<u8> = [b"\xef\xbb\xbf", TEXT].concat();
    assert_eq!(read("some.csv", &marked, &default()).unwrap(), plain);
    assert_eq!(read("some.csv.gz", &gz(&marked), &default()).unwrap(), plain);
    let one = read("one.csv", b"\xef\xbb\xbfaddr,len\r\n0x1000,4096", &default()).unwrap();
    assert_eq!(one.len(), 1);
    assert_eq!(
        read("a.lirs", b"\xef\xbb\xbf7", &ReadOptions { format: Some(Format::Lirs), ..default() }).unwrap().len(),
        1
    );
}

#[test]
fn members_of_an_archive_are_processes_in_its_order() {
    let long = format!("{}/b.csv", "directory/".repeat(20));
    let archive = tar(&[
        ("README.md", b"about"),
        ("z.csv", TEXT),
        ("empty.csv", b""),
        ("sub/._z.csv", b"\0\0"),
        (&long, &gz(b"start_page,pages\n9,9\n")),
    ]);
    for packed in [archive.clone(), gz(&archive), zst(&archive)] {
        let mut reader = traces::read("t.tar", Cursor::new(packed), &default()).unwrap();
        let events: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!(events.iter().map(|event| event.process).collect::<Vec<_>>(), [0, 0, 0, 1]);
        assert_eq!(reader.summary().left_out(), 2);
    }
    let mut broken = archive.clone();
    broken[1034] ^= 1;
    assert!(error("t.tar", &broken[..], &ReadOptions::of(Format::Pages)).contains("header of a member"));
}

#[test]
fn each_member_has_its_own_objects() {
    let archive = tar(&[("a", b"1 7 5000\n2 8 1\n"), ("b", b"1 8 1\n2 7 1\n")]);
    let events = read("t.tar", &archive, &default()).unwrap();
    let places: Vec<_> = events.iter().map(|event| (event.process, format!("{:?}", event.action))).collect();
    assert!(places[1].1.contains("address: 8192") && places[2].1.contains("address: 0"), "{places:?}");
    assert!(places[3].1.contains("address: 4096") && places[3].0 == 1, "{places:?}");
}

#[test]
fn truncated_input_names_file_and_place() {
    let lines: String = (0..20_000).map(|n| format!("{n},{}\n", n * 7919 % 997 + 1)).collect();
    let text = format!("start_page,pages\n{lines}");
    let archive = tar(&[("a.csv", text.as_bytes())]);
    let pages = ReadOptions::of(Format::Pages);
    for (name, packed) in [
        ("t.gz", gz(text.as_bytes())),
        ("t.xz", xz(text.as_bytes())),
        ("t.zst", zst(text.as_bytes())),
        ("t.tar", archive.clone()),
        ("t.tar.zst", zst(&archive)),
    ] {
        assert_eq!(read(name, &packed, &pages).unwrap().len(), 20_000);
        for kept in [packed.len() - 1, packed.len() * 9 / 10, packed.len() / 2, packed.len() / 10] {
            // The end of an archive is two blocks of zeros, one of which is enough.
            let kept = if name == "t.tar" { kept.min(archive.len() - 1024) } else { kept };
            let error = error(name, &packed[..kept], &pages);
            assert!(error.starts_with(&format!("{name}, ")) && error.contains("cut short: fetch it again"), "{error}");
        }
    }
    let mut flipped = gz(text.as_bytes());
    let middle = flipped.len() / 2;
    flipped[middle..middle + 64].fill(0xa5);
    let error = error("t.gz", &flipped, &pages);
    assert!(error.starts_with("t.gz, ") && error.contains("damaged: fetch it again"), "{error}");
}

#[test]
fn noise_is_no_trace_in_any_format() {
    use rand::{RngExt, SeedableRng};
    let mut random = rand::rngs::StdRng::seed_from_u64(4);
    let noise: Vec<u8> = (0..1 << 20).map(|_| random.random()).collect();
    let found = error("n.bin", &noise, &default());
    assert!(found.starts_with("n.bin, its first bytes: it is binary and of no known kind; say --format"), "{found}");
    for format in Format::ALL {
        let error = error("n.bin", &noise, &ReadOptions::of(format));
        assert!(error.starts_with("n.bin"), "{format}: {error}");
    }
}

#[test]
fn trailing_garbage_is_reported_as_such() {
    let text: String = "start_page,pages\n".to_owned() + &"1,1\n".repeat(1000);
    for (kind, pack) in [("gzip", gz as fn(&[u8]) -> Vec<u8>), ("zstd", zst), ("xz", xz)] {
        let whole = pack(text.as_bytes());
        for garbage in [
            &b"garbage"[..],
            b"\0\0\0\0x",
            b"\x1f\x8b____________________",
            b"\x28\xb5_______",
            b"\xfd7zYZ____________",
        ] {
            let error = error("t", &[&whole[..], garbage].concat(), &default());
            let expected = format!("trailing garbage: what follows the end of the {kind} stream is no {kind}");
            assert!(error.contains(&expected) && !error.contains("damaged"), "{kind} {garbage:?}: {error}");
        }
        // Padding and further streams are read.
        let more = pack(b"2,2\n");
        let several = [&whole[..], &[0; 512], &more, &[0; 4]].concat();
        assert_eq!(read("t", &several, &default()).unwrap().len(), 1001, "{kind}");
        let cut = [&whole[..], &more[..more.len() - 5]].concat();
        let error = error("t", &cut, &default());
        assert!(error.contains("cut short"), "{kind}: {error}");
    }
    // Tools that work in parallel put a frame before the first that is to be skipped.
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 9, 9, 9, 9][..], &zst(text.as_bytes())].concat();
    assert_eq!(read("t", &skipped, &default()).unwrap().len(), 1000);
}

#[test]
fn a_forced_format_that_makes_no_sense_is_refused() {
    let text = "0,20941264,8192,W,0.551706\n".repeat(2000).into_bytes();
    let keys: Vec<u8> = (0..24_000_u64).flat_map(|i| ((i % 700) << 12 | 1).to_le_bytes()).collect();
    let record = |i: u32| [&i.to_le_bytes()[..], &[7; 8], &4096_u32.to_le_bytes(), &(-1_i64).to_le_bytes()].concat();
    let oracle: Vec<u8> = (0..1000).flat_map(record).collect();
    for (content, name, format) in [
        (&text, "text", Format::U32),
        (&text, "text", Format::U64),
        (&text, "text", Format::OracleGeneral),
        (&text, "text", Format::Srt),
        (&text, "text", Format::Registrations),
        (&text, "text", Format::Address),
        (&keys, "keys", Format::U32),
        (&keys, "keys", Format::OracleGeneral),
        (&keys, "keys", Format::Srt),
        (&keys, "keys", Format::Lirs),
        (&oracle, "oracle", Format::Objects),
    ] {
        let found = read("f", content, &ReadOptions::of(format));
        let error = found.expect_err(&format!("{name} as {format}")).to_string();
        assert!(error.starts_with("f, ") && error.contains("format"), "{name} as {format}: {error}");
    }
    assert_eq!(read("f", &keys, &ReadOptions::of(Format::U64)).unwrap().len(), 24_000);
    assert_eq!(read("f", &oracle, &ReadOptions::of(Format::OracleGeneral)).unwrap().len(), 1000);
}

#[test]
fn an_unknown_header_is_answered_with_the_columns() {
    let error = error("t.csv", b"alpha,beta\n1,2\n3,4\n", &default());
    for words in [
        "names no column like an address: `alpha,beta`",
        "--columns time=1,addr=2:sector,len=3,op=4",
        "lbn lba",
        "timestamp",
    ] {
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    let forced = self::error("t.csv", b"alpha,beta\n1,2\n", &ReadOptions::of(Format::Csv));
    assert!(forced.contains(error.split_once("; ").unwrap().1), "{forced}");
}

#[test]
fn number_that_is_too_large_hides_no_format() {
    let read = traces::detect(Path::new("t"), b"1 10 4096\n2 99999999999999999999 8192\n");
    assert_eq!(read.unwrap().format, Format::Objects);
}

#[test]
fn doubtful_content_is_not_guessed_at() {
    for (text, why) in [
        (&b""[..], "it is empty"),
        (b"hello\nworld\n", "it fits none of the formats: `hello`"),
        (b"9 1 1\n1 2 3\n", "the first is no time"),
        (b"1 10 4096\n2 -9 8192\n", "`objects` comes closest, but for `2 -9 8192`"),
        (b"1,2\n3,4\n", "it fits none of the formats"),
        (b"PK\x03\x04\0\0\0\0", "a zip archive?"),
    ] {
        let error = error("d", text, &default());
        assert!(error.starts_with("d, its first bytes: ") && error.contains(why), "{error}");
        assert!(error.contains("--format"), "{error}");
    }
    for format in Format::ALL {
        let error = error("d", b"", &ReadOptions::of(format));
        assert!(error.starts_with('d'), "{format}: {error}");
    }
}

#[test]
fn mostly_unreadable_file_names_line_and_remedy() {
    let text = b"1 8 0 0\nfoo\nbar\n";
    let error = error("a.lis", text, &ReadOptions::of(Format::Arc));
    let expected = "a.lis, line 2: it has not four fields (`foo`): 2 lines cannot be read as arc, 1 can; \
                    name the right --format (and --columns, for csv)";
    assert_eq!(error, expected);
    // A member of an archive is judged by itself.
    let good: String = (0..100).map(|n| format!("{n} 8 0 {n}\n")).collect();
    let archive = tar(&[("good", good.as_bytes()), ("bad", text)]);
    let error = self::error("a.tar", &archive, &ReadOptions::of(Format::Arc));
    assert!(error.starts_with("a.tar, member bad, line 2: "), "{error}");
}

#[test]
fn times_too_large_have_the_time_before() {
    // The second is beyond 64 bits, and the fourth only as nanoseconds; the blank keeps a line from being a plain one.
    let text = b"1 10 4096\n99999999999999999999 11 4096\n3 12 4096\n 99999999999 13 4096\n5 14 4096\n";
    let mut reader = traces::read("objects", Cursor::new(text.to_vec()), &ReadOptions::of(Format::Objects)).unwrap();
    let times: Vec<u64> = reader.by_ref().map(|event| event.unwrap().time / 1_000_000_000).collect();
    assert_eq!(times, [1, 1, 3, 3, 5]);
    assert_eq!(reader.summary().untimed, 2);
    let reader = traces::read("objects", Cursor::new(text.to_vec()), &ReadOptions::of(Format::Objects)).unwrap();
    let trace = traces::Trace::load("objects", reader, false).unwrap();
    assert_eq!((trace.summary.events, trace.summary.untimed), (5, 2));
}

#[test]
fn objects_are_told_by_number_and_unit() {
    for (text, expected) in [
        (&b"1 10 4096\n2 10 4096\n"[..], "times in seconds; 1 object, each"),
        (b"1700000000123 10 4096\n1700000000124 11 4096\n", "times in milliseconds; 2 objects side by side, each"),
    ] {
        let mut reader = traces::read("t", Cursor::new(text.to_vec()), &ReadOptions::of(Format::Objects)).unwrap();
        assert_eq!(reader.by_ref().count(), 2);
        assert!(reader.summary().understood.contains(expected), "{}", reader.summary().understood);
    }
}

#[test]
fn what_is_not_there_or_is_a_directory_is_said() {
    let error = |path: &Path| traces::open(path, &default()).err().unwrap().to_string();
    assert!(error(Path::new("/nowhere/t.csv")).starts_with("/nowhere/t.csv: open: No such file"));
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    assert!(error(&here).starts_with(&format!("{}: open: ", here.display())));
}

#[test]
fn piped_trace_is_read_twice() {
    let text: String = (0..50_000).map(|n| format!("{n} {} {}\n", n % 100, n % 9000 + 1)).collect();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (end, packed) = (pipe.clone(), zst(text.as_bytes()));
    let writer = std::thread::spawn(move || std::fs::write(end, packed));
    let mut reader = traces::open(&pipe, &default()).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 50_000);
    assert!(reader.summary().understood.contains("100 objects"), "{}", reader.summary().understood);
    writer.join().unwrap().unwrap();
}

/// Run by the test below in a process of its own.
#[test]
#[ignore = "reads standard input"]
fn standard_input_child() {
    let mut reader = traces::open("-", &default()).unwrap();
    let events = reader.by_ref().map(Result::unwrap).count();
    println!("{events} events, {}", reader.summary().understood);
}

#[test]
fn standard_input_is_read_like_a_file() {
    for (packed, expected) in [(zst(TEXT), "3 events, pages"), (xz(b"1 0 9\n2 1 9\n"), "2 events, objects")] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "standard_input_child"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&packed).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(expected), "{said}");
    }
}

#[test]
fn the_shipped_recording_of_an_mpi_run_is_read_whole() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/mpi_hpcc_np4.tar.zst");
    let mut reader = traces::open(path, &default()).unwrap();
    let mut counts = [0; 4];
    for event in reader.by_ref() {
        counts[event.unwrap().process as usize] += 1;
    }
    assert_eq!(counts.iter().sum::<u64>(), 65_037);
    assert!(counts.iter().all(|&count| count > 16_000), "{counts:?}");
    assert_eq!((reader.summary().skipped(), reader.summary().left_out()), (0, 0));
}

#[test]
fn recording_is_read_from_archives() {
    let text = "# mrrc registrations 1\n";
    let recording = |page: u64| {
        use mrrc_core::Access;
        use traces::registrations::csv::{write_event, write_header};
        let mut out = Vec::new();
        write_header(&mut out).unwrap();
        write_event(&mut out, &Event::request(traces::Span { address: page * 4096, length: 1 }, Access::LOCAL))
            .unwrap();
        out
    };
    assert!(recording(1).starts_with(text.as_bytes()));
    let accept = ReadOptions { accept_cut: true, ..default() };
    assert_eq!(read("r.gz", &gz(&recording(1)), &accept).unwrap().len(), 1);
    let archive = zst(&tar(&[("a", &recording(1)), ("b", &recording(2))]));
    let events = read("r.tar.zst", &archive, &accept).unwrap();
    assert_eq!(events.iter().map(|event| event.process).collect::<Vec<_>>(), [0, 1]);
    let cut = tar(&[("a", &recording(1)), ("b", &recording(2)[..80])]);
    let error = error("r.tar", &cut, &default());
    assert!(error.starts_with("r.tar/b, line 3: "), "{error}");
}

#[test]
fn gigabyte_compression_window_is_refused() {
    // A frame whose window is 2 GiB, which a few bytes can ask for.
    let mut out = zstd::Encoder::new(Vec::new(), 1).unwrap();
    out.window_log(31).unwrap();
    out.long_distance_matching(true).unwrap();
    out.write_all(TEXT).unwrap();
    let packed = out.finish().unwrap();
    let error = error("big.zst", &packed, &ReadOptions::of(Format::Pages));
    assert!(error.starts_with("big.zst, ") && error.contains("decompress it first"), "{error}");
}
