//! Which key a request is for.
//!
//! Keys are numbers; the server sees a prefix and as many digits as the key's length leaves. Number 0 is the oldest key. The
//! popular ones of a Zipf law are scattered, or the oldest (*earliest*), or the newest (*latest*).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// The key of rank r in proportion to r to the power of -skew; keys of near ranks are far apart.
    Zipf {
        /// The exponent; 0.99 is customary.
        skew: f64,
    },
    /// The same, the oldest keys being the popular ones.
    Earliest {
        /// The exponent.
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

impl Choice {
    /// Returns the exponent, if it has one.
    pub(crate) fn skew(self) -> Option<f64> {
        match self {
            Self::Zipf { skew } | Self::Earliest { skew } | Self::Latest { skew } => Some(skew),
            Self::Uniform | Self::Hotspot { .. } | Self::Sequential => None,
        }
    }
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
            ("zipf", _) => Ok(Self::Zipf { skew: skew()? }),
            ("earliest", _) => Ok(Self::Earliest { skew: skew()? }),
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
            Self::Earliest { skew } => write!(f, "earliest:{skew}"),
            Self::Latest { skew } => write!(f, "latest:{skew}"),
            Self::Hotspot { part, share } => write!(f, "hotspot:{part}:{share}"),
        }
    }
}

/// The newest key there is: those that make keys and those that read them share it.
///
/// A key counts when it and all before it are there, so that no read meets a key in flight.
#[derive(Debug, Default)]
pub struct Newest {
    /// The next to be made.
    next: AtomicU64,
    /// Keys below this are there.
    there: AtomicU64,
    /// Those that are there beyond a gap. Taken for a few instructions when an answer reports that a key was stored.
    beyond: Mutex<BTreeSet<u64>>,
}

impl Newest {
    /// So many keys are there.
    pub fn of(keys: u64) -> Self {
        Self { next: keys.into(), there: keys.into(), beyond: Mutex::default() }
    }

    fn make(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// How many there are.
    pub(crate) fn there(&self) -> u64 {
        self.there.load(Relaxed)
    }

    /// This one is there now, or never will be.
    pub(crate) fn settle(&self, key: u64) {
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        beyond.insert(key);
        let mut there = self.there.load(Relaxed);
        while beyond.remove(&there) {
            there += 1;
        }
        self.there.store(there, Relaxed);
    }
}

/// Draws keys; one a thread, the newest key shared by all.
#[derive(Clone, Debug)]
pub struct Chooser {
    law: Law,
    keys: u64,
    newest: Arc<Newest>,
}

#[derive(Clone, Debug)]
enum Law {
    Uniform,
    Zipf(Zipf<f64>, Scatter),
    Earliest(Zipf<f64>),
    Latest(Zipf<f64>),
    Hotspot { hot: u64, share: f64 },
    Sequential { next: u64 },
}

/// Puts each number below a limit in another's place: what was near is far apart, and each place is taken once.
#[derive(Clone, Copy, Debug)]
struct Scatter {
    keys: u64,
    step: u64,
}

impl Scatter {
    fn new(keys: u64) -> Self {
        // Near the golden section, and without a common divisor, so that no place is met twice.
        let coprime = |step: &u64| {
            let (mut a, mut b) = (keys, *step);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a == 1
        };
        let golden = ((keys as f64 * 0.618_033_988_749_895) as u64).max(1);
        Self { keys, step: (golden..=keys.max(golden)).find(coprime).unwrap_or(1) }
    }

    #[inline]
    fn place(self, rank: u64) -> u64 {
        if self.keys < 1 << 32 {
            rank * self.step % self.keys
        } else {
            (u128::from(rank) * u128::from(self.step) % u128::from(self.keys)) as u64
        }
    }
}

impl Chooser {
    /// Draws from `keys` keys (1 at least); those that choose *latest* share the newest key by `newest`.
    pub fn new(choice: Choice, keys: u64, newest: Arc<Newest>) -> Self {
        let keys = keys.max(1);
        // Skews are checked where they are read; whatever else comes draws evenly.
        let zipf = |skew: f64| Zipf::new(keys as f64, skew).ok();
        let law = match choice {
            Choice::Uniform => Law::Uniform,
            Choice::Sequential => Law::Sequential { next: 0 },
            Choice::Zipf { skew } => zipf(skew).map_or(Law::Uniform, |zipf| Law::Zipf(zipf, Scatter::new(keys))),
            Choice::Earliest { skew } => zipf(skew).map_or(Law::Uniform, Law::Earliest),
            Choice::Latest { skew } => zipf(skew).map_or(Law::Uniform, Law::Latest),
            Choice::Hotspot { part, share } => {
                Law::Hotspot { hot: ((keys as f64 * part).round() as u64).clamp(1, keys), share }
            }
        };
        Self { law, keys, newest }
    }

