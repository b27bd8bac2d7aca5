//! When a client leaves one path to its server for a better one. Decisions alone.

/// The next step of a client that has a better path than the one in use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Departure {
    /// It goes on here. A mutation of unknown outcome may still be executed, after operations by the other path. New requests here, or a
    /// PING, raise the floor above it ([`Client::is_settled`](super::Client::is_settled)).
    Stay,
    /// It begins nothing, and waits for the ends of what is under way here. So nothing is sent by both paths.
    Drain,
    /// Nothing is under way here, and nothing can be executed any more: it leaves.
    Leave,
}

impl Departure {
    /// Returns the next step of a client whose path in use is busy or not, and [settled](super::Client::is_settled) or not. A connection is
    /// always settled: what was sent there is executed in its order, or lost with it.
    pub fn next(is_busy: bool, is_settled: bool) -> Self {
        match (is_busy, is_settled) {
            (_, false) => Self::Stay,
            (true, true) => Self::Drain,
            (false, true) => Self::Leave,
        }
    }
}
