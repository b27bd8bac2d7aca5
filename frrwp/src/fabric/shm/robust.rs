//! A word in shared memory that the kernel marks when the process that owns it dies, however it dies.
//!
//! Memory that is shared outlives its owner: the bytes that a killed server exposed stay readable and look valid. So the tag table has
//! such a word, and a read counts only if the word says, after the last byte was copied, that the owner lives.
//!
//! It is a *robust futex*. A thread gives the kernel a list of words that have its number (`set_robust_list`). When the thread exits, the
//! kernel sets `FUTEX_OWNER_DIED` in each. A process that dies does this (`exit_mm`) before it closes a file (`exit_files`). So before
//! the port, the socket or the lock that a successor needs is free, the words are marked. A successor has nothing to wait for, and
//! needs to know nothing of its predecessor: not its user, its environment or its mount namespace.
//!
//! The thread is one of this library's own: it makes nothing but that call and sleeps. Its list replaces the C library's list of that thread,
//! which has no use for one.
//!
//! ```text
//! 0  u32  the number of the owner's thread; 0x40000000 is set when the owner is dead
//! 4       nothing (4)
//! 8       the kernel's list: the address, in the owner, of the next word's place in it
//! ```
#![expect(unsafe_code, reason = "gives the kernel a list of words in shared memory")]

use super::error::{ShmError, system};
use super::memory::Mapping;
use crate::fabric::fork_mark::ForkMark;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, PoisonError, mpsc};

/// `FUTEX_OWNER_DIED` of `linux/futex.h`.
const OWNER_DIED: u32 = 0x4000_0000;
/// Bytes from a word to its place in the list.
const PLACE: usize = 8;
/// Words of a thread: the kernel looks at no more than 2,048 (`ROBUST_LIST_LIMIT`).
const WORDS: usize = 1024;

/// A word of this process's own, marked when the process dies. It leaves the kernel's list when it is dropped, and has to be
/// dropped before its mapping.
#[derive(Debug)]
pub(super) struct RobustWord {
    /// The address of its place in the list.
    place: usize,
    mark: ForkMark,
}

/// `robust_list_head` of `linux/futex.h`.
#[repr(C)]
#[derive(Debug)]
struct Head {
    next: AtomicUsize,
    /// From a place to its word.
    offset: libc::c_long,
    pending: usize,
}

/// A thread that marks words on its exit.
#[derive(Debug)]
struct Owner {
    thread: u32,
    head: &'static Head,
    /// The places, the last in the list first.
    places: Vec<usize>,
}

struct Owners {
    owners: Vec<Owner>,
    /// A child of a fork does not have the threads.
    mark: Option<ForkMark>,
}

static OWNERS: Mutex<Owners> = Mutex::new(Owners { owners: Vec::new(), mark: None });

/// Returns the word that stands at a place of the list. Only the owner's own list may be changed, and so only words of tables of this process.
fn next_of(place: usize) -> &'static AtomicUsize {
    // SAFETY: `places` and `head` have addresses of live words only: a `RobustWord` takes its place out of the list before its mapping
    // goes, and heads are leaked. The address is aligned, and every access of this process to it is atomic.
    unsafe { AtomicUsize::from_ptr(std::ptr::with_exposed_provenance_mut(place)) }
}

impl Owner {
    /// Starts a thread that owns words.
    fn start() -> io::Result<Self> {
        let head: &'static Head =
            Box::leak(Box::new(Head { next: AtomicUsize::new(0), offset: -(PLACE as libc::c_long), pending: 0 }));
        let start = std::ptr::from_ref(head).expose_provenance();
        head.next.store(start, Relaxed);
        let (tell, told) = mpsc::sync_channel(1);
        mrrc::spawn_own_thread("shm-owner", move || {
            // SAFETY: the head is leaked, has the layout that the system expects, and its list ends where it begins. This thread holds no
            // robust mutex of the C library, whose list this replaces.
            let set = unsafe { libc::syscall(libc::SYS_set_robust_list, start, size_of::<Head>()) };
            if set != 0 {
                let _ = tell.send(Err(io::Error::last_os_error()));
                return;
            }
            // SAFETY: a system call without arguments, which returns this thread's number.
            let thread = unsafe { libc::gettid() }.cast_unsigned();
            let _ = tell.send(Ok(thread));
            loop {
                std::thread::park();
            }
        })?;
        let thread = told.recv().map_err(|_| io::Error::other("the thread ended"))??;
        Ok(Self { thread, head, places: Vec::new() })
    }

    /// Returns the place of the list before this one: the newest is first.
    fn before(&self, at: usize) -> &'static AtomicUsize {
        self.places.get(at + 1).map_or(&self.head.next, |&place| next_of(place))
    }
}

