//! Modules over regions of two servers: honest ones against built-in procedures, and others within their limits.

use super::super::tests::{REGION, REGIONS, SIZE, WIDE, put, run_all};
use super::super::{LIMITS, Miss};
use super::*;
use proptest::prelude::*;
use rdmakv_proto::far::messages::RunStatus;
use rdmakv_proto::far::procedures::{Procedure, Walk};

const WALK: &str = include_str!("../../../../../examples/far-modules/walk.wat");

/// A memory, as one of its servers sees it.
#[derive(Clone)]
struct Held {
    bytes: Arc<Mutex<Vec<u8>>>,
    owners: Vec<u8>,
    server: u8,
}

impl Held {
    fn new(bytes: Vec<u8>, owners: &[u8]) -> Self {
        Self { bytes: Arc::new(Mutex::new(bytes)), owners: owners.to_vec(), server: 0 }
    }
}

impl Space for Held {
    fn here(&mut self, at: u64, length: usize) -> usize {
        let of = |at: usize| self.owners.get(at / REGION) == Some(&self.server);
        (at as usize..).take(length).take_while(|&at| of(at)).count()
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        into.copy_from_slice(&self.bytes.lock().unwrap()[at as usize..][..into.len()]);
        true
    }

    fn cas64(&mut self, at: u64, old: u64, new: u64) -> Result<u64, Miss> {
        if self.here(at, 8) < 8 {
            return Err(Miss::Elsewhere);
        }
        let mut bytes = self.bytes.lock().unwrap();
        let place = &mut bytes[at as usize..][..8];
        let was = u64::from_le_bytes(place.try_into().unwrap());
        if was == old {
            place.copy_from_slice(&new.to_le_bytes());
        }
        Ok(was)
    }
}

fn compile(text: &str) -> Result<Compiled, Refusal> {
    Compiled::new(&wat::parse_str(text).unwrap())
}

/// Returns a module whose step has this body. Its memory has a page.
fn module(body: &str) -> String {
    format!(
        r#"(module
            (import "far" "here" (func $here (param i64 i32) (result i32)))
            (import "far" "read" (func $read (param i64 i32 i32)))
            (import "far" "reply" (func $reply (param i32 i32)))
            (import "far" "cas64" (func $cas64 (param i64 i64 i64) (result i64)))
            (import "far" "state" (func $state (param i32 i32) (result i32)))
            (import "far" "set_state" (func $set_state (param i32 i32)))
            (import "far" "done" (func $done))
            (memory (export "memory") 1)
            (func $step (export "step") (param $at i64) (result i64) (local $i i64) {body}))"#
    )
}

/// A clock that stands: fuel alone ends a run, on a busy machine as well.
fn still() -> u64 {
    0
}

/// Runs a module as a client does: it follows it from server to server.
fn follow(text: &str, held: &mut Held, mut at: u64, state: &[u8]) -> Ran {
    let compiled = Compiled::new(&wat::parse_str(text).unwrap()).unwrap();
    let (mut state, mut spent, mut reply, mut micros) = (state.to_vec(), Spent::default(), Vec::new(), 0);
    let mut to = at;
    loop {
        held.server = *held.owners.get(to as usize / REGION).expect("within the memory");
        let ran = compiled.run_by(still, Call { at, state, space: Box::new(held.clone()), spent, micros });
        reply.extend_from_slice(&ran.reply);
        if ran.end.status != RunStatus::Elsewhere {
            return Ran { reply, ..ran };
        }
        assert!(ran.micros >= micros && ran.spent.bytes >= spent.bytes);
        (at, to, state, spent, micros) = (ran.at, ran.end.at, ran.state, ran.spent, ran.micros);
        spent.hops += 1;
    }
}

/// Runs a module where all of a memory of zeros is.
fn run(body: &str, state: &[u8]) -> Ran {
    let ran = follow(&module(body), &mut Held::new(vec![0; SIZE], &[0; REGIONS]), 64, state);
    // A step has 50 us, and all have a millisecond. What was spent is at most a step more.
    assert!(ran.spent.bytes <= LIMITS.bytes);
    ran
}

