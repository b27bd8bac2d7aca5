//! Traces: what it takes to generate, read and write them, to replay them by each policy, and to record one.
//!
//! `cargo bench -p benches --bench traces`. Figures are of one event or request. Files are in a temporary folder, so they are read
//! from the cache of the system.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flate2::bufread::GzDecoder;
use mrrc::cost::Linear;
use mrrc::policy::PolicyKind;
use mrrc::{Access, Config};
use std::fs;
use std::hint::black_box;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use traces::generate::{Workload, zipf};
use traces::write::{self, Form};
use traces::{Event, Format, ReadOptions, Span, Trace};
use traces_record::layout::{HEAD, Operation, RECORD};
use traces_record::{Recorder, Source};
use tracesim::bound::lower;
use tracesim::footprint::Footprint;
use tracesim::policies::{PolicyEntry, builtin};
use tracesim::simulate::{Recency, replay};

const EVENTS: u64 = 20_000;

fn workload() -> Workload {
    Workload::Zipf(zipf::Options { objects: 2_000, requests: EVENTS, ..zipf::Options::default() })
}

fn generators(c: &mut Criterion) {
    let mut group = c.benchmark_group("generate");
    group.throughput(Throughput::Elements(1));
    for workload in Workload::all() {
        let mut events = workload.generate().expect("the usual options");
        group.bench_function(workload.name(), |b| {
            b.iter(|| {
                if events.next().is_none() {
                    events = workload.generate().expect("the usual options");
                }
            });
        });
    }
    group.finish();
}

/// The same requests in a file of every kind: what writes them and what is written.
fn files(folder: &Path) -> Vec<(&'static str, PathBuf)> {
    let mut files = Vec::new();
    for (name, form, file) in [
        ("pages", Form::Pages, "pages.csv"),
        ("pages, gzip", Form::Pages, "pages.csv.gz"),
        ("pages, zstd", Form::Pages, "pages.csv.zst"),
        ("csv", Form::Csv, "events.csv"),
        ("registrations", Form::Registrations, "registrations.csv"),
        ("registrations, binary", Form::RegistrationsBinary, "recording.reg"),
    ] {
        let file = folder.join(file);
        let mut reader = workload().generate().expect("good options");
        write::copy(&mut *reader, write::create(&file, form).expect("it can be made")).expect("it is written");
        files.push((name, file));
    }
    // Formats of others, as their programs write them.
    let line = |make: &dyn Fn(u64) -> String| (0..EVENTS).map(make).collect::<String>();
    for (name, file, text) in [
        ("spc", "disk.spc", line(&|n| format!("{},{},{},r,{}.5\n", n % 3, n % 4999 * 8, 4096, n / 10))),
        (
            "msr",
            "disk.msr.csv",
            line(&|n| format!("{},host,0,Read,{},4096,100\n", 128_166_372_003_061_629 + n, n % 4999 * 4096)),
        ),
        (
            "httpd",
            "access_log",
            line(&|n| {
                let second = n % 60;
                format!(
                    "host{} - - [01/Jul/1995:00:00:{second:02} -0400] \"GET /{}.gif HTTP/1.0\" 200 {}\n",
                    n % 99,
                    n % 999,
                    500 + n % 999
                )
            }),
        ),
        ("objects", "objects.trace", line(&|n| format!("{n} {} {}\n", n % 999, 1_000 + n % 7))),
    ] {
        let file = folder.join(file);
        fs::write(&file, text).expect("it is written");
        files.push((name, file));
    }
    let mut bytes = Vec::new();
    for n in 0..EVENTS {
        bytes.extend((n as u32).to_le_bytes());
        bytes.extend((n % 999).to_le_bytes());
        bytes.extend((4096 + (n % 7) as u32).to_le_bytes());
        bytes.extend((-1_i64).to_le_bytes());
    }
    let file = folder.join("cache.oracleGeneral.bin");
    fs::write(&file, bytes).expect("it is written");
    files.push(("oraclegeneral", file));
    files
}

