//! The cache over a real device: what it promises, proved by bytes that go by its keys.
//!
//! Without a device, tests say so in a line and pass: see `common/loopback.rs`. Those that are ignored change the machine (a
//! link goes down, a device goes away), so they are for a guest: `lab/tests/mrrc-verbs` runs them one by one.

#![cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is mapped, unmapped and given to a card by address")]

#[path = "common/loopback.rs"]
mod loopback;

use loopback::pins::{comes_to, pinned};
use loopback::{
    By, Loopback, Memory, RIGHTS, Transfer, alone, domain, guards_reads, is_refusal, not_run, pair, register, setting,
};
use mrrc::cache::Builder;
use mrrc::invalidation::{Explicit, Monitor, Reports, Userfaultfd, Watch};
use mrrc::registrar::verbs::binding::{self, ibv_wc_status as status};
use mrrc::registrar::verbs::{Domain, MemoryRegion, Verbs, VerbsError};
use mrrc::registrar::{Registered, Registrar};
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, AcquireError, Cache, Lease, PAGE, PageRange};
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Set for the copy of this program that gives up its privileges, to what it may lock.
const CHILD: &str = "MRRCTEST_VERBS_UNPRIVILEGED";
const CHILD_LIMIT: u64 = 1 << 20;

/// Says that it watches, and never reports anything: a control.
struct Off;

// SAFETY: not kept, on purpose. Memory is acquired by unsafe functions alone, and stays this test's own.
unsafe impl Monitor for Off {
    fn name(&self) -> &'static str {
        "off"
    }

    unsafe fn start(&self, _: Arc<dyn Reports>) -> io::Result<()> {
        Ok(())
    }

    unsafe fn watch(&self, _: PageRange) -> Watch {
        Watch::Watched
    }
}

fn cache(domain: &Domain, monitor: impl Monitor) -> Cache<Verbs> {
    let builder = Cache::builder(Verbs::new(domain).unwrap()).monitor(monitor).ignore_environment();
    builder.capacity_pages(128).build().unwrap()
}

fn acquire(cache: &Cache<Verbs>, memory: &Memory, page: u64, pages: u64) -> Result<Lease<Verbs>, AcquireError> {
    assert!(page + pages <= memory.pages);
    // SAFETY: within the mapping, which outlives transfers by this lease; no references are made to it.
    unsafe { cache.acquire(memory.address.add((page * PAGE) as usize), (pages * PAGE) as usize, RIGHTS) }
}

fn keys(lease: &Lease<Verbs>) -> (u32, u32) {
    let part = lease.segments().next().unwrap();
    (part.registration().lkey(), part.registration().rkey())
}

/// A page of the peer's, with a region that no cache has.
struct Peer {
    memory: Memory,
    table: Verbs,
    region: Option<MemoryRegion>,
}

impl Peer {
    fn new(domain: &Domain) -> Self {
        let (table, memory) = (Verbs::new(domain).unwrap(), Memory::new(1));
        let region = Some(register(&table, memory.range()));
        Self { memory, table, region }
    }

    fn region(&self) -> &MemoryRegion {
        self.region.as_ref().unwrap()
    }

