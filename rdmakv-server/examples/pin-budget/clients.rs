//! The requests of the clients.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

use crate::Options;

/// How long values are.
#[derive(Debug)]
pub(crate) enum Sizes {
    Fixed(usize),
    Mix,
}

impl Sizes {
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        if name == "mix" {
            return Ok(Self::Mix);
        }
        let bytes = name.parse().ok().filter(|bytes| (1..1_000_000).contains(bytes));
        bytes.map(Self::Fixed).ok_or_else(|| format!("--value {name}: a number of bytes below 1000000, or `mix`"))
    }

    /// Of the key of this number.
    pub(crate) fn of(&self, random: &mut StdRng) -> usize {
        match *self {
            Self::Fixed(bytes) => bytes,
            Self::Mix => match random.random_range(0..100) {
                0..50 => random.random_range(64..512),
                50..90 => random.random_range(512..4096),
                _ => random.random_range(4096..16384),
            },
        }
    }
}

/// The requests, in their order.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The key of each, and its client.
    pub(crate) requests: Vec<(u32, u16)>,
    /// The lengths of the keys' values.
    pub(crate) lengths: Vec<usize>,
    /// From here on it counts.
    pub(crate) counted: usize,
}

impl Asked {
    pub(crate) fn generate(options: &Options, sizes: &Sizes, skew: f64, rate: u64) -> Self {
        let mut random = StdRng::seed_from_u64(options.seed);
        let (mut lengths, mut bytes) = (Vec::new(), 0);
        while bytes < options.values * 1_000_000 {
            lengths.push(sizes.of(&mut random));
            bytes += lengths.last().copied().unwrap_or(1);
        }
        // Which key is popular has nothing to do with where its value lies.
        let mut ranks: Vec<u32> = (0..lengths.len() as u32).collect();
        ranks.shuffle(&mut random);
        let number = (rate * options.lease * options.leases / 1000) as usize;
        let Ok(zipf) = Zipf::new(lengths.len() as f64, skew) else {
            return Self { requests: Vec::new(), lengths, counted: 0 };
        };
        let requests = (0..number)
            .map(|_| {
                let rank = zipf.sample(&mut random) as usize - 1;
                (ranks[rank], random.random_range(0..options.clients.max(1)) as u16)
            })
            .collect();
        Self { requests, lengths, counted: number / 2 }
    }
}
