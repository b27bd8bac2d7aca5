//! `csv`: any table with an address in it. Columns are as asked for, or as the header names them.
//!
//! The delimiter is the one of `,` `;` tab `|` blank that the first line has; fields may be quoted, lines within quotes are
//! not joined. Numbers are decimal or begin with `0x`; a column that is called hexadecimal is that without. Lines that begin
//! with `#` are comments.

use crate::columns::{self, Column, Columns, Field, Meaning, meaning_of};
use crate::frames::Taken;
use crate::layout::Names;
use crate::number::{decimal, either, hex, is_too_large, leading};
use crate::parser::{self, Outcome, PAST_END, Parser};
use crate::times::{TimeUnit, Times};
use crate::{Event, Kind, ReadOptions, Span, Step};
use csv_core::{ReadRecordResult, ReaderBuilder};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Csv {
    asked: Option<Columns>,
    time_unit: Option<u64>,
    times: Times,
    plan: Option<Plan>,
    clients: Names<Box<[u8]>>,
    fields: Fields,
    is_hex: bool,
}

/// The columns to read, once the first line is known.
#[derive(Clone, Debug)]
struct Plan {
    time: Option<usize>,
    address: (usize, u64),
    length: Option<(usize, u64)>,
    operation: Option<usize>,
    client: Option<usize>,
    process: Option<usize>,
    delimiter: u8,
}

impl Csv {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        Self {
            asked: options.columns.clone(),
            time_unit: options.time_unit.map(TimeUnit::nanoseconds),
            times: Times::default(),
            plan: None,
            clients: Names::default(),
            fields: Fields::new(b','),
            is_hex: false,
        }
    }

    /// Makes the plan from the first line, and says whether that is a header.
    fn begin(&mut self, line: &[u8]) -> Result<bool, String> {
        let delimiter = delimiter(line);
        self.fields = Fields::new(delimiter);
        if !self.fields.split(line) {
            return Err("the first line has more than 1000 columns".into());
        }
        let names: Vec<String> =
            self.fields.all().map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase()).collect();
        let shown = || String::from_utf8_lossy(&line[..line.len().min(120)]).into_owned();
        let columns = match &self.asked {
            Some(columns) => columns.clone(),
            None => Columns::of_header(self.fields.all())
                .ok_or_else(|| format!("no column of the first line is called like an address: `{}`", shown()))?,
        };
        let mut places = Vec::new();
        for Meaning { field, column, unit } in columns.meanings() {
            let at = match column {
                Column::At(at) => *at,
                Column::Named(name) => names
                    .iter()
                    .position(|known| known.eq_ignore_ascii_case(name))
                    .ok_or_else(|| format!("there is no column `{name}` in `{}`", shown()))?,
            };
            if at >= names.len() {
                return Err(format!("there is no column {} among the {} of `{}`", at + 1, names.len(), shown()));
            }
            // The unit in the name, if that is of the same kind, and else bytes, and times by their magnitude.
            let named = meaning_of(&names[at]).filter(|(known, _)| known == field).and_then(|(_, unit)| unit);
            if *field == Field::Time {
                let asked = if self.asked.is_some() { *unit } else { None };
                self.times = Times::new(asked.or(self.time_unit).or(named));
            }
            places.push((*field, at, unit.or(named).unwrap_or(1)));
        }
        let find = |wanted| places.iter().find(|(field, ..)| *field == wanted).map(|&(_, at, unit)| (at, unit));
        let place = |wanted| find(wanted).map(|(at, _)| at);
        let address = find(Field::Address).ok_or("no column is the address")?;
        self.is_hex = names.get(address.0).is_some_and(|name| name.contains("hex"));
        let is_header = names.get(address.0).is_none_or(|text| self.number(text.as_bytes()).is_none());
        self.plan = Some(Plan {
            time: place(Field::Time),
            address,
            length: find(Field::Length),
            operation: place(Field::Operation),
            client: place(Field::Client),
            process: place(Field::Process),
            delimiter,
        });
        Ok(is_header)
    }

    fn number(&self, text: &[u8]) -> Option<u64> {
        let text = text.trim_ascii();
        if self.is_hex { hex(text) } else { either(text) }
    }

    fn event(&mut self, plan: &Plan) -> Result<Event, &'static str> {
        const FEW: &str = "it has too few columns";
        let field = |at: usize| self.fields.get(at).map(<[u8]>::trim_ascii).ok_or(FEW);
        let (at, unit) = plan.address;
        // Said of the text, where that is no number that fits.
        let wrong = |text: &[u8], not: &'static str, large: &'static str| if is_too_large(text) { large } else { not };
        let text = field(at)?;
        let address =
            self.number(text).ok_or_else(|| wrong(text, "the address is no number", "the address is too large"));
        let address = address?.checked_mul(unit).ok_or(PAST_END)?;
        let length = match plan.length {
            Some((at, unit)) => {
                let text = field(at)?;
                let length =
                    either(text).ok_or_else(|| wrong(text, "the length is no number", "the length is too large"));
                length?.checked_mul(unit).ok_or(PAST_END)?
            }
            None => unit,
        };
        let time = match plan.time {
            Some(at) => self.times.read(field(at)?),
            None => 0,
        };
        let access = match plan.operation {
            Some(at) => parser::access(field(at)?).ok_or("the operation is neither a read nor a write")?,
            None => Access::LOCAL,
        };
        let process = match plan.process {
            Some(at) => decimal(field(at)?).ok_or("the process is no number")?,
            None => 0,
        };
        let process = u32::try_from(process).ok().filter(|&process| process < 1 << 16);
        let process = process.ok_or("the process is not below 65536")?;
        let client = match plan.client {
            Some(at) => {
                let name: Box<[u8]> = field(at)?.into();
                // A number stays what it is; names are numbered.
                let number = decimal(&name).and_then(|number| u32::try_from(number).ok());
                number.unwrap_or_else(|| self.clients.number(&*name))
            }
            None => 0,
        };
        match parser::request(time, client, access, Span { address, length }) {
            Outcome::Event(event) => Ok(Event { process, ..event }),
            Outcome::Bad(why) => Err(why),
            _ => Err(PAST_END),
        }
    }
}