fn status(body: &str) -> RunStatus {
    run(body, b"").end.status
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn module_finds_what_walk_finds(
        owners in prop::collection::vec(0..2_u8, REGIONS), next in prop::collection::vec(0..SIZE as u64 / 64, SIZE / 64),
        keys in prop::collection::vec(0..20_u64, SIZE / 64), first in 1..SIZE as u64 / 64, nodes in 1..40_u32, key in 0..22_u64,
    ) {
        let mut bytes = vec![0; SIZE];
        for (node, (next, key)) in next.iter().zip(keys).enumerate() {
            put(&mut bytes, node * 64 + 8, next * 64);
            put(&mut bytes, node * 64 + 16, key);
        }
        let walk = Walk { at: first * 64, next: 8, key_at: 16, nodes, length: 64, key: key.to_le_bytes().to_vec() };
        let (end, reply, _) = run_all(&Procedure::Walk(walk), &mut bytes.clone(), &owners, 64, &WIDE);
        let state = [&key.to_le_bytes()[..], &nodes.to_le_bytes()].concat();
        let ran = follow(WALK, &mut Held::new(bytes, &owners), first * 64, &state);
        prop_assert_eq!((ran.end, ran.reply), (end, reply));
    }
}

#[test]
fn runaway_steps_end_for_lack_of_fuel() {
    for body in [
        "(loop $l (br $l)) unreachable",
        // Bytes cost fuel: each of these takes longer than a step may.
        "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br $l)) unreachable",
        "(loop $l (memory.copy (i32.const 0) (i32.const 100) (i32.const 60000)) (br $l)) unreachable",
        "(loop $l (call $read (local.get $at) (i32.const 0) (i32.const 4096)) (br $l)) unreachable",
        "(loop $l (drop (memory.grow (i32.const 1))) (br $l)) unreachable",
        "(loop $l (drop (call $here (local.get $at) (i32.const 8))) (br $l)) unreachable",
    ] {
        let ran = run(body, b"state");
        assert_eq!((ran.end, &ran.state[..]), (End { status: RunStatus::Fuel, at: 64 }, &b"state"[..]), "{body}");
    }
    // 13 times 64 KiB are more than the fuel of a step pays for, and 12 are not.
    let fills = |times| {
        "(memory.fill (i32.const 0) (i32.const 1) (i32.const 65536))".repeat(times) + "(call $done) (i64.const 1)"
    };
    assert_eq!([12, 13].map(|times| status(&fills(times))), [RunStatus::Done, RunStatus::Fuel]);
    // As many reads as a step's fuel pays for, of far memory's bytes.
    let reads = run("(loop $l (call $read (local.get $at) (i32.const 0) (i32.const 4096)) (br $l)) unreachable", b"");
    assert!(reads.spent.bytes <= 32 * 4096, "{}", reads.spent.bytes);
}

#[test]
fn endless_steps_end_at_the_time() {
    let ran = run("(i64.add (local.get $at) (i64.const 1))", b"");
    assert_eq!(ran.end.status, RunStatus::Time);
    assert!(ran.end.at > 64 && ran.at == ran.end.at, "it may go on there");
    assert_eq!(ran.micros, 1000);
}

#[test]
fn the_processors_time_ends_a_run() {
    // The clock advances by 300 us each time that it is read: after six steps, 2 ms are over.
    let time = std::cell::Cell::new(0);
    let clock = || time.replace(time.get() + 300_000);
    let compiled = compile(&module("(i64.add (local.get $at) (i64.const 1))")).unwrap();
    let space = Box::new(Held::new(vec![0; SIZE], &[0; REGIONS]));
    let call = Call { at: 64, state: Vec::new(), space, spent: Spent::default(), micros: 0 };
    let ran = compiled.run_by(clock, call);
    assert_eq!(ran.end, End { status: RunStatus::Time, at: 70 });
    assert!(ran.micros < 1000, "there is fuel left");
}

#[test]
fn a_last_step_without_whole_fuel_lacks_time() {
    // A step takes about half of its fuel, and 42 of them more than a run has.
    let count = "(local.set $i (i64.add (local.get $i) (i64.const 1)))";
    let step = format!("(loop $l {count} (br_if $l (i64.lt_u (local.get $i) (i64.const 1000)))) (local.get $at)");
    let ran = run(&step, b"");
    assert_eq!((ran.end.status, ran.end.at), (RunStatus::Time, ran.at), "after {} us", ran.micros);
}

