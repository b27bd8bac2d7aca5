//! Changes that were read and not yet dealt with: a list that never grows and never loses one.
//!
//! The monitor's thread keeps such lists. It may not allocate, so when a list is full the new change is drawn
//! together with the one beside which it costs the fewest pages: more is struck out than need be, never less.

use super::super::{Change, ChangeKind};
use crate::range::{PAGE, PageRange};

const LENGTH: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Changes {
    list: [Change; LENGTH],
    length: usize,
    /// No range covers more than was pushed.
    exact: bool,
}

impl Changes {
    pub(super) const fn new() -> Self {
        let nothing = Change { range: PageRange::EVERYTHING, kind: ChangeKind::Gone };
        Self { list: [nothing; LENGTH], length: 0, exact: true }
    }

    pub(super) fn as_slice(&self) -> &[Change] {
        &self.list[..self.length]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether no range covers more than was pushed.
    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
        self.exact = true;
    }

    pub(super) fn push(&mut self, change: Change) {
        let held = &mut self.list[..self.length];
        if let Some(near) = held.iter_mut().find(|near| near.kind == change.kind && touch(near.range, change.range)) {
            near.range = near.range.hull(change.range);
        } else if self.length < LENGTH {
            self.list[self.length] = change;
            self.length += 1;
        } else if let Some(near) =
            held.iter_mut().min_by_key(|near| (near.kind != change.kind, waste(near.range, change.range)))
        {
            near.range = near.range.hull(change.range);
            self.exact = false;
            if near.kind != change.kind {
                // What is said of pages about to go holds for those that are gone as well.
                near.kind = ChangeKind::Discarding;
            }
        }
    }
}

fn touch(a: PageRange, b: PageRange) -> bool {
    a.start() <= b.end() && b.start() <= a.end()
}

/// The pages that drawing two ranges together adds.
fn waste(a: PageRange, b: PageRange) -> u64 {
    a.hull(b).pages().saturating_sub(a.pages()).saturating_sub(b.pages())
}

/// The pages that the bytes from `start` to `end` touch; everything if they wrap.
pub(super) fn pages(start: u64, end: u64) -> Option<PageRange> {
    if start == end {
        return None;
    }
    let first = start / PAGE;
    let pages = end.div_ceil(PAGE).checked_sub(first);
    Some(pages.and_then(|pages| PageRange::new(first, pages).ok()).unwrap_or(PageRange::EVERYTHING))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(start: u64, kind: ChangeKind) -> Change {
        Change { range: PageRange::between(start, start + 1), kind }
    }

    #[test]
    fn neighbours_are_drawn_together_at_no_cost() {
        let mut changes = Changes::new();
        for start in [10, 12, 11, 30] {
            changes.push(change(start, ChangeKind::Gone));
        }
        changes.push(change(31, ChangeKind::Discarding));
        let pages: u64 = changes.as_slice().iter().map(|change| change.range.pages()).sum();
        assert_eq!((changes.as_slice().len(), pages, changes.is_exact()), (4, 5, true));
    }

    #[test]
    fn a_full_list_covers_whatever_is_pushed() {
        let mut changes = Changes::new();
        let pushed: Vec<Change> = (0..1000)
            .map(|i| change(i * 7919 % 100_000, [ChangeKind::Gone, ChangeKind::Discarding][(i % 3 == 0) as usize]))
            .collect();
        for (count, &new) in pushed.iter().enumerate() {
            changes.push(new);
            for old in &pushed[..=count] {
                let told = |held: &Change| {
                    held.range.contains(old.range) && (held.kind == old.kind || held.kind == ChangeKind::Discarding)
                };
                assert!(changes.as_slice().iter().any(told), "{old:?} was lost");
            }
        }
        assert_eq!((changes.as_slice().len(), changes.is_exact()), (LENGTH, false));
    }

    #[test]
    fn kinds_are_mixed_only_when_there_is_no_other_way() {
        let mut changes = Changes::new();
        for start in 0..LENGTH as u64 {
            changes.push(change(start * 10, ChangeKind::Gone));
        }
        changes.push(change(5, ChangeKind::Discarding));
        let discarding: Vec<_> =
            changes.as_slice().iter().filter(|change| change.kind == ChangeKind::Discarding).collect();
        assert_eq!(discarding.len(), 1);
        assert!(discarding[0].range.pages() <= 6);
    }

    #[test]
    fn bytes_round_out_and_nonsense_is_everything() {
        assert_eq!(pages(4096, 8192), Some(PageRange::between(1, 2)));
        assert_eq!(pages(4097, 8193), Some(PageRange::between(1, 3)));
        assert_eq!(pages(4096, 4096), None);
        assert_eq!(pages(8192, 0), Some(PageRange::EVERYTHING));
        assert_eq!(pages(0, u64::MAX), Some(PageRange::EVERYTHING));
    }
}