impl Parser for Csv {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        if line.trim_ascii().is_empty() || line.first() == Some(&b'#') {
            return Outcome::Other;
        }
        let plan = match self.plan.take() {
            Some(plan) => plan,
            None => {
                match self.begin(line) {
                    Ok(true) => return Outcome::Other,
                    Ok(false) => {}
                    Err(why) => return Outcome::Broken(format!("{why}; {}", columns::remedy())),
                }
                let Some(plan) = self.plan.take() else { return Outcome::Other };
                plan
            }
        };
        let event = if self.fields.split(line) { self.event(&plan) } else { Err("it has more than 1000 columns") };
        self.plan = Some(plan);
        match event {
            Ok(event) => Outcome::Event(event),
            Err(why) => Outcome::Bad(why),
        }
    }

    fn requests(&mut self, mut lines: &[u8], steps: &mut Vec<Step>) -> Taken {
        let mut taken = Taken::default();
        let Some(plan) = &self.plan else { return taken };
        // The first time that can be read decides on the unit, and this reads none.
        if plan.time.is_some() && self.times.unit().is_none() {
            return taken;
        }
        let mut plain = Plain::new(plan, self.is_hex);
        while let Some((step, length)) = plain.line(lines) {
            steps.push(step);
            taken.pieces += 1;
            taken.bytes += length;
            lines = &lines[length..];
        }
        taken
    }

    fn untimed(&self) -> u64 {
        self.times.unread()
    }

    fn understood(&self) -> String {
        let Some(plan) = &self.plan else { return "nothing but comments".into() };
        let mut parts = Vec::new();
        let address = if self.is_hex { "hexadecimal address" } else { "address" };
        let mut say = |name: &str, place: Option<(usize, u64)>, unit: &str| {
            if let Some((at, size)) = place {
                let unit = if unit.is_empty() { String::new() } else { format!(" in units of {size} {unit}") };
                parts.push(format!("column {} is the {name}{unit}", at + 1));
            }
        };
        let (unit, is_guess) = self.times.unit().unwrap_or_default();
        let by = if is_guess { "ns, by the first one" } else { "ns" };
        say("time", plan.time.map(|at| (at, unit)), if unit == 0 { "" } else { by });
        say(address, Some(plan.address), "bytes");
        say("length", plan.length, "bytes");
        say("operation", plan.operation.map(|at| (at, 1)), "");
        say("client", plan.client.map(|at| (at, 1)), "");
        say("process", plan.process.map(|at| (at, 1)), "");
        if plan.operation.is_none() {
            parts.push("all to read and to write".into());
        }
        let delimiter = match plan.delimiter {
            b'\t' => "tabs".into(),
            b' ' => "blanks".into(),
            other => format!("`{}`", other as char),
        };
        format!("columns apart by {delimiter}: {}", parts.join(", "))
    }
}

/// Reads lines without anything unusual: no quotes, no blanks, numbers of few digits, process 0.
struct Plain<'a> {
    plan: &'a Plan,
    is_hex: bool,
    /// The columns that are read: address, length, operation, time, client, process. Those that the plan lacks are beyond all.
    columns: [usize; 6],
    /// The last operation, and its access.
    operation: Option<(&'a [u8], Access)>,
}

impl<'a> Plain<'a> {
    fn new(plan: &'a Plan, is_hex: bool) -> Self {
        let Plan { time, address, length, operation, client, process, .. } = *plan;
        let columns = [Some(address.0), length.map(|(at, _)| at), operation, time, client, process];
        let columns = columns.map(|column| column.unwrap_or(usize::MAX));
        Self { plan, is_hex, columns, operation: None }
    }