#[test]
fn faults_end_as_traps() {
    for body in [
        "unreachable",
        "(i64.div_u (i64.const 1) (local.get $i))",
        "(i64.load (i32.const 65530))",
        "(call $step (local.get $at))",
        "(call $read (local.get $at) (i32.const 65000) (i32.const 4096)) unreachable",
        "(call $read (local.get $at) (i32.const 0) (i32.const 4097)) unreachable",
        "(call $reply (i32.const -1) (i32.const 2)) unreachable",
        "(call $reply (i32.const 0) (i32.const -1)) unreachable",
        "(call $set_state (i32.const 0) (i32.const 129)) unreachable",
        "(call $cas64 (i64.const 4) (i64.const 0) (i64.const 0))",
    ] {
        assert_eq!(status(body), RunStatus::Trap, "{body}");
    }
    let text = r#"(module (import "far" "reply" (func $reply (param i32 i32)))
        (func (export "step") (param i64) (result i64) (call $reply (i32.const 0) (i32.const 1)) (i64.const 1)))"#;
    let ran = follow(text, &mut Held::new(vec![0; SIZE], &[0; REGIONS]), 64, b"");
    assert_eq!(ran.end.status, RunStatus::Trap, "it has no memory");
}

#[test]
fn memory_grows_up_to_a_mebibyte() {
    // As many pages as it gets, one after the other, over several steps.
    let grown = run(
        "(if (i32.lt_s (memory.grow (i32.const 1)) (i32.const 0)) (then (call $done)))
         (i64.extend_i32_u (memory.size))",
        b"",
    );
    assert_eq!(grown.end, End { status: RunStatus::Done, at: 16 });
    assert_eq!(status("(drop (memory.grow (i32.const 16))) (call $done) (i64.const 0)"), RunStatus::Done);
}

#[test]
fn steps_that_stop_have_done_nothing() {
    let owners = [0, 1, 0, 0, 0, 0, 0, 0];
    // The state grows by a byte a step. The second step reads of another server.
    let text = module(
        "(i32.store (i32.const 0) (i32.const 0x41414141))
         (call $set_state (i32.const 0) (i32.add (call $state (i32.const 4) (i32.const 8)) (i32.const 1)))
         (call $reply (i32.const 0) (i32.const 1))
         (if (i64.ge_u (local.get $at) (i64.const 100)) (then (call $read (i64.const 1024) (i32.const 0) (i32.const 8)) (call $done)))
         (i64.add (local.get $at) (i64.const 36))",
    );
    let compiled = Compiled::new(&wat::parse_str(&text).unwrap()).unwrap();
    let mut held = Held::new(vec![0; SIZE], &owners);
    let call =
        |held: &Held, at, state| Call { at, state, space: Box::new(held.clone()), spent: Spent::default(), micros: 0 };
    let ran = compiled.run(call(&held, 64, Vec::new()));
    assert_eq!(ran.end, End { status: RunStatus::Elsewhere, at: 1024 });
    assert_eq!((ran.at, &ran.state[..], &ran.reply[..], ran.spent.replied), (100, &b"A"[..], &b"A"[..], 1));
    held.owners[0] = 1;
    held.server = 1;
    let ran = compiled.run(call(&held, ran.at, ran.state));
    assert_eq!((ran.end.status, &ran.state[..], &ran.reply[..]), (RunStatus::Done, &b"AA"[..], &b"A"[..]));
}

#[test]
fn steps_go_to_the_server_of_their_address() {
    let mut held = Held::new(vec![0; SIZE], &[0, 1, 0, 1, 0, 1, 0, 1]);
    let ran = follow(
        &module(
            "(if (i64.ge_u (local.get $at) (i64.const 7000)) (then (call $done))) (i64.add (local.get $at) (i64.const 1000))",
        ),
        &mut held,
        64,
        b"",
    );
    assert_eq!((ran.end, ran.spent.hops), (End { status: RunStatus::Done, at: 8064 }, 6));
}

#[test]
fn nothing_comes_behind_a_write() {
    let write = "(drop (call $cas64 (i64.const 8) (i64.const 0) (i64.const 5)))";
    for after in [
        "(call $read (i64.const 8) (i32.const 0) (i32.const 8))",
        "(call $reply (i32.const 0) (i32.const 8))",
        "(drop (call $cas64 (i64.const 8) (i64.const 5) (i64.const 6)))",
        "(drop (call $here (i64.const 8) (i32.const 8)))",
    ] {
        assert_eq!(status(&format!("{write} {after} (call $done) (i64.const 1)")), RunStatus::Trap, "{after}");
    }
    assert_eq!(
        status(&format!("{write} (call $set_state (i32.const 0) (i32.const 1)) (call $done) (i64.const 1)")),
        RunStatus::Done
    );
    // The next step may.
    let next = format!(
        "(if (i64.eq (local.get $at) (i64.const 64)) (then {write} (return (i64.const 72))))
         (call $read (i64.const 8) (i32.const 0) (i32.const 8)) (call $done) (i64.load (i32.const 0))"
    );
    assert_eq!(run(&next, b"").end, End { status: RunStatus::Done, at: 5 });
}