impl RobustWord {
    /// Has the kernel mark the word at this offset of the mapping, of which 16 bytes are used.
    ///
    /// # Errors
    /// The system has no thread left, or no robust futexes.
    pub(super) fn new(mapping: &Mapping, offset: usize) -> Result<Self, ShmError> {
        let doing = "mark memory as this process's";
        let failed = system(doing, "raise the limit on threads (ulimit -u); Linux has to allow set_robust_list");
        let mark = ForkMark::here().map_err(&failed)?;
        let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        if owners.mark != Some(mark) {
            *owners = Owners { owners: Vec::new(), mark: Some(mark) };
        }
        if owners.owners.last().is_none_or(|owner| owner.places.len() >= WORDS) {
            owners.owners.push(Owner::start().map_err(&failed)?);
        }
        let Some(owner) = owners.owners.last_mut() else { return Err(failed(io::ErrorKind::NotFound.into())) };
        let word = mapping.half(offset);
        let place = mapping.word(offset + PLACE).as_ptr().expose_provenance();
        word.store(owner.thread, Relaxed);
        next_of(place).store(owner.head.next.load(Relaxed), Relaxed);
        // The kernel may walk the list at any moment: it finds the word with all that it needs, or does not find it.
        owner.head.next.store(place, Release);
        owner.places.push(place);
        Ok(Self { place, mark })
    }
}

impl Drop for RobustWord {
    fn drop(&mut self) {
        // A child of a fork has the parent's words, which stay as they are.
        if !self.mark.is_here() {
            return;
        }
        let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        for owner in &mut owners.owners {
            if let Some(at) = owner.places.iter().position(|&place| place == self.place) {
                owner.before(at).store(next_of(self.place).load(Relaxed), Release);
                owner.places.remove(at);
                return;
            }
        }
    }
}

/// Returns whether the owner of a word in a peer's mapping lives. Earlier reads, with an acquire fence between, happened while it lived.
#[inline(always)]
pub(super) fn owner_lives(mapping: &Mapping, offset: usize) -> bool {
    let word = mapping.half(offset).load(Relaxed);
    (word != 0 && word & OWNER_DIED == 0) || injected()
}

/// Returns whether the fault `believes-the-dead` was chosen, for checkers that have to find it (`--cfg
/// rdmakv_fault_injection`).
#[cfg(rdmakv_fault_injection)]
fn injected() -> bool {
    static CHOSEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("RDMAKV_FAULT").is_ok_and(|fault| fault == "believes-the-dead"))
}

#[cfg(not(rdmakv_fault_injection))]
#[inline(always)]
const fn injected() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::super::memory::Writers;
    use super::super::tests::Peer;
    use super::*;

    const SIZE: usize = 4096;

    fn page() -> Mapping {
        Mapping::create("robust-test", SIZE, Writers::Maker).expect("memory").1
    }

    /// Runs one of this module's tests in a process of its own: in a child of this one, another test's thread might have held a lock.
    fn alone(test: &str) {
        let status =
            Peer::of(&format!("fabric::shm::robust::tests::{test}"), &[("FRRWP_SHM_ALONE", String::new())]).end();
        assert!(status.success(), "{test}: {status}");
    }

    fn is_alone() -> bool {
        std::env::var_os("FRRWP_SHM_ALONE").is_some()
    }

    /// Forks, runs this in the child, kills the child by signal 9, and returns when it is dead.
    fn killed_after(run: impl FnOnce()) {
        // SAFETY: the process has no other thread that holds a lock; the child allocates, starts a thread, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs is ended by the signal.
            unsafe { libc::alarm(60) };
            run();
            // SAFETY: `kill` takes numbers; a process may signal itself.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            loop {
                std::thread::park();
            }
        }
        let mut status = 0;
        // SAFETY: `status` is a local integer that the call may write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    }

    #[test]
    fn a_killed_owner_marks_all_its_words() {
        alone("what_a_killed_owner_marks");
        alone("what_a_list_does_not_hold");
    }

    #[test]
    #[ignore = "is run by the test of a killed owner"]
    fn what_a_killed_owner_marks() {
        if !is_alone() {
            return;
        }
        let pages: Vec<_> = (0..5).map(|_| page()).collect();
        let own = RobustWord::new(&pages[4], 32).expect("a word");
        killed_after(|| {
            let mut words: Vec<_> = pages[..4].iter().map(|page| RobustWord::new(page, 32).expect("a word")).collect();
            assert!(pages.iter().all(|page| owner_lives(page, 32)));
            // The list holds together when words leave it: the first, one in the middle.
            drop(words.remove(3));
            drop(words.remove(1));
            // A parent's word is not the child's to end.
            drop(own);
            std::mem::forget(words);
        });
        let lives: Vec<_> = pages.iter().map(|page| owner_lives(page, 32)).collect();
        assert_eq!(lives, [false, true, false, true, true], "those that left were not marked, nor the parent's");
    }

    #[test]
    #[ignore = "is run by the test of a killed owner"]
    fn what_a_list_does_not_hold() {
        if !is_alone() {
            return;
        }
        let count = WORDS * 2 + 3;
        let memory = Mapping::create("robust-test", count * 64, Writers::Maker).expect("memory").1;
        killed_after(|| {
            let words: Vec<_> = (0..count).map(|at| RobustWord::new(&memory, at * 64).expect("a word")).collect();
            std::mem::forget(words);
        });
        assert!((0..count).all(|at| !owner_lives(&memory, at * 64)));
    }

    #[test]
    fn a_word_without_an_owner_is_a_dead_ones() {
        assert!(!owner_lives(&page(), 0));
    }
}
