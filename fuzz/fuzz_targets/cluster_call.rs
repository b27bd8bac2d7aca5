//! Fuzzes the target `cluster_call`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("cluster_call").decode(bytes);
});
