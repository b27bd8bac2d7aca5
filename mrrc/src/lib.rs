//! A cache of memory registrations for RDMA.
//!
//! Memory must be *registered* before a network card can reach it: its pages are pinned and the card
//! learns where they are. That costs more than many transfers (8 µs for a page in the paper's cluster), so
//! it pays to keep regions registered and use them again. But what is pinned is taken from everybody
//! else, and a card's table is finite: the question is what to let go.
//!
//! MRRC (Ou, He and Han, *An efficient design for fast memory registration in RDMA*, 2009) answers with
//! three ideas. **Regions**, not pages, are cached, because they are what is registered. A request that
//! overlaps cached regions is **split**: what is there is used at once, and only the gaps are registered.
//! And what leaves is chosen by **size and recency**, in batches:
//!
//! ```text
//!            top ┌────────────────────┐ ◄── every region that is asked for
//!                │                    │
//!                │  frequent section  │     in the order of last use
//!                │                    │
//!                ├────────────────────┤ ◄── the oldest slide down when the cache is full,
//!                │                    │     and each gets a factor:  r + 1/pages
//!                │ resorting section  │
//!                │                    │     in the order of (factor, entry):
//!                │ ·················· │     large and old regions sink
//!                │  eviction segment  │ ──► deregistered in one batch
//!         bottom └────────────────────┘     r = the smallest factor
//! ```
//!
//! A large region frees more pages and costs less per page to register again, so it goes first; `r` rises
//! as the cache turns over, so a small region that nobody wants goes too, in the end.
//!
//! # Decisions are pure
//!
//! [`Core`] is that algorithm, and others, as a state machine: no thread, no clock, no memory of its own
//! to pin. A request goes in; what is ready, what to register and what to deregister first comes out.
//! Whoever drives it acts on the answer, or only counts, so what is measured in simulation is the
//! code that ships.
//!
//! ```
//! use mrrc::{Config, Found, PageRange};
//! let mut core = Config::new(8192).build()?; // 32 MiB, the paper's policy
//! core.request(PageRange::of_bytes(0x10_0000, 65536)?)?;
//! let outcome = core.request(PageRange::of_bytes(0x10_8000, 65536)?)?; // overlaps the first by half
//! assert_eq!((outcome.found(), outcome.gaps().count()), (Found::Partial, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Config`]: capacity, policy, fractions, limits; every mistake has its own error.
//! * [`Outcome`]: the answer; [`Counters`]: everything counted, exactly.
//! * [`policy`]: the paper's policy, its peers, the general ones and today's caches, behind one trait.
//! * [`cost`]: what registration costs, given or learned.
//!
//! # What it costs
//!
//! A hit reads one place of a hash table, one or two cache lines of the address index, sixteen bytes
//! of the region, and writes one word into a log of uses and one into a table. When the log is full it is
//! squeezed, which visits an entry or two for each hit since the last time. Memory is about 100 bytes a
//! cached region and stays at its highest level; policies that remember what they evicted take more, in
//! proportion to the capacity. `cargo bench -p benches --bench core` measures both.

mod access;
pub mod cache;
mod config;
pub mod core;
pub mod cost;
mod coverage;
mod grow;
mod index;
pub mod invalidation;
pub mod local;
pub mod policy;
mod range;
mod regions;
pub mod registrar;
mod shim;

pub use access::Access;
pub use cache::{AcquireError, BuildError, Cache, Lease};

pub use crate::core::{AllInUse, Core, Cost, Counters, Found, Leavers, Leaving, Outcome, Segment};
pub use local::{LocalCache, LocalLease};

pub use config::{Config, ConfigError};
pub use range::{PAGE, PageRange, RangeError};
pub use regions::{ListId, Region, RegionId, Regions};
