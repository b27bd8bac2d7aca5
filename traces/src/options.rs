//! How a trace is to be read, where the source does not say.

use crate::{Columns, Format, TraceError};
use std::num::NonZeroU64;
use std::str::FromStr;

/// What a reader may be told. The default is to find out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadOptions {
    /// The format, or the one that is detected.
    pub format: Option<Format>,
    /// Bytes of a block, where the format counts blocks, or what is usual for it.
    pub block: Option<BlockSize>,
    /// Which column of a CSV means what, or what its header says.
    pub columns: Option<Columns>,
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

/// Bytes of a block: `512`, `4k`, `2MiB` or `page`, at most 1 TiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSize(NonZeroU64);

impl BlockSize {
    /// `None` for no bytes and for more than 1 TiB.
    pub fn new(bytes: u64) -> Option<Self> {
        NonZeroU64::new(bytes).filter(|bytes| bytes.get() <= 1 << 40).map(Self)
    }

    /// In bytes.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl FromStr for BlockSize {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => Some(1),
            "k" | "kb" | "kib" => Some(1 << 10),
            "m" | "mb" | "mib" => Some(1 << 20),
            "g" | "gb" | "gib" => Some(1 << 30),
            "p" | "page" | "pages" => Some(mrrc::PAGE),
            "sector" | "sectors" => Some(512),
            _ => None,
        };
        let number = if digits == 0 { Some(1) } else { text[..digits].parse::<u64>().ok() };
        // A unit alone is one of it; an empty text is nothing.
        let bytes = unit.zip(number).filter(|_| !text.is_empty()).and_then(|(unit, number)| number.checked_mul(unit));
        bytes.and_then(Self::new).ok_or_else(|| TraceError::Option {
            option: "--block",
            what: format!("`{text}` is no size of a block"),
            remedy: "give bytes, such as 512, 4k, 2MiB or page, at most 1 TiB".into(),
        })
    }
}
