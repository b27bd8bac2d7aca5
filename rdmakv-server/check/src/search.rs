//! All orders at once: the exact half of the checker, for what the zones cannot tell.
//!
//! A deletion that was done took *some* value, each a different one, and a `touch` that was done needs *some* value at that
//! moment; which one is unknown. So the history is walked through by time, with the set of all situations that the answers
//! so far allow: the key's value, and which of the operations under way have taken effect already. As in Lowe's *Testing
//! for linearizability* (2017) an operation takes effect no sooner than something ends that needs it. Reads take effect as
//! soon as they can, which excludes nothing. A write that was not seen, or a read that found nothing, may always have come
//! just before the next write, so that its place need not be guessed. The knowledge of the zones keeps the set small as
//! well: a value is not left before the last read that saw it has begun, and a replaced one is left by its successor only.
//! When no situation is left, no order exists. The set has a bound; past it the key is undecided, which is said, not
//! hidden.

use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::attribution::Attributed;
use crate::history::{Operation, Step, Value};
use crate::violation::{Kind, Violation};
use crate::zones::Zones;

/// Situations that are followed at a time.
const MOST: usize = 1 << 15;
/// Operations on one key that are under way at a time.
const SLOTS: usize = u128::BITS as usize;
/// Operations that a proof shows.
const SHOWN: usize = 12;

/// The result of the search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is an order.
    Order,
    /// There is none.
    None(Violation),
    /// Too many situations.
    Undecided,
}

/// The key's value (0: none), and what the operations under way have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Situation {
    value: Value,
    /// Those that have taken effect.
    done: u128,
    /// Unseen writes that may have taken effect just before something else was written: they may still be used, and
    /// need not.
    covered: u128,
}

/// The knowledge of a value from all of the history.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    last_begin: u64,
    replaced: bool,
}

#[derive(Debug)]
struct Search<'a> {
    operations: &'a [Operation],
    values: FxHashMap<Value, Known>,
    /// Values that some operation names, other than its writer.
    named: FxHashSet<Value>,
    under_way: [usize; SLOTS],
    open: u128,
    /// Those that leave some value as it is.
    lookers: u128,
    /// Those that found nothing: they leave nothing as it is, and anything else they take away.
    gones: u128,
    /// Those that may have taken effect, or not.
    optional: u128,
    /// Those that need some value, whichever.
    wanting: u128,
    /// Writes of values that were never seen.
    unseen: u128,
    situations: FxHashSet<Situation>,
}

/// Looks for an order; `zones` are those of the same history.
pub(crate) fn search(attributed: &Attributed, zones: &Zones) -> Found {
    let operations = &attributed.operations;
    let is_open = |operation: &Operation| match operation.step {
        Step::Take => true,
        Step::Present { not } => !zones.is_held(operation.begin, operation.end, not),
        _ => false,
    };
    if !operations.iter().any(is_open) {
        return Found::Order;
    }
    let is_settled = |operation: &Operation| matches!(operation.step, Step::Present { .. }) && !is_open(operation);
    let mut order: Vec<usize> = (0..operations.len()).filter(|&place| !is_settled(&operations[place])).collect();
    order.sort_by_key(|&place| operations[place].begin);
    let mut search = Search::new(operations);
    let mut ends: BinaryHeap<std::cmp::Reverse<(u64, usize)>> = BinaryHeap::new();
    for place in order {
        // An operation that ends at the moment at which another begins is concurrent with it.
        while let Some(&std::cmp::Reverse((end, slot))) = ends.peek()
            && end < operations[place].begin
        {
            ends.pop();
            if let Err(found) = search.end(slot) {
                return found.placed(attributed);
            }
        }
        let Some(slot) = search.begin(place) else { return Found::Undecided };
        ends.push(std::cmp::Reverse((operations[place].end, slot)));
    }
    for std::cmp::Reverse((_, slot)) in ends.into_sorted_vec().into_iter().rev() {
        if let Err(found) = search.end(slot) {
            return found.placed(attributed);
        }
    }
    Found::Order
}

impl Situation {
    /// The same, when these have ended.
    fn without(self, ended: u128) -> Self {
        Self { done: self.done & !ended, covered: self.covered & !ended, ..self }
    }
}

