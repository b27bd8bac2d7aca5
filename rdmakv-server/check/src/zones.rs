//! Values as stretches of time: the fast half of the checker, after Gibbons and Korach, *Testing shared memories* (1997).
//!
//! Since every value is written once, all operations that saw a value belong to one write, and in any order that explains
//! the answers they stand together: the write first, then the others. A value that a CAS or an increment replaced is
//! followed by its successor at once, so such values form a *chain* and stand together too. Within a chain the k-th write
//! has a *window*: not before it began, nor before its predecessor's window, nor before the last operation began that saw
//! the predecessor; not after it ended, nor after the first operation ended that saw its own value, nor after its
//! successor's window. An empty window is a violation. If all windows have some moment in common, the chain can be there
//! for that moment alone: a *backward* zone, from the last thing that began to the first that ended. If not, the chain
//! has to be there at least from the latest start to the earliest end that the windows allow: a *forward* zone. An
//! operation that found the key absent, or deleted it, needs some moment of its own time without a value: a backward zone
//! of its own.
//!
//! An order exists if and only if no two forward zones overlap (two values at the same time; the first would have to
//! come back) and no backward zone lies within a forward one (something would interrupt a value, which came back). For then
//! each backward zone reaches a moment outside of all forward ones, and there its chain is put, alone. Sorting the zones
//! takes the time: n log n, however many operations are under way together.
//!
//! This is exact for all but two steps. A deletion that was done needs *some* value to be there and takes it, and others
//! (`touch`, a refused ADD) only need *some* value: here the former counts as one that found nothing, and the latter for
//! nothing. Their further demands are for [`search`](crate::search).

use rustc_hash::FxHashMap;

use crate::attribution::Attributed;
use crate::history::{NEVER, Operation, Step, Value};
use crate::violation::{Kind, Violation};

/// A time, and the operation that makes it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    at: u64,
    by: usize,
}

const OPEN: Bound = Bound { at: NEVER, by: usize::MAX };

/// A chain of values that has to be there from one moment to another.
#[derive(Debug)]
pub(crate) struct Held {
    from: Bound,
    to: Bound,
    /// The first and last value of the chain.
    first: Value,
    last: Value,
}

/// The joint evidence of all that saw one value.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first_end: Bound,
    last_begin: Option<Bound>,
    replaced: Option<usize>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { first_end: OPEN, last_begin: None, replaced: None }
    }
}

/// The zones of values, by time.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    held: Vec<Held>,
}

impl Zones {
    /// Returns whether at some moment between these times there is a value in any case, and it is another than this
    /// one.
    pub(crate) fn is_held(&self, begin: u64, end: u64, not: Option<Value>) -> bool {
        let at = self.held.partition_point(|held| held.to.at < begin);
        // A chain of several values may hold the one that is excluded: left to the search.
        self.held[at..]
            .iter()
            .take_while(|held| held.from.at <= end)
            .any(|held| not.is_none_or(|not| held.first == held.last && held.first != not))
    }
}

