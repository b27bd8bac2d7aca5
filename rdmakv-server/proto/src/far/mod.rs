//! Far memory: what its client and its servers agree on.
//!
//! * [`batch`]: batches of operations and of their replies, in messages.
//! * [`messages`]: requests for regions, their moves and procedures, and the answers.
//! * [`procedures`]: which procedures there are, and their arguments.

pub mod batch;
pub mod messages;
pub mod procedures;
