//! Fuzzes the target `rdmakv_reply`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("rdmakv_reply").decode(bytes);
});
