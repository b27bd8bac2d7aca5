//! Readers in the kernel while a writer changes what they read, with and without the rules that keep answers right.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rdmakv_bpf::load::{Hook, OBJECT, Verdict};

use crate::items::{Item, Writer};
use crate::packets::Request;
use crate::{Kernel, compiled, settings};

const KEY: &str = "a-key-of-some-length";
const OTHER: &str = "b-key-of-some-length";
const LENGTH: usize = 900;

/// Answers that were counted.
#[derive(Debug, Default)]
struct Counts {
    answered: u64,
    passed: u64,
    wrong: u64,
}

/// Runs a program again and again while `change` does; counts answers that `is_right` refuses.
fn race(
    kernel: &Kernel,
    until: impl Fn(&Counts) -> bool,
    is_right: impl Fn(&[u8]) -> bool,
    change: impl Fn(&Writer, u64) + Sync,
) -> Counts {
    let (stop, mut counts) = (AtomicBool::new(false), Counts::default());
    let packet = Request::new(format!("get {KEY}\r\n")).packet();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 1;
            while !stop.load(Relaxed) {
                change(&kernel.writer, round);
                round += 1;
            }
        });
        let begun = Instant::now();
        while !until(&counts) && begun.elapsed() < Duration::from_secs(20) {
            match kernel.gets.run(Hook::Xdp, &packet).unwrap() {
                (Verdict::Answered, answer) => {
                    counts.answered += 1;
                    counts.wrong += u64::from(!is_right(&answer[50..]));
                }
                (Verdict::Passed, _) => counts.passed += 1,
                (Verdict::Dropped, _) => panic!("dropped"),
            }
        }
        stop.store(true, Relaxed);
    });
    println!("{counts:?}");
    counts
}

/// The program as it is, or one that breaks a rule and waits amid the copy.
fn programs(fault: Option<u32>) -> Option<Kernel> {
    let object = match fault {
        None => OBJECT.to_vec(),
        Some(fault) => compiled("clang-14", &[&format!("-DGETS_FAULT={fault}"), "-DGETS_WAIT=20000"])
            .or_else(|| compiled("clang", &[&format!("-DGETS_FAULT={fault}"), "-DGETS_WAIT=20000"]))?,
    };
    Kernel::with(&object, &settings())
}

/// Runs the race as the programs are, with waits but all rules, and with this rule broken.
fn with_and_without(
    fault: u32,
    setup: impl Fn(&Writer),
    is_right: impl Fn(&[u8]) -> bool,
    change: impl Fn(&Writer, u64) + Sync,
) {
    for (fault, most) in [(None, 200_000), (Some(0), 20_000)] {
        let Some(kernel) = programs(fault) else { return };
        setup(&kernel.writer);
        let counts = race(&kernel, |counts| counts.answered + counts.passed >= most, &is_right, &change);
        assert_eq!(counts.wrong, 0, "{counts:?}");
        assert!(counts.answered > 0 || fault.is_some(), "{counts:?}");
    }
    let Some(kernel) = programs(Some(fault)) else { return };
    setup(&kernel.writer);
    let counts = race(&kernel, |counts| counts.wrong > 0, &is_right, &change);
    assert!(counts.wrong > 0, "a broken rule was not found: {counts:?}");
}

/// Stays a little shorter than the programs of the tests wait amid a copy.
fn spin() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(15) {
        std::hint::spin_loop();
    }
}

fn filled(letter: u8) -> Vec<u8> {
    vec![letter; LENGTH]
}

/// Whether all of the value is of one letter, and the version the one of that letter.
fn is_whole(answer: &[u8]) -> bool {
    let Some(at) = answer.windows(2).position(|two| two == b"\r\n") else { return false };
    let value = &answer[at + 2..];
    value.len() == LENGTH + 7
        && value[..LENGTH].iter().all(|&byte| byte == value[0])
        && value[LENGTH..] == *b"\r\nEND\r\n"
}

#[test]
fn values_are_whole_while_they_are_replaced() {
    let place = |round: u64| 64 + 2048 * (round % 2);
    with_and_without(
        1,
        |writer| writer.put(place(0), &Item::new(KEY, &filled(b'a'))),
        is_whole,
        |writer, round| {
            let value = filled(b'a' + (round % 26) as u8);
            writer.replace(place(round - 1), place(round), &Item { version: round + 1, ..Item::new(KEY, &value) });
        },
    );
}

#[test]
fn chunk_that_lives_again_is_not_taken_for_the_first() {
    // The item leaves, another key's lives in its chunk, and the item returns there with its version.
    with_and_without(
        2,
        |writer| writer.put(64, &Item { version: 5, ..Item::new(KEY, &filled(b'k')) }),
        |answer| is_whole(answer) && answer.ends_with(b"kkk\r\nEND\r\n"),
        |writer, _| {
            writer.remove(64, KEY.as_bytes());
            writer.put(64, &Item { version: 9, ..Item::new(OTHER, &filled(b'o')) });
            spin();
            writer.remove(64, OTHER.as_bytes());
            writer.put(64, &Item { version: 5, ..Item::new(KEY, &filled(b'k')) });
            spin();
        },
    );
}

#[test]
fn value_of_a_client_is_no_item() {
    // The page changes its class, and a client's value forges the item's header, life and all, where the item was.
    let lives = std::sync::Mutex::new(HashMap::from([(64_u64, 1_u16)]));
    with_and_without(
        3,
        |writer| {
            lives.lock().unwrap().insert(64, 1);
            writer.scribble(64, &[0; 1024]);
            writer.put(64, &Item { version: 5, ..Item::new(KEY, &filled(b'k')) });
        },
        |answer| is_whole(answer) && answer.ends_with(b"kkk\r\nEND\r\n"),
        |writer, _| {
            let life = lives.lock().unwrap()[&64];
            writer.remove(64, KEY.as_bytes());
            writer.page_leaves();
            writer.scribble(64, &Item { version: 5, ..Item::new(KEY, &filled(b'f')) }.image(life));
            std::thread::sleep(Duration::from_micros(50));
            writer.page_leaves();
            writer.put(64, &Item { version: 5, ..Item::new(KEY, &filled(b'k')) });
            lives.lock().unwrap().insert(64, life.wrapping_add(1));
            std::thread::sleep(Duration::from_micros(50));
        },
    );
}
