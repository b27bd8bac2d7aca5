//! Which policy and which size for these buffers?
//!
//! Every policy runs through [`mrrc::Core`], the code that ships; this crate replays traces through it, compares, and
//! bounds what any policy could do.

pub mod bound;
mod last_use;
pub mod mrc;
