//! A model of reader and writer: every order in which loads and stores may take effect, of what must not be answered.
//!
//! The writer's stores take effect in any order that its fences and releases allow, and the reader's loads in any that its
//! barriers allow. That is weaker than any processor. Each rule of the design is then broken in turn. The search
//! must then find an answer that was not the key's value at any time of the read.

use std::collections::HashSet;

/// A word that reader and writer share: of an entry, of an item, or one that validates both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cell {
    Epoch,
    Slot,
    Life,
    First,
    Version,
    Key,
    /// The value, that takes two loads.
    Head,
    Tail,
    FlushAt,
    Flushed,
}
use Cell::{Epoch, First, FlushAt, Flushed, Head, Key, Life, Slot, Tail, Version};

const CELLS: usize = 10;
const ALIVE: u8 = 2;
const UNPUBLISHED: u8 = 1;
const DEAD: u8 = 3;
/// The entry's place, and that nothing is entered.
const HERE: u8 = 1;
const NOWHERE: u8 = 0;
/// The key that is asked for.
const OURS: u8 = 1;
const ANOTHER: u8 = 2;
/// Values: the first one of the key, its second, and one that is never the key's.
const OLD: u8 = 1;
const NEW: u8 = 2;
const FOREIGN: u8 = 3;

/// An operation of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Store(Cell, u8),
    /// No earlier store takes effect after it.
    Release(Cell, u8),
    /// No earlier store takes effect after a later one.
    Fence,
    /// From now on this may be the key's value: a client has asked for it.
    Began(u8),
    /// This is not the key's value any more, and a client knows.
    Ended(u8),
}

/// A step of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Load(Cell),
    Barrier,
}
use Op::{Began, Ended, Fence, Release, Store};
use Step::{Barrier, Load};

/// The reader's steps, as the program has them.
const READER: [Step; 22] = [
    Load(Epoch),
    Barrier,
    Load(Slot),
    Barrier,
    Load(Life),
    Barrier,
    Load(First),
    Barrier,
    Load(Version),
    Barrier,
    Load(Key),
    Load(Head),
    Load(Tail),
    Barrier,
    Load(First),
    Barrier,
    Load(Version),
    Load(Life),
    Load(FlushAt),
    Barrier,
    Load(Flushed),
    Load(Epoch),
];

/// Checks that the reader can leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reader {
    without_step_3: bool,
    without_life: bool,
    without_epoch: bool,
}

/// One run of a writer, from a state of the cells.
#[derive(Clone, Debug)]
struct Writer {
    name: &'static str,
    begin: [u8; CELLS],
    /// The values that are the key's when it begins.
    values: u8,
    ops: Vec<Op>,
}

/// The item that all runs begin with.
const ITEM: [u8; CELLS] = [1, HERE, 0, ALIVE, 5, OURS, OLD, OLD, 0, 0];

fn bit(value: u8) -> u8 {
    1 << value
}

/// Starts a life in the chunk; the release of `alive` ends this.
fn begin(life: u8, version: u8, key: u8, value: u8) -> Vec<Op> {
    vec![
        Release(First, UNPUBLISHED),
        Fence,
        Store(Life, life),
        Store(Key, key),
        Store(Head, value),
        Store(Tail, value),
        Store(Version, version),
    ]
}

fn sequence(parts: &[&[Op]]) -> Vec<Op> {
    parts.concat()
}

/// The key is replaced, and its chunk is that of the new value.
fn replacement() -> Writer {
    let ops = sequence(&[
        &[Began(NEW), Release(First, DEAD), Release(Slot, NOWHERE)],
        &begin(1, 6, OURS, NEW),
        &[Release(Slot, HERE), Release(First, ALIVE), Ended(OLD)],
    ]);
    Writer { name: "replacement", begin: ITEM, values: bit(OLD), ops }
}

/// The item leaves for flash, another key's is in its chunk, and it returns there with its version.
fn return_from_flash() -> Writer {
    let ops = sequence(&[
        &[Release(First, DEAD), Release(Slot, NOWHERE)],
        &begin(1, 9, ANOTHER, FOREIGN),
        &[Release(First, ALIVE), Release(First, DEAD)],
        &begin(2, 5, OURS, OLD),
        &[Release(First, ALIVE), Release(Slot, HERE)],
    ]);
    Writer { name: "return from flash", begin: ITEM, values: bit(OLD), ops }
}

