//! The request of a miss.

use crate::access::Access;
use crate::core::Sharing;
use crate::effective::EffectiveSettings;
use crate::error::{AcquireError, BlocksError};
use crate::grid::Grid;
use crate::range::{PAGE, PageRange};

/// A request for a lease.
#[derive(Clone, Copy)]
pub(crate) struct AcquireRequest {
    pub(crate) address: usize,
    pub(crate) length: usize,
    /// The pages, rounded out to what the registrar registers.
    pub(crate) range: PageRange,
    /// The rights of its regions.
    pub(crate) access: Access,
    /// The rights that windows give peers.
    pub(crate) peers: Access,
    /// Memory with changes that the caller answers for, so that no monitor is needed there.
    pub(crate) owned: Option<PageRange>,
    /// The regions that may serve it.
    pub(crate) sharing: Sharing,
    /// The pages before which it may be divided, where it is made of blocks.
    pub(crate) blocks: Option<Grid>,
    /// Whether it has been counted as a request already.
    pub(crate) counted: bool,
}

impl AcquireRequest {
    /// Returns a request for these bytes. The rights are complete; the pages are rounded out here.
    ///
    /// # Errors
    /// [`AcquireError::Range`] where the bytes are no range of memory.
    pub(crate) fn new(
        settings: &EffectiveSettings,
        address: usize,
        length: usize,
        access: Access,
    ) -> Result<Self, AcquireError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?.rounded_out(settings.unit);
        let (access, peers) = settings.divided(access);
        Ok(Self {
            address,
            length,
            range,
            access,
            peers,
            owned: None,
            sharing: Sharing::All,
            blocks: None,
            counted: false,
        })
    }

    /// As [`AcquireRequest::new`], for blocks of so many bytes: no two regions have parts of one.
    ///
    /// # Errors
    /// As [`AcquireRequest::new`], and [`AcquireError::Blocks`] where regions cannot be divided so.
    pub(crate) fn in_blocks(
        settings: &EffectiveSettings,
        address: usize,
        length: usize,
        access: Access,
        block: usize,
    ) -> Result<Self, AcquireError> {
        let request = Self::new(settings, address, length, access)?;
        let range = request.range;
        let wrong = |source| AcquireError::Blocks { range, block, source };
        let blocks = Grid::of_blocks(address as u64, block as u64, settings.unit * PAGE);
        let blocks = blocks.ok_or_else(|| wrong(BlocksError::Empty))?;
        if !settings.can_slice {
            return Err(wrong(BlocksError::Policy));
        }
        let limit = settings.region_pages;
        if range.pages() > limit && blocks.coarsened(limit).is_none() {
            return Err(wrong(BlocksError::Bounds { limit }));
        }
        Ok(Self { blocks: Some(blocks), ..request })
    }

    /// Returns whether the caller answers for all of the range. A region can be larger than the request: its neighbours may
    /// be merged with it, and they may lie elsewhere.
    pub(crate) fn answers_for(&self, range: PageRange) -> bool {
        self.owned.is_some_and(|owned| owned.contains(range))
    }
}
