//! Each format by a small sample with good lines and bad ones: the events it yields, and what is said of the rest.

use mrrc_core::Access;
use proptest::prelude::*;
use std::collections::HashMap;
use std::io::Cursor;
use traces::{Action, BlockSize, Event, Format, ReadOptions, Reader, Summary, Trace, TraceError};

fn try_read(name: &str, bytes: &[u8], options: &ReadOptions) -> Result<(Vec<Event>, Summary), TraceError> {
    let mut reader = traces::read(name, Cursor::new(bytes.to_vec()), options)?;
    let events = reader.by_ref().collect::<Result<_, _>>()?;
    assert!(reader.next().is_none());
    Ok((events, reader.summary().clone()))
}

fn read(name: &str, bytes: &[u8], options: &ReadOptions) -> (Vec<Event>, Summary) {
    try_read(name, bytes, options).unwrap_or_else(|error| panic!("{error}"))
}

/// Detected from the content alone.
fn detected(bytes: &[u8], format: Format) -> (Vec<Event>, Summary) {
    let found = read("sample", bytes, &ReadOptions::default());
    assert!(found.1.understood.starts_with(&format!("{format} (")), "{}", found.1.understood);
    found
}

/// Time, client, access, address, length.
fn facts(events: &[Event]) -> Vec<(u64, u32, Access, u64, u64)> {
    let fact = |event: &Event| match &event.action {
        Action::Request(spans) if spans.len() == 1 => {
            (event.time, event.client, event.access, spans[0].address, spans[0].length)
        }
        other => panic!("{other:?}"),
    };
    events.iter().map(fact).collect()
}

/// Returns the reasons for which lines were not understood, and the numbers of the first of them.
fn skipped(summary: &Summary) -> Vec<(&str, Vec<u64>)> {
    passed_over(&summary.skipped)
}

fn left_out(summary: &Summary) -> Vec<(&str, Vec<u64>)> {
    passed_over(&summary.left_out)
}

fn passed_over(reasons: &[traces::Skipped]) -> Vec<(&str, Vec<u64>)> {
    reasons.iter().map(|one| (one.reason, one.first.iter().map(|&(number, _)| number).collect())).collect()
}

const R: Access = Access::LOCAL_READ;
const W: Access = Access::LOCAL_WRITE;
const RW: Access = Access::LOCAL;
const S: u64 = 1_000_000_000;
const DISK: u64 = 1 << 48;

#[test]
fn pages() {
    let text = b"start_page,pages\n1,1\n2,90\n\n5,0\nx,1\n4503599627370495,1\n4503599627370495,2\n1,2,3\n7,1";
    let (events, summary) = detected(text, Format::Pages);
    let expected = [(1, 1), (2, 90), (4_503_599_627_370_495, 1), (7, 1)];
    assert_eq!(facts(&events), expected.map(|(start, pages)| (0, 0, RW, start * 4096, pages * 4096)));
    let why = [
        ("the request is for no pages", vec![5]),
        ("a field is no number", vec![6]),
        ("the request reaches past the end of the address space", vec![8]),
        ("it has not two fields", vec![9]),
    ];
    assert_eq!(skipped(&summary), why);
    assert_eq!((summary.events, summary.other, summary.first.len()), (4, 2, 3));
}

#[test]
fn csv_by_its_header() {
    let text = b"# made by hand\ntime_us;\"op\";lbn;size;colour\n1.5;read;8;512;red\n2;\"2a\";9;1024;\"a;b\"\n3;trim;8;512;red\n\
                 4;r;8;0;red\n5;r\n6;w;0x10;1;red\n7;w;99999999999999999999;1;red\n8;w;0;1;red\n";
    let (events, summary) = detected(text, Format::Csv);
    assert_eq!(
        facts(&events),
        [(1500, 0, R, 4096, 512), (2000, 0, W, 4608, 1024), (6000, 0, W, 8192, 1), (8000, 0, W, 0, 1)]
    );
    let why = [
        ("the operation is neither a read nor a write", vec![5]),
        ("the request is for no bytes", vec![6]),
        ("it has too few columns", vec![7]),
        ("the address is too large", vec![9]),
    ];
    assert_eq!(skipped(&summary), why);
    assert!(summary.understood.contains("columns apart by `;`"), "{}", summary.understood);
    assert!(summary.understood.contains("column 3 is the address in units of 512 bytes"), "{}", summary.understood);
}

