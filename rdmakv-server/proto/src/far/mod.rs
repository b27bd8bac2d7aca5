//! Far memory: what its client and its servers agree on.
//!
//! * [`batch`]: batches of operations and of their replies, in the slots of rings.

pub mod batch;
