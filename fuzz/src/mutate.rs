//! Inputs that are nearly right.

use rand::rngs::StdRng;
use rand::seq::{IndexedMutRandom, IndexedRandom};
use rand::{Rng, RngExt};

/// Numbers and letters that decoders trip over.
const ODD: [&[u8]; 14] = [
    b"0",
    b"-1",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808",
    b"4503599627370496",
    b"0x",
    b"0xffffffffffffffff",
    b"1e308",
    b"NaN",
    b"",
    b"\"",
    b"\n",
    b"\0",
];

/// The most bytes of an input.
const MOST: usize = 1 << 20;

/// Changes an input in 1 to 8 places; parts of the others are spliced in.
pub fn mutate(random: &mut StdRng, bytes: &mut Vec<u8>, others: &[&[u8]]) {
    for _ in 0..random.random_range(1..=8) {
        if bytes.is_empty() {
            bytes.extend(b"1 2 3\n");
        }
        let at = random.random_range(0..bytes.len());
        let to = (at + random.random_range(1..=64)).min(bytes.len());
        match random.random_range(0..9) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => drop(bytes.drain(at..to)),
            3 => {
                let part = bytes[at..to].to_vec();
                let many = random.random_range(1..=20);
                drop(bytes.splice(at..at, part.repeat(many)));
            }
            4 => drop(bytes.splice(at..at, ODD.choose(random).expect("some").iter().copied())),
            // In the place of a number.
            5 => {
                let start = bytes[..at].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at + 1);
                let end =
                    bytes[at..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |end| at + end);
                drop(bytes.splice(start..end.max(start), ODD.choose(random).expect("some").iter().copied()));
            }
            6 => bytes.truncate(at),
            // A value becomes empty: a line, or what stands on one side of a `=` in it.
            7 => {
                let ends = |byte: &u8| matches!(byte, b'\n' | b'=');
                let start = bytes[..at].iter().rposition(ends).map_or(0, |at| at + 1);
                let end = bytes[at..].iter().position(ends).map_or(bytes.len(), |end| at + end);
                drop(bytes.drain(start..end));
            }
            _ => {
                let other = others.choose(random).copied().unwrap_or_default();
                let from = random.random_range(0..=other.len());
                drop(bytes.splice(at..to, other[from..].iter().take(200).copied()));
            }
        }
        bytes.truncate(MOST);
    }
}

/// Changes a few bytes of an input, which keeps its length or is cut.
pub fn scratch(random: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..random.random_range(0..4) {
        if let Some(byte) = bytes.choose_mut(random) {
            *byte = random.random();
        }
    }
    if random.random_ratio(1, 4) {
        bytes.truncate(random.random_range(0..=bytes.len()));
    }
}

/// Returns up to `most` random bytes; half of the time they begin as another input does.
pub fn noise(random: &mut StdRng, like: &[u8], most: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.random_range(0..=most)];
    random.fill_bytes(&mut bytes);
    if random.random() {
        let start = random.random_range(0..=like.len().min(bytes.len()).min(16));
        bytes[..start].copy_from_slice(&like[..start]);
    }
    bytes
}
