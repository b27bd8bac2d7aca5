//! Values that say of themselves which they are: every word is the version, mixed so that two versions differ in most of
//! their bytes, and the length follows from the version too. A value of two versions cannot look like one.
//!
//! A version names the thread that wrote it and the line of that thread's journal, so that every reader knows its
//! writer, time and place. Values of counters are decimal numbers: a version in the upper digits, so that no two
//! counters ever count through the same numbers, and the increments in the lowest [`COUNTS`] bits.

use crate::history::Value;

/// Bits of a line's number.
const LINES: u32 = 30;
/// Bits of a thread's number.
const THREADS: u32 = 14;
/// Bits of a counter that count.
pub const COUNTS: u32 = 20;
/// Bytes of a word.
const WORD: usize = 8;
/// Lines that a journal has at most.
pub const MOST_LINES: usize = (1 << LINES) - 1;
/// Threads that a run has at most, those that come for others included.
pub const MOST_THREADS: usize = 1 << THREADS;

/// Returns the version that is written by this line of that thread's journal.
pub fn version(thread: usize, line: usize) -> Value {
    debug_assert!(thread < MOST_THREADS && line < MOST_LINES, "it has a number of its own");
    (thread as u64) << LINES | (line as u64 + 1)
}

/// Returns the thread and the line that wrote it, if it is a version at all.
pub fn writer(version: Value) -> Option<(usize, usize)> {
    let line = (version & ((1 << LINES) - 1)).checked_sub(1)?;
    let thread = version >> LINES;
    (thread < 1 << THREADS).then_some((thread as usize, line as usize))
}

/// Returns the start of a counter of this version.
pub fn counter(version: Value) -> Value {
    version << COUNTS
}

/// Returns a mixture that can be undone (the end of `splitmix64`).
fn mixed(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn unmixed(mut word: u64) -> u64 {
    word = (word ^ word >> 31 ^ word >> 62).wrapping_mul(0x3196_42b2_d24d_8ec3);
    word = (word ^ word >> 27 ^ word >> 54).wrapping_mul(0x96de_1b17_3f11_9089);
    word ^ word >> 30 ^ word >> 60
}

/// How long values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// From a word to 100 KiB, small ones more often.
    Mixed,
    /// From 50 to 100 KiB.
    Large,
    /// From a word to 1 KiB.
    Small,
    /// 20 KiB.
    Equal,
}

/// Words of this version's value.
fn words(version: Value, lengths: Lengths) -> usize {
    if lengths == Lengths::Equal {
        return 2_560;
    }
    let chance = mixed(version ^ 0x5eed);
    if lengths == Lengths::Large {
        return 6_400 + chance as usize % 6_400;
    }
    let most = match chance % 20 {
        0..10 => 8,
        10..16 => 128,
        _ if lengths == Lengths::Small => 128,
        16..19 => 1280,
        _ => 12_800,
    };
    1 + (chance >> 8) as usize % most
}

/// Puts this version's value there.
pub fn write(version: Value, lengths: Lengths, to: &mut Vec<u8>) {
    to.clear();
    let word = mixed(version).to_le_bytes();
    to.extend_from_slice(&word);
    let length = words(version, lengths) * WORD;
    // Twice as much each time.
    while to.len() < length {
        to.extend_from_within(..to.len().min(length - to.len()));
    }
}

/// The meaning of bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// All of one version.
    Whole(Value),
    /// A mix of these two (or, if they are equal, of this one but not as long as it is).
    Torn(Value, Value),
}

/// Looks at each word.
pub fn read(bytes: &[u8], lengths: Lengths) -> Read {
    let (words_there, rest) = bytes.as_chunks::<WORD>();
    let Some(first) = words_there.first() else { return Read::Torn(0, 0) };
    let version = |word: &[u8; WORD]| unmixed(u64::from_le_bytes(*word));
    // Each word is the one before it.
    if bytes[WORD..] != bytes[..bytes.len() - WORD] {
        let other = words_there.iter().find(|word| *word != first).unwrap_or(first);
        return Read::Torn(version(first), version(other));
    }
    if !rest.is_empty() || words_there.len() != words(version(first), lengths) {
        return Read::Torn(version(first), version(first));
    }
    Read::Whole(version(first))
}

/// Returns the counter's number.
pub fn read_counter(bytes: &[u8]) -> Read {
    let number = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    number.map_or(Read::Torn(0, 0), Read::Whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_which_it_is_and_who_wrote_it() {
        let mut value = Vec::new();
        for line in 0..3_000 {
            let version = version(line % MOST_THREADS, line);
            for lengths in [Lengths::Mixed, Lengths::Large, Lengths::Small, Lengths::Equal] {
                write(version, lengths, &mut value);
                assert!(value.len() <= 100 << 10 && read(&value, lengths) == Read::Whole(version));
            }
            assert_eq!(writer(version), Some((line % MOST_THREADS, line)));
        }
    }

    #[test]
    fn a_value_of_two_versions_is_torn_wherever_they_meet() {
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let (mut tried, mut at) = (0, 0);
        while tried < 3_000 {
            at += 1;
            write(version(1, at), Lengths::Mixed, &mut one);
            write(version(2, at), Lengths::Mixed, &mut other);
            let cut = (at * 7919) % one.len().min(other.len());
            let torn = [&one[..cut], &other[cut..]].concat();
            if torn == one || torn == other {
                continue;
            }
            tried += 1;
            // Within its only word it is a version that was never written.
            let is_noticed = match read(&torn, Lengths::Mixed) {
                Read::Torn(..) => true,
                Read::Whole(found) => found != version(1, at) && found != version(2, at),
            };
            assert!(is_noticed, "{at} {cut}");
            assert_ne!(read(&one[..cut], Lengths::Mixed), Read::Whole(version(1, at)));
        }
    }
}
