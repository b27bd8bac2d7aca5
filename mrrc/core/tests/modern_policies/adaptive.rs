//! Models of ARC and LIRS.

use crate::model::{List, Model, pages, raise, take};
use mrrc_core::PageRange;

pub(crate) struct Arc {
    capacity: u64,
    p: f64,
    t1: List,
    b1: List,
    t2: List,
    b2: List,
}

impl Arc {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, p: 0.0, t1: List::new(), b1: List::new(), t2: List::new(), b2: List::new() }
    }

    /// REPLACE of the paper.
    fn replace(&mut self, returns_to_t2: bool) {
        let t1 = pages(&self.t1) as f64;
        if self.t2.is_empty() || t1 > 0.0 && (t1 > self.p || returns_to_t2 && t1 == self.p) {
            self.b1.push(self.t1.remove(0));
        } else {
            self.b2.push(self.t2.remove(0));
        }
    }

    /// Drops ghosts until so many new pages fit; whether T1 leaves them room.
    fn trim(&mut self, new: u64) -> bool {
        while pages(&self.t1) + pages(&self.b1) + new > self.capacity {
            if self.b1.is_empty() {
                return false;
            }
            self.b1.remove(0);
        }
        let all = |arc: &Self| pages(&arc.t1) + pages(&arc.b1) + pages(&arc.t2) + pages(&arc.b2);
        while all(self) + new > 2 * self.capacity && !self.b2.is_empty() {
            self.b2.remove(0);
        }
        true
    }
}

impl Model for Arc {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        if take(&mut self.t1, range) {
            self.t2.push(range);
            return true;
        }
        raise(&mut self.t2, range)
    }

    fn miss(&mut self, range: PageRange) {
        let (b1, b2) = (pages(&self.b1) as f64, pages(&self.b2) as f64);
        let was_once = take(&mut self.b1, range);
        let was_often = take(&mut self.b2, range);
        if was_once {
            self.p = (self.p + (b2 / b1).max(1.0)).min(self.capacity as f64);
        } else if was_often {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
        }
        let is_new = !was_once && !was_often;
        while pages(&self.t1) + pages(&self.t2) + range.pages() > self.capacity {
            if is_new && !self.trim(range.pages()) && !self.t1.is_empty() {
                self.t1.remove(0);
            } else {
                self.replace(was_often);
            }
        }
        if is_new {
            self.trim(range.pages());
            self.t1.push(range)
        } else {
            self.t2.push(range)
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    Lir,
    Hir,
    Evicted,
}

pub(crate) struct Lirs {
    capacity: u64,
    /// S, bottom first.
    stack: Vec<(PageRange, Status)>,
    /// Q, next victim first.
    queue: List,
}

impl Lirs {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, stack: Vec::new(), queue: List::new() }
    }

    fn pages(&self, status: Status) -> u64 {
        self.stack.iter().filter(|entry| entry.1 == status).map(|entry| entry.0.pages()).sum()
    }

    fn lir_limit(&self) -> u64 {
        self.capacity - (self.capacity / 100).max(1)
    }

    fn status(&self, range: PageRange) -> Option<Status> {
        self.stack.iter().find(|entry| entry.0 == range).map(|entry| entry.1)
    }

    /// Puts the range on top of S.
    fn top(&mut self, range: PageRange, status: Status) {
        self.stack.retain(|entry| entry.0 != range);
        self.stack.push((range, status));
    }

    /// Takes the oldest LIR region, which is the bottom of S.
    fn take_bottom(&mut self) -> PageRange {
        let place = self.stack.iter().position(|entry| entry.1 == Status::Lir).unwrap();
        self.stack.remove(place).0
    }

    fn prune(&mut self) {
        if let Some(bottom) = self.stack.iter().position(|entry| entry.1 == Status::Lir) {
            self.stack.drain(..bottom);
        }
    }

    fn make_lir(&mut self, range: PageRange) {
        self.top(range, Status::Lir);
        while self.pages(Status::Lir) > self.lir_limit() {
            let demoted = self.take_bottom();
            self.queue.push(demoted);
        }
        self.prune();
    }

    fn evict(&mut self) {
        if self.queue.is_empty() {
            self.take_bottom();
            self.prune();
            return;
        }
        let victim = self.queue.remove(0);
        if let Some(entry) = self.stack.iter_mut().find(|entry| entry.0 == victim) {
            entry.1 = Status::Evicted;
        }
    }
}

impl Model for Lirs {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        match self.status(range) {
            Some(Status::Lir) => {
                self.top(range, Status::Lir);
                self.prune();
            }
            Some(Status::Hir) => {
                take(&mut self.queue, range);
                self.make_lir(range);
            }
            Some(Status::Evicted) => return false,
            None => {
                if !raise(&mut self.queue, range) {
                    return false;
                }
                self.top(range, Status::Hir);
            }
        }
        true
    }

    fn miss(&mut self, range: PageRange) {
        while self.pages(Status::Lir) + pages(&self.queue) + range.pages() > self.capacity {
            self.evict();
        }
        if self.status(range) == Some(Status::Evicted) || self.pages(Status::Lir) + range.pages() <= self.lir_limit() {
            self.make_lir(range);
        } else {
            self.top(range, Status::Hir);
            self.queue.push(range);
        }
        while self.pages(Status::Lir) + pages(&self.queue) + self.pages(Status::Evicted) > 2 * self.capacity {
            let oldest = self.stack.iter().position(|entry| entry.1 == Status::Evicted).unwrap();
            self.stack.remove(oldest);
        }
    }
}
