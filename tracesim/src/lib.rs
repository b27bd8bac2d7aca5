//! Which policy and which size for these buffers?
//!
//! Every policy runs through [`mrrc_core::Core`], the code that ships; this crate replays traces through it, compares, and
//! bounds what any policy could do.
//!
//! ```text
//! traces::Trace ─► simulate: one policy, one capacity ─► Counters
//!        │                        ▲                         │
//!        ├─► footprint: pages ─► sweep: many of both ◄──────┤
//!        └─► bound ───────────────┴────────────────► Row ◄──┘ ─► shard: rows of several machines
//! ```
//!
//! The command is in [`cli`]; nothing else here prints.
//!
//! # Features
//!
//! Without features the simulation stands on the decisions alone ([`mrrc_core`]), without threads that register.
//!
//! | feature | |
//! | --- | --- |
//! | `mrrc` (default) | `calibrate` and `replay --real`: registrations of this machine, and the cache itself |
//! | `frrwp` (default) | with `mrrc`, `reproduce`: it also simulates the handshake |
//! | `verbs`, `verbs-linked` | `calibrate --registrar verbs` |
//!
//! # Beside this crate
//!
//! Traces are read by [`traces`] and recorded by [`mrrc-preload`] and [`traces-mpi`]; the cache is [`mrrc`], the
//! handshake [`frrwp`]. [`benches`] has this simulator beside libCacheSim.
//!
//! [`mrrc-preload`]: ../mrrc_preload/index.html
//! [`traces-mpi`]: ../traces_mpi/index.html
//! [`benches`]: ../benches/index.html

pub mod advice;
pub mod bound;
#[cfg(feature = "mrrc")]
pub mod calibrate;
pub mod cli;
pub mod comparison;
mod deferred;
pub mod footprint;
pub mod info;
mod last_use;
pub mod mrc;
pub mod policies;
#[cfg(all(feature = "mrrc", target_os = "linux"))]
pub mod real;
#[cfg(target_os = "linux")]
pub mod record;
mod replayer;
pub mod report;
#[cfg(all(feature = "mrrc", feature = "frrwp"))]
pub mod reproduce;
pub mod row;
pub mod shard;
pub mod simulate;
pub mod sizes;
pub mod sweep;

/// Runs the command `tracesim` with policies of the caller's as well: they take part in `compare`, `replay`, reports and shards
/// under their names. A policy with the name of a built-in one replaces it.
///
/// ```no_run
/// use mrrc_core::policy::sieve::Sieve;
/// use tracesim::policies::PolicyEntry;
///
/// fn main() -> std::process::ExitCode {
///     // Any type that implements `mrrc_core::policy::Policy`.
///     let mine = PolicyEntry::of("mine", "SIEVE, by another name.", |_params| Sieve::new());
///     tracesim::main_with(&[mine])
/// }
/// ```
pub fn main_with(policies: &[policies::PolicyEntry]) -> std::process::ExitCode {
    cli::main_with(policies)
}
