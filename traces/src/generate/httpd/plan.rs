//! Which files there are, how often each is asked for, and how large those are that are asked for often.
//!
//! *How often.* Of R files asked for, ranks 1 to 10 have 42 % and the first tenth of the N ranks 80 %: `A (rank − q)^−1.1`, with
//! A and q such that both hold. The last 37 % of the ranks have one each. The ranks between take what is left, from the
//! count where the first tenth ends down to 2, by `2 + (c − 2) (1 − x^k)`, x from 0 to 1, with k such that the sum is right.
//!
//! *How large.* The sizes are known; which rank has which is drawn at random so that each class of sizes gets its
//! share of R: popular ranks fall to a class in proportion to the requests that it still lacks, the others in proportion to
//! the files that it has left, and what then is off by chance is mended by exchanging pairs of files, first between classes,
//! then within them until the mean is right too.
//!
//! *R* is such that the requests, after large files are split, are as many as asked for: found by trying, and made exact by a
//! change in the count of the most popular file that one request reads.

use super::{Options, wrong};
use crate::{Larger, TraceError};
use mrrc_core::PAGE;
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

pub(super) const TOP: usize = 10;
pub(super) const TOP_SHARE: f64 = 0.42;
pub(super) const TENTH_SHARE: f64 = 0.80;
pub(super) const ONCE: f64 = 0.37;
pub(super) const SLOPE: f64 = 1.1;
pub(super) const MEAN: f64 = 17_300.0;
/// Share of the files, bytes.
const QUANTILES: [(f64, f64); 9] = [
    (0.0, 50.0),
    (0.1, 500.0),
    (0.25, 1600.0),
    (0.5, MEDIAN),
    (0.75, 57e3),
    (0.9, 174e3),
    (0.95, 280e3),
    (0.99, 709e3),
    (1.0, 3.42e6),
];
const MEDIAN: f64 = 6800.0;
/// Classes of sizes: what they are called, their share, their largest in pages.
pub(super) const BUCKETS: [(&str, f64, u64); 7] = [
    ("asked for: files of 1 page", 0.51, 1),
    ("asked for: files of 2 pages", 0.22, 2),
    ("asked for: files of 3-4 pages", 0.11, 4),
    ("asked for: files of 5-8 pages", 0.06, 8),
    ("asked for: files of 9-16 pages", 0.05, 16),
    ("asked for: files of 17-32 pages", 0.03, 32),
    ("asked for: larger files", 0.02, u64::MAX),
];

/// Returns the class of a size in bytes.
pub(super) fn bucket(size: u64) -> usize {
    let pages = size.div_ceil(PAGE);
    BUCKETS.iter().position(|&(_, _, most)| pages <= most).unwrap_or(BUCKETS.len() - 1)
}

/// Files by rank, the most popular first.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) sizes: Vec<u64>,
    pub(super) counts: Vec<u32>,
    /// The factor on sizes above the median.
    pub(super) factor: f64,
}

impl Plan {
    pub(super) fn new(options: &Options, rng: &mut Pcg64Mcg) -> Result<Self, TraceError> {
        let (ascending, factor) = sizes(options.files as usize, options.bytes)?;
        let longest = u64::from(options.pages) * PAGE;
        let reads = |size: u64| match options.larger {
            Larger::Split => size.div_ceil(longest),
            Larger::Cut => 1,
        };
        let mut asked = options.requests as f64;
        let mut best: Option<(u64, Self)> = None;
        for _ in 0..8 {
            let counts = counts(options.files as usize, asked.round() as u64)?;
            let sizes = assign(&ascending, &counts, rng);
            let plan = Self { sizes, counts, factor };
            let made: u64 = plan.files().map(|(count, size)| u64::from(count) * reads(size)).sum();
            let off = made.abs_diff(options.requests);
            if best.as_ref().is_none_or(|&(least, _)| off < least) {
                best = Some((off, plan));
            }
            if off * 2000 <= options.requests {
                break;
            }
            asked *= options.requests as f64 / made as f64;
        }
        let (_, mut plan) = best.ok_or_else(|| wrong("no plan", "give other options"))?;
        let made: u64 = plan.files().map(|(count, size)| u64::from(count) * reads(size)).sum();
        let first = plan.files().position(|(_, size)| reads(size) == 1);
        let count = first.and_then(|at| plan.counts.get_mut(at));
        let exact = count.and_then(|count| {
            let exact = (u64::from(*count) + options.requests).checked_sub(made)?;
            *count = u32::try_from(exact).ok().filter(|&exact| exact > 1)?;
            Some(())
        });
        exact.ok_or_else(|| wrong("requests: too few for so many files", "give more requests or fewer files"))?;
        Ok(plan)
    }

    fn files(&self) -> impl Iterator<Item = (u32, u64)> {
        self.counts.iter().copied().zip(self.sizes.iter().copied())
    }
}

