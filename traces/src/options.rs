//! How a trace is to be read, where the source does not say.

use crate::{BlockSize, Columns, Format, TimeUnit};

/// The options of a reader. The default is to find out. Fields may be added: write `..ReadOptions::default()` for the rest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadOptions {
    /// The format, or the one that is detected.
    pub format: Option<Format>,
    /// Bytes of a block, where the format counts blocks, or what is usual for it.
    pub block: Option<BlockSize>,
    /// Which column of a CSV means what, or what its header says.
    pub columns: Option<Columns>,
    /// The unit of the times of a CSV or of objects, or what the column's name says, or what their magnitude shows.
    pub time_unit: Option<TimeUnit>,
    /// Web logs: whether a 304, answered from the client's cache, counts as a request for the file.
    pub not_modified: bool,
    /// Recordings: whether one whose end is missing is read up to there, and not refused.
    pub accept_cut: bool,
}

impl ReadOptions {
    /// Options that name the format.
    pub fn of(format: Format) -> Self {
        Self { format: Some(format), ..Self::default() }
    }

    /// With blocks of so many bytes.
    #[must_use]
    pub fn with_block(self, block: BlockSize) -> Self {
        Self { block: Some(block), ..self }
    }

    pub(crate) fn block_or(&self, usual: u64) -> u64 {
        self.block.map_or(usual, BlockSize::get)
    }
}
