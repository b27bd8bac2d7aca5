//! Threads that carry out jobs in order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// Threads. They end when this is dropped, without the jobs that have not begun.
///
/// Each connection has one job at most, so there are no more of them than connections.
#[derive(Debug)]
pub(super) struct Threads {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    /// The jobs, or None once the threads are to end.
    jobs: Mutex<Option<VecDeque<Job>>>,
    changed: Condvar,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let waiting = |jobs: &mut Option<VecDeque<Job>>| jobs.as_ref().is_some_and(VecDeque::is_empty);
        let jobs = self.changed.wait_while(self.lock(), waiting);
        jobs.unwrap_or_else(PoisonError::into_inner).as_mut()?.pop_front()
    }
}

impl Threads {
    /// Starts so many threads.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub(super) fn start(name: &str, count: u32) -> std::io::Result<Self> {
        let queue = Arc::new(Queue { jobs: Mutex::new(Some(VecDeque::new())), changed: Condvar::new() });
        let mut all = Self { queue: queue.clone(), threads: Vec::new() };
        for number in 0..count {
            let queue = queue.clone();
            let run = move || {
                while let Some(job) = queue.next() {
                    // Its result is missed by the thread that waits for it.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            };
            all.threads.push(Builder::new().name(format!("{name}-{number}")).spawn(run)?);
        }
        Ok(all)
    }

    /// Gives them a job. Its result comes to the returned end, or none if the threads end first.
    pub(super) fn give<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        if let Some(jobs) = &mut *self.queue.lock() {
            jobs.push_back(Box::new(move || {
                let _ = sender.send(job());
            }));
            self.queue.changed.notify_one();
        }
        receiver
    }

    /// Has them end.
    pub(super) fn end(&self) {
        *self.queue.lock() = None;
        self.queue.changed.notify_all();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_carried_out_beside_one_that_panics() {
        let threads = Threads::start("test", 2).unwrap();
        let bad = threads.give(|| panic!("on purpose"));
        let all: Vec<_> = (0..100).map(|number| threads.give(move || number * 2)).collect();
        assert!(all.into_iter().enumerate().all(|(at, end)| end.recv() == Ok(at * 2)));
        assert!(bad.recv().is_err());
        threads.end();
        assert!(threads.give(|| 1).recv().is_err(), "nothing waits for ever");
    }
}
