//! Ours beside its peers, in one run: what `side-by-side` measures.
//!
//! * [`cache`]: our cache beside UCX's.
//! * [`sim`]: our simulator beside libCacheSim.
//! * [`fabric`]: the fabrics beside what they stand on.
//! * [`handshake`]: the handshake beside the traditional process.
//! * [`kv`]: our server beside memcached.
//! * [`resilience`]: keys that survive their servers compared with one copy.
//!
//! In all of them the two take turns, many times, on pinned CPUs. [`figure`] and [`report`] have the meaning of a row, and
//! whether ours and the peer's can be told apart; [`part`] is a measurement that knows its rows before it is made; [`host`]
//! and [`results`] are the head of a run and its saved form; [`remote`] is the process at the other end of a connection,
//! and [`far`] has what it runs.

pub mod cache;
pub mod fabric;
pub mod far;
pub mod figure;
pub mod handshake;
pub mod host;
pub mod kv;
pub mod part;
pub mod remote;
pub mod report;
pub mod resilience;
pub mod results;
pub mod sim;
