//! The server's counters, and the distribution of latencies.
//!
//! Every counter is defined here, by one macro, and with the name that `stats` has for it where it is printed under its own name. Plain
//! counters belong to one owner or are behind a lock; shared ones are atomic. Nothing here knows the store, sessions or fabrics.

#[macro_use]
mod define;
mod cluster;
mod datagrams;
mod fabric;
mod far;
mod flash;
mod kernel;
mod latencies;
mod session;
mod store;

pub use cluster::{ClusterCounts, ClusterGauges, FileCounts};
pub use datagrams::DatagramCounts;
pub use fabric::{FabricCounts, FabricGauges, Report, Reported, by_name};
pub(crate) use fabric::{add, count};
pub use far::{FarCounts, FarGauges, FarReported, FarRuns};
pub use flash::{FlashCounts, FlashGauges};
pub use kernel::{KernelCounts, KernelReported};
pub use latencies::{Asked, BUCKETS, Latencies, Measured, Sampler, Transferred, below_micros, end_of};
pub use session::Counts;
pub use store::{ClassCounters, Counters};
