//! Conversations, byte for byte, without sockets.

use std::sync::atomic::Ordering::Relaxed;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::metrics::Counts;
use crate::store::{Config, GetTable};

const NOW: u64 = 1_700_000_000;

fn shared(memory: usize) -> Shared {
    let config = Config { memory, huge: false, ..Config::default() };
    let settings = Settings {
        maxbytes: memory as u64,
        threads: 1,
        reqs_per_event: 20,
        cas: true,
        flush: true,
        dump: true,
        watch: true,
        watcher_buffer: 1 << 16,
        item_max: 1 << 20,
        ..Settings::default()
    };
    Shared::new(Shards::new(&config, 1).unwrap(), settings, NOW)
}

/// All that `out` would send, by a socket that takes little at a time; the values go back.
fn drain(out: &mut Out, shards: &Shards) -> Vec<u8> {
    let mut all = Vec::new();
    while !out.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); SLICES];
        let count = out.slices(&mut slices);
        let some: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).take(7001).collect();
        assert!(!some.is_empty() && out.waiting() >= some.len());
        all.extend_from_slice(&some);
        out.advance(some.len(), shards);
    }
    all
}

/// Returns the answers to this input when it comes in pieces of these lengths, at this time.
fn talk_at(shared: &Shared, input: &[u8], mut piece: impl FnMut() -> usize, now: u64) -> Vec<u8> {
    let (mut session, mut counts, mut out, mut answer) =
        (Session::default(), Counts::default(), Out::default(), Vec::new());
    let (mut arrived, mut pending) = (0, Vec::new());
    loop {
        let mut cx = Context::new(shared, now, &mut counts, 0);
        let mut turns = 3;
        let (used, pause) = session.advance(&pending, &mut turns, &mut cx, &mut out);
        pending.drain(..used);
        answer.extend(drain(&mut out, &shared.shards));
        match pause {
            Pause::Over => break,
            Pause::Turn | Pause::Output => continue,
            Pause::Flash => unreachable!("there is no flash"),
            Pause::Input if arrived == input.len() => break,
            Pause::Input => {}
        }
        let next = (arrived + piece().max(1)).min(input.len());
        // As a connection does with a large value.
        if pending.is_empty()
            && let Some(value) = session.direct()
        {
            let part = value.len().min(next - arrived);
            value[..part].copy_from_slice(&input[arrived..arrived + part]);
            session.add_direct(part);
            arrived += part;
            continue;
        }
        pending.extend_from_slice(&input[arrived..next]);
        arrived = next;
    }
    session.close(&shared.shards);
    answer
}

fn talk(shared: &Shared, input: &str) -> String {
    String::from_utf8(talk_at(shared, input.as_bytes(), || usize::MAX / 2, NOW)).unwrap()
}

#[test]
fn get_that_ends_a_listed_item_shows_it() {
    let shared = shared(8 << 20);
    shared.shards.at(0).list_in(GetTable::anonymous(64).unwrap(), 0);
    let value = "v".repeat(COPIED + 1);
    let set = format!("set a 0 0 {}\r\n{value}\r\n", value.len());
    let list = || {
        let mut store = shared.shards.at(0);
        let handle = store.get(b"a", false, NOW).unwrap().handle();
        assert!(store.list(handle, NOW));
    };
    assert_eq!(talk(&shared, &set), "STORED\r\n");
    list();
    let shown = format!("VALUE a 0 {}\r\n{value}\r\nEND\r\n", value.len());
    assert_eq!(talk(&shared, "gat -1 a\r\n"), shown);
    assert_eq!(talk(&shared, "get a\r\n"), "END\r\n");
    talk(&shared, &set);
    list();
    // GAT with an end in 2001.
    let get = b"\x80\x1d\0\x01\x04\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0\x3b\x9a\xca\0a";
    let answer = talk_at(&shared, get, || usize::MAX / 2, NOW);
    assert_eq!(&answer[28..], value.as_bytes());
    let counters = shared.shards.at(0).report(NOW).classes;
    assert_eq!(counters.iter().map(|class| class.counters.touches).sum::<u64>(), 2);
    assert_eq!(talk(&shared, "get a\r\n"), "END\r\n");
    shared.shards.at(0).check().unwrap();
}

