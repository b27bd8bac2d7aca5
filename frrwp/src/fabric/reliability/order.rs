//! The order of a client's calls: one waits while an earlier one on its key is unanswered, if either is a mutation.

use super::server::RequestKind;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// The key that a call is about, as a hash of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// One key.
    Key(u64),
    /// All keys: it waits for all calls before it, and all after it wait for it.
    All,
}

/// A call that waits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Call {
    pub(super) call: u64,
    pub(super) kind: RequestKind,
    pub(super) scope: Scope,
    pub(super) message: Vec<u8>,
}

/// The calls on a key.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct KeyCalls {
    reads: u32,
    is_changing: bool,
    waiting: VecDeque<Call>,
}

impl KeyCalls {
    fn takes(&self, kind: RequestKind) -> bool {
        !self.is_changing && (kind == RequestKind::Read || self.reads == 0)
    }

    fn enter(&mut self, kind: RequestKind) {
        match kind {
            RequestKind::Read => self.reads += 1,
            RequestKind::Mutation | RequestKind::LongMutation => self.is_changing = true,
        }
    }
}

/// The calls that have not ended.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Order {
    by_key: FxHashMap<u64, KeyCalls>,
    ready: VecDeque<Call>,
    /// Calls behind one on all keys, which waits for those before it.
    behind: VecDeque<Call>,
    /// Calls that may be sent, or were.
    entered: usize,
    /// Whether one of those is on all keys.
    is_closed: bool,
}

impl Hash for Order {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut by_key: Vec<_> = self.by_key.iter().collect();
        by_key.sort_unstable_by_key(|(key, _)| **key);
        (by_key, &self.ready, &self.behind, self.entered, self.is_closed).hash(state);
    }
}

impl Order {
    /// Adds a call behind the others.
    pub(super) fn push(&mut self, call: Call) {
        self.behind.push_back(call);
        self.open();
    }

    /// Returns the next call that may be sent.
    pub(super) fn pop(&mut self) -> Option<Call> {
        self.ready.pop_front()
    }

    /// Returns the next call that may be sent, without taking it.
    pub(super) fn peek(&self) -> Option<&Call> {
        self.ready.front()
    }

    /// Puts a call that was taken back: it is sent again, before the others.
    pub(super) fn put_back(&mut self, call: Call) {
        self.ready.push_front(call);
    }

    /// A call that was taken has ended.
    pub(super) fn ended(&mut self, kind: RequestKind, scope: Scope) {
        self.entered -= 1;
        match scope {
            Scope::All => self.is_closed = false,
            Scope::Key(key) => {
                if let Some(calls) = self.by_key.get_mut(&key) {
                    match kind {
                        RequestKind::Read => calls.reads -= 1,
                        RequestKind::Mutation | RequestKind::LongMutation => calls.is_changing = false,
                    }
                }
                self.advance(key);
            }
        }
        self.open();
    }

    /// Takes a call out that waits; returns whether it was there.
    pub(super) fn cancel(&mut self, call: u64) -> bool {
        let place = |calls: &VecDeque<Call>| calls.iter().position(|waiting| waiting.call == call);
        if let Some(waiting) = place(&self.ready).and_then(|at| self.ready.remove(at)) {
            self.ended(waiting.kind, waiting.scope);
            return true;
        }
        if let Some(at) = place(&self.behind) {
            self.behind.remove(at);
            self.open();
            return true;
        }
        let found = self.by_key.iter_mut().find_map(|(key, calls)| Some((*key, place(&calls.waiting)?)));
        let Some((key, at)) = found else { return false };
        if let Some(calls) = self.by_key.get_mut(&key) {
            calls.waiting.remove(at);
        }
        self.entered -= 1;
        self.advance(key);
        self.open();
        true
    }

    /// Lets calls on a key go on, as far as those before them have ended.
    fn advance(&mut self, key: u64) {
        let Some(calls) = self.by_key.get_mut(&key) else { return };
        while let Some(call) = calls.waiting.front().filter(|call| calls.takes(call.kind)) {
            calls.enter(call.kind);
            self.ready.extend(calls.waiting.pop_front());
        }
        if calls.reads == 0 && !calls.is_changing {
            self.by_key.remove(&key);
        }
    }

