//! The recorded events are in the file, whatever became of the recording process.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use traces_record::layout::{HEAD, Head, Operation, Place, RECORD, Record};
use traces_record::{DEFAULT_LIMIT, OpenError, Recorder, Source};

/// Events that the child records: more than the file grows by at a time.
const MANY: u64 = 20_000;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.reg");
    (folder, file)
}

fn read(file: &Path) -> (Head, Vec<Place>) {
    let bytes = std::fs::read(file).unwrap();
    let head = Head::of_bytes(bytes[..HEAD].try_into().unwrap()).unwrap();
    let places = bytes[HEAD..].chunks_exact(RECORD).take(head.records() as usize);
    let places: Vec<Place> = places.map(|bytes| Record::of_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(places.len() as u64, head.records(), "the file is as long as its head says");
    (head, places)
}

fn written(places: &[Place]) -> Vec<Record> {
    let record = |place: &Place| match place {
        Place::Written(record) => *record,
        other => panic!("{other:?}"),
    };
    places.iter().map(record).collect()
}

#[test]
fn each_threads_events_are_recorded_once_in_order() {
    let (_folder, file) = folder();
    let recorder = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let recorder = &recorder;
            scope.spawn(move || {
                (1..=10_000).for_each(|n| recorder.record(Operation::Acquire, 3, thread << 40 | n << 12, n));
            });
        }
    });
    drop(recorder);
    let (head, places) = read(&file);
    assert_eq!((head.claimed, head.left_out(), head.attached, head.ended), (40_000, 0, 1, 1));
    let records = written(&places);
    for thread in 0..4 {
        let mine: Vec<&Record> = records.iter().filter(|record| record.address >> 40 == thread).collect();
        assert!(mine.iter().map(|record| record.length).eq(1..=10_000), "thread {thread}");
        assert!(mine.is_sorted_by_key(|record| record.time), "thread {thread}");
        assert!(mine.iter().all(|record| (record.process, record.access) == (std::process::id() & 0x3f_ffff, 3)));
        assert_eq!(mine.iter().map(|record| record.thread).collect::<BTreeSet<_>>().len(), 1);
    }
}

#[test]
fn what_has_no_bytes_is_not_recorded() {
    let (_folder, file) = folder();
    let recorder = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap();
    recorder.record(Operation::Acquire, 3, 0x1000, 0);
    assert_eq!(recorder.state().claimed, 0);
}

#[test]
fn file_stops_at_its_limit_and_counts_the_rest() {
    let (_folder, file) = folder();
    // Not a multiple of what the file grows by.
    let limit = HEAD as u64 + 9_000 * RECORD as u64 + 5;
    let recorder = Recorder::open(&file, limit, Source::Verbs).unwrap();
    (1..=9_100).for_each(|n| recorder.record(Operation::Request, 1, n << 12, n));
    let (head, places) = read(&file);
    assert_eq!((head.records(), head.left_out(), head.stopped), (9_000, 100, 0));
    assert_eq!(written(&places).last().unwrap().length, 9_000);
    assert!(std::fs::metadata(&file).unwrap().len() <= limit);
    let none = Recorder::open(&file.with_extension("other"), 4_100, Source::Verbs).unwrap_err();
    assert!(matches!(none, OpenError::Limit { bytes: 4_100 }), "{none}");
}

#[test]
fn recorder_memory_does_not_grow_with_the_file() {
    let (_folder, file) = folder();
    let recorder = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap();
    // 16 MB of events.
    (1..=500_000).for_each(|n| recorder.record(Operation::Request, 1, n << 12, n));
    let name = file.canonicalize().unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mapping = maps.lines().skip_while(|line| !line.ends_with(name.to_str().unwrap()));
    let resident = mapping.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches("kB").trim().parse().unwrap();
    assert!((1..1024).contains(&kib), "{kib} KiB");
    assert_eq!(recorder.state().left_out(), 0);
}

#[test]
fn a_file_that_was_cut_short_is_not_joined() {
    let (_folder, file) = folder();
    let recorder = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap();
    recorder.record(Operation::Request, 1, 0x1000, 1);
    drop(recorder);
    drop(Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap());
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(HEAD as u64 + 100).unwrap();
    // A recording process would be ended there by SIGBUS.
    let refused = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap_err();
    assert!(refused.to_string().contains("cut short"), "{refused}");
}

