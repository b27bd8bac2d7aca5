//! Textbook versions of ARC, GDSF and W-TinyLFU, written from the papers for objects of one size, against the policies.

use crate::random::Random;
use mrrc_core::policy::Matching;
use mrrc_core::{Config, PageRange};
use std::collections::HashMap;
use tracesim_policies::AnyPolicy;

/// A cache of so many objects that answers whether a request is a hit.
trait Paper {
    fn request(&mut self, x: u64) -> bool;
}

/// Takes a key out of a list.
fn take(list: &mut Vec<u64>, x: u64) -> bool {
    let place = list.iter().position(|&other| other == x);
    place.map(|place| list.remove(place)).is_some()
}

/// Figure 4 of the paper. The most recently used key is the last of a list.
#[derive(Default)]
struct Arc {
    c: usize,
    p: f64,
    t1: Vec<u64>,
    t2: Vec<u64>,
    b1: Vec<u64>,
    b2: Vec<u64>,
}

impl Arc {
    fn replace(&mut self, x: u64) {
        let t1 = self.t1.len() as f64;
        if !self.t1.is_empty() && (t1 > self.p || self.b2.contains(&x) && t1 == self.p) {
            self.b1.push(self.t1.remove(0));
        } else {
            self.b2.push(self.t2.remove(0));
        }
    }
}

impl Paper for Arc {
    fn request(&mut self, x: u64) -> bool {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if take(&mut self.t1, x) || take(&mut self.t2, x) {
            self.t2.push(x);
            return true;
        }
        if self.b1.contains(&x) {
            let delta = if b1 >= b2 { 1.0 } else { b2 / b1 };
            self.p = (self.p + delta).min(self.c as f64);
            self.replace(x);
            take(&mut self.b1, x);
            self.t2.push(x);
            return false;
        }
        if self.b2.contains(&x) {
            let delta = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - delta).max(0.0);
            self.replace(x);
            take(&mut self.b2, x);
            self.t2.push(x);
            return false;
        }
        let l1 = self.t1.len() + self.b1.len();
        let all = l1 + self.t2.len() + self.b2.len();
        if l1 == self.c {
            if self.t1.len() < self.c {
                self.b1.remove(0);
                self.replace(x);
            } else {
                self.t1.remove(0);
            }
        } else if all >= self.c {
            if all == 2 * self.c {
                self.b2.remove(0);
            }
            self.replace(x);
        }
        self.t1.push(x);
        false
    }
}

/// Cherkasova's report, with a cost of 1; ties go to the older reference, as in libCacheSim. A newcomer with the least priority
/// is not admitted there. Here it has to be, and the clock rises no higher than that.
#[derive(Default)]
struct Gdsf {
    c: usize,
    clock: u64,
    time: u64,
    /// Key, frequency, priority, last reference.
    cached: Vec<(u64, u64, u64, u64)>,
}

impl Paper for Gdsf {
    fn request(&mut self, x: u64) -> bool {
        self.time += 1;
        if let Some((_, frequency, priority, last)) = self.cached.iter_mut().find(|object| object.0 == x) {
            *frequency += 1;
            *priority = self.clock + *frequency;
            *last = self.time;
            return true;
        }
        let priority = self.clock + 1;
        if self.cached.len() == self.c {
            let least = (0..self.c).min_by_key(|&at| (self.cached[at].2, self.cached[at].3)).unwrap();
            self.clock = self.cached.remove(least).2.min(priority);
        }
        self.cached.push((x, 1, priority, self.time));
        false
    }
}

/// Section 4 of the paper with exact counts in place of the sketch.
#[derive(Default)]
struct WTinyLfu {
    c: usize,
    window: Vec<u64>,
    probation: Vec<u64>,
    protected: Vec<u64>,
    counts: HashMap<u64, u64>,
    references: usize,
}

impl WTinyLfu {
    fn count(&self, x: u64) -> u64 {
        self.counts.get(&x).copied().unwrap_or(0)
    }
}

