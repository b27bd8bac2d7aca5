//! The keys of a run by number: a few hot ones, a few counters, warm ones that are mostly read (and so are read
//! one-sidedly, where that can be), many cold ones.

use std::ops::Range;

/// How many keys there are.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Keys {
    /// Keys that every thread changes all the time
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    pub hot: u32,
    /// Keys that are numbers and incremented
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    pub counters: u32,
    /// Keys that are mostly read, so that clients on a fabric read them by themselves
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub warm: u32,
    /// Keys that are seldom used; together their values are more than the memory
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..10_000_000))]
    pub cold: u32,
}

/// The purpose of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Changed all the time.
    Hot,
    /// A number.
    Counter,
    /// Mostly read.
    Warm,
    /// Seldom used.
    Cold,
}

/// The number of a key that stands for all of them.
pub const EVERY: u32 = u32::MAX;

impl Keys {
    /// How many there are in all.
    pub fn count(self) -> u32 {
        self.hot + self.counters + self.warm + self.cold
    }

    /// Returns the numbers of the keys of this kind.
    pub fn of(self, kind: Kind) -> Range<u32> {
        let (counters, warm) = (self.hot, self.hot + self.counters);
        let cold = warm + self.warm;
        match kind {
            Kind::Hot => 0..counters,
            Kind::Counter => counters..warm,
            Kind::Warm => warm..cold,
            Kind::Cold => cold..cold + self.cold,
        }
    }

    /// Returns the key's purpose.
    pub fn kind(self, key: u32) -> Kind {
        let kinds = [Kind::Hot, Kind::Counter, Kind::Warm];
        kinds.into_iter().find(|kind| self.of(*kind).contains(&key)).unwrap_or(Kind::Cold)
    }

    /// Returns whether the key is a counter.
    pub fn is_counter(self, key: u32) -> bool {
        self.kind(key) == Kind::Counter
    }

    /// Its name.
    pub fn name(self, key: u32) -> String {
        if key == EVERY {
            return "every key".into();
        }
        let kind = self.kind(key);
        let name = match kind {
            Kind::Hot => "hot",
            Kind::Counter => "counter",
            Kind::Warm => "warm",
            Kind::Cold => "cold",
        };
        format!("{name}-{}", key - self.of(kind).start)
    }
}