    /// Returns the page at an address, as the peer reads it by this key.
    fn reads(&self, pair: &Loopback, address: *const u8, rkey: u32) -> Result<Vec<u8>, u32> {
        let local = (self.memory.address as u64, self.region().lkey());
        let transfer = Transfer { by: By::Peer, reads: true, local, remote: (address as u64, rkey), length: 4096 };
        // SAFETY: what may be reached by a key that is good is this test's memory.
        match unsafe { pair.run(&[transfer]) }[0] {
            0 => Ok(self.memory.copy()),
            status => Err(status),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        loopback::deregister(&self.table, self.region.take().into_iter().collect());
    }
}

/// Returns a peer's reading of memory that was acquired, given new pages at its address, and acquired again.
fn read_after_renewal(pair: &Loopback, domain: &Domain, cache: &Cache<Verbs>, tell: bool) -> Vec<u8> {
    let peer = Peer::new(domain);
    let mut memory = Memory::new(8);
    memory.fill(b'o');
    let lease = acquire(cache, &memory, 0, 8).unwrap();
    assert_eq!(peer.reads(pair, memory.address, keys(&lease).1), Ok(vec![b'o'; 4096]));
    drop(lease);
    if tell {
        cache.invalidate(memory.address, memory.bytes()).unwrap();
    }
    let mut memory = memory.renew();
    memory.fill(b'n');
    let lease = acquire(cache, &memory, 0, 8).unwrap();
    peer.reads(pair, memory.address, keys(&lease).1).unwrap()
}

#[test]
fn explicit_renewal_reads_new_pages() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    let cache = cache(&domain, Explicit);
    assert_eq!(read_after_renewal(&pair, &domain, &cache, true), [b'n'; 4096]);
}

#[test]
fn and_when_userfaultfd_told_it() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    let monitor = match Userfaultfd::new() {
        Ok(monitor) => monitor,
        Err(error) => return not_run(error),
    };
    let cache = cache(&domain, monitor);
    for _ in 0..20 {
        assert_eq!(read_after_renewal(&pair, &domain, &cache, false), [b'n'; 4096]);
    }
    assert!(cache.counters().changes >= 20);
}

#[test]
fn unreported_renewal_reads_old_pages() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    let cache = cache(&domain, Off);
    assert_eq!(read_after_renewal(&pair, &domain, &cache, false), [b'o'; 4096], "what the tests above would find");
}

#[test]
fn lease_outlives_invalidation_key_dies_at_reap() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    let (cache, peer, mut memory) = (cache(&domain, Explicit), Peer::new(&domain), Memory::new(4));
    memory.fill(b'l');
    let lease = acquire(&cache, &memory, 0, 4).unwrap();
    let (_, rkey) = keys(&lease);
    cache.invalidate(memory.address, memory.bytes()).unwrap();
    cache.reap().unwrap();
    assert_eq!(peer.reads(&pair, memory.address, rkey), Ok(vec![b'l'; 4096]), "a region in use is not pulled");
    drop(lease);
    cache.reap().unwrap();
    let said = peer.reads(&pair, memory.address, rkey).expect_err("the key is dead");
    assert!(is_refusal(&domain, true, said), "{said}");
}

#[test]
fn kernel_pins_match_usage_and_capacity() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let (before, cache, memory) = (pinned(), cache(&domain, Explicit), Memory::new(512));
    for _ in 0..3 {
        for region in 0..64 {
            let lease = acquire(&cache, &memory, region * 8, 8).unwrap();
            let part = lease.segments().next().unwrap();
            assert!(part.registration().holds(part.address() as u64, part.len() as u64));
            assert!(cache.usage().pages <= 128 && pinned() - before <= 128);
        }
    }
    let held = acquire(&cache, &memory, 0, 128).unwrap();
    comes_to(before + 128);
    let error = acquire(&cache, &memory, 200, 1).unwrap_err();
    assert!(matches!(error, AcquireError::AllInUse { .. }), "{error}");
    drop(held);
    cache.flush().unwrap();
    comes_to(before);
}

#[test]
fn bad_address_evicts_nothing() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let (cache, memory, hole) = (cache(&domain, Explicit), Memory::new(128), Memory::new(3));
    // SAFETY: the middle page of a mapping of this test.
    unsafe { libc::munmap(hole.address.add(4096).cast(), 4096) };
    (0..16).for_each(|region| drop(acquire(&cache, &memory, region * 8, 8).unwrap()));
    let before = cache.counters();
    let error = acquire(&cache, &hole, 0, 3).unwrap_err();
    assert!(error.to_string().contains("is not mapped"), "{error}");
    let after = cache.counters();
    assert!(after.attempts - before.attempts <= 1 && after.deregistered == before.deregistered, "{after:?}");
}

