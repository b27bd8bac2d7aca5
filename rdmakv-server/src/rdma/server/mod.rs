//! The server's side: who may read what, for how long, and at what cost in registered memory; and who comes and asks.

pub mod admission;
mod arenas;
mod budget;
mod connection;
pub mod counts;
mod fabrics;
mod face;
mod gets;
mod grants;
pub mod hotness;
pub mod life;
mod listener;
pub(crate) mod open;
pub(crate) mod options;
mod origin;
pub mod pages;
mod pinned;
pub mod predecessor;
mod puts;
mod reaper;
mod saying;
pub mod tags;
