//! The interface of every model, and plain lists for them: oldest first, searched from end to end.

use mrrc_core::PageRange;

/// A cache that matches exactly.
pub(crate) trait Model {
    /// Returns whether the range is cached; if so, what the policy does at a hit.
    fn hit(&mut self, range: PageRange) -> bool;

    /// Makes room for a range that is not cached, and caches it.
    fn miss(&mut self, range: PageRange);

    fn capacity(&self) -> u64;

    fn request(&mut self, range: PageRange) -> bool {
        let hit = self.hit(range);
        if !hit && range.pages() <= self.capacity() {
            self.miss(range);
        }
        hit
    }
}

pub(crate) type List = Vec<PageRange>;

pub(crate) fn pages(list: &List) -> u64 {
    list.iter().map(|range| range.pages()).sum()
}

/// Takes the range out; whether it was there.
pub(crate) fn take(list: &mut List, range: PageRange) -> bool {
    let place = list.iter().position(|&other| other == range);
    place.map(|place| list.remove(place)).is_some()
}

/// Moves the range to the new end; whether it was there.
pub(crate) fn raise(list: &mut List, range: PageRange) -> bool {
    let found = take(list, range);
    if found {
        list.push(range);
    }
    found
}

/// Adds a ghost and drops the oldest ones until the limit holds. A range that is too large is no ghost.
pub(crate) fn remember(ghosts: &mut List, range: PageRange, limit: u64) {
    if range.pages() <= limit {
        ghosts.push(range);
    }
    while pages(ghosts) > limit {
        ghosts.remove(0);
    }
}
