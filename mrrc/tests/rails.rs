//! Several devices behind one cache: what each of them has registered, after everything that the cache does.

#![allow(unsafe_code, reason = "memory is acquired by address")]

use mrrc::cost::Linear;
use mrrc::invalidation::Explicit;
use mrrc::registrar::rails::{MOST, RailError, RailKeys, RailSet, Rails};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::testing::{AddressSpace, FakeNic, Fault, Model, NoopRegistrar, Transfer};
use mrrc::{Access, Cache, PAGE, PageRange};
use proptest::prelude::*;
use std::sync::Barrier;

#[path = "common/pins.rs"]
mod pins;

type Card = Model<FakeNic>;

/// Cards over one memory, of which all is mapped, and the rails that they are.
fn cards(count: usize) -> (AddressSpace, Vec<Card>, Rails<Card>) {
    let space = AddressSpace::new(4096);
    space.map(PageRange::new(0, 2048).unwrap()).unwrap();
    let cards: Vec<_> = (0..count).map(|_| Model::over(Linear::PAPER, FakeNic::new(&space))).collect();
    let rails = Rails::new(cards.clone()).unwrap();
    (space, cards, rails)
}

fn pinned(cards: &[Card]) -> Vec<u64> {
    cards.iter().map(|card| card.device().pinned_pages()).collect()
}

fn pages(first: u64, pages: u64) -> PageRange {
    PageRange::new(first, pages).unwrap()
}

fn registered<R: Registrar>(rails: &Rails<R>, range: PageRange) -> Registered<RailKeys<R>> {
    Registered { range, access: Access::LOCAL, registration: rails.register(range, Access::LOCAL).unwrap() }
}

fn gone(error: &RailError) -> Option<usize> {
    if let RailError::Gone { rail } = error { Some(*rail) } else { None }
}

