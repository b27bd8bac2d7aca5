//! The facts that a fabric has to know of the chunks that its clients may read.
//!
//! A store tells its exposures two things, both under its lock: that a leased chunk gives way to another ([`Exposure::replaced`]),
//! and that a chunk's last lease has ended ([`Exposure::ended`]), if none of them still needs it ([`Exposure::is_open`]). None may
//! wait for anything: no system call, no registration. Work to be undone at leisure is put aside, for the fabric's own threads. The
//! exception: a chunk that is about to be free may be in the hands of a thread that is just sending it, which is waited for.

use std::fmt;

use super::super::slabs::{Extent, Slabs};
#[cfg(test)]
use rdmakv_proto::item::State;

/// A leased chunk is dead and gives way to another, which is not published yet.
#[derive(Debug)]
pub struct Replacement<'a> {
    pub(super) slabs: &'a Slabs,
    /// The chunk that is dead.
    pub old: Extent,
    /// The chunk that is the key's next.
    pub new: Extent,
}

impl Replacement<'_> {
    /// Zeroes the bytes between the new item's end and this many bytes from its chunk's begin, as far as its chunk goes:
    /// a client that can read as much of the old chunk sees nothing of others then.
    pub fn clear_tail(&self, until: u64) {
        self.slabs.clear_tail(self.new, until);
    }

    /// Returns the state bytes of the old and the new chunk.
    #[cfg(test)]
    pub(crate) fn states(&self) -> (State, State) {
        [self.old, self.new].map(|extent| self.slabs.chunk(self.slabs.chunk_at(extent.address).unwrap()).state()).into()
    }
}

/// A fabric, as the store sees it. Its methods are called under the store's lock and must not sleep.
pub trait Exposure: Send {
    /// Between a leased chunk's death and the change of the index. The new chunk is complete and not published. Says
    /// whether the tags that named the old chunk name the new one from now on. The new chunk is then leased as long as the
    /// old one.
    fn replaced(&mut self, replacement: &Replacement<'_>) -> bool;

    /// Returns whether a client may still read the chunk though its last lease is over: then it stays leased a little
    /// longer, and this is asked again.
    fn is_open(&mut self, chunk: Extent) -> bool {
        let _ = chunk;
        false
    }

    /// The chunk's last lease has ended, and if it is dead it is free after this. `now` is in nanoseconds, of the clock
    /// that leases count by.
    fn ended(&mut self, chunk: Extent, now: u64);

    /// This memory was given back to the system, and no chunk is there. A registration that reaches there has pages that are no longer the
    /// memory's: none of them may serve a request from now on.
    fn discarded(&mut self, address: u64, bytes: u64) {
        let _ = (address, bytes);
    }
}

/// All exposures of a store.
#[derive(Default)]
pub(super) struct Exposures(Vec<Box<dyn Exposure>>);

impl fmt::Debug for Exposures {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} exposures", self.0.len())
    }
}

impl Exposures {
    pub(super) fn attach(&mut self, exposure: Box<dyn Exposure>) {
        self.0.push(exposure);
    }

    pub(super) fn replaced(&mut self, replacement: &Replacement<'_>) -> bool {
        // Each is asked, whatever the others say.
        self.0.iter_mut().fold(false, |any, exposure| exposure.replaced(replacement) | any)
    }

    pub(super) fn is_open(&mut self, chunk: Extent) -> bool {
        self.0.iter_mut().any(|exposure| exposure.is_open(chunk))
    }

    pub(super) fn discarded(&mut self, address: u64, bytes: u64) {
        for exposure in &mut self.0 {
            exposure.discarded(address, bytes);
        }
    }

    pub(super) fn ended(&mut self, chunk: Extent, now: u64) {
        for exposure in &mut self.0 {
            exposure.ended(chunk, now);
        }
    }
}
