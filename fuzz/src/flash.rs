//! Decoders of the flash tier: records, directories, superblocks, manifests.

use rdmakv_flash::layout::Layout;
use rdmakv_flash::record::{Summed, believe, directory, parse};
use rdmakv_flash::superblock::Superblock;
use rdmakv_flash::{Flash, Settings};

/// A record of the key `key`: what is believed lies within the bytes.
pub(crate) fn record(input: &[u8]) -> bool {
    let parsed = parse(input).is_ok_and(|(record, _, _)| record.key.len() + record.value.len() < input.len());
    let believed = believe(Summed::new(input), b"key", 9, 5).is_ok();
    assert!(parsed || !believed);
    believed
}

/// The directory at the end of a segment.
pub(crate) fn segment(input: &[u8]) -> bool {
    directory(input, 5).is_some_and(|entries| {
        assert!(entries.len() * 12 <= input.len());
        entries.count() > 0
    })
}

/// A superblock is the same again after it was encoded.
pub(crate) fn superblock(input: &[u8]) -> bool {
    let Ok(block) = Superblock::decode(input) else { return false };
    assert_eq!(Superblock::decode(&block.encode()), Ok(block));
    true
}

/// The manifest of stop 1. Its last four bytes are made right first, or hardly any input would get beyond its sum.
pub(crate) fn manifest(input: &[u8]) -> bool {
    let layout = Layout::new(&[4096 + (8 << 14)], 1, 0, 1 << 14, 512).expect("sizes that fit");
    let Some(end) = input.len().checked_sub(4) else { return false };
    let mut bytes = input.to_vec();
    let sum = rdmakv_flash::record::sum(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    let Ok(mut flash) = Flash::restore(Settings::new(layout, 1, 1), &bytes, 1) else { return false };
    assert!(flash.usage().items * 13 <= input.len());
    flash.flush();
    while flash.work(0) {}
    assert_eq!((flash.usage().items, flash.usage().free_segments), (0, 8));
    true
}
