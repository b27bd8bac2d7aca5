//! What sessions count. Each worker counts for itself and publishes after each round of its event loop.

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counts.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }
        impl Counts {
            /// Adds another's.
            pub fn add(&mut self, other: &Self) { $(self.$name = self.$name.wrapping_add(other.$name);)* }
            /// What was counted since.
            pub fn since(&self, earlier: &Self) -> Self { Self { $($name: self.$name.wrapping_sub(earlier.$name),)* } }
            /// Name and number of each.
            pub fn list(&self) -> Vec<(&'static str, u64)> { vec![$((stringify!($name), self.$name),)*] }
        }
    };
}

counts! {
    /// Keys asked for.
    cmd_get,
    /// Items sent to be stored.
    cmd_set,
    /// Flushes.
    cmd_flush,
    /// Touches.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Keys found.
    get_hits,
    /// Keys not found.
    get_misses,
    /// Deletions of nothing.
    delete_misses,
    /// Deletions.
    delete_hits,
    /// Increments of nothing.
    incr_misses,
    /// Increments.
    incr_hits,
    /// Decrements of nothing.
    decr_misses,
    /// Decrements.
    decr_hits,
    /// Compare-and-swaps of nothing.
    cas_misses,
    /// Compare-and-swaps that matched.
    cas_hits,
    /// Compare-and-swaps that did not.
    cas_badval,
    /// Touches.
    touch_hits,
    /// Touches of nothing.
    touch_misses,
    /// Attempts to authenticate.
    auth_cmds,
    /// Those that failed.
    auth_errors,
    /// Bytes received.
    bytes_read,
    /// Bytes sent.
    bytes_written,
    /// Connections that had to let others go first.
    conn_yields,
    /// Connections ended for silence.
    idle_kicks,
}
