//! Fuzzes the target `rdmakv_flags`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("rdmakv_flags").decode(bytes);
});
