//! Rights of peers by memory windows over a real device: a peer reaches the bytes of a lease, nothing else, and nothing after its end.
//!
//! Without a device, or where its windows do not hold, tests say so in a line and pass: see `common/loopback.rs`. `lab/tests/mrrc-windows`
//! runs them on an rxe that looks at bounds, and the ignored one on Debian's, which does not.
//!
//! `MRRC_VERBS_LEASES` and `MRRC_VERBS_REFUSALS` are how many leases there are, and how often a peer uses a key that has ended.

#![cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is given to a card by address")]

#[path = "common/loopback.rs"]
mod loopback;

use loopback::pins::{comes_to, pinned};
use loopback::{By, Loopback, Memory, Transfer, alone, deregister, domain, not_run, register, setting};
use mrrc::cache::BuildError;
use mrrc::invalidation::Explicit;
use mrrc::registrar::Registrar;
use mrrc::registrar::verbs::binding::ibv_wc_status as status;
use mrrc::registrar::verbs::{Domain, MemoryRegion, Verbs};
use mrrc::registrar::windows::Remote;
use mrrc::{Access, Cache, Lease};

const READ: Access = Access::LOCAL.union(Access::REMOTE_READ);
const BOTH: Access = READ.union(Access::REMOTE_WRITE);

const BUFFERS: usize = 8;
/// Bytes of a buffer, and of what is leased of it.
const SIZE: usize = 16 << 10;
const LENGTH: usize = 8192;

fn built(domain: &Domain, remote: Remote) -> Result<Cache<Verbs>, BuildError> {
    let builder = Cache::builder(Verbs::new(domain).unwrap()).monitor(Explicit).ignore_environment();
    builder.capacity_pages(128).max_segments(1).remote(remote).build()
}