fn readers(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut group = c.benchmark_group("read");
    group.throughput(Throughput::Elements(EVENTS));
    for (name, file) in files(folder.path()) {
        let read = || {
            let reader = traces::open(&file, &ReadOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
            reader.filter(|event| black_box(event).is_ok()).count()
        };
        assert_eq!(read() as u64, EVENTS, "{name}");
        group.bench_function(name, |b| b.iter(read));
    }
    group.finish();
}

fn writers(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut group = c.benchmark_group("write");
    group.throughput(Throughput::Elements(EVENTS));
    let event = |n: u64| Event::request(Span { address: n % 999 * 8192, length: 5000 }, Access::LOCAL);
    for (name, form) in
        [("pages", Form::Pages), ("csv", Form::Csv), ("registrations, binary", Form::RegistrationsBinary)]
    {
        let file = folder.path().join("written");
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut writer = write::create(&file, form).expect("it can be made");
                (0..EVENTS).for_each(|n| writer.write(&event(n)).expect("there is room"));
                writer.finish().expect("there is room")
            });
        });
    }
    group.finish();
}

fn policies(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay");
    group.throughput(Throughput::Elements(EVENTS)).sample_size(10);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("pages.csv");
    let mut reader = workload().generate().expect("good options");
    write::copy(&mut *reader, write::create(&file, Form::Pages).expect("it can be made")).expect("it is written");
    let reader = traces::open(&file, &ReadOptions::default()).expect("it was written");
    let trace = Trace::load("zipf", reader, false).expect("it was written");
    group.bench_function("footprint", |b| b.iter(|| Footprint::of(&trace)));
    let capacity = Footprint::of(&trace).pages / 10;
    let config = Config::new(capacity);
    for policy in builtin() {
        group.bench_function(BenchmarkId::from_parameter(&policy), |b| {
            b.iter(|| {
                replay(&trace, &policy, &config, Recency::Exact, None).expect("it is one of the usual caches").counters
            });
        });
    }
    let probation = PolicyKind::Probation.into();
    group.bench_function("probation, hits late", |b| {
        b.iter(|| replay(&trace, &probation, &config, Recency::Deferred, None).expect("a usual cache").counters);
    });
    // Addresses of a program: pages are counted where they are, and with widening neighbours are learned.
    let events = "buffers:pattern=log,requests=20000".parse::<Workload>().expect("a workload").generate();
    let trace = Trace::load("buffers", events.expect("good options"), false).expect("it is generated");
    let widening = "widening".parse::<PolicyEntry>().expect("a policy");
    group.bench_function("widening, log", |b| {
        b.iter(|| replay(&trace, &widening, &config, Recency::Exact, None).expect("a usual cache").counters);
    });
    group.finish();
}

/// The inner loops around a replay, with more objects than the processor's caches hold.
fn around_a_replay(c: &mut Criterion) {
    let requests = 1_000_000;
    let options = zipf::Options { objects: 100_000, requests, ..zipf::Options::default() };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("zipf.oracleGeneral.bin");
    let mut bytes = Vec::new();
    for event in Workload::Zipf(options).generate().expect("good options") {
        for span in event.expect("it is generated").action.spans() {
            bytes.extend(0_u32.to_le_bytes());
            bytes.extend(span.address.to_le_bytes());
            bytes.extend((span.length as u32).to_le_bytes());
            bytes.extend((-1_i64).to_le_bytes());
        }
    }
    fs::write(&file, bytes).expect("it is written");
    let load = || {
        let reader = traces::open(&file, &ReadOptions::of(Format::OracleGeneral)).expect("it was written");
        Trace::load("zipf", reader, false).expect("it was written")
    };
    let mut group = c.benchmark_group("million");
    group.throughput(Throughput::Elements(requests)).sample_size(10);
    // Objects are numbered and laid out.
    group.bench_function("load", |b| b.iter(load));
    let trace = load();
    group.bench_function("steps", |b| b.iter(|| trace.processes[0].steps.iter().map(|step| step.range().end()).max()));
    group.bench_function("footprint", |b| b.iter(|| Footprint::of(&trace)));
    let pages = Footprint::of(&trace).pages;
    let capacities: Vec<u64> = [1, 2, 5, 10, 20, 30, 40, 50].map(|percent| pages * percent / 100).into();
    // Last uses, and the knapsack.
    group.bench_function("bound", |b| b.iter(|| lower(&trace, &capacities, &Linear::PAPER)));
    group.finish();
}

