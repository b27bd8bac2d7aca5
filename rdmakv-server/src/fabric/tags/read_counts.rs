//! One-sided reads, which the server does not see, as the store should hear of them.
//!
//! A fabric that counts them tells by record ([`Tags::counted`]). Elsewhere clients report ([`Tags::seen`]). A report
//! counts only for a chunk that the client has a tag of, and for so many reads in a second and no more. A lying client
//! can keep its own items in the cache, as it could by asking for them.

use super::super::pages::Span;
use super::{Client, TagKind, Tags};

/// Reads that a client may report in a second, about what one core can do.
pub(super) const REPORTS: u64 = 10_000_000;

/// How many reads a client may still report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    a_second: u64,
    left: u64,
    /// When it was filled up last.
    at: u64,
}

impl Allowance {
    pub(super) fn new(a_second: u64) -> Self {
        Self { a_second, left: a_second, at: 0 }
    }

    fn take(&mut self, reads: u64, now: u64) -> u64 {
        let since = now.saturating_sub(self.at).min(1_000_000_000);
        let more = (u128::from(self.a_second) * u128::from(since) / 1_000_000_000) as u64;
        // A count that is too little waits until it is more.
        if more > 0 {
            self.left = (self.left + more).min(self.a_second);
            self.at = now;
        }
        let taken = reads.min(self.left);
        self.left -= taken;
        taken
    }
}

impl<K: TagKind> Tags<K> {
    /// A client says that it read the chunk at this address so often; returns how many of these reads count. `now` is in
    /// nanoseconds.
    pub fn seen(&mut self, client: Client, address: u64, reads: u64, now: u64) -> u64 {
        let Some(of) = self.clients.get_mut(&client) else { return 0 };
        let Some(number) = self.records.at(address).filter(|&number| of.has(number)) else { return 0 };
        let counted = of.reports.take(reads, now);
        if let Some(record) = self.records.get(number) {
            let span = Span::of(record.extent.address, record.extent.used);
            self.admission.saw(span.edges(), counted, now);
        }
        counted
    }

    /// A client says that it read so often without a tag; returns how many of these reads count. `now` is in nanoseconds.
    pub fn allowed(&mut self, client: Client, reads: u64, now: u64) -> u64 {
        self.clients.get_mut(&client).map_or(0, |of| of.reports.take(reads, now))
    }

    /// Goes on through the records, so many at most, and tells of each that was read since the last time: where its chunk
    /// is, and how often.
    pub fn counted(&mut self, most: usize, mut tell: impl FnMut(u64, u64)) {
        for _ in 0..most.min(self.records.numbers()) {
            let Some(record) = self.records.step() else { continue };
            let reads = K::reads(&record.record);
            if reads > record.reads {
                let span = Span::of(record.extent.address, record.extent.used);
                self.admission.saw(span.edges(), reads - record.reads, self.latest);
                tell(record.extent.address, reads - record.reads);
                record.reads = reads;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_refills_one_second_of_reads() {
        let mut allowance = Allowance::new(1000);
        assert_eq!(allowance.take(600, 1_000_000_000_000), 600);
        assert_eq!(allowance.take(600, 1_000_000_000_000), 400);
        assert_eq!(allowance.take(600, 1_000_000_000_000), 0);
        assert_eq!(allowance.take(600, 1_000_000_500_000), 0, "half a millisecond is half a read");
        assert_eq!(allowance.take(600, 1_000_100_000_000), 100);
        assert_eq!(allowance.take(u64::MAX, 9_000_000_000_000), 1000);
        assert_eq!(allowance.take(1, 0), 0, "a clock that goes back gives nothing");
    }
}