#[test]
fn damaged_head_stays_within_the_file() {
    let (_folder, file) = folder();
    drop(Recorder::open(&file, HEAD as u64 + 10 * RECORD as u64, Source::Verbs).unwrap());
    let other = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    other.set_len(HEAD as u64 + 10 * RECORD as u64).unwrap();
    // Room for more than the limit.
    std::os::unix::fs::FileExt::write_all_at(&other, &u64::to_le_bytes(1 << 50), 128).unwrap();
    let recorder = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap();
    (1..=200_000).for_each(|n| recorder.record(Operation::Request, 1, n << 12, n));
    assert_eq!((recorder.state().records(), recorder.state().left_out()), (10, 199_990));
}

#[test]
fn several_processes_write_one_file() {
    let (_folder, file) = folder();
    let children: Vec<_> = (0..3).map(|_| child("records_and_ends", &file).spawn().unwrap()).collect();
    let processes: BTreeSet<u32> = children.iter().map(|child| child.id() & 0x3f_ffff).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let (head, places) = read(&file);
    assert_eq!((head.claimed, head.attached, head.ended), (3 * MANY, 3, 3));
    let records = written(&places);
    assert_eq!(records.iter().map(|record| record.process).collect::<BTreeSet<_>>(), processes);
    for process in processes {
        let mine = records.iter().filter(|record| record.process == process);
        assert!(mine.map(|record| record.length).eq(1..=MANY));
    }
}

#[test]
fn who_is_killed_leaves_every_event_behind() {
    let (_folder, file) = folder();
    let status = child("records_and_is_killed", &file).status().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL), "{status}");
    let (head, places) = read(&file);
    assert_eq!((head.claimed, head.attached, head.ended), (MANY, 1, 0));
    assert!(written(&places).iter().map(|record| record.length).eq(1..=MANY));
}

#[test]
fn a_forked_child_records_under_a_number_of_its_own() {
    let (_folder, file) = folder();
    assert!(child("records_and_forks", &file).status().unwrap().success());
    let (head, places) = read(&file);
    assert_eq!((head.claimed, head.attached, head.ended), (4, 2, 2));
    let records = written(&places);
    let number = |nth: usize| (records[nth].process, records[nth].thread);
    assert_eq!(number(0), number(3));
    assert_eq!(number(1), number(2));
    assert_ne!(number(0).0, number(1).0);
    assert_ne!(number(0).1, number(1).1);
}

#[test]
fn a_child_that_records_nothing_is_not_missed() {
    let (_folder, file) = folder();
    assert!(child("records_and_runs_another", &file).status().unwrap().success());
    let (head, _) = read(&file);
    assert_eq!((head.claimed, head.attached, head.ended), (2, 1, 1));
}

#[test]
fn recording_survives_closed_descriptors() {
    let (folder, file) = folder();
    assert!(child("records_and_closes_everything", &file).status().unwrap().success());
    let (head, places) = read(&file);
    assert_eq!((head.claimed, head.stopped, head.left_out()), (MANY, 0, 0));
    assert!(written(&places).iter().map(|record| record.length).eq(1..=MANY));
    assert_eq!(std::fs::read(folder.path().join("own")).unwrap(), b"its own");
}

#[test]
fn the_first_source_has_the_file() {
    let (_folder, file) = folder();
    let first = Recorder::open(&file, DEFAULT_LIMIT, Source::Mpi).unwrap();
    let second = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap();
    assert_eq!((first.takes(Source::Mpi), second.takes(Source::Verbs)), (true, false));
    assert_eq!((first.state().source, first.state().others), (2, 0b10));
}

