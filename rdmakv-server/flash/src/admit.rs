//! Admission: which items that leave RAM are worth a write.

use thiserror::Error;

use crate::record::Entry;

/// Seconds that an item has to have left.
const LEFT: u32 = 30;

/// Why an item that left RAM is not on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// Shorter or longer than what may be there.
    #[error("admit item: its size is not one for flash: set ext_item_size")]
    Size,
    /// It expires too soon.
    #[error("admit item: it expires within {LEFT} s: keep such items in RAM")]
    Expiry,
    /// Flash is full, and no client asked for the item.
    #[error("admit item: flash is full and the item was never fetched: give more flash")]
    Unread,
    /// The device is slower than what is to be written.
    #[error("admit item: the device is behind: use a faster one or larger buffers")]
    Busy,
    /// No room is left for its stub.
    #[error("admit item: no memory is left for its stub: raise -m")]
    Stubs,
    /// Every file was given up.
    #[error("admit item: all files were given up: replace the device and restart")]
    Lost,
}

/// Decides by what the item is; `is_short` says that others go for it.
pub(crate) fn worth(
    entry: &Entry<'_>,
    len: usize,
    sizes: (usize, usize),
    is_short: bool,
    now: u32,
) -> Result<(), Refused> {
    if len < sizes.0 || len > sizes.1 {
        return Err(Refused::Size);
    }
    if entry.expiry != 0 && entry.expiry <= now.saturating_add(LEFT) {
        return Err(Refused::Expiry);
    }
    if is_short && entry.frequency == 0 && !entry.fetched {
        return Err(Refused::Unread);
    }
    Ok(())
}