#[test]
fn fork_keeps_pins_with_the_parent() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    let (before, cache, peer, mut memory) = (pinned(), cache(&domain, Explicit), Peer::new(&domain), Memory::new(4));
    memory.fill(b'1');
    let lease = acquire(&cache, &memory, 0, 4).unwrap();
    let (_, rkey) = keys(&lease);
    let held = pinned();
    // SAFETY: the child uses the allocator, which is fit for forks, and ends without its parent's destructors.
    match unsafe { libc::fork() } {
        0 => {
            memory.fill(b'c');
            let no_key = lease.segments().next().is_none();
            let refused = acquire(&cache, &memory, 0, 4).is_err();
            pair.forget();
            std::mem::forget(peer);
            drop((lease, cache, domain));
            // SAFETY: `_exit` ends this child without destructors.
            unsafe { libc::_exit(if no_key && refused { 0 } else { 1 }) }
        }
        child => {
            let mut code = -1;
            // SAFETY: our child, and an integer to write to.
            assert_eq!(unsafe { libc::waitpid(child, &mut code, 0) }, child);
            assert_eq!(code, 0, "in the child");
        }
    }
    assert_eq!(pinned(), held);
    // The parent writes first after the fork: the card must see this, and the parent what the card writes.
    memory.fill(b'2');
    assert_eq!(peer.reads(&pair, memory.address, rkey), Ok(vec![b'2'; 4096]));
    let (local, remote) = ((peer.memory.address as u64, peer.region().lkey()), (memory.address as u64 + 4096, rkey));
    let transfer = Transfer { by: By::Peer, reads: false, local, remote, length: 4096 };
    memory.fill(b'3');
    // SAFETY: the lease and the peer's region live.
    assert_eq!(unsafe { pair.run(&[transfer]) }, [0]);
    assert_eq!(memory.copy()[4096..8192], [b'2'; 4096], "what the peer had read");
    drop((lease, cache, peer));
    comes_to(before);
}

/// Run by the next test in a process of its own, which may lock 1 MiB and has no privileges.
#[test]
#[ignore = "for the test `process_limit_below_working_set_still_works`"]
fn child_with_a_small_limit() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let limit = libc::rlimit { rlim_cur: CHILD_LIMIT, rlim_max: CHILD_LIMIT };
    // SAFETY: a structure that lives through the calls, and numbers.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
        if libc::geteuid() == 0 {
            assert_eq!((libc::setresgid(65534, 65534, 65534), libc::setresuid(65534, 65534, 65534)), (0, 0));
        }
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
    }
    let Some(domain) = domain() else { return };
    let before = pinned();
    let table = Verbs::new(&domain).unwrap();
    assert_eq!(table.limits().pages, Some(CHILD_LIMIT / PAGE));
    let builder = Cache::builder(table).monitor(Explicit).ignore_environment();
    let cache = builder.build().unwrap();
    let capacity = cache.usage().capacity_pages;
    assert_eq!(capacity, CHILD_LIMIT / PAGE, "the default is what the process may pin");
    let memory = Memory::new(4 * capacity);
    drop(acquire(&cache, &memory, 0, capacity).unwrap());
    let step = capacity / 8;
    for region in (0..32).chain(0..32) {
        drop(acquire(&cache, &memory, region * step, step).unwrap());
        assert!(pinned() - before <= capacity);
    }
    assert_eq!(cache.counters().retries, 0, "the kernel never refused");
    cache.flush().unwrap();
    // Another part of this process has registered a half, of which the cache knows nothing.
    let (others, theirs) = (Verbs::new(&domain).unwrap(), Memory::new(capacity / 2));
    let region = register(&others, theirs.range());
    for region in 0..32 {
        drop(acquire(&cache, &memory, region * step, step).unwrap());
    }
    let refused = cache.counters().retries;
    loopback::deregister(&others, vec![region]);
    drop(cache);
    comes_to(before);
    // Where all room that can be made is not enough, it says what would be.
    let region = register(&others, theirs.range());
    let builder = Cache::builder(Verbs::new(&domain).unwrap()).monitor(Explicit).ignore_environment();
    let cache = builder.build().unwrap();
    drop(acquire(&cache, &memory, 0, step).unwrap());
    let error = acquire(&cache, &memory, capacity, capacity / 2 + 1).unwrap_err();
    let AcquireError::Register { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.raw_os_error(), Some(libc::ENOMEM));
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    assert_eq!((cache.usage().pages, pinned() - before), (0, capacity / 2), "it gave up what it had");
    drop(acquire(&cache, &memory, 0, step).unwrap());
    loopback::deregister(&others, vec![region]);
    drop(cache);
    comes_to(before);
    println!("went on: refused {refused} times");
}