#[test]
fn limits_of_bytes_and_reply_are_those_of_all() {
    let body = "(call $read (local.get $at) (i32.const 0) (i32.const 4096)) (local.get $at)";
    let mut held = Held::new(vec![0; SIZE], &[0; REGIONS]);
    let compiled = Compiled::new(&wat::parse_str(module(body)).unwrap()).unwrap();
    let spent = Spent { bytes: LIMITS.bytes - 4095, ..Spent::default() };
    let ran = compiled.run(Call { at: 64, state: Vec::new(), space: Box::new(held.clone()), spent, micros: 0 });
    assert_eq!(ran.end, End { status: RunStatus::Bytes, at: 64 });
    let spent = Spent { hops: 65, ..Spent::default() };
    let ran = compiled.run(Call { at: 64, state: Vec::new(), space: Box::new(held.clone()), spent, micros: 0 });
    assert_eq!(ran.end.status, RunStatus::Hops);
    let ran = follow(&module("(call $reply (i32.const 0) (i32.const 3000)) (local.get $at)"), &mut held, 64, b"");
    assert_eq!((ran.end.status, ran.reply.len()), (RunStatus::Full, 3000));
}

#[test]
fn runs_leave_nothing_behind() {
    let body = "(i64.load (i32.const 8)) (i64.store (i32.const 8) (i64.const 7)) (call $done)";
    let compiled = Compiled::new(&wat::parse_str(module(body)).unwrap()).unwrap();
    let held = Held::new(vec![0; SIZE], &[0; REGIONS]);
    for _ in 0..3 {
        let space = Box::new(held.clone());
        let ran = compiled.run(Call { at: 64, state: Vec::new(), space, spent: Spent::default(), micros: 0 });
        assert_eq!(ran.end, End { status: RunStatus::Done, at: 0 });
    }
}

