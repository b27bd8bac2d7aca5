//! The registrar over verbs, with a real device: what the kernel counts (`VmPin`), and where bytes go by its keys.
//!
//! Without a device, tests say so in a line and pass: see `common/loopback.rs`.

#![cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is mapped, unmapped and given to a card by address")]

#[path = "common/loopback.rs"]
mod loopback;

use loopback::pins::{comes_to, pinned};
use loopback::{
    By, Loopback, Memory, RIGHTS, alone, deregister, domain, guards_reads, is_refusal, pair, register, registered,
    setting,
};
use mrrc::registrar::Registrar;
use mrrc::registrar::rails::{RailError, RailKeys, RailSet, Rails};
use mrrc::registrar::verbs::binding as ib;
use mrrc::registrar::verbs::{Domain, Forks, Transport, Verbs};
use mrrc::{Access, PAGE, PageRange};

#[test]
fn the_device_says_what_it_can() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let (device, table) = (domain.attributes(), Verbs::new(&domain).unwrap());
    println!("{} by {}: {device:?}, forks {:?}", domain.device(), ib::NAME, domain.forks());
    let limits = table.limits();
    assert!(device.most_regions > 0 && device.largest_region >= PAGE && device.ports > 0);
    assert_eq!((limits.regions, limits.region_pages), (Some(device.most_regions), Some(device.largest_region / PAGE)));
    assert!(limits.page_size.is_power_of_two() && limits.page_size >= PAGE);
    assert!(limits.pages.is_some(), "the default is finite");
    assert_eq!(table.rights().contains(Access::REMOTE_ATOMIC), device.atomics);
    assert_ne!(domain.forks(), Forks::Unsafe);
    assert!(!domain.is_gone());
}

#[test]
fn exactly_registered_pages_are_pinned() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let table = Verbs::new(&domain).unwrap();
    let (before, memory) = (pinned(), Memory::new(64));
    let whole = register(&table, memory.range());
    assert_eq!(pinned() - before, 64);
    let page = register(&table, memory.page(63));
    assert_eq!(pinned() - before, 65, "what is registered twice is pinned twice");
    assert!(whole.lkey() != page.lkey() && whole.rkey() != page.rkey());
    deregister(&table, vec![whole]);
    comes_to(before + 1);
    deregister(&table, vec![page]);
    comes_to(before);
    let left = register(&table, memory.range());
    drop(memory);
    assert_eq!(pinned() - before, 64, "an unmapping leaves the pages pinned: what a cache must end");
    deregister(&table, vec![left]);
    comes_to(before);
}

#[test]
fn transfers_follow_keys_on_both_sides() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    let table = Verbs::new(&domain).unwrap();
    for (by, reads) in [(By::Us, false), (By::Us, true), (By::Peer, false), (By::Peer, true)] {
        let (mut from, mut to) = (Memory::new(16), Memory::new(16));
        from.fill(b'f');
        to.fill(b't');
        // A write goes from the local end to the remote one, a read the other way.
        let (local, remote) = if reads { (&to, &from) } else { (&from, &to) };
        let (lkey, rkey) = (register(&table, local.range()), register(&table, remote.range()));
        assert_eq!(pair.one(by, reads, (local, &lkey), (remote, &rkey), 40_000), Ok(()));
        let arrived = to.copy();
        assert!(arrived[..40_000].iter().all(|&byte| byte == b'f'), "{by:?} reads: {reads}");
        assert!(arrived[40_000..].iter().all(|&byte| byte == b't'), "{by:?} reads: {reads}");
        deregister(&table, vec![lkey, rkey]);
    }
}

