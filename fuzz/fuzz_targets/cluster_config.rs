//! Fuzzes the target `cluster_config`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("cluster_config").decode(bytes);
});
