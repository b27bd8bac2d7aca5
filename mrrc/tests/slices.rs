//! Buffers in slices and in blocks: where they are cut, which key each part has, and what is refused.

#![allow(unsafe_code, reason = "memory is acquired by address")]

mod common;

use common::*;
use mrrc::cache::{BlocksError, NoKey};
use mrrc::policy::Overlap;
use mrrc::{Access, AcquireError, BuildError, Cache, Config, ConfigError, Lease, PAGE};

const SLICE: u64 = 8;

fn sliced(
    device: &Device,
    set: impl FnOnce(mrrc::cache::Builder<Device>) -> mrrc::cache::Builder<Device>,
) -> Cache<Device> {
    set(builder(device, 1000).slice_bytes(SLICE * PAGE)).build().unwrap()
}

fn in_blocks(cache: &Cache<Device>, first: u64, bytes: usize, block: usize) -> Result<Lease<Device>, AcquireError> {
    // SAFETY: the device is simulated, and makes no transfer.
    unsafe { cache.acquire_blocks(address(first), bytes, block, Access::LOCAL) }
}

fn bytes(pages: u64) -> usize {
    (pages * PAGE) as usize
}

fn lengths(lease: &Lease<Device>) -> Vec<usize> {
    lease.segments().map(|segment| segment.len() / PAGE as usize).collect()
}

#[test]
fn long_buffers_are_cut_at_multiples_of_a_slice() {
    let device = device();
    let cache = sliced(&device, |builder| builder);
    let lease = ask(&cache, 1005, 20, Access::LOCAL).unwrap();
    assert_eq!(lengths(&lease), [3, 8, 8, 1]);
    // Offset 3 pages is the first line.
    let at = bytes(3);
    assert_eq!(lease.key_for(0, at + 1).unwrap_err(), NoKey::Straddles { offset: 0, end: at + 1, at });
    assert!(lease.key_for(at, bytes(8)).is_ok());
    // Short ones are cut there, too, and find what is registered.
    assert_eq!(lengths(&ask(&cache, 1014, 4, Access::LOCAL).unwrap()), [2, 2]);
    assert_eq!(cache.counters().attempts, 4);
}

#[test]
fn one_key_is_whole_or_refused_with_the_remedy() {
    let device = device();
    let cache = sliced(&device, |builder| builder.max_segments(1));
    assert_eq!(lengths(&ask(&cache, 1005, 8, Access::LOCAL).unwrap()), [8]);
    let error = ask(&cache, 1005, 9, Access::LOCAL).unwrap_err();
    assert!(matches!(error, AcquireError::TooLarge { needed: 2, limit: 1, unit: "segments", .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("max_segments, MRRC_MAX_SEGMENTS") && error.contains("slice_bytes, MRRC_SLICE"), "{error}");
    assert_eq!(device.counts().reg_attempts, 1);
}

#[test]
fn more_segments_than_allowed_are_refused() {
    let cache = sliced(&device(), |builder| builder.max_segments(2));
    assert_eq!(lengths(&ask(&cache, 1000, 16, Access::LOCAL).unwrap()), [8, 8]);
    let error = ask(&cache, 2003, 16, Access::LOCAL).unwrap_err();
    assert!(matches!(error, AcquireError::TooLarge { needed: 3, limit: 2, unit: "segments", .. }), "{error}");
}

#[test]
fn each_block_has_one_key() {
    let device = device();
    let cache = sliced(&device, |builder| builder);
    // Regions that end within blocks are there already.
    drop(ask(&cache, 1001, 2, Access::LOCAL).unwrap());
    drop(ask(&cache, 1030, 5, Access::LOCAL).unwrap());
    let (block, all) = (6 << 10, bytes(40));
    let lease = in_blocks(&cache, 1000, all, block).unwrap();
    for offset in (0..all).step_by(block) {
        assert!(lease.key_for(offset, block.min(all - offset)).is_ok(), "block at {offset} of {lease:?}");
    }
    // Pages meet blocks at each third.
    assert!(lengths(&lease).iter().all(|&pages| pages <= 6), "{:?}", lengths(&lease));
    let before = device.counts().reg_attempts;
    drop(in_blocks(&cache, 1000, all, block).unwrap());
    assert_eq!(device.counts().reg_attempts, before, "the second time it is there");
}

#[test]
fn blocks_may_begin_within_a_page() {
    let cache = sliced(&device(), |builder| builder);
    let (block, blocks) = (3000, 20);
    let begin = address(1000).wrapping_add(1000);
    // SAFETY: the device is simulated, and makes no transfer.
    let lease = unsafe { cache.acquire_blocks(begin, block * blocks, block, Access::LOCAL) };
    // Blocks of 3,000 bytes meet pages each 375 pages: more than a slice has.
    let error = lease.unwrap_err();
    let AcquireError::Blocks { block: 3000, source: BlocksError::Bounds { limit: SLICE }, .. } = error else {
        panic!("{error}")
    };
    // Fewer of them are one region, on both sides of a line.
    // SAFETY: the device is simulated, and makes no transfer.
    let lease = unsafe { cache.acquire_blocks(begin, block * 10, block, Access::LOCAL) }.unwrap();
    assert_eq!(lease.segments().count(), 1);
}

#[test]
fn blocks_that_cannot_be_are_refused() {
    let cache = sliced(&device(), |builder| builder);
    let refused = |result: Result<Lease<Device>, AcquireError>| match result.unwrap_err() {
        AcquireError::Blocks { source, .. } => source,
        error => panic!("{error}"),
    };
    assert_eq!(refused(in_blocks(&cache, 1000, bytes(1), 0)), BlocksError::Empty);
    assert_eq!(refused(in_blocks(&cache, 1000, bytes(20), bytes(9))), BlocksError::Bounds { limit: SLICE });
    let merges = Config { overlap: Some(Overlap::Merge), ..Config::new(0) };
    let cache = builder(&device(), 1000).config(merges.clone()).build().unwrap();
    assert_eq!(refused(in_blocks(&cache, 1000, bytes(1), bytes(1))), BlocksError::Policy);
    let error = builder(&device(), 1000).config(merges).slice_bytes(SLICE * PAGE).build().unwrap_err();
    assert!(matches!(error, BuildError::Config(ConfigError::Slices)), "{error}");
}

#[test]
fn leases_keep_the_regions_that_blocks_replace() {
    let device = device();
    let cache = sliced(&device, |builder| builder);
    let held = ask(&cache, 1000, 3, Access::LOCAL).unwrap();
    let lease = in_blocks(&cache, 1000, bytes(8), bytes(2)).unwrap();
    assert_eq!((lengths(&held), lengths(&lease)), (vec![3], vec![8]));
    assert_eq!(device.counts().pages, 11);
    drop(held);
    cache.reap().unwrap();
    assert_eq!(device.counts().pages, 8);
}

#[test]
fn threads_with_blocks_each_get_whole_ones() {
    let cache = sliced(&device(), |builder| builder);
    std::thread::scope(|threads| {
        for thread in 0..4_u64 {
            let cache = &cache;
            threads.spawn(move || {
                let mut numbers = Numbers(thread);
                for _ in 0..4000 {
                    let (first, pages) = (1000 + numbers.below(16), 1 + numbers.below(16));
                    let (block, all) = (bytes(1 + numbers.below(4)), bytes(pages));
                    let lease = in_blocks(cache, first, all, block).unwrap();
                    for offset in (0..all).step_by(block) {
                        assert!(
                            lease.key_for(offset, block.min(all - offset)).is_ok(),
                            "{block} at {offset}: {lease:?}"
                        );
                    }
                }
            });
        }
    });
}