/// The page leaves its class, and a client's value forges the item.
fn change_of_class() -> Writer {
    let ops = sequence(&[
        &[Release(First, DEAD), Release(Slot, NOWHERE), Release(Epoch, 3), Fence],
        &[
            Store(First, ALIVE),
            Store(Life, 0),
            Store(Version, 5),
            Store(Key, OURS),
            Store(Head, FOREIGN),
            Store(Tail, FOREIGN),
        ],
    ]);
    Writer { name: "change of class", begin: ITEM, values: bit(OLD), ops }
}

/// All is flushed, and then stored again with a later version.
fn flush() -> Writer {
    let ops = sequence(&[
        &[Release(Flushed, 5), Ended(OLD), Began(NEW), Release(First, DEAD), Release(Slot, NOWHERE)],
        &begin(1, 6, OURS, NEW),
        &[Release(First, ALIVE), Release(Slot, HERE)],
    ]);
    Writer { name: "flush", begin: ITEM, values: bit(OLD), ops }
}

/// A flush is due, and a command carries it out.
fn due_flush() -> Writer {
    let mut begin = ITEM;
    begin[FlushAt as usize] = 1;
    Writer { name: "due flush", begin, values: 0, ops: vec![Release(Flushed, 5), Release(FlushAt, 0)] }
}

fn writers() -> Vec<Writer> {
    vec![replacement(), return_from_flash(), change_of_class(), flush(), due_flush()]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    stored: u32,
    loaded: u32,
    cells: [u8; CELLS],
    seen: [u8; READER.len()],
    /// Values that are the key's now, and those that were since the reader began.
    values: u8,
    allowed: u8,
}

/// Whether the writer's operation `at` may take effect before the earlier one `before`.
fn may_pass(ops: &[Op], before: usize, at: usize) -> bool {
    let (first, second) = (ops[before], ops[at]);
    let fenced = ops[before..=at].iter().any(|op| matches!(op, Fence | Began(_) | Ended(_)));
    let same = matches!((first, second), (Store(a, _) | Release(a, _), Store(b, _) | Release(b, _)) if a == b);
    !fenced && !same && !matches!(second, Release(..))
}

/// Whether an answer is given that was not the key's value at any time of the read; and in how many orders it is right.
fn search(writer: &Writer, steps: &[Step], reader: Reader) -> (bool, usize) {
    let ops = &writer.ops;
    // What takes no time of its own orders the others, and is no step of the search.
    let before = |at: usize, waits: &dyn Fn(usize) -> bool| {
        (0..at).filter(|&other| waits(other)).fold(0, |mask, other| mask | 1 << other)
    };
    let stores: Vec<(usize, u32)> = (0..ops.len())
        .filter(|&at| ops[at] != Fence)
        .map(|at| (at, before(at, &|other| ops[other] != Fence && !may_pass(ops, other, at))))
        .collect();
    let loads: Vec<(usize, u32)> = (0..steps.len())
        .filter(|&at| steps[at] != Barrier)
        .map(|at| (at, before(at, &|other| steps[other] != Barrier && steps[other..at].contains(&Barrier))))
        .collect();
    let all: u32 = loads.iter().fold(0, |mask, (at, _)| mask | 1 << at);
    let start =
        State { stored: 0, loaded: 0, cells: writer.begin, seen: [0; READER.len()], values: writer.values, allowed: 0 };
    let (mut stack, mut known, mut right) = (vec![start], HashSet::from([start]), 0);
    while let Some(state) = stack.pop() {
        if state.loaded == all {
            match answer(steps, &state.seen, reader) {
                Some(value) if value.is_none_or(|value| state.allowed & bit(value) == 0) => return (true, right),
                Some(_) => right += 1,
                None => {}
            }
            continue;
        }
        let mut next = Vec::new();
        for &(at, _) in stores.iter().filter(|(at, needs)| state.stored >> at & 1 == 0 && needs & !state.stored == 0) {
            let mut state = State { stored: state.stored | 1 << at, ..state };
            match ops[at] {
                Store(cell, value) | Release(cell, value) => state.cells[cell as usize] = value,
                Fence => {}
                Began(value) => state.values |= bit(value),
                Ended(value) => state.values &= !bit(value),
            }
            if state.loaded != 0 {
                state.allowed |= state.values;
            }
            next.push(state);
        }
        for &(at, _) in loads.iter().filter(|(at, needs)| state.loaded >> at & 1 == 0 && needs & !state.loaded == 0) {
            let mut state = State { loaded: state.loaded | 1 << at, allowed: state.allowed | state.values, ..state };
            if let Load(cell) = steps[at] {
                state.seen[at] = state.cells[cell as usize];
            }
            next.push(state);
        }
        for state in next {
            if known.insert(state) {
                stack.push(state);
            }
        }
    }
    (false, right)
}

