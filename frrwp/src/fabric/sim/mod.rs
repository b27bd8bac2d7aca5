//! Connections in this process, on a clock of their own: the same seed gives the same run.
//!
//! A [`Network`] has nodes and connections between them. Each node has a clock that its own work moves on, registering
//! above all, and that jumps when something comes for it; everything else takes the time that the [`Costs`] say. Bytes
//! are really copied, from where a write was told to read to where it was told to write, at the moment at which the simulated
//! network places them, and every use of a key is checked against the tags that live then: a key that is dead, foreign, or
//! too short is noted as a [`Violation`] and ends the connection, as a card would.
//!
//! One lock guards all of it: nothing here is for speed.

mod domain;
mod endpoint;
mod world;

pub use domain::{SimDomain, SimKey};
pub use endpoint::SimEndpoint;
pub use world::{Costs, Faults, Network, Node, Violation};
