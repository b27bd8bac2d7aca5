//! Several caches on one budget: which of them makes room.

mod common;

use common::{Device, all_hit, ask, builder, device, fill, is_hit, take};
use mrrc::cache::Budget;
use mrrc::{Access, Cache, PAGE};
use std::thread;

const LIMIT: u64 = 400;

fn caches<const N: usize>(budget: &Budget) -> [(Device, Cache<Device>); N] {
    std::array::from_fn(|_| {
        let device = device();
        let cache = builder(&device, LIMIT).budget(budget).build().unwrap();
        (device, cache)
    })
}

/// Requests that hit, of so many over these pages, one after the other.
fn cycle(cache: &Cache<Device>, requests: u64, pages: u64) -> u64 {
    (0..requests).filter(|nth| is_hit(cache, nth % pages, 1)).count() as u64
}

#[test]
fn an_idle_cache_gives_way() {
    let budget = Budget::new(LIMIT);
    let [(_, idle), (_, active)] = caches(&budget);
    fill(&idle, LIMIT, 1);
    assert_eq!(budget.pages(), LIMIT);
    // Until it is known for idle it gives half; then all that is not guaranteed.
    assert!(cycle(&active, 1000, 250) > 500);
    assert_eq!(cycle(&active, 1000, 250), 1000);
    // It keeps its guarantee.
    assert!(idle.usage().pages >= LIMIT / 4 && budget.pages() <= LIMIT, "{}", idle.usage());
}

#[test]
fn a_flood_leaves_others_their_share() {
    let budget = Budget::new(LIMIT);
    let [(_, quiet), (_, flood)] = caches(&budget);
    let share = LIMIT / 4;
    fill(&quiet, share, 1);
    let mut hits = 0;
    for request in 0..4000 {
        drop(take(&flood, request, 1));
        hits += u64::from(is_hit(&quiet, request % share, 1));
    }
    assert_eq!((hits, quiet.usage().pages), (4000, share));
    assert!(budget.pages() <= LIMIT && flood.usage().pages > LIMIT / 2);
}

#[test]
fn caches_that_need_all_share_it() {
    let budget = Budget::new(LIMIT);
    let [(_, one), (_, two), (_, three)] = caches(&budget);
    for request in 0..4000 {
        for cache in [&one, &two, &three] {
            drop(take(cache, request, 1));
        }
        assert!(budget.pages() <= LIMIT);
    }
    for cache in [&one, &two, &three] {
        assert!(cache.usage().pages >= LIMIT / 6, "{}", cache.usage());
    }
}

#[test]
fn what_leases_have_stays() {
    let budget = Budget::new(LIMIT);
    let [(_, first), (device, second)] = caches(&budget);
    let held: Vec<_> = (0..LIMIT).map(|page| take(&first, page, 1)).collect();
    let error = ask(&second, 0, 1, Access::LOCAL).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("400 of 400 pages are registered by the caches of this budget"), "{said}");
    assert_eq!((device.counts().regs, second.usage().pages), (0, 0));
    drop(held);
    drop(take(&second, 0, 1));
    assert!(all_hit(&second, 1, 1));
}

#[test]
fn a_cache_that_ends_gives_all_back() {
    let budget = Budget::new(LIMIT);
    let [(_, first), (_, second)] = caches(&budget);
    fill(&first, LIMIT, 1);
    drop(first);
    assert_eq!(budget.pages(), 0);
    fill(&second, LIMIT, 1);
    assert_eq!((budget.pages(), second.usage().pages), (LIMIT, LIMIT));
    second.invalidate(common::address(0), (LIMIT * PAGE) as usize).unwrap();
    second.reap().unwrap();
    assert_eq!(budget.pages(), 0);
}