/// Returns the zones of a history, or why it has no order.
pub(crate) fn zones(attributed: &Attributed) -> Result<Zones, Violation> {
    let operations = &attributed.operations;
    let seen = sightings(operations)?;
    let mut held = Vec::new();
    let mut free: Vec<Free> = Vec::new();
    let mut covered = 0;
    for (place, operation) in operations.iter().enumerate().filter(|(_, operation)| operation.certain) {
        match operation.step {
            Step::Write(value) => {
                let chain = chain(operations, &seen, place);
                covered += chain.len();
                let last = operations[chain[chain.len() - 1]].written().unwrap_or(value);
                let (from, to) = extent(operations, &seen, &chain)?;
                if from.at < to.at {
                    held.push(Held { from, to, first: value, last });
                } else {
                    free.push(Free { begin: to, end: from, writes: true });
                }
            }
            Step::Gone | Step::Take => {
                let bound = |at| Bound { at, by: place };
                free.push(Free { begin: bound(operation.begin), end: bound(operation.end), writes: false });
            }
            _ => {}
        }
    }
    let swaps =
        || operations.iter().enumerate().filter(|(_, operation)| operation.certain && operation.written().is_some());
    if covered < swaps().count() {
        let round = swaps().map(|(place, _)| place).filter(|&place| is_round(attributed, place)).collect::<Vec<_>>();
        return Err(Violation::new(Kind::OutOfTurn, round, "each of these replaced what another of them wrote"));
    }
    held.sort_by_key(|held: &Held| (held.from, held.to));
    if let Some(pair) = held.windows(2).find(|pair| pair[1].from.at < pair[0].to.at) {
        let by = [pair[0].from.by, pair[0].to.by, pair[1].from.by, pair[1].to.by];
        let why = "between the end of A and the beginning of B the key had the value (or the row of values) that these two \
                   tell of, and between the end of C and the beginning of D another: these times overlap, and a value once \
                   replaced does not come back";
        return Err(Violation::new(Kind::CameBack, by, why));
    }
    for free in free {
        let at = held.partition_point(|held| held.to.at <= free.end.at);
        if let Some(held) = held.get(at).filter(|held| held.from.at < free.begin.at) {
            let what = if free.writes { "gave the key another value" } else { "found or left the key absent" };
            let who = if free.begin.by == free.end.by {
                format!("C lies wholly within that time, and {what}")
            } else {
                format!("C, which began within that time, and D, which ended within it, {what} meanwhile")
            };
            let why = format!(
                "between the end of A and the beginning of B the key had the value (or the row of values) that these two \
                 tell of; {who}: a value that was replaced or gone does not come back"
            );
            let mut by = vec![held.from.by, held.to.by, free.begin.by, free.end.by];
            by.dedup();
            return Err(Violation::new(Kind::Interrupted, by, why));
        }
    }
    Ok(Zones { held })
}

/// The free moments between these times.
struct Free {
    begin: Bound,
    end: Bound,
    writes: bool,
}

fn sightings(operations: &[Operation]) -> Result<FxHashMap<Value, Seen>, Violation> {
    let mut all: FxHashMap<Value, Seen> = FxHashMap::default();
    for (place, operation) in operations.iter().enumerate().filter(|(_, operation)| operation.certain) {
        let Some(value) = operation.seen() else { continue };
        let seen = all.entry(value).or_default();
        if let Step::Swap { .. } = operation.step {
            if let Some(other) = seen.replaced.replace(place) {
                let why = "A and B both replaced the same value: one of two updates was lost";
                return Err(Violation::new(Kind::ReplacedTwice, [other, place], why));
            }
            continue;
        }
        seen.first_end = seen.first_end.min(Bound { at: operation.end, by: place });
        seen.last_begin = seen.last_begin.max(Some(Bound { at: operation.begin, by: place }));
    }
    Ok(all)
}

/// Returns the operations that wrote this value, the one that replaced it, and so on.
fn chain(operations: &[Operation], seen: &FxHashMap<Value, Seen>, first: usize) -> Vec<usize> {
    let next = |&place: &usize| seen.get(&operations[place].written()?)?.replaced;
    std::iter::successors(Some(first), next).collect()
}

/// Returns the latest start and the earliest end of a chain.
fn extent(
    operations: &[Operation],
    seen: &FxHashMap<Value, Seen>,
    chain: &[usize],
) -> Result<(Bound, Bound), Violation> {
    let of = |place: usize| operations[place].written().and_then(|value| seen.get(&value)).copied().unwrap_or_default();
    let mut earliest = Vec::with_capacity(chain.len());
    let mut low = None;
    for &place in chain {
        low = low.max(Some(Bound { at: operations[place].begin, by: place }));
        earliest.push(low);
        low = low.max(of(place).last_begin);
    }
    let mut high = OPEN;
    for (&place, low) in chain.iter().zip(earliest).rev() {
        high = high.min(Bound { at: operations[place].end, by: place }).min(of(place).first_end);
        if let Some(low) = low.filter(|low| low.at > high.at) {
            let why = "the value cannot have been there before A began; but B, which saw it or one that came after it, had \
                       ended before that";
            return Err(Violation::new(Kind::OutOfTurn, [low.by, high.by], why));
        }
    }
    Ok((high, low.unwrap_or(high)))
}

/// Returns whether following what was replaced never comes to a plain write.
fn is_round(attributed: &Attributed, place: usize) -> bool {
    let mut at = place;
    for _ in 0..attributed.operations.len() {
        let Step::Swap { from, .. } = attributed.operations[at].step else { return false };
        let Some(&writer) = attributed.writers.get(&from) else { return false };
        at = writer;
    }
    true
}
