//! All orders at once: the exact half of the checker, for what the zones cannot tell.
//!
//! A deletion that was done took *some* value, each a different one, and a `touch` that was done needs *some* value at that
//! moment; which, nobody knows. So the history is walked through by time, with the set of all situations that the
//! answers so far allow: the key's value, and which of the operations under way have taken effect already. As in Lowe's
//! *Testing for linearizability* (2017) an operation takes effect no sooner than something ends that needs it; those who
//! only look take effect as soon as they can, which excludes nothing. What the zones know keeps the set small: a value is
//! not left before the last one who saw it has begun, and one that was replaced is left by its successor only. When no
//! situation is left, no order exists. The set has a bound; past it the key is undecided, which is said, not hidden.

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

/// What the search came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is an order.
    Order,
    /// There is none.
    None(Violation),
    /// Too many situations.
    Undecided,
}

/// The key's value (0: none), and which of the operations under way have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Situation {
    value: Value,
    done: u128,
}

/// What is known of a value from all of the history.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    last_begin: u64,
    replaced: bool,
}

#[derive(Debug)]
struct Search<'a> {
    operations: &'a [Operation],
    values: FxHashMap<Value, Known>,
    under_way: [usize; SLOTS],
    open: u128,
    /// Those that only look.
    lookers: u128,
    /// Those that may have taken effect, or not.
    optional: u128,
    /// Those that need some value, whichever.
    wanting: u128,
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
        // Who ends at the moment at which another begins is under way together with it.
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
        let situations = std::iter::once(Situation { value: 0, done: 0 }).collect();
        let under_way = [usize::MAX; SLOTS];
        Self { operations, values, under_way, open: 0, lookers: 0, optional: 0, wanting: 0, situations }
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
        if let Step::Take | Step::Present { .. } = operation.step {
            self.wanting |= bit;
        }
        match operation.step {
            Step::Read(_) | Step::Present { .. } => {
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
            if is_done || !is_needed {
                after.insert(Situation { done: situation.done & !bit, ..*situation });
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
        self.optional &= !bit;
        self.wanting &= !bit;
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
                    after.insert(Situation { done: next.done & !bit, ..next });
                } else {
                    waiting.push(next);
                }
            }
        }
    }

    fn steps(&self, situation: Situation, ending: u128, now: u64) -> impl Iterator<Item = Situation> {
        let known = self.values.get(&situation.value).copied().unwrap_or_default();
        let undone = self.open & !situation.done;
        // What may have been written helps only who wants some value where there is none.
        let optional = undone & self.optional;
        let optional = if undone & self.wanting == 0 { optional & ending } else { self.earliest(optional) };
        let may = (undone & !self.optional & !self.lookers) | optional;
        let may = if situation.value != 0 && known.last_begin > now { 0 } else { may };
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
            Some(Situation { value, done })
        })
    }

    /// Writes that nobody saw are alike, so that the one is used that ends first; swaps are not.
    fn earliest(&self, optional: u128) -> u128 {
        let (mut all, mut first) = (0, None);
        for slot in bits(optional) {
            match self.operations[self.under_way[slot]] {
                Operation { step: Step::Write(_), end, .. } => {
                    first = first.into_iter().chain([(end, slot)]).min();
                }
                _ => all |= 1 << slot,
            }
        }
        all | first.map_or(0, |(_, slot): (u64, usize)| 1 << slot)
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

/// Whether it would find what it found.
fn sees(operation: &Operation, value: Value) -> bool {
    match operation.step {
        Step::Read(seen) => seen == value,
        Step::Present { not } => value != 0 && not != Some(value),
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
