//! `record`: what a program does with its buffers.

use super::failure::{Failure, note};
use super::table::{bytes, many};
use crate::record::child;
use crate::record::libraries::{Library, LibraryError, MPI, VARIABLE, VERBS, preload};
use clap::ValueEnum;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use traces_record::layout::{HEAD, Head, RECORD};

/// Run a program and record what it does with its buffers
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Record {
    /// The recording; a file that is there is replaced
    #[arg(short, long, value_name = "FILE", default_value = "recording.reg")]
    output: PathBuf,
    /// Calls to record
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    what: Recorded,
    /// Bytes of the recording at most, 32 for an event: 64M or 64MiB, or 64MB, which is 64,000,000; what comes later is
    /// counted and left out
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    limit: u64,
    /// Folder of libmrrc_preload.so and libtraces_mpi.so [default: $TRACESIM_LIBRARY, or beside this command]
    #[arg(long, value_name = "DIR")]
    library: Option<PathBuf>,
    /// The program and its arguments, behind --
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Recorded {
    /// MPI, and verbs where a program uses them without MPI
    Auto,
    /// Registrations: ibv_reg_mr, ibv_dereg_mr and their kin
    Verbs,
    /// Messages, collectives and windows
    Mpi,
}

const EXAMPLES: &str = "\
Examples:
  tracesim record -- mpirun -n 4 program                all ranks, into recording.reg
  tracesim record -o bw.reg -- ib_write_bw -a           a program with verbs
  tracesim record --what verbs -- mpirun -n 4 program   what MPI itself registers
  tracesim advise recording.reg                         what to make of it

The program runs as ever: its input, output, signals and exit status are its own. All processes
that it starts are recorded as well, those of mpirun on other hosts excepted. The recording can be
read at any time, also after the program was killed. Where nothing is to be recorded, a line says
so. Programs that are linked statically or run set-user-ID cannot be recorded.

Exit status: that of the program; 127 if it is not found, 126 if it cannot be run; 1 if a library
is not found or the recording cannot be made, when the program is not run.";

fn size(text: &str) -> Result<u64, String> {
    let bytes = traces_record::bytes(text).ok_or_else(|| format!("`{text}` is no size: give bytes, 64M or 1G"))?;
    // Before what was recorded earlier is replaced by a file that can hold nothing.
    let least = (HEAD + RECORD) as u64;
    if bytes < least { Err(format!("{bytes} bytes have no room for an event: {least} or more")) } else { Ok(bytes) }
}

impl Record {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        if self.output.as_os_str() == "-" {
            return Err(Failure::usage("-o -: a recording is written through memory, so it is a file: name one"));
        }
        let libraries = self.libraries()?;
        let Some((program, arguments)) = self.program.split_first() else {
            return Err(Failure::usage("no program to run: name it behind --"));
        };
        // Before what was recorded earlier is replaced.
        if !child::is_there(program) {
            return Ok(not_run(&program.to_string_lossy(), &io::ErrorKind::NotFound.into()));
        }
        let mut command = Command::new(program);
        command.args(arguments);
        let made = traces_record::create(&self.output, self.limit).map_err(|error| error.to_string());
        let file = made.and_then(|()| self.output.canonicalize().map_err(|error| error.to_string()));
        // Before a program runs, perhaps for hours, of which nothing would be recorded.
        let file = file.map_err(|why| {
            Failure::work(format_args!("record: {why}: name another file by --output; the program was not run"))
        })?;
        command.env("LD_PRELOAD", preload(&libraries, std::env::var_os("LD_PRELOAD")));
        command.env(traces_record::FILE_VARIABLE, file);
        // The program's own registrations, without a cache, unless it was asked for with one.
        if std::env::var_os("MRRC_PRELOAD").is_none() {
            command.env("MRRC_PRELOAD", "off");
        }
        let status = match child::run(&mut command) {
            Ok(status) => status,
            Err(error) => return Ok(not_run(&program.to_string_lossy(), &error)),
        };
        self.tell(status);
        Ok(child::end_as(status))
    }

    /// Returns the libraries to preload. By itself either of them will do.
    fn libraries(&self) -> Result<Vec<PathBuf>, Failure> {
        let named = self
            .library
            .clone()
            .or_else(|| std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from));
        let find = |library: Library| library.find(named.as_deref());
        let missing = |error: LibraryError| Failure::work(format_args!("record: {error}"));
        match self.what {
            Recorded::Verbs => Ok(vec![find(VERBS).map_err(missing)?]),
            Recorded::Mpi => Ok(vec![find(MPI).map_err(missing)?]),
            Recorded::Auto => match [MPI, VERBS].map(find) {
                [Ok(mpi), Ok(verbs)] => Ok(vec![mpi, verbs]),
                [Ok(one), Err(_)] => Ok(vec![without(VERBS, one)]),
                [Err(_), Ok(one)] => Ok(vec![without(MPI, one)]),
                [Err(error), Err(_)] => Err(missing(error)),
            },
        }
    }

    /// Reports the recording.
    fn tell(&self, status: ExitStatus) {
        let file = self.output.display();
        let head = match traces_record::state(&self.output) {
            Ok(head) => head,
            Err(error) => return note(&format!("{file}: read: {error}: what was recorded is in doubt")),
        };
        said(&self.output, &head, status).iter().for_each(|line| note(line));
    }
}

