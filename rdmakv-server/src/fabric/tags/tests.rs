//! The table of tags, without a fabric: bindings, charges, and ends.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::{Client, Counts, Limits, Peer, Refused, TagKind, Tags};
use crate::store::Extent;

/// Counts what is there of its kind.
#[derive(Debug)]
struct Counted(Rc<Cell<i32>>);

impl Counted {
    fn new(of: &Rc<Cell<i32>>) -> Self {
        of.set(of.get() + 1);
        Self(of.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

thread_local! {
    /// Bindings that were not waited for.
    static COPIES: Cell<u32> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Rebinding;
impl TagKind for Rebinding {
    type Registration = Counted;
    type Record = Rc<(AtomicU64, AtomicU64)>;
    type Tag = (Counted, Rc<(AtomicU64, AtomicU64)>, u64);
    const REBINDS: bool = true;
    fn bind(record: &Self::Record, to: Option<u64>) {
        record.0.store(to.unwrap_or(0), Relaxed);
        COPIES.with(|copies| copies.set(copies.get() + 1));
    }
    fn settle(_: &Self::Record) {
        COPIES.with(|copies| copies.set(0));
    }
    fn reads(record: &Self::Record) -> u64 {
        record.1.load(Relaxed)
    }
}

#[derive(Debug)]
struct Fixed;
impl TagKind for Fixed {
    type Registration = Counted;
    type Record = ();
    type Tag = ();
    const REBINDS: bool = false;
    fn bind((): &(), _: Option<u64>) {}
}

/// A fabric with tags that keep the registration until they are closed.
#[derive(Debug)]
struct Windowed;
impl TagKind for Windowed {
    type Registration = Rc<()>;
    type Record = ();
    type Tag = Rc<()>;
    const REBINDS: bool = false;
    fn bind((): &(), _: Option<u64>) {}
    fn is_open(registration: &Rc<()>) -> bool {
        Rc::strong_count(registration) > 1
    }
}

const D: u64 = 1000;
const HOME: Peer = Peer::User;
const LIMITS: Limits =
    Limits { pages: 100, client_pages: 40, divides: false, client_tags: 50, afterlife: 8 * D, reports: 1000, lease: D };

struct Table {
    tags: Tags<Rebinding>,
    registrations: Rc<Cell<i32>>,
    open: Rc<Cell<i32>>,
}

fn chunk(number: u64, version: u64) -> Extent {
    Extent { address: (1 << 20) + number * 8192, slot: 8192, used: 6000, version }
}

impl Table {
    fn new(limits: Limits) -> Self {
        let (registrations, open) = (Rc::default(), Rc::default());
        Self { tags: Tags::new(limits), registrations, open }
    }

    /// As a connection does it; returns where the tag leads and how far it reaches.
    fn grant(
        &mut self,
        client: Client,
        extent: Extent,
        until: u64,
    ) -> Result<(Rc<(AtomicU64, AtomicU64)>, u64), Refused> {
        let admitted = self.tags.admits(client, extent)?;
        let registration = admitted.registers.then(|| Counted::new(&self.registrations));
        let open = self.open.clone();
        let granted =
            self.tags.grant(client, extent, until, (admitted, registration), Rc::default, |record, _, bound| {
                Some((Counted::new(&open), record.clone(), bound))
            })?;
        assert_eq!((granted.bound, granted.tag.2), (admitted.bound, admitted.bound));
        Ok((granted.tag.1.clone(), granted.bound))
    }

    fn replaced(&mut self, old: Extent, new: Extent) -> bool {
        let registrations = self.registrations.clone();
        self.tags.follow(old, new, |_, _| Some(Counted::new(&registrations)), |_| {})
    }

    fn drop_ended(&mut self) {
        drop(self.tags.take_ended());
    }
}

fn leads(record: &Rc<(AtomicU64, AtomicU64)>) -> u64 {
    record.0.load(Relaxed)
}

#[test]
fn tag_leads_to_its_chunk_until_leases_end() {
    let mut table = Table::new(LIMITS);
    let client = table.tags.join(HOME);
    let (record, bound) = table.grant(client, chunk(0, 1), D).unwrap();
    assert_eq!((leads(&record), bound), (chunk(0, 1).address, 6752));
    assert_eq!(table.registrations.get(), 1);
    table.tags.ended(chunk(0, 1));
    assert_eq!(leads(&record), 0);
    assert_eq!(table.registrations.get(), 1, "nothing is let go under a lock");
    table.drop_ended();
    assert_eq!((table.registrations.get(), table.open.get()), (0, 1), "the tag stays open");
    table.tags.sweep(9 * D - 1, 100);
    table.drop_ended();
    assert_eq!(table.open.get(), 1);
    table.tags.sweep(9 * D, 100);
    table.drop_ended();
    assert_eq!(table.open.get(), 0);
    assert_eq!(table.tags.counts(), Counts { clients: 1, granted: 1, ..Counts::default() });
}

#[test]
fn regrant_in_afterlife_reuses_the_tag() {
    let mut table = Table::new(LIMITS);
    let client = table.tags.join(HOME);
    let (record, _) = table.grant(client, chunk(0, 1), D).unwrap();
    table.tags.sweep(D, 100);
    table.tags.ended(chunk(0, 1));
    let (again, _) = table.grant(client, chunk(0, 1), 5 * D).unwrap();
    assert!(Rc::ptr_eq(&record, &again) && leads(&record) == chunk(0, 1).address);
    assert_eq!(table.tags.counts().tags, 1);
    table.tags.sweep(9 * D, 100);
    assert_eq!(table.tags.counts().tags, 1, "its earlier life's end is not this one's");
    table.tags.ended(chunk(0, 1));
    // Another item in the same place is not what this tag was for.
    let (other, _) = table.grant(client, chunk(0, 2), 10 * D).unwrap();
    assert!(!Rc::ptr_eq(&record, &other));
    assert_eq!((leads(&record), leads(&other)), (0, chunk(0, 2).address));
    table.tags.ended(chunk(0, 2));
    table.tags.sweep(100 * D, 100);
    table.drop_ended();
    assert_eq!((table.open.get(), table.registrations.get(), table.tags.counts().records), (0, 0, 0));
}

#[test]
fn a_regrant_after_the_leases_clears_the_tail() {
    let mut table = Table::new(LIMITS);
    let client = table.tags.join(HOME);
    table.grant(client, chunk(0, 1), D).unwrap();
    assert!(!table.tags.admits(client, chunk(0, 1)).unwrap().clears, "nothing else was in the chunk");
    table.tags.sweep(D, 100);
    table.tags.ended(chunk(0, 1));
    // The item was on flash, and came back to its chunk after another.
    assert!(table.tags.admits(client, chunk(0, 1)).unwrap().clears);
}

#[test]
fn tag_follows_its_key_to_the_new_chunk() {
    let mut table = Table::new(LIMITS);
    let client = table.tags.join(HOME);
    let (record, bound) = table.grant(client, chunk(0, 1), D).unwrap();
    assert!(table.replaced(chunk(0, 1), chunk(1, 2)));
    assert_eq!(leads(&record), chunk(1, 2).address);
    assert_eq!((table.tags.counts().pins, table.registrations.get()), (2, 2), "the old one is registered still");
    assert_eq!(table.tags.share(client), 4, "and counts");
    table.tags.ended(chunk(0, 1));
    assert_eq!((leads(&record), table.tags.share(client)), (chunk(1, 2).address, 2));
    // Bounds never shrink, and an item that is longer cannot be read under them.
    let short = Extent { slot: bound - 8, ..chunk(2, 3) };
    let long = Extent { used: bound + 1, ..chunk(2, 3) };
    assert!(!table.replaced(chunk(1, 2), short) && !table.replaced(chunk(1, 2), long));
    assert_eq!(leads(&record), chunk(1, 2).address, "bound to the dead one until its leases end");
    let just = Extent { slot: bound, used: bound, ..chunk(2, 3) };
    assert!(table.replaced(chunk(1, 2), just));
    assert_eq!(table.grant(client, just, 2 * D).unwrap().1, bound);
}

#[test]
fn a_chunk_is_nobody_elses_while_somebody_is_at_it() {
    let mut table = Table::new(LIMITS);
    let client = table.tags.join(HOME);
    let waited = || COPIES.with(Cell::get) == 0;
    table.grant(client, chunk(0, 1), D).unwrap();
    // A read of the first chunk may be on its way when the tag goes on to the second.
    assert!(table.replaced(chunk(0, 1), chunk(1, 2)) && !waited());
    table.tags.ended(chunk(0, 1));
    assert!(waited(), "the first chunk is free after this");
    table.tags.ended(chunk(1, 2));
    assert!(waited());
}

#[test]
fn tag_stays_when_new_chunk_has_no_room() {
    no_room(Limits { pages: 3, ..LIMITS });
    no_room(Limits { client_pages: 3, ..LIMITS });
}

fn no_room(limits: Limits) {
    let mut table = Table::new(limits);
    let client = table.tags.join(HOME);
    table.grant(client, chunk(0, 1), D).unwrap();
    assert!(!table.tags.follow(chunk(0, 1), chunk(1, 2), |_, _| None, |_| panic!("nothing is cleared")));
    assert!(!table.replaced(chunk(0, 1), chunk(1, 2)), "four pages are more than three");
    let tail = Cell::new(0);
    let neighbour = Extent { address: chunk(0, 1).address + 4096, slot: 6752, used: 10, version: 2 };
    let registrations = table.registrations.clone();
    assert!(table.tags.follow(
        chunk(0, 1),
        neighbour,
        |at, bytes| {
            assert_eq!((at, bytes, tail.get()), (neighbour.address, 6752, 0));
            Some(Counted::new(&registrations))
        },
        |bound| tail.set(bound)
    ));
    assert_eq!(tail.get(), 6752);
}

#[test]
fn shared_pages_count_once_within_limits() {
    let mut table = Table::new(Limits { pages: 10, client_pages: 4, ..LIMITS });
    let small = |number: u64| Extent { address: (1 << 20) + number * 512, slot: 512, used: 400, version: number + 1 };
    let clients: Vec<Client> = (0..4).map(|_| table.tags.join(HOME)).collect();
    for number in 0..32 {
        table.grant(clients[0], small(number), D).unwrap();
    }
    assert_eq!((table.tags.share(clients[0]), table.tags.counts().pages), (4, 4));
    assert_eq!(table.grant(clients[0], small(32), D).unwrap_err(), Refused::Share);
    for number in 0..8 {
        table.grant(clients[1], small(number), D).unwrap();
    }
    assert_eq!((table.tags.share(clients[1]), table.tags.counts().pages), (1, 4), "the same page");
    for number in 32..56 {
        table.grant(clients[1], small(number), D).unwrap();
    }
    for number in 56..80 {
        table.grant(clients[2], small(number), D).unwrap();
    }
    assert_eq!(table.grant(clients[3], small(80), D).unwrap_err(), Refused::Full);
    assert!(table.grant(clients[3], small(0), D).is_ok(), "what is pinned already takes no more");
    let counts = table.tags.counts();
    assert_eq!((counts.pages, counts.full, counts.share), (10, 1, 1));
    for number in 0..80 {
        table.tags.ended(small(number));
    }
    assert_eq!((table.tags.counts().pages, table.tags.share(clients[0])), (0, 0));
}

#[test]
fn share_returns_when_own_lease_ends() {
    let mut table = Table::new(LIMITS);
    let (one, two) = (table.tags.join(HOME), table.tags.join(HOME));
    table.grant(one, chunk(0, 1), D).unwrap();
    table.grant(two, chunk(0, 1), 3 * D).unwrap();
    table.tags.sweep(D, 100);
    assert_eq!((table.tags.share(one), table.tags.share(two)), (0, 2));
    table.grant(one, chunk(0, 1), 2 * D).unwrap();
    assert_eq!(table.tags.share(one), 2);
    table.tags.sweep(2 * D, 100);
    assert_eq!(table.tags.share(one), 0, "again when it ends again");
}

#[test]
fn only_a_grant_of_this_very_tag_renews_it() {
    let mut table = Table::new(LIMITS);
    let (one, two) = (table.tags.join(HOME), table.tags.join(HOME));
    table.grant(one, chunk(0, 1), D).unwrap();
    table.grant(one, chunk(1, 2), 5 * D).unwrap();
    table.grant(two, chunk(0, 1), 5 * D).unwrap();
    table.tags.sweep(D, 100);
    assert_eq!(table.tags.share(one), 2, "that of the other chunk");
    table.grant(one, chunk(1, 2), 2 * D).unwrap();
    table.tags.sweep(4 * D, 100);
    assert_eq!(table.tags.share(one), 2, "a grant makes no lease shorter");
}

#[test]
fn departed_client_closes_tags_leases_stay() {
    let mut table = Table::new(LIMITS);
    let (one, two) = (table.tags.join(HOME), table.tags.join(HOME));
    let (record, _) = table.grant(one, chunk(0, 1), D).unwrap();
    table.tags.leave(one);
    table.drop_ended();
    let counts = table.tags.counts();
    assert_eq!((table.open.get(), table.registrations.get(), counts.pages, counts.tags), (0, 1, 2, 0));
    assert_eq!(table.tags.admits(one, chunk(1, 2)), Err(Refused::Left));
    let (same, _) = table.grant(two, chunk(0, 1), D).unwrap();
    assert!(Rc::ptr_eq(&record, &same), "the record is still the chunk's");
    table.tags.leave(two);
    table.tags.ended(chunk(0, 1));
    table.drop_ended();
    assert_eq!((table.registrations.get(), table.tags.counts().records), (0, 0));
    table.tags.sweep(u64::MAX, 100);
}

#[test]
fn reconnecting_peer_keeps_one_clients_share() {
    let mut table = Table::new(LIMITS);
    let mut chunks = 0;
    for round in 0..20 {
        let client = table.tags.join(HOME);
        while table.grant(client, chunk(chunks, chunks + 1), D + round).is_ok() {
            chunks += 1;
        }
        assert_eq!(table.grant(client, chunk(chunks, chunks + 1), D).unwrap_err(), Refused::Share);
        table.tags.leave(client);
        assert_eq!((table.tags.counts().pages, table.tags.share_of_peer(HOME)), (LIMITS.client_pages, 40));
    }
    // Others have their own, and he has his again when the leases have ended.
    let other = table.tags.join(Peer::Other);
    assert!(table.grant(other, chunk(chunks, chunks + 1), D).is_ok());
    let client = table.tags.join(HOME);
    assert_eq!(table.grant(client, chunk(0, 1), D).map(drop), Ok(()), "what he had he has");
    assert_eq!(table.grant(client, chunk(chunks + 1, chunks + 2), D).unwrap_err(), Refused::Share);
    table.tags.sweep(D, usize::MAX);
    assert_eq!(table.tags.share_of_peer(HOME), 0);
    assert!(table.grant(client, chunk(chunks + 1, chunks + 2), 2 * D).is_ok());
    table.tags.leave(client);
    table.tags.leave(other);
    table.tags.sweep(2 * D, usize::MAX);
    assert_eq!((table.tags.counts().left, table.tags.share_of_peer(Peer::Other)), (0, 0));
}

#[test]
fn departure_does_not_shrink_others_shares() {
    let mut table = Table::new(LIMITS);
    let (one, two) = (table.tags.join(HOME), table.tags.join(HOME));
    for number in 0..20 {
        table.grant(one, chunk(number, number + 1), D).unwrap();
    }
    for number in 20..30 {
        table.grant(two, chunk(number, number + 1), D).unwrap();
    }
    assert_eq!(table.tags.share_of_peer(HOME), 60);
    table.tags.leave(one);
    assert_eq!(table.tags.share_of_peer(HOME), 60, "they are leased still");
    assert_eq!(table.grant(two, chunk(30, 31), D).unwrap_err(), Refused::Share);
    // Chunks that tags have left to follow their keys count as well, and those still in use do not end with a departed
    // client.
    let three = table.tags.join(HOME);
    assert!(table.grant(three, chunk(30, 31), 3 * D).is_ok() && table.replaced(chunk(30, 31), chunk(31, 32)));
    assert!(table.grant(three, chunk(20, 21), 3 * D).is_ok());
    table.tags.leave(two);
    table.tags.sweep(D, usize::MAX);
    assert_eq!((table.tags.share(three), table.tags.share_of_peer(HOME)), (6, 6));
    table.tags.leave(three);
    assert_eq!((table.tags.share_of_peer(HOME), table.tags.counts().left), (6, 3));
    table.tags.sweep(3 * D, usize::MAX);
    assert_eq!((table.tags.share_of_peer(HOME), table.tags.counts().left), (0, 0));
}

#[test]
fn tags_are_bounded_and_extras_discarded() {
    let mut table = Table::new(Limits { client_tags: 2, ..LIMITS });
    let client = table.tags.join(HOME);
    table.grant(client, chunk(0, 1), D).unwrap();
    table.grant(client, chunk(1, 2), D).unwrap();
    assert_eq!(table.grant(client, chunk(2, 3), D).unwrap_err(), Refused::Tags);
    // The fabric's own table may be full as well.
    let registration = Some(Counted::new(&table.registrations));
    table.tags.leave(client);
    let client = table.tags.join(HOME);
    let admitted = table.tags.admits(client, chunk(2, 3)).unwrap();
    let refused = table.tags.grant(client, chunk(2, 3), D, (admitted, registration), Rc::default, |_, _, _| None);
    assert_eq!(refused.map(drop).unwrap_err(), Refused::Tags);
    table.tags.ended(chunk(0, 1));
    table.tags.ended(chunk(1, 2));
    table.drop_ended();
    assert_eq!((table.registrations.get(), table.tags.counts().records), (0, 0));
}

#[test]
fn unregistered_chunk_gets_no_tag() {
    let mut table = Table::new(LIMITS);
    let client = table.tags.join(HOME);
    let admitted = table.tags.admits(client, chunk(0, 1)).unwrap();
    let refused =
        table.tags.grant(client, chunk(0, 1), D, (admitted, None), Rc::default, |_, _, _| panic!("no tag is made"));
    assert_eq!(refused.map(drop).unwrap_err(), Refused::Unregistered);
}

#[test]
fn fixed_tags_end_with_their_lease() {
    let registrations = Rc::default();
    let mut tags: Tags<Fixed> = Tags::new(Limits { afterlife: 0, ..LIMITS });
    let client = tags.join(HOME);
    let admitted = tags.admits(client, chunk(0, 1)).unwrap();
    assert_eq!((admitted.bound, admitted.registers, admitted.clears), (6000, true, false));
    let registration = Some(Counted::new(&registrations));
    tags.grant(client, chunk(0, 1), D, (admitted, registration), || (), |(), _, _| Some(())).unwrap();
    assert!(!tags.follow(chunk(0, 1), chunk(1, 2), |_, _| panic!("nobody asks"), |_| {}));
    tags.sweep(D, 100);
    assert_eq!(tags.counts().tags, 0);
    assert_eq!(tags.counts().records, 1, "as long as the chunk is leased");
    tags.ended(chunk(0, 1));
    assert_eq!(tags.counts().records, 0);
    drop(tags.take_ended());
    assert_eq!(registrations.get(), 0);
}

#[test]
fn chunk_stays_open_until_all_tags_close() {
    let mut tags: Tags<Windowed> = Tags::new(Limits { afterlife: 0, ..LIMITS });
    let clients = [tags.join(HOME), tags.join(HOME)];
    for client in clients {
        let admitted = tags.admits(client, chunk(0, 1)).unwrap();
        let registration = admitted.registers.then(Rc::default);
        tags.grant(client, chunk(0, 1), D, (admitted, registration), || (), |(), held, _| Some(held.clone())).unwrap();
    }
    tags.leave(clients[0]);
    tags.sweep(D, 100);
    assert_eq!(tags.counts().tags, 0);
    let mut closing = tags.take_ended().tags;
    for left in [2, 1] {
        assert_eq!((tags.is_open(chunk(0, 1)), closing.len()), (true, left));
        closing.pop();
    }
    assert!(!tags.is_open(chunk(0, 1)) && !tags.is_open(chunk(1, 2)));
}

#[test]
fn read_reports_count_within_allowance() {
    let mut table = Table::new(LIMITS);
    let (one, two) = (table.tags.join(HOME), table.tags.join(HOME));
    table.grant(one, chunk(0, 1), D).unwrap();
    assert_eq!(table.tags.seen(one, chunk(0, 1).address, 700, D), 700);
    assert_eq!(table.tags.seen(one, chunk(0, 1).address, 700, D), 300);
    assert_eq!(table.tags.seen(two, chunk(0, 1).address, 700, D), 0);
    assert_eq!(table.tags.seen(one, chunk(1, 1).address, 700, 1 << 40), 0);
}

#[test]
fn reads_that_the_fabric_counts_are_told_once() {
    let mut table = Table::new(LIMITS);
    let client = table.tags.join(HOME);
    let records: Vec<_> = (0..10).map(|n| table.grant(client, chunk(n, n + 1), D).unwrap().0).collect();
    for (n, record) in records.iter().enumerate() {
        record.1.store(n as u64, Relaxed);
    }
    let told = |tags: &mut Tags<Rebinding>| {
        let mut told = HashSet::new();
        for _ in 0..4 {
            tags.counted(5, |address, reads| assert!(told.insert((address, reads))));
        }
        told
    };
    let expected: HashSet<_> = (1..10).map(|n| (chunk(n, 0).address, n)).collect();
    assert_eq!(told(&mut table.tags), expected);
    assert!(told(&mut table.tags).is_empty());
}

#[test]
fn stale_promise_grants_no_wider_tag() {
    let mut table = Table::new(LIMITS);
    let (one, other) = (table.tags.join(HOME), table.tags.join(HOME));
    table.grant(one, chunk(0, 1), D).unwrap();
    let promised = table.tags.admits(other, chunk(0, 1)).unwrap();
    assert!(!promised.registers && !promised.clears);
    // The first one's clearing and registration are void now.
    table.tags.leave(one);
    table.tags.ended(chunk(0, 1));
    table.drop_ended();
    let open = table.open.clone();
    let registration = Some(Counted::new(&table.registrations));
    let granted = table.tags.grant(other, chunk(0, 1), D, (promised, registration), Rc::default, |record, _, bound| {
        Some((Counted::new(&open), record.clone(), bound))
    });
    assert_eq!(granted.map(|granted| granted.bound).unwrap_err(), Refused::Unregistered);
}

#[test]
fn limits_no_peer_until_tags_are_short_then_evenly() {
    let limits = Limits { client_pages: LIMITS.pages, divides: true, client_tags: 1000, ..LIMITS };
    let mut table = Table::new(limits);
    let greedy = [table.tags.join(HOME), table.tags.join(HOME)];
    for number in 0..50 {
        table.grant(greedy[number as usize % 2], chunk(number, number + 1), D).unwrap();
    }
    let other = table.tags.join(Peer::Other);
    assert_eq!(table.tags.share_of_peer(HOME), 100, "all there is");
    assert_eq!(table.grant(other, chunk(50, 51), D).unwrap_err(), Refused::Full);
    // A client with more than its share has its leases renewed no more, on any connection.
    assert_eq!(table.grant(greedy[1], chunk(0, 1), 2 * D).unwrap_err(), Refused::Share);
    table.tags.sweep(D, usize::MAX);
    (0..50).for_each(|number| table.tags.ended(chunk(number, number + 1)));
    // However fast he asks, the other has half of it.
    let mut next = 100;
    let mut take = |table: &mut Table, client: Client| {
        next += 1;
        table.grant(client, chunk(next, next), 3 * D).map(drop)
    };
    for turn in 0..100 {
        let _ = (take(&mut table, greedy[turn % 2]), take(&mut table, greedy[turn % 2]));
        let _ = take(&mut table, other);
    }
    assert_eq!((table.tags.share_of_peer(HOME), table.tags.share_of_peer(Peer::Other)), (50, 50));
    // With enough pages, there are no shares.
    table.tags.leave(other);
    table.tags.sweep(3 * D, usize::MAX);
    (0..next + 1).for_each(|number| table.tags.ended(chunk(number, number)));
    for number in 1000..1050 {
        table.grant(greedy[0], chunk(number, number), 4 * D).unwrap();
    }
}

#[test]
fn what_is_pinned_has_the_limits_that_it_had() {
    let lease = std::time::Duration::from_secs(1);
    let pinned = Limits::of(1000, true, 125, lease, false);
    assert_eq!((pinned.pages, pinned.client_pages, pinned.divides), (500, 125, false));
    let unpinned = Limits::of(1000, false, 125, lease, false);
    assert_eq!((unpinned.pages, unpinned.client_pages, unpinned.divides), (875, 875, true));
    assert_eq!(Limits::of(1000, false, 9000, lease, false).pages, 500, "half of it at least");
}