/// Returns a domain and a cache with windows in it, or a line that says why not.
fn windows() -> Option<(Domain, Cache<Verbs>)> {
    let domain = domain()?;
    match built(&domain, Remote::Windows) {
        Ok(cache) => Some((domain, cache)),
        Err(error @ BuildError::Windows { .. }) => {
            not_run(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn number(name: &str, default: usize) -> usize {
    setting(name).map_or(default, |number| number.parse().expect(name))
}

/// A peer with memory of its own. A refusal ends a connection, so each has another one after that.
struct Peer<'a> {
    domain: &'a Domain,
    memory: Memory,
    table: Verbs,
    region: Option<MemoryRegion>,
    pair: Loopback,
}

impl<'a> Peer<'a> {
    fn new(domain: &'a Domain) -> Self {
        let (table, memory) = (Verbs::new(domain).unwrap(), Memory::new(4));
        let region = Some(register(&table, memory.range()));
        Self { domain, memory, table, region, pair: Loopback::over(domain) }
    }

    /// Returns the status of the completion.
    fn access(&mut self, reads: bool, address: *const u8, length: usize, key: u32) -> status::Type {
        let local = (self.memory.address as u64, self.region.as_ref().unwrap().lkey());
        let transfer = Transfer { by: By::Peer, reads, local, remote: (address as u64, key), length: length as u32 };
        // SAFETY: what may be reached by a key that is good is this test's memory.
        let said = unsafe { self.pair.run(&[transfer]) }[0];
        if said != status::IBV_WC_SUCCESS {
            self.pair = Loopback::over(self.domain);
        }
        said
    }

    /// Whether an access is refused, and changes no byte on either side.
    fn is_refused(&mut self, reads: bool, address: *const u8, length: usize, key: u32, memory: &Memory) -> bool {
        self.memory.fill(9);
        let before = memory.copy();
        self.access(reads, address, length, key) == status::IBV_WC_REM_ACCESS_ERR
            && memory.copy() == before
            && self.memory.copy().iter().all(|&byte| byte == 9)
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        deregister(&self.table, self.region.take().into_iter().collect());
    }
}

/// Returns the bytes of the buffers that a lease has in its turn.
fn place(memory: &Memory, turn: usize) -> *mut u8 {
    memory.address.wrapping_add(turn % BUFFERS * SIZE + 64 + turn % 1000)
}

fn buffers() -> Memory {
    let mut memory = Memory::new((BUFFERS * SIZE / 4096) as u64);
    memory.fill(1);
    memory
}

fn lease(cache: &Cache<Verbs>, address: *const u8, access: Access) -> (Lease<Verbs>, u32) {
    // SAFETY: within the mapping, which outlives transfers by this lease; no references are made to it.
    let lease = unsafe { cache.acquire(address, LENGTH, access) }.unwrap();
    let key = lease.segments().next().unwrap().window().unwrap();
    (lease, key)
}

#[test]
fn peers_reach_the_bytes_of_leases_and_no_others() {
    let _alone = alone();
    let Some((domain, cache)) = windows() else { return };
    let (mut peer, memory) = (Peer::new(&domain), buffers());
    let turns = number("MRRC_VERBS_LEASES", 300);
    for turn in 0..turns {
        let address = place(&memory, turn);
        let (lease, key) = lease(&cache, address, BOTH);
        if turn % 32 == 0 {
            peer.memory.fill(turn as u8);
            assert_eq!(peer.access(false, address, LENGTH, key), status::IBV_WC_SUCCESS);
            let at = address as usize - memory.address as usize;
            let (now, value) = (memory.copy(), turn as u8);
            assert!(now[at..at + LENGTH].iter().all(|&byte| byte == value), "turn {turn}: bytes that were not written");
            peer.memory.fill(value ^ 1);
            assert_eq!(peer.access(true, address, LENGTH, key), status::IBV_WC_SUCCESS);
            assert!(peer.memory.copy()[..LENGTH].iter().all(|&byte| byte == value));
            // One byte before, one after.
            assert!(peer.is_refused(turn % 64 == 0, address.wrapping_sub(1), 64, key, &memory), "turn {turn}: before");
            let last = address.wrapping_add(LENGTH - 63);
            assert!(peer.is_refused(turn % 64 != 0, last, 64, key, &memory), "turn {turn}: after");
        }
        drop(lease);
    }
    // A right that was not asked for.
    let (read_only, key) = lease(&cache, place(&memory, 0), READ);
    assert_eq!(peer.access(true, read_only.address(), 64, key), status::IBV_WC_SUCCESS);
    assert!(peer.is_refused(false, read_only.address(), 64, key, &memory));
    drop(read_only);
    let counters = cache.counters();
    assert_eq!((counters.windows as usize, counters.windows_failed), (turns + 1, 0));
    println!("leases for peers: {turns}; registrations: {}", counters.attempts);
    assert!(counters.attempts <= 3 * BUFFERS as u64, "{counters}");
}

#[test]
fn key_that_has_ended_is_refused() {
    let _alone = alone();
    let Some((domain, cache)) = windows() else { return };
    let (mut peer, memory) = (Peer::new(&domain), buffers());
    let turns = number("MRRC_VERBS_REFUSALS", 50);
    // The pages stay registered for their owner.
    // SAFETY: within the mapping, which outlives transfers by this lease; no references are made to it.
    let _kept = unsafe { cache.acquire(memory.address, memory.bytes(), Access::LOCAL) }.unwrap();
    let mut refused = 0;
    for turn in 0..turns {
        let address = place(&memory, turn);
        let (mut lease, key) = lease(&cache, address, BOTH);
        if turn % 2 == 0 {
            drop(lease)
        } else {
            lease.end_windows().unwrap()
        }
        refused += usize::from(peer.is_refused(turn % 4 < 2, address, 64, key, &memory));
    }
    println!("ended keys refused: {refused} of {turns}");
    assert_eq!(refused, turns);
}

#[test]
fn trusted_regions_serve_keys_that_have_ended() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let (cache, memory) = (built(&domain, Remote::Trusted).unwrap(), buffers());
    let mut peer = Peer::new(&domain);
    // SAFETY: within the mapping, which outlives transfers by this lease; no references are made to it.
    let lease = unsafe { cache.acquire(memory.address, LENGTH, BOTH) }.unwrap();
    let part = lease.segments().next().unwrap();
    assert_eq!(part.window(), None);
    let key = part.registration().rkey();
    drop(lease);
    assert_eq!(peer.access(true, memory.address, 64, key), status::IBV_WC_SUCCESS, "what the test above would find");
}

/// The kernel pins for writing where windows can be bound.
#[test]
fn read_only_memory_is_leased_and_not_shown_to_peers() {
    let _alone = alone();
    let Some((domain, cache)) = windows() else { return };
    let memory = Memory::read_only(4);
    let acquire = |address: *const u8, access| {
        // SAFETY: within the mapping, which outlives transfers by this lease; no references are made to it.
        unsafe { cache.acquire(address, 4096, access) }
    };
    let refused =
        |text: String| assert!(text.contains("peers get windows only over memory that can be written"), "{text}");
    let for_peers = Access::LOCAL_READ | Access::REMOTE_READ;
    refused(cache.explain(memory.address, 4096, for_peers).to_string());
    refused(acquire(memory.address, for_peers).unwrap_err().to_string());
    // What was registered for that serves this side, and not peers.
    let lease = acquire(memory.address, Access::LOCAL_READ).unwrap();
    assert_eq!((lease.segments().next().unwrap().window(), cache.counters().attempts), (None, 1));
    refused(acquire(memory.address, for_peers).unwrap_err().to_string());
    drop(acquire(memory.address.wrapping_add(8192), Access::LOCAL_READ).unwrap());
    let error = acquire(memory.address, Access::LOCAL).unwrap_err();
    assert!(error.to_string().contains("is mapped read-only: ask for local-read alone"), "{error}");
    drop((lease, domain));
    cache.flush().unwrap();
    assert_eq!((cache.usage().pages, cache.counters().failed_deregs), (0, 0));
}

#[test]
fn cache_may_end_before_its_leases() {
    let _alone = alone();
    let Some((domain, cache)) = windows() else { return };
    let (mut peer, memory, before) = (Peer::new(&domain), buffers(), pinned());
    let (lease, key) = lease(&cache, memory.address, BOTH);
    drop(cache);
    assert_eq!(peer.access(true, memory.address, 64, key), status::IBV_WC_SUCCESS);
    drop(lease);
    assert!(peer.is_refused(true, memory.address, 64, key, &memory));
    comes_to(before);
}

#[test]
fn windows_of_a_registrar_are_readied_once() {
    let _alone = alone();
    let Some((domain, _)) = windows() else { return };
    let mut registrar = Verbs::new(&domain).unwrap();
    let [first, second] = [(); 2].map(|()| registrar.ready_windows().unwrap());
    assert!(std::ptr::addr_eq(std::sync::Arc::as_ptr(&first), std::sync::Arc::as_ptr(&second)));
}

/// Regions leave while windows that were bound to them are idle, and others are bound.
#[test]
fn evicted_regions_take_their_idle_windows_along() {
    let _alone = alone();
    let Some((domain, cache)) = windows() else { return };
    let (mut peer, memory) = (Peer::new(&domain), Memory::new(512));
    let at = |turn: usize| memory.address.wrapping_add(turn * 4096 * 3 % (500 * 4096));
    let held: Vec<_> = (0..16).map(|turn| lease(&cache, at(turn), BOTH)).collect();
    for turn in 0..400 {
        drop(lease(&cache, at(turn), BOTH));
    }
    assert!(cache.counters().deregistered > 100, "{}", cache.counters());
    for (lease, key) in held {
        assert_eq!(peer.access(true, lease.address(), 64, key), status::IBV_WC_SUCCESS);
    }
    cache.flush().unwrap();
    assert_eq!((cache.usage().pages, cache.counters().windows_failed, cache.counters().failed_deregs), (0, 0, 0));
}

#[test]
#[ignore = "for a device whose windows do not hold: the lab runs it on Debian's rxe"]
fn device_whose_windows_do_not_hold_is_refused() {
    let domain = domain().unwrap();
    let error = built(&domain, Remote::Windows).unwrap_err();
    println!("said: {error}");
    assert!(error.to_string().contains("let peers reach bytes outside of the registration"), "{error}");
}
