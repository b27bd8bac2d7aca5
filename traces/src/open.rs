//! Opens a trace, whatever it is.

use crate::archive::Members;
use crate::detect::{Guess, detect};
use crate::file::{FileReader, unreadable};
use crate::reader::Stepped;
use crate::recordings;
use crate::source::{HEAD, Source};
use crate::{Format, ReadOptions, Reader, TraceError};
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

/// Opens a file, or standard input for `-`.
///
/// `.gz`, `.xz` and `.zst` are known by their first bytes and decompressed, long ones by a thread of their own. A `.tar` is
/// read member by member, in its order, each a process of its own, and each may be compressed. The format is detected, unless it is named.
///
/// Objects without an address are laid out by their largest size, so `httpd`, `mambo`, `oraclegeneral` and `objects` are read
/// twice: a file is opened again; what comes through a pipe is kept in a temporary file. Memory grows with the number of
/// objects there. The order of the first 16 million requests takes up to 128 MiB between the readings; nothing else grows with
/// the number of events.
///
/// ```no_run
/// # fn main() -> Result<(), traces::TraceError> {
/// let mut reader = traces::open("ranks.tar.zst", &traces::ReadOptions::default())?;
/// for event in reader.by_ref() {
///     println!("{:?}", event?);
/// }
/// println!("{}", traces::Reader::summary(&reader));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`TraceError`] for what is not there, is damaged, is of no format or of an unclear one.
pub fn open(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Box<dyn Reader + Send>, TraceError> {
    let path = path.as_ref();
    let source = Source::at(path).map_err(|error| TraceError::Io { file: path.into(), doing: "open", error })?;
    begin(source, options)
}

/// Reads a trace from anything. `name` is for messages, and for what formats take from a name.
///
/// # Errors
/// As [`open()`].
pub fn read(
    name: impl Into<PathBuf>,
    bytes: impl Read + Send + 'static,
    options: &ReadOptions,
) -> Result<Box<dyn Reader + Send>, TraceError> {
    let name = name.into();
    let source = Source::of(name.clone(), Box::new(bytes));
    begin(source.map_err(|error| TraceError::Io { file: name, doing: "read", error })?, options)
}

fn begin(source: Source, options: &ReadOptions) -> Result<Box<dyn Reader + Send>, TraceError> {
    let guess = match options.format {
        Some(format) => Guess { format, reason: String::new() },
        None if options.columns.is_some() => Guess { format: Format::Csv, reason: "as columns are given".into() },
        None => {
            let (name, head) = head(&source)?;
            detect(&name, &head)?
        }
    };
    if options.time_unit.is_some() && !guess.format.has_free_times() {
        let what = format!("the times of {} have one unit", guess.format);
        let remedy = "leave it out; csv and objects take it".into();
        return Err(TraceError::Option { option: "--time-unit", what, remedy });
    }
    if guess.format == Format::Registrations {
        return recordings::open(source, options);
    }
    Ok(Box::new(Stepped::new(FileReader::new(source, guess.format, guess.reason, options.clone())?)))
}

/// Name and first bytes of the trace itself, out of archive and compression.
fn head(source: &Source) -> Result<(PathBuf, Vec<u8>), TraceError> {
    let file = source.name();
    let failed = |error| unreadable(file, "its beginning".into(), error);
    let (stored, is_all) = source.head().map_err(failed)?;
    let mut head = Vec::new();
    let mut name = file.to_path_buf();
    let look = || -> io::Result<()> {
        let mut members = Members::of(Box::new(Cursor::new(stored)))?;
        let is_archive = members.is_archive();
        while let Some(member) = members.next()? {
            let member_name = member.name.unwrap_or_default();
            if is_archive && crate::file::is_documentation(&member_name) {
                continue;
            }
            if is_archive {
                name = member_name.into();
            }
            member.bytes.take(HEAD).read_to_end(&mut head)?;
            break;
        }
        Ok(())
    };
    match look() {
        // Only the beginning was looked at, so it has to end somewhere.
        Err(error) if head.is_empty() && (is_all || error.kind() != io::ErrorKind::UnexpectedEof) => Err(failed(error)),
        _ => Ok((if head.is_empty() { file.to_path_buf() } else { name }, head)),
    }
}
