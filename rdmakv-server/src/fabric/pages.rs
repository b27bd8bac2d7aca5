//! How many pages some chunks take, where chunks share pages: each page counts once.
//!
//! Chunks do not overlap, so pages that lie wholly inside of one are only its own and need no entry. Only its first and
//! its last page may be others' too.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use mrrc::PAGE;

/// Pages of the bytes from an address on: the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Span {
    /// Returns the pages of so many bytes from there on, at least one.
    pub fn of(address: u64, bytes: u64) -> Self {
        let page = PAGE;
        Self { first: address / page, last: address.saturating_add(bytes.max(1) - 1) / page }
    }

    /// Returns the pages that may be others' too.
    pub fn edges(self) -> impl Iterator<Item = u64> {
        [Some(self.first), (self.last != self.first).then_some(self.last)].into_iter().flatten()
    }

    fn inner(self) -> u64 {
        (self.last - self.first).saturating_sub(1)
    }
}

/// The pages of some spans.
#[derive(Debug, Default)]
pub struct Pages {
    inner: u64,
    edges: HashMap<u64, u32, FixedState>,
}

impl Pages {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.inner + self.edges.len() as u64
    }

    /// How many there would be with this one.
    pub fn count_with(&self, span: Span) -> u64 {
        self.count() + span.inner() + span.edges().filter(|edge| !self.edges.contains_key(edge)).count() as u64
    }

    /// Counts a span that overlaps no other.
    pub fn add(&mut self, span: Span) {
        self.inner += span.inner();
        for edge in span.edges() {
            *self.edges.entry(edge).or_default() += 1;
        }
    }

    /// Counts one no more that was added.
    pub fn remove(&mut self, span: Span) {
        self.inner -= span.inner();
        for edge in span.edges() {
            if let Some(count) = self.edges.get_mut(&edge) {
                *count -= 1;
                if *count == 0 {
                    self.edges.remove(&edge);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_page_counts_once(
            lengths in prop::collection::vec((prop_oneof![1..300_u64, 1..20_000_u64], 0..5000_u64, any::<bool>()), 1..60),
        ) {
            // Chunks that follow each other, some with room between; every other one goes again.
            let (mut pages, mut at, mut spans) = (Pages::default(), 4096 * 100 + 8, Vec::new());
            for (length, gap, stays) in lengths {
                let span = Span::of(at, length);
                let with = pages.count_with(span);
                pages.add(span);
                prop_assert_eq!(pages.count(), with);
                spans.push((span, at, length, stays));
                at += length + gap;
            }
            for (span, ..) in spans.iter().filter(|(.., stays)| !stays) {
                pages.remove(*span);
            }
            let model: HashSet<u64> = spans
                .iter()
                .filter(|(.., stays)| *stays)
                .flat_map(|&(_, at, length, _)| at / 4096..=(at + length - 1) / 4096)
                .collect();
            prop_assert_eq!(pages.count(), model.len() as u64);
        }
    }
}
