//! Peers that die, stop and cheat, at every step and in every way that could be thought of.
#![expect(unsafe_code, reason = "buffers are lent by address, and peers cheat")]

mod faults;
mod forks;
mod hostile;
mod revoked;

use super::{ShmAddress, ShmBuffer, ShmDomain, ShmKey, ShmOptions};
use crate::fabric::traits::Domain;
use crate::wire::Segment;
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PageRange};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);
const STALL: Duration = Duration::from_millis(60);

fn domain() -> ShmDomain {
    ShmDomain::new(ShmOptions { stall: STALL, ..ShmOptions::default() }).expect("a domain")
}

fn fresh() -> ShmAddress {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, SeqCst);
    format!("shm:@frrwp-unit-{}-{next}", std::process::id()).parse().expect("an address")
}

/// A registration, taken back by hand.
struct Registration<'a> {
    domain: &'a ShmDomain,
    batch: Vec<Registered<ShmKey>>,
}

impl<'a> Registration<'a> {
    fn new(domain: &'a ShmDomain, address: *const u8, length: usize, access: Access) -> io::Result<Self> {
        let range = PageRange::of_bytes(address as u64, length as u64).expect("a range");
        let registration = domain.register(range, access)?;
        Ok(Self { domain, batch: vec![Registered { range, access, registration }] })
    }

    fn key(&self) -> &ShmKey {
        &self.batch[0].registration
    }

    fn offer(&self, buffer: &ShmBuffer) -> Segment {
        self.domain.remote(self.key(), buffer.as_ptr(), buffer.len())
    }

    fn end(&mut self) -> io::Result<()> {
        self.domain.deregister(&mut self.batch)
    }
}

fn encode(segment: Segment) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&segment.address.to_le_bytes());
    bytes[8..16].copy_from_slice(&segment.length.to_le_bytes());
    bytes[16..20].copy_from_slice(&segment.key.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Segment {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    Segment { address: word(0), length: word(8), key: word(16) as u32 }
}

/// This binary, running one of its tests with a word in the environment.
pub(super) struct Peer(Child);

impl Peer {
    pub(super) fn of(test: &str, words: &[(&str, String)]) -> Self {
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .envs(words.iter().map(|(name, word)| (*name, word)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            // A group of its own, which its children are in.
            .process_group(0)
            .spawn();
        Self(child.expect("a child"))
    }

    /// Returns whether it is stopped by a signal.
    fn is_stopped(&self) -> bool {
        // The letter after the name in parentheses.
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Its end; one that is stopped is killed.
    pub(super) fn end(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.0.try_wait().expect("a status") {
                return status;
            }
            if self.is_stopped() {
                self.kill();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No child of it outlives the test either: what it holds open would keep those waiting that read what the tests print.
impl Drop for Peer {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).expect("a number of a process");
        // SAFETY: no memory is passed. The number is this child's and its group's: no other process is given it so soon.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        self.kill();
    }
}