/// Returns a size after scaling.
pub(super) fn scaled(size: f64, factor: f64) -> f64 {
    if size > MEDIAN { MEDIAN + (size - MEDIAN) * factor } else { size }
}

/// All sizes in ascending order, of exactly this total, and the factor above the median.
fn sizes(files: usize, total: u64) -> Result<(Vec<u64>, f64), TraceError> {
    let unscaled: Vec<f64> = (0..files).map(|at| quantile((at as f64 + 0.5) / files as f64)).collect();
    let below: f64 = unscaled.iter().map(|&size| size.min(MEDIAN)).sum();
    let above: f64 = unscaled.iter().map(|&size| (size - MEDIAN).max(0.0)).sum();
    let factor = (total as f64 - below) / above;
    if factor <= 0.0 {
        let least = (below / 1e6).ceil();
        return Err(wrong(
            format!("bytes={total} are too few for {files} files"),
            format!("give more than {least} MB"),
        ));
    }
    let mut sizes: Vec<u64> = unscaled.into_iter().map(|size| scaled(size, factor).round() as u64).collect();
    // The rest of rounding is small compared with the largest file.
    let sum: u64 = sizes.iter().sum();
    if let Some(largest) = sizes.last_mut() {
        *largest = (*largest + total).saturating_sub(sum).max(1);
    }
    Ok((sizes, factor))
}

/// Between the published points, sizes grow by equal factors.
fn quantile(share: f64) -> f64 {
    let upper = QUANTILES.iter().position(|&(point, _)| share < point).unwrap_or(QUANTILES.len() - 1).max(1);
    let ((from, low), (to, high)) = (QUANTILES[upper - 1], QUANTILES[upper]);
    low * (high / low).powf((share - from) / (to - from))
}

