//! Fuzzes the target `rdmakv_item`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("rdmakv_item").decode(bytes);
});