#[test]
fn answers_are_those_of_memcached() {
    let shared = shared(8 << 20);
    for (input, answer) in [
        ("set a 5 0 3\r\nabc\r\nget a\r\n", "STORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("get nothing\r\n", "END\r\n"),
        ("bget a none\r\nbget\r\nbgets a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\nERROR\r\nERROR\r\n"),
        ("set a 0 0 2\r\nabcd\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
        ("set a 0 0 1 noreply\r\nx\r\nget a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"),
        ("add a 0 0 1\r\ny\r\nreplace b 0 0 1\r\ny\r\n", "NOT_STORED\r\nNOT_STORED\r\n"),
        (
            "append a 0 0 1\r\ny\r\nprepend a 0 0 1\r\nz\r\nget a\r\n",
            "STORED\r\nSTORED\r\nVALUE a 0 3\r\nzxy\r\nEND\r\n",
        ),
        ("incr a 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("set n 0 0 2\r\n10\r\nincr n 5\r\ndecr n 20\r\n", "STORED\r\n15\r\n0\r\n"),
        ("set n 0 0 20\r\n18446744073709551615\r\nincr n 2\r\n", "STORED\r\n1\r\n"),
        ("incr none 1\r\ntouch none 1\r\ndelete none\r\n", "NOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n"),
        ("cas none 0 0 1 5\r\nx\r\n", "NOT_FOUND\r\n"),
        ("set t 0 -1 1\r\nx\r\nget t\r\n", "STORED\r\nEND\r\n"),
        ("ms m 2 T0 F3\r\nhi\r\nmg m v f t s k Oxy\r\n", "HD\r\nVA 2 f3 t-1 s2 km Oxy\r\nhi\r\n"),
        ("mg none v\r\nmg none v q\r\nmn\r\n", "EN\r\nMN\r\n"),
        ("mg viv v N30 t\r\nmg viv v N30\r\n", "VA 0 t30 W\r\n\r\nVA 0 Z\r\n\r\n"),
        ("md m I T30\r\nmg m v t\r\nmg m\r\nmd m\r\nmd m\r\n", "HD\r\nVA 2 t30 X W\r\nhi\r\nHD Z X\r\nHD\r\nNF\r\n"),
        ("ma c\r\nma c N0 J5 v\r\nma c v D3\r\nma c v MD D100\r\n", "NF\r\nVA 1\r\n5\r\nVA 1\r\n8\r\nVA 1\r\n0\r\n"),
        (
            "ms e 2 E1000 c s\r\nhi\r\nmg e c\r\nms e 1 C999\r\nx\r\nms e 1 C1000 E5 c\r\nx\r\n",
            "HD c1000 s2\r\nHD c1000\r\nEX\r\nHD c5\r\n",
        ),
        ("ms e 3 MA s c E7\r\nabc\r\nmg e s c v\r\n", "HD s4 c7\r\nVA 4 s4 c7\r\nxabc\r\n"),
        (
            "ms ap 3 MA s\r\nabc\r\nms ap 3 MA N30 s\r\nabc\r\nms ap 1 MP N90 s T60\r\nz\r\nmg ap t v\r\n",
            "NS\r\nHD s3\r\nHD s4\r\nVA 4 t30\r\nzabc\r\n",
        ),
        (
            "ms x 2 F5 T90\r\nhi\r\nmd x x E9\r\nmg x v f t c\r\nmd x x I T30\r\nmg x t v\r\n",
            "HD\r\nHD\r\nVA 0 f0 t90 c9\r\n\r\nHD\r\nVA 0 t30 X W\r\n\r\n",
        ),
        ("ma n2 N0 J5 E77 c\r\nma n2 C77 E78 c\r\nmg viv2 N30 E3 c\r\n", "HD c77\r\nHD c78\r\nHD c3 W\r\n"),
        (
            "ms old 1 E1\r\nx\r\nms new 1 E999999\r\nx\r\nflush_all\r\nmg old\r\nmg new\r\nms old 1 E1\r\nx\r\nmg old c\r\n",
            "HD\r\nHD\r\nOK\r\nEN\r\nEN\r\nHD\r\nHD c1\r\n",
        ),
        ("ms YWI= 2 b k\r\nhi\r\nget ab\r\n", "HD kYWI= b\r\nVALUE ab 0 2\r\nhi\r\nEND\r\n"),
        ("flush_all\r\nget a\r\n", "OK\r\nEND\r\n"),
        ("\r\nquit\r\nget a\r\n", "ERROR\r\n"),
        ("POST / HTTP/1.1\r\nversion\r\n", ""),
        ("GET /a HTTP/1.0 \r\nversion\r\n", ""),
        ("get HTTP/1.1\r\nPOST / HTTP/1.1 x\r\nset HTTP/ 0 0 1\r\nx\r\n", "END\r\nERROR\r\nSTORED\r\n"),
    ] {
        assert_eq!(talk(&shared, input), answer, "{input}");
    }
}

/// The lines are those that memcached 1.6.18 answers.
#[test]
fn cachedump_takes_class_and_limit_as_memcached() {
    const ILLEGAL: &str = "CLIENT_ERROR Illegal slab id\r\n";
    const BAD: &str = "CLIENT_ERROR bad command line format\r\n";
    let shared = shared(8 << 20);
    talk(&shared, "set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\n");
    let (one, both) = ("ITEM a [1 b; 0 s]\r\nEND\r\n", "ITEM a [1 b; 0 s]\r\nITEM b [1 b; 0 s]\r\nEND\r\n");
    for (what, answer) in [
        ("", "CLIENT_ERROR bad command line\r\n"),
        ("1", "CLIENT_ERROR bad command line\r\n"),
        ("x 0", BAD),
        ("0 x", BAD),
        ("64 x", BAD),
        ("18446744073709551616 1", BAD),
        ("0 0", "END\r\n"),
        ("63 0", "END\r\n"),
        ("64 0", ILLEGAL),
        ("255 0", ILLEGAL),
        ("256 0", ILLEGAL),
        ("1 1", one),
        ("1 1 more", one),
        ("+1 0", both),
        // Both numbers have 32 bits there.
        ("4294967296 1", "END\r\n"),
        ("4294967297 4294967297", one),
        ("1 4294967296", both),
    ] {
        assert_eq!(talk(&shared, &format!("stats cachedump {what}\r\n")), answer, "{what}");
    }
}

#[test]
fn cachedump_lists_classes_beyond_memcacheds() {
    let config = Config { memory: 8 << 20, huge: false, factor: 1.05, ..Config::default() };
    let settings = Settings { maxbytes: 8 << 20, threads: 1, dump: true, item_max: 1 << 20, ..Settings::default() };
    let shared = Shared::new(Shards::new(&config, 1).unwrap(), settings, NOW);
    let set = format!("set large 0 0 900000\r\n{}\r\n", "v".repeat(900_000));
    talk(&shared, &set);
    let classes = shared.shards.at(0).sizes().len();
    assert!(classes > 64, "{classes}");
    let dumps: String = (64..=classes).map(|class| talk(&shared, &format!("stats cachedump {class} 0\r\n"))).collect();
    assert_eq!(dumps.matches("ITEM large [900000 b; 0 s]\r\n").count(), 1, "{dumps}");
    assert!(talk(&shared, &format!("stats cachedump {} 0\r\n", classes + 1)).contains("Illegal slab id"));
}

#[test]
fn oversized_value_is_refused_and_ends_the_old() {
    let shared = shared(8 << 20);
    let input = format!("set a 0 0 1\r\nx\r\nset a 0 0 2000000\r\n{}\r\nget a\r\n", "y".repeat(2_000_000));
    assert_eq!(talk(&shared, &input), "STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n");
}

#[test]
fn however_the_bytes_come_the_answers_are_the_same() {
    let large = "v".repeat(30_000);
    let input = format!(
        "set big 0 0 30000\r\n{large}\r\nget big big\r\nset a 0 0 2\r\nhi\r\nmg a v\r\nms b 2\r\nyo\r\ngets a b\r\nfoo\r\nget big\r\n"
    );
    let whole = talk_at(&shared(8 << 20), input.as_bytes(), || usize::MAX / 2, NOW);
    let mut random = StdRng::seed_from_u64(3);
    for most in [1, 2, 7, 100, 5000, 40_000] {
        let answer = talk_at(&shared(8 << 20), input.as_bytes(), || random.random_range(0..=most), NOW);
        assert!(answer == whole, "pieces up to {most}");
    }
}

#[test]
fn lent_values_return_when_sent_or_dropped() {
    let shared = shared(8 << 20);
    let large = "v".repeat(30_000);
    talk(&shared, &format!("set big 0 0 30000\r\n{large}\r\nget big big\r\nget big\r\n"));
    let (mut counts, mut out) = (Counts::default(), Out::default());
    let mut cx = Context::new(&shared, NOW, &mut counts, 0);
    Session::default().advance(b"get big big\r\n", &mut 9, &mut cx, &mut out);
    assert!(out.waiting() > 60_000);
    out.advance(40_000, &shared.shards);
    out.clear(&shared.shards);
    talk(&shared, "delete big\r\n");
    let report = shared.shards.at(0).report(NOW);
    assert_eq!(report.classes.iter().map(|class| class.used).sum::<u64>(), 0);
}

#[test]
fn an_answer_has_bounds_however_often_a_key_is_named() {
    let shared = shared(8 << 20);
    talk(&shared, &format!("set a 0 0 8000\r\n{}\r\n", "v".repeat(8000)));
    let (mut counts, mut out, mut session) = (Counts::default(), Out::default(), Session::default());
    let mut cx = Context::new(&shared, NOW, &mut counts, 0);
    let line = format!("get {}\r\n", "a ".repeat(200_000));
    let (_, pause) = session.advance(line.as_bytes(), &mut 9, &mut cx, &mut out);
    assert_eq!(pause, Pause::Over);
    assert!(out.bytes.len() < 65 << 20 && out.bytes.ends_with(b"SERVER_ERROR out of memory writing get response\r\n"));
    out.clear(&shared.shards);
    shared.shards.at(0).check().unwrap();
}

#[test]
fn expiry_is_relative_up_to_thirty_days() {
    let shared = shared(8 << 20);
    let set = format!("set r 0 10 1\r\nx\r\nset a 0 {} 1\r\nx\r\nset old 0 2592001 1\r\nx\r\n", NOW + 20);
    talk(&shared, &set);
    let at = |now| String::from_utf8(talk_at(&shared, b"get r a old\r\n", || 99, now)).unwrap();
    assert_eq!(at(NOW + 9), "VALUE r 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(at(NOW + 19), "VALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(at(NOW + 20), "END\r\n");
}

#[test]
fn without_a_name_and_password_nothing_is_done() {
    let mut shared = shared(8 << 20);
    shared.settings.users = Some(vec![b"me:secret".to_vec()]);
    shared.users = shared.settings.users.clone().unwrap().into();
    shared.is_open = false;
    let refused = "CLIENT_ERROR unauthenticated\r\n";
    assert_eq!(talk(&shared, "get a\r\nms a 2\r\nhi\r\nflush_all\r\n"), refused.repeat(3));
    assert_eq!(
        talk(&shared, "set x 0 0 8\r\nme wrong\r\nget a\r\n"),
        format!("CLIENT_ERROR authentication failure\r\n{refused}")
    );
    assert_eq!(talk(&shared, "set x 0 0 9\r\nme secret\r\nget a\r\n"), "STORED\r\nEND\r\n");
}

/// Bent conversations: no panic, no chunk lost, and the store sound afterwards. `NOISE=1000` makes a thousand times as many.
#[test]
fn noise_harms_nothing() {
    let shared = shared(2 << 20);
    let mut random = StdRng::seed_from_u64(4 + crate::noise_times());
    let mut binary = vec![0x80, 1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 7];
    binary.extend([0; 8]);
    binary.extend(b"\0\0\0\0\0\0\0\x0akabc");
    let good: [&[u8]; 7] = [
        b"set a 0 0 10\r\n0123456789\r\nget a b c\r\n",
        b"ms a 20000 T30 c\r\nhello",
        b"mg a v t N30 R10\r\nma n N0 J9 v\r\nmd a I q\r\nmn\r\n",
        b"append a 0 0 3\r\nxyz\r\nincr a 1\r\ngat 10 a\r\nstats items\r\n",
        b"stats\r\nstats slabs\r\nslabs reassign 1 2\r\nlru_crawler metadump all\r\nflush_all 0\r\n",
        b"cas a 0 0 5 1\r\nhello\r\nset big 0 0 9000\r\n",
        &binary,
    ];
    for _ in 0..4000 * crate::noise_times() {
        let mut input = Vec::new();
        for _ in 0..random.random_range(1..5) {
            input.extend_from_slice(good[random.random_range(0..good.len())]);
        }
        for _ in 0..random.random_range(0..4) {
            let at = random.random_range(0..input.len());
            match random.random_range(0..3) {
                0 => input[at] = random.random(),
                1 => drop(input.remove(at)),
                _ => input.insert(at, random.random()),
            }
        }
        let most = random.random_range(1..200);
        talk_at(&shared, &input, || random.random_range(0..most), NOW);
    }
    let store = shared.shards.at(0);
    store.check().unwrap();
    // Nothing is held or half filled: as many chunks in use as items.
    let report = store.report(NOW);
    assert_eq!(report.classes.iter().map(|class| class.used).sum::<u64>(), report.items);
}

#[test]
fn impossible_comparison_leaves_the_item() {
    let shared = shared(8 << 20);
    let large = "x".repeat(2 << 20);
    let length = large.len();
    let refused = "SERVER_ERROR object too large for cache\r\n";
    assert_eq!(
        talk(&shared, &format!("set a 0 0 1\r\nx\r\ncas a 0 0 {length} 99\r\n{large}\r\nget a\r\n")),
        format!("STORED\r\n{refused}VALUE a 0 1\r\nx\r\nEND\r\n")
    );
    // An item that should have been replaced in any case is better gone than old.
    assert_eq!(talk(&shared, &format!("set a 0 0 {length}\r\n{large}\r\nget a\r\n")), format!("{refused}END\r\n"));
}

#[test]
fn impossible_memory_limit_is_refused() {
    let shared = shared(8 << 20);
    assert_eq!(
        talk(&shared, "set a 0 0 1\r\nx\r\ncache_memlimit 17592186044416\r\nget a\r\n"),
        "STORED\r\nMEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
    );
    assert_eq!(shared.limit.load(Relaxed), 8 << 20);
}

#[test]
fn without_versions_none_is_shown_in_any_protocol() {
    let mut shared = shared(8 << 20);
    shared.settings.cas = false;
    // The lines are those of memcached with -C.
    assert_eq!(
        talk(&shared, "ms a 1 c\r\n5\r\ngets a\r\nmg a c v\r\nma a c v\r\n"),
        "HD c0\r\nVALUE a 0 1 0\r\n5\r\nEND\r\nVA 1 c0\r\n5\r\nVA 1 c0\r\n6\r\n"
    );
    let mut touch = vec![0x80, 0x1c, 0, 1, 4, 0, 0, 0, 0, 0, 0, 5];
    touch.extend_from_slice(&[0; 16]);
    touch.push(b'a');
    let answer = talk_at(&shared, &touch, || usize::MAX / 2, NOW);
    assert_eq!((answer[6..8].to_vec(), answer[16..24].to_vec()), (vec![0; 2], vec![0; 8]));
}

#[test]
fn a_dump_names_every_item_and_costs_bounded_memory() {
    let shared = shared(64 << 20);
    let count = 30_000;
    let sets: String = (0..count).map(|n| format!("set key:{n:06} 0 0 1 noreply\r\nx\r\n")).collect();
    assert_eq!(talk(&shared, &sets), "");
    let (mut session, mut counts, mut out, mut answer) =
        (Session::default(), Counts::default(), Out::default(), Vec::new());
    let mut input = &b"lru_crawler metadump all\r\nmn\r\n"[..];
    while !answer.ends_with(b"MN\r\n") {
        let mut cx = Context::new(&shared, NOW, &mut counts, 0);
        let (used, _) = session.advance(input, &mut 20, &mut cx, &mut out);
        input = &input[used..];
        assert!(out.waiting() < OUT_MAX + (1 << 20), "{} bytes wait", out.waiting());
        answer.extend(drain(&mut out, &shared.shards));
    }
    let text = String::from_utf8(answer).unwrap();
    assert!(text.ends_with("END\r\nMN\r\n"));
    let keys: std::collections::BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(keys.iter().filter(|key| key.starts_with("key=key%3A")).count(), count);
}

#[test]
fn a_stale_set_keeps_the_end_and_the_token() {
    let shared = shared(4 << 20);
    let cas = |text: &str| text.split_whitespace().find_map(|word| word.strip_prefix('c').map(str::to_owned)).unwrap();
    let before = cas(&talk(&shared, "ms a 1 T90\r\nx\r\nmg a c\r\n"));
    talk(&shared, "md a I T30\r\n");
    assert_eq!(talk(&shared, "mg a t\r\n"), "HD t30 X W\r\n");
    // As memcached: the value is an older one, so the client that was told to renew it is still at work.
    assert_eq!(talk(&shared, &format!("ms a 1 I T90 C{before}\r\ny\r\nmg a t v\r\n")), "HD\r\nVA 1 t30 Z X\r\ny\r\n");
}

#[test]
fn a_key_comes_back_as_it_was_stored() {
    let shared = shared(4 << 20);
    // Zm9v is foo.
    for (input, answer) in [
        ("set foo 0 0 1\r\nx\r\nmg Zm9v b k v\r\n", "STORED\r\nVA 1 kfoo\r\nx\r\n"),
        ("ms Zm9v 1 b\r\ny\r\nmg foo k v\r\nme foo\r\n", "HD\r\nVA 1 kZm9v b\r\ny\r\nME Zm9v "),
        ("ms Zm9v 1 b\r\n7\r\nincr foo 1\r\nmg foo k v\r\n", "HD\r\n8\r\nVA 1 kZm9v b\r\n8\r\n"),
        ("append foo 0 0 1\r\n1\r\nmg foo k v\r\n", "STORED\r\nVA 2 kZm9v b\r\n81\r\n"),
        ("md Zm9v b k\r\nmg Zm9v b k N30\r\n", "HD kZm9v b\r\nHD kZm9v b W\r\n"),
    ] {
        let said = talk(&shared, input);
        assert!(said.starts_with(answer), "{input:?}: {said:?}");
    }
}

#[test]
fn a_number_ends_where_white_space_begins() {
    let shared = shared(4 << 20);
    let bad = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    for (value, answer) in [
        ("10\n", "11\r\n"),
        ("10 apples", "11\r\n"),
        (" \t10", "11\r\n"),
        ("+10", "11\r\n"),
        ("-0", "1\r\n"),
        ("10\0x", "11\r\n"),
        ("000000000000000000000000000000000000000000000000000000000000000000000000010", "11\r\n"),
        ("10x", bad),
        ("-10", bad),
        ("- 10", bad),
        ("", bad),
        ("  ", bad),
        ("18446744073709551616", bad),
    ] {
        let said = talk(&shared, &format!("set n 0 0 {}\r\n{value}\r\nincr n 1\r\n", value.len()));
        assert_eq!(said, format!("STORED\r\n{answer}"), "{value:?}");
    }
}

#[test]
fn a_refused_limit_changes_nothing() {
    let shared = shared(64 << 20);
    let before = shared.limit.load(Relaxed);
    assert!(talk(&shared, "cache_memlimit 1000\r\n").starts_with("MEMLIMIT_ADJUST_FAILED"));
    assert_eq!(shared.limit.load(Relaxed), before);
    let line = |text: String| text.lines().find(|line| line.contains("limit_maxbytes")).unwrap().to_owned();
    assert_eq!(line(talk(&shared, "stats\r\n")), format!("STAT limit_maxbytes {before}"));
    assert_eq!(talk(&shared, "cache_memlimit 32\r\n"), "OK\r\n");
    assert_eq!(line(talk(&shared, "stats\r\n")), format!("STAT limit_maxbytes {}", 32 << 20));
}

#[test]
fn an_unfinished_line_is_refused_after_two_kibibytes() {
    let shared = shared(4 << 20);
    let line = "x".repeat(2049);
    assert_eq!(talk(&shared, &line), "SERVER_ERROR line too long\r\n");
    assert_eq!(talk(&shared, &line[1..]), "", "it may still end");
    assert_eq!(talk(&shared, &format!("get {}", "k ".repeat(2000))), "", "keys may be many");
}

#[test]
fn settings_of_automove_are_those_that_were_made() {
    let shared = shared(4 << 20);
    let shown = || talk(&shared, "stats settings\r\n").contains("STAT slab_automove 0\r\n");
    assert_eq!(talk(&shared, "slabs automove 9\r\n"), "ERROR\r\n");
    assert!(!shown());
    assert_eq!(talk(&shared, "slabs automove 0\r\n"), "OK\r\n");
    assert!(shown());
}
