//! Fuzzes the target `frrwp_address`.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::target("frrwp_address").decode(bytes);
});
