//! Far memory: regions of this server's memory that clients own, and read and write by themselves.
//!
//! Clients ask for regions by [messages](rdmakv_proto::far::messages), and move them between servers.
//!
//! * [`offers`]: which client has which region, until when.
//! * [`places`]: which parts of the arena are free, in use, or may still be written by a former owner.
//! * `arena`: the memory of regions.
//! * `tags`: by which keys connections access regions.
//! * `moves`: the tokens of regions that move, and the pages that procedures wrote. `pull`: reads regions from other servers.
//! * `page_sums`: whether a copy has the bytes that its source had.
//! * `batches`: reads and writes that this server's CPU carries out. `workers`: in whose turn.
//! * `procedures`: programs that run here. `runs`: over which regions.
//! * `modules`: procedures that clients write, if the server was built with the feature `wasm`.
//! * `options`: the flags.
//! * `owner`: all of these tied together; it frees what ended.

mod arena;
mod batches;
mod modules;
mod moves;
pub mod offers;
mod options;
mod owner;
mod page_sums;
pub mod places;
mod procedures;
mod pull;
mod runs;
mod tags;
mod workers;

pub(super) use arena::Part;
pub(super) use batches::NotDone;
pub(super) use options::FarFlags;
pub(super) use owner::{Closes, Far, FarPlan, now};
#[cfg(feature = "wasm")]
pub use procedures::try_module;
pub(super) use tags::FarTags;