impl Found {
    fn placed(mut self, attributed: &Attributed) -> Self {
        if let Self::None(violation) = &mut self {
            violation.operations.iter_mut().for_each(|place| *place = attributed.places[*place]);
        }
        self
    }
}

impl<'a> Search<'a> {
    fn new(operations: &'a [Operation]) -> Self {
        let mut values: FxHashMap<Value, Known> = FxHashMap::default();
        for operation in operations.iter().filter(|operation| operation.certain) {
            if let Some(value) = operation.seen() {
                let known = values.entry(value).or_default();
                known.last_begin = known.last_begin.max(operation.begin);
                known.replaced |= matches!(operation.step, Step::Swap { .. });
            }
        }
        let named = |operation: &Operation| match operation.step {
            Step::Present { not } => not,
            _ => operation.seen(),
        };
        let named = operations.iter().filter_map(named).collect();
        let situations = std::iter::once(Situation { value: 0, done: 0, covered: 0 }).collect();
        let under_way = [usize::MAX; SLOTS];
        Self {
            operations,
            values,
            named,
            under_way,
            open: 0,
            lookers: 0,
            gones: 0,
            optional: 0,
            wanting: 0,
            unseen: 0,
            situations,
        }
    }

    fn begin(&mut self, place: usize) -> Option<usize> {
        let slot = (!self.open).trailing_zeros() as usize;
        if slot == SLOTS {
            return None;
        }
        let (bit, operation) = (1 << slot, &self.operations[place]);
        self.under_way[slot] = place;
        self.open |= bit;
        if !operation.certain {
            self.optional |= bit;
        }
        match operation.step {
            Step::Take | Step::Present { .. } => self.wanting |= bit,
            Step::Gone => self.gones |= bit,
            _ => {}
        }
        match operation.step {
            Step::Write(value) if operation.certain && !self.named.contains(&value) => self.unseen |= bit,
            Step::Read(_) | Step::Present { .. } | Step::Gone => {
                self.lookers |= bit;
                let look = |mut now: Situation| {
                    now.done |= if sees(operation, now.value) { bit } else { 0 };
                    now
                };
                self.situations = self.situations.drain().map(look).collect();
            }
            _ => {}
        }
        Some(slot)
    }

    /// The operation has ended: it has taken effect by now.
    fn end(&mut self, slot: usize) -> Result<(), Found> {
        let bit = 1 << slot;
        let before = std::mem::take(&mut self.situations);
        let mut after = FxHashSet::default();
        let is_needed = self.optional & bit == 0;
        let mut tried = FxHashSet::default();
        for situation in &before {
            let is_done = situation.done & bit != 0;
            if is_done || !is_needed || situation.covered & bit != 0 {
                after.insert(situation.without(bit));
            }
            if !is_done {
                self.reach(*situation, slot, &mut tried, &mut after);
            }
            if after.len() + tried.len() > MOST {
                return Err(Found::Undecided);
            }
        }
        if after.is_empty() {
            return Err(Found::None(self.no_order(slot, &before)));
        }
        self.situations = after;
        self.open &= !bit;
        self.lookers &= !bit;
        self.gones &= !bit;
        self.optional &= !bit;
        self.wanting &= !bit;
        self.unseen &= !bit;
        Ok(())
    }

    /// All situations in which this operation has just taken effect, with whatever has to come before it.
    fn reach(&self, from: Situation, slot: usize, tried: &mut FxHashSet<Situation>, after: &mut FxHashSet<Situation>) {
        let (bit, now) = (1u128 << slot, self.operations[self.under_way[slot]].end);
        let mut waiting = vec![from];
        while let Some(situation) = waiting.pop() {
            if !tried.insert(situation) || tried.len() > MOST {
                continue;
            }
            for next in self.steps(situation, bit, now) {
                if next.done & bit != 0 {
                    after.insert(next.without(bit));
                } else {
                    waiting.push(next);
                }
            }
        }
    }