/// Returns the root of a function that grows, by halving.
fn root(mut low: f64, mut high: f64, grows: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if grows(middle) < 0.0 { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// How often each rank is asked for.
fn counts(files: usize, asked: u64) -> Result<Vec<u32>, TraceError> {
    let too_few = || {
        let what = format!(
            "{asked} requests that are answered with a file are too few for {files} files to be asked for as published"
        );
        wrong(what, "give more requests or fewer files: some 80 requests a file")
    };
    let asked = asked as f64;
    let once = (ONCE * files as f64).round() as usize;
    let tenth = files / 10;
    let weight = |rank: usize, q: f64| (rank as f64 - q).powf(-SLOPE);
    let sum = |ranks: std::ops::RangeInclusive<usize>, q: f64| ranks.map(|rank| weight(rank, q)).sum::<f64>();
    let middle_share = TENTH_SHARE - TOP_SHARE;
    let q = root(-50.0, 0.999, |q| sum(1..=TOP, q) / sum(TOP + 1..=tenth, q) - TOP_SHARE / middle_share);
    let scale = asked * TENTH_SHARE / sum(1..=tenth, q);
    let last = scale * weight(tenth, q);
    let between = files - once - tenth;
    let mean = (asked * (1.0 - TENTH_SHARE) - once as f64) / between as f64;
    if !(mean > 2.0 && mean < last) {
        return Err(too_few());
    }
    let taper = |k: f64, at: usize| 2.0 + (last - 2.0) * (1.0 - ((at as f64 + 0.5) / between as f64).powf(k));
    let k = root(1e-3, 1e3, |k| (0..between).map(|at| taper(k, at)).sum::<f64>() / between as f64 - mean);
    let curve = (1..=tenth).map(|rank| scale * weight(rank, q)).chain((0..between).map(|at| taper(k, at)));
    // Rounded so that every partial sum is right to one.
    let mut exact = 0.0;
    let mut given = 0;
    let mut counts = Vec::with_capacity(files);
    for value in curve {
        exact += value;
        let count = (exact.round() as u64).saturating_sub(given).max(2);
        given += count;
        counts.push(u32::try_from(count).map_err(|_| too_few())?);
    }
    // Rounding may have put neighbours that differ by one the wrong way around.
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts.resize(files, 1);
    Ok(counts)
}

/// Returns a size for each rank.
fn assign(ascending: &[u64], counts: &[u32], rng: &mut Pcg64Mcg) -> Vec<u64> {
    let mut classes: [Vec<u64>; BUCKETS.len()] = Default::default();
    for &size in ascending {
        classes[bucket(size)].push(size);
    }
    for class in &mut classes {
        class.shuffle(rng);
    }
    let all: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let tenth = counts.len() / 10;
    // The requests for the less popular files of a class, if they are average.
    let average = counts[tenth..].iter().map(|&count| f64::from(count)).sum::<f64>() / counts.len() as f64;
    let mut lacks: [f64; BUCKETS.len()] =
        std::array::from_fn(|at| (BUCKETS[at].1 * all - classes[at].len() as f64 * average).max(0.0));
    let mut sizes = Vec::with_capacity(counts.len());
    for (rank, &count) in counts.iter().enumerate() {
        let weights: [f64; BUCKETS.len()] = std::array::from_fn(|at| match classes[at].len() {
            0 => 0.0,
            left if rank >= tenth => left as f64,
            _ => lacks[at],
        });
        let at = if rank < TOP { largest(&weights) } else { draw(&weights, rng) };
        let at = if classes[at].is_empty() { largest(&classes.each_ref().map(|class| class.len() as f64)) } else { at };
        lacks[at] = (lacks[at] - f64::from(count)).max(0.0);
        sizes.extend(classes[at].pop());
    }
    mend_shares(&mut sizes, counts, all, rng);
    mend_mean(&mut sizes, counts, all, rng);
    sizes
}

fn largest(weights: &[f64; BUCKETS.len()]) -> usize {
    (0..weights.len()).max_by(|&a, &b| weights[a].total_cmp(&weights[b])).unwrap_or(0)
}

/// Returns an index with a probability in proportion to its weight.
fn draw(weights: &[f64; BUCKETS.len()], rng: &mut Pcg64Mcg) -> usize {
    let mut position = rng.random::<f64>() * weights.iter().sum::<f64>();
    for (at, weight) in weights.iter().enumerate() {
        position -= weight;
        if position < 0.0 {
            return at;
        }
    }
    largest(weights)
}

/// Exchanges files of the class with the most requests too many and that with the most too few.
fn mend_shares(sizes: &mut [u64], counts: &[u32], all: f64, rng: &mut Pcg64Mcg) {
    let mut excess: [f64; BUCKETS.len()] = std::array::from_fn(|at| -BUCKETS[at].1 * all);
    let mut members: [Vec<usize>; BUCKETS.len()] = Default::default();
    for (rank, (&size, &count)) in sizes.iter().zip(counts).enumerate() {
        excess[bucket(size)] += f64::from(count);
        // The most popular stay: there is no small step with them.
        if rank >= TOP {
            members[bucket(size)].push(rank);
        }
    }
    for _ in 0..10_000 {
        let (over, under) = (largest(&excess), largest(&excess.map(|excess| -excess)));
        let wanted = excess[over].min(-excess[under]);
        if excess[over].max(-excess[under]) < all * 5e-4 || members[over].is_empty() || members[under].is_empty() {
            return;
        }
        let gain =
            |&(a, b): &(usize, usize)| f64::from(counts[members[over][a]]) - f64::from(counts[members[under][b]]);
        let pairs =
            (0..64).map(|_| (rng.random_range(0..members[over].len()), rng.random_range(0..members[under].len())));
        let best = pairs.min_by(|a, b| (gain(a) - wanted).abs().total_cmp(&(gain(b) - wanted).abs()));
        let Some((a, b)) = best.filter(|pair| gain(pair) > 0.0 && gain(pair) < 2.0 * wanted) else { continue };
        let moved = gain(&(a, b));
        let (rank_a, rank_b) = (members[over][a], members[under][b]);
        sizes.swap(rank_a, rank_b);
        members[over][a] = rank_b;
        members[under][b] = rank_a;
        excess[over] -= moved;
        excess[under] += moved;
    }
}

/// Exchanges files within a class while that brings the mean nearer.
fn mend_mean(sizes: &mut [u64], counts: &[u32], all: f64, rng: &mut Pcg64Mcg) {
    let weighted =
        |sizes: &[u64]| sizes.iter().zip(counts).map(|(&size, &count)| size as f64 * f64::from(count)).sum::<f64>();
    let mut off = weighted(sizes) - MEAN * all;
    for _ in 0..200_000 {
        if off.abs() < MEAN * all * 1e-3 {
            return;
        }
        let (a, b) = (rng.random_range(0..sizes.len()), rng.random_range(0..sizes.len()));
        if bucket(sizes[a]) != bucket(sizes[b]) {
            continue;
        }
        let change = (f64::from(counts[a]) - f64::from(counts[b])) * (sizes[b] as f64 - sizes[a] as f64);
        if (off + change).abs() < off.abs() {
            sizes.swap(a, b);
            off += change;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn every_seed_has_the_shares_and_the_mean() {
        for seed in 0..5 {
            let plan = Plan::new(&Options::default(), &mut Pcg64Mcg::seed_from_u64(seed)).unwrap();
            let all: f64 = plan.counts.iter().map(|&count| f64::from(count)).sum();
            for (at, (class, asked, _)) in BUCKETS.iter().enumerate() {
                let of_class = plan.files().filter(|&(_, size)| bucket(size) == at);
                let share = of_class.map(|(count, _)| f64::from(count)).sum::<f64>() / all;
                assert!((share - asked).abs() < 0.001, "seed {seed}, {class}: {share:.4}");
            }
            let mean = plan.files().map(|(count, size)| f64::from(count) * size as f64).sum::<f64>() / all;
            assert!((mean / MEAN - 1.0).abs() < 0.005, "seed {seed}: {mean}");
            assert!(plan.counts[TOP..].is_sorted_by(|a, b| a >= b), "seed {seed}: popularity falls");
        }
    }
}
