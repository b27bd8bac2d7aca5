//! The recorder of this process, as the environment asks for it.

use crate::{DEFAULT_LIMIT, Recorder, Source, bytes};
use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;

/// Names the file. Where it is not set, nothing is recorded.
pub const FILE_VARIABLE: &str = "MRRC_RECORD";
/// [Bytes](bytes()) of the file, at most: `64M`.
pub const LIMIT_VARIABLE: &str = "MRRC_RECORD_LIMIT";

static RECORDER: OnceLock<Option<Recorder>> = OnceLock::new();

/// Returns the recorder of this process, if `MRRC_RECORD` names a file and events of this source are what it takes. It is
/// opened by the first call; what goes wrong then is said in a line on standard error, once, and nothing is recorded. A
/// library asks for one source only, ever.
///
/// ```
/// use traces_record::{Source, of_process};
/// // Not asked for.
/// assert!(of_process(Source::Verbs).is_none());
/// ```
#[inline]
pub fn of_process(source: Source) -> Option<&'static Recorder> {
    RECORDER.get_or_init(|| open(source)).as_ref()
}

#[cold]
fn open(source: Source) -> Option<Recorder> {
    let file = std::env::var_os(FILE_VARIABLE).filter(|file| !file.is_empty())?;
    let limit = match std::env::var(LIMIT_VARIABLE) {
        Ok(text) if !text.is_empty() => match bytes(&text) {
            Some(limit) => limit,
            None => {
                tell(&format!("{LIMIT_VARIABLE}={text:?} is no number of bytes (64M, 64MB): nothing is recorded"));
                return None;
            }
        },
        _ => DEFAULT_LIMIT,
    };
    match Recorder::open(Path::new(&file), limit, source) {
        Ok(recorder) if recorder.takes(source) => {
            see_to_ends();
            Some(recorder)
        }
        // The file is the other's, and its head says that this one was there.
        Ok(_) => None,
        Err(error) => {
            tell(&format!("{error}: nothing is recorded"));
            None
        }
    }
}

/// The head counts the processes that end by `exit`.
fn see_to_ends() {
    extern "C" fn at_exit() {
        if let Some(Some(recorder)) = RECORDER.get() {
            recorder.ends();
        }
    }
    #[expect(unsafe_code, reason = "a function of the system's library")]
    // SAFETY: the function lives as long as this library does, which its registration ends with, and adds to a number.
    unsafe {
        libc::atexit(at_exit);
    }
}

fn tell(what: &str) {
    // There is no other place to report it.
    let _ = writeln!(std::io::stderr(), "traces-record: {what}");
}
