//! The index against a map that does the same slowly, and the forms that it takes.

use super::*;
use proptest::prelude::*;

/// Ranges of all scales, clustered so that leaves fork and rejoin.
fn ranges() -> impl Strategy<Value = PageRange> {
    let start = prop_oneof![
        4 => 0u64..256,
        4 => (1u64 << 14) - 64..(1 << 14) + 64,
        2 => 0u64..1 << 18,
        1 => 0u64..1 << 51,
    ];
    let pages = prop_oneof![6 => 1u64..4, 4 => 1u64..64, 2 => 1u64..4096, 1 => 1u64..1 << 20, 1 => 1u64..1 << 40];
    (start, pages).prop_map(|(start, pages)| PageRange::new(start, pages).unwrap())
}

/// Forks and leaves in use.
fn lines_taken(index: &Index) -> (usize, usize) {
    index.tree.lines_taken()
}

fn check(index: &Index, regions: &Regions, model: &BTreeMap<u64, RegionId>, probe: PageRange) {
    let overlapping: Vec<_> = model.values().copied().filter(|&id| regions.get(id).range().overlaps(probe)).collect();
    let mut found = Vec::new();
    index.overlaps(probe, regions, &mut found);
    assert_eq!(found, overlapping, "overlaps of {probe:?}");
    let containing = overlapping.into_iter().find(|&id| regions.get(id).range().contains(probe));
    assert_eq!(index.find(probe, regions), containing, "find {probe:?}");
}

proptest! {
    #![proptest_config(if cfg!(miri) { ProptestConfig::with_cases(2) } else { ProptestConfig::default() })]
    #[test]
    fn finds_what_an_ordered_map_finds(steps in prop::collection::vec((ranges(), any::<bool>()), 1..200)) {
        let mut regions = Regions::new();
        let mut index = Index::new();
        let mut model = BTreeMap::new();
        for (range, removes) in steps {
            let mut found = Vec::new();
            index.overlaps(range, &regions, &mut found);
            if found.is_empty() {
                let id = regions.insert(range);
                index.insert(id, &regions);
                model.insert(range.start(), id);
            } else if removes {
                for id in found {
                    index.remove(id, &regions);
                    model.remove(&regions.get(id).range().start());
                    regions.remove(id);
                }
            }
            check(&index, &regions, &model, range);
            let around = PageRange::between(range.start().saturating_sub(24), range.end() + 24);
            check(&index, &regions, &model, around);
            check(&index, &regions, &model, PageRange::new(range.start(), 1).unwrap());
            check(&index, &regions, &model, PageRange::new(range.end() - 1, 1).unwrap());
        }
        for id in std::mem::take(&mut model).into_values() {
            index.remove(id, &regions);
            regions.remove(id);
        }
        // Nothing leaks: every line is free again and no block is left.
        prop_assert_eq!(lines_taken(&index), (0, 0));
        prop_assert_eq!(index.tree.blocks(), 0);
    }
}

/// The same numbers in another order.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |i| i * 40_503 % count)
}

fn filled(ranges: impl Iterator<Item = PageRange>) -> (Index, Regions, Vec<RegionId>) {
    let (mut regions, mut index) = (Regions::new(), Index::new());
    let insert = |range| {
        let id = regions.insert(range);
        index.insert(id, &regions);
        id
    };
    let ids = ranges.map(insert).collect();
    (index, regions, ids)
}

/// Bytes a region of the lines and places that look-ups read, whatever room the arrays have besides.
fn density(index: &Index, regions: &Regions) -> usize {
    let (forks, leaves) = lines_taken(index);
    ((forks + leaves) * size_of::<leaf::Leaf>() + index.tree.arrays().blocks.memory()) / regions.len()
}

fn check_all_found(index: &Index, regions: &Regions, ids: &[RegionId]) {
    for &id in ids {
        let range = regions.get(id).range();
        for page in [range.start(), range.end() - 1] {
            assert_eq!(index.find(PageRange::new(page, 1).unwrap(), regions), Some(id), "page {page} of {range:?}");
        }
    }
}

#[test]
fn dense_single_pages_stay_small() {
    let (index, regions, ids) = filled((0..65_536).map(|page| PageRange::new(page, 1).unwrap()));
    assert!(index.memory() / ids.len() <= 16, "{} bytes a region", index.memory() / ids.len());
    assert!(density(&index, &regions) <= 12, "{} bytes a region", density(&index, &regions));
    check_all_found(&index, &regions, &ids);
}

