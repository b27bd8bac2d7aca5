//! Orders of an agent to servers: chunks of a frozen generation that they write to the backing directory themselves.

use rdmakv_proto::files::Ranges;

/// Chunks that a file has at least before servers are asked. Smaller ones are on disk sooner if the agent writes them.
pub(crate) const LEAST: usize = 4;

/// Bytes of an order at most. After each one the agent states in the cluster what is on disk.
const BYTES: u64 = 128 << 20;

/// Runs of chunks of an order at most, and chunks: those that a call may name.
const RUNS: usize = 256;
const CHUNKS: u64 = 4096;

/// Returns orders for the bytes that are left: runs of chunks, as (first, count). Together they name each chunk once.
pub(crate) fn orders(left: &Ranges, chunk_bits: u8) -> Vec<Vec<(u32, u32)>> {
    let most = (BYTES >> chunk_bits).clamp(1, CHUNKS);
    let (mut all, mut runs, mut named, mut next) = (Vec::new(), Vec::new(), 0, 0);
    for range in left.iter() {
        let mut first = (range.start >> chunk_bits).max(next);
        next = range.end.div_ceil(1 << chunk_bits).max(next);
        while first < next {
            if named == most || runs.len() == RUNS {
                all.push(std::mem::take(&mut runs));
                named = 0;
            }
            let count = (next - first).min(most - named);
            runs.push((first as u32, count as u32));
            (first, named) = (first + count, named + count);
        }
    }
    if !runs.is_empty() {
        all.push(runs);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_chunk_is_ordered_once(runs in proptest::collection::vec((1..9_u64, 1..3000_u64), 0..400), more in 0..60_000_u64) {
            let (mut left, mut expected, mut end) = (Ranges::default(), Vec::new(), 0);
            for (gap, count) in runs {
                let first = end + gap;
                end = first + count;
                expected.extend((first..end).map(|index| index as u32));
                left.insert(first << 16..end << 16);
            }
            // The last chunk may be short.
            left.remove((end << 16).saturating_sub(more)..end << 16);
            let all = orders(&left, 16);
            let mut named = Vec::new();
            for runs in &all {
                prop_assert!(runs.len() <= RUNS);
                prop_assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
                let chunks: Vec<u32> = runs.iter().flat_map(|&(first, count)| first..first + count).collect();
                prop_assert!(!chunks.is_empty() && chunks.len() <= 2048);
                named.extend(chunks);
            }
            prop_assert_eq!(named, expected);
        }
    }
}
