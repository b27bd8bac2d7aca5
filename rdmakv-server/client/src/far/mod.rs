//! Far memory: memory of servers with a service level. Its decisions, so far: which configuration meets a level at the least cost, where a
//! region is, and how it moves.
//!
//! Nothing uses it yet. It decides, and does no input or output. Lanes will ask the table where an access goes. A driver will send what
//! the machines of migration ask for, by the [messages](rdmakv_proto::far::messages).
//!
//! * [`slo`]: a service level.
//! * [`configuration`]: threads, batches and depth, and what they cost.
//! * [`model`]: what was measured, and the values between. [`samples`] are what is measured, and the file of it.
//! * [`search`]: the cheapest configuration of a level.
//! * [`simulated`]: a fabric of formulas, by which the search is tested.
//! * [`table`]: which server has each region, and where an access goes.
//! * [`migration`]: how a region moves to another server, and what an open finds of it.

pub mod configuration;
mod faults;
pub mod migration;
pub mod model;
pub mod samples;
pub mod search;
pub mod simulated;
pub mod slo;
pub mod table;
