//! Far memory: memory of servers with a service level. Its planning, so far: which configuration meets a level at the least cost.
//!
//! Nothing uses it yet. It decides, and does no input or output.
//!
//! * [`slo`]: a service level.
//! * [`configuration`]: threads, batches and depth, and what they cost.
//! * [`model`]: what was measured, and the values between. [`samples`] are what is measured, and the file of it.
//! * [`search`]: the cheapest configuration of a level.
//! * [`simulated`]: a fabric of formulas, by which the search is tested.

pub mod configuration;
pub mod model;
pub mod samples;
pub mod search;
pub mod simulated;
pub mod slo;
