//! The effective settings of a cache, and the requests that it refuses at once.

use crate::access::Access;
use crate::cost::Linear;
use crate::error::AcquireError;
use crate::footprint::Footprint;
use crate::grid::{Cutter, Grid};
use crate::pressure::Pressure;
use crate::range::PageRange;
use crate::unheld_limit::UnheldLimit;
use std::sync::Arc;
use std::time::Duration;

/// The requests that may register more than they ask for, where the core widens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Widening {
    /// None.
    Off,
    /// Those for memory whose changes the cache is sure to hear of: arenas.
    Owned,
    /// All for local use.
    All,
}

/// The effective settings of a cache.
#[derive(Clone, Debug)]
pub(crate) struct EffectiveSettings {
    pub(crate) capacity: Footprint,
    pub(crate) region_pages: u64,
    /// The lines that no region crosses, where there are any.
    pub(crate) slices: Option<Grid>,
    /// Whether regions can be cut at lines at all.
    pub(crate) can_slice: bool,
    /// Pages that ranges are rounded out to.
    pub(crate) unit: u64,
    pub(crate) rights: Access,
    /// Whether windows give peers their rights, and regions have none.
    pub(crate) windows: bool,
    /// How long a request waits for leases to end when everything is in use.
    pub(crate) capacity_timeout: Duration,
    /// How long a request waits for what another thread registers or deregisters.
    pub(crate) wait_timeout: Duration,
    /// How often a registration is tried again when the system is out of something.
    pub(crate) retries: u32,
    pub(crate) max_segments: usize,
    /// How long nothing is cached where pages were discarded.
    pub(crate) grace: Duration,
    /// Whether the background deregisters what leaves.
    pub(crate) background: bool,
    /// Pages that the background keeps free.
    pub(crate) headroom: u64,
    /// How much may stay without a lease, and for how long.
    pub(crate) max_unheld: Option<UnheldLimit>,
    /// The memory pressure that it follows, if it does.
    pub(crate) pressure: Option<Arc<Pressure>>,
    /// Whether anything is kept at all.
    pub(crate) caches: bool,
    /// Whether the monitor finds changes out.
    pub(crate) vouched: bool,
    pub(crate) widening: Widening,
    /// Whether a region can serve several buffers of a list.
    pub(crate) groups: bool,
    /// The largest share of a group's pages without a request.
    pub(crate) group_extra: f64,
    pub(crate) costs: Linear,
}

impl EffectiveSettings {
    /// Whether a request can be served at all.
    #[inline]
    pub(crate) fn check(
        &self,
        range: PageRange,
        asked: Access,
        blocks: Option<Grid>,
        registrar: impl FnOnce() -> &'static str,
    ) -> Result<(), AcquireError> {
        let offered = self.rights;
        if !offered.contains(asked) {
            return Err(AcquireError::Rights { range, asked, offered, registrar: registrar() });
        }
        match self.excess(range, blocks) {
            Some((needed, limit, unit)) => Err(AcquireError::TooLarge { range, needed, limit, unit }),
            None => Ok(()),
        }
    }

    /// Returns the rights of a request that its regions have, and those that windows give.
    #[inline]
    pub(crate) fn divided(&self, access: Access) -> (Access, Access) {
        if self.windows { (access - Access::REMOTE, access & Access::REMOTE) } else { (access, Access::empty()) }
    }

    /// Returns how a request is divided into regions, as the core does it.
    fn cutter(&self, blocks: Option<Grid>) -> Cutter {
        match blocks {
            Some(blocks) => Cutter::new(self.region_pages, blocks.coarsened(self.region_pages)).only_long(),
            None => Cutter::new(self.region_pages, self.slices),
        }
    }

    /// Returns the excess of the request alone: the need, the limit, and its unit.
    pub(crate) fn excess(&self, range: PageRange, blocks: Option<Grid>) -> Option<(u64, u64, &'static str)> {
        let pages = range.pages();
        let is_one =
            pages <= self.region_pages && self.slices.is_none() && self.max_segments > 0 && self.capacity.regions > 0;
        if is_one && pages <= self.capacity.pages {
            return None;
        }
        let regions = self.cutter(blocks).count(range);
        let needs = [
            (pages, self.capacity.pages, "pages"),
            (regions, self.max_segments as u64, "segments"),
            (regions, self.capacity.regions, "regions"),
        ];
        needs.into_iter().find(|(needed, limit, _)| needed > limit)
    }
}
