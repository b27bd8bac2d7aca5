//! Simulated datagrams: lost, late, in another order, twice, changed, or held up at a bottleneck.

use crate::fabric::traits::{DatagramPort, Peer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::rc::Rc;

/// The ways of a network with its datagrams. Times are in nanoseconds, the faults are probabilities.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Impairments {
    /// From one port to the other.
    pub latency: u64,
    /// Up to so much more, at random: datagrams overtake each other.
    pub jitter: u64,
    /// A datagram is lost.
    pub loss: f64,
    /// A datagram comes twice.
    pub duplication: f64,
    /// A datagram is late by up to ten latencies.
    pub delay: f64,
    /// A byte of a datagram is changed.
    pub corruption: f64,
    /// The narrow place on the way to a peer, and back.
    pub bottleneck: Option<Bottleneck>,
}

/// A narrow place, with a queue in each direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bottleneck {
    /// The peer behind it.
    pub peer: Peer,
    /// Nanoseconds that a byte takes.
    pub byte: f64,
    /// Bytes of each queue. What does not fit is lost.
    pub queue: u64,
}

/// Counts of a network.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DatagramCounts {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Datagrams that were lost, at the bottleneck or elsewhere.
    pub lost: u64,
    /// Bytes that went through the bottleneck, to its peer and from it.
    pub through: [u64; 2],
}

#[derive(Debug)]
struct State {
    impairments: Impairments,
    random: StdRng,
    sequence: u64,
    passing: BTreeMap<(u64, u64), (Peer, Peer, Vec<u8>)>,
    inboxes: BTreeMap<Peer, VecDeque<(Peer, Vec<u8>)>>,
    /// When the bottleneck has sent what is in its queues.
    free: [u64; 2],
    counts: DatagramCounts,
}

/// A simulated network of datagrams, with one clock. Clones are the same network.
#[derive(Clone)]
pub struct DatagramNetwork {
    state: Rc<RefCell<State>>,
    clock: Rc<Cell<u64>>,
}

impl fmt::Debug for DatagramNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramNetwork").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl DatagramNetwork {
    /// Makes a network without ports. The same seed gives the same run.
    pub fn new(seed: u64, impairments: Impairments) -> Self {
        let state = State {
            impairments,
            random: StdRng::seed_from_u64(seed),
            sequence: 0,
            passing: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            free: [0; 2],
            counts: DatagramCounts::default(),
        };
        Self { state: Rc::new(RefCell::new(state)), clock: Rc::new(Cell::new(0)) }
    }

    /// Returns the port at an address. It stays in the thread of the network.
    pub fn port(&self, peer: Peer) -> SimPort {
        self.state.borrow_mut().inboxes.entry(peer).or_default();
        SimPort { network: self.clone(), peer, datagram: Vec::new() }
    }

    /// Changes the impairments from now on.
    pub fn set_impairments(&self, impairments: Impairments) {
        self.state.borrow_mut().impairments = impairments;
    }

    /// Returns the time.
    pub fn now(&self) -> u64 {
        self.clock.get()
    }

    /// Returns when the next datagram arrives.
    pub fn next_time(&self) -> Option<u64> {
        self.state.borrow().passing.keys().next().map(|(time, _)| *time)
    }

    /// Lets the next datagram arrive, if that is no later than this, or the time pass. Returns the receiver.
    pub fn step(&self, until: u64) -> Option<Peer> {
        let mut state = self.state.borrow_mut();
        let entry = state.passing.first_entry().filter(|entry| entry.key().0 <= until);
        let Some(entry) = entry else {
            self.clock.set(until.max(self.now()));
            return None;
        };
        let ((time, _), (from, to, bytes)) = entry.remove_entry();
        self.clock.set(time.max(self.now()));
        // A datagram to an address without a port is lost.
        state.inboxes.get_mut(&to)?.push_back((from, bytes));
        Some(to)
    }

    /// Returns the counts.
    pub fn counts(&self) -> DatagramCounts {
        self.state.borrow().counts
    }

    /// Sends a datagram from any address: a forged one, where it is not the sender's.
    pub fn send(&self, from: Peer, to: Peer, datagram: &[u8]) {
        self.state.borrow_mut().send(self.now(), from, to, datagram);
    }
}

impl State {
    fn send(&mut self, now: u64, from: Peer, to: Peer, datagram: &[u8]) {
        let impairments = self.impairments;
        self.counts.sent += 1;
        let copies =
            if self.chance(impairments.loss) { 0 } else { 1 + u32::from(self.chance(impairments.duplication)) };
        self.counts.lost += u64::from(copies == 0);
        for _ in 0..copies {
            let mut leaves = now;
            if let Some(Bottleneck { peer, byte, queue }) = impairments.bottleneck {
                let way = usize::from(from == peer);
                if way == 1 || to == peer {
                    let waits = self.free[way].saturating_sub(now);
                    if waits as f64 > queue as f64 * byte {
                        self.counts.lost += 1;
                        continue;
                    }
                    self.counts.through[way] += datagram.len() as u64;
                    leaves = now + waits + (datagram.len() as f64 * byte) as u64;
                    self.free[way] = leaves;
                }
            }
            let jitter = if impairments.jitter > 0 { self.random.random_range(0..=impairments.jitter) } else { 0 };
            let delay =
                if self.chance(impairments.delay) { self.random.random_range(0..=10 * impairments.latency) } else { 0 };
            let mut bytes = datagram.to_vec();
            if self.chance(impairments.corruption) && !bytes.is_empty() {
                let at = self.random.random_range(0..bytes.len());
                bytes[at] ^= 1 << self.random.random_range(0..8);
            }
            self.sequence += 1;
            self.passing.insert((leaves + impairments.latency + jitter + delay, self.sequence), (from, to, bytes));
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.random_bool(probability)
    }
}

/// A port of a simulated network.
#[derive(Debug)]
pub struct SimPort {
    network: DatagramNetwork,
    peer: Peer,
    datagram: Vec<u8>,
}

impl SimPort {
    /// The most bytes of a datagram.
    const PART: usize = 65_507;
}

impl DatagramPort for SimPort {
    fn part(&self) -> usize {
        Self::PART
    }

    fn now(&self) -> u64 {
        self.network.now()
    }

    fn send(&mut self, to: Peer, datagram: &[u8]) -> io::Result<()> {
        self.network.send(self.peer, to, datagram);
        Ok(())
    }

    fn poll(&mut self) -> Option<(Peer, &[u8])> {
        let (from, bytes) = self.network.state.borrow_mut().inboxes.get_mut(&self.peer)?.pop_front()?;
        self.datagram = bytes;
        Some((from, &self.datagram))
    }

    /// Lets the network go on by one datagram, to any port, or the clock to that time.
    fn wait(&mut self, until: Option<u64>) {
        if let Some(until) = until.or_else(|| self.network.next_time()) {
            self.network.step(until);
        }
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.network.state.borrow_mut().inboxes.remove(&self.peer);
    }
}