#[test]
fn process_limit_below_working_set_still_works() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    drop(domain);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_with_a_small_limit", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    match said.lines().find(|line| line.contains("not run: ")) {
        Some(line) => not_run(line),
        None => assert!(said.contains("went on: refused ") && !said.contains("refused 0 times"), "{said}"),
    }
}

/// `MRRC_VERBS_EXPECT` says how: the name of the error. As another user than root, if `MRRC_VERBS_AS` has its number.
#[test]
#[ignore = "for the lab, which brings about what is wrong"]
fn opening_fails_as_expected() {
    let Some(wanted) = setting("MRRC_VERBS_EXPECT") else { return };
    if let Some(user) = setting("MRRC_VERBS_AS") {
        let user: u32 = user.parse().unwrap();
        // SAFETY: the calls take and return numbers.
        assert_eq!(unsafe { libc::setresuid(user, user, user) }, 0);
    }
    let device = setting("MRRC_VERBS_DEVICE");
    let builder = || Domain::builder();
    let opened = match &device {
        Some(name) => builder().device(name).open(),
        None => builder().open(),
    };
    let error = opened.expect_err("it is not to be opened");
    println!("said: {error}");
    assert!(format!("{error:?}").starts_with(&wanted), "{error:?}");
    if wanted == "PortDown" {
        let down =
            builder().device(device.unwrap()).port_may_be_down(true).open().expect("it may be opened all the same");
        let (table, memory) = (Verbs::new(&down).unwrap(), Memory::new(1));
        loopback::deregister(&table, vec![register(&table, memory.range())]);
    }
}

/// Has a cache register and deregister until it says that the device is gone, which it has to once the device is.
fn until_gone(cache: &Cache<Verbs>, domain: &Domain) {
    let memory = Memory::new(512);
    for region in (0..64).cycle() {
        let was_there = !domain.is_gone();
        match acquire(cache, &memory, region * 8, 8) {
            Ok(lease) => drop(lease),
            Err(AcquireError::Register { source, .. }) if is_gone(&source) => break,
            // Its files are closed before it is gone.
            Err(AcquireError::Register { source, .. }) => {
                assert!(was_there && source.to_string().contains("is going away"), "{source:?}");
            }
            Err(error) => assert!(was_there, "{error:?}"),
        }
    }
    cache.invalidate(memory.address, memory.bytes()).unwrap();
}

fn is_gone(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<VerbsError>());
    matches!(inner, Some(VerbsError::Gone { .. }))
}

