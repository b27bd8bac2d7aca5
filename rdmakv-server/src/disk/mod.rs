//! The flash tier's devices: files, and a thread that transfers by io_uring.
//!
//! [`rdmakv_flash`] decides what is written and read; a [`Disk`] does it. A read lands in memory that the caller gives, and the memory
//! comes back with its end. Memory in a [`Fixed`] range is registered through [`mrrc`] where it serves many transfers, and transfers in
//! it are then `READ_FIXED` and `WRITE_FIXED`. Where the kernel refuses the pins, they are plain.
//!
//! A [`Driver`] runs the tiers of all shards over one disk.

mod driver;
mod files;
mod fixed;
mod thread;

pub use driver::Driver;
pub use files::{FileError, FlashFile, open};
pub use fixed::Fixed;
pub use thread::{Counts, Disk, Done, Memory, Owned, StartError, Transfer};
