//! Fuzzes the target `cluster_fact`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("cluster_fact").decode(bytes);
});