    /// Returns the request of the first line, and the line's length with its end. `None` where it is to be [parsed](Csv::parse).
    #[inline]
    fn line(&mut self, lines: &'a [u8]) -> Option<(Step, usize)> {
        let delimiter = self.plan.delimiter;
        // Several blanks are one delimiter.
        if delimiter == b' ' || lines.first() == Some(&b'#') {
            return None;
        }
        let mut fields = [&lines[..0]; 6];
        let (mut column, mut from) = (0, 0);
        for at in memchr::memchr3_iter(delimiter, b'\n', b'"', lines) {
            let is_end = match lines[at] {
                b'"' => return None,
                byte => byte != delimiter,
            };
            let field = &lines[from..at];
            let field = if is_end { field.strip_suffix(b"\r").unwrap_or(field) } else { field };
            for (place, &wanted) in fields.iter_mut().zip(&self.columns) {
                if wanted == column {
                    *place = field;
                }
            }
            (column, from) = (column + 1, at + 1);
            if is_end {
                return Some((self.step(fields, column)?, from));
            }
        }
        None
    }

    /// Returns the request of these fields, of a line of so many columns.
    #[inline]
    fn step(&mut self, fields: [&'a [u8]; 6], columns: usize) -> Option<Step> {
        let Plan { address: (_, unit), length, client, time, operation, process, .. } = *self.plan;
        let [address, bytes, word, at, _, of_process] = fields;
        let has_all = columns <= MOST_COLUMNS && client.is_none_or(|client| client < columns);
        if !has_all || process.is_some() && of_process != b"0" || time.is_some() && !is_plain_time(at) {
            return None;
        }
        let address = if self.is_hex { hex(address) } else { number(address) };
        let length = match length {
            Some((_, unit)) => number(bytes)?.checked_mul(unit)?,
            None => unit,
        };
        let access = match (operation, self.operation) {
            (None, _) => Access::LOCAL,
            (_, Some((last, access))) if last == word => access,
            _ => self.operation.insert((word, parser::access(word)?)).1,
        };
        let span = Span { address: address?.checked_mul(unit)?, length };
        Some(Step::new(Kind::Request, span.pages().ok()?, access, false))
    }
}

/// As [`either`], and faster.
#[inline]
fn number(text: &[u8]) -> Option<u64> {
    match leading(text) {
        Some((number, digits)) if digits == text.len() => Some(number),
        _ => either(text),
    }
}

/// Returns whether a time is a number that fits, with a fraction or without.
#[inline]
fn is_plain_time(text: &[u8]) -> bool {
    let Some((_, digits)) = leading(text) else { return false };
    match text.get(digits) {
        None => true,
        Some(b'.') => text[digits + 1..].iter().all(u8::is_ascii_digit),
        Some(_) => false,
    }
}

/// Returns the one of the usual delimiters that a line has most of, the earlier ones first.
fn delimiter(line: &[u8]) -> u8 {
    let count = |wanted: u8| memchr::memchr_iter(wanted, line).count();
    b",;\t|"
        .iter()
        .copied()
        .rev()
        .filter(|&one| count(one) > 0)
        .max_by_key(|&one| count(one))
        .unwrap_or(if count(b' ') > 0 { b' ' } else { b',' })
}

/// The fields of one line. A line without quotes is cut where it is; else `csv-core` takes the quotes off.
struct Fields {
    delimiter: u8,
    quoted: csv_core::Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
}

const MOST_COLUMNS: usize = 1000;

impl Fields {
    fn new(delimiter: u8) -> Self {
        let quoted = ReaderBuilder::new().delimiter(delimiter).build();
        Self { delimiter, quoted, text: Vec::new(), ends: vec![0; MOST_COLUMNS], count: 0 }
    }

    /// `false` if there are too many.
    fn split(&mut self, line: &[u8]) -> bool {
        // Nothing gets longer by taking quotes off.
        if self.text.len() < line.len() + 1 {
            self.text.resize(line.len() + 1, 0);
        }
        if memchr::memchr(b'"', line).is_none() {
            return self.plain(line);
        }
        self.quoted.reset();
        let (mut input, mut text, mut ends) = (line, 0, 0);
        loop {
            let (result, read, wrote, ended) =
                self.quoted.read_record(input, &mut self.text[text..], &mut self.ends[ends..]);
            input = &input[read..];
            text += wrote;
            ends += ended;
            match result {
                // Nothing more means that the line is over.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record | ReadRecordResult::End => {
                    self.count = ends;
                    return true;
                }
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => return false,
            }
        }
    }

    fn plain(&mut self, line: &[u8]) -> bool {
        let mut count = 0;
        let mut to = 0;
        // Several blanks are one delimiter.
        let is_blank = self.delimiter == b' ';
        for field in line.split(|&byte| byte == self.delimiter) {
            if is_blank && field.is_empty() {
                continue;
            }
            if count == MOST_COLUMNS {
                return false;
            }
            self.text[to..to + field.len()].copy_from_slice(field);
            to += field.len();
            self.ends[count] = to;
            count += 1;
        }
        self.count = count;
        true
    }

    fn get(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends[..self.count].get(at)?;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        self.text.get(start..end)
    }

    fn all(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count).filter_map(|at| self.get(at))
    }
}
