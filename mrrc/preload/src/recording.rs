//! The recording of registrations. If `MRRC_RECORD` names a file, every registration that a program gets or ends is
//! written to it. So are those that no cache serves, and those while caching is off. `tracesim record` runs a program
//! so.
//!
//! The recorder is that of the process, follows into forked children, and needs no end. It is opened with the first registration,
//! so that programs without any do not count as recorded.
//!
//! Each protection domain is told apart, as each has a cache of its own here. That registered memory is unmapped is recorded too,
//! where it can be heard of (`unmapped.rs`).

use crate::abi::flag;
use crate::eligibility::Request;
use crate::process::{self, Process};
use crate::unmapped::Unmapped;
use std::io::Write as _;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use traces_record::layout::Operation;
use traces_record::{Recorder, Source, of_process};

/// Nothing longer is memory: a registration over all of it is on demand, and pins nothing.
const LONGEST: u64 = 1 << 47;
/// Domains that are told apart; more than these count as the last.
const DOMAINS: usize = 256;

/// A registration, as a recording has it.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    domain: usize,
    address: u64,
    length: u64,
    rights: u8,
}

impl Span {
    pub(crate) fn new(pd: usize, address: usize, length: usize, access: u32) -> Self {
        Self { domain: pd, address: address as u64, length: length as u64, rights: rights(access) }
    }

    pub(crate) fn of(request: &Request) -> Self {
        Self::new(request.pd, request.address, request.length, request.access)
    }
}

/// Returns whether a recording is being made.
pub(crate) fn is_on() -> bool {
    of_process(Source::Verbs).is_some()
}

/// The program has it from now on.
pub(crate) fn acquired(span: Span) {
    let Some(recorder) = of_process(Source::Verbs).filter(|_| span.length < LONGEST) else { return };
    let state = RecordingState::of_process();
    if let Some(unmapped) = state.unmapped(recorder) {
        unmapped.catch_up();
    }
    let domain = state.domain(span.domain);
    recorder.record_in(domain, Operation::Acquire, span.rights, span.address, span.length);
    if let Some(unmapped) = state.unmapped(recorder) {
        unmapped.watch(domain, span.address, span.length);
    }
}

/// It has it no more.
pub(crate) fn released(span: Span) {
    let Some(recorder) = of_process(Source::Verbs).filter(|_| span.length < LONGEST) else { return };
    let domain = RecordingState::of_process().domain(span.domain);
    recorder.record_in(domain, Operation::Release, span.rights, span.address, span.length);
}

/// The recording's state of one process. A forked child begins anew: locks and threads are the parent's.
struct RecordingState {
    process: *const Process,
    /// In the order in which they came up. Locked for a look and a store.
    domains: Mutex<Vec<usize>>,
    /// From the first registration on; none where unmappings cannot be heard of.
    unmapped: OnceLock<Option<Unmapped>>,
}

static STATE: AtomicPtr<RecordingState> = AtomicPtr::new(std::ptr::null_mut());

impl RecordingState {
    #[expect(unsafe_code, reason = "what is leaked stays")]
    fn of_process() -> &'static Self {
        let process = std::ptr::from_ref(process::current());
        let before = STATE.load(Ordering::Acquire);
        // SAFETY: `STATE` is null or leads to a value that was leaked below, so it lives for good.
        if let Some(known) = unsafe { before.as_ref() }.filter(|known| known.process == process) {
            return known;
        }
        let new = Box::into_raw(Box::new(Self { process, domains: Mutex::default(), unmapped: OnceLock::new() }));
        match STATE.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `new` came from `Box::into_raw`, and is leaked now that it is in `STATE`.
            Ok(_) => unsafe { &*new },
            Err(_) => {
                // SAFETY: `new` came from `Box::into_raw`, and the exchange failed, so no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                Self::of_process()
            }
        }
    }

    fn domain(&self, pd: usize) -> u8 {
        number(&mut self.domains.lock().unwrap_or_else(PoisonError::into_inner), pd)
    }

    /// Returns the monitor of unmappings. A program that chose to hear of none is not made to.
    fn unmapped(&self, recorder: &'static Recorder) -> Option<&Unmapped> {
        let begin = || {
            if std::env::var("MRRC_MONITOR").is_ok_and(|name| name.eq_ignore_ascii_case("explicit")) {
                return None;
            }
            let failed = |error| {
                let what = "unmappings are missing in the recording";
                // There is no other place to report it.
                let _ = writeln!(std::io::stderr(), "mrrc-preload: userfaultfd: {error}: {what}");
            };
            Unmapped::new(recorder).map_err(failed).ok()
        };
        self.unmapped.get_or_init(begin).as_ref()
    }
}

/// Returns the number of a domain, from 0.
fn number(domains: &mut Vec<usize>, pd: usize) -> u8 {
    let nth = domains.iter().position(|&domain| domain == pd).unwrap_or_else(|| {
        if domains.len() < DOMAINS {
            domains.push(pd);
        }
        domains.len() - 1
    });
    nth as u8
}

/// Every registration can be read by the card for this process.
fn rights(access: u32) -> u8 {
    let bits = [
        (flag::LOCAL_WRITE, 1 << 1),
        (flag::REMOTE_READ, 1 << 2),
        (flag::REMOTE_WRITE, 1 << 3),
        (flag::REMOTE_ATOMIC, 1 << 4),
    ];
    bits.into_iter().filter(|(asked, _)| access & asked != 0).fold(1, |all, (_, bit)| all | bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_numbered_as_they_come_up() {
        let mut domains = Vec::new();
        assert_eq!([7, 8, 7, 9].map(|pd| number(&mut domains, pd)), [0, 1, 0, 2]);
        (0..1000).for_each(|pd| _ = number(&mut domains, pd + 100));
        assert_eq!([5000, 8].map(|pd| number(&mut domains, pd)), [255, 1]);
    }

    #[test]
    fn rights_are_those_of_the_recordings() {
        assert_eq!(rights(0), 0b1);
        assert_eq!(rights(flag::LOCAL_WRITE | flag::REMOTE_WRITE), 0b1011);
        assert_eq!(rights(flag::REMOTE_READ | flag::REMOTE_ATOMIC | flag::RELAXED_ORDERING), 0b1_0101);
    }
}
