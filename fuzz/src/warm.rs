//! Decoders of a warm restart: `FILE.meta`, and the items in `FILE`.

use rdmakv_server::startup::reread_meta;
use rdmakv_server::store::{Config, Continuation, Store};

/// `FILE.meta` is the same again after it was encoded. Its last four bytes are made right first.
pub(crate) fn meta(input: &[u8]) -> bool {
    let Some(end) = input.len().checked_sub(4) else { return false };
    let mut bytes = input.to_vec();
    let sum = rdmakv_flash::record::sum(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    let Some(again) = reread_meta(&bytes) else { return false };
    assert_eq!(again, bytes);
    true
}

/// Items of a run before: a store has those that are understood, and none after it is cleared.
pub(crate) fn items(input: &[u8]) -> bool {
    const NOW: u64 = 1_000_000;
    let config = Config { memory: 4 << 20, extra: 0, huge: false, ..Config::default() };
    let mut store = Store::new(&config).expect("memory");
    store.begin_restore(Continuation::default());
    let restored = store.restore(input, NOW);
    store.end_restore();
    let items = store.len();
    assert!(items * 37 <= input.len());
    store.clear(NOW);
    assert!(store.is_empty());
    restored.is_ok()
}