/// One will do, and that the other is missing is said.
fn without(missing: Library, there: PathBuf) -> PathBuf {
    let Library { file, records, option, .. } = missing;
    note(&format!("without {records}: {file} is not there (--what {option} says how to build it)"));
    there
}

/// Lines about a recording.
fn said(file: &Path, head: &Head, status: ExitStatus) -> Vec<String> {
    let file = file.display();
    let processes = if head.attached == 1 { "1 process".into() } else { format!("{} processes", head.attached) };
    let mut lines = Vec::new();
    if head.claimed == 0 {
        let failed = if status.success() { None } else { Some(status) };
        let why = match (head.attached, head.source, failed) {
            (0, _, Some(status)) => format!("the program failed ({status}) before it used verbs or MPI"),
            (_, 2, Some(status)) => format!("MPI was started, and the program failed ({status}) before anything was sent"),
            (_, _, Some(status)) => format!("the program failed ({status}) before any memory was registered"),
            (0, _, None) => {
                "the program called no verbs and no MPI, or cannot be recorded, as it is linked statically or runs set-user-ID"
                    .into()
            }
            (_, 2, None) => "MPI was started, and nothing was sent".into(),
            _ => "no memory was registered".into(),
        };
        lines.push(format!("{file} holds nothing: {why}"));
    } else {
        let size = bytes((head.records() * 32 + 4096).div_ceil(4096));
        lines.push(format!("{} of {processes} in {file}, {size}", many(head.records(), "event")));
    }
    match (head.left_out(), head.stopped) {
        (0, _) => {}
        (left, 0) if head.claimed > head.limit => {
            lines.push(format!("{} more found no room: raise --limit", many(left, "event")));
        }
        (left, 0) => lines.push(format!("{} more were not finished", many(left, "event"))),
        (left, number) => {
            let error = io::Error::from_raw_os_error(number as i32);
            lines.push(format!(
                "{} more found no room, as the file could not be made longer: {error}",
                many(left, "event")
            ));
        }
    }
    let open = head.attached.saturating_sub(head.ended);
    if open > 0 {
        lines.push(format!("{open} of {processes} still run, or were ended otherwise than by exit"));
    }
    if head.unwatched > 0 {
        lines.push(format!(
            "{} were made while as much memory was watched as can be: if theirs was unmapped, that is missing",
            many(head.unwatched.into(), "registration")
        ));
    }
    match head.others {
        0 => {}
        0b10 => lines.push("verbs were used as well, and are left out: --what verbs records them".into()),
        _ => lines.push("MPI was used as well, and is left out: --what mpi records it".into()),
    }
    lines
}

/// The program could not be started.
fn not_run(program: &str, error: &io::Error) -> ExitCode {
    let (status, why) = match error.kind() {
        io::ErrorKind::NotFound => (127, "not found; was it to be ./ or on the PATH?".to_owned()),
        _ => (126, error.to_string()),
    };
    note(&format!("{program}: {why}"));
    ExitCode::from(status)
}
