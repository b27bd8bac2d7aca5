//! Times of a source that may not state their unit.

use crate::TraceError;
use crate::number::decimal;
use std::str::FromStr;

/// The unit of times that are numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

impl TimeUnit {
    /// Returns the nanoseconds of one.
    pub const fn nanoseconds(self) -> u64 {
        match self {
            Self::Seconds => 1_000_000_000,
            Self::Milliseconds => 1_000_000,
            Self::Microseconds => 1000,
            Self::Nanoseconds => 1,
        }
    }

    /// Returns the unit of so many nanoseconds.
    pub(crate) fn of_nanoseconds(nanoseconds: u64) -> Option<Self> {
        let all = [Self::Seconds, Self::Milliseconds, Self::Microseconds, Self::Nanoseconds];
        all.into_iter().find(|unit| unit.nanoseconds() == nanoseconds)
    }

    /// Returns its name, of several.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
            Self::Microseconds => "microseconds",
            Self::Nanoseconds => "nanoseconds",
        }
    }

    /// Returns the unit in which so large a number is a date: the bounds are the year 5138 in seconds, and 1973 in the others.
    const fn of_magnitude(number: u64) -> Self {
        match number {
            0..100_000_000_000 => Self::Seconds,
            100_000_000_000..100_000_000_000_000 => Self::Milliseconds,
            100_000_000_000_000..100_000_000_000_000_000 => Self::Microseconds,
            _ => Self::Nanoseconds,
        }
    }
}

impl FromStr for TimeUnit {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        Ok(match text.trim() {
            "s" => Self::Seconds,
            "ms" => Self::Milliseconds,
            "us" => Self::Microseconds,
            "ns" => Self::Nanoseconds,
            _ => {
                let what = format!("`{text}` is no unit of time");
                return Err(TraceError::Option { option: "--time-unit", what, remedy: "give s, ms, us or ns".into() });
            }
        })
    }
}

/// Reads times. The first one decides on the unit if nothing else does.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Nanoseconds of one; `None` until the first time is read.
    unit: Option<u64>,
    is_by_magnitude: bool,
    last: u64,
    unread: u64,
}

impl Times {
    /// Times in this unit, in nanoseconds, or in one that the first time shows.
    pub(crate) fn new(unit: Option<u64>) -> Self {
        Self { unit, is_by_magnitude: unit.is_none(), ..Self::default() }
    }

    /// Returns nanoseconds. Text that is no time counts as unread and has the time before it.
    #[inline]
    pub(crate) fn read(&mut self, text: &[u8]) -> u64 {
        match self.number(text).or_else(|| self.float(text)) {
            Some(time) => self.last = time,
            None => self.unread += 1,
        }
        self.last
    }

    /// Returns nanoseconds, at most `u64::MAX`; `None` for text that is no decimal number.
    #[inline]
    pub(crate) fn number(&mut self, text: &[u8]) -> Option<u64> {
        let dot = memchr::memchr(b'.', text).unwrap_or(text.len());
        let unit = match self.unit {
            Some(unit) => unit,
            None => {
                crate::number::time(text, 1)?;
                self.decide(decimal(&text[..dot]).unwrap_or(u64::MAX))
            }
        };
        crate::number::time(text, unit)
    }

    #[cold]
    fn decide(&mut self, first: u64) -> u64 {
        *self.unit.insert(TimeUnit::of_magnitude(first).nanoseconds())
    }

    /// Reads what programs write for large numbers, such as `1.7e9`.
    #[cold]
    fn float(&mut self, text: &[u8]) -> Option<u64> {
        let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
        if !number.is_finite() || number < 0.0 {
            return None;
        }
        let unit = match self.unit {
            Some(unit) => unit,
            None => self.decide(number as u64),
        };
        Some((number * unit as f64) as u64)
    }

    /// Returns how many times could not be read.
    pub(crate) fn unread(&self) -> u64 {
        self.unread
    }

    /// Returns the nanoseconds of one and whether the first time decided on that; `None` before it.
    pub(crate) fn unit(&self) -> Option<(u64, bool)> {
        self.unit.map(|unit| (unit, self.is_by_magnitude))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_time_shows_the_unit() {
        for (text, expected) in [
            ("1700000000", 1_700_000_000_000_000_000),
            ("1700000000.25", 1_700_000_000_250_000_000),
            ("1700000000123", 1_700_000_000_123_000_000),
            ("1700000000123456", 1_700_000_000_123_456_000),
            ("1700000000123456789", 1_700_000_000_123_456_789),
            ("1.5e9", 1_500_000_000_000_000_000),
            ("1.5e18", 1_500_000_000_000_000_000),
            ("0", 0),
        ] {
            assert_eq!(Times::new(None).read(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn no_time_stops_a_reader() {
        let mut times = Times::new(Some(1000));
        let read = ["5", "", "-", "2024-05-01T12:00:00Z", "7", "-3", "nan", "18446744073709551615", "8"]
            .map(|text| times.read(text.as_bytes()));
        assert_eq!(read, [5000, 5000, 5000, 5000, 7000, 7000, 7000, u64::MAX, 8000]);
        assert_eq!(times.unread(), 5);
    }
}