impl Paper for WTinyLfu {
    fn request(&mut self, x: u64) -> bool {
        let main = self.c * 99 / 100;
        let count = self.counts.entry(x).or_default();
        *count = (*count + 1).min(15);
        self.references += 1;
        if self.references == 10 * self.c {
            self.references /= 2;
            self.counts.values_mut().for_each(|count| *count /= 2);
        }
        if take(&mut self.window, x) {
            self.window.push(x);
            return true;
        }
        if take(&mut self.protected, x) {
            self.protected.push(x);
            return true;
        }
        if take(&mut self.probation, x) {
            self.protected.push(x);
            if self.protected.len() > main * 4 / 5 {
                self.probation.push(self.protected.remove(0));
            }
            return true;
        }
        self.window.push(x);
        if self.window.len() > self.c - main {
            let candidate = self.window.remove(0);
            if self.probation.len() + self.protected.len() < main {
                self.probation.push(candidate);
                return false;
            }
            let segment = if self.probation.is_empty() { &self.protected } else { &self.probation };
            let Some(&victim) = segment.first() else { return false };
            if self.count(candidate) > self.count(victim) {
                let _ = take(&mut self.probation, victim) || take(&mut self.protected, victim);
                self.probation.push(candidate);
            }
        }
        false
    }
}

/// Keys that favour recent ones, loops longer than the cache, scans, and a favour that shifts.
fn keys(seed: u64, c: u64, requests: usize) -> Vec<u64> {
    let mut random = Random::new(seed);
    let mut keys: Vec<u64> = Vec::new();
    let mut next = 1 << 20;
    while keys.len() < requests {
        let length = 1 + random.below(3 * c);
        let base = random.below(4 * c);
        match random.below(4) {
            0 => keys.extend((0..length).map(|step| base + step % (c + c / 4 + 1))),
            1 => {
                keys.extend(next..next + length);
                next += length;
            }
            2 => {
                for _ in 0..length {
                    let back = 1 + random.below(c) * random.below(c) / c;
                    keys.push(keys.len().checked_sub(back as usize).map_or(0, |at| keys[at]));
                }
            }
            _ => keys.extend((0..length).map(|_| base + random.below(2 * c) * random.below(2 * c) / (2 * c))),
        }
    }
    keys.truncate(requests);
    keys
}

/// Compares hit for hit.
fn compare(policy: AnyPolicy, paper: impl Fn(usize) -> Box<dyn Paper>) {
    for c in [1_u64, 2, 10, 100, 333, 600] {
        for seed in 1..=3 {
            let config = Config { matching: Some(Matching::Exact), ..Config::new(c) };
            let (mut core, mut paper) = (policy.core(&config).unwrap(), paper(c as usize));
            let mut hits = 0;
            for (nth, key) in keys(seed, c, 20_000).into_iter().enumerate() {
                // Neighbours are no neighbours in memory, so nothing is in the way of a region of its own.
                let asked = PageRange::new(16 * key, 1).unwrap();
                let hit = core.request(asked).unwrap().found().is_hit();
                assert_eq!(hit, paper.request(key), "{policy}, {c} pages, seed {seed}: request {nth} for {key}");
                hits += u64::from(hit);
            }
            assert!(c < 10 || hits > 1000, "{policy}, {c} pages: {hits} hits");
        }
    }
}

#[test]
fn arc_is_that_of_its_paper_for_one_size() {
    compare(AnyPolicy::Arc, |c| Box::new(Arc { c, ..Arc::default() }));
}

#[test]
fn gdsf_is_that_of_its_paper_for_one_size() {
    compare(AnyPolicy::Gdsf, |c| Box::new(Gdsf { c, ..Gdsf::default() }));
}

#[test]
fn w_tinylfu_is_that_of_its_paper_for_one_size() {
    compare(AnyPolicy::WTinyLfu, |c| Box::new(WTinyLfu { c, ..WTinyLfu::default() }));
}
