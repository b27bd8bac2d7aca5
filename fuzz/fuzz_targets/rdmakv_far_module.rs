//! Fuzzes the target `rdmakv_far_module`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("rdmakv_far_module").decode(bytes);
});
