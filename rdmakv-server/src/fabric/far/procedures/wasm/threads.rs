//! Threads that carry out jobs: those of a login in order, and those of several logins in turns.

use std::collections::{BTreeMap, VecDeque};
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
    jobs: Mutex<Option<Lines<Job>>>,
    changed: Condvar,
}

/// A line of jobs for each login. Logins take turns, so that many jobs of one do not keep another one's waiting.
struct Lines<T> {
    /// None of them is empty.
    lines: BTreeMap<u32, VecDeque<T>>,
    /// The logins that have a line, the next one first.
    turns: VecDeque<u32>,
}

impl<T> Lines<T> {
    fn new() -> Self {
        Self { lines: BTreeMap::new(), turns: VecDeque::new() }
    }

    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn push(&mut self, login: u32, job: T) {
        let line = self.lines.entry(login).or_default();
        if line.is_empty() {
            self.turns.push_back(login);
        }
        line.push_back(job);
    }

    fn pop(&mut self) -> Option<T> {
        let login = self.turns.pop_front()?;
        let line = self.lines.get_mut(&login)?;
        let job = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&login);
        } else {
            self.turns.push_back(login);
        }
        job
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Option<Lines<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let waiting = |jobs: &mut Option<Lines<Job>>| jobs.as_ref().is_some_and(Lines::is_empty);
        let jobs = self.changed.wait_while(self.lock(), waiting);
        jobs.unwrap_or_else(PoisonError::into_inner).as_mut()?.pop()
    }
}

impl Threads {
    /// Starts so many threads.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub(super) fn start(name: &str, count: u32) -> std::io::Result<Self> {
        let queue = Arc::new(Queue { jobs: Mutex::new(Some(Lines::new())), changed: Condvar::new() });
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

    /// Gives them a job of a login. Its result comes to the returned end, or none if the threads end first.
    pub(super) fn give<T: Send + 'static>(&self, login: u32, job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        if let Some(jobs) = &mut *self.queue.lock() {
            let job = move || {
                let _ = sender.send(job());
            };
            jobs.push(login, Box::new(job));
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
    fn many_jobs_of_a_login_keep_no_other_one_waiting() {
        let threads = Threads::start("test", 1).unwrap();
        let (begins, begun) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let _first = threads.give(1, move || (begins.send(()).unwrap(), goes.recv().unwrap()));
        begun.recv().unwrap();
        let (done, order) = mpsc::channel();
        let jobs = [vec![1; 1000], vec![2; 2], vec![3; 1]].concat();
        let ends: Vec<_> = jobs
            .into_iter()
            .map(|login| {
                let done = done.clone();
                threads.give(login, move || done.send(login).unwrap())
            })
            .collect();
        go.send(()).unwrap();
        assert!(ends.into_iter().all(|end| end.recv().is_ok()));
        let order: Vec<u32> = order.try_iter().collect();
        assert_eq!((order.len(), &order[..6]), (1003, &[1, 2, 3, 1, 2, 1][..]));
        let jobs = threads.queue.lock();
        assert!(
            jobs.as_ref().is_some_and(|jobs| jobs.is_empty() && jobs.lines.is_empty()),
            "nothing is kept of logins"
        );
    }

    #[test]
    fn jobs_are_carried_out_beside_one_that_panics() {
        let threads = Threads::start("test", 2).unwrap();
        let bad = threads.give(1, || panic!("on purpose"));
        let all: Vec<_> = (0..100).map(|number| threads.give(1, move || number * 2)).collect();
        assert!(all.into_iter().enumerate().all(|(at, end)| end.recv() == Ok(at * 2)));
        assert!(bad.recv().is_err());
        threads.end();
        assert!(threads.give(1, || 1).recv().is_err(), "nothing waits for ever");
    }
}