/// `MRRC_VERBS_DOWN` and `MRRC_VERBS_UP` are the commands that take the port's network interface down, and up.
#[test]
#[ignore = "for the lab: the port goes down"]
fn port_down_costs_transfers_only() {
    let (Some(down), Some(up)) = (setting("MRRC_VERBS_DOWN"), setting("MRRC_VERBS_UP")) else { return };
    let run =
        |command: &str| assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    let before = pinned();
    let Some((opened, pair)) = pair() else { return };
    let (cache, peer, mut memory) = (cache(&opened, Explicit), Peer::new(&opened), Memory::new(64));
    memory.fill(b'p');
    let lease = acquire(&cache, &memory, 0, 8).unwrap();
    assert_eq!(peer.reads(&pair, memory.address, keys(&lease).1), Ok(vec![b'p'; 4096]));
    run(&down);
    let error = Domain::first().map(drop).unwrap_err();
    assert!(matches!(error, VerbsError::PortDown { .. }), "{error}");
    println!(
        "read while the port is down: {:?}",
        peer.reads(&pair, memory.address, keys(&lease).1).map(|bytes| bytes.len())
    );
    for region in 0..64 {
        drop(acquire(&cache, &memory, region, 1).expect("registering takes no port"));
    }
    drop(lease);
    cache.flush().unwrap();
    assert_eq!((cache.usage().pages, cache.counters().failed_deregs), (0, 0));
    drop((cache, peer, pair, opened));
    comes_to(before);
    run(&up);
    let end = Instant::now() + Duration::from_secs(20);
    while Domain::first().is_err() {
        assert!(Instant::now() < end, "the port does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `MRRC_VERBS_DELETE` is the command that takes the device away. rxe and siw wait there until the device has no users
/// (Linux 6.1), so this process's files of it are closed behind libibverbs' back, as with drivers that do not wait.
#[test]
#[ignore = "for the lab: the device goes away"]
fn lost_device_is_reported_and_unpins_all() {
    let Some(command) = setting("MRRC_VERBS_DELETE") else { return };
    let before = pinned();
    let Some(domain) = domain() else { return };
    let (cache, memory) = (Arc::new(cache(&domain, Explicit)), Memory::new(64));
    let held = acquire(&cache, &memory, 0, 8).unwrap();
    drop(acquire(&cache, &memory, 8, 8).unwrap());
    // Others make the cache register and deregister all the while.
    let busy: Vec<_> = (0..3).map(|_| (Arc::clone(&cache), domain.clone())).collect();
    let busy: Vec<_> =
        busy.into_iter().map(|(cache, domain)| std::thread::spawn(move || until_gone(&cache, &domain))).collect();
    let mut going = Command::new("sh").args(["-c", &command]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    if !domain.is_gone() {
        drop(acquire(&cache, &memory, 16, 8).expect("a device that is still there serves"));
        println!("the driver waits for those who use the device");
        let context = domain.context().cast::<binding::ibv_context>().as_ptr();
        // SAFETY: files of a context that is open. No other is opened in this process before it ends but for a moment, so
        // no other descriptor is closed when libibverbs closes them again.
        unsafe { (libc::close((*context).cmd_fd), libc::close((*context).async_fd)) };
    }
    let end = Instant::now() + Duration::from_secs(20);
    while !domain.is_gone() {
        assert!(Instant::now() < end, "the device does not go");
        std::thread::sleep(Duration::from_millis(10));
    }
    for thread in busy {
        thread.join().unwrap();
    }
    // Regions that could not be deregistered while the device went are deregistered now.
    drop(acquire(&cache, &memory, 0, 8).expect("what is leased is cached"));
    cache.reap().unwrap();
    let counted = cache.counters();
    match acquire(&cache, &memory, 32, 8) {
        Err(AcquireError::Register { source, attempts, .. }) => {
            assert!(is_gone(&source) && attempts == 1, "{source:?}, {attempts}");
            println!("said: {source}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(cache.counters().deregistered, counted.deregistered, "nobody was evicted for it");
    assert!(matches!(Verbs::new(&domain), Err(VerbsError::Gone { .. })));
    drop(held);
    cache.flush().unwrap();
    assert_eq!(cache.counters().failed_deregs, counted.failed_deregs, "the device took them along");
    assert_eq!(cache.usage().pages, 0);
    drop((cache, domain));
    comes_to(before);
    assert!(going.wait().unwrap().success());
    let error = Domain::first().map(drop).unwrap_err();
    assert!(matches!(error, VerbsError::NoDevice), "{error}");
}

#[test]
fn local_regions_have_no_remote_key() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    if !guards_reads(&domain) {
        return;
    }
    let (cache, peer, memory) = (cache(&domain, Explicit), Peer::new(&domain), Memory::new(8));
    drop(acquire(&cache, &memory, 0, 4).unwrap());
    // SAFETY: this test's mapping; no references are made to it.
    let local = unsafe { cache.acquire(memory.address, memory.bytes(), Access::LOCAL) }.unwrap();
    let of_last = local.segments().last().unwrap().registration().rkey();
    let last = memory.address.wrapping_add(7 * PAGE as usize);
    assert_eq!(peer.reads(&pair, last, of_last), Err(status::IBV_WC_REM_ACCESS_ERR), "a neighbour was opened to peers");
}

#[test]
fn a_registrar_in_a_forked_child_refuses() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let (table, memory, before) = (Verbs::new(&domain).unwrap(), Memory::new(1), pinned());
    let mut batch =
        vec![Registered { range: memory.range(), access: RIGHTS, registration: register(&table, memory.range()) }];
    // SAFETY: the child uses the allocator, which is fit for forks, and ends without its parent's destructors.
    match unsafe { libc::fork() } {
        0 => {
            let refused = table.register(memory.range(), RIGHTS).is_err() && table.deregister(&mut batch).is_err();
            // SAFETY: `_exit` ends this child without destructors.
            unsafe { libc::_exit(if refused && batch.len() == 1 { 0 } else { 1 }) }
        }
        child => {
            let mut code = -1;
            // SAFETY: our child, and an integer to write to.
            assert_eq!(unsafe { libc::waitpid(child, &mut code, 0) }, child);
            assert_eq!(code, 0);
        }
    }
    assert_eq!(pinned() - before, 1);
    table.deregister(&mut batch).unwrap();
    comes_to(before);
}

/// Views of one mapping, of 4 KiB to 1 MiB (uniform logarithm), anywhere in it.
fn views(pages: u64, count: u32) -> impl Iterator<Item = (u64, u64)> {
    let mut seed = 31_u64;
    let mut next = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    (0..count).map(move |_| {
        let longest = 1 << next(9);
        let view = 1 + next(longest);
        (next(pages - view + 1), view)
    })
}

/// With growth on, the device registers views of one buffer as often as a registrar without a device: `MRRC_WIDEN=on`, one key a lease.
/// The guest compares the printed number with what its kernel counts.
#[test]
fn grown_views_register_as_often_as_simulated() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let mut memory = Memory::new(16 << 10);
    memory.fill(1);
    let settings = |widens, builder: Builder<Verbs>| {
        let builder = builder.monitor(Explicit).ignore_environment().capacity_pages(6 * memory.pages).max_segments(1);
        builder.widen(widens).widen_for_peers(widens).build().unwrap()
    };
    let exact = {
        let cache = settings(false, Cache::builder(Verbs::new(&domain).unwrap()));
        for (page, pages) in views(memory.pages, 500) {
            drop(acquire(&cache, &memory, page, pages).unwrap());
        }
        cache.counters().attempts
    };
    let cache = settings(true, Cache::builder(Verbs::new(&domain).unwrap()));
    let builder = Cache::builder(NoopRegistrar::new()).monitor(Explicit).ignore_environment();
    let builder = builder.capacity_pages(6 * memory.pages).max_segments(1).widen(true).widen_for_peers(true);
    let without_device = builder.build().unwrap();
    for (page, pages) in views(memory.pages, 3000) {
        drop(acquire(&cache, &memory, page, pages).unwrap());
        let (address, bytes) = (memory.address.wrapping_add((page * PAGE) as usize), (pages * PAGE) as usize);
        // SAFETY: within the mapping, and no device transfers anything.
        drop(unsafe { without_device.acquire(address, bytes, RIGHTS) }.unwrap());
    }
    assert_eq!(cache.usage().capacity_pages, without_device.usage().capacity_pages, "as much room");
    let (grown, simulated) = (cache.counters().attempts, without_device.counters().attempts);
    println!("3000 views of 64 MiB: {grown} registrations, {simulated} without a device; 500 without growth: {exact}");
    println!("registered: {}", grown + exact);
    assert_eq!(grown, simulated);
    assert!(grown * 4 < exact, "{grown} of 3000, {exact} of 500");
}
