//! Which column of a CSV means what.

use crate::TraceError;
use std::str::FromStr;

/// A column, by place or by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Column {
    /// Counted from 0.
    At(usize),
    /// As the header calls it.
    Named(String),
}

/// The meaning of a column.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Field {
    /// When.
    Time,
    /// The start of the range.
    Address,
    /// How much.
    Length,
    /// Read or write.
    Operation,
    /// The client.
    Client,
    /// The process, which is an address space: a number.
    Process,
}

/// The meaning of a column and its unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meaning {
    /// The meaning.
    pub field: Field,
    /// The column.
    pub column: Column,
    /// Bytes, or nanoseconds, that one of it is; `None` for what the name of the column says, or the magnitude of times.
    pub unit: Option<u64>,
}

/// Columns of a CSV: `time=1,addr=2:sector,len=3,op=4`.
///
/// A column is a number, counted from 1, or a name from the header. `time` has the units `s`, `ms`, `us` and `ns`, or the one
/// that the magnitude of the first time shows. `addr` and `len` have `b` (usual), `sector` (512 bytes), `page` and a number
/// of bytes. `op`, `client` and `process` have none. Only `addr` has to be there; without `len` a request is for one unit of
/// the address.
///
/// ```
/// let columns: traces::Columns = "addr=lbn:sector,len=size,op=op".parse()?;
/// assert!("len=2".parse::<traces::Columns>().is_err());
/// # Ok::<(), traces::TraceError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Columns(Vec<Meaning>);

impl Columns {
    /// All that are given.
    pub fn meanings(&self) -> &[Meaning] {
        &self.0
    }

    /// Returns the meanings of a header's names; `None` if none is an address.
    ///
    /// A name may end with its unit, such as `time_us`; `lbn`, `lba`, `sector` and `block` count sectors, and names with
    /// `page` count pages.
    pub(crate) fn of_header<'a>(names: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut found: Vec<Meaning> = Vec::new();
        for (at, name) in names.enumerate() {
            let name = String::from_utf8_lossy(name).trim().to_ascii_lowercase();
            let Some((field, unit)) = meaning_of(&name) else { continue };
            if found.iter().all(|meaning| meaning.field != field) {
                found.push(Meaning { field, column: Column::At(at), unit });
            }
        }
        found.iter().any(|meaning| meaning.field == Field::Address).then_some(Self(found))
    }
}

const SECTOR: u64 = 512;

/// The names of columns: the meaning, the unit unless the name ends with one (none for times), and the names.
const NAMES: [(Field, Option<u64>, &[&str]); 9] = [
    (Field::Time, None, &["time", "timestamp", "ts", "t", "at", "epoch"]),
    (Field::Address, Some(1), &["addr", "address", "offset", "start", "addr_hex"]),
    (Field::Address, Some(SECTOR), &["lbn", "lba", "sector", "block", "blkno", "start_sector"]),
    (Field::Address, Some(mrrc_core::PAGE), &["page", "start_page", "first_page"]),
    (Field::Length, Some(1), &["len", "length", "size", "bytes"]),
    (Field::Length, Some(SECTOR), &["sectors"]),
    (Field::Length, Some(mrrc_core::PAGE), &["pages"]),
    (Field::Operation, Some(1), &["op", "operation", "type", "rw", "opcode", "access"]),
    (Field::Client, Some(1), &["client", "thread", "pid", "tid"]),
];

const PROCESS: &[&str] = &["process", "rank"];

/// How columns are given, and the names that a header may have.
pub(crate) fn remedy() -> String {
    let named = |wanted: Field| {
        let names: Vec<&str> =
            NAMES.iter().filter(|(field, ..)| *field == wanted).flat_map(|(.., names)| names.iter().copied()).collect();
        names.join(" ")
    };
    format!(
        "say --columns time=1,addr=2:sector,len=3,op=4, by number from 1 or by name; names that are known: time ({}), \
         addr ({}), len ({}), op ({}), client ({}), process ({}), each also with a unit, such as time_us",
        named(Field::Time),
        named(Field::Address),
        named(Field::Length),
        named(Field::Operation),
        named(Field::Client),
        PROCESS.join(" ")
    )
}