#[test]
fn strided_regions_share_leaves() {
    // 64 KiB every 128 KiB, and every 256 KiB: eight and four in a block.
    for (stride, most) in [(32, 10), (64, 20)] {
        let ranges = shuffled(16_384).map(|i| PageRange::new((1 << 30) + i * stride, 16).unwrap());
        let (index, regions, ids) = filled(ranges);
        assert!(density(&index, &regions) <= most, "{} bytes a region", density(&index, &regions));
        assert!(index.memory() / ids.len() <= most + 3, "{} bytes a region", index.memory() / ids.len());
        check_all_found(&index, &regions, &ids);
    }
}

#[test]
fn packed_irregular_regions_share_leaves() {
    // Regions of 1 to 47 pages that touch their neighbours.
    let mut next = 1 << 30;
    let mut ranges: Vec<_> = (0..16_384_u64)
        .map(|i| {
            let range = PageRange::new(next, 1 + i * i % 47).unwrap();
            next = range.end();
            range
        })
        .collect();
    let (index, regions, _) = filled(ranges.iter().copied());
    assert!(density(&index, &regions) <= 20, "{} bytes a region in order", density(&index, &regions));
    ranges = shuffled(16_384).map(|i| ranges[i as usize]).collect();
    let (index, regions, ids) = filled(ranges.into_iter());
    assert!(density(&index, &regions) <= 20, "{} bytes a region", density(&index, &regions));
    check_all_found(&index, &regions, &ids);
}

#[test]
fn a_leaf_splits_in_halves_and_they_join_again() {
    // A block's 32 places for regions of 4 pages.
    let at = |place: u64| PageRange::new(place * 8, 4).unwrap();
    let (mut index, mut regions, mut ids) = filled((0..8).map(at));
    assert_eq!(lines_taken(&index), (0, 1), "eight regions are a leaf");
    ids.push(regions.insert(at(8)));
    index.insert(ids[8], &regions);
    // Halves: eight in the first quarter, one in the second, none in the other half.
    assert_eq!(lines_taken(&index), (1, 1), "the lone ninth takes no leaf");
    for place in 9..32 {
        ids.push(regions.insert(at(place)));
        index.insert(ids[place as usize], &regions);
    }
    assert_eq!(lines_taken(&index), (1, 4), "a leaf for each quarter");
    check_all_found(&index, &regions, &ids);
    let mut remove = |index: &mut Index, place: usize| {
        index.remove(ids[place], &regions);
        regions.remove(ids[place]);
    };
    for quarter in 0..4 {
        (0..4).for_each(|i| remove(&mut index, quarter * 8 + i));
    }
    assert_eq!(lines_taken(&index), (1, 4), "halves with four regions each stay apart");
    for place in [4, 5, 12, 13] {
        remove(&mut index, place);
    }
    assert_eq!(lines_taken(&index), (1, 4), "and two are enough to stay apart");
    remove(&mut index, 6);
    assert_eq!(lines_taken(&index), (1, 3), "one joins the two beside it");
    (20..23).for_each(|place| remove(&mut index, place));
    assert_eq!(lines_taken(&index), (1, 2), "one beside four needs no leaf");
    (28..31).for_each(|place| remove(&mut index, place));
    assert_eq!(lines_taken(&index), (1, 1), "nor does one beside one");
    remove(&mut index, 23);
    assert_eq!(lines_taken(&index), (0, 1), "a fork that is one group gives way to its leaf");
    for place in [7, 14, 15, 31] {
        assert_eq!(index.find(at(place), &regions), Some(ids[place as usize]));
    }
    for place in [7, 14, 15, 31] {
        index.remove(ids[place], &regions);
        regions.remove(ids[place]);
    }
    assert_eq!((lines_taken(&index), index.tree.blocks()), ((0, 0), 0));
}

#[test]
fn what_lies_between_two_empty_children_is_found() {
    let (index, regions, ids) = filled((128..137).map(|page| PageRange::new(page, 1).unwrap()));
    let mut found = Vec::new();
    index.overlaps(PageRange::between(112, 160), &regions, &mut found);
    assert_eq!(found, ids);
}

