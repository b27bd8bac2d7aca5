//! The interface for a cache that drives a [`Core`](crate::Core) with many threads: the simulator does not use it.
//!
//! Such a cache looks regions up without its lock ([`IndexReader`]), and registers the gaps of a list of ranges before it
//! asks the core again ([`gaps`], [`group_len`]).

pub use crate::core::group_len;
pub use crate::coverage::gaps;
pub use crate::index::IndexReader;
