//! Every general policy, and ours, under leases and invalidations: the limits hold, and nothing is lost.

use crate::random::Random;
use mrrc_core::policy::Matching;
use mrrc_core::{Config, Core, PageRange, Part, RegionId};
use tracesim_policies::AnyPolicy;

pub(crate) const GENERAL: [AnyPolicy; 10] = [
    AnyPolicy::Fifo,
    AnyPolicy::Sieve,
    AnyPolicy::S3Fifo,
    AnyPolicy::Gdsf,
    AnyPolicy::LruK,
    AnyPolicy::TwoQ,
    AnyPolicy::Arc,
    AnyPolicy::Lirs,
    AnyPolicy::WTinyLfu,
    AnyPolicy::Probation,
];

fn each(mut test: impl FnMut(AnyPolicy, Config)) {
    for policy in GENERAL {
        for matching in [Matching::Contain, Matching::Exact] {
            for capacity in [8, 60, 300] {
                test(policy, Config { matching: Some(matching), ..Config::new(capacity) });
            }
        }
    }
}

/// Asks, and holds the regions that answer. `None` if all that could leave is in use.
fn lease(core: &mut Core, asked: PageRange) -> Option<Vec<RegionId>> {
    let outcome = core.request(asked).ok()?;
    let held: Vec<_> = outcome.parts().iter().filter_map(Part::region).collect();
    held.iter().for_each(|&id| core.hold(id));
    Some(held)
}

#[test]
fn limits_hold_under_random_leases_and_invalidations() {
    each(|policy, config| {
        let mut core = policy.core(&config).unwrap();
        let mut random = Random::new(config.capacity);
        let mut leases: Vec<Vec<RegionId>> = Vec::new();
        let mut refused = 0;
        for _ in 0..3_000 {
            let asked = PageRange::new(random.below(600), 1 + random.below(8)).unwrap();
            match random.below(20) {
                0 => _ = core.invalidate(asked),
                1..8 if !leases.is_empty() => {
                    let lease = leases.swap_remove(random.below(leases.len() as u64) as usize);
                    lease.into_iter().for_each(|id| _ = core.release(id));
                }
                8..16 => match lease(&mut core, asked) {
                    Some(held) => leases.push(held),
                    None => refused += 1,
                },
                _ => _ = core.request(asked),
            }
            assert!(core.used_pages() <= config.capacity, "{policy} {config:?}");
            let pages: u64 = core.cached().map(|(_, range)| range.pages()).sum();
            assert!(pages <= core.used_pages(), "{policy} {config:?}");
        }
        assert!(refused > 0 || config.capacity > 60, "{policy} {config:?}: some requests find all in use");
        leases.into_iter().flatten().for_each(|id| _ = core.release(id));
        // No region is held now, so everything can leave.
        let all = PageRange::new(10_000, config.capacity).unwrap();
        core.request(all).unwrap();
        assert_eq!((core.used_pages(), core.used_regions()), (config.capacity, 1), "{policy} {config:?}");
    });
}

#[test]
fn fully_held_cache_refuses_then_recovers() {
    each(|policy, config| {
        let mut core = policy.core(&config).unwrap();
        for round in 0..3 {
            let mut leases = Vec::new();
            for i in 0..config.capacity {
                leases.extend(lease(&mut core, PageRange::new(1000 * round + 2 * i, 1).unwrap()).unwrap());
            }
            assert_eq!((core.used_pages(), core.held_pages()), (config.capacity, config.capacity));
            for i in 0..5 {
                assert!(core.request(PageRange::new(90_000 + i, 1).unwrap()).is_err(), "{policy} {config:?}");
            }
            leases.into_iter().for_each(|id| _ = core.release(id));
            for i in 0..2 * config.capacity {
                core.request(PageRange::new(50_000 + 2 * i, 1).unwrap()).unwrap();
            }
            // Batches leave some room.
            let least = if policy == AnyPolicy::Probation { config.capacity / 2 } else { config.capacity };
            assert!(core.used_pages() >= least && core.held_pages() == 0, "{policy} {config:?}");
        }
    });
}

/// Long leases: evictions pass over their regions, which take their place again when the leases end, in any order.
#[test]
fn very_many_long_leases_end_in_any_order() {
    const LEASES: u64 = 20_000;
    for policy in GENERAL.into_iter().chain([AnyPolicy::Mrrc]) {
        let mut core = policy.core(&Config { evict: 0.0, ..Config::new(LEASES + 1) }).unwrap();
        let mut held = Vec::new();
        for i in 0..LEASES {
            held.extend(lease(&mut core, PageRange::new(2 * i, 1).unwrap()).unwrap());
        }
        let ask = |core: &mut Core, i: u64| {
            core.request(PageRange::new((1 << 30) + 2 * i, 1).unwrap()).unwrap().batches().count()
        };
        // All but one are in use: that one leaves each time.
        assert_eq!((0..10).map(|i| ask(&mut core, i)).sum::<usize>(), 9, "{policy}");
        // The first half in its order, the other the other way round.
        let (first, second) = held.split_at(held.len() / 2);
        first.iter().chain(second.iter().rev()).for_each(|&id| _ = core.release(id));
        assert_eq!((core.held_pages(), core.used_pages()), (0, LEASES + 1), "{policy}");
        assert!((10..1000).map(|i| ask(&mut core, i)).sum::<usize>() > 0, "{policy}");
    }
}

#[test]
fn memory_does_not_grow_with_what_passed_through() {
    for policy in GENERAL {
        let mut core = policy.core(&Config::new(200)).unwrap();
        let mut random = Random::new(7);
        let mut pass = |core: &mut Core| {
            for i in 0..20_000 {
                let start = if i % 3 == 0 { random.below(1 << 40) } else { random.below(800) };
                core.request(PageRange::new(start, 1 + random.below(6)).unwrap()).unwrap();
            }
            core.memory()
        };
        let (first, second) = (pass(&mut core), pass(&mut core));
        assert!(second <= 2 * first && second < 200 * 600, "{policy}: {first}, then {second} bytes");
    }
}

#[test]
fn the_largest_and_smallest_capacities_are_no_trap() {
    for policy in GENERAL {
        for capacity in [1, 2, u64::MAX] {
            let mut core = policy.core(&Config::new(capacity)).unwrap();
            for i in 0..50 {
                core.request(PageRange::new(i * i % 13, 1 + i % 2).unwrap()).unwrap();
                assert!(core.used_pages() <= capacity);
            }
        }
        assert!(policy.core(&Config::new(0)).is_err());
    }
}
