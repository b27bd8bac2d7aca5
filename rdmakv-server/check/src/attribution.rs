//! Attribution of values: finds each value's writer, takes operations of unknown outcome for done if their writes were
//! seen, and drops those that can explain nothing.
//!
//! An operation without an answer may take effect at any time or never. If its value was seen, it did. If not, a write
//! still may have been what a deletion deleted, so it stays, as one that may be used. Anything else that is uncertain
//! adds nothing to what evictions may do anyway, and goes. An increment without an answer is not known to have written
//! any number: a number without a known writer is given to one of these, with times that any of them could have had.
//! That is generous where there are several (their times are taken together), so it never finds a fault that is none.

use rustc_hash::FxHashMap;

use crate::history::{NEVER, Operation, Step, Value};
use crate::violation::{Kind, Violation};

/// The history with each value's writer known.
#[derive(Debug)]
pub(crate) struct Attributed {
    /// Operations that took effect, or may have: `certain` says which. Numbers that were given to increments come last.
    pub(crate) operations: Vec<Operation>,
    /// For each of them its place in the history that came in.
    pub(crate) places: Vec<usize>,
    /// The operation that wrote it.
    pub(crate) writers: FxHashMap<Value, usize>,
}

/// Finds the writers.
pub(crate) fn attribute(history: &[Operation]) -> Result<Attributed, Violation> {
    let mut writers: FxHashMap<Value, usize> = FxHashMap::default();
    for (place, operation) in history.iter().enumerate() {
        let Some(value) = operation.written() else { continue };
        if let Some(other) = writers.insert(value, place) {
            let why = "A and B both say that they made the key this value, which can come about once only: one of two \
                       updates was lost";
            return Err(Violation::new(Kind::WrittenTwice, [other, place], why));
        }
    }
    let mut operations = history.to_vec();
    let mut places: Vec<usize> = (0..history.len()).collect();
    let mut counts: Vec<usize> =
        places.iter().copied().filter(|&place| matches!(history[place].step, Step::Count)).collect();
    let unknown = Unknown {
        begin: counts.iter().map(|&place| history[place].begin).min().unwrap_or(NEVER),
        end: counts.iter().map(|&place| history[place].end).max().unwrap_or(NEVER),
    };
    let mut waiting: Vec<usize> = (0..history.len()).filter(|&place| history[place].certain).collect();
    let mut at = 0;
    while at < waiting.len() {
        let place = waiting[at];
        at += 1;
        let Some(value) = operations[place].seen() else { continue };
        if let Some(&writer) = writers.get(&value) {
            if !operations[writer].certain {
                operations[writer].certain = true;
                waiting.push(writer);
            }
            continue;
        }
        // A number in a row of increments with unknown answers, down to one with a known writer.
        let Some(count) = counts.pop().filter(|_| value > 1) else {
            let why = "A found a value that no operation on this key wrote";
            return Err(Violation::new(Kind::Unwritten, [places[place]], why));
        };
        let step = Step::Swap { from: value - 1, to: value };
        writers.insert(value, operations.len());
        waiting.push(operations.len());
        operations.push(Operation { begin: unknown.begin, end: unknown.end, certain: true, step });
        places.push(count);
    }
    let kept: Vec<usize> = (0..operations.len()).filter(|&at| is_of_use(&operations[at])).collect();
    let mut new = vec![usize::MAX; operations.len()];
    kept.iter().enumerate().for_each(|(to, &from)| new[from] = to);
    writers.retain(|_, writer| {
        *writer = new[*writer];
        *writer != usize::MAX
    });
    Ok(Attributed {
        operations: kept.iter().map(|&at| operations[at]).collect(),
        places: kept.iter().map(|&at| places[at]).collect(),
        writers,
    })
}

/// The times of all increments without an answer, together.
struct Unknown {
    begin: u64,
    end: u64,
}

fn is_of_use(operation: &Operation) -> bool {
    !matches!(operation.step, Step::Count)
        && (operation.certain || matches!(operation.step, Step::Write(_) | Step::Swap { .. }))
}
