//! Fuzzes the target `rdmakv_fragments`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("rdmakv_fragments").decode(bytes);
});