#[test]
fn leaves_that_share_a_region_are_joined_into_one() {
    let at = |place: u64| PageRange::new(place * 8, 4).unwrap();
    // Number 9 lies in both halves of the block.
    let places = [0, 1, 2, 3, 4, 5, 8, 10, 11].map(at);
    let ranges = places.into_iter().chain([PageRange::new(127, 2).unwrap(), at(17)]);
    let (mut index, mut regions, ids) = filled(ranges);
    let mut remove = |index: &mut Index, gone: &[usize]| {
        for &gone in gone {
            index.remove(ids[gone], &regions);
            regions.remove(ids[gone]);
        }
    };
    remove(&mut index, &[0, 1, 2, 3, 4, 7, 8]);
    assert_eq!(lines_taken(&index), (1, 2), "5 alone; 6 and 9; 9 and 10");
    remove(&mut index, &[5]);
    assert_eq!(lines_taken(&index), (0, 1));
    remove(&mut index, &[6, 9]);
    assert_eq!((lines_taken(&index), index.tree.blocks()), ((0, 0), 1), "10 alone");
    remove(&mut index, &[10]);
    assert_eq!((lines_taken(&index), index.tree.blocks()), ((0, 0), 0));
}

#[test]
fn the_last_region_of_a_fork_needs_no_line() {
    let (mut index, mut regions, ids) = filled((0..9).map(|place| PageRange::new(place * 8, 4).unwrap()));
    for &id in &ids[1..] {
        index.remove(id, &regions);
        regions.remove(id);
    }
    assert_eq!((lines_taken(&index), index.tree.blocks()), ((0, 0), 1));
    check_all_found(&index, &regions, &ids[..1]);
}

#[test]
fn readers_see_what_the_owner_grows() {
    let (mut regions, mut index) = (Regions::new(), Index::new());
    let reader = index.share();
    for i in shuffled(if cfg!(miri) { 64 } else { 4_096 }) {
        let id = regions.insert(PageRange::new(i * 32, 16).unwrap());
        index.insert(id, &regions);
        assert_eq!(reader.candidate(i * 32), Some(id));
    }
}

#[test]
fn a_region_over_many_children_leaves_nothing_behind() {
    // One region from the middle of the first child to the middle of the last, between many small ones.
    let small = (0..4).chain(252..256).map(|page| PageRange::new(page, 1).unwrap());
    let (mut index, mut regions, ids) = filled(small.chain([PageRange::new(6, 244).unwrap()]));
    check_all_found(&index, &regions, &ids);
    for (gone, &id) in ids.iter().enumerate().rev() {
        index.remove(id, &regions);
        regions.remove(id);
        check_all_found(&index, &regions, &ids[..gone]);
    }
    assert_eq!((lines_taken(&index), index.tree.blocks()), ((0, 0), 0));
}

/// The guarantees: no panic and no word read outside of the arrays, whatever the owner does meanwhile. A
/// region in a block that the owner leaves alone is found at every moment, unless the hash table is
/// changing. Every region is found once the owner rests.
#[test]
fn a_reader_looks_up_while_the_owner_works() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let rounds = if cfg!(miri) { 20 } else { 2_000 };
    // Everything stands in one block but one region, so that the table does not change.
    let (mut regions, mut index) = (Regions::new(), Index::new());
    let stable = regions.insert(PageRange::new(5 << BLOCK_BITS, 200).unwrap());
    index.insert(stable, &regions);
    let reader = index.share();
    /// Says so also when the owner panics: the reader waits for it.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let owner = Done(&done);
        let looks = scope.spawn(|| {
            let (mut page, mut looks) = (0, 0_u64);
            while !done.load(SeqCst) || looks == 0 {
                page = (page + 7) % 256;
                std::hint::black_box(reader.candidate(page));
                assert_eq!(reader.candidate((5 << BLOCK_BITS) + page % 200), Some(stable));
                std::hint::black_box(reader.candidate(page << 40 | 0xfff));
                looks += 1;
            }
            looks
        });
        let mut ids = Vec::new();
        for round in 0..rounds {
            // Small and dense, or large and sparse: forks come and go.
            let pages = 1 << (round % 3);
            for i in shuffled(64) {
                let id = regions.insert(PageRange::new(i * pages, pages - pages / 4).unwrap());
                index.insert(id, &regions);
                ids.push(id);
            }
            for &id in &ids {
                let page = regions.get(id).range().start();
                assert_eq!(reader.candidate(page), Some(id), "the owner rests");
            }
            for id in ids.drain(..) {
                index.remove(id, &regions);
                regions.remove(id);
            }
        }
        drop(owner);
        assert!(looks.join().unwrap() > 0);
    });
    assert_eq!((lines_taken(&index), index.tree.blocks()), ((0, 0), 1));
}
