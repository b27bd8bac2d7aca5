//! LRU-2 from its paper, of objects of one page, with as much history as one likes.

use mrrc::PageRange;
use std::collections::{BTreeMap, HashMap, VecDeque};
use traces::Trace;

/// The last reference but one (0 for none), and the last.
type Times = (u64, u64);

pub(crate) struct Lru2 {
    capacity: usize,
    history: usize,
    time: u64,
    /// By what they are evicted by, lowest first.
    cached: BTreeMap<Times, PageRange>,
    times: HashMap<PageRange, Times>,
    /// Evicted, with times still known; the oldest first.
    retained: VecDeque<PageRange>,
}

impl Lru2 {
    /// Returns a cache of so many objects, that remembers as many of those it evicted as the history has room for.
    pub(crate) fn new(capacity: u64, history: u64) -> Self {
        let (cached, times, retained) = Default::default();
        Self { capacity: capacity as usize, history: history as usize, time: 0, cached, times, retained }
    }

    pub(crate) fn misses(mut self, trace: &Trace) -> u64 {
        let steps = trace.processes.iter().flat_map(|process| &process.steps);
        steps.map(|step| u64::from(!self.request(step.range()))).sum()
    }

    fn request(&mut self, object: PageRange) -> bool {
        self.time += 1;
        let before = self.times.get(&object).copied();
        let hit = before.is_some_and(|times| self.cached.remove(&times).is_some());
        if !hit {
            if before.is_some() {
                self.retained.retain(|&other| other != object);
            }
            if self.cached.len() == self.capacity
                && let Some((_, victim)) = self.cached.pop_first()
            {
                self.retained.push_back(victim);
            }
            while self.retained.len() > self.history {
                let forgotten = self.retained.pop_front().expect("there is one too many");
                self.times.remove(&forgotten);
            }
        }
        let times = (before.map_or(0, |times| times.1), self.time);
        self.times.insert(object, times);
        self.cached.insert(times, object);
        hit
    }
}
