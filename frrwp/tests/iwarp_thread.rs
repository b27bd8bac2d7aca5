//! The thread of an iwarp domain serves peers, so it inherits neither the CPUs nor the scheduling of the thread that opens the
//! domain.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "a thread is bound to a CPU by hand")]

use frrwp::fabric::iwarp::{IwarpDomain, IwarpOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Returns the CPUs of a task of this process, as the system writes them.
fn cpus_of(task: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/self/{task}status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

#[test]
fn the_domains_thread_runs_on_any_cpu() {
    let all = cpus_of("");
    std::thread::spawn(move || {
        // SAFETY: a set of CPUs is plain data, borrowed for the call, which is about this thread.
        let bound = unsafe {
            let mut cpus: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut cpus);
            libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus)
        };
        assert_eq!(bound, 0);
        let domain = IwarpDomain::new(IwarpOptions::default()).unwrap();
        // A thread names itself when it first runs.
        let until = Instant::now() + Duration::from_secs(60);
        let name = loop {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
            let is_its =
                |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm == "iwarp\n");
            let names: Vec<_> = { tasks }.filter(is_its).map(|task| task.file_name().unwrap().to_owned()).collect();
            match &names[..] {
                [name] => break name.clone(),
                [] => assert!(Instant::now() < until, "no thread of the domain"),
                _ => panic!("{names:?}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(cpus_of(&format!("task/{}/", name.display())), all);
        drop(domain);
    })
    .join()
    .unwrap();
}
