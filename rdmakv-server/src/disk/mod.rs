//! The flash tier's devices: files, and a thread that transfers by io_uring.
//!
//! [`rdmakv_flash`] decides what is written and read; a [`Disk`] does it. A read lands in memory that the caller gives, and the memory
//! comes back with its end. Memory in a [`Fixed`] range is registered through [`mrrc`] where it serves many transfers, and transfers in
//! it are then `READ_FIXED` and `WRITE_FIXED`. Where the kernel refuses the pins, they are plain.
//!
//! A [`Driver`] runs the tiers of all shards over one disk.

mod backing;
mod buffers;
mod driver;
mod files;
mod fixed;
mod reads;
mod ring;
mod thread;
mod transfer;

pub(crate) use backing::BackingThread;
pub use driver::Driver;
pub use files::{FileError, FlashFile, open};
pub(crate) use files::{has_data, is_at, limit_below, open_or_make, remedy, remove_made};
pub use fixed::Fixed;
pub(crate) use reads::WorkerReads;
pub use ring::{Counts, Ring, StartError};
pub use thread::Disk;
pub use transfer::{Done, Memory, Owned, Transfer};
