//! The counters of sessions. Each worker counts for itself and publishes after each round of its event loop.

counters! {
    named
    /// The counts of a worker.
    Counts {
        /// Keys asked for.
        cmd_get = "cmd_get",
        /// Items sent to be stored.
        cmd_set = "cmd_set",
        /// Flushes.
        cmd_flush = "cmd_flush",
        /// Touches.
        cmd_touch = "cmd_touch",
        /// Meta commands.
        cmd_meta = "cmd_meta",
        /// Keys found.
        get_hits = "get_hits",
        /// Keys not found.
        get_misses = "get_misses",
        /// Deletions of nothing.
        delete_misses = "delete_misses",
        /// Deletions.
        delete_hits = "delete_hits",
        /// Increments of nothing.
        incr_misses = "incr_misses",
        /// Increments.
        incr_hits = "incr_hits",
        /// Decrements of nothing.
        decr_misses = "decr_misses",
        /// Decrements.
        decr_hits = "decr_hits",
        /// Compare-and-swaps of nothing.
        cas_misses = "cas_misses",
        /// Compare-and-swaps that matched.
        cas_hits = "cas_hits",
        /// Compare-and-swaps that did not.
        cas_badval = "cas_badval",
        /// Touches.
        touch_hits = "touch_hits",
        /// Touches of nothing.
        touch_misses = "touch_misses",
        /// Attempts to authenticate.
        auth_cmds = "auth_cmds",
        /// Those that failed.
        auth_errors = "auth_errors",
        /// Bytes received.
        bytes_read = "bytes_read",
        /// Bytes sent.
        bytes_written = "bytes_written",
        /// Connections that had to let others go first.
        conn_yields = "conn_yields",
        /// Connections ended for silence.
        idle_kicks = "idle_kicks",
    }
}

impl Counts {
    /// Returns the lookups, stores and touches of keys.
    pub fn requests(&self) -> u64 {
        self.cmd_get + self.cmd_set + self.cmd_touch
    }
}
