//! The server's side: who may read what, for how long, and at what cost in registered memory.

pub mod admission;
pub mod hotness;
pub mod life;
pub mod pages;
pub mod predecessor;
pub mod shared;
pub mod tags;
#[cfg(test)]
mod tags_tests;
