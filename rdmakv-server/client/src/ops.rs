//! Operations that are open: what is asked for, and what became of it.
//!
//! An operation is open until its result is taken; there are never more than the window says. Their names say which life of a place they
//! are of, so that a late answer finds nothing. All have the same time, so the oldest is the first to run out of it.

use super::answer::Answer;
use super::buffer::{Data, Part};
use super::command::Arguments;
use super::error::{About, Error, Operation};
use super::tags::CallTag;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

/// The name of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Name {
    at: u32,
    life: u32,
}

/// The place of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum On {
    Queue,
    Fabric,
    Stream,
    /// At several servers: calls, which are operations of their own, are parts of it.
    Group,
}

/// An open operation.
pub(super) struct Op {
    pub(super) operation: Operation,
    pub(super) key: Vec<u8>,
    /// The hash of the key, if it changes something.
    changes: Option<u64>,
    pub(super) arguments: Arguments,
    pub(super) data: Data,
    /// The piece that follows the data of a call.
    pub(super) piece: Part,
    pub(super) server: usize,
    pub(super) deadline: Instant,
    /// When it was first sent over a fabric; 0 before.
    pub(super) first_sent: u64,
    pub(super) on: On,
    /// How often it was sent.
    pub(super) attempts: u8,
    /// The answers so far exclude a fabric; or a transfer.
    pub(super) only_stream: bool,
    pub(super) no_transfer: bool,
    /// The server's reason for a refusal over the fabric.
    pub(super) refused: Option<String>,
    /// The reply to a call is to come with a tag, and the tag that came.
    pub(super) wishes: bool,
    pub(super) tag: Option<CallTag>,
    result: Option<Result<Answer, Error>>,
    /// It is a call of another operation.
    is_part: bool,
    /// The holder that may take the result.
    holder: Option<Weak<()>>,
    pub(super) waker: Option<Waker>,
}

/// Open operations.
pub(super) struct Ops {
    places: Vec<(u32, Option<Op>)>,
    free: Vec<u32>,
    by_age: VecDeque<Name>,
    most: usize,
    /// Keys that were used, to be used again.
    spare: Vec<Vec<u8>>,
    /// How many that change something are not answered, by their keys' hashes.
    changing: HashMap<u64, u32>,
    hasher: RandomState,
    woken: Vec<Waker>,
    /// Calls of other operations: how many are open, and those that have ended.
    parts: usize,
    ended_parts: Vec<Name>,
}

impl Op {
    /// Returns how many bytes are sent after the line of the operation.
    pub(super) fn length(&self) -> usize {
        self.data.bytes().len() + self.piece.bytes().len()
    }
}

