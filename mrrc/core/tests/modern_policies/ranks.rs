//! Models of the policies that give each region a rank.

use crate::model::{List, Model, pages, remember, take};
use mrrc_core::PageRange;
use mrrc_core::cost::Linear;
use std::collections::HashMap;

pub(crate) struct Gdsf {
    capacity: u64,
    cost: Linear,
    clock: f64,
    time: u64,
    cached: Vec<Ranked>,
}

struct Ranked {
    range: PageRange,
    frequency: u32,
    worth: f64,
    time: u64,
}

impl Gdsf {
    pub(crate) fn new(capacity: u64, cost: Linear) -> Self {
        Self { capacity, cost, clock: 0.0, time: 0, cached: Vec::new() }
    }

    fn worth(&self, range: PageRange, frequency: u32) -> f64 {
        let of_a_page = self.cost.reload(range.pages()) / range.pages() as f64;
        let unit = f64::from(1 << 20) / self.cost.reload(1);
        self.clock + f64::from(frequency) * (of_a_page * unit).round()
    }
}

impl Model for Gdsf {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        self.time += 1;
        let Some(place) = self.cached.iter().position(|ranked| ranked.range == range) else { return false };
        let frequency = self.cached[place].frequency + 1;
        self.cached[place] = Ranked { range, frequency, worth: self.worth(range, frequency), time: self.time };
        true
    }

    fn miss(&mut self, range: PageRange) {
        let newcomer = Ranked { range, frequency: 1, worth: self.worth(range, 1), time: self.time };
        let mut highest = f64::NEG_INFINITY;
        while self.cached.iter().map(|ranked| ranked.range.pages()).sum::<u64>() + range.pages() > self.capacity {
            let rank = |&place: &usize| (self.cached[place].worth, self.cached[place].time);
            let victim = (0..self.cached.len()).min_by(|a, b| rank(a).partial_cmp(&rank(b)).unwrap()).unwrap();
            highest = highest.max(self.cached.remove(victim).worth);
        }
        // Had the newcomer been cached before, it would have been the victim once it was worth least.
        self.clock = self.clock.max(highest.min(newcomer.worth));
        self.cached.push(newcomer);
    }
}

pub(crate) struct LruK {
    capacity: u64,
    k: usize,
    time: u64,
    cached: List,
    /// Evicted, with their times still known.
    retained: List,
    times: HashMap<PageRange, Vec<u64>>,
}

impl LruK {
    pub(crate) fn new(capacity: u64, k: u32) -> Self {
        Self { capacity, k: k as usize, time: 0, cached: List::new(), retained: List::new(), times: HashMap::new() }
    }

    /// Returns the K-th last reference, or the beginning of time; then the last.
    fn rank(&self, range: PageRange) -> (u64, u64) {
        let times = &self.times[&range];
        let kth = times.len().checked_sub(self.k).map_or(0, |place| times[place]);
        (kth, times[times.len() - 1])
    }
}

impl Model for LruK {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        self.time += 1;
        let hit = self.cached.contains(&range);
        if hit {
            self.times.get_mut(&range).unwrap().push(self.time);
        }
        hit
    }

    fn miss(&mut self, range: PageRange) {
        if !take(&mut self.retained, range) {
            self.times.remove(&range);
        }
        while pages(&self.cached) + range.pages() > self.capacity {
            let victim = *self.cached.iter().min_by_key(|&&range| self.rank(range)).unwrap();
            take(&mut self.cached, victim);
            remember(&mut self.retained, victim, self.capacity);
        }
        self.times.entry(range).or_default().push(self.time);
        self.cached.push(range);
    }
}
