//! MRRC
mod config;
pub mod core;
pub mod cost;
mod coverage;
mod grow;
mod index;
pub mod policy;
mod range;
mod regions;

pub use crate::core::{AllInUse, Core, Cost, Counters, Found, Leavers, Leaving, Outcome, Segment};
pub use config::{Config, ConfigError};
pub use range::{PAGE, PageRange, RangeError};
pub use regions::{ListId, Region, RegionId, Regions};
