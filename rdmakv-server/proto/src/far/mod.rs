//! Far memory: what its client and its servers agree on.
//!
//! * [`batch`]: batches of operations and of their replies, in messages.
//! * [`marks`]: pages that were written while a region was copied.
//! * [`modules`]: the names and bounds of modules, which are procedures of clients.
//! * [`messages`]: requests for regions, their moves and procedures, and the answers.
//! * [`procedures`]: which procedures there are, and their arguments.

pub mod batch;
pub mod marks;
pub mod messages;
pub mod modules;
pub mod procedures;
