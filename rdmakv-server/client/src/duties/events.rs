//! The events that an agent tells of.

use std::time::Duration;

/// An event in the work of an agent.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AgentEvent {
    /// The cluster has had no server of this name for 10 s: the agent waits for it.
    #[non_exhaustive]
    Absent {
        /// The epoch that has no such server.
        epoch: u32,
    },
    /// The server drained, and the cluster has it no more.
    #[non_exhaustive]
    Drained {
        /// The epoch that has no such server.
        epoch: u32,
    },
    /// The repair of the server's keys began.
    #[non_exhaustive]
    Began {
        /// The epoch that is not whole.
        epoch: u32,
    },
    /// All members of the server's keys have what they should.
    #[non_exhaustive]
    Repaired {
        /// The epoch in which they have it.
        epoch: u32,
        /// The keys.
        keys: u64,
        /// The bytes that were sent for them.
        bytes: u64,
        /// Keys whose values are lost: too few of their fragments are left.
        lost: u64,
        /// How long it took since the agent learned of the epoch.
        time: Duration,
    },
    /// Some keys cannot be repaired now, so the epoch does not become whole. The agent tries them again from time to time.
    #[non_exhaustive]
    Unrepaired {
        /// The epoch that is not whole.
        epoch: u32,
        /// Keys whose values have fewer fragments than their policy wants: the cluster has too few servers.
        short: u64,
        /// Keys that a server did not take.
        refused: u64,
        /// The names of these servers.
        servers: Vec<String>,
    },
}
