//! A study spread over several machines: each does its share, and the results are joined.
//!
//! A shard is a file of JSON lines: what the study is, then a line for each of its cells. The cells of all traces are
//! numbered through, and shard K of N does every N-th: the numbers follow from the command alone, so the machines need
//! to agree on nothing else. [`merge`] sees to it that the shards are of one study and all there, and that they read
//! the same traces.

use crate::row::{DeregCost, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use traces::Trace;
use twox_hash::XxHash64;

/// Which share of a study: `2/8` is the second of eight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shard {
    /// From 1.
    pub number: u32,
    /// How many there are.
    pub of: u32,
}

impl Shard {
    /// Returns whether the cell of that number, from 0, is one of its.
    pub fn takes(self, cell: usize) -> bool {
        cell % self.of as usize == self.number as usize - 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((number, of)) if 1 <= number && number <= of => Ok(Self { number, of }),
            _ => Err("give K/N, K from 1 to N: 2/8 is the second of eight shares".into()),
        }
    }
}

/// The description of a study, as far as shards must agree on it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Described {
    /// The names of the traces, in order.
    pub traces: Vec<String>,
    /// The names of the policies.
    pub policies: Vec<String>,
    /// The capacities as they were written.
    pub capacities: Vec<String>,
    /// Cells of a trace: each policy at each capacity, and the lines beside them.
    pub cells_each: usize,
    /// `a`, `b`, `a'`, `b'`.
    pub cost: [f64; 4],
    /// How deregistrations are charged.
    pub dereg: DeregCost,
    /// Everything else that was chosen, in words.
    pub choices: String,
}

impl Described {
    /// Cells of all traces.
    pub fn cells(&self) -> usize {
        self.traces.len().saturating_mul(self.cells_each)
    }

    /// Returns the first difference from another study, in words.
    fn differs_in(&self, other: &Self) -> Option<String> {
        let lists = [
            ("traces", &self.traces, &other.traces),
            ("policies", &self.policies, &other.policies),
            ("capacities", &self.capacities, &other.capacities),
        ];
        if let Some((name, one, other)) = lists.into_iter().find(|(_, one, other)| one != other) {
            return Some(format!("{name} {}, and {}", one.join(","), other.join(",")));
        }
        if self.cost != other.cost {
            return Some(format!("costs {:?}, and {:?}", self.cost, other.cost));
        }
        let words = [
            (format!("{:?}", self.dereg), format!("{:?}", other.dereg)),
            (self.cells_each.to_string(), other.cells_each.to_string()),
            (self.choices.clone(), other.choices.clone()),
        ];
        let (one, other) = words.iter().find(|(one, other)| one != other)?;
        // The choices are long, and mostly the same.
        let same = one.split(", ").zip(other.split(", ")).find(|(one, other)| one != other);
        let (one, other) = same.unwrap_or((one, other));
        Some(format!("`{one}`, and `{other}`"))
    }
}

/// The first line of a shard.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The version of the layout: 1.
    pub tracesim_shard: u32,
    /// Which.
    pub shard: Shard,
    /// Of what.
    pub study: Described,
}

/// The version of the layout.
pub const VERSION: u32 = 1;

/// Every other line: a result and its place.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The number of the cell, from 0, traces numbered through.
    pub cell: usize,
    /// [`checksum`] of the trace.
    pub checksum: String,
    /// The result.
    #[serde(flatten)]
    pub row: Row,
}

/// A shard that was read.
#[derive(Clone, Debug)]
pub struct Part {
    /// The file.
    pub file: PathBuf,
    /// The head.
    pub head: Head,
    /// The lines.
    pub lines: Vec<Line>,
}

/// Why shards cannot be read or joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The system refused.
    #[error("{}: read: {error}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// Its answer.
        #[source]
        error: io::Error,
    },
    /// It is no shard.
    #[error("{}, line {line}: {what}; give what `compare --shard K/N` wrote", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// The cause there.
        what: String,
    },
    /// Two shards do not go together.
    #[error("{} and {}: {what}; give the shards of one study", one.display(), other.display())]
    Differ {
        /// The first.
        one: PathBuf,
        /// And what it does not go with.
        other: PathBuf,
        /// In what they differ.
        what: String,
    },
    /// Not all is there.
    #[error(
        "{missing} of {cells} results are missing, those of {}: run `compare … --shard {}` for each, or print what is there \
         with --partial",
        list(shards),
        shards.first().map(ToString::to_string).unwrap_or_default()
    )]
    Missing {
        /// How many.
        missing: usize,
        /// Of how many.
        cells: usize,
        /// The shards.
        shards: Vec<Shard>,
    },
}

