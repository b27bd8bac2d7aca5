//! The keys of a run by number: a few hot ones, a few counters, many cold ones.

/// How many keys there are.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Keys {
    /// Keys that everybody uses all the time
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    pub hot: u32,
    /// Keys that are numbers and incremented
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    pub counters: u32,
    /// Keys that are seldom used; together their values are more than the memory
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..10_000_000))]
    pub cold: u32,
}

/// The number of a key that stands for all of them.
pub const EVERY: u32 = u32::MAX;

impl Keys {
    /// How many there are in all.
    pub fn count(self) -> u32 {
        self.hot + self.counters + self.cold
    }

    /// Whether the key is a counter.
    pub fn is_counter(self, key: u32) -> bool {
        (self.hot..self.hot + self.counters).contains(&key)
    }

    /// Its name.
    pub fn name(self, key: u32) -> String {
        match key {
            EVERY => "every key".into(),
            _ if key < self.hot => format!("hot-{key}"),
            _ if self.is_counter(key) => format!("counter-{}", key - self.hot),
            _ => format!("cold-{}", key - self.hot - self.counters),
        }
    }
}
