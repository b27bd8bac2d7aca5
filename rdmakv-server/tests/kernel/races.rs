//! Items of two keys that take turns in one chunk, and always have the same version: the chunk's life alone tells them apart.
//!
//! In builds with faults, programs that break a rule have to be found.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{SERVER, Server};
use crate::wire::{ADDRESS, HERE, Wire};

const LENGTH: usize = 600;
/// Both keys' turns in one request.
const TURNS: usize = 50;

/// The answers to a reader.
#[derive(Debug, Default)]
struct Answers {
    right: u64,
    absent: u64,
    wrong: u64,
}

/// Reads while a writer changes the chunk, for so long or until an answer is wrong.
fn race(wire: &Wire, object: Option<&std::path::Path>, most: Duration) -> Answers {
    let mut command = Command::new(SERVER);
    command.args(["-l", ADDRESS, "-p", "11211", "-U", "11211", "-t", "1", &format!("--xdp={HERE}")]);
    command.envs(object.map(|object| ("RDMAKV_GETS_OBJECT", object)));
    let server = Server::run(&mut command);
    let (mut client, mut stream) = (wire.client(), server.connect());
    let (stop, mut answers) = (AtomicBool::new(false), Answers::default());
    let turn = ["k", "j"].map(|key| format!("ms {key} {LENGTH} E5 q\r\n{}\r\nmd {key} q\r\n", key.repeat(LENGTH)));
    let request = turn.concat().repeat(TURNS) + "mn\r\n";
    let wanted = format!("VALUE k 0 {LENGTH}\r\n{}\r\nEND\r\n", "k".repeat(LENGTH));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = [0; 4];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(answer, *b"MN\r\n");
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < most && answers.wrong == 0 {
            let answer = client.get("k");
            match &answer[..] {
                "END\r\n" => answers.absent += 1,
                answer if answer == wanted => answers.right += 1,
                _ => answers.wrong += 1,
            }
        }
        stop.store(true, Relaxed);
    });
    println!(
        "{answers:?}, {} by the kernel, {} changed",
        server.stat("kernel_gets"),
        server.stat("kernel_passed_changed")
    );
    assert!(server.stat("kernel_gets") > 0 || object.is_some());
    answers
}

#[test]
fn life_tells_items_of_one_version_apart() {
    Wire::run(|wire| {
        let answers = race(wire, None, Duration::from_secs(3));
        assert!(answers.wrong == 0 && answers.right > 100, "{answers:?}");
    });
}

#[cfg(rdmakv_fault_injection)]
#[test]
fn programs_that_break_a_rule_are_found() {
    Wire::run(|wire| {
        let folder = tempfile::tempdir().unwrap();
        // None; nothing is looked at again; the life is not.
        for (rule, is_found) in [(0, false), (1, true), (2, true)] {
            let object = folder.path().join(format!("{rule}.o"));
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/src/gets.bpf.c");
            let mut clang = Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang".into()));
            clang.args(["-g", "-O2", "-mcpu=v3", "-target", "bpfel", "-Wno-unused-function", "-DGETS_WAIT=20000"]);
            clang.arg(format!("-DGETS_FAULT={rule}")).args(["-c", source, "-o"]).arg(&object);
            assert!(clang.status().unwrap().success());
            let most = Duration::from_secs(if is_found { 60 } else { 10 });
            let answers = race(wire, Some(&object), most);
            assert_eq!(answers.wrong > 0, is_found, "rule {rule}: {answers:?}");
        }
    });
}