    /// Returns a key that is there.
    #[inline]
    pub fn draw(&mut self, random: &mut impl Rng) -> u64 {
        let rank = |zipf: &Zipf<f64>, random: &mut _| (zipf.sample(random) as u64 - 1).min(self.keys - 1);
        match &mut self.law {
            Law::Uniform => random.random_range(0..self.keys),
            Law::Zipf(zipf, scatter) => scatter.place(rank(zipf, random)),
            Law::Earliest(zipf) => rank(zipf, random),
            Law::Latest(zipf) => self.newest.there().max(self.keys) - 1 - rank(zipf, random),
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

    /// Returns a key that was not written yet.
    pub fn make(&mut self) -> u64 {
        self.newest.make()
    }

    /// Returns the newest key's record.
    pub(crate) fn newest(&self) -> &Newest {
        &self.newest
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

    /// Returns the number of this key, if it is one of these.
    pub(crate) fn number_of(&self, key: &[u8]) -> Option<u64> {
        let digits = key.strip_prefix(&self.prefix[..]).filter(|digits| digits.len() == self.digits)?;
        digits.iter().try_fold(0_u64, |sum, byte| {
            byte.is_ascii_digit().then(|| sum.checked_mul(10)?.checked_add(u64::from(byte - b'0'))).flatten()
        })
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
        let mut chooser = Chooser::new(choice, keys, Arc::new(Newest::of(keys)));
        let mut random = Pcg64::seed_from_u64(11);
        let mut seen = vec![0; keys as usize];
        (0..DRAWS).for_each(|_| seen[chooser.draw(&mut random) as usize] += 1);
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
            fits(&frequencies(Choice::Earliest { skew }, KEYS), &theory);
            let scatter = Scatter::new(KEYS);
            let mut scattered = vec![0.0; KEYS as usize];
            theory.iter().enumerate().for_each(|(rank, share)| scattered[scatter.place(rank as u64) as usize] = *share);
            fits(&frequencies(Choice::Zipf { skew }, KEYS), &scattered);
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
        fits(&frequencies(Choice::Earliest { skew: 0.95 }, KEYS), &zipf(KEYS, 0.99));
    }

    #[test]
    fn ranks_scatter_over_all_places() {
        for keys in [1, 2, 3, 4, 10, 97, 1000, 65_536, 99_991] {
            let scatter = Scatter::new(keys);
            let mut places: Vec<u64> = (0..keys).map(|rank| scatter.place(rank)).collect();
            if keys >= 97 {
                assert!(places.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > keys / 4), "{keys}");
            }
            places.sort_unstable();
            assert!(places.into_iter().eq(0..keys), "{keys}");
        }
        let far = Scatter::new((1 << 40) - 7);
        assert!(far.place((1 << 40) - 8) < (1 << 40) - 7);
    }

    #[test]
    fn latest_choice_prefers_settled_keys() {
        let newest = Arc::new(Newest::of(100));
        let mut one = Chooser::new(Choice::Latest { skew: 1.2 }, 100, Arc::clone(&newest));
        let mut other = Chooser::new(Choice::Latest { skew: 1.2 }, 100, Arc::clone(&newest));
        let mut random = Pcg64::seed_from_u64(1);
        assert_eq!((one.make(), other.make()), (100, 101));
        newest.settle(101);
        assert!((0..1000).all(|_| one.draw(&mut random) < 100), "the one before it is not there");
        newest.settle(100);
        let mut seen = [0_u32; 102];
        (0..10_000).for_each(|_| seen[one.draw(&mut random) as usize] += 1);
        assert_eq!(seen[..2], [0, 0], "only as many keys as were asked for");
        assert!(seen[101] > seen[100] && seen[100] > seen[90]);
    }

    #[test]
    fn one_key_is_always_chosen() {
        for choice in ["uniform", "zipf", "earliest", "latest", "hotspot", "sequential"] {
            assert_eq!(frequencies(choice.parse().unwrap(), 1), [DRAWS as u64], "{choice}");
        }
    }

    #[test]
    fn choices_round_trip_and_reject_errors() {
        for text in ["uniform", "zipf:1.1", "earliest:1", "latest:0.5", "hotspot:0.1:0.9", "sequential"] {
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
        assert_eq!(names.number_of(&out[4..]), Some(42));
        for other in ["key000000000004", "kez0000000000042", "key00000000000x2", ""] {
            assert_eq!(names.number_of(other.as_bytes()), None, "{other}");
        }
        for (prefix, len, keys) in
            [("key", 7, 1000), ("key", 251, 1), ("a b", 30, 1), ("é", 30, 1), ("k", 12, u64::MAX)]
        {
            assert!(Names::new(prefix, len, keys).is_err(), "{prefix} {len} {keys}");
        }
    }
}