#[test]
fn registration_keeps_its_old_pages() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    let table = Verbs::new(&domain).unwrap();
    let (mut memory, sink) = (Memory::new(1), Memory::new(1));
    let (at_sink, before) = (register(&table, sink.range()), pinned());
    memory.fill(b'o');
    let stale = register(&table, memory.range());
    let mut memory = memory.renew();
    memory.fill(b'n');
    assert_eq!(pair.one(By::Us, false, (&memory, &stale), (&sink, &at_sink), 4096), Ok(()));
    assert_eq!(sink.copy(), [b'o'; 4096], "the old page, and no error: the stale hit that a cache exists to prevent");
    let fresh = register(&table, memory.range());
    assert_eq!(pair.one(By::Us, false, (&memory, &fresh), (&sink, &at_sink), 4096), Ok(()));
    assert_eq!(sink.copy(), [b'n'; 4096]);
    deregister(&table, vec![stale, fresh]);
    comes_to(before);
    deregister(&table, vec![at_sink]);
}

#[test]
fn a_key_is_dead_once_it_is_deregistered() {
    let _alone = alone();
    for by in [By::Us, By::Peer] {
        let Some((domain, pair)) = pair() else { return };
        let table = Verbs::new(&domain).unwrap();
        let (mut memory, other) = (Memory::new(1), Memory::new(1));
        memory.fill(b'm');
        let (ours, theirs) = (register(&table, memory.range()), register(&table, other.range()));
        let transfer = loopback::Transfer {
            by,
            reads: false,
            local: (other.address as u64, theirs.lkey()),
            remote: (memory.address as u64, ours.rkey()),
            length: 64,
        };
        deregister(&table, vec![ours]);
        // SAFETY: the memory is there; the key that is named is good for nothing.
        let said = unsafe { pair.run(&[transfer]) }[0];
        assert!(is_refusal(&domain, false, said), "{by:?}: {said}");
        // A read behind it, by which the write must have arrived.
        let own = register(&table, memory.range());
        let after = pair.one(by, true, (&other, &theirs), (&memory, &own), 64);
        assert!(after.is_err(), "the connection is of no use after a refusal");
        assert_eq!(memory.copy(), [b'm'; 4096]);
        deregister(&table, vec![own, theirs]);
    }
}

#[test]
fn no_right_is_granted_that_was_not_asked_for() {
    let _alone = alone();
    let asked = [
        (Access::LOCAL, [false, false]),
        (Access::LOCAL | Access::REMOTE_READ, [true, false]),
        (Access::LOCAL | Access::REMOTE_WRITE, [false, true]),
        (RIGHTS, [true, true]),
    ];
    for (access, [may_read, may_write]) in asked {
        for (reads, may) in [(true, may_read), (false, may_write)] {
            let Some((domain, pair)) = pair() else { return };
            let table = Verbs::new(&domain).unwrap();
            if reads && !may && !guards_reads(&domain) {
                continue;
            }
            let (mut memory, mut other) = (Memory::new(1), Memory::new(1));
            memory.fill(b'm');
            other.fill(b'o');
            let theirs = register(&table, other.range());
            let ours = table.register(memory.range(), access).unwrap();
            let said = pair.one(By::Peer, reads, (&other, &theirs), (&memory, &ours), 64);
            let as_wanted = if may { said.is_ok() } else { is_refusal(&domain, reads, said.err().unwrap_or(0)) };
            assert!(as_wanted, "a peer reads: {reads}, of memory with {access}: {said:?}");
            // Either way of it: what was not granted was not done.
            let again = pair.one(By::Us, true, (&other, &theirs), (&other, &theirs), 1);
            assert_eq!(again.is_ok(), may);
            if !may {
                assert_eq!((memory.copy()[0], other.copy()[0]), (b'm', b'o'));
            }
            deregister(&table, vec![ours, theirs]);
        }
    }
}

#[test]
fn batch_deregisters_only_its_domain() {
    let _alone = alone();
    let (Some(first), Some(second)) = (domain(), domain()) else { return };
    let (ours, theirs) = (Verbs::new(&first).unwrap(), Verbs::new(&second).unwrap());
    let (before, memory) = (pinned(), Memory::new(8));
    let mut batch: Vec<_> = (0..8).map(|page| registered(register(&ours, memory.page(page)))).collect();
    batch.insert(3, registered(register(&theirs, memory.page(0))));
    let error = ours.deregister(&mut batch).unwrap_err();
    assert!(error.to_string().contains("another domain"), "{error}");
    assert_eq!((batch.len(), pinned() - before), (1, 1));
    theirs.deregister(&mut batch).unwrap();
    comes_to(before);
    ours.deregister(&mut Vec::new()).unwrap();
}