#[test]
fn csv_by_columns_asked_for() {
    let columns = "addr=2:page,len=3:sector,op=4,time=1:ms,client=5,process=6".parse().unwrap();
    let options = ReadOptions { columns: Some(columns), ..ReadOptions::default() };
    let (events, _) = read("x", b"1 2 3 R  ann 0\n2 3 1 W bob 1\n3 3 1 W ann 1\n", &options);
    assert_eq!(
        facts(&events),
        [(1_000_000, 0, R, 8192, 1536), (2_000_000, 1, W, 12288, 512), (3_000_000, 0, W, 12288, 512)]
    );
    assert_eq!(events.iter().map(|event| event.process).collect::<Vec<_>>(), [0, 1, 1]);

    let named = ReadOptions { columns: Some("addr=where".parse().unwrap()), ..ReadOptions::default() };
    let (events, _) = read("x", b"when\twhere\n1\t4096\n", &named);
    assert_eq!(facts(&events), [(0, 0, RW, 4096, 1)]);
}

#[test]
fn wrong_csv_columns_name_the_remedy() {
    let refused = |columns: &str, text: &str| {
        let options = ReadOptions { columns: Some(columns.parse().unwrap()), ..ReadOptions::default() };
        try_read("t.csv", text.as_bytes(), &options).unwrap_err().to_string()
    };
    let error = refused("addr=nowhere", "a,b\n1,2\n");
    assert!(error.starts_with("t.csv, line 1") && error.contains("no column `nowhere`"), "{error}");
    assert!(error.contains("--columns"), "{error}");
    let error = refused("addr=7", "a,b\n1,2\n");
    assert!(error.contains("no column 7 among the 2"), "{error}");
    let error = refused("addr=1,len=2", "name,size\nfoo,1\nbar,2\nbaz,3\n");
    assert!(
        error.starts_with("t.csv, line 2: the address is no number (`foo,1`)") && error.contains("--columns"),
        "{error}"
    );
}

#[test]
fn mpi() {
    let text = b"4540.9,irecv,-1,5652ed024ac0,8192\n4541,isend,3,5652ed024ac0,1\n4542,alltoallv,-1,10,4096\n\
                 4543,isend,3,5652ed024ac0,0\n4544,frobnicate,3,10,1\n4545,send,3,ffffffffffffffff,2\n4546,send,3,xyz,2\n";
    let (events, summary) = read("rank0.csv", text, &ReadOptions::of(Format::Mpi));
    assert_eq!(
        facts(&events),
        [
            (4_540_900, 0, W, 0x5652_ed02_4ac0, 8192),
            (4_541_000, 0, R, 0x5652_ed02_4ac0, 1),
            (4_542_000, 0, RW, 16, 4096),
        ]
    );
    let why = [
        ("the operation is none of MPI's", vec![5]),
        ("the request reaches past the end of the address space", vec![6]),
        ("the address is no hexadecimal number", vec![7]),
    ];
    assert_eq!(skipped(&summary), why);
    assert_eq!(left_out(&summary), [("the request is for no bytes", vec![4])]);
    assert_eq!(detected(&text[..120], Format::Mpi).0.len(), 3);
}

#[test]
fn arc() {
    let text = b"230027 8 0 0\n1842745 64 0 1\n1 0 0 2\n18446744073709551615 8 0 3\n1 2 3\n5 1 0 4\r\n36028797018963968 8 0 5\n6 1 0 6\n";
    let (events, summary) = read("P9.lis", text, &ReadOptions::of(Format::Arc));
    let expected = [(230_027 * 512, 4096), (1_842_745 * 512, 32768), (2560, 512), (3072, 512)];
    assert_eq!(facts(&events), expected.map(|(address, length)| (0, 0, RW, address, length)));
    let why = [
        ("the request is for no bytes", vec![3]),
        ("the request reaches past the end of the address space", vec![4, 7]),
        ("it has not four fields", vec![5]),
    ];
    assert_eq!(skipped(&summary), why);
    // OLTP counts pages, and one may say so.
    let (events, summary) = read("OLTP.lis", b"3 2 0 0\n", &ReadOptions::default());
    assert_eq!(facts(&events), [(0, 0, RW, 12288, 8192)]);
    assert!(
        summary.understood.contains("blocks of 4096 bytes (pages, by the name of the file)"),
        "{}",
        summary.understood
    );
    let block = ReadOptions::default().with_block(BlockSize::new(1024).unwrap());
    assert_eq!(facts(&read("OLTP.lis", b"3 2 0 0\n", &block).0), [(0, 0, RW, 3072, 2048)]);
}

