//! Writes and reads in as many parts as the device needs: so many pieces of local memory each, and so many bytes.

#![expect(unsafe_code, reason = "posting lets the device at memory")]

use super::super::ib;
use super::super::pair::Request;
use super::{Posted, VerbsEndpoint, opcode};
use crate::fabric::siw;
use crate::fabric::traits::Local;
use crate::wire::Segment;
use mrrc::registrar::verbs::MemoryRegion;
use smallvec::SmallVec;
use std::io;

type Parts = SmallVec<[ib::ibv_sge; 4]>;
/// Parts of a write or read, and the peer's memory of each.
type Cut = SmallVec<[(Parts, Segment); 1]>;

impl VerbsEndpoint {
    /// Posts a write or read, in as many parts as the device needs.
    ///
    /// # Safety
    /// As [`Endpoint::write`] or [`Endpoint::read`].
    pub(super) unsafe fn place(
        &mut self,
        id: u64,
        local: &[Local<'_, MemoryRegion>],
        remote: Segment,
        reads: bool,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        let longest = self.stands()?.longest;
        let able = self.domain.0.able;
        if local.iter().any(|local| !local.registration.holds(local.address as u64, local.length as u64)) {
            return self.refuse("local memory that its registration does not cover: register it");
        }
        let most = if reads { able.scatter } else { able.gather };
        let Some(mut cut) = cut(local, remote, most, longest) else {
            return self.refuse("local memory that is shorter than the peer's: post as many bytes as the segment has");
        };
        if able.iwarp {
            cut = cut.into_iter().flat_map(|part| as_siw_sends(part, reads)).collect();
        }
        if cut.len() > self.depth {
            return self
                .refuse("more pieces than the queue has entries: write less at a time, or raise VerbsOptions::depth");
        }
        self.has_room(cut.len())?;
        let last = cut.len() - 1;
        for (number, (mut parts, to)) in cut.into_iter().enumerate() {
            let is_last = number == last;
            let (opcode, immediate) = match (reads, immediate) {
                (true, _) => (opcode::IBV_WR_RDMA_READ, 0),
                (false, Some(immediate)) if is_last => (opcode::IBV_WR_RDMA_WRITE_WITH_IMM, immediate),
                _ => (opcode::IBV_WR_RDMA_WRITE, 0),
            };
            let remote = (to.address, to.key);
            let request = Request { number: 0, opcode, parts: &mut parts, remote, immediate, inline: false };
            // SAFETY: the caller's promise; `Done` is told when the last part has completed, and they do so in order.
            unsafe { self.post(Posted::Part { id, is_last, reads, to }, request) }?;
        }
        self.spoken();
        Ok(())
    }
}

/// Returns the parts of a write or read that a device takes at a time, at least one; none where the local memory is too
/// short.
fn cut(local: &[Local<'_, MemoryRegion>], remote: Segment, most: usize, longest: usize) -> Option<Cut> {
    let mut cut = Cut::new();
    let mut at = Segment { length: 0, ..remote };
    let mut parts = Parts::new();
    let mut left = remote.length;
    for local in local {
        let mut done = 0;
        while done < local.length && left > 0 {
            if parts.len() == most || at.length >= longest as u64 {
                cut.push((std::mem::take(&mut parts), at));
                at = Segment { address: at.address.wrapping_add(at.length), length: 0, ..remote };
            }
            let room = (longest as u64 - at.length).min(left);
            let length = (local.length - done).min(usize::try_from(room).unwrap_or(usize::MAX));
            let (addr, lkey) = ((local.address as u64).wrapping_add(done as u64), local.registration.lkey());
            parts.push(ib::ibv_sge { addr, length: length as u32, lkey });
            (done, left, at.length) = (done + length, left - length as u64, at.length + length as u64);
        }
    }
    cut.push((parts, at));
    (left == 0).then_some(cut)
}

/// Returns a part as one or two that [`siw`] sends right. It is right by itself about several pieces.
fn as_siw_sends((parts, to): (Parts, Segment), reads: bool) -> Cut {
    let &[ib::ibv_sge { addr, lkey, .. }] = parts.as_slice() else { return Cut::from_iter([(parts, to)]) };
    let first = siw::one_request(if reads { to.address } else { addr }, to.length);
    let request = |at: u64, length: u64| {
        let parts = Parts::from_iter([ib::ibv_sge { addr: addr.wrapping_add(at), length: length as u32, lkey }]);
        (parts, Segment { address: to.address.wrapping_add(at), length, ..to })
    };
    let rest = (first < to.length).then(|| request(first, to.length - first));
    std::iter::once(request(0, first)).chain(rest).collect()
}
