//! Service levels: how fast far memory has to be.

use std::time::Duration;
use thiserror::Error;

/// The longest record of a level, in bytes.
pub const RECORD_MAX: u32 = 1 << 20;

/// A service level: mean latency, throughput, and the operations that it is about.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slo {
    latency: Duration,
    throughput: f64,
    record: u32,
    reads: f64,
}

/// A service level that makes no sense.
#[derive(Clone, Copy, PartialEq, Debug, Error)]
pub enum SloError {
    /// A latency of 0.
    #[error("service level: the latency is 0: give the mean time of an operation")]
    Latency,
    /// No throughput, or one that is no number.
    #[error("service level: {0} operations a second: give a number above 0")]
    Throughput(f64),
    /// A record of no bytes, or of too many.
    #[error("service level: records of {0} bytes: give 1 to {RECORD_MAX}")]
    Record(u32),
    /// A share of reads below 0 or above 1.
    #[error("service level: a share of {0} reads: give 0 to 1")]
    Reads(f64),
}

impl Slo {
    /// Returns a level: the mean latency at most, operations a second at least, bytes of a record, and the share of reads.
    ///
    /// # Errors
    ///
    /// A value is outside its range.
    pub fn new(latency: Duration, throughput: f64, record: u32, reads: f64) -> Result<Self, SloError> {
        if latency.is_zero() {
            return Err(SloError::Latency);
        }
        if !throughput.is_finite() || throughput <= 0.0 {
            return Err(SloError::Throughput(throughput));
        }
        if !(1..=RECORD_MAX).contains(&record) {
            return Err(SloError::Record(record));
        }
        if !(0.0..=1.0).contains(&reads) {
            return Err(SloError::Reads(reads));
        }
        Ok(Self { latency, throughput, record, reads })
    }

    /// Returns the mean latency at most.
    pub fn latency(&self) -> Duration {
        self.latency
    }

    /// Returns the operations a second at least.
    pub fn throughput(&self) -> f64 {
        self.throughput
    }

    /// Returns the bytes of a record.
    pub fn record(&self) -> u32 {
        self.record
    }

    /// Returns the share of reads among the operations, 0 to 1.
    pub fn reads(&self) -> f64 {
        self.reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_makes_no_sense() {
        let us = Duration::from_micros;
        assert!(Slo::new(us(40), 2e5, 64, 0.9).is_ok());
        assert_eq!(Slo::new(us(0), 2e5, 64, 0.9), Err(SloError::Latency));
        assert_eq!(Slo::new(us(1), 0.0, 64, 0.9), Err(SloError::Throughput(0.0)));
        assert!(matches!(Slo::new(us(1), f64::NAN, 64, 0.9), Err(SloError::Throughput(_))));
        assert!(matches!(Slo::new(us(1), f64::INFINITY, 64, 0.9), Err(SloError::Throughput(_))));
        assert_eq!(Slo::new(us(1), 1.0, 0, 0.9), Err(SloError::Record(0)));
        assert_eq!(Slo::new(us(1), 1.0, RECORD_MAX + 1, 0.9), Err(SloError::Record(RECORD_MAX + 1)));
        assert_eq!(Slo::new(us(1), 1.0, 64, 1.1), Err(SloError::Reads(1.1)));
        assert!(matches!(Slo::new(us(1), 1.0, 64, f64::NAN), Err(SloError::Reads(_))));
    }
}
