//! The flash tier of rdmakv-server.
//!
//! Keys and index stay in RAM. Values that leave RAM go to a log on flash, and a GET reads them back.
//!
//! This crate decides, and does no input or output: it has no files, clock or threads. [`Flash`] is the tier of one shard. The server
//! calls it under the shard's lock; a driver carries out its [`Action`]s and the reads of [`Lookup::Load`], and reports their ends.
//!
//! * [`layout`] divides the files among shards, [`superblock`] tells whose a file is, [`record`] is the format of a segment.
//! * A key costs a *stub* of 12 bytes and itself, and about 8 bytes of index: see the table in `stubs.rs`.
//! * Items are batched into buffers and written to the open segment: [`Flash::next_action`].
//! * Segments are made free again, the one of which least is named first, and its items are written again: [`Flash::work`].
//! * [`restart`] has the order of a stop and a start, and [`Flash::manifest`] what a warm start needs. After a crash flash starts empty.
//!
//! # What holds
//!
//! **No old value returns.** A record is reached through its key's stub only. [`Flash::remove`] and [`Flash::admit`] remove the stub, and
//! a load in progress is then an orphan whose bytes are not used. What was read is believed if its segment's sequence, key, version and
//! CRC32C are those of the stub.
//!
//! **Memory is bounded** by [`Settings`]: stubs by `stub_bytes`, with them the index, buffers by their number, reads by `loads`. What
//! does not fit is dropped and counted. Flash only forgets.
//!
//! **Writes are bounded** by [`Settings::rewrite_percent`], at any fill. Where that does not reach, items go: of the oldest segment, and
//! those that were asked for least. [`rewrite_percent`] says which share of a segment a bound stands for. Under uniform overwrites of a
//! log that is 80 % full, 98 % hits cost more than 1.4 bytes for one admitted; `tests/near_full.rs` has the figures.
//!
//! This crate is public for rdmakv's own crates, and may change with any release.

mod admit;
mod device;
mod flash;
mod index;
pub mod layout;
mod loads;
mod memory;
pub mod record;
pub mod restart;
mod segments;
mod stubs;
pub mod superblock;
mod writer;

pub use admit::Refused;
pub use device::{DeviceError, WRITE_ERRORS};
pub use flash::{
    Action, Counts, Flash, Item, Loaded, Lookup, ManifestError, Peek, Settings, Ticket, Usage, rewrite_percent,
};
pub use flash::{Crawled, Listed, Position};
pub use layout::{Area, Layout};
pub use loads::LoadId;
pub use memory::StubMemory;
pub use record::{Entry, Record};
pub use writer::Buffer;