#[test]
fn each_rail_has_a_key_that_its_card_knows() {
    let (space, cards, rails) = cards(3);
    let region = registered(&rails, pages(16, 4));
    assert_eq!(pinned(&cards), [4, 4, 4]);
    for (rail, card) in cards.iter().enumerate() {
        let send = Transfer::read(region.registration.key(rail).unwrap().key(), 16 * PAGE, 100);
        card.device().perform(&send, &space.begin()).unwrap();
    }
    let mut batch = vec![region];
    rails.deregister(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(pinned(&cards), [0, 0, 0]);
}

#[test]
fn other_rails_register_when_asked() {
    let (_, cards, rails) = cards(3);
    let rails = rails.at_once(RailSet::of(&[1]));
    let region = registered(&rails, pages(0, 2));
    assert_eq!(pinned(&cards), [0, 2, 0]);
    region.registration.key(2).unwrap();
    region.registration.key(2).unwrap();
    assert_eq!((pinned(&cards), cards[2].counts().regs), (vec![0, 2, 2], 1));
    region.registration.fill(RailSet::ALL).unwrap();
    assert_eq!((pinned(&cards), region.registration.filled()), (vec![2, 2, 2], RailSet::of(&[0, 1, 2])));
    rails.deregister(&mut vec![region]).unwrap();
    assert_eq!(pinned(&cards), [0, 0, 0]);
}

#[test]
fn threads_that_ask_at_once_register_once() {
    let (_, cards, rails) = cards(2);
    let rails = rails.at_once(RailSet::EMPTY);
    let region = registered(&rails, pages(0, 1024));
    let begin = Barrier::new(4);
    std::thread::scope(|threads| {
        for nth in 0..4 {
            let (begin, keys) = (&begin, &region.registration);
            threads.spawn(move || {
                begin.wait();
                if nth % 2 == 0 { keys.fill(RailSet::ALL).unwrap() } else { keys.key(1).map(|_| ()).unwrap() }
            });
        }
    });
    assert_eq!((cards[0].counts().regs, cards[1].counts().regs), (1, 1));
}

#[test]
fn one_decision_evicts_from_all_rails() {
    let cards: Vec<_> = (0..2).map(|_| Model::new(Linear::PAPER)).collect();
    let rails = Rails::new(cards.clone()).unwrap();
    let cache = Cache::builder(rails).monitor(Explicit).capacity_pages(8).ignore_environment().build().unwrap();
    let arena = cache.arena(64 << 10).unwrap();
    for page in 0..16 {
        drop(arena.acquire(page << 12..(page + 1) << 12, Access::LOCAL).unwrap());
        let now = counts(&cards);
        assert_eq!(now[0], now[1], "both rails have the same regions");
        assert!(now[0].0 - now[0].1 <= 8);
    }
    cache.flush().unwrap();
    assert_eq!(counts(&cards), [(16, 16), (16, 16)]);
}

/// Registrations and deregistrations of each card.
fn counts<R>(cards: &[Model<R>]) -> Vec<(u64, u64)>
where
    Model<R>: Registrar,
{
    cards.iter().map(|card| (card.counts().regs, card.counts().deregs)).collect()
}

#[test]
fn a_refusal_of_one_rail_leaves_no_key_on_others() {
    let (_, cards, rails) = cards(3);
    cards[1].fail_register(Fault::always(libc::ENOMEM));
    let refused = rails.register(pages(0, 4), Access::LOCAL).unwrap_err();
    assert_eq!((refused.raw_os_error(), pinned(&cards)), (Some(libc::ENOMEM), vec![0, 0, 0]));
    // Those that registered it do not take it back: it is tried again, and meanwhile bounded.
    cards[0].fail_deregister(Fault::always(libc::EBUSY));
    let refusals: Vec<_> = (0..100).map(|_| rails.register(pages(0, 4), Access::LOCAL).unwrap_err()).collect();
    assert_eq!(pinned(&cards), [64 * 4, 0, 0]);
    assert_eq!(refusals.last().unwrap().raw_os_error(), Some(libc::EAGAIN));
    cards[0].heal();
    cards[1].heal();
    let region = registered(&rails, pages(0, 4));
    assert_eq!(pinned(&cards), [4, 4, 4]);
    rails.deregister(&mut vec![region]).unwrap();
    assert_eq!(pinned(&cards), [0, 0, 0]);
}

#[test]
fn a_lost_rail_takes_its_keys_alone() {
    let (_, cards, rails) = cards(3);
    let (before, kept) = (registered(&rails, pages(0, 2)), registered(&rails, pages(8, 2)));
    rails.lose(1);
    assert_eq!(rails.lost(), RailSet::of(&[1]));
    assert_eq!(gone(&before.registration.key(1).unwrap_err()), Some(1));
    assert!(before.registration.key(0).is_ok() && before.registration.key(2).is_ok());
    let after = registered(&rails, pages(4, 2));
    assert_eq!((pinned(&cards), after.registration.filled()), (vec![6, 4, 6], RailSet::of(&[0, 2])));
    assert_eq!(gone(&after.registration.key(1).unwrap_err()), Some(1));
    // Its device answers nothing any more, and no region stays for that.
    cards[1].fail_deregister(Fault::always(libc::EIO));
    let mut batch = vec![before, after, kept];
    rails.deregister(&mut batch).unwrap();
    assert_eq!((batch.len(), pinned(&cards)), (0, vec![0, 4, 0]));
    rails.lose(0);
    rails.lose(2);
    assert!(rails.is_gone());
    let refused = rails.register(pages(0, 1), Access::LOCAL).unwrap_err();
    assert!(refused.to_string().contains("all rails are gone"), "{refused}");
}

#[test]
fn wrong_numbers_and_counts_are_refused() {
    let none = Rails::<NoopRegistrar>::new(Vec::new()).unwrap_err();
    assert_eq!(none.to_string(), "0 rails: one cache has from 1 to 16 of them");
    assert!(matches!(Rails::new(vec![NoopRegistrar::new(); MOST + 1]), Err(RailError::Count { rails: 17 })));
    let rails = Rails::new(vec![NoopRegistrar::new(); MOST]).unwrap();
    let keys = rails.register(pages(0, 1), Access::LOCAL).unwrap();
    assert_eq!(keys.filled(), RailSet::ALL);
    assert!(keys.key(MOST - 1).is_ok());
    let refused = keys.key(MOST).unwrap_err().to_string();
    assert_eq!(refused, "there is no rail 16: they are numbered from 0, and there are 16");
    assert_eq!(RailSet::of(&[0, 3, MOST, usize::MAX]), RailSet::of(&[3, 0]));
    rails.lose(MOST);
    assert!(rails.lost().is_empty());
}

#[test]
fn limits_are_those_that_all_rails_keep() {
    let limits = |regions, pages, page_size| Limits { regions, pages, region_pages: pages, page_size };
    let of = |limits| Model::over(Linear::PAPER, NoopRegistrar::with_limits(limits));
    let cards = vec![of(limits(Some(10), Some(90), PAGE)), of(limits(None, Some(60), 2 * PAGE)), of(Limits::NONE)];
    cards[0].grant(Access::LOCAL | Access::REMOTE_READ);
    cards[1].grant(Access::LOCAL | Access::REMOTE_WRITE);
    let rails = Rails::new(cards).unwrap();
    assert_eq!(rails.rights(), Access::LOCAL);
    // Pins are counted for each rail: what all three can have is a third.
    assert_eq!(rails.limits(), Limits { region_pages: Some(60), ..limits(Some(10), Some(20), 2 * PAGE) });
}

#[test]
fn a_refused_key_is_asked_for_again() {
    let (_, cards, rails) = cards(2);
    let region = registered(&rails.clone().at_once(RailSet::of(&[0])), pages(0, 4));
    cards[1].fail_register(Fault::next(1, libc::ENOMEM));
    let refused = region.registration.key(1).unwrap_err();
    assert_eq!(refused.to_string(), "rail 1 did not register 0x0..0x4000 (4 pages)");
    assert!(region.registration.key(0).is_ok());
    region.registration.key(1).unwrap();
    rails.deregister(&mut vec![region]).unwrap();
    assert_eq!(pinned(&cards), [0, 0]);
}

#[derive(Clone, Debug)]
enum Step {
    Register { first: u64, pages: u64 },
    Key { region: prop::sample::Index, rail: usize },
    Deregister { from: prop::sample::Index, count: usize },
    Refuse { rail: usize, registers: bool },
    Heal,
    Lose { rail: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..64_u64, 1..8_u64).prop_map(|(first, pages)| Step::Register { first, pages }),
        6 => (any::<prop::sample::Index>(), 0..3_usize).prop_map(|(region, rail)| Step::Key { region, rail }),
        6 => (any::<prop::sample::Index>(), 1..6_usize).prop_map(|(from, count)| Step::Deregister { from, count }),
        2 => (0..3_usize, any::<bool>()).prop_map(|(rail, registers)| Step::Refuse { rail, registers }),
        2 => Just(Step::Heal),
        1 => (0..3_usize).prop_map(|rail| Step::Lose { rail }),
    ]
}

