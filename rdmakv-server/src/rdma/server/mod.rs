//! The server's side: who may read what, for how long, and at what cost in registered memory.

pub mod admission;