fn list(shards: &[Shard]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = shards.iter().take(SHOWN).map(|shard| format!("shard {shard}")).collect();
    let more = shards.len().saturating_sub(SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

/// Returns a number that two traces share only if they ask for the same in the same order: XXH64 over all steps.
pub fn checksum(trace: &Trace) -> String {
    let mut hasher = XxHash64::with_seed(0);
    for process in &trace.processes {
        hasher.write_u64(process.steps.len() as u64);
        for step in &process.steps {
            let mut bytes = [0; 18];
            bytes[..8].copy_from_slice(&step.range().start().to_le_bytes());
            bytes[8..16].copy_from_slice(&step.range().pages().to_le_bytes());
            bytes[16] = step.kind() as u8 | u8::from(step.goes_on()) << 4;
            bytes[17] = step.access().bits();
            hasher.write(&bytes);
        }
    }
    format!("{:016x}", hasher.finish())
}

/// Writes a shard.
///
/// # Errors
/// The writer's error.
pub fn write(out: &mut impl Write, head: &Head, lines: &[Line]) -> io::Result<()> {
    serde_json::to_writer(&mut *out, head)?;
    writeln!(out)?;
    for line in lines {
        serde_json::to_writer(&mut *out, line)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Reads a shard.
///
/// # Errors
/// [`ShardError`] for a file that cannot be read and for what is no shard.
pub fn read(file: &Path, input: impl BufRead) -> Result<Part, ShardError> {
    let content = |line, what: String| ShardError::Content { file: file.to_owned(), line, what };
    let mut lines = input.lines().enumerate();
    let mut next = || match lines.next() {
        Some((_, Err(error))) => Err(ShardError::Io { file: file.to_owned(), error }),
        Some((at, Ok(text))) => Ok(Some((at + 1, text))),
        None => Ok(None),
    };
    let (_, first) = next()?.ok_or_else(|| content(1, "the file is empty".into()))?;
    let head: Head =
        serde_json::from_str(&first).map_err(|error| content(1, format!("no head of a shard ({error})")))?;
    if head.tracesim_shard != VERSION {
        return Err(content(1, format!("layout {} is not known, only {VERSION}", head.tracesim_shard)));
    }
    let Shard { number, of } = head.shard;
    if number == 0 || number > of {
        return Err(content(1, format!("there is no shard {}", head.shard)));
    }
    let Described { traces, policies, capacities, cells_each, .. } = &head.study;
    if *cells_each > policies.len() * capacities.len() + 2 || traces.is_empty() {
        return Err(content(1, format!("{cells_each} cells are none of this study")));
    }
    let mut part = Part { file: file.to_owned(), head, lines: Vec::new() };
    while let Some((at, text)) = next()? {
        let line: Line = serde_json::from_str(&text).map_err(|error| content(at, format!("no result ({error})")))?;
        if line.cell >= part.head.study.cells() || !part.head.shard.takes(line.cell) {
            return Err(content(at, format!("cell {} is none of this shard", line.cell)));
        }
        part.lines.push(line);
    }
    Ok(part)
}

/// Returns the results of all shards of a study, in its order, each with the number of its cell. A cell that was
/// computed twice must have come out alike. With `partial`, what is missing is left out.
///
/// # Errors
/// [`ShardError::Differ`] and [`ShardError::Missing`].
pub fn merge(parts: &[Part], partial: bool) -> Result<(Described, Vec<(usize, Row)>), ShardError> {
    let Some(first) = parts.first() else {
        return Err(ShardError::Missing { missing: 0, cells: 0, shards: Vec::new() });
    };
    let study = &first.head.study;
    let differ = |one: &Part, other: &Part, what: String| ShardError::Differ {
        one: one.file.clone(),
        other: other.file.clone(),
        what,
    };
    let mut found: BTreeMap<usize, (&Part, &Line)> = BTreeMap::new();
    let mut checksums: Vec<Option<(&Part, &str)>> = vec![None; study.traces.len()];
    for part in parts {
        if let Some(what) = study.differs_in(&part.head.study) {
            return Err(differ(first, part, format!("they are shards of different studies, with {what}")));
        }
        let (one, other) = (first.head.shard.of, part.head.shard.of);
        if one != other {
            return Err(differ(first, part, format!("a study of {one} shards, and one of {other}")));
        }
        for line in &part.lines {
            let trace = line.cell / study.cells_each.max(1);
            match checksums[trace] {
                Some((other, checksum)) if checksum != line.checksum => {
                    let what = format!("{} is not the same trace in both", study.traces[trace]);
                    return Err(differ(other, part, what));
                }
                _ => checksums[trace] = Some((part, &line.checksum)),
            }
            if let Some((other, before)) = found.insert(line.cell, (part, line))
                && before.row != line.row
            {
                return Err(differ(other, part, format!("cell {} has two results", line.cell)));
            }
        }
    }
    let of = first.head.shard.of;
    let missing: Vec<usize> = (0..study.cells()).filter(|cell| !found.contains_key(cell)).collect();
    if !missing.is_empty() && !partial {
        let lacks = |number: &u32| missing.iter().any(|&cell| Shard { number: *number, of }.takes(cell));
        let shards = (1..=of).filter(lacks).map(|number| Shard { number, of }).collect();
        return Err(ShardError::Missing { missing: missing.len(), cells: study.cells(), shards });
    }
    let rows = found.into_iter().map(|(cell, (_, line))| (cell, line.row.clone()));
    Ok((study.clone(), rows.collect()))
}
