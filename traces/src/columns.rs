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

/// What a column may mean.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Field {
    /// When.
    Time,
    /// Where it begins.
    Address,
    /// How much.
    Length,
    /// Read or write.
    Operation,
    /// Who.
    Client,
    /// In whose address space: a number.
    Process,
}

/// What a column means and in what unit it counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meaning {
    /// The meaning.
    pub field: Field,
    /// The column.
    pub column: Column,
    /// Bytes, or nanoseconds, that one of it is; `None` for what the name of the column says.
    pub unit: Option<u64>,
}

/// Columns of a CSV: `time=1,addr=2:sector,len=3,op=4`.
///
/// A column is a number, counted from 1, or a name from the header. `time` has the units `s` (usual), `ms`, `us` and `ns`;
/// `addr` and `len` have `b` (usual), `sector` (512 bytes), `page` and a number of bytes. `op`, `client` and `process` have
/// none. Only `addr` has to be there; without `len` a request is for one unit of the address.
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

    /// What the names of a header mean; `None` if none is an address.
    ///
    /// A name may end with its unit, such as `time_us`; `lbn`, `lba`, `sector` and `block` count sectors, and names with
    /// `page` count pages.
    pub(crate) fn of_header<'a>(names: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut found: Vec<Meaning> = Vec::new();
        for (at, name) in names.enumerate() {
            let name = String::from_utf8_lossy(name).trim().to_ascii_lowercase();
            let Some((field, unit)) = meaning_of(&name) else { continue };
            if found.iter().all(|meaning| meaning.field != field) {
                found.push(Meaning { field, column: Column::At(at), unit: Some(unit) });
            }
        }
        found.iter().any(|meaning| meaning.field == Field::Address).then_some(Self(found))
    }
}

/// What a column of this name usually is, and its unit.
pub(crate) fn meaning_of(name: &str) -> Option<(Field, u64)> {
    const SECTOR: u64 = 512;
    let (plain, unit) = match name.rsplit_once('_') {
        Some((plain, suffix)) => (plain, unit_of(suffix)),
        None => (name, None),
    };
    let plain = if unit.is_some() { plain } else { name };
    let (field, usual) = match plain {
        "time" | "timestamp" | "ts" | "t" | "at" => (Field::Time, 1_000_000_000),
        "addr" | "address" | "offset" | "start" | "addr_hex" => (Field::Address, 1),
        "lbn" | "lba" | "sector" | "block" | "blkno" | "start_sector" => (Field::Address, SECTOR),
        "page" | "start_page" | "first_page" => (Field::Address, mrrc::PAGE),
        "len" | "length" | "size" | "bytes" => (Field::Length, 1),
        "sectors" => (Field::Length, SECTOR),
        "pages" => (Field::Length, mrrc::PAGE),
        "op" | "operation" | "type" | "rw" | "opcode" | "access" => (Field::Operation, 1),
        "client" | "thread" | "pid" | "tid" => (Field::Client, 1),
        "process" | "rank" => (Field::Process, 1),
        _ => return None,
    };
    Some((field, unit.unwrap_or(usual)))
}

fn unit_of(name: &str) -> Option<u64> {
    Some(match name {
        "s" | "sec" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1000,
        "ns" | "b" | "byte" | "bytes" => 1,
        "sector" | "sectors" => 512,
        "page" | "pages" => mrrc::PAGE,
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
        assert_eq!(meaning_of("time_us"), Some((Field::Time, 1000)));
        assert_eq!(meaning_of("lbn"), Some((Field::Address, 512)));
        assert_eq!(meaning_of("start_page"), Some((Field::Address, 4096)));
        assert_eq!(meaning_of("colour"), None);
        let columns: Columns = "addr=2:1024,len=3:sector,time=when:ms".parse().unwrap();
        assert_eq!(
            columns.meanings().iter().map(|meaning| meaning.unit).collect::<Vec<_>>(),
            [Some(1024), Some(512), Some(1_000_000)]
        );
    }
}
