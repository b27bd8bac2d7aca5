//! The size of a block.

use crate::TraceError;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Bytes of a block: `512`, `4k`, `2MiB`, as [`mrrc_core::units::bytes`] reads them, or `page`, at most 1 TiB.
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
        let written = text.trim();
        let digits = written.find(|c: char| !c.is_ascii_digit()).unwrap_or(written.len());
        let (number, unit) = written.split_at(digits);
        // A unit alone is one of it; an empty text is nothing.
        let number = if number.is_empty() && !unit.is_empty() { "1" } else { number };
        let times = |bytes| number.parse::<u64>().ok()?.checked_mul(bytes);
        let bytes = match unit.trim().to_ascii_lowercase().as_str() {
            "p" | "page" | "pages" => times(mrrc_core::PAGE),
            "sector" | "sectors" => times(512),
            _ => mrrc_core::units::bytes(&format!("{number}{unit}")),
        };
        bytes.and_then(Self::new).ok_or_else(|| TraceError::Option {
            option: "--block",
            what: format!("`{text}` is no size of a block"),
            remedy: "give bytes, such as 512, 4k, 2MiB or page, at most 1 TiB".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_a_size_or_a_unit() {
        for (text, bytes) in [
            ("512", 512),
            ("4k", 4096),
            ("4KiB", 4096),
            ("4kB", 4000),
            ("2M", 2 << 20),
            ("2MB", 2_000_000),
            (" 2 MiB ", 2 << 20),
            ("k", 1024),
            ("page", 4096),
            ("2 pages", 8192),
            ("3sectors", 1536),
            ("1T", 1 << 40),
        ] {
            assert_eq!(text.parse::<BlockSize>().map(BlockSize::get).ok(), Some(bytes), "{text}");
        }
        for text in ["", " ", "0", "0page", "2T", "4 5k", "k5", "-1", "+1", "1.5k", "17592186044417pages"] {
            let error = text.parse::<BlockSize>().expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("2MiB"), "{error}");
        }
    }
}
