//! The caches that ours is measured beside.
//!
//! The build links UCX when it is there and sets `cfg(peer_ucx)`. When it is not, [`Ucx`] is a type without
//! values: the same code builds, and the peer's columns stay empty. [`libcachesim`] is looked for at run time.

pub mod libcachesim;

#[cfg(not(peer_ucx))]
mod absent;
#[cfg(peer_ucx)]
mod ucx;

#[cfg(not(peer_ucx))]
pub use absent::Ucx;
#[cfg(peer_ucx)]
pub use ucx::Ucx;

/// Why there is no UCX to measure; `None` if there is.
pub fn missing() -> Option<&'static str> {
    if cfg!(peer_ucx) { None } else { Some(option_env!("PEER_UCX_MISSING").unwrap_or("it was not looked for")) }
}
