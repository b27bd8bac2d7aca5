//! A cache of memory registrations for RDMA.
//!
//! Memory must be *registered* before a network card can reach it: its pages are pinned and the card
//! learns where they are. That costs more than many transfers (8 µs for a page in the paper's cluster). So it pays to
//! keep regions registered and use them again. But pinned memory is taken from all others, and a card's table is
//! finite: the question is which regions to release.
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
//! A large region frees more pages and costs less per page to register again, so it goes first. `r` rises as the
//! cache turns over, so an unused small region goes too, in the end.
//!
//! # Decisions are pure
//!
//! [`Core`] is that algorithm, and others, as a state machine: no thread, no clock, no memory of its own
//! to pin. A request goes in; what is ready, what to register and what to deregister first comes out.
//! Its driver acts on the answer, or only counts, so the code that is simulated is the code that ships.
//!
//! ```
//! use mrrc::{Config, Core, Found, PageRange};
//! let mut core = Core::new(&Config::new(8192))?; // 32 MiB
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
//! # Registering for real
//!
//! [`Cache`] carries those decisions out, for any number of threads: it pins through a
//! [`Registrar`](registrar::Registrar) and hands out leases.
//!
//! ```
//! use mrrc::{Access, Cache, invalidation::Explicit, testing::NoopRegistrar};
//! // Pins are real with `registrar::io_uring::IoUringBuffers::new(&ring, slots)?` in its place.
//! let cache = Cache::builder(NoopRegistrar::new()).capacity_bytes(64 << 20).monitor(Explicit).build()?;
//! let arena = cache.arena(1 << 20)?; // memory that the cache owns
//! arena.write_at(0, b"to be sent")?;
//! let lease = arena.acquire(0..10, Access::LOCAL_READ)?;
//! for segment in lease.segments() {
//!     let (_at, _bytes, _key) = (segment.address(), segment.len(), segment.registration());
//!     // … a transfer that names the bytes by the key …
//! }
//! drop(lease); // when the transfer is complete; the memory stays registered
//!
//! let message = vec![7_u8; 10_000]; // memory of other code, lent for the time of a closure
//! let sent = cache.with_slice(&message, |lease| lease.segments().map(|segment| segment.len()).sum::<usize>())?;
//! assert_eq!(sent, 10_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An [`Arena`] and [`Cache::with_slice`] are safe code. Any other memory is acquired by a caller that promises what
//! registering by hand asks for as well:
//!
//! ```
//! # use mrrc::{Access, Cache, invalidation::Explicit, testing::NoopRegistrar};
//! # let cache = Cache::builder(NoopRegistrar::new()).capacity_bytes(64 << 20).monitor(Explicit).build()?;
//! let buffer = vec![0_u8; 100_000];
//! // SAFETY: the buffer outlives the lease, and has no other user meanwhile.
//! let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL) }?;
//! // … transfers …
//! drop(lease); // when they are complete; the buffer stays registered
//! cache.invalidate(buffer.as_ptr(), buffer.len())?; // before it is freed: `Explicit` hears nothing by itself
//! cache.reap()?; // unpins it now, which would else wait for the next miss
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Cache::builder`]: the registrar, and what to change of the defaults, which keep to what the process may pin. A
//!   capacity that is too small costs time, not correctness.
//! * [`Lease`]: its regions stay registered as long as it lives. Dropping it makes no system call; eviction is
//!   the cache's business. One segment, unless several regions cover the memory
//!   ([`max_segments`](cache::Builder::max_segments) bounds that).
//! * **Monitor**: a registration means pages, a program means addresses. By default userfaultfd tells the cache what is
//!   unmapped, moved or discarded, for a price at each unmapping of memory that was acquired. [`invalidation`] says what
//!   it cannot see. With [`invalidation::Explicit`] the program tells, by [`Cache::invalidate`], before it unmaps. That
//!   keeps the region from being found. It is deregistered, and rights that peers have to it end, when the cache gets to
//!   it or by [`Cache::reap`]. Mappings of files are registered for one lease at a time and never cached.
//! * **Environment**: the user of the program can set `MRRC_CAPACITY`, `MRRC_POLICY`, `MRRC_MONITOR` and
//!   [more](cache::Builder). They win over the program's settings, and never weaken what keys rest on.
//!
//! # Features
//!
//! | feature | |
//! | --- | --- |
//! | `io-uring` (default) | `registrar::io_uring`: pins by the fixed buffers of an io_uring |
//! | `verbs` | `registrar::verbs`: memory regions of an RDMA device, by libibverbs, which is opened at run time. To build: cmake and libclang |
//! | `verbs-linked` | the same, linked with libibverbs. To build: libibverbs-dev, librdmacm-dev, pkg-config and libclang 14, no later. `verbs` wins where both are on |
//! | `testing` | `mrrc::testing`: registrars and monitors for tests, without a device. The examples here use them |
//!
//! Two programs to begin with are among the examples. `hello` needs no device. `uring-copy`, a package in the same folder,
//! copies a file through real pins and prints the gain of the cache.
//!
//! # What it costs
//!
//! A hit reads one place of a hash table, one or two cache lines of the address index, and sixteen bytes of the
//! region. It writes one word into a log of uses and one into a table. When the log is full it is squeezed, which
//! visits an entry or two for each hit since the last time. Memory is about 100 bytes a cached region and stays at
//! its highest level. Policies that remember what they evicted take more, in proportion to the capacity.
//! `cargo bench -p benches --bench core` measures both.
//!
//! # Beside this crate
//!
//! [`mrrc-c`] is this cache from C, [`mrrc-preload`] under verbs programs that were never changed. [`frrwp`] moves
//! buffers between peers that both have to register, through caches like these. [`tracesim`] says which policy and
//! which capacity a program should have, from [`traces`] of it; [`benches`] measures the cache beside its peers.
//!
//! [`mrrc-c`]: ../mrrc_c/index.html
//! [`mrrc-preload`]: ../mrrc_preload/index.html
//! [`frrwp`]: ../frrwp/index.html
//! [`tracesim`]: ../tracesim/index.html
//! [`traces`]: ../traces/index.html
//! [`benches`]: ../benches/index.html

mod arena;
mod budget;
pub mod cache;
mod effective;
mod error;
mod explain;
mod footprint;
mod fork;
mod hit;
pub mod invalidation;
pub mod kinds;
mod lease;
mod list;
mod mapped;
mod memory;
mod miss;
mod own_file;
mod own_thread;
mod pool;
#[cfg(target_os = "linux")]
mod present;
mod pressure;
mod reclaim;
pub mod registrar;
mod scope;
pub mod settings;
mod shared_memory;
mod shim;
mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod thread_id;
mod times;
mod unheld_limit;
mod warm;

pub use cache::{AcquireError, Arena, ArenaError, BuildError, Cache, Lease, Segment};
pub use fork::ForkGuard;
pub use memory::volatile_copy;
pub use mrrc_core::units::bytes;
pub use mrrc_core::{Access, AllInUse, Config, ConfigError, Core, Cost, Counters, Found, Leavers, Leaving, ListId};
pub use mrrc_core::{
    Outcome, PAGE, PageRange, Part, RangeError, Region, RegionEvent, RegionId, RegionState, Regions, core, cost, policy,
};
pub use own_thread::spawn as spawn_own_thread;

// The core's modules, by the paths that this crate's modules use.
use mrrc_core::{driver, units};
mod access {
    pub(crate) use mrrc_core::Access;
}
mod config {
    pub(crate) use mrrc_core::{Config, ConfigError};
}
mod grid {
    pub(crate) use mrrc_core::{Cutter, Grid};
}
mod range {
    pub(crate) use mrrc_core::{PAGE, PageRange, RangeError};
}
mod regions {
    pub(crate) use mrrc_core::RegionId;
}
