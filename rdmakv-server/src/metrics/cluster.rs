//! The counts of a server as a member of its cluster.

use rdmakv_cluster::messages::Report;

counters! { shared
    /// Calls of clients, servers and agents, by their ends.
    ClusterCounts {
        /// Calls.
        calls = "cluster_calls",
        /// Calls that were answered by a pending write, to be completed by the caller.
        helped = "cluster_helped",
        /// Calls of another epoch.
        other_epochs = "cluster_other_epochs",
        /// Calls without a right, or for a key of other servers.
        not_serving = "cluster_not_serving",
        /// Calls during a fence.
        fenced = "cluster_fenced",
        /// Calls that are no calls.
        malformed = "cluster_malformed",
        /// Writes that were published here.
        published = "cluster_published",
        /// Commands of plain clients that were refused because their keys are resilient.
        plain_refused = "cluster_plain_refused",
        /// Epochs that were adopted.
        adoptions = "cluster_adoptions",
        /// Runs that began empty after this server was removed.
        restarts = "cluster_restarts",
    }
}

counters! { shared
    /// Chunks of files that came and went.
    FileCounts {
        /// Clean chunks that were evicted.
        evicted = "files_evicted",
        /// Chunks that were refused because too many are dirty.
        refused = "files_refused",
        /// Bytes of chunks that this server wrote to the backing directory.
        carried_bytes = "files_carried_bytes",
        /// Orders of an agent to write chunks there that failed. The agent writes them itself.
        carry_errors = "files_carry_errors",
    }
}

/// The state of a server in its cluster, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterGauges {
    /// The epoch that all keys are in; 0 before the first one.
    pub epoch: u32,
    /// The part of this run, as a word.
    pub part: &'static str,
    /// The cluster that etcd shows, as a word: the same as this run's, or how it differs.
    pub etcd: &'static str,
    /// Whether it may answer now.
    pub has_right: bool,
    /// Whether all keys are where the epoch wants them.
    pub is_whole: bool,
    /// Servers of the cluster.
    pub servers: u64,
    /// Keys that this server has a part of.
    pub keys: u64,
    /// Writes that are ordered or sealed here, and not known to be published.
    pub pending: u64,
    /// Keys whose last write this new primary does not know.
    pub ambiguous: u64,
    /// Bytes of writes that were not ordered yet.
    pub staged_bytes: u64,
    /// Pieces in memory, and the bytes of their values.
    pub pieces: (u64, u64),
    /// Bytes of memory that chunks of files take: dirty ones, clean ones, and how many dirty ones may.
    pub files: (u64, u64, u64),
    /// The progress of the repair in this epoch, as the agent reports it.
    pub repair: Report,
    /// Values that the agent found lost in the last epoch in which some were, and that epoch.
    pub lost: (u64, u32),
}