impl Ops {
    pub(super) fn new(most: usize) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            by_age: VecDeque::new(),
            most: most.max(1),
            spare: Vec::new(),
            changing: HashMap::new(),
            hasher: RandomState::default(),
            woken: Vec::new(),
            parts: 0,
            ended_parts: Vec::new(),
        }
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn open(&self) -> usize {
        self.places.len() - self.free.len() - self.parts
    }

    pub(super) fn has_room(&self) -> bool {
        self.open() < self.most
    }

    /// Opens an operation; the caller has looked for room.
    pub(super) fn insert(
        &mut self,
        (operation, key): (Operation, &[u8]),
        arguments: Arguments,
        data: Data,
        server: usize,
        deadline: Instant,
    ) -> Name {
        let mut owned = self.spare.pop().unwrap_or_default();
        owned.clear();
        owned.extend_from_slice(key);
        let changes = (!operation.is_read()).then(|| self.hasher.hash_one(key));
        if let Some(hash) = changes {
            *self.changing.entry(hash).or_default() += 1;
        }
        let op = Op {
            operation,
            key: owned,
            changes,
            arguments,
            data,
            piece: Part::default(),
            server,
            deadline,
            first_sent: 0,
            on: On::Queue,
            attempts: 0,
            only_stream: false,
            no_transfer: false,
            refused: None,
            wishes: false,
            tag: None,
            result: None,
            is_part: false,
            holder: None,
            waker: None,
        };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.places.push((0, None));
                (self.places.len() - 1) as u32
            }
        };
        let place = &mut self.places[at as usize];
        place.1 = Some(op);
        let name = Name { at, life: place.0 };
        self.by_age.push_back(name);
        name
    }

    /// Opens an operation that has a time of its own: it is never the oldest.
    pub(super) fn insert_group(&mut self, what: (Operation, &[u8]), arguments: Arguments, data: Data) -> Name {
        let name = self.insert(what, arguments, data, usize::MAX, Instant::now());
        self.by_age.pop_back();
        if let Some(op) = self.get_mut(name) {
            op.on = On::Group;
        }
        name
    }

    /// Opens a call of another operation. The window does not count it, and it is never the oldest.
    pub(super) fn insert_part(
        &mut self,
        what: (Operation, &[u8]),
        arguments: Arguments,
        data: Data,
        server: usize,
        deadline: Instant,
    ) -> Name {
        let name = self.insert(what, arguments, data, server, deadline);
        self.by_age.pop_back();
        self.parts += 1;
        if let Some(op) = self.get_mut(name) {
            op.is_part = true;
        }
        name
    }

    /// Returns whether it is a call of another operation.
    pub(super) fn is_part(&self, name: Name) -> bool {
        self.get(name).is_some_and(|op| op.is_part)
    }

    /// Returns whether calls have ended since the last time that they were taken.
    pub(super) fn has_ended_parts(&self) -> bool {
        !self.ended_parts.is_empty()
    }

    /// Returns the calls that have ended since the last time.
    pub(super) fn ended_parts(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.ended_parts)
    }

    /// A ticket holds it: without a holder the result is dropped.
    pub(super) fn hold(&mut self, name: Name) -> Arc<()> {
        let holder = Arc::new(());
        if let Some(op) = self.get_mut(name) {
            op.holder = Some(Arc::downgrade(&holder));
        }
        holder
    }

    pub(super) fn get(&self, name: Name) -> Option<&Op> {
        self.places.get(name.at as usize).filter(|place| place.0 == name.life)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, name: Name) -> Option<&mut Op> {
        self.places.get_mut(name.at as usize).filter(|place| place.0 == name.life)?.1.as_mut()
    }

    /// One that is still to be answered.
    pub(super) fn unanswered(&mut self, name: Name) -> Option<&mut Op> {
        self.get_mut(name).filter(|op| op.result.is_none())
    }

    /// Returns whether an operation is open that may change this key, or all of them.
    #[inline]
    pub(super) fn is_changing(&self, key: &[u8]) -> bool {
        let has = |key: &[u8]| self.changing.contains_key(&self.hasher.hash_one(key));
        !self.changing.is_empty() && (has(key) || has(b""))
    }

    pub(super) fn is_done(&self, name: Name) -> bool {
        self.get(name).is_none_or(|op| op.result.is_some())
    }

    /// It has come to its end.
    pub(super) fn end(&mut self, name: Name, result: Result<Answer, Error>) {
        let Some(op) = self.unanswered(name) else { return };
        let unwanted = op.holder.as_ref().is_some_and(|holder| holder.strong_count() == 0);
        op.result = Some(result);
        let waker = op.waker.take();
        let (changes, is_part) = (op.changes, op.is_part);
        if is_part {
            self.ended_parts.push(name);
        }
        self.woken.extend(waker);
        if let Some(hash) = changes
            && let Some(left) = self.changing.get_mut(&hash)
        {
            *left -= 1;
            if *left == 0 {
                self.changing.remove(&hash);
            }
        }
        if unwanted {
            self.take(name);
        }
    }

    /// Takes its result, and gives its data back.
    pub(super) fn take(&mut self, name: Name) -> Option<(Result<Answer, Error>, Data)> {
        self.get(name)?.result.as_ref()?;
        let place = &mut self.places[name.at as usize];
        let op = place.1.take()?;
        place.0 = place.0.wrapping_add(1);
        self.free.push(name.at);
        self.parts -= usize::from(op.is_part);
        if self.spare.len() < 64 {
            self.spare.push(op.key);
        }
        // The oldest may never be asked for.
        self.forget_done();
        Some((op.result?, op.data))
    }

    /// Removes results that can no longer be taken.
    pub(super) fn sweep(&mut self) {
        for at in 0..self.places.len() {
            let (life, op) = &self.places[at];
            let gone =
                |op: &Op| op.result.is_some() && op.holder.as_ref().is_some_and(|holder| holder.strong_count() == 0);
            if op.as_ref().is_some_and(gone) {
                self.take(Name { at: at as u32, life: *life });
            }
        }
    }

    /// Returns the oldest one that is not answered.
    pub(super) fn oldest(&mut self) -> Option<Name> {
        self.forget_done();
        self.by_age.front().copied()
    }

    fn forget_done(&mut self) {
        while let Some(&name) = self.by_age.front()
            && self.is_done(name)
        {
            self.by_age.pop_front();
        }
    }

    /// Returns the waiters for the operations that have ended since the last time.
    pub(super) fn woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    pub(super) fn about(&self, name: Name, server: &str) -> Option<About> {
        let op = self.get(name)?;
        Some(About { operation: op.operation, key: op.key.clone(), server: server.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(ops: &mut Ops) -> Name {
        ops.insert((Operation::Get, b"k"), Arguments::default(), Data::None, 0, Instant::now())
    }

    #[test]
    fn a_late_answer_finds_nothing() {
        let mut ops = Ops::new(2);
        let one = insert(&mut ops);
        ops.end(one, Ok(Answer::Yes(true)));
        assert!(ops.is_done(one) && ops.take(one).is_some() && ops.take(one).is_none());
        let two = insert(&mut ops);
        ops.end(one, Ok(Answer::Yes(true)));
        assert!(one != two && !ops.is_done(two));
        assert_eq!(ops.oldest(), Some(two));
    }

    #[test]
    fn key_is_changing_until_the_last_answer() {
        let mut ops = Ops::new(9);
        let begin = |ops: &mut Ops, operation, key: &[u8]| {
            ops.insert((operation, key), Arguments::default(), Data::None, 0, Instant::now())
        };
        let set = [(); 2].map(|()| begin(&mut ops, Operation::Set, b"k"));
        begin(&mut ops, Operation::Get, b"other");
        assert!(ops.is_changing(b"k") && !ops.is_changing(b"other"));
        ops.end(set[0], Ok(Answer::Yes(true)));
        assert!(ops.is_changing(b"k"));
        ops.end(set[1], Ok(Answer::Yes(true)));
        ops.end(set[1], Ok(Answer::Yes(true)));
        assert!(!ops.is_changing(b"k") && ops.changing.is_empty());
        let flush = begin(&mut ops, Operation::Flush, b"");
        assert!(ops.is_changing(b"k") && ops.is_changing(b"other"));
        ops.end(flush, Ok(Answer::Yes(true)));
        assert!(!ops.is_changing(b"k"));
    }

    #[test]
    fn what_was_taken_leaves_nothing_behind() {
        let mut ops = Ops::new(2);
        for _ in 0..1000 {
            let one = insert(&mut ops);
            ops.end(one, Ok(Answer::Yes(true)));
            assert!(ops.take(one).is_some());
        }
        assert_eq!((ops.by_age.len(), ops.places.len(), ops.open()), (0, 1, 0));
    }

    #[test]
    fn a_result_that_nobody_wants_makes_room() {
        let mut ops = Ops::new(2);
        let (one, two) = (insert(&mut ops), insert(&mut ops));
        drop(ops.hold(one));
        let held = ops.hold(two);
        ops.end(one, Ok(Answer::Yes(true)));
        ops.end(two, Ok(Answer::Yes(true)));
        assert_eq!(ops.open(), 1);
        drop(held);
        ops.sweep();
        assert_eq!(ops.open(), 0);
    }
}
