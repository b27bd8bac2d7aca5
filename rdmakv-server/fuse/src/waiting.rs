//! Requests of programs that wait, for room or for a directory, without a thread each.
//!
//! Only a few threads serve a mount. If a request that waits kept one, a few writers would stop all other programs.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Requests that wait here at most. The data of 256 writes is 256 MiB.
const MOST: usize = 256;

/// Pauses while none of them can be done, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Tries a request once more. Returns whether it was answered.
pub(crate) type Job = Box<dyn FnMut() -> bool + Send>;

/// Requests that wait. One thread tries them in turn.
#[derive(Default)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    ends: bool,
}

impl Waiting {
    /// Has a request wait. It is tried here and now until it is answered if too many wait.
    pub(crate) fn add(&self, mut job: Job) {
        let mut state = self.lock();
        if state.jobs.len() < MOST && !state.ends {
            state.jobs.push_back(job);
            self.changed.notify_all();
            return;
        }
        drop(state);
        let mut pause = PAUSE.0;
        while !job() {
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Has [`Self::serve`] end. Requests that wait still are dropped.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ends = true;
        drop(std::mem::take(&mut state.jobs));
        self.changed.notify_all();
    }

    /// Tries requests in turn until the end, and pauses once all have to wait on.
    pub(crate) fn serve(&self) {
        let (mut pause, mut tried) = (PAUSE.0, 0);
        while let Some(mut job) = self.next(&mut pause) {
            if job() {
                (pause, tried) = (PAUSE.0, 0);
                continue;
            }
            let mut state = self.lock();
            if state.ends {
                return;
            }
            state.jobs.push_back(job);
            tried += 1;
            if tried < state.jobs.len() {
                continue;
            }
            tried = 0;
            let rested = self.changed.wait_timeout_while(state, pause, |state| !state.ends);
            drop(rested.unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Returns the request that waits longest, once there is one; None at the end.
    fn next(&self, pause: &mut Duration) -> Option<Job> {
        let mut state = self.lock();
        if state.jobs.is_empty() {
            *pause = PAUSE.0;
            let is_idle = |state: &mut State| state.jobs.is_empty() && !state.ends;
            state = self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
        }
        state.jobs.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("jobs", &self.lock().jobs.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    fn served(waiting: &Arc<Waiting>) -> std::thread::JoinHandle<()> {
        let other = Arc::clone(waiting);
        std::thread::spawn(move || other.serve())
    }

    #[test]
    fn one_that_waits_does_not_hold_up_others() {
        let (waiting, may_go) = (Arc::<Waiting>::default(), Arc::new(AtomicBool::new(false)));
        let (tell, told) = channel();
        for (name, waits) in [("first", true), ("second", false)] {
            let (tell, may_go) = (tell.clone(), Arc::clone(&may_go));
            waiting.add(Box::new(move || {
                let is_done = !waits || may_go.load(Ordering::Relaxed);
                is_done && tell.send(name).is_ok()
            }));
        }
        let thread = served(&waiting);
        assert_eq!(told.recv(), Ok("second"));
        may_go.store(true, Ordering::Relaxed);
        assert_eq!(told.recv(), Ok("first"));
        waiting.end();
        thread.join().unwrap();
    }

    #[test]
    fn what_waits_at_the_end_is_dropped() {
        let waiting = Arc::<Waiting>::default();
        let (tell, told) = channel::<()>();
        waiting.add(Box::new(move || {
            let _ = &tell;
            false
        }));
        let thread = served(&waiting);
        waiting.end();
        thread.join().unwrap();
        assert!(told.recv().is_err());
    }

    #[test]
    fn one_too_many_is_tried_by_its_own_thread() {
        let waiting = Waiting::default();
        (0..MOST).for_each(|_| waiting.add(Box::new(|| false)));
        let mut left = 3;
        let (tell, told) = channel();
        waiting.add(Box::new(move || {
            left -= 1;
            left == 0 && tell.send(()).is_ok()
        }));
        assert_eq!(told.try_recv(), Ok(()));
        assert_eq!(waiting.lock().jobs.len(), MOST);
    }
}
