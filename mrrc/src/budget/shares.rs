//! Which cache of a budget makes room: a decision without locks, clocks or effects.
//!
//! Each of n caches has a guaranteed share, the n-th part of half of the limit. Its share of that is never taken for
//! another. Room comes from the cache that is furthest above its share, which may be the one that asks. A cache of which
//! nothing was asked while the others turned over much is *idle*: what it has above its share goes first.

/// Decisions that a cache sees without a request until it is idle. Each takes a tenth of what a cache has, or what is needed.
const IDLE: u64 = 16;

/// The state of a cache of the budget at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Its name among the caches of the budget.
    pub(crate) cache: u64,
    /// Pages that it has registered.
    pub(crate) pages: u64,
    /// Requests of it so far, hits and misses.
    pub(crate) requests: u64,
}

/// The cache that is to make room, and how much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    pub(crate) cache: u64,
    pub(crate) pages: u64,
}

/// The memory from one decision to the next.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    decisions: u64,
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    cache: u64,
    requests: u64,
    /// The decision at which it was last seen to be asked for something.
    active: u64,
}

impl Shares {
    /// Returns the part of the limit that each of so many caches is left with, whatever the others need.
    pub(crate) fn guaranteed(limit: u64, caches: usize) -> u64 {
        limit / 2 / (caches as u64).max(1)
    }

    /// Chooses the cache that makes room for so many pages of `asker`. Those in `passed` were chosen for this request and had
    /// nothing to give. None if there is no other.
    pub(crate) fn choose(
        &mut self,
        limit: u64,
        asker: u64,
        needed: u64,
        caches: &[Standing],
        passed: &[u64],
    ) -> Option<Turn> {
        if passed.is_empty() {
            self.note(caches);
        }
        let share = Self::guaranteed(limit, caches.len());
        let turn = |of: &Standing| {
            let pages = needed.max(of.pages / 10).max(1);
            // Its own it may give up to the last page.
            Turn { cache: of.cache, pages: if of.cache == asker { pages } else { pages.min(of.pages - share) } }
        };
        let can_give = |of: &&Standing| {
            let above = if of.cache == asker { of.pages > 0 } else { of.pages > share };
            above && !passed.contains(&of.cache)
        };
        let idle = |of: &&Standing| of.cache != asker && self.is_idle(of.cache);
        let above = |of: &&Standing| {
            let wanted = if of.cache == asker { of.pages.saturating_add(needed) } else { of.pages };
            (wanted.saturating_sub(share), of.cache == asker)
        };
        let givers = || caches.iter().filter(can_give);
        givers().filter(idle).max_by_key(above).or_else(|| givers().max_by_key(above)).map(turn)
    }

    /// The cache is no more.
    pub(crate) fn forget(&mut self, cache: u64) {
        self.known.retain(|known| known.cache != cache);
    }

    fn note(&mut self, caches: &[Standing]) {
        self.decisions += 1;
        for &Standing { cache, requests, .. } in caches {
            match self.known.iter_mut().find(|known| known.cache == cache) {
                Some(known) if known.requests != requests => {
                    (known.requests, known.active) = (requests, self.decisions);
                }
                Some(_) => {}
                None => self.known.push(Known { cache, requests, active: self.decisions }),
            }
        }
        if self.known.len() > caches.len() {
            // One went between the question and the answer.
            self.known.retain(|known| caches.iter().any(|standing| standing.cache == known.cache));
        }
    }

