//! The costs of a simulated network, its faults, and its findings.

use crate::wire::Segment;
use mrrc::cost::Linear;

/// The durations. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Registering and deregistering, in microseconds.
    pub registration: Linear,
    /// From one node to the other.
    pub latency: u64,
    /// A byte on its way.
    pub byte: f64,
    /// Up to so much more, at random, for whatever is on its way. It stays in order.
    pub jitter: u64,
    /// Whether writes can carry an immediate.
    pub immediate: bool,
}

impl Default for Costs {
    /// Returns the paper's registration, and nothing else takes time.
    fn default() -> Self {
        Self { registration: Linear::PAPER, latency: 0, byte: 0.0, jitter: 0, immediate: true }
    }
}

/// The faults, each with a probability.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// A registration fails.
    pub registration: f64,
    /// A registration takes a hundred times as long.
    pub slow_registration: f64,
    /// The connection is lost when something is posted.
    pub loss: f64,
}

/// A use of memory that its owner had not allowed, or had ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The fault.
    pub what: &'static str,
    /// The node that owned the memory.
    pub node: usize,
    /// The segment.
    pub segment: Segment,
}
