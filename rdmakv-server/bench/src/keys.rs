//! Which key a request is for.
//!
//! Keys are numbers; the server sees a prefix and as many digits as the key's length leaves. The most popular key of a
//! Zipf law is number 0, which is also the oldest; *latest* counts from the newest.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Zipf};

/// A law for choosing keys.
///
/// ```
/// use rdmakv_bench::Choice;
///
/// assert_eq!("zipf".parse(), Ok(Choice::Zipf { skew: 0.99 }));
/// assert_eq!("hotspot:0.2:0.8".parse(), Ok(Choice::Hotspot { part: 0.2, share: 0.8 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Each key as often as the others.
    Uniform,
    /// The key of rank r in proportion to r to the power of -skew; the oldest keys are the popular ones ("earliest").
    Zipf {
        /// The exponent; 0.99 is customary.
        skew: f64,
    },
    /// The same from the other end: a SET makes a new key, and the newest are the popular ones.
    Latest {
        /// The exponent.
        skew: f64,
    },
    /// One part of the keys gets one share of the requests; within and outside it is uniform.
    Hotspot {
        /// The part of the keys, between 0 and 1.
        part: f64,
        /// The share of the requests, between 0 and 1.
        share: f64,
    },
    /// One after the other, round and round.
    Sequential,
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text}: one of uniform, zipf[:SKEW], earliest[:SKEW], latest[:SKEW], hotspot[:PART:SHARE], sequential"
            )
        };
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let numbers = words.map(|word| word.parse::<f64>().map_err(|_| wrong())).collect::<Result<Vec<_>, _>>()?;
        let skew = || match numbers[..] {
            [] => Ok(0.99),
            [skew] if (0.0..=10.0).contains(&skew) => Ok(skew),
            _ => Err(wrong()),
        };
        match (name, &numbers[..]) {
            ("uniform", []) => Ok(Self::Uniform),
            ("sequential", []) => Ok(Self::Sequential),
            ("zipf" | "earliest", _) => Ok(Self::Zipf { skew: skew()? }),
            ("latest", _) => Ok(Self::Latest { skew: skew()? }),
            ("hotspot", []) => Ok(Self::Hotspot { part: 0.2, share: 0.8 }),
            ("hotspot", &[part, share]) if (0.0..=1.0).contains(&part) && (0.0..=1.0).contains(&share) => {
                Ok(Self::Hotspot { part, share })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => write!(f, "uniform"),
            Self::Sequential => write!(f, "sequential"),
            Self::Zipf { skew } => write!(f, "zipf:{skew}"),
            Self::Latest { skew } => write!(f, "latest:{skew}"),
            Self::Hotspot { part, share } => write!(f, "hotspot:{part}:{share}"),
        }
    }
}

/// Draws keys; one a thread, the newest key shared by all.
#[derive(Clone, Debug)]
pub struct Chooser {
    law: Law,
    keys: u64,
    newest: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
enum Law {
    Uniform,
    Zipf(Zipf<f64>),
    Latest(Zipf<f64>),
    Hotspot { hot: u64, share: f64 },
    Sequential { next: u64 },
}

impl Chooser {
    /// Draws from `keys` keys (1 at least); those that choose *latest* share the newest key by `newest`.
    pub fn new(choice: Choice, keys: u64, newest: Arc<AtomicU64>) -> Self {
        let keys = keys.max(1);
        newest.fetch_max(keys - 1, Relaxed);
        // Skews are checked where they are read; whatever else comes draws evenly.
        let zipf = |skew: f64| Zipf::new(keys as f64, skew).ok();
        let law = match choice {
            Choice::Uniform => Law::Uniform,
            Choice::Sequential => Law::Sequential { next: 0 },
            Choice::Zipf { skew } => zipf(skew).map_or(Law::Uniform, Law::Zipf),
            Choice::Latest { skew } => zipf(skew).map_or(Law::Uniform, Law::Latest),
            Choice::Hotspot { part, share } => {
                Law::Hotspot { hot: ((keys as f64 * part).round() as u64).clamp(1, keys), share }
            }
        };
        Self { law, keys, newest }
    }

    /// A key to read.
    pub fn read(&mut self, random: &mut impl Rng) -> u64 {
        match &mut self.law {
            Law::Uniform => random.random_range(0..self.keys),
            Law::Zipf(zipf) => (zipf.sample(random) as u64 - 1).min(self.keys - 1),
            Law::Latest(zipf) => {
                let back = (zipf.sample(random) as u64 - 1).min(self.keys - 1);
                self.newest.load(Relaxed) - back
            }
            Law::Hotspot { hot, share } => {
                if *hot == self.keys || random.random_bool(*share) {
                    random.random_range(0..*hot)
                } else {
                    random.random_range(*hot..self.keys)
                }
            }
            Law::Sequential { next } => {
                let key = *next;
                *next = (key + 1) % self.keys;
                key
            }
        }
    }

    /// A key to write: as to read, but for *latest*, which makes a new one.
    pub fn write(&mut self, random: &mut impl Rng) -> u64 {
        match self.law {
            Law::Latest(_) => self.newest.fetch_add(1, Relaxed) + 1,
            _ => self.read(random),
        }
    }
}

/// How keys look to the server.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: Vec<u8>,
    digits: usize,
}

/// Bytes of a key at most.
const KEY_MAX: usize = 250;
/// Digits of the largest number.
const DIGITS: usize = 20;