#[test]
fn unregistrable_is_refused_without_residue() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let table = Verbs::new(&domain).unwrap();
    let (before, memory) = (pinned(), Memory::new(4));
    let read_only = Memory::read_only(1);
    let hole = Memory::new(3);
    // SAFETY: the middle page of a mapping of this test.
    unsafe { libc::munmap(hole.address.add(4096).cast(), 4096) };
    let null = PageRange::new(0, 1).unwrap();
    for _ in 0..3 {
        for range in [hole.range(), read_only.range(), null] {
            let error = table.register(range, RIGHTS).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{range}: {error}");
        }
        assert!(table.register(PageRange::of_bytes(u64::MAX, 1).unwrap(), Access::LOCAL).is_err());
        assert!(table.register(PageRange::EVERYTHING, Access::LOCAL).is_err());
        for access in [Access::REMOTE_WRITE, Access::LOCAL_READ | Access::REMOTE_ATOMIC] {
            let error = table.register(memory.range(), access).unwrap_err();
            assert!(error.to_string().contains("local-write"), "{error}");
        }
    }
    comes_to(before);
    assert!(table.probe(hole.range(), RIGHTS).is_err());
    assert!(table.examine(read_only.range(), RIGHTS).is_err() && table.probe(read_only.range(), RIGHTS).is_ok());
    assert!(table.examine(memory.range(), RIGHTS).is_ok());
}

#[test]
fn borrowed_domain_stays_open() {
    let _alone = alone();
    let Some(owned) = domain() else { return };
    if owned.attributes().transport == Transport::Iwarp {
        return println!("not run: queue pairs of iWARP are in a borrowed domain in all other tests");
    }
    let (before, mut memory, sink) = (pinned(), Memory::new(1), Memory::new(1));
    memory.fill(b'b');
    // SAFETY: the domain that it is borrowed from outlives it.
    let borrowed = unsafe { Domain::borrow(owned.protection_domain()) }.unwrap();
    assert_eq!((borrowed.device(), borrowed.attributes()), (owned.device(), owned.attributes()));
    let table = Verbs::new(&borrowed).unwrap();
    let (a, b) = (register(&table, memory.range()), register(&table, sink.range()));
    let pair = Loopback::over(&owned);
    drop(borrowed);
    assert_eq!(pair.one(By::Us, false, (&memory, &a), (&sink, &b), 4096), Ok(()));
    assert_eq!(sink.copy(), [b'b'; 4096]);
    deregister(&table, vec![a, b]);
    drop(table);
    let table = Verbs::new(&owned).unwrap();
    deregister(&table, vec![register(&table, memory.range())]);
    comes_to(before);
}

#[test]
fn last_domain_clone_closes_and_unpins() {
    let _alone = alone();
    let (before, memory) = (pinned(), Memory::new(8));
    let Some(domain) = domain() else { return };
    let table = Verbs::new(&domain).unwrap();
    let lost = register(&table, memory.range());
    drop(domain);
    assert_eq!(pinned() - before, 8, "the registrar has a clone");
    drop((table, lost));
    comes_to(before);
}

#[test]
fn on_demand_paging_is_used_where_the_device_has_it() {
    let _alone = alone();
    let Some((domain, pair)) = pair() else { return };
    // SAFETY: nothing is unmapped while it is registered.
    let table = unsafe { Verbs::new(&domain).unwrap().on_demand() };
    assert_eq!(table.is_on_demand(), domain.attributes().on_demand);
    let (before, mut memory, sink) = (pinned(), Memory::new(4), Memory::new(4));
    memory.fill(b'd');
    let (a, b) = (register(&table, memory.range()), register(&table, sink.range()));
    assert_eq!(pinned() - before, if table.is_on_demand() { 0 } else { 8 });
    assert_eq!(pair.one(By::Us, false, (&memory, &a), (&sink, &b), 16384), Ok(()));
    assert_eq!(sink.copy(), [b'd'; 16384]);
    deregister(&table, vec![a, b]);
}

