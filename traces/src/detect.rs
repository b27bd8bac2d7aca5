//! Finds out the format from a name and the first bytes.
//!
//! A format with a mark of its own is known by it. Else the first lines are read in every format there is, and the one in
//! which nearly all make sense is it. If there are several, or none, or the lines would fit much else too, that is said
//! instead of guessed.

use crate::format::Format;
use crate::formats::{self, oraclegeneral, pages, srt};
use crate::frames::{BYTE_ORDER_MARK, is_text};
use crate::number::TOO_LARGE;
use crate::parser::Outcome;
use crate::registrations;
use crate::{Columns, ReadOptions, TraceError};
use std::collections::VecDeque;
use std::path::Path;

/// Lines that are looked at.
const SAMPLE: usize = 64;

/// A format and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guess {
    /// The format.
    pub format: Format,
    /// The evidence for it, to follow its name.
    pub reason: String,
}

/// Returns the format of what has this name and begins with these bytes, decompressed.
///
/// # Errors
/// [`TraceError::Content`], naming `--format`, if it is none of them or could be several.
pub fn detect(name: &Path, head: &[u8]) -> Result<Guess, TraceError> {
    let doubtful = |what: String| TraceError::Content {
        file: name.into(),
        at: "its first bytes".into(),
        what,
        remedy: "say --format, or --columns time=1,addr=2:sector,len=3,op=4 for a csv".into(),
    };
    let guess = |format, reason: &str| Ok(Guess { format, reason: reason.into() });
    if head.is_empty() {
        return Err(doubtful("it is empty, so its format cannot be told".into()));
    }
    use registrations::{binary, csv, mapped};
    if [&binary::MAGIC[..], &mapped::MAGIC[..], csv::HEADER.as_bytes()].iter().any(|mark| head.starts_with(mark)) {
        return guess(Format::Registrations, "by its header");
    }
    if let Some(reason) = binary(head) {
        return reason.map(|(format, reason)| Guess { format, reason }).map_err(doubtful);
    }
    let lines = sample(head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head));
    // A table may begin with comments.
    let is_comment = |line: &&&[u8]| line.starts_with(b"#");
    let first = lines.iter().find(|line| !is_comment(line)).copied().unwrap_or_default().trim_ascii();
    if first == pages::HEADER {
        return guess(Format::Pages, "by its header");
    }
    let fits: Vec<Fit<'_>> = Format::ALL.into_iter().filter_map(|format| Fit::of(format, name, &lines)).collect();
    let fitting: Vec<Format> = fits.iter().filter(|fit| fit.is_good()).map(|fit| fit.format).collect();
    match fitting[..] {
        [Format::Objects] if !is_in_order(&lines) => {
            Err(doubtful("it has three numbers a line as `objects` has, but the first is no time".into()))
        }
        [format] => Ok(Guess { format, reason: format!("as its first {} lines fit that alone", lines.len()) }),
        [] if Columns::of_header(names(first)).is_some() => guess(Format::Csv, "by the names in its header"),
        [] if is_table_header(first) => Err(TraceError::Content {
            file: name.into(),
            at: "its first bytes".into(),
            what: format!("its header names no column like an address: `{}`", shown(first)),
            remedy: crate::columns::remedy(),
        }),
        [] => Err(doubtful(match fits.iter().filter(|fit| fit.good > 0).max_by_key(|fit| fit.good) {
            Some(Fit { format, first_bad: Some(line), .. }) => {
                format!("it fits none of the formats; `{format}` comes closest, but for `{}`", shown(line))
            }
            _ => format!("it fits none of the formats: `{}`", shown(first)),
        })),
        _ => {
            let names: Vec<_> = fitting.iter().map(|format| format.name()).collect();
            Err(doubtful(format!("it could be {}", names.join(" or "))))
        }
    }
}

/// Names in a first line, whatever the delimiter.
fn names(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_number = |name: &&[u8]| crate::number::either(name).is_some();
    let all = line.split(|byte| b",;\t| ".contains(byte)).map(|name| name.trim_ascii());
    // A header has no numbers.
    let is_header = !all.clone().any(|name| is_number(&name));
    all.filter(move |_| is_header)
}

/// Returns whether a first line has several names and no numbers.
fn is_table_header(line: &[u8]) -> bool {
    line.iter().any(|byte| b",;\t|".contains(byte)) && line.is_ascii() && names(line).count() > 1
}

