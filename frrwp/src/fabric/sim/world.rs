//! The state of a simulated network: nodes, connections, and what is on its way.

use super::terms::{Costs, Faults, Violation};
use crate::fabric::poller::Bell;
use crate::wire::Segment;
use mrrc::{Access, PageRange};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state, and the lock around it. Clones are the same.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(super) fn new(seed: u64, costs: Costs, faults: Faults) -> Self {
        Self(Arc::new(Mutex::new(World {
            costs,
            faults,
            rng: StdRng::seed_from_u64(seed),
            nodes: Vec::new(),
            links: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            violations: Vec::new(),
            first_placed: None,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct World {
    costs: Costs,
    faults: Faults,
    rng: StdRng,
    nodes: Vec<NodeState>,
    links: Vec<Link>,
    /// Events of all links, the earliest first.
    events: BinaryHeap<Event>,
    /// Numbers events, so that those of one time keep their order.
    sequence: u64,
    violations: Vec<Violation>,
    first_placed: Option<u64>,
}

struct NodeState {
    clock: u64,
    tags: HashMap<u32, Tag>,
    next_key: u32,
}

#[derive(Clone, Copy)]
struct Tag {
    range: PageRange,
    access: Access,
}

struct Link {
    nodes: [usize; 2],
    /// When the last thing posted by each end arrives: what follows arrives no earlier.
    last: [u64; 2],
    /// Receives that each end has posted, and what waits for one.
    receives: [u32; 2],
    waiting: [VecDeque<Arrival>; 2],
    inbox: [VecDeque<Arrival>; 2],
    bells: [Option<Bell>; 2],
    lost: bool,
}

#[derive(PartialEq, Eq)]
struct Event {
    time: u64,
    sequence: u64,
    link: usize,
    /// The end at which it happens.
    end: usize,
    what: What,
}

impl Ord for Event {
    /// The earliest is the greatest: a heap gives it first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.time, other.sequence).cmp(&(self.time, self.sequence))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, PartialEq, Eq)]
enum What {
    Arrives(Arrival),
    /// At the far end of the poster, which hears of it later.
    Place(Placing),
}

/// Bytes that are copied between the memory of the two ends.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Placing {
    pub(super) id: u64,
    /// The poster's address, length and key.
    pub(super) gather: Vec<(usize, usize, u32)>,
    /// Of the peer's.
    pub(super) to: Segment,
    pub(super) read: bool,
    pub(super) immediate: Option<u32>,
}

/// A completion that an end polls.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Arrival {
    Message(Vec<u8>),
    Immediate(u32),
    Done { id: u64, succeeded: bool },
    Lost,
    Flushed,
}

impl Link {
    /// There is something for an end to poll.
    fn hears(&mut self, end: usize, arrival: Arrival) {
        self.inbox[end].push_back(arrival);
        self.bells[end].iter().for_each(Bell::ring);
    }
}

impl World {
    /// Adds a node, and returns its number.
    pub(super) fn add_node(&mut self) -> usize {
        self.nodes.push(NodeState { clock: 0, tags: HashMap::new(), next_key: 1 });
        self.nodes.len() - 1
    }

    /// Adds a connection between two nodes, each end with this many receives, and returns its number.
    pub(super) fn add_link(&mut self, nodes: [usize; 2], receives: u16) -> usize {
        self.links.push(Link {
            nodes,
            last: [0; 2],
            receives: [receives.into(); 2],
            waiting: Default::default(),
            inbox: Default::default(),
            bells: Default::default(),
            lost: false,
        });
        self.links.len() - 1
    }

    /// Lets the next thing happen, no later than this. Returns false if there is none.
    pub(super) fn step(&mut self, until: u64) -> bool {
        if self.events.peek().is_none_or(|event| event.time > until) {
            return false;
        }
        let Some(event) = self.events.pop() else { return false };
        self.happen(event);
        true
    }

    /// Returns when the next thing happens.
    pub(super) fn next_time(&self) -> Option<u64> {
        self.events.peek().map(|event| event.time)
    }

    /// Returns when the first byte of all was placed.
    pub(super) fn first_placed(&self) -> Option<u64> {
        self.first_placed
    }

    pub(super) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Returns the clock of a node, to read or to move on.
    pub(super) fn node_clock(&mut self, node: usize) -> &mut u64 {
        &mut self.nodes[node].clock
    }

    /// Returns how many registrations of a node live.
    pub(super) fn registrations(&self, node: usize) -> usize {
        self.nodes[node].tags.len()
    }

    /// Moves the clock of an end's node on to this time, if that is not past.
    pub(super) fn sleep(&mut self, link: usize, end: usize, until: u64) {
        let node = self.links[link].nodes[end];
        self.nodes[node].clock = until.max(self.nodes[node].clock);
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random_bool(probability)
    }

    /// Returns whether writes can carry an immediate.
    pub(super) fn immediate(&self) -> bool {
        self.costs.immediate
    }

    pub(super) fn clock(&self, link: usize, end: usize) -> u64 {
        self.nodes[self.links[link].nodes[end]].clock
    }

    pub(super) fn register(&mut self, node: usize, range: PageRange, access: Access) -> Option<u32> {
        let slow = if self.chance(self.faults.slow_registration) { 100.0 } else { 1.0 };
        let cost = self.costs.registration;
        let micros = cost.reg_call + cost.reg_page * range.pages() as f64;
        self.nodes[node].clock += (micros * 1000.0 * slow).round() as u64;
        if self.chance(self.faults.registration) {
            return None;
        }
        let node = &mut self.nodes[node];
        let key = node.next_key;
        node.next_key += 1;
        node.tags.insert(key, Tag { range, access });
        Some(key)
    }

    /// A batch is one operation.
    pub(super) fn deregister(&mut self, node: usize, batch: impl IntoIterator<Item = (u32, u64)>) {
        let cost = self.costs.registration;
        let node = &mut self.nodes[node];
        let mut pages = 0;
        for (key, region) in batch {
            node.tags.remove(&key);
            pages += region;
        }
        let micros = cost.dereg_call + cost.dereg_page * pages as f64;
        node.clock += (micros * 1000.0).round() as u64;
    }

    fn schedule(&mut self, time: u64, link: usize, end: usize, what: What) {
        self.sequence += 1;
        self.events.push(Event { time, sequence: self.sequence, link, end, what });
    }

    /// When something of so many bytes that is posted now arrives at the far end. False if the connection is gone.
    fn leave(&mut self, link: usize, end: usize, bytes: u64) -> Option<u64> {
        if self.links[link].lost {
            return None;
        }
        if self.chance(self.faults.loss) {
            self.lose(link);
            return None;
        }
        let jitter = if self.costs.jitter > 0 { self.rng.random_range(0..=self.costs.jitter) } else { 0 };
        let takes = self.costs.latency + (self.costs.byte * bytes as f64) as u64 + jitter;
        let arrives = (self.clock(link, end) + takes).max(self.links[link].last[end]);
        self.links[link].last[end] = arrives;
        Some(arrives)
    }

    pub(super) fn send(&mut self, link: usize, end: usize, message: &[u8]) -> bool {
        let Some(time) = self.leave(link, end, message.len() as u64) else { return false };
        self.schedule(time, link, 1 - end, What::Arrives(Arrival::Message(message.to_vec())));
        true
    }

    pub(super) fn receive(&mut self, link: usize, end: usize, more: u16) {
        self.links[link].receives[end] += u32::from(more);
        while self.links[link].receives[end] > 0 {
            let Some(arrival) = self.links[link].waiting[end].pop_front() else { break };
            self.links[link].receives[end] -= 1;
            self.links[link].hears(end, arrival);
        }
    }

    pub(super) fn place(&mut self, link: usize, end: usize, placing: Placing) -> bool {
        let Some(time) = self.leave(link, end, placing.to.length) else { return false };
        self.schedule(time, link, 1 - end, What::Place(placing));
        true
    }

    /// The connection goes: both ends hear of it, and a while later nothing is placed any more.
    pub(super) fn lose(&mut self, link: usize) {
        if std::mem::replace(&mut self.links[link].lost, true) {
            return;
        }
        let flush = self.links[link].last.into_iter().max().unwrap_or(0);
        let latency = self.costs.latency;
        for end in 0..2 {
            let now = self.clock(link, end);
            self.schedule(now + latency, link, end, What::Arrives(Arrival::Lost));
            // After everything that is on its way: the flush is known when the far end cannot place any more.
            self.schedule(now.max(flush) + 2 * latency + 1, link, end, What::Arrives(Arrival::Flushed));
        }
    }

    fn happen(&mut self, Event { time, link, end, what, .. }: Event) {
        let node = self.links[link].nodes[end];
        match what {
            What::Arrives(arrival) => {
                let clock = &mut self.nodes[node].clock;
                *clock = time.max(*clock);
                self.arrive(link, end, arrival);
            }
            What::Place(Placing { id, gather, to, read, immediate }) => {
                // Placed by the card: the far application's clock stands. Some of what is posted before a loss is placed.
                let placed = if self.links[link].lost && self.rng.random() {
                    false
                } else {
                    self.copy(link, end, &gather, to, read)
                };
                if placed {
                    self.first_placed.get_or_insert(time);
                }
                let latency = self.costs.latency;
                self.schedule(time + latency, link, 1 - end, What::Arrives(Arrival::Done { id, succeeded: placed }));
                if !placed {
                    self.lose(link);
                } else if let Some(immediate) = immediate {
                    let clock = &mut self.nodes[node].clock;
                    *clock = time.max(*clock);
                    self.arrive(link, end, Arrival::Immediate(immediate));
                }
            }
        }
    }

    fn arrive(&mut self, link: usize, end: usize, arrival: Arrival) {
        let lost = self.links[link].lost;
        let link = &mut self.links[link];
        match arrival {
            // Messages after the loss are not heard; completions are.
            Arrival::Message(_) | Arrival::Immediate(_) if lost => return,
            Arrival::Message(_) | Arrival::Immediate(_) => {
                let Some(left) = link.receives[end].checked_sub(1) else {
                    return link.waiting[end].push_back(arrival);
                };
                link.receives[end] = left;
            }
            Arrival::Done { .. } | Arrival::Lost | Arrival::Flushed => {}
        }
        link.hears(end, arrival);
    }

    /// The bell of an end is this one now; returns the one before.
    pub(super) fn attach(&mut self, link: usize, end: usize, bell: Option<Bell>) -> Option<Bell> {
        std::mem::replace(&mut self.links[link].bells[end], bell)
    }

    pub(super) fn poll(&mut self, link: usize, end: usize) -> Option<Arrival> {
        self.links[link].inbox[end].pop_front()
    }

    /// Returns whether an end has something to poll.
    pub(super) fn has_news(&self, link: usize, end: usize) -> bool {
        !self.links[link].inbox[end].is_empty()
    }

    /// Copies between the gathered memory of the near end and the segment of `end`, if both are allowed.
    fn copy(&mut self, link: usize, end: usize, gather: &[(usize, usize, u32)], to: Segment, read: bool) -> bool {
        let [far, near] = [end, 1 - end].map(|end| self.links[link].nodes[end]);
        let (far_right, near_right) =
            if read { (Access::REMOTE_READ, Access::LOCAL_WRITE) } else { (Access::REMOTE_WRITE, Access::LOCAL_READ) };
        let mut allowed = self.allows(far, to, far_right);
        for &(address, length, key) in gather {
            let segment = Segment { address: address as u64, length: length as u64, key };
            allowed &= self.allows(near, segment, near_right);
        }
        if !allowed {
            return false;
        }
        let mut at = to.address as usize;
        for &(address, length, _) in gather {
            let (from, into) = if read { (at, address) } else { (address, at) };
            copy(from, into, length);
            at += length;
        }
        true
    }

    fn allows(&mut self, node: usize, segment: Segment, right: Access) -> bool {
        let tag = self.nodes[node].tags.get(&segment.key).copied();
        let pages = PageRange::of_bytes(segment.address, segment.length).ok();
        let what = match (tag, pages) {
            (None, _) => "a key that is not registered, or not any more",
            (Some(tag), Some(pages)) if !tag.range.contains(pages) => "bytes outside the registered range",
            (Some(tag), _) if !tag.access.contains(right) => "a right that was not granted",
            (_, None) => "no range of memory",
            _ => return true,
        };
        self.violations.push(Violation { what, node, segment });
        false
    }
}

/// Copies bytes as the card does when it places them.
#[expect(unsafe_code, reason = "the simulated card copies between addresses, as a real one does")]
fn copy(from: usize, into: usize, length: usize) {
    // SAFETY: `ptr::copy` requires memory that may be read and written. Both ranges were posted under the contract of `Endpoint`, which
    // promises that until they have completed, and the tags of both were found to be registered just now.
    unsafe { std::ptr::copy(from as *const u8, into as *mut u8, length) }
}