/// Returns the value that is answered, if one is; None in it for one that is of two halves.
fn answer(steps: &[Step], seen: &[u8; READER.len()], reader: Reader) -> Option<Option<u8>> {
    let all = |cell: Cell| {
        let places = (0..steps.len()).filter(move |&at| steps[at] == Load(cell));
        places.map(|at| seen[at]).collect::<Vec<_>>()
    };
    let first = |cell: Cell| all(cell)[0];
    let unchanged = |cell: Cell| all(cell).iter().all(|&value| value == first(cell));
    if first(Epoch) & 1 == 0 || first(Slot) != HERE || first(First) != ALIVE || first(Key) != OURS {
        return None;
    }
    let item = unchanged(First) && unchanged(Version);
    let life = reader.without_life || unchanged(Life);
    let still = reader.without_step_3 || (item && life);
    let flushed = first(FlushAt) != 0 || first(Version) <= first(Flushed);
    if !still || flushed || !(reader.without_epoch || unchanged(Epoch)) {
        return None;
    }
    Some((first(Head) == first(Tail)).then_some(first(Head)))
}

fn finds(writer: &Writer, steps: &[Step], reader: Reader) -> bool {
    search(writer, steps, reader).0
}

#[test]
fn no_order_gives_a_wrong_answer() {
    for writer in writers() {
        let (wrong, right) = search(&writer, &READER, Reader::default());
        println!("{}: {right} orders with an answer", writer.name);
        assert!(!wrong, "{}", writer.name);
        assert!(right > 0 || writer.name == "due flush", "{}", writer.name);
    }
}

#[test]
fn checks_of_the_reader_are_needed() {
    let all = Reader::default();
    let broken = [
        (replacement(), Reader { without_step_3: true, ..all }),
        (return_from_flash(), Reader { without_life: true, ..all }),
        (change_of_class(), Reader { without_epoch: true, ..all }),
    ];
    for (writer, reader) in broken {
        assert!(finds(&writer, &READER, reader), "{}: {reader:?}", writer.name);
    }
}

/// Returns the writer without the operation that this picks, the last such.
fn without(mut writer: Writer, pick: impl Fn(&Op) -> bool) -> Writer {
    let at = writer.ops.iter().rposition(pick).unwrap();
    writer.ops.remove(at);
    writer
}

#[test]
fn orders_of_the_writer_are_needed() {
    let found =
        |writer: Writer, what: &str| assert!(finds(&writer, &READER, Reader::default()), "{}: {what}", writer.name);
    found(without(replacement(), |op| *op == Fence), "no fence after unpublished");
    found(without(change_of_class(), |op| *op == Fence), "no fence before the page is reused");
    found(without(change_of_class(), |op| *op == Release(Slot, NOWHERE)), "the entry outlives its place");
    found(without(change_of_class(), |op| *op == Release(Epoch, 3)), "the epoch stays");
    // Late, and with a reply before it.
    let mut late = flush();
    late.ops.swap(0, 1);
    found(late, "flushed after the reply");
    let mut cleared = due_flush();
    cleared.ops.swap(0, 1);
    found(cleared, "flush_at is cleared first");
    // An entry that goes after the epoch has changed may be read with the new epoch.
    let mut early = change_of_class();
    early.ops.swap(1, 2);
    early.ops.swap(2, 3);
    found(early, "the entry goes after the epoch");
    // A chunk that is not unpublished first.
    let dead = without(replacement(), |op| *op == Release(First, DEAD));
    found(without(dead, |op| *op == Release(First, UNPUBLISHED)), "neither dead nor unpublished");
}

#[test]
fn barriers_of_the_reader_are_needed() {
    let barriers: Vec<_> = (0..READER.len()).filter(|&at| READER[at] == Barrier).collect();
    let mut spare = Vec::new();
    for &at in &barriers {
        let mut steps = READER.to_vec();
        steps.remove(at);
        if !writers().iter().any(|writer| finds(writer, &steps, Reader::default())) {
            spare.push((READER[at - 1], READER[at + 1]));
        }
    }
    // Each of these could go alone: step 3 finds what they would let through. All of them could not.
    assert_eq!(spare, [(Load(Slot), Load(Life)), (Load(First), Load(Version)), (Load(Version), Load(Key))]);
    let steps: Vec<_> = (0..READER.len()).filter(|at| !matches!(at, 3 | 7 | 9)).map(|at| READER[at]).collect();
    assert!(writers().iter().any(|writer| finds(writer, &steps, Reader::default())));
}
