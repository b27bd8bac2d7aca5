//! Values in fragments that the client reads by itself: it learns where the fragments are, and reads them at once.

use super::fabric::parts::Outcome;
use super::fragment_tags::{Located, Look};
use super::slots::Slot;
use super::value::{Bytes, Source, Value};
use rdmakv_proto::clock;
use std::sync::Arc;

/// Bytes of a value that is looked for when it is first asked for. A look and a read take two round trips, and a message takes one. But a message
/// of as many bytes is more work for both sides.
pub(super) const LOOK_FROM: usize = 128 << 10;

/// A one-sided read of a value, as far as it is.
pub(super) enum OneSided {
    /// The members are asked where the fragments are, until then at most.
    Looking(Look, u64),
    /// The fragments are being read.
    Reading(FragmentRead),
}

impl OneSided {
    /// Returns how long members are waited for that did not answer yet; None if none is asked.
    pub(super) fn looks_until(&self) -> Option<u64> {
        if let Self::Looking(_, until) = self { Some(*until) } else { None }
    }

    /// Returns when the value is asked for by calls.
    pub(super) fn gives_up_at(&self) -> u64 {
        match self {
            Self::Looking(_, until) => *until,
            Self::Reading(read) => read.gives_up_at,
        }
    }

    /// Returns the place of a server whose fragment did not come yet.
    pub(super) fn waits_for(&self) -> Option<usize> {
        if let Self::Reading(read) = self { read.waits_for() } else { None }
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        matches!(self, Self::Reading(read) if read.is_done() || read.gives_up_at <= now)
    }
}

/// A one-sided read of fragments.
pub(super) struct FragmentRead {
    located: Arc<Located>,
    slot: Arc<Slot>,
    /// Those under way, by the places of their servers.
    outcomes: Vec<(usize, Arc<Outcome>)>,
    /// When the servers are asked, whatever is under way.
    gives_up_at: u64,
}

impl FragmentRead {
    pub(super) fn new(
        located: Arc<Located>,
        slot: Arc<Slot>,
        outcomes: Vec<(usize, Arc<Outcome>)>,
        gives_up_at: u64,
    ) -> Self {
        Self { located, slot, outcomes, gives_up_at }
    }

    pub(super) fn is_done(&self) -> bool {
        self.outcomes.iter().all(|(_, outcome)| outcome.get().is_some())
    }

    /// Returns the place of a server whose fragment did not come yet.
    fn waits_for(&self) -> Option<usize> {
        self.outcomes.iter().find(|(_, outcome)| outcome.get().is_none()).map(|&(at, _)| at)
    }

    /// Returns the value, if all was read and may be believed.
    pub(super) fn value(self, key: &[u8]) -> Option<Value> {
        let Self { located, slot, outcomes, .. } = self;
        let is_read = outcomes.iter().all(|(_, outcome)| outcome.get() == Some(true));
        let mut slot = Arc::try_unwrap(slot).ok().filter(|_| is_read)?;
        let flags = located.believe(key, slot.bytes_mut(), clock::unix())?;
        // After the last byte: what was read within the leases was not used for another item meanwhile.
        if !located.is_leased(clock::boot()) {
            return None;
        }
        let (length, version) = located.value();
        Some(Value::new(Bytes::Slot(slot), 0, length, (flags, version), Source::OneSided))
    }
}
