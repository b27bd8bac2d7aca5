//! Bytes of a file that are known to be stored, and those that may be: the claim that a killed mount is held to.

use std::ops::Range;

/// A change that was not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Later {
    Wrote(u64, Vec<u8>),
    /// The file was cut, so these bytes may be zeros.
    Cut(Range<u64>),
}

/// A file as a sync or a close acknowledged it, and what was done to it since.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    stored: Vec<u8>,
    later: Vec<Later>,
    /// Sizes that it may have, too.
    sizes: Vec<u64>,
}

impl Known {
    pub(crate) fn new(stored: Vec<u8>) -> Self {
        Self { stored, later: Vec::new(), sizes: Vec::new() }
    }

    pub(crate) fn wrote(&mut self, offset: u64, bytes: &[u8]) {
        self.later.push(Later::Wrote(offset, bytes.to_vec()));
    }

    /// Takes that the size was set, of a file of so many bytes.
    pub(crate) fn cut(&mut self, size: u64, before: u64) {
        self.later.push(Later::Cut(size..before.max(size)));
    }

    /// Takes that the file may have this size, because a sync was begun.
    pub(crate) fn may_have(&mut self, size: u64) {
        self.sizes.push(size);
    }

    /// Returns whether its bytes are those that were acknowledged.
    pub(crate) fn is_certain(&self) -> bool {
        self.later.is_empty() && self.sizes.is_empty()
    }

    /// Returns how many bytes it has had at most.
    pub(crate) fn longest(&self) -> u64 {
        let later = self.later.iter().map(|later| match later {
            Later::Wrote(offset, bytes) => offset + bytes.len() as u64,
            Later::Cut(range) => range.end,
        });
        later.fold(self.stored.len() as u64, u64::max)
    }

    /// Returns why these cannot be the file's bytes after its mount was killed.
    pub(crate) fn check(&self, seen: &[u8]) -> Option<String> {
        let size = seen.len() as u64;
        if size != self.stored.len() as u64 && !self.sizes.contains(&size) {
            return Some(format!("{size} bytes, not {} or {:?}", self.stored.len(), self.sizes));
        }
        // A longer file has zeros where nothing was written.
        let stored = |at: usize| self.stored.get(at).copied().unwrap_or(0);
        let mut fits: Vec<bool> = seen.iter().enumerate().map(|(at, &byte)| byte == stored(at)).collect();
        for later in &self.later {
            match later {
                Later::Wrote(offset, bytes) => {
                    for (at, byte) in (*offset as usize..).zip(bytes).take_while(|&(at, _)| at < seen.len()) {
                        fits[at] |= seen[at] == *byte;
                    }
                }
                Later::Cut(range) => {
                    let end = (range.end as usize).min(seen.len());
                    (range.start as usize..end).for_each(|at| fits[at] |= seen[at] == 0);
                }
            }
        }
        let wrong = fits.iter().position(|fits| !fits)?;
        Some(format!("byte {wrong} of {size} is neither what was acknowledged nor what was written since"))
    }
}

#[test]
fn only_acknowledged_and_later_bytes_fit() {
    let mut known = Known::new(b"stored".to_vec());
    assert!(known.is_certain() && known.check(b"stored").is_none());
    assert!(known.check(b"store").is_some() && known.check(b"stared").is_some());
    known.wrote(2, b"a");
    assert!(!known.is_certain() && known.check(b"stored").is_none() && known.check(b"stared").is_none());
    assert!(known.check(b"sbored").is_some());
    known.cut(4, 6);
    known.may_have(4);
    for fits in [&b"stor\0\0"[..], b"stored", b"star", b"store\0"] {
        assert!(known.check(fits).is_none(), "{}", fits.escape_ascii());
    }
    assert!(known.check(b"sto").is_some() && known.check(b"s\0ored").is_some());
    assert_eq!(known.longest(), 6);
}