#[test]
fn bad_modules_are_refused_with_the_reason() {
    let step = r#"(func (export "step") (param i64) (result i64) (local.get 0))"#;
    for (text, why) in [
        ("(module)".to_owned(), Refusal::NoStep),
        (r#"(module (func (export "step")))"#.to_owned(), Refusal::NoStep),
        (r#"(module (memory (export "step") 1))"#.to_owned(), Refusal::NoStep),
        (format!(r#"(module (import "far" "write" (func)) {step})"#), Refusal::UnknownImport),
        (format!(r#"(module (import "far" "done" (func (param i32))) {step})"#), Refusal::UnknownImport),
        (format!(r#"(module (import "wasi" "done" (func)) {step})"#), Refusal::UnknownImport),
        (format!(r#"(module (import "far" "memory" (memory 1)) {step})"#), Refusal::UnknownImport),
        (format!("(module (func $f) (start $f) {step})"), Refusal::StartFunction),
        (format!("(module (memory 17) {step})"), Refusal::MemorySize),
        (format!("(module (table 2000 funcref) {step})"), Refusal::BadModule),
        (format!(r#"(module (memory 1) (data (i32.const 65535) "ab") {step})"#), Refusal::BadModule),
        (
            r#"(module (func (export "step") (param i64) (result i64) (i32.const 0) drop))"#.to_owned(),
            Refusal::BadModule,
        ),
        (format!("(module (memory i64 1) {step})"), Refusal::BadModule),
    ] {
        assert_eq!(compile(&text).err(), Some(why), "{text}");
    }
    assert!(compile(&format!("(module (memory 16) {step})")).is_ok());
}

#[test]
fn modules_are_stored_and_run_by_their_login() {
    let modules = Modules::start(2).unwrap();
    let code = wat::parse_str(module("(call $done) (i64.const 9)")).unwrap();
    let length = code.len() as u32;
    let (first, second) = code.split_at(20);
    assert_eq!(modules.take(1, (length, 0, b"nine", first)), Ok(20));
    let call = || {
        let space = Box::new(Held::new(vec![0; SIZE], &[0; REGIONS]));
        Call { at: 64, state: Vec::new(), space, spent: Spent::default(), micros: 0 }
    };
    assert_eq!(modules.run(1, b"nine", call()).err(), Some(Refusal::NoModule), "a part is missing");
    assert_eq!(modules.take(1, (length, 20, b"nine", second)), Ok(length));
    assert_eq!(modules.run(1, b"nine", call()).unwrap().end, End { status: RunStatus::Done, at: 9 });
    assert_eq!(modules.run(2, b"nine", call()).err(), Some(Refusal::NoModule), "another login's");
    assert_eq!((modules.list(1), modules.count()), (vec![(b"nine".to_vec(), length)], 1));
    assert_eq!(modules.take(1, (2, 0, b"bad", b"no")), Err(Refusal::BadModule));
    assert_eq!(modules.forget(1, b"nine"), Ok(()));
    assert_eq!(modules.run(1, b"nine", call()).err(), Some(Refusal::NoModule));
    modules.end();
    assert_eq!(modules.take(1, (length, 0, b"nine", &code)), Err(Refusal::CompileTime), "nothing waits for ever");
}

#[test]
fn mutated_modules_end_within_limits() {
    let code = wat::parse_str(WALK).unwrap();
    let held = Held::new((0..SIZE).map(|at| (at % 64) as u8).collect(), &[0; REGIONS]);
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut runs = 0;
    for _ in 0..3000 {
        let mut code = code.clone();
        for _ in 0..1 + random(3) {
            let at = 8 + random(code.len() - 8);
            code[at] = if random(2) == 0 { random(256) as u8 } else { code[at].wrapping_add(1) };
        }
        let Ok(compiled) = Compiled::new(&code) else { continue };
        let call =
            Call { at: 64, state: vec![0xff; 12], space: Box::new(held.clone()), spent: Spent::default(), micros: 0 };
        let ran = compiled.run(call);
        assert!(ran.reply.len() <= 4096 && ran.state.len() <= 128);
        runs += 1;
    }
    assert!(runs > 100, "{runs} could be run");
}

#[test]
#[ignore = "it prints times of this machine"]
fn costs_of_steps() {
    for (name, text) in [
        ("walk", WALK.to_owned()),
        ("loop", module("(loop $l (br $l)) unreachable")),
        ("steps", module("(i64.add (local.get $at) (i64.const 1))")),
        ("fill", module("(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br $l)) unreachable")),
        ("fill 63", module("(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 63)) (br $l)) unreachable")),
        ("grow", module("(loop $l (drop (memory.grow (i32.const 99))) (br $l)) unreachable")),
        ("read", module("(loop $l (call $read (local.get $at) (i32.const 0) (i32.const 8)) (br $l)) unreachable")),
        (
            "locals",
            format!(
                "(module (func $f (local {})) (func (export \"step\") (param i64) (result i64) (loop $l (call $f) (br $l)) unreachable))",
                "i64 ".repeat(1900)
            ),
        ),
    ] {
        let compiled = Compiled::new(&wat::parse_str(&text).unwrap()).unwrap();
        let mut bytes = vec![0; SIZE];
        put(&mut bytes, 72, 64);
        let held = Held::new(bytes, &[0; REGIONS]);
        let mut all: Vec<u64> = (0..200)
            .map(|_| {
                let state = [&[1; 8][..], &20_u32.to_le_bytes()].concat();
                compiled
                    .run(Call { at: 64, state, space: Box::new(held.clone()), spent: Spent::default(), micros: 0 })
                    .nanos
            })
            .collect();
        all.sort_unstable();
        println!("{name:>8}: median {} us, most {} us", all[100] / 1000, all[199] / 1000);
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() >> 10
}

#[test]
fn modules_that_went_leave_no_memory() {
    let modules = Modules::start(1).unwrap();
    let body = "(set_local $i (i64.add (get_local $i) (i64.const 1)))"
        .replace("set_local", "local.set")
        .replace("get_local", "local.get");
    let code = wat::parse_str(module(&format!("{} (local.get $i)", body.repeat(20_000)))).unwrap();
    // One without a step is refused, after it was compiled.
    let text = module(&format!("{} (local.get $i)", body.repeat(20_000))).replace("(export \"step\")", "");
    let refused = wat::parse_str(text).unwrap();
    let store = |name: &[u8], code: &[u8]| {
        let mut outcome = Ok(0);
        for (at, part) in code.chunks(64 << 10).enumerate() {
            outcome = modules.take(1, (code.len() as u32, (at * (64 << 10)) as u32, name, part));
        }
        outcome
    };
    let round = || {
        for _ in 0..80 {
            // A busy machine may not compile it in time; that is refused as well.
            assert!(matches!(store(b"a", &code), Ok(_) | Err(Refusal::CompileTime)));
            assert!(matches!(store(b"b", &refused), Err(Refusal::NoStep | Refusal::CompileTime)));
        }
        resident()
    };
    // What the allocator keeps for later is there after the first round.
    let (before, after) = (round(), round());
    println!("{before} MiB, then {after} MiB; {} modules", modules.count());
    assert!(
        after < before + 64,
        "one login has one module of {} KiB, and {} MiB of memory",
        code.len() >> 10,
        after - before
    );
}
