//! Ctrl-C while a command measures a far memory of its own: the memory is deleted, and the command ends.
//!
//! Without that it would take its room at the servers until its time is over. A second Ctrl-C ends the command at once.

use super::Failure;
use crate::far::Memory;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The interval at which is looked for a signal.
const ROUND: Duration = Duration::from_millis(20);
/// The exit code after Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// The state that the signals' handlers share with the guards, once for the process.
#[derive(Default)]
struct Signals {
    /// Whether a signal ends the process at once.
    is_deadly: Arc<AtomicBool>,
    has_come: Arc<AtomicBool>,
}

/// Deletes a memory when a signal comes, until this is dropped.
pub(super) struct Guard {
    signals: &'static Signals,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn signals() -> io::Result<&'static Signals> {
    static SIGNALS: OnceLock<Signals> = OnceLock::new();
    if let Some(signals) = SIGNALS.get() {
        return Ok(signals);
    }
    let signals = Signals::default();
    let status = std::fs::read_to_string("/proc/self/status")?;
    // One that was ignored when the process began stays so: nohup, and a shell's programs in the background.
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !ignores(&status, *signal)) {
        signal_hook::flag::register_conditional_default(signal, signals.is_deadly.clone())?;
        signal_hook::flag::register(signal, signals.has_come.clone())?;
    }
    Ok(SIGNALS.get_or_init(|| signals))
}

/// Returns whether a process with this status, of `/proc`, ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Guards a memory.
///
/// # Errors
/// The system has no handler or no thread.
pub(super) fn guard(memory: &Memory) -> Result<Guard, Failure> {
    let failed = |error: io::Error| Failure::Io(format!("wait for Ctrl-C: {error}: end some programs"));
    let signals = signals().map_err(failed)?;
    let (is_over, ender) = (Arc::new(AtomicBool::new(false)), memory.ender());
    let ended = is_over.clone();
    signals.is_deadly.store(false, SeqCst);
    let wait = move || {
        while !ended.load(SeqCst) {
            if signals.has_come.load(SeqCst) {
                signals.is_deadly.store(true, SeqCst);
                let _ = match &ender.end()[..] {
                    [] => writeln!(io::stderr(), "rdmakv: interrupted: the far memory is deleted"),
                    kept => writeln!(
                        io::stderr(),
                        "rdmakv: interrupted: the far memory keeps its room at {} until its time is over",
                        kept.join(", ")
                    ),
                };
                std::process::exit(INTERRUPTED);
            }
            thread::sleep(ROUND);
        }
    };
    let thread = thread::Builder::new().name("interrupt".to_owned()).spawn(wait).map_err(failed)?;
    Ok(Guard { signals, is_over, thread: Some(thread) })
}

impl Drop for Guard {
    fn drop(&mut self) {
        // First: a signal that comes before is seen, and one that comes after ends the process.
        self.signals.is_deadly.store(true, SeqCst);
        if self.signals.has_come.load(SeqCst) {
            // The thread ends the process, once the memory is deleted.
            let _ = self.thread.take().map(JoinHandle::join);
        }
        self.is_over.store(true, SeqCst);
    }
}

/// Measures a memory and deletes it, guarded until it is deleted. It is deleted after a failure, too: else it would take its room until
/// its time is over.
///
/// # Errors
/// The failure of the measurement, or of the deletion.
pub(super) fn measure_and_delete<T>(
    memory: Memory,
    measure: impl FnOnce(&Memory) -> Result<T, Failure>,
) -> Result<T, Failure> {
    guarded(memory, guard, measure, |memory| Ok(memory.delete()?))
}

/// Measures and deletes something under a guard, which ends last.
fn guarded<M, G, T>(
    memory: M,
    guard: impl FnOnce(&M) -> Result<G, Failure>,
    measure: impl FnOnce(&M) -> Result<T, Failure>,
    delete: impl FnOnce(M) -> Result<(), Failure>,
) -> Result<T, Failure> {
    let guard = guard(&memory);
    let (guard, measured) = match guard {
        Ok(guard) => (Some(guard), measure(&memory)),
        Err(failure) => (None, Err(failure)),
    };
    let deleted = delete(memory);
    drop(guard);
    let measured = measured?;
    deleted.map(|()| measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn guards_end_after_the_deletion() {
        struct Noted<'n>(&'n RefCell<Vec<&'static str>>, &'static str);
        impl Drop for Noted<'_> {
            fn drop(&mut self) {
                self.0.borrow_mut().push(self.1);
            }
        }
        let failure = || Failure::No("no".to_owned());
        for (guards, measures) in [(true, true), (true, false), (false, true)] {
            let notes = RefCell::new(Vec::new());
            let guard = |_: &Noted<'_>| if guards { Ok(Noted(&notes, "guard ends")) } else { Err(failure()) };
            let measured = guarded(
                Noted(&notes, "deleted"),
                guard,
                |_| {
                    notes.borrow_mut().push("measured");
                    if measures { Ok(()) } else { Err(failure()) }
                },
                |memory| {
                    drop(memory);
                    Ok(())
                },
            );
            assert_eq!(measured.is_ok(), guards && measures);
            let all = ["measured", "deleted", "guard ends"];
            assert_eq!(*notes.borrow(), if guards { &all[..] } else { &all[1..2] });
        }
    }

    #[test]
    fn ignored_signals_are_those_of_the_mask() {
        let status = "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000000003\nSigCgt:\t0000000000000000\n";
        assert!(ignores(status, SIGHUP) && ignores(status, SIGINT) && !ignores(status, SIGTERM));
        assert!(!ignores("", SIGINT));
    }
}
