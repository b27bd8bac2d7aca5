//! Fuzzes the target `cost_model`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("cost_model").decode(bytes);
});