impl Names {
    /// Keys of `len` bytes that start with `prefix`.
    ///
    /// # Errors
    ///
    /// The prefix cannot be in a key, or the digits of the largest key do not fit beside it.
    pub fn new(prefix: &str, len: usize, keys: u64) -> Result<Self, String> {
        if !prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("the key prefix {prefix:?}: printable ASCII without blanks is needed"));
        }
        // Room for a hundred times as many: what *latest* makes comes after them.
        let need = keys.max(1).saturating_mul(100).to_string().len();
        let digits = len.saturating_sub(prefix.len());
        if digits < need || len > KEY_MAX {
            return Err(format!(
                "keys of {len} bytes: {} to {KEY_MAX} are needed for {keys} keys and the prefix {prefix:?}",
                prefix.len() + need
            ));
        }
        Ok(Self { prefix: prefix.into(), digits })
    }

    /// Bytes of a key.
    pub fn key_len(&self) -> usize {
        self.prefix.len() + self.digits
    }

    /// The key of this number, appended.
    #[inline]
    pub fn put(&self, key: u64, out: &mut Vec<u8>) {
        const ZEROS: [u8; KEY_MAX] = [b'0'; KEY_MAX];
        out.extend_from_slice(&self.prefix);
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(key).as_bytes();
        debug_assert!(digits.len() <= DIGITS);
        out.extend_from_slice(&ZEROS[..self.digits.saturating_sub(digits.len())]);
        out.extend_from_slice(digits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::fits;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;

    const KEYS: u64 = 200;
    const DRAWS: usize = 400_000;

    fn frequencies(choice: Choice, keys: u64) -> Vec<u64> {
        let mut chooser = Chooser::new(choice, keys, Arc::default());
        let mut random = Pcg64::seed_from_u64(11);
        let mut seen = vec![0; keys as usize];
        (0..DRAWS).for_each(|_| seen[chooser.read(&mut random) as usize] += 1);
        seen
    }

    fn zipf(keys: u64, skew: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=keys).map(|rank| (rank as f64).powf(-skew)).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    #[test]
    fn each_key_comes_as_often_as_its_law_says() {
        fits(&frequencies(Choice::Uniform, KEYS), &vec![1.0 / KEYS as f64; KEYS as usize]);
        fits(&frequencies(Choice::Sequential, KEYS), &vec![1.0 / KEYS as f64; KEYS as usize]);
        for skew in [0.0, 0.5, 0.99, 1.0, 1.4] {
            let theory = zipf(KEYS, skew);
            fits(&frequencies(Choice::Zipf { skew }, KEYS), &theory);
            let newest_first: Vec<f64> = theory.into_iter().rev().collect();
            fits(&frequencies(Choice::Latest { skew }, KEYS), &newest_first);
        }
        let hot = 0.7 / 40.0;
        let cold = 0.3 / 160.0;
        let theory: Vec<f64> = (0..KEYS).map(|key| if key < 40 { hot } else { cold }).collect();
        fits(&frequencies(Choice::Hotspot { part: 0.2, share: 0.7 }, KEYS), &theory);
    }

    #[test]
    #[should_panic(expected = "chi-square")]
    fn a_law_that_is_not_kept_is_noticed() {
        fits(&frequencies(Choice::Zipf { skew: 0.95 }, KEYS), &zipf(KEYS, 0.99));
    }

    #[test]
    fn what_was_written_last_is_read_most() {
        let newest = Arc::default();
        let mut one = Chooser::new(Choice::Latest { skew: 1.2 }, 100, Arc::clone(&newest));
        let mut other = Chooser::new(Choice::Latest { skew: 1.2 }, 100, newest);
        let mut random = Pcg64::seed_from_u64(1);
        assert_eq!((one.write(&mut random), other.write(&mut random)), (100, 101));
        let mut seen = [0_u32; 102];
        (0..10_000).for_each(|_| seen[one.read(&mut random) as usize] += 1);
        assert_eq!(seen[..2], [0, 0], "only as many keys as were asked for");
        assert!(seen[101] > seen[100] && seen[100] > seen[90]);
    }

    #[test]
    fn one_key_is_always_chosen() {
        for choice in ["uniform", "zipf", "latest", "hotspot", "sequential"] {
            assert_eq!(frequencies(choice.parse().unwrap(), 1), [DRAWS as u64], "{choice}");
        }
    }

    #[test]
    fn laws_are_read_as_they_are_written_and_wrong_ones_refused() {
        for text in ["uniform", "zipf:1.1", "latest:0.5", "hotspot:0.1:0.9", "sequential"] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        for text in ["", "zip", "zipf:x", "zipf:-1", "zipf:NaN", "zipf:1:2", "hotspot:2:1", "hotspot:0.1", "uniform:1"]
        {
            assert!(text.parse::<Choice>().unwrap_err().contains("one of"), "{text}");
        }
    }

    #[test]
    fn keys_have_the_length_that_was_asked_for() {
        let names = Names::new("key", 16, 1000).unwrap();
        let mut out = b"get ".to_vec();
        names.put(42, &mut out);
        assert_eq!(out, b"get key0000000000042");
        assert_eq!(names.key_len(), 16);
        for (prefix, len, keys) in
            [("key", 7, 1000), ("key", 251, 1), ("a b", 30, 1), ("é", 30, 1), ("k", 12, u64::MAX)]
        {
            assert!(Names::new(prefix, len, keys).is_err(), "{prefix} {len} {keys}");
        }
    }
}
