//! A program run in this one's place: it gets the signals, and its end is this one's.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

/// Signals that are meant for the program.
const MEANT: [i32; 6] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The program's number, 0 before it is started.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// A signal that came before that.
static EARLY: AtomicI32 = AtomicI32::new(0);

/// Runs the program to its end. Signals to this process meanwhile are sent on; the terminal sends its own to both.
///
/// # Errors
/// The program cannot be started.
pub fn run(command: &mut Command) -> io::Result<ExitStatus> {
    hand_on_signals();
    let mut child = command.spawn()?;
    CHILD.store(child.id() as i32, Ordering::SeqCst);
    let early = EARLY.swap(0, Ordering::SeqCst);
    if early != 0 {
        send(&child, early);
    }
    let status = child.wait();
    CHILD.store(0, Ordering::SeqCst);
    status
}

/// Returns whether there is a program of this name, where the system would look for it.
pub fn is_there(program: &OsStr) -> bool {
    if program.as_encoded_bytes().contains(&b'/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn send(child: &Child, signal: i32) {
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: no memory is passed; the child was not waited for, so the number is its.
    unsafe {
        libc::kill(child.id() as i32, signal);
    }
}

/// Ends as the program did: with its status, or by the signal that ended it.
pub fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        #[expect(unsafe_code, reason = "system calls")]
        // SAFETY: the structures live through the calls, and this thread waits for no other. The program has left a core, if any
        // is wanted; a second one would take its place.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::signal(signal, libc::SIG_DFL);
            let mut one: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut one);
            libc::sigaddset(&mut one, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &one, std::ptr::null_mut());
            libc::raise(signal);
        }
        // It was one that ends no process here.
        return ExitCode::from(128_u8.saturating_add(signal as u8));
    }
    ExitCode::from(status.code().unwrap_or(1) as u8)
}

fn hand_on_signals() {
    #[expect(unsafe_code, reason = "called for a signal")]
    extern "C" fn hand_on(signal: i32, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes what it knows of the signal.
        let sent = unsafe { (*about).si_code } <= 0;
        // Input from the terminal comes to the program as well.
        if !sent {
            return;
        }
        match CHILD.load(Ordering::SeqCst) {
            0 => EARLY.store(signal, Ordering::SeqCst),
            // SAFETY: no memory is passed. The errno that it may change is put back.
            child => unsafe {
                let before = *libc::__errno_location();
                libc::kill(child, signal);
                *libc::__errno_location() = before;
            },
        }
    }
    for signal in MEANT {
        #[expect(unsafe_code, reason = "system calls")]
        // SAFETY: the structures live through the calls; the function does only what a handler may.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut before);
            // Under nohup, the program is not to hear of it either.
            if before.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = hand_on as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}
