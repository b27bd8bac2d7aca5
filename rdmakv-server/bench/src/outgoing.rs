//! Bytes that wait to be written: requests, and between them values that are lent from the pattern.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

/// Values up to this length are copied between the requests; a slice of its own for each would cost more.
const COPIED: usize = 2048;
/// Slices that one write takes.
pub(crate) const SLICES: usize = 64;

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Requests' own bytes.
    pub(crate) bytes: Vec<u8>,
    /// How much of them is written.
    written: usize,
    /// Pieces of the pattern, and before which of the bytes they stand.
    lent: VecDeque<(usize, Range<usize>)>,
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.lent.is_empty()
    }

    /// A value, after what is there.
    pub(crate) fn put(&mut self, place: Range<usize>, pattern: &[u8]) {
        if place.len() <= COPIED {
            self.bytes.extend_from_slice(&pattern[place]);
        } else {
            self.lent.push_back((self.bytes.len(), place));
        }
    }

    /// Fills in the next slices to write, and returns their number.
    pub(crate) fn slices<'a>(&'a self, pattern: &'a [u8], slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let (mut at, mut count) = (self.written, 0);
        for (before, place) in &self.lent {
            if count + 2 > SLICES {
                return count;
            }
            if at < *before {
                slices[count] = IoSlice::new(&self.bytes[at..*before]);
                (at, count) = (*before, count + 1);
            }
            slices[count] = IoSlice::new(&pattern[place.clone()]);
            count += 1;
        }
        if at < self.bytes.len() && count < SLICES {
            slices[count] = IoSlice::new(&self.bytes[at..]);
            count += 1;
        }
        count
    }

    /// So much of it was written.
    pub(crate) fn advance(&mut self, mut written: usize) {
        while let Some((before, place)) = self.lent.front_mut() {
            let own = (*before - self.written).min(written);
            self.written += own;
            written -= own;
            if self.written < *before {
                return;
            }
            let part = place.len().min(written);
            place.start += part;
            written -= part;
            if place.start < place.end {
                return;
            }
            self.lent.pop_front();
        }
        self.written += written;
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is written at once, the bytes come in their order, each once.
    #[test]
    fn writes_of_any_length_send_the_same_bytes() {
        let pattern: Vec<u8> = (0..20_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        for step in [37, 333, 1000, 5000, 1 << 20] {
            let (mut out, mut whole) = (Outgoing::default(), Vec::new());
            for (at, len) in [(0, 3000), (5, 10), (17, 9000), (100, 2049), (3, 0)].into_iter().cycle().take(90) {
                out.bytes.extend_from_slice(b"set k\r\n");
                out.put(at..at + len, &pattern);
                whole.extend_from_slice(b"set k\r\n");
                whole.extend_from_slice(&pattern[at..at + len]);
                if at == 17 {
                    // Two values in a row.
                    out.put(at..at + len, &pattern);
                    whole.extend_from_slice(&pattern[at..at + len]);
                }
            }
            let mut got = Vec::new();
            while !out.is_empty() {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = out.slices(&pattern, &mut slices);
                let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).take(step).collect();
                let some = step.min(all.len());
                got.extend_from_slice(&all[..some]);
                out.advance(some);
            }
            assert!(got == whole, "{step} bytes at once");
        }
    }
}
