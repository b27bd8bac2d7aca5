//! A gate that threads wait at: how a test holds a call under way while it does something else.

use super::lock;
use crate::shim::sync::{Condvar, Mutex};
use std::sync::{Arc, PoisonError};

/// A gate that is closed or open. Threads that [`pass`](Gate::pass) wait while it is closed.
///
/// ```
/// use mrrc::cost::Linear;
/// use mrrc::registrar::Registrar;
/// use mrrc::testing::{Event, Gate, Model};
/// use mrrc::{Access, PageRange};
///
/// let (model, gate) = (Model::new(Linear::PAPER), Gate::closed());
/// let held = gate.clone();
/// model.on_call(move |event| {
///     if matches!(event, Event::Registering { .. }) {
///         held.pass();
///     }
/// });
/// std::thread::scope(|scope| {
///     let model = &model;
///     let miss = scope.spawn(move || model.register(PageRange::new(1, 1).unwrap(), Access::LOCAL));
///     gate.await_waiting(1);
///     assert_eq!((model.counts().reg_attempts, model.counts().regs), (1, 0)); // under way
///     gate.open();
///     assert!(miss.join().unwrap().is_ok());
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Gate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    open: bool,
    waiting: usize,
}

impl Gate {
    /// Returns a closed gate.
    pub fn closed() -> Self {
        let state = Mutex::new(State { open: false, waiting: 0 });
        Self { shared: Arc::new(Shared { state, changed: Condvar::new() }) }
    }

    /// Lets all threads through from now on.
    pub fn open(&self) {
        lock(&self.shared.state).open = true;
        self.shared.changed.notify_all();
    }

    /// Stops all threads from now on.
    pub fn close(&self) {
        lock(&self.shared.state).open = false;
    }

    /// Goes through, as soon as the gate is open.
    pub fn pass(&self) {
        let mut state = lock(&self.shared.state);
        state.waiting += 1;
        self.shared.changed.notify_all();
        while !state.open {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }

    /// Returns when at least `threads` threads wait at the gate.
    pub fn await_waiting(&self, threads: usize) {
        let mut state = lock(&self.shared.state);
        while state.waiting < threads {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