#[test]
fn lirs() {
    let (events, summary) = detected(b"2819\n85\n*\n560 \n-1\n2819\n0\n1\n2\n3\n4\n5\n6\n", Format::Lirs);
    let expected = [2819, 85, 560, 2819, 0, 1, 2, 3, 4, 5, 6];
    assert_eq!(facts(&events), expected.map(|block| (0, 0, RW, block * 4096, 4096)));
    assert_eq!((summary.other, skipped(&summary)), (1, vec![("it is no block number", vec![5])]));
}

#[test]
fn spc() {
    // Example lines in the form of SPC's document: opcodes in either case, further fields allowed.
    let text = b"0,20941264,8192,W,0.551706\n0,20939840,8192,w,0.554041,x,y\n1,3072,512,r,0.6\n1,3072,0,r,0.6\n1,3072,512,X,0.6\n\
                 1,99999999999999999,512,R,0.7\n";
    let (events, summary) = read("x", text, &ReadOptions::of(Format::Spc));
    assert_eq!(
        facts(&events),
        [
            (551_706_000, 0, W, 20_941_264 * 512, 8192),
            (554_041_000, 0, W, 20_939_840 * 512, 8192),
            (600_000_000, 0, R, DISK + 3072 * 512, 512),
        ]
    );
    let why = [
        ("the request is for no bytes", vec![4]),
        ("the operation is neither R nor W", vec![5]),
        ("the request lies past the end of any device", vec![6]),
    ];
    assert_eq!(skipped(&summary), why);
    assert_eq!(detected(&text[..58], Format::Spc).0.len(), 2);
}

#[test]
fn msr() {
    let text = b"128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,0,Write,2822144,4096,1000\n\
                 128166372026382245,hm,1,Read,0,512,1\n128166372026382245,hm,1,Erase,0,512,1\n1,2\n";
    let (events, summary) = read("hm_1.csv", text, &ReadOptions::of(Format::Msr));
    assert_eq!(
        facts(&events),
        [
            (12_816_637_200_306_162_900, 0, R, 383_496_192, 32768),
            (12_816_637_201_638_215_500, 0, W, DISK + 2_822_144, 4096),
            (12_816_637_202_638_224_500, 0, R, 0, 512),
        ]
    );
    let why = [("the type is neither Read nor Write", vec![4]), ("it has not seven fields", vec![5])];
    assert_eq!(skipped(&summary), why);
    let with_header = [b"Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n", &text[..49]].concat();
    assert_eq!(detected(&with_header, Format::Msr).0.len(), 1);
}