proptest! {
    /// Each card pins at least what the regions show, whatever is refused meanwhile, and nothing at the end. A lost card is
    /// not asked any more.
    #[test]
    fn pins_are_those_of_the_regions(steps in prop::collection::vec(step(), 1..80), at_once in 0..8_usize) {
        let (_, cards, rails) = cards(3);
        let set: Vec<_> = (0..3).filter(|rail| at_once >> rail & 1 == 1).collect();
        let rails = rails.at_once(RailSet::of(&set));
        let mut regions: Vec<Registered<RailKeys<Card>>> = Vec::new();
        for step in steps {
            match step {
                Step::Register { first, pages: count } => {
                    let range = pages(first, count);
                    if let Ok(registration) = rails.register(range, Access::LOCAL) {
                        regions.push(Registered { range, access: Access::LOCAL, registration });
                    }
                }
                Step::Key { region, rail } if !regions.is_empty() => {
                    let _ = region.get(&regions).registration.key(rail);
                }
                Step::Deregister { from, count } if !regions.is_empty() => {
                    let from = from.index(regions.len());
                    let mut batch: Vec<_> = regions.drain(from..regions.len().min(from + count)).collect();
                    let failed = rails.deregister(&mut batch).is_err();
                    prop_assert!(failed || batch.is_empty());
                    regions.append(&mut batch);
                }
                Step::Refuse { rail, registers: true } => cards[rail].fail_register(Fault::chance(0.5, 7, libc::ENOMEM)),
                Step::Refuse { rail, registers: false } => cards[rail].fail_deregister(Fault::chance(0.5, 7, libc::EBUSY)),
                Step::Heal => cards.iter().for_each(Card::heal),
                Step::Lose { rail } => rails.lose(rail),
                Step::Key { .. } | Step::Deregister { .. } => {}
            }
            for rail in (0..3).filter(|&rail| !rails.lost().contains(rail)) {
                let of_regions = regions.iter().filter(|region| region.registration.filled().contains(rail));
                let least: u64 = of_regions.map(|region| region.range.pages()).sum();
                prop_assert!(cards[rail].device().pinned_pages() >= least, "rail {} lost a region's pins", rail);
            }
        }
        cards.iter().for_each(Card::heal);
        rails.deregister(&mut regions).unwrap();
        prop_assert!(regions.is_empty());
        for rail in (0..3).filter(|&rail| !rails.lost().contains(rail)) {
            prop_assert_eq!(cards[rail].device().pinned_pages(), 0, "rail {}", rail);
        }
    }
}

