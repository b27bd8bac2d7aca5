//! A cache as a tenant of a budget that it shares with others.

use super::deregister_batch;
use crate::budget::{Budget, Tenant};
use crate::error::Unusable;
use crate::policy::Need;
use crate::registrar::Registrar;
use crate::state::CacheState;
use crate::state::shared::Shared;
use std::sync::Arc;

/// Has a cache keep to a budget from now on. It has registered nothing so far.
pub(crate) fn join<R: Registrar>(shared: &Arc<Shared<R>>, budget: &Budget) {
    let tenant: Arc<dyn Tenant> = shared.clone();
    let seat = budget.join(shared.settings.capacity.pages, Arc::downgrade(&tenant));
    assert!(shared.seat.set(seat).is_ok(), "a cache joins one budget");
}

impl<R: Registrar> Tenant for Shared<R> {
    fn hits(&self) -> u64 {
        let ([subset, exact], _) = self.tables.blocks.counts();
        subset.wrapping_add(exact)
    }

    fn give(&self, pages: u64) -> u64 {
        make_room(self, pages).unwrap_or(0)
    }
}

/// Makes room for other caches, by eviction where it takes that. Returns the pages that are free now.
fn make_room<R: Registrar>(shared: &Shared<R>, pages: u64) -> Result<u64, Unusable> {
    let (mut state, sure) = shared.lock_now()?;
    if !sure {
        // A monitor has the word, and it may want this lock.
        return Ok(0);
    }
    state.sweep(&shared.tables);
    let leaving = state.reclaimer.pending_amount().pages;
    if leaving < pages {
        let need = Need { pages: pages - leaving, regions: 0 };
        state.with_core(&shared.tables, |core, leases| _ = core.evict_exactly(need, leases));
    }
    let before = state.stats.deregistered.pages;
    let freed = |state: &CacheState<R::Registration>| state.stats.deregistered.pages - before;
    while state.reclaimer.has_pending() && freed(&state) < pages {
        deregister_batch(shared, state);
        state = shared.lock_now()?.0;
    }
    Ok(freed(&state))
}