    /// Lets calls in, up to one that waits for all before it.
    fn open(&mut self) {
        while !self.is_closed {
            let Some(call) = self.behind.front() else { return };
            match call.scope {
                Scope::All if self.entered > 0 => return,
                Scope::All => self.is_closed = true,
                Scope::Key(_) => {}
            }
            self.entered += 1;
            let Some(call) = self.behind.pop_front() else { return };
            let Scope::Key(key) = call.scope else {
                self.ready.push_back(call);
                return;
            };
            let calls = self.by_key.entry(key).or_default();
            if calls.waiting.is_empty() && calls.takes(call.kind) {
                calls.enter(call.kind);
                self.ready.push_back(call);
            } else {
                calls.waiting.push_back(call);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(call: u64, kind: RequestKind, scope: Scope) -> Call {
        Call { call, kind, scope, message: Vec::new() }
    }

    fn ready(order: &mut Order) -> Vec<u64> {
        std::iter::from_fn(|| order.pop()).map(|call| call.call).collect()
    }

    const READ: RequestKind = RequestKind::Read;
    const MUTATION: RequestKind = RequestKind::Mutation;

    #[test]
    fn mutations_of_a_key_are_alone() {
        let mut order = Order::default();
        for (number, kind) in [(1, READ), (2, READ), (3, MUTATION), (4, READ), (5, MUTATION)] {
            order.push(call(number, kind, Scope::Key(7)));
        }
        order.push(call(6, MUTATION, Scope::Key(8)));
        assert_eq!(ready(&mut order), [1, 2, 6]);
        order.ended(READ, Scope::Key(7));
        assert_eq!(ready(&mut order), [0; 0]);
        order.ended(READ, Scope::Key(7));
        assert_eq!(ready(&mut order), [3]);
        order.ended(MUTATION, Scope::Key(7));
        assert_eq!(ready(&mut order), [4]);
        order.ended(READ, Scope::Key(7));
        assert_eq!(ready(&mut order), [5]);
        order.ended(MUTATION, Scope::Key(7));
        order.ended(MUTATION, Scope::Key(8));
        assert_eq!(order, Order::default());
    }

    #[test]
    fn calls_on_all_keys_are_alone() {
        let mut order = Order::default();
        order.push(call(1, READ, Scope::Key(1)));
        order.push(call(2, MUTATION, Scope::All));
        order.push(call(3, READ, Scope::Key(2)));
        order.push(call(4, MUTATION, Scope::All));
        assert_eq!(ready(&mut order), [1]);
        order.ended(READ, Scope::Key(1));
        assert_eq!(ready(&mut order), [2]);
        order.ended(MUTATION, Scope::All);
        assert_eq!(ready(&mut order), [3]);
        order.ended(READ, Scope::Key(2));
        assert_eq!(ready(&mut order), [4]);
        order.ended(MUTATION, Scope::All);
        assert_eq!(order, Order::default());
    }

    #[test]
    fn cancelled_calls_let_others_go_on() {
        let mut order = Order::default();
        for (number, kind, scope) in [
            (1, READ, Scope::Key(7)),
            (2, MUTATION, Scope::Key(7)),
            (3, READ, Scope::Key(7)),
            (4, MUTATION, Scope::All),
            (5, READ, Scope::Key(9)),
        ] {
            order.push(call(number, kind, scope));
        }
        assert_eq!(ready(&mut order), [1]);
        assert!(order.cancel(2) && !order.cancel(2));
        assert_eq!(ready(&mut order), [3]);
        assert!(order.cancel(4));
        assert_eq!(ready(&mut order), [5]);
        order.ended(READ, Scope::Key(7));
        order.ended(READ, Scope::Key(7));
        order.ended(READ, Scope::Key(9));
        assert_eq!(order, Order::default());
    }
}
