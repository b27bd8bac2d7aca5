//! The map of a file: which generation has each chunk.

use rdmakv_proto::files::{Generation, MAX_RUNS, Run};

/// A file's chunks, as runs in their order. Chunks in no run are holes.
///
/// In the first version all runs of a map have one generation. Runs of several are for writers that begin a generation without a copy.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Map(Vec<Run>);

impl Map {
    /// Returns the map with these runs, as an inode has them.
    pub fn new(runs: &[Run]) -> Self {
        Self(runs.to_vec())
    }

    /// Returns the runs.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// Returns the runs, for an inode.
    pub fn into_runs(self) -> Vec<Run> {
        self.0
    }

    /// Returns whether an inode has room for it. One with more runs is written into one generation, without holes.
    pub fn fits(&self) -> bool {
        self.0.len() <= MAX_RUNS
    }

    /// Returns the generation of a chunk; None for a hole.
    pub fn get(&self, chunk: u32) -> Option<Generation> {
        let at = self.0.partition_point(|run| run.end() <= chunk);
        self.0.get(at).filter(|run| run.first <= chunk).map(|run| run.generation)
    }

    /// Returns the chunks that there are, each with its generation.
    pub fn chunks(&self) -> impl Iterator<Item = (u32, Generation)> + '_ {
        self.0.iter().flat_map(|run| (run.first..run.end()).map(|chunk| (chunk, run.generation)))
    }

    /// Gives consecutive chunks to a generation.
    pub fn set(&mut self, run: Run) {
        if run.count == 0 {
            return;
        }
        self.cut(run.first, run.end());
        let at = self.0.partition_point(|other| other.first < run.first);
        self.0.insert(at, run);
        // At most three runs become one.
        for at in [at, at.wrapping_sub(1)] {
            let Some([left, right]) = self.0.get(at..at.saturating_add(2)).and_then(|pair| pair.first_chunk()) else {
                continue;
            };
            if left.end() == right.first && left.generation == right.generation {
                self.0[at].count += right.count;
                self.0.remove(at + 1);
            }
        }
    }

    /// Makes holes of all chunks from this one on.
    pub fn truncate(&mut self, chunks: u32) {
        self.cut(chunks, u32::MAX);
    }

    /// Makes a hole of a chunk.
    pub fn remove(&mut self, chunk: u32) {
        self.cut(chunk, chunk.saturating_add(1));
    }

    /// Makes holes of the chunks in a range.
    fn cut(&mut self, start: u32, end: u32) {
        let first = self.0.partition_point(|run| run.end() <= start);
        let last = self.0.partition_point(|run| run.first < end).max(first);
        let part = |run: &Run, from: u32, to: u32| Run { first: from, count: to.saturating_sub(from), ..*run };
        let left = self.0[first..last].first().map(|run| part(run, run.first, start));
        let right = self.0[first..last].last().map(|run| part(run, end, run.end()));
        let rest: Vec<Run> = [left, right].into_iter().flatten().filter(|run| run.count > 0).collect();
        self.0.splice(first..last, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNKS: u32 = 40;

    proptest! {
        #[test]
        fn a_map_holds_the_chunks_of_a_plain_vector(
            steps in proptest::collection::vec((0..CHUNKS, 0..10_u32, 0..5_u64), 0..40),
        ) {
            let (mut map, mut plain) = (Map::default(), vec![None; CHUNKS as usize]);
            for (first, count, generation) in steps {
                let count = count.min(CHUNKS - first);
                if generation == 0 {
                    map.truncate(first);
                    plain[first as usize..].fill(None);
                } else if generation == 4 {
                    map.remove(first);
                    plain[first as usize] = None;
                } else {
                    let generation = Generation(generation);
                    map.set(Run { first, count, generation });
                    plain[first as usize..(first + count) as usize].fill(Some(generation));
                }
                let chunks: Vec<_> = (0..CHUNKS).map(|chunk| map.get(chunk)).collect();
                prop_assert_eq!(&chunks, &plain);
                let listed: Vec<_> = map.chunks().map(|(chunk, _)| chunk).collect();
                let expected: Vec<_> = (0..CHUNKS).filter(|&chunk| plain[chunk as usize].is_some()).collect();
                prop_assert_eq!(listed, expected);
                let is_joined = |pair: &[Run]| pair[0].end() == pair[1].first && pair[0].generation == pair[1].generation;
                prop_assert!(!map.runs().windows(2).any(is_joined), "{:?}", map);
            }
        }
    }

    #[test]
    fn a_map_with_too_many_runs_does_not_fit() {
        let mut map = Map::default();
        for run in 0..=MAX_RUNS as u32 {
            assert!(map.fits());
            map.set(Run { first: 2 * run, count: 1, generation: Generation(1) });
        }
        assert!(!map.fits());
        map.set(Run { first: 0, count: 4, generation: Generation(1) });
        assert!(map.fits());
    }
}
