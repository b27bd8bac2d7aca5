//! The end of a cache.

use super::flush;
use crate::footprint::Footprint;
use crate::own_thread;
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// How often a registrar is asked to take what it refused when the cache is gone.
const REFUSALS: u32 = 20;
const LONGEST_NAP: Duration = Duration::from_millis(100);

/// Returns whether no region is registered and no lease left.
fn is_done<R: Registrar>(shared: &Shared<R>) -> bool {
    // This runs where a cache is dropped: what a registrar that panics was given is tried again.
    _ = std::panic::catch_unwind(AssertUnwindSafe(|| flush(shared)));
    shared.lock_now().is_ok_and(|(state, _)| {
        // A region that is being registered for an arena's owner is used, and not leased yet.
        state.occupancy.used() == Footprint::default()
            && state.lease_holds.is_empty()
            && state.core.used_regions() == 0
            && !state.reclaimer.has_unmaps()
    })
}

fn has_leases<R: Registrar>(shared: &Shared<R>) -> bool {
    shared.lock_now().is_ok_and(|(state, _)| !state.lease_holds.is_empty() || state.core.used_regions() > 0)
}

/// Ends a cache: whatever no lease has is deregistered now, and the rest when its leases end, by a thread
/// that waits for them. Its state outlives the leases.
pub(crate) fn close<R: Registrar>(shared: Arc<Shared<R>>) {
    if shared.tables.gate.is_forked() {
        // Everything here is the parent's; so is the registrar, which must not deregister anything at its end.
        std::mem::forget(shared);
        return;
    }
    if let Ok((mut state, _)) = shared.lock_now() {
        state.closed = true;
    }
    shared.monitor.stop();
    if is_done(&shared) {
        return;
    }
    let waiter = shared.clone();
    let wait = move || {
        let mut nap = Duration::from_millis(1);
        let mut refusals = 0;
        while !waiter.tables.gate.is_forked() && !is_done(&waiter) {
            if !has_leases(&waiter) {
                refusals += 1;
                if refusals == REFUSALS {
                    // The registrar will not take them; what it knows must not be freed under it.
                    std::mem::forget(waiter);
                    return;
                }
            }
            crate::shim::thread::sleep(nap);
            nap = (nap * 2).min(LONGEST_NAP);
        }
    };
    let spawned = own_thread::spawn("mrrc-orphans", wait);
    if spawned.is_err() {
        // Leases point to the state: better that it stays for good.
        std::mem::forget(shared);
    }
}
