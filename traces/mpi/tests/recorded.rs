//! A program of two ranks is recorded event by event as it expects to be, under each MPI that is installed.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use traces_record::layout::{HEAD, Head, Operation, Place, RECORD, Record};

/// An MPI: its compilers, and what starts its programs.
struct Installed {
    name: &'static str,
    c: &'static str,
    fortran: &'static str,
    run: &'static str,
}

const KNOWN: [Installed; 2] = [
    Installed { name: "Open MPI", c: "mpicc.openmpi", fortran: "mpifort.openmpi", run: "mpirun.openmpi" },
    Installed { name: "MPICH", c: "mpicc.mpich", fortran: "mpifort.mpich", run: "mpirun.mpich" },
];

impl Installed {
    /// Compiles a program, if its compiler is there and has what it needs.
    fn compile(&self, compiler: &str, source: &str, folder: &Path) -> Option<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let program = folder.join(format!("program-{compiler}"));
        // The compiler is its choice: `MPICH_CC`, `OMPI_CC`.
        let made = Command::new(compiler).arg("-O1").arg("-o").args([&program, &source]).output();
        match made {
            Ok(made) if made.status.success() => Some(program),
            Ok(made) => {
                eprintln!("{}: not run: {compiler} does not compile: {}", self.name, text(&made.stderr));
                None
            }
            Err(error) => {
                eprintln!(
                    "{}: not run: {compiler}: {error} (Debian: libopenmpi-dev openmpi-bin, libmpich-dev mpich)",
                    self.name
                );
                None
            }
        }
    }

    /// Runs it under the library. None where the program does not run by itself either: this MPI is not set up here.
    fn run(&self, program: &Path, folder: &Path, recording: &Path) -> Option<Output> {
        let output = self.start(program, folder, Some(recording));
        if output.status.success() {
            return Some(output);
        }
        let alone = self.start(program, folder, None);
        assert!(!alone.status.success(), "{}: {}: {}", self.name, output.status, text(&output.stderr));
        eprintln!("{}: not run: its programs do not run here: {}", self.name, text(&alone.stderr));
        None
    }

    fn start(&self, program: &Path, folder: &Path, recording: Option<&Path>) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", self.run, "-n", "2"]).arg(program).arg(folder);
        // As root, on few processors, on one host.
        command.envs([
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ]);
        if let Some(recording) = recording {
            command.env("LD_PRELOAD", library()).env("MRRC_RECORD", recording);
        }
        command.output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the tested library: it lies beside this test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libtraces_mpi.so")
}

/// Returns the events of each process, a line each as the program writes them.
fn recorded(file: &Path) -> (Head, BTreeMap<u32, String>) {
    let bytes = std::fs::read(file).unwrap();
    let head = Head::of_bytes(bytes[..HEAD].try_into().unwrap()).unwrap();
    let mut processes: BTreeMap<u32, String> = BTreeMap::new();
    for bytes in bytes[HEAD..].chunks_exact(RECORD).take(head.records() as usize) {
        let Place::Written(record) = Record::of_bytes(bytes.try_into().unwrap()) else { panic!("a record is missing") };
        let name = match record.operation {
            Operation::Request => "request",
            Operation::Acquire => "acquire",
            Operation::Release => "release",
            Operation::Invalidate => "invalidate",
        };
        let Record { address, length, access, process, .. } = record;
        writeln!(processes.entry(process).or_default(), "{name} {address:x} {length} {access}").unwrap();
    }
    (head, processes)
}

#[test]
fn every_buffer_use_is_recorded_as_expected() {
    for mpi in &KNOWN {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = mpi.compile(mpi.c, "program.c", folder.path()) else { continue };
        let lines = folder.path().join("expected");
        std::fs::create_dir(&lines).unwrap();
        let file = folder.path().join("recording.reg");
        if mpi.run(&program, &lines, &file).is_none() {
            continue;
        }
        let (head, processes) = recorded(&file);
        assert_eq!((head.source, head.attached, head.ended, head.left_out()), (2, 2, 2, 0), "{}", mpi.name);
        assert_eq!(processes.len(), 2, "{}", mpi.name);
        for (process, found) in processes {
            let expected = std::fs::read_to_string(lines.join(process.to_string())).unwrap();
            assert!(expected.lines().count() > 300);
            for (nth, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
                assert_eq!(found, expected, "{}, process {process}, event {nth}", mpi.name);
            }
            assert_eq!(found.lines().count(), expected.lines().count(), "{}", mpi.name);
        }
    }
}

#[test]
fn a_fortran_program_is_recorded() {
    for mpi in &KNOWN {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = mpi.compile(mpi.fortran, "program.f90", folder.path()) else { continue };
        let file = folder.path().join("recording.reg");
        if mpi.run(&program, folder.path(), &file).is_none() {
            continue;
        }
        let (_, processes) = recorded(&file);
        assert_eq!(processes.len(), 2, "{}", mpi.name);
        for found in processes.values() {
            let events: Vec<(&str, &str, &str)> = found
                .lines()
                .map(|line| line.split(' ').collect::<Vec<_>>())
                .map(|words| (words[0], words[2], words[3]))
                .collect();
            let expected = [
                ("acquire", "4000", "2"),
                ("acquire", "4000", "1"),
                ("release", "4000", "2"),
                ("release", "4000", "1"),
                ("request", "8000", "1"),
                ("request", "8000", "2"),
            ];
            assert_eq!(events, expected, "{}", mpi.name);
        }
    }
}

#[test]
fn without_a_recording_calls_are_passed_on() {
    for mpi in &KNOWN {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = mpi.compile(mpi.c, "program.c", folder.path()) else { continue };
        for (recording, said) in [(Path::new(""), ""), (Path::new("/nowhere/recording.reg"), "nothing is recorded")] {
            let Some(output) = mpi.run(&program, folder.path(), recording) else { continue };
            assert!(text(&output.stderr).contains(said), "{}: {}", mpi.name, text(&output.stderr));
        }
    }
}
