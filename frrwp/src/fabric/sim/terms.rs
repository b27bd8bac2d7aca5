//! What a simulated network costs, what goes wrong in it, and what it notes.

use crate::wire::Segment;
use mrrc::cost::Linear;

/// What things take. Times are in nanoseconds.
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
    /// The paper's registration, and nothing else takes time.
    fn default() -> Self {
        Self { registration: Linear::PAPER, latency: 0, byte: 0.0, jitter: 0, immediate: true }
    }
}

/// What goes wrong, each with a probability.
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
    /// What was wrong.
    pub what: &'static str,
    /// The node whose memory it was.
    pub node: usize,
    /// Where.
    pub segment: Segment,
}
