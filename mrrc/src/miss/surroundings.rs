//! Whether a request may register more than it asks for.

use super::{AcquireRequest, Context};
use crate::core::Request;
use crate::effective::Widening;
use crate::range::PageRange;
use crate::state::CacheState;

/// Returns the pages around a request that it may register: the driver looks which of them can be. `None` where it is registered as it
/// is. What was planned before, and groups, are.
#[inline]
pub(crate) fn reach<T>(state: &CacheState<T>, context: &Context<'_, T>, request: &AcquireRequest) -> Option<PageRange> {
    let may_widen = match context.settings.widening {
        Widening::Off => false,
        Widening::Owned => request.owned.is_some(),
        Widening::All => true,
    };
    if !may_widen || request.counted || !context.members.is_empty() || state.closed {
        return None;
    }
    let &AcquireRequest { range, access, sharing, .. } = request;
    state.core.reach_of(&Request { access, sharing, ..Request::new(range) })
}

/// Learns that a widened registration of a gap failed, and whether it would again. A context that fails for the moment pauses.
pub(super) fn note_refusal<T>(state: &mut CacheState<T>, gap: PageRange, lasts: bool) {
    if lasts {
        state.core.widening_failed(gap);
    } else {
        state.core.pause_widening(gap);
    }
}
