//! How long a key's value is.
//!
//! A key's length follows from its number, so that it is the same for every writer, and a value can be verified.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A law of lengths.
///
/// ```
/// use rdmakv_bench::Sizes;
///
/// assert_eq!("1k".parse::<Sizes>().unwrap().most(), 1024);
/// assert_eq!("100-200".parse::<Sizes>().unwrap().most(), 200);
/// assert_eq!("32=9,100k=1".parse::<Sizes>().unwrap().most(), 102_400);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Lengths from, to, and the share of the keys up to here.
    parts: Vec<(usize, usize, f64)>,
    /// A length for each key, if there is no law.
    each: Arc<[u32]>,
    text: String,
}

/// Bytes of a value at most.
const MOST: usize = 1 << 30;

impl Sizes {
    /// No law, but this length for each key; those beyond the last have the last one's.
    pub(crate) fn each(lengths: Vec<u32>, text: String) -> Self {
        let most = lengths.iter().copied().max().unwrap_or(0) as usize;
        Self { parts: vec![(most, most, 1.0)], each: lengths.into(), text }
    }

    /// Returns the length of this key's value.
    #[inline]
    pub fn of(&self, key: u64) -> usize {
        if let Some(last) = self.each.last() {
            return self.each.get(key as usize).copied().unwrap_or(*last) as usize;
        }
        let (mut from, mut to, _) = self.parts[0];
        if self.parts.len() > 1 {
            let at = (mix(key ^ 0x5349_5a45) >> 11) as f64 / (1_u64 << 53) as f64;
            let part = self.parts.iter().find(|part| at < part.2).unwrap_or(&self.parts[self.parts.len() - 1]);
            (from, to) = (part.0, part.1);
        }
        if from == to {
            return from;
        }
        from + ((u128::from(mix(key)) * (to - from + 1) as u128) >> 64) as usize
    }

    /// Returns the greatest length.
    pub fn most(&self) -> usize {
        self.parts.iter().map(|part| part.1).max().unwrap_or(0)
    }
}

/// Returns a number that looks random, of one that does not (the finalizer of splitmix64).
#[inline]
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `100`, `4k`, `1m`.
pub(crate) fn size(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<usize>().ok()?.checked_mul(1 << shift).filter(|&size| size <= MOST)
}

impl Default for Sizes {
    /// 1,024 bytes.
    fn default() -> Self {
        Self { parts: vec![(1024, 1024, 1.0)], each: Arc::default(), text: "1024".into() }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: a length (100, 4k, 1m), a range (1-1k), or some with weights (32=9,1k-10k=1)");
        let mut parts = Vec::new();
        let mut total = 0.0;
        for part in text.split(',') {
            let (lengths, weight) = match part.split_once('=') {
                Some((lengths, weight)) => (lengths, weight.parse::<f64>().map_err(|_| wrong())?),
                None => (part, 1.0),
            };
            let (from, to) = lengths.split_once('-').unwrap_or((lengths, lengths));
            let (from, to) = (size(from).ok_or_else(wrong)?, size(to).ok_or_else(wrong)?);
            if from > to || !weight.is_finite() || weight <= 0.0 {
                return Err(wrong());
            }
            total += weight;
            parts.push((from, to, total));
        }
        parts.iter_mut().for_each(|part| part.2 /= total);
        Ok(Self { parts, each: Arc::default(), text: text.into() })
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::fits;

    fn frequencies(sizes: &Sizes, keys: u64) -> Vec<u64> {
        let mut seen = vec![0; sizes.most() + 1];
        (0..keys).for_each(|key| seen[sizes.of(key)] += 1);
        seen
    }

    #[test]
    fn lengths_come_as_often_as_their_law_says() {
        let range: Sizes = "50-149".parse().unwrap();
        fits(&frequencies(&range, 300_000)[50..], &[0.01; 100]);
        let mixed: Sizes = "10=3,20-29=1".parse().unwrap();
        let mut theory = vec![0.0; 30];
        theory[10] = 0.75;
        theory[20..].fill(0.025);
        fits(&frequencies(&mixed, 300_000), &theory);
    }

    #[test]
    fn what_is_no_length_says_what_one_looks_like() {
        for text in ["", "x", "5-", "9-5", "1g", "-5", "5=0", "5=x", "5,,5", "2000m", "+5", "k"] {
            assert!(text.parse::<Sizes>().unwrap_err().contains("a length"), "{text}");
        }
    }
}