/// Real pins: two rings, as two cards are.
#[cfg(all(feature = "io-uring", target_os = "linux"))]
mod rings {
    use super::*;
    use ::io_uring::IoUring;
    use mrrc::registrar::io_uring::{IoUringBuffers, IoUringError};

    use super::pins;

    fn table() -> Option<IoUringBuffers> {
        let ring =
            IoUring::new(8).inspect_err(|error| println!("not run: no io_uring for this process ({error})")).ok()?;
        match IoUringBuffers::new(&ring, 64) {
            Ok(table) => Some(table),
            Err(IoUringError::Refused { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                println!("not run: this kernel has no sparse tables of buffers (Linux 5.19)");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn eight_buffers_are_sixteen_pins_and_end_together() {
        let (Some(one), Some(other)) = (table(), table()) else { return };
        let rails = Rails::new(vec![one, other]).unwrap();
        let before = pins::pinned();
        let cache = Cache::builder(rails.clone()).monitor(Explicit).ignore_environment().build().unwrap();
        let mut buffers: Vec<_> = (0..8).map(|_| cache.arena(64 << 10).unwrap()).collect();
        for buffer in &buffers {
            let lease = buffer.acquire(0..64 << 10, Access::LOCAL).unwrap();
            assert!(lease.segments().all(|segment| segment.registration().filled() == RailSet::of(&[0, 1])));
        }
        assert_eq!(cache.counters().attempts, 8);
        pins::comes_to(before + 2 * 8 * 16);
        drop(buffers.pop());
        cache.reap().unwrap();
        pins::comes_to(before + 2 * 7 * 16);
        rails.lose(0);
        drop((buffers, cache));
        pins::comes_to(before);
    }
}

#[test]
fn cut_buffers_have_keys_of_all_rails() {
    let (space, cards, rails) = cards(3);
    let cache = Cache::builder(rails).monitor(Explicit).slice_bytes(8 * PAGE).build().unwrap();
    let length = (20 * PAGE) as usize;
    // SAFETY: no card makes a transfer but those below, and nothing is unmapped.
    let lease = unsafe { cache.acquire(std::ptr::without_provenance((5 * PAGE) as usize), length, Access::LOCAL) };
    let lease = lease.unwrap();
    assert_eq!(lease.segments().map(|segment| segment.len() as u64 / PAGE).collect::<Vec<_>>(), [3, 8, 8, 1]);
    assert_eq!(pinned(&cards), [20, 20, 20]);
    let lines = [(0, 3), (3, 8), (11, 8), (19, 1)];
    for (offset, pages) in lines {
        let keys = lease.key_for((offset * PAGE) as usize, (pages * PAGE) as usize).unwrap();
        for (rail, card) in cards.iter().enumerate() {
            let read = Transfer::read(keys.key(rail).unwrap().key(), (5 + offset) * PAGE, pages * PAGE);
            card.device().perform(&read, &space.begin()).unwrap();
            let beyond = Transfer::read(keys.key(rail).unwrap().key(), (5 + offset) * PAGE, pages * PAGE + 1);
            assert!(card.device().perform(&beyond, &space.begin()).is_err(), "rail {rail} goes beyond its slice");
        }
    }
    drop(lease);
    cache.invalidate(std::ptr::without_provenance((13 * PAGE) as usize), 1).unwrap();
    cache.reap().unwrap();
    // One slice goes from all rails, and the others stay.
    assert_eq!(pinned(&cards), [12, 12, 12]);
}