#[test]
fn blkparse() {
    let text = b"  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  A   W 223490 + 8 <- (8,1) 223426
  8,0    3        3     0.000002197   697  Q   W 223490 + 8 [kjournald]
  8,0    0        0     0.000003000     0  m   N cfq697 insert_request
  8,0    3        4     0.000010000   697  P   N [kjournald]
  8,0    3        5     0.000011000   697  U   N [kjournald] 1
  8,16   1       11     0.009507758   698  Q  RA 56 + 16 [name with blanks]
  8,0    1       12     0.010000000   697  Q FWS [jbd2/sda1-8]
  8,0    1       13     0.010000000   697  Q  DS 4096 + 8 [fstrim]
  8,0    1       14     0.010000001   697  Q FWFSM 4096 + 8 [jbd2/sda1-8]
  8,0    1       14     0.01000000x   697  Q   W 4096 + 8 [jbd2/sda1-8]
  8,0    1       15     0.010000001   697  Q   W 4096 + big [jbd2/sda1-8]
garbage
CPU0 (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:           7,      128KiB
 Read Dispatches:        0,        0KiB\t Write Dispatches:        7,      128KiB

Total (8,0):
Throughput (R/W): 0KiB/s / 575KiB/s
Events (8,0): 90 entries
Skips: 0 forward (0 -   0.0%)
";
    let (events, summary) = read("sda.txt", text, &ReadOptions::of(Format::Blkparse));
    assert_eq!(
        facts(&events),
        [
            (2197, 0, W, 223_490 * 512, 4096),
            (9_507_758, 1, R, DISK + 56 * 512, 8192),
            (10_000_001, 0, W, 4096 * 512, 4096),
        ]
    );
    let why = [
        ("cpu, sequence or time is no number", vec![11]),
        ("sector or count is no number", vec![12]),
        ("it begins with no device", vec![13]),
    ];
    assert_eq!(skipped(&summary), why);
    let why = [
        ("the action is not Q: something that was asked for before", vec![1, 2, 4]),
        ("the request is for no sectors", vec![8]),
        ("the request discards, it moves no data", vec![9]),
    ];
    assert_eq!(left_out(&summary), why);
    assert_eq!(detected(&text[..700], Format::Blkparse).0.len(), 3);
    // Completions alone are no requests, and that is said.
    let error = try_read("c.txt", b"8,0 1 1 0.5 7 C W 8 + 8 [0]\n", &ReadOptions::of(Format::Blkparse)).unwrap_err();
    assert!(error.to_string().starts_with("c.txt, line 1: no request in it: the action is not Q"), "{error}");
}

#[test]
fn address() {
    let text =
        b"s 0x1fffff50 1\nl 0x3fffffff 24 200 1200\nl 0x12 3\nl 0x10 x\nz 0x10 1\nl 1f 1\nl 0x10 1 2\nl 0x11 0\n";
    let (events, summary) = read("gcc.trace", text, &ReadOptions::of(Format::Address));
    assert_eq!(
        facts(&events),
        [(0, 0, W, 0x1fff_ff50, 1), (0, 0, R, 0x3fff_ffff, 1), (0, 0, R, 18, 1), (0, 0, R, 17, 1)]
    );
    let why = [
        ("the address is not followed by one number or three", vec![4, 7]),
        ("the access is neither a load (l) nor a store (s)", vec![5]),
        ("the address is no hexadecimal number with 0x", vec![6]),
    ];
    assert_eq!(skipped(&summary), why);
    assert_eq!(detected(&text[..40], Format::Address).0.len(), 2);
    let block = ReadOptions::of(Format::Address).with_block(BlockSize::new(64).unwrap());
    assert_eq!(facts(&read("x", &text[..40], &block).0)[0].4, 64);
}

#[test]
fn raw_keys() {
    let keys = [7_u64, u64::MAX, 7, 1 << 40, 7];
    let wide: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let big_endian: Vec<u8> = keys.iter().flat_map(|key| key.to_be_bytes()).collect();
    let expected: Vec<_> = [0, 1, 0, 2, 0].map(|object| (0, 0, RW, object * 4096, 4096)).into();
    for bytes in [&wide, &big_endian] {
        assert_eq!(facts(&read("k", bytes, &ReadOptions::of(Format::U64)).0), expected);
    }
    let narrow: Vec<u8> = [7_u32, 9, 7, u32::MAX, 7].iter().flat_map(|key| key.to_le_bytes()).collect();
    assert_eq!(facts(&read("k", &narrow, &ReadOptions::of(Format::U32)).0), expected);
    let block = ReadOptions::of(Format::U32).with_block(BlockSize::new(512).unwrap());
    assert_eq!(facts(&read("k", &narrow, &block).0)[1], (0, 0, RW, 512, 512));
    let error = try_read("k", &narrow[1..], &ReadOptions::of(Format::U32)).unwrap_err().to_string();
    assert!(error.contains("the last record has 3 of 4 bytes"), "{error}");
}

/// Returns a record of HP's traces: type and version, time, bytes, block, device, flags.
fn srt_record(kind: u32, version: u32, [sec, usec, bytes, block, device, flags]: [u32; 6]) -> Vec<u8> {
    let extra = usize::from(version >= 4) + usize::from(kind == 4);
    let size = 52 + 4 * extra as u32;
    let mut words = vec![size, version << 16 | kind, sec, usec, 10, 20, bytes, block, device, 1, 77, flags, 3];
    words.resize(13 + extra, 9);
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

#[test]
fn srt() {
    let records = [
        srt_record(1, 4, [1, 500, 8192, 100, 0x0101_0200, 1]),
        srt_record(1, 4, [1, 600, 1024, 7, 0x0101_0300, 0x100]),
        srt_record(4, 4, [1, 700, 1024, 7, 0x0101_0300, 0]),
        srt_record(1, 4, [2, 0, 8192, 108, 0x0101_0200, 0]),
        srt_record(1, 3, [3, 0, 0, 0, 0x0101_0200, 0]),
    ]
    .concat();
    let expected =
        [(S + 500_000, 0, R, 102_400, 8192), (S + 600_000, 0, W, DISK + 7168, 1024), (2 * S, 0, W, 110_592, 8192)];
    let (events, summary) = detected(&records, Format::Srt);
    assert_eq!(facts(&events), expected);
    let why = [("the trace itself marks the request as suspect", vec![3]), ("the request is for no bytes", vec![5])];
    assert_eq!(left_out(&summary), why);
    let with_text = [b"tracedate\t= \"Sat Apr 18 00:00:00 1992\";\n\x0c", &records[..]].concat();
    let (events, summary) = detected(&with_text, Format::Srt);
    assert_eq!((facts(&events), summary.other), (expected.to_vec(), 1));
    let half = ReadOptions::of(Format::Srt).with_block(BlockSize::new(512).unwrap());
    assert_eq!(facts(&read("x", &records, &half).0)[0].3, 51_200);
    // An error names the place of a truncated or unreadable record.
    let error = try_read("c.srt", &records[..records.len() - 1], &ReadOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("c.srt, record 4, byte ") && error.contains("has 51 of 52 bytes"), "{error}");
    let error =
        try_read("c.srt", &[&records[..], &[1; 8]].concat(), &ReadOptions::of(Format::Srt)).unwrap_err().to_string();
    assert!(error.contains("a record of 16843009 bytes"), "{error}");
}

#[test]
fn httpd_common_and_combined() {
    let text = br#"a - - [01/Aug/1995:00:00:01 -0400] "GET /x.gif HTTP/1.0" 200 100
b - - [01/Aug/1995:00:00:02 -0400] "GET /y "z".html" 200 4097
a - - [01/Aug/1995:00:00:03 -0400] "GET /x.gif HTTP/1.0" 200 5000 "http://from/ here" "Mozilla/5.0 (X \"y\")"
a - - [01/Aug/1995:00:00:04 -0400] "GET /x.gif HTTP/1.0" 304 0
a - - [01/Aug/1995:00:00:05 -0400] "POST /x.gif HTTP/1.0" 200 9999
a - - [01/Aug/1995:00:00:06 -0400] "GET /none HTTP/1.0" 200 -
a - - [01/Aug/1995:00:00:07 -0400] "GET /x.gif HTTP/1.0" 404 -
a - - [99/Aug/1995:00:00:08 -0400] "GET /x.gif HTTP/1.0" 200 1
a - - "GET /x.gif HTTP/1.0" 200 1
a - - [01/Aug/1995:00:00:09 -0400] "GET /x.gif HTTP/1.0" 200
"#;
    let start = 807_249_601 * S;
    let (events, summary) = read("log", text, &ReadOptions::of(Format::Httpd));
    assert_eq!(facts(&events), [(start, 0, R, 0, 5000), (start + S, 1, R, 8192, 4097), (start + 2 * S, 0, R, 0, 5000)]);
    let why = [
        ("the date is not like 01/Jul/1995:00:00:01 -0400", vec![8]),
        ("it has no date in brackets", vec![9]),
        ("it does not end with a status and a length", vec![10]),
    ];
    assert_eq!(skipped(&summary), why);
    let why = [
        ("the answer is not the file (status 200)", vec![4, 7]),
        ("the method is not GET", vec![5]),
        ("nothing was ever sent of the file", vec![6]),
    ];
    assert_eq!(left_out(&summary), why);
    let options = ReadOptions { not_modified: true, ..ReadOptions::of(Format::Httpd) };
    assert_eq!(facts(&read("log", text, &options).0)[3], (start + 3 * S, 0, R, 0, 5000));
    assert_eq!(detected(&text[..200], Format::Httpd).0.len(), 2);
}

#[test]
fn httpd_tab_separated() {
    let text = b"host\tlogname\ttime\tmethod\turl\tresponse\tbytes\nh1\t-\t804571201\tGET\t/a b\t200\t6245\t\t\n\
                 h2\t-\t804571206\tGET\t/c\t200\t3985\t\t\nh1\t-\t804571207\tGET\t/a b\t304\t0\t\t\nh1\t-\tnow\tGET\t/a\t200\t1\n";
    let (events, summary) = read("x.tsv", text, &ReadOptions::of(Format::Httpd));
    assert_eq!(facts(&events), [(804_571_201 * S, 0, R, 0, 6245), (804_571_206 * S, 1, R, 8192, 3985)]);
    assert_eq!(skipped(&summary), [("the time is no number", vec![5])]);
    assert!(summary.understood.contains("tab-separated"), "{}", summary.understood);
}

#[test]
fn mambo() {
    let text = b"2 2 7\n5 /etc/\n9 /a b/name\n0 1 10 0 0.0 0.0 0 0\n2 1 10 1 0.5 0.1 4096 8192\n2 1 11 0 1.5 0.1 0 100\n\
                 3 1 10 0 1.6 0.1 0 99999\n2 1 10 1 2 0.1 12288 1\n2 1 10 7 2 0.1 0 1\n2 1 10 0 2 0.1 18446744073709551615 1\nx\n";
    let (events, summary) = read("HTTPD.trace", text, &ReadOptions::of(Format::Mambo));
    // File 1 is asked for first: 12289 bytes of it; then file 0.
    assert_eq!(facts(&events), [(S / 2, 0, R, 4096, 8192), (S + S / 2, 1, R, 16384, 100), (2 * S, 0, R, 12288, 1)]);
    let why = [
        ("there is no file of that number", vec![9]),
        ("the request reaches past the end of the address space", vec![10]),
        ("it has not eight fields", vec![11]),
    ];
    assert_eq!(skipped(&summary), why);
    assert_eq!(left_out(&summary), [("the operation is not a read", vec![4, 7])]);
    assert_eq!(detected(&text[..100], Format::Mambo).0.len(), 2);
    let error = try_read("m", b"1 5 9\nno name\n", &ReadOptions::of(Format::Mambo)).unwrap_err().to_string();
    assert!(error.starts_with("m, line 2: not the length and the name of file 0 of 5"), "{error}");
}

fn oracle_record(time: u32, object: u64, size: u32, next: i64) -> Vec<u8> {
    [&time.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes(), &next.to_le_bytes()].concat()
}

#[test]
fn oraclegeneral() {
    let all = [
        oracle_record(7, 1 << 40, 100, 3),
        oracle_record(7, 3, 4096, -1),
        oracle_record(8, 1 << 40, 5000, -1),
        oracle_record(9, 4, 1, -1),
    ];
    let (events, summary) = detected(&all.concat(), Format::OracleGeneral);
    let expected =
        [(7 * S, 0, RW, 0, 100), (7 * S, 0, RW, 8192, 4096), (8 * S, 0, RW, 0, 5000), (9 * S, 0, RW, 12288, 1)];
    assert_eq!(facts(&events), expected);
    assert!(summary.understood.contains("3 objects"), "{}", summary.understood);
    let cut = &all.concat()[..90];
    let error = try_read("o.bin", cut, &ReadOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("o.bin, record 3, byte 72: the last record has 18 of 24 bytes"), "{error}");
    let odd = [&all.concat()[..], &oracle_record(9, 4, 1, -2), &oracle_record(9, 4, 0, -1)].concat();
    let (_, summary) = read("o.bin", &odd, &ReadOptions::of(Format::OracleGeneral));
    assert_eq!(skipped(&summary), [("the next access is neither a number nor -1", vec![5])]);
    assert_eq!(left_out(&summary), [("the request is for no bytes", vec![6])]);
}

#[test]
fn objects() {
    let text = b"1 0 68\n2 1 7454\n2.5 0 4097\n3 5 0\n4 x 1\n5 7 18446744073709551615\n6 8 1\n";
    let (events, summary) = read("request.trace", text, &ReadOptions::of(Format::Objects));
    // Each as much as it asks for, in the place of the largest.
    let expected = [(S, 0, 68), (2 * S, 8192, 7454), (2 * S + S / 2, 0, 4097), (6 * S, 16384, 1)];
    assert_eq!(facts(&events), expected.map(|(time, address, length)| (time, 0, RW, address, length)));
    assert_eq!(
        skipped(&summary),
        [("a field is no number", vec![5]), ("the object does not fit into the address space", vec![6])]
    );
    assert_eq!(detected(&text[..30], Format::Objects).0.len(), 3);
}

/// A line of `objects`, and the object and the bytes of it if it is a request.
fn objects_line() -> impl Strategy<Value = (String, Option<(u64, u64)>)> {
    let numbers = || (0_u64..40, 1_u64..20_000);
    let request = |line: fn(u64, u64) -> String| move |(id, bytes)| (line(id, bytes), Some((id, bytes)));
    let other = |line: &'static str| (line.to_owned(), None);
    prop_oneof![
        40 => numbers().prop_map(request(|id, bytes| format!("7 {id} {bytes}\n"))),
        4 => numbers().prop_map(request(|id, bytes| format!("17.25 {id}  {bytes}\r\n"))),
        1 => numbers().prop_map(request(|id, bytes| format!(" 7\t{id} \t{bytes} \n"))),
        1 => numbers().prop_map(request(|id, bytes| format!("99999999999999999999 {id} {bytes}\n"))),
        1 => numbers().prop_map(request(|id, bytes| format!("1. {id} 000000000000000000000000{bytes}\n"))),
        1 => prop::sample::select(vec!["\n", "7 1 0\n", "x 1 2\n", "7 1\n", "7 1 2 3\n", "1.x 1 2\n", "7 99999999999999999999 1\n"])
            .prop_map(other),
    ]
}

proptest! {
    #[test]
    fn objects_in_memory_are_those_of_their_lines(
        lines in prop::collection::vec(objects_line(), 0..400), ends_without_newline in any::<bool>()
    ) {
        // So that less than half is wrong.
        let first = (0..400).map(|at| (format!("1 {at} 1\n"), Some((at, 1))));
        let lines: Vec<_> = first.chain(lines).collect();
        let mut text: String = lines.iter().map(|(line, _)| line.as_str()).collect();
        if ends_without_newline {
            text.truncate(text.trim_end().len());
        }
        let asked: Vec<(u64, u64)> = lines.into_iter().filter_map(|(_, asked)| asked).collect();
        let mut largest = HashMap::<u64, u64>::new();
        asked.iter().for_each(|&(id, bytes)| {
            let known = largest.entry(id).or_default();
            *known = bytes.max(*known);
        });
        let (mut starts, mut next) = (HashMap::new(), 0);
        let ranges: Vec<_> = asked.iter().map(|&(id, bytes)| {
            let start = *starts.entry(id).or_insert_with(|| {
                let start = next;
                next += largest[&id].div_ceil(4096);
                start
            });
            (start, bytes.div_ceil(4096))
        }).collect();
        let reader = traces::read("o", Cursor::new(text), &ReadOptions::of(Format::Objects)).unwrap();
        let trace = Trace::load("o", reader, false).unwrap();
        let found: Vec<_> = trace.processes[0].steps.iter().map(|step| (step.range().start(), step.range().pages())).collect();
        prop_assert_eq!(found, ranges);
        prop_assert_eq!(trace.summary.events, asked.len() as u64);
    }

    #[test]
    fn keys_in_memory_are_those_of_their_records(keys in prop::collection::vec(0_u32..90, 1..700)) {
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let mut seen = Vec::new();
        let places: Vec<u64> = keys.iter().map(|key| {
            let place = seen.iter().position(|known| known == key);
            place.unwrap_or_else(|| { seen.push(*key); seen.len() - 1 }) as u64
        }).collect();
        let options = ReadOptions::of(Format::U32);
        let events: Result<Vec<Event>, _> = traces::read("k", Cursor::new(bytes.clone()), &options).unwrap().collect();
        let loaded = Trace::load("k", traces::read("k", Cursor::new(bytes), &options).unwrap(), false);
        let (Ok(events), Ok(loaded)) = (events, loaded) else { return Ok(()) };
        let starts = |list: &[Event]| -> Vec<u64> { list.iter().map(|event| event.action.spans()[0].address / 4096).collect() };
        prop_assert_eq!(starts(&events), &places[..]);
        prop_assert_eq!(loaded.processes[0].steps.iter().map(|step| step.range().start()).collect::<Vec<_>>(), places);
    }
}

/// A field of a csv: mostly what is wanted there, and sometimes not.
fn csv_field(usual: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    const ODD: [&str; 16] = [
        "",
        "-",
        " 7",
        "7 ",
        "\"7\"",
        "\"0\"",
        "007",
        "0x1f",
        "0x",
        "1.5",
        "1.5e3",
        "99999999999999999999",
        "18446744073709551615",
        "x",
        "\r",
        "1,2",
    ];
    prop_oneof![12 => prop::sample::select(usual), 1 => prop::sample::select(&ODD[..])]
}

fn csv_line() -> impl Strategy<Value = String> {
    let fields = (
        csv_field(&["5", "6", "17.25", "1700000000000000000"]),
        csv_field(&["0x7f0010002000", "4096", "0", "123456789"]),
        csv_field(&["1", "4096", "8192", "70000"]),
        csv_field(&["r", "w", "read", "WRITE"]),
        csv_field(&["1", "22", "ab"]),
        csv_field(&["0", "0", "0", "1", "2"]),
    );
    let ends = prop::sample::select(vec!["\n", "\n", "\r\n", ",more\n", ",\"a, b\"\n"]);
    let usual = (fields, ends).prop_map(|((time, address, length, op, client, process), end)| {
        format!("{time},{address},{length},{op},{client},{process}{end}")
    });
    prop_oneof![20 => usual, 1 => prop::sample::select(vec!["\n", "# 1,2\n", "1,2\n", " \n"]).prop_map(str::to_owned)]
}

/// Reads events one by one.
struct Single<R>(R);

impl<R: Reader> Iterator for Single<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl<R: Reader> Reader for Single<R> {
    fn summary(&self) -> &Summary {
        self.0.summary()
    }
}

proptest! {
    #[test]
    fn csv_in_memory_is_that_of_its_lines(
        lines in prop::collection::vec(csv_line(), 0..300),
        columns in prop::sample::select(vec![
            "time=1,addr=2,len=3,op=4,client=5,process=6", "addr=2,len=3", "addr=2:sector", "time=1,addr=2:page,len=2:4,process=6",
            "addr=3,op=4", "time=1:us,addr=2,client=7",
        ]),
        ends_without_newline in any::<bool>(),
    ) {
        // So that less than half is wrong.
        let first = (0..300).map(|at| format!("5,{},1,r,1,0,2\n", at * 4096));
        let mut text: String = first.chain(lines).collect();
        if ends_without_newline {
            text.truncate(text.trim_end().len());
        }
        let options = ReadOptions { columns: Some(columns.parse().unwrap()), ..ReadOptions::of(Format::Csv) };
        let reader = || traces::read("c", Cursor::new(text.clone()), &options).unwrap();
        let told = |trace: Trace| {
            let steps: Vec<Vec<_>> = trace.processes.iter().map(|process| process.steps.iter().collect()).collect();
            (steps, trace.summary.to_string())
        };
        let many = Trace::load("c", reader(), false).map(told).map_err(|error| error.to_string());
        let single = Trace::load("c", Single(reader()), false).map(told).map_err(|error| error.to_string());
        prop_assert_eq!(many, single);
    }
}

#[test]
fn mooncake() {
    let text = br#"{"timestamp": 0, "input_length": 4, "output_length": 6, "hash_ids": [10, 20]}
{"timestamp": 1.5, "hash_ids": [10, 30], "more": {"a": [1]}}
{"timestamp": 2, "hash_ids": []}
{"timestamp": 2, "hash_ids": [-1]}
{"timestamp": 2
"#;
    let (events, summary) = read("m.jsonl", text, &ReadOptions::of(Format::Mooncake));
    const M: u64 = 1 << 20;
    let expected = [(0, 0), (0, M), (1_500_000, 0), (1_500_000, 2 * M)];
    assert_eq!(facts(&events), expected.map(|(time, address)| (time, 0, RW, address, M)));
    assert_eq!(skipped(&summary), [("it is no JSON object with `hash_ids`", vec![4, 5])]);
    assert_eq!(left_out(&summary), [("the request uses no blocks", vec![3])]);
    let small = ReadOptions::default().with_block("page".parse().unwrap());
    assert_eq!(facts(&read("m", &text[..140], &small).0)[1].3, 4096);
}
