//! The store's interface to the program that answers GETs in the kernel.
//!
//! The program finds items by a table of places. It believes an item only if that was the key's value all the while. The store
//! lists every item that the program may answer (`kernel_list.rs`). It reports flushes, and pages that leave their class.
//!
//! Under the shard's lock. An item is entered once it is alive. Its entry goes once it is dead, and before its chunk is free.

use std::fmt::Debug;

/// The kernel's view of all stores. A place is the offset of an item from the begin of the first store's memory, in bytes.
pub trait KernelTable: Debug + Send + Sync {
    /// Enters an item that is not there yet.
    fn enter(&self, key: &[u8], place: u64);
    /// Returns whether an item is there still. Others displace it.
    fn has(&self, key: &[u8], place: u64) -> bool;
    /// Removes an item, if it is there; returns the hits that the program saw. When this returns, no reader begins with it.
    fn remove(&self, key: &[u8], place: u64) -> u32;
    /// Returns the hits that the program saw since the last time.
    fn take_hits(&self, key: &[u8], place: u64) -> u32;
    /// A page left its class, and no item of it is in the table. What is written to it afterwards, no reader believes that began before.
    fn page_left(&self);
    /// Items of this shard up to this version are gone. No flush is due any more.
    fn flushed(&self, shard: usize, version: u64);
    /// Items of this shard will be gone from this time on, in Unix seconds.
    fn flush_at(&self, shard: usize, at: u64);
}
