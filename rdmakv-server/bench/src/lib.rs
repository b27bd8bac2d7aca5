//! A load generator for memcached servers.
//!
//! A [`Plan`] says what to do, [`run`] does it and gives a [`Report`]. Requests are made in a closed loop (each
//! connection keeps so many under way) or in an open one (they start by a schedule, whatever the server does, and
//! latencies count from when they should have started). Latencies are kept to three digits.
//!
//! The decisions are pure ([`Choice`], [`Sizes`], [`Arrivals`], the protocols); sockets and clocks are in one event
//! loop a thread. The command `rdmakv-bench` is a thin layer over this library.
//!
//! # Beside this crate
//!
//! [`rdmakv-server`] is the server that it was made for, and [`benches`] compares that with memcached.
//!
//! [`rdmakv-server`]: ../rdmakv_server/index.html
//! [`benches`]: ../benches/index.html

mod account;
mod bursts;
mod checkpoint;
pub mod cli;
mod conclude;
mod conn;
mod cpu;
mod datagrams;
mod due;
mod generator;
mod keys;
pub mod null;
mod observe;
mod outgoing;
mod owner;
mod page;
mod penalty;
mod placed;
mod plan;
mod protocol;
mod recording;
mod remarks;
mod report;
mod run;
mod schedule;
mod sizes;
mod study;
mod sweep;
mod table;
mod tally;
mod target;
#[cfg(test)]
mod theory;
mod through_client;
mod traffic;
mod values;
mod window;
mod work;

pub use keys::{Choice, Chooser, Names, Newest};
pub use observe::Second;
pub use page::html;
pub use penalty::Penalty;
pub use plan::Plan;
pub use protocol::{Op, Protocol};
pub use recording::Recording;
pub use report::{Blocks, Cost, Generator, Kept, Report, Scanned, Server, Sources, Summary};
pub use run::{pin, run, run_watched};
pub use schedule::{Arrivals, Schedule};
pub use sizes::Sizes;
pub use sweep::{Moment, Stage, Sweep};
pub use table::{render, table};
pub use tally::{Histograms, Kind};
pub use target::Target;
pub use traffic::{Bursts, Mix, Traffic};
pub use values::Values;

/// The README's example is one that compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
