//! The bound that no policy can beat: Belady's rule over pages.
//!
//! It knows the future, keeps so many pages, may let a page pass without keeping it, and drops the one that is asked for again
//! last. An item is there when all of its pages are. All pages being of one size, this is what `belady-size` comes to.

use std::collections::BTreeSet;

/// Never again.
const NEVER: u32 = u32::MAX;

/// Returns for each request whether all its pages are there when it comes. `pages` says which pages the item of a request
/// lies on.
pub(crate) fn hits(requests: &[u32], pages: &[std::ops::Range<u32>], most: usize) -> Vec<bool> {
    let count = pages.iter().map(|range| range.end).max().unwrap_or(0) as usize;
    // When the pages of a request are asked for again, of each of its pages in turn.
    let total: usize = requests.iter().map(|&item| pages[item as usize].len()).sum();
    let mut next = vec![NEVER; total];
    let mut last = vec![NEVER; count];
    let mut at = total;
    for (nth, &item) in requests.iter().enumerate().rev() {
        for page in pages[item as usize].clone().rev() {
            at -= 1;
            next[at] = std::mem::replace(&mut last[page as usize], nth as u32);
        }
    }
    let mut kept = vec![NEVER; count];
    let mut order = BTreeSet::new();
    let mut hits = Vec::with_capacity(requests.len());
    for &item in requests {
        let own = pages[item as usize].clone();
        hits.push(own.clone().all(|page| kept[page as usize] != NEVER));
        for page in own {
            let again = next[at];
            at += 1;
            let before = std::mem::replace(&mut kept[page as usize], again);
            if before != NEVER {
                order.remove(&(before, page));
            }
            if again != NEVER {
                order.insert((again, page));
            }
        }
        while order.len() > most {
            if let Some((_, page)) = order.pop_last() {
                kept[page as usize] = NEVER;
            }
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::hits;

    #[test]
    fn optimal_bound_misses_only_first_uses() {
        let pages = [0..1, 1..2, 2..4];
        assert_eq!(hits(&[0, 1, 2, 2, 1, 0], &pages, 4), [false, false, false, true, true, true]);
    }

    #[test]
    fn what_is_asked_for_last_goes_or_is_not_kept_at_all() {
        let pages = [0..1, 1..2, 2..3];
        // One page of room: 0 stays, as 1 and 2 come once.
        assert_eq!(hits(&[0, 1, 2, 0], &pages, 1), [false, false, false, true]);
        assert_eq!(hits(&[0, 1, 1, 0], &pages, 1), [false, false, true, false]);
    }

    #[test]
    fn an_item_on_two_pages_needs_both() {
        let pages = [0..2, 1..2];
        assert_eq!(hits(&[0, 1, 0], &pages, 1), [false, true, false]);
        assert_eq!(hits(&[0, 1, 0], &pages, 2), [false, true, true]);
    }
}
