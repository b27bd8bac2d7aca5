//! Every bound of a connection, with its default.

use super::RECEIVES;

/// How the two registrations and the write follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Process {
    /// Both sides register at once, and the engine writes when the keys have met.
    #[default]
    Frrwp,
    /// One after the other, and the application writes once it has been told of the keys.
    Traditional,
}

/// Bounds of one side of a connection. Times are in nanoseconds.
///
/// Fields may be added in a minor release: name those that you set, and write `..Default::default()` for the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Transfers that each side may have open: 1,024. They are counted apart, so that a peer cannot use up what this side may
    /// open. More of the peer's are answered with NAK(busy).
    pub open: usize,
    /// Bytes of the peer's segments that are kept before they can be used: 1 MiB.
    pub early_bytes: usize,
    /// Receives that are posted, at least [`RECEIVES`]: 16.
    pub receives: u16,
    /// From SYNC to the first STCRW or the CRW: 5 s. And the least from CANCEL to its answer, which may take what was left for
    /// the writes: a change of mind is no reason to close a connection on which others go on.
    pub sync_time: u64,
    /// From the last STCRW to DONE: 30 s, and the time that the bytes take at the lowest rate.
    pub write_time: u64,
    /// Bytes a second below which a transfer is given up: 10 MB.
    pub lowest_rate: u64,
    /// Messages that make no sense, after which the connection is closed: 16.
    pub strangers: u32,
    /// One-sided reads of this side's that are under way at a time: 64. Those that were given up and that the fabric has not
    /// finished count.
    pub reads: usize,
    /// From when a one-sided read is posted until its bytes are there: 30 s, and the time that they, and those of the reads before
    /// it, take at the lowest rate. A read that has not ended [`sync_time`](Self::sync_time) later closes the connection.
    pub read_time: u64,
    /// How long a message of the application's may wait for a credit or for the fabric: 5 s.
    pub send_time: u64,
    /// Whether the fabric's writes can carry an immediate, and are to: it saves the DONE of a write. Not by default.
    pub immediate: bool,
    /// The process: the part that the application does itself.
    pub process: Process,
}

impl Limits {
    /// So long, and the time that the bytes take at the lowest rate.
    pub fn time_for(&self, base: u64, bytes: u64) -> u64 {
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.lowest_rate.max(1));
        base.saturating_add(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            open: 1024,
            early_bytes: 1 << 20,
            receives: RECEIVES,
            sync_time: 5_000_000_000,
            write_time: 30_000_000_000,
            lowest_rate: 10_000_000,
            strangers: 16,
            reads: 64,
            read_time: 30_000_000_000,
            send_time: 5_000_000_000,
            immediate: false,
            process: Process::Frrwp,
        }
    }
}
