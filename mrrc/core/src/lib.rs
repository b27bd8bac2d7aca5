//! The decisions of a memory-registration cache, without threads, clocks, memory or system calls.
//!
//! Memory must be *registered* before a network card can reach it. A cache keeps regions registered, because
//! registering costs more than many transfers. Its pins are limited, so it has to choose what to deregister. This
//! crate makes those decisions: a request goes in; what is ready, what to register and what to deregister first comes
//! out. The cache of many threads (`mrrc`) acts on the answers, and the simulator (`tracesim`) counts them, so the
//! code that is measured in simulation is the code that ships.
//!
//! ```
//! use mrrc_core::{Config, Core, Found, PageRange};
//! let mut core = Core::new(&Config::new(8192))?; // 32 MiB
//! core.request(PageRange::of_bytes(0x10_0000, 65536)?)?;
//! let outcome = core.request(PageRange::of_bytes(0x10_8000, 65536)?)?; // overlaps the first by half
//! assert_eq!((outcome.found(), outcome.gaps().count()), (Found::Partial, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Config`]: capacity, policy, fractions, limits; every mistake has its own error.
//! * [`Core`]: the request procedure. [`Outcome`]: its answer; [`Counters`]: everything counted, exactly.
//! * [`policy`]: the paper's policy, its peers, the general ones and today's caches, behind one trait.
//! * [`cost`]: what registration costs, given or learned.
//! * [`driver`]: what only a cache needs that registers and serves hits on other threads.

mod access;
mod config;
pub mod core;
pub mod cost;
mod coverage;
pub mod driver;
mod grid;
mod grow;
mod index;
pub mod policy;
mod range;
mod regions;
pub mod units;
mod widen;

pub use crate::core::{AllInUse, Core, Cost, Counters, Found, Leavers, Leaving, Outcome, Part};
pub use access::Access;
pub use config::{Config, ConfigError};
pub use grid::{Cutter, Grid};
pub use range::{PAGE, PageRange, RangeError};
pub use regions::{ListId, Region, RegionEvent, RegionId, RegionState, Regions};

/// The README's example is one that runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
