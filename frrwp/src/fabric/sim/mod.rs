//! Connections in this process, on a clock of their own: the same seed gives the same run.
//!
//! A [`Network`] has nodes and connections between them. Each node has a clock that its own work moves on, registering
//! above all, and that jumps when something comes for it. Everything else takes the time that the [`Costs`] say. Bytes are
//! really copied, from the source of a write to its destination, at the moment at which the simulated network places them.
//! Every use of a key is checked against the tags that live then. A key that is dead, foreign, or too short is noted as a
//! [`Violation`] and ends the connection, as with a card.
//!
//! # One thread plays all sides
//!
//! Time goes on when an end [waits](crate::fabric::Endpoint::wait): the next thing on its way happens, at whichever end, or the
//! clock leaps to the time-out. So an end that waits while another thread is about to speak for its peer would find that its
//! time is out. Endpoints, and engines on them, do therefore not leave the thread that connected them. Drive them in turn, as
//! the first program in [`engine`](crate::engine) does, or [`Network::step`] by hand. A side that waits without a time-out
//! while nothing is on its way waits for nothing, and [`Engine::run`](crate::engine::Engine::run) turns for ever: let the other
//! side act first.
//!
//! ```compile_fail,E0277
//! # use frrwp::fabric::sim::{Costs, Faults, Network};
//! # let network = Network::new(1, Costs::default(), Faults::default());
//! let [one, other] = network.connect(&network.node(), &network.node(), 16);
//! std::thread::spawn(move || drop(other));
//! ```
//!
//! One lock guards all of it: nothing here is for speed.
//!
//! A [`DatagramNetwork`] is apart from that: it loses, repeats, delays and changes the datagrams of its [ports](SimPort).

mod datagrams;
mod domain;
mod endpoint;
mod network;
mod terms;
mod world;

pub use datagrams::{Bottleneck, DatagramCounts, DatagramNetwork, Impairments, SimPort};
pub use domain::{SimDomain, SimKey};
pub use endpoint::SimEndpoint;
pub use network::{Network, Node};
pub use terms::{Costs, Faults, Violation};