/// Returns the first lines that are complete and not blank. The last may be cut where the head ends.
fn sample(head: &[u8]) -> Vec<&[u8]> {
    let whole = memchr::memrchr(b'\n', head).map_or(head, |end| &head[..end]);
    let lines = whole.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty()).take(SAMPLE).collect()
}

/// How lines read in a format.
struct Fit<'a> {
    format: Format,
    good: usize,
    bad: usize,
    /// The first line that makes no sense.
    first_bad: Option<&'a [u8]>,
}

impl<'a> Fit<'a> {
    /// Reads the lines. `None` for formats that are not told by lines: tables have many meanings, and pages have a header.
    fn of(format: Format, name: &Path, lines: &[&'a [u8]]) -> Option<Self> {
        use Format::{Csv, OracleGeneral, Pages, Srt, U32, U64};
        if matches!(format, Csv | Pages | Srt | OracleGeneral | U32 | U64) {
            return None;
        }
        let mut parser = formats::of(format, &ReadOptions::default(), &name.to_string_lossy())?;
        let mut queue = VecDeque::new();
        let mut fit = Self { format, good: 0, bad: 0, first_bad: None };
        for line in lines {
            match parser.parse(line, &mut queue) {
                Outcome::Event(_) | Outcome::Queued | Outcome::Noted | Outcome::LeftOut(_) => fit.good += 1,
                // Numbers of any size are of its form: such a line is passed over.
                Outcome::Other | Outcome::Bad(TOO_LARGE) => {}
                Outcome::Bad(_) => {
                    fit.bad += 1;
                    fit.first_bad.get_or_insert(line);
                }
                Outcome::Broken(_) => return None,
            }
            queue.clear();
        }
        Some(fit)
    }

    /// Returns whether nine in ten of the lines make sense.
    fn is_good(&self) -> bool {
        self.good > 0 && self.bad * 9 <= self.good
    }
}

/// Returns whether the first numbers of the lines never go down.
fn is_in_order(lines: &[&[u8]]) -> bool {
    let firsts = lines.iter().filter_map(|line| crate::number::time(crate::number::words(line).next()?, 1_000_000_000));
    firsts.is_sorted()
}

/// Returns the format of bytes that are no text; `None` for text.
fn binary(head: &[u8]) -> Option<Result<(Format, String), String>> {
    let seen = &head[..head.len().min(4096)];
    if let Some(end) = seen.iter().position(|&byte| byte == 0x0c)
        && seen[..end].iter().all(|&byte| is_text(byte))
        && srt_records(&head[end + 1..]) > 0
    {
        return Some(Ok((Format::Srt, "by the text before its records".into())));
    }
    if seen.iter().all(|&byte| is_text(byte)) {
        return None;
    }
    let records = srt_records(head);
    if records > 0 {
        return Some(Ok((Format::Srt, format!("as its first {records} records follow one another"))));
    }
    if let Some(records) = oracle_records(head) {
        return Some(Ok((
            Format::OracleGeneral,
            format!("as its first {records} records have times in order, sizes and next accesses"),
        )));
    }
    let what = "it is binary and of no known kind";
    Some(Err(match String::from_utf8_lossy(&head[..head.len().min(4)]) {
        start if start.starts_with("PK") => format!("{what} (a zip archive?)"),
        start if start.starts_with("BZh") => format!("{what} (bzip2? .gz, .xz and .zst are read)"),
        _ => what.into(),
    }))
}

/// How many of the first records of HP's traces are there, each beginning where the one before ends; 0 if any is wrong.
fn srt_records(head: &[u8]) -> usize {
    let word = |at: usize| head.get(at..at + 4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let (mut at, mut count) = (0, 0);
    while let (Some(size), Some(id)) = (word(at), word(at + 4)) {
        if !srt::is_plausible(size, id) {
            return 0;
        }
        count += 1;
        at += size as usize;
        if count == SAMPLE {
            break;
        }
    }
    count
}

/// How many of the first records of libCacheSim are there; `None` if any is wrong.
fn oracle_records(head: &[u8]) -> Option<usize> {
    let mut last = 0;
    let mut count = 0;
    for record in head.chunks_exact(oraclegeneral::RECORD).take(SAMPLE) {
        let (time, _, size, next) = oraclegeneral::record(record)?;
        if time < last || size == 0 || !oraclegeneral::is_plausible(size, next) {
            return None;
        }
        last = time;
        count += 1;
    }
    (count > 0).then_some(count)
}

fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned()
}
