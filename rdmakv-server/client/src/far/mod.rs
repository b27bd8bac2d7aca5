//! Far memory: a byte array in the memory of servers, which one process reads and writes.
//!
//! ```no_run
//! use rdmakv_client::Client;
//! use rdmakv_client::far::{Memory, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(["shm:@rdmakv-11211"])?;
//! let memory = Memory::create(&client, 64 << 20, &Options::default())?;
//! let mut lane = memory.lane()?;
//! let mut buffer = lane.buffer(5)?;
//! buffer.copy_from_slice(b"bytes");
//! let ticket = lane.write(1000, buffer)?;
//! let buffer = lane.wait(ticket)?;
//! let ticket = lane.read(998, buffer)?;
//! assert_eq!(&lane.wait(ticket)?[..], b"\0\0byt");
//! memory.delete()?;
//! # Ok(())
//! # }
//! ```
//!
//! Servers offer it with `--far SIZE`, over `shm:` and `iwarp:`. A memory lasts for its [duration](Options::duration), also without its
//! process. [`Memory::open`] takes it over by its name and secret once the former owner has ended.
//!
//! # One-sided, or in batches
//!
//! Without [workers](Options::workers) a lane reads and writes the servers' memory by itself. With them its short accesses travel in
//! batches, which the servers' CPUs carry out. `rdmakv far bench` compares the two.
//!
//! # Procedures
//!
//! A [`Runner`] runs [procedures](Procedure) where the memory is: a chain of nodes is followed in one round trip, not in one a node.
//!
//! ```no_run
//! # use rdmakv_client::far::{Memory, Procedure, RunError, Walk};
//! # fn find(memory: &Memory) -> Result<Vec<u8>, RunError> {
//! let mut runner = memory.runner();
//! // Nodes with the address of the next one first, then a key of 8 bytes.
//! let walk = Walk { at: 4096, next: 0, key_at: 8, nodes: 100, length: 64, key: b"the key!".to_vec() };
//! let outcome = runner.call(Procedure::Walk(walk))?;
//! # Ok(outcome.reply)
//! # }
//! ```
//!
//! Nothing that is read at a time may lie on two servers. Nodes and records whose lengths are powers of two never do, if they lie at multiples
//! of these.
//!
//! # Modules
//!
//! A procedure of your own is a WebAssembly [module](modules). [`store_module`] stores it at servers that were started with `--far-wasm`.
//!
//! ```no_run
//! # use rdmakv_client::Client;
//! # use rdmakv_client::far::{Memory, Module, Procedure, store_module};
//! # fn find(client: &Client, memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
//! store_module(client, "walk", &std::fs::read("walk.wasm")?)?;
//! let module = Module { at: 4096, name: b"walk".to_vec(), state: b"the key!\x64\0\0\0".to_vec() };
//! let outcome = memory.runner().call(Procedure::Module(module))?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is kept
//!
//! A write that was waited for is in the server's memory. When a server ends, or a connection to it breaks, its regions are lost. Their
//! accesses end as [lost](AccessError::Lost) from then on, on all lanes. Open the memory again where only the connection broke.
//!
//! # Service levels and moves
//!
//! [`create_for`] makes a memory with the cheapest configuration that meets a service level: by a model, or by measuring.
//! `rdmakv far model` measures configurations, and `rdmakv far plan` finds the cheapest that meets a level.
//!
//! [`Memory::migrate`] moves regions to another server of the client while lanes go on. [`Memory::tend`] does so when a server says that it
//! stops. A server reads regions from those of its `--far-peers`.
//!
//! * [`memory`](Memory), [`lane`](Lane): the memory, and a thread's accesses. [`runner`](Runner): its procedures.
//! * [`mod@bench`]: the speed of one configuration. [`measure`]: that of all that are worth it, for a model.
//! * [`chain`]: what a chain of nodes costs, by reads and by a walk.
//! * [`slo`]: a service level.
//! * [`configuration`]: threads, batches and depth, and what they cost.
//! * [`model`]: what was measured, and the values between. [`samples`] are what is measured, and the file of it.
//! * [`search`]: the cheapest configuration of a level. [`picture`] shows a model, a level and the choice.
//! * [`simulated`]: a fabric of formulas, by which the search is tested.
//! * [`table`]: which server has each region, and where an access goes.
//! * [`Moving`]: a move, step by step. [`migration`]: how a region moves to another server, and what an open finds of it.

mod batches;
pub mod bench;
pub mod chain;
pub mod configuration;
mod connection;
mod faults;
mod lane;
mod level;
pub mod measure;
mod memory;
pub mod migration;
pub mod model;
pub mod modules;
mod moves;
mod order;
pub mod picture;
mod run;
mod runner;
pub mod samples;
pub mod search;
mod shared;
pub mod simulated;
pub mod slo;
mod steps;
pub mod table;

pub use lane::{Buffer, Lane, Ticket};
#[cfg(feature = "cli")]
pub(crate) use level::create_guarded;
pub use level::{LevelError, Terms, create_for};
pub use memory::{BATCH_MAX, DEPTH_MAX, Memory, NAME_MAX, Options};
pub use modules::{list_modules, remove_module, store_module};
pub use moves::{Moved, Moving, Stepped};
pub use rdmakv_proto::far::procedures::{Bucket, Cas64, Filter, Module, Procedure, Walk};
pub use run::{Outcome, RunEnd, RunError};
pub use runner::{RunTicket, Runner};
pub use shared::{NoSecret, Secret};
pub use steps::Event;
pub use table::{AccessError, MemoryError};

use crate::address::Fabric;
use std::time::Duration;

/// A client's servers, and the terms of connections to them.
pub(crate) struct Source {
    pub(crate) servers: Vec<SourceServer>,
    /// The first bytes on each connection.
    pub(crate) login: Option<Vec<u8>>,
    /// How long connecting may take.
    pub(crate) connect: Duration,
    /// How long an answer may take.
    pub(crate) patience: Duration,
}

/// A server of a client.
pub(crate) struct SourceServer {
    /// As the user named it.
    pub(crate) name: String,
    pub(crate) fabrics: Vec<Fabric>,
}

impl SourceServer {
    /// Returns whether a user means this server: by its name, or by one of its addresses.
    fn has_name(&self, name: &str) -> bool {
        self.name == name || self.fabrics.iter().any(|fabric| fabric.to_string() == name)
    }
}
