//! Traces, recordings and results, as they lie in files.

use ::traces::generate::Workload;
use ::traces::{
    BlockSize, Columns, Cut, Event, Format, Larger, ReadOptions, Reader, Step, Summary, TimeUnit, Trace, TraceError,
};
use std::io::Cursor;
use std::num::NonZeroU64;
use std::path::Path;
use traces_record::layout::{HEAD, Head, Place, RECORD, Record};

/// Events of one input, at most: a Mooncake line has many, and a split request has no bound of its own.
const MOST_EVENTS: usize = 200_000;

/// A trace of whatever format it is taken for.
pub(crate) fn trace(input: &[u8]) -> bool {
    read(input, &ReadOptions::default())
}

/// A trace of the format that the first byte names, read by the options of the second.
pub(crate) fn trace_as(input: &[u8]) -> bool {
    let [format, choice, bytes @ ..] = input else { return false };
    let options = ReadOptions {
        format: Some(Format::ALL[usize::from(*format) % Format::ALL.len()]),
        not_modified: choice & 1 != 0,
        accept_cut: choice & 2 != 0,
        block: if choice & 4 == 0 { None } else { BlockSize::new(1 << (choice >> 3)) },
        ..ReadOptions::default()
    };
    read(bytes, &options)
}

/// Every span of an event has pages, and nothing follows an error. Steps that are read many at once are those of single events.
fn read(input: &[u8], options: &ReadOptions) -> bool {
    if let (Some(many), Some(single)) = (loaded(input, options, true), loaded(input, options, false)) {
        assert_eq!(many, single);
    }
    let Ok(reader) = ::traces::read("fuzzed", Cursor::new(input.to_vec()), options) else { return false };
    let mut reader = Cut::new(reader, NonZeroU64::new(32).expect("more than 0"), Larger::Cut);
    for event in reader.by_ref().take(MOST_EVENTS) {
        match event {
            Ok(event) => assert!(event.action.spans().iter().all(|span| span.pages().is_ok()), "{event:?}"),
            Err(error) => {
                assert!(error.to_string().starts_with("fuzzed"), "{error}");
                assert!(reader.next().is_none(), "nothing follows an error");
                return false;
            }
        }
    }
    let _ = reader.summary().to_string();
    true
}

/// The steps of each process of a trace, and the account of it.
type Loaded = (Vec<Vec<Step>>, String);

/// Reads an input into memory, many steps at once where the source can. Returns none where it has too many events to be compared.
fn loaded(input: &[u8], options: &ReadOptions, many: bool) -> Option<Result<Loaded, String>> {
    let reader = match ::traces::read("fuzzed", Cursor::new(input.to_vec()), options) {
        Ok(reader) => reader,
        Err(error) => return Some(Err(error.to_string())),
    };
    let mut bounded = Bounded { reader, many, left: MOST_EVENTS };
    let trace = Trace::load("fuzzed", &mut bounded, false);
    let steps = |trace: Trace| {
        let steps = trace.processes.iter().map(|process| process.steps.iter().collect()).collect();
        (steps, trace.summary.to_string())
    };
    (bounded.left > 0).then(|| trace.map(steps).map_err(|error| error.to_string()))
}

/// A reader that ends after so many events.
struct Bounded<R> {
    reader: R,
    /// Whether steps are read many at once.
    many: bool,
    left: usize,
}

impl<R: Reader> Iterator for &mut Bounded<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.reader.next()
    }
}

impl<R: Reader> Reader for &mut Bounded<R> {
    fn summary(&self) -> &Summary {
        self.reader.summary()
    }

    fn read_steps(&mut self, steps: &mut Vec<Step>) -> Option<u32> {
        if !self.many || self.left == 0 {
            return None;
        }
        let before = steps.len();
        let process = self.reader.read_steps(steps)?;
        self.left = self.left.saturating_sub(steps.len() - before);
        Some(process)
    }
}

/// Options of traces from users.
pub(crate) fn option(input: &[u8]) -> bool {
    crate::text(input, |text| {
        let block = text.parse::<BlockSize>();
        if let Ok(block) = block {
            assert!(block.get() <= 1 << 40);
        }
        let known = [
            block.is_ok(),
            text.parse::<Columns>().is_ok(),
            text.parse::<TimeUnit>().is_ok(),
            text.parse::<Format>().is_ok(),
            text.parse::<Workload>().is_ok(),
        ];
        known.contains(&true)
    })
}

/// A head and a record that are understood are written as they were read.
pub(crate) fn recording(input: &[u8]) -> bool {
    let Some((head, records)) = input.split_first_chunk::<HEAD>() else { return false };
    let understood = Head::of_bytes(head).is_ok_and(|head| {
        assert_eq!(Head::of_bytes(&head.bytes()), Ok(head));
        true
    });
    for bytes in records.chunks_exact(RECORD) {
        let bytes = bytes.try_into().expect("of that size");
        if let Place::Written(record) = Record::of_bytes(bytes) {
            assert_eq!(record.bytes(), *bytes);
        }
    }
    understood
}

/// A shard that is understood can be merged with itself.
pub(crate) fn shard(input: &[u8]) -> bool {
    let Ok(part) = tracesim::shard::read(Path::new("fuzzed"), input) else { return false };
    let parts = [part.clone(), part];
    let _ = tracesim::shard::merge(&parts, true);
    true
}
