//! Which policy and which size for these buffers?
//!
//! Every policy runs through [`mrrc::Core`], the code that ships; this crate replays traces through it, compares, and
//! bounds what any policy could do.
//!
//! ```text
//! traces::Trace ─► simulate: one policy, one capacity ─► Counters
//!        │                        ▲                         │
//!        ├─► survey: footprint ─► study: many of both ◄─────┤
//!        └─► bound ───────────────┴────────────────► Row ◄──┘ ─► shard: rows of several machines
//! ```
//!
//! The command is in [`cli`]; nothing else here prints.
//!
//! # Beside this crate
//!
//! Traces are read by [`traces`] and recorded by [`mrrc-preload`] and [`mrrc-mpi`]; the cache is [`mrrc`], the
//! handshake [`frrwp`]. [`benches`] has this simulator beside libCacheSim.
//!
//! [`mrrc-preload`]: ../mrrc_preload/index.html
//! [`mrrc-mpi`]: ../mrrc_mpi/index.html
//! [`benches`]: ../benches/index.html

pub mod advice;
pub mod bound;
pub mod calibrate;
pub mod cli;
pub mod comparison;
mod dispatch;
pub mod info;
mod last_use;
mod marks;
pub mod mrc;
#[cfg(target_os = "linux")]
pub mod real;
#[cfg(target_os = "linux")]
pub mod record;
pub mod report;
pub mod reproduce;
pub mod row;
pub mod shard;
pub mod simulate;
pub mod sizes;
pub mod study;
pub mod survey;
