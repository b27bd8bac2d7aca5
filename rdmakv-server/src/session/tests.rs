//! Conversations, byte for byte, without sockets.

use std::sync::atomic::Ordering::Relaxed;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::store::Config;

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

/// What is answered to this input when it comes in pieces of these lengths, at this time.
fn talk_at(shared: &Shared, input: &[u8], mut piece: impl FnMut() -> usize, now: u64) -> Vec<u8> {
    let (mut session, mut counts, mut out, mut answer) =
        (Session::default(), Counts::default(), Out::default(), Vec::new());
    let (mut arrived, mut pending) = (0, Vec::new());
    loop {
        let mut cx = Context { shared, now, counts: &mut counts, worker: 0 };
        let mut turns = 3;
        let (used, pause) = session.advance(&pending, &mut turns, &mut cx, &mut out);
        pending.drain(..used);
        answer.extend(drain(&mut out, &shared.shards));
        match pause {
            Pause::Over => break,
            Pause::Turn | Pause::Output => continue,
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
            session.directly(part);
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
fn answers_are_those_of_memcached() {
    let shared = shared(8 << 20);
    for (input, answer) in [
        ("set a 5 0 3\r\nabc\r\nget a\r\n", "STORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("get nothing\r\n", "END\r\n"),
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

#[test]
fn a_too_large_value_is_refused_dropped_and_ends_the_old_one() {
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
fn values_that_were_lent_go_back_when_they_are_sent_or_dropped() {
    let shared = shared(8 << 20);
    let large = "v".repeat(30_000);
    talk(&shared, &format!("set big 0 0 30000\r\n{large}\r\nget big big\r\nget big\r\n"));
    let (mut counts, mut out) = (Counts::default(), Out::default());
    let mut cx = Context { shared: &shared, now: NOW, counts: &mut counts, worker: 0 };
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
    let mut cx = Context { shared: &shared, now: NOW, counts: &mut counts, worker: 0 };
    let line = format!("get {}\r\n", "a ".repeat(200_000));
    let (_, pause) = session.advance(line.as_bytes(), &mut 9, &mut cx, &mut out);
    assert_eq!(pause, Pause::Over);
    assert!(out.bytes.len() < 65 << 20 && out.bytes.ends_with(b"SERVER_ERROR out of memory writing get response\r\n"));
    out.clear(&shared.shards);
    shared.shards.at(0).check().unwrap();
}

#[test]
fn an_expiry_is_relative_up_to_thirty_days_and_absolute_beyond() {
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
    let mut random = StdRng::seed_from_u64(4 + crate::protocol::noise::times());
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
    for _ in 0..4000 * crate::protocol::noise::times() {
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
fn a_comparison_that_cannot_be_made_leaves_the_item_as_it_was() {
    let shared = shared(8 << 20);
    let large = "x".repeat(2 << 20);
    let length = large.len();
    let refused = "SERVER_ERROR object too large for cache\r\n";
    assert_eq!(
        talk(&shared, &format!("set a 0 0 1\r\nx\r\ncas a 0 0 {length} 99\r\n{large}\r\nget a\r\n")),
        format!("STORED\r\n{refused}VALUE a 0 1\r\nx\r\nEND\r\n")
    );
    // What should have been replaced in any case is better gone than old.
    assert_eq!(talk(&shared, &format!("set a 0 0 {length}\r\n{large}\r\nget a\r\n")), format!("{refused}END\r\n"));
}

#[test]
fn a_limit_beyond_all_memory_is_refused_and_empties_nothing() {
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
        let mut cx = Context { shared: &shared, now: NOW, counts: &mut counts, worker: 0 };
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