    fn steps(&self, situation: Situation, ending: u128, now: u64) -> impl Iterator<Item = Situation> {
        let known = self.values.get(&situation.value).copied().unwrap_or_default();
        let undone = self.open & !situation.done;
        let may = if situation.value != 0 && known.last_begin > now {
            0
        } else {
            (undone & !(self.optional | self.lookers | self.unseen))
                | (undone & ending)
                | self.of_use(situation, undone)
        };
        bits(may).filter_map(move |slot| {
            let operation = &self.operations[self.under_way[slot]];
            let value = match operation.step {
                Step::Swap { from, to } if from == situation.value => to,
                _ if known.replaced => return None,
                Step::Write(value) => value,
                Step::Gone => 0,
                Step::Take if situation.value != 0 => 0,
                _ => return None,
            };
            let looked =
                bits(undone & self.lookers).filter(|&slot| sees(&self.operations[self.under_way[slot]], value));
            let done = looked.fold(situation.done | 1 << slot, |done, slot| done | 1 << slot);
            // Just before it others may have written unseen values, or found nothing after that. But between a value and
            // its successor by a swap there is room for nothing.
            let (done, hidden) = match operation.step {
                Step::Swap { .. } => (done, 0),
                _ => (done | self.gones, self.unseen),
            };
            Some(Situation { value, done, covered: (situation.covered | hidden) & !done })
        })
    }

    /// Unseen values are of use for operations that need some value and cannot have this one. They are alike, so that of
    /// those that need not be written the one is used that ends first, and of those that have to be as well.
    fn of_use(&self, situation: Situation, undone: u128) -> u128 {
        let in_want = |slot: usize| match self.operations[self.under_way[slot]].step {
            Step::Take => situation.value == 0,
            _ => !sees(&self.operations[self.under_way[slot]], situation.value),
        };
        if !bits(undone & self.wanting).any(in_want) {
            return 0;
        }
        let free = undone & (self.optional | situation.covered);
        let first = |set: u128| {
            let is_write = |slot: &usize| matches!(self.operations[self.under_way[*slot]].step, Step::Write(_));
            let end = |slot: &usize| (self.operations[self.under_way[*slot]].end, *slot);
            bits(set).filter(is_write).min_by_key(end).map_or(0, |slot| 1u128 << slot)
        };
        let is_swap = |&slot: &usize| matches!(self.operations[self.under_way[slot]].step, Step::Swap { .. });
        let swaps = bits(free).filter(is_swap).fold(0, |all, slot| all | 1 << slot);
        first(free) | first(undone & self.unseen & !situation.covered) | swaps
    }

    fn no_order(&self, slot: usize, before: &FxHashSet<Situation>) -> Violation {
        let last = self.under_way[slot];
        let operation = &self.operations[last];
        let changes = |place: usize| !matches!(self.operations[place].step, Step::Read(_) | Step::Present { .. });
        let mut near: Vec<usize> = (0..self.operations.len())
            .filter(|&place| place != last && changes(place) && self.operations[place].begin <= operation.end)
            .collect();
        // Those that ended last, and whatever is under way.
        near.sort_by_key(|&place| std::cmp::Reverse((self.operations[place].end.min(operation.end), place)));
        near.truncate(SHOWN - 1);
        near.sort_by_key(|&place| self.operations[place].begin);
        let what = match operation.step {
            Step::Take => "deleted a value",
            Step::Present { not: None } => "found a value",
            Step::Present { .. } => "found a value other than the one that it named",
            Step::Read(_) => "saw its value",
            Step::Swap { .. } => "replaced its value",
            Step::Gone => "found the key absent",
            Step::Write(_) | Step::Count => "wrote",
        };
        let there = if before.iter().all(|situation| situation.value == 0) {
            "the key was absent then, and nothing under way could have written a value that was not needed elsewhere"
        } else {
            "what was there then, or could have been written or deleted meanwhile, does not allow that"
        };
        let why = format!(
            "A {what}; but in every order that explains the answers before its end {there}: each value is deleted once, and \
             does not come back; after A whatever changed the key around that time"
        );
        Violation::new(Kind::NoOrder, [vec![last], near].concat(), why)
    }
}

/// Returns whether it would find what it found.
fn sees(operation: &Operation, value: Value) -> bool {
    match operation.step {
        Step::Read(seen) => seen == value,
        Step::Present { not } => value != 0 && not != Some(value),
        Step::Gone => value == 0,
        _ => false,
    }
}

fn bits(mut set: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let slot = set.trailing_zeros() as usize;
            set &= set - 1;
            slot
        })
    })
}