#[test]
fn threads_lose_no_pin() {
    let _alone = alone();
    let Some(domain) = domain() else { return };
    let (table, before) = (Verbs::new(&domain).unwrap(), pinned());
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let memory = Memory::new(16);
                for round in 0..50 {
                    let batch: Vec<_> = (0..8).map(|page| register(&table, memory.page((round + page) % 16))).collect();
                    let mut keys: Vec<_> = batch.iter().map(|region| region.rkey()).collect();
                    keys.sort_unstable();
                    keys.dedup();
                    assert_eq!(keys.len(), 8);
                    deregister(&table, batch);
                }
            });
        }
    });
    comes_to(before);
}

/// Two devices, the second by `MRRC_VERBS_SECOND`. Each region has a key of each, and an unmapping ends both. When one is lost
/// the other goes on.
#[test]
fn rails_are_two_devices_under_one_cache() {
    let _alone = alone();
    let Some(second) = setting("MRRC_VERBS_SECOND") else {
        return println!("not run: MRRC_VERBS_SECOND names no second device");
    };
    let Some((first, pair)) = pair() else { return };
    let second = Domain::open(&second).unwrap();
    let other_pair = Loopback::over(&second);
    let before = pinned();
    let rails = Rails::new(vec![Verbs::new(&first).unwrap(), Verbs::new(&second).unwrap()]).unwrap();
    let cache = mrrc::Cache::builder(rails.clone()).ignore_environment().build().unwrap();
    let mut buffers: Vec<_> = (0..8).map(|_| Memory::new(16)).collect();
    let acquire = |memory: &Memory| {
        let address = (memory.range().start() * PAGE) as *const u8;
        // SAFETY: the memory outlives the lease, and transfers to it are waited for.
        unsafe { cache.acquire(address, 16 * PAGE as usize, RIGHTS) }.unwrap()
    };
    for buffer in &buffers {
        let lease = acquire(buffer);
        assert!(lease.segments().all(|segment| segment.registration().filled() == RailSet::of(&[0, 1])));
    }
    assert_eq!((cache.counters().attempts, pinned() - before), (8, 2 * 8 * 16));
    drop(buffers.pop());
    cache.reap().unwrap();
    comes_to(before + 2 * 7 * 16);
    let (from, to) = (acquire(&buffers[0]), acquire(&buffers[1]));
    buffers[0].fill(b'r');
    for (rail, pair) in [(0, &pair), (1, &other_pair)] {
        let (lkey, rkey) = (first_segment(&from).key(rail).unwrap(), first_segment(&to).key(rail).unwrap());
        assert_eq!(pair.one(By::Us, false, (&buffers[0], lkey), (&buffers[1], rkey), 40_000), Ok(()), "rail {rail}");
        assert!(buffers[1].copy()[..40_000].iter().all(|&arrived| arrived == b'r'));
        buffers[1].fill(b't');
    }
    rails.lose(1);
    assert!(matches!(first_segment(&from).key(1), Err(RailError::Gone { rail: 1 })));
    let (lkey, rkey) = (first_segment(&from).key(0).unwrap(), first_segment(&to).key(0).unwrap());
    assert_eq!(pair.one(By::Us, false, (&buffers[0], lkey), (&buffers[1], rkey), 40_000), Ok(()));
    drop((from, to, buffers, cache));
    comes_to(before);
}

fn first_segment(lease: &mrrc::Lease<Rails<Verbs>>) -> &RailKeys<Verbs> {
    lease.segments().next().unwrap().registration()
}
