//! Futures that wait for the next of what the peer sends.

use super::Loose;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::task::Waker;

/// Futures that wait for the next of something. One is woken for each thing that comes: else each of a crowd would be polled for all that
/// comes to the others. The last that began to wait is the first: those that are kept and not polled delay no others.
#[derive(Default)]
pub(super) struct Waits {
    /// By turn.
    waiting: BTreeMap<u64, Waker>,
    /// The turns of those that were woken and have not looked since.
    woken: FxHashSet<u64>,
    last: u64,
}

/// When a future began to wait, if it does.
#[derive(Clone, Copy, Default)]
pub(super) struct Turn(u64);

impl Waits {
    /// Something came.
    pub(super) fn came(&mut self, loose: &mut Loose) {
        if let Some((turn, waker)) = self.waiting.pop_last() {
            self.woken.insert(turn);
            loose.woken.push(waker);
        }
    }

    /// Nothing comes any more.
    pub(super) fn end(&mut self, loose: &mut Loose) {
        loose.woken.extend(std::mem::take(&mut self.waiting).into_values());
        self.woken.clear();
    }

    /// A future looks whether there is something, and does not wait meanwhile.
    pub(super) fn look(&mut self, Turn(turn): Turn, loose: &mut Loose) {
        self.woken.remove(&turn);
        loose.wakers.extend(self.waiting.remove(&turn));
    }

    /// It has found nothing.
    pub(super) fn wait(&mut self, waker: Waker) -> Turn {
        self.last += 1;
        self.waiting.insert(self.last, waker);
        Turn(self.last)
    }

    /// The future is gone. The message that it was woken for may be there for another.
    pub(super) fn leave(&mut self, Turn(turn): Turn, loose: &mut Loose) {
        loose.wakers.extend(self.waiting.remove(&turn));
        if self.woken.remove(&turn) {
            self.came(loose);
        }
    }
}
