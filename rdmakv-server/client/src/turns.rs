//! The order of operations on one key, each of which finds the effect of those begun before it.

use super::ops::Name;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// The operations on each key, in their order, if one of them changes it.
#[derive(Default)]
pub(super) struct Turns {
    queues: HashMap<Vec<u8>, VecDeque<Name>>,
}

impl Turns {
    /// Returns whether an operation that changes the key is under way.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.queues.contains_key(key)
    }

    /// Lets an operation queue. Returns whether others come first.
    pub(super) fn enter(&mut self, key: &[u8], name: Name) -> bool {
        let queue = self.queues.entry_ref(key).or_default();
        queue.push_back(name);
        queue.len() > 1
    }

    /// Takes an operation out that has ended, though before its turn. Returns the one that is first now.
    pub(super) fn leave(&mut self, key: &[u8], name: Name) -> Option<Name> {
        let queue = self.queues.get_mut(key)?;
        if queue.front() == Some(&name) {
            queue.pop_front();
        } else {
            // It waited for long.
            queue.retain(|&other| other != name);
        }
        let first = queue.front().copied();
        if first.is_none() {
            self.queues.remove(key);
        }
        first
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.queues.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffer::Data;
    use super::super::command::Arguments;
    use super::super::error::Operation;
    use super::super::ops::Ops;
    use super::*;

    #[test]
    fn operations_on_a_key_take_turns() {
        let mut ops = Ops::new(8);
        let [first, second, third] =
            [(); 3].map(|()| ops.insert_group((Operation::Get, b"a"), Arguments::default(), Data::None));
        let mut turns = Turns::default();
        assert!(!turns.has(b"a") && !turns.enter(b"a", first) && turns.has(b"a"));
        assert!(turns.enter(b"a", second) && turns.enter(b"a", third));
        assert!(!turns.enter(b"b", second) && turns.leave(b"b", second).is_none() && !turns.has(b"b"));
        // One that ends before its turn leaves the first where it is.
        assert_eq!(turns.leave(b"a", second), Some(first));
        assert_eq!(turns.leave(b"a", first), Some(third));
        assert_eq!(turns.leave(b"a", third), None);
        assert!(!turns.has(b"a") && turns.leave(b"a", third).is_none());
    }
}