#[test]
fn a_small_cache_that_went_limits_no_other() {
    let (device, budget) = (device(), Budget::default());
    let small = builder(&device, 10).budget(&budget).build().unwrap();
    let large = builder(&device, LIMIT).budget(&budget).build().unwrap();
    assert_eq!(budget.limit(), 10);
    drop(small);
    assert_eq!(budget.limit(), LIMIT);
    fill(&large, LIMIT, 1);
    assert_eq!(large.usage().pages, LIMIT);
    drop(large);
    assert_eq!(budget.limit(), u64::MAX);
    assert_eq!(Budget::new(7).limit(), 7);
}

#[test]
fn the_one_of_many_that_has_room_is_found() {
    let budget = Budget::new(LIMIT);
    let caches: [_; 67] = caches(&budget);
    // All but the last have more, and all of it is in use.
    let (last, others) = caches.split_last().unwrap();
    let held: Vec<_> = others.iter().flat_map(|(_, cache)| (0..6).map(|page| take(cache, page, 1))).collect();
    fill(&last.1, 4, 1);
    assert_eq!(budget.pages(), LIMIT);
    let more: Vec<_> = (0..2).map(|page| take(&others[0].1, 1000 + page, 1)).collect();
    // It keeps its guarantee.
    assert_eq!((budget.pages(), last.1.usage().pages), (LIMIT, LIMIT / 2 / 67));
    drop((held, more));
}

/// Caches come and go while others need their room.
#[test]
fn a_cache_that_ends_while_others_wait_leaves_nothing() {
    let budget = Budget::new(LIMIT);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let ended = &ended;
    thread::scope(|threads| {
        for nth in 0..2 {
            let budget = &budget;
            threads.spawn(move || {
                let device = device();
                let cache = builder(&device, LIMIT).budget(budget).build().unwrap();
                let mut numbers = common::Numbers(nth);
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    // The others may have all of it at this moment.
                    _ = ask(&cache, numbers.below(600), 1 + numbers.below(8), Access::LOCAL);
                    assert!(budget.pages() <= LIMIT);
                }
            });
        }
        for _ in 0..100 {
            let [(_, first), (_, second)] = caches(&budget);
            for page in 0..50 {
                let held = ask(&first, page, 1, Access::LOCAL);
                _ = ask(&second, page, 8, Access::LOCAL);
                drop(held);
            }
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!((budget.pages(), budget.limit()), (0, LIMIT));
}

#[test]
fn threads_of_many_caches_keep_to_it() {
    let budget = Budget::new(LIMIT);
    let caches: [_; 4] = caches(&budget);
    thread::scope(|threads| {
        for (nth, (_, cache)) in caches.iter().enumerate() {
            for thread in 0..2 {
                let budget = &budget;
                threads.spawn(move || {
                    let mut numbers = common::Numbers(10 * nth as u64 + thread);
                    for _ in 0..3000 {
                        let (page, pages) = (numbers.below(500), 1 + numbers.below(8));
                        // Others may have all of it at this moment.
                        _ = ask(cache, page, pages, Access::LOCAL);
                        assert!(budget.pages() <= LIMIT);
                    }
                });
            }
        }
    });
    for (device, cache) in &caches {
        cache.flush().unwrap();
        assert_eq!(device.counts().pages, 0);
    }
    assert_eq!(budget.pages(), 0);
}

#[test]
fn what_is_larger_than_the_limit_drives_nothing_out() {
    let (device, budget) = (device(), Budget::default());
    let small = builder(&device, 10).budget(&budget).build().unwrap();
    let large = builder(&device, LIMIT).budget(&budget).build().unwrap();
    fill(&large, 4, 1);
    fill(&small, 6, 1);
    let error = ask(&large, 100, 11, Access::LOCAL).unwrap_err().to_string();
    assert_eq!((large.usage().pages, small.usage().pages), (4, 6));
    assert!(all_hit(&large, 4, 1) && all_hit(&small, 6, 1));
    assert!(error.contains("11 pages") && error.contains("10 together"), "{error}");
}
