//! Whether the server computes on the CPUs that the generator computes on.
//!
//! Unless told otherwise, the system likes to put two that wake each other on one CPU: each then has half of it, and a server that
//! does little seems slower than one that does more. Ten times a second we look where the threads are that computed.

use std::collections::HashMap;

use procfs::process::Process;

/// Looks at both sides.
#[derive(Debug)]
pub(crate) struct Placed {
    own: Side,
    server: Side,
    looks: u32,
    shared: u32,
}

#[derive(Debug)]
struct Side {
    process: Process,
    /// Nanoseconds that each thread had computed when it was last looked at.
    computed: HashMap<i32, u64>,
}

/// Nanoseconds between two looks in which a thread that matters computes more.
const MATTERS: u64 = 10_000_000;

impl Placed {
    /// None where the server cannot be looked at.
    pub(crate) fn of(server: i32) -> Option<Self> {
        let side = |pid| Some(Side { process: Process::new(pid).ok()?, computed: HashMap::new() });
        let mut placed = Self { own: side(std::process::id() as i32)?, server: side(server)?, looks: 0, shared: 0 };
        placed.own.busy();
        placed.server.busy();
        Some(placed)
    }

    /// Looks once.
    pub(crate) fn look(&mut self) {
        let (own, server) = (self.own.busy(), self.server.busy());
        if !own.is_empty() && !server.is_empty() {
            self.looks += 1;
            self.shared += u32::from(own.iter().any(|cpu| server.contains(cpu)));
        }
    }

    /// Returns the share of the looks that found a CPU in use by both.
    pub(crate) fn shared(&self) -> Option<f64> {
        (self.looks > 0).then(|| f64::from(self.shared) / f64::from(self.looks))
    }
}

impl Side {
    /// Returns the CPUs on which those threads are that have computed since the last look.
    fn busy(&mut self) -> Vec<i32> {
        let Ok(tasks) = self.process.tasks() else { return Vec::new() };
        let mut cpus = Vec::new();
        for task in tasks.flatten() {
            let (Ok(times), Ok(stat)) = (task.schedstat(), task.stat()) else { continue };
            let before = self.computed.insert(task.tid, times.sum_exec_runtime);
            if before.is_some_and(|before| times.sum_exec_runtime.saturating_sub(before) > MATTERS) {
                cpus.extend(stat.processor);
            }
        }
        cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A busy child on the same CPU is noticed, and a sleeping one is not.
    #[test]
    fn who_shares_our_cpu_is_noticed() {
        let here = rustix::thread::sched_getcpu();
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(here);
        // This thread and its children stay here; other tests have threads of their own.
        rustix::thread::sched_setaffinity(None, &cpus).unwrap();
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut idle = Command::new("sleep").arg("600").spawn().unwrap();
        let mut with_busy = Placed::of(busy.id() as i32).unwrap();
        let mut with_idle = Placed::of(idle.id() as i32).unwrap();
        // Until both have had a turn between two looks.
        while with_busy.looks == 0 {
            let begin = std::time::Instant::now();
            while begin.elapsed() < std::time::Duration::from_millis(60) {
                std::hint::spin_loop();
            }
            with_busy.look();
            with_idle.look();
        }
        for child in [&mut busy, &mut idle] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!((with_busy.shared(), with_idle.shared()), (Some(1.0), None));
    }
}
