//! Models of the policies made of FIFO queues.

use crate::model::{List, Model, pages, raise, remember, take};
use mrrc_core::PageRange;

pub(crate) struct Fifo {
    capacity: u64,
    queue: List,
}

impl Fifo {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, queue: List::new() }
    }
}

impl Model for Fifo {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        self.queue.contains(&range)
    }

    fn miss(&mut self, range: PageRange) {
        while pages(&self.queue) + range.pages() > self.capacity {
            self.queue.remove(0);
        }
        self.queue.push(range);
    }
}

pub(crate) struct Sieve {
    capacity: u64,
    /// Oldest first, with the mark.
    queue: Vec<(PageRange, bool)>,
    hand: usize,
}

impl Sieve {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, queue: Vec::new(), hand: 0 }
    }
}

impl Model for Sieve {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        let found = self.queue.iter_mut().find(|(other, _)| *other == range);
        found.map(|(_, visited)| *visited = true).is_some()
    }

    fn miss(&mut self, range: PageRange) {
        while self.queue.iter().map(|(range, _)| range.pages()).sum::<u64>() + range.pages() > self.capacity {
            if self.queue[self.hand].1 {
                self.queue[self.hand].1 = false;
                self.hand += 1;
            } else {
                self.queue.remove(self.hand);
            }
            if self.hand == self.queue.len() {
                self.hand = 0;
            }
        }
        self.queue.push((range, false));
    }
}

pub(crate) struct S3Fifo {
    capacity: u64,
    /// Oldest first, with the references since they entered.
    small: Vec<(PageRange, u32)>,
    main: Vec<(PageRange, u32)>,
    ghosts: List,
    was_full: bool,
}

impl S3Fifo {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, small: Vec::new(), main: Vec::new(), ghosts: List::new(), was_full: false }
    }

    fn pages(queue: &[(PageRange, u32)]) -> u64 {
        queue.iter().map(|(range, _)| range.pages()).sum()
    }

    fn small_pages(&self) -> u64 {
        (self.capacity / 10).max(1)
    }

    fn evict_small(&mut self) {
        while !self.small.is_empty() {
            let (range, count) = self.small.remove(0);
            if count < 2 {
                remember(&mut self.ghosts, range, self.capacity * 9 / 10);
                return;
            }
            self.main.push((range, 0));
        }
    }

    fn evict_main(&mut self) {
        loop {
            let (range, count) = self.main.remove(0);
            if count == 0 {
                return;
            }
            self.main.push((range, count.min(3) - 1));
        }
    }
}

impl Model for S3Fifo {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        let mut all = self.small.iter_mut().chain(&mut self.main);
        all.find(|(other, _)| *other == range).map(|(_, count)| *count += 1).is_some()
    }

    fn miss(&mut self, range: PageRange) {
        let returns = take(&mut self.ghosts, range);
        while Self::pages(&self.small) + Self::pages(&self.main) + range.pages() > self.capacity {
            self.was_full = true;
            if self.small.is_empty() || Self::pages(&self.main) > self.capacity - self.small_pages() {
                self.evict_main();
            } else {
                self.evict_small();
            }
        }
        let overflows = !self.was_full && Self::pages(&self.small) >= self.small_pages();
        let queue = if returns || overflows { &mut self.main } else { &mut self.small };
        queue.push((range, 0));
    }
}

pub(crate) struct TwoQ {
    capacity: u64,
    a1in: List,
    a1out: List,
    am: List,
}

impl TwoQ {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, a1in: List::new(), a1out: List::new(), am: List::new() }
    }
}

impl Model for TwoQ {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        self.a1in.contains(&range) || raise(&mut self.am, range)
    }

    fn miss(&mut self, range: PageRange) {
        let returns = take(&mut self.a1out, range);
        while pages(&self.a1in) + pages(&self.am) + range.pages() > self.capacity {
            if pages(&self.a1in) > self.capacity / 4 || self.am.is_empty() {
                let victim = self.a1in.remove(0);
                remember(&mut self.a1out, victim, self.capacity / 2);
            } else {
                self.am.remove(0);
            }
        }
        if returns { self.am.push(range) } else { self.a1in.push(range) }
    }
}
