//! The counts of GETs that the kernel answered.

use std::fmt::Debug;

/// The counts of the kernel's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// GETs answered.
    pub gets: u64,
    /// Those of them that were meta commands.
    pub meta: u64,
    /// Bytes of these, and of their answers.
    pub bytes_in: u64,
    /// Bytes of the answers.
    pub bytes_out: u64,
    /// GETs passed to the socket because the key was not in the table.
    pub passed_unknown: u64,
    /// GETs passed because the item changed meanwhile.
    pub passed_changed: u64,
    /// GETs passed because the item has expired, or its answer does not fit.
    pub passed_over: u64,
    /// GETs passed because the packet had no room for the answer.
    pub passed_room: u64,
    /// Entries of the table that lost their slots to others.
    pub displaced: u64,
    /// Answers by size class.
    pub classes: Vec<u64>,
}

impl KernelCounts {
    fn each(&mut self, other: &Self, act: impl Fn(&mut u64, u64)) {
        let Self {
            gets,
            meta,
            bytes_in,
            bytes_out,
            passed_unknown,
            passed_changed,
            passed_over,
            passed_room,
            displaced,
            ..
        } = self;
        for (own, other) in [
            (gets, other.gets),
            (meta, other.meta),
            (bytes_in, other.bytes_in),
            (bytes_out, other.bytes_out),
            (passed_unknown, other.passed_unknown),
            (passed_changed, other.passed_changed),
            (passed_over, other.passed_over),
            (passed_room, other.passed_room),
            (displaced, other.displaced),
        ] {
            act(own, other);
        }
        let length = self.classes.len().max(other.classes.len());
        self.classes.resize(length, 0);
        self.classes.iter_mut().zip(&other.classes).for_each(|(own, &other)| act(own, other));
    }

    /// Adds another's numbers.
    pub fn add(&mut self, other: &Self) {
        self.each(other, |own, other| *own = own.wrapping_add(other));
    }

    /// Returns the counts since an earlier moment.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        self.each(earlier, |own, other| *own = own.wrapping_sub(other));
        self
    }

    /// Returns how many GETs were passed to the socket.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed_unknown + self.passed_changed + self.passed_over + self.passed_room
    }

    /// Returns the lines of `stats`.
    pub fn list(&self) -> [(&'static str, u64); 6] {
        [
            ("kernel_gets", self.gets),
            ("kernel_passed_unknown", self.passed_unknown),
            ("kernel_passed_changed", self.passed_changed),
            ("kernel_passed_over", self.passed_over),
            ("kernel_passed_room", self.passed_room),
            ("kernel_displaced", self.displaced),
        ]
    }
}

/// Programs in the kernel, to report on.
pub trait KernelReported: Debug + Send + Sync {
    /// Returns the counts since the last reset.
    fn counts(&self) -> KernelCounts;
    /// Counts from zero again.
    fn reset(&self);
    /// Returns the interfaces as `--xdp` names them, with a remark at those that are gone.
    fn interfaces(&self) -> String;
    /// Looks whether interfaces are gone, and reports those.
    fn look(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_since_a_reset_begin_at_zero() {
        let now = KernelCounts { gets: 5, displaced: 2, classes: vec![1, 4], ..KernelCounts::default() };
        assert_eq!(now.clone().since(&KernelCounts::default()), now);
        let mut twice = now.clone();
        twice.add(&now);
        assert_eq!(twice.since(&now), now);
        assert_eq!(now.list()[0], ("kernel_gets", 5));
    }
}
