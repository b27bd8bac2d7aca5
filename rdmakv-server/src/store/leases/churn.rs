//! Keys that change so often that leases on their chunks do no good.
//!
//! A table of small sets by the key's hash: in a set that is full, the entry that was quiet longest makes room. A key that
//! is forgotten so, or taken for another, gets a lease too many or waits for one a little longer; nothing else.

const SETS: usize = 512;
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// 0 where there is none.
    hash: u64,
    /// The last death of a leased chunk was not before this, in nanoseconds.
    died: u64,
    /// And the key has been still at most since this.
    still: u64,
    /// The store's version then.
    version: u64,
    refused: bool,
}

/// The table; it takes memory with the first death.
#[derive(Debug, Default)]
pub(super) struct Churn {
    sets: Vec<[Entry; WAYS]>,
}

impl Churn {
    pub(super) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    fn set(&mut self, hash: u64) -> &mut [Entry; WAYS] {
        &mut self.sets[hash as usize & (SETS - 1)]
    }

    /// A leased chunk of this key died, between two moments; returns whether that was too often.
    pub(super) fn died(&mut self, hash: u64, version: u64, earliest: u64, latest: u64, duration: u64) -> bool {
        if self.sets.is_empty() {
            self.sets = vec![[Entry::default(); WAYS]; SETS];
        }
        let hash = hash.max(1);
        let set = self.set(hash);
        let at = set.iter().position(|entry| entry.hash == hash);
        let known = at.map(|at| set[at]);
        let again = known.is_some_and(|known| known.refused || earliest.saturating_sub(known.died) <= duration);
        let at = at.or_else(|| (0..WAYS).min_by_key(|&at| set[at].died)).unwrap_or(0);
        set[at] = Entry { hash, died: earliest, still: latest, version, refused: again };
        again
    }

    /// Returns whether the key, with an item of this version, gets no lease.
    pub(super) fn refuses(&mut self, hash: u64, version: u64, now: u64, duration: u64) -> bool {
        let hash = hash.max(1);
        let Some(entry) = self.set(hash).iter_mut().find(|entry| entry.hash == hash && entry.refused) else {
            return false;
        };
        if version > entry.version {
            // Changed since, at an unknown time.
            (entry.version, entry.still) = (version, now);
        }
        // It had died when this was asked, whatever whole seconds make of it.
        entry.still = entry.still.min(now);
        if now - entry.still < duration {
            return true;
        }
        *entry = Entry::default();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: u64 = 1000;

    #[test]
    fn double_death_is_refused_for_one_lease() {
        let mut churn = Churn::default();
        assert!(!churn.died(7, 1, 10_000, 10_100, D));
        assert!(!churn.refuses(7, 1, 10_050, D), "once is no harm");
        assert!(churn.died(7, 2, 10_900, 11_000, D));
        assert!(churn.refuses(7, 2, 10_950, D));
        assert!(churn.refuses(7, 2, 11_949, D));
        assert!(!churn.refuses(7, 2, 11_950, D), "still for a whole D");
        assert!(!churn.died(7, 3, 12_000, 12_100, D), "it begins anew");
    }

    #[test]
    fn who_changes_without_a_lease_is_not_still() {
        let mut churn = Churn::default();
        churn.died(7, 1, 10_000, 10_000, D);
        churn.died(7, 2, 10_100, 10_100, D);
        assert!(churn.refuses(7, 3, 11_050, D), "another version than the one that died last");
        assert!(churn.refuses(7, 3, 12_049, D));
        assert!(!churn.refuses(7, 3, 12_050, D));
    }

    #[test]
    fn deaths_far_from_each_other_do_no_harm() {
        let mut churn = Churn::default();
        for turn in 0..10 {
            assert!(!churn.died(7, turn, turn * (D + 1), turn * (D + 1), D));
        }
    }

    #[test]
    fn table_evicts_quietest_at_fixed_size() {
        let mut churn = Churn::default();
        for hash in 0..1_000_000 {
            churn.died(hash, hash, hash, hash, D);
        }
        assert_eq!(churn.sets.len(), SETS);
        assert!(churn.died(999_999, 1, 999_999, 999_999, D));
    }
}
