//! The key-value server without sockets: the store, and sessions over it, from bytes to bytes.
//!
//! `cargo bench -p benches --bench kv`. A session reads requests from memory and its answers are thrown away, so what is measured
//! is parsing, the store and the answer. `side-by-side kv` has the whole server beside memcached.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rdmakv_server::metrics::Counts;
use rdmakv_server::session::{Context, Out, Pause, Session, Settings, Shards, Shared};
use rdmakv_server::store::{Config, Outcome, Store, Terms};
use std::hint::black_box;

const NOW: u64 = 1_700_000_000;
const MEMORY: usize = 64 << 20;
const KEYS: usize = 10_000;
const VALUES: [usize; 3] = [32, 1 << 10, 10 << 10];
/// Requests that arrive together.
const TOGETHER: usize = 16;

fn config() -> Config {
    Config { memory: MEMORY, extra: 0, huge: false, ..Config::default() }
}

/// Keys in an order that no cache of the CPU guesses.
fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("key:{:012}", number.wrapping_mul(7919) % count).into_bytes()).collect()
}

fn set(store: &mut Store, key: &[u8], value: &[u8]) -> Outcome {
    match store.reserve(key, value.len(), 0, 0, NOW) {
        Ok(mut writer) => {
            writer.value().copy_from_slice(value);
            store.publish(writer, Terms::default(), NOW)
        }
        Err(refused) => Outcome::Refused(refused),
    }
}

fn store(c: &mut Criterion) {
    let mut group = c.benchmark_group("store");
    group.throughput(Throughput::Elements(1));
    for length in VALUES {
        let value = vec![b'v'; length];
        // The number that fits without eviction, and thrice that.
        let (fit, many) = (keys((MEMORY / 2 / (length + 100)).min(KEYS)), keys(3 * MEMORY / (length + 100)));
        let mut roomy = Store::new(&config()).expect("there is memory");
        for key in &fit {
            assert!(matches!(set(&mut roomy, key, &value), Outcome::Stored(_)));
        }
        let mut turn = fit.iter().cycle();
        let mut next = || turn.next().expect("there are keys");
        group.bench_function(BenchmarkId::new("get", length), |b| {
            b.iter(|| black_box(roomy.get(next(), true, NOW)).expect("it is there").value.len());
        });
        group.bench_function(BenchmarkId::new("get what is not there", length), |b| {
            b.iter(|| assert!(black_box(roomy.get(b"nothing of that name", true, NOW)).is_none()));
        });
        group.bench_function(BenchmarkId::new("set anew", length), |b| {
            b.iter(|| assert!(matches!(set(&mut roomy, next(), &value), Outcome::Stored(_))));
        });
        let mut full = Store::new(&config()).expect("there is memory");
        for key in &many {
            set(&mut full, key, &value);
        }
        let mut turn = many.iter().cycle();
        group.bench_function(BenchmarkId::new("set that evicts", length), |b| {
            b.iter(|| assert!(matches!(set(&mut full, turn.next().expect("a key"), &value), Outcome::Stored(_))));
        });
    }
    group.finish();
}

/// One session, and what it answers.
struct Talk {
    shared: Shared,
    session: Session,
    counts: Counts,
    out: Out,
}

impl Talk {
    fn new() -> Self {
        let settings = Settings {
            maxbytes: MEMORY as u64,
            threads: 1,
            reqs_per_event: 20,
            cas: true,
            item_max: 1 << 20,
            ..Settings::default()
        };
        let shards = Shards::new(&config(), 1).expect("there is memory");
        let shared = Shared::new(shards, settings, NOW);
        Self { shared, session: Session::default(), counts: Counts::default(), out: Out::default() }
    }

    /// Has all of the input answered; the bytes of the answer.
    fn advance(&mut self, mut input: &[u8]) -> usize {
        let mut answered = 0;
        while !input.is_empty() {
            let mut turns = TOGETHER;
            let mut cx = Context::new(&self.shared, NOW, &mut self.counts, 0);
            let (used, pause) = self.session.advance(input, &mut turns, &mut cx, &mut self.out);
            input = &input[used..];
            let waiting = self.out.waiting();
            answered += waiting;
            self.out.advance(waiting, &self.shared.shards);
            assert!(pause != Pause::Over && (used > 0 || pause != Pause::Input), "it stopped at {input:?}");
        }
        answered
    }
}

/// Requests of one protocol, [`TOGETHER`] of them.
fn requests(protocol: &str, what: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for key in keys(TOGETHER) {
        match (protocol, what) {
            ("text", "get") => bytes.extend([b"get ", &key[..], b"\r\n"].concat()),
            ("meta", "get") => bytes.extend([b"mg ", &key[..], b" v\r\n"].concat()),
            ("text", _) => {
                bytes.extend(
                    [b"set ", &key[..], format!(" 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
                );
            }
            ("meta", _) => {
                bytes.extend([b"ms ", &key[..], format!(" {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat());
            }
            (_, what) => {
                let (code, extras) = if what == "get" { (0, 0) } else { (1, 8) };
                let value = if what == "get" { &[] } else { value };
                bytes.extend([0x80, code, 0, key.len() as u8, extras, 0, 0, 0]);
                bytes.extend((usize::from(extras) + key.len() + value.len()).to_be_bytes()[4..].iter());
                bytes.extend([0; 12]);
                bytes.extend([[0; 8].get(..usize::from(extras)).unwrap_or_default(), &key, value].concat());
            }
        }
    }
    bytes
}

fn sessions(c: &mut Criterion) {
    let mut group = c.benchmark_group(format!("session, {TOGETHER} requests that came together"));
    group.throughput(Throughput::Elements(TOGETHER as u64));
    for length in [32, 1 << 10] {
        let value = vec![b'v'; length];
        for protocol in ["text", "meta", "binary"] {
            let mut talk = Talk::new();
            let sets = requests(protocol, "set", &value);
            let gets = requests(protocol, "get", &value);
            talk.advance(&sets);
            assert!(talk.advance(&gets) > TOGETHER * length, "the {protocol} values come back");
            group.bench_function(BenchmarkId::new(format!("{protocol} get"), length), |b| {
                b.iter(|| talk.advance(&gets))
            });
            group.bench_function(BenchmarkId::new(format!("{protocol} set"), length), |b| {
                b.iter(|| talk.advance(&sets))
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = kv;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = store, sessions
}
criterion_main!(kv);