#[test]
fn what_is_no_recording_is_left_as_it_is() {
    let (folder, file) = folder();
    for other in [b"short".to_vec(), vec![b'x'; 10_000]] {
        std::fs::write(&file, &other).unwrap();
        let error = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap_err().to_string();
        assert!(error.contains("no recording") && error.contains("name another"), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), other);
    }
    let mut later = Head { limit: 10, ..Head::default() }.bytes();
    std::fs::write(&file, later).unwrap();
    let error = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap_err().to_string();
    assert!(error.contains("before the machine was started"), "{error}");
    later[8] = 2;
    std::fs::write(&file, later).unwrap();
    let error = Recorder::open(&file, DEFAULT_LIMIT, Source::Verbs).unwrap_err().to_string();
    assert!(error.contains("version 2"), "{error}");
    let error = Recorder::open(folder.path(), DEFAULT_LIMIT, Source::Verbs).unwrap_err().to_string();
    assert!(error.contains("open"), "{error}");
    let error = Recorder::open(Path::new("/dev/null"), DEFAULT_LIMIT, Source::Verbs).unwrap_err().to_string();
    assert!(error.contains("no regular file"), "{error}");
}

/// This program again, to run one of the tests below, which do nothing unless they are told of a file.
fn child(test: &str, file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--quiet", test]).env("RECORDED", file).env("MRRC_RECORD", file);
    command.stdout(std::process::Stdio::null());
    command
}

fn in_child() -> Option<&'static Recorder> {
    std::env::var_os("RECORDED").and_then(|_| traces_record::of_process(Source::Verbs))
}

#[test]
#[ignore = "run by others, in a process of its own"]
fn records_and_ends() {
    let Some(recorder) = in_child() else { return };
    (1..=MANY).for_each(|n| recorder.record(Operation::Acquire, 3, n << 12, n));
}

#[test]
#[ignore = "run by others, in a process of its own"]
#[expect(unsafe_code, reason = "a signal")]
fn records_and_is_killed() {
    let Some(recorder) = in_child() else { return };
    (1..=MANY).for_each(|n| recorder.record(Operation::Acquire, 3, n << 12, n));
    // SAFETY: `kill` takes numbers; a process may signal itself.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
#[ignore = "run by others, in a process of its own"]
#[expect(unsafe_code, reason = "a fork")]
fn records_and_forks() {
    let Some(recorder) = in_child() else { return };
    recorder.record(Operation::Acquire, 3, 1 << 12, 1);
    // SAFETY: the child records, which takes no lock, and ends by `exit`.
    unsafe {
        match libc::fork() {
            0 => {
                recorder.record(Operation::Acquire, 3, 2 << 12, 2);
                recorder.record(Operation::Acquire, 3, 3 << 12, 3);
                libc::exit(0);
            }
            child => assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child),
        }
    }
    recorder.record(Operation::Acquire, 3, 4 << 12, 4);
}

#[test]
#[ignore = "run by others, in a process of its own"]
#[expect(unsafe_code, reason = "forks")]
fn records_and_runs_another() {
    let Some(recorder) = in_child() else { return };
    recorder.record(Operation::Acquire, 3, 1 << 12, 1);
    // SAFETY: one child becomes another program, or ends at once; the other ends by `exit`.
    unsafe {
        for runs in [true, false] {
            match libc::fork() {
                0 if runs => {
                    libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), std::ptr::null::<libc::c_char>());
                    libc::_exit(1);
                }
                0 => libc::exit(0),
                child => assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child),
            }
        }
    }
    recorder.record(Operation::Acquire, 3, 2 << 12, 2);
}

#[test]
#[ignore = "run by others, in a process of its own"]
#[expect(unsafe_code, reason = "descriptors are closed under their owners")]
fn records_and_closes_everything() {
    let Some(recorder) = in_child() else { return };
    recorder.record(Operation::Acquire, 3, 1 << 12, 1);
    let own = Path::new(&std::env::var_os("RECORDED").unwrap()).with_file_name("own");
    // SAFETY: these descriptors are not used after this.
    unsafe {
        (3..64).for_each(|descriptor| _ = libc::close(descriptor));
    }
    std::fs::write(&own, b"its own").unwrap();
    // One of these has the recording's number now.
    let mine: Vec<_> = (0..8).map(|_| std::fs::File::options().write(true).open(&own).unwrap()).collect();
    (2..=MANY).for_each(|n| recorder.record(Operation::Acquire, 3, n << 12, n));
    std::mem::forget(mine);
    // The descriptors of the test's frame are gone. SAFETY: `exit` ends this process; no other code of the test
    // runs afterwards.
    unsafe { libc::exit(0) };
}