/// Returns the meaning of a column's name, and its unit: of times only if the name ends with one.
pub(crate) fn meaning_of(name: &str) -> Option<(Field, Option<u64>)> {
    // As in `time (us)` and `time[us]`.
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_ascii_lowercase();
    let name = name.trim_matches('_');
    let (plain, unit) = match name.rsplit_once('_') {
        Some((plain, suffix)) => (plain.trim_end_matches('_'), unit_of(suffix)),
        None => (name, None),
    };
    let plain = if unit.is_some() { plain } else { name };
    if PROCESS.contains(&plain) {
        return Some((Field::Process, Some(1)));
    }
    let &(field, usual, _) = NAMES.iter().find(|(.., names)| names.contains(&plain))?;
    Some((field, unit.or(usual)))
}

fn unit_of(name: &str) -> Option<u64> {
    Some(match name {
        "s" | "sec" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1000,
        "ns" | "b" | "byte" | "bytes" => 1,
        "sector" | "sectors" => 512,
        "page" | "pages" => mrrc_core::PAGE,
        _ => return None,
    })
}

impl FromStr for Columns {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let wrong = |what: String| TraceError::Option {
            option: "--columns",
            what,
            remedy: "give such as time=1,addr=2:sector,len=3:b,op=4, by number from 1 or by name".into(),
        };
        let mut found: Vec<Meaning> = Vec::new();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| wrong(format!("`{part}` is not like addr=2")))?;
            let field = match key.trim() {
                "time" => Field::Time,
                "addr" | "address" => Field::Address,
                "len" | "length" => Field::Length,
                "op" => Field::Operation,
                "client" => Field::Client,
                "process" => Field::Process,
                other => return Err(wrong(format!("`{other}` is none of time, addr, len, op, client, process"))),
            };
            if found.iter().any(|meaning| meaning.field == field) {
                return Err(wrong(format!("`{key}` is given twice")));
            }
            let (column, unit) = match value.split_once(':') {
                None => (value.trim(), None),
                Some((column, unit)) => {
                    let unit = unit.trim();
                    let is_time = matches!(unit, "s" | "ms" | "us" | "ns");
                    let fits = match field {
                        Field::Time => is_time,
                        Field::Address | Field::Length => !is_time,
                        _ => false,
                    };
                    let size = || unit.parse().ok().and_then(crate::BlockSize::new).map(crate::BlockSize::get);
                    let known = unit_of(unit).or_else(size).filter(|_| fits);
                    (column.trim(), Some(known.ok_or_else(|| wrong(format!("`{unit}` is no unit of {key}")))?))
                }
            };
            let column = match column.parse::<usize>() {
                Ok(0) => return Err(wrong("columns are counted from 1".into())),
                Ok(number) => Column::At(number - 1),
                Err(_) if column.is_empty() => return Err(wrong(format!("`{key}` has no column"))),
                Err(_) => Column::Named(column.into()),
            };
            found.push(Meaning { field, column, unit });
        }
        if found.iter().all(|meaning| meaning.field != Field::Address) {
            return Err(wrong("`addr` is missing".into()));
        }
        Ok(Self(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for text in [
            "",
            "addr",
            "addr=0",
            "addr=1,addr=2",
            "len=2",
            "addr=1:us",
            "time=1:page,addr=2",
            "addr=",
            "x=1",
            "op=1:b,addr=2",
        ] {
            let error = text.parse::<Columns>().unwrap_err().to_string();
            assert!(error.starts_with("--columns: ") && error.contains("give such as"), "{text}: {error}");
        }
    }

    #[test]
    fn units_come_from_the_text_the_name_or_are_usual() {
        assert_eq!(meaning_of("time_us"), Some((Field::Time, Some(1000))));
        assert_eq!(meaning_of("Timestamp (ms)"), Some((Field::Time, Some(1_000_000))));
        assert_eq!(meaning_of("timestamp"), Some((Field::Time, None)));
        assert_eq!(meaning_of("lbn"), Some((Field::Address, Some(512))));
        assert_eq!(meaning_of("start_page"), Some((Field::Address, Some(4096))));
        assert_eq!(meaning_of("colour"), None);
        let columns: Columns = "addr=2:1024,len=3:sector,time=when:ms".parse().unwrap();
        assert_eq!(
            columns.meanings().iter().map(|meaning| meaning.unit).collect::<Vec<_>>(),
            [Some(1024), Some(512), Some(1_000_000)]
        );
    }
}
