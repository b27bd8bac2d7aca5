//! Far memory: what its client and its servers agree on. Nothing uses the batches yet.
//!
//! * [`batch`]: batches of operations and of their replies, in the slots of rings.
//! * [`messages`]: requests for regions, their moves and procedures, and the answers.

pub mod batch;
pub mod messages;
