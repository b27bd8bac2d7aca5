//! Writes and reads in as many parts as the device needs: so many pieces of local memory each, and so many bytes.

use super::super::ib;
use crate::fabric::siw;
use crate::fabric::traits::Local;
use crate::wire::Segment;
use mrrc::registrar::verbs::MemoryRegion;
use smallvec::SmallVec;

pub(super) type Parts = SmallVec<[ib::ibv_sge; 4]>;
/// Parts of a write or read, and the peer's memory of each.
pub(super) type Cut = SmallVec<[(Parts, Segment); 1]>;

/// The limits of a device for one request.
#[derive(Clone, Copy)]
pub(super) struct RequestLimits {
    /// Pieces of local memory.
    pub(super) pieces: usize,
    /// Bytes.
    pub(super) longest: usize,
    pub(super) is_iwarp: bool,
}

/// Returns the parts of a write or read, at least one. None: the local memory is shorter than the peer's.
pub(super) fn cut(
    local: &[Local<'_, MemoryRegion>],
    remote: Segment,
    reads: bool,
    limits: RequestLimits,
) -> Option<Cut> {
    let cut = by_limits(local, remote, limits.pieces, limits.longest)?;
    Some(if limits.is_iwarp { cut.into_iter().flat_map(|part| as_siw_sends(part, reads)).collect() } else { cut })
}

/// Returns the parts that a device takes at a time.
fn by_limits(local: &[Local<'_, MemoryRegion>], remote: Segment, most: usize, longest: usize) -> Option<Cut> {
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