    fn is_idle(&self, cache: u64) -> bool {
        let known = self.known.iter().find(|known| known.cache == cache);
        known.is_some_and(|known| self.decisions - known.active >= IDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: u64 = 1000;

    /// Caches with pages that can all leave.
    #[derive(Debug)]
    struct Model {
        shares: Shares,
        caches: Vec<Standing>,
    }

    impl Model {
        fn new(pages: &[u64]) -> Self {
            let of = |(nth, &pages): (usize, &u64)| Standing { cache: nth as u64, pages, requests: 0 };
            Self { shares: Shares::default(), caches: pages.iter().enumerate().map(of).collect() }
        }

        fn pages(&self) -> u64 {
            self.caches.iter().map(|cache| cache.pages).sum()
        }

        /// A miss of so many pages. Returns whether it found room, and which caches gave it.
        fn miss(&mut self, asker: u64, needed: u64) -> (bool, Vec<u64>) {
            self.caches[asker as usize].requests += 1;
            let (passed, mut gave) = (Vec::new(), Vec::new());
            while self.pages() + needed > LIMIT {
                let Some(turn) = self.shares.choose(LIMIT, asker, needed, &self.caches, &passed) else {
                    return (false, gave);
                };
                let share = Shares::guaranteed(LIMIT, self.caches.len());
                let giver = &mut self.caches[turn.cache as usize];
                assert!(turn.pages > 0 && giver.pages > 0, "{turn:?}");
                let left = giver.pages.saturating_sub(turn.pages);
                assert!(turn.cache == asker || left >= share, "{turn:?}");
                giver.pages = left;
                gave.push(turn.cache);
            }
            self.caches[asker as usize].pages += needed;
            (true, gave)
        }
    }

    #[test]
    fn one_that_floods_takes_nothing_of_anothers_share() {
        let mut model = Model::new(&[250, 0]);
        for _ in 0..1000 {
            model.caches[0].requests += 1;
            assert!(model.miss(1, 1).0);
        }
        assert_eq!(model.caches[0].pages, 250);
    }

    #[test]
    fn an_idle_one_gives_all_above_its_share() {
        let mut model = Model::new(&[1000, 0]);
        for _ in 0..2000 {
            assert!(model.miss(1, 1).0);
        }
        assert_eq!(model.caches[0].pages, 250);
    }

    #[test]
    fn of_two_that_need_all_each_gets_half() {
        let mut model = Model::new(&[1000, 0]);
        for _ in 0..2000 {
            assert!(model.miss(1, 1).0 && model.miss(0, 1).0);
        }
        assert!(model.caches.iter().all(|cache| cache.pages.abs_diff(500) <= 100), "{model:?}");
    }

    #[test]
    fn caches_that_went_are_forgotten() {
        let mut shares = Shares::default();
        for nth in 0..1000 {
            let caches = [nth, nth + 1].map(|cache| Standing { cache, pages: 600, requests: 0 });
            assert!(shares.choose(LIMIT, nth, 1, &caches, &[]).is_some());
        }
        assert_eq!(shares.known.len(), 2);
    }

    #[test]
    fn what_cannot_give_is_passed_over() {
        let mut shares = Shares::default();
        let caches = Model::new(&[600, 400, 0]).caches;
        let choose = |shares: &mut Shares, passed: &[u64]| shares.choose(LIMIT, 2, 10, &caches, passed);
        assert_eq!(choose(&mut shares, &[]), Some(Turn { cache: 0, pages: 60 }));
        assert_eq!(choose(&mut shares, &[0]), Some(Turn { cache: 1, pages: 40 }));
        assert_eq!(choose(&mut shares, &[0, 1]), None);
    }

    proptest! {
        #[test]
        fn room_is_found_unless_it_is_guaranteed(
            pages in prop::collection::vec(0..400_u64, 1..8),
            misses in prop::collection::vec((0..8_u64, 1..600_u64), 1..200),
        ) {
            let mut model = Model::new(&pages);
            let count = pages.len() as u64;
            let share = Shares::guaranteed(LIMIT, pages.len());
            for (asker, needed) in misses {
                let asker = asker % count;
                let others = model.caches.iter().filter(|cache| cache.cache != asker);
                let kept: u64 = others.clone().map(|cache| cache.pages.min(share)).sum();
                let before: Vec<_> = model.caches.iter().map(|cache| cache.pages).collect();
                let (found, gave) = model.miss(asker, needed);
                // The model checks that no cache loses its guaranteed share.
                prop_assert_eq!(found, kept + needed <= LIMIT);
                for (cache, before) in model.caches.iter().zip(before) {
                    prop_assert!(cache.cache == asker || cache.pages == before || gave.contains(&cache.cache));
                }
                prop_assert!(!found || model.pages() <= LIMIT.max(pages.iter().sum()));
            }
        }
    }
}