/// Files of a million requests read into memory, and compressed ones only decompressed.
fn reading(c: &mut Criterion) {
    let requests = 1_000_000;
    let options = zipf::Options { objects: 100_000, requests, ..zipf::Options::default() };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut group = c.benchmark_group("million/read");
    group.throughput(Throughput::Elements(requests)).sample_size(10);
    for (name, form, file) in [
        ("registrations-binary", Form::RegistrationsBinary, "recording.reg"),
        ("pages", Form::Pages, "pages.csv"),
        ("csv", Form::Csv, "events.csv"),
        ("csv, gzip", Form::Csv, "events.csv.gz"),
        ("csv, zstd", Form::Csv, "events.csv.zst"),
    ] {
        let file = folder.path().join(file);
        let mut reader = Workload::Zipf(options.clone()).generate().expect("good options");
        write::copy(&mut *reader, write::create(&file, form).expect("it can be made")).expect("it is written");
        group.bench_function(name, |b| {
            b.iter(|| {
                let reader = traces::open(&file, &ReadOptions::default()).expect("it was written");
                Trace::load("zipf", reader, false).expect("it was written")
            });
        });
    }
    // Formats of others: the objects are the places of the first. Lines are read twice, keys once.
    let events = Workload::Zipf(options).generate().expect("good options");
    let asked: Vec<Span> = events.flat_map(|event| event.expect("it is generated").action.spans().to_vec()).collect();
    let lines: String = asked.iter().map(|span| format!("1 {} {}\n", span.address, span.length)).collect();
    let keys: Vec<u8> = asked.iter().flat_map(|span| span.address.to_le_bytes()).collect();
    for (format, bytes) in [(Format::Objects, lines.as_bytes()), (Format::U64, &keys)] {
        let file = folder.path().join(format.name());
        fs::write(&file, bytes).expect("it is written");
        group.bench_function(format.name(), |b| {
            b.iter(|| {
                let reader = traces::open(&file, &ReadOptions::of(format)).expect("it was written");
                Trace::load("zipf", reader, false).expect("it was written")
            });
        });
    }
    let open = |file: &str| BufReader::new(fs::File::open(folder.path().join(file)).expect("it was written"));
    group.bench_function("csv, gzip, decompressed only", |b| {
        b.iter(|| io::copy(&mut GzDecoder::new(open("events.csv.gz")), &mut io::sink()).expect("it is whole"));
    });
    group.bench_function("csv, zstd, decompressed only", |b| {
        b.iter(|| {
            let mut decoder = zstd::Decoder::with_buffer(open("events.csv.zst")).expect("it begins");
            io::copy(&mut decoder, &mut io::sink()).expect("it is whole")
        });
    });
    group.finish();
}

/// One event of a program that is recorded. The file is begun anew before it is full.
fn recorder(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("recording.reg");
    let room = 1 << 20;
    let begin = || {
        let _ = fs::remove_file(&file);
        Recorder::open(&file, (HEAD + room * RECORD) as u64, Source::Verbs).expect("it can be made")
    };
    let mut group = c.benchmark_group("record");
    group.throughput(Throughput::Elements(1));
    group.bench_function("event", |b| {
        b.iter_custom(|n| {
            let mut took = std::time::Duration::ZERO;
            let mut left = n;
            while left > 0 {
                let recorder = begin();
                let now = left.min(room as u64);
                let start = std::time::Instant::now();
                (0..now).for_each(|n| recorder.record(Operation::Acquire, 3, n << 12, 4096));
                took += start.elapsed();
                assert_eq!(recorder.state().left_out(), 0);
                left -= now;
            }
            took
        });
    });
    group.finish();
}

criterion_group! {
    name = traces_;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = generators, readers, writers, policies, around_a_replay, reading, recorder
}
criterion_main!(traces_);
