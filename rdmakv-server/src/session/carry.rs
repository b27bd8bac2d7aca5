//! Chunks that this server is to write to the backing directory of a file system.
//!
//! An agent asks for chunks of a frozen generation, again and again until they are on disk. A thread of the server
//! (`disk/backing.rs`) writes them. No worker waits for the disk.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdmakv_cluster::messages::{Epoch, Frozen};

/// Orders that wait at most. There is one agent, which waits for each.
const WAITING: usize = 4;

/// Orders of which the outcome is remembered, for an agent that did not get the answer.
const REMEMBERED: usize = 64;

/// Chunks that an agent asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Order {
    /// The cluster, which the directory has to be of.
    pub(crate) cluster: u128,
    /// Another epoch gives this server other chunks.
    pub(crate) epoch: Epoch,
    /// The number of the data file's inode.
    pub(crate) file: u64,
    /// The generation, with the chunks that are to be written.
    pub(crate) frozen: Frozen,
}

/// The orders of a server that has a backing directory.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Order>,
    working: Option<Order>,
    /// With the chunks that were written and synced, a bit each.
    ended: VecDeque<(Order, Vec<u64>)>,
    /// Nothing more is written.
    is_over: bool,
}

impl Orders {
    /// Takes an order, unless it is known. Returns the chunks that are on disk once the order has ended, and None before.
    pub(super) fn ask(&self, order: Order) -> Option<Vec<u64>> {
        let mut state = self.lock();
        if let Some((_, bits)) = state.ended.iter().find(|(ended, _)| *ended == order) {
            return Some(bits.clone());
        }
        if state.is_over {
            return Some(Vec::new());
        }
        let is_known = state.working.as_ref() == Some(&order) || state.waiting.contains(&order);
        if !is_known && state.waiting.len() < WAITING {
            state.waiting.push_back(order);
            self.changed.notify_all();
        }
        None
    }

    /// Returns the next order, once there is one within this time. [`Self::end`] follows.
    pub(crate) fn next(&self, longest: Duration) -> Option<Order> {
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_over;
        let waited = self.changed.wait_timeout_while(self.lock(), longest, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let order = state.waiting.pop_front().filter(|_| !state.is_over)?;
        state.working = Some(order.clone());
        Some(order)
    }

    /// Takes the outcome of the order that is being worked at: the chunks that were written and synced.
    pub(crate) fn end(&self, bits: Vec<u64>) {
        let mut state = self.lock();
        let Some(order) = state.working.take() else { return };
        if state.ended.len() >= REMEMBERED {
            state.ended.pop_front();
        }
        state.ended.push_back((order, bits));
    }

    /// Has no other order begin. Agents write the chunks themselves.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.waiting.clear();
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(ino: u64) -> Order {
        let frozen = Frozen { ino, generation: 1, size: 1 << 16, chunk_bits: 16, runs: vec![(0, 1)] };
        Order { cluster: 7, epoch: Epoch(1), file: 3, frozen }
    }

    #[test]
    fn an_order_is_carried_out_once() {
        let orders = Orders::default();
        assert_eq!((orders.ask(order(1)), orders.ask(order(1)), orders.ask(order(2))), (None, None, None));
        assert_eq!(orders.next(Duration::ZERO), Some(order(1)));
        assert_eq!(orders.ask(order(1)), None);
        orders.end(vec![1]);
        // The answer may be lost.
        assert_eq!((orders.ask(order(1)), orders.ask(order(1))), (Some(vec![1]), Some(vec![1])));
        let later = Order { epoch: Epoch(2), ..order(1) };
        assert_eq!(orders.ask(later.clone()), None);
        assert_eq!((orders.next(Duration::ZERO), orders.next(Duration::ZERO)), (Some(order(2)), Some(later)));
    }

    #[test]
    fn orders_are_bounded() {
        let orders = Orders::default();
        (0..9).for_each(|ino| assert_eq!(orders.ask(order(ino)), None));
        let mut taken = 0;
        while orders.next(Duration::ZERO).is_some() {
            orders.end(vec![]);
            taken += 1;
        }
        assert_eq!(taken, WAITING);
        for ino in 0..=REMEMBERED as u64 {
            orders.ask(order(100 + ino));
            orders.next(Duration::ZERO);
            orders.end(vec![1]);
        }
        let remembered = orders.lock().ended.len();
        assert_eq!((remembered, orders.ask(order(101))), (REMEMBERED, Some(vec![1])));
    }

    #[test]
    fn a_server_that_ends_leaves_chunks_to_the_agent() {
        let orders = Orders::default();
        assert_eq!(orders.ask(order(1)), None);
        orders.stop();
        assert_eq!((orders.next(Duration::MAX), orders.ask(order(1))), (None, Some(Vec::new())));
    }
}
