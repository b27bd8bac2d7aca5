//! The stores' memory: the shard of an address, and the block of a chunk.

use crate::session::Shards;

/// The smallest and the largest block.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 1 << 20;

/// The stores' arenas, in the order of the shards.
#[derive(Debug)]
pub(super) struct Arenas(Vec<Arena>);

#[derive(Clone, Copy, Debug)]
struct Arena {
    base: u64,
    bytes: u64,
}

impl Arenas {
    /// Those of these shards.
    pub(super) fn of(shards: &Shards) -> Self {
        let arena = |shard| {
            let (base, bytes) = shards.at(shard).arena();
            Arena { base: base as u64, bytes: bytes as u64 }
        };
        Self((0..shards.count()).map(arena).collect())
    }

    /// Returns the shard that owns the address.
    pub(super) fn shard(&self, address: u64) -> Option<usize> {
        let within = |arena: &Arena| address.checked_sub(arena.base).is_some_and(|at| at < arena.bytes);
        self.0.iter().position(within)
    }

    /// Returns the smallest block that these bytes are in: its address and its length. Blocks are powers of two, in their places, so
    /// that of two that overlap one is in the other: where a chunk has to be in one registration, they do not grow into each other
    /// without end. A chunk that fits into none is a block of its own.
    pub(super) fn block(&self, address: u64, bytes: u64) -> (u64, u64) {
        let within = |arena: &&Arena| address.checked_sub(arena.base).is_some_and(|at| at < arena.bytes);
        let Some(arena) = self.0.iter().find(within) else { return (address, bytes) };
        let (first, last) = (address - arena.base, address - arena.base + bytes.max(1) - 1);
        let mut size = LEAST;
        while size <= MOST {
            if first / size == last / size && (first / size + 1) * size <= arena.bytes {
                return (arena.base + first / size * size, size);
            }
            size *= 2;
        }
        (address, bytes)
    }

    /// Returns the start of each, and its bytes.
    pub(super) fn places(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|arena| (arena.base, arena.bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ARENAS: [Arena; 2] =
        [Arena { base: 1 << 30, bytes: 5 << 20 }, Arena { base: 1 << 32, bytes: (3 << 20) + 4096 }];

    proptest! {
        #[test]
        fn of_two_blocks_that_overlap_one_is_in_the_other(
            chunks in prop::collection::vec((0..2_usize, 0..5_u64 << 20, 1..100_000_u64), 1..40),
        ) {
            let arenas = Arenas(ARENAS.to_vec());
            let blocks: Vec<_> = chunks.iter().filter_map(|&(of, at, bytes)| {
                let arena = ARENAS[of];
                (at + bytes <= arena.bytes).then(|| (arena.base + at, bytes, arenas.block(arena.base + at, bytes)))
            }).collect();
            for &(address, bytes, (start, length)) in &blocks {
                prop_assert!(start <= address && address + bytes <= start + length);
                prop_assert!(ARENAS.iter().any(|arena| start >= arena.base && start + length <= arena.base + arena.bytes));
                if length.is_power_of_two() && length >= LEAST {
                    for &(.., (other, longer)) in &blocks {
                        let apart = start + length <= other || other + longer <= start;
                        let inside = |a: u64, b: u64, c: u64, d: u64| a >= c && a + b <= c + d;
                        let nested = inside(start, length, other, longer) || inside(other, longer, start, length);
                        prop_assert!(apart || nested || longer < LEAST || !longer.is_power_of_two());
                    }
                }
            }
        }
    }

    #[test]
    fn what_crosses_a_border_is_in_the_next_larger_block() {
        let arenas = Arenas(ARENAS.to_vec());
        let base = ARENAS[0].base;
        assert_eq!(arenas.block(base + 100, 4000), (base, LEAST));
        assert_eq!(arenas.block(base + LEAST - 8, 4000), (base, 2 * LEAST));
        assert_eq!(arenas.block(base + 2 * LEAST - 8, 4000), (base, 4 * LEAST));
        assert_eq!(arenas.block(base + MOST - 8, 4000), (base + MOST - 8, 4000), "in none");
        assert_eq!(arenas.shard(base), Some(0));
        assert_eq!(arenas.shard(ARENAS[1].base + 5), Some(1));
        assert_eq!(arenas.shard(7), None);
    }
}
