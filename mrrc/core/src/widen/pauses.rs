//! Contexts that stay exact for a while.

/// Contexts, and for how many of their misses each is not widened. Contexts of one place in the table displace each other.
#[derive(Debug)]
pub(super) struct Pauses {
    contexts: Box<[Pause]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    tag: u16,
    /// The next misses, which are registered as they are.
    exact: u16,
    /// The last pause for want of neighbours.
    empty: u16,
    /// Failures, weighed: each doubles the next pause. Misses that are widened take it back.
    failures: u16,
}

/// Misses after a failure, and after many.
const FAILED: u16 = 64;
const FAILED_OFTEN: u16 = 1024;

/// Misses after a refusal that may soon be over, or a change.
const BRIEF: u16 = 16;

/// Misses at most where nothing was found to register with them, again and again.
const EMPTY: u16 = 15;

impl Pauses {
    /// Returns a table for so many contexts, a power of two.
    pub(super) fn new(contexts: usize) -> Self {
        Self { contexts: vec![Pause::default(); contexts].into() }
    }

    /// Returns whether the context of this hash is not widened now.
    #[inline]
    pub(super) fn is_exact(&self, hash: u64) -> bool {
        let (at, tag) = self.place_of(hash);
        let pause = &self.contexts[at];
        pause.exact > 0 && pause.tag == tag
    }

    /// Counts a miss of the context.
    #[inline]
    pub(super) fn pass(&mut self, hash: u64) {
        let (at, tag) = self.place_of(hash);
        let pause = &mut self.contexts[at];
        if pause.tag == tag {
            if pause.exact > 0 {
                pause.exact -= 1;
            } else {
                pause.failures = pause.failures.saturating_sub(1);
            }
        }
    }

    /// Notes that a widened registration failed: the context is exact for longer each time.
    pub(super) fn refuse(&mut self, hash: u64) {
        let (at, tag) = self.place_of(hash);
        let pause = &mut self.contexts[at];
        if pause.tag != tag {
            *pause = Pause { tag, ..Pause::default() };
        }
        pause.failures = (2 * pause.failures).clamp(FAILED, FAILED_OFTEN);
        pause.exact = pause.failures;
    }

    /// Notes that neighbours changed, or can be registered later: the context is exact for a few misses.
    pub(super) fn pause(&mut self, hash: u64) {
        if let Some(pause) = self.entry(hash) {
            pause.exact = pause.exact.max(BRIEF);
        }
    }

    /// Notes whether a miss, which is counted next, has neighbours that can be registered. Where none has, looks become few.
    pub(super) fn look(&mut self, hash: u64, found: bool) {
        if let Some(pause) = self.entry(hash) {
            pause.empty = if found { 0 } else { (2 * pause.empty + 1).min(EMPTY) };
            let exact = if found { 0 } else { pause.empty + 1 };
            pause.exact = pause.exact.max(exact);
        }
    }

    /// Returns the entry of the context; none where another context has a pause there.
    fn entry(&mut self, hash: u64) -> Option<&mut Pause> {
        let (at, tag) = self.place_of(hash);
        let pause = &mut self.contexts[at];
        if pause.tag != tag {
            if pause.exact > 0 {
                return None;
            }
            *pause = Pause { tag, ..Pause::default() };
        }
        Some(pause)
    }

    /// Returns the bytes allocated.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.contexts)
    }

    fn place_of(&self, hash: u64) -> (usize, u16) {
        (hash as usize & (self.contexts.len() - 1), (hash >> 16) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts misses until the context is widened.
    fn misses(pauses: &mut Pauses, hash: u64) -> u16 {
        let mut misses = 0;
        while pauses.is_exact(hash) {
            pauses.pass(hash);
            misses += 1;
        }
        misses
    }

    #[test]
    fn each_failure_in_a_row_lasts_twice_as_long() {
        let mut pauses = Pauses::new(32);
        let (here, elsewhere) = (5 << 20, 6 << 20 | 1);
        assert!(!pauses.is_exact(here));
        for lasts in [64, 128, 256, 512, 1024, 1024] {
            pauses.refuse(here);
            assert!(!pauses.is_exact(elsewhere));
            assert_eq!(misses(&mut pauses, here), lasts);
        }
        // Misses that are widened take it back.
        (0..1024).for_each(|_| pauses.pass(here));
        pauses.refuse(here);
        assert_eq!(misses(&mut pauses, here), 64);
    }

    #[test]
    fn brief_pauses_do_not_add_up() {
        let mut pauses = Pauses::new(32);
        for _ in 0..3 {
            pauses.pause(9);
            assert_eq!(misses(&mut pauses, 9), BRIEF);
        }
        // Nor do they end one of another context.
        let other = 9 | 1 << 20;
        pauses.refuse(9);
        pauses.pause(other);
        assert!(!pauses.is_exact(other));
        assert_eq!(misses(&mut pauses, 9), FAILED);
        pauses.pause(other);
        assert_eq!(misses(&mut pauses, other), BRIEF);
    }

    #[test]
    fn fewer_looks_where_nothing_is_found() {
        let mut pauses = Pauses::new(32);
        for lasts in [1, 3, 7, 15, 15] {
            pauses.look(7, false);
            assert_eq!(misses(&mut pauses, 7), lasts + 1);
        }
        pauses.look(7, true);
        assert!(!pauses.is_exact(7));
        pauses.look(7, false);
        assert_eq!(misses(&mut pauses, 7), 2);
    }
}
