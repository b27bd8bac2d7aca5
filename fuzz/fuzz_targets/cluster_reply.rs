//! Fuzzes the target `cluster_reply`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("cluster_reply").decode(bytes);
});
