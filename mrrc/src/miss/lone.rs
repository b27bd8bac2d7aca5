//! The usual miss: one gap that nothing overlaps and for which there is room.

use super::gaps::Gap;
use super::room::keep_headroom;
use super::{AcquireRequest, Context};
use crate::core::Request;
use crate::footprint::Footprint;
use crate::hit::{HitTables, HoldRef};
use crate::state::CacheState;

/// Reserves the usual miss, one gap that nothing overlaps and for which there is room, and its ticket. `None`, and nothing is
/// done, for any other.
#[inline]
pub(crate) fn reserve_lone<T>(
    state: &mut CacheState<T>,
    context: &Context<'_, T>,
    request: &AcquireRequest,
) -> Option<Gap<T>> {
    let &Context { settings, thread, .. } = context;
    let &AcquireRequest { range, access, counted, sharing, blocks, .. } = request;
    let amount = Footprint::of([range]);
    // Regions that have left are deregistered first, unless another thread does that and keeps up.
    let is_plain = settings.caches && !state.closed && state.reclaimer.is_kept_up(settings.background);
    if !is_plain || !state.changes.allows_caching(range, false) || !state.occupancy.has_room(amount) {
        return None;
    }
    let max_segments = settings.max_segments;
    let ask = Request { range, access, max_segments, again: counted, sharing, mapping: range, blocks };
    let id = state.core.request_lone(&ask)?;
    state.begin(id, thread);
    let is_reserved = state.reserve(amount);
    debug_assert!(is_reserved, "there was room");
    keep_headroom(state, context);
    Some(Gap::new(id, range, access))
}

/// Publishes a gap that was [reserved](reserve_lone), and that one attempt registered.
#[inline]
pub(crate) fn publish_lone<T>(
    state: &mut CacheState<T>,
    tables: &HitTables<T>,
    gap: &Gap<T>,
    registration: T,
    sure: bool,
) -> HoldRef {
    state.stats.attempts += 1;
    let (hold, cached) = gap.set_registered(state, tables, registration, sure);
    if let Some(id) = cached {
        state.publish_one(tables, id);
    }
    hold
}
